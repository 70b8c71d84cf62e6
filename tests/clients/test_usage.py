"""What callers get wrong is said at once, by the name of the argument."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ConfigError, OffsetOutOfRangeError, SchemaError, UsageError
from tests.clients.helpers import bounded


def test_a_poll_of_nothing_is_an_error(embedded_broker, topic):
    with hr.Consumer(embedded_broker.bootstrap_servers, group_id=topic) as consumer:
        for poll in (consumer.poll, consumer.poll_all):
            with pytest.raises(UsageError, match="call subscribe or assign"):
                poll(0)
        with hr.Producer(embedded_broker.bootstrap_servers) as producer:
            producer.send(topic, b"x", partition=0).result(20)
        consumer.assign([(topic, 0)])
        consumer.poll(0)
        consumer.assign([])
        with pytest.raises(UsageError):
            consumer.poll(0)
        consumer.subscribe([topic])
        consumer.poll(0)
        consumer.unsubscribe()
        with pytest.raises(UsageError):
            consumer.poll(0)
    with pytest.raises(UsageError, match="call subscribe"):
        hr.ShareConsumer(embedded_broker.bootstrap_servers, group_id=topic).poll(0)


def test_a_forgotten_await_is_no_empty_topic(embedded_broker, topic):
    async def work():
        async with hr.aio.Consumer(embedded_broker.bootstrap_servers, group_id=topic) as consumer:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                consumer.subscribe([topic])  # type: ignore[unused-coroutine]
                consumer.assign([(topic, 0)])  # type: ignore[unused-coroutine]
            for poll in (consumer.poll, consumer.poll_all):
                with pytest.raises(UsageError, match="await"):
                    await poll(0)
            await consumer.subscribe([topic])
            await consumer.poll(0)
            await consumer.unsubscribe()
            with pytest.raises(UsageError, match="await"):
                await consumer.poll(0)
        async with hr.aio.ShareConsumer(embedded_broker.bootstrap_servers, group_id=topic) as consumer:
            with pytest.raises(UsageError, match="call subscribe"):
                await consumer.poll(0)

    bounded(work())


def test_an_end_behind_the_log_is_named_at_once(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Producer(servers) as producer:
        producer.send(topic, b"x", partition=0).result(20)
    for end in (300_000, {0: 2}):
        with pytest.raises(OffsetOutOfRangeError, match=r"end is \d+, and the log ends at 1") as caught:
            hr.read(servers, topic, end=end)
        assert (caught.value.topic, caught.value.partition) == (topic, 0)
    with pytest.raises(OffsetOutOfRangeError, match="start is 5, and the log ends at 1"):
        hr.read(servers, topic, start=5, end=7)
    assert hr.read(servers, topic, start=5, end=1).read_all().num_rows == 0
    assert hr.read(servers, topic, end=1).read_all().num_rows == 1
    with pytest.raises(ValueError, match="end as a mapping takes offsets by partition"):
        hr.read(servers, topic, end={"0": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="start takes 'earliest'"):
        hr.read(servers, topic, start=["earliest"])


def test_headers_are_a_mapping_or_pairs_of_bytes_or_texts(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Producer(servers) as producer:
        for headers in ({"a": "b"}, [("a", b"b")], (["a", bytearray(b"b")],), {"a": None}, {}, []):
            producer.send(topic, b"x", partition=0, headers=headers)
        wrong: list[tuple[Any, str]] = [
            ({"a": 1}, "header 'a' takes bytes, a str .* not int"),
            ({1: b"b"}, "name of a header is a str, not int"),
            ([("a",)], "pairs of name and value; one is tuple"),
            (["ab"], "pairs of name and value; one is str"),
            ("ab", "headers takes a mapping or pairs"),
            (5, "headers takes a mapping or pairs .* not int"),
        ]
        for bad, message in wrong:
            with pytest.raises(TypeError, match=message):
                producer.send(topic, b"x", headers=bad)
        for timestamp in ("now", 1.5, True):
            with pytest.raises(TypeError, match="timestamp takes whole milliseconds"):
                producer.send(topic, b"x", timestamp=timestamp)
    table = hr.read(servers, topic, include_headers=True).read_all()
    assert [
        [tuple(each.values()) for each in found] for found in (row or [] for row in table["headers"].to_pylist())
    ] == [
        [("a", b"b")],
        [("a", b"b")],
        [("a", b"b")],
        [("a", None)],
        [],
        [],
    ]


def test_the_index_of_pandas_is_left_out(embedded_broker, topic):
    table = pa.table({"value": ["a", "b"], "__index_level_0__": [3, 7], "offset": [9, 8], "timestampType": [0, 0]})
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        assert producer.send_arrow(topic, table).result(20) == 2
        with pytest.raises(SchemaError, match='unknown column "index"'):
            producer.send_arrow(topic, pa.table({"value": ["a"], "index": [1]}))


def test_names_of_others_and_slips_are_answered(topic):
    for name, message in [
        ("queue.buffering.max.ms", r"use linger\.ms"),
        ("message.timeout.ms", r"use delivery\.timeout\.ms"),
        ("sasl.passwrd", r"did you mean 'sasl\.password'"),
        ("socket.timeout.ms", r"use request\.timeout\.ms"),
        ("dr_msg_cb", "send gives a future"),
    ]:
        with pytest.raises(ConfigError, match=message):
            hr.Producer("127.0.0.1:1", {name: 1})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"port": 99999}, "port takes a whole number from 0 .* to 65535, not 99999"),
        ({"port": -1}, "port .* not -1"),
        ({"port": "9092"}, "port .* not '9092'"),
        ({"port": True}, "port .* not True"),
        ({"host": 7}, "host takes a name or an address, not 7"),
        ({"host": ""}, "host .* not ''"),
        ({"data_dir": 7}, "data_dir takes the path of a folder, not int"),
    ],
    ids=str,
)
def test_a_broker_names_the_argument_that_cannot_be(arguments: dict[str, Any], named):
    with pytest.raises(ConfigError, match=named):
        hr.Broker.start(**arguments)


def test_who_has_no_formats_does_not_wait_for_them():
    code = "import sys, headrace as hr; hr.Producer, hr.Consumer, hr.ShareConsumer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "headrace.consumer" in done.stdout.split()
    assert "headrace.values" not in done.stdout.split()
