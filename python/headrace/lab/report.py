"""One self-contained page of a bundle, or of several beside each other: charts, and the same numbers as tables."""

from __future__ import annotations

import html
import json
import statistics
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from plotly.offline import get_plotlyjs
from pyarrow import parquet

from headrace import __version__, _plots
from headrace.lab import bundle
from headrace.lab.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import plotly.graph_objects as go
    import pyarrow as pa

COLOURS: Final = (
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
)
OF_DRIVERS: Final = {
    "headrace": "#0b7285",
    "java": "#e8590c",
    "confluent-kafka": "#5f3dc4",
    "kafka-python": "#c2255c",
}
"""A driver has its colour in all reports that have several."""
_PALER: Final = 0.22
"""Each further variation of a driver is so much paler, four times at most."""
DETAILED_MAX: Final = 6
"""So many runs have charts of their partitions and members; the tables have all."""

_THEME: Final = """
headraceCharts.paint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", headraceCharts.paint);
"""
USER: Final = "the user"
"""Who has stopped a run that did not fail."""

FAULT_TEXT_MAX: Final = 40
STACKED_MAX: Final = 64
QUANTILES: Final = ("p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean", "count")
KINDS: Final = (
    "publish: from the send to the acknowledgement; delay: from when a record was due to its send; "
    "delivery: from when it was due to when its work begins."
)


@dataclass
class Shown:
    """A run and its tables."""

    label: str
    colour: str
    summary: dict[str, Any]
    series: pa.Table
    latency: pa.Table
    folder: Path

    def other(self, name: str) -> dict[str, Any]:
        """Another file of the bundle; empty if it is not there."""
        path = self.folder / name
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return found

    def faults(self) -> list[tuple[str, float, float | None]]:
        """What was done to it, when that began, and when it ended, in seconds; None if it did not."""
        reported = self.other("findings.json").get("faults", [])
        found = [(Fault.from_json(one).words, one["beganSeconds"], one.get("endedSeconds")) for one in reported]
        return sorted(found, key=lambda fault: fault[1])


def load(folder: Path, mark: str = "") -> list[Shown]:
    """The runs of a bundle or campaign; `mark` goes before their labels.

    Raises:
        ValueError: it is none.
        OSError: a file of it is not there.
    """
    runs = bundle.read(folder)
    several = len({run["driver"] for run in runs}) > 1 or len(runs) == 1
    found = []
    colours = _colours([(run["driver"], run["variation"]) for run in runs])
    for run, colour in zip(runs, colours, strict=True):
        parts = (mark, run["variation"], run["driver"] if several or not run["variation"] else "")
        inner = Path(run["folder"])
        found.append(
            Shown(
                " · ".join(part for part in parts if part),
                colour,
                run,
                parquet.read_table(inner / "series.parquet"),
                parquet.read_table(inner / "latency.parquet"),
                inner,
            )
        )
    return found


def _colours(runs: Sequence[tuple[str, str]]) -> list[str]:
    """A colour for each driver and variation: of several drivers each has one, of one driver each run."""
    drivers = list(dict.fromkeys(driver for driver, _ in runs))
    if len(drivers) == 1:
        return [COLOURS[number % len(COLOURS)] for number in range(len(runs))]
    others = iter([colour for colour in COLOURS if colour not in OF_DRIVERS.values()] * len(drivers))
    own = {driver: OF_DRIVERS.get(driver) or next(others) for driver in drivers}
    variations = list(dict.fromkeys(variation for _, variation in runs))
    return [_paler(own[driver], _PALER * min(variations.index(variation), 3)) for driver, variation in runs]


def _paler(colour: str, share: float) -> str:
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def write(folder: Path) -> Path:
    """Writes the page of a bundle or campaign into its folder; gives its path."""
    path = folder / "report.html"
    runs = load(folder)
    path.write_text(page(runs[0].summary["name"], runs), encoding="utf-8")
    return path


