"""Orders of ten columns, in Avro and Protobuf as Confluent's serializers frame them, and in JSON."""

from __future__ import annotations

import base64
import io
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import headrace as hr
from headrace import _native

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


PROTO: Final = """syntax = "proto3";
message Order {
  int64 id = 1;
  int64 at = 2;
  string customer = 3;
  double amount = 4;
  int32 quantity = 5;
  bool paid = 6;
  optional string note = 7;
  string city = 8;
  optional double discount = 9;
  Channel channel = 10;
  enum Channel { WEB = 0; SHOP = 1; PHONE = 2; }
}"""


@cache
def message_class() -> Any:
    """The class that Google's library makes of `PROTO`."""
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(_native.protobuf_file(PROTO, [])[0]))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


@cache
def protobuf_block() -> pa.RecordBatch:
    """As `block`, in Protobuf."""
    made = message_class()
    values = [struct.pack(">BIB", 0, ID, 0) + made(**order).SerializeToString() for order in orders()]
    numbers = pa.array([0] * len(values), pa.int32())
    return pa.record_batch({"value": pa.array(values, pa.binary()), "partition": numbers})


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
