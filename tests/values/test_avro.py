"""Avro to Arrow, beside fastavro."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import random
import struct

import fastavro
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import DecodeError, SchemaError

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "USED"]}},
        ]}}},
    ],
}  # fmt: skip


def order(number):
    return {
        "id": number * 1_000_003,
        "at": dt.datetime(2026, 11, 25, 12, 0, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=number),
        "price": decimal.Decimal(number) / 100,
        "note": None if number % 3 else f"über {number}",
        "tags": {f"t{n}": n for n in range(number % 3)},
        "lines": [{"sku": f"s{n}", "kind": ["NEW", "USED"][n % 2]} for n in range(number % 4)],
    }


def written(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(number, schema, value):
    return struct.pack(">BI", 0, number) + written(schema, value)


def plain(row):
    """A row of Arrow as fastavro has it."""
    return None if row is None else {**row, "tags": dict(row["tags"])}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_what_fastavro_writes_is_read(kind):
    orders = [order(number) for number in range(1000)]
    rows = [written(ORDER, value) for value in orders]
    found = hr.decode(pa.array([*rows, None], kind), hr.Avro(ORDER))
    assert [plain(row) for row in found.to_pylist()] == [*orders, None]
    assert found.type.field("at").type == pa.timestamp("ms", "UTC")


def test_rows_of_several_schemas_become_the_columns_of_one():
    new = json.loads(json.dumps(ORDER))
    new["fields"][3] = {"name": "remark", "aliases": ["note"], "type": ["null", "string"]}
    new["fields"].append({"name": "channel", "type": "string", "default": "shop"})
    orders = [order(number) for number in range(300)]
    latest = [{**value, "remark": value["note"], "channel": "web"} for value in orders]
    rows = [
        framed(7, ORDER, a) if n % 2 else framed(9, new, b) for n, (a, b) in enumerate(zip(orders, latest, strict=True))
    ]
    found = hr.decode(pa.array(rows), hr.Avro(new, schemas={7: ORDER, 9: new}, columns=["id", "remark", "channel"]))
    assert found.to_pylist() == [
        {"id": value["id"], "remark": value["note"], "channel": "shop" if n % 2 else "web"}
        for n, value in enumerate(orders)
    ]


def test_a_field_of_a_record_in_a_list_is_decoded_alone():
    found = hr.decode(pa.array([written(ORDER, order(3))]), hr.Avro(ORDER, columns=["lines.sku"]))
    assert found.to_pylist() == [{"lines": [{"sku": "s0"}, {"sku": "s1"}, {"sku": "s2"}]}]


def test_damaged_rows_are_named_or_null_and_leave_their_neighbours_alone():
    dice = random.Random(22)
    orders = [order(number) for number in range(1000)]
    rows = [bytearray(written(ORDER, value)) for value in orders]
    spoilt = set(dice.sample(range(1000), 100))
    for number in spoilt:
        row = rows[number]
        if number % 2:
            del row[dice.randrange(len(row)) :]
        else:
            row[dice.randrange(len(row))] ^= 1 << dice.randrange(8)
    array = pa.array([bytes(row) for row in rows])
    found = hr.decode(array, hr.Avro(ORDER, on_error="null"))
    assert len(found) == 1000
    for number, row in enumerate(found):
        if number not in spoilt:
            assert plain(row.as_py()) == orders[number]
    bad = [number for number in range(1000) if not found[number].is_valid]
    assert bad
    assert set(bad) <= spoilt
    with pytest.raises(DecodeError, match=f"^row {bad[0]}.*{len(bad) - 1} more rows could not be decoded") as raised:
        hr.decode(array, hr.Avro(ORDER))
    assert raised.value.row == bad[0]


def test_what_is_wrong_is_said_with_its_place():
    good = framed(7, ORDER, order(1))
    avro = hr.Avro(ORDER, schemas={7: ORDER})
    for row, why in [
        (b"", "does not begin with the magic byte"),
        (b"{}", "does not begin with the magic byte"),
        (good[:4] + b"\x08" + good[5:], "schema id 8 is not known"),
        (good[:-1], "field lines: the bytes end within a value"),
        (good + b"x", "1 bytes are left"),
    ]:
        with pytest.raises(DecodeError, match=why):
            hr.decode(pa.array([good, row]), avro)
    with pytest.raises(SchemaError, match="schema id 9: the schema is not JSON"):
        hr.Avro(ORDER, schemas={9: "{"})
    with pytest.raises(SchemaError, match='no field "ix" in "Order", which has id, at'):
        hr.Avro(ORDER, columns=["ix"])
    for columns in ("id", [1]):
        with pytest.raises(TypeError, match="a list of fields"):
            hr.Avro(ORDER, columns=columns)
    with pytest.raises(TypeError, match="references takes a list of schemas"):
        hr.Avro(ORDER, references=ORDER)
    with pytest.raises(TypeError, match="not bytes"):
        hr.Avro(b"{}")
    with pytest.raises(TypeError, match="schemas takes schemas by id"):
        hr.Avro(ORDER, schemas=[ORDER])
    for number in ("7", -1, 1 << 32):
        with pytest.raises(ValueError, match="is not the id of a schema"):
            hr.Avro(ORDER, schemas={number: ORDER})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="format is a format, such as headrace"):
        hr.decode(pa.array([good]), "avro")
    assert hr.decode(pa.array([b"", b"x"]), hr.Avro("null", on_error="null")).type == pa.null()
    with pytest.raises(ValueError, match="'raise', 'null' or 'column'"):
        hr.Avro(ORDER, on_error="skip")
    with pytest.raises(TypeError, match="rows are of int64"):
        hr.decode(pa.array([1]), hr.Avro(ORDER))


def test_chunks_stay_chunks_and_none_has_the_type():
    avro = hr.Avro(ORDER)
    rows = [written(ORDER, order(number)) for number in range(4)]
    found = hr.decode(pa.chunked_array([rows[:1], rows[1:]]), avro)
    assert [len(chunk) for chunk in found.chunks] == [1, 3]
    assert hr.decode(pa.chunked_array([], pa.binary()), avro).type == found.type


def test_values_of_a_topic_are_decoded(embedded_broker, topic):
    orders = [order(number) for number in range(500)]
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": [framed(7, ORDER, value) for value in orders]}))
    table = hr.read(embedded_broker.bootstrap_servers, topic, end="latest").read_all()
    found = hr.decode(table["value"], hr.Avro(ORDER, schemas={7: ORDER}))
    assert [plain(row) for row in found.to_pylist()] == orders