def page(title: str, runs: Sequence[Shown], head: str = "") -> str:
    """The page; `head` is HTML that goes first."""
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{escape(runs[0].summary["description"])}</p>' if runs[0].summary["description"] else "",
        _outcome(runs),
        *(_incomplete(run) for run in runs),
        head,
        "<h2>Results</h2>",
        _results(runs),
        *(_warning(run, note) for run in runs for note in run.summary["warnings"]),
        *_charts(runs),
        *(section for run in runs for section in _details(run, charts=len(runs) <= DETAILED_MAX)),
        "<h2>What it ran with</h2>",
        *_settings(runs),
        f'<p class="note">Written by headrace {__version__}. All numbers are in the files beside this page.</p>',
    ]
    style = (files("headrace.lab") / "report.css").read_text(encoding="utf-8") + _plots.STYLE
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style>\n<script>{get_plotlyjs()}</script></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<script>{_plots.SCRIPT}{_THEME}</script></body></html>\n"
    )


def escape(given: object) -> str:
    """A text as HTML."""
    return html.escape(str(given))


def _number(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.2f}"  # noqa: PLR2004
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; texts to the left, numbers to the right."""
    rows = list(rows)
    # A title stands where its column does.
    texts = [isinstance(value, str) for value in rows[0]] if rows else []
    texts += [False] * (len(header) - len(texts))
    cells = "".join(
        f"<th{' class=text' if text else ''}>{escape(name)}</th>" for name, text in zip(header, texts, strict=False)
    )
    lines = []
    for row in rows:
        marked = (
            f"<td{' class=text' if isinstance(value, str) else ''}>{escape(_number(value))}</td>" for value in row
        )
        lines.append(f"<tr>{''.join(marked)}</tr>")
    return f'<div class="wide"><table><tr>{cells}</tr>{"".join(lines)}</table></div>'


def stopped(by: str) -> str:
    """Why a run is not complete."""
    return f"stopped by {USER}" if by == USER else f"failed: {by}"


def _incomplete(run: Shown) -> str:
    if run.summary["complete"]:
        return ""
    return f'<p class="bad">{escape(run.label)} is not complete: {escape(stopped(run.summary["stoppedBy"]))}</p>'


def _outcome(runs: Sequence[Shown]) -> str:
    """In a sentence: who kept up, and who fell behind."""
    said = [sentence for run in runs if (sentence := _how(run))]
    return f'<p class="outcome">{escape("; ".join(said))}.</p>' if said else ""


def _how(run: Shown) -> str:
    reported, delivery = run.summary, run.summary["deliveryMs"]
    if not reported["sent"] or not reported["complete"]:
        return ""
    behind = behind_since(reported["publishRate"], reported["backlog"])
    if behind is not None:
        sending = [second for second, sent in enumerate(reported["publishRate"]) if sent]
        waited = reported["backlog"][min(sending[-1], len(reported["backlog"]) - 1)]
        return f"{run.label} fell behind after {behind} s, and {_number(waited)} records waited in the end"
    if not delivery["count"]:
        return ""
    half, most = _shortly(delivery["p50"]), _shortly(delivery["p99"])
    return f"{run.label} kept up: half of the records within {half}, 99 % within {most}"


def _shortly(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.1f} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"  # noqa: PLR2004


def behind_since(sent: Sequence[float], backlog: Sequence[float]) -> int | None:
    """The second from which on more than a second's records waited for as long as any were sent; None if none did."""
    sending = [second for second, count in enumerate(sent) if count]
    if not sending or not backlog:
        return None
    typical = statistics.median(sent[second] for second in sending)
    last = min(sending[-1], len(backlog) - 1)
    if backlog[last] <= typical:
        return None
    return next((second + 1 for second in range(last, -1, -1) if backlog[second] <= typical), 0)


def _warning(run: Shown, note: str) -> str:
    return f'<p class="bad">{escape(run.label)}: {escape(note)}</p>'


def _results(runs: Sequence[Shown]) -> str:
    verdicts = {
        name: None
        for run in runs
        for name, value in run.summary["verdict"].items()
        if value is None or isinstance(value, int | float | str)
    }
    header = ["run", "sent", "received", "failed", *verdicts, "delivery p50 ms", "p99 ms", "p99.9 ms", "max ms"]
    rows = []
    for run in runs:
        reported, delivery = run.summary, run.summary["deliveryMs"]
        verdict = [reported["verdict"].get(name) for name in verdicts]
        latencies = [delivery[name] for name in ("p50", "p99", "p99.9", "max")]
        counts = [reported["sent"] + reported["backlogWritten"], reported["received"], reported["failed"]]
        rows.append([run.label, *counts, *verdict, *latencies])
    return table(header, rows)


