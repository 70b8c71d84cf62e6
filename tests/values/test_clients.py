"""Keys and values as columns: what each client makes of its formats, and of rows that are not of them."""

from __future__ import annotations

import asyncio
import copy
import pickle
import struct

import confluent_kafka
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.serialization import DoubleSerializer, IntegerSerializer, StringSerializer

import headrace as hr
from headrace.errors import ConfigError, DecodeError, SchemaError, SchemaRegistryUnavailableError
from tests.clients.sharing import begins_at_the_beginning, joined, rows_of
from tests.values.test_avro import framed

SCHEMA = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "city", "type": ["null", "string"], "default": None},
]}  # fmt: skip
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
TIMEOUT = 20


def orders(on_error="raise", **options):
    return hr.Avro(SCHEMA, schemas={1: OLD, 2: SCHEMA}, on_error=on_error, **options)


def value(number):
    if number % 2:
        return framed(1, OLD, {"id": number})
    return framed(2, SCHEMA, {"id": number, "city": f"c{number}"})


def expected(number):
    return {"id": number, "city": None if number % 2 else f"c{number}"}


def fill(servers, topic, bad=(), count=10):
    """Orders in one partition, with some that end early, and a tombstone behind them."""
    with hr.Producer(servers) as producer:
        for number in range(count):
            row = value(number)[:-1] if number in bad else value(number)
            producer.send(topic, row, key=struct.pack(">i", number), partition=0, headers={"n": b"%d" % number})
        producer.send(topic, None, key=struct.pack(">i", count), partition=0).result(TIMEOUT)


@pytest.fixture
def filled(cluster, topic):
    cluster.create_topic(topic, 1)
    fill(cluster.bootstrap_servers, topic)
    return topic


