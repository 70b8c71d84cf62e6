"""Keys and values as columns of a query: by a schema, by a registry, and what becomes of bad rows."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import topic_record_subject_name_strategy
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql.types import LongType, StructField, StructType

import headrace as hr
from headrace.errors import ConfigError
from headrace.registry import SchemaReference
from headrace.spark.options import source_options
from tests.values import test_records as records
from tests.values.test_avro import framed

pytestmark = pytest.mark.spark
TIMEOUT = 30
V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "city", "type": "string", "default": "-"}]}
# Each type that Spark has another one for.
MANY = {"type": "record", "name": "Many", "fields": [
    {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP"]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "kind", "type": "Channel"}, {"name": "count", "type": ["null", "int"]}]}}},
    {"name": "counts", "type": {"type": "map", "values": "Channel"}},
    {"name": "either", "type": ["int", "string"]},
]}  # fmt: skip


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


def send(broker, topic, values, keys=None):
    with hr.Producer(broker.bootstrap_servers) as producer:
        for value, key in zip(values, keys or [None] * len(values), strict=True):
            producer.send(topic, value, key=key, partition=0)


def load(spark, broker, topic, **options):
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader.load()


def test_rows_of_two_schemas_are_columns_of_the_newest(spark, broker, topic):
    registry = hr.SchemaRegistry(broker.registry_url)
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in (V1, V2)]
    rows = [framed(ids[0], V1, {"id": 1}), None, framed(ids[1], V2, {"id": 2, "city": "x"})]
    send(broker, topic, rows, [struct.pack(">q", number) for number in range(3)])
    df = load(spark, broker, topic, value_format="avro", schema_registry_url=broker.registry_url, key_format="bigint")
    assert df.schema["value"].dataType.simpleString() == "struct<id:bigint,city:string>"
    found = [(row.key, row.offset, row.value and row.value.asDict()) for row in df.orderBy("offset").collect()]
    assert found == [(0, 0, {"id": 1, "city": "-"}), (1, 1, None), (2, 2, {"id": 2, "city": "x"})]
    assert df.agg(F.sum("value.id")).first()[0] == 3
    some = load(
        spark, broker, topic, value_format="avro", schema_registry_url=broker.registry_url, value_columns="id",
        columns="value,offset",
    )  # fmt: skip
    assert some.schema.simpleString() == "struct<value:struct<id:bigint>,offset:bigint>"
    assert [row.value.id for row in some.where("value is not null").collect()] == [1, 2]


def test_what_headers_and_documents_say_of_schemas_is_found(spark, broker, topic):
    registry = hr.SchemaRegistry(broker.registry_url)
    form = hr.Avro(V1, registry=registry, schema_id="header")
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array([{"id": 1}, {"id": 2}])}), value=form)
    url = broker.registry_url
    df = load(spark, broker, topic, value_format="avro", schema_registry_url=url, columns="value")
    assert df.schema.simpleString() == "struct<value:struct<id:bigint>>"
    assert sorted(row.value.id for row in df.collect()) == [1, 2]
    other = f"{topic}-json"
    registry.register("price", '{"type": "object", "properties": {"cents": {"type": "integer"}}}', schema_type="JSON")
    registry.register(
        f"{other}-value", '{"type": "object", "properties": {"price": {"$ref": "price.json"}}}', schema_type="JSON",
        references=[SchemaReference("price.json", "price", 1)],
    )  # fmt: skip
    send(broker, other, [b'{"price": {"cents": 3}}'])
    df = load(spark, broker, other, value_format="json", schema_registry_url=url)
    assert df.select("value.price.cents").first()[0] == 3


ORDER = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
message Other {}
message Order {
  int64 id = 1; optional string city = 2; uint64 cash = 3; uint32 crc = 4; Channel channel = 5;
  google.protobuf.Timestamp at = 6; google.protobuf.Duration took = 7; map<string, uint32> counts = 8;
  enum Channel { WEB = 0; SHOP = 1; }
}"""


