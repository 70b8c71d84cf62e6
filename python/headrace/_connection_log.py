"""What clients say of their connections, on the way into `logging`: the logger ``headrace.connection``.

Clients write lines from threads that are not Python's, and wait for nobody. One daemon thread of this process takes
them out and logs them, so that a handler that is slow holds up no records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import traceback

from headrace import _native
from headrace._process import LOG, at_end

_log = logging.getLogger("headrace.connection")

END_TIMEOUT_S = 1.0
"""How long the end of the process waits for handlers."""


class _Writer:
    """The lines of one process, and the thread that logs them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lines = _native.ConnectionLog()
        self._left: queue.SimpleQueue[tuple[bool, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for next_line in (self.lines.next, self._left.get):
            while (line := next_line()) is not None:
                _write(line)

    def end(self) -> None:
        """Has what is left logged, and waits for it as long as a handler may take."""
        for line in self.lines.close():
            self._left.put(line)
        self._left.put(None)
        self._thread.join(END_TIMEOUT_S)


def _write(line: tuple[bool, str]) -> None:
    is_warning, text = line
    # Hosts come from brokers: none may write a line of its own.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    try:
        _log.log(logging.WARNING if is_warning else logging.INFO, "%s", shown)
    except BaseException:  # noqa: BLE001  (a handler of the user's, or a filter; the next line may fare better)
        with contextlib.suppress(BaseException):
            traceback.print_exc()


_lock = threading.Lock()
_writer: _Writer | None = None


def current() -> _native.ConnectionLog:
    """Where clients of this process write; a forked child has its own."""
    global _writer  # noqa: PLW0603  (one for each process)
    with _lock:
        if _writer is None or _writer.process != os.getpid():
            try:
                _writer = _Writer()
            except RuntimeError:  # the interpreter ends and starts no thread any more, or the system gives none
                return _native.ConnectionLog()
        return _writer.lines


def _in_child() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


def end() -> None:
    """Logs what is left, and no more: brokers of this process that end with it are no news."""
    if _writer is not None and _writer.process == os.getpid():
        _writer.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

at_end(LOG, end)
