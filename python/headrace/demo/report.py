"""One self-contained HTML page with the demo's result in pictures."""

from __future__ import annotations

import html
import json
import os
import platform
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from plotly.offline import get_plotlyjs

from headrace import __version__, _plots
from headrace.demo import data, delay
from headrace.demo.pipeline import WATERMARK_MINUTES

if TYPE_CHECKING:
    import argparse

    import plotly.graph_objects as go
    import pyarrow as pa

    from headrace.demo.cluster import Cluster
    from headrace.demo.pipeline import Arrival, Results
    from headrace.demo.replay import Progress
    from headrace.registry import RegisteredSchema

PARTS: Final = {
    "window": ("#76828e", "the join's window"),
    "trigger": ("#c77700", "the next micro-batch"),
    "headrace": ("#00875f", "headrace"),
    "reading": ("#2f8fd0", "Spark, reading"),
    "handing": ("#b05a90", "Spark, handing out"),
}
"""Colour and name of each part of a delay: colours that can be distinguished without red or without green."""

_SENT, _TAKEN, _TOP = "#2f8fd0", "#c77700", "#e03131"


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
    sites: list[data.Site]
    differences: list[str]
    busy: list[tuple[float, float]] = field(default_factory=list)
    """When headrace was at work in the query."""
    running: bool = False
    """Whether more is to come."""


def write(path: Path, run: Run, live: str = "") -> Path:
    """Writes the page, at once or not at all; gives its path. `live` is the file that it follows while it runs."""
    path = Path(path)
    replace(path, _page(run, live))
    return path


