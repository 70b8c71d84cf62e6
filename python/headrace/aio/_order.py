"""The order of a producer's calls: one that waits is not overtaken by a later one to the same partition."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from headrace.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

_Line = tuple[str | None, int | None]
"""A topic and a partition; None stands for any."""

_ANY: _Line = (None, None)


class Order:
    """The calls that have begun and not queued all of their rows yet, in the order in which they began.

    While there are none a call asks nobody. Two calls are in each other's way if some partition may get rows of both: a
    record goes to its partition, or to any of its topic where that is not known yet, and so do the rows of
    ``send_arrow``; without a topic they may go anywhere.
    """

    def __init__(self) -> None:
        self._claims = 0
        # Claims by number, so in their order, of each line and of all those within it.
        self._lines: dict[_Line, dict[int, Claim]] = {}
        self._within: dict[str | None, dict[int, Claim]] = {}
        self.waiting = 0
        """Calls that wait for earlier ones."""

    def __bool__(self) -> bool:
        """Whether any call has begun and not ended."""
        return bool(self._within)

    def claim(self, topic: str | None, partition: int | None, *, many: bool = False) -> Claim:
        """The place of a call that begins now; a context manager, whose end lets the next ones go on.

        ``many``: it has rows, and may go on for any time.
        """
        self._claims += 1
        return Claim(self, self._claims, (topic, partition), many=many)

    def enter(self, claim: Claim) -> None:
        topic = claim.line[0]
        self._lines.setdefault(claim.line, {})[claim.number] = claim
        for name in {topic, None}:
            self._within.setdefault(name, {})[claim.number] = claim

    def leave(self, claim: Claim) -> None:
        topic = claim.line[0]
        line = self._lines[claim.line]
        del line[claim.number]
        if not line:
            del self._lines[claim.line]
        for name in {topic, None}:
            within = self._within[name]
            del within[claim.number]
            if not within:
                del self._within[name]

    def last(self, line: _Line) -> Claim | None:
        """The last call that is in the way of one in this line."""
        found = [next(reversed(claims.values())) for claims in self._in_the_way(line)]
        return max(found, key=lambda claim: claim.number, default=None)

    def ahead(self, line: _Line, number: int) -> Claim | None:
        """An earlier call that is in the way of one in this line."""
        firsts = (next(iter(claims.values())) for claims in self._in_the_way(line))
        return next((claim for claim in firsts if claim.number < number), None)

    def _in_the_way(self, line: _Line) -> Iterator[dict[int, Claim]]:
        topic, partition = line
        whole = self._within.get(topic) if partition is None else None
        lines = {line, (topic, None), _ANY} if whole is None else {_ANY}
        found = [whole, *(self._lines.get(line) for line in lines)]
        return (claims for claims in found if claims)


class Claim:
    """One call's place in the order."""

    __slots__ = ("_began", "_last", "_order", "_waiters", "line", "many", "number", "timed_out")

    def __init__(self, order: Order, number: int, line: _Line, *, many: bool) -> None:
        self._order = order
        self.many = many
        self.number = number
        self.line = line
        self.timed_out = False
        self._began = monotonic()
        self._last: Claim | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __enter__(self) -> Self:
        """Takes the place."""
        self._last = self._order.last(self.line)
        self._order.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the place up: the next ones go on."""
        self.timed_out = isinstance(error, KafkaTimeoutError)
        self._order.leave(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def is_behind(self, partition: int | None) -> bool:
        """Whether an earlier call is in the way to this partition; None: to any that the call may be for."""
        line = self.line if partition is None else (self.line[0], partition)
        return self._order.ahead(line, self.number) is not None

    async def first(self, partition: int | None = None) -> float:
        """Awaits that no earlier call is in the way.

        Returns:
            Seconds that count as waited for room: those behind single records, so that of many calls each gives up in
            its own time. Rows of ``send_arrow`` that all found room may have taken any time, which nobody is charged.
        """
        line = self.line if partition is None else (self.line[0], partition)
        while (ahead := self._order.ahead(line, self.number)) is not None:
            # The last one before this call has those before itself behind it, most often.
            last, self._last = self._last, None
            if last is not None and partition is None and last.stands():
                ahead = last
            waiter = asyncio.get_running_loop().create_future()
            ahead._waiters.append(waiter)  # noqa: SLF001  (another of its kind)
            self._order.waiting += 1
            try:
                await waiter
            finally:
                self._order.waiting -= 1
            if ahead.many and not ahead.timed_out:
                self._began = monotonic()
        return monotonic() - self._began

    def stands(self) -> bool:
        """Whether it has its place still."""
        return self.number in self._order._lines.get(self.line, {})  # noqa: SLF001  (its own)