def test_each_record_has_its_column(spark, broker, topic):
    records.written(broker, topic, topic_record_subject_name_strategy)
    given = {"value_format": "avro", "value_records": "shop.Order, paid=shop.Payment"}
    df = load(spark, broker, topic, schema_registry_url=broker.registry_url, **given)
    assert df.schema["value"].dataType.fieldNames() == ["Order", "paid"]
    rows = [None if row.value is None else row.value.asDict(recursive=True) for row in df.orderBy("offset").collect()]
    wanted = [{"Order": row["Order"], "paid": row["Payment"]} for row in records.COLUMNS]
    assert rows == [*wanted, None]
    assert df.selectExpr("sum(value.Order.price.cents)").first()[0] == 7
    # By hand: one schema that has both.
    union = json.dumps([records.ORDER, records.NOTE])
    given["value_records"] = "shop.Note,shop.Order"
    by_hand = load(spark, broker, f"{topic}-union", value_schema=union, **given)
    send(broker, f"{topic}-union", [b"\x00" + records.bare(records.ORDER, records.ORDER_ROW)])
    assert by_hand.select("value.Order.id").collect() == [(1,)]


def test_protobuf(spark, broker, topic, tmp_path):
    registry = hr.SchemaRegistry(broker.registry_url)
    at = dt.datetime(2026, 11, 25, 1, 2, 3, tzinfo=dt.timezone.utc)
    row = {
        "id": 1, "city": None, "cash": 2**64 - 1, "crc": 2**32 - 1, "channel": "SHOP", "at": at,
        "took": dt.timedelta(seconds=-1.5), "counts": [("a", 7)],
    }  # fmt: skip
    type_of = hr.decode(pa.array([], pa.binary()), hr.Protobuf(ORDER, message="Order")).type
    rows = pa.table({"value": pa.array([row], type_of)})
    with hr.Producer(broker.bootstrap_servers) as producer:
        form = hr.Protobuf(ORDER, message="Order", registry=registry)
        producer.send_arrow(topic, rows, value=form).result(TIMEOUT)
    found = load(
        spark, broker, topic, value_format="protobuf", value_message="Order", schema_registry_url=broker.registry_url
    )
    assert found.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,city:string,cash:decimal(20,0),crc:bigint,channel:string,at:timestamp,"
        "took:interval day to second,counts:map<string,bigint>>"
    )
    [value] = [one.value.asDict() for one in found.collect()]
    at = value.pop("at").astimezone(dt.timezone.utc)
    assert (value, at) == (
        {key: of for key, of in row.items() if key != "at"} | {"cash": Decimal(2**64 - 1), "counts": {"a": 7}},
        row["at"],
    )
    (tmp_path / "order.proto").write_text(ORDER)
    bare = f"{topic}-bare"
    send(broker, bare, hr.encode(rows["value"].combine_chunks(), hr.Protobuf(ORDER, message="Order")).to_pylist())
    options = {"value_format": "protobuf", "value_message": "Order", "value_schema_file": str(tmp_path / "order.proto")}
    assert load(spark, broker, bare, **options, value_columns="id").collect()[0].value.asDict() == {"id": 1}


def test_types_are_those_of_spark(spark, broker, topic, tmp_path):
    at = dt.datetime(2026, 11, 25, 1, 2, 3, tzinfo=dt.timezone.utc)
    row = {
        "channel": "SHOP", "at": at,
        "local": dt.datetime(2026, 11, 25, 4, 5, 6),  # noqa: DTZ001  (it has no time zone)
        "day": dt.date(2026, 11, 25), "time": dt.time(0, 0, 1),
        "price": Decimal("12.50"), "hash": b"ab",
        "lines": [{"kind": "WEB", "count": None}, {"kind": "SHOP", "count": 2}],
        "counts": {"a": "WEB"}, "either": "x",
    }  # fmt: skip
    send(broker, topic, [bare(MANY, row)])
    path = tmp_path / "many.avsc"
    path.write_text(json.dumps(MANY))
    df = load(spark, broker, topic, value_format="avro", value_schema_file=str(path))
    types = {field.name: field.dataType.simpleString() for field in df.schema["value"].dataType}
    assert types == {
        "channel": "string", "at": "timestamp", "local": "timestamp_ntz", "day": "date", "time": "int",
        "price": "decimal(9,2)", "hash": "binary", "lines": "array<struct<kind:string,count:int>>",
        "counts": "map<string,string>", "either": "struct<member0:int,member1:string>",
    }  # fmt: skip
    found = df.selectExpr("value.*", "unix_millis(value.at) as millis").first().asDict(recursive=True)
    assert found.pop("millis") == at.timestamp() * 1000
    assert found == {
        **row,
        "at": found["at"],
        "time": 1000,
        "hash": bytearray(b"ab"),
        "either": {"member0": None, "member1": "x"},
    }


