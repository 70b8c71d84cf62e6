"""Outcomes on their way from a client's thread into the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from headrace._process import check_process
from headrace.errors import KafkaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextvars import Context

    from headrace._failures import Failures


class Mailbox:
    """Takes outcomes from the delivery thread into the event loop: many of them wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: str) -> None:
        self.loop = loop
        self._client = client
        self._process = os.getpid()
        self._posts: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False

    def check_loop(self) -> None:
        """Raises `UsageError` in another event loop, and `ForkedError` in another process."""
        if asyncio.get_running_loop() is not self.loop:
            check_process(self._process)
            message = f"this {self._client} is used in another event loop; make one for each loop"
            raise UsageError(message, name="ILLEGAL_STATE")

    def slot(self) -> Slot:
        """A new future, and where to report its outcome.

        Raises:
            UsageError: this is another event loop.
        """
        self.check_loop()
        return Slot(self, self.loop.create_future())

    def delivery(self, failures: Failures) -> Slot:
        """As `slot`, for what is sent: a failure that nobody asks the future for goes to ``failures``."""
        self.check_loop()
        return Slot(self, Outcome(failures, loop=self.loop))

    def post(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        """Runs on the delivery thread."""
        self._posts.append((future, result, error))
        # Who finds it woken has put its post there before the loop looks: `_deliver` takes the flag down first.
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop is closed: nobody in it is left to be told.
                self._woken = False
                self._posts.clear()

    def _deliver(self) -> None:
        self._woken = False
        while self._posts:
            future, result, error = self._posts.popleft()
            if error is not None and isinstance(future, Outcome):
                future.fail(result, error)
            elif future.done():
                continue
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                # Also a future that nobody keeps ends quietly.
                future.exception()


class Outcome(asyncio.Future[Any]):
    """The future of something that was sent; it knows whether anybody has asked for a failure."""

    def __init__(self, failures: Failures, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._failures = failures
        self._watchers = 0
        self._number: int | None = None

    def fail(self, results: object, error: BaseException) -> None:
        """Ends it with the error, or with results of rows of which some have failed."""
        if self.done():
            # It was cancelled, and the record was not.
            self._failures.lost(error)
            return
        if not self._watchers:
            self._number = self._failures.add(self, error)
        if results is not None:
            self.set_result(results)
        else:
            self.set_exception(error)
            # Also a future that nobody keeps ends quietly: `flush` and `close` tell what has failed.
            super().exception()

    def result(self) -> Any:
        """As of any future."""
        self._asked()
        return super().result()

    def exception(self) -> BaseException | None:
        """As of any future."""
        self._asked()
        return super().exception()

    def add_done_callback(self, fn: Any, /, *, context: Context | None = None) -> None:
        """As of any future."""
        self._asked()
        self._watchers += 1
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Any, /) -> int:
        """As of any future."""
        removed = super().remove_done_callback(fn)
        self._watchers -= removed
        return removed

    def __await__(self) -> Generator[Any, None, Any]:
        """As of any future."""
        if self.done():
            self._asked()
        return super().__await__()

    def _asked(self) -> None:
        if self._number is not None:
            self._failures.forget(self._number)


class Slot:
    """What the native side tells an outcome to, and the future in the event loop that gets it."""

    __slots__ = ("_mailbox", "future")

    def __init__(self, mailbox: Mailbox, future: asyncio.Future[Any]) -> None:
        self._mailbox = mailbox
        self.future = future

    def set_result(self, result: Any, /) -> None:
        self._mailbox.post(self.future, result, None)

    def set_results(self, results: Any, why: str, /) -> None:
        self._mailbox.post(self.future, results, KafkaError(why))

    def set_exception(self, exception: BaseException, /) -> None:
        self._mailbox.post(self.future, None, exception)


class Bell:
    """Rings, whatever the outcome: the next try finds out by itself."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def set_result(self, result: Any, /) -> None:
        self.slot.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:  # noqa: ARG002  (the next try raises it)
        self.slot.set_result(None)


class Turn:
    """One task at a time does something; another that wants to is told why it may not."""

    __slots__ = ("_process", "_taken", "_why")

    def __init__(self, why: str) -> None:
        self._process = os.getpid()
        self._taken = False
        self._why = why

    async def __aenter__(self) -> None:
        if self._taken:
            await asyncio.sleep(0)  # one that was cancelled a moment ago ends now
        if self._taken:
            check_process(self._process)
            raise UsageError(self._why, name="ILLEGAL_STATE")
        self._taken = True

    async def __aexit__(self, *_: object) -> None:
        self._taken = False


class _Watched(Protocol):
    """What a lookout asks of a client."""

    def hang_bell(self, bell: _Rope, /) -> None: ...
    def arm(self) -> None: ...
    def has_rows(self, part: int | None) -> bool | None: ...
    def parts_ready(self) -> list[int]: ...


class Lookout:
    """The tasks that wait for rows, and the bell that wakes those whose partition has some."""

    def __init__(self, native: _Watched) -> None:
        self._native = native
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], int | None] = {}

    async def wait(self, part: int | None, timeout: float | None) -> None:
        """Awaits that it is worth looking again, ``timeout`` seconds at most; takes nothing, so it may be cancelled.

        Args:
            part: the number of the partition whose rows are awaited; None awaits those of any.
            timeout: None waits as long as it takes.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._native.hang_bell(_Rope(self))
        future = self._loop.create_future()
        self._waiting[future] = part
        try:
            # Armed before the look: what comes after the look rings.
            self._native.arm()
            if self._native.has_rows(part) is not False:
                # Another task took what was seen here, or is about to: it must get its turn.
                await asyncio.sleep(0)
            elif timeout is None:
                await future
            else:
                await asyncio.wait((future,), timeout=timeout)
        finally:
            del self._waiting[future]

    def look(self) -> bool:
        """Wakes who may go on, and nobody else; whether any partition has rows."""
        if not self._waiting:
            return True
        self._native.arm()
        ready = set(self._native.parts_ready())
        for future, part in self._waiting.items():
            if (part in ready or (part is None and ready)) and not future.done():
                future.set_result(None)
        return bool(ready)

    def wake_all(self) -> None:
        """Whoever waits looks for himself: something else has changed than rows."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def ring(self) -> None:
        """Runs on the delivery thread."""
        # Without a loop nobody waits; with a closed one nobody does any more.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._rung)

    def _rung(self) -> None:
        try:
            found = self.look()
        except KafkaError:
            found = False
        if not found:
            # An error, or the end: each finds out by himself.
            self.wake_all()


class _Rope:
    """What the native side pulls. It keeps nothing alive: a consumer that nobody holds any more can go."""

    __slots__ = ("_lookout",)

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = weakref.ref(lookout)

    def set_result(self, result: Any, /) -> None:  # noqa: ARG002  (a bell only rings)
        lookout = self._lookout()
        if lookout is not None:
            lookout.ring()

    def set_exception(self, exception: BaseException, /) -> None:  # noqa: ARG002  (the next look finds it)
        self.set_result(None)
