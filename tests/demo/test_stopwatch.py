"""The source with a stopwatch, without Spark's JVM."""

from __future__ import annotations

import pickle
import time

import pytest

from headrace.demo import stopwatch
from headrace.spark.source import StreamReader


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """A reader without a cluster."""
    monkeypatch.setattr(StreamReader, "__init__", lambda self, options: setattr(self, "options", options))
    return stopwatch._TimedReader(None, str(tmp_path))


def test_only_the_work_of_the_source_is_timed(timed, tmp_path, monkeypatch):
    def read(_self, _partition):
        for number in range(2):
            time.sleep(0.02)
            yield number

    monkeypatch.setattr(StreamReader, "read", read)
    monkeypatch.setattr(StreamReader, "latestOffset", lambda *_: time.sleep(0.02))
    monkeypatch.setattr(StreamReader, "partitions", lambda *_: [])
    found = []
    for number in timed.read(None):
        found.append(number)
        time.sleep(0.2)  # Spark's own time
    timed.latestOffset({}, None)
    assert timed.partitions({}, {}) == []
    assert found == [0, 1]
    times = stopwatch.times(tmp_path)
    assert len(times) == 2 + 1 + 1 + 1
    assert 0.06 <= sum(ended - began for began, ended in times) < 0.3


def test_a_task_that_stops_half_way_closes_what_it_reads_from(timed, monkeypatch):
    closed = []

    def read(_self, _partition):
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    monkeypatch.setattr(StreamReader, "read", read)
    rows = timed.read(None)
    assert next(rows) == 1
    rows.close()
    assert closed == [True]


def test_a_reader_takes_its_folder_to_the_tasks(timed, tmp_path):
    there = pickle.loads(pickle.dumps(timed))  # noqa: S301  (our own)
    assert there._folder == str(tmp_path)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    (tmp_path / "1").write_text("1.0 2.0\n3.0 4.")
    assert stopwatch.times(tmp_path) == [(1.0, 2.0)]
