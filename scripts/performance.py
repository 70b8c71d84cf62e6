"""The page of what `make bench` has measured: a table for each group, with bars, and how to measure it again."""

from __future__ import annotations

import html
from itertools import groupby
from typing import Any, Final

_HEAD: Final = """\
# What was measured here

`make bench` measures headrace beside its peers, in turns in one run, and this page shows what it found. \
[Speed](speed.md) explains the figures, and where the time goes.
"""
_NOTHING: Final = """
Nothing has been measured yet: run `make bench`, or `make bench ARGS='--only consume'`, and then `make docs`.
"""

_WHOLE_FROM: Final = 100


def page(results: dict[str, Any] | None) -> str:
    """The page, of the file that the benches write; without one it says how to make it."""
    if results is None or not results["rows"]:
        return _HEAD + _NOTHING
    machine = results["machine"]
    parts = [_HEAD, f"\n{machine.get('day', 'Some day')}, {machine['cores']} cores, Python {machine['python']}.\n"]
    for group, rows in groupby(results["rows"], key=lambda row: str(row.get("group", ""))):
        parts.append(f"\n## {group or 'All'}\n")
        if group:
            parts.append(f"`make bench ARGS='--only {group}'`\n")
        parts.append("\n| measured | ours | peer | ratio (least to most) | of the limit | CPU, ours / peer | bar |\n")
        parts.append("|---|---|---|---|---|---|---|\n")
        parts += [_row(row) for row in rows]
    return "".join(parts)


def _row(row: dict[str, Any]) -> str:
    name = html.escape(str(row["name"])).replace("|", "\\|")
    ratio = f"{_figures(row['ratio'])} ({_figures(row['ratio_min'])} to {_figures(row['ratio_max'])})"
    share = f"{row['ours'] / row['limit']:.0%}" if row.get("limit") else ""
    cpu = f"{_figures(row['ours_cpu'])} / {_figures(row['peer_cpu'])}" if row.get("ours_cpu") is not None else ""
    bar = {True: "met", False: "**missed**", None: ""}[row.get("met")]
    ours = f"{_figures(row['ours'])} {html.escape(str(row['unit']))}"
    return f"| {name} | {ours} | {_figures(row['peer'])} | {ratio} | {share} | {cpu} | {bar} |\n"


def _figures(value: float) -> str:
    """Three that count."""
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"
