"""Bounded reads: a range of a topic as one Arrow stream."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace import _native
from headrace._options import OptionValue, Servers, pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from headrace._columns import Columns
    from headrace.values import Format

Bound: TypeAlias = "Literal['earliest', 'latest'] | int | datetime | Mapping[int, int]"


class Read:
    """A range of a topic that can be read once: batch by batch, as one table, or as an Arrow C stream.

    Created by `read`.
    """

    def __init__(self, native: _native.Read, columns: Columns | None) -> None:
        """Takes over a prepared read; users call `read`."""
        self._native = native
        self._columns = columns

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        import pyarrow as pa  # noqa: PLC0415  (only who asks for it pays for it)

        raw = pa.schema(self._native)
        return raw if self._columns is None else self._columns.schema(raw)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches in turn; rows of one batch are of one partition, in the order of their offsets.

        Raises:
            DecodeError: a key or value is not of its format; the rows of the partition before it have come.
        """
        found = batches(self._native.batches())
        return found if self._columns is None else chain.from_iterable(map(self._columns.parts, found))

    def read_all(self) -> pa.Table:
        """All rows as one table, which must fit in memory."""
        import pyarrow as pa  # noqa: PLC0415  (only who asks for it pays for it)

        return pa.Table.from_batches(list(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow C stream, for duckdb, polars, pandas and others; requesting another schema is not supported."""
        if self._columns is not None:
            import pyarrow as pa  # noqa: PLC0415  (only who asks for it pays for it)

            stream: object = pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(
                requested_schema
            )
            return stream
        return self._native.__arrow_c_stream__(requested_schema)


def read(
    bootstrap_servers: Servers,
    topic: str,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Iterable[int] | None = None,
    config: Mapping[str, OptionValue] | None = None,
    key: Format | None = None,
    value: Format | None = None,
    **options: OptionValue,
) -> Read:
    """Reads a range of a topic, without a group.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        topic: the topic's name.
        start: ``"earliest"``, ``"latest"``, an aware datetime (first record at or after it), an offset for every
            partition, or offsets by partition.
        end: the same as ``start``; the record at ``end`` is not read. ``"latest"`` is the end of the log when the read
            begins; with ``isolation_level="read_committed"`` that is where the first open transaction begins.
        partitions: the partitions to read; by default all, or those named in ``start``.
        config: consumer options by Kafka's names, and ``oauth_cb`` (docs/security.md).
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md).
        **options: the same as keywords, such as ``include_headers=True``.

    Returns:
        A `Read`: iterate over it, call `Read.read_all`, or pass it to anything that takes an Arrow C stream.

    Raises:
        UnknownTopicOrPartitionError: the topic or a partition does not exist.
        OffsetOutOfRangeError: ``start`` is outside the log, or a given ``end`` is past its end.
        KafkaTimeoutError: no broker answered within ``default.api.timeout.ms``.
    """
    settings = pairs(bootstrap_servers, config, options)
    chosen = None if partitions is None else sorted(set(partitions))
    if chosen is None and isinstance(start, Mapping):
        chosen = sorted(start)
    columns = None
    if key is not None or value is not None:
        from headrace._columns import Columns  # noqa: PLC0415  (it takes pyarrow)

        columns = Columns.of(key, value)
        if columns is not None:
            columns.bind([topic])
            settings = columns.settings(settings)
    return Read(_native.Read(settings, topic, chosen, _bound("start", start), _bound("end", end)), columns)


def _bound(name: str, bound: object) -> tuple[str, int, dict[int, int]]:
    """A bound as (kind, value, offsets by partition) for the native side."""
    if isinstance(bound, str):
        if bound in {"earliest", "latest"}:
            return (bound, 0, {})
    elif isinstance(bound, datetime):
        if bound.tzinfo is None:
            message = f"{name} is a datetime without a time zone; give it one"
            raise ValueError(message)
        return ("timestamp", int(bound.timestamp() * 1000), {})
    elif isinstance(bound, int) and not isinstance(bound, bool):
        if bound >= 0:
            return ("offset", bound, {})
    elif isinstance(bound, Mapping):
        by_partition = {number: offset for number, offset in bound.items() if _is_offset(number) and _is_offset(offset)}
        if len(by_partition) == len(bound):
            return ("offsets", 0, by_partition)
        message = f"{name} as a mapping takes offsets by partition, whole numbers of at least 0"
        raise ValueError(message)
    # Of a mapping or the like only the type: it may be of options, and hold a secret.
    shown = repr(bound) if isinstance(bound, (str, int, float)) else type(bound).__name__
    message = f"{name} takes 'earliest', 'latest', an offset, an aware datetime, or offsets by partition, not {shown}"
    raise ValueError(message)


def _is_offset(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def batches(native: _native.Batches) -> Iterator[pa.RecordBatch]:
    """The batches of a bounded read. Read one by one, not as a C stream, which would turn all errors into text."""
    while (batch := native.next_batch()) is not None:
        yield batch
