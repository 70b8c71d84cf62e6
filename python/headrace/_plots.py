"""Charts on the pages of the demo and of the lab: plotly draws them, legends are HTML above them.

A legend of plotly's own lies on the axis, the slider or the lines as soon as it has more entries, or the page fewer
columns, than its place was made for; one in HTML takes the room that it needs.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT: Final = "Inter, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"

_DASHES: Final = {"dot": "2 3", "dash": "6 3"}

STYLE: Final = """
.legend { display: flex; flex-wrap: wrap; gap: 0 14px; margin: 6px 0; }
.legend button { display: inline-flex; align-items: center; gap: 6px; max-width: 100%; border: 0; background: none;
  padding: 2px 0; font: inherit; font-size: 13px; line-height: 1.3; color: inherit; text-align: left; cursor: pointer;
  overflow-wrap: anywhere; }
.legend button[aria-pressed=false] { opacity: .35; }
.legend svg { flex: none; }
.chart { min-width: 0; overflow: hidden; }
"""
"""The page's style needs it."""

SCRIPT: Final = """
const headraceCharts = (() => {
  const show = (legend, wanted) => {
    const keys = [...legend.querySelectorAll("button")];
    keys.forEach((key, i) => key.setAttribute("aria-pressed", wanted[i]));
    Plotly.restyle(document.getElementById(legend.dataset.chart), { visible: wanted });
  };
  const shown = legend => [...legend.querySelectorAll("button")].map(k => k.getAttribute("aria-pressed") === "true");
  const pick = (event, choose) => {
    const key = event.target.closest(".legend button");
    if (!key) return;
    const legend = key.parentNode;
    show(legend, choose(shown(legend), [...legend.querySelectorAll("button")].indexOf(key)));
  };
  addEventListener("click", event => pick(event, (shown, at) => shown.map((on, i) => on !== (i === at))));
  addEventListener("dblclick", event => pick(event, (shown, at) => {
    const alone = shown.every((on, i) => on === (i === at));
    return shown.map((_, i) => alone || i === at);
  }));
  const plots = () => document.querySelectorAll(".chart .js-plotly-plot");
  const fit = chart => Plotly.Plots.resize(chart.querySelector(".js-plotly-plot"));
  const follow = new ResizeObserver(seen => seen.forEach(one => fit(one.target)));
  // Once without waiting for a frame: a page in the background has none.
  document.querySelectorAll(".chart").forEach(chart => { fit(chart); follow.observe(chart); });
  const seen = name => {
    // Of a colour that follows the theme only an element knows what it is now.
    if (!getComputedStyle(document.documentElement).getPropertyValue(name)) return "";
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const colours = () => {
    const ink = seen("--chart-ink"), grid = seen("--chart-grid"), card = seen("--chart-card");
    if (!ink) return {};
    const changed = { "font.color": ink, "hoverlabel.bgcolor": card, "hoverlabel.font.color": ink };
    for (const axis of ["xaxis", "yaxis"]) {
      for (const line of ["gridcolor", "zerolinecolor", "linecolor"]) changed[`${axis}.${line}`] = grid;
    }
    return changed;
  };
  const paint = () => {
    const changed = colours();
    if (Object.keys(changed).length) plots().forEach(plot => Plotly.relayout(plot, changed));
  };
  const update = (id, drawn) => {
    const plot = document.getElementById(id);
    const legend = document.querySelector(`.legend[data-chart="${id}"]`), wanted = legend ? shown(legend) : [];
    wanted.forEach((on, i) => { drawn.data[i].visible = on; });
    Plotly.react(plot, drawn.data, { ...drawn.layout, width: plot.clientWidth });
    Plotly.relayout(plot, colours());
  };
  return { paint, update };
})();
"""
"""At the end of the page: a click on an entry hides its line, a double click shows it alone, or all again.

Charts follow the width of their columns: plotly keeps the first one that it finds, when a column's neighbours are not
there yet. `headraceCharts.paint` gives them the colours `--chart-ink`, `--chart-grid` and `--chart-card` of the page,
if it has such; `headraceCharts.update` gives a chart other data.
"""


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty chart of that many pixels; `layout` as in plotly."""
    import plotly.graph_objects as go  # noqa: PLC0415  (slow)

    made = go.Figure()
    return made.update_layout(
        template="plotly_white",
        height=height,
        # At the top there is room for plotly's tools.
        margin={"l": 60, "r": 16, "t": 30, "b": 48},
        font={"family": FONT, "size": 13},
        showlegend=False,
        # The card behind it has the colour.
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"bgcolor": "#ffffff"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#7a8794", "activecolor": "#7a8794"},
        **layout,
    )


def chart(drawn: go.Figure, name: str) -> str:
    """A chart with its legend as HTML; `name` is its own on the page."""
    found = identity(name)
    config = {"displaylogo": False}
    plot: str = drawn.to_html(full_html=False, include_plotlyjs=False, config=config, div_id=found)
    return f'{legend(drawn, found)}<div class="chart">{plot}</div>'


def identity(name: str) -> str:
    """The id of a chart's element on its page."""
    return "chart-" + "".join(c if c.isalnum() else "-" for c in name)


def legend(drawn: go.Figure, chart_id: str) -> str:
    """An entry for each line or bar that has a name, in their order; nothing for a chart with fewer than two."""
    named = [trace for trace in drawn.data if trace.name]
    if len(named) < 2 or len(named) < len(drawn.data):  # noqa: PLR2004  (one needs no telling apart)
        return ""
    keys = "".join(
        f'<button type="button" aria-pressed="true">{_swatch(trace)}{html.escape(trace.name)}</button>'
        for trace in named
    )
    return f'<div class="legend" data-chart="{chart_id}">{keys}</div>'


def _swatch(trace: Any) -> str:
    """A piece of the line, or of the bar."""
    if trace.type == "bar" or trace.stackgroup:
        of, usual = (trace.marker, 1) if trace.type == "bar" else (trace.line, 0.6)
        colour, opacity = of.color, getattr(trace.marker, "opacity", None) or trace.opacity or usual
        mark = f'<rect x="2" y="0" width="14" height="10" fill="{colour}" fill-opacity="{opacity}"/>'
    else:
        dash = _DASHES.get(trace.line.dash or "")
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        mark = f'<line x1="0" y1="5" x2="22" y2="5" stroke="{trace.line.color}" stroke-width="2.5"{dashes}/>'
    return f'<svg width="22" height="10" aria-hidden="true">{mark}</svg>'
