"""Batches whose keys and values are columns: what the formats of a client make of the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace import _native
from headrace._stop import Stop, row_at
from headrace.errors import ConfigError, DecodeError
from headrace.values import BadRow, Format
from headrace.values.format import HEADERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from typing_extensions import Self

    from headrace._options import Setting

SIDES: Final = ("key", "value")
_Rows = TypeVar("_Rows", bound="pa.RecordBatch | pa.Table")


class Columns:
    """What a client's keys and values are; made by `Columns.of`."""

    def __init__(self, formats: dict[str, Format]) -> None:
        """By the name of the column; users of this module call `of`."""
        self._formats = formats
        self._reports = any(given.on_error == "column" for given in formats.values())
        # Formats look into headers that nobody else has asked for.
        self._hides_headers = False

    @classmethod
    def of(cls, key: object, value: object, *, may_raise: bool = True) -> Self | None:
        """What ``key=`` and ``value=`` say; nothing if they say nothing.

        Raises:
            ConfigError: One is no format, or has ``on_error="raise"`` where a client cannot give a row back.
        """
        formats: dict[str, Format] = {}
        for side, given in zip(SIDES, (key, value), strict=True):
            if given is None:
                continue
            if not isinstance(given, Format):
                message = f"{side} takes a format, such as headrace.Avro(...), not {type(given).__name__}"
                raise ConfigError(message, name="INVALID_CONFIG")
            if given.on_error == "raise" and not may_raise:
                message = (
                    f"{side}: on_error='raise' would leave the rows that were locked with a bad one to nobody; a share "
                    "consumer takes 'null' or 'column', and its caller rejects bad rows"
                )
                raise ConfigError(message, name="INVALID_CONFIG")
            formats[side] = given
        return cls(formats) if formats else None

    def settings(self, given: list[Setting]) -> list[Setting]:
        """A client's options, with the headers that formats look into."""
        asked = str(dict(given).get("include.headers", "false")).strip().lower()
        # Anything else is for the client to take or to refuse.
        if asked != "false" or not any(of.reads_headers for of in self._formats.values()):
            return given
        self._hides_headers = True
        return [*((name, of) for name, of in given if name != "include.headers"), ("include.headers", "true")]

    def bind(self, topics: Collection[str]) -> None:
        """Which topics are read: schemas of a registry are found by them.

        Raises:
            ConfigError: the topics are several, and a format needs one.
            SchemaRegistryError: the registry has no such schema, or does not answer.
        """
        self._formats = {side: of.bound(topics, side) for side, of in self._formats.items()}

    def lacks(self, batches: list[pa.RecordBatch]) -> bool:
        """Whether `decoded` would ask a registry about these batches."""
        return any(
            of.lacks(batch.column(side), _schema_headers(of, batch, side))
            for side, of in self._formats.items()
            for batch in batches
        )

    def learn(self, batches: list[pa.RecordBatch]) -> None:
        """Asks it. Raises SchemaRegistryError as `decoded` would."""
        for side, of in self._formats.items():
            for batch in batches:
                of.learn(batch.column(side), _schema_headers(of, batch, side))

    def schema(self, raw: pa.Schema) -> pa.Schema:
        """The schema of decoded batches."""
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in raw], schema=raw)
        return self.decoded(empty)[0].schema

    def decoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Stop | None]:
        """A batch with its columns, up to a row that is to be raised, or as far as one call goes."""
        made: dict[str, tuple[pa.Array, list[BadRow]]] = {}
        first: tuple[int, str, str, str] | None = None
        headers = {side: _schema_headers(of, batch, side) for side, of in self._formats.items()}
        if self._hides_headers:
            batch = batch.drop_columns(["headers"])
        for side, of in self._formats.items():
            made[side] = of.column(batch.column(side), headers[side])
            bad = made[side][1]
            if bad and of.on_error == "raise" and (first is None or bad[0][0] < first[0]):
                first = (bad[0][0], side, *bad[0][1:])
        count, stop = min([len(column) for column, _ in made.values()]), None
        if first is not None and first[0] < count:
            stop = _stop(batch, *first)
            batch = batch.slice(0, first[0])
        elif count < batch.num_rows:
            stop = row_at(batch, count, None)
            batch = batch.slice(0, count)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        fields = dict(zip(batch.schema.names, batch.schema, strict=True))
        new = {side: column.slice(0, batch.num_rows) for side, (column, _) in made.items()}
        if self._reports:
            new |= self._reported(batch, {side: bad for side, (_, bad) in made.items()}, headers)
        columns |= new
        fields |= {name: pa.field(name, column.type) for name, column in new.items()}
        schema = pa.schema(list(fields.values()), batch.schema.metadata)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema), stop

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """All rows of a batch with their columns, in as many parts as it takes.

        Raises:
            DecodeError: after the rows before it, a row that is bad where ``on_error`` is ``raise``.
        """
        while True:
            rows, stop = self.decoded(batch)
            if rows.num_rows:
                yield rows
            if stop is None:
                return
            if stop.error is not None:
                raise stop.error
            batch = batch.slice(rows.num_rows)

    def _reported(
        self, batch: pa.RecordBatch, bad: dict[str, list[BadRow]], headers: dict[str, pa.Array | None]
    ) -> dict[str, pa.Array]:
        """Further columns: why a row is bad, the id of its schema, and the bytes of rows that are bad."""
        count = batch.num_rows
        whys = {side: {row: _why(field, reason) for row, field, reason in bad[side] if row < count} for side in bad}
        rows = set().union(*whys.values())
        made: dict[str, pa.Array] = {}
        for side, of in self._formats.items():
            raw, why = batch.column(side), whys[side]
            said = headers[side]
            if of.on_error == "column":
                texts = pa.array(map(why.get, range(count)), pa.string()) if why else pa.nulls(count, pa.string())
                made[f"{side}_error"] = texts
                if of.names_schema:
                    made[f"{side}_schema_id"] = pa.array(
                        _native.schema_ids(of.prefixed(raw, None if said is None else said.slice(0, count)))
                    )
            # Row by row: pyarrow takes no rows out of a binary_view.
            kept = [raw[row].as_py() if row in rows else None for row in range(count)] if rows else None
            made[f"{side}_bytes"] = pa.nulls(count, pa.binary()) if kept is None else pa.array(kept, pa.binary())
        return made


