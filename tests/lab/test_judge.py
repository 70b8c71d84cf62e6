"""What a correctness run finds: of a client that does right nothing, of one that does not each of its mistakes."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

from headrace.lab import campaign
from headrace.lab.journal import (
    ACCEPTED,
    DELIVERIES_MAX,
    DELIVERIES_SHIFT,
    EVENT,
    GIVEN,
    RECEIVED,
    SENT,
    Journal,
    Tail,
)
from headrace.lab.judge import Judge
from headrace.lab.marks import SEQUENCE_MAX, Marks
from headrace.lab.payload import Payloads
from headrace.lab.worker.consume import Consuming
from headrace.lab.worker.drivers import Accepted, Polled
from headrace.lab.worker.produce import Producing
from tests.kafka.nodes import until
from tests.lab.fake import FakeBroker, FakeConsumer

RECORDS = 1000
RIGHT = {"records": RECORDS, "lost": 0, "corrupt": 0, "duplicates": 0, "writtenTwice": 0, "outOfOrder": 0}


class SpoiltBroker(FakeBroker):
    """Does something to the values of the records on their way, of which it has all."""

    def spoil(self, how) -> None:
        values = pa.concat_arrays([block.values for block in self.blocks]).to_pylist()
        first = self.blocks[0]
        self.blocks.clear()
        for some in how(values):
            self.blocks.append(type("B", (), {"topic": first.topic, "values": pa.array(some, pa.binary())})())


def lose(values):
    return [values[:500] + values[501:]]


def double(values):
    return [values, values[7:8]]


def swap(values):
    return [[*values[:10], values[11], values[10], *values[12:]]]


def swap_between_polls(values):
    return [[*values[:10], *values[11:20]], [values[10], *values[20:]]]


def corrupt(values):
    return [[*values[:30], values[30][:-1] + b"!", *values[31:]]]


def rubbish(values):
    return [[*values, b"what?"]]


@pytest.fixture
def work(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text("mode: correctness\nproducerRate: 1000\nuseRandomizedPayloads: true\n")
    return campaign.load(path).variations[0].workload


def judged(work, tmp_path, how=lambda values: [values]) -> Judge:
    broker = SpoiltBroker()
    producing = Producing(broker, "", work, ["t"], [0], records=RECORDS, journal=Journal(tmp_path / "p"))
    producing.start(time.time_ns())
    until(lambda: producing.ended)
    producing.stop()
    broker.spoil(how)
    judge = Judge(["g"], share=False)
    judge.watch(tmp_path / "p")
    judge.watch(tmp_path / "c", "g")
    judge.update()
    assert judge.left == RECORDS
    consuming = Consuming(broker, "", work, ["t"], [0], group="g", journal=Journal(tmp_path / "c"))
    until(lambda: not broker.blocks)
    consuming.stop()
    assert consuming.trouble is None
    judge.update()
    return judge


def test_nothing_is_found_where_all_is_well(work, tmp_path):
    judge = judged(work, tmp_path)
    assert judge.verdict() == RIGHT
    assert judge.left == 0
    [group] = judge.findings()
    assert group["named"] == {}


@pytest.mark.parametrize(
    ("how", "found", "failed", "sequence"),
    [
        (lose, {"lost": 1}, "1 lost", 500),
        (double, {"duplicates": 1}, None, None),
        (swap, {"outOfOrder": 1}, "1 out of order", 10),
        (swap_between_polls, {"outOfOrder": 1}, "1 out of order", 10),
        (corrupt, {"corrupt": 1}, "1 corrupt", 30),
        (rubbish, {"corrupt": 1}, "1 corrupt", 0),
    ],
)
def test_each_mistake_is_found_and_named_and_nothing_else(work, tmp_path, how, found, failed, sequence):
    judge = judged(work, tmp_path, how)
    assert judge.verdict() == {**RIGHT, **found, **({"failed": failed} if failed else {})}
    [group] = judge.findings()
    assert [event["sequence"] for events in group["named"].values() for event in events] == (
        [] if sequence is None else [sequence]
    )


def sent(tmp_path, judge: Judge, count: int) -> None:
    Journal(tmp_path / "p").add(SENT, count, producer=0, sequence=np.arange(count))
    judge.watch(tmp_path / "p")


def received(tmp_path, judge: Judge, name: str, sequence, *, group: str = "g", offset=None, member: int = 0) -> None:
    numbers = np.array(sequence)
    offsets = numbers if offset is None else np.array(offset)
    journal = Journal(tmp_path / name)
    journal.add(RECEIVED, len(numbers), producer=0, member=member, sequence=numbers, offset=offsets)
    judge.watch(tmp_path / name, group)


def given(tmp_path, judge: Judge, name: str, sequence, count: int) -> None:
    """As brokers give out; the sequence is the offset as well."""
    flags = count << DELIVERIES_SHIFT
    numbers = np.array(sequence)
    Journal(tmp_path / f"{name}-given").add(GIVEN, len(numbers), flags=flags, sequence=numbers, offset=numbers)
    judge.watch(tmp_path / f"{name}-given", "g")


def test_what_comes_again_after_a_crash_is_neither_lost_nor_out_of_order(tmp_path):
    judge = Judge(["g"], share=False)
    sent(tmp_path, judge, 10)
    received(tmp_path, judge, "c0", range(7))
    received(tmp_path, judge, "c0~1", range(4, 10))
    # The first member has the partition again, from where it was committed.
    received(tmp_path, judge, "c1", [3, 4, 5, 4, 5, 6, 7])
    judge.update()
    assert judge.verdict() == {**RIGHT, "records": 10, "duplicates": 5}


def test_a_run_in_which_nothing_was_sent_proves_nothing(tmp_path):
    judge = Judge(["g"], share=False)
    judge.watch(tmp_path / "p")
    judge.update()
    assert judge.verdict()["failed"] == "no record was acknowledged to a producer"


def test_each_group_must_see_everything(tmp_path):
    judge = Judge(["g", "h"], share=False)
    sent(tmp_path, judge, 5)
    received(tmp_path, judge, "g0", range(5))
    received(tmp_path, judge, "h0", range(3), group="h")
    judge.update()
    assert judge.left == 2
    assert judge.verdict()["failed"] == "2 lost"
    assert [event["sequence"] for event in judge.findings()[1]["named"]["lost"]] == [3, 4]


def test_a_record_that_its_producer_wrote_twice_is_told_apart(tmp_path):
    judge = Judge(["g"], share=False)
    sent(tmp_path, judge, 3)
    received(tmp_path, judge, "c", [0, 1, 1, 2, 2], offset=[0, 1, 2, 3, 3])
    judge.update()
    assert judge.verdict() == {**RIGHT, "records": 3, "duplicates": 2, "writtenTwice": 1}


def test_a_record_that_two_have_acknowledged(tmp_path):
    judge = Judge(["g"], share=True)
    sent(tmp_path, judge, 6)
    # Share groups keep no order.
    received(tmp_path, judge, "c0", [5, 4, 0, 1])
    received(tmp_path, judge, "c1", [3, 2, 1])
    given(tmp_path, judge, "c0", [5, 4, 0, 1], 1)
    given(tmp_path, judge, "c1", [3, 2, 1], 2)
    for name, offsets in (("a0", [5, 4, 0, 1]), ("a1", [3, 2])):
        Journal(tmp_path / name).add(ACCEPTED, len(offsets), offset=np.array(offsets))
        judge.watch(tmp_path / name, "g")
    judge.update()
    right = {"records": 6, "lost": 0, "corrupt": 0, "duplicates": 1, "writtenTwice": 0}
    share = {
        "acceptedTwice": 0,
        "acceptedLate": 0,
        "givenUp": 0,
        "atLimit": 0,
        "deliveriesMax": 2,
        "deliveriesLimit": None,
    }
    assert judge.verdict() == {**right, **share}
    Journal(tmp_path / "a1").add(ACCEPTED, 1, member=1, offset=1)
    judge.update()
    assert judge.verdict()["failed"] == "1 accepted twice"
    [named] = judge.findings()[0]["named"]["acceptedTwice"]
    assert (named["member"], named["offset"]) == (1, 1)


def test_a_record_that_one_has_acknowledged_too_late(tmp_path):
    judge = Judge(["g"], share=True)
    sent(tmp_path, judge, 6)
    # The members of one process.
    judge.watch(tmp_path / "c", "g")
    journal = Journal(tmp_path / "c")

    def give(member: int, offsets, count: int) -> None:
        numbers = np.array(offsets)
        flags = count << DELIVERIES_SHIFT
        journal.add(GIVEN, len(numbers), member=member, flags=flags, sequence=numbers, offset=numbers)

    def accept(member: int, offsets) -> None:
        journal.add(ACCEPTED, len(offsets), member=member, offset=np.array(offsets))

    give(0, [0, 1, 2], 1)
    give(1, [0, 1, 2], 2)
    accept(1, [0, 1, 2])
    accept(0, [0, 1])
    # Two deliveries to one member.
    give(0, [3], 1)
    accept(0, [3])
    give(0, [3], 2)
    accept(0, [3])
    judge.update()
    assert [judge.verdict()[what] for what in ("acceptedTwice", "acceptedLate")] == [0, 3]
    assert [named["offset"] for named in judge.findings()[0]["named"]["acceptedLate"]] == [0, 1, 3]
    accept(0, [3])
    judge.update()
    assert [judge.verdict()[what] for what in ("acceptedTwice", "acceptedLate")] == [1, 3]


def test_a_record_that_brokers_gave_up(tmp_path):
    judge = Judge(["g"], share=True)
    judge.limit = 5
    sent(tmp_path, judge, 6)
    given(tmp_path, judge, "c0", [0, 1, 2, 3], 4)
    # 1 was worked on after all; 3 was lost with the member, one delivery before the last.
    given(tmp_path, judge, "c1", [0, 1], 5)
    received(tmp_path, judge, "c1", [1, 2, 4, 5])
    judge.update()
    verdict = judge.verdict()
    why = "brokers gave up 1 of them after 5 deliveries, the group's share.delivery.count.limit"
    assert verdict["failed"] == f"2 lost ({why})"
    reported = [verdict[what] for what in ("lost", "givenUp", "atLimit", "deliveriesMax", "deliveriesLimit")]
    assert reported == [2, 1, 2, 5, 5]
    assert judge.findings()[0]["named"]["lost"] == [
        {"producer": 0, "sequence": 0, "deliveries": 5},
        {"producer": 0, "sequence": 3, "deliveries": 4},
    ]
    judge.limit = None
    assert judge.verdict()["failed"] == "2 lost"


def test_deliveries_are_written_down_before_the_work(work, tmp_path, monkeypatch):
    heads = Payloads(work, 0).make(np.zeros(2, np.int64), 7)
    values = pa.concat_arrays([heads, pa.array([b"what?"], heads.type)])
    polled = [[Polled("t", 1, values, np.array([11, 12, 13]), np.array([1, 300, 2]))]]

    def poll(_member, timeout_s: float) -> list[Polled]:
        time.sleep(0 if polled else timeout_s)
        return polled.pop() if polled else []

    def crash(*_):
        raise RuntimeError("a crash")

    monkeypatch.setattr(FakeConsumer, "poll", poll)
    monkeypatch.setattr(Consuming, "_received", crash)
    consuming = Consuming(FakeBroker(), "", work, ["t"], [0], group="g", journal=Journal(tmp_path / "c"))
    until(lambda: consuming.trouble is not None)
    consuming.stop()
    events = Tail(tmp_path / "c").read()
    assert events[["kind", "partition", "sequence", "offset"]].tolist() == [(GIVEN, 1, 7, 11), (GIVEN, 1, 8, 12)]
    assert (events["flags"] >> DELIVERIES_SHIFT).tolist() == [1, DELIVERIES_MAX]


def test_what_a_client_tells_as_accepted_is_written_down(work, tmp_path, monkeypatch):
    reported = [[Accepted("u", 3, np.array([7, 8]))]]
    monkeypatch.setattr(FakeConsumer, "accepted", lambda _: reported.pop() if reported else ())
    consuming = Consuming(FakeBroker(), "", work, ["t", "u"], [4], group="g", journal=Journal(tmp_path / "c"))
    until(lambda: not reported)
    consuming.stop()
    events = Tail(tmp_path / "c").read()
    assert events[["kind", "member", "topic", "partition", "offset"]].tolist() == [(3, 4, 1, 3, 7), (3, 4, 1, 3, 8)]


def test_offsets_are_those_of_the_client(work, tmp_path, monkeypatch):
    polled = [[Polled("t", 1, pa.array([b"x", b"y"]), np.array([11, 12]))]]

    def poll(_member, timeout_s: float) -> list[Polled]:
        time.sleep(0 if polled else timeout_s)
        return polled.pop() if polled else []

    monkeypatch.setattr(FakeConsumer, "poll", poll)
    consuming = Consuming(FakeBroker(), "", work, ["t"], [0], group="g", journal=Journal(tmp_path / "c"))
    until(lambda: not polled)
    consuming.stop()
    assert Tail(tmp_path / "c").read()["offset"].tolist() == [11, 12]


def test_an_event_that_is_torn_off_is_left(tmp_path):
    tail = Tail(tmp_path / "j")
    assert len(tail.read()) == 0
    Journal(tmp_path / "j").add(SENT, 2, sequence=np.array([1, 2]))
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole + whole[:20])
    assert tail.read()["sequence"].tolist() == [1, 2]
    (tmp_path / "j").write_bytes(whole + whole)
    assert tail.read()["sequence"].tolist() == [1, 2]
    assert len(whole) == 2 * EVENT.itemsize


def test_marks_stay_at_the_highest_and_have_an_end():
    marks = Marks()
    marks.count(np.array([3] * 300 + [70_000]))
    assert marks.values[[3, 4, 70_000]].tolist() == [255, 0, 1]
    with pytest.raises(ValueError, match="a record of sequence"):
        marks.at(np.array([SEQUENCE_MAX]))
