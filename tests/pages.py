"""Pages with charts: their legends as texts, and where a browser puts everything."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

BROWSER = shutil.which("chromium")
WIDTHS = (500, 800, 1400)
"""Pixels; chromium has no narrower window."""

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here (apt-get install chromium)")

MEASURE = """<script>
const settled = () => [...document.querySelectorAll(".chart")].every(
  e => e.clientWidth === e.querySelector(".main-svg")?.clientWidth);
let looks = 0;
const looking = setInterval(() => {
  if (!settled() && ++looks < 60) return;
  clearInterval(looking);
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom].map(Math.round); };
  const all = (e, what) => [...e.querySelectorAll(what)].map(box).filter(b => b[2] > b[0] && b[3] > b[1]);
  const charts = [...document.querySelectorAll(".chart")].map(e => ({
    name: e.querySelector(".js-plotly-plot").id, column: box(e), drawn: box(e.querySelector(".main-svg")),
    parts: {
      plot: all(e, ".nsewdrag"), legend: all(e, "g.legend"), slider: all(e, ".rangeslider-bg"), bar: all(e, ".cbbg"),
      title: all(e, ".xtitle, .ytitle"), ticks: all(e, ".xaxislayer-above .xtick text"),
    } }));
  const keys = all(document, ".legend");
  const found = document.createElement("pre");
  found.id = "measured";
  found.textContent = JSON.stringify({ charts, keys, width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth });
  document.body.append(found);
}, 250);</script>"""
"""Looks when the charts have the widths of their columns, or after 15 seconds of virtual time."""


def legends(text: str) -> dict[str, list[str]]:
    """The entries of each chart's legend."""
    found = {}
    for chart, keys in re.findall(r'<div class="legend" data-chart="([^"]+)">(.*?)</div>', text, re.DOTALL):
        found[chart] = [html.unescape(name) for name in re.findall(r"</svg>(.*?)</button>", keys)]
    return found


def measure(page: Path, width: int) -> dict[str, Any]:
    """Where a browser of that width puts what is on a page; the page is changed for it."""
    assert BROWSER is not None
    page.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += [f"--window-size={width},2000", f"--user-data-dir={page.parent / 'browser'}", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=100, check=True)
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert measured, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(measured[1]))
    return found


def check(page: Path, width: int) -> None:
    """Charts fill their columns and no more, and nothing lies on anything else."""
    found = measure(page, width)
    assert found["charts"]
    assert found["needed"] <= found["width"]
    for chart in found["charts"]:
        column, drawn = chart["column"], chart["drawn"]
        assert (drawn[0], drawn[2]) == (column[0], column[2]), chart
        parts = [(name, box) for name, boxes in chart["parts"].items() for box in boxes]
        for (one, a), (other, b) in combinations(parts, 2):
            if one != other or one == "title":
                assert not _overlap(a, b), (chart["name"], one, a, other, b)
    for a, b in combinations([*(chart["column"] for chart in found["charts"]), *found["keys"]], 2):
        assert not _overlap(a, b), (a, b)


def _overlap(a: list[int], b: list[int]) -> bool:
    """Whether two boxes share more than a pixel's edge."""
    return min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
