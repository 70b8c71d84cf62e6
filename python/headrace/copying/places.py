"""What is copied, whence and where to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

Positions = dict[int, int]
"""For each partition the source's offset that comes next."""
Ranges = dict[int, tuple[int, int]]
"""For each partition the first offset, and the one behind the last."""


class Origin(NamedTuple):
    """The topic that records come from."""

    cluster_id: str
    topic: str
    topic_id: str


class CopyError(ValueError):
    """Source and target do not fit together, or one of them is not what a copy has left."""


class Source(Protocol):
    """A topic, or the files of one."""

    @property
    def name(self) -> str:
        """As the user calls it."""

    @property
    def origin(self) -> Origin:
        """The topic that its records come from."""

    def ends(self) -> Ranges:
        """What it has at the moment."""

    def start(self, ends: Ranges) -> Positions:
        """Where a copy of it begins, as the user has chosen."""

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """The records of these ranges, in the order of each partition; rows of one batch are of one partition."""


class Target(Protocol):
    """A folder, or a topic."""

    @property
    def name(self) -> str:
        """As the user calls it."""

    def positions(self, source: Source, ends: Ranges) -> Positions:
        """How far earlier copies of the source have got; of partitions that none has begun, nothing.

        Raises:
            CopyError: it has what is not of this source.
        """

    def begin(self, positions: Positions) -> None:
        """Takes note that these partitions are copied from there; a topic that is not there is made."""

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Takes records; they count once they are committed."""

    def commit(self, positions: Positions) -> None:
        """Makes sure of all that was written, and that the next copy goes on from there.

        After it, or `write`, has failed, neither is called again.
        """
