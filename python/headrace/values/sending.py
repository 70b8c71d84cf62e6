"""Columns of what is sent, as bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace import _native
from headrace.errors import SchemaError
from headrace.values.format import HEADERS, Format, config_error


def encoded(data: Any, topic: str | None, *, key: Format | None, value: Format | None) -> pa.Table:
    """Arrow data whose ``key`` and ``value`` are encoded, all of it.

    Raises:
        SchemaError: a column is missing, is no struct, or is not of the schema.
        ConfigError: one is no format, is not written, or has a registry and no subject.
        SchemaRegistryError: the registry refuses the schema.
    """
    table = data if isinstance(data, pa.Table) else pa.table(data)
    for side, given in (("key", key), ("value", value)):
        if given is None:
            continue
        if not isinstance(given, Format):
            raise config_error(f"{side} takes a format, such as headrace.Avro(...), not {type(given).__name__}")
        if side not in table.column_names:
            made = f"pa.table({{{side!r}: table.to_struct_array()}})"
            why = f"there is no column {side!r}, whose structs are to be encoded: {made} makes one of all columns"
            raise SchemaError(why)
        column = table.column(side)
        if not pa.types.is_struct(column.type):
            raise SchemaError(f"column {side} is {column.type}; a struct of the schema's fields is encoded")
        chunks = [given.encoded(chunk, topic, side) for chunk in column.chunks]
        at = table.column_names.index(side)
        table = table.set_column(at, side, pa.chunked_array(chunks, pa.binary()))
        said = given.header(topic, side)
        if said is not None:
            table = _with_header(table, side, *said)
    return table


def _with_header(table: pa.Table, side: str, guid: bytes, place: bytes) -> pa.Table:
    """With the header that names the schema, behind those that rows have."""
    rows = pa.concat_arrays([pa.array([], pa.binary()), *table.column(side).chunks])
    before = None
    if "headers" in table.column_names:
        try:
            column = table.column("headers").cast(HEADERS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"column headers is no list of structs of key and value: {error}") from None
        before = pa.concat_arrays([pa.array([], HEADERS), *column.chunks])
    headers = pa.array(_native.with_schema_header(before, rows, side == "key", guid, place))
    if before is None:
        return table.append_column("headers", headers)
    return table.set_column(table.column_names.index("headers"), "headers", headers)
