"""One self-contained HTML page with the demo's result in pictures."""

from __future__ import annotations

import html
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from headrace import __version__
from headrace.demo import data

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from headrace.demo.pipeline import Results
    from headrace.demo.replay import Progress

_COLOURS: Final = (
    "#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab",
    "#f08c00", "#087f5b", "#862e9c", "#a61e4d", "#364fc7", "#5c940d", "#495057",
)  # fmt: skip
SHOWN_MINUTES: Final = 90
_FONT: Final = "Inter, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0; background: #f4f6f8; color: #1f2933; font: 16px/1.5 %s; }
header { background: linear-gradient(120deg, #0b3c49, #0b7285); color: #fff; padding: 40px 5vw 34px; }
header h1 { margin: 0 0 6px; font-size: 30px; letter-spacing: -.4px; }
header p { margin: 0; max-width: 70ch; opacity: .9; }
main { padding: 0 5vw 50px; max-width: 1240px; margin: 0 auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 14px; margin: -22px 0 26px; }
.tile { background: #fff; border-radius: 12px; padding: 16px 18px; box-shadow: 0 1px 3px #0b3c4922; }
.tile b { display: block; font-size: 25px; letter-spacing: -.5px; }
.tile span { color: #627282; font-size: 13px; }
.good b { color: #2b8a3e; } .bad b { color: #c92a2a; }
section { background: #fff; border-radius: 12px; padding: 20px 22px 10px; margin-bottom: 22px; box-shadow: 0 1px 3px #0b3c4922; }
section h2 { margin: 0; font-size: 19px; } section p { margin: 4px 0 8px; color: #52616f; max-width: 90ch; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); gap: 22px; } .two section { min-width: 0; }
footer { color: #7b8794; font-size: 13px; padding: 0 5vw 40px; max-width: 1240px; margin: 0 auto; }
pre { background: #fff5f5; padding: 12px; overflow: auto; }
""" % _FONT  # noqa: UP031  (the style is full of braces)


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
        "flow": _over_time(run, "flow", "vehicles an hour, all lanes"),
        "speed": _speed_map(run),
        "delay": _delay(run),
        "rate": _rate(run),
    }
    plots = {name: figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}) for name, figure in figures.items()}
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


def _over_time(run: Run, name: str, title: str) -> go.Figure:
    figure = go.Figure()
    for colour, (site, rows) in zip(_COLOURS, _series(run).items(), strict=False):
        figure.add_scatter(
            x=[row[0] for row in rows], y=[row[1] for row in rows], name=data.site_label(site), mode="lines",
            line={"width": 1.8, "color": colour}, hovertemplate="%{y:.0f}",
        )  # fmt: skip
    figure.update_yaxes(title=title, rangemode="tozero")
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
            x=minutes, y=[data.site_label(site) for site in sites], z=cells, zmin=70, zmax=125,
            colorscale=[[0, "#c92a2a"], [0.35, "#f08c00"], [0.6, "#ffe066"], [1, "#2b8a3e"]],
            colorbar={"title": "km/h", "thickness": 12}, hovertemplate="%{y}<br>%{x}<br>%{z:.0f} km/h<extra></extra>",
        )  # fmt: skip
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
                x=[at - begun for at in times], y=[percentile(by_batch[at], share) for at in times],
                name=f"p{share * 100:.0f} of a micro-batch", mode="lines+markers", line={"color": colour, "width": 2},
            )  # fmt: skip
    figure.update_xaxes(title="seconds since the first result")
    figure.update_yaxes(title="seconds", rangemode="tozero")
    return _styled(figure, 320)


def _rate(run: Run) -> go.Figure:
    figure = go.Figure()
    points = run.replay.rates
    step = max(len(points) // 120, 1)
    chosen = points[::step]
    pairs = list(zip(chosen, chosen[1:], strict=False))
    figure.add_scatter(
        x=[b[0] for _, b in pairs], y=[(b[1] - a[1]) / max(b[0] - a[0], 1e-6) for a, b in pairs],
        name="sent", mode="lines", line={"color": "#0b7285", "width": 2},
    )  # fmt: skip
    durations = [b["durationMs"]["triggerExecution"] / 1000 for b in run.batches if b.get("numInputRows")]
    rows = [b["numInputRows"] for b in run.batches if b.get("numInputRows")]
    figure.add_bar(
        x=_ends(durations), y=[n / max(d, 1e-6) for n, d in zip(rows, durations, strict=True)],
        width=durations, name="taken by a micro-batch", marker={"color": "#e8590c", "opacity": 0.45},
    )  # fmt: skip
    figure.update_xaxes(title="seconds since the first record")
    figure.update_yaxes(title="records a second", rangemode="tozero")
    return _styled(figure, 320)


def _ends(durations: list[float]) -> list[float]:
    at, middles = 0.0, []
    for duration in durations:
        middles.append(at + duration / 2)
        at += duration
    return middles


def _styled(figure: go.Figure, height: int, **layout: Any) -> go.Figure:  # noqa: ANN401  (plotly's layout)
    figure.update_layout(
        template="plotly_white", height=height, margin={"l": 60, "r": 20, "t": 16, "b": 50},
        font={"family": _FONT, "size": 13}, legend={"orientation": "h", "y": -0.18, "font": {"size": 12}}, **layout,
    )  # fmt: skip
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
    wrong = "" if right else f"<section><h2>What differs</h2><pre>{html.escape(chr(10).join(run.differences))}</pre></section>"
    broker = f"Kafka at {html.escape(run.servers)}" if run.options.bootstrap else "headrace's embedded broker"
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>headrace: traffic near Eindhoven</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>
<body><header><h1>Thirty hours of traffic near Eindhoven</h1>
<p>Measurements of real sensors on the A2, A58 and A67, replayed at {run.options.speed:g} minutes a second through {broker}, joined per
lane and aggregated per site by Spark Structured Streaming over <code>format("headrace")</code>.</p></header>
<main><div class="tiles" style="margin-top:-22px">{shown}</div>{wrong}
<section><h2>Flow</h2><p>Vehicles an hour at each site, minute by minute. Drag the strip below the picture through the thirty
hours; click a site to hide it, double-click to see it alone. The published data set repeats one ten-minute stretch of
measurements at each sensor, hence the rhythm.</p>{plots["flow"]}</section>
<section><h2>Speed</h2><p>Mean speed over the lanes of a site, minute by minute: the redder, the slower.</p>{plots["speed"]}</section>
<div class="two"><section><h2>End-to-end delay</h2><p>From the moment a record was sent to the moment Spark handed out the row
that it belongs to; the join waits for {_watermark()} of data time in case a partition lags.</p>{plots["delay"]}</section>
<section><h2>Rates</h2><p>What the replay sent, and what each micro-batch took.</p>{plots["rate"]}</section></div></main>
<footer>headrace {__version__} &middot; {machine} &middot; measurements: NDW open data of 2017-03-15, as published with the
Open Stream Processing Benchmark</footer></body></html>"""


def _watermark() -> str:
    from headrace.demo.pipeline import WATERMARK  # noqa: PLC0415  (it loads Spark)

    return WATERMARK
