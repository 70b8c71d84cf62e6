"""What all formats have in common, and decoding apart from Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from headrace.errors import ConfigError, DecodeError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.registry import RegisteredSchema, SchemaRegistry

OnError: TypeAlias = Literal["raise", "null", "column"]
_ON_ERROR = ("raise", "null", "column")
HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
"""The type of a column of headers."""
BadRow: TypeAlias = "tuple[int, str, str]"
"""Its number, the field as a path, and what is wrong."""


class Format:
    """What bytes mean, for ``key=`` and ``value=`` of clients: `Avro`, `Json`, `Protobuf` or `Text`."""

    on_error: OnError
    """What becomes of a row that cannot be decoded."""
    names_schema: bool = False
    """Whether each row names the schema that it was written with, by its id."""
    reads_headers: bool = False
    """Whether a row may name that schema in a header of its record."""

    def __init__(self, on_error: OnError) -> None:
        """Checks what is common to all; users make one of its kinds."""
        if on_error not in _ON_ERROR:
            message = f"on_error={on_error!r} is not accepted; it takes 'raise', 'null' or 'column'"
            raise ValueError(message)
        self.on_error = on_error

    def lacks(self, rows: pa.Array, headers: pa.Array | None = None) -> bool:
        """Whether `column` would ask a registry about these rows, which takes time and may fail."""
        del rows, headers
        return False

    def learn(self, rows: pa.Array, headers: pa.Array | None = None) -> None:
        """Asks it, so that `column` need not."""

    def prefixed(self, rows: pa.Array, headers: pa.Array | None) -> pa.Array:
        """The rows, each behind what its header says of its schema."""
        del headers
        return rows

    def bound(self, topics: Collection[str], side: str) -> Format:
        """What it is for the keys or values of these topics; ``side`` is ``key`` or ``value``."""
        del topics, side
        return self

    def header(self, topic: str | None, side: str) -> tuple[bytes, bytes] | None:
        """What a header of each record says of its schema, if one does: a GUID, and the place of a message."""
        del topic, side
        return None

    def encoded(self, columns: pa.StructArray, topic: str | None, side: str) -> pa.Array:
        """The bytes of rows, for the keys or values of a topic; ``side`` is ``key`` or ``value``.

        Raises:
            SchemaError: the columns are not those of the schema.
            ConfigError: the format is not written, or nothing says under which subject its schema is registered.
            SchemaRegistryError: the registry refuses the schema.
        """
        del columns, topic
        raise config_error(f"{side}: {type(self).__name__} is not written; Avro, Json and Protobuf are")

    def column(self, rows: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[BadRow]]:
        """The values of rows, in which bad ones are null, and what is wrong with those.

        They may be fewer than the rows, at least one: the others are for another call, which has its own room.
        ``headers`` has the header of each record that names the schema (bytes), if any has one.
        """
        raise NotImplementedError


def decode(rows: pa.Array | pa.ChunkedArray, format: Format) -> pa.Array | pa.ChunkedArray:  # noqa: A002  (as pandas has it)
    """Decodes a column of bytes, such as a batch's ``value``.

    Args:
        rows: ``binary``, ``large_binary``, ``binary_view`` or a string type; chunked or not.
        format: What the bytes are.

    Returns:
        As many values in the same order, chunked as ``rows`` are: a `pyarrow.StructArray` if the schema is a record. A
        row that is null, such as a tombstone, is null.

    Raises:
        DecodeError: A row cannot be decoded, unless the format's ``on_error`` says otherwise.
        TypeError: ``rows`` is no column of bytes.
        ValueError: The format has ``on_error="column"``, which adds columns to a client's batch.
    """
    _check(format)
    if format.on_error == "column":
        message = "on_error='column' adds columns to a client's batch; decode takes 'raise' or 'null'"
        raise ValueError(message)
    if isinstance(rows, pa.ChunkedArray):
        # An empty column has no chunk that would say its type.
        chunks = rows.chunks or [pa.array([], rows.type)]
        parts, row = [], 0
        for chunk in chunks:
            parts += _parts(chunk, format, row)
            row += len(chunk)
        return pa.chunked_array(parts)
    if not isinstance(rows, pa.Array):
        message = f"rows are a pyarrow.Array or ChunkedArray, and not {type(rows).__name__}"
        raise TypeError(message)
    parts = _parts(rows, format, 0)
    try:
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    except pa.ArrowInvalid:
        message = "the values are too large for one array: decode fewer rows at a time, or a ChunkedArray"
        raise ValueError(message) from None


def encode(columns: pa.StructArray | pa.RecordBatch | pa.Table, format: Format) -> pa.Array | pa.ChunkedArray:  # noqa: A002
    """Encodes columns as rows of bytes, such as a batch's ``value``.

    >>> order = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    >>> hr.encode(pa.table({"id": [42]}), hr.Avro(order)).to_pylist()  # doctest: +SKIP
    [b'T']

    Args:
        columns: The fields of the schema, in any order, of types that can be cast to its own without loss. One that may
            be null can be left out.
        format: What the bytes are to be. With a registry, its schema is registered under its ``subject``, and each row
            begins with a byte 0 and the schema's id.

    Returns:
        As many rows in the same order, chunked as ``columns`` are; null where a struct is.

    Raises:
        SchemaError: A column is missing or unknown, or has a value that its field cannot have; with the field.
        ConfigError: The format is not written, or has a registry and no ``subject``.
        SchemaRegistryError: The registry refuses the schema.
    """
    _check(format)
    if isinstance(columns, pa.Table):
        chunks = [batch.to_struct_array() for batch in columns.to_batches()]
        made = [format.encoded(chunk, None, "value") for chunk in chunks]
        return pa.chunked_array(made, pa.binary())
    if isinstance(columns, pa.RecordBatch):
        columns = columns.to_struct_array()
    if not isinstance(columns, pa.StructArray):
        message = f"columns are a pyarrow.Table, RecordBatch or StructArray, not {type(columns).__name__}"
        raise TypeError(message)
    return format.encoded(columns, None, "value")


def _parts(rows: pa.Array, format: Format, before: int) -> list[pa.Array]:  # noqa: A002
    """The values of one chunk, in as many parts as it takes; so many rows stand before it."""
    kind = rows.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    if not (is_bytes or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        message = f"rows are of {kind}; they must be binary"
        raise TypeError(message)
    bound, parts = format.bound((), "value"), []
    while True:
        column, bad = bound.column(rows)
        if bad and format.on_error == "raise":
            row, field, why = bad[0]
            row += before
            where = f"row {row}, field {field}" if field else f"row {row}"
            others = f" ({len(bad) - 1} more rows could not be decoded)" if len(bad) > 1 else ""
            error = DecodeError(f"{where}: {why}{others}")
            error.row, error.field = row, field
            raise error
        parts.append(column)
        if len(column) >= len(rows):
            return parts
        before += len(column)
        rows = rows.slice(len(column))


def _check(given: object) -> None:
    if not isinstance(given, Format):
        message = f"format is a format, such as headrace.Avro(...), not {given!r:.100}"
        raise TypeError(message)


class Chosen(NamedTuple):
    """Which schema of a registry gives a format its columns."""

    registry: SchemaRegistry
    reader: Literal["latest"] | int
    subject: str | None

    def schema(self, topics: Collection[str], side: str, kind: str) -> RegisteredSchema:
        """The schema, for the keys or values of these topics; ``kind`` is ``AVRO`` or ``JSON``."""
        if self.reader != "latest":
            found = self.registry.schema(self.reader)
        elif self.subject is not None:
            found = self.registry.latest(self.subject)
        elif len(topics) == 1:
            found = self.registry.latest(f"{next(iter(topics))}-{side}")
        else:
            raise config_error(
                f"{side}: the columns of several topics are to be those of one schema: name its subject="
            )
        check_type(found, kind, side)
        return found


def check_type(found: RegisteredSchema, kind: str, side: str) -> None:
    """Raises unless a schema of the registry is of a type."""
    if found.schema_type != kind:
        raise SchemaError(f"{side}: schema id {found.id} is of type {found.schema_type}, not {kind}")


def check_choice(reader: object, subject: object, *, chosen: bool) -> None:
    """Raises unless ``reader`` and ``subject`` choose a schema of a registry, where there is one to choose."""
    if not chosen and (reader != "latest" or subject is not None):
        raise config_error("reader and subject choose a schema of the registry: give a registry, and no schema")
    if reader != "latest" and (isinstance(reader, bool) or not isinstance(reader, int)):
        raise config_error(f"reader={reader!r} is not accepted; it takes 'latest' or the id of a schema")


def check_columns(columns: object) -> None:
    """Raises unless it is a list of fields, or None."""
    if columns is None:
        return
    if not isinstance(columns, (list, tuple)) or not all(isinstance(name, str) for name in columns):
        message = f"columns={columns!r} is not accepted; it takes a list of fields"
        raise TypeError(message)


def unpinned() -> ConfigError:
    """A format whose columns nobody has chosen."""
    return config_error("the columns are those of a schema of the registry: name its subject= or its id, reader=")


def config_error(message: str) -> ConfigError:
    """An argument that cannot be."""
    return ConfigError(message, name="INVALID_CONFIG")
