"""Records in files: what ``consume --output`` writes, and ``produce --file`` takes back.

Parquet has the columns as they are. JSON and CSV are texts: a key, value or header that is UTF-8 stands there as its
text, another one as base64, in JSON as ``{"base64": "..."}``, in CSV as ``base64:...`` (so does a text that begins so).
In CSV null is nothing and an empty text ``""``; headers are the JSON that a JSON file has.
"""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyarrow import csv
    from typing_extensions import Self

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
ENDINGS = (".parquet", ".csv", *JSON_ENDINGS)

_ROWS_PER_BATCH = 10_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_CSV_BYTES_MAX = 64 << 20
"""Of a row."""
_PREFIX = "base64:"
_BYTES = ("key", "value")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class Writer(Protocol):
    """Writes batches to a file."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def write_batch(self, batch: pa.RecordBatch) -> None: ...


def check_ending(option: str, path: Path) -> None:
    """Refuses a name that does not say what the file is.

    Raises:
        ValueError: it ends in none of `ENDINGS`.
    """
    if path.suffix not in ENDINGS:
        message = f"{option} {path}: the name ends in none of {', '.join(ENDINGS)}"
        raise ValueError(message)


def writer(path: Path, schema: pa.Schema) -> Writer:
    """A writer of what the file's name says, for batches of this schema."""
    if path.suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415  (only for this)

        made: Writer = parquet.ParquetWriter(path, schema)
        return made
    if path.suffix == ".csv":
        return _Csv(path, schema)
    return _Json(path)


class _Json:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._file.writelines(f"{json.dumps(row)}\n" for row in json_rows(batch))


class _Csv:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import csv  # noqa: PLC0415  (only for this)

        numbers = [field.type if pa.types.is_integer(field.type) else pa.string() for field in schema]
        self._schema = pa.schema(list(zip(schema.names, numbers, strict=True)))
        self._writer = csv.CSVWriter(path, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [
            column if pa.types.is_integer(column.type) else pa.array([_cell(value) for value in _objects(column)])
            for column in batch.columns
        ]
        arrays = [column.cast(field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as JSON can say them."""
    for row in as_objects(batch):
        yield {name: _plain(value) for name, value in row.items()}


def as_objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as objects of Python; times outside of its years, 1 to 9999, are milliseconds since the epoch."""
    columns = {name: _objects(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _objects(column: pa.Array) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        if not pa.types.is_timestamp(column.type):
            raise
        found = [_time_or_number(cell) for cell in column]
    return found


def _time_or_number(cell: pa.TimestampScalar) -> datetime | int | None:
    found: datetime | int | None
    try:
        found = cell.as_py()
    except OverflowError:
        found = cell.value * 1000 // _PER_SECOND[cell.type.unit]
    return found


def in_json(value: object) -> Any:
    """What JSON has no kind for: bytes as `json_rows` has them, all else as a text."""
    return _plain(value) if isinstance(value, (bytes, datetime)) else str(value)


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [{name: _plain(part) for name, part in header.items()} for header in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def _cell(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):
        return json.dumps(_plain(value))
    plain = _plain(value)
    if isinstance(plain, dict):
        return f"{_PREFIX}{plain['base64']}"
    text = str(plain)
    return f"{_PREFIX}{base64.b64encode(text.encode()).decode()}" if text.startswith(_PREFIX) else text


def read(path: Path) -> Iterator[pa.RecordBatch]:
    """The records of a file, in the columns that `send_arrow` takes.

    Raises:
        ValueError: a row is not what it should be; it is named.
    """
    if path.suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415  (only for this)

        with named(path):
            file = parquet.ParquetFile(path)
        batches = file.iter_batches()
        while True:
            with named(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
    elif path.suffix == ".csv":
        yield from _read_csv(path)
    else:
        yield from _read_json(path)


def _read_json(path: Path) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for row in json_objects(path):
        rows.append(row)
        if len(rows) == _ROWS_PER_BATCH:
            yield _batch(path, rows)
            rows = []
    if rows:
        yield _batch(path, rows)


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line.

    Raises:
        ValueError: a line is none.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                message = f"--file {path}, line {number}: {error}"
                raise ValueError(message) from None
            if not isinstance(row, dict):
                message = f"--file {path}, line {number}: a row is a JSON object, not {type(row).__name__}"
                raise ValueError(message)  # noqa: TRY004  (the file's fault)
            yield row


def _read_csv(path: Path) -> Iterator[pa.RecordBatch]:
    import csv as names_of  # noqa: PLC0415  (only for this)

    from pyarrow import csv  # noqa: PLC0415  (only for this)

    with named(path), path.open(encoding="utf-8-sig", newline="") as file:
        names_of.field_size_limit(_CSV_BYTES_MAX)
        names = next(names_of.reader(file), [])
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = whole_csv(path, options)
    for batch in table.to_batches(max_chunksize=_ROWS_PER_BATCH):
        yield _batch(path, [{name: _uncell(name, cell) for name, cell in row.items()} for row in batch.to_pylist()])


def whole_csv(path: Path, options: csv.ConvertOptions) -> pa.Table:
    """A CSV file. Its rows may be as large as a block, which is what the parser looks at at a time."""
    from pyarrow import csv  # noqa: PLC0415  (only for this)

    size = min(path.stat().st_size + 1, _CSV_BYTES_MAX)
    with named(path):
        return csv.read_csv(
            path,
            read_options=csv.ReadOptions(block_size=size),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors about what is in a file name it.

    Raises:
        ValueError: the file is not what its name says.
    """
    import csv  # noqa: PLC0415  (only for this)

    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, csv.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = f"--file {path}: {error}"
        raise ValueError(message) from None


def _uncell(name: str, cell: str | None) -> Any:
    if cell is None or name == "topic":
        return cell
    if name in _BYTES and cell.startswith(_PREFIX):
        try:
            return base64.b64decode(cell.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            return cell
    return cell


def _batch(path: Path, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of texts and numbers as columns."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row.get(name) for row in rows]
        try:
            columns[name] = _column(name, cells)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, pa.ArrowException) as error:
            message = f"--file {path}: column {name}: {error}"
            raise ValueError(message) from None
    return pa.record_batch(columns)


def _column(name: str, cells: list[Any]) -> pa.Array:
    if name in _BYTES:
        return pa.array([_bytes(cell) for cell in cells], pa.binary())
    if name == "headers":
        lists = [json.loads(cell) if isinstance(cell, str) else cell for cell in cells]
        return pa.array([None if cell is None else [_header(each) for each in cell] for cell in lists], _HEADERS)
    if name == "partition":
        return pa.array([None if cell is None else int(cell) for cell in cells], pa.int32())
    if name == "timestamp":
        return pa.array([_milliseconds(cell) for cell in cells], pa.int64())
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _bytes(cell: Any) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return cell.encode()
    if isinstance(cell, dict) and list(cell) == ["base64"] and isinstance(cell["base64"], str):
        return base64.b64decode(cell["base64"], validate=True)
    return json.dumps(cell, separators=(",", ":"), ensure_ascii=False).encode()


def _header(header: dict[str, Any]) -> dict[str, Any]:
    return {"key": header["key"], "value": _bytes(header.get("value"))}


def _milliseconds(cell: Any) -> int | None:
    if cell is None:
        return None
    if isinstance(cell, str) and not cell.lstrip("-").isdecimal():
        when = datetime.fromisoformat(cell)
        if when.tzinfo is None:
            message = f"{cell!r} has no time zone"
            raise ValueError(message)
        return round(when.timestamp() * 1000)
    return int(cell)
