"""Commits that nobody waits for, and who is called when they have ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Callback = TypeVar("Callback")
Ended = TypeVar("Ended", bound="tuple[int, object] | tuple[int, object, object]")


class Commits(Generic[Callback, Ended]):
    """One thread may begin commits while another one polls: a commit can have ended before its number is known here."""

    def __init__(self) -> None:
        """None is under way."""
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callback] = {}

    def __bool__(self) -> bool:
        """Whether the end of any has not been told."""
        return bool(self._callbacks)

    def begin(self, send: Callable[[], int], callback: Callback) -> None:
        """Sends one, which gives its number; `callback` goes with it."""
        with self._lock:
            self._callbacks[send()] = callback

    def pop(self, number: int) -> Callback:
        """Of one that has ended."""
        with self._lock:
            return self._callbacks.pop(number)

    def ended(self, take: Callable[[], Ended | None]) -> tuple[Callback, Ended] | None:
        """The next one that has ended, as `take` gives it: its number and more. None where there is none."""
        with self._lock:
            ended = take() if self._callbacks else None
            return None if ended is None else (self._callbacks.pop(ended[0]), ended)
