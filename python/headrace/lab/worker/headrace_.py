"""headrace: blocks as Arrow batches."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

import headrace
from headrace.errors import InvalidRecordStateError, KafkaError
from headrace.lab.columns import column
from headrace.lab.worker.drivers import Accepted, Block, ConsumerDriver, Driver, Outcome, Polled, ProducerDriver
from headrace.lab.workload import ACKNOWLEDGEMENT_MODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

_log: Final = logging.getLogger("headrace.lab.decisions")
CLOSE_TIMEOUT_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 30.0


class _Producer(ProducerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        self._producer = headrace.Producer(bootstrap, options)
        self._outcome = outcome

    def send(self, block: Block) -> None:
        columns = {"value": block.values}
        if block.placement.keys is not None:
            columns["key"] = block.placement.keys
        if block.placement.partitions is not None:
            columns["partition"] = column(block.placement.partitions)
        rows, sent_ns = pa.record_batch(columns), time.time_ns()
        try:
            if self._outcome.each:
                reported = self._producer.send_arrow(block.topic, rows, results=True)
                reported.add_done_callback(partial(self._told_each, block, sent_ns))
            else:
                future = self._producer.send_arrow(block.topic, rows)
                future.add_done_callback(partial(self._told, block, sent_ns))
        except KafkaError as error:
            self._outcome.failed(len(block.due), str(error))

    def _told(self, block: Block, sent_ns: int, future: Future[int]) -> None:
        """A block of which a row failed counts as failed."""
        error = future.exception()
        if error is None:
            self._outcome.acknowledged(block, None, sent_ns, time.time_ns())
        else:
            self._outcome.failed(len(block.due), str(error))

    def _told_each(self, block: Block, sent_ns: int, future: Future[pa.RecordBatch]) -> None:
        now = time.time_ns()
        errors = future.result().column("error")
        written = np.asarray(errors.is_null())
        self._outcome.acknowledged(block, np.flatnonzero(written), sent_ns, now)
        for error in errors.drop_null().unique().to_pylist():
            self._outcome.failed(errors.to_pylist().count(error), error)

    def flush(self, timeout_s: float) -> None:
        # Failures were told by each block's future.
        with contextlib.suppress(KafkaError):
            self._producer.flush(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(KafkaError):
            self._producer.close(CLOSE_TIMEOUT_S)


class _Consumer(ConsumerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        self._consumer = headrace.Consumer(bootstrap, {**options, "group.id": group})
        self._consumer.subscribe(topics)

    def poll(self, timeout_s: float) -> list[Polled]:
        return [_polled(batch, each=self.each) for batch in self._consumer.poll_all(timeout_s) if batch.num_rows]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class _Sharer(ConsumerDriver):
    """What a poll gave is accepted by the next one, or with the work on it done by a commit.

    By a commit where each is acknowledged by itself, or the acknowledgement of each must be told.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        self._consumer = headrace.ShareConsumer(bootstrap, {**options, "group.id": group})
        self._consumer.subscribe(topics)
        self._alone = options.get(ACKNOWLEDGEMENT_MODE) == "explicit"
        self._batches: list[pa.RecordBatch] = []
        self._accepted: list[Accepted] = []

    def poll(self, timeout_s: float) -> list[Polled]:
        self._batches = [batch for batch in self._consumer.poll_all(timeout_s) if batch.num_rows]
        found = [_polled(batch, each=self.each) for batch in self._batches]
        if self.each:
            counts = [np.asarray(batch.column("delivery_count")) for batch in self._batches]
            found = [replace(polled, deliveries=count) for polled, count in zip(found, counts, strict=True)]
        return found

    def assigned(self) -> int | None:
        # Other members may have the same partitions: their sum says nothing.
        return None

    def done(self) -> None:
        if not (self._alone or self.each):
            return
        said = [(_polled(batch, each=True), self._acknowledged(batch)) for batch in self._batches]
        results = self._consumer.commit(COMMIT_TIMEOUT_S)
        taken = {place for place, error in results.items() if error is None}
        for error in results.values():
            if error is not None:
                self.tell(f"not acknowledged: {error}")
        self._accepted += [
            Accepted(rows.topic, rows.partition, rows.offsets[held])
            for rows, held in said
            if rows.offsets is not None and (rows.topic, rows.partition) in taken
        ]

    def _acknowledged(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Accepts each row by itself, if that is wanted; which of them the commit says something of."""
        held = np.ones(batch.num_rows, np.bool_)
        for row in range(batch.num_rows) if self._alone else ():
            try:
                self._consumer.acknowledge(batch.slice(row, 1))
            except InvalidRecordStateError:
                # It comes again.
                held[row] = False
        if not held.all():
            self.tell("not acknowledged: locks were over before the work on their records was done")
        return held

    def accepted(self) -> list[Accepted]:
        reported, self._accepted = self._accepted, []
        return reported

    def close(self) -> None:
        self._consumer.close()
        for decision in self._consumer.decisions():
            _log.info("%s", decision)


def _polled(batch: pa.RecordBatch, *, each: bool) -> Polled:
    """Rows of one partition."""
    topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
    offsets = np.asarray(batch.column("offset")) if each else None
    return Polled(topic, partition, batch.column("value"), offsets)


DRIVER: Final = Driver("headrace", f"headrace {headrace.__version__}", _Producer, _Consumer, _Sharer, block_rows=20_000)
