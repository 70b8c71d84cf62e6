"""``headrace consume``: print records, or write them to a file."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace._options import common, pairs
from headrace.admin import Admin
from headrace.cli import _rows
from headrace.cli._common import client_options, start, whole
from headrace.consumer import Consumer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("topic", help="topic to read")
    parser.add_argument(
        "--from",
        dest="start",
        type=_start,
        default="latest",
        metavar="WHERE",
        help="where to start: earliest, latest, an offset, or a time such as 2026-11-01T00:00:00Z; a group that has "
        "committed goes on after that (default: latest)",
    )
    parser.add_argument(
        "-p", "--partition", type=whole(0), action="append", metavar="NUMBER", help="only this one; can be repeated"
    )
    parser.add_argument("--group", metavar="ID", help="read as a member of this group, and commit offsets")
    parser.add_argument("--max", type=whole(0), metavar="N", help="stop after N records")
    parser.add_argument("--until-end", action="store_true", help="stop at the end that the log had at the start")
    parser.add_argument(
        "--format",
        choices=("value", "key-value", "json"),
        default="value",
        help="value: one value per line; key-value: key, tab, value; json: an object with all columns, as in a file "
        "(default: value)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write all columns, headers included, to a file instead: .parquet, .csv, or .json with an object per "
        "line. produce --file can read it again",
    )
    client_options(parser)
    parser.set_defaults(run=run)


def _start(text: str) -> str | int | datetime:
    return whole(0)(text) if text.isdigit() else start(text)


def run(options: argparse.Namespace) -> None:
    """Reads until the end that was asked for, or Ctrl-C."""
    if not options.output:
        for batch in _batches(options):
            _print(batch, options.format)
        return
    path = Path(options.output)
    _rows.check_ending("--output", path)
    rows = 0
    batches = _batches(options)
    try:
        with _rows.writer(path, next(batches).schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    finally:
        sys.stderr.write(f"{rows:,} records written to {options.output}\n")


def _batches(options: argparse.Namespace) -> Iterator[pa.RecordBatch]:
    """The batches; first one without rows, for the schema."""
    given = pairs(None, dict(options.option), {})
    named = options.start if isinstance(options.start, str) else "latest"
    settings = {"auto.offset.reset": named, **dict(given)}
    if options.output or options.format == "json":
        settings.setdefault("include.headers", "true")
    if options.group:
        settings["group.id"] = options.group
    left = options.max
    with Admin(options.bootstrap, common(given)) as admin, Consumer(options.bootstrap, settings) as consumer:
        partitions = _partitions(admin, options)
        waiting = None
        if options.until_end:
            waiting = consumer.end_offsets(partitions)
        _begin(admin, consumer, partitions, options)
        _say_where(options)
        yield pa.RecordBatch.from_pylist([], consumer.schema)
        while left is None or left > 0:
            if waiting is not None and _at_end(consumer, waiting):
                break
            batch = consumer.poll(timeout=0.5, max_records=left)
            if batch.num_rows:
                yield batch
                if left is not None:
                    left -= batch.num_rows
        if options.group:
            consumer.commit()


def _partitions(admin: Admin, options: argparse.Namespace) -> list[tuple[str, int]]:
    there = [one.partition for one in admin.describe_topics([options.topic])[options.topic].partitions]
    missing = [number for number in options.partition or () if number not in there]
    if missing:
        message = f"topic {options.topic} has no partition {missing[0]}: it has {len(there)}"
        raise ValueError(message)
    return [(options.topic, number) for number in (options.partition or there)]


def _begin(admin: Admin, consumer: Consumer, partitions: list[tuple[str, int]], options: argparse.Namespace) -> None:
    """Has the consumer read from where it was asked to."""
    if options.group:
        if options.partition or not isinstance(options.start, str):
            message = (
                "a group decides who reads which partition, and from where: `headrace groups reset` sets its offsets; "
                "--partition, and --from with an offset or a time, are for reading without --group"
            )
            raise ValueError(message)
        consumer.subscribe([options.topic])
        return
    consumer.assign(partitions)
    if isinstance(options.start, int):
        for tp in partitions:
            consumer.seek(tp, options.start)
    elif isinstance(options.start, datetime):
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        for tp, found in admin.list_offsets(dict.fromkeys(partitions, options.start)).items():
            # Where no record is so late, it begins with those that come.
            consumer.seek(tp, found.offset if found.offset >= 0 else ends[tp].offset)


def _say_where(options: argparse.Namespace) -> None:
    """So that nobody takes the wait for a topic without records."""
    if options.start == "latest" and not options.group and sys.stderr.isatty():
        sys.stderr.write("waiting for new records; --from earliest shows those that are there\n")


def _at_end(consumer: Consumer, ends: dict[Any, int]) -> bool:
    mine = consumer.assignment()
    return bool(mine) and all(consumer.position(tp) >= ends.get(tp, 0) for tp in mine)


def _print(batch: pa.RecordBatch, form: str) -> None:
    out = sys.stdout
    if form == "json":
        for row in _rows.json_rows(batch):
            out.write(json.dumps(row) + "\n")
    elif form == "key-value":
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            out.write(f"{_text(key) or ''}\t{_text(value) or ''}\n")
    else:
        for value in batch.column("value").to_pylist():
            out.write(f"{_text(value) or ''}\n")
    out.flush()


def _text(value: bytes | str | None) -> str | None:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
