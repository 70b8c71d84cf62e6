"""The source: offsets are planned on the driver, each task reads its range as Arrow batches."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import KafkaError, OffsetOutOfRangeError
from headrace.spark import clients, planning
from headrace.spark.offsets import OffsetReader
from headrace.spark.planning import Positions, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.spark.options import SourceOptions

_log = logging.getLogger("headrace.spark")


class DataLossError(KafkaError):
    """Records that the query should have read are gone; ``failOnDataLoss=false`` goes on without them."""


class RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, work: Range) -> None:
        """Takes the range to read."""
        super().__init__(work)
        self.work = work


def read_range(options: SourceOptions, work: Range) -> Iterator[pa.RecordBatch]:
    """Reads one range in batches of about 1 MB, with the columns that the query has chosen."""
    from headrace.reading import batches  # noqa: PLC0415  (in the worker only)

    settings = [*options.client, ("include.headers", "true")] if options.include_headers else list(options.client)
    key = tuple(settings)
    start = work.start
    while start < work.stop:
        reader = clients.range_reader(key)
        try:
            for batch in batches(reader.read([(work.topic, work.partition, start, work.stop)])):
                start = cast("int", batch.column("offset")[-1].as_py()) + 1
                yield batch.select(list(options.columns))
            return
        except OffsetOutOfRangeError as error:
            if options.fail_on_data_loss:
                raise DataLossError(
                    f"{work.topic}-{work.partition}: offsets {start} to {work.stop} should be read, but {error}. "
                    "They may have been deleted by retention; failOnDataLoss=false goes on without them"
                ) from error
            earliest = OffsetReader(options).earliest([(work.topic, work.partition)])
            found = earliest[work.topic, work.partition]
            if found <= start:
                _log.warning("%s-%s: offsets %s to %s are gone", work.topic, work.partition, start, work.stop)
                return
            _log.warning("%s-%s: offsets %s to %s are gone", work.topic, work.partition, start, min(found, work.stop))
            start = found
        except BaseException:
            # Whatever went wrong may have left the reader in the middle of a range.
            clients.forget("reader", key)
            raise


class BatchReader(DataSourceReader):
    """Reads a bounded range of offsets."""

    def __init__(self, options: SourceOptions) -> None:
        """Keeps the options; asks the cluster when Spark plans."""
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Plans the tasks."""
        offsets = OffsetReader(self.options)
        start, stop = offsets.resolve(self.options.start), offsets.resolve(self.options.end)
        ranges = [Range(t, p, at, stop[t, p]) for (t, p), at in sorted(start.items())]
        pieces = planning.cut(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's range."""
        return read_range(self.options, cast("RangePartition", partition).work)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches; offsets and checkpoints are in the form of Spark's own connector."""

    def __init__(self, options: SourceOptions) -> None:
        """Keeps the options; asks the cluster when Spark does."""
        self.options = options
        self._offsets = OffsetReader(options)
        self._stop_at: Positions | None = None
        self._earliest: Positions = {}
        self._last_batch_at: float | None = None
        self._newest: Positions = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where a new query begins."""
        return planning.to_json(self._offsets.resolve(self.options.start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """The admission that the options ask for."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where the next micro-batch ends; ``start`` itself when there is none to make."""
        begin = planning.from_json(start)
        end = self._end_of_log(begin)
        if isinstance(limit, ReadAllAvailable):
            return planning.to_json(end)
        if self._stop_at is None and self._too_few(begin, end):
            return start
        maximum = self.options.max_offsets_per_trigger
        if maximum is not None:
            end = planning.limit_rows(begin, end, maximum, self._earliest)
        return planning.to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  (Spark's name)
        """The newest offsets seen, for the query's progress."""
        return planning.to_json(self._newest) if self._newest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Fixes the end at what is there now."""
        self._stop_at = self._offsets.latest(self._offsets.partitions())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plans the tasks of one micro-batch."""
        begin, stop = planning.from_json(start), planning.from_json(end)
        self._check_loss(begin, stop)
        fresh = [tp for tp in stop if tp not in begin]
        if fresh:
            begin = {**begin, **self._offsets.earliest(fresh)}
        ranges = [Range(t, p, begin[t, p], at) for (t, p), at in sorted(stop.items())]
        pieces = planning.cut(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        self._last_batch_at = time.monotonic()
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's range."""
        return read_range(self.options, cast("RangePartition", partition).work)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: offsets live in the checkpoint."""

    def stop(self) -> None:
        """Closes the driver's client."""
        clients.forget("admin", self.options.client)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the executors: the options alone."""
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Starts afresh in another process."""
        StreamReader.__init__(self, state["options"])

    def _end_of_log(self, begin: Positions) -> Positions:
        partitions = self._offsets.partitions()
        if self._stop_at is not None:
            # Partitions made since are the next run's; those deleted since are noticed as a loss.
            end = {tp: at for tp, at in self._stop_at.items() if tp in set(partitions)}
        else:
            end = self._offsets.latest(partitions)
        self._newest = end
        fresh = [tp for tp in end if tp not in begin and tp not in self._earliest]
        if fresh:
            self._earliest.update(self._offsets.earliest(fresh))
        gone = sorted(set(begin) - set(end))
        if gone:
            self._lost(f"partitions {[f'{t}-{p}' for t, p in gone]} are gone")
        shrunk = sorted(tp for tp, at in end.items() if at < begin.get(tp, 0))
        if shrunk:
            topic, partition = shrunk[0]
            self._lost(
                f"{topic}-{partition} ends at {end[topic, partition]}, before the {begin[topic, partition]} that was "
                "read already: it may have been deleted and made again"
            )
            end = {**end, **{tp: begin[tp] for tp in shrunk}}
        return end

    def _too_few(self, begin: Positions, end: Positions) -> bool:
        minimum = self.options.min_offsets_per_trigger
        if minimum is None or planning.available(begin, end, self._earliest) >= minimum:
            return False
        if self._last_batch_at is None:
            self._last_batch_at = time.monotonic()
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        return waited_ms < self.options.max_trigger_delay_ms

    def _check_loss(self, begin: Positions, stop: Positions) -> None:
        gone = sorted(tp for tp in begin if tp not in stop)
        if gone:
            self._lost(f"partitions {[f'{t}-{p}' for t, p in gone]} are gone")

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}; failOnDataLoss=false goes on without them")
        _log.warning("%s; going on, as failOnDataLoss is false", what)
