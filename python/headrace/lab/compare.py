"""Two bundles, or campaigns, beside each other."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.lab import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.lab.report import Shown

MEASURES: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "sent/s": lambda run: run["verdict"].get("publishRate"),
    "received/s": lambda run: run["verdict"].get("consumeRate", run["verdict"].get("drainRate")),
    "limit/s": lambda run: run["verdict"].get("limit"),
    "peak/s": lambda run: run["verdict"].get("peakRate"),
    "floor %": lambda run: run["verdict"].get("floorPercentOfPeak"),
    "drain s": lambda run: run["verdict"].get("drainSeconds"),
    "delivery p50 ms": lambda run: run["deliveryMs"]["p50"],
    "delivery p99 ms": lambda run: run["deliveryMs"]["p99"],
    "delivery p99.9 ms": lambda run: run["deliveryMs"]["p99.9"],
    "CPU s a million": lambda run: run.get("consumerCpuSecondsPerMillion"),
}
UNSET: Final = object()
HARDWARE: Final = ("model", "cores", "usableCores", "memoryBytes", "kernel", "cgroup")


@dataclass(frozen=True)
class Pair:
    """The same variation and driver in both."""

    label: str
    first: Shown
    second: Shown

    def rows(self) -> Iterator[tuple[str, str, float, float, float | None]]:
        """Label, measure, both values and the second's ratio to the first, of what both have."""
        for name, measure in MEASURES.items():
            a, b = measure(self.first.summary), measure(self.second.summary)
            if a is not None and b is not None:
                yield self.label, name, float(a), float(b), b / a if a else (1.0 if a == b else None)


@dataclass(frozen=True)
class Comparison:
    """Pairs, and what makes them hard to compare."""

    pairs: list[Pair]
    differences: list[str]
    alone: list[str]
    """Runs that only one of them has."""

    def text(self) -> str:
        """For a terminal."""
        lines = [*self.differences, *self.alone]
        header = ("run", "measure", "A", "B", "B/A")
        rows = [header]
        for label, name, a, b, ratio in (row for pair in self.pairs for row in pair.rows()):
            rows.append((label, name, f"{a:,.2f}", f"{b:,.2f}", "-" if ratio is None else f"{ratio:.2f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        for row in rows:
            left = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
            right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=False)]
            lines.append("  ".join([*left, *right]).rstrip())
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """A page with both runs in each chart."""
        rows = [row for pair in self.pairs for row in pair.rows()]
        notes = "".join(f'<p class="bad">{report.escape(line)}</p>' for line in (*self.differences, *self.alone))
        head = notes + report.table(["run", "measure", "A", "B", "B/A"], rows)
        shown = [run for pair in self.pairs for run in (pair.first, pair.second)]
        return report.page("A and B", shown, head)


def compare(first: Path, second: Path) -> Comparison:
    """Pairs the runs of two bundles by variation and driver; two that have one run each are a pair whatever they are.

    Raises:
        ValueError: one is no bundle, or they have no run in common.
    """
    ours, theirs = report.load(first, "A"), report.load(second, "B")
    if len(ours) == len(theirs) == 1:
        both = [(ours[0], theirs[0])]
    else:
        by_key = {_key(run): run for run in theirs}
        both = [(run, by_key[_key(run)]) for run in ours if _key(run) in by_key]
    if not both:
        raise ValueError(f"{first} and {second} have no variation and driver in common")
    pairs = []
    for number, (a, b) in enumerate(both):
        colour = report.COLOURS[(2 * number) % len(report.COLOURS)]
        other = report.COLOURS[(2 * number + 1) % len(report.COLOURS)]
        names = dict.fromkeys((a.label.removeprefix("A · "), b.label.removeprefix("B · ")))
        label = " | ".join(names)  # two single runs are a pair whatever their drivers are
        pairs.append(Pair(label, dataclasses.replace(a, colour=colour), dataclasses.replace(b, colour=other)))
    paired = {id(run) for pair in both for run in pair}
    alone = [f"only in one: {run.label}" for run in (*ours, *theirs) if id(run) not in paired]
    return Comparison(pairs, list(dict.fromkeys(line for a, b in both for line in _differences(a, b))), alone)


def _apart(path: str, mine: object, other: object) -> Iterator[tuple[str, object, object]]:
    """Where two values differ: of maps their entries, each by its path."""
    if mine == other:
        return
    first, second = ({} if value is UNSET or value is None else value for value in (mine, other))
    if isinstance(first, dict) and isinstance(second, dict):
        for name in dict.fromkeys([*first, *second]):
            yield from _apart(f"{path}.{name}", first.get(name, UNSET), second.get(name, UNSET))
    else:
        yield path, mine, other


def _word(value: object) -> str:
    """A setting in a sentence."""
    if value is UNSET or value is None:
        return "not set"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else repr(value)


def _key(run: Shown) -> tuple[str, str]:
    return run.summary["variation"], run.summary["driver"]


def _differences(a: Shown, b: Shown) -> Iterator[str]:
    """What is not the same, sentence by sentence; the machine first."""
    for file, names, warning in (
        ("hardware.json", HARDWARE, "different machines, ratios mean little"),
        ("versions.json", None, "different versions"),
        ("resolved.json", None, "different settings"),
    ):
        mine, other = a.other(file), b.other(file)
        for name in names or dict.fromkeys([*mine, *other]):
            for path, one, two in _apart(name, mine.get(name, UNSET), other.get(name, UNSET)):
                yield f"{warning}: {path} is {_word(one)} in A and {_word(two)} in B"
    for run in (a, b):
        if not run.summary["complete"]:
            yield f"not complete: {run.label}"