def _charts(runs: Sequence[Shown]) -> list[str]:
    found = ["<h2>Over time</h2>"]
    rates = _figure("records a second", "seconds")
    for run in runs:
        seconds = list(range(len(run.summary["publishRate"])))
        for name, kind, dash in (("sent", "publishRate", "dot"), ("received", "consumeRate", "solid")):
            if any(run.summary[kind]):
                _line(rates, run, seconds, run.summary[kind], name, dash)
    _faults(rates, runs)
    found += ["<h3>Rates</h3>", _plots.chart(rates, "rates")]
    backlog = _figure("records", "seconds")
    for run in runs:
        _line(backlog, run, list(range(len(run.summary["backlog"]))), run.summary["backlog"])
    _faults(backlog, runs)
    found += ["<h3>Backlog</h3>", _plots.chart(backlog, "backlog")]
    latency = _figure("milliseconds", "seconds", log=True)
    for run in runs:
        rows = run.latency.filter(pc.and_(pc.equal(run.latency["kind"], "delivery"), pc.equal(run.latency["of"], "")))
        rows = rows.sort_by("second")
        for column, name, dash in (("p50_ms", "p50", "solid"), ("p99_ms", "p99", "dash"), ("p99_9_ms", "p99.9", "dot")):
            _line(latency, run, rows["second"].to_pylist(), rows[column].to_pylist(), name, dash)
    _faults(latency, runs)
    found += [
        "<h3>Delivery: from when a record was due to when its work begins</h3>",
        _plots.chart(latency, "latency"),
    ]
    found += _quantiles(runs)
    return found


def _quantiles(runs: Sequence[Shown]) -> list[str]:
    figure = _figure("milliseconds", "1 / (1 - share of records)", log=True)
    figure.update_xaxes(type="log")
    for run in runs:
        curve = run.summary["quantiles"]["delivery"]
        shown = [(float(p), ms) for p, ms in curve.items() if float(p) < 100]  # noqa: PLR2004
        _line(figure, run, [100 / (100 - p) for p, _ in shown], [ms for _, ms in shown])
    rows = [
        [f"{run.label} {kind}", *(run.summary[f"{kind}Ms"][name] for name in QUANTILES)]
        for run in runs
        for kind in ("publish", "delay", "delivery")
        if run.summary[f"{kind}Ms"]["count"]
    ]
    return [
        "<h2>Latency</h2>",
        _plots.chart(figure, "quantiles"),
        table(["ms", *QUANTILES], rows),
        f'<p class="note">{KINDS}</p>',
    ]


def _details(run: Shown, *, charts: bool) -> list[str]:
    found = [f"<h2>{escape(run.label)}</h2>"]
    if faults := run.faults():
        told_faults = [[words, began, "not ended" if ended is None else ended] for words, began, ended in faults]
        found.append(table(["fault", "began, s", "ended, s"], told_faults))
    received = run.series.filter(pc.equal(run.series["role"], "consume"))
    for title, keys in (("partition", ("topic", "partition")), ("consumer", ("member",))):
        if received.num_rows and charts:
            found += [f"<h3>Received a second by {title}</h3>", _stacked(run, received, keys, title)]
    leaders = {
        f"{topic}-{p['partition']}": p["leader"]
        for topic, partitions in run.other("brokers.json").get("topics", {}).items()
        for p in partitions
    }
    by_partition = run.summary["deliveryMsByPartition"]
    counts = run.summary["receivedByPartition"]
    total = max(sum(counts.values()), 1)
    order, topics = _places(counts)
    rows: list[list[object]] = []
    for name in order:
        reported, count = by_partition.get(name, {}), counts[name]
        quantiles = [reported.get(q) for q in QUANTILES[:-1]]
        rows.append([short(name, topics), leaders.get(name), count, count / total * 100, *quantiles])
    if rows:
        found.append(table(["partition", "leader", "received", "%", *(f"{q} ms" for q in QUANTILES[:-1])], rows))
    members = run.summary["deliveryMsByMember"]
    if members:
        rows = [
            [f"consumer {m}", *(reported[q] for q in QUANTILES)]
            for m, reported in sorted(members.items(), key=_by_number)
        ]
        found.append(table(["delivery, ms", *QUANTILES], rows))
    steps = run.summary["verdict"].get("steps") if run.summary["verdict"] else None
    if steps:
        header = ["rate", "sent a second", "received a second", "latency ms", "backlog grew by", "seconds", "", "why"]
        names = ("rate", "sent_rate", "received_rate", "latency_ms", "backlog_growth", "seconds")
        told_steps = [
            [*(s[name] for name in names), "confirming" if s["confirming"] else "", s["why"] or "holds"] for s in steps
        ]
        found += ["<h3>Steps</h3>", table(header, told_steps)]
    return found


