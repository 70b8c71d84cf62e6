"""Which process a client belongs to: a forked child has its parent's objects, and none of its threads."""

from __future__ import annotations

import os

from headrace.errors import ForkedError


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
