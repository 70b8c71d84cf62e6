"""Schemas that records name by their GUID in a header, as Confluent's serializers write them."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry import header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import headrace as hr
from headrace import _native
from headrace.errors import ConfigError, DecodeError, SchemaError, SchemaRegistryError
from headrace.registry import SchemaReference
from headrace.values.sending import encoded

TIMEOUT = 30
pytestmark = pytest.mark.timeout(300)
V1 = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}
JSON_SCHEMA = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
PROTO = 'syntax = "proto3"; package shop; message Item { int64 n = 1; } message Order { int64 id = 1; }'
NAME = "__value_schema_id"
IN_HEADER = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def registry(broker):
    return hr.SchemaRegistry(broker.registry_url)


@pytest.fixture
def client(broker):
    return confluent.SchemaRegistryClient({"url": broker.registry_url})


def send(broker, topic, records):
    """Sends values with their headers."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value, headers in records:
        producer.produce(topic, value, headers=headers, partition=0)
    assert producer.flush(TIMEOUT) == 0


def serialized(serializer, topic, row):
    """A value and its headers."""
    headers: list[tuple[str, bytes]] = []
    return serializer(row, SerializationContext(topic, MessageField.VALUE, headers)), headers


def received(broker, topic, count):
    """Values and headers, by a consumer of Confluent's."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.error() is None
        found.append((message.value(), message.headers()))
    consumer.close()
    return found


def of_shop(name):
    """A message class of PROTO."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for message, field in (("Item", "n"), ("Order", "id")):
        made = file.message_type.add(name=message)
        made.field.add(name=field, number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


def test_the_registry_knows_schemas_by_guid(registry, client, topic):
    number = client.register_schema(topic, confluent.Schema(json.dumps(V1), "AVRO"))
    guid = registry.schema(number).guid
    # It keeps the text that it has sent.
    client.clear_caches()
    assert client.get_schema_by_guid(guid).schema_str == json.dumps(V1, separators=(",", ":"))
    assert registry.by_guid(guid) == registry.schema(number)
    assert client.get_latest_version(topic).guid == guid
    # The same schema has it in every registry, and another one has not.
    with hr.Broker.start(registry=True) as other:
        elsewhere = hr.SchemaRegistry(other.registry_url)
        elsewhere.register("first", json.dumps(V2))
        assert elsewhere.schema(elsewhere.register(topic, json.dumps(V1))).guid == guid
        assert elsewhere.latest("first").guid != guid
        to_it = [SchemaReference("shop.Order", "first", 1)]
        refers = elsewhere.register("refers", '{"type": "array", "items": "long"}', references=to_it)
        plain = elsewhere.register("plain", '{"type": "array", "items": "long"}')
        assert elsewhere.schema(refers).guid != elsewhere.schema(plain).guid
    for unknown in (str(uuid.uuid4()), "no guid"):
        with pytest.raises(SchemaRegistryError, match=f"no schema of GUID {unknown}") as caught:
            registry.by_guid(unknown)
        assert caught.value.status == 404


def test_what_confluents_serializer_wrote_is_read(broker, registry, client, topic):
    old = AvroSerializer(client, json.dumps(V1), conf=IN_HEADER)
    new = AvroSerializer(client, json.dumps(V2), conf=IN_HEADER)
    framed = AvroSerializer(client, json.dumps(V1))
    records = [
        serialized(old, topic, {"id": 1}),
        serialized(new, topic, {"id": 2, "city": "x"}),
        serialized(framed, topic, {"id": 3}),
        (None, [("a", b"b")]),
    ]
    assert records[0][0] == b"\x02"
    send(broker, topic, records)
    expected = [{"id": 1, "city": None}, {"id": 2, "city": "x"}, {"id": 3, "city": None}, None]
    table = hr.read(broker.bootstrap_servers, topic, value=hr.Avro(registry)).read_all()
    assert table["value"].to_pylist() == expected
    assert "headers" not in table.column_names
    shown = hr.read(broker.bootstrap_servers, topic, value=hr.Avro(registry), include_headers=True).read_all()
    assert shown["headers"].to_pylist()[3] == [{"key": "a", "value": b"b"}]
    for asked, names in (("TRUE", {"headers"}), (False, set())):
        with hr.Consumer(broker.bootstrap_servers, value=hr.Avro(registry), include_headers=asked) as consumer:
            consumer.assign([(topic, 0)])
            assert {"headers"}.intersection(consumer.schema.names) == names
    with pytest.raises(ConfigError, match=r"include\.headers"):
        hr.Consumer(broker.bootstrap_servers, value=hr.Avro(registry), include_headers="maybe")
    avro = hr.Avro(registry, on_error="column")
    with hr.Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", value=avro) as consumer:
        consumer.assign([(topic, 0)])
        assert "headers" not in consumer.schema.names
        batch = consumer.poll(TIMEOUT)
    assert batch["value"].to_pylist() == expected
    ids = [registry.version(f"{topic}-value", version).id for version in (1, 2, 1)]
    assert batch["value_schema_id"].to_pylist() == [*ids, None]


def test_messages_of_protobuf_are_found_by_the_header(broker, registry, client, topic):
    order = of_shop("Order")
    serializer = ProtobufSerializer(order, client, {**IN_HEADER, "use.deprecated.format": False})
    records = [serialized(serializer, topic, order(id=number)) for number in (1, 2)]
    send(broker, topic, records)
    form = hr.Protobuf(registry, message="shop.Order")
    table = hr.read(broker.bootstrap_servers, topic, value=form).read_all()
    assert table["value"].to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(DecodeError, match=r"it is a message shop\.Order, not shop\.Item"):
        hr.read(broker.bootstrap_servers, topic, value=hr.Protobuf(registry)).read_all()


def test_json_is_read(broker, registry, client, topic):
    serializer = JSONSerializer(json.dumps(JSON_SCHEMA), client, conf=IN_HEADER)
    send(broker, topic, [serialized(serializer, topic, {"id": 1})])
    table = hr.read(broker.bootstrap_servers, topic, value=hr.Json(registry)).read_all()
    assert table["value"].to_pylist() == [{"id": 1}]


def test_confluents_deserializers_read_what_is_written(broker, registry, client, topic):
    # Confluent's deserializers take no value of five bytes or fewer, also with a header.
    rows = [{"id": 1 << 60}, None, {"id": 1 << 61}]
    table = pa.table({"value": pa.array(rows)})
    kinds: dict[str, tuple[Any, Any]] = {
        "avro": (hr.Avro(V1, registry=registry, schema_id="header"), AvroDeserializer(client)),
        "json": (
            hr.Json(JSON_SCHEMA, registry=registry, schema_id="header"),
            JSONDeserializer(None, schema_registry_client=client),
        ),
        "protobuf": (
            hr.Protobuf(PROTO, message="shop.Order", registry=registry, schema_id="header"),
            ProtobufDeserializer(of_shop("Order"), {"use.deprecated.format": False}, client),
        ),
    }
    for kind, (form, deserializer) in kinds.items():
        name = f"{topic}-{kind}"
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send_arrow(name, table, value=form).result(TIMEOUT)
        found = []
        for value, headers in received(broker, name, 3):
            context = SerializationContext(name, MessageField.VALUE, headers)
            made = deserializer(value, context)
            found.append(made if made is None or kind != "protobuf" else {"id": made.id})
            assert (headers or []) == ([] if value is None else [(NAME, headers[0][1])])
        assert found == rows, kind
        read = hr.read(broker.bootstrap_servers, name, value=form).read_all()
        assert read["value"].to_pylist() == rows


def test_keys_have_a_header_of_their_own_behind_those_that_are_there(broker, registry, topic):
    form = hr.Avro(V1, registry=registry, schema_id="header")
    headers = [[("a", b"1"), ("a", None)], [], None]
    columns = {"key": [{"id": 1}, {"id": 2}, None], "value": [{"id": 3}, None, {"id": 4}]}
    table = pa.table({**columns, "headers": pa.array(headers, pa.map_(pa.string(), pa.binary()))})
    table = table.set_column(2, "headers", pa.array(
        [None if row is None else [{"key": key, "value": value} for key, value in row] for row in headers],
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.large_binary())])),
    ))  # fmt: skip
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, table, key=form, value=form).result(TIMEOUT)
    read = hr.read(broker.bootstrap_servers, topic, key=form, value=form, include_headers=True).read_all()
    assert read["key"].to_pylist() == columns["key"]
    assert read["value"].to_pylist() == columns["value"]
    names = [[one["key"] for one in row or ()] for row in read["headers"].to_pylist()]
    assert names == [["a", "a", "__key_schema_id", NAME], ["__key_schema_id"], [NAME]]
    wrong = table.set_column(2, "headers", pa.array([1, 2, 3]))
    with hr.Producer(broker.bootstrap_servers) as producer, pytest.raises(SchemaError, match="column headers"):
        producer.send_arrow(topic, wrong, key=form)


