"""What Spark's daemons print of results that nobody wants any more, and how they come to leave it out.

Nothing is imported here that could start a thread: workers are forks of the process that loads it.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

SPARKS_OWN = "pyspark.daemon"


def is_unread(error: BaseException | None, daemon: ModuleType) -> bool:
    """Whether an error is that of flushing a task's results to a socket that Spark has closed, and nothing more."""
    # A socket that was closed with unread data in it answers with a reset at first (TCP).
    if not isinstance(error, BrokenPipeError | ConnectionResetError) or error.__context__ is not None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not daemon.worker.__code__:
        return False  # what the worker's own code raises has frames below that function
    # The same function flushes once before it knows what to run, when it answers with the secret.
    return "worker_main" in trace.tb_frame.f_locals


class _Traceback:
    """The module `traceback` for Spark's daemon."""

    def __init__(self, daemon: ModuleType) -> None:
        self._daemon = daemon

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self, *args: Any, **kwargs: Any) -> None:
        if not is_unread(sys.exc_info()[1], self._daemon):
            traceback.print_exc(*args, **kwargs)


def quieten(daemon: ModuleType) -> None:
    """Has a module of Spark's daemon leave out the one traceback; no other module sees a difference."""

    def say(*args: Any, **kwargs: Any) -> None:
        # Where a worker may live on after it could not flush, the daemon prints the traceback as a text.
        if not is_unread(sys.exc_info()[1], daemon):
            builtins.print(*args, **kwargs)  # noqa: T201  (Spark's own)

    vars(daemon).update(traceback=_Traceback(daemon), print=say)


def settle_worker() -> None:
    """Quietens the daemon that this process was forked from, if it is Spark's own; does nothing elsewhere."""
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == SPARKS_OWN:
        quieten(main)
