"""What several commands share."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SECONDS_MAX: Final = 86_400.0
INT32_MAX: Final = 2**31 - 1


def client_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every command that talks to a cluster."""
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("HEADRACE_BOOTSTRAP", "localhost:9092"),
        help="brokers to connect to first, separated by commas (default: $HEADRACE_BOOTSTRAP or localhost:9092)",
    )
    parser.add_argument(
        "-X",
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="a client option by Kafka's name, such as request.timeout.ms=5000; can be repeated",
    )


def setting(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` as a pair."""
    name, found, value = text.partition("=")
    if not found or not name.strip():
        # Not what was given: it may be a password.
        missing = "a name before '='" if found else "'='"
        message = f"it is not of the form NAME=VALUE: {missing} is missing"
        raise argparse.ArgumentTypeError(message)
    return name.strip(), value.strip()


def printable(text: object) -> str:
    """A text that a peer or a file may have written, with its control characters escaped: a terminal obeys those."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text))


def rendered(header: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> str:
    """Rows as a `table`, or as an array of `objects`."""
    return json.dumps(objects(header, rows)) + "\n" if as_json else table(header, rows)


def objects(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Rows by the names of their columns: ``READ/S`` is ``read_per_s``."""
    names = [name.lower().replace(" ", "_").replace("/", "_per_") for name in header]
    return [dict(zip(names, row, strict=True)) for row in rows]


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A type of whole numbers in a range."""

    def parsed(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            message = f"{text!r} is no whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(message)
        return found

    return parsed


def seconds(text: str) -> float:
    """A number of seconds, a day at most."""
    found = float(text)
    if not 0 < found <= SECONDS_MAX:
        message = f"{text} is no number of seconds"
        raise argparse.ArgumentTypeError(message)
    return found


def start(text: str) -> str | datetime:
    """``earliest``, ``latest``, or a time of which the zone is known."""
    if text in {"earliest", "latest"}:
        return text
    try:
        # Python 3.10 does not know the Z.
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        message = f"{text!r} is neither earliest nor latest nor a time such as 2026-11-01T00:00:00Z"
        raise argparse.ArgumentTypeError(message) from None
    if when.tzinfo is None:
        message = f"{text!r} has no time zone; {text}Z is one of UTC"
        raise argparse.ArgumentTypeError(message)
    # The protocol has other meanings for negative times.
    if when.timestamp() < 0:
        message = f"{text!r} is before 1970"
        raise argparse.ArgumentTypeError(message)
    return when


def subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """The parsers below a parser, by name, with what each is for."""
    for action in parser._actions:  # noqa: SLF001  (argparse has no other way to ask)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  (as above)
            summaries = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001  (as above)
            return {name: (inner, summaries[name]) for name, inner in action.choices.items()}
    return {}


def watch_option(parser: argparse._ActionsContainer) -> None:
    """Adds ``--watch``, for `watch`."""
    parser.add_argument(
        "--watch",
        type=seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="show it again every so many seconds, until Ctrl-C (default: %(const)g)",
    )


def watch(every: float, look: Callable[[], str]) -> NoReturn:
    """Shows a text again and again, until Ctrl-C."""
    while True:
        try:
            text = look()
        except KafkaError as error:  # it may be what one is watching for
            text = f"{printable(error)}\n"
        # A terminal is cleared; a file keeps everything.
        start = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
        sys.stdout.write(f"{start}{time.strftime('%H:%M:%S')}  {text}\n")
        sys.stdout.flush()
        time.sleep(every)


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows in columns, numbers to the right."""
    # A line is a row, also where a name has an end of line in it.
    cells = [list(header), *([printable(cell).replace("\n", "\\n") for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = (
            cell.rjust(width) if cell.lstrip("-").isdecimal() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines) + "\n"
