"""`deadLetterTopic`: rows that cannot be decoded are in their topic before the query sees the rows around them."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import headrace as hr
from headrace.spark import clients, letters
from headrace.spark.letters import DeadLetterError
from headrace.spark.options import source_options
from headrace.spark.planning import Range, cut
from headrace.spark.source import BatchReader, StreamReader, read_range
from tests.broker.raw import Connection, batch
from tests.kafka.cluster import Cluster
from tests.spark.conftest import produce
from tests.spark.test_clients import all_ended, nothing_kept  # noqa: F401  (a fixture for all of these)
from tests.values.test_avro import framed

pytestmark = pytest.mark.spark
TIMEOUT_SECONDS = 60
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
BAD = b"\xff"
LARGE = BAD + random.Random(1).randbytes(4000)
"""It is as large compressed."""
AT_MS = 1_750_000_000_123


def good(number):
    return framed(0, SCHEMA, {"id": number})[5:]


def avro(cluster, topic, **more):
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "value.format": "avro",
        "value.schema": json.dumps(SCHEMA), "value.on.error": "null", "deadLetterTopic": f"{topic}-dead",
    }  # fmt: skip
    return {name: value for name, value in {**given, **more}.items() if value is not None}


def options(cluster, topic, **more):
    return source_options(avro(cluster, topic, **more), streaming=False)


def ours(embedded_broker):
    return Cluster("embedded", embedded_broker.bootstrap_servers)


def read(cluster, topic, end, partition=0, **more):
    """What one task gives to the query."""
    return pa.Table.from_batches(list(read_range(options(cluster, topic, **more), Range(topic, partition, 0, end))))


def dead(cluster, topic):
    """The letters, by origin: (partition, offset), and all else."""
    rows = hr.read(cluster.bootstrap_servers, f"{topic}-dead", include_headers=True).read_all().to_pylist()
    found = []
    for row in rows:
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        origin = dict(headers[-4:])
        assert origin["__connect.errors.topic"] == topic.encode()
        place = tuple(int(origin[f"__connect.errors.{name}"]) for name in ("partition", "offset"))
        why = origin["__connect.errors.exception.message"].decode()
        found.append((place, row["key"], row["value"], row["timestamp"], headers[:-4], why))
    return sorted(found, key=lambda letter: letter[0])


def places(cluster, topic):
    return [letter[0] for letter in dead(cluster, topic)]


def test_a_bad_row_is_null_in_the_query_and_whole_in_its_letter(cluster, topic):
    cluster.create_topic(topic)
    headers = [("trace", b"\x01"), ("trace", None)]
    rows = [
        {"value": good(7), "key": b"k0"}, {"value": BAD, "key": b"k1", "headers": headers, "timestamp": AT_MS},
        {"value": None, "key": b"k2"}, {"value": b"", "key": None},
    ]  # fmt: skip
    produce(cluster, topic, [{**row, "partition": 0} for row in rows])
    found = read(cluster, topic, 4)
    assert found["value"].to_pylist() == [{"id": 7}, None, None, None]
    assert found.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    first, second = dead(cluster, topic)
    assert first[:3] == ((0, 1), b"k1", BAD)
    assert first[3] == dt.datetime.fromtimestamp(AT_MS / 1000, dt.timezone.utc)
    assert first[4] == headers
    assert first[5].startswith("value: field id: ")
    assert second[:3] == ((0, 3), None, b"")
    assert second[4] == []


@pytest.mark.parametrize("columns", ["offset", "value,offset", "timestampType", "headers,value_error"])
def test_what_the_query_leaves_out_is_in_letters_all_the_same(embedded_broker, topic, columns):
    cluster = ours(embedded_broker)
    produce(cluster, topic, [{"value": value, "key": b"k", "headers": [("a", b"b")]} for value in (good(1), BAD)])
    more = {"includeHeaders": "true", "value.on.error": "column"} if "headers" in columns else {}
    found = read(cluster, topic, 2, columns=columns, **more)
    assert set(found.column_names) == set(columns.split(","))
    if "headers" in columns:
        assert [error is None for error in found["value_error"].to_pylist()] == [True, False]
        assert found["headers"].to_pylist() == [[{"key": "a", "value": b"b"}]] * 2
    [letter] = dead(cluster, topic)
    assert (*letter[:3], letter[4]) == ((0, 1), b"k", BAD, [("a", b"b")])


def test_a_row_whose_key_and_value_are_bad_is_one_letter(embedded_broker, topic):
    cluster = ours(embedded_broker)
    eight, short = (5).to_bytes(8, "big"), b"\x00"
    rows = [(eight, good(1)), (short, good(2)), (eight, BAD), (short, BAD)]
    produce(cluster, topic, [{"key": key, "value": value} for key, value in rows])
    more = {"key.format": "bigint", "key.on.error": "column"}
    found = read(cluster, topic, 4, **more)
    assert found["key"].to_pylist() == [5, None, 5, None]
    assert found["value"].to_pylist() == [{"id": 1}, {"id": 2}, None, None]
    assert [error is None for error in found["key_error"].to_pylist()] == [True, False, True, False]
    assert "value_error" not in found.column_names
    found = [(letter[0][1], letter[1], letter[2]) for letter in dead(cluster, topic)]
    assert found == [(1, short, good(2)), (2, eight, BAD), (3, short, BAD)]
    both = dead(cluster, topic)[2][5]
    assert "key: " in both
    assert "; value: " in both


def test_pieces_of_a_range_send_each_row_once(embedded_broker, topic):
    cluster = ours(embedded_broker)
    produce(cluster, topic, [{"value": BAD if number % 3 else good(number)} for number in range(100)])
    pieces = cut([Range(topic, 0, 0, 100)], 7, 9)
    assert len(pieces) == 12
    for piece in pieces:
        list(read_range(options(cluster, topic), piece))
    assert places(cluster, topic) == [(0, number) for number in range(100) if number % 3]


def test_rows_that_are_all_bad_come_through(embedded_broker, topic):
    cluster = ours(embedded_broker)
    count = 40_000
    with hr.Producer(cluster.bootstrap_servers) as producer:
        rows = pa.table({"value": [b"%d\xff" % number for number in range(count)], "partition": [0] * count})
        producer.send_arrow(topic, rows).result(TIMEOUT_SECONDS)
    found = read(cluster, topic, count)
    assert (found.num_rows, found["value"].null_count) == (count, count)
    there = hr.read(cluster.bootstrap_servers, f"{topic}-dead").read_all()["value"].to_pylist()
    assert sorted(there) == sorted(rows["value"].to_pylist())


def test_a_record_without_a_time_has_a_letter_all_the_same(embedded_broker, topic):
    cluster = ours(embedded_broker)
    cluster.create_topic(topic)
    with Connection(cluster.bootstrap_servers) as connection:
        assert connection.produce(topic, batch([BAD], timestamp=-1)) == 0
    before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    assert read(cluster, topic, 1)["timestamp"][0].as_py() < before
    assert [letter[:3] for letter in dead(cluster, topic) if letter[3] > before] == [((0, 0), None, BAD)]


class Acknowledged(Future):
    """A letter's future that is done once somebody waits for it, or by hand."""

    def result(self, timeout=None):
        if not self.done():
            self.set_result(1)
        return super().result(timeout)


