"""``headrace produce``: lines of standard input, or rows of a file."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from headrace.cli import _rows
from headrace.cli._common import client_options
from headrace.producer import Producer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

_LINES_PER_BATCH = 10_000
_BYTES_PER_READ = 1 << 20


class _Stream(Protocol):
    """Standard input."""

    def read1(self, size: int, /) -> bytes: ...


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("topic", help="topic to write to")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="Parquet, CSV or JSON-lines file with the columns value[, key, headers, partition, timestamp], as "
        "consume --output writes it; offset, timestampType and topic are ignored. In CSV an unquoted empty field is "
        'null; in JSON a value or key may be of any type, and {"base64": ...} is bytes. Rows with other columns need '
        "--as-json",
    )
    parser.add_argument("--as-json", action="store_true", help="send each row of --file whole, as a JSON object")
    parser.add_argument("--key-column", metavar="NAME", help="with --as-json: use this column as the key too")
    parser.add_argument("--key-separator", metavar="TEXT", help="use the part of each line before TEXT as the key")
    parser.add_argument("--json", action="store_true", help="print how much was sent as a JSON object, in the end")
    client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Sends everything and says how much it was; lines go out as they come."""
    if options.key_column and not options.as_json:
        message = "--key-column is for --as-json"
        raise ValueError(message)
    if options.as_json and not options.file:
        message = "--as-json is for --file"
        raise ValueError(message)
    if options.file and options.key_separator:
        message = "--key-separator is for lines, not for --file"
        raise ValueError(message)
    begun = time.perf_counter()
    rows, again = 0, "\r" if sys.stderr.isatty() else ""
    with Producer(options.bootstrap, dict(options.option)) as producer:
        batches = _file(options) if options.file else _lines(cast("_Stream", sys.stdin.buffer), options.key_separator)
        sent: deque[Future[int]] = deque()
        for batch in batches:
            sent.append(producer.send_arrow(options.topic, batch))
            rows += batch.num_rows
            while sent and sent[0].done():
                sent.popleft().result()
            if again:
                sys.stderr.write(f"{again}{rows:,} records")
        producer.flush()
        for one in sent:
            one.result()
    took = time.perf_counter() - begun
    sys.stderr.write(f"{again}{rows:,} records sent to {options.topic} in {took:.2f} s ({rows / took:,.0f}/s)\n")
    if options.json:
        sys.stdout.write(json.dumps({"topic": options.topic, "records": rows, "seconds": round(took, 3)}) + "\n")


def _lines(stream: _Stream, separator: str | None) -> Iterator[pa.RecordBatch]:
    """Lines as soon as they are there; what comes last needs no end of line."""
    split = separator.encode() if separator else None
    begun = b""
    while read := stream.read1(_BYTES_PER_READ):
        whole, end, rest = read.rpartition(b"\n")
        if not end:
            begun += rest
            continue
        lines, begun = (begun + whole).split(b"\n"), rest
        for start in range(0, len(lines), _LINES_PER_BATCH):
            yield _batch(lines[start : start + _LINES_PER_BATCH], split)
    if begun:
        yield _batch([begun], split)


def _batch(lines: list[bytes], split: bytes | None) -> pa.RecordBatch:
    part = [line.rstrip(b"\r") for line in lines]
    if split is None:
        return pa.record_batch({"value": pa.array(part, pa.binary())})
    pairs = [line.split(split, 1) if split in line else [None, line] for line in part]
    return pa.record_batch(
        {
            "key": pa.array([pair[0] for pair in pairs], pa.binary()),
            "value": pa.array([pair[1] for pair in pairs], pa.binary()),
        }
    )


def _file(options: argparse.Namespace) -> Iterator[pa.RecordBatch]:
    path = Path(options.file)
    if not path.is_file():
        message = f"--file {path}: there is no such file"
        raise ValueError(message)
    _rows.check_ending("--file", path)
    if not options.as_json:
        yield from _rows.read(path)
        return
    keys, values = [], []
    for row in _objects(path):
        if options.key_column and options.key_column not in row:
            message = f"--key-column {options.key_column}: a row has only {', '.join(row)}"
            raise ValueError(message)
        keys.append(_key(row.get(options.key_column)))
        values.append(json.dumps(row, default=_rows.in_json).encode())
        if len(values) == _LINES_PER_BATCH:
            yield _pairs(keys, values)
            keys, values = [], []
    if values:
        yield _pairs(keys, values)


def _pairs(keys: list[bytes | None], values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _key(cell: Any) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    return (cell if isinstance(cell, str) else json.dumps(cell, default=_rows.in_json)).encode()


def _objects(path: Path) -> Iterable[dict[str, Any]]:
    """Rows with values of their own kinds."""
    if path.suffix in _rows.JSON_ENDINGS:
        yield from _rows.json_objects(path)
        return
    if path.suffix == ".csv":
        from pyarrow import csv  # noqa: PLC0415  (only for this)

        table = _rows.whole_csv(path, csv.ConvertOptions())
    else:
        from pyarrow import parquet  # noqa: PLC0415  (only for this)

        with _rows.named(path):
            table = parquet.read_table(path)
    for batch in table.to_batches(max_chunksize=_LINES_PER_BATCH):
        yield from _rows.as_objects(batch)
