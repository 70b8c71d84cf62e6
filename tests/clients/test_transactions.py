"""Transactions against Apache Kafka, in both versions of the protocol; our broker refuses them."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time

import pytest

import headrace as hr
from headrace.errors import (
    Abortable,
    ClosedError,
    ConfigError,
    Fatal,
    KafkaError,
    KafkaTimeoutError,
    MessageTooLargeError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UsageError,
)
from tests.clients.helpers import committed
from tests.kafka.cluster import Cluster

KILL_ROUNDS = 6
INPUTS = 600


@pytest.mark.kafka
def test_committed_records_are_seen_and_aborted_ones_are_not(kafka, topic, name):
    kafka.create_topic(topic, 2)
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            sent = [producer.send(topic, b"%d" % number, partition=partition) for partition in (0, 1)]
            producer.flush()
            assert all(future.result(10).offset >= 0 for future in sent)
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert committed(kafka, topic) == [b"0", b"2", b"3", b"5"] * 2


@pytest.mark.kafka
def test_a_with_block_commits_at_its_end_and_aborts_when_it_raises(kafka, topic, name):
    kafka.create_topic(topic)
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, b"a")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            unsent = producer.send(topic, b"b")
            raise ZeroDivisionError
        with pytest.raises(TransactionAbortedError):
            unsent.result(10)
        with producer.transaction() as same:
            assert same is producer
            producer.send(topic, b"c")
    assert committed(kafka, topic) == [b"a", b"c"]


@pytest.mark.kafka
def test_a_fatal_error_of_another_client_aborts_as_well(kafka, topic, name):
    kafka.create_topic(topic)
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer:
        with pytest.raises(ClosedError, match="consumer"), producer.transaction():
            producer.send(topic, b"never")
            raise ClosedError("of a consumer")
        with producer.transaction():
            producer.send(topic, b"seen")
    assert committed(kafka, topic) == [b"seen"]


@pytest.mark.kafka
def test_calls_out_of_order_are_told(kafka, topic, name):
    kafka.create_topic(topic)
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(UsageError, match="init_transactions"):
                call()
        with pytest.raises(UsageError, match="init_transactions"):
            producer.send(topic, b"x")
        producer.init_transactions()
        with pytest.raises(UsageError, match="begin_transaction"):
            producer.send(topic, b"x")
        producer.begin_transaction()
        with pytest.raises(UsageError, match="open already"):
            producer.begin_transaction()
        producer.abort_transaction()
    with hr.Producer(kafka.bootstrap_servers) as plain, pytest.raises(ConfigError, match=r"transactional\.id"):
        plain.init_transactions()


@pytest.mark.kafka
def test_a_failed_record_makes_the_transaction_abortable(kafka, topic, name):
    kafka.create_topic(topic, config={"max.message.bytes": "2000"})
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a").add_done_callback(lambda _: None)
        producer.flush()
        large = producer.send(topic, b"x" * 5000)
        with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE") as caught:
            producer.commit_transaction()
        assert isinstance(caught.value, Abortable)
        assert isinstance(large.exception(10), MessageTooLargeError)
        with pytest.raises(TransactionAbortableError):
            producer.send(topic, b"more")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"b")
    assert committed(kafka, topic) == [b"b"]


@pytest.mark.kafka
def test_a_second_producer_of_the_same_id_fences_the_first(kafka, topic, name):
    kafka.create_topic(topic)
    first = hr.Producer(kafka.bootstrap_servers, transactional_id=name)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"first").result(10)
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as second:
        second.init_transactions()
        with pytest.raises(ProducerFencedError) as caught:
            first.commit_transaction()
        assert isinstance(caught.value, Fatal)
        with pytest.raises(ProducerFencedError):
            first.begin_transaction()
        with pytest.raises(ProducerFencedError):
            first.send(topic, b"late")
        with second.transaction():
            second.send(topic, b"second")
    first.close()
    assert committed(kafka, topic) == [b"second"]


@pytest.mark.kafka
@pytest.mark.slow
def test_a_transaction_that_takes_too_long_is_aborted_by_the_broker(own_apache_kafka, topic, name):
    own = own_apache_kafka(transaction_abort_timed_out_transaction_cleanup_interval_ms="200")
    kafka = Cluster("apache", own.bootstrap_servers)
    kafka.create_topic(topic)
    producer = hr.Producer(kafka.bootstrap_servers, transactional_id=name, transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"late").result(10)
    time.sleep(3)
    with pytest.raises(KafkaError) as caught:
        producer.commit_transaction()
    assert isinstance(caught.value, (Abortable, Fatal)), caught.value
    producer.close()
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer, producer.transaction():
        producer.send(topic, b"next")
    assert committed(kafka, topic) == [b"next"]


@pytest.mark.kafka
def test_a_transaction_time_out_beyond_the_brokers_is_refused(kafka, name):
    with (
        hr.Producer(kafka.bootstrap_servers, transactional_id=name, transaction_timeout_ms=3_600_000) as producer,
        pytest.raises(KafkaError) as caught,
    ):
        producer.init_transactions()
    assert caught.value.name == "INVALID_TRANSACTION_TIMEOUT"


@pytest.mark.kafka
def test_closing_aborts_what_is_open(kafka, topic, name):
    kafka.create_topic(topic)
    producer = hr.Producer(kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"a").result(10)
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < 10
    # Nothing is left open that a reader would have to wait for.
    assert committed(kafka, topic) == []


@pytest.mark.kafka
def test_a_member_of_a_group_commits_its_offsets_with_its_records(kafka, topic, name):
    kafka.create_topic(topic)
    kafka.create_topic(f"{topic}-out")
    with hr.Producer(kafka.bootstrap_servers) as plain:
        for number in range(10):
            plain.send(topic, b"%d" % number)
    options = {"group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        hr.Consumer(kafka.bootstrap_servers, **options) as consumer,
        hr.Producer(kafka.bootstrap_servers, transactional_id=name) as producer,
    ):
        consumer.subscribe([topic])
        values = []
        while len(values) < 10:
            values += consumer.poll(5)["value"].to_pylist()
        group = consumer.group_metadata()
        assert group.group_id == name
        assert group.generation_id >= 1
        assert group.member_id
        for end, keep in ((4, False), (7, True)):
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                for value in values[:end]:
                    producer.send(f"{topic}-out", value)
                producer.send_offsets_to_transaction({(topic, 0): end}, group)
                if not keep:
                    raise ZeroDivisionError
            assert consumer.committed([(topic, 0)])[(topic, 0)] == (end if keep else None)
        # A member of another generation is refused, and with it the transaction.
        stale = group._replace(generation_id=group.generation_id + 7)
        with pytest.raises(TransactionAbortableError, match="generation"), producer.transaction():
            producer.send(f"{topic}-out", b"stale")
            producer.send_offsets_to_transaction({(topic, 0): 9}, stale)
        assert consumer.committed([(topic, 0)])[(topic, 0)] == 7
    assert committed(kafka, f"{topic}-out") == values[:7]


@pytest.mark.kafka
@pytest.mark.slow
def test_each_input_is_seen_once_however_often_the_client_is_killed(kafka, topic, name):
    partitions = 2
    target = f"{topic}-out"
    kafka.create_topic(topic, partitions)
    kafka.create_topic(target, partitions)
    with hr.Producer(kafka.bootstrap_servers) as plain:
        for number in range(INPUTS):
            plain.send(topic, b"%d" % number, partition=number % partitions)
    program = [sys.executable, "-m", "tests.clients.transformer"]
    program += [kafka.bootstrap_servers, topic, target, name, name, str(partitions)]
    chance = random.Random(7)
    killed = 0
    for _ in range(KILL_ROUNDS):
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            for _ in range(chance.randrange(1, 6)):
                process.stdout.read(1)
            time.sleep(chance.random() * 0.03)
            killed += process.poll() is None
            process.kill()
    assert killed > KILL_ROUNDS // 2
    subprocess.run(program, check=True, timeout=60, stdout=subprocess.DEVNULL)
    seen = committed(kafka, target)
    expected = [b">%d" % number for part in range(partitions) for number in range(part, INPUTS, partitions)]
    assert seen == expected


def test_our_broker_refuses_with_a_typed_error(embedded_broker, name):
    with (
        hr.Producer(embedded_broker.bootstrap_servers, transactional_id=name, max_block_ms=5000) as producer,
        pytest.raises(KafkaError) as caught,
    ):
        producer.init_transactions()
    assert not isinstance(caught.value, KafkaTimeoutError), caught.value