@pytest.fixture
def spoilt(embedded_broker, topic):
    """Orders 3 and 7 are bad."""
    with hr.Admin(embedded_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    fill(embedded_broker.bootstrap_servers, topic, {3, 7})
    return topic


def consumer_of(servers, topic, **options):
    consumer = hr.Consumer(servers, auto_offset_reset="earliest", **options)
    consumer.assign([(topic, 0)])
    return consumer


def polled(consumer, count):
    """So many rows of polls, and whatever they raise after these."""
    batches = []
    while sum(batch.num_rows for batch in batches) < count:
        batch = consumer.poll(TIMEOUT)
        assert batch.num_rows
        batches.append(batch)
    return pa.Table.from_batches(batches)


def test_read_gives_keys_and_values_as_columns(cluster, filled):
    read = hr.read(cluster.bootstrap_servers, filled, key=hr.Text(pa.int32()), value=orders())
    assert (read.schema.field("key").type, read.schema.field("value").type) == (pa.int32(), TYPE)
    table = read.read_all()
    assert table.schema == read.schema
    assert table["value"].to_pylist() == [*map(expected, range(10)), None]
    assert table["key"].to_pylist() == table["offset"].to_pylist() == list(range(11))
    stream = hr.read(cluster.bootstrap_servers, filled, value=orders(columns=["city"]))
    assert pa.table(stream)["value"].to_pylist()[:3] == [{"city": "c0"}, {"city": None}, {"city": "c2"}]


def test_a_consumer_gives_them_in_each_of_its_ways(cluster, filled):
    with consumer_of(cluster.bootstrap_servers, filled, value=orders(), key=hr.Text(pa.int32())) as consumer:
        assert consumer.poll(0).schema == consumer.schema
        consumer.seek_to_beginning()
        table = polled(consumer, 11)
        assert table.schema == consumer.schema
        assert table["value"].to_pylist() == [*map(expected, range(10)), None]
        consumer.seek_to_beginning()
        batches = []
        while sum(batch.num_rows for batch in batches) < 11:
            batches += consumer.poll_all(TIMEOUT)
        assert pa.Table.from_batches(batches) == table
        consumer.seek_to_beginning()
        assert pa.table(consumer)["value"].to_pylist() == table["value"].to_pylist()


def test_an_aio_consumer_gives_them(cluster, filled):
    async def work():
        options = {"auto_offset_reset": "earliest", "value": orders(), "key": hr.Text(pa.int32())}
        async with hr.aio.Consumer(cluster.bootstrap_servers, **options) as consumer:
            await consumer.assign([(filled, 0)])
            batches = []
            while sum(batch.num_rows for batch in batches) < 11:
                batches.append(await consumer.poll(TIMEOUT))
            consumer.seek_to_beginning()
            again = []
            while sum(batch.num_rows for batch in again) < 11:
                again += await consumer.poll_all(TIMEOUT)
            assert batches[0].schema == consumer.schema
            return pa.Table.from_batches(batches), pa.Table.from_batches(again)

    table, again = asyncio.run(work())
    assert table["value"].to_pylist() == [*map(expected, range(10)), None]
    assert again == table


def test_a_bad_row_is_raised_when_its_turn_has_come_and_costs_no_other(embedded_broker, spoilt):
    servers = embedded_broker.bootstrap_servers
    with consumer_of(servers, spoilt, value=orders()) as consumer:
        assert polled(consumer, 3)["offset"].to_pylist() == [0, 1, 2]
        for _ in range(2):  # it stands there until somebody passes it
            with pytest.raises(DecodeError, match=f"{spoilt}-0, offset 3: value, field id: the bytes end") as caught:
                consumer.poll(TIMEOUT)
            error = caught.value
            assert (error.topic, error.partition, error.offset, error.field) == (spoilt, 0, 3, "id")
            assert consumer.position((spoilt, 0)) == 3
        consumer.seek((spoilt, 0), 4)
        assert [batch["offset"].to_pylist() for batch in consumer.poll_all(TIMEOUT)] == [[4, 5, 6]]
        with pytest.raises(DecodeError):
            consumer.poll_all(TIMEOUT)
        consumer.seek((spoilt, 0), 8)
        assert polled(consumer, 3)["value"].to_pylist() == [expected(8), expected(9), None]


def test_a_group_commits_up_to_a_bad_row_and_not_past_it(embedded_broker, spoilt):
    servers = embedded_broker.bootstrap_servers
    options = {"group_id": f"g-{spoilt}", "auto_offset_reset": "earliest"}
    with hr.Consumer(servers, value=orders(), **options) as consumer:
        consumer.subscribe([spoilt])
        rows = []
        with pytest.raises(DecodeError):
            for _ in range(100):
                rows += consumer.poll(1)["offset"].to_pylist()
        assert rows == [0, 1, 2]
    with hr.Consumer(servers, **options) as other:
        assert other.committed([(spoilt, 0)])[spoilt, 0] == 3


def test_an_aio_consumer_raises_a_bad_row_in_its_turn(embedded_broker, spoilt):
    async def work():
        async with hr.aio.Consumer(
            embedded_broker.bootstrap_servers, auto_offset_reset="earliest", value=orders()
        ) as consumer:
            await consumer.assign([(spoilt, 0)])
            first = await consumer.poll(TIMEOUT)
            with pytest.raises(DecodeError, match="offset 3"):
                await consumer.poll(TIMEOUT)
            consumer.seek((spoilt, 0), 4)
            return first, await consumer.poll(TIMEOUT)

    first, second = asyncio.run(work())
    assert first["offset"].to_pylist() == [0, 1, 2]
    assert second["offset"].to_pylist() == [4, 5, 6]


def test_a_read_gives_what_stands_before_a_bad_row(embedded_broker, spoilt):
    found = []
    with pytest.raises(DecodeError, match="offset 3"):
        found.extend(
            batch["offset"].to_pylist() for batch in hr.read(embedded_broker.bootstrap_servers, spoilt, value=orders())
        )
    assert found == [[0, 1, 2]]


def test_a_bad_row_can_be_null(embedded_broker, spoilt):
    table = hr.read(embedded_broker.bootstrap_servers, spoilt, value=orders("null")).read_all()
    assert table["value"].to_pylist() == [None if n in {3, 7, 10} else expected(n) for n in range(11)]
    assert table["offset"].to_pylist() == list(range(11))


def test_bad_rows_go_to_a_dead_letter_topic_as_they_were(embedded_broker, spoilt):
    servers = embedded_broker.bootstrap_servers
    with consumer_of(
        servers, spoilt, value=orders("column"), key=hr.Text(pa.int32()), include_headers=True
    ) as consumer:
        table = polled(consumer, 11)
        assert table.schema == consumer.schema
        assert table.schema.names[-4:] == ["key_bytes", "value_error", "value_schema_id", "value_bytes"]
    assert table["value"].to_pylist() == [None if n in {3, 7, 10} else expected(n) for n in range(11)]
    assert table["value_schema_id"].to_pylist() == [2, 1] * 5 + [None]
    why = "field id: the bytes end within a value"
    assert table["value_error"].to_pylist() == [why if n in {3, 7} else None for n in range(11)]
    bad = hr.bad_rows(table)
    assert bad.num_rows == 2
    assert hr.bad_rows(table.to_batches()[0]).schema == bad.schema
    with hr.Producer(servers) as producer:
        producer.send_arrow(f"{spoilt}-dead", bad).result(TIMEOUT)
    dead = hr.read(servers, f"{spoilt}-dead", include_headers=True).read_all()
    assert dead["key"].to_pylist() == [struct.pack(">i", 3), struct.pack(">i", 7)]
    assert dead["value"].to_pylist() == [value(3)[:-1], value(7)[:-1]]
    assert (
        dead["timestamp"].to_pylist()
        == table.filter(pa.compute.is_valid(table["value_error"]))["timestamp"].to_pylist()
    )
    headers = {header["key"]: header["value"] for header in dead["headers"].to_pylist()[0]}
    assert headers == {
        "n": b"3",
        "__connect.errors.topic": spoilt.encode(),
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"3",
        "__connect.errors.exception.message": f"value: {why}".encode(),
    }


@pytest.mark.parametrize("value_type", ["binary", "binary_view"])
def test_bad_keys_are_reported_as_values_are(embedded_broker, topic, value_type):
    servers = embedded_broker.bootstrap_servers
    with hr.Producer(servers) as producer:
        producer.send(topic, b"a", key=b"\x00\x01")
        producer.send(topic, b"\xff", key=b"\x00").result(TIMEOUT)
    formats = {"key": hr.Text(pa.int16(), on_error="column"), "value": hr.Text(on_error="column")}
    table = hr.read(servers, topic, value_type=value_type, **formats).read_all()
    assert table["key"].to_pylist() == [1, None]
    assert table["value"].to_pylist() == ["a", None]
    (row,) = hr.bad_rows(table).to_pylist()
    assert (row["key"], row["value"]) == (b"\x00", b"\xff")
    assert row["headers"][-1]["value"] == b"key: a value of 2 bytes has 1; value: a string is not valid UTF-8"
    assert hr.bad_rows(table.slice(0, 1)).num_rows == 0
    with pytest.raises(ValueError, match="on_error='column'"):
        hr.bad_rows(hr.read(servers, topic).read_all())


@pytest.mark.kafka
def test_a_share_consumer_rejects_bad_rows_and_has_the_others(apache_kafka, topic):
    servers = apache_kafka.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 1)
        group = begins_at_the_beginning(admin, f"s-{topic}")
    fill(servers, topic, {3, 7})
    options = {"share_acknowledgement_mode": "explicit", "value": orders("column")}

    def judge(batch):
        share.acknowledge(batch, batch["value_error"].is_null(), otherwise="reject")

    with joined(servers, group, topic, **options) as share:
        table = rows_of(share, 11, judge)
        assert table.schema == share.schema
        results = share.commit()
        assert all(error is None for error in results.values())
    assert table["value"].to_pylist() == [None if n in {3, 7, 10} else expected(n) for n in range(11)]
    assert table["delivery_count"].to_pylist() == [1] * 11

    async def work():
        async with hr.aio.ShareConsumer(servers, group_id=f"{group}-2", value=orders("null")) as other:
            return other.schema.field("value").type

    assert asyncio.run(work()) == TYPE
    for kind in (hr.ShareConsumer, hr.aio.ShareConsumer):
        with pytest.raises(ConfigError, match="share consumer takes 'null' or 'column'"):
            kind(servers, group_id=group, value=orders())


