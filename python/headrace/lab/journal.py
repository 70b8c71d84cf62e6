"""What one worker of a correctness run has seen, record by record: a file that is only ever added to.

A worker that is killed leaves what it had written. It writes what a poll gave after the work on it, and before the
client may commit it: what is not in the file must come again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

EVENT: Final = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("producer", "<u2"),
        ("member", "<i4"),
        ("topic", "<i4"),
        ("partition", "<i4"),
        ("sequence", "<u8"),
        ("offset", "<i8"),
    ]
)
"""`topic` counts those of the run; an offset that the client does not tell is -1."""

SENT: Final = 1
"""A broker has acknowledged it to its producer."""

RECEIVED: Final = 2
"""A member has it, and has done its work on it."""

ACCEPTED: Final = 3
"""A broker has taken a member's acknowledgement of this offset (share groups)."""

GIVEN: Final = 4
"""A member was given it, and begins its work (share groups); how often brokers have given it out is in the flags."""

DELIVERIES_SHIFT: Final = 2
DELIVERIES_MAX: Final = 63

CORRUPT: Final = 1
"""Flag: the bytes are not those that were sent."""

FOREIGN: Final = 2
"""Flag: not even the head is one of ours; producer and sequence say nothing."""


class Journal:
    """Adds to a file; for several threads."""

    def __init__(self, path: Path) -> None:
        """Makes the file."""
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def add(self, kind: int, count: int, **columns: Any) -> None:
        """Adds events of one kind; columns are arrays, or one value for all."""
        events = np.zeros(count, EVENT)
        events["kind"], events["offset"] = kind, -1
        for name, values in columns.items():
            events[name] = values
        left = memoryview(events.tobytes())
        with self._lock:
            while left:
                left = left[self._file.write(left) :]

    def close(self) -> None:
        """Ends it."""
        self._file.close()


class Tail:
    """Reads what is new in a journal."""

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self._path = path
        self._at = 0

    def read(self) -> NDArray[np.void]:
        """The events that were added since the last time; an event that is torn off at the end is left."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                raw = file.read()
        except FileNotFoundError:
            raw = b""
        whole = len(raw) // EVENT.itemsize * EVENT.itemsize
        self._at += whole
        return np.frombuffer(raw[:whole], EVENT)
