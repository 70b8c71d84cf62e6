"""One self-contained HTML page with the demo's result in pictures."""

from __future__ import annotations

import html
import os
import platform
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from headrace import __version__
from headrace.demo import data
from headrace.demo.pipeline import WATERMARK

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from headrace.demo.pipeline import Results
    from headrace.demo.replay import Progress

_COLOURS: Final = (
    "#0b7285",
    "#e8590c",
    "#5f3dc4",
    "#2b8a3e",
    "#c2255c",
    "#1864ab",
    "#f08c00",
    "#087f5b",
    "#862e9c",
    "#a61e4d",
    "#364fc7",
    "#5c940d",
    "#495057",
)
SHOWN_MINUTES: Final = 90
_FONT: Final = "Inter, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"


@dataclass
class Run:
    """Everything that the page tells of."""

    wanted: pa.Table
    results: Results
    replay: Progress
    batches: list[dict[str, Any]]
    options: argparse.Namespace
    servers: str
    differences: list[str]


def write(path: Path, run: Run) -> Path:
    """Writes the page; gives its path."""
    path = Path(path)
    figures = {
        "flow": _flow(run),
        "speed": _speed_map(run),
        "delay": _delay(run),
        "rate": _rate(run),
    }
    plots = {
        name: figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
        for name, figure in figures.items()
    }
    path.write_text(_page(run, plots), encoding="utf-8")
    return path


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of all values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def _series(run: Run) -> dict[str, list[tuple[str, int, float]]]:
    found: dict[str, list[tuple[str, int, float]]] = {}
    for (site, minute), (flow, speed, _) in sorted(run.results.rows.items()):
        found.setdefault(site, []).append((minute, flow, speed))
    return found


def _flow(run: Run) -> go.Figure:
    figure = go.Figure()
    for colour, (site, rows) in zip(_COLOURS, _series(run).items(), strict=False):
        figure.add_scatter(
            x=[row[0] for row in rows],
            y=[row[1] for row in rows],
            name=data.site_label(site),
            mode="lines",
            line={"width": 1.8, "color": colour},
            hovertemplate="%{y:.0f}",
        )
    figure.update_yaxes(title="vehicles an hour, all lanes", rangemode="tozero")
    figure.update_xaxes(range=_first_hours(run), rangeslider={"visible": True, "thickness": 0.06})
    return _styled(figure, 480, hovermode="x unified")


def _first_hours(run: Run) -> list[str]:
    """The span that a picture over time shows at first; the rest is a drag away."""
    minutes = sorted({minute for _, minute in run.results.rows})
    return [minutes[0], minutes[min(SHOWN_MINUTES, len(minutes)) - 1]] if minutes else []


def _speed_map(run: Run) -> go.Figure:
    series = _series(run)
    minutes = sorted({row[0] for rows in series.values() for row in rows})
    sites = sorted(series, key=data.site_label, reverse=True)
    cells = [[speed if speed >= 0 else None for speed in _by_minute(series[site], minutes)] for site in sites]
    figure = go.Figure(
        go.Heatmap(
            x=minutes,
            y=[data.site_label(site) for site in sites],
            z=cells,
            zmin=70,
            zmax=125,
            colorscale=[[0, "#c92a2a"], [0.35, "#f08c00"], [0.6, "#ffe066"], [1, "#2b8a3e"]],
            colorbar={"title": "km/h", "thickness": 12},
            hovertemplate="%{y}<br>%{x}<br>%{z:.0f} km/h<extra></extra>",
        )
    )
    figure.update_xaxes(range=_first_hours(run))
    return _styled(figure, 420)


def _by_minute(rows: list[tuple[str, int, float]], minutes: list[str]) -> list[float]:
    found = {minute: speed for minute, _, speed in rows}
    return [found.get(minute, -1.0) for minute in minutes]