def test_formats_that_are_none_are_said(embedded_broker):
    servers = embedded_broker.bootstrap_servers
    with pytest.raises(ConfigError, match="value takes a format, such as headrace"):
        hr.Consumer(servers, value="avro")
    with pytest.raises(ConfigError, match="key takes a format"):
        hr.read(servers, "t", key=SCHEMA)
    with pytest.raises(SchemaError, match="no serializer of Kafka writes list"):
        hr.Text(pa.list_(pa.int8()))
    with pytest.raises(ValueError, match="'raise', 'null' or 'column'"):
        hr.Text(on_error="stop")
    with pytest.raises(ValueError, match="adds columns to a client's batch"):
        hr.decode(pa.array([b"a"]), hr.Text(on_error="column"))


@pytest.mark.parametrize(
    ("type", "serializer", "values"),
    [
        (pa.string(), lambda text: text.encode(), ["a", "ü", ""]),
        (pa.int32(), lambda number: struct.pack(">i", number), [0, -1, 2**31 - 1]),
        (pa.int64(), lambda number: struct.pack(">q", number), [0, -(2**63)]),
        (pa.float32(), lambda number: struct.pack(">f", number), [0.5, -2.0]),
        (pa.float64(), lambda number: struct.pack(">d", number), [0.1, float("inf")]),
        (pa.bool_(), lambda flag: b"\x01" if flag else b"\x00", [True, False]),
    ],
    ids=["string", "int32", "int64", "float", "double", "bool"],
)
def test_texts_and_numbers_of_kafkas_serializers(type, serializer, values):  # noqa: A002
    column = hr.decode(pa.array([*map(serializer, values), None], pa.binary()), hr.Text(type))
    assert column.type == type
    assert column.to_pylist() == [*values, None]


