"""One self-contained HTML page with the demo's result in pictures."""

from __future__ import annotations

import html
import json
import os
import platform
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from headrace import __version__, _plots
from headrace.demo import data
from headrace.demo.pipeline import WATERMARK

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from headrace.demo.cluster import Cluster
    from headrace.demo.pipeline import Results
    from headrace.demo.replay import Progress
    from headrace.registry import RegisteredSchema

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


@dataclass
class Run:
    """Everything that the page tells of."""

    wanted: pa.Table
    results: Results
    replay: Progress
    batches: list[dict[str, Any]]
    options: argparse.Namespace
    cluster: Cluster
    schemas: list[RegisteredSchema]
    """Of the topics' values."""
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
    plots = {name: _plots.chart(figure, name) for name, figure in figures.items()}
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
    figure = _plots.figure(440, hovermode="x unified")
    figure.update_layout(margin={"b": 12})  # the slider makes its own
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
    figure.update_xaxes(range=_first_hours(run), rangeslider={"visible": True, "thickness": 0.08})
    return figure


def _first_hours(run: Run) -> list[str]:
    """The span that a picture over time shows at first; the rest is a drag away."""
    minutes = sorted({minute for _, minute in run.results.rows})
    return [minutes[0], minutes[min(SHOWN_MINUTES, len(minutes)) - 1]] if minutes else []


def _speed_map(run: Run) -> go.Figure:
    series = _series(run)
    minutes = sorted({row[0] for rows in series.values() for row in rows})
    sites = sorted(series, key=data.site_label, reverse=True)
    cells = [[speed if speed >= 0 else None for speed in _by_minute(series[site], minutes)] for site in sites]
    figure = _plots.figure(420)
    figure.add_trace(
        go.Heatmap(
            x=minutes,
            y=[data.site_label(site) for site in sites],
            z=cells,
            zmin=70,
            zmax=125,
            colorscale=[[0, "#c92a2a"], [0.35, "#f08c00"], [0.6, "#ffe066"], [1, "#2b8a3e"]],
            # Below the chart: beside it, it would take a third of a telephone's width.
            colorbar={
                "title": {"text": "km/h", "side": "top"},
                "thickness": 10,
                "orientation": "h",
                "y": -0.16,
                "yanchor": "top",
            },
            hovertemplate="%{y}<br>%{x}<br>%{z:.0f} km/h<extra></extra>",
        )
    )
    figure.update_layout(margin={"b": 110})
    figure.update_yaxes(tickfont={"size": 11})
    figure.update_xaxes(range=_first_hours(run), tickformat="%H:%M")
    return figure


def _by_minute(rows: list[tuple[str, int, float]], minutes: list[str]) -> list[float]:
    found = {minute: speed for minute, _, speed in rows}
    return [found.get(minute, -1.0) for minute in minutes]


def _delay(run: Run) -> go.Figure:
    figure = _plots.figure(320)
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
    return figure


def _rate(run: Run) -> go.Figure:
    figure = _plots.figure(320)
    figure.add_bar(**_taken(run), name="taken by a micro-batch", marker={"color": "#e8590c", "opacity": 0.45})
    seconds, sent = _by_second(run.replay.rates)
    figure.add_scatter(x=seconds, y=sent, name="sent", mode="lines", line={"color": "#0b7285", "width": 2})
    figure.update_xaxes(title="seconds since the first record")
    figure.update_yaxes(title="records a second", rangemode="tozero")
    return figure


def _by_second(points: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """The middle of each whole second and its records, from (seconds since the start, records so far).

    Each point by itself would be a peak wherever two of them happen to be close.
    """
    sent = [0] * (int(points[-1][0]) + 1 if points else 0)
    before = 0
    for at, records in points:
        sent[int(at)] += records - before
        before = records
    sent = sent[:-1] or sent  # the last second is not whole
    return [second + 0.5 for second in range(len(sent))], sent


def _taken(run: Run) -> dict[str, list[float]]:
    """A bar for each micro-batch with rows: when it ran, and how many records a second it took."""
    bars: dict[str, list[float]] = {"x": [], "y": [], "width": []}
    for batch in run.batches:
        if not batch.get("numInputRows"):
            continue
        took = max(batch["durationMs"]["triggerExecution"] / 1000, 1e-3)
        began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp() - run.replay.started_at
        bars["x"].append(began + took / 2)
        bars["y"].append(batch["numInputRows"] / took)
        bars["width"].append(took)
    return bars


def _fields(schema: RegisteredSchema) -> str:
    """A schema as a table of its fields."""
    texts = [
        (field["name"], _type(field["type"]), field.get("doc", "")) for field in json.loads(schema.schema)["fields"]
    ]
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in texts)
    name = f"<code>{html.escape(str(schema.subject))}</code>, version {schema.version}, id {schema.id}"
    return f'<table class="fields"><caption>{name}</caption>{rows}</table>'


def _type(kind: Any) -> str:
    """A type of Avro in a word, or a union in several."""
    if isinstance(kind, list):
        return " or ".join(map(_type, kind))
    return _type(kind.get("logicalType") or kind["type"]) if isinstance(kind, dict) else str(kind)


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
    broker = (
        f"Kafka at {html.escape(run.cluster.bootstrap_servers)}"
        if run.options.bootstrap
        else "headrace's embedded broker"
    )
    elsewhere = run.options.schema_registry_url
    registry = f"the registry at {html.escape(elsewhere)}" if elsewhere else "headrace's embedded registry"
    here = files("headrace.demo")
    return Template((here / "report.html").read_text(encoding="utf-8")).substitute(
        style=(here / "report.css").read_text(encoding="utf-8") + _plots.STYLE,
        script=_plots.SCRIPT,
        plotly=get_plotlyjs(),
        tiles=shown,
        wrong="" if right else f"<section><h2>What differs</h2><pre>{differences}</pre></section>",
        broker=broker,
        registry=registry,
        schemas="".join(map(_fields, run.schemas)),
        machine=f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        version=__version__,
        watermark=WATERMARK,
        speed=f"{run.options.speed:g}",
        flow=plots["flow"],
        speeds=plots["speed"],
        delay=plots["delay"],
        rate=plots["rate"],
    )
