"""The forms in which a stream is read. Each is an async iterator whose state survives a cancelled request."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace import _native
from headrace.aio._loop import Turn
from headrace.errors import RebalanceInProgressError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from typing_extensions import Self

    from headrace._types import TopicPartition
    from headrace.aio._ledger import Part, Work

Item = TypeVar("Item")
Result = TypeVar("Result")
AnyFlow = TypeVar("AnyFlow", bound="Flow[Any]")

# What the one before was given would be forgotten, and never count as finished.
ONE_ASKS = "another task asks this iterator already: tasks that share the work take committable(), or map"


class Source(Protocol):
    """What the forms need from their stream."""

    async def next_work(self, part: Part | None, chunks: _native.Chunks) -> Work | None:
        """The next rows, of one partition or of any; None at the end. A cancelled call has taken no rows."""

    async def next_part(self) -> Part | None:
        """The next partition that was assigned; None at the end. A cancelled call leaves it to the next one."""

    def refresh(self) -> None:
        """Takes over which partitions were assigned or revoked."""

    def finish(self, work: Work) -> None:
        """The work is done."""

    async def committed(self, work: Work) -> None:
        """Awaits a commit that covers it."""

    def enter(self, flow: Flow[Any] | Mapped[Any]) -> None:
        """Has it closed with the stream."""


class Flow(Generic[Item]):
    """An async iterator over batches, fetched on request."""

    def __init__(self, source: Source, part: Part | None) -> None:
        """Created by a stream."""
        self._source = source
        self._part = part
        self._chunks = _native.Chunks()
        self._last: Work | None = None
        self._asker: asyncio.Task[Any] | None = None
        self._turn = Turn(ONE_ASKS)
        source.enter(self)

    def __aiter__(self) -> Self:
        """Itself: leaving a loop and going on later loses nothing."""
        return self

    async def __anext__(self) -> Item:
        """The next one; the one before counts as finished.

        Raises:
            UsageError: another task is waiting for an item.
        """
        async with self._turn:
            self.finish_last()
            self._asker = asyncio.current_task()
            work = await self.next_work()
            if work is None:
                raise StopAsyncIteration
            self._last = work
            return self.item(work)

    def map(self, function: Callable[[Item], Any], parallelism: int) -> Mapped[Any]:
        """Calls ``function`` with each item, up to ``parallelism`` at once, and yields the results in order.

        Args:
            function: a coroutine function or a plain one. An exception in it is raised here in its turn, and ends the
                map.
            parallelism: how many calls may be running, or finished with their results not yet taken; at least 1.

        Raises:
            ValueError: ``parallelism`` is below 1.
        """
        return Mapped(self, function, parallelism)

    # What follows is for `Mapped` and the stream.

    async def next_work(self) -> Work | None:
        """The next rows, not yet returned to the application."""
        return await self._source.next_work(self._part, self._chunks)

    def item(self, work: Work) -> Item:
        """What the application gets for it."""
        raise NotImplementedError

    def passed(self, work: Work) -> None:
        """The application has asked for what comes after it."""
        self._source.finish(work)

    def leave(self) -> None:
        """Finishes the last item if this task took it and leaves the stream; another task may have been interrupted."""
        if self._asker is asyncio.current_task():
            self.finish_last()

    def finish_last(self) -> None:
        """The last item that was returned is done."""
        if self._last is not None:
            self.passed(self._last)
            self._last = None

    def close(self) -> Iterable[asyncio.Future[Any]]:
        """Nothing goes on in the background any more, except the returned tasks, which are ending."""
        return ()

    def wake(self) -> None:
        """A partition is gone: tasks that wait for its rows are woken by the stream."""

    @property
    def is_over(self) -> bool:
        """It yields nothing more."""
        return self._part is not None and self._part.gone


class Batches(Flow["pa.RecordBatch"]):
    """Batches; each counts as finished when any task requests the next one.

    So only one task should read them; several tasks that share the work use `Committables` or `map`.
    """

    def item(self, work: Work) -> pa.RecordBatch:
        """The rows."""
        return work.batch


class Committable:
    """A batch whose rows are committed when its reader says that they are done."""

    __slots__ = ("_source", "_work")

    def __init__(self, source: Source, work: Work) -> None:
        """Created by a stream."""
        self._source = source
        self._work = work

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows."""
        return self._work.batch

    @property
    def partition(self) -> TopicPartition:
        """The partition that they are from."""
        return self._work.part.name

    @property
    def next_offset(self) -> int:
        """The offset that is committed for them: the partition's position after them."""
        return self._work.end.next_offset

    def done(self) -> None:
        """Marks the rows as done: they are committed as soon as all rows before them in the partition are done too."""
        self._source.finish(self._work)

    async def commit(self) -> None:
        """Marks the rows as done and awaits the commit, and so also until all rows before them are done.

        Raises:
            RebalanceInProgressError: the partition was revoked first; its next owner reads the rows again.
            ClosedError: the stream was left first.
            KafkaError: the commit was refused.
        """
        self._source.finish(self._work)
        await self._source.committed(self._work)


class Committables(Flow[Committable]):
    """Batches that their reader marks as done. Several tasks may read at the same time."""

    async def __anext__(self) -> Committable:
        """The next one."""
        work = await self.next_work()
        if work is None:
            raise StopAsyncIteration
        return self.item(work)

    def item(self, work: Work) -> Committable:
        """With its marks."""
        return Committable(self._source, work)

    def passed(self, work: Work) -> None:
        """Only its reader says that it is done."""