@pytest.fixture
def on_the_way(monkeypatch):
    """The futures of letters that were sent; a producer that never answers by itself stands for the real one."""
    sent = []

    class Silent:
        @staticmethod
        def send_arrow(_topic, _rows):
            sent.append(Acknowledged())
            return sent[-1]

    @contextmanager
    def producer(_settings):
        yield Silent()

    monkeypatch.setattr(clients, "producer", producer)
    return sent


def decoded(*errors):
    count = len(errors)
    columns = {"key": [None] * count, "value_bytes": [BAD] * count, "value": [None] * count, "topic": ["t"] * count}
    columns |= {"partition": [0] * count, "offset": range(count), "value_error": pa.array(errors, pa.string())}
    columns["timestamp"] = pa.array([0] * count, pa.timestamp("us", "UTC"))
    return pa.record_batch(columns)


def test_a_batch_waits_for_its_letters_and_no_more_than_a_few_wait(on_the_way):
    taken = []

    def batches():
        for number in range(20):
            taken.append(number)
            yield decoded("why", None)

    given = source_options(avro(Cluster("none", "127.0.0.1:1"), "t"), streaming=False)
    for number, _ in enumerate(letters.after_letters(given, batches())):
        assert on_the_way[number].done()
        assert len(taken) <= number + 1 + letters.HELD_MAX
    assert (number, len(on_the_way)) == (19, 20)


def test_batches_without_bad_rows_wait_only_for_those_before_them(on_the_way):
    given = source_options(avro(Cluster("none", "127.0.0.1:1"), "t"), streaming=False)
    taken = []

    def batches():
        for errors in ((None,), ("why",), (None,), (None,)):
            taken.append(errors)
            yield decoded(*errors)

    found = letters.after_letters(given, batches())
    next(found)
    assert (len(taken), on_the_way) == (1, [])  # it is not held back
    next(found)
    assert len(taken) == 4
    assert on_the_way[0].done()
    assert len(list(found)) == 2


