"""Clients that outlive a micro-batch: kept by the process that created them, used by one task at a time.

Spark reuses its Python workers, so a client's connections serve the next micro-batch as well. Native threads do not
survive a fork: a forked process starts without its parent's clients.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import OrderedDict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark import TaskContext

from headrace import _native
from headrace._options import common
from headrace.admin import Admin
from headrace.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeVar

    Client = TypeVar("Client")

Settings: TypeAlias = "tuple[tuple[str, str], ...]"
"""Client options by Kafka's names, sorted: the same options in another query share a client."""

IDLE_MAX: Final = 8
"""Most idle clients that a process keeps; the one idle for longest is dropped first."""

FAILED_CLOSE_S: Final = 1.0
"""How long a producer may flush when its task has failed already and will send everything again."""

_log = logging.getLogger("headrace.spark")
_lock = Lock()
_settled = False
_idle: OrderedDict[tuple[str, Settings], tuple[Any, Callable[[Any], None]]] = OrderedDict()


def admin(settings: Settings) -> AbstractContextManager[Admin]:
    """Provides an admin client, with all of these options except those for consumers only."""
    shared = common(settings)
    return _lend("admin", tuple(sorted(shared.items())), lambda: Admin(config=shared), Admin.close)


def range_reader(settings: Settings) -> AbstractContextManager[_native.RangeReader]:
    """Provides a reader of offset ranges."""
    return _lend("reader", settings, lambda: _native.RangeReader(list(settings)), _native.RangeReader.close)


def producer(settings: Settings) -> AbstractContextManager[Producer]:
    """Provides a producer."""
    return _lend(
        "producer", settings, lambda: Producer(config=dict(settings)), lambda failed: failed.close(FAILED_CLOSE_S)
    )


def settle_worker() -> None:
    """Excludes what one of Spark's workers has loaded from garbage collection; does nothing elsewhere.

    Spark collects garbage after each task and would look through all modules each time, which takes 20 ms. Objects that
    are created later are collected as usual.
    """
    global _settled  # noqa: PLW0603  (once in each process)
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()


def close_idle() -> None:
    """Closes all clients that are not in use, at the end of a query."""
    with _lock:
        unused = list(_idle.values())
        _idle.clear()
    for client, close in unused:
        _close_quietly(client, close)


@contextmanager
def _lend(
    kind: str, settings: Settings, make: Callable[[], Client], close: Callable[[Client], None]
) -> Iterator[Client]:
    key = (kind, settings)
    with _lock:
        kept = _idle.pop(key, None)
    client: Client = kept[0] if kept is not None else make()
    try:
        yield client
    except BaseException:
        # Also when a task stops half-way: the client may be in the middle of a range or of a batch.
        _close_quietly(client, close)
        raise
    with _lock:
        unused = [_idle.pop(key)] if key in _idle else []
        _idle[key] = (client, close)
        while len(_idle) > IDLE_MAX:
            unused.append(_idle.popitem(last=False)[1])
    for old, close_old in unused:
        _close_quietly(old, close_old)


def _close_quietly(client: Client, close: Callable[[Client], None]) -> None:
    try:
        close(client)
    except Exception:  # noqa: BLE001  (nobody uses it any more, or the first error says more)
        _log.debug("closing a client", exc_info=True)


def _start_afresh() -> None:
    """In a forked child: the parent's clients have no threads here, and its lock may be held forever."""
    global _lock, _settled
    _lock, _settled = Lock(), False
    _idle.clear()


os.register_at_fork(after_in_child=_start_afresh)
