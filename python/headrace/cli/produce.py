"""``headrace produce``: lines of standard input, or rows of a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.cli._common import client_options
from headrace.producer import Producer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import BinaryIO

_LINES_PER_BATCH = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("topic", help="where to")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="Parquet, CSV or JSON-lines file with the columns value[, key, partition, timestamp, topic]; "
        "without --as-json rows of other columns are refused",
    )
    parser.add_argument("--as-json", action="store_true", help="send each row of --file whole, as a JSON object")
    parser.add_argument("--key-separator", metavar="TEXT", help="the part of a line before TEXT is the key")
    client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Sends everything and says how much it was."""
    begun = time.perf_counter()
    rows = 0
    with Producer(options.bootstrap, dict(options.option)) as producer:
        batches = _file(options) if options.file else _lines(sys.stdin.buffer, options.key_separator)
        for batch in batches:
            producer.send_arrow(options.topic, batch)
            rows += batch.num_rows
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{rows:,} records")
        producer.flush()
    took = time.perf_counter() - begun
    sys.stderr.write(f"\r{rows:,} records sent to {options.topic} in {took:.2f} s ({rows / took:,.0f}/s)\n")


def _lines(stream: BinaryIO, separator: str | None) -> Iterator[pa.RecordBatch]:
    split = separator.encode() if separator else None
    while lines := stream.readlines(1 << 20):
        for start in range(0, len(lines), _LINES_PER_BATCH):
            part = [line.rstrip(b"\r\n") for line in lines[start : start + _LINES_PER_BATCH]]
            if split is None:
                yield pa.record_batch({"value": pa.array(part, pa.binary())})
                continue
            pairs = [line.split(split, 1) if split in line else [None, line] for line in part]
            yield pa.record_batch(
                {
                    "key": pa.array([pair[0] for pair in pairs], pa.binary()),
                    "value": pa.array([pair[1] for pair in pairs], pa.binary()),
                }
            )


def _file(options: argparse.Namespace) -> Iterator[pa.RecordBatch]:
    path = Path(options.file)
    table = _read(path)
    if options.as_json:
        import json  # noqa: PLC0415  (only for this)

        for batch in table.to_batches(max_chunksize=_LINES_PER_BATCH):
            values = [json.dumps(row, default=str).encode() for row in batch.to_pylist()]
            yield pa.record_batch({"value": pa.array(values, pa.binary())})
        return
    yield from table.to_batches(max_chunksize=100_000)


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        message = f"--file {path}: there is no such file"
        raise ValueError(message)
    if path.suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415  (only for this)

        return parquet.read_table(path)
    if path.suffix == ".csv":
        from pyarrow import csv  # noqa: PLC0415  (only for this)

        return csv.read_csv(path)
    if path.suffix in {".json", ".jsonl", ".ndjson"}:
        from pyarrow import json as arrow_json  # noqa: PLC0415  (only for this)

        return arrow_json.read_json(path)
    message = f"--file {path}: the name ends in none of .parquet, .csv, .json, .jsonl, .ndjson"
    raise ValueError(message)
