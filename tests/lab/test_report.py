"""Pages and comparisons of what a run has left."""

from __future__ import annotations

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs
from pyarrow import parquet
from rich.console import Console

from headrace.cli import main
from headrace.lab import bundle, report
from headrace.lab.compare import _apart, _word, compare
from headrace.lab.view import HEAD, Plain, Rich, Snapshot, ramp
from tests import pages
from tests.browser import browser


class Page(HTMLParser):
    """Tables as lists of texts, and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.loads: list[str] = []
        self._cell = False

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in {"src", "href"} and value]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.tables[-1][-1][-1] += data


def charts(text: str) -> dict[str, list[dict]]:
    """The traces of each chart by its id."""
    found = {}
    text = text.replace(get_plotlyjs(), "")
    for match in re.finditer(r'Plotly\.newPlot\(\s*"([^"]+)",\s*', text):
        traces, _ = json.JSONDecoder().raw_decode(text, match.end())
        found[match[1].removeprefix("chart-")] = traces
    return found


def layouts(text: str) -> dict[str, dict]:
    """What is in each chart beside its traces, by its id."""
    found = {}
    text = text.replace(get_plotlyjs(), "")
    for match in re.finditer(r'Plotly\.newPlot\(\s*"([^"]+)",\s*', text):
        _, end = json.JSONDecoder().raw_decode(text, match.end())
        found[match[1].removeprefix("chart-")], _ = json.JSONDecoder().raw_decode(text, text.index("{", end))
    return found


@pytest.mark.parametrize(
    ("sent", "backlog", "since"),
    [
        ([], [], None),
        ([100, 100, 100], [0, 90, 100], None),
        # It had waited, and was done with it while records were still sent.
        ([100, 100, 100, 100], [500, 400, 80, 20], None),
        ([100, 100, 100, 100], [0, 101, 300, 500], 1),
        ([100, 100, 100, 100], [200, 50, 300, 500], 2),
        ([100, 100], [150, 200], 0),
        # What waits once nobody sends is not held against it.
        ([100, 100, 0, 0], [0, 300, 100, 0], 1),
        ([100, 100, 0, 0], [0, 0, 300, 0], None),
    ],
)
def test_since_when_a_run_is_behind(sent, backlog, since):
    assert report.behind_since(sent, backlog) == since


def test_a_driver_has_one_colour():
    runs = [(driver, variation) for variation in ("a", "b") for driver in ("headrace", "java", "other")]
    first = report._colours(runs)
    assert first[:2] == [report.OF_DRIVERS["headrace"], report.OF_DRIVERS["java"]]
    assert first == [*first[:3], *(report._paler(colour, report._PALER) for colour in first[:3])]
    assert len(set(first)) == 6
    # Whatever else is on the page.
    assert report._colours([("java", ""), ("headrace", "")])[1] == first[0]
    assert len(set(report._colours([("headrace", str(n)) for n in range(12)]))) == 12


@pytest.mark.slow
def test_charts_show_what_the_bundle_has(campaign):
    text = (campaign / "report.html").read_text()
    shown = charts(text)
    runs = bundle.read(campaign)
    assert [run["driver"] for run in runs] == ["headrace", "confluent-kafka"]
    rates = {trace["name"]: trace["y"] for trace in shown["rates"]}
    backlog = {trace["name"]: trace["y"] for trace in shown["backlog"]}
    latency = {trace["name"]: trace for trace in shown["latency"]}
    for run in runs:
        driver = run["driver"]
        assert rates[f"{driver} sent"] == run["publishRate"]
        assert rates[f"{driver} received"] == run["consumeRate"]
        assert sum(rates[f"{driver} sent"]) == run["sent"] > 0
        assert backlog[driver] == run["backlog"]
        reported = parquet.read_table(Path(run["folder"]) / "latency.parquet").to_pylist()
        rows = [row for row in reported if row["kind"] == "delivery" and not row["of"]]
        assert latency[f"{driver} p99"]["x"] == [row["second"] for row in rows]
        assert latency[f"{driver} p99"]["y"] == [row["p99_ms"] for row in rows]
        stacked = shown[f"partition-{driver}"]
        names = [f"topic {topic} partition {partition}" for topic in range(2) for partition in range(3)]
        assert [trace["name"] for trace in stacked] == names
        assert [sum(trace["y"]) for trace in stacked] == list(run["receivedByPartition"].values())
        assert sum(sum(trace["y"]) for trace in shown[f"consumer-{driver}"]) == run["received"]
        [curve] = [trace for trace in shown["quantiles"] if trace["name"] == driver]
        assert curve["y"] == sorted(curve["y"])
        assert curve["y"][-1] <= run["deliveryMs"]["max"]


@pytest.mark.slow
def test_the_page_loads_nothing_and_tells_all_in_tables(campaign):
    text = (campaign / "report.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    bare = text.replace(get_plotlyjs(), "")
    assert len(bare) < len(text) - 1_000_000
    page = Page()
    page.feed(bare)
    assert page.loads == []
    [outcome] = re.findall(r'<p class="outcome">(.*?)</p>', bare)
    number = r"[\d.,]+ m?s"
    one = rf"( kept up: half of the records within {number}, 99 % within {number}| fell behind after \d+ s, and .*?)"
    assert re.fullmatch(rf"headrace{one}; confluent-kafka{one}\.", outcome)
    assert not re.search(r"https?://", re.sub(r"PLOTLYENV.*?;|BASE_URL.*?;|plotlyServerURL[^,]*", "", bare))
    runs = bundle.read(campaign)
    results = page.tables[0]
    for row, run in zip(results[1:], runs, strict=True):
        assert row[:3] == [run["driver"], f"{run['sent']:,}", f"{run['received']:,}"]
    cells = {cell for table in page.tables for row in table for cell in row}
    assert {"topic 0 partition 0", "topic 1 partition 2", "versions", "pyarrow", "hardware", "cores"} <= cells
    assert {"leader", "consumer 0", "consumer 1", "messageDistributor", '"PINNED_PARTITIONS"'} <= cells
    assert "&lt;two&gt; clients" in bare


@pytest.mark.slow
def test_a_run_that_was_stopped_is_marked(campaign, tmp_path):
    one = tmp_path / "one"
    shutil.copytree(bundle.read(campaign)[0]["folder"], one)
    summary = json.loads((one / "summary.json").read_text())
    summary.update(complete=False, stoppedBy="the user", verdict={})
    (one / "summary.json").write_text(json.dumps(summary))
    assert main(["lab", "report", str(one)]) == 0
    text = (one / "report.html").read_text()
    assert '<p class="bad">headrace is not complete: stopped by the user</p>' in text
    assert "is not complete" not in (campaign / "report.html").read_text()


FAULTS = [
    {"kind": "killBroker", "broker": 2, "downSeconds": 1, "atSeconds": 1.4, "beganSeconds": 1.5, "endedSeconds": 2.25},
    {"kind": "command", "command": "<b>" + "x" * 60, "atSeconds": 1, "beganSeconds": 1.0},
]


@pytest.mark.slow
def test_faults_are_lines_in_the_charts_over_time(campaign, tmp_path):
    one = tmp_path / "one"
    shutil.copytree(bundle.read(campaign)[0]["folder"], one)
    (one / "findings.json").write_text(json.dumps({"faults": FAULTS}))
    assert main(["lab", "report", str(one)]) == 0
    text = (one / "report.html").read_text()
    shown = layouts(text)
    over_time = {"rates", "backlog", "latency", "partition-headrace", "consumer-headrace"}
    assert over_time < set(shown)
    for name, layout in shown.items():
        lines = [
            (shape["x0"], shape["line"].get("dash")) for shape in layout.get("shapes", ()) if shape["type"] == "line"
        ]
        bands = [(shape["x0"], shape["x1"]) for shape in layout.get("shapes", ()) if shape["type"] == "rect"]
        texts = [(note["x"], note["text"]) for note in layout.get("annotations", ())]
        if name not in over_time:
            assert (lines, bands, texts) == ([], [], [])
            continue
        assert lines == [(1.0, None), (1.5, None), (2.25, "dot")]
        assert bands == [(1.5, 2.25)]
        command = "command: <b>" + "x" * 60
        assert texts == [(1.0, report.escape(command[:39] + "…")), (1.5, "broker 2 killed")]
    page = Page()
    page.feed(text.replace(get_plotlyjs(), ""))
    [table] = [table for table in page.tables if table[0][0] == "fault"]
    assert table[1:] == [[command, "1", "not ended"], ["broker 2 killed", "1.50", "2.25"]]


@pytest.mark.slow
def test_a_run_without_faults_has_no_lines(campaign):
    text = (campaign / "report.html").read_text()
    assert not any(layout.get("shapes") for layout in layouts(text).values())


@pytest.mark.slow
def test_a_bundle_beside_itself_is_the_same(campaign, tmp_path, capsys):
    found = compare(campaign, campaign)
    assert [pair.label for pair in found.pairs] == ["headrace", "confluent-kafka"]
    rows = [row for pair in found.pairs for row in pair.rows()]
    assert len(rows) >= 10
    assert {ratio for *_, ratio in rows} == {1.0}
    assert (found.differences, found.alone) == ([], [])
    assert main(["lab", "compare", str(campaign), str(campaign), "--page", str(tmp_path / "both.html")]) == 0
    assert len(re.findall(r" 1\.00$", capsys.readouterr().out, re.MULTILINE)) == len(rows)
    traces = {trace["name"] for trace in charts((tmp_path / "both.html").read_text())["rates"]}
    sides = [f"{mark} · {driver}" for mark in "AB" for driver in ("headrace", "confluent-kafka")]
    assert traces == {f"{side} {what}" for side in sides for what in ("sent", "received")}


@pytest.mark.slow
def test_what_differs_is_told_first(campaign, tmp_path):
    ours, theirs = (Path(run["folder"]) for run in bundle.read(campaign))
    other = tmp_path / "other"
    shutil.copytree(theirs, other)
    hardware = json.loads((other / "hardware.json").read_text())
    (other / "hardware.json").write_text(json.dumps({**hardware, "cores": 999}))
    summary = json.loads((other / "summary.json").read_text())
    summary["deliveryMs"]["p50"] = 2 * json.loads((ours / "summary.json").read_text())["deliveryMs"]["p50"]
    (other / "summary.json").write_text(json.dumps(summary))
    resolved = json.loads((other / "resolved.json").read_text())
    resolved["consumerConfig"] = {"fetch.max.wait.ms": "100", "max.poll.records": "7"}
    (other / "resolved.json").write_text(json.dumps(resolved))
    text = compare(ours, other).text()
    assert text.startswith("different machines, ratios mean little: cores is ")
    assert "different settings: consumerConfig.fetch.max.wait.ms is not set in A and '100' in B\n" in text
    assert "different settings: consumerConfig.max.poll.records is not set in A and '7' in B\n" in text
    assert "{" not in text
    assert re.search(r"^headrace \| confluent-kafka +delivery p50 ms ", text, re.MULTILINE)
    assert "different settings: driver is 'headrace' in A and 'confluent-kafka' in B" in text
    [line] = [line for line in text.splitlines() if "delivery p50 ms" in line]
    assert line.split()[-1] == "2.00"


def test_settings_of_any_kind_are_told_apart():
    def apart(mine, other):
        return [(path, _word(a), _word(b)) for path, a, b in _apart("x", mine, other)]

    assert apart({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}}) == [("x.b.c", "[1]", "[2]")]
    assert apart(None, {"a": 1}) == [("x.a", "not set", "1")]
    assert apart([1], None) == [("x", "[1]", "not set")]
    assert apart("p", {"type": "z"}) == [("x", "'p'", '{"type": "z"}')]
    assert apart({"a": None}, {}) == []


@pytest.mark.slow
def test_legends_stand_beside_the_charts_not_on_them(campaign):
    text = (campaign / "report.html").read_text()
    shown = charts(text)
    assert pages.legends(text) == {
        f"chart-{name}": [trace["name"] for trace in traces] for name, traces in shown.items() if len(traces) > 1
    }
    assert not any(layout["showlegend"] for layout in layouts(text).values())


@pytest.mark.slow
@pages.needs_browser
@pytest.mark.parametrize("width", pages.WIDTHS)
def test_nothing_lies_on_anything_else_on_the_page(campaign, width, tmp_path):
    (tmp_path / "page.html").write_text((campaign / "report.html").read_text())
    pages.check(tmp_path / "page.html", width)


@pytest.mark.slow
@pages.needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read_by_day_and_by_night(campaign, dark, tmp_path):
    (tmp_path / "page.html").write_text((campaign / "report.html").read_text())
    with browser() as shown:
        shown.look(1440, dark=dark)
        shown.open(tmp_path / "page.html")
        shown.wait_for(pages.SETTLED)
        assert shown.run(pages.PALE) == []
        back = shown.run("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") != dark


@pytest.mark.slow
def test_names_of_partitions():
    assert report.short("lab-x-1-0-11", ["lab-x-1-0"]) == "partition 11"
    assert report.short("lab-x-1-1-3", ["lab-x-1-0", "lab-x-1-1"]) == "topic 1 partition 3"
    assert report.stopped("the user") == "stopped by the user"
    assert report.stopped("a reason") == "failed: a reason"


@pytest.mark.slow
def test_folders_that_are_no_bundles(tmp_path, capsys, campaign):
    assert main(["lab", "report", str(tmp_path)]) == 1
    assert "no bundle of the lab" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{")
    assert main(["lab", "compare", str(campaign), str(tmp_path)]) == 1
    assert "not JSON" in capsys.readouterr().err


SECOND = Snapshot(61, 1000, 990, 61_000, 60_000, 1000, 4.5, 12.25, 0.5, 61.0, (5, 0, 10))


@pytest.mark.parametrize("width", [60, 200])
def test_the_table_on_a_terminal(width):
    out = io.StringIO()
    view = Rich(Console(file=out, width=width, force_terminal=False))
    view.begin("a workload")
    for _ in range(30):
        view.second(SECOND)
    view.note("something")
    view.end("all well")
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    for word in ("a workload", "something", "all well", "50%", "61 s left", "partitions ▄▁█"):
        assert word in text
    if width == 200:
        [row] = {line.strip() for line in lines if line.startswith((" 61s", "61s"))}
        assert row.split() == ["61s", "1,000", "990", "61,000", "60,000", "1,000", "4.50", "12.25"]


def test_lines_without_a_terminal():
    out = io.StringIO()
    view = Plain(out, every_s=3600)
    view.begin("a workload")
    view.second(SECOND)
    view.second(SECOND)
    view.begin("another")
    view.second(SECOND)
    assert out.getvalue().splitlines() == ["a workload", HEAD, SECOND.line(), "another", HEAD, SECOND.line()]
    assert SECOND.line().split() == ["61s", "1,000", "990", "61,000", "60,000", "1,000", "4.50", "12.25"]


def test_partitions_as_blocks():
    assert ramp((), 10) == ""
    assert ramp((0, 0), 10) == ""
    assert ramp((1, 2, 4, 8), 10) == "▁▂▄█"
    assert ramp(tuple(range(100)), 10) == "▁▂▃▃▄▅▆▇██"


def test_numbers_in_tables():
    assert "<td class=text>a&lt;b</td><td>1,234</td><td>0.50</td><td>-</td>" in report.table(
        "abcd", [["a<b", 1234, 0.5, None]]
    )
