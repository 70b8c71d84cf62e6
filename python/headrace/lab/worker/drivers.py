"""What a worker asks of a client, and which clients there are."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from headrace.lab.distribution import Placement

    Rows: TypeAlias = "NDArray[np.int64] | None"
    Times: TypeAlias = "int | NDArray[np.int64]"


class DriverError(RuntimeError):
    """A client cannot do what the workload asks for."""


@dataclass(frozen=True)
class Block:
    """Records to send, to one topic."""

    topic: str
    values: pa.BinaryArray
    placement: Placement
    due: NDArray[np.int64]
    """When each should be sent, in nanoseconds since the epoch."""
    first: int = 0
    """The sequence of the first."""

    def rows(self) -> Iterator[tuple[int, bytes, bytes | None, int | None]]:
        """Number, value, key and partition of each."""
        count = len(self.due)
        keys = [None] * count if self.placement.keys is None else self.placement.keys.to_pylist()
        chosen = self.placement.partitions
        partitions = [None] * count if chosen is None else chosen.tolist()
        return zip(range(count), self.values.to_pylist(), keys, partitions, strict=True)


@dataclass(frozen=True)
class Polled:
    """Records of one partition, in their order."""

    topic: str
    partition: int
    values: pa.Array | list[bytes | None]
    """Bytes, in the form in which the client has them."""
    offsets: NDArray[np.int64] | None = None
    """Where the client tells them."""
    deliveries: NDArray[np.int64] | None = None
    """Share groups: how often brokers have given each out, this time included; where the client tells."""


@dataclass(frozen=True)
class Accepted:
    """Records of a partition whose acknowledgement a broker has taken from a member of a share group."""

    topic: str
    partition: int
    offsets: NDArray[np.int64]


class Outcome(Protocol):
    """Is told what became of records; by any thread."""

    @property
    def each(self) -> bool:
        """Whether it must know of each record by itself; else of a block as a whole will do."""

    def acknowledged(self, block: Block, rows: Rows, sent_ns: int, acked_ns: Times) -> None:
        """These rows of a block (None: all) were handed over and acknowledged at those times."""

    def failed(self, count: int, why: str) -> None:
        """So many were not."""


class Pending:
    """A block whose rows are acknowledged one by one, by any thread; tells the outcome when it has all."""

    def __init__(self, block: Block, outcome: Outcome) -> None:
        """Is made when the block is handed over."""
        self._block, self._outcome = block, outcome
        self._sent_ns = time.time_ns()
        self._acked_ns = np.zeros(len(block.due), np.int64)
        self._left = len(block.due)
        self._lock = threading.Lock()

    def ended(self, row: int, error: object | None) -> None:
        """A row was acknowledged, or was not for that reason."""
        if error is None:
            self._acked_ns[row] = time.time_ns()
        else:
            self._outcome.failed(1, str(error))
        with self._lock:
            self._left -= 1
            all_ended = not self._left
        if all_ended:
            rows = np.flatnonzero(self._acked_ns)
            self._outcome.acknowledged(self._block, rows, self._sent_ns, self._acked_ns[rows])


class ProducerDriver:
    """A producer."""

    def send(self, block: Block) -> None:
        """Hands records over; waits while the client has no room."""
        raise NotImplementedError

    def poll(self) -> None:
        """Gives the client a moment to tell its outcomes, if it needs one."""

    def flush(self, timeout_s: float) -> None:
        """Waits for all outcomes."""

    def close(self) -> None:
        """Ends it; what is still on its way may be lost."""


class ConsumerDriver:
    """A member of a group."""

    each = False
    """Whether offsets are told, and `accepted` of every record, at whatever cost."""

    def tell(self, why: str) -> None:
        """Something went wrong that the member goes on after; who has made it listens."""

    def poll(self, timeout_s: float) -> Sequence[Polled]:
        """The next records."""
        raise NotImplementedError

    def assigned(self) -> int | None:
        """How many partitions it holds; None where the client does not tell."""

    def done(self) -> None:
        """The work on what the last poll gave is done."""

    def accepted(self) -> Sequence[Accepted]:
        """What brokers have taken acknowledgements of since the last time, in share groups."""
        return ()

    def close(self) -> None:
        """Leaves the group; what was given counts as processed."""


@dataclass(frozen=True)
class Driver:
    """A client: how its parts are made."""

    name: str
    """As workloads call it."""
    version: str
    """The client and its version."""
    producer: Callable[[str, Mapping[str, str], Outcome], ProducerDriver]
    """From bootstrap, options, and whom to tell outcomes."""
    member: Callable[[str, Mapping[str, str], str, Sequence[str]], ConsumerDriver]
    """Of a consumer group, from bootstrap, options, group and topics."""
    share_member: Callable[[str, Mapping[str, str], str, Sequence[str]], ConsumerDriver] | None = None
    """Of a share group, if the client has those."""
    block_rows: int = 4_000
    """How many records are handed over together at most: they are counted when the last of them is acknowledged."""

    def consumer(
        self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str], *, share: bool
    ) -> ConsumerDriver:
        """A member of a group of either kind.

        Raises:
            DriverError: the client has no share groups.
        """
        made = self.share_member if share else self.member
        if made is None:
            raise DriverError(f"share groups are not driven with {self.name}")
        return made(bootstrap, options, group, topics)


MODULES: Final = {
    "headrace": ("headrace", "headrace_"),
    "confluent-kafka": ("confluent_kafka", "confluent"),
    "kafka-python": ("kafka", "kafka_python"),
}
"""Driver to the package that it needs, and the module here."""

ALONE: Final = frozenset({"kafka-python"})
"""Drivers that hold the GIL while they work: a process for each member."""


def load(name: str) -> Driver:
    """A driver by its name.

    Raises:
        DriverError: its package is not installed.
    """
    package, module = MODULES[name]
    if find_spec(package) is None:
        raise DriverError(f"the driver {name} needs its package: pip install {name}")
    found: Any = import_module(f"headrace.lab.worker.{module}")
    driver: Driver = found.DRIVER
    return driver


def typed(text: str, default: Any) -> Any:
    """An option's text as the type of a client's own default; a text that is no number stays one (``acks=all``)."""
    if isinstance(default, bool):
        return text.lower() == "true"
    for kind in (int, float) if isinstance(default, int | float) else ():
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