class AtMostOnce(Flow["pa.RecordBatch"]):
    """Batches that are committed before they are returned."""

    def __init__(self, source: Source, part: Part | None) -> None:
        """Created by a stream."""
        super().__init__(source, part)
        self._pending: Work | None = None

    async def next_work(self) -> Work | None:
        """The next rows, once they are committed. A cancelled request keeps them for the next one."""
        while True:
            if self._pending is None:
                self._pending = await super().next_work()
            work = self._pending
            if work is None:
                return None
            self._source.finish(work)
            try:
                await self._source.committed(work)
            except RebalanceInProgressError:
                if not work.part.gone:
                    raise
                # Its next owner reads it.
                self._pending = None
                continue
            self._pending = None
            return work

    def item(self, work: Work) -> pa.RecordBatch:
        """The rows."""
        return work.batch

    def passed(self, work: Work) -> None:
        """It was committed before."""


class Partitions(Generic[AnyFlow]):
    """An async iterator over partitions as they are assigned, each with an async iterator over its batches."""

    def __init__(self, source: Source, form: Callable[[Source, Part], AnyFlow]) -> None:
        """Created by a stream."""
        self._source = source
        self._form = form

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> tuple[TopicPartition, AnyFlow]:
        """The next partition that is assigned; each is yielded once, and again when it is assigned again."""
        part = await self._source.next_part()
        if part is None:
            raise StopAsyncIteration
        return part.name, self._form(self._source, part)


class Mapped(Generic[Result]):
    """Results of a function over a flow, in the flow's order, several calls at once."""

    def __init__(self, flow: Flow[Any], function: Callable[[Any], Any], parallelism: int) -> None:
        """Created by `Flow.map`."""
        if parallelism < 1:
            message = f"parallelism is at least 1, not {parallelism}"
            raise ValueError(message)
        self._flow = flow
        self._function = function
        self._parallelism = parallelism
        self._window: deque[tuple[Work, asyncio.Task[Result]]] = deque()
        self._ending: set[asyncio.Future[Any]] = set()
        self._pull: asyncio.Task[Work | None] | None = None
        self._over = False
        self._error: BaseException | None = None
        self._last: Work | None = None
        self._asker: asyncio.Task[Any] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._turn = Turn(ONE_ASKS)
        flow._source.enter(self)  # noqa: SLF001  (two halves of one thing)

    def __aiter__(self) -> Self:
        """Itself: leaving a loop and going on later loses nothing."""
        return self

    async def __anext__(self) -> Result:
        """The next result; the one before counts as finished. A cancelled call leaves it to the next one.

        Raises:
            UsageError: another task is waiting for an item.
        """
        async with self._turn:
            self.finish_last()
            self._asker = asyncio.current_task()
            return await self._next()

    async def _next(self) -> Result:
        while True:
            # Another member may read a partition of these calls from the moment on that it went.
            self._flow._source.refresh()  # noqa: SLF001
            while self._window and self._window[0][0].part.gone:
                self._drop_first()
            self._fill()
            if self._window and self._window[0][1].done():
                return self._take()
            tasks: set[asyncio.Future[Any]] = {self._window[0][1]} if self._window else set()
            if self._pull is not None:
                tasks.add(self._pull)
            if not tasks:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopAsyncIteration
            self._woken = asyncio.get_running_loop().create_future()
            await asyncio.wait({*tasks, self._woken}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what a pull has brought goes in with the loop's next turn

    def leave(self) -> None:
        """Finishes the last item if this task took it and leaves the stream; another task may have been interrupted."""
        if self._asker is asyncio.current_task():
            self.finish_last()

    def finish_last(self) -> None:
        """The last item that was returned is done."""
        if self._last is not None:
            self._flow.passed(self._last)
            self._last = None

    def wake(self) -> None:
        """A partition is gone: its calls need not be awaited."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def close(self) -> Iterable[asyncio.Future[Any]]:
        """Cancels all running calls, and returns them; their items are not finished."""
        self._over = True
        if self._pull is not None:
            self._pull.cancel()
        while self._window:
            self._drop_first()
        return set(self._ending)

    @property
    def is_over(self) -> bool:
        """It yields nothing more."""
        nothing_left = self._pull is None and not self._window and not self._ending
        return nothing_left and (self._over or self._flow.is_over)

    def _drop_first(self) -> None:
        call = self._window.popleft()[1]
        if call.cancel():
            # What it does at its end goes on.
            self._ending.add(call)
            call.add_done_callback(self._ending.discard)

    def _take(self) -> Result:
        work, task = self._window.popleft()
        if task.cancelled() or task.exception() is not None:
            self.close()
        result = task.result()
        self._last = work
        self._fill()
        return result

    def _fill(self) -> None:
        # Nothing is asked for behind an error that nobody has been notified of.
        may_ask = self._pull is None and not self._over and self._error is None
        if may_ask and len(self._window) < self._parallelism:
            self._pull = asyncio.ensure_future(self._flow.next_work())
            self._pull.add_done_callback(self._pulled)

    def _pulled(self, pull: asyncio.Task[Work | None]) -> None:
        self._pull = None
        if pull.cancelled():
            self._over = True
            return
        self._error = pull.exception()
        if self._error is not None:
            return  # told in its turn; what it was may pass
        work = pull.result()
        if work is None:
            self._over = True
            return
        if self._over:
            return
        task = asyncio.ensure_future(self._call(work))
        # Also of a call that nobody waits for any more somebody must have looked at what it raised.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._window.append((work, task))
        self._fill()

    async def _call(self, work: Work) -> Result:
        result = self._function(self._flow.item(work))
        if inspect.isawaitable(result):
            result = await result
        returned: Result = result
        return returned
