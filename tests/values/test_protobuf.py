"""Protobuf to columns and back: beside Google's own library, with Confluent's serializers, and what cannot be read."""

from __future__ import annotations

import base64
import datetime as dt
import pickle

import confluent_kafka
import confluent_kafka.schema_registry as confluent
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import _native
from headrace.errors import ConfigError, DecodeError, SchemaError, SchemaRegistryError
from headrace.registry import SchemaReference
from tests.values.messages import classes

TIMEOUT = 30
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";

message Order {
  int64 id = 1;
  optional string city = 2;
  Channel channel = 3;
  repeated Line lines = 4;
  map<string, double> prices = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Duration took = 7;
  google.protobuf.StringValue note = 8;
  oneof payment { string card = 9; uint64 cash = 10; }
  uint32 crc = 11;
  bytes raw = 12;
  sint32 delta = 13;
  float weight = 14;
  bool paid = 15;
  repeated fixed64 marks = 16;

  enum Channel { WEB = 0; SHOP = 1; }
  message Line { string name = 1; int32 count = 2; }
}

message Refund { int64 id = 1; }
"""


MADE = classes(ORDER)
MICROS = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
LINES = st.lists(st.fixed_dictionaries({"name": TEXT, "count": INT32}), max_size=3)
ROWS = st.fixed_dictionaries({
    "id": INT64,
    "city": st.none() | TEXT,
    "channel": st.sampled_from(["WEB", "SHOP"]),
    "lines": LINES,
    "prices": st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=20).map(lambda found: list(found.items())),
    "at": st.none() | st.datetimes(timezones=st.just(dt.timezone.utc)),
    "took": st.none() | st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000)),
    "note": st.none() | TEXT,
    "payment": st.none() | st.tuples(st.just("card"), TEXT) | st.tuples(st.just("cash"), st.integers(0, 2**64 - 1)),
    "crc": st.integers(0, 2**32 - 1),
    "raw": st.binary(max_size=200),
    "delta": INT32,
    "weight": st.floats(width=32, allow_nan=False),
    "paid": st.booleans(),
    "marks": st.lists(st.integers(0, 2**64 - 1), max_size=4),
})  # fmt: skip


def message(row):
    """A row as Google's library has it."""
    made = MADE["Order"]()
    for name, of in row.items():
        if of is None:
            continue
        if name == "lines":
            for line in of:
                made.lines.add(**line)
        elif name == "prices":
            made.prices.update(dict(of))
        elif name == "marks":
            made.marks.extend(of)
        elif name in {"at", "took"}:
            micros = (of - EPOCH if name == "at" else of) // MICROS
            sign = -1 if name == "took" and micros < 0 else 1
            seconds, rest = divmod(abs(micros) if name == "took" else micros, 10**6)
            getattr(made, name).seconds, getattr(made, name).nanos = sign * seconds, sign * rest * 1000
        elif name == "note":
            made.note.value = of
        elif name == "channel":
            made.channel = MADE["Order"].Channel.Value(of)
        else:
            setattr(made, name, of)
    return made


@given(st.lists(ROWS, max_size=4))
def test_what_googles_library_writes_is_read_and_the_other_way_round(rows):
    rows = [{name: row.get(name) for name in NAMES} | dict([row["payment"]] if row["payment"] else []) for row in rows]
    form = hr.Protobuf(ORDER)
    written = pa.array([message(row).SerializeToString() for row in rows], pa.binary())
    values = hr.decode(written, form)
    found = values.to_pylist()
    for row in found:
        row["prices"] = sorted(row["prices"])
    assert found == [{**row, "prices": sorted(row["prices"])} for row in rows]
    encoded = hr.encode(values, form)
    assert [MADE["Order"].FromString(bytes(one.as_py())) for one in encoded] == [message(row) for row in rows]
    assert hr.decode(encoded, form).equals(values)


NAMES = [field.name for field in MADE["Order"].DESCRIPTOR.fields]


def test_types():
    columns = hr.decode(pa.array([], pa.binary()), hr.Protobuf(ORDER)).type
    assert {field.name: str(field.type) for field in columns} == {
        "id": "int64", "city": "string", "channel": "dictionary<values=string, indices=int32, ordered=0>",
        "lines": "list<item: struct<name: string not null, count: int32 not null> not null>",
        "prices": "map<string, double>", "at": "timestamp[us, tz=UTC]", "took": "duration[us]", "note": "string",
        "card": "string", "cash": "uint64", "crc": "uint32", "raw": "binary", "delta": "int32", "weight": "float",
        "paid": "bool", "marks": "list<item: uint64 not null>",
    }  # fmt: skip
    assert [field.name for field in columns if field.nullable] == ["city", "at", "took", "note", "card", "cash"]


