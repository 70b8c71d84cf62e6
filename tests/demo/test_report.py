"""The demo's page, made without Spark."""

from __future__ import annotations

import argparse
import json
import re
import time

import pytest

from headrace.demo import data, report
from headrace.demo.cluster import Cluster
from headrace.demo.pipeline import Results
from headrace.demo.replay import Progress
from headrace.registry import RegisteredSchema
from tests import pages

UNION = ["null", {"type": "array", "items": "long"}, {"type": "enum", "name": "E", "symbols": ["A"]}]
"""In what somebody else has registered there may be anything."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    table = data.expected(data.load())
    results = Results()
    began = time.time()
    for number, row in enumerate(table.to_pylist()):
        key = (row["site"], row["timestamp"].strftime("%Y-%m-%d %H:%M"))
        results.rows[key] = (row["flow"], row["speed"], row["lanes"])
        results.delays.append((began + number % 7, 0.3 + number % 5, 1))
    # Two minutes that were sent late, and nearly at once: no peak of thousands a second.
    replay = Progress(1800, 1800, 68_400, "", 10.0, began, 56.0, 0.0, None, [(n + 0.5, n * 38) for n in range(45)])
    replay.rates += [(45.2, 45 * 38), (45.2001, 46 * 38), (46.9, 47 * 38)]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.250Z", time.gmtime(began + 4))
    batch = {"numInputRows": 900, "timestamp": stamp, "durationMs": {"triggerExecution": 1500}}
    idle = {"numInputRows": 0, "timestamp": stamp, "durationMs": {"triggerExecution": 10}}
    options = argparse.Namespace(bootstrap=None, schema_registry_url="http://<b>:1", speed=40.0)
    evolved = {"type": "record", "name": "Speed", "fields": [{"name": "a", "type": UNION, "doc": "<i>"}]}
    schemas = [
        RegisteredSchema(1, data.SCHEMAS[data.FLOW_TOPIC], subject="ndwflow-value", version=1),
        RegisteredSchema(7, json.dumps(evolved), subject="ndwspeed-value", version=3),
    ]
    cluster = Cluster("127.0.0.1:1", "http://<b>:1")
    run = report.Run(table, results, replay, [idle, batch], options, cluster, schemas, [])
    return run, report.write(tmp_path_factory.mktemp("page") / "page.html", run).read_text()


@pytest.mark.slow
def test_legends_stand_beside_the_charts_not_on_them(page):
    run, text = page
    sites = {data.site_label(site) for site, _ in run.results.rows}
    found = pages.legends(text)
    assert set(found["chart-flow"]) == sites
    assert len(found["chart-flow"]) == len({site for site, _ in run.results.rows})
    assert found["chart-delay"] == ["p99 of a micro-batch", "p50 of a micro-batch"]
    assert found["chart-rate"] == ["taken by a micro-batch", "sent"]
    assert set(found) == {"chart-flow", "chart-delay", "chart-rate"}
    assert not any(figure.layout.showlegend for figure in (report._flow(run), report._delay(run), report._rate(run)))


def test_rates_are_those_of_whole_seconds_and_batches_stand_where_they_ran(page):
    run, _ = page
    taken, sent = report._rate(run).data
    assert list(sent.x) == [n + 0.5 for n in range(46)]
    assert max(sent.y) == 2 * 38
    assert sum(sent.y) == 46 * 38
    [middle], [rate], [width] = taken.x, taken.y, taken.width
    # The time of a progress report is cut to milliseconds, this test's to seconds.
    assert 3.25 + 0.75 <= middle <= 4.25 + 0.75
    assert (rate, width) == (600, 1.5)


@pytest.mark.slow
def test_the_page_has_the_fields_of_both_schemas(page):
    flow, speed = re.findall(r'<table class="fields">(.*?)</table>', page[1], re.DOTALL)
    assert "<code>ndwflow-value</code>, version 1, id 1" in flow
    assert "<td>timestamp</td><td>timestamp-millis</td>" in flow
    assert "<td>flow</td><td>int</td><td>vehicles an hour</td>" in flow
    assert flow.count("<tr>") == 8
    assert "<code>ndwspeed-value</code>, version 3, id 7" in speed
    assert "<tr><td>a</td><td>null or array or enum</td><td>&lt;i&gt;</td></tr>" in speed
    assert "the registry at http://&lt;b&gt;:1" in page[1]


@pages.needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", pages.WIDTHS)
def test_nothing_lies_on_anything_else_on_the_page(page, width, tmp_path):
    (tmp_path / "page.html").write_text(page[1])
    pages.check(tmp_path / "page.html", width)