BAD = [
    (b"", "its header of the schema holds neither an id nor a GUID"),
    (b"\x01" + bytes(15), "its header of the schema holds neither an id nor a GUID"),
    (b"\x02" + bytes(16), "its header of the schema holds neither an id nor a GUID"),
    (b"\x00\x00\x00", "its header of the schema holds neither an id nor a GUID"),
    (b"\x01" + bytes(16), "the schema of GUID 00000000-0000-0000-0000-000000000000 is not known"),
    (b"\x00\x00\x0f\xff\xff", "schema id 1048575 is not known"),
    (None, "2 bytes are left behind the value"),
]


@pytest.mark.parametrize(("said", "why"), BAD)
def test_a_header_that_names_no_schema_costs_no_neighbour(broker, registry, client, topic, said, why):
    good = serialized(AvroSerializer(client, json.dumps(V1), conf=IN_HEADER), topic, {"id": 1})
    # The bytes of a row that would be read by its prefix, were there no header.
    number = registry.latest(f"{topic}-value").id.to_bytes(4, "big")
    bad = (b"\x00" + number + b"\x04\x00\x00", [(NAME, said)])
    send(broker, topic, [good, bad, good])
    form = hr.Avro(registry, on_error="column")
    with hr.Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", value=form) as consumer:
        consumer.assign([(topic, 0)])
        batch = consumer.poll(TIMEOUT)
    assert batch["value"].to_pylist() == [{"id": 1}, None, {"id": 1}]
    assert batch["value_error"].to_pylist() == [None, why, None]
    assert batch["value_bytes"].to_pylist() == [None, bad[0], None]
    with pytest.raises(DecodeError, match=f"{topic}-0, offset 1: value: {why}"):
        hr.read(broker.bootstrap_servers, topic, value=hr.Avro(registry)).read_all()


