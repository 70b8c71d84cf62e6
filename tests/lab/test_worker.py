"""A worker's loops, with a client that talks to nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import Deliveries, SeenRecords, TimeCounts, count_records
from headrace.lab import campaign, payload, protocol
from headrace.lab.distribution import Placement
from headrace.lab.histogram import HIGHEST, Histogram, Recorder, merged
from headrace.lab.marks import SEQUENCE_MAX
from headrace.lab.payload import Payloads
from headrace.lab.schedule import Schedule
from headrace.lab.worker import confluent, kafka_python
from headrace.lab.worker.__main__ import Worker
from headrace.lab.worker.consume import Consuming
from headrace.lab.worker.drivers import Block, Polled
from headrace.lab.worker.produce import Plan, Producing, _Share
from tests.kafka.cluster import Cluster
from tests.kafka.nodes import until
from tests.lab.fake import FakeBroker


@pytest.fixture
def workload(tmp_path):
    def make(text: str):
        path = tmp_path / "w.yaml"
        path.write_text(text)
        return campaign.load(path).variations[0].workload

    return make


def taken_from(blocks):
    return [payload.read(block.values) for block in blocks]


def test_every_record_is_sent_once_with_its_due_time(workload):
    broker = FakeBroker()
    text = "producerRate: 2000\nproducers: 3\npartitions: 4\nmessageDistributor: PINNED_PARTITIONS"
    producing = Producing(broker, "", workload(text), ["t"], [0, 1, 2])
    at_ns = time.time_ns() + 50_000_000
    producing.start(at_ns)
    until(lambda: len(producing._sent) == 3 and min(producing._sent.values()) >= 200)
    producing.stop()
    due = np.sort(np.concatenate([head.due for head in taken_from(broker.everything)])) - at_ns
    # All records of the schedule from the first on, none twice, whichever producer had them.
    assert due[:600].tolist() == Schedule.constant(2000).due(np.arange(600)).tolist()
    for producer in range(3):
        sequence = np.concatenate([h.sequence[h.producer == producer] for h in taken_from(broker.everything)])
        assert sequence.tolist() == list(range(len(sequence)))
    reported = producing.take()
    assert reported["sent"] == sum(len(b.due) for b in broker.everything) == sum(row[3] for row in reported["counts"])
    assert reported["due"] >= reported["sent"]
    assert {row[2] for row in reported["counts"]} == {0, 1, 2, 3}
    assert broker.closed == 3


@pytest.mark.slow
def test_a_stall_counts_for_all_that_were_due_in_it(workload):
    """Coordinated omission: measured from the send only one record in thousands would have seen it."""
    broker = FakeBroker(stall_after_s=0.2, stall_s=2.0)
    work = workload("producerRate: 1000")
    producing = Producing(broker, "", work, ["t"], [0])
    consuming = Consuming(broker, "", work, ["t"], [0], group="g")
    began = time.time_ns()
    producing.start(began)
    until(lambda: time.time_ns() - began > 3_000_000_000)
    producing.stop()
    until(lambda: not broker.blocks)
    consuming.stop()
    sent, received = producing.take(), consuming.take()
    delivery = merged(received["hist"]["delivery"].values())
    assert delivery.total == sent["sent"]
    delay, publish = (Histogram.decode(sent["hist"][kind]) for kind in ("delay", "publish"))
    for one in (delay, delivery):
        assert one.at(99) > 1_800_000
        assert one.at(60) > 100_000
    assert publish.at(99) < 1_000_000


def test_the_rate_changes_and_what_was_due_before_is_left():
    share = _Share(0, 1, None)
    second_ago = time.time_ns() - 1_000_000_000
    first = Plan(second_ago, Schedule.constant(1000))
    assert len(share.due(first, 100)) == 100
    assert share.due_total >= 1000
    other = Plan(time.time_ns() - 1_000_000_000, Schedule.constant(10))
    assert len(share.due(other, 5)) == 5
    assert 110 <= share.due_total < 200
    paused = Plan(time.time_ns(), Schedule.constant(0))
    assert len(share.due(paused, 100)) == 0
    assert share.next_ns(paused) > time.time_ns() + 10**15
    assert share.due_total == 105


def test_so_many_records_and_no_more(workload):
    broker = FakeBroker()
    producing = Producing(broker, "", workload("producers: 3\nproducerRate: 5"), ["t"], [0, 1, 2], records=10_001)
    producing.start(time.time_ns())
    until(lambda: producing.ended)
    producing.stop()
    assert sum(len(b.due) for b in broker.everything) == 10_001
    reported = producing.take()
    assert (reported["sent"], reported["due"]) == (10_001, 10_001)
    assert "delay" not in reported["hist"]


def test_confluent_takes_kafkas_names():
    options = {**dict.fromkeys(confluent.RENAMED, "2000000"), "fetch.max.wait.ms": "7", "max.poll.records": "9"}
    member = confluent._Consumer("127.0.0.1:1", options, "g", ["t"])
    assert member._most == 9
    member.close()
    assert confluent.own_options({"fetch.max.wait.ms": "7", "acks": "1"}) == {"fetch.wait.max.ms": "7", "acks": "1"}


def test_kafka_python_takes_kafkas_names():
    options = {"fetch.max.wait.ms": "7", "enable.auto.commit": "false", "group.instance.id": "12", "client.id": "3"}
    assert kafka_python.own_options(kafka.KafkaConsumer, options | {"receive.buffer.bytes": "9"}) == {
        "fetch_max_wait_ms": 7,
        "enable_auto_commit": False,
        "group_instance_id": "12",
        "client_id": "3",
        "receive_buffer_bytes": 9,
    }
    given = {"acks": "all", "retries": "5", "linger.ms": "2.5"}
    assert kafka_python.own_options(kafka.KafkaProducer, given) == {"acks": "all", "retries": 5, "linger_ms": 2.5}


def test_options_are_those_of_the_side_and_the_driver(workload):
    broker = FakeBroker()
    work = workload(
        "commonConfig: {a: 1}\nproducerConfig: {b: 2}\nconsumerConfig: {c: 3}\ndriverConfig: {headrace: {a: 4}}"
    )
    Producing(broker, "", work, ["t"], [0])
    Consuming(broker, "", work, ["t"], [0], group="g").stop()
    assert broker.options == [{"a": "4", "b": "2"}, {"auto.offset.reset": "earliest", "a": "4", "c": "3"}]


def test_work_delays_the_later_records_of_a_batch(workload):
    broker = FakeBroker()
    work = workload("consumerProcMsMin: 20")
    values = Payloads(work, 0).make(np.full(5, time.time_ns()), 0)
    consuming = Consuming(broker, "", work, ["t"], [0], group="g")
    broker.blocks.append(type("B", (), {"topic": "t", "values": values})())
    until(lambda: bool(consuming.intake._counts))
    consuming.stop()
    reported = consuming.take()
    delivery = merged(reported["hist"]["delivery"].values())
    assert delivery.highest - delivery.at(1) >= 79_000
    assert reported["counts"] == [[0, "t", 0, 5, 500]]


def test_bytes_of_others_are_counted_apart(workload):
    broker = FakeBroker()
    consuming = Consuming(broker, "", workload("{}"), ["t"], [0], group="g")
    consuming.intake.received(0, Polled("t", 3, pa.array([b"x"])), 5)
    consuming.intake.received(0, Polled("t", 3, [b"x" * 30, None]), np.array([5, 6]))
    consuming.stop()
    reported = consuming.take()
    assert (reported["foreign"], reported["counts"]) == (3, [[0, "t", 3, 0, 31]])


WITHOUT_PANDAS = """
import sys, time
from pathlib import Path
from headrace.lab import campaign
from headrace.lab.worker.consume import Consuming
from headrace.lab.worker.produce import Producing
from tests.kafka.nodes import until
from tests.lab.fake import FakeBroker

