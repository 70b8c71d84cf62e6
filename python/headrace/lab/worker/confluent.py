"""confluent-kafka: `produce` for every record, `consume` for up to ``max.poll.records`` of them."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import confluent_kafka
import numpy as np
import pyarrow as pa

from headrace.lab.worker.confluent_share import Sharer
from headrace.lab.worker.drivers import (
    Block,
    ConsumerDriver,
    Driver,
    DriverError,
    Outcome,
    Pending,
    Polled,
    ProducerDriver,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
"""Kafka's names of what librdkafka calls otherwise; most others it knows as they are."""

BATCH_RECORDS: Final = 500
"""What Java's ``max.poll.records`` is by default; librdkafka has no such option."""

POLL_S: Final = 0.05


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options as librdkafka calls them."""
    return {RENAMED.get(name, name): text for name, text in options.items()}


class _Producer(ProducerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        self._producer = confluent_kafka.Producer({**own_options(options), "bootstrap.servers": bootstrap})
        self._outcome = outcome
        self._ended = threading.Event()
        # Outcomes are told within `poll`: by a thread of its own they are told when they come.
        self._teller = threading.Thread(target=self._tell, name="teller")
        self._teller.start()

    def _tell(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(POLL_S)

    def send(self, block: Block) -> None:
        pending = Pending(block, self._outcome)
        for row, value, key, chosen in block.rows():
            partition = -1 if chosen is None else chosen
            told = partial(_told, pending, row)
            while True:
                try:
                    self._producer.produce(block.topic, value, key, partition, on_delivery=told)
                except BufferError:
                    self._ended.wait(0.001)
                else:
                    break

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def close(self) -> None:
        self._ended.set()
        self._teller.join()


def _told(pending: Pending, row: int, error: object | None, _message: object) -> None:
    pending.ended(row, error)


class _Consumer(ConsumerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        own = {**own_options(options), "bootstrap.servers": bootstrap, "group.id": group}
        # librdkafka takes a record as processed when it hands it out: here it is when the work on it is done.
        self._stores = not {"enable.auto.offset.store", "enable.auto.commit"} & own.keys()
        if self._stores:
            own["enable.auto.offset.store"] = "false"
        self._last: list[confluent_kafka.Message] = []
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
        found: dict[tuple[str, int], list[confluent_kafka.Message]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or not error.retriable():
                    raise DriverError(str(error))
                continue
            found.setdefault((str(message.topic()), int(message.partition() or 0)), []).append(message)
        self._last = [of_partition[-1] for of_partition in found.values()]
        return [
            Polled(topic, partition, _values(some), _offsets(some) if self.each else None)
            for (topic, partition), some in found.items()
        ]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def done(self) -> None:
        for message in self._last if self._stores else ():
            # A partition may have gone to another member meanwhile.
            with contextlib.suppress(confluent_kafka.KafkaException):
                self._consumer.store_offsets(message)

    def close(self) -> None:
        self._consumer.close()


def _values(messages: Sequence[confluent_kafka.Message]) -> pa.Array:
    return pa.array([message.value() for message in messages], pa.large_binary())


def _offsets(messages: Sequence[confluent_kafka.Message]) -> NDArray[np.int64]:
    return np.array([message.offset() for message in messages], np.int64)


def _sharer(bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> Sharer:
    return Sharer({**own_options(options), "bootstrap.servers": bootstrap, "group.id": group}, topics)


VERSION: Final = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
DRIVER: Final = Driver("confluent-kafka", VERSION, _Producer, _Consumer, _sharer)
