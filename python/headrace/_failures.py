"""Deliveries that failed, as far as nobody has asked for their outcome: what ``flush`` and ``close`` raise."""

from __future__ import annotations

import weakref
from functools import partial
from itertools import count


class Failures:
    """The failed deliveries of one producer that nobody has heard of. Any thread may call it."""

    def __init__(self) -> None:
        self._numbers = count()
        # Futures belong to who has sent; of those that are dropped unasked only the first error is kept.
        self._held: dict[int, tuple[weakref.ref[object], BaseException]] = {}
        self._lost: tuple[int, BaseException] | None = None

    def add(self, future: object, error: BaseException) -> int:
        """Takes in a future that nobody has asked; gives a number for `forget`."""
        number = next(self._numbers)
        self._held[number] = (weakref.ref(future, partial(self._dropped, number)), error)
        return number

    def lost(self, error: BaseException) -> None:
        """Takes in an error whose future can tell it nobody any more."""
        self._keep(next(self._numbers), error)

    def forget(self, number: int) -> None:
        """Somebody has asked."""
        self._held.pop(number, None)

    def take(self) -> BaseException | None:
        """The first error that nobody has asked for; forgets all of them."""
        held = [(number, found[1]) for number, found in list(self._held.items())]
        self._held.clear()
        if self._lost is not None:
            held.append(self._lost)
            self._lost = None
        return min(held, key=lambda each: each[0])[1] if held else None

    def _dropped(self, number: int, _: object) -> None:
        found = self._held.pop(number, None)
        if found is not None:
            self._keep(number, found[1])

    def _keep(self, number: int, error: BaseException) -> None:
        if self._lost is None or number < self._lost[0]:
            self._lost = (number, error)
