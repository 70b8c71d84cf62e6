"""What is seen of a run while it runs: a table on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS: Final = 12
BLOCKS: Final = "▁▂▃▄▅▆▇█"
LINE_S: Final = 10.0
COLUMNS: Final = ("time", "pub msg/s", "cons msg/s", "total sent", "total recv", "backlog", "p50 ms", "p99 ms")
WIDTHS: Final = (7, 11, 11, 13, 13, 12, 9, 9)
HEAD: Final = " ".join(name.rjust(width) for name, width in zip(COLUMNS, WIDTHS, strict=True))


@dataclass(frozen=True)
class Snapshot:
    """A second of a run. `progress` is between 0 and 1 where the end is known, `eta_s` the seconds that are left."""

    t_s: float
    sent_rate: float
    received_rate: float
    sent: int
    received: int
    backlog: int
    p50_ms: float
    p99_ms: float
    progress: float | None = None
    eta_s: float | None = None
    partitions: tuple[int, ...] = ()

    def cells(self) -> list[str]:
        """As texts, in the order of the columns."""
        return [
            f"{self.t_s:.0f}s",
            f"{self.sent_rate:,.0f}",
            f"{self.received_rate:,.0f}",
            f"{self.sent:,}",
            f"{self.received:,}",
            f"{self.backlog:,}",
            f"{self.p50_ms:,.2f}",
            f"{self.p99_ms:,.2f}",
        ]

    def line(self) -> str:
        """Under `HEAD`."""
        return " ".join(cell.rjust(width) for cell, width in zip(self.cells(), WIDTHS, strict=True))


class View(Protocol):
    """Shows a campaign."""

    def begin(self, title: str) -> None:
        """A variation begins."""

    def second(self, snapshot: Snapshot) -> None:
        """A second has passed."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def end(self, text: str) -> None:
        """A variation has ended so."""

    def close(self) -> None:
        """Nothing more comes."""


class Plain:
    """Lines, for logs and where there is no terminal."""

    def __init__(self, out: TextIO | None = None, every_s: float = LINE_S) -> None:
        """`every_s`: seconds between two lines."""
        self._out = out or sys.stdout
        self._every_s = every_s
        self._next = 0.0

    def _print(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def begin(self, title: str) -> None:
        """Prints the title and the columns' names."""
        self._print(f"{title}\n{HEAD}")
        self._next = 0.0

    def second(self, snapshot: Snapshot) -> None:
        """Prints a line if it is time for one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._print(snapshot.line())

    def note(self, text: str) -> None:
        """Prints it."""
        self._print(f"note: {text}")

    def end(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def close(self) -> None:
        """Nothing to do."""


def ramp(values: tuple[int, ...], width: int) -> str:
    """Numbers as blocks of eight heights beside each other; at most `width` of them, neighbours added up."""
    if not values or not max(values):
        return ""
    step = -(-len(values) // width)
    sums = [sum(values[at : at + step]) for at in range(0, len(values), step)]
    highest = max(sums)
    return "".join(BLOCKS[min(value * len(BLOCKS) // (highest + 1), len(BLOCKS) - 1)] for value in sums)


class Rich:
    """A table that is drawn anew, with progress and what is left; notes scroll by above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._title = ""
        self._rows: deque[Snapshot] = deque(maxlen=ROWS)
        self._live: Live | None = None

    def begin(self, title: str) -> None:
        """Begins a table."""
        self.close()
        self._title = title
        self._rows.clear()
        self._live = Live(self.picture(), console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def second(self, snapshot: Snapshot) -> None:
        """Adds a row; the oldest goes."""
        self._rows.append(snapshot)
        if self._live is not None:
            self._live.update(self.picture())

    def picture(self) -> Group:
        """What is shown."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row.cells())
        parts: list[RenderableType] = [Text(self._title, style="bold", overflow="ellipsis", no_wrap=True), table]
        if self._rows:
            last = self._rows[-1]
            if last.partitions:
                shown = ramp(last.partitions, max(self._console.width - 12, 1))
                parts.append(Text(f"partitions {shown}", overflow="ellipsis", no_wrap=True))
            if last.progress is not None:
                left = "" if last.eta_s is None else f" {last.eta_s:,.0f} s left"
                bar = ProgressBar(total=1.0, completed=last.progress, width=min(40, self._console.width // 2))
                line = Table.grid(padding=(0, 1))
                line.add_row(bar, Text(f"{last.progress:4.0%}{left}"))
                parts.append(line)
        return Group(*parts)

    def note(self, text: str) -> None:
        """Prints it above the table."""
        self._console.print(Text(f"note: {text}", style="yellow"))

    def end(self, text: str) -> None:
        """Leaves the last picture and the result."""
        self.close()
        if self._rows:
            self._console.print(self.picture())
        self._console.print(Text(text, style="bold"))

    def close(self) -> None:
        """Ends the drawing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
