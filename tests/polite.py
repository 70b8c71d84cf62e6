"""Processes of a test run that leave the processor to the others."""

from __future__ import annotations

import os
from typing import Final

POLITE: Final = ("gw0", "gw1")
"""The first ones: they take the tests that wait for nothing (tests/together.py)."""
NICENESS: Final = 5
"""A third of the others' share."""


def be_polite() -> None:
    """Lowers this process's priority, and that of all that it will start, if it is one of several and of those.

    Consumers under test in the others would miss their heartbeats.
    """
    of_several = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > len(POLITE)
    if of_several and os.environ.get("PYTEST_XDIST_WORKER") in POLITE:
        os.nice(NICENESS)
