"""Share groups from coroutines."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from headrace import share as blocking
from headrace.aio._loop import Lookout, Mailbox, Slot, Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

    from headrace._acknowledgements import How
    from headrace._options import OptionValue, Servers
    from headrace._types import TopicPartition
    from headrace.share import Results
    from headrace.values import Format

ONE_POLLS = (
    "another task is polling this share consumer, and a poll settles what the one before gave: take a consumer for "
    "each task"
)


class ShareConsumer:
    """Takes records as a member of a share group; `headrace.ShareConsumer` with its waits turned into awaits.

    It has no ``commit_async``. No thread is started for a call, and none blocks; methods that take effect at once are
    not coroutines. All calls must be made in one event loop, that of the first awaited call, and one task at a time may
    poll. A call that is cancelled while it waits has taken no rows. A commit that is cancelled may be carried out all
    the same.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names; docs/options.md lists them.
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md). A share
            consumer takes formats with ``on_error`` ``"null"`` or ``"column"``.
        **options: the same as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range; or ``group.id`` is missing.
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
        self._blocking = blocking.ShareConsumer(bootstrap_servers, config, key=key, value=value, **options)
        self._native = self._blocking._native.awaiting()  # noqa: SLF001  (the same client with another face)
        self._lookout = Lookout(self._native)
        self._polling = Turn(ONE_POLLS)
        self._mailbox: Mailbox | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._blocking.schema

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the share group for these topics; see `headrace.ShareConsumer.subscribe`."""
        names = blocking.topic_names(topics)
        if self._blocking._columns is not None:  # noqa: SLF001
            # A registry may be asked.
            await asyncio.to_thread(self._blocking._bind, names)  # noqa: SLF001
        await self._ask(lambda slot: self._native.begin_subscribe(names, slot))
        self._blocking._topics = names  # noqa: SLF001
        self._blocking._reads = True  # noqa: SLF001

    async def unsubscribe(self) -> None:
        """Leaves the group. Rows that were returned can still be acknowledged; all other held records are released."""
        await self._ask(lambda slot: self._native.begin_subscribe([], slot))
        self._blocking._topics = []  # noqa: SLF001

    def subscription(self) -> list[str]:
        """The topics passed to `subscribe`."""
        return self._blocking.subscription()

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions; other members may have the same ones."""
        return self._blocking.assignment()

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """Returns the next batch of one partition; sends acknowledgements, or accepts the rows of the polls before.

        Args:
            timeout: seconds to wait for the first row.
            max_records: the most rows to return; None uses ``max.poll.records``.

        Returns:
            A batch; it has no rows if the time ran out.

        Raises:
            KafkaError: the group or a broker refused; the next poll tries again.
            UsageError: another task polls, or, with explicit acknowledgement, some rows are not acknowledged.
            ClosedError: the consumer was closed meanwhile.
        """
        if not self._blocking._raw:  # noqa: SLF001
            rows = await self._take(lambda: self._native.try_poll(max_records), timeout)
            if rows is None:
                return self._blocking._no_rows()  # noqa: SLF001
            self._blocking._raw = [rows]  # noqa: SLF001
        await self._learn()
        # Another task may have come while a schema was looked up.
        found = self._blocking._handed_out(1)  # noqa: SLF001
        return found[0] if found else self._blocking._no_rows()  # noqa: SLF001

    async def _learn(self) -> None:
        """Has new schemas looked up, in a thread. Whoever is cancelled meanwhile leaves the rows to the next poll."""
        columns, raw = self._blocking._columns, self._blocking._raw  # noqa: SLF001
        if columns is not None and columns.lacks(raw):
            await asyncio.to_thread(columns.learn, raw)

    async def poll_all(self, timeout: float = 1.0, max_records: int | None = None) -> list[pa.RecordBatch]:
        """Returns all batches that are ready, each of one partition; waits up to ``timeout`` for the first.

        ``max_records`` limits the rows of all batches together.
        """
        if not self._blocking._raw:  # noqa: SLF001
            found = await self._take(lambda: self._native.try_poll_all(max_records), timeout)
            self._blocking._raw = found or []  # noqa: SLF001
        await self._learn()
        return self._blocking._handed_out(sys.maxsize)  # noqa: SLF001

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yields one batch after the other, endlessly.

        With implicit acknowledgement a batch is accepted when the next one is requested; after a loop that ends by an
        exception or a ``break``, its last batch is left to `commit` and `close`.
        """
        while True:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    def acknowledge(self, rows: Any, how: How = "accept", *, otherwise: str | int = "release") -> None:
        """Acknowledges rows, without waiting; see `headrace.ShareConsumer.acknowledge`."""
        self._blocking.acknowledge(rows, how, otherwise=otherwise)

    async def commit(self, timeout: float | None = None) -> Results:
        """Sends acknowledgements, or accepts the rows of polls if that is implicit, and awaits the answers.

        Returns:
            As `headrace.ShareConsumer.commit`.
        """
        self._blocking._refuse_raw()  # noqa: SLF001
        found = await self._ask(lambda slot: self._native.begin_commit(timeout, slot))
        self._blocking._tell()  # noqa: SLF001
        return blocking.results_of(found)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long brokers lock a record for a member, in milliseconds; None before the first answer."""
        return self._blocking.acquisition_lock_timeout_ms

    def metrics(self) -> dict[str, float]:
        """Counters since the consumer was created: see `headrace.ShareConsumer.metrics`."""
        return self._blocking.metrics()

    def decisions(self) -> list[str]:
        """The last 256 decisions to ask a broker for records, with reasons, as sentences, the oldest first."""
        return self._blocking.decisions()

    async def close(self, timeout: float = blocking.CLOSE_TIMEOUT_S) -> None:
        """Accepts the rows of the last poll, or sends acknowledgements; releases all other records; leaves the group.

        Calls that still wait end with `ClosedError`. A close that is cancelled goes on in the background.
        """
        await self._close(timeout, finished=True)

    async def __aenter__(self) -> Self:
        """The consumer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it.

        After an exception in the block, including a cancellation, the rows of the last poll are released; an error from
        closing does not hide that exception.
        """
        try:
            await self._close(blocking.CLOSE_TIMEOUT_S, finished=error is None)
        except Exception:
            if error is None:
                raise

    async def _take(self, take: Callable[[], Any], timeout: float) -> Any:
        """What ``take`` finds within the time. Nothing is awaited once it has found something."""
        self._blocking._check_reads()  # noqa: SLF001
        async with self._polling:
            loop = self._home().loop
            deadline = loop.time() + timeout
            self._native.begin_poll()
            # Others have their turn even if there are always rows.
            await asyncio.sleep(0)
            found = take()
            if not found:
                found = await self._wait(take, deadline)
            self._blocking._tell()  # noqa: SLF001
            return found

    async def _wait(self, take: Callable[[], Any], deadline: float) -> Any:
        """While it waits, brokers are asked for rows."""
        found = None
        self._native.begin_wait()
        try:
            while not found and (left := deadline - self._home().loop.time()) > 0:
                await self._lookout.wait(None, left)
                found = take()
        finally:
            self._native.end_wait(bool(found))
        return found

    async def _close(self, timeout: float, *, finished: bool) -> None:
        await asyncio.shield(asyncio.to_thread(self._blocking._close, timeout, finished=finished))  # noqa: SLF001

    async def _ask(self, begin: Callable[[Slot], None]) -> Any:
        slot = self._home().slot()
        begin(slot)
        return await slot.future

    def _home(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop(), "share consumer")
        self._mailbox.check_loop()
        return self._mailbox