def test_no_more_rows_than_a_few_become_letters_at_once(on_the_way, monkeypatch):
    seen = []

    def counted(rows):
        seen.append(rows.num_rows)
        return hr.bad_rows(rows)

    monkeypatch.setattr(letters, "bad_rows", counted)
    given = source_options(avro(Cluster("none", "127.0.0.1:1"), "t"), streaming=False)
    list(letters.after_letters(given, [decoded(*["why"] * 2500)]))
    assert seen == [1000, 1000, 500]
    assert len(on_the_way) == 3


def test_a_query_that_stops_half_way_has_the_letters_of_what_it_took(embedded_broker, topic):
    cluster = ours(embedded_broker)
    values = [BAD + bytes(100_000) for _ in range(60)]
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    batches = read_range(options(cluster, topic), Range(topic, 0, 0, len(values)))
    taken = next(batches).num_rows
    assert taken < len(values)
    batches.close()
    assert all_ended()
    found = places(cluster, topic)
    assert set(found) >= {(0, number) for number in range(taken)}
    assert len(found) == len(set(found))


def test_what_the_topic_does_not_take_names_the_option_and_loses_nothing(cluster, topic):
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-dead", config={"max.message.bytes": "1000"})
    produce(cluster, topic, [{"value": LARGE}, {"value": good(1)}])
    with pytest.raises(DeadLetterError, match=rf"deadLetterTopic {topic}-dead: ") as raised:
        read(cluster, topic, 2)
    assert (raised.value.topic, raised.value.name) == (f"{topic}-dead", "MESSAGE_TOO_LARGE")
    assert all_ended("headrace-produc")
    allow(cluster, f"{topic}-dead", 10_000)
    assert read(cluster, topic, 2)["value"].to_pylist() == [None, {"id": 1}]
    assert places(cluster, topic) == [(0, 0)]


def allow(cluster, topic, size):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_SECONDS)


def test_a_letter_larger_than_a_producers_default_is_for_its_topic_to_take(embedded_broker, topic):
    cluster = ours(embedded_broker)
    for name in (topic, f"{topic}-dead"):
        cluster.create_topic(name, config={"max.message.bytes": "10000000"})
    value = BAD + bytes(3_000_000)
    with hr.Producer(cluster.bootstrap_servers, max_request_size=10_000_000) as producer:
        producer.send(topic, value, partition=0)
    read(cluster, topic, 1)
    assert [letter[2] for letter in dead(cluster, topic)] == [value]


@pytest.fixture(scope="module")
def strict():
    """A broker that creates no topics on demand."""
    with hr.Broker.start(auto_create_topics_enable=False) as broker:
        yield Cluster("embedded", broker.bootstrap_servers)


def test_a_missing_topic_ends_the_query_before_any_task(strict, topic, monkeypatch):
    monkeypatch.setattr(letters, "CREATION_MS", 500)
    strict.create_topic(topic)
    missing = rf"deadLetterTopic {topic}-dead: there is no such topic, and the cluster does not create it"
    with pytest.raises(DeadLetterError, match=missing):
        BatchReader(options(strict, topic)).partitions()
    stream = source_options(avro(strict, topic, startingOffsets="earliest"), streaming=True)
    reader = StreamReader(stream)
    with pytest.raises(DeadLetterError, match=missing):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    with pytest.raises(DeadLetterError, match=missing):
        StreamReader(stream).partitions({topic: {"0": 0}}, {topic: {"0": 1}})
    strict.create_topic(f"{topic}-dead")
    assert reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()) == {topic: {"0": 0}}


def test_a_topic_that_goes_missing_fails_the_task_and_names_the_option(strict, topic):
    strict.create_topic(topic)
    produce(strict, topic, [{"value": BAD}])
    with pytest.raises(DeadLetterError, match=rf"deadLetterTopic {topic}-dead: .*metadata of topic '{topic}-dead'"):
        read(strict, topic, 1, **{"kafkaConsumer.pollTimeoutMs": "1000"})


def test_a_cluster_that_creates_topics_creates_it_when_the_query_starts(cluster, topic):
    cluster.create_topic(topic)
    assert BatchReader(options(cluster, topic)).partitions() == []
    with hr.Admin(cluster.bootstrap_servers) as admin:
        assert f"{topic}-dead" in admin.list_topics()
    assert not dead(cluster, topic)
    BatchReader(options(cluster, topic)).partitions()
    assert not dead(cluster, topic)


def test_a_name_that_no_topic_can_have_is_said_by_the_cluster(embedded_broker, topic):
    cluster = ours(embedded_broker)
    cluster.create_topic(topic)
    with pytest.raises(DeadLetterError, match=r"deadLetterTopic a b: .*INVALID_TOPIC"):
        BatchReader(options(cluster, topic, deadLetterTopic="a b")).partitions()


