"""Keys and values of a query as columns of Spark's types."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace._columns import SIDES
from headrace.errors import ConfigError, SchemaError
from headrace.values.from_options import arrow_type, columns_of, encoding

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from headrace._formats import SideFormat

_UNSIGNED: Final = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


def check_written(specs: tuple[SideFormat, ...], schema: StructType, topic: str | None) -> None:
    """Encodes no rows.

    Raises:
        ConfigError: a column has a type that has no place in its schema, or the schema is wrong.
        SchemaRegistryError: the registry refuses a schema, or does not answer.
    """
    for spec in specs:
        column = arrow_type(schema[spec.side].dataType)
        try:
            encoding(spec, column).encoded(pa.array([], column), topic, spec.side)
        except (SchemaError, TypeError) as error:
            raise ConfigError(f"{spec.side}.format={spec.name}: {error}") from None


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
