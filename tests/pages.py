"""Pages with charts: their legends as texts, and where a browser puts everything."""

from __future__ import annotations

import html
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tests.browser import Browser, browser, needs_browser

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PALE", "SETTLED", "WIDTHS", "check", "check_boxes", "legends", "needs_browser"]

WIDTHS = (390, 820, 1440)
"""Pixels of a telephone, a tablet and a desk."""

SETTLED = """[...document.querySelectorAll(".chart")].every(
  e => e.clientWidth === e.querySelector(".main-svg")?.clientWidth)"""
"""Charts have the widths of their columns."""

MEASURE = """(() => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom].map(Math.round); };
  const all = (e, what) => [...e.querySelectorAll(what)].map(box).filter(b => b[2] > b[0] && b[3] > b[1]);
  const charts = [...document.querySelectorAll(".chart")].map(e => ({
    name: e.querySelector(".js-plotly-plot").id, column: box(e), drawn: box(e.querySelector(".main-svg")),
    parts: {
      plot: all(e, ".nsewdrag"), legend: all(e, "g.legend"), slider: all(e, ".rangeslider-bg"), bar: all(e, ".cbbg"),
      title: all(e, ".xtitle, .ytitle"), ticks: all(e, ".xaxislayer-above .xtick text"),
    } }));
  // Each line of each text, with the element that it stands in; what plotly shows only under a mouse is not there.
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, title, option, .modebar, .hoverlayer")) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const b of parent.closest("svg") ? [parent.getBoundingClientRect()] : range.getClientRects()) {
      texts.push([node.data.trim().slice(0, 40), [b.left, b.top, b.right, b.bottom].map(Math.round)]);
    }
  }
  const inCards = [...document.querySelectorAll("section svg, section .chart, section table")].filter(
    e => !e.closest(".js-plotly-plot")).map(
    e => [e.id || e.getAttribute("class"), box(e), box(e.closest("section"))]);
  return { charts, texts, inCards, keys: all(document, ".legend"), width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth };
})()"""


PALE = """(() => {
  const parse = text => { const n = text.match(/[\\d.]+/g).map(Number); return { rgb: n.slice(0, 3), a: n[3] ?? 1 }; };
  const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const back = parse(getComputedStyle(e).backgroundColor);
      if (back.a === 1) return back.rgb;
      if (getComputedStyle(e).backgroundImage !== "none") return null; // the header's: white on dark
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest("script, title, .modebar")) continue;
    const style = getComputedStyle(e), back = behind(e);
    if (!back || !e.checkVisibility()) continue;
    const [a, b] = [light(parse(e.closest("svg") ? style.fill : style.color).rgb), light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([e.textContent.trim().slice(0, 30), e.className.baseVal ?? e.className,
      style.color, back, (a + 0.05) / (b + 0.05)]);
  }
  return low;
})()"""
"""Texts of less contrast to what is behind them than WCAG's level AA asks for, 4.5."""


def legends(text: str) -> dict[str, list[str]]:
    """The entries of each chart's legend."""
    found = {}
    for chart, keys in re.findall(r'<div class="legend" data-chart="([^"]+)">(.*?)</div>', text, re.DOTALL):
        found[chart] = [html.unescape(name) for name in re.findall(r"</svg>(.*?)</button>", keys)]
    return found


def check(page: Path, width: int) -> None:
    """Charts fill their columns and no more, and nothing lies on anything else."""
    with browser() as shown:
        shown.look(width)
        shown.open(page)
        check_boxes(shown)


def check_boxes(shown: Browser) -> dict[str, Any]:
    """The same of a page that is open; gives where everything is."""
    shown.wait_for(SETTLED)
    found: dict[str, Any] = shown.run(MEASURE)
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
    return found


def texts_on_texts(found: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Pairs of texts of which one lies on the other."""
    return [(a, b) for a, b in combinations(found["texts"], 2) if _overlap(a[1], b[1])]


def outside_cards(found: dict[str, Any]) -> list[Any]:
    """Charts and tables that reach out of their cards."""
    return [
        (name, inner, card)
        for name, inner, card in found["inCards"]
        if not (card[0] <= inner[0] and card[1] <= inner[1] and inner[2] <= card[2] and inner[3] <= card[3])
    ]


def _overlap(a: list[int], b: list[int]) -> bool:
    """Whether two boxes share more than a pixel's edge."""
    return min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