def test_schemas_come_as_text_as_a_class_and_as_descriptors():
    row = message({"id": 7, "city": "x"}).SerializeToString()
    files = [timestamp_pb2, duration_pb2, wrappers_pb2]
    described = [*[of.DESCRIPTOR.serialized_pb for of in files], MADE["Order"].DESCRIPTOR.file.serialized_pb]
    named = descriptor_pb2.FileDescriptorSet(
        file=[descriptor_pb2.FileDescriptorProto.FromString(file) for file in described]
    )
    forms = [
        hr.Protobuf(ORDER),
        hr.Protobuf(ORDER, message="Order"),
        hr.Protobuf(MADE["Order"]),
        hr.Protobuf(named.SerializeToString()),
        hr.Protobuf(named.SerializeToString(), message="shop.Order", columns=["id", "city"]),
        hr.Protobuf(base64.b64encode(described[-1]).decode()),
    ]
    for form in forms:
        for same in (form, pickle.loads(pickle.dumps(form))):  # noqa: S301 -- our own
            [found] = hr.decode(pa.array([row]), same).to_pylist()
            assert (found["id"], found["city"]) == (7, "x")
    [refund] = hr.decode(pa.array([b"\x08\x05"]), hr.Protobuf(MADE["Refund"])).to_pylist()
    assert refund == {"id": 5}


def test_files_that_a_schema_imports():
    price = ("price.proto", 'syntax = "proto3"; package money; message Price { int64 cents = 1; }')
    text = 'syntax = "proto3"; import "price.proto"; message Order { money.Price price = 1; }'
    made = classes(text, references=[price])["Order"]
    row = made(price={"cents": 5}).SerializeToString()
    assert hr.decode(pa.array([row]), hr.Protobuf(text, references=dict([price]))).to_pylist() == [
        {"price": {"cents": 5}}
    ]
    assert hr.decode(pa.array([row]), hr.Protobuf(made, columns=["price.cents"])).to_pylist() == [
        {"price": {"cents": 5}}
    ]
    with pytest.raises(SchemaError, match=r"price\.proto.*give the files that a schema imports as references"):
        hr.Protobuf(text)


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({}, ConfigError, "Protobuf takes a schema or a registry"),
        ({"schema": "message"}, SchemaError, "expected an identifier"),
        ({"schema": "orders.proto"}, SchemaError, "schema is the text of a file, and not its path"),
        ({"schema": 7}, TypeError, "a message class, not int"),
        ({"schema": b"\xff"}, SchemaError, "it is no FileDescriptorSet"),
        ({"schema": ORDER, "message": "Orders"}, SchemaError, 'no message "Orders"; the schema has shop.Order, '),
        ({"schema": ORDER, "columns": ["lines.size"]}, SchemaError, 'no field "size" in shop.Order.Line'),
        ({"schema": ORDER, "columns": ["ids"]}, SchemaError, 'no field "ids" in shop.Order, which has id, city'),
        ({"schema": ORDER, "references": [ORDER]}, TypeError, "references takes texts by name"),
        ({"schema": ORDER, "references": {"a.proto": 7}}, TypeError, r"references\['a.proto'\] is the text"),
        ({"schema": ORDER, "references": {"a.proto": "x"}}, SchemaError, "a.proto: "),
        ({"schema": ORDER, "schemas": {-1: ORDER}}, ValueError, "-1 is not the id of a schema"),
        ({"schema": ORDER, "reader": 7}, ConfigError, "reader and subject choose a schema of the registry"),
        (
            {"schema": "message A { optional A a = 1; }"},
            SchemaError,
            "A contains itself, which no column can: name the fields",
        ),
    ],
)
def test_what_cannot_be(given, error, why):
    with pytest.raises(error, match=why):
        hr.Protobuf(**given)


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture
def registry(broker):
    return hr.SchemaRegistry(broker.registry_url)


def serializer(broker, of="Order"):
    client = confluent.SchemaRegistryClient({"url": broker.registry_url})
    return ProtobufSerializer(MADE[of], client, {"use.deprecated.format": False})