def replace(path: Path, text: str) -> None:
    """Writes a file so that whoever reads it sees all of it or what was there before."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def state(run: Run) -> dict[str, Any]:
    """What changes on the page while the demo runs: numbers of the sites, pieces of HTML, and charts."""
    parts = _parts(run)
    return {
        "data": traffic(run),
        "rows": len(run.results),
        "wanted": run.wanted.num_rows,
        "pieces": {"tiles": _tiles(run, parts), "made": _made(run, parts)},
        "charts": {
            _plots.identity(name): json.loads(figure.to_json())
            for name, figure in (("delay", _delay(run, parts)), ("rate", _rate(run)))
        },
    }


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of all values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def traffic(run: Run) -> dict[str, Any]:
    """Flow and speed of each site by minute, where the sites are, and the roads between them, in km."""
    stamps = {minute: delay.stamp(minute) for minute in {minute for _, minute in run.results.rows}}
    first = min(stamps.values(), default=None)
    at = {minute: int((stamp - first) / timedelta(minutes=1)) for minute, stamp in stamps.items()} if first else {}
    count = max(at.values(), default=-1) + 1
    cells: dict[str, tuple[list[int | None], list[float | None]]] = {
        site.id: ([None] * count, [None] * count) for site in run.sites
    }
    for (site, minute), (flow, speed, _) in run.results.rows.items():
        flows, speeds = cells[site]
        flows[at[minute]], speeds[at[minute]] = flow, round(speed, 1)
    places = [tuple(round(km, 3) for km in data.place_km(site)) for site in run.sites]
    numbers = {site.id: number for number, site in enumerate(run.sites)}
    return {
        "start": first.strftime("%Y-%m-%dT%H:%M:00Z") if first else None,
        "count": count,
        "pace": run.options.speed,
        "running": run.running,
        "sites": [
            {"id": site.id, "label": site.label, "at": place, "flow": cells[site.id][0], "speed": cells[site.id][1]}
            for site, place in zip(run.sites, places, strict=True)
        ],
        "roads": [
            {"name": s.start.road, "from": numbers[s.start.id], "to": numbers[s.stop.id], "straight": s.straight}
            for s in data.stretches(run.sites)
        ],
    }


def _parts(run: Run) -> list[tuple[Arrival, delay.Parts]]:
    passed = delay.passing(dict(run.replay.sent_at), timedelta(minutes=WATERMARK_MINUTES))
    return delay.parts(run.results.arrivals, passed, delay.runs(run.batches), delay.Busy(run.busy))


def _delay(run: Run, parts: list[tuple[Arrival, delay.Parts]]) -> go.Figure:
    """A bar for each micro-batch: the mean of each part; and above it the p99 of whole delays."""
    figure = _plots.figure(340, barmode="stack", bargap=0)
    by_batch: dict[float, list[tuple[Arrival, delay.Parts]]] = {}
    for row in parts:
        by_batch.setdefault(row[0].at, []).append(row)
    times = sorted(by_batch)
    widths = [(at - before) * 0.85 for before, at in pairwise(times)]
    widths = [min(widths, default=1.0), *widths] if times else []
    made = [delay.means(by_batch[at]) for at in times]
    x = [round(at - run.replay.started_at - width / 2, 3) for at, width in zip(times, widths, strict=True)]
    for part, (colour, name) in PARTS.items():
        y = [round(getattr(mean, part), 4) for mean in made]
        figure.add_bar(x=x, y=y, width=widths, name=name, marker={"color": colour, "line": {"width": 0}})
    tops = [percentile([arrival.delay for arrival, _ in by_batch[at]], 0.99) for at in times]
    line = {"color": _TOP, "width": 2, "dash": "dot"}
    figure.add_scatter(x=x, y=tops, name="p99 of the rows", mode="lines+markers", line=line, marker={"size": 4})
    figure.update_traces(hovertemplate="%{y:.2f} s")
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title="seconds since the first record", rangemode="tozero")
    figure.update_yaxes(title="seconds", rangemode="tozero")
    return figure


def _rate(run: Run) -> go.Figure:
    figure = _plots.figure(340)
    figure.add_bar(**_taken(run), name="taken by a micro-batch", marker={"color": _TAKEN, "opacity": 0.6})
    seconds, sent = _by_second(list(run.replay.rates))
    figure.add_scatter(x=seconds, y=sent, name="sent", mode="lines", line={"color": _SENT, "width": 2})
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
    ran = delay.runs(run.batches)
    for batch in run.batches:
        if not batch.get("numInputRows") or batch["batchId"] not in ran:
            continue
        began, ended = ran[batch["batchId"]]
        took = max(ended - began, 1e-3)
        bars["x"].append(began - run.replay.started_at + took / 2)
        bars["y"].append(batch["numInputRows"] / took)
        bars["width"].append(took)
    return bars


def _tiles(run: Run, parts: list[tuple[Arrival, delay.Parts]]) -> str:
    """The numbers at the head of the page."""
    delays = [arrival.delay for arrival in run.results.arrivals]
    sent_s = run.replay.rates[-1][0] if run.replay.rates else 0.0
    mean = delay.means(parts)
    verdict = ("bad", "WRONG") if run.differences else ("good", "equal")
    if run.running:
        verdict = ("wait", f"{len(run.results) / max(run.wanted.num_rows, 1):.0%}")
    what = "of the rows are there" if run.running else "result against the table from the file"
    tiles = [
        (*verdict, what),
        ("", f"{run.replay.records:,}", "records replayed"),
        ("", f"{len(run.results):,}", "rows per site and minute"),
        ("", _seconds(percentile(delays, 0.5)), "end-to-end delay, p50"),
        ("", _seconds(percentile(delays, 0.99)), "end-to-end delay, p99"),
        ("", _seconds(mean.headrace) if mean else "-", "of it in headrace, mean"),
        ("", f"{run.replay.records / sent_s if sent_s else 0:,.0f}", f"records a second over {sent_s:.0f} s"),
    ]
    return "".join(f'<div class="tile {kind}"><b>{value}</b><span>{text}</span></div>' for kind, value, text in tiles)


def _made(run: Run, parts: list[tuple[Arrival, delay.Parts]]) -> str:
    """What a delay is made of: a bar, and a row for each part."""
    mean = delay.means(parts)
    if mean is None:
        return "<p>No row has come out yet.</p>"
    whole = sum(mean)
    ahead = WATERMARK_MINUTES / run.options.speed
    texts = {
        "window": f"A row is complete when no record of its minute can come any more. The query waits for "
        f"{WATERMARK_MINUTES} minutes of data time (its watermark), which take {ahead:.2f} s at the pace of this "
        "replay.",
        "trigger": "Spark works in micro-batches, one after the other. What is sent while one runs waits for its end.",
        "headrace": "Planning offsets, fetching records and decoding them to columns, in both micro-batches: the time "
        "in which at least one of its calls was at work.",
        "reading": "The rest of the micro-batch that reads the records. The watermark moves at its end.",
        "handing": "The rest of the next micro-batch, the first with the new watermark, until the row is there.",
    }
    bar = "".join(
        f'<i style="flex-grow:{value / whole:.4f};background:{PARTS[part][0]}"></i>'
        for part, value in mean._asdict().items()
    )
    rows = "".join(
        f'<tr><th scope="row"><i style="background:{PARTS[part][0]}"></i>{PARTS[part][1]}</th>'
        f"<td>{value:.2f} s</td><td>{value / whole:.0%}</td><td>{texts[part]}</td></tr>"
        for part, value in mean._asdict().items()
    )
    some = "" if len(parts) == len(run.results.arrivals) else f" of {len(run.results.arrivals):,}"
    return (
        f'<div class="bar" aria-hidden="true">{bar}</div><div class="scroll"><table class="parts"><thead><tr>'
        f"<th>waits for</th><th>mean</th><th>share</th><th>why</th></tr></thead><tbody>{rows}</tbody>"
        f'<tfoot><tr><th scope="row">together</th><td>{whole:.2f} s</td><td></td>'
        f"<td>mean of {len(parts):,}{some} rows</td></tr></tfoot></table></div>"
    )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value == value else "-"  # noqa: PLR0124  (not a number: there are none yet)


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


def inline(value: Any) -> str:
    """JSON for a script on a page: no text in it can end the script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _page(run: Run, live: str) -> str:
    parts = _parts(run)
    differences = html.escape("\n".join(run.differences))
    broker = (
        f"Kafka at {html.escape(run.cluster.bootstrap_servers)}"
        if run.options.bootstrap
        else "headrace's embedded broker"
    )
    elsewhere = run.options.schema_registry_url
    registry = f"the registry at {html.escape(elsewhere)}" if elsewhere else "headrace's embedded registry"
    here = files("headrace.demo")

    def beside(name: str) -> str:
        return (here / name).read_text(encoding="utf-8")

    return Template(beside("report.html")).substitute(
        style=beside("report.css") + _plots.STYLE,
        script=_plots.SCRIPT + beside("report.js"),
        plotly=get_plotlyjs(),
        traffic=inline(traffic(run)),
        live=html.escape(live),
        tiles=_tiles(run, parts),
        made=_made(run, parts),
        wrong=f"<section><h2>What differs</h2><pre>{differences}</pre></section>" if run.differences else "",
        broker=broker,
        registry=registry,
        schemas="".join(map(_fields, run.schemas)),
        count=len(run.sites),
        machine=f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        version=__version__,
        speed=f"{run.options.speed:g}",
        delay=_plots.chart(_delay(run, parts), "delay"),
        rate=_plots.chart(_rate(run), "rate"),
    )
