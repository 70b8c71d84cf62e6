"""What clients and brokers share about their process: whose they are after a fork, and how they end with it."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Final

# Its own hook, which stops all threads, is to run last, and so to be registered first.
from headrace import _native
from headrace.errors import ForkedError

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS: Final = 0
"""Producers send what they hold, consumers commit and leave."""
LOG: Final = 1
"""What clients have said is logged."""
BROKERS: Final = 2
"""Clients of this process may have needed them until here."""

_hooks: list[tuple[int, Callable[[], object]]] = []


def at_end(stage: int, hook: Callable[[], object]) -> None:
    """Calls ``hook`` when the process ends, in the order of the stages, whatever was imported first."""
    _hooks.append((stage, hook))


@atexit.register
def _end() -> None:
    raised: BaseException | None = None
    for _, hook in sorted(_hooks, key=lambda each: each[0]):
        try:
            hook()
        except BaseException as error:  # noqa: BLE001  (the others are to run; the first comes out below)
            raised = raised or error
    if raised is not None:
        raise raised


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_native.forget_calls)


def check_process(process: int) -> None:
    """Raises before any other refusal in a child: what else is wrong there follows from the fork.

    Args:
        process: id of the process that made the client.

    Raises:
        ForkedError: this is another one.
    """
    if process != os.getpid():
        message = "this client belongs to the parent process: a forked child must make its own"
        raise ForkedError(message, name="CLIENT_FORKED", retriable=False)
