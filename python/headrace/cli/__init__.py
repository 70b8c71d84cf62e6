"""The command ``headrace``. Each command's module is loaded only when it is called, so that a broker starts fast."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMANDS: Final = {
    "broker": "run a broker in the foreground",
    "topics": "list topics; create, describe and delete them",
    "produce": "send lines, or rows of a Parquet, CSV or JSON file",
    "consume": "print records, or write them to a Parquet, CSV or JSON file",
    "copy": "copy a topic to Parquet files, another topic or cluster, and go on where it stopped",
    "groups": "list consumer groups; show and reset their offsets, delete them",
    "lag": "show how far consumer groups are behind, once or again and again",
    "top": "watch which topics are written to and which groups read, and how fast",
    "cluster": "show brokers, who leads, and which copies are behind",
    "lab": "run a workload from a file with several clients, and measure it",
    "doctor": "say what this machine and a broker can do, and what to change",
    "completion": "print what makes a shell complete commands and options",
    "demo": "watch real traffic measurements flow through the broker and PySpark into a picture",
}

LISTING: Final = ("topics", "groups")
"""Commands that list where no verb is given."""

_EXAMPLES: Final = """\
examples:
  headrace broker --data-dir ./data --port 9092
  headrace topics create orders --partitions 4
  echo '{"id": 1}' | headrace produce orders
  headrace consume orders --from earliest --max 10
  headrace copy orders parquet:orders/
  headrace demo

Every command but `broker` and `demo` talks to --bootstrap (default localhost:9092, or $HEADRACE_BOOTSTRAP);
any Apache Kafka works too. -X sets client options by Kafka's names. See `headrace COMMAND --help` for more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 success, 1 failure, 2 usage, 130 Ctrl-C, 143 SIGTERM."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot show is no reason to end.
            stream.reconfigure(errors="backslashreplace")
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    finally:
        _empty_streams()


def _main(arguments: list[str]) -> int:
    # Help of all commands needs all parsers, but running one needs only its own.
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    if chosen in LISTING:
        behind = arguments.index(chosen) + 1
        following = arguments[behind] if behind < len(arguments) else "-"
        if following.startswith("-") and following not in {"-h", "--help"}:
            arguments.insert(behind, "list")
    parser = command_line(chosen)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        # Not what was given: it may be a password that stands apart from its option.
        shown = ", ".join(each.partition("=")[0] if each.startswith("-") else "a value" for each in rest)
        parser.error(f"unrecognized arguments: {shown}")
    if options.version:
        from headrace import __version__  # noqa: PLC0415  (asked for)

        sys.stdout.write(f"headrace {__version__}\n")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return _run(options)


def _open_streams() -> None:
    """Standard streams that the caller has closed lead nowhere: a file that is opened later does not take their place.

    The lowest free descriptor is the one that is opened, so they are opened in their order.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  (for good)


def _empty_streams() -> None:
    """Writes what is left, or drops it where that fails: Python itself would end with a status of its own, 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def command_line(chosen: str | None) -> argparse.ArgumentParser:
    """The parser, with the options of one command; ``*`` is all of them."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Kafka for Arrow and PySpark: broker, topics, records.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if chosen in {name, "*"}:
            import_module(f"headrace.cli.{name}").configure(command)
    return parser


class Terminated(BaseException):
    """SIGTERM arrived: files are closed, and records sent, on the way out."""


@contextmanager
def _ending_well() -> Iterator[None]:
    """Lets SIGTERM end the command as Ctrl-C does, unless the command handles it itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(options: argparse.Namespace) -> int:
    from headrace.cli._common import printable  # noqa: PLC0415  (not for --help)
    from headrace.errors import KafkaError  # noqa: PLC0415  (not for --help)

    try:
        with _ending_well():
            status: int | None = options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        return 0
    except (KafkaError, OSError, ValueError, OverflowError) as error:
        with suppress(OSError):
            sys.stderr.write(f"headrace {options.command}: {printable(error)}\n")
        return 1
    return status or 0