def bare(schema, row):
    return framed(0, schema, row)[5:]


def test_json_by_a_json_schema_and_by_one_of_sparks(spark, broker, topic):
    send(broker, topic, [b'{"id": 1, "tags": ["a"]}', b'{"id": 2}'])
    by_json = {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"items": {"type": "string"}}}}
    of = StructType([StructField("id", LongType())])
    for schema, wanted in [
        (json.dumps(by_json), "struct<id:bigint,tags:array<string>>"),
        (of.json(), "struct<id:bigint>"),
    ]:
        df = load(spark, broker, topic, value_format="json", value_schema=schema)
        assert df.schema["value"].dataType.simpleString() == wanted
        assert sorted(row.value.id for row in df.collect()) == [1, 2]


def test_bad_rows_are_named_or_null_or_told_apart(spark, broker, topic):
    good, bad = bare(V1, {"id": 1}), b"\xff"
    send(broker, topic, [good, bad, good])
    options = {"value_format": "avro", "value_schema": json.dumps(V1)}
    with pytest.raises(Exception, match=rf"{topic}-0, offset 1: value, field id: "):
        load(spark, broker, topic, **options).collect()
    rows = load(spark, broker, topic, **options, value_on_error="null").orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [1, None, 1]
    df = load(spark, broker, topic, **options, value_on_error="column")
    assert df.columns[-2:] == ["value_error", "value_bytes"]
    found = df.where("value_error is not null").select("offset", "value_bytes").collect()
    assert [(row.offset, bytes(row.value_bytes)) for row in found] == [(1, bad)]
    only = load(spark, broker, topic, **options, value_on_error="column", columns="value_error,offset")
    assert [row.value_error is None for row in only.orderBy("offset").collect()] == [True, False, True]


def test_a_stream_decodes_too(spark, broker, topic, tmp_path):
    registry = hr.SchemaRegistry(broker.registry_url)
    number = registry.register(f"{topic}-value", json.dumps(V1))
    send(broker, topic, [framed(number, V1, {"id": n}) for n in range(10)])
    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest").option("value.format", "avro")
    df = reader.option("schema.registry.url", broker.registry_url).load()
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    writer = df.selectExpr("value.id").writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(out).awaitTermination()
    assert sorted(row.id for row in spark.read.parquet(out).collect()) == list(range(10))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"value.format": "xml"}, "value.format is 'xml'; it takes avro, json, protobuf, string"),
        ({"value.schema": "{}"}, "value.schema needs value.format"),
        ({"value.format": "avro"}, "value.format=avro needs value.schema, value.schema.file or schema.registry.url"),
        ({"key.format": "int", "key.schema": "{}"}, "key.schema has no effect with key.format=int"),
        ({"value.format": "avro", "value.schema": "{}", "value.schema.file": "x"}, "exclude each other"),
        ({"value.format": "avro", "value.schema.file": "/nowhere"}, "value.schema.file '/nowhere' cannot be read"),
        ({"value.format": "avro", "value.schema": "{}", "value.on.error": "skip"}, "raise, null, column"),
        ({"value.format": "avro", "value.schema": "{}", "value.reader": "3"}, "value.reader chooses a schema"),
        ({"value.format": "avro", "schema.registry.url": "u", "value.reader": "x"}, "latest or the id"),
        (
            {"value.format": "json", "value.records": "a.B", "value.schema": "{}"},
            "value.records has no effect with value.format=json",
        ),
        (
            {"value.format": "avro", "value.records": " , ", "value.schema": "{}"},
            "value.records is ','; it takes names of records",
        ),
        ({"value.format": "avro", "value.records": "a.B,c.B", "value.schema": "{}"}, "two would be one column"),
        ({"schema.registry.url": "http://x"}, "no effect without value.format or key.format"),
        ({"bearer.auth.token": "secret"}, "bearer.auth.token needs schema.registry.url"),
        ({"value.formats": "avro"}, "did you mean value.format"),
    ],
)
def test_what_is_wrong_names_the_option(options, why):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}
    with pytest.raises(ConfigError, match=why) as caught:
        source_options(given, streaming=False)
    assert "secret" not in str(caught.value)