def test_confluents_serializers_of_numbers_and_texts(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(5):
        producer.produce(topic, DoubleSerializer()(number / 4), IntegerSerializer()(number))
    producer.produce(topic, DoubleSerializer()(9.0), IntegerSerializer()(9))
    assert producer.flush(TIMEOUT) == 0
    table = hr.read(servers, topic, key=hr.Text(pa.int32()), value=hr.Text(pa.float64())).read_all()
    assert sorted(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == [
        *((number, number / 4) for number in range(5)),
        (9, 9.0),
    ]
    assert StringSerializer()("ü") == "ü".encode()


def test_the_next_poll_raises_whatever_other_partitions_have(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 2)
    with hr.Producer(servers) as producer:
        for number in range(20):
            producer.send(topic, value(number), partition=0)
        producer.send(topic, b"bad", partition=1).result(TIMEOUT)
        producer.flush()
    with hr.Consumer(servers, auto_offset_reset="earliest", value=orders()) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        for _ in range(2):
            consumer.seek_to_beginning()
            # Of which partition records come first, nobody says.
            with pytest.raises(DecodeError, match=f"{topic}-1, offset 0"):
                for _ in range(21):
                    assert all(batch["partition"][0].as_py() == 0 for batch in consumer.poll_all(TIMEOUT))
        # Who moves on hears no more of it.
        consumer.seek((topic, 0), 0)
        consumer.seek((topic, 1), 1)
        assert polled(consumer, 20)["offset"].to_pylist() == list(range(20))


def test_a_block_that_ends_by_the_error_commits_what_earlier_polls_gave(embedded_broker, spoilt):
    servers = embedded_broker.bootstrap_servers
    options = {"group_id": f"g-{spoilt}", "auto_offset_reset": "earliest"}
    with pytest.raises(DecodeError), hr.Consumer(servers, value=orders(), max_poll_records=2, **options) as consumer:
        consumer.subscribe([spoilt])
        for _ in range(100):
            consumer.poll(1)
    with hr.Consumer(servers, **options) as other:
        assert other.committed([(spoilt, 0)])[spoilt, 0] == 3


class Interrupted(hr.Text):
    """As when the user presses a key while it decodes."""

    interrupts = True

    def column(self, rows, headers=None):
        if self.interrupts and len(rows):
            raise KeyboardInterrupt
        return super().column(rows, headers)


def test_rows_come_again_whatever_stops_their_decoding(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Producer(servers) as producer:
        producer.send(topic, b"a").result(TIMEOUT)
    text = Interrupted()
    with hr.Consumer(servers, auto_offset_reset="earliest", value=text) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(TIMEOUT)
        assert consumer.position((topic, 0)) == 0
        text.interrupts = False
        assert consumer.poll(TIMEOUT)["value"].to_pylist() == ["a"]


def test_rows_that_are_too_many_for_one_call_come_in_parts(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    wide = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "wide", "type": "string", "default": "x" * (1 << 20)}]}
    avro = hr.Avro(wide, schemas={1: OLD}, columns=["id", "wide"])
    rows = [framed(1, OLD, {"id": number}) for number in range(300)]
    with hr.Producer(servers) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(rows, pa.binary())})).result(TIMEOUT)
    counts = [batch.num_rows for batch in hr.read(servers, topic, value=avro)]
    assert counts == [255, 45]
    with consumer_of(servers, topic, value=avro) as consumer:
        found = [consumer.poll(TIMEOUT) for _ in range(2)]
        assert [batch.num_rows for batch in found] == counts
        assert pa.concat_arrays([batch["offset"] for batch in found]).to_pylist() == list(range(300))
    assert pc.struct_field(hr.decode(pa.array(rows), avro), 0).to_pylist() == list(range(300))
    chunked = hr.decode(pa.chunked_array([rows[:2], rows]), avro)
    assert [len(chunk) for chunk in chunked.chunks] == [2, 255, 45]
    with pytest.raises(DecodeError, match="row 302") as caught:
        hr.decode(pa.chunked_array([rows[:2], [*rows, b"bad"]]), avro)
    assert caught.value.row == 302


