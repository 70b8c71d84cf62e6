"""Consuming from coroutines."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from headrace import consumer as blocking
from headrace._listener import Listener
from headrace._options import OptionValue, Servers, pairs
from headrace._stop import row_at
from headrace._types import GroupMetadata, TopicPartition
from headrace.aio._callbacks import Callbacks
from headrace.aio._loop import Lookout, Mailbox, Slot, Turn

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

    from headrace.values import Format

TURN_S = 0.005
"""A task that finds rows each time it polls lets the others have their turn as often as this."""

POLL_SLICE_S = 0.25
"""A poll that waits tells the group as often that its caller is there."""

ONE_POLLS = (
    "another task is polling this consumer, whose automatic commits take what was handed out before a poll as "
    "processed: tasks that share the work take enable_auto_commit=False, or a Stream's committable() or map"
)


class Consumer:
    """Reads partitions from coroutines; `headrace.Consumer` with its waits turned into awaits.

    It has no ``commit_async`` and is not an Arrow stream.

    No thread is started for a call, and none blocks; only schemas that are new are looked up in one. Methods that
    take effect at once are not coroutines: `pause`, `resume`, `seek`, `assignment` and the like. All calls must be
    made in one event loop, that of the first awaited call. Several tasks may poll at the same time, and each row
    goes to one of them, but not with automatic commits (a ``group.id``, and ``enable.auto.commit`` not False):
    there each poll counts all rows that were returned before as processed, whichever task got them, so only one
    task may poll, and a poll while another waits is a `UsageError`. Tasks that share the work commit themselves, or
    use `Stream.committable` or ``map``.

    A call that is cancelled while it waits has taken no rows. A request to the group or the broker, such as a commit,
    may be carried out all the same. A compressed batch is decoded in the poll that takes it, about a mebibyte at a
    time.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names; docs/options.md lists them, and docs/security.md describes ``oauth_cb``, the
            only one that is a function.
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md).
        **options: the same as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | None = None,
        config: Mapping[str, OptionValue] | None = None,
        *,
        key: Format | None = None,
        value: Format | None = None,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on first use."""
        settings = dict(pairs(bootstrap_servers, config, options))
        self._blocking = blocking.Consumer(None, settings, key=key, value=value)
        commits = bool(settings.get("group.id")) and settings.get("enable.auto.commit", "true").lower() != "false"
        self._polling: Turn | contextlib.nullcontext[None] = Turn(ONE_POLLS) if commits else contextlib.nullcontext()
        self._native = self._blocking._native.awaiting()  # noqa: SLF001  (the same client with another face)
        self._reads = False
        self._lookout = Lookout(self._native)
        self._callbacks = Callbacks(self._blocking._native)  # noqa: SLF001
        self._mailbox: Mailbox | None = None
        self._ending: set[asyncio.Future[Any]] = set()
        self._turn = 0.0

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._blocking.schema

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        on_assigned: Callable[[list[TopicPartition]], object] | None = None,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        """Joins the group ``group.id`` for these topics; partitions are assigned during the next `poll` calls.

        The callbacks are functions or coroutine functions, called one at a time within `poll`, `poll_all`,
        `unsubscribe` and `close`, with the partitions in question; `headrace.Consumer.subscribe` says what they may
        rely on. The group waits for a coroutine, and so do these calls in all tasks; within a callback they are a
        `UsageError`. A call that is cancelled meanwhile leaves the coroutine running. An exception in a callback is
        raised by the call that ran it or, if that was cancelled, by the next one. A process that exits without `close`
        calls none.

        Args:
            topics: names of topics, or a compiled pattern as `headrace.Consumer.subscribe` takes it.
            on_assigned: these partitions were assigned. No row of them is returned before it is called.
            on_revoked: these partitions are about to go to other members, and can still be committed.
            on_lost: these partitions are already lost. By default ``on_revoked`` is called instead.

        Raises:
            ConfigError: ``group.id`` is not set, or the pattern cannot be used.
        """
        self._callbacks.refuse_within("subscribe")
        names, pattern = blocking.subscription(topics)
        await self._bind([] if pattern is not None else names)
        await self._callbacks.over(None)
        self._callbacks.listen(Listener.of(on_assigned, on_revoked, on_lost))
        self._reads = True
        if pattern is not None:
            await self._ask(lambda slot: self._native.begin_subscribe_pattern(pattern, slot))
        else:
            await self._ask(lambda slot: self._native.begin_subscribe(names, slot))

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions, from their committed offsets, or else as ``auto.offset.reset`` says."""
        chosen = list(partitions)
        if chosen:
            await self._bind({topic for topic, _ in chosen})
        await self._assign([((topic, number), None) for topic, number in chosen])

    async def _bind(self, topics: Collection[str]) -> None:
        # A registry may be asked.
        if self._blocking._columns is not None:  # noqa: SLF001
            await asyncio.to_thread(self._blocking._bind, topics)  # noqa: SLF001

    async def unsubscribe(self) -> None:
        """Leaves the group, or drops the assignment. It is carried out even if it is cancelled."""
        self._callbacks.refuse_within("unsubscribe")
        await self._to_its_end(self._unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are being read."""
        return self._blocking.assignment()

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """Returns the next batch: rows of one partition, a slice of what was fetched, not a copy.

        Args:
            timeout: seconds to wait for the first row.
            max_records: the most rows to return; None uses ``max.poll.records``, whose default returns all that is
                ready of that partition's chunk.

        Returns:
            A batch; it has no rows if the time ran out.

        Raises:
            KafkaError: the broker's error, with topic and partition.
            OffsetOutOfRangeError: the position is not in the log and ``auto.offset.reset`` is ``none``.
            RecordError: a record cannot be read; `seek` past it to go on.
            DecodeError: the next row's key or value is not of its format; `seek` past it to go on. The rows before it
                were returned.
            ClosedError: the consumer was closed meanwhile.
            UsageError: nothing is subscribed or assigned (a call without ``await`` does nothing), another event loop
                uses this consumer, or another task polls while commits are automatic.
        """
        self._callbacks.refuse_within("poll")
        self._check_reads()
        self._blocking._raise_stopped()  # noqa: SLF001
        async with self._polling:
            rows = await self._take(lambda: self._native.try_poll(max_records), timeout)
        return self._blocking._no_rows() if rows is None else (await self._decoded([rows]))[0]  # noqa: SLF001

    async def poll_all(self, timeout: float = 1.0, max_records: int | None = None) -> list[pa.RecordBatch]:
        """Returns one batch for each partition that has rows ready; waits up to ``timeout`` for the first.

        ``max_records`` limits the rows of all batches together.
        """
        self._callbacks.refuse_within("poll_all")
        self._check_reads()
        self._blocking._raise_stopped()  # noqa: SLF001
        async with self._polling:
            found = await self._take(lambda: self._native.try_poll_all(max_records), timeout)
        return await self._decoded(found or [])

    async def _decoded(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The batches with their columns. A call that is cancelled while a schema is looked up has taken no rows."""
        columns = self._blocking._columns  # noqa: SLF001
        if columns is not None and columns.lacks(batches):
            try:
                await asyncio.to_thread(columns.learn, batches)
            except BaseException:
                for batch in batches:
                    self._blocking._go_back(row_at(batch, 0, None))  # noqa: SLF001
                raise
        return self._blocking._decoded(batches)  # noqa: SLF001

    def _check_reads(self) -> None:
        if not self._reads:
            self._blocking._refuse_to_poll(", and await it: without await a call does nothing")  # noqa: SLF001

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next row that `poll` returns for the partition; looked up if it is not known yet.

        Args:
            partition: an assigned partition.
            timeout: seconds; by default ``default.api.timeout.ms``.
        """
        name = (partition[0], partition[1])
        position: int = await self._ask(lambda slot: self._native.begin_position(name, timeout, slot))
        return position

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continues from ``offset`` in that partition; what was fetched of it is dropped. Takes effect at once."""
        self._blocking.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continues from the earliest offset; by default in every assigned partition. Takes effect at once."""
        self._blocking.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continues from the end of the log; by default in every assigned partition. Takes effect at once."""
        self._blocking.seek_to_end(partitions)

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Returns no rows of these partitions until `resume`; what was fetched of them is kept."""
        self._blocking.pause(partitions)

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Returns rows of these partitions again, first those that were kept."""
        self._blocking.resume(partitions)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._blocking.paused()

    def metrics(self) -> dict[str, float]:
        """Figures of what was read and what is in the fetch cache: see `headrace.Consumer.metrics`."""
        return self._blocking.metrics()

    async def commit(self, offsets: Mapping[tuple[str, int], int] | None = None, timeout: float | None = None) -> None:
        """Commits positions for the group and awaits the answer. It may be carried out even if it is cancelled.

        Args:
            offsets: next offset to read by partition; by default the position of every assigned partition.
            timeout: seconds; by default ``default.api.timeout.ms``.
        """
        given = blocking.given_offsets(offsets)
        await self._ask(lambda slot: self._native.begin_commit(given, timeout, slot))

    async def group_metadata(self) -> GroupMetadata:
        """This consumer's membership, for `Producer.send_offsets_to_transaction`; get it anew for each transaction.

        Raises:
            ConfigError: ``group.id`` is not set.
            RebalanceInProgressError: the consumer is joining its group; continue to poll.
        """
        return GroupMetadata(*await self._ask(self._native.begin_group_metadata))

    async def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The group's committed offsets, by partition; None where there is none."""
        names = blocking.several("committed", partitions)
        found = await self._ask(lambda slot: self._native.begin_committed(names, timeout, slot))
        return {TopicPartition(*tp): offset for tp, offset in found}

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The earliest offset of each partition."""
        return await self._offsets(blocking.several("beginning_offsets", partitions), -2, timeout)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition."""
        return await self._offsets(blocking.several("end_offsets", partitions), -1, timeout)

    async def close(self, timeout: float = blocking.CLOSE_TIMEOUT_S) -> None:
        """Commits if ``enable.auto.commit`` is on, leaves the group, and stops the threads.

        Calls that still wait end with `ClosedError`. A close that is cancelled goes on in the background, in the end in
        the event loop's default executor. All rows that were returned count as processed, except those of the last poll
        when an ``async with`` block ends by an exception.
        """
        self._callbacks.refuse_within("close")
        await self._to_its_end(self._close(timeout, finished=True))

    async def __aenter__(self) -> Self:
        """The consumer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it.

        After an exception in the block, the rows of the last poll do not count as processed, and an error from closing
        does not hide that exception.
        """
        try:
            await self._to_its_end(self._close(blocking.CLOSE_TIMEOUT_S, finished=error is None))
        except Exception:
            if error is None:
                raise

    async def _take(self, take: Callable[[], Any], timeout: float) -> Any:
        """What ``take`` finds within the time. Nothing is awaited once it has found something."""
        loop = self._home().loop
        deadline = loop.time() + timeout
        if loop.time() - self._turn > TURN_S:
            await asyncio.sleep(0)
            self._turn = loop.time()
        while True:
            # Whoever polls says that all is processed: not while others are notified of partitions that go.
            if not await self._callbacks.over(max(0.0, deadline - loop.time())):
                return None
            found = take()
            self._blocking._tell_troubles()  # noqa: SLF001
            if found:
                return found
            if await self._callbacks.tell_next():
                continue
            left = deadline - loop.time()
            if left <= 0:
                return None
            await self._lookout.wait(None, min(left, POLL_SLICE_S))
            self._turn = loop.time()

    async def _unsubscribe(self) -> None:
        try:
            await self._callbacks.give_back()
        finally:
            self._reads = False
            await self._ask(self._native.begin_unsubscribe)
            self._callbacks.listen(None)

    async def _close(self, timeout: float, *, finished: bool) -> None:
        try:
            await self._callbacks.give_back()
        finally:
            await asyncio.to_thread(self._blocking._close, timeout, finished=finished)  # noqa: SLF001

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Also when who awaits it is cancelled."""
        task = asyncio.ensure_future(work)
        # The event loop alone would let it be collected.
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def _assign(self, partitions: list[tuple[tuple[str, int], int | None]]) -> None:
        """With the offset where each begins; None for the group's."""
        self._reads = bool(partitions)
        await self._ask(lambda slot: self._native.begin_assign(partitions, slot))

    async def _commit_parts(self, offsets: list[tuple[int, tuple[str, int], int, int]]) -> None:
        """Partitions by number and name, with offset and leader epoch; nothing is committed when one is gone."""
        await self._ask(lambda slot: self._native.begin_commit_parts(offsets, None, slot))

    async def _ask(self, begin: Callable[[Slot], None]) -> Any:
        slot = self._home().slot()
        begin(slot)
        return await slot.future

    async def _offsets(
        self, partitions: list[tuple[str, int]], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._ask(lambda slot: self._native.begin_list_offsets(partitions, timestamp, timeout, slot))
        return {TopicPartition(*tp): at for tp, at in found}

    def _home(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop(), "consumer")
        self._mailbox.check_loop()
        return self._mailbox