def test_schemas_of_spark_that_are_none_name_the_option():
    from headrace.spark.columns import fields  # noqa: PLC0415  (it imports Spark's types)

    def of(schema):
        given = {"kafka.bootstrap.servers": "x", "subscribe": "t", "value.format": "json", "value.schema": schema}
        return fields(source_options(given, streaming=False).formats)

    def one(kind):
        return json.dumps({"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}]})

    assert of(one("timestamp"))["value"].dataType.simpleString() == "struct<a:timestamp>"
    for schema in (one("xx"), one({"type": "udt"}), '{"type": "struct", "fields": [{"name": "a"}]}', "5", "[]"):
        with pytest.raises(ConfigError, match=r"value\.schema: "):
            of(schema)


def test_a_secret_of_the_registry_is_not_shown():
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "value.format": "avro",
        "schema.registry.url": "http://127.0.0.1:1", "basic.auth.user.info": "me:secret",
    }  # fmt: skip
    options = source_options(given, streaming=False)
    assert "secret" not in repr(options)
    assert dict(options.formats[0].registry)["password"] == "secret"  # noqa: S105


def test_a_schema_that_spark_has_no_type_for_is_named(spark, broker, topic):
    long = {"type": "record", "name": "L", "fields": [
        {"name": "span", "type": {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}}]}  # fmt: skip
    send(broker, topic, [b""])
    with pytest.raises(Exception, match=r"value.span is month_day_nano_interval, which Spark has no type for"):
        load(spark, broker, topic, value_format="avro", value_schema=json.dumps(long))
    with pytest.raises(Exception, match=r"value.schema: .*no_such"):
        load(spark, broker, topic, value_format="avro", value_schema='"no_such"')
    with pytest.raises(Exception, match=r"versions/latest with status 404"):
        load(spark, broker, topic, value_format="avro", schema_registry_url=broker.registry_url)


def test_batches_are_cut_where_a_call_has_enough():
    """Through the columns of a task, without Spark: rows that stand for much come in parts."""
    from headrace.spark.columns import plain  # noqa: PLC0415  (it imports Spark's types)
    from headrace.values.from_options import columns_of  # noqa: PLC0415  (as above)

    fields = {"type": "struct", "fields": [
        {"name": f"f{n}", "type": "long", "nullable": True, "metadata": {}} for n in range(1000)]}  # fmt: skip
    given = {
        "kafka.bootstrap.servers": "x",
        "subscribe": "t",
        "value.format": "json",
        "value.schema": json.dumps(fields),
    }
    options = source_options(given, streaming=False)
    rows = 50_000
    batch = pa.record_batch(
        {
            "key": pa.nulls(rows, pa.binary()),
            "value": pa.array([b"{}"] * rows),
            "topic": ["t"] * rows,
            "partition": pa.array([0] * rows, pa.int32()),
            "offset": pa.array(range(rows), pa.int64()),
        }
    )
    parts = list(map(plain, columns_of(options.formats).parts(batch)))
    assert len(parts) > 1
    assert pa.Table.from_batches(parts)["offset"].to_pylist() == list(range(rows))


AVRO_OF_SINK = {"type": "record", "name": "Sum", "fields": [
    {"name": "city", "type": ["null", "string"]}, {"name": "sum", "type": "long"}]}  # fmt: skip
PROTO_OF_SINK = 'syntax = "proto3"; message Sum { optional string city = 1; int64 sum = 2; }'
JSON_OF_SINK = {"type": "object", "required": ["sum"], "properties": {
    "city": {"type": "string"}, "sum": {"type": "integer"}}}  # fmt: skip
SUMS = [{"city": "x", "sum": 1}, {"city": None, "sum": 2}]


def sums(spark):
    rows = spark.createDataFrame([(row["sum"], row["city"], 7) for row in SUMS], "sum int, city string, other int")
    return rows.select(F.struct("sum", "city").alias("value"), F.col("other").cast("string").alias("key"))


def save(df, broker, topic, **options):
    writer = df.coalesce(1).write.format("headrace").mode("append")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("_", "."), value)
    writer.save()


