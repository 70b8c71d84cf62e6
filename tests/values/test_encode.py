"""Columns to Avro: what fastavro and Confluent's deserializer read of it, and what cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import io
import json
from decimal import Decimal

import confluent_kafka.schema_registry as confluent
import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import assume, given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import ConfigError, SchemaError, SchemaRegistryError
from headrace.registry import SchemaReference

TIMEOUT = 30
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "city", "type": ["null", "string"], "default": None},
]}  # fmt: skip
MANY = {"type": "record", "name": "Many", "fields": [
    {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP"]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "kind", "type": "Channel"}, {"name": "count", "type": ["int", "null"]}]}}},
    {"name": "counts", "type": {"type": "map", "values": "float"}},
    {"name": "maybe", "type": ["null", {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}]},
]}  # fmt: skip
ROW = {
    "channel": "SHOP", "at": dt.datetime(2026, 11, 25, 1, 2, 3, tzinfo=dt.timezone.utc), "day": dt.date(2026, 11, 25),
    "time": dt.time(1, 2, 3, 4), "price": Decimal("-12.50"), "hash": b"ab",
    "uuid": "6fa459ea-ee8a-3ca4-894e-db77e160355e",
    "lines": [{"kind": "WEB", "count": None}, {"kind": "SHOP", "count": 2}], "counts": [("a", 0.5)], "maybe": None,
}  # fmt: skip


def read(schema, row):
    return fastavro.schemaless_reader(io.BytesIO(row), schema, None)


def test_fastavro_reads_what_is_written():
    column = pa.array(
        [ROW, {**ROW, "maybe": {"x": 7}, "lines": []}], hr.decode(pa.array([], pa.binary()), hr.Avro(MANY)).type
    )
    rows = hr.encode(column, hr.Avro(MANY))
    found = [read(MANY, row) for row in rows.to_pylist()]
    wanted = {**ROW, "counts": {"a": 0.5}, "uuid": found[0]["uuid"]}
    assert str(found[0]["uuid"]) == ROW["uuid"]
    assert found == [wanted, {**wanted, "maybe": {"x": 7}, "lines": []}]
    assert hr.decode(rows, hr.Avro(MANY)).to_pylist() == column.to_pylist()


@pytest.mark.parametrize("registered", [False, True])
def test_a_struct_that_is_null_is_a_tombstone_in_every_format(registered):
    json_schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    proto = 'syntax = "proto3"; message Order { int64 id = 1; }'
    column = pa.array([{"id": 1}, None, {"id": 2}, None], pa.struct([("id", pa.int64())]))
    with contextlib.ExitStack() as stack:
        extra = {}
        if registered:
            broker = stack.enter_context(hr.Broker.start(registry=True))
            extra["registry"] = hr.SchemaRegistry(broker.registry_url)
        for kind, schema in ((hr.Avro, ORDER), (hr.Json, json_schema), (hr.Protobuf, proto)):
            form = kind(schema, **extra, **({"subject": kind.__name__} if registered else {}))
            for rows in (column, column.slice(1), column.slice(1, 2)):
                encoded = hr.encode(rows, form)
                assert [row is None for row in encoded.to_pylist()] == [row is None for row in rows.to_pylist()]


def test_columns_are_cast_where_nothing_is_lost():
    table = pa.table({
        "city": pa.array(["x", None], pa.large_string()).dictionary_encode(),
        "id": pa.array([1, 2], pa.uint8()),
    })  # fmt: skip
    rows = hr.encode(table, hr.Avro(ORDER))
    assert [read(ORDER, row) for row in rows.to_pylist()] == [{"id": 1, "city": "x"}, {"id": 2, "city": None}]
    # What may be null can be left out, and a struct that is null is a tombstone.
    column = pa.array([{"id": 1}, None], pa.struct([("id", pa.int64())]))
    assert hr.encode(column, hr.Avro(ORDER)).to_pylist() == [b"\x02\x00", None]
    assert hr.encode(pa.table({"id": pa.array([], pa.int64())}), hr.Avro(ORDER)).to_pylist() == []
    sliced = pa.table({"id": pa.array([1, 2, 3])}).slice(1, 1)
    assert hr.encode(sliced, hr.Avro(ORDER)).to_pylist() == [b"\x04\x00"]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"city": ["x"]}, "value: field id: there is no such column"),
        ({"id": [1], "town": ["x"]}, "field town: the schema has no such field; it has id, city"),
        ({"id": [1, None]}, "field id: it is null in row 1, which its type does not take"),
        ({"id": ["1"]}, "field id: a text is not written as Int64"),
        ({"id": [[1]]}, "field id: "),
        ({"id": pa.array([1, 2**63], pa.uint64())}, "field id: .*9223372036854775808"),
        ({"id": [1.0, 1.5]}, "field id: 1.5 in row 1 cannot be written as Int64"),
    ],
)
def test_what_does_not_fit_names_the_field(columns, why):
    with pytest.raises(SchemaError, match=why):
        hr.encode(pa.table(columns), hr.Avro(ORDER))


def test_values_that_have_no_place_name_the_field():
    def encoded(name, values):
        fields = [field for field in MANY["fields"] if field["name"] in {"channel", name}]
        table = pa.table({"channel": ["WEB"] * len(values), name: values})
        return hr.encode(table, hr.Avro({**MANY, "fields": fields}))

    for name, values, why in [
        ("channel", ["PHONE"], "field channel: .*PHONE.* is none of its symbols, which are WEB, SHOP"),
        ("price", pa.array([Decimal("12345678.90")]), "field price: "),
        ("price", pa.array([Decimal("1.005")]), "field price: 1.005 in row 0 cannot be written"),
        ("hash", pa.array([b"abc"]), "field hash: "),
    ]:
        with pytest.raises(SchemaError, match=why):
            encoded(name, values)


def test_each_row_of_a_union_is_the_branch_that_has_a_value():
    price = {"type": "record", "name": "Price", "fields": [{"name": "cents", "type": "int"}]}
    of = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": ["string", "null", price, "bytes"]},
        {"name": "b", "type": {"type": "array", "items": ["long", "string"]}},
        {"name": "n", "type": ["null", "int", "long"]},
        {"name": "m", "type": ["null", {"type": "map", "values": ["boolean", "string"]}]},
    ]}  # fmt: skip
    form = hr.Avro(of)
    column = pa.array(
        [
            {"a": {"member0": "x"}, "b": [{"member0": 1}, {"member1": "y"}], "n": 7, "m": [("k", {"member0": True})]},
            {"a": None, "b": [], "n": None, "m": None},
            {"a": {"member1": {"cents": 3}}, "b": [{"member1": ""}], "n": 1 << 40, "m": []},
            None,
            {"a": {}, "b": [{"member0": -1}], "n": 0, "m": [("k", {"member1": "v"})]},
        ],
        hr.decode(pa.array([], pa.binary()), form).type,
    )
    rows = hr.encode(column, form)
    assert [row and read(of, row) for row in rows.to_pylist()] == [
        {"a": "x", "b": [1, "y"], "n": 7, "m": {"k": True}},
        {"a": None, "b": [], "n": None, "m": None},
        {"a": {"cents": 3}, "b": [""], "n": 1 << 40, "m": {}},
        None,
        {"a": None, "b": [-1], "n": 0, "m": {"k": "v"}},
    ]
    # A struct of no members is the null of a union, as null itself is.
    assert hr.decode(rows.slice(0, 3), form) == column.slice(0, 3)
    assert hr.encode(column.slice(1, 3), form).to_pylist() == rows.slice(1, 3).to_pylist()
    some = pa.array([{"b": [{"member0": 1}]}], pa.struct([("b", pa.list_(pa.struct([("member0", pa.int32())])))]))
    assert read(of, hr.encode(some, form)[0].as_py()) == {"a": None, "b": [1], "n": None, "m": None}
    for row, why in [
        (
            {"a": {"member0": "x", "member2": b"y"}, "b": []},
            "field a: more than one member of the union has a value in row 0",
        ),
        ({"b": [{"member0": 1}, {}]}, r"field b\[\]: it is null, which its type does not take"),
        ({"b": [None]}, r"field b\[\]: it is null, which its type does not take"),
        ({"b": [], "m": [("k", None)]}, r"field m\[\]: it is null, which its type does not take"),
    ]:
        with pytest.raises(SchemaError, match=why):
            hr.encode(pa.array([row], column.type), form)
    with pytest.raises(SchemaError, match=r"field a\.member7: the schema has no such field"):
        hr.encode(pa.array([{"a": {"member7": 1}, "b": []}]), form)


def test_what_json_has_no_place_for_is_kept_or_refused():
    counts = pa.map_(pa.string(), pa.int32())
    of = pa.schema([("counts", counts), ("nested", pa.list_(pa.map_(pa.string(), counts)))])
    rows = [
        {"counts": [("a", None), ('"b', 1)], "nested": [[("x", [("y", None)]), ("z", None)]]},
        {"counts": [], "nested": None},
        {"counts": None, "nested": [[], None]},
    ]
    column = pa.array(rows, pa.struct(list(of)))
    encoded = hr.encode(column, hr.Json(of))
    assert json.loads(encoded[0].as_py()) == {
        "counts": {"a": None, '"b': 1},
        "nested": [{"x": {"y": None}, "z": None}],
    }
    assert hr.decode(encoded, hr.Json(of)) == column
    assert hr.encode(column.slice(1), hr.Json(of)).to_pylist() == encoded.to_pylist()[1:]
    for kind, last, beyond in [
        (pa.date32(), 2_932_896, 2_932_897),
        (pa.date32(), -719_528, -719_529),
        (pa.timestamp("ms", "UTC"), 253_402_300_799_999, 253_402_300_800_000),
        (pa.timestamp("us", "UTC"), -62_167_219_200_000_000, -62_167_219_200_000_001),
    ]:
        form = hr.Json(pa.schema([("at", kind)]))
        made = pa.StructArray.from_arrays([pa.array([last], kind)], ["at"])
        assert hr.decode(hr.encode(made, form), form) == made
        wrong = pa.StructArray.from_arrays([pa.array([None, beyond], kind)], ["at"])
        with pytest.raises(SchemaError, match=r"field at: .* in row 1 is no time of the years 0 to 9999"):
            hr.encode(wrong, form)


def test_a_time_without_a_zone_is_not_taken_for_one_with():
    at = {"type": "long", "logicalType": "timestamp-millis"}
    for logical, zone, why in [
        ("timestamp-millis", None, "without a time zone is not written as one with"),
        ("local-timestamp-millis", "UTC", "with a time zone is not written as one without"),
    ]:
        of = {"type": "record", "name": "R", "fields": [{"name": "at", "type": {**at, "logicalType": logical}}]}
        with pytest.raises(SchemaError, match=f"field at: a timestamp {why}: cast it first"):
            hr.encode(pa.table({"at": pa.array([0], pa.timestamp("ms", zone))}), hr.Avro(of))


def test_schemas_that_are_not_written_are_named():
    fixed = [{"type": "fixed", "name": f"F{size}", "size": size} for size in range(129)]
    many = {"type": "record", "name": "R", "fields": [{"name": "a", "type": fixed}]}
    for schema, why in [(many, "a union of 129 types is not written"), ('"int"', "the schema is none")]:
        with pytest.raises(SchemaError, match=why):
            hr.encode(pa.table({"a": [1]}), hr.Avro(schema))
    with pytest.raises(ConfigError, match="Text is not written"):
        hr.encode(pa.table({"a": [1]}), hr.Text())
    with pytest.raises(ConfigError, match="schemas by id are read only"):
        hr.encode(pa.table({"a": [1]}), hr.Avro(ORDER, schemas={1: ORDER}))
    with pytest.raises(TypeError, match="not list"):
        hr.encode([1], hr.Avro(ORDER))


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_columns_that_are_sent_are_read_by_confluents_deserializer(broker, topic, face):
    servers, registry = broker.bootstrap_servers, hr.SchemaRegistry(broker.registry_url)
    key = {"type": "record", "name": "Key", "fields": [{"name": "n", "type": "int"}]}
    data = pa.table({
        "key": pa.array([{"n": n} for n in range(3)]),
        "value": pa.array([{"id": 0, "city": "x"}, None, {"id": 2, "city": None}]),
        "partition": pa.array([0] * 3, pa.int32()),
    })  # fmt: skip
    by_key, by_value = hr.Avro(key, registry=registry), hr.Avro(ORDER, registry=registry)
    if face == "blocking":
        with hr.Producer(servers) as producer:
            assert producer.send_arrow(topic, data, key=by_key, value=by_value).result(TIMEOUT) == 3
    else:

        async def work():
            async with hr.aio.Producer(servers) as producer:
                return await (await producer.send_arrow(topic, data, key=by_key, value=by_value))

        assert asyncio.run(work()) == 3
    assert registry.latest(f"{topic}-value").version == 1
    raw = hr.read(servers, topic).read_all()
    deserializer = AvroDeserializer(confluent.SchemaRegistryClient({"url": broker.registry_url}))
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserializer(row, context) for row in raw["value"].to_pylist()] == data["value"].to_pylist()
    back = hr.read(servers, topic, key=hr.Avro(registry), value=hr.Avro(registry)).read_all()
    assert back["value"].to_pylist() == data["value"].to_pylist()
    assert back["key"].to_pylist() == data["key"].to_pylist()


def test_the_newest_schema_of_a_subject_can_be_used(broker, topic):
    registry = hr.SchemaRegistry(broker.registry_url)
    number = registry.register("orders-of-all", json.dumps(ORDER))
    rows = hr.encode(pa.table({"id": [1]}), hr.Avro(registry, subject="orders-of-all"))
    assert rows.to_pylist() == [b"\0" + number.to_bytes(4, "big") + b"\x02\x00"]
    assert hr.encode(pa.table({"id": [1]}), hr.Avro(ORDER, registry=registry, subject="orders-of-all")) == rows
    of_another = {"type": "record", "name": "Line", "fields": [{"name": "order", "type": "shop.Order"}]}
    with pytest.raises(ConfigError, match="register a schema with references by hand"):
        by_hand = hr.Avro(of_another, registry=registry, subject="lines", references=[ORDER])
        hr.encode(pa.table({"order": [{"id": 1}]}), by_hand)
    number = registry.register(
        "lines", json.dumps(of_another), references=[SchemaReference("shop.Order", "orders-of-all", 1)]
    )
    lines = hr.encode(pa.table({"order": [{"id": 1}]}), hr.Avro(registry, subject="lines")).to_pylist()
    assert lines == [b"\0" + number.to_bytes(4, "big") + b"\x02\x00"]
    with pytest.raises(ConfigError, match="name the subject="):
        hr.encode(pa.table({"id": [1]}), hr.Avro(ORDER, registry=registry))


@pytest.mark.parametrize("form", [hr.Avro, hr.Json, hr.Protobuf])
def test_a_schema_that_must_be_there_is_not_registered(broker, topic, form):
    registry = hr.SchemaRegistry(broker.registry_url)
    schema = {
        hr.Avro: json.dumps(ORDER),
        hr.Json: '{"type": "object", "properties": {"id": {"type": "integer"}}}',
        hr.Protobuf: 'syntax = "proto3"; message Order { int64 id = 1; }',
    }[form]
    table = pa.table({"id": [1]})
    there = form(schema, registry=registry, subject=topic, auto_register=False)
    with pytest.raises(SchemaRegistryError, match=rf"Subject '{topic}' not found") as caught:
        hr.encode(table, there)
    assert caught.value.status == 404
    assert topic not in registry.subjects()
    rows = hr.encode(table, form(schema, registry=registry, subject=topic))
    assert hr.encode(table, there) == rows
    for wrong in ({"registry": registry}, {"schema": schema}):
        with pytest.raises(ConfigError, match="auto_register=False looks a schema up in a registry: give both"):
            form(**wrong, auto_register=False)


def test_nothing_is_sent_of_what_cannot_be_written(broker, topic):
    servers, registry = broker.bootstrap_servers, hr.SchemaRegistry(broker.registry_url)
    registry.register(
        f"{topic}-value", json.dumps({**ORDER, "fields": [*ORDER["fields"], {"name": "x", "type": "int"}]})
    )
    longer = {**ORDER, "fields": [*ORDER["fields"], {"name": "y", "type": "string"}]}
    good = pa.table({"value": pa.array([{"id": 1}] * 10), "partition": pa.array([0] * 10, pa.int32())})
    bad = pa.concat_tables(
        [
            good,
            pa.table(
                {
                    **good.slice(0, 1).to_pydict(),
                    "value": pa.array([{"id": None}], good["value"].type),
                    "partition": pa.array([0], pa.int32()),
                }
            ),
        ]
    )
    with hr.Admin(servers) as admin, hr.Producer(servers) as producer:
        admin.create_topic(topic, 1)
        with pytest.raises(SchemaRegistryError, match="status 409") as caught:
            producer.send_arrow(topic, good, value=hr.Avro(longer, registry=registry))
        assert caught.value.status == 409
        with pytest.raises(SchemaError, match="value: field id: it is null in row 0"):
            producer.send_arrow(topic, bad, value=hr.Avro(ORDER))
        with pytest.raises(SchemaError, match="there is no column 'key'"):
            producer.send_arrow(topic, good, key=hr.Avro(ORDER))
        with pytest.raises(SchemaError, match="column value is string"):
            producer.send_arrow(topic, pa.table({"value": ["x"]}), value=hr.Avro(ORDER))
        with pytest.raises(ConfigError, match="value takes a format"):
            producer.send_arrow(topic, good, value="avro")  # type: ignore[call-overload]
        producer.flush()
    assert hr.read(servers, topic).read_all().num_rows == 0


PLAIN = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
}


@st.composite
def typed(draw, depth=2):
    """An Avro type, and values of it."""
    kinds = [*PLAIN, *(["array", "map", "record", "optional", "union", "enum", "fixed"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in PLAIN:
        return kind, PLAIN[kind]
    return draw(nested(kind, f"N{draw(st.integers(0, 10**9))}", depth))


@st.composite
def nested(draw, kind, name, depth):
    """One that is named, or has others in it."""
    if kind in {"enum", "fixed"}:
        of = {"type": kind, "name": name, **({"size": 3} if kind == "fixed" else {"symbols": ["A", "B"]})}
        return of, st.sampled_from("AB") if kind == "enum" else st.binary(min_size=3, max_size=3)
    if kind == "record":
        fields = draw(st.lists(typed(depth=depth - 1), min_size=1, max_size=3))
        listed = [{"name": f"f{at}", "type": of} for at, (of, _) in enumerate(fields)]
        values = {f"f{at}": values for at, (_, values) in enumerate(fields)}
        return {"type": "record", "name": name, "fields": listed}, st.fixed_dictionaries(values)
    if kind == "union":
        return draw(union(depth))
    of, values = draw(typed(depth=depth - 1))
    if kind == "array":
        return {"type": "array", "items": of}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": "map", "values": of}, st.dictionaries(st.text(max_size=4), values, max_size=3)
    assume(not isinstance(of, list) and of != "null")
    return draw(st.permutations(["null", of])), st.none() | values


@st.composite
def union(draw, depth):
    """One of several types, of which no two look alike."""
    branches = draw(st.lists(typed(depth=depth - 1) | st.just(("null", st.none())), min_size=1, max_size=4))
    kinds = [of if isinstance(of, str) else of["type"] for of, _ in branches if not isinstance(of, list)]
    # Of two arrays or maps nobody could say which one was written.
    assume(len(kinds) == len(branches) and len(set(kinds)) == len(kinds))
    return [of for of, _ in branches], st.one_of([values for _, values in branches])


@given(st.data())
def test_rows_of_any_schema_come_back(data):
    """Through fastavro: its rows are decoded and encoded again, and it reads the same from them."""
    fields = data.draw(st.lists(typed(), min_size=1, max_size=4))
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [{"name": f"f{at}", "type": of} for at, (of, _) in enumerate(fields)],
    }
    values = st.fixed_dictionaries({f"f{at}": of for at, (_, of) in enumerate(fields)})
    rows = data.draw(st.lists(values, min_size=1, max_size=6))
    try:
        parsed = fastavro.parse_schema(schema)
    except fastavro.schema.SchemaParseException:
        # Two types of one name.
        assume(False)
    written = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        written.append(out.getvalue())
    columns = hr.decode(pa.array(written), hr.Avro(schema))
    again = hr.encode(columns, hr.Avro(schema)).to_pylist()
    assert [read(schema, row) for row in again] == [read(schema, row) for row in written]
    assert hr.decode(pa.array(again), hr.Avro(schema)) == columns


OF_JSON = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("city", pa.string()),
    ("amount", pa.decimal128(9, 2)),
    ("weight", pa.float64()),
    ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()),
    ("tags", pa.list_(pa.string())),
    ("counts", pa.map_(pa.string(), pa.int32())),
    ("price", pa.struct([("cents", pa.int32()), ("paid", pa.bool_())])),
])  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.none() | st.fixed_dictionaries({
    "id": st.integers(-(2**63), 2**63 - 1),
    "city": st.none() | TEXT,
    "amount": st.none() | st.decimals(-9999999, 9999999, places=2),
    "weight": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "at": st.none() | st.datetimes(
        dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), timezones=st.just(dt.timezone.utc)),  # noqa: DTZ001
    "day": st.none() | st.dates(),
    "tags": st.none() | st.lists(st.none() | TEXT, max_size=3),
    "counts": st.none() | st.dictionaries(TEXT, st.integers(-5, 5), max_size=3).map(lambda of: list(of.items())),
    "price": st.none() | st.fixed_dictionaries({"cents": st.none() | st.integers(0, 9), "paid": st.booleans()}),
}), max_size=4))  # fmt: skip
def test_json_is_read_as_it_was_written(rows):
    columns = pa.array(rows, pa.struct(list(OF_JSON)))
    encoded = hr.encode(columns, hr.Json(OF_JSON))
    assert hr.decode(encoded, hr.Json(OF_JSON)).to_pylist() == columns.to_pylist()
    for row, text in zip(rows, encoded.to_pylist(), strict=True):
        assert (row is None) == (text is None)
        if row is not None:
            found = json.loads(text)
            assert (found["id"], found.get("city"), found.get("tags")) == (row["id"], row["city"], row["tags"])


def test_json_that_cannot_be_written():
    form = hr.Json(OF_JSON)
    with pytest.raises(SchemaError, match="value: field weight: inf in row 1 is no number of JSON"):
        hr.encode(pa.table({"id": [1, 2], "weight": [1.0, float("inf")]}), form)
    with pytest.raises(SchemaError, match="value: field id: there is no such column"):
        hr.encode(pa.table({"weight": [1.0]}), form)
    with pytest.raises(SchemaError, match="columns are written as an object, and not as Int64"):
        hr.encode(pa.table({"id": [1]}), hr.Json(pa.int64()))


def test_confluents_deserializer_reads_json_that_is_sent(topic):
    schema = {"title": "Order", "type": "object", "required": ["id"], "properties": {
        "id": {"type": "integer"}, "city": {"type": "string"}}}  # fmt: skip
    orders = pa.table({"value": pa.array([{"id": 1, "city": "x"}, {"id": 2, "city": None}])})
    with hr.Broker.start(registry=True) as broker:
        registry = hr.SchemaRegistry(broker.registry_url)
        with hr.Producer(broker.bootstrap_servers) as producer:
            for form in (hr.Json(schema, registry=registry), hr.Json(registry)):
                producer.send_arrow(topic, orders, value=form).result(TIMEOUT)
            with pytest.raises(ConfigError, match="a registry takes a JSON Schema, and not one of Arrow"):
                producer.send_arrow(topic, orders, value=hr.Json(OF_JSON, registry=registry))
        read = JSONDeserializer(json.dumps(schema))
        context = SerializationContext(topic, MessageField.VALUE)
        rows = hr.read(broker.bootstrap_servers, topic).read_all()["value"].to_pylist()
        assert [read(row, context) for row in rows] == 2 * [{"id": 1, "city": "x"}, {"id": 2}]
        values = hr.read(broker.bootstrap_servers, topic, value=hr.Json(registry)).read_all()["value"]
        assert values.to_pylist() == 2 * orders["value"].to_pylist()


@pytest.mark.parametrize("make", [hr.Avro, hr.Json, hr.Protobuf])
def test_the_address_of_a_registry_in_place_of_one_is_said(make):
    for wrong in ({"schema": "http://localhost:8081"}, {"registry": "https://localhost:8081"}):
        with pytest.raises(ConfigError, match=r"give headrace\.SchemaRegistry\('https?://localhost:8081'\)"):
            make(**wrong)
