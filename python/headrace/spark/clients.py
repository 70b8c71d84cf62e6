"""Clients that outlive a micro-batch: one of each kind a process and set of options, made on first use.

Native threads do not survive a fork, so the cache is keyed by process: a worker forked from one that had a client makes
its own.
"""

from __future__ import annotations

import logging
import os
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from headrace import _native
from headrace.admin import Admin
from headrace.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Client = TypeVar("Client")

Settings: TypeAlias = "tuple[tuple[str, str], ...]"

_log = logging.getLogger("headrace.spark")
_lock = Lock()
_clients: dict[tuple[int, str, Settings], object] = {}


def admin(settings: Settings) -> Admin:
    """The process's admin client for these options."""
    return _get("admin", settings, lambda: Admin(config=_shared(settings)))


def range_reader(settings: Settings) -> _native.RangeReader:
    """The process's reader of offset ranges for these options."""
    return _get("reader", settings, lambda: _native.RangeReader(list(settings)))


def producer(settings: Settings) -> Producer:
    """The process's producer for these options."""
    return _get("producer", settings, lambda: Producer(config=dict(settings)))


def forget(kind: str, settings: Settings) -> None:
    """Drops a client that has failed, so that the next use makes a fresh one."""
    with _lock:
        client = _clients.pop((os.getpid(), kind, settings), None)
    close = getattr(client, "close", None)
    if close is not None:
        close()


def forget_quietly(kind: str, settings: Settings) -> None:
    """The same where another error is being raised already."""
    try:
        forget(kind, settings)
    except Exception:  # noqa: BLE001  (the first error says more)
        _log.debug("closing a failed %s", kind, exc_info=True)


def _get(kind: str, settings: Settings, make: Callable[[], Client]) -> Client:
    key = (os.getpid(), kind, settings)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = make()
        return client  # type: ignore[return-value]  # the kind in the key fixes the type


_COMMON = (
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "security.protocol",
)


def _shared(settings: Settings) -> dict[str, str | int | float | bool | None]:
    """Those options of a consumer that an admin client takes as well."""
    return {name: value for name, value in settings if name in _COMMON or name.startswith(("ssl.", "sasl."))}
