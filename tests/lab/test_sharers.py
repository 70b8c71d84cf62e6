"""How members of share groups acknowledge: with clients that talk to nobody."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidRecordStateError
from headrace.lab import campaign
from headrace.lab.worker import headrace_
from headrace.lab.worker.consume import Consuming
from tests.kafka.nodes import until
from tests.lab.fake import FakeBroker, FakeConsumer

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("delivery_count", pa.int16()),
    ]
)


def batch(partition: int, offsets: list[int]) -> pa.RecordBatch:
    count = len(offsets)
    columns = [[b"v"] * count, ["t"] * count, [partition] * count, offsets, [2] * count]
    return pa.record_batch(columns, schema=SCHEMA)


class Consumer:
    """Gives two batches; the locks of `over` are over, the acknowledgements of partitions `refused` are not taken."""

    over: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()

    def __init__(self, _bootstrap: str, _options: dict[str, str]) -> None:
        self.said: list[object] = []

    def subscribe(self, topics):
        assert topics == ["t"]

    def poll_all(self, _timeout_s):
        return [batch(0, [3, 5]), batch(1, [8])]

    def acknowledge(self, rows, how="accept"):
        assert how == "accept"
        offsets = rows.column("offset").to_pylist()
        self.said.append(offsets)
        if self.over.intersection(offsets):
            raise InvalidRecordStateError("over")

    def commit(self, _timeout_s):
        self.said.append("commit")
        error = InvalidRecordStateError("over")
        return {hr.TopicPartition("t", p): error if p in self.refused else None for p in (0, 1)}


def turn(monkeypatch, options, *, each: bool, **has):
    """What is said to the client after a poll, and what is notified of it."""
    made = type("C", (Consumer,), has)("", {})
    monkeypatch.setattr(hr, "ShareConsumer", lambda *_: made)
    member = headrace_.DRIVER.consumer("", options, "g", ["t"], share=True)
    member.each = each
    heard = []
    monkeypatch.setattr(member, "tell", heard.append)
    given = member.poll(0)
    assert [len(polled.values) for polled in given] == [2, 1]
    if each:  # nobody else asks
        assert [polled.offsets.tolist() for polled in given] == [[3, 5], [8]]
        assert [polled.deliveries.tolist() for polled in given] == [[2, 2], [2]]
    member.done()
    reported = [(one.topic, one.partition, np.asarray(one.offsets).tolist()) for one in member.accepted()]
    assert member.accepted() == []
    return made.said, reported, heard


RECORD = {"share.acknowledgement.mode": "explicit"}
ALL = [("t", 0, [3, 5]), ("t", 1, [8])]


@pytest.mark.parametrize("each", [False, True])
def test_each_record_by_itself_and_a_commit_a_poll(monkeypatch, each):
    assert turn(monkeypatch, RECORD, each=each) == ([[3], [5], [8], "commit"], ALL, [])


def test_by_the_next_poll(monkeypatch):
    assert turn(monkeypatch, {}, each=False) == ([], [], [])
    assert turn(monkeypatch, {}, each=True) == (["commit"], ALL, [])


def test_what_was_not_acknowledged_is_not_told(monkeypatch):
    said, reported, heard = turn(monkeypatch, RECORD, each=True, over=frozenset({5}), refused=frozenset({1}))
    assert said == [[3], [5], [8], "commit"]
    assert reported == [("t", 0, [3])]
    assert heard == [
        "not acknowledged: locks were over before the work on their records was done",
        "not acknowledged: over",
    ]


def test_what_a_client_goes_on_after_is_told(tmp_path, monkeypatch):
    path = tmp_path / "w.yaml"
    path.write_text("{}")
    monkeypatch.setattr(FakeConsumer, "done", lambda self: self.tell("it went wrong"))
    broker = FakeBroker()
    consuming = Consuming(broker, "", campaign.load(path).variations[0].workload, ["t"], [0], group="g")
    broker.blocks.append(type("B", (), {"topic": "t", "values": pa.array([b"x"])})())
    until(lambda: bool(consuming.intake._errors))
    consuming.stop()
    assert consuming.take()["errors"] == ["it went wrong"]
