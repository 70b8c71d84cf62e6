"""Records that cannot be written, by every way to send: a typed error, and the producer goes on."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ClosedError,
    InvalidTopicExceptionError,
    KafkaTimeoutError,
    MessageTooLargeError,
    SchemaError,
    UsageError,
)
from tests.clients.faces import FACES, opened, outcome
from tests.clients.helpers import committed

LIMITED = {"max_request_size": 10_000}
POOL = {"buffer_memory": 70_000, "batch_size": 16_384}

BAD: dict[str, tuple[dict[str, Any], dict[str, Any], Any, str]] = {
    "too-large": (LIMITED, {"value": b"x" * 20_000}, MessageTooLargeError, r"{topic}.*max\.request\.size = 10000"),
    "pool-smaller-than-the-record": (
        POOL,
        {"value": b"x" * 100_000},
        MessageTooLargeError,
        r"{topic}.*buffer\.memory = 70000",
    ),
    "pool-reserved-in-full": (
        {**POOL, "buffer_memory_allocation_strategy": "full"},
        {"value": b"x" * 100_000},
        MessageTooLargeError,
        r"{topic}.*buffer\.memory = 70000",
    ),
    "no-such-partition": ({}, {"value": b"x", "partition": 2}, UsageError, "{topic}' has no partition 2: it has 2"),
    "negative-partition": ({}, {"value": b"x", "partition": -1}, (UsageError, SchemaError), "partition"),
    "name-of-no-topic": ({}, {"value": b"x", "topic": "no topic"}, InvalidTopicExceptionError, "'no topic'"),
}


def values(servers, topic):
    return hr.read(servers, topic).read_all()["value"].to_pylist()


@pytest.fixture
def servers(embedded_broker):
    """For what never leaves the client."""
    return embedded_broker.bootstrap_servers


def assert_nothing_went_out(servers, topic):
    with hr.Admin(servers) as admin:
        assert topic not in admin.list_topics() or values(servers, topic) == []


def check(reported, kind, message):
    """Among results there is the text alone."""
    assert isinstance(reported, (str, *(kind if isinstance(kind, tuple) else (kind,)))), repr(reported)
    assert re.search(message, str(reported)), str(reported)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("bad", BAD)
def test_a_record_that_cannot_be_sent_is_told_and_the_next_goes_out(cluster, topic, bad, face):
    cluster.create_topic(topic, 2)
    options, record, kind, message = BAD[bad]

    async def work():
        async with opened(face, cluster.bootstrap_servers, **options) as producer:
            for _ in range(2):
                reported = await outcome(face, producer, **{"topic": topic, **record})
                check(reported, kind, message.format(topic=topic))
            assert await outcome(face, producer, topic, b"fine", 1) is None
            metrics = producer.metrics()
            assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]

    asyncio.run(work())
    assert values(cluster.bootstrap_servers, topic) == [b"fine"]


@pytest.mark.parametrize("face", FACES)
def test_a_topic_that_is_not_there_is_told_in_time(strict, topic, face):
    strict.create_topic(f"{topic}-there")

    async def work():
        async with opened(face, strict.bootstrap_servers, max_block_ms=1000, delivery_timeout_ms=31_000) as producer:
            reported = await outcome(face, producer, topic, b"x")
            check(reported, KafkaTimeoutError, f"'{topic}'.*UNKNOWN_TOPIC_OR_PARTITION")
            assert await outcome(face, producer, f"{topic}-there", b"fine") is None
            # It is not given up for good.
            strict.create_topic(topic)
            assert await outcome(face, producer, topic, b"late") is None

    asyncio.run(work())
    assert values(strict.bootstrap_servers, topic) == [b"late"]


WRONG_COLUMNS = {
    "no-value": ({"key": [b"x"]}, r'no column "value"; it has key'),
    "unknown": ({"value": [b"x"], "keys": [b"k"]}, r"unknown column \"keys\""),
    "value-type": ({"value": [1]}, r"value.*Int64"),
    "key-type": ({"value": [b"x"], "key": [1.5]}, r"key.*Float64"),
    "partition-type": ({"value": [b"x"], "partition": ["0"]}, r"partition.*Utf8"),
    "timestamp-type": ({"value": [b"x"], "timestamp": ["now"]}, r"timestamp.*Utf8"),
    "headers-type": ({"value": [b"x"], "headers": [b"h"]}, r"headers.*Binary"),
    "topic-type": ({"value": [b"x"], "topic": [7]}, r"topic.*Int64"),
    "old-timestamp": ({"value": [b"x"], "timestamp": [-1]}, r"timestamp.*row 0"),
    "null-header-key": (
        {"value": [b"x"], "headers": pa.array([[{"key": None, "value": b"v"}]])},
        r"headers.*row 0.*header key is null",
    ),
    "null-header": (
        {
            "value": [b"x"],
            "headers": pa.array([[None]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        },
        r"headers.*row 0.*header key is null",
    ),
}


@pytest.mark.parametrize("results", [False, True])
@pytest.mark.parametrize("wrong", WRONG_COLUMNS)
def test_columns_that_cannot_be_sent_are_an_error_at_once(servers, topic, wrong, results):
    columns, message = WRONG_COLUMNS[wrong]
    with hr.Producer(servers) as producer:
        with pytest.raises(SchemaError, match=message):
            producer.send_arrow(topic, pa.table(columns), results=results)

    async def work():
        async with hr.aio.Producer(servers) as producer:
            with pytest.raises(SchemaError, match=message):
                await producer.send_arrow(topic, pa.table(columns), results=results)

    asyncio.run(work())
    assert_nothing_went_out(servers, topic)


@pytest.mark.parametrize("topics", [[None], ["", None], None])
def test_a_row_without_a_topic_is_named(servers, topics):
    columns = {"value": [b"x"] * len(topics or [0])}
    if topics is not None:
        columns["topic"] = pa.array([None] * len(topics), pa.string())
    with hr.Producer(servers) as producer:
        with pytest.raises(UsageError, match="row 0 names no topic"):
            producer.send_arrow(None, pa.table(columns))
        errors = producer.send_arrow(None, pa.table(columns), results=True).result(10)["error"].to_pylist()
    assert all(f"row {row} names no topic" in error for row, error in enumerate(errors))

    async def work():
        async with hr.aio.Producer(servers) as producer:
            with pytest.raises(UsageError, match="row 0 names no topic"):
                await producer.send_arrow(None, pa.table(columns))

    asyncio.run(work())


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"topic": None}, TypeError),
        ({"topic": b"t"}, TypeError),
        ({"value": 7}, TypeError),
        ({"key": "k"}, TypeError),
        ({"partition": "0"}, TypeError),
        ({"partition": 2**40}, OverflowError),
        ({"timestamp": "now"}, TypeError),
        ({"timestamp": 2**70}, OverflowError),
        ({"timestamp": -1}, UsageError),
        ({"headers": {None: b"v"}}, TypeError),
        ({"headers": {"h": 7}}, TypeError),
        ({"headers": [("h",)]}, (TypeError, ValueError)),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(servers, topic, arguments, kind):
    record = {"topic": topic, "value": b"x", **arguments}
    with hr.Producer(servers) as producer:
        with pytest.raises(kind):
            producer.send(**record)

    async def work():
        async with hr.aio.Producer(servers) as producer:
            with pytest.raises(kind):
                await producer.send(**record)

    asyncio.run(work())
    assert_nothing_went_out(servers, topic)


@pytest.mark.kafka
@pytest.mark.parametrize("face", ["send", "send_arrow", "results"])
def test_a_call_that_raises_leaves_the_transaction_as_it_was(kafka, topic, name, face):
    """Nothing of the refused record is in it; the caller, who was told, decides how it ends."""
    kafka.create_topic(topic)

    async def work():
        async with opened(face, kafka.bootstrap_servers, transactional_id=name, **LIMITED) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            assert await outcome(face, producer, topic, b"a") is None
            check(await outcome(face, producer, topic, b"x" * 20_000), MessageTooLargeError, r"max\.request\.size")
            check(await outcome(face, producer, topic, b"x", 9), UsageError, "no partition 9")
            assert await outcome(face, producer, topic, b"b") is None
            producer.commit_transaction()
            with pytest.raises(MessageTooLargeError), producer.transaction():
                assert await outcome(face, producer, topic, b"c") is None
                producer.send(topic, b"x" * 20_000)

    asyncio.run(work())
    assert committed(kafka, topic) == [b"a", b"b"]


@pytest.mark.kafka
def test_a_fenced_producer_says_so_on_every_call(kafka, topic, name):
    kafka.create_topic(topic)
    group = hr.GroupMetadata("g", -1, "", None)
    old = hr.Producer(kafka.bootstrap_servers, transactional_id=name)
    old.init_transactions()
    old.begin_transaction()
    rows = pa.table({"value": [b"old"]})
    sent = old.send_arrow(topic, rows)
    assert sent.result(10) == 1
    with hr.Producer(kafka.bootstrap_servers, transactional_id=name) as new:
        new.init_transactions()
        with pytest.raises(hr.errors.ProducerFencedError):
            old.commit_transaction()
        for call in (
            lambda: old.send(topic, b"old"),
            lambda: old.send_arrow(topic, rows),
            old.begin_transaction,
            old.commit_transaction,
            old.abort_transaction,
            old.init_transactions,
            lambda: old.send_offsets_to_transaction({(topic, 0): 1}, group),
        ):
            with pytest.raises(hr.errors.ProducerFencedError) as caught:
                call()
            assert isinstance(caught.value, hr.errors.Fatal)
        (row,) = old.send_arrow(topic, rows, results=True).result(10).to_pylist()
        assert "PRODUCER_FENCED" in row["error"]
        with new.transaction():
            new.send(topic, b"new")
    old.close()
    assert committed(kafka, topic) == [b"new"]


def test_the_asyncio_face_says_that_it_has_no_transactions():
    for options in ({"transactional_id": "x"}, {"config": {"transactional.id": "x"}}):
        with pytest.raises(hr.errors.ConfigError, match=r"transactional\.id.*headrace\.Producer"):
            hr.aio.Producer("127.0.0.1:1", **options)


@pytest.mark.parametrize("results", [False, True])
def test_closing_ends_rows_that_wait_for_memory(topic, results):
    """What was queued has its outcome in the future, what was not in the call."""
    with hr.Broker.start() as broker:
        producer = hr.Producer(broker.bootstrap_servers, **POOL)
        producer.send(topic, b"first").result(10)
    rows = pa.table({"value": [b"x" * 5000] * 100})
    reported = []

    def work():
        try:
            reported.append(producer.send_arrow(topic, rows, results=results))
        except hr.KafkaError as error:
            reported.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 10
    while producer.metrics()["waiting-threads"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(hr.KafkaError):
        producer.close(timeout=0.2)
    thread.join(10)
    assert not thread.is_alive()
    (ended,) = reported
    if results and not isinstance(ended, ClosedError):
        assert ended.result(10)["error"].null_count == 0
    else:
        assert isinstance(ended, ClosedError), ended
