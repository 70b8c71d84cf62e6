"""The demo's data: what is sent, and what must come out."""

from __future__ import annotations

import datetime as dt
import json
import threading

import pyarrow as pa
import pytest

from headrace.demo import data, main
from headrace.demo.pipeline import Results


@pytest.fixture(scope="module")
def table():
    return data.load()


@pytest.mark.slow
def test_every_measurement_is_sent_once_in_the_order_of_time(table):
    minutes = list(data.minutes(table))
    assert len(minutes) == 1800
    assert sum(m.flow.num_rows + m.speed.num_rows for m in minutes) == table.num_rows == 68_400
    assert [m.label for m in minutes] == sorted(m.label for m in minutes)
    at = dt.datetime(2017, 3, 15, 14, 41, tzinfo=dt.timezone.utc)
    for batch, topic in ((minutes[0].flow, data.FLOW_TOPIC), (minutes[0].speed, data.SPEED_TOPIC)):
        fields = [field["name"] for field in json.loads(data.SCHEMAS[topic])["fields"]]
        values = batch["value"].to_pylist()
        assert [list(value) for value in values] == [fields] * batch.num_rows
        assert {value["timestamp"] for value in values} == {at}
        assert not any(cell is None for value in values for cell in value.values())


def test_what_ends_the_stream_is_two_days_behind_it(table):
    *_, last = data.minutes(table.slice(0, 500))
    ending = data.ending(last)
    for batch, before in ((ending.flow, last.flow), (ending.speed, last.speed)):
        assert batch.schema == before.schema
        [key], [value] = batch["key"].to_pylist(), batch["value"].to_pylist()
        assert key == f"end/{value['internalId']}"
        assert value["timestamp"] == before["value"][0]["timestamp"].as_py() + dt.timedelta(days=2)


def test_the_expected_result_is_the_sum_and_mean_over_lanes(table):
    wanted = data.expected(table)
    assert wanted.num_rows == 12 * 1800
    row = wanted.slice(5000, 1).to_pylist()[0]
    mine = [r for r in table.to_pylist() if (r["site"], r["timestamp"]) == (row["site"], row["timestamp"])]
    assert row["flow"] == sum(r["flow"] for r in mine if r["flow"] is not None)
    speeds = [r["speed"] for r in mine if r["speed"] is not None]
    assert row["speed"] == pytest.approx(sum(speeds) / len(speeds))
    assert row["lanes"] == len(speeds)


@pytest.fixture
def right(table):
    wanted = data.expected(table).slice(0, 50)
    results = Results()
    for row in wanted.to_pylist():
        key = (row["site"], row["timestamp"].strftime("%Y-%m-%d %H:%M"))
        results.rows[key] = (row["flow"], row["speed"], row["lanes"])
    return wanted, results


def test_the_check_accepts_the_right_result_and_no_other(right):
    wanted, results = right
    assert main.compare(wanted, results) == []
    key = next(iter(results.rows))
    flow, speed, lanes = results.rows[key]
    for wrong in ((flow + 1, speed, lanes), (flow, speed + 0.001, lanes), (flow, speed, lanes + 1)):
        results.rows[key] = wrong
        (line,) = main.compare(wanted, results)
        assert key[0] in line
    del results.rows[key]
    assert main.compare(wanted, results) == [f"{key[0]} {key[1]}: missing"]
    results.rows[key] = (flow, speed, lanes)
    results.rows["elsewhere", "2017"] = (1, 1.0, 1)
    assert main.compare(wanted, results) == ["elsewhere 2017: not in the file"]
    assert isinstance(wanted, pa.Table)


def test_sites_have_names_that_a_driver_knows():
    assert data.site_label("RWS01_MONIBAS_0021hrr1558ra_1") == "A2 km 155.8 right"
    assert data.site_label("RWS01_MONICA_00D00219A85F60200007_1") == "loop 0219A85F60200007"


class Query:
    """A streaming query that comes to rest when `at_rest` is set; notes what it was asked."""

    def __init__(self) -> None:
        self.at_rest = threading.Event()
        self.asked: list[str] = []

    def processAllAvailable(self) -> None:  # noqa: N802  (Spark's name)
        assert self.at_rest.wait(60)
        self.asked.append("rested")

    def stop(self) -> None:
        self.asked.append("stopped")
        self.at_rest.set()


def test_the_query_is_stopped_when_it_is_at_rest():
    query = Query()
    ending = threading.Thread(target=main.stop_idle, args=(query,))
    ending.start()
    ending.join(0.2)
    assert query.asked == []
    query.at_rest.set()
    ending.join(60)
    assert query.asked == ["rested", "stopped"]


def test_a_query_that_never_rests_is_stopped_all_the_same(monkeypatch):
    monkeypatch.setattr(main, "IDLE_TIMEOUT_S", 0.05)
    query = Query()
    main.stop_idle(query)
    assert query.asked[0] == "stopped"


def test_sites_stand_where_the_data_says_from_north_to_south(table):
    sites = data.sites(table)
    assert len(sites) == 12
    assert [site.lat for site in sites] == sorted((site.lat for site in sites), reverse=True)
    assert len({site.label for site in sites}) == 12
    assert [site.label for site in sites if site.road == "A58"] == ["A58 km 13.7 left"]
    assert sites[0].label == "loop at 51.496° N, lane 1"
    assert [(site.road, site.km) for site in sites if not site.road] == [("", None)] * 6


def test_roads_join_sites_in_the_order_of_their_kilometres(table):
    found = data.stretches(data.sites(table))
    assert [(s.start.road, s.start.km, s.stop.km, s.straight) for s in found] == [
        ("A2", 155.8, 160.7, True),
        ("A2", 160.7, 174.3, False),
        ("A2", 174.3, 177.2, True),
        ("A2", 177.2, 178.5, True),
    ]
    assert data.distance_km(found[1].start, found[1].stop) == pytest.approx(11.06, abs=0.01)