def _delay(run: Run) -> go.Figure:
    figure = go.Figure()
    delays = run.results.delays
    if delays:
        begun = min(at for at, _, _ in delays)
        by_batch: dict[float, list[float]] = {}
        for at, delay, _ in delays:
            by_batch.setdefault(at, []).append(delay)
        times = sorted(by_batch)
        for share, colour in ((0.99, "#e8590c"), (0.5, "#0b7285")):
            figure.add_scatter(
                x=[at - begun for at in times],
                y=[percentile(by_batch[at], share) for at in times],
                name=f"p{share * 100:.0f} of a micro-batch",
                mode="lines+markers",
                line={"color": colour, "width": 2},
            )
    figure.update_xaxes(title="seconds since the first result")
    figure.update_yaxes(title="seconds", rangemode="tozero")
    return _styled(figure, 320)


def _rate(run: Run) -> go.Figure:
    figure = go.Figure()
    points = run.replay.rates
    step = max(len(points) // 120, 1)
    chosen = points[::step]
    pairs = list(pairwise(chosen))
    figure.add_scatter(
        x=[b[0] for _, b in pairs],
        y=[(b[1] - a[1]) / max(b[0] - a[0], 1e-6) for a, b in pairs],
        name="sent",
        mode="lines",
        line={"color": "#0b7285", "width": 2},
    )
    durations = [b["durationMs"]["triggerExecution"] / 1000 for b in run.batches if b.get("numInputRows")]
    rows = [b["numInputRows"] for b in run.batches if b.get("numInputRows")]
    figure.add_bar(
        x=_ends(durations),
        y=[n / max(d, 1e-6) for n, d in zip(rows, durations, strict=True)],
        width=durations,
        name="taken by a micro-batch",
        marker={"color": "#e8590c", "opacity": 0.45},
    )
    figure.update_xaxes(title="seconds since the first record")
    figure.update_yaxes(title="records a second", rangemode="tozero")
    return _styled(figure, 320)


def _ends(durations: list[float]) -> list[float]:
    at, middles = 0.0, []
    for duration in durations:
        middles.append(at + duration / 2)
        at += duration
    return middles


def _styled(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 16, "b": 50},
        font={"family": _FONT, "size": 13},
        legend={"orientation": "h", "y": -0.18, "font": {"size": 12}},
        **layout,
    )
    return figure


def _page(run: Run, plots: dict[str, str]) -> str:
    delays = [delay for _, delay, _ in run.results.delays]
    took = (run.replay.ended or run.replay.started) - run.replay.started
    triggers = [b["durationMs"]["triggerExecution"] for b in run.batches if b.get("numInputRows")]
    right = not run.differences
    tiles = [
        ("good" if right else "bad", "equal" if right else "WRONG", "result against the table from the file"),
        ("", f"{run.replay.records:,}", "records replayed"),
        ("", f"{len(run.results):,}", "rows per site and minute"),
        ("", f"{percentile(delays, 0.5):.2f} s", "end-to-end delay, p50"),
        ("", f"{percentile(delays, 0.99):.2f} s", "end-to-end delay, p99"),
        ("", f"{run.replay.records / took if took else 0:,.0f}/s", f"records a second over {took:.0f} s"),
        ("", f"{percentile([float(t) for t in triggers], 0.5):,.0f} ms", f"median of {len(triggers)} micro-batches"),
    ]
    shown = "".join(f'<div class="tile {kind}"><b>{value}</b><span>{what}</span></div>' for kind, value, what in tiles)
    differences = html.escape("\n".join(run.differences))
    broker = f"Kafka at {html.escape(run.servers)}" if run.options.bootstrap else "headrace's embedded broker"
    here = files("headrace.demo")
    return Template((here / "report.html").read_text(encoding="utf-8")).substitute(
        style=(here / "report.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        tiles=shown,
        wrong="" if right else f"<section><h2>What differs</h2><pre>{differences}</pre></section>",
        broker=broker,
        machine=f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        version=__version__,
        watermark=WATERMARK,
        speed=f"{run.options.speed:g}",
        flow=plots["flow"],
        speeds=plots["speed"],
        delay=plots["delay"],
        rate=plots["rate"],
    )