def _schema_headers(of: Format, batch: pa.RecordBatch, side: str) -> pa.Array | None:
    """The header of each record that names the schema of its key or value."""
    if not of.reads_headers or "headers" not in batch.schema.names:
        return None
    found = _native.schema_headers(batch.column("headers"), side == "key")
    return None if found is None else pa.array(found)


def _why(field: str, reason: str) -> str:
    return f"field {field}: {reason}" if field else reason


def _stop(batch: pa.RecordBatch, row: int, side: str, field: str, why: str) -> Stop:
    (topic, partition), offset, _ = row_at(batch, row, None)
    where = f"{side}, field {field}" if field else side
    message = f"{topic}-{partition}, offset {offset}: {where}: {why}"
    error = DecodeError(message, topic=topic, partition=partition, offset=offset)
    error.row, error.field = row, field
    return Stop((topic, partition), offset, error)


def bad_rows(rows: _Rows) -> _Rows:
    """The rows that could not be decoded, as they were, to be sent to a dead-letter topic.

    >>> producer.send_arrow("orders-dead", hr.bad_rows(batch))  # doctest: +SKIP

    Args:
        rows: a batch, or a table of batches, of a client whose format has ``on_error="column"``.

    Returns:
        The columns key and value (bytes), timestamp (null where the record has none) and headers. The headers are those
        of the record, if the client has
        ``include_headers=True``, and the ones by which Kafka Connect says where a record comes from:
        ``__connect.errors.topic``, ``__connect.errors.partition``, ``__connect.errors.offset`` and
        ``__connect.errors.exception.message``.

    Raises:
        ValueError: the rows have no column ``key_error`` or ``value_error``.
    """
    if not isinstance(rows, (pa.RecordBatch, pa.Table)):
        message = f"rows are a pyarrow.RecordBatch or Table, not {type(rows).__name__}"
        raise TypeError(message)
    errors = [f"{side}_error" for side in SIDES if f"{side}_error" in rows.schema.names]
    if not errors:
        message = "the rows have no column value_error: give the client's format on_error='column'"
        raise ValueError(message)
    if missing := {"key", "value", "topic", "partition", "offset", "timestamp"}.difference(rows.schema.names):
        message = f"the rows have no column {min(missing)}: give them as the client did"
        raise ValueError(message)
    is_bad = pc.is_valid(rows.column(errors[0]))
    for name in errors[1:]:
        is_bad = pc.or_(is_bad, pc.is_valid(rows.column(name)))
    taken = [f"{side}_bytes" if f"{side}_bytes" in rows.schema.names else side for side in SIDES]
    wanted = [*taken, "timestamp", "topic", "partition", "offset", *errors]
    wanted += ["headers"] if "headers" in rows.schema.names else []
    chosen = rows.select(list(dict.fromkeys(wanted)))
    # Row by row: they are few, and pyarrow takes no rows out of a binary_view.
    bad = [row for at in pc.indices_nonzero(is_bad).to_pylist() for row in chosen.slice(at, 1).to_pylist()]
    columns = [
        *(pa.array([row[name] for row in bad], pa.binary()) for name in taken),
        _dated(pa.array([row["timestamp"] for row in bad], rows.schema.field("timestamp").type)),
        pa.array([_headers(row, errors) for row in bad], HEADERS),
    ]
    made: _Rows = type(rows).from_arrays(columns, names=[*SIDES, "timestamp", "headers"])
    return made


def _dated(at: pa.Array) -> pa.Array:
    """Times of records, without those before 1970, with which none can be sent: theirs is that of their sending.

    A record without a timestamp, as very old clients have written, reads as one of 1 ms before 1970.
    """
    return pc.if_else(pc.less(at, pa.scalar(0, at.type)), pa.scalar(None, at.type), at)


def _headers(row: dict[str, Any], errors: list[str]) -> list[dict[str, str | bytes | None]]:
    """Those that a row has, and where it comes from."""
    said = [f"{name.removesuffix('_error')}: {row[name]}" for name in errors if row[name] is not None]
    origin = {name: str(row[name]) for name in ("topic", "partition", "offset")}
    origin["exception.message"] = "; ".join(said)
    headers = [{"key": f"__connect.errors.{name}", "value": text.encode()} for name, text in origin.items()]
    return [*(row.get("headers") or []), *headers]
