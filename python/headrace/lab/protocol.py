"""What the coordinator and a worker say to each other: JSON, one message a line, on the worker's stdin and stdout.

Any program that speaks it can be a driver. docs/lab.md shows the messages.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

LINE_BYTES_MAX: Final = 1 << 20


class LineError(ValueError):
    """A line is no message."""


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """To a worker: connect, and say `Ready`."""

    tag: ClassVar = "prepare"
    run: str
    role: str
    driver: str
    bootstrap: str
    workload: dict[str, Any]
    topics: list[str]
    members: list[int]
    """Producers: their numbers. Consumers: which members of the group this worker has."""
    group: str = ""
    records: int | None = None
    """Producers: send so many, as fast as they can, then end."""
    distinct: bool = False
    """Consumers: count records that come for the first time."""
    journal: str = ""
    """The file that gets an event for every record (headrace.lab.journal); values have checksums then."""
    first: int = 0
    """Producers: of all producers of the run, the place of this worker's first."""
    of: int = 0
    """Producers: how many the run has; 0: those of this worker."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """To a worker: begin at that wall-clock time; schedules and seconds count from it."""

    tag: ClassVar = "start"
    at_ns: int


@dataclass(frozen=True, kw_only=True)
class Rate:
    """To producers: from then on another schedule; None is as fast as they can, a rate of 0 pauses."""

    tag: ClassVar = "rate"
    at_ns: int
    schedule: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class SetWork:
    """To consumers: another work on each record."""

    tag: ClassVar = "work"
    min_ms: float
    max_ms: float


@dataclass(frozen=True, kw_only=True)
class Stop:
    """To a worker: send or process what is begun, close, say `Done`."""

    tag: ClassVar = "stop"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """From a worker: connected."""

    tag: ClassVar = "ready"
    driver: str
    version: str
    runtime: str


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """From consumers: partitions that its members hold; None where the client does not tell."""

    tag: ClassVar = "assigned"
    partitions: int | None
    holding: int = 0
    """Members that hold one at least."""


@dataclass(frozen=True, kw_only=True)
class Second:
    """From a worker: what happened in a second. `n` counts from the start; the last one may be shorter."""

    tag: ClassVar = "second"
    n: int
    at_ns: int
    counts: list[list[Any]] = field(default_factory=list)
    """[member, topic, partition (-1 unknown), records, bytes]; of producers what is acknowledged."""
    hist: dict[str, Any] = field(default_factory=dict)
    """Producers: ``publish`` and ``delay``. Consumers: ``delivery`` by member, ``partition`` by topic-partition."""
    due: int = 0
    """Producers: records due so far, sent or not."""
    sent: int = 0
    """Producers: records handed to the client so far."""
    failed: int = 0
    """Producers: records that were not acknowledged, in this second."""
    fresh: int = 0
    """Consumers with `Prepare.distinct`: records that came for the first time."""
    foreign: int = 0
    """Consumers: records that are not of this run."""
    polls: int = 0
    empty: int = 0
    errors: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """From a worker: all is closed; it ends."""

    tag: ClassVar = "done"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """From a worker: it cannot go on; it ends."""

    tag: ClassVar = "failed"
    why: str


ToWorker: TypeAlias = "Prepare | Start | Rate | SetWork | Stop"
FromWorker: TypeAlias = "Ready | Assigned | Second | Done | Failed"
_KINDS: Final[dict[tuple[str, str], type[Any]]] = {
    **{("do", kind.tag): kind for kind in (Prepare, Start, Rate, SetWork, Stop)},
    **{("is", kind.tag): kind for kind in (Ready, Assigned, Second, Done, Failed)},
}


def encode(message: ToWorker | FromWorker) -> bytes:
    """A message as a line."""
    verb = "do" if isinstance(message, Prepare | Start | Rate | SetWork | Stop) else "is"
    return json.dumps({verb: message.tag, **vars(message)}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> ToWorker | FromWorker:
    """A line as a message; fields that we do not know are left out, so that a driver may tell more.

    Raises:
        LineError: it is none.
    """
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}: {line[:80]!r}") from None
    verb = next((v for v in ("do", "is") if isinstance(given, dict) and v in given), None)
    kind = _KINDS.get((verb, str(given.get(verb)))) if verb else None
    if kind is None:
        raise LineError(f"no message: {line[:80]!r}")
    names = {f.name for f in dataclasses.fields(kind)}
    try:
        message: ToWorker | FromWorker = kind(**{name: value for name, value in given.items() if name in names})
    except TypeError as error:
        raise LineError(f"{kind.tag}: {error}") from None
    return message
