"""Calling the function that gives tokens for OAUTHBEARER (`oauth_cb`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import _native

PARTS_MIN, PARTS_MAX = 2, 4


def ask(callback: Callable[[str], object], config: str, reply: _native.TokenReply) -> None:
    """Calls the function on a thread of its own, which does not keep the process from ending.

    The native side has no thread of Python's to lend: one of its own would be killed with native frames on its stack
    when the interpreter ends while the function runs.
    """

    def call() -> None:
        try:
            token, expires, extensions = parts_of(callback(config))
        except BaseException as error:  # noqa: BLE001  (whatever it is, the login that waits must hear of it)
            reply.fail(f"oauth_cb raised {type(error).__name__}: {error}", error)
        else:
            reply.give(token, expires, extensions)

    try:
        threading.Thread(target=call, name="headrace-oauth", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no thread any more
        call()


def parts_of(answer: object) -> tuple[str, float, list[tuple[str, str]]]:
    """Checks what the function gave: ``(token, expires[, principal[, extensions]])``; the principal is not sent."""
    if not isinstance(answer, tuple) or not PARTS_MIN <= len(answer) <= PARTS_MAX:
        shape = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
        message = f"it must return (token, seconds since the epoch[, principal[, extensions]]), not {shape}"
        raise TypeError(message)
    token, expires, _, extensions = (*answer, None, None)[:PARTS_MAX]
    if not isinstance(token, str):
        message = f"the token must be a string, not {type(token).__name__}"
        raise TypeError(message)
    if isinstance(expires, bool) or not isinstance(expires, (int, float)) or math.isnan(expires):
        # Text there may be the token.
        given = "nan" if isinstance(expires, float) else f"of type {type(expires).__name__}"
        message = f"the end of the token must be a number of seconds since the epoch, not {given}"
        raise TypeError(message)
    if extensions is None:
        return token, expires, []
    if not isinstance(extensions, Mapping) or not all(
        isinstance(part, str) for pair in extensions.items() for part in pair
    ):
        message = "the extensions must be a dict of strings"
        raise TypeError(message)
    return token, expires, list(extensions.items())
