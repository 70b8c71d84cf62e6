"""Orders of ten columns, in Avro as Confluent's serializers frame it, and in JSON."""

from __future__ import annotations

import io
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa

import headrace as hr

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA: Final[dict[str, Any]] = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "quantity", "type": "int"},
    {"name": "paid", "type": "boolean"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "city", "type": "string"},
    {"name": "discount", "type": ["null", "double"]},
    {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP", "PHONE"]}},
]}  # fmt: skip
TEXT: Final = json.dumps(SCHEMA)
ID: Final = 1
ROWS: Final = 20_000


def orders() -> Iterator[dict[str, Any]]:
    """`ROWS` of them."""
    for number in range(ROWS):
        yield {
            "id": number * 7919,
            "at": 1_764_000_000_000 + number,
            "customer": f"customer-{number:06}",
            "amount": number * 0.25,
            "quantity": number % 50,
            "paid": number % 3 == 0,
            "note": "leave it at the door" if number % 4 else None,
            "city": ("Amsterdam", "Berlin", "Copenhagen")[number % 3],
            "discount": number * 0.01 if number % 2 else None,
            "channel": ("WEB", "SHOP", "PHONE")[number % 3],
        }


COLUMNS: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("ms", "UTC")),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("quantity", pa.int32()),
        ("paid", pa.bool_()),
        ("note", pa.string()),
        ("city", pa.string()),
        ("discount", pa.float64()),
        ("channel", pa.string()),
    ]
)
"""Of JSON."""


@cache
def columns() -> pa.RecordBatch:
    """As `block`, in columns that are still to be encoded."""
    values = hr.decode(block()["value"], hr.Avro(SCHEMA, schemas={ID: SCHEMA}))
    return pa.record_batch({"value": values, "partition": block()["partition"]})


@cache
def json_block() -> pa.RecordBatch:
    """As `block`, in JSON without spaces."""
    values = [json.dumps(order, separators=(",", ":")).encode() for order in orders()]
    numbers = pa.array([0] * len(values), pa.int32())
    return pa.record_batch({"value": pa.array(values, pa.binary()), "partition": numbers})


@cache
def block() -> pa.RecordBatch:
    """What one call of `send_arrow` takes: values for one partition."""
    schema = fastavro.parse_schema(SCHEMA)
    values = []
    for order in orders():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        values.append(struct.pack(">BI", 0, ID) + out.getvalue())
    numbers = pa.array([0] * len(values), pa.int32())
    return pa.record_batch({"value": pa.array(values, pa.binary()), "partition": numbers})