def short(name: str, topics: Sequence[str]) -> str:
    """A partition's name without what all topics of a run have in common."""
    topic, _, partition = name.rpartition("-")
    return f"partition {partition}" if len(topics) == 1 else f"topic {topics.index(topic)} partition {partition}"


def _by_number(item: tuple[str, Any]) -> int:
    return int(item[0])


def _places(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of partitions by topic and number, and the topics."""
    order = sorted(names, key=lambda name: [int(number) for number in name.rsplit("-", 2)[1:]])
    return order, list(dict.fromkeys(name.rpartition("-")[0] for name in order))


def _stacked(run: Shown, received: pa.Table, keys: tuple[str, ...], title: str) -> str:
    grouped = received.group_by(["second", *keys]).aggregate([("records", "sum")]).sort_by("second").to_pylist()
    by_name: dict[str, dict[int, int]] = {}
    for row in grouped:
        name = "-".join(str(row[key]) for key in keys)
        by_name.setdefault(name, {})[row["second"]] = row["records_sum"]
    figure = _figure("records a second", "seconds")
    seconds = list(range(len(run.summary["consumeRate"])))
    order, topics = _places(by_name) if title == "partition" else (sorted(by_name, key=int), [])
    for number, name in enumerate(order[:STACKED_MAX]):
        figure.add_scatter(
            x=seconds,
            y=[by_name[name].get(second, 0) for second in seconds],
            name=short(name, topics) if title == "partition" else f"consumer {name}",
            mode="lines",
            stackgroup="all",
            line={"width": 0.5, "color": COLOURS[number % len(COLOURS)]},
        )
    _faults(figure, [run])
    return _plots.chart(figure, f"{title}-{run.label}")


def _settings(runs: Sequence[Shown]) -> list[str]:
    """Settings, versions and machine: what all runs have once, and what differs in columns."""
    found = []
    for file, title in (("resolved.json", "field"), ("versions.json", "versions"), ("hardware.json", "hardware")):
        given = [run.other(file) for run in runs]
        rows = []
        for name in dict.fromkeys(name for one in given for name in one):
            values = [json.dumps(one.get(name), ensure_ascii=False) for one in given]
            rows.append([name, *(values[:1] if len(set(values)) == 1 else values)])
        found.append(table([title, *(run.label for run in runs)], rows))
    return found


def _figure(y: str, x: str, *, log: bool = False) -> go.Figure:
    figure = _plots.figure(340, hovermode="x unified")
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y, **({"type": "log"} if log else {"rangemode": "tozero"}))
    return figure


def _line(figure: go.Figure, run: Shown, x: list[Any], y: list[Any], name: str = "", dash: str = "solid") -> None:  # noqa: PLR0917  (a line of a table)
    label = " ".join(part for part in (run.label, name) if part)
    figure.add_scatter(x=x, y=y, name=label, mode="lines", line={"width": 1.8, "color": run.colour, "dash": dash})


def _faults(figure: go.Figure, runs: Sequence[Shown]) -> None:
    """Lines where a fault began and ended, in its run's colour; the first has its name."""
    for run in runs if len(runs) <= DETAILED_MAX else ():
        for words, began, ended in run.faults():
            text = words if len(words) <= FAULT_TEXT_MAX else words[: FAULT_TEXT_MAX - 1] + "…"
            line = {"width": 1, "color": run.colour}
            # plotly reads texts as HTML.
            label = {"text": escape(text), "textangle": -90, "font": {"size": 11, "color": run.colour}}
            figure.add_vline(x=began, line=line, annotation=label, annotation_position="top right")
            if ended is not None:
                figure.add_vline(x=ended, line={**line, "dash": "dot"})
                figure.add_vrect(x0=began, x1=ended, fillcolor=run.colour, opacity=0.06, line_width=0, layer="below")
