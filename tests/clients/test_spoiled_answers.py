"""A broker whose answers cannot be read, are another request's, or do not come: what became of a record is told."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time

import pytest

import headrace as hr
from headrace.errors import KafkaTimeoutError, ProtocolError
from tests.broker.test_bad_input import LyingServer
from tests.clients.faces import FACES, opened, outcome
from tests.clients.helpers import committed
from tests.clients.spoiler import (
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    UNREADABLE,
    Spoiler,
)

QUICK = {"request_timeout_ms": 600, "delivery_timeout_ms": 1500, "linger_ms": 0}
SOON = {"request_timeout_ms": 1500, "delivery_timeout_ms": 4000, "linger_ms": 0}
PATIENT = {"request_timeout_ms": 600, "delivery_timeout_ms": 20_000, "linger_ms": 0}


def every(ways):
    """The first way by each face, each other way by one of them in turn: the error is the same, only its road differs.

    Against Apache Kafka each way once: the proxy is the same.
    """
    first, *others = ways
    pairs = [(first, face) for face in FACES] + list(zip(others, itertools.cycle(FACES), strict=False))
    cases = [pytest.param("embedded", way, face, id=f"embedded-{way}-{face}") for way, face in pairs]
    for way, face in zip(ways, itertools.cycle(FACES), strict=False):
        cases.append(pytest.param("apache", way, face, id=f"apache-{way}-{face}", marks=pytest.mark.kafka))
    return pytest.mark.parametrize(("cluster", "way", "face"), cases, indirect=["cluster"])


@pytest.fixture
def spoiler(cluster):
    with Spoiler(cluster.bootstrap_servers) as proxy:
        yield proxy


def values(cluster, topic):
    return hr.read(cluster.bootstrap_servers, topic).read_all().sort_by("offset")["value"].to_pylist()


def check_protocol_error(reported, place="node"):
    """Among results there is the text alone."""
    assert isinstance(reported, (ProtocolError, str)), repr(reported)
    assert place in str(reported), str(reported)


@every([*UNREADABLE, "cut", "silence"])
def test_a_record_whose_acknowledgement_is_lost_is_there_once(cluster, spoiler, topic, way, face):
    cluster.create_topic(topic)

    async def work():
        async with opened(face, spoiler.address, **PATIENT) as producer:
            spoiler.spoil(PRODUCE, way, way)
            for value in (b"a", b"b"):
                assert await outcome(face, producer, topic, value) is None
            assert spoiler.left(PRODUCE) == 0

    asyncio.run(work())
    assert values(cluster, topic) == [b"a", b"b"]


@pytest.mark.slow
@every(["silence"])
def test_a_broker_that_never_acknowledges_is_told_in_time(cluster, spoiler, topic, way, face):
    cluster.create_topic(topic)

    async def work():
        async with opened(face, spoiler.address, **SOON) as producer:
            # The broker is warm then: the time below is for the one that is not acknowledged.
            async with opened(face, spoiler.address, **PATIENT) as other:
                assert await outcome(face, other, topic, b"first") is None
            spoiler.always(PRODUCE, way)
            reported = await outcome(face, producer, topic, b"perhaps")
            assert isinstance(reported, (KafkaTimeoutError, str)), repr(reported)
            assert f"topic '{topic}', partition 0" in str(reported)
            spoiler.always(PRODUCE, None)
            async with opened(face, spoiler.address, **PATIENT) as other:
                assert await outcome(face, other, topic, b"last") is None

    asyncio.run(work())
    found = values(cluster, topic)
    assert found in ([b"first", b"last"], [b"first", b"perhaps", b"last"])


@every([*UNREADABLE, "cut", "silence"])
def test_a_producer_id_that_cannot_be_read_is_asked_for_again(cluster, spoiler, topic, way, face):
    cluster.create_topic(topic)
    spoiler.spoil(INIT_PRODUCER_ID, way, way)

    async def work():
        async with opened(face, spoiler.address, **PATIENT) as producer:
            assert await outcome(face, producer, topic, b"x") is None

    asyncio.run(work())
    assert spoiler.left(INIT_PRODUCER_ID) == 0
    assert values(cluster, topic) == [b"x"]


@pytest.mark.slow
@every(UNREADABLE[:2])
def test_without_a_producer_id_that_can_be_read_a_record_fails_in_time_and_later_ones_do_not(
    cluster, spoiler, topic, way, face
):
    cluster.create_topic(topic)
    spoiler.always(INIT_PRODUCER_ID, way)

    async def work():
        async with opened(face, spoiler.address, **QUICK) as producer:
            reported = await outcome(face, producer, topic, b"never")
            assert isinstance(reported, (KafkaTimeoutError, str)), repr(reported)
            assert topic in str(reported)
            assert "producer id" in str(reported)
            spoiler.always(INIT_PRODUCER_ID, None)
            reported = "not tried"
            deadline = time.monotonic() + 10
            while reported is not None and time.monotonic() < deadline:
                reported = await outcome(face, producer, topic, b"x")
            assert reported is None

    asyncio.run(work())
    # One that was not acknowledged in time may be there as well.
    assert set(values(cluster, topic)) == {b"x"}


@every([*UNREADABLE, "cut"])
def test_metadata_that_cannot_be_read_is_asked_for_again_or_told(cluster, spoiler, topic, way, face):
    cluster.create_topic(topic)
    spoiler.spoil(METADATA, way)

    async def work():
        async with opened(face, spoiler.address, max_block_ms=10_000) as producer:
            deadline = time.monotonic() + 10
            # Told until an answer comes that can be read; the producer asks for it by itself.
            while (reported := await outcome(face, producer, topic, b"x")) is not None:
                check_protocol_error(reported, spoiler.address)
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert spoiler.left(METADATA) == 0
    assert values(cluster, topic) == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\6\0\0\x99\x99\0\0", b""])
def test_a_server_that_does_not_speak_kafka_is_named(answer, face):
    server = LyingServer(answer)

    async def work():
        async with opened(face, server.address, max_block_ms=1500) as producer:
            reported = await outcome(face, producer, "t", b"x")
            assert reported is not None
            assert server.address in str(reported)

    try:
        asyncio.run(work())
        with hr.Producer(server.address, transactional_id="tx") as producer:
            with pytest.raises(hr.KafkaError, match=server.address):
                producer.init_transactions(timeout=1.5)
    finally:
        server.close()


@pytest.mark.kafka
@pytest.mark.parametrize("way", [*UNREADABLE, "cut", "silence"])
@pytest.mark.parametrize("key", [INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN])
def test_a_coordinator_that_cannot_be_read_is_asked_again(kafka, topic, name, way, key):
    kafka.create_topic(topic)
    with (
        Spoiler(kafka.bootstrap_servers) as spoiler,
        hr.Producer(spoiler.address, transactional_id=name, **PATIENT) as producer,
    ):
        spoiler.spoil(key, way, way)
        producer.init_transactions(timeout=20)
        for value, keep in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush()
            if keep:
                producer.commit_transaction(timeout=20)
            else:
                producer.abort_transaction(timeout=20)
    assert committed(kafka, topic) == [b"a", b"c"]


@pytest.mark.kafka
def test_a_coordinator_that_nobody_can_name_is_looked_for_again(kafka, name):
    with (
        Spoiler(kafka.bootstrap_servers) as spoiler,
        hr.Producer(spoiler.address, transactional_id=name, **PATIENT) as producer,
    ):
        spoiler.spoil(FIND_COORDINATOR, "garbage")
        producer.init_transactions(timeout=20)
        assert spoiler.left(FIND_COORDINATOR) == 0


@pytest.mark.kafka
@pytest.mark.parametrize("way", UNREADABLE)
def test_a_record_of_a_transaction_whose_acknowledgement_cannot_be_read_is_there_once(kafka, topic, name, way):
    kafka.create_topic(topic)
    with (
        Spoiler(kafka.bootstrap_servers) as spoiler,
        hr.Producer(spoiler.address, transactional_id=name, **PATIENT) as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            spoiler.spoil(PRODUCE, way)
            producer.send(topic, b"x")
        assert spoiler.left(PRODUCE) == 0
    assert committed(kafka, topic) == [b"x"]


def logged(caplog, logger):
    return [record.getMessage() for record in caplog.records if record.name == logger]


@pytest.mark.kafka
def test_a_coordinator_that_is_silent_leaves_the_end_open(kafka, topic, name):
    kafka.create_topic(topic)
    with (
        Spoiler(kafka.bootstrap_servers) as spoiler,
        hr.Producer(spoiler.address, transactional_id=name, **PATIENT) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(10)
        spoiler.always(END_TXN, "silence")
        with pytest.raises(KafkaTimeoutError, match=name):
            producer.commit_transaction(timeout=1.5)
        with pytest.raises(hr.KafkaError, match="being committed"):
            producer.abort_transaction(timeout=1.5)
        spoiler.always(END_TXN, None)
        producer.commit_transaction(timeout=20)
    assert committed(kafka, topic) == [b"x"]


def test_an_automatic_commit_that_failed_is_a_warning(cluster, spoiler, topic, caplog):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    spoiler.always(OFFSET_COMMIT, "garbage")
    options = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
    with caplog.at_level(logging.WARNING, "headrace.consumer"), hr.Consumer(spoiler.address, **options) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 20
        while not (said := logged(caplog, "headrace.consumer")) and time.monotonic() < deadline:
            consumer.poll(0.2)
        assert "an automatic commit failed" in said[0]
        assert any("OffsetCommit" in line for line in logged(caplog, "headrace.connection"))
        spoiler.always(OFFSET_COMMIT, None)
        # An automatic commit may be under way: after one of ours, and a poll that tells of it, it is over.
        consumer.commit()
        consumer.poll(0.2)
        caplog.clear()
    assert logged(caplog, "headrace.consumer") == []
    with hr.Admin(cluster.bootstrap_servers) as admin:
        assert admin.group_offsets(f"g-{topic}") == {(topic, 0): 1}


def test_a_consumer_that_polls_too_seldom_is_told(cluster, topic, caplog):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    options = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest", "max_poll_interval_ms": 1000}
    with hr.Consumer(cluster.bootstrap_servers, **options) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 20
        while consumer.poll(0.5).num_rows == 0:
            assert time.monotonic() < deadline
        while consumer.assignment() and time.monotonic() < deadline:
            time.sleep(0.1)
        consumer.poll(0.1)
        assert "max.poll.interval.ms" in caplog.messages[0]


LIST_OFFSETS, OFFSET_FETCH, JOIN_GROUP, SYNC_GROUP = 2, 9, 11, 14


@pytest.mark.parametrize("way", [*UNREADABLE, "cut"])
@pytest.mark.parametrize("key", [METADATA, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, OFFSET_FETCH, LIST_OFFSETS])
def test_a_consumer_of_a_group_has_its_rows_whatever_one_answer_was(embedded_broker, topic, way, key):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    with (
        Spoiler(embedded_broker.bootstrap_servers) as spoiler,
        hr.Consumer(spoiler.address, group_id=topic, auto_offset_reset="earliest") as consumer,
    ):
        spoiler.spoil(key, way)
        consumer.subscribe([topic])
        began, rows = time.monotonic(), None
        # A session lasts 45 s, and nobody is to wait for its end.
        while not rows and time.monotonic() - began < 30:
            batch = consumer.poll(1.0)
            rows = batch["value"].to_pylist() if batch is not None else None
        assert rows == [b"x"]
        assert spoiler.left(key) == 0