def test_what_confluents_serializer_writes_is_read(broker, registry, topic):
    context = SerializationContext(topic, MessageField.VALUE)
    rows = [serializer(broker)(message({"id": number, "city": f"c{number}"}), context) for number in range(3)]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for row in [*rows, None]:
        producer.produce(topic, row, partition=0)
    assert producer.flush(TIMEOUT) == 0
    table = hr.read(broker.bootstrap_servers, topic, value=hr.Protobuf(registry, columns=["id", "city"])).read_all()
    assert table["value"].to_pylist() == [*({"id": number, "city": f"c{number}"} for number in range(3)), None]
    # By a schema of one's own, whose message stands elsewhere and has fewer fields.
    mine = 'syntax = "proto3"; package shop; message Other {} message Order { int64 id = 1; }'
    form = hr.Protobuf(mine, message="Order", registry=registry)
    assert hr.decode(pa.array(rows), form).to_pylist() == [{"id": number} for number in range(3)]
    with pytest.raises(DecodeError, match=r"row 0: schema id .* it has no message shop\.Other"):
        hr.decode(pa.array(rows), hr.Protobuf(mine, registry=registry))


def test_a_topic_with_another_message_has_bad_rows(broker, registry, topic):
    context = SerializationContext(topic, MessageField.VALUE)
    rows = [
        serializer(broker)(message({"id": 1}), context),
        serializer(broker, "Refund")(MADE["Refund"](id=2), context),
        b"\0\xff\xff\xff\xff\0",
        b"\0\0\0",
    ]
    form = hr.Protobuf(registry, subject=f"{topic}-value", columns=["id"], on_error="null")
    assert hr.decode(pa.array(rows), form).to_pylist() == [{"id": 1}, None, None, None]
    refunds = hr.Protobuf(registry, subject=f"{topic}-value", message="Refund", on_error="null")
    assert hr.decode(pa.array(rows), refunds).to_pylist() == [None, {"id": 2}, None, None]
    _, bad = form.bound((), "value").column(pa.array(rows))
    assert [(row, why) for row, _, why in bad] == [
        (1, "it is a message shop.Refund, not shop.Order"),
        (2, "schema id 4294967295 is not known"),
        (3, "it does not begin with the magic byte 0 and the schema's id (4 bytes)"),
    ]


def test_confluents_deserializer_reads_what_is_sent(broker, registry, topic):
    orders = pa.table({"value": pa.array([{"id": 1, "city": "x", "lines": [{"name": "a", "count": 2}]}, {"id": 2}])})
    with hr.Producer(broker.bootstrap_servers) as producer:
        for form in (
            hr.Protobuf(ORDER, registry=registry),
            hr.Protobuf(registry),
            hr.Protobuf(MADE["Order"], registry=registry),
        ):
            producer.send_arrow(topic, orders, value=form).result(TIMEOUT)
    assert registry.latest(f"{topic}-value").schema_type == "PROTOBUF"
    deserializer = ProtobufDeserializer(MADE["Order"], {"use.deprecated.format": False})
    context = SerializationContext(topic, MessageField.VALUE)
    rows = hr.read(broker.bootstrap_servers, topic).read_all()["value"].to_pylist()
    found = [deserializer(row, context) for row in rows]
    assert found == 3 * [message({"id": 1, "city": "x", "lines": [{"name": "a", "count": 2}]}), message({"id": 2})]
    with pytest.raises(SchemaError, match=r"value: field id: 1.5 in row 0 cannot be written as Int64"):
        hr.encode(pa.table({"id": [1.5]}), hr.Protobuf(ORDER))
    with pytest.raises(SchemaError, match='value: field channel: "MAIL" is none of its symbols, which are WEB, SHOP'):
        hr.encode(pa.table({"channel": ["MAIL"]}), hr.Protobuf(ORDER))
    with pytest.raises(SchemaError, match=r"value: field at: .* us in row 0 is beyond the range of its type"):
        hr.encode(pa.table({"at": pa.array([2**62], pa.timestamp("us", "UTC"))}), hr.Protobuf(ORDER))


PRICE = 'syntax = "proto3"; message Price { int64 cents = 1; }'
PRICED = 'syntax = "proto3"; import "price.proto"; message Order { Price price = 1; }'


def test_the_registry_keeps_schemas_that_import_others(broker, registry, topic):
    registry.register(f"{topic}-price", PRICE, schema_type="PROTOBUF")
    with pytest.raises(SchemaRegistryError, match=r"422.*price\.proto"):
        registry.register(f"{topic}-value", PRICED, schema_type="PROTOBUF")
    reference = SchemaReference("price.proto", f"{topic}-price", 1)
    registry.register(f"{topic}-value", PRICED, schema_type="PROTOBUF", references=[reference])
    form = hr.Protobuf(registry, subject=f"{topic}-value")
    rows = hr.encode(pa.table({"price": [{"cents": 5}]}), form)
    assert hr.decode(rows, form).to_pylist() == [{"price": {"cents": 5}}]
    with pytest.raises(SchemaRegistryError, match="Invalid schema: "):
        registry.register(f"{topic}-value", "message {", schema_type="PROTOBUF")


