"""Pairs in turns, their medians, and the table.

Two runs of one bench differ by tens of percent on a shared machine, two neighbours in time by less. So ours and the
peer run in turns, the ratio is that of each pair, and the verdict is the median of the ratios.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.peers.meter import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
RUN_TIMEOUT_SECONDS = 300

# numpy, which pyarrow imports, starts threads for its linear algebra that spin for a while: not what is measured.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


def last_line(module: str, *arguments: object) -> str:
    """Runs a runner in a Python of its own; gives the last line that it prints."""
    return _last_line([sys.executable, "-m", module, *(str(argument) for argument in arguments)])


def executable(path: Path, *arguments: object) -> Sample:
    """Runs a runner that is a program of its own; its last line is the sample."""
    return Sample.parse(_last_line([str(path), *(str(argument) for argument in arguments)]))


def _last_line(command: list[str]) -> str:
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}; its messages are above")
    return done.stdout.splitlines()[-1]


def program(module: str, *arguments: object) -> Sample:
    """Runs a runner in a Python of its own; its last line is the sample."""
    return Sample.parse(last_line(module, *arguments))


@dataclasses.dataclass
class Row:
    """One comparison. `ours`, `peer` and `limit` are medians in `unit`; the ratios are those of the pairs."""

    name: str
    ours: float
    peer: float
    ratio: float
    ratio_min: float
    ratio_max: float
    unit: str
    limit: float | None = None
    ours_cpu: float | None = None
    """CPU seconds of the client per million records."""
    peer_cpu: float | None = None
    bar: float | None = None
    """What `ratio` must reach."""
    bar_on_ours: float | None = None
    """What `ours` must not pass, where less is better."""
    bar_below: float | None = None
    """What `ratio` must not pass, where less is better."""
    bar_least: float | None = None
    """What `ours` must reach."""
    group: str = ""
    """What ``make bench ARGS='--only ...'`` calls those that are measured together."""

    @property
    def met(self) -> bool | None:
        """Whether the bar is; None without a bar."""
        if self.bar_on_ours is not None:
            return self.ours <= self.bar_on_ours
        if self.bar_below is not None:
            return self.ratio <= self.bar_below
        if self.bar_least is not None:
            return self.ours >= self.bar_least
        return self.ratio >= self.bar if self.bar is not None else None

    @property
    def ratio_text(self) -> str:
        """For people: the median of the pairs, and the least and the most of them."""
        return f"{number(self.ratio)}x ({number(self.ratio_min)}-{number(self.ratio_max)})"

    @property
    def bar_text(self) -> str:
        """For people."""
        verdict = "met" if self.met else "MISSED"
        if self.bar_on_ours is not None:
            return f"<= {number(self.bar_on_ours)} {self.unit} {verdict}"
        if self.bar_below is not None:
            return f"<= {number(self.bar_below)}x {verdict}"
        if self.bar_least is not None:
            return f">= {number(self.bar_least)} {self.unit} {verdict}"
        return f">= {number(self.bar)}x {verdict}" if self.bar is not None else ""


def say(text: str) -> None:
    """Progress, beside the results."""
    print(text, file=sys.stderr, flush=True)


def in_turns(runners: Sequence[Callable[[], Sample]], pairs: int, *, warm_up: bool = True) -> list[list[Sample]]:
    """Runs all of them `pairs` times, one after the other; a round before the first is thrown away."""
    samples: list[list[Sample]] = [[] for _ in runners]
    for number in range(-1 if warm_up else 0, pairs):
        # Every second round runs backwards, so that no one always follows the same neighbour.
        order = list(enumerate(runners))
        for index, runner in order if number % 2 == 0 else reversed(order):
            sample = runner()
            if number >= 0:
                samples[index].append(sample)
    return samples


def paired(name: str, ours: Sequence[float], peer: Sequence[float], unit: str, **more: Any) -> Row:
    """A row of figures that were taken in turns; where one side has fewer, its first partners count."""
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=False)]
    return Row(
        name=name,
        ours=statistics.median(ours),
        peer=statistics.median(peer),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        unit=unit,
        **more,
    )


def compare(
    name: str,
    ours: Sequence[Sample],
    peer: Sequence[Sample],
    limit: Sequence[Sample] | None = None,
    *,
    bar: float | None = None,
) -> Row:
    """A row of rates from samples that were taken in turns."""

    def rates(samples: Sequence[Sample]) -> list[float]:
        return [sample.rate / 1e6 for sample in samples]

    return paired(
        name,
        rates(ours),
        rates(peer),
        "M records/s",
        limit=statistics.median(rates(limit)) if limit else None,
        ours_cpu=statistics.median(sample.cpu_per_million for sample in ours),
        peer_cpu=statistics.median(sample.cpu_per_million for sample in peer),
        bar=bar,
    )


def compare_cpu(
    name: str,
    ours: Sequence[Sample],
    peer: Sequence[Sample],
    limit: Sequence[Sample] | None = None,
    *,
    kernel: bool = False,
    bar_below: float | None = None,
) -> Row:
    """A row of CPU time, less is better, from samples that were taken in turns; `kernel` takes the kernel's part."""

    def costs(samples: Sequence[Sample]) -> list[float]:
        return [sample.kernel_per_million if kernel else sample.cpu_per_million for sample in samples]

    return paired(
        name,
        costs(ours),
        costs(peer),
        "CPU s/M records",
        limit=statistics.median(costs(limit)) if limit else None,
        bar_below=bar_below,
    )


def number(value: float | None) -> str:
    """Three figures that count."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """For people."""
    lines = [("bench", "ours", "peer", "unit", "ratio (least-most)", "limit", "of limit", "CPU ours/peer", "bar")]
    for row in rows:
        share = f"{row.ours / row.limit:.0%}" if row.limit else ""
        cpu = f"{number(row.ours_cpu)} / {number(row.peer_cpu)}" if row.ours_cpu is not None else ""
        figures = (number(row.ours), number(row.peer), row.unit, row.ratio_text, number(row.limit))
        lines.append((row.name, *figures, share, cpu, row.bar_text))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def save(rows: Sequence[Row], path: Path) -> None:
    """For programs: rows of {name, ours, peer, ratio, limit, unit} and more, with the machine and the day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    rows_out = [{**dataclasses.asdict(row), "met": row.met} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": rows_out}, indent=1) + "\n", encoding="utf-8")
