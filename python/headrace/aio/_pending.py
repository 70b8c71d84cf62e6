"""What of a stream's rows is on its way from the fetch cache to columns, and the look-ups of schemas that it needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import SchemaRegistryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow as pa

    from headrace._columns import Columns
    from headrace._stop import Stop
    from headrace.aio._ledger import Part, Work

Made: TypeAlias = "tuple[pa.RecordBatch, Stop | None]"
"""A batch with its columns, and where it was cut."""


@dataclass(eq=False)
class Rest:
    """Rows of a partition that have left the fetch cache and were not handed out."""

    part: Part
    batch: pa.RecordBatch
    """As they were fetched."""
    next_offset: int
    """The partition's position behind the last of them."""
    leader_epoch: int
    made: asyncio.Future[Made] | None = None
    """What a thread makes of them, which asks the registry."""
    stopped: bool = False
    """The first of them was bad, and is decoded again whenever it is asked for: a stream has no seek to pass it."""


class Pending:
    """The rows of each partition that were taken and not handed out: of each one batch at most.

    They are handed out before any others of their partition, so rows stay in order; they were not handed out before, so
    no commit covers them; they go when their partition goes. Whoever asks for them awaits elsewhere, so a request that
    is cancelled leaves them here.

    Schemas are looked up in a thread, by one look-up at a time for all partitions: with a registry that does not
    answer, as many as there are partitions would fill the event loop's threads.
    """

    def __init__(self, columns: Columns) -> None:
        """For columns of these formats."""
        self._columns = columns
        self._rests: dict[int, Rest] = {}
        self._asked: list[tuple[pa.RecordBatch, asyncio.Future[Made]]] = []
        self._looking_up: asyncio.Task[None] | None = None

    def has(self, part: Part | None) -> bool:
        """Whether there is anything of the partition, or of any."""
        return bool(self._rests) if part is None else part.number in self._rests

    def first_without(self, numbers: Iterable[int]) -> int | None:
        """The first of these partitions of which there is nothing."""
        return next((number for number in numbers if number not in self._rests), None)

    def take_in(self, part: Part, batch: pa.RecordBatch, next_offset: int, leader_epoch: int) -> Work | None:
        """What the cache has given of a partition of which there is nothing; the work, unless a schema is missing.

        Raises:
            DecodeError: the first row is to be raised.
        """
        rest = self._rests[part.number] = Rest(part, batch, next_offset, leader_epoch)
        return self._work(rest)

    def next(self, part: Part | None, going: Collection[int]) -> Work | None:
        """The next rows of the partition, or of any, that can be handed out now.

        Args:
            part: None asks for those of any.
            going: the numbers of the partitions that the group wants back, of which nothing is handed out.

        Raises:
            DecodeError: the next row of the partition, or of any, is bad. The next call raises it again, unless what
                was unknown is its schema, and the registry has learnt of it.
            SchemaRegistryError: a schema was looked up in vain; the next call looks it up again.
        """
        # What is to be raised first: the rows of others might never end.
        for rest in sorted(self._of(part), key=lambda rest: not rest.stopped):
            if rest.part.number not in going and (work := self._work(rest)) is not None:
                return work
        return None

    def look_ups(self, part: Part | None) -> list[asyncio.Future[Made]]:
        """What to await before the next call of `next`, if anything."""
        return [rest.made for rest in self._of(part) if rest.made is not None]

    def remove(self, part: Part) -> None:
        """It went: its next owner reads the rows."""
        self._rests.pop(part.number, None)

    def close(self) -> list[asyncio.Task[None]]:
        """No look-up begins any more. One in a thread goes on to its end, which the registry's deadline sets."""
        if self._looking_up is None:
            return []
        self._looking_up.cancel()
        return [self._looking_up]

    def _of(self, part: Part | None) -> list[Rest]:
        if part is None:
            return list(self._rests.values())
        return [self._rests[part.number]] if part.number in self._rests else []

    def _work(self, rest: Rest) -> Work | None:
        """Its next rows, up to one that is to be raised; None while a schema is looked up."""
        if rest.made is None and not self._columns.lacks([rest.batch]):
            rows, stop = self._columns.decoded(rest.batch)
        else:
            rest.made = rest.made or self._look_up(rest.batch)
            if not rest.made.done():
                return None
            made, rest.made = rest.made, None
            rows, stop = made.result()
        part = rest.part
        if stop is None:
            del self._rests[part.number]
            return part.hand_out(rows, rest.next_offset, rest.leader_epoch)
        rest.batch, rest.stopped = rest.batch.slice(rows.num_rows), stop.error is not None
        if stop.error is not None and not rows.num_rows:
            raise stop.error
        # Which leader wrote the last of these rows is not known: the epoch is that behind all of them.
        return part.hand_out(rows, stop.offset)

    def _look_up(self, batch: pa.RecordBatch) -> asyncio.Future[Made]:
        future: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self._asked.append((batch, future))
        if self._looking_up is None:
            self._looking_up = asyncio.ensure_future(self._look_all_up())
        return future

    async def _look_all_up(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                try:
                    outcomes = await asyncio.to_thread(self._decoded, [batch for batch, _ in asked])
                except Exception as error:  # noqa: BLE001  (no thread is to be had; raised to whoever awaits)
                    outcomes = [error] * len(asked)
                for (_, future), outcome in zip(asked, outcomes, strict=True):
                    if isinstance(outcome, Exception):
                        future.set_exception(outcome)
                        # Also that of a partition that has gone ends quietly.
                        future.exception()
                    else:
                        future.set_result(outcome)
        finally:
            self._looking_up = None

    def _decoded(self, batches: list[pa.RecordBatch]) -> list[Made | Exception]:
        """Runs in a thread: the columns of each batch, or what keeps them from being made."""
        outcomes: list[Made | Exception] = []
        unavailable: Exception | None = None
        for batch in batches:
            # Each would wait as long in vain; one whose schemas are known need not ask.
            if unavailable is not None and self._columns.lacks([batch]):
                outcomes.append(unavailable)
                continue
            try:
                outcomes.append(self._columns.decoded(batch))
            except Exception as error:  # noqa: BLE001  (raised to whoever awaits these rows)
                if isinstance(error, SchemaRegistryUnavailableError):
                    unavailable = error
                outcomes.append(error)
        return outcomes
