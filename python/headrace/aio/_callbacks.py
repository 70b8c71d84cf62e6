"""A rebalance listener's functions in the event loop: one at a time, in the order of the group's events."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from headrace import _native
    from headrace._listener import Listener


class Callbacks:
    """Calls a listener's functions for the group's events, and reports to the group when they have ended.

    A function is called in the task that polls. A coroutine runs in a task of its own: a poll that is cancelled
    meanwhile must not break off a commit before partitions go. The next call that needs the listener awaits it, and
    raises its exception.
    """

    def __init__(self, native: _native.Consumer) -> None:
        self._native = native
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None

    def listen(self, listener: Listener | None) -> None:
        """Calls this listener from now on; None calls none."""
        self._listener = listener
        self._native.listen(listener is not None)

    def refuse_within(self, call: str) -> None:
        """Raises `UsageError` in the task of a callback, which would wait for itself."""
        if self._running is not None and asyncio.current_task() is self._running:
            message = f"{call} was called within a callback of a rebalance"
            raise UsageError(message, name="ILLEGAL_STATE")

    async def over(self, timeout: float | None) -> bool:
        """Awaits the end of the running callback; False on a timeout. If this is cancelled, the callback goes on."""
        while self._running is not None:
            running = self._running
            await asyncio.wait((running,), timeout=timeout)
            if not running.done():
                return False
            # Of several that waited one is told how it ended; it may have begun the next one since.
            if self._running is running:
                self._running = None
                running.result()
        return True

    async def tell_next(self) -> bool:
        """Calls the listener for the next event, if there is one; raises the callback's exception."""
        notice = None if self._listener is None else self._native.take_notice()
        if notice is None:
            return False
        kind, number, partitions, _ = notice
        await self._call(kind, partitions, number)
        return True

    async def give_back(self) -> None:
        """The consumer leaves its group: reports its partitions as revoked; then the listener gets no more events."""
        try:
            await self.over(None)
        finally:
            listener = self._listener
            if listener is not None:
                partitions = self._native.take_back()
                try:
                    if partitions:
                        await self._call("revoked", partitions, None)
                finally:
                    self._listener = None

    async def _call(self, kind: str, partitions: Iterable[tuple[str, int]], number: int | None) -> None:
        listener = self._listener
        reported = False
        try:
            outcome = None if listener is None else listener.tell(kind, partitions)
            if inspect.isawaitable(outcome):
                self._running = asyncio.ensure_future(self._run(outcome, number))
                reported = True
        finally:
            if not reported:
                self._told(number)
        await self.over(None)

    async def _run(self, outcome: Awaitable[object], number: int | None) -> None:
        try:
            await outcome
        finally:
            self._told(number)

    def _told(self, number: int | None) -> None:
        if number is not None:
            self._native.listener_called(number)
