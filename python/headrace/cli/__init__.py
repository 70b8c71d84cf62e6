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
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMANDS: Final = {
    "broker": "run a broker in the foreground",
    "topics": "list topics; create, describe, alter and delete them",
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

VERBS: Final = {"topics": "list", "groups": "list", "cluster": "status"}
"""What these commands do where no verb is given."""

_MEANT: Final = {
    "--from-beginning": "`--from earliest` reads all that is there",
    "--topic": "a topic stands behind the command, without an option",
    "--bootstrap-server": "`-b HOST:PORT` names a broker",
    "--bootstrap-servers": "`-b HOST:PORT` names a broker",
    "--offset": "`--from` takes an offset",
    "produce": "what is sent comes from standard input, a record a line, or from --file",
}
"""Options of other programs, and of commands what does not stand behind them."""

_WITH_SECRETS: Final = ("-X", "-F", "-c", "--to-option", "--option", "--format", "--config")

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
    if chosen is not None and chosen not in COMMANDS:
        command_line(None).error(f"there is no command {chosen!r}{_perhaps(chosen)}")
    if chosen in VERBS:
        behind = arguments.index(chosen) + 1
        following = arguments[behind] if behind < len(arguments) else "-"
        if following.startswith("-") and following not in {"-h", "--help"}:
            arguments.insert(behind, VERBS[chosen])
    parser = command_line(chosen)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        _refuse(parser, chosen, rest, may_show=not any(each.startswith(_WITH_SECRETS) for each in arguments))
    if options.version:
        from headrace import __version__  # noqa: PLC0415  (asked for)

        sys.stdout.write(f"headrace {__version__}\n")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return _run(options)


def _perhaps(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  (asked for)

    close = get_close_matches(name, COMMANDS, 1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(COMMANDS)}"


def _refuse(parser: argparse.ArgumentParser, chosen: str | None, rest: list[str], *, may_show: bool) -> NoReturn:
    """Says what is not known, with the usage of the command; no value that may be a password which went astray."""
    from headrace.cli._common import subcommands  # noqa: PLC0415  (asked for)

    names = [each.partition("=")[0] for each in rest]
    shown = [each if may_show or each.startswith("-") else "a value" for each in names]
    hints = [_MEANT[each] for each in shown if each in _MEANT]
    if chosen in _MEANT and not shown[0].startswith("-"):
        hints.append(_MEANT[chosen])
    of_command, _ = subcommands(parser).get(chosen or "", (parser, ""))
    of_command.error("; ".join([f"unrecognized arguments: {', '.join(shown)}", *dict.fromkeys(hints)]))


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
