"""Streams: batches on request, and commits that follow the work."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from headrace._options import OptionValue, pairs
from headrace._types import TopicPartition
from headrace.aio._flows import AtMostOnce, Batches, Committables, Flow, Mapped, Partitions
from headrace.aio._ledger import Committer, Part
from headrace.aio._pending import Pending
from headrace.aio.consumer import TURN_S, Consumer
from headrace.errors import ClosedError, ConfigError, Fatal, KafkaError, KafkaTimeoutError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType
    from typing import Literal

    import pyarrow as pa
    from typing_extensions import Self

    from headrace import _native
    from headrace.aio._ledger import Mark, Work
    from headrace.values import Format

Starts: TypeAlias = "Mapping[tuple[str, int], int] | Mapping[TopicPartition, int]"
Topics: TypeAlias = "str | Iterable[str] | re.Pattern[str] | Iterable[tuple[str, int]] | Mapping[tuple[str, int], int]"
AnyFlow = TypeVar("AnyFlow", bound="Flow[Any]")

PULSE_S = 0.1
"""How often a stream shows its group that its reader is alive, and looks for changes."""

SETTLE_S = 0.02
"""How often it checks whether unfinished work is done, while something waits for that."""

COMMIT_TIMEOUT_S = 10.0
"""How long leaving a stream waits for the calls of a map that it has cancelled, and for its last commit."""


class Stream:
    """Reads topics as an async iterator; an async context manager.

    Rows leave the cache when they are requested. A partition whose reader falls behind is fetched no further than about
    a mebibyte and one Fetch ahead (``max.partition.fetch.bytes``), and none of it is dropped. See docs/streams.md.

    Use a stream in one form only: iterate over it, or use one of `partitions`, `committable` and `at_most_once`; each
    form also has `Flow.map`. With a ``group.id`` the stream commits finished rows. When it is iterated plainly or by
    partition, a batch is finished when the next one is requested, and ``enable.auto.commit=False`` turns commits off.
    All calls must be made in one event loop.

    Args:
        bootstrap_servers: ``"host:port"``, several with commas or as a list; or a mapping of options by Kafka's
            names, ``bootstrap.servers`` among them, as confluent-kafka takes it.
        topics: one or several topics, or a pattern of names, to subscribe to; or partitions to assign; or partitions
            with the offset where each begins.
        config: consumer options by Kafka's names; docs/options.md lists them.
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md). After a `DecodeError` each further request for
            that partition, or in a form over all partitions each request, raises it again.
        start_offsets: a function or coroutine function that is called with the partitions of each assignment and
            returns the offsets to begin at. Partitions that it leaves out begin at the committed offset, or else as
            ``auto.offset.reset`` says.
        commit_batches: number of finished batches after which a commit is sent.
        commit_interval_ms: time after which a commit is sent; by default ``auto.commit.interval.ms``.
        commit_parallelism: most commits in flight at a time; at most one per partition.
        revoke_wait_ms: how long a rebalance waits for unfinished batches; the next owner reads those that are still
            unfinished again.
        **options: consumer options as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range, or ``key`` or ``value`` is no format.
        ValueError: ``topics`` is empty, or has both names and partitions.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None,
        topics: Topics,
        config: Mapping[str, OptionValue] | None = None,
        *,
        key: Format | None = None,
        value: Format | None = None,
        start_offsets: Callable[[list[TopicPartition]], Starts | Awaitable[Starts]] | None = None,
        commit_batches: int = 100,
        commit_interval_ms: float | None = None,
        commit_parallelism: int = 1,
        revoke_wait_ms: float = 1000,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on entry."""
        settings = dict(pairs(bootstrap_servers, config, options))
        # The stream itself commits what is finished: the consumer only knows what was handed out.
        self._auto_commit = settings.get("enable.auto.commit", "true").lower() != "false"
        if settings.get("enable.auto.commit", "true").lower() in {"true", "false"}:
            settings["enable.auto.commit"] = "false"
        self._has_group = bool(settings.get("group.id"))
        self._wanted = _wanted(topics)
        for name, number in (("commit_batches", commit_batches), ("commit_parallelism", commit_parallelism)):
            if number < 1:
                message = f"{name} is at least 1, not {number}"
                raise ValueError(message)
        self._consumer = Consumer(None, settings, key=key, value=value)
        self._native = self._consumer._native  # noqa: SLF001  (the same client with another face)
        self._lookout = self._consumer._lookout  # noqa: SLF001
        columns = self._consumer._blocking._columns  # noqa: SLF001
        self._pending = None if columns is None else Pending(columns)
        interval_ms = commit_interval_ms
        if interval_ms is None:
            interval_ms = float(settings.get("auto.commit.interval.ms", "5000"))
        self._committer = Committer(
            self._commit,
            self._refresh,
            batches=commit_batches,
            interval_s=interval_ms / 1000,
            parallelism=commit_parallelism,
        )
        self._start_offsets = start_offsets
        self._revoke_wait_s = revoke_wait_ms / 1000
        self._committing = False
        self._parts: dict[int, Part] = {}
        self._offered: deque[Part] = deque()
        self._flows: list[Flow[Any] | Mapped[Any]] = []
        self._form: Flow[Any] | Partitions[Any] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse: asyncio.Task[None] | None = None
        self._release: asyncio.Task[None] | None = None
        self._news: asyncio.Event = asyncio.Event()
        self._stopped = False
        self._error: BaseException | None = None
        self._heard: KafkaError | None = None
        self._turn = 0.0
        self._seen_changes = -1

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._consumer.schema

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are being read."""
        return self._consumer.assignment()

    def __aiter__(self) -> Batches:
        """Batches of all partitions; each counts as finished when the next one is requested."""
        if isinstance(self._form, Batches):
            return self._form
        return self._take_as(Batches(self, None), commits=self._auto_commit)

    def map(self, function: Callable[[pa.RecordBatch], Any], parallelism: int) -> Mapped[Any]:
        """`Flow.map` over the batches of all partitions; one counts as finished when the next result is requested."""
        return self.__aiter__().map(function, parallelism)

    def committable(self) -> Committables:
        """Batches of all partitions, committed as their reader marks them, by `Committable.done` or ``commit``.

        Raises:
            ConfigError: ``group.id`` is not set.
        """
        self._need_group("committable")
        return self._take_as(Committables(self, None), commits=True)

    def at_most_once(self) -> AtMostOnce:
        """Batches of all partitions, each committed before it is returned: one round trip per batch.

        Raises:
            ConfigError: ``group.id`` is not set.
        """
        self._need_group("at_most_once")
        return self._take_as(AtMostOnce(self, None), commits=True)

    @overload
    def partitions(self) -> Partitions[Batches]: ...
    @overload
    def partitions(self, *, committable: Literal[False]) -> Partitions[Batches]: ...
    @overload
    def partitions(self, *, committable: Literal[True]) -> Partitions[Committables]: ...

    def partitions(self, *, committable: bool = False) -> Partitions[Batches] | Partitions[Committables]:
        """Each partition as it is assigned, with an async iterator over its batches that ends when it is revoked.

        Each is read at its own speed: one that is not read does not hold up the others.

        Args:
            committable: yield `Committable` batches instead of plain ones.

        Raises:
            ConfigError: ``committable`` without a ``group.id``.
        """
        if committable:
            self._need_group("committable")
            return self._take_as(Partitions(self, Committables), commits=True)
        return self._take_as(Partitions(self, Batches), commits=self._auto_commit)

    def stop(self) -> None:
        """Returns no more batches: iterators end at their next step. Commits go on until the block is left."""
        self._stopped = True
        self._news.set()
        self._lookout.wake_all()

    async def drain_and_stop(self, timeout: float = 30.0) -> None:
        """Stops, and waits until all batches that were returned are finished and committed.

        This call finishes the batch that this task took last in a plain form, as requesting the next one would. It does
        not finish results of a `map`: call `stop` and read the map to its end first.

        Args:
            timeout: seconds.

        Raises:
            KafkaTimeoutError: that took longer; the message names the partitions that are not done.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        self.stop()
        for flow in self._flows:
            flow.leave()
        left = await self._settle(deadline)
        if left:
            names = ", ".join(f"{name.topic}-{name.partition}" for name in left[:3])
            message = f"draining the stream took longer than {timeout} s: {names} not finished or not committed"
            raise KafkaTimeoutError(message, name="REQUEST_TIMED_OUT")

    async def __aenter__(self) -> Self:
        """Subscribes to the topics, or assigns the partitions.

        Raises:
            ConfigError: ``group.id`` is not set, or several topics are read by a format that needs one.
            SchemaRegistryError: the registry does not have the schema of the columns, or does not answer.
        """
        if self._pulse is not None or self._stopped:
            message = "a stream is entered once; make another"
            raise UsageError(message, name="ILLEGAL_STATE")
        self._native.admit(self._start_offsets is not None, True)  # noqa: FBT003  (gated, on demand)
        try:
            if isinstance(self._wanted, dict):
                await self._consumer._bind({topic for topic, _ in self._wanted})  # noqa: SLF001
                await self._consumer._assign(list(self._wanted.items()))  # noqa: SLF001
            else:
                await self._consumer.subscribe(self._wanted)
        except BaseException:
            await self._consumer.close()
            raise
        self._pulse = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops, commits finished batches, closes. Without an exception, batches of plain forms count as finished."""
        self.stop()
        flows, self._flows = self._flows, []
        calls: set[asyncio.Future[Any]] = set()
        for flow in flows:
            if kind is None:
                flow.leave()
            calls |= set(flow.close())
        tasks = [*self._tasks, *(task for task in (self._pulse, self._release) if task is not None)]
        if self._pending is not None:
            tasks += self._pending.close()
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if calls:
                await asyncio.wait(calls, timeout=COMMIT_TIMEOUT_S)
            if self._committing:
                await self._committer.flush(COMMIT_TIMEOUT_S)
        finally:
            try:
                await self._consumer.close()
            finally:
                self._committer.end()

    # What the forms ask for.

    async def next_work(self, part: Part | None, chunks: _native.Chunks) -> Work | None:
        """The next rows, of one partition or of any; None at the end. A cancelled call has taken no rows."""
        loop = asyncio.get_running_loop()
        self._need_block()
        if loop.time() - self._turn > TURN_S:
            await asyncio.sleep(0)
            self._turn = loop.time()
        while True:
            self._raise_heard()
            if self._stopped or (part is not None and part.gone):
                return None
            work = self._pending_work(part)
            if work is not None:
                return work
            taken = self._take(part)
            if taken is not None:
                owner = self._part(taken.part)
                if owner is not None:
                    work = self._work(owner, taken, chunks)
                    if work is not None:
                        return work
            elif part is not None and self._native.has_rows(part.number) is None:
                self._refresh()
            else:
                await self._wait(part)
                self._turn = loop.time()

    async def next_part(self) -> Part | None:
        """The next partition that was assigned; None at the end."""
        self._need_block()
        while True:
            self._raise_heard()
            if self._stopped:
                return None
            while self._offered:
                part = self._offered.popleft()
                if not part.gone:
                    return part
            self._news.clear()
            await self._news.wait()

    def refresh(self) -> None:
        """Takes over which partitions were assigned or revoked."""
        # Results that were there before the end are still given.
        with contextlib.suppress(ClosedError):
            self._refresh()

    def finish(self, work: Work) -> None:
        """The work is done."""
        self._committer.finish(work, begin=self._committing)

    async def committed(self, work: Work) -> None:
        """Awaits a commit that covers it."""
        await self._committer.committed(work)

    def enter(self, flow: Flow[Any] | Mapped[Any]) -> None:
        """Has it closed with the stream."""
        # Sub-streams of partitions that are gone are no longer needed for that.
        self._flows = [flow for flow in self._flows if not flow.is_over]
        self._flows.append(flow)

    # Its own.

    @overload
    def _take_as(self, form: AnyFlow, *, commits: bool) -> AnyFlow: ...
    @overload
    def _take_as(self, form: Partitions[AnyFlow], *, commits: bool) -> Partitions[AnyFlow]: ...

    def _take_as(self, form: Any, *, commits: bool) -> Any:
        if self._form is not None:
            message = "a stream is taken in one form; make another stream for another"
            raise UsageError(message, name="ILLEGAL_STATE")
        self._form = form
        self._committing = commits and self._has_group
        return form

    def _need_group(self, what: str) -> None:
        if not self._has_group:
            message = f"option group.id: it is needed for {what}"
            raise ConfigError(message, name="INVALID_CONFIG")

    def _need_block(self) -> None:
        if self._pulse is None:
            message = "a stream is read inside of its block: async with Stream(...) as stream"
            raise UsageError(message, name="ILLEGAL_STATE")

    def _pending_work(self, part: Part | None) -> Work | None:
        """Rows that were taken before and can be handed out now."""
        if self._pending is None or not self._pending.has(part):
            return None
        # In this order: what the group does not want back by then, and is ours after that, is ours.
        going = self._native.parts_going()
        self._refresh()
        return self._pending.next(part, going)

    def _take(self, part: Part | None) -> _native.Taken | None:
        """What the cache has, except of partitions whose rows are pending: theirs come first."""
        pending = self._pending
        if pending is None or not pending.has(part):
            return self._native.take(None if part is None else part.number, None)
        if part is not None:
            return None
        number = pending.first_without(self._native.parts_ready())
        if number is not None:
            return self._native.take(number, None)
        # As a take of any partition does.
        self._native.raise_error()
        return None

    def _work(self, part: Part, taken: _native.Taken, chunks: _native.Chunks) -> Work | None:
        """The rows as they are handed out; None while their schema is looked up."""
        batch = chunks.batch(taken)
        if self._pending is None:
            return part.hand_out(batch, taken.next_offset, taken.leader_epoch)
        return self._pending.take_in(part, batch, taken.next_offset, taken.leader_epoch)

    async def _wait(self, part: Part | None) -> None:
        """Awaits that it is worth asking again."""
        if self._pending is None or not self._pending.has(part):
            await self._lookout.wait(None if part is None else part.number, None)
        elif look_ups := self._pending.look_ups(part):
            # Not for rows: those of the partition that waits for its schema would end the wait at once.
            await asyncio.wait(look_ups, timeout=PULSE_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(PULSE_S)  # the group wants the partition back

    def _part(self, number: int) -> Part | None:
        if number not in self._parts:
            self._refresh()
        return self._parts.get(number)

    def _refresh(self) -> None:
        """Takes over which partitions are ours."""
        # The count first: what changes after it is seen the next time.
        changes = self._native.changes()
        if changes == self._seen_changes:
            return
        self._seen_changes = changes
        # Partitions that are lost for good take their readers with them: these have to hear why.
        self._hear()
        now = {number: TopicPartition(*name) for number, name in self._native.parts()}
        if now.keys() == self._parts.keys():
            return
        for number in self._parts.keys() - now.keys():
            part = self._parts.pop(number)
            self._committer.remove(part)
            if self._pending is not None:
                self._pending.remove(part)
        # Not every form takes what is offered.
        self._offered = deque(part for part in self._offered if not part.gone)
        new = [Part(number, name) for number, name in now.items() if number not in self._parts]
        for part in new:
            self._parts[part.number] = part
            self._committer.add(part)
        if self._start_offsets is None:
            self._offered.extend(new)
        elif new:
            self._spawn(self._open(self._start_offsets, new))
        self._news.set()
        self._lookout.wake_all()
        for flow in self._flows:
            flow.wake()

    async def _open(
        self, start_offsets: Callable[[list[TopicPartition]], Starts | Awaitable[Starts]], parts: list[Part]
    ) -> None:
        """Asks where newly assigned partitions begin."""
        starts = start_offsets([part.name for part in parts])
        if inspect.isawaitable(starts):
            starts = await starts
        plain: dict[tuple[str, int], int] = {(name[0], name[1]): offset for name, offset in starts.items()}
        for name, offset in plain.items():
            if offset < 0:
                message = f"start_offsets gave {offset} for {name[0]}-{name[1]}: it is negative"
                raise UsageError(message, name="INVALID_ARGUMENT", topic=name[0], partition=name[1])
        for part in parts:
            if self._native.open(part.number, plain.get(part.name)):
                self._offered.append(part)
        self._news.set()

    async def _commit(self, marks: dict[Part, Mark]) -> None:
        await self._consumer._commit_parts(  # noqa: SLF001
            [(part.number, part.name, mark.next_offset, mark.leader_epoch) for part, mark in marks.items()]
        )

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        """Passes the error to all who wait."""
        self._error = self._error or error
        self._news.set()
        self._lookout.wake_all()

    def _hear(self) -> None:
        """Asks for an error of the whole consumer, which comes with rows: a task that awaits a partition takes none."""
        if not isinstance(self._form, Partitions):
            return
        try:
            self._native.raise_error()
        except KafkaError as error:
            if isinstance(error, Fatal):
                self._fail(error)
                return
            # It may pass: whoever asks first is told, as with rows.
            self._heard = error
            self._news.set()
            self._lookout.wake_all()

    def _raise_heard(self) -> None:
        if self._error is not None:
            raise self._error
        if self._heard is not None:
            error, self._heard = self._heard, None
            raise error

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._consumer._blocking._tell_troubles()  # noqa: SLF001
                held = self._native.stay()
                self._refresh()
                self._hear()
                if held and (self._release is None or self._release.done()):
                    self._release = self._spawn(self._let_go())
                if self._committing:
                    self._committer.tick(loop.time())
                self._lookout.look()
                await asyncio.sleep(PULSE_S)
        except Exception as error:  # noqa: BLE001  (told to whoever asks)
            self._fail(error)

    async def _let_go(self) -> None:
        """The group waits for partitions to be given up."""
        await self._settle(asyncio.get_running_loop().time() + self._revoke_wait_s, self._native.parts_going)
        self._native.disown()

    async def _settle(self, deadline: float, of_parts: Callable[[], list[int]] | None = None) -> list[TopicPartition]:
        """Awaits that all, or all of some partitions, is finished and committed; what is not by then."""
        loop = asyncio.get_running_loop()
        again = True
        while True:
            if self._committing:
                await self._committer.flush(max(0.0, deadline - loop.time()), again=again)
            again = False
            parts = self._parts.keys() if of_parts is None else set(of_parts())
            unfinished = [part.name for part in self._committer.open() if part.number in parts]
            owing = [part.name for part in self._committer.owing() if self._committing and part.number in parts]
            if not unfinished and not owing:
                return []
            if loop.time() >= deadline:
                return unfinished or owing
            await asyncio.sleep(min(SETTLE_S, deadline - loop.time()))


def _wanted(topics: Topics) -> list[str] | re.Pattern[str] | dict[tuple[str, int], int | None]:
    """Topics to subscribe to, or partitions to assign with where each begins."""
    if isinstance(topics, str):
        return [topics]
    if isinstance(topics, re.Pattern):
        return topics
    given: list[Any] = list(topics)
    if not given:
        message = "topics is empty: name a topic, or partitions"
        raise ValueError(message)
    names = [topic for topic in given if isinstance(topic, str)]
    if len(names) == len(given):
        return names
    if names:
        message = f"topics has both names and partitions: {names[0]!r} is no (topic, partition)"
        raise ValueError(message)
    starts: Mapping[Any, int] = topics if isinstance(topics, Mapping) else {}
    return {(topic, number): starts.get((topic, number)) for topic, number in given}
