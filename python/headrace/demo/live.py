"""The page while the demo runs: it is there from the start, and a script beside it has what is new.

A page that is opened as a file may not fetch another file, but it may load a script: no server is needed. The page
loads it again and again. When the script is gone, the demo has ended; the page reloads itself and is the last one then.
"""

from __future__ import annotations

import time
import webbrowser
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from headrace.demo import report
from headrace.demo.cluster import say

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.demo.report import Run

EVERY_S: Final = 1.0
"""How often what is new is written, at most."""
SHARE: Final = 0.1
"""Of the time, at most, that goes into writing: the demo itself needs the processor."""


class Live:
    """Writes page and script."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._script = page.with_name(f"{page.stem}.live.js")
        self._due = 0.0
        self._turn = 0

    def begin(self, run: Run) -> None:
        """Writes the page without results, and opens it."""
        self.update(run)
        report.write(self._page, _now(run), live=quote(self._script.name))
        address = self._page.resolve().as_uri()
        say(f"the page follows the demo: {address}")
        if not webbrowser.open(address):
            say("no browser opens it by itself")

    def close(self) -> None:
        """Removes the script: the page has been written for the last time, or the demo has failed."""
        self._script.unlink(missing_ok=True)

    def is_due(self) -> bool:
        """Whether what is new should be written again."""
        return time.monotonic() >= self._due

    def update(self, run: Run) -> None:
        """Writes what is new."""
        began = time.monotonic()
        self._turn += 1
        news = {"turn": self._turn, **report.state(_now(run))}
        report.replace(self._script, f"headraceLive({report.inline(news)});\n")
        ended = time.monotonic()
        self._due = ended + max(EVERY_S, (ended - began) * (1 / SHARE - 1))


def _now(run: Run) -> Run:
    """The run as it is now: rows go on coming while they are counted."""
    return replace(run, results=run.results.copy(), running=True)
