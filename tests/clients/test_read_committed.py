"""Only committed records: transactions of our producer and of confluent-kafka, ended every way, side by side."""

from __future__ import annotations

import time

import confluent_kafka
import pytest

import headrace as hr
from headrace.errors import OffsetOutOfRangeError

pytestmark = pytest.mark.kafka

ROUNDS = 12
PATIENCE_SECONDS = 30


def read(consumer, end):
    """The values up to this position."""
    values = []
    partition = consumer.assignment()[0]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while consumer.position(partition) < end and time.monotonic() < deadline:
        values += [value.decode() for value in consumer.poll(timeout=0.2)["value"].to_pylist()]
    assert consumer.position(partition) == end
    return values


def ours(kafka, topic, number, values, commit):
    with hr.Producer(kafka.bootstrap_servers, transactional_id=f"{topic}-ours-{number % 3}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value.encode())
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()


def theirs(kafka, topic, number, values, commit):
    options = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic}-theirs-{number % 3}"}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode())
    producer.flush()
    producer.commit_transaction() if commit else producer.abort_transaction()


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_aborted_records_are_left_out_and_open_ones_waited_for(apache_kafka, topic, compression):
    with hr.Admin(apache_kafka.bootstrap_servers) as admin:
        admin.create_topic(topic, 1, 1, {"compression.type": compression} if compression != "none" else {})
    kept, written = [], []
    for number in range(ROUNDS):
        values = [f"{number}-{index}" for index in range(7)]
        write = ours if number % 2 else theirs
        commit = number % 4 in {0, 3}
        write(apache_kafka, topic, number, values, commit)
        written += values
        if commit:
            kept += values
    end = 8 * ROUNDS
    options = {"auto_offset_reset": "earliest", "fetch_max_bytes": 400}
    with hr.Consumer(apache_kafka.bootstrap_servers, isolation_level="read_committed", **options) as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, end) == kept
        # A transaction that is open holds up what comes behind it, and only that.
        opener = hr.Producer(apache_kafka.bootstrap_servers, transactional_id=f"{topic}-open")
        opener.init_transactions()
        opener.begin_transaction()
        opener.send(topic, b"open").result(PATIENCE_SECONDS)
        ours(apache_kafka, topic, 0, ["behind"], commit=True)
        assert consumer.poll(timeout=1.0).num_rows == 0
        assert consumer.position((topic, 0)) == end
        opener.commit_transaction()
        opener.close()
        assert read(consumer, end + 4) == ["open", "behind"]
        consumer.seek_to_end([(topic, 0)])
        assert consumer.position((topic, 0)) == end + 4
    with hr.Consumer(apache_kafka.bootstrap_servers, **options) as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, end + 4) == [*written, "open", "behind"]


def test_a_read_ends_before_an_open_transaction(apache_kafka, topic):
    servers = apache_kafka.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 1, 1)
    ours(apache_kafka, topic, 0, ["kept"], commit=True)
    with hr.Producer(servers, transactional_id=f"{topic}-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(PATIENCE_SECONDS)
        # Each would wait until the transaction is ended for it, longer than this test may take.
        committed = {"isolation_level": "read_committed"}
        assert hr.read(servers, topic, **committed).read_all()["value"].to_pylist() == [b"kept"]
        assert hr.read(servers, topic, start={0: 3}, **committed).read_all().num_rows == 0
        with pytest.raises(OffsetOutOfRangeError, match="the log ends at 3"):
            hr.read(servers, topic, start={0: 9}, **committed)
        assert hr.read(servers, topic).read_all().num_rows == 2
        producer.abort_transaction()
    assert hr.read(servers, topic, **committed).read_all()["value"].to_pylist() == [b"kept"]
