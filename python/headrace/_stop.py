"""Where a batch of a client is cut. Apart from formats of values, which take the time of an import."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.errors import KafkaError


class Stop(NamedTuple):
    """Where a batch was cut."""

    partition: tuple[str, int]
    offset: int
    error: KafkaError | None
    """What is to be raised; without one, the rows from there on were too many for one call."""


def row_at(batch: pa.RecordBatch, row: int, error: KafkaError | None) -> Stop:
    """A row of a batch, as where it is cut."""
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return Stop((topic, partition), offset, error)
