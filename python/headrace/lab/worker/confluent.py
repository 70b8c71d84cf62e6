"""confluent-kafka: `produce` for every record, `consume` for up to ``max.poll.records`` of them."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import pyarrow as pa

from headrace.lab.worker.drivers import Block, DriverError, Outcome, Pending, Polled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH_RECORDS: Final = 500
"""What Java's ``max.poll.records`` is by default; librdkafka has no such option."""

POLL_S: Final = 0.05


class _Producer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        self._producer = confluent_kafka.Producer({**options, "bootstrap.servers": bootstrap})
        self._outcome = outcome
        self._ended = threading.Event()
        # Outcomes are told within `poll`: by a thread of its own they are told when they come.
        self._teller = threading.Thread(target=self._tell, name="teller")
        self._teller.start()

    def _tell(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(POLL_S)

    def send(self, block: Block) -> None:
        count = len(block.due)
        keys = [None] * count if block.placement.keys is None else block.placement.keys.to_pylist()
        chosen = block.placement.partitions
        partitions = [-1] * count if chosen is None else chosen.tolist()
        pending = Pending(block, self._outcome)
        for row, value in enumerate(block.values.to_pylist()):
            told = partial(_told, pending, row)
            while True:
                try:
                    self._producer.produce(block.topic, value, keys[row], partitions[row], on_delivery=told)
                except BufferError:
                    self._ended.wait(0.001)
                else:
                    break

    def poll(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def close(self) -> None:
        self._ended.set()
        self._teller.join()


def _told(pending: Pending, row: int, error: object | None, _message: object) -> None:
    pending.ended(row, error)


class _Consumer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        own = {**options, "bootstrap.servers": bootstrap, "group.id": group}
        self._most = int(own.pop("max.poll.records", BATCH_RECORDS))
        self._consumer = confluent_kafka.Consumer(own)
        self._consumer.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[Polled]:
        # `consume` waits for as many as it is asked for: take the first, then what is there.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages = [first]
        if self._most > 1:
            messages += self._consumer.consume(self._most - 1, 0)
        found: dict[tuple[str, int], list[Any]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or not error.retriable():
                    raise DriverError(str(error))
                continue
            found.setdefault((str(message.topic()), int(message.partition() or 0)), []).append(message.value())
        return [Polled(topic, at, pa.array(values, pa.large_binary())) for (topic, at), values in found.items()]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def done(self) -> None:
        pass

    def close(self) -> None:
        self._consumer.close()


class _Driver:
    name = "confluent-kafka"

    def version(self) -> str:
        return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"

    def producer(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> _Producer:
        return _Producer(bootstrap, options, outcome)

    def consumer(
        self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str], *, share: bool
    ) -> _Consumer:
        if share:
            raise DriverError("share groups are not driven with confluent-kafka")
        return _Consumer(bootstrap, options, group, topics)


DRIVER: Final = _Driver()