def test_from_coroutines_guids_are_looked_up_beside_the_loop(broker, registry, client, topic):
    serializer = AvroSerializer(client, json.dumps(V1), conf=IN_HEADER)
    send(broker, topic, [serialized(serializer, topic, {"id": 1})])
    loop_thread = []

    class Watched(hr.SchemaRegistry):
        def by_guid(self, guid):
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            loop_thread.append(guid)
            return super().by_guid(guid)

    async def main():
        form = hr.Avro(Watched(broker.registry_url), subject=f"{topic}-value")
        async with hr.aio.Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", value=form) as consumer:
            await consumer.assign([(topic, 0)])
            return await consumer.poll(TIMEOUT)

    assert asyncio.run(main())["value"].to_pylist() == [{"id": 1}]
    assert len(loop_thread) == 1


def test_what_takes_a_registry_that_knows_guids_says_so(registry, monkeypatch, topic):
    with pytest.raises(ConfigError, match="schema_id='header' writes the GUID of a schema of a registry"):
        hr.Avro(V1, schema_id="header")
    with pytest.raises(ValueError, match="it takes 'prefix' or 'header'"):
        hr.Avro(V1, registry=registry, schema_id="both")
    form = hr.Avro(V1, registry=registry, subject=topic, schema_id="header")
    older = hr.SchemaRegistry(registry._urls)
    found = older.schema(older.register(topic, json.dumps(V1)))
    monkeypatch.setattr(registry, "schema", lambda number: found.__class__(number, found.schema))
    table = pa.table({"value": pa.array([{"id": 1}])})
    with pytest.raises(SchemaRegistryError, match=f"gives schema id {found.id} no GUID"):
        encoded(table, topic, key=None, value=form)


def test_headers_of_another_type_are_refused():
    rows = pa.array([b"a"])
    with pytest.raises(ValueError, match="headers are a list of structs"):
        _native.schema_headers(rows, False)
    with pytest.raises(ValueError, match="1 rows have 2 headers"):
        _native.with_prefix(rows, pa.array([b"a", b"b"]), {})