CONSUMERS_ONLY = {
    "kafka.group.id": "g", "kafka.fetch.max.bytes": "1000000", "kafka.check.crcs": "true", "kafka.client.rack": "r",
    "kafka.isolation.level": "read_uncommitted", "kafka.client.id": "mine", "headrace.datapath": "auto",
    "kafka.value.type": "binary_view",
}  # fmt: skip


def test_options_of_consumers_do_not_reach_the_producer(embedded_broker, topic):
    cluster = ours(embedded_broker)
    produce(cluster, topic, [{"value": BAD}])
    given = options(cluster, topic, **CONSUMERS_ONLY)
    assert dict(given.letters) == {
        "bootstrap.servers": cluster.bootstrap_servers, "client.id": "mine", "acks": "all", "compression.type": "zstd",
        "max.block.ms": "120000", "max.request.size": "33554432",
    }  # fmt: skip
    read(cluster, topic, 1, **CONSUMERS_ONLY)
    assert [letter[2] for letter in dead(cluster, topic)] == [BAD]


def load(spark, cluster, topic, **more):
    return spark.read.format("headrace").options(**avro(cluster, topic, **more)).load()


def test_a_batch_query(spark, cluster, topic):
    cluster.create_topic(topic, 2)
    rows = [{"value": good(n) if n % 4 else b"%d" % n + BAD, "key": b"%d" % n, "partition": n % 2} for n in range(200)]
    produce(cluster, topic, rows)
    df = load(spark, cluster, topic, minPartitions="5", maxRecordsPerPartition="33")
    assert df.schema["value"].dataType.simpleString() == "struct<id:bigint>"
    found = df.select("key", "value.id").collect()
    assert sorted((int(row.key), row.id) for row in found if row.id is not None) == [
        (n, n) for n in range(200) if n % 4
    ]
    assert len(found) == 200
    letters = dead(cluster, topic)
    assert [letter[0] for letter in letters] == [(0, n) for n in range(0, 100, 2)]
    assert [(letter[1], letter[2]) for letter in letters] == [(b"%d" % n, b"%d" % n + BAD) for n in range(0, 200, 4)]


def stream(spark, cluster, topic, folder, **more):
    """Reads all that is there as a stream, and gives all ids that were ever read on this checkpoint."""
    given = avro(cluster, topic, startingOffsets="earliest", maxOffsetsPerTrigger="40", **more)
    df = spark.readStream.format("headrace").options(**given).load().selectExpr("offset", "value.id")
    out = str(folder / "out")
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(out)
    assert query.awaitTermination(TIMEOUT_SECONDS)
    return sorted((row.offset, row.id) for row in spark.read.parquet(out).collect())


def test_a_streaming_query(spark, cluster, topic, tmp_path):
    cluster.create_topic(topic)
    values = [good(n) if n % 5 else BAD for n in range(150)]
    wanted = [(n, n if n % 5 else None) for n in range(150)]
    produce(cluster, topic, [{"value": value} for value in values[:100]])
    assert stream(spark, cluster, topic, tmp_path) == wanted[:100]
    assert places(cluster, topic) == [(0, n) for n in range(0, 100, 5)]
    # Another run goes on at the checkpoint, and sends what is new alone.
    produce(cluster, topic, [{"value": value} for value in values[100:]])
    assert stream(spark, cluster, topic, tmp_path) == wanted
    assert places(cluster, topic) == [(0, n) for n in range(0, 150, 5)]


def test_a_stream_that_cannot_send_a_letter_fails_and_has_lost_nothing_when_it_goes_on(spark, cluster, topic, tmp_path):
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-dead", config={"max.message.bytes": "1000"})
    # In the second micro-batch, behind one that is done.
    values = [LARGE if n == 60 else BAD if n % 10 == 0 else good(n) for n in range(100)]
    produce(cluster, topic, [{"value": value} for value in values])
    with pytest.raises(Exception, match=rf"DeadLetterError: deadLetterTopic {topic}-dead: "):
        stream(spark, cluster, topic, tmp_path)
    assert {(0, 0), (0, 10), (0, 20), (0, 30)} <= set(places(cluster, topic))
    assert (0, 60) not in places(cluster, topic)
    allow(cluster, f"{topic}-dead", 10_000)
    assert stream(spark, cluster, topic, tmp_path) == [(n, n if n % 10 else None) for n in range(100)]
    found = Counter(places(cluster, topic))
    assert set(found) == {(0, n) for n in range(0, 100, 10)}
    # What an earlier micro-batch has sent is not sent again.
    assert [found[0, n] for n in (0, 10, 20, 30)] == [1, 1, 1, 1]


def test_a_missing_topic_fails_the_query(spark, strict, topic):
    strict.create_topic(topic)
    produce(strict, topic, [{"value": good(1)}])
    with pytest.raises(Exception, match=rf"DeadLetterError: deadLetterTopic {topic}-dead: there is no such topic"):
        load(spark, strict, topic).collect()
