"""The source: offsets are planned on the driver, each task reads its range as Arrow batches."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import KafkaTimeoutError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from headrace.spark import clients, planning
from headrace.spark.offsets import OffsetReader
from headrace.spark.planning import Positions, Range

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import TracebackType

    import pyarrow as pa

    from headrace.spark.options import SourceOptions

_log = logging.getLogger("headrace.spark")
_SOCKET_GONE = (BrokenPipeError, ConnectionResetError)


def check_clients(options: SourceOptions) -> None:
    """Has the clients read their options, without connecting, so that a wrong one fails before any task.

    Raises:
        ConfigError: an option is unknown, not supported, or has a value that is not accepted.
    """
    with clients.admin(options.client), clients.range_reader(options.reader):
        pass
    if options.dead_letter_topic is not None:
        with clients.producer(options.letters):
            pass
    clients.close_idle()


def read_range(options: SourceOptions, work: Range) -> Generator[pa.RecordBatch, None, None]:
    """Reads one range in batches of about 1 MB, with the columns that the query has chosen.

    Raises:
        DataLossError: records of the range are gone.
        DeadLetterError: a row that cannot be decoded did not reach ``deadLetterTopic``.
        DecodeError: a key or value cannot be decoded, and its ``on.error`` is ``raise``.
        KafkaTimeoutError: nothing arrived for ``kafkaConsumer.pollTimeoutMs``.
        OffsetOutOfRangeError: the broker refuses an offset that it says it has.
    """
    with ExitStack() as opened:
        # Closed by name: an error that is on its way keeps generators alive, and with them their clients.
        rows: Iterator[pa.RecordBatch] = opened.enter_context(closing(_records(options, work)))
        if options.formats:
            from headrace.spark.columns import plain  # noqa: PLC0415  (in the worker only)
            from headrace.values.from_options import columns_of  # noqa: PLC0415  (as above)

            dead = options.dead_letter_topic is not None
            rows = chain.from_iterable(map(columns_of(options.formats, reported=dead).parts, rows))
            if dead:
                from headrace.spark.letters import after_letters  # noqa: PLC0415  (where there may be some)

                rows = opened.enter_context(closing(after_letters(options, rows)))
            rows = map(plain, rows)
        for batch in rows:
            yield batch.select(list(options.columns))


def _records(options: SourceOptions, work: Range) -> Generator[pa.RecordBatch, None, None]:
    """The records of a range as bytes, with all columns that the client makes."""
    position = work.start
    while position < work.stop:
        try:
            for batch in _read_from(options, work, position):
                position = cast("int", batch.column("offset")[-1].as_py()) + 1
                yield batch
        except (OffsetOutOfRangeError, KafkaTimeoutError):
            go_on = _after_loss(options, work, position)
            if go_on == position:
                raise
            position = go_on
        else:
            return


def _read_from(options: SourceOptions, work: Range, position: int) -> Iterator[pa.RecordBatch]:
    from headrace.reading import batches  # noqa: PLC0415  (in the worker only)

    clients.settle_worker()
    with clients.range_reader(options.reader) as reader:
        yield from batches(reader.read([(work.topic, work.partition, position, work.stop)]))


def _after_loss(options: SourceOptions, work: Range, position: int) -> int:
    """Where to go on in a range when the broker will not give what comes next; ``position`` itself if it should."""
    offsets = OffsetReader(options)
    tp = (work.topic, work.partition)
    name = f"{work.topic}-{work.partition}"
    try:
        earliest, latest = offsets.earliest([tp])[tp], offsets.latest([tp])[tp]
    except UnknownTopicOrPartitionError:
        offsets.lost(f"{name} is gone, with its offsets {position} to {work.stop}")
        return work.stop
    if earliest > position:
        found = min(earliest, work.stop)
        offsets.lost(f"offsets {position} to {found} of {name} are gone: its log begins at {earliest}")
        return found
    if latest <= position:
        offsets.lost(f"offsets {position} to {work.stop} of {name} are gone: its log ends at {latest}")
        return work.stop
    return position


class BatchReader(DataSourceReader):
    """Reads a bounded range of offsets; asks the cluster when Spark plans."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Plans the tasks."""
        _check_letters(self.options)
        offsets = OffsetReader(self.options)
        partitions = offsets.partitions()
        # The end first: records written between the two look-ups then lie behind it.
        stop = offsets.resolve(self.options.end, partitions)
        start = offsets.resolve(self.options.start, partitions)
        return _tasks(self.options, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's range; where there is nothing to read, Spark makes one task with no value."""
        return iter(()) if partition.value is None else read_range(self.options, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches; offsets and checkpoints are in the form of Spark's own connector."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._offsets = OffsetReader(options)
        self._initial: dict[str, Any] | None = None
        self._noted = False
        self._checked = options.dead_letter_topic is None
        self._stop_at: Positions | None = None
        self._earliest: Positions = {}
        self._newest: Positions = {}
        self._last_batch_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where a new query begins; Spark asks more than once, and must get the same answer."""
        if self._initial is None:
            self._initial = planning.to_json(self._offsets.resolve(self.options.start, self._offsets.partitions()))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """The admission that the options ask for; Spark knows one limit, `latestOffset` applies both."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where the next micro-batch ends; ``start`` itself when there is none to make.

        A checkpoint keeps the ends of micro-batches alone. So the first one of a query that begins at the end of its
        topics is empty: its end notes where the query begins, which is another place when asked for after a restart.
        """
        self._check_letters_once()
        first, self._noted = not self._noted, True
        if first and start == self._initial and self.options.begins_at_end:
            return start
        begin = planning.from_json(start)
        end = self._end(begin)
        if not isinstance(limit, ReadAllAvailable):
            if self._wait_for_more(begin, end):
                return start
            if isinstance(limit, ReadMaxRows):
                end = planning.limit_rows(begin, end, limit.max_rows, self._earliest)
        return planning.to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  (Spark's name)
        """The newest offsets seen, for the query's progress."""
        return planning.to_json(self._newest) if self._newest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Fixes the end at the current end of the log."""
        if self.options.min_offsets_per_trigger is not None:
            _log.warning(
                "minOffsetsPerTrigger has no effect with Trigger.AvailableNow: the query reads what is there and ends"
            )
        self._stop_at = self._offsets.latest(self._partitions({}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plans the tasks of one micro-batch; after a restart of one whose end is in the checkpoint already."""
        if not self._noted and start == self._initial and self.options.begins_at_end:
            # The empty first micro-batch, after a restart before it was committed: what it notes is in its end.
            return []
        self._check_letters_once()
        begin, stop = planning.from_json(start), planning.from_json(end)
        gone = sorted(set(begin) - set(stop))
        if gone:
            self._offsets.lost(f"partitions {', '.join(f'{t}-{p}' for t, p in gone)} are gone")
        fresh = sorted(set(stop) - set(begin))
        if fresh:
            begin.update(self._begin_of(fresh, stop))
        for (topic, partition), at in sorted(stop.items()):
            if begin[topic, partition] > at:
                self._offsets.lost(
                    f"{topic}-{partition} has been read to {begin[topic, partition]} but ends at {at}: it may have "
                    "been deleted and made again"
                )
        return _tasks(self.options, begin, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's range."""
        return read_range(self.options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: offsets live in the checkpoint."""

    def stop(self) -> None:
        """Closes the driver's clients."""
        clients.close_idle()
        if isinstance(sys.exc_info()[1], (EOFError, *_SOCKET_GONE)):
            _end_quietly()

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to the executors: the options alone."""
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Starts afresh in another process."""
        StreamReader.__init__(self, state["options"])

    def _check_letters_once(self) -> None:
        """Before the first plan: after a restart it may be that of a micro-batch whose end is known."""
        if not self._checked:
            _check_letters(self.options)
            self._checked = True

    def _end(self, begin: Positions) -> Positions:
        """The ends of the partitions that the query reads now, without any limit."""
        partitions = self._partitions(begin)
        if self._stop_at is not None:
            # Partitions made since are the next run's.
            end = {tp: self._stop_at[tp] for tp in partitions if tp in self._stop_at}
            # A query that begins at the end may begin behind the end fixed just before; no log has shrunk then.
            behind = [tp for tp, at in end.items() if at < begin.get(tp, 0)]
            now = self._offsets.latest(behind, read=begin)
            end.update({tp: min(at, begin[tp]) for tp, at in now.items()})
        else:
            end = self._offsets.latest(partitions, read=begin)
        self._newest = end
        # Only to share out a limit: where a new partition really begins is asked when its first batch is planned.
        unknown = [tp for tp in end if tp not in begin and tp not in self._earliest]
        if unknown:
            self._earliest.update(self._offsets.earliest(unknown))
        return end

    def _partitions(self, begin: Positions) -> list[tuple[str, int]]:
        try:
            return self._offsets.partitions(missing_ok=not self.options.fail_on_data_loss)
        except UnknownTopicOrPartitionError as error:
            if any(topic == error.topic for topic, _ in begin):
                self._offsets.lost(f"topic {error.topic}, which has been read from, is gone")
            raise

    def _begin_of(self, fresh: list[tuple[str, int]], stop: Positions) -> Positions:
        """Where partitions begin that were not there in the batch before."""
        try:
            begin = self._offsets.earliest(fresh)
        except UnknownTopicOrPartitionError:
            self._offsets.lost(f"one of the new partitions {', '.join(f'{t}-{p}' for t, p in fresh)} is gone again")
            there = set(self._offsets.partitions(missing_ok=True))
            begin = self._offsets.earliest([tp for tp in fresh if tp in there])
        for (topic, partition), at in sorted(begin.items()):
            if at > 0:
                self._offsets.lost(f"the new partition {topic}-{partition} begins at {at}, not at 0")
        return {tp: begin.get(tp, stop[tp]) for tp in fresh}

    def _wait_for_more(self, begin: Positions, end: Positions) -> bool:
        """Whether ``minOffsetsPerTrigger`` asks for patience; a new query's first batch is made at once."""
        minimum = self.options.min_offsets_per_trigger
        if minimum is None or self._stop_at is not None:
            return False
        now = time.monotonic()
        overdue = self._last_batch_at is None or (now - self._last_batch_at) * 1000 >= self.options.max_trigger_delay_ms
        if not overdue and planning.available(begin, end, self._earliest) < minimum:
            return True
        self._last_batch_at = now
        return False


def _check_letters(options: SourceOptions) -> None:
    if options.dead_letter_topic is None:
        return
    from headrace.spark.letters import check_letters  # noqa: PLC0415  (where there may be some)

    check_letters(options)


def _end_quietly() -> None:
    """Keeps a stopped query from ending in a traceback.

    Spark tells the process of a source that its query has been stopped by closing the socket. The process then tries
    to report the end of that socket through the socket, and dies of the `BrokenPipeError` with many lines on the
    terminal, though nothing is wrong. Where something was still on its way, the socket is reset instead.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, _SOCKET_GONE):
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook


def _tasks(options: SourceOptions, start: Positions, stop: Positions) -> list[InputPartition]:
    ranges = [Range(topic, partition, start[topic, partition], at) for (topic, partition), at in sorted(stop.items())]
    pieces = planning.cut(ranges, options.min_partitions, options.max_records_per_partition)
    return [InputPartition(piece) for piece in pieces]