def test_a_format_goes_to_another_process_and_begins_anew():
    """As Spark and multiprocessing send it: what it has learnt stays, what it was given goes."""
    registry = hr.SchemaRegistry("http://127.0.0.1:1,http://127.0.0.1:2", auth=("me", "secret"), deadline=0.1)
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    rows = pa.array([b"\x02"])
    for made in (hr.Avro(order, on_error="null"), copy.copy(hr.Avro(order)), hr.Avro(order, columns=["id"])):
        again = pickle.loads(pickle.dumps(made))  # noqa: S301
        assert hr.decode(rows, again).to_pylist() == [{"id": 1}]
        assert again.on_error == made.on_error
    framed_by = pickle.loads(pickle.dumps(hr.Avro(order, schemas={7: order})))  # noqa: S301
    assert hr.decode(pa.array([b"\0\0\0\0\x07\x02"]), framed_by).to_pylist() == [{"id": 1}]
    by_json = pickle.loads(pickle.dumps(hr.Json(pa.schema([("id", pa.int64())]))))  # noqa: S301
    assert hr.decode(pa.array([b'{"id": 3}']), by_json).to_pylist() == [{"id": 3}]
    text = pickle.loads(pickle.dumps(hr.Text(pa.int32(), on_error="null")))  # noqa: S301
    assert hr.decode(pa.array([b"\0\0\0\5", b""]), text).to_pylist() == [5, None]
    looked_up = pickle.loads(pickle.dumps(hr.Avro(registry, subject="x")))  # noqa: S301
    with pytest.raises(SchemaRegistryUnavailableError, match=r"127\.0\.0\.1:"):
        hr.decode(rows, looked_up)


def test_the_path_of_a_schema_is_no_schema():
    with pytest.raises(SchemaError, match=r"not the path of a file: give what .order\.avsc. holds"):
        hr.Avro("order.avsc")
    with pytest.raises(SchemaError, match="not the path of a file"):
        hr.Json("schemas/order.json")
