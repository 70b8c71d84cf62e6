"""A worker's loops, with a client that talks to nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import kafka
import numpy as np
import pyarrow as pa
import pytest

from headrace.lab import campaign, payload, protocol
from headrace.lab.histogram import Histogram, merged
from headrace.lab.marks import SEQUENCE_MAX
from headrace.lab.payload import Payloads
from headrace.lab.schedule import Schedule
from headrace.lab.worker import confluent, kafka_python
from headrace.lab.worker.__main__ import Worker
from headrace.lab.worker.consume import Consuming, Seen
from headrace.lab.worker.drivers import Polled
from headrace.lab.worker.produce import Plan, Producing, _Share
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
    told = producing.take()
    assert told["sent"] == sum(len(b.due) for b in broker.everything) == sum(row[3] for row in told["counts"])
    assert told["due"] >= told["sent"]
    assert {row[2] for row in told["counts"]} == {0, 1, 2, 3}
    assert broker.closed == 3


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
    told = producing.take()
    assert (told["sent"], told["due"]) == (10_001, 10_001)
    assert "delay" not in told["hist"]


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
    told = consuming.take()
    delivery = merged(told["hist"]["delivery"].values())
    assert delivery.highest - delivery.at(1) >= 79_000
    assert told["counts"] == [[0, "t", 0, 5, 500]]


def test_bytes_of_others_are_counted_apart(workload):
    broker = FakeBroker()
    consuming = Consuming(broker, "", workload("{}"), ["t"], [0], group="g")
    consuming.intake.received(0, Polled("t", 3, pa.array([b"x"])), payload.read(pa.array([b"x"])), np.array([5]))
    consuming.stop()
    told = consuming.take()
    assert (told["foreign"], told["counts"][0][3]) == (1, 0)


def test_records_that_come_again_are_not_fresh(workload):
    seen = Seen()
    values = Payloads(workload("{}"), 3).make(np.zeros(100_000, np.int64), 0)
    heads = payload.read(values)
    assert seen.fresh(payload.read(values[:70_000])) == 70_000
    assert seen.fresh(heads) == 30_000
    assert seen.fresh(heads) == 0
    far = Payloads(workload("{}"), 3).make(np.zeros(1, np.int64), SEQUENCE_MAX + 1)
    with pytest.raises(ValueError, match="a record of sequence"):
        seen.fresh(payload.read(far))


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
    first = sender.hear(protocol.Second)
    assert first.n == 0
    assert first.at_ns >= at_ns + 1_000_000_000
    sender.say(protocol.Rate(at_ns=time.time_ns(), schedule=Schedule.constant(0).to_json()))
    sender.say(protocol.Stop())
    last = sender.hear(protocol.Second)
    sender.hear(protocol.Done)
    total = sum(row[3] for second in (first, last) for row in second.counts)
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
