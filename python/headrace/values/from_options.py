"""Formats of keys and values from options as texts.

On Spark's driver a format's columns are found once, if need be in a registry, so that all tasks of a query have the
same. Tasks get texts and not objects, and make the format that they decode with once in each process.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace._columns import Columns
from headrace.errors import SchemaError
from headrace.registry import SchemaRegistry
from headrace.values import Avro, Format, Json, Protobuf, Text
from headrace.values.format import Chosen

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace._formats import SideFormat

_TEXTS: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}


def pinned(spec: SideFormat, topics: Collection[str]) -> SideFormat:
    """A format with the schema of its columns, which is looked up if it is one of the registry.

    Raises:
        ConfigError: no subject is named, and the topics are not one.
        SchemaRegistryError: the registry has no such schema, or does not answer.
    """
    if spec.schema is not None or not spec.registry:
        return spec
    if spec.records:
        avro = Avro(_registry(spec.registry), records=dict(spec.records), reader=spec.reader, subject=spec.subject)  # type: ignore[arg-type]
        return replace(spec, chosen=tuple(avro.chosen(topics, spec.side)))
    chosen = Chosen(_registry(spec.registry), spec.reader, spec.subject)  # type: ignore[arg-type]
    found = chosen.schema(topics, spec.side, spec.name.upper())
    return replace(spec, schema=found.schema, references=found.definitions)


@lru_cache(maxsize=8)
def _registry(settings: tuple[tuple[str, str], ...]) -> SchemaRegistry:
    given: dict[str, Any] = dict(settings)
    user, password, token = given.pop("user", None), given.pop("password", ""), given.pop("token", None)
    return SchemaRegistry(given.pop("url"), auth=token if user is None else (user, password), **given)


@lru_cache(maxsize=32)
def decoding(spec: SideFormat) -> Format:
    """The format that decodes. One for all tasks of a process: what it has learnt of schemas stays."""
    on_error: Any = spec.on_error
    registry = _registry(spec.registry) if spec.registry else None
    chosen: dict[str, Any] = {"columns": spec.columns, "on_error": on_error, "registry": registry}
    if spec.name == "avro":
        records = dict(spec.records) or None
        if spec.chosen:
            return Avro(records=records, **chosen).with_records(spec.chosen)
        return Avro(spec.schema, references=[text for _, text in spec.references], records=records, **chosen)
    if spec.name == "protobuf":
        return Protobuf(spec.schema, message=spec.message, references=dict(spec.references), **chosen)
    if spec.name == "json":
        return Json(_json_schema(str(spec.schema)), references=dict(spec.references), **chosen)
    return Text(_TEXTS[spec.name], on_error=on_error)


@lru_cache(maxsize=32)
def encoding(spec: SideFormat, of: pa.DataType) -> Format:
    """The format that encodes columns of a type; JSON without a schema is written as they are."""
    registry = _registry(spec.registry) if spec.registry else None
    chosen: dict[str, Any] = {"registry": registry}
    if registry is not None:
        chosen["subject"] = spec.subject
    if spec.name == "avro":
        return Avro(spec.schema, **chosen)
    if spec.name == "protobuf":
        return Protobuf(spec.schema, message=spec.message, **chosen)
    if spec.schema is not None:
        return Json(_json_schema(str(spec.schema)), **chosen)
    return Json(of) if registry is None else Json(registry, subject=spec.subject)


def written_formats(specs: tuple[SideFormat, ...], schema: pa.Schema) -> dict[str, Format]:
    """What encodes the columns of a batch, by side."""
    return {spec.side: encoding(spec, schema.field(spec.side).type) for spec in specs}


def columns_of(specs: tuple[SideFormat, ...], *, reported: bool = False) -> Columns:
    """What decodes batches of a client; ``reported`` adds the columns of ``on.error=column`` in any case."""
    by_side = {spec.side: decoding(replace(spec, on_error="column") if reported else spec) for spec in specs}
    found = Columns.of(by_side.get("key"), by_side.get("value"))
    assert found is not None  # noqa: S101  (the caller has a format)
    return found


def arrow_type(of: Any) -> pa.DataType:
    """The type of Arrow in which Spark hands a type over."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415  (driver only)

    # Newer versions of Spark ask for the zone of timestamps.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    return to_arrow_type(of, **zone)


def _json_schema(text: str) -> pa.Schema | str:
    """A JSON Schema, or a schema of Spark as `StructType.json` writes it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict):
        raise SchemaError("it is no JSON Schema, and no schema of Spark")
    if found.get("type") == "struct" and isinstance(found.get("fields"), list):
        return _of_spark(found)
    return text


def _of_spark(schema: dict[str, Any]) -> pa.Schema:
    from pyspark.sql.types import StructType  # noqa: PLC0415  (it is seldom needed)

    try:
        of = StructType.fromJson(schema)
        return pa.schema([pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in of])
    except Exception as error:  # noqa: BLE001  (Spark raises whatever it meets in a schema that is none)
        raise SchemaError(f"it is no schema of Spark that has columns: {type(error).__name__}: {error}") from None