@pytest.mark.parametrize(
    ("name", "schema", "form"),
    [("avro", json.dumps(AVRO_OF_SINK), hr.Avro), ("protobuf", PROTO_OF_SINK, hr.Protobuf),
     ("json", json.dumps(JSON_OF_SINK), hr.Json)],
)  # fmt: skip
def test_structs_are_written(spark, broker, topic, tmp_path, name, schema, form):
    def values(topic, form):
        table = hr.read(broker.bootstrap_servers, topic, value=form).read_all()
        assert table["key"].to_pylist() == [b"7", b"7"]
        return table["value"].to_pylist()

    registry = hr.SchemaRegistry(broker.registry_url)
    save(sums(spark), broker, topic, value_format=name, value_schema=schema, schema_registry_url=broker.registry_url)
    assert registry.latest(f"{topic}-value").schema_type == name.upper()
    assert values(topic, form(registry)) == SUMS
    # By the schema that is there now, and without a registry.
    subject, other, bare = f"{topic}-value", f"{topic}-other", f"{topic}-bare"
    save(sums(spark), broker, other, value_format=name, value_subject=subject, schema_registry_url=broker.registry_url)
    assert values(other, form(registry, subject=subject)) == SUMS
    (tmp_path / "schema.proto").write_text(schema)
    save(sums(spark), broker, bare, value_format=name, value_schema_file=str(tmp_path / "schema.proto"))
    assert values(bare, form(schema)) == SUMS


def test_json_is_written_as_the_column_is(spark, broker, topic):
    save(sums(spark), broker, topic, value_format="json")
    rows = hr.read(broker.bootstrap_servers, topic).read_all()["value"].to_pylist()
    assert [json.loads(row) for row in rows] == [{"sum": 1, "city": "x"}, {"sum": 2}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "column value is struct<sum:int,city:string>; the headrace sink takes .*or a struct with value.format"),
        ({"value_format": "xml"}, "value.format is 'xml'; the sink takes avro, json, protobuf, binary"),
        ({"value_format": "avro"}, "value.format=avro needs value.schema, value.schema.file or schema.registry.url"),
        ({"value_schema": "{}"}, "value.schema needs value.format, such as avro"),
        ({"value_format": "json", "value_subject": "x"}, "value.subject needs schema.registry.url"),
        (
            {"value_format": "avro", "value_schema": json.dumps(V1)},
            "value.format=avro: value: field sum: the schema has",
        ),
        ({"value_format": "protobuf", "value_schema": "message"}, "value.format=protobuf: "),
        ({"key_format": "json"}, "column key is string; key.format=json takes a struct of the fields"),
        ({"value_format": "json", "value_message": "A"}, "value.message has no effect with value.format=json"),
        ({"schema_registry_url": "http://127.0.0.1:1"}, "schema.registry.url has no effect without value.format"),
    ],
)
def test_what_cannot_be_written_names_the_option(spark, broker, topic, options, why):
    with pytest.raises(Exception, match=why):
        save(sums(spark), broker, topic, **options)
    with hr.Admin(broker.bootstrap_servers) as admin:
        assert topic not in admin.list_topics()
