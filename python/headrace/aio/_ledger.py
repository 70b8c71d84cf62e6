"""What a stream has returned, what of it is finished, and what was committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import (
    ClosedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import pyarrow as pa

    from headrace._types import TopicPartition

_log = logging.getLogger("headrace.consumer")

OF_MEMBERSHIP = (
    RebalanceInProgressError,
    IllegalGenerationError,
    UnknownMemberIdError,
    FencedMemberEpochError,
    StaleMemberEpochError,
)
"""The error for a commit that comes too late."""


class Mark(NamedTuple):
    """How far a partition is: by what was handed out, since its offsets may begin anew (a topic that is made again)."""

    number: int
    """Of so many batches, counted from the first."""
    next_offset: int
    """The partition's position behind them."""
    leader_epoch: int = -1
    """The leader epoch of the last record before it, -1 if unknown: a reader from there notices a truncated log."""


@dataclass(eq=False)
class Work:
    """Rows that were returned, or are about to be."""

    part: Part
    batch: pa.RecordBatch
    end: Mark
    """Behind these rows."""
    finished: bool = False


@dataclass(eq=False)
class Part:
    """A partition for as long as it is ours; one that comes back is another."""

    number: int
    name: TopicPartition
    gone: bool = False
    handed_out: int = 0
    open: deque[Work] = field(default_factory=deque)
    """Returned and not known to be finished, oldest first; later ones may be finished already."""
    finished: Mark | None = None
    """All before it is finished."""
    committed: Mark | None = None
    refused: Mark | None = None
    """What the last commit was to be, if it was refused and its next time has not come."""
    committing: bool = False
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    """Futures of callers that wait until so many batches are committed."""

    def hand_out(self, batch: pa.RecordBatch, next_offset: int, leader_epoch: int = -1) -> Work:
        """The next rows."""
        self.handed_out += 1
        work = Work(self, batch, Mark(self.handed_out, next_offset, leader_epoch))
        self.open.append(work)
        return work

    def finish(self, work: Work) -> bool:
        """True when more can be committed than before."""
        if work.finished:
            return False
        work.finished = True
        before = self.finished
        while self.open and self.open[0].finished:
            self.finished = self.open.popleft().end
        return self.finished != before

    @property
    def owes(self) -> bool:
        """There is something to commit."""
        return not self.gone and self.finished is not None and self.finished != self.committed

    def tell(self, upto: Mark, error: BaseException | None) -> bool:
        """A commit up to there has ended; returns whether anybody waited for it."""
        reported = [waiter for waiter in self.waiting if waiter[0] <= upto.number]
        self.waiting = [waiter for waiter in self.waiting if waiter[0] > upto.number]
        return self._end(reported, error)

    def tell_all(self, error: BaseException) -> None:
        """Ends all waits: there will be no commit."""
        reported, self.waiting = self.waiting, []
        self._end(reported, error)

    @staticmethod
    def _end(reported: list[tuple[int, asyncio.Future[None]]], error: BaseException | None) -> bool:
        for _, future in reported:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        return bool(reported)

    def not_committed(self) -> ClosedError:
        """Why waiting for a commit is in vain."""
        message = f"the stream was left before these rows of {self.name.topic}-{self.name.partition} were committed"
        return ClosedError(message, name="CLIENT_CLOSED", topic=self.name.topic, partition=self.name.partition)

    def leave(self, cause: BaseException | None = None) -> None:
        """It is no longer ours. A commit in flight may still end waits; ``cause``: how that commit ended."""
        self.gone = True
        if self.committing or not self.waiting:
            return
        message = f"{self.name.topic}-{self.name.partition} went back to the group before its rows were committed"
        error = RebalanceInProgressError(
            message, name="REBALANCE_IN_PROGRESS", topic=self.name.topic, partition=self.name.partition
        )
        error.__cause__ = cause
        self.tell_all(error)


