"""What clients and brokers say, on the way into `logging`: the loggers ``headrace.connection``, ``headrace.broker``...

Engines write lines on threads that are not Python's, and wait for nobody. One daemon thread of this process takes them
out and logs them, so that a handler that is slow holds up no records. A line that no logger wants is not made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import traceback
from typing import Final

from headrace import _native
from headrace._process import LOG, at_end

_Entry = tuple[int, int, float, str, dict[str, int | str]]

END_TIMEOUT_S = 1.0
"""How long the end of the process waits for handlers."""
LEVELS_S = 1.0
"""How long a change of levels may go unnoticed while lines are logged."""

_loggers: Final = [logging.getLogger(name) for name in _native.log_targets()]


class _Writer:
    """The lines of one process, and the thread that logs them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lines = _native.LogLines()
        self._left: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = time.monotonic()
        for next_line in (self._lines.next, self._left.get):
            while (line := next_line()) is not None:
                _write(line)
                if time.monotonic() - looked >= LEVELS_S:
                    _look_at_levels()
                    looked = time.monotonic()

    def end(self) -> None:
        """Has what is left logged, and waits for it as long as a handler may take."""
        for line in self._lines.close():
            self._left.put(line)
        self._left.put(None)
        self._thread.join(END_TIMEOUT_S)


def _write(line: _Entry) -> None:
    place, level, created, text, fields = line
    logger = _loggers[place]
    try:
        if logger.isEnabledFor(level):
            extra = {"headrace": fields}
            record = logger.makeRecord(logger.name, level, "(headrace)", 0, "%s", (text,), None, extra=extra)
            # When it happened, not when this thread came to it.
            record.created, record.msecs = created, created % 1 * 1000
            logger.handle(record)
    except BaseException:  # noqa: BLE001  (a handler of the user's, or a filter; the next line may fare better)
        with contextlib.suppress(BaseException):
            traceback.print_exc()


def _look_at_levels() -> None:
    """Has lines made that some logger takes, and no others."""
    levels = [max(each.getEffectiveLevel(), each.manager.disable + 1) for each in _loggers]
    # `logging.disable(sys.maxsize)` is more than a native number holds.
    _native.set_log_levels([min(max(level, 0), logging.CRITICAL + 1) for level in levels])


_lock = threading.Lock()
_writer: _Writer | None = None


def attend() -> None:
    """A client or a broker starts: lines are handed over from now on, as the loggers' levels are now."""
    global _writer  # noqa: PLW0603  (one for each process)
    with _lock:
        _look_at_levels()
        if _writer is None or _writer.process != os.getpid():
            # The interpreter may end and start no thread any more, or the system give none: then nothing is logged.
            with contextlib.suppress(RuntimeError):
                _writer = _Writer()


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
