"""Batches that lie, as a broker with a bad disk sends them: our clients name the record and go on behind it.

The lies are written over a whole batch in the log of a running broker, which sends files as they are.
"""

from __future__ import annotations

import struct

import pytest

import headrace as hr
from headrace.errors import CorruptMessageError, KafkaError, RecordError
from tests.broker.raw import Connection, batch, record
from tests.broker.test_bad_input import LyingServer

VALUE = b"x" * 100
LONG = record(0, b"y" * 300)[: len(record(0, VALUE))]

LIES = {
    "wrong-crc": batch([VALUE], crc=1),
    "count-of-none": batch([VALUE], count=0),
    "unknown-codec": batch([VALUE], attributes=7),
    "codec-that-it-is-not": batch([VALUE], attributes=4),
    "record-longer-than-the-batch": batch([VALUE], body=LONG),
    "noise": batch([VALUE], body=bytes(range(len(LONG)))),
}

UNREADABLE = {
    "count-beyond-the-bytes": batch([VALUE], count=2**31 - 1, last_delta=2**31 - 2),
    "negative-count": batch([VALUE], count=-1),
    "negative-last-offset": batch([VALUE], last_delta=-5),
    "old-format": batch([VALUE], magic=1),
    "negative-length": struct.pack(">qi", 0, -1),
    "length-below-a-header": struct.pack(">qi", 0, 40),
    "length-beyond-the-file": struct.pack(">qi", 0, 2**31 - 1),
}


@pytest.fixture
def damage(tmp_path, topic):
    """Writes bytes over the first of two batches; gives the broker's address."""
    with hr.Broker.start(tmp_path) as broker:

        def write(lie):
            with Connection(broker.bootstrap_servers) as connection, hr.Admin(broker.bootstrap_servers) as admin:
                admin.create_topic(topic, 1)
                assert connection.produce(topic, batch([VALUE])) == 0
                assert connection.produce(topic, batch([b"behind"])) == 0
            log = next(tmp_path.glob(f"{topic}-0/*.log"))
            with log.open("r+b") as file:
                file.write(lie)
            return broker.bootstrap_servers

        yield write
        assert broker.is_running


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_damaged_batch_is_named_and_can_be_passed(damage, topic, lie):
    assert len(lie) == len(batch([VALUE])), "it must cover the batch and nothing else"
    servers = damage(lie)
    with hr.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(RecordError, match=topic) as caught:
                consumer.poll(10.0)
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == (topic, 0, 0)
        consumer.seek((topic, 0), 1)
        assert consumer.poll(10.0)["value"].to_pylist() == [b"behind"]
    with pytest.raises(RecordError, match=topic):
        hr.read(servers, topic).read_all()
    assert hr.read(servers, topic, start=1).read_all()["value"].to_pylist() == [b"behind"]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_damaged_batch_can_be_left_out_and_is_logged(damage, topic, lie, caplog):
    servers = damage(lie)
    with hr.Consumer(servers, auto_offset_reset="earliest", on_bad_records="skip") as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(10.0)["value"].to_pylist() == [b"behind"]
        assert consumer.position((topic, 0)) == 2
    messages = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    reported = [message for message in messages if "on.bad.records" in message]
    assert len(reported) == 1, messages
    assert "offset 0" in reported[0]
    assert hr.read(servers, topic, on_bad_records="skip").read_all()["value"].to_pylist() == [b"behind"]


@pytest.mark.parametrize("lie", UNREADABLE.values(), ids=UNREADABLE)
def test_a_batch_that_the_broker_cannot_step_over_is_told_and_not_waited_for(damage, topic, lie):
    servers = damage(lie)
    with hr.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(CorruptMessageError, match=topic) as caught:
                consumer.poll(10.0)
            assert (caught.value.topic, caught.value.partition) == (topic, 0)
    with pytest.raises(CorruptMessageError, match=topic):
        hr.read(servers, topic).read_all()


def test_records_beyond_a_batchs_own_offsets_are_refused(damage, topic):
    # Not over the one behind it as well: the next test has that.
    with pytest.raises(RecordError, match=topic) as caught:
        hr.read(damage(batch([VALUE], count=5)), topic).read_all()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (topic, 0, 0)


def test_a_batch_that_reaches_over_the_next_one_is_told(damage, topic):
    servers = damage(batch([VALUE], count=5, last_delta=4))
    with pytest.raises(CorruptMessageError, match=topic):
        hr.read(servers, topic).read_all()


@pytest.mark.parametrize(
    "answer",
    [struct.pack(">i", 2**31 - 1) + b"x" * 5000, struct.pack(">i", -5), struct.pack(">i", 0)],
    ids=["oversized", "negative", "empty"],
)
def test_a_frame_of_an_impossible_size_names_the_broker(answer):
    server = LyingServer(answer)
    try:
        with hr.Admin(server.address, default_api_timeout_ms=1500) as admin:
            with pytest.raises(KafkaError, match=server.address):
                admin.list_topics()
    finally:
        server.close()