class Committer:
    """Commits finished batches: after so many of them, after some time, or when somebody waits for it."""

    def __init__(
        self,
        send: Callable[[dict[Part, Mark]], Awaitable[None]],
        refresh: Callable[[], None],
        *,
        batches: int,
        interval_s: float,
        parallelism: int,
    ) -> None:
        """``send`` commits these positions or raises a `KafkaError`; ``refresh`` removes partitions that are gone."""
        self._send = send
        self._refresh = refresh
        self._batches = batches
        self._interval_s = interval_s
        self._parallelism = parallelism
        self._parts: dict[int, Part] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._finished = 0
        self._due_at = 0.0
        self._wanted = False
        self._over = False

    def add(self, part: Part) -> None:
        """Takes a partition in."""
        self._parts[part.number] = part

    def remove(self, part: Part) -> None:
        """Lets it go; what of it is on its way goes on."""
        self._parts.pop(part.number, None)
        part.leave()

    def finish(self, work: Work, *, begin: bool) -> None:
        """The work is done; ``begin``: a commit may be sent for that."""
        if not work.part.finish(work) or work.part.gone or not begin:
            return
        self._finished += 1
        if self._finished >= self._batches or work.part.waiting:
            self.begin()

    async def committed(self, work: Work) -> None:
        """Awaits a commit that covers this and all before it.

        Raises:
            RebalanceInProgressError: the partition went back to the group before.
            ClosedError: there are no more commits.
            KafkaError: the commit was refused.
        """
        part = work.part
        if part.committed is not None and part.committed.number >= work.end.number:
            return
        if self._over:
            raise part.not_committed()
        future = asyncio.get_running_loop().create_future()
        part.waiting.append((work.end.number, future))
        if part.gone:
            part.leave()
        else:
            self.begin()
        await future

    def tick(self, now: float) -> None:
        """Commits when the time has come; ``now`` is the event loop's."""
        if now >= self._due_at:
            self._due_at = now + self._interval_s
            self._forgive()
            self.begin()

    def begin(self) -> None:
        """Commits what is finished, now or as soon as a commit on its way has ended."""
        self._finished = 0
        if self._over:
            return
        due = {part: part.finished for part in self._parts.values() if part.owes}
        # Two commits of one partition could overtake each other, and the older would stand.
        free = {part: mark for part, mark in due.items() if mark is not None and not part.committing}
        if not free or len(self._tasks) >= self._parallelism:
            self._wanted = bool(due)
            return
        self._wanted = len(free) < len(due)
        for part in free:
            part.committing = True
        task = asyncio.ensure_future(self._send(free))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, free))

    async def flush(self, timeout: float, *, again: bool = True) -> bool:
        """Commits all that is finished within ``timeout`` seconds; whether that went well.

        Args:
            timeout: seconds.
            again: also what was refused before; False leaves that to the next interval.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if again:
            self._forgive()
        while True:
            owing = list(self.owing())
            if not self._tasks:
                # What was refused is not tried for ever.
                if self._over or all(part.finished == part.refused for part in owing):
                    return not owing
                self.begin()
            done, _ = await asyncio.wait(self._tasks, timeout=max(0.0, deadline - loop.time()))
            if not done:
                return False
            await asyncio.sleep(0)  # `_ended` runs in the loop's next turn

    def end(self) -> None:
        """No commit comes any more: all waits for one end."""
        self._over = True
        for part in self._parts.values():
            part.tell_all(part.not_committed())

    def owing(self) -> Iterable[Part]:
        """The partitions that are not committed as far as they are finished."""
        return (part for part in self._parts.values() if part.owes)

    def open(self) -> Iterable[Part]:
        """The partitions with unfinished work."""
        return (part for part in self._parts.values() if part.open)

    def _forgive(self) -> None:
        for part in self._parts.values():
            part.refused = None

    def _ended(self, sent: dict[Part, Mark], task: asyncio.Future[None]) -> None:
        # Not in the task itself: one that is cancelled before it has begun runs nothing of its own.
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Perhaps a rebalance is why: then who waits is notified of that. A closed consumer has none.
            with contextlib.suppress(KafkaError):
                self._refresh()
        for part in sent:
            part.committing = False
        if not task.cancelled():
            self._tell(sent, error)
            if self._wanted:
                self.begin()

    def _tell(self, sent: dict[Part, Mark], error: BaseException | None) -> None:
        if error is None:
            for part, mark in sent.items():
                part.committed = mark
                part.tell(mark, None)
        gone = [part for part in sent if part.gone]
        for part in gone:
            part.leave(error)
        if gone and isinstance(error, OF_MEMBERSHIP):
            # The others were not refused.
            self._wanted = True
        elif error is not None:
            reported = [part.tell(mark, error) for part, mark in sent.items()]
            for part, mark in sent.items():
                part.refused = mark
            if not any(reported):
                _log.warning("a commit failed, so its rows may be read again: %s", error)
