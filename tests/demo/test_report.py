"""The demo's page, made without Spark, in a browser."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import time
from dataclasses import replace

import pytest

from headrace.demo import data, report
from headrace.demo.cluster import Cluster
from headrace.demo.pipeline import Arrival, Results
from headrace.demo.replay import Progress
from headrace.registry import RegisteredSchema
from tests import pages
from tests.browser import browser

UNION = ["null", {"type": "array", "items": "long"}, {"type": "enum", "name": "E", "symbols": ["A"]}]
"""In what somebody else has registered there may be anything."""
BATCH_S = 0.5
SITES = 12


@pytest.fixture(scope="module")
def measured():
    return data.load()


def run_of(measured, minutes=1800):
    """A run whose micro-batches take half a second, one after the other, as `replace` can change it."""
    table = data.expected(measured)
    began = float(int(time.time()))
    labels = sorted({row.strftime("%Y-%m-%d %H:%M") for row in table["timestamp"].to_pylist()})[:minutes]
    sent_at = {label: began + number / 40 for number, label in enumerate(labels)} | {"end": began + len(labels) / 40}
    results = Results()
    for row in table.to_pylist():
        label = row["timestamp"].strftime("%Y-%m-%d %H:%M")
        if label in sent_at:
            # Read by the micro-batch that begins after the watermark can pass it, handed out by the one after that.
            batch = int((sent_at[label] - began + 0.25) / BATCH_S) + 2
            at = began + (batch + 0.75) * BATCH_S
            results.rows[row["site"], label] = (row["flow"], row["speed"], row["lanes"])
            results.arrivals.append(Arrival(at, at - sent_at[label], label, batch))
    # Two minutes that were sent late, and nearly at once: no peak of thousands a second.
    replay = Progress(1800, 1800, 68_400, "", 10.0, began, 56.0, 0.0, None, [(n + 0.5, n * 38) for n in range(45)])
    replay.rates += [(45.2, 45 * 38), (45.2001, 46 * 38), (46.9, 47 * 38)]
    replay.sent_at = sent_at
    batches = [
        {
            "batchId": number,
            "numInputRows": 900,
            "timestamp": dt.datetime.fromtimestamp(began + number * BATCH_S, dt.timezone.utc).strftime(
                "%Y-%m-%dT%H:%M:%S.%fZ"
            ),
            "durationMs": {"triggerExecution": 500, "addBatch": 400},
        }
        for number in range(int(len(labels) / 40 / BATCH_S) + 4)
    ]
    batches.append({**batches[-1], "batchId": 999, "numInputRows": 0, "durationMs": {"triggerExecution": 10}})
    options = argparse.Namespace(bootstrap=None, schema_registry_url="http://<b>:1", speed=40.0)
    evolved = {"type": "record", "name": "Speed", "fields": [{"name": "a", "type": UNION, "doc": "<i>"}]}
    schemas = [
        RegisteredSchema(1, data.SCHEMAS[data.FLOW_TOPIC], subject="ndwflow-value", version=1),
        RegisteredSchema(7, json.dumps(evolved), subject="ndwspeed-value", version=3),
    ]
    cluster = Cluster("127.0.0.1:1", "http://<b>:1")
    busy = [(began + number * BATCH_S + 0.1, began + number * BATCH_S + 0.15) for number in range(len(batches))]
    return report.Run(
        table, results, replay, batches, options, cluster, schemas, data.sites(measured), differences=[], busy=busy
    )


@pytest.fixture(scope="module")
def run(measured):
    return run_of(measured)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    return report.write(tmp_path_factory.mktemp("page") / "page.html", run)


@pytest.mark.slow
def test_legends_stand_beside_the_charts_not_on_them(run, page):
    parts = ["the join's window", "the next micro-batch", "headrace", "Spark, reading", "Spark, handing out"]
    assert pages.legends(page.read_text()) == {
        "chart-delay": [*parts, "p99 of the rows"],
        "chart-rate": ["taken by a micro-batch", "sent"],
    }
    charts = report.state(run)["charts"]
    assert not any(chart["layout"]["showlegend"] for chart in charts.values())


@pytest.mark.slow
def test_rates_are_those_of_whole_seconds_and_batches_stand_where_they_ran(run):
    taken, sent = report._rate(run).data
    assert list(sent.x) == [n + 0.5 for n in range(46)]
    assert max(sent.y) == 2 * 38
    assert sum(sent.y) == 46 * 38
    assert len(taken.x) == len(run.batches) - 1
    assert taken.x[8] == pytest.approx(8 * BATCH_S + BATCH_S / 2, abs=1e-3)
    assert (taken.y[8], taken.width[8]) == (pytest.approx(1800), pytest.approx(0.5))


@pytest.mark.slow
def test_the_delay_is_what_it_is_made_of(run, page):
    made = re.search(r'<table class="parts">.*?</table>', page.read_text(), re.DOTALL)[0]
    means = [float(mean) for mean in re.findall(r"<td>([\d.]+) s</td>", made)]
    assert sum(means[:5]) == pytest.approx(means[5], abs=0.03)
    assert means[0] == 0.25  # ten minutes at forty a second, but for the last ones
    assert means[2] == 0.10  # a twentieth of a second in each of two micro-batches
    assert "mean of 21,600 rows" in made
    bars = report.state(run)["charts"]["chart-delay"]["data"][:5]
    assert {trace["type"] for trace in bars} == {"bar"}
    assert json.loads(report._delay(run, report._parts(run)).to_json())["layout"]["barmode"] == "stack"


@pytest.mark.slow
def test_the_page_has_the_fields_of_both_schemas(page):
    text = page.read_text()
    flow, speed = re.findall(r'<table class="fields">(.*?)</table>', text, re.DOTALL)
    assert "<code>ndwflow-value</code>, version 1, id 1" in flow
    assert "<td>timestamp</td><td>timestamp-millis</td>" in flow
    assert "<td>flow</td><td>int</td><td>vehicles an hour</td>" in flow
    assert flow.count("<tr>") == 8
    assert "<code>ndwspeed-value</code>, version 3, id 7" in speed
    assert "<tr><td>a</td><td>null or array or enum</td><td>&lt;i&gt;</td></tr>" in speed
    assert "the registry at http://&lt;b&gt;:1" in text


def test_the_pages_numbers_are_those_of_the_rows(run):
    traffic = report.traffic(run)
    assert (traffic["start"], traffic["count"], len(traffic["sites"])) == ("2017-03-15T14:41:00Z", 1800, SITES)
    row = run.wanted.slice(5000, 1).to_pylist()[0]
    [site] = [site for site in traffic["sites"] if site["id"] == row["site"]]
    minute = (row["timestamp"] - dt.datetime(2017, 3, 15, 14, 41)).seconds // 60  # noqa: DTZ001  (as in the data)
    assert (site["flow"][minute], site["speed"][minute]) == (row["flow"], round(row["speed"], 1))
    none = report.traffic(replace(run, results=Results()))
    assert (none["start"], none["count"]) == (None, 0)
    # What has not come out is not there: it is no zero.
    one = (row["site"], "2017-03-15 15:00")
    alone = report.traffic(replace(run, results=Results({one: run.results.rows[one]})))
    assert alone["count"] == 1
    assert [site["flow"] for site in alone["sites"] if site["id"] != row["site"]] == [[None]] * (SITES - 1)


def test_no_text_ends_the_script_that_it_stands_in():
    assert json.loads(report.inline({"a": "</script><!--"})) == {"a": "</script><!--"}
    assert "<" not in report.inline({"a": "</script><!--"})


def test_a_page_is_written_as_a_whole(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    report.replace(path, "new")
    assert path.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


@pages.needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", pages.WIDTHS)
def test_nothing_lies_on_anything_else_on_the_page(page, width, dark, tmp_path):
    with browser() as shown:
        shown.look(width, dark=dark, calm=True)
        shown.open(page)
        found = pages.check_boxes(shown)
        assert pages.texts_on_texts(found) == []
        assert pages.outside_cards(found) == []
        assert len(found["inCards"]) > SITES
        assert shown.errors == []
        assert [url for url in shown.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
        shown.picture(tmp_path / "page.png")
        # A page without a picture would be a few kilobytes.
        assert (tmp_path / "page.png").stat().st_size > 100_000


@pages.needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read_on_what_is_behind_them(page, dark):
    with browser() as shown:
        shown.look(1440, dark=dark, calm=True)
        shown.open(page)
        shown.wait_for(pages.SETTLED)
        assert shown.run(pages.PALE) == []


CLOCK = 'document.getElementById("clock").textContent'
BACK = "getComputedStyle(document.body).backgroundColor"


@pages.needs_browser
@pytest.mark.slow
def test_the_map_plays_and_stands_still_and_follows_the_slider(page):
    with browser() as shown:
        shown.look(820)
        shown.open(page)
        first = shown.run(CLOCK)
        shown.wait_for(f"{CLOCK} !== {json.dumps(first)}")
        shown.run('document.getElementById("play").click()')
        assert shown.run('document.getElementById("play").textContent') == "Play"
        stood = shown.run(CLOCK)
        assert shown.run(f"new Promise(done => setTimeout(() => done({CLOCK}), 800))") == stood
        shown.run(
            'const time = document.getElementById("time"); time.value = 200; time.dispatchEvent(new Event("input"));'
        )
        assert shown.run(CLOCK) == "Wed 15 Mar, 18:01"
        assert shown.run('document.querySelectorAll("#roads .site").length') == SITES
        flow = shown.run('document.querySelector(".cell .now span").textContent')
        assert re.fullmatch(r"[\d,]+ veh/h", flow)


@pages.needs_browser
@pytest.mark.slow
def test_who_wants_less_motion_is_asked_first(page):
    with browser() as shown:
        shown.look(820, calm=True)
        shown.open(page)
        first = shown.run(CLOCK)
        assert first == "Wed 15 Mar, 15:40"
        assert shown.run(f"new Promise(done => setTimeout(() => done({CLOCK}), 1500))") == first
        shown.run('document.getElementById("play").click()')
        shown.wait_for(f"{CLOCK} !== {json.dumps(first)}")


@pages.needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_theme_is_that_of_the_system_until_it_is_chosen(page, dark):
    with browser() as shown:
        shown.look(820, dark=dark, calm=True)
        shown.open(page)
        light, night = "rgb(243, 245, 247)", "rgb(16, 23, 29)"
        ink = 'getComputedStyle(document.querySelector(".js-plotly-plot .xtick text")).fill'
        assert shown.run(BACK) == (night if dark else light)
        before = shown.run(ink)
        assert shown.run('document.getElementById("theme").textContent') == ("Light" if dark else "Dark")
        shown.run('document.getElementById("theme").click()')
        assert shown.run(BACK) == (light if dark else night)
        assert shown.run(ink) != before
        shown.open(page)
        assert shown.run(BACK) == (light if dark else night)