broker, work = FakeBroker(), campaign.load(Path(sys.argv[1])).variations[0].workload
producing = Producing(broker, "", work, ["t"], [0], records=10)
producing.start(time.time_ns())
until(lambda: producing.ended)
consuming = Consuming(broker, "", work, ["t"], [0], group="g", distinct=True)
until(lambda: not broker.blocks)
consuming.stop()
assert producing.take()["counts"][0][3] == consuming.take()["fresh"] == 10
assert "pandas" not in sys.modules
"""


def test_nothing_imports_pandas_while_it_is_measured(tmp_path):
    """Arrow does, for which a worker would stand still for seconds."""
    path = tmp_path / "w.yaml"
    path.write_text("messageDistributor: PINNED_PARTITIONS\nconsumerProcMsMin: 1")
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, path], timeout=60, check=True)


def counted(values, began_ns, *, partition=True, seen=None):
    """What native code finds, and its two histograms."""
    both = TimeCounts(), TimeCounts()
    found = count_records(values, began_ns, both[0], both[1] if partition else None, seen)
    return found, [np.frombuffer(one.take() or bytes(8), "<i8") for one in both]


def bucketed(times_ns):
    """The counts that Python's histogram has of times in nanoseconds."""
    expected = Histogram()
    expected.add(np.array([min(max(one // 1000, 0), HIGHEST) for one in times_ns], np.int64))
    return expected.counts


TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(10**18, 10**18 + 10**13)
HEADS = st.tuples(TIMES, st.integers(0, 3), st.integers(0, 200) | st.integers(0, SEQUENCE_MAX - 1))


@st.composite
def records(draw):
    """Values, those of the lab and others, with the heads of the former and None for the latter."""
    found = []
    for head in draw(st.lists(HEADS | st.none(), max_size=40)):
        if head is None:
            found.append((draw(st.none() | st.binary(max_size=30)), None))
        else:
            due, producer, sequence = head
            made = np.zeros(1, payload.HEAD)
            made["due"], made["producer"], made["magic"], made["sequence"] = due, producer, payload.MAGIC, sequence
            found.append((made.tobytes() + draw(st.binary(max_size=5)), head))
    return found


@pytest.mark.slow
@given(records(), st.data())
def test_native_code_counts_what_python_would(found, data):
    values, heads = [value for value, _ in found], [head for _, head in found]
    began = data.draw(st.lists(TIMES, min_size=len(found), max_size=len(found)))
    skipped = data.draw(st.integers(0, len(found)))
    forms = [pa.array(values, pa.binary()), pa.array(values, pa.large_binary()), values]
    for form in forms:
        ours = [(head, at) for head, at in zip(heads, began, strict=True) if head is not None]
        (count, fresh, size), both = counted(form, pa.array(began, pa.int64()), seen=SeenRecords())
        assert count == len(ours) == len(payload.read(forms[0]).due)
        assert fresh == len({head[1:] for head, _ in ours})
        assert size == sum(len(value) for value in values if value is not None)
        for one in both:
            assert one.sum() == count
            assert (one == bucketed([at - head[0] for head, at in ours])).all()
        # One time for all, and a part of an array.
        (count, fresh, _), both = counted(form[skipped:], 10**18, partition=False)
        rest = [head for head in heads[skipped:] if head is not None]
        assert (count, fresh, both[1].sum()) == (len(rest), 0, 0)
        assert (both[0] == bucketed([10**18 - head[0] for head in rest])).all()


def test_histograms_have_their_edges_where_they_are_in_python():
    edges = [step for power in range(34) for step in (2**power - 1, 2**power, 2**power + 1)]
    edges += [HIGHEST - 1, HIGHEST, HIGHEST + 1]
    ends = np.array(edges) * 1000
    recorder = Recorder()
    recorder.add(0, ends)
    recorder.add(-ends, 0, 2)
    recorder.add(5, 7_005, 3)
    expected = Histogram()
    expected.add(np.array(edges), weight=3)
    expected.add(np.array([7]), weight=3)
    assert recorder.take() == expected.encode()
    assert recorder.take() is None
    with pytest.raises(ValueError, match="3 begins and 2 ends"):
        recorder.add(np.arange(3), np.arange(2))


def test_columns_that_are_no_records_are_refused():
    histogram = TimeCounts()
    with pytest.raises(ValueError, match="1 times for 2 values"):
        count_records([b"x", b"y"], pa.array([1]), histogram, None, None)
    with pytest.raises(TypeError, match="values of"):
        count_records(pa.array([1]), 1, histogram, None, None)
    with pytest.raises(TypeError, match="times of Utf8; int64 is taken"):
        histogram.add(pa.array(["a"]), 1)
    with pytest.raises(ValueError, match="a time is null"):
        histogram.add(pa.array([None], pa.int64()), 1)
    for other in ("x", 5, ["x"], [5]):
        with pytest.raises(TypeError):
            count_records(other, 1, histogram, None, None)
    assert histogram.take() is None


def test_records_that_come_again_are_not_fresh(workload):
    def fresh(seen, values):
        return counted(values, 0, seen=seen)[0][1]

    seen = SeenRecords()
    values = Payloads(workload("{}"), 3).make(np.zeros(100_000, np.int64), 0)
    others = Payloads(workload("{}"), 4).make(np.zeros(10, np.int64), 0)
    assert fresh(seen, values[:70_000]) == 70_000
    assert fresh(seen, values) == 30_000
    assert fresh(seen, values) == 0
    assert fresh(seen, others) == 10
    assert fresh(seen, pa.concat_arrays([others, others])) == 0


@pytest.mark.parametrize("sequence", [SEQUENCE_MAX, 2**63, 2**64 - 1])
def test_a_sequence_that_no_run_can_have_is_refused(workload, sequence):
    maker = Payloads(workload("{}"), 3)
    last = maker.make(np.zeros(1, np.int64), SEQUENCE_MAX - 1)
    assert counted(last, 0, seen=SeenRecords())[0] == (1, 1, 100)
    far = maker.make(np.zeros(1, np.int64), sequence)
    with pytest.raises(ValueError, match=f"^a record of sequence {sequence:,}$"):
        counted(far, 0, seen=SeenRecords())
    # Where nobody asks which are new, it is a record like others.
    assert counted(far, 0)[0] == (1, 0, 100)


class Told:
    """An outcome that remembers."""

    each = False

    def __init__(self):
        self.acked, self.lost = [], []
        self.ended = threading.Event()

    def acknowledged(self, block, rows, sent_ns, acked_ns):
        assert (np.asarray(acked_ns) >= sent_ns).all()
        every = np.arange(len(block.due)) if rows is None else rows
        assert len(every) == len(acked_ns)
        self.acked += every.tolist()
        self.ended.set()

    def failed(self, count, why):
        self.lost += [why] * count


def test_confluent_tells_which_records_of_a_block_were_lost(workload):
    block = Block("t", Payloads(workload("{}"), 3).make(np.zeros(5, np.int64), 70), Placement(), np.zeros(5), 70)
    outcome = Told()
    sent = confluent._Sent(block, outcome)
    deliveries = Deliveries(5, sent.failed, sent.ended)
    for row, value in enumerate(block.values.to_pylist()):
        message = SimpleNamespace(value=lambda value=value: value)
        assert not outcome.acked
        deliveries.reported("too bad" if row in {1, 4} else None, message)
    assert (outcome.acked, outcome.lost) == ([0, 2, 3], ["too bad", "too bad"])
    del deliveries
    alive = weakref.ref(sent)
    del sent
    assert alive() is None, "a block must go with its last record"


def test_confluent_tells_what_nobody_takes(workload):
    outcome = Told()
    # Nobody listens there.
    producer = confluent._Producer("127.0.0.1:1", {"message.timeout.ms": "10", "linger.ms": "0"}, outcome)
    values = Payloads(workload("{}"), 3).make(np.zeros(5, np.int64), 70)
    producer.send(Block("t", values, Placement(), np.zeros(5), 70))
    assert outcome.ended.wait(60)
    producer.close()
    assert outcome.acked == []
    assert len(outcome.lost) == 5
    assert "timed out" in outcome.lost[0]


def test_confluent_sends_all_with_little_room_and_takes_all(workload, embedded_broker, topic):
    bootstrap = embedded_broker.bootstrap_servers
    Cluster("embedded", bootstrap).create_topic(topic, 3)
    # Sending waits for room many times, and goes on where it was.
    outcome = Told()
    producer = confluent._Producer(bootstrap, {"queue.buffering.max.messages": "7", "linger.ms": "0"}, outcome)
    values = Payloads(workload("{}"), 3).make(np.arange(200), 0)
    partitions = (np.arange(200) % 3).astype(np.int32)
    producer.send(Block(topic, values, Placement(partitions=partitions), np.arange(200)))
    producer.send(Block(topic, values, Placement(keys=values), np.arange(200)))
    producer.flush(60)
    until(lambda: len(outcome.acked) == 400)
    producer.close()
    assert (outcome.acked, outcome.lost) == ([*range(200), *range(200)], [])

    member = confluent._Consumer(bootstrap, {"auto.offset.reset": "earliest"}, topic, [topic])
    member.each = True
    assert member.assigned() == 0
    found = {0: [], 1: [], 2: []}
    offsets = {0: [], 1: [], 2: []}

    def all_came():
        for polled in member.poll(0.1):
            found[polled.partition] += polled.values
            offsets[polled.partition] += polled.offsets.tolist()
        member.done()
        return sum(map(len, found.values())) == 400

    until(all_came)
    assert member.assigned() == 3
    member.close()
    assert member.assigned() == 0
    for partition, own in found.items():
        assert offsets[partition] == list(range(len(own)))
        # What was put there by number comes first, in its order; the rest went there by its key.
        count = len(partitions[partitions == partition])
        assert own[:count] == values.to_pylist()[partition::3]
    assert sorted(value for own in found.values() for value in own) == sorted(values.to_pylist() * 2)


class Talk:
    """A worker in a thread, and both ends of its pipes."""

    def __init__(self, broker):
        commands, self.to = os.pipe()
        self.answers, answers = os.pipe()
        self.commands_end = os.fdopen(self.to, "wb", 0)
        self.lines = os.fdopen(self.answers, "rb")
        worker = Worker(os.fdopen(commands, "rb"), os.fdopen(answers, "wb"), lambda _: broker)
        self.status = []
        self.thread = threading.Thread(target=lambda: self.status.append(worker.run()))
        self.thread.start()

    def say(self, message):
        self.commands_end.write(protocol.encode(message))

    def hear(self, kind):
        while True:
            message = protocol.decode(self.lines.readline())
            if isinstance(message, kind):
                return message

    def end(self):
        self.commands_end.close()
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.status[0]


def prepare(work, role, **more):
    return protocol.Prepare(
        run="r", role=role, driver="headrace", bootstrap="", workload=work.to_json(), topics=["t"], members=[0], **more
    )


def test_a_worker_from_its_first_message_to_its_last(workload):
    broker = FakeBroker()
    work = workload("producerRate: 100")
    sender, receiver = Talk(broker), Talk(broker)
    sender.say(prepare(work, "produce"))
    receiver.say(prepare(work, "consume", group="g", distinct=True))
    assert sender.hear(protocol.Ready).version == "fake 1"
    receiver.hear(protocol.Ready)
    assert receiver.hear(protocol.Assigned).partitions == 1
    at_ns = time.time_ns()
    for one in (sender, receiver):
        one.say(protocol.Start(at_ns=at_ns))
    seconds = [sender.hear(protocol.Second)]
    assert seconds[0].n == 0
    assert seconds[0].at_ns >= at_ns + 1_000_000_000
    # A busy machine sends some records of the first second in the next one.
    while sum(row[3] for second in seconds for row in second.counts) < 90:
        seconds.append(sender.hear(protocol.Second))
    sender.say(protocol.Rate(at_ns=time.time_ns(), schedule=Schedule.constant(0).to_json()))
    sender.say(protocol.Stop())
    seconds.append(sender.hear(protocol.Second))
    sender.hear(protocol.Done)
    total = sum(row[3] for second in seconds for row in second.counts)
    until(lambda: not broker.blocks)
    receiver.say(protocol.SetWork(min_ms=0, max_ms=0))
    receiver.say(protocol.Stop())
    received = fresh = 0
    while True:
        second = receiver.hear((protocol.Second, protocol.Done))
        if isinstance(second, protocol.Done):
            break
        received += sum(row[3] for row in second.counts)
        fresh += second.fresh
    assert received == fresh == total >= 90
    assert sender.end() == receiver.end() == 0


def test_one_that_starts_late_tells_no_seconds_before_it(workload):
    talk = Talk(FakeBroker())
    talk.say(prepare(workload("{}"), "consume", group="g"))
    talk.hear(protocol.Ready)
    talk.say(protocol.Start(at_ns=time.time_ns() - 7_500_000_000))
    assert talk.hear(protocol.Second).n >= 7
    talk.say(protocol.Stop())
    talk.hear(protocol.Done)
    assert talk.end() == 0


def test_a_client_that_fails_ends_the_worker_with_its_reason(workload):
    talk = Talk(FakeBroker(fails="no such luck"))
    talk.say(prepare(workload("producerRate: 100"), "produce"))
    talk.say(protocol.Start(at_ns=time.time_ns()))
    assert "no such luck" in talk.hear(protocol.Failed).why
    assert talk.end() == 1


def test_a_worker_ends_when_nobody_is_there(workload):
    broker = FakeBroker()
    talk = Talk(broker)
    talk.say(prepare(workload("producerRate: 100"), "produce"))
    talk.hear(protocol.Ready)
    assert talk.end() == 0
    assert broker.closed == 1


def test_lines_that_are_no_messages():
    for line, sentence in {
        b"{": "not JSON",
        b"[1]": "no message",
        b'{"do": "dance"}': "no message",
        b'{"is": []}': "no message",
        b'{"do": "start"}': "start: ",
        b"[" * 100_000: "not JSON",
    }.items():
        with pytest.raises(protocol.LineError, match=sentence):
            protocol.decode(line)
    # A driver may tell more than we know.
    assert protocol.decode(b'{"is": "done", "mood": "fine"}') == protocol.Done()


def test_the_process_says_what_is_missing():
    lines = protocol.encode(protocol.Stop()) + b"nonsense\n"
    done = subprocess.run(
        [sys.executable, "-m", "headrace.lab.worker"], input=lines, capture_output=True, timeout=60, check=False
    )
    assert b'"is":"done"' in done.stdout
    bad = subprocess.run(
        [sys.executable, "-m", "headrace.lab.worker"], input=b"nonsense\n", capture_output=True, timeout=60, check=False
    )
    assert isinstance(protocol.decode(bad.stdout.splitlines()[0]), protocol.Failed)
