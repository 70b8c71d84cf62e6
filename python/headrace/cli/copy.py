"""``headrace copy``: a topic to Parquet files or to another topic, and back."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli._common import client_options, seconds, setting, start, table, whole

if TYPE_CHECKING:
    import argparse

    from headrace.copying.places import Ranges, Source, Target
    from headrace.copying.run import Copy, Progress

_FOLDER: Final = "parquet:"
_EXAMPLES: Final = """\
examples:
  headrace copy orders parquet:orders/             a topic as Parquet files
  headrace copy parquet:orders/ orders-again       and back
  headrace copy orders orders --to other:9092      to another cluster
  headrace copy orders parquet:orders/ --follow    and go on with what comes
  headrace copy orders parquet:typed/ -F value.format=avro -F schema.registry.url=http://localhost:8081

A copy that was broken off goes on where it stopped when the same command is run again: each record is there once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a topic, or parquet:FOLDER that a copy has written")
    parser.add_argument("target", metavar="TARGET", help="a topic, or parquet:FOLDER; made if it is not there")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        type=start,
        default="earliest",
        help="where a topic's copy begins: earliest (default), latest, or a time such as 2026-11-01T00:00:00Z",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what is written from now on, until Ctrl-C")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=seconds,
        help="with --follow: how often to copy what has come (default: 60 to files, 1 to a topic)",
    )
    parser.add_argument(
        "--rows-per-file",
        metavar="N",
        type=whole(1),
        default=1_000_000,
        help="a file's rows, at most (default: 1000000)",
    )
    parser.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
        default="zstd",
        help="of Parquet files (default: zstd)",
    )
    parser.add_argument(
        "-F",
        "--format",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="what keys or values are, which are columns in the files then: value.format=avro, value.schema.file=..., "
        "schema.registry.url=... and others, by the names that the Spark source has (docs/spark.md); can be repeated",
    )
    parser.add_argument("--append", action="store_true", help="copy to a topic that has other records already")
    parser.add_argument(
        "--allow-gaps", action="store_true", help="go on though records were deleted before they were copied"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be copied")
    parser.add_argument("--json", action="store_true", help="print what was done as a JSON object")
    parser.add_argument("--to", metavar="HOST:PORT", help="brokers of the target's cluster (default: --bootstrap)")
    parser.add_argument(
        "--to-option",
        metavar="NAME=VALUE",
        action="append",
        type=setting,
        help="a client option for the target, as -X is one for the source (default without --to: those of -X that "
        "every client has); can be repeated",
    )
    client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Copies, and says how far it is."""
    from headrace.copying.run import Copy  # noqa: PLC0415  (it takes pyarrow)

    _check(options)
    shown = _Shown(sys.stderr.isatty())
    to_files = options.target.startswith(_FOLDER)
    with ExitStack() as opened:
        source, target = _source(options, opened), _target(options, opened)
        copy = Copy(source, target, not to_files, options.allow_gaps, shown.progress, shown.sentence)
        ranges = copy.plan()
        if options.dry_run:
            _tell_plan(options, ranges)
            return
        try:
            copy.round(ranges)
            if options.follow:
                copy.follow(options.interval or (60.0 if to_files else 1.0))
        finally:
            shown.end(copy)
            _tell(options, copy)


def _check(options: argparse.Namespace) -> None:
    from headrace._formats import OPTIONS  # noqa: PLC0415  (they take pyarrow)

    folders = [each.startswith(_FOLDER) for each in (options.source, options.target)]
    wrong = {
        "both are folders: copy their files, for example by cp": all(folders),
        "source and target are the same topic": not any(folders)
        and options.source == options.target
        and options.to in {None, options.bootstrap},
        f"{_FOLDER} lacks a folder": _FOLDER in {options.source, options.target},
        "--interval is for --follow": options.interval is not None and not options.follow,
        "--follow and --from are for a source that is a topic": folders[0]
        and (options.follow or options.start != "earliest"),
        "--format is for copies to files and from files": bool(options.format) and not any(folders),
        "--append is for a target that is a topic": folders[1] and options.append,
        "--to and --to-option are for a target that is a topic": folders[1]
        and (options.to is not None or options.to_option is not None),
        **{f"--format has no {name}": name not in OPTIONS for name, _ in options.format},
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


def _source(options: argparse.Namespace, opened: ExitStack) -> Source:
    from headrace._formats import side_formats  # noqa: PLC0415  (they take pyarrow)
    from headrace.copying.folder import FolderSource  # noqa: PLC0415
    from headrace.copying.topics import TopicSource  # noqa: PLC0415

    if options.source.startswith(_FOLDER):
        return FolderSource(Path(options.source.removeprefix(_FOLDER)))
    formats = side_formats(dict(options.format))
    made = TopicSource(options.bootstrap, options.source, dict(options.option), options.start, formats)
    return opened.enter_context(made)


def _target(options: argparse.Namespace, opened: ExitStack) -> Target:
    from headrace._formats import sink_formats  # noqa: PLC0415  (they take pyarrow)
    from headrace._options import common, pairs  # noqa: PLC0415
    from headrace.copying.folder import FolderTarget  # noqa: PLC0415
    from headrace.copying.topics import TopicTarget  # noqa: PLC0415

    if options.target.startswith(_FOLDER):
        folder = Path(options.target.removeprefix(_FOLDER))
        made = FolderTarget(folder, options.rows_per_file, options.compression)
        return made if options.dry_run else opened.enter_context(made)
    own = dict(options.to_option or ())
    if options.to is None:
        own = {**common(pairs(None, dict(options.option), {})), **own}
    servers, formats = options.to or options.bootstrap, sink_formats(dict(options.format), options.target)
    return opened.enter_context(TopicTarget(servers, options.target, own, formats, append=options.append))


def _tell_plan(options: argparse.Namespace, ranges: Ranges) -> None:
    if options.json:
        found = [{"partition": partition, "first": at, "end": end} for partition, (at, end) in sorted(ranges.items())]
        sys.stdout.write(json.dumps({"ranges": found, "offsets": sum(end - at for at, end in ranges.values())}) + "\n")
        return
    rows = [(partition, at, end, end - at) for partition, (at, end) in sorted(ranges.items())]
    sys.stdout.write(table(("PARTITION", "FROM", "TO", "OFFSETS"), rows))


def _tell(options: argparse.Namespace, copy: Copy) -> None:
    progress = copy.progress
    if options.json:
        done = {
            "source": copy.source.name,
            "target": copy.target.name,
            "records": progress.rows,
            "committed": copy.is_committed,
            "bytes": progress.bytes,
            "gaps": progress.gaps,
            "seconds": round(progress.seconds, 3),
        }
        sys.stdout.write(json.dumps(done) + "\n")


class _Shown:
    """What a user sees meanwhile: on a terminal a line that changes, elsewhere one every ten seconds."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._next = time.monotonic() + (0.0 if terminal else 10.0)

    def progress(self, progress: Progress) -> None:
        """Shows it, when it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if self._terminal else 10.0)
        rate = progress.rows / progress.seconds
        share = progress.rows / max(progress.rows + progress.left, 1)
        megabytes = progress.bytes / progress.seconds / 1e6
        line = f"{progress.rows:,} records  {share:.0%}  {rate:,.0f}/s  {megabytes:,.0f} MB/s"
        if progress.left and rate:
            line += f"  {progress.left / rate:,.0f} s left"
        if self._terminal:
            # A longer line would be two, of which only the second is written over.
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            line = f"\r\x1b[K{line[: columns - 1]}"
        sys.stderr.write(line if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def sentence(self, text: str) -> None:
        """A line of its own."""
        sys.stderr.write(f"\r\x1b[K{text}\n" if self._terminal else f"{text}\n")

    def end(self, copy: Copy) -> None:
        """How much it was."""
        progress = copy.progress
        rate = progress.rows / progress.seconds
        done = "copied" if copy.is_committed else "read, and not all of them copied,"
        self.sentence(f"{progress.rows:,} records {done} in {progress.seconds:.2f} s ({rate:,.0f}/s)")
