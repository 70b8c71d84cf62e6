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
"""How long the end of the process, and a fork, wait for handlers."""
FORK_S = 0.005
"""How long the next line waits for a fork, which would not get in between two otherwise."""
LEVELS_S = 1.0
"""How long a change of levels may go unnoticed."""

_loggers: Final = [logging.getLogger(name) for name in _native.log_targets()]
_local: Final = threading.local()


class _Writer:
    """The lines of one process, and the thread that logs them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lines = _native.LogLines()
        self._left: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = 0.0
        while not self._lines.is_closed():
            line = self._lines.next(LEVELS_S)
            if line is not None:
                if _forks:
                    time.sleep(FORK_S)
                _write(line)
            if time.monotonic() >= due:
                with _lock:
                    _look_at_levels()
                due = time.monotonic() + LEVELS_S
        while (line := self._left.get()) is not None:
            _write(line)

    def works(self) -> bool:
        """Whether lines of this process are logged."""
        return self.process == os.getpid() and self._thread.is_alive()

    def end(self) -> None:
        """Has what is left logged, and waits for it as long as a handler may take."""
        for line in self._lines.close():
            self._left.put(line)
        self._left.put(None)
        self._thread.join(END_TIMEOUT_S)


def _write(line: _Entry) -> None:
    place, level, created, text, fields = line
    logger = _loggers[place]
    with _writing:
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
    """Has lines made that some logger takes, and no others; under the lock, so that what was looked at last counts."""
    _native.set_log_levels([_level(each) for each in _loggers])


def _level(logger: logging.Logger) -> int:
    try:
        level = max(logger.getEffectiveLevel(), logger.manager.disable + 1)
    except Exception:  # noqa: BLE001  (a class of the user's, or a level that is no number: its first line says so)
        level = logging.WARNING
    # `logging.disable(sys.maxsize)` is more than a native number holds.
    return min(max(level, 0), logging.CRITICAL + 1)


_lock = threading.Lock()
_writing = threading.RLock()
"""Held while a line is logged. A fork waits for it: its child would have the lock of a file that is written to."""
_forks: Final[list[int]] = []
"""Threads that wait for it to fork."""
_writer: _Writer | None = None


def attend() -> None:
    """A client or a broker starts: lines are handed over from now on, as the loggers' levels are now."""
    global _writer  # noqa: PLW0603  (one for each process)
    with _lock:
        _look_at_levels()
        if _writer is None or not _writer.works():
            # The interpreter may end and start no thread any more, or the system give none: then nothing is logged.
            with contextlib.suppress(RuntimeError):
                _writer = _Writer()


def _before_fork() -> None:
    _forks.append(threading.get_ident())
    try:
        # A handler may take for ever, and may be what forks.
        _local.waited = (_writing, _writing.acquire(timeout=END_TIMEOUT_S))
    finally:
        _forks.pop()


def _in_parent() -> None:
    lock, acquired = _local.waited
    if acquired:
        lock.release()


def _in_child() -> None:
    """Another thread of the parent may have held the locks."""
    global _lock, _writing
    _lock, _writing = threading.Lock(), threading.RLock()
    _forks.clear()


def end() -> None:
    """Logs what is left, and no more: brokers of this process that end with it are no news."""
    if _writer is not None and _writer.process == os.getpid():
        _writer.end()


def _free_handlers() -> None:
    """Gives those handlers new locks whose locks are held for ever: `logging.shutdown`, which runs last, takes each.

    A handler that uses a client holds its lock where its thread was stopped.
    """
    until = time.monotonic() + END_TIMEOUT_S
    # What `logging.shutdown` walks through; without it there is nothing to be done.
    for reference in getattr(logging, "_handlerList", ()):
        handler = reference()
        if handler is None or handler.lock is None:
            continue
        if handler.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            handler.lock.release()
        else:
            handler.createLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)

at_end(LOG, end)
_native.call_after_stop(_free_handlers)
