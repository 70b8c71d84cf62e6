"""JSON to columns: types, bad rows, schemas from a registry, and what other readers make of the same texts."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct

import confluent_kafka.schema_registry as confluent
import pyarrow as pa
import pyarrow.json as pj
import pytest
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import ConfigError, DecodeError, SchemaError

TIMEOUT = 30
ORDER = pa.schema([
    ("id", pa.int64()),
    ("city", pa.string()),
    ("price", pa.struct([("amount", pa.float64()), ("currency", pa.string())])),
    ("tags", pa.list_(pa.string())),
    ("counts", pa.map_(pa.string(), pa.int32())),
])  # fmt: skip
ROW = {"id": 1, "city": "Ä\n", "price": {"amount": 2.5, "currency": "€"}, "tags": ["a", None], "counts": {"x": 1}}
# The same as a JSON Schema.
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "definitions": {
        "money": {"type": "object", "properties": {"amount": {"type": "number"}, "currency": {"type": "string"}}}
    },
    "properties": {
        "id": {"type": "integer"},
        "city": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "price": {"$ref": "#/definitions/money"},
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["id"],
}  # fmt: skip


# Each level has the one before twice: few bytes that stand for a million columns.
WIDE = {"$ref": "#/definitions/d20", "definitions": {"d0": {"type": "integer"}, **{
    f"d{n}": {"properties": {name: {"$ref": f"#/definitions/d{n - 1}"} for name in "ab"}} for n in range(1, 21)
}}}  # fmt: skip


def texts(*rows):
    return pa.array([row if isinstance(row, (bytes, type(None))) else json.dumps(row).encode() for row in rows])


def test_values_come_out_as_columns():
    rows = texts(ROW, None, {}, {**ROW, "more": [{"of": "it"}], "id": 2})
    column = hr.decode(rows, hr.Json(ORDER))
    empty = dict.fromkeys(ORDER.names)
    counts = {"counts": [("x", 1)]}
    assert column.to_pylist() == [{**ROW, **counts}, None, empty, {**ROW, **counts, "id": 2}]
    assert column.type == pa.struct(list(ORDER))
    assert hr.decode(pa.array(["7", None]), hr.Json(pa.int64())).to_pylist() == [7, None]


def test_a_json_schema_gives_the_columns():
    column = hr.decode(texts(ROW), hr.Json(SCHEMA))
    wanted = {name: pa.field(name, of) for name, of in zip(ORDER.names, ORDER.types, strict=True)}
    wanted["id"] = wanted["id"].with_nullable(False)
    wanted["counts"] = pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), False)))
    assert [column.type.field(index) for index in range(5)] == list(wanted.values())
    with pytest.raises(DecodeError, match="row 0, field id: it is null or missing"):
        hr.decode(texts({"city": "x"}), hr.Json(json.dumps(SCHEMA)))
    dated = {
        "type": "object",
        "properties": {name: {"type": "string", "format": name} for name in ("date", "date-time")},
    }
    row = hr.decode(texts({"date": "2026-11-25", "date-time": "2026-11-25T01:02:03+01:00"}), hr.Json(dated))[0].as_py()
    at = dt.datetime(2026, 11, 25, 0, 2, 3, tzinfo=dt.timezone.utc)
    assert (row["date"], row["date-time"].timestamp()) == (dt.date(2026, 11, 25), at.timestamp())


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "schema is no JSON Schema"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "field a: its values are of several types"),
        ({"type": "object", "properties": {"a": {"items": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}},
         r"field a\[\]: it has several alternatives"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "contains itself"),
        ({"type": "object", "properties": {"a": {"$ref": "other.json"}}}, "names no place that .* and no document"),
        ({"type": "object", "properties": {"a": True}}, "field a: it takes any value"),
        (pa.schema([("a", pa.struct([("b", pa.uint8())]))]), "field a.b: JSON is not decoded into UInt8"),
        (WIDE, "more than 10000 columns"),
        (pa.map_(pa.string(), pa.int64(), keys_sorted=True), "JSON is not decoded into"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), r"\"a\" stands in its struct twice"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_schema_that_has_no_columns_is_named(schema, why):
    with pytest.raises(SchemaError, match=why):
        hr.Json(schema)


def test_fields_are_chosen_by_their_paths():
    chosen = hr.Json(ORDER, columns=["price.amount", "tags"])
    assert hr.decode(texts(ROW), chosen).to_pylist() == [{"price": {"amount": 2.5}, "tags": ["a", None]}]
    whole = hr.Json(ORDER, columns=["price.amount", "price"])
    assert hr.decode(texts(ROW), whole).to_pylist() == [{"price": ROW["price"]}]
    items = pa.schema([("lines", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])))])
    assert hr.decode(texts({"lines": [{"a": 1, "b": 2}]}), hr.Json(items, columns=["lines.b"])).to_pylist() == [
        {"lines": [{"b": 2}]}
    ]
    for columns, why in [(["cost"], "no field 'cost' in .*which has id, city"), (["city.x"], "which is no object")]:
        with pytest.raises(SchemaError, match=why):
            hr.Json(ORDER, columns=columns)
    with pytest.raises(TypeError, match="takes a list of fields"):
        hr.Json(ORDER, columns="id")


def test_what_excludes_each_other_is_said():
    registry = hr.SchemaRegistry("http://127.0.0.1:1")
    for arguments, why in [
        ({}, "takes a schema or a registry"),
        ({"schema": ORDER, "subject": "x"}, "give a registry, and no schema"),
        ({"registry": registry, "reader": "newest"}, "'latest' or the id"),
    ]:
        with pytest.raises(ConfigError, match=why):
            hr.Json(**arguments)
    with pytest.raises(TypeError, match="not list"):
        hr.Json([1])
    with pytest.raises(ConfigError, match="name its subject"):
        hr.decode(texts({}), hr.Json(registry))


def test_bad_rows_are_told_apart_in_a_consumer(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    rows = [b'{"id": 1}', b'{"id": "x"}', b"", b"not JSON", None, b'{"id": 2}']
    with hr.Producer(servers) as producer:
        for row in rows:
            producer.send(topic, row, partition=0)
    order = pa.schema([("id", pa.int64())])
    table = hr.read(servers, topic, value=hr.Json(order, on_error="column")).read_all()
    assert table["value"].to_pylist() == [{"id": 1}, None, None, None, None, {"id": 2}]
    assert table["value_error"].to_pylist() == [
        None,
        "field id: a string stands where a whole number should",
        "the bytes end within a value",
        "it is not JSON at byte 0: it is no value",
        None,
        None,
    ]
    assert hr.bad_rows(table)["value"].to_pylist() == [rows[1], rows[2], rows[3]]
    with hr.Consumer(servers, auto_offset_reset="earliest", value=hr.Json(order)) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(TIMEOUT)["value"].to_pylist() == [{"id": 1}]
        with pytest.raises(DecodeError, match=rf"{topic}-0, offset 1: value, field id: a string"):
            consumer.poll(TIMEOUT)


def test_what_confluents_serializer_wrote_is_read(topic):
    with hr.Broker.start(registry=True) as broker:
        serializer = JSONSerializer(json.dumps(SCHEMA), confluent.SchemaRegistryClient({"url": broker.registry_url}))
        context = SerializationContext(topic, MessageField.VALUE)
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send(topic, serializer(ROW, context), partition=0)
            # Bare JSON among it.
            producer.send(topic, b'{"id": 5}', partition=0)
        registry = hr.SchemaRegistry(broker.registry_url)
        for format in (hr.Json(registry, on_error="column"), hr.Json(registry, reader=1, on_error="column")):  # noqa: A001
            table = hr.read(broker.bootstrap_servers, topic, value=format).read_all()
            assert table["value"].to_pylist()[0] == {**ROW, "counts": [("x", 1)]}
            assert table["value"].to_pylist()[1]["id"] == 5
            assert table["value_schema_id"].to_pylist() == [1, None]
        registry.register("other", '"int"')
        with pytest.raises(SchemaError, match="is of type AVRO, not JSON"):
            hr.decode(texts({}), hr.Json(registry, subject="other"))


def test_numbers_and_times_are_exact():
    money = pa.schema([("amount", pa.decimal128(20, 2)), ("at", pa.timestamp("ns", "UTC")), ("whole", pa.int64())])
    row = b'{"amount": 123456789012345678.90, "at": "2026-11-25T00:00:00.123456789Z", "whole": 9007199254740993}'
    found = hr.decode(texts(row), hr.Json(money))
    assert found.field("amount")[0].as_py() == decimal.Decimal("123456789012345678.90")
    assert found.field("at").cast(pa.int64())[0].as_py() % 10**9 == 123456789
    assert found.field("whole")[0].as_py() == 9007199254740993
    for text, why in [
        (b'{"amount": 1.234}', "field amount: 1.234 has no place in its type, decimal"),
        (b'{"amount": 1e30}', "1e30 has no place in its type, decimal"),
        (b'{"whole": 9223372036854775808}', "9223372036854775808 has no place in its type, int64"),
        (b'{"at": "yesterday"}', '"yesterday" is not a timestamp'),
        (b'{"whole": NaN}', "it is no value"),
    ]:
        with pytest.raises(DecodeError, match=why):
            hr.decode(texts(text), hr.Json(money))


NAMES = st.sampled_from(["a", "b", "ü", 'q"', "back\\slash", "x" * 40])
TYPES = st.recursive(
    st.sampled_from([pa.int64(), pa.float64(), pa.string(), pa.bool_()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(lambda of: pa.struct(list(of.items()))),
    ),
    max_leaves=6,
)


def values_of(of):
    if pa.types.is_list(of):
        return st.lists(st.none() | values_of(of.value_type), max_size=3)
    if pa.types.is_struct(of):
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in of})
    if pa.types.is_int64(of):
        return st.integers(-(2**63), 2**63 - 1)
    if pa.types.is_float64(of):
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.text(max_size=12) if pa.types.is_string(of) else st.booleans()


@given(st.data(), st.booleans(), st.booleans())
def test_what_json_dumps_writes_comes_back(data, escaped, spaced):
    of = data.draw(TYPES)
    rows = data.draw(st.lists(values_of(of), min_size=1, max_size=8))
    written = [json.dumps(row, ensure_ascii=escaped, indent=1 if spaced else None).encode() for row in rows]
    assert hr.decode(pa.array(written), hr.Json(of)) == pa.array(rows, of)


@given(st.data())
def test_pyarrow_reads_the_same(data):
    of = data.draw(st.dictionaries(NAMES, TYPES, min_size=1, max_size=3).map(lambda of: pa.schema(list(of.items()))))
    rows = data.draw(st.lists(values_of(pa.struct(list(of))), min_size=1, max_size=8))
    written = [json.dumps(row).encode() for row in rows]
    options = pj.ParseOptions(explicit_schema=of)
    theirs = pj.read_json(pa.BufferReader(b"\n".join(written)), parse_options=options).combine_chunks()
    assert hr.decode(pa.array(written), hr.Json(of)).flatten() == [column.combine_chunks() for column in theirs.columns]


TOKENS = (
    *('{"x":', "}", "[", "]", ",", '"', "\\", "\\u00e4", "1", "-", "e5", ".", "true", "nul", "l"),
    *(" ", "\t", ":"),
)


@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_it_takes_what_python_takes_as_json(tokens):
    """But for NaN and its like, which are none. Within a field that nobody asked for, so of any kind."""
    text = '{"x":' + "".join(tokens) + "}"
    try:
        json.loads(text)
        is_json = True
    except ValueError:
        is_json = False
    # A struct that is asked for none of what is there.
    _, bad = hr.Json(pa.schema([("other", pa.int64())])).column(pa.array([text.encode()]))
    assert bool(bad) != is_json, (text, bad)


def test_a_batch_of_wide_nulls_comes_in_parts():
    """Few bytes that stand for many: what a call may make of them is bounded, and no row is lost."""
    wide = pa.schema([(f"f{n}", pa.int64()) for n in range(1000)])
    rows = pa.chunked_array([pa.array([b"{}"] * 50_000)])
    assert len(hr.decode(rows, hr.Json(wide))) == 50_000
    # Room for all rows of all columns from the start would be 8 GB.
    wider = pa.schema([(f"f{n}", pa.string()) for n in range(9000)])
    column, _ = hr.Json(wider).column(pa.array([b"{}"] * 200_000))
    assert 0 < len(column) < 200_000


def test_an_id_in_front_is_skipped():
    row = struct.pack(">bI", 0, 17) + b'{"id": 3}'
    assert hr.decode(pa.array([row, b'{"id": 4}']), hr.Json(pa.schema([("id", pa.int64())]))).to_pylist() == [
        {"id": 3},
        {"id": 4},
    ]
