"""What clients say of their connections, on the way into `logging`: the logger ``headrace.connection``.

Clients write lines from threads that are not Python's, and wait for nobody. One daemon thread of this process takes
them out and logs them, so that a handler that is slow holds up no records.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading

from headrace import _native

_log = logging.getLogger("headrace.connection")

END_TIMEOUT_S = 1.0
"""How long the end of the process waits for a handler that is at work on a line."""


class _Writer:
    """The lines of one process, and the thread that logs them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lines = _native.ConnectionLog()
        self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (line := self.lines.next()) is not None:
            _write(line)

    def end(self) -> None:
        """Logs what is left and ends the thread."""
        left = self.lines.close()
        self._thread.join(END_TIMEOUT_S)
        for line in left:
            _write(line)


def _write(line: tuple[bool, str]) -> None:
    is_warning, text = line
    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)


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


@atexit.register
def end() -> None:
    """Logs what is left, and no more: brokers of this process that end with it are no news."""
    if _writer is not None and _writer.process == os.getpid():
        _writer.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
