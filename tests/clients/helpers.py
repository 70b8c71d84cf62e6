"""What tests of coroutines share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

TIMEOUT_SECONDS = 40
Result = TypeVar("Result")


def bounded(work: Coroutine[object, object, Result]) -> Result:
    """Runs a coroutine to its end, or fails when it takes too long."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_SECONDS))


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """Beats as long as the event loop is free; gives the list of the beats' times."""
    beats = [time.monotonic()]

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.01)
            beats.append(time.monotonic())

    task = asyncio.create_task(beat())
    try:
        yield beats
    finally:
        task.cancel()


def assert_free(beats: list[float], waits: int = 1) -> None:
    """Fails when the event loop stood still in each of so many waits.

    Then there is a beat or two between them. How many there are of a free loop depends on what else the machine does.
    """
    assert len(beats) > 3 * waits + 2, "the event loop stood still"