FIELDS = "message A {{ {} }}"


@pytest.mark.parametrize(
    ("new", "old", "kinds"),
    [
        ("int64 a = 1;", "int32 a = 1;", []),
        ("string b = 1;", "bytes a = 1;", []),
        ("", "int32 a = 1;", []),
        ("int32 a = 1; string b = 2;", "int32 a = 1;", []),
        ("string a = 1;", "int32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("sint32 a = 1;", "int32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("repeated int32 a = 1;", "int32 a = 1;", ["FIELD_NUMERIC_LABEL_CHANGED"]),
        ("repeated string a = 1;", "string a = 1;", []),
        ("A a = 1;", "int32 a = 1;", ["FIELD_KIND_CHANGED"]),
        ("map<int32, int32> a = 1;", "A a = 1;", ["FIELD_KIND_CHANGED"]),
        ("map<int64, A> a = 1;", "map<int32, A> a = 1;", []),
        ("map<int32, A> a = 1;", "map<int32, string> a = 1;", ["FIELD_KIND_CHANGED"]),
        ("A.B a = 1; message B {}", "A a = 1; message B {}", ["FIELD_NAMED_TYPE_CHANGED"]),
        ("", "message B {}", ["MESSAGE_REMOVED"]),
        ("oneof c { int32 a = 1; }", "oneof c { int32 a = 1; int32 b = 2; }", ["ONEOF_FIELD_REMOVED"]),
        ("oneof c { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
        ("oneof c { int32 a = 1; int32 b = 2; }", "int32 a = 1;", []),
    ],
)  # fmt: skip
def test_what_may_follow_what(new, old, kinds):
    def whole(fields):
        return 'syntax = "proto3"; ' + FIELDS.format(fields), []

    found = _native.protobuf_incompatibilities(whole(new), whole(old))
    assert [kind for kind, _, _ in found] == kinds
    assert all(path.startswith("A.") for _, path, _ in found)


def test_what_is_required_must_have_been():
    def of(label):
        return f'syntax = "proto2"; message A {{ {label} int32 a = 1; }}', []

    [(kind, path, why)] = _native.protobuf_incompatibilities(of("required"), of("optional"))
    assert (kind, path) == ("REQUIRED_FIELD_ADDED", "A.a")
    assert why == "the reader requires it, and the writer does not"
    assert _native.protobuf_incompatibilities(of("optional"), of("required")) == []


def test_the_registry_takes_no_schema_that_breaks_those_before(registry, topic):
    def order(fields):
        return f'syntax = "proto3"; message Order {{ {fields} }}'

    subject = f"{topic}-value"
    first = registry.register(subject, order("int32 id = 1;"), schema_type="PROTOBUF")
    assert registry.register(subject, order("int64 id = 1; string city = 2;"), schema_type="PROTOBUF") > first
    with pytest.raises(SchemaRegistryError, match=r"FIELD_SCALAR_KIND_CHANGED at Order.id: int64 cannot be read as "):
        registry.register(subject, order("string id = 1;"), schema_type="PROTOBUF")
    with pytest.raises(SchemaRegistryError, match="it is of type PROTOBUF, not AVRO"):
        registry.register(subject, '"string"')


def test_texts_that_mean_the_same_are_one_schema(broker, topic):
    registry = hr.SchemaRegistry(broker.registry_url)

    def registered(text):
        return registry.register(topic, text, schema_type="PROTOBUF")

    text = 'syntax = "proto3"; package shop; message Note { string the_text = 1; }'
    first = registered(text)
    assert registry.schema(first).schema == text
    same = (
        'syntax = "proto3";\n// A note.\npackage shop;\n\nmessage Note {\n  /* What it says. */ string the_text = 1;\n}'
    )
    assert registered(same) == first
    described = _native.protobuf_file(text, [])[0]
    assert registered(described) == first
    others = [
        text.replace("string the_text = 1;", 'string the_text = 1 [json_name = "t"];'),
        text.replace("string the_text = 1;", "string the_text = 1 [deprecated = true];"),
        text.replace("message Note", 'option java_package = "a"; message Note'),
        text + " service S { rpc R(Note) returns (Note); }",
    ]
    numbers = [registered(other) for other in others]
    assert len({first, *numbers}) == 5
    assert [registry.schema(number).schema for number in numbers] == others
