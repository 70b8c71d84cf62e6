"""headrace: blocks as Arrow batches."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import headrace
from headrace.errors import KafkaError
from headrace.lab.worker.drivers import Block, DriverError, Outcome, Polled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

CLOSE_TIMEOUT_S: Final = 5.0


class _Producer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        self._producer = headrace.Producer(bootstrap, options)
        self._outcome = outcome

    def send(self, block: Block) -> None:
        columns = {"value": block.values}
        if block.placement.keys is not None:
            columns["key"] = block.placement.keys
        if block.placement.partitions is not None:
            columns["partition"] = pa.array(block.placement.partitions)
        sent_ns = time.time_ns()
        try:
            future = self._producer.send_arrow(block.topic, pa.record_batch(columns))
        except KafkaError as error:
            self._outcome.failed(len(block.due), str(error))
            return
        future.add_done_callback(partial(self._told, block, sent_ns))

    def _told(self, block: Block, sent_ns: int, future: Future[int]) -> None:
        """A block of which a row failed counts as failed."""
        error = future.exception()
        if error is None:
            self._outcome.acknowledged(block, None, sent_ns, time.time_ns())
        else:
            self._outcome.failed(len(block.due), str(error))

    def poll(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        # Failures were told by each block's future.
        with contextlib.suppress(KafkaError):
            self._producer.flush(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(KafkaError):
            self._producer.close(CLOSE_TIMEOUT_S)


class _Consumer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        self._consumer = headrace.Consumer(bootstrap, {**options, "group.id": group})
        self._consumer.subscribe(topics)

    def poll(self, timeout_s: float) -> list[Polled]:
        return [
            Polled(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py(), batch.column("value"))
            for batch in self._consumer.poll_all(timeout_s)
            if batch.num_rows
        ]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def done(self) -> None:
        pass

    def close(self) -> None:
        self._consumer.close()


class _Driver:
    name = "headrace"

    def version(self) -> str:
        return f"headrace {headrace.__version__}"

    def producer(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> _Producer:
        return _Producer(bootstrap, options, outcome)

    def consumer(
        self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str], *, share: bool
    ) -> _Consumer:
        if share:
            raise DriverError("this headrace has no share consumer")
        return _Consumer(bootstrap, options, group, topics)


DRIVER: Final = _Driver()
