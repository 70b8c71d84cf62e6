"""Keys and values of a query as columns.

On the driver a format's columns are found once, if need be in a registry, so that all tasks of a query have the same.
Tasks get texts and not objects, and make the format that they decode with once in each process.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace._columns import SIDES, Columns
from headrace.errors import ConfigError, SchemaError
from headrace.registry import SchemaRegistry
from headrace.values import Avro, Format, Json, Protobuf, Text
from headrace.values.format import Chosen

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql.types import StructField, StructType

    from headrace.spark.formats import SideFormat

_TEXTS: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}

_UNSIGNED: Final = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


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
def _format(spec: SideFormat) -> Format:
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
def _written(spec: SideFormat, of: pa.DataType) -> Format:
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
    return {spec.side: _written(spec, schema.field(spec.side).type) for spec in specs}


def check_written(specs: tuple[SideFormat, ...], schema: StructType, topic: str | None) -> None:
    """Encodes no rows.

    Raises:
        ConfigError: a column has a type that has no place in its schema, or the schema is wrong.
        SchemaRegistryError: the registry refuses a schema, or does not answer.
    """
    for spec in specs:
        column = _arrow_type(schema[spec.side].dataType)
        try:
            _written(spec, column).encoded(pa.array([], column), topic, spec.side)
        except (SchemaError, TypeError) as error:
            raise ConfigError(f"{spec.side}.format={spec.name}: {error}") from None


def _arrow_type(of: Any) -> pa.DataType:
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
        return pa.schema([pa.field(one.name, _arrow_type(one.dataType), one.nullable) for one in of])
    except Exception as error:  # noqa: BLE001  (Spark raises whatever it meets in a schema that is none)
        raise SchemaError(f"it is no schema of Spark that has columns: {type(error).__name__}: {error}") from None


def columns_of(specs: tuple[SideFormat, ...], *, reported: bool = False) -> Columns:
    """What decodes batches of a client; ``reported`` adds the columns of ``on.error=column`` in any case."""
    by_side = {spec.side: _format(replace(spec, on_error="column") if reported else spec) for spec in specs}
    found = Columns.of(by_side.get("key"), by_side.get("value"))
    assert found is not None  # noqa: S101  (the caller has a format)
    return found


def fields(specs: tuple[SideFormat, ...]) -> dict[str, StructField]:
    """The columns that formats make, as Spark has them.

    Raises:
        ConfigError: one has a type that Spark has not, or a schema is wrong.
    """
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415  (driver only)
    from pyspark.sql.types import StructField  # noqa: PLC0415  (driver only)

    raw = pa.schema([(side, pa.binary()) for side in SIDES] + [("topic", pa.string())])
    try:
        schema = columns_of(specs).schema(raw)
    except (SchemaError, TypeError) as error:
        sides = " and ".join(f"{spec.side}.schema" for spec in specs if spec.schema is not None)
        raise ConfigError(f"{sides}: {error}") from None
    made = {}
    for column in schema:
        if column.name == "topic" or (column.name in SIDES and column.name not in {spec.side for spec in specs}):
            continue
        made[column.name] = StructField(
            column.name, from_arrow_type(_plain(column.type, column.name), prefer_timestamp_ntz=True)
        )
    return made


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A decoded batch with columns of types that Spark has."""
    columns, changed = [], False
    for column, of in zip(batch.columns, batch.schema, strict=True):
        wanted = _plain(of.type, of.name)
        changed |= wanted != of.type
        # Timestamps in ns lose what Spark's have no place for.
        columns.append(column if wanted == of.type else column.cast(wanted, safe=False))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names) if changed else batch


@lru_cache(maxsize=1000)
def _plain(of: pa.DataType, path: str) -> pa.DataType:
    """The type of Arrow by which Spark knows a type.

    Raises:
        ConfigError: it knows it by none.
    """
    if pa.types.is_interval(of) or pa.types.is_decimal256(of):
        message = f"{path} is {of}, which Spark has no type for: leave it out with value.columns or key.columns"
        raise ConfigError(message)
    if pa.types.is_struct(of):
        return pa.struct([one.with_type(_plain(one.type, f"{path}.{one.name}")) for one in of])
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_plain(of.value_type, f"{path}[]")))
    if pa.types.is_map(of):
        return pa.map_(_plain(of.key_type, path), of.item_field.with_type(_plain(of.item_type, f"{path}[]")))
    return _plain_scalar(of)


def _plain_scalar(of: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(of):
        return of.value_type
    if pa.types.is_fixed_size_binary(of):
        return pa.binary()
    if pa.types.is_timestamp(of):
        return pa.timestamp("us", of.tz)
    if pa.types.is_time(of):
        return pa.int32() if pa.types.is_time32(of) else pa.int64()
    return _UNSIGNED.get(of, of)
