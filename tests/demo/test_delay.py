"""What a delay is made of, on times that are written down."""

from __future__ import annotations

import datetime as dt

import pytest

from headrace.demo import delay
from headrace.demo.pipeline import Arrival

BEGAN = 1_500_000_000.0
TEN = dt.timedelta(minutes=10)


def label(minute):
    return f"2017-03-15 15:{minute:02}"


def batch(number, start, took, **durations):
    stamp = dt.datetime.fromtimestamp(BEGAN + start, dt.timezone.utc).isoformat(timespec="milliseconds")
    durations = durations or {"addBatch": 1}
    return {
        "batchId": number,
        "timestamp": stamp.replace("+00:00", "Z"),
        "durationMs": {"triggerExecution": took * 1000, **durations},
    }


def test_work_of_several_processes_at_once_counts_once():
    busy = delay.Busy([(5, 6), (1, 3), (2, 4), (2.5, 2.6)])
    assert busy.between(0, 10) == 4
    assert busy.between(3.5, 5.5) == 1
    assert busy.between(4.2, 4.8) == 0
    assert busy.between(6, 10) == 0
    assert delay.Busy([]).between(0, 10) == 0


def test_a_minute_is_passed_when_the_one_ten_minutes_later_is_sent():
    sent = {label(minute): BEGAN + minute for minute in range(30)}
    assert delay.passing(sent, TEN) == {label(minute): BEGAN + minute + 10 for minute in range(20)}
    sent["end"] = BEGAN + 30
    passed = delay.passing(sent, TEN)
    assert passed[label(19)] == BEGAN + 29
    assert [passed[label(minute)] for minute in range(20, 30)] == [BEGAN + 30] * 10
    assert "end" not in passed
    # A minute without any record: the next one passes it.
    del sent[label(15)]
    assert delay.passing(sent, TEN)[label(5)] == BEGAN + 16
    assert delay.passing({}, TEN) == {}


def test_a_query_that_is_idle_reports_no_micro_batch():
    ran = delay.runs([batch(3, 1, 0.5), batch(4, 2, 0.1, latestOffset=3)])
    assert list(ran) == [3]
    assert ran[3] == pytest.approx((BEGAN + 1, BEGAN + 1.5))


def test_the_parts_of_a_delay_add_up():
    # Sent at 0, passed at 0.25; micro-batch 6 begins at 0.75, 7 at 1.75, and hands out at 2.5.
    ran = delay.runs([batch(5, 0, 0.75), batch(6, 0.75, 1), batch(7, 1.75, 1)])
    busy = delay.Busy([(BEGAN + 0.5, BEGAN + 0.6), (BEGAN + 0.8, BEGAN + 0.9), (BEGAN + 2, BEGAN + 2.2)])
    arrival = Arrival(BEGAN + 2.5, 2.5, label(0), 7)
    [(same, made)] = delay.parts([arrival], {label(0): BEGAN + 0.25}, ran, busy)
    assert same == arrival
    assert made == pytest.approx((0.25, 0.5, 0.1 + 0.2, 0.9, 0.55), abs=1e-5)
    assert sum(made) == pytest.approx(arrival.delay)


def test_parts_are_never_below_zero():
    # The trigger had begun before the minute that passes was sent, which the micro-batch found all the same.
    ran = delay.runs([batch(6, 0.1, 1), batch(7, 1.1, 1)])
    for passed in (0.25, 1.5, 9):
        arrival = Arrival(BEGAN + 2, 2.0, label(0), 7)
        [(_, made)] = delay.parts([arrival], {label(0): BEGAN + passed}, ran, delay.Busy([]))
        assert min(made) >= 0
        assert sum(made) == pytest.approx(2)


def test_rows_of_micro_batches_that_were_not_reported_are_left_out():
    ran = delay.runs([batch(7, 1.75, 1)])
    arrival = Arrival(BEGAN + 2.5, 2.5, label(0), 7)
    assert delay.parts([arrival], {label(0): BEGAN}, ran, delay.Busy([])) == []
    assert delay.means([]) is None


def test_means_of_parts_add_up_too():
    rows = [(None, delay.Parts(1, 2, 3, 4, 5)), (None, delay.Parts(3, 2, 1, 0, 5))]
    assert delay.means(rows) == delay.Parts(2, 2, 2, 2, 5)
