"""confluent-kafka: `produce` for every record, `consume` for up to ``max.poll.records`` of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from itertools import groupby
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from headrace._native import Deliveries
from headrace.lab.payload import read
from headrace.lab.worker.confluent_share import ConfluentShareConsumer
from headrace.lab.worker.drivers import (
    Block,
    ConsumerDriver,
    Driver,
    DriverError,
    Outcome,
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
        produce, sent = self._producer.produce, _Sent(block, self._outcome)
        reported = Deliveries(len(block.due), sent.failed, sent.ended).reported
        keys, partitions = block.placement.keys, block.placement.partitions
        values = block.values.to_pylist()
        columns: list[Sequence[Any]] = [
            [block.topic] * len(values),
            values,
            [None] * len(values) if keys is None else keys.to_pylist(),
            [-1] * len(values) if partitions is None else partitions.tolist(),
            [reported] * len(values),
        ]
        # `map` and no loop: what a loop does around a call costs half as much as the call.
        while columns[0]:
            row = iter(columns[0])
            try:
                deque(map(produce, row, *columns[1:]), maxlen=0)
            except BufferError:
                # The record that found no room has been taken from its column.
                left = length_hint(row) + 1
                columns = [column[-left:] for column in columns]
                self._ended.wait(0.001)
            else:
                break

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def close(self) -> None:
        self._ended.set()
        self._teller.join()


class _Sent:
    """A block on its way. Its records' outcomes are heard in native code: one in Python for each halves the rate."""

    def __init__(self, block: Block, outcome: Outcome) -> None:
        self._block, self._outcome = block, outcome
        self._sent_ns = time.time_ns()
        self._lost: list[int] = []

    def failed(self, error: object, message: Message) -> None:
        """A record was not acknowledged; its own head says which."""
        head = read(pa.array([message.value()], pa.binary()))
        self._lost.append(int(head.sequence[0]) - self._block.first)
        self._outcome.failed(1, str(error))

    def ended(self, acked_ns: bytes) -> None:
        """All were notified of; the others were acknowledged at these times."""
        rows = np.delete(np.arange(len(self._block.due)), self._lost) if self._lost else None
        self._outcome.acknowledged(self._block, rows, self._sent_ns, np.frombuffer(acked_ns, "<i8"))


class _Consumer(ConsumerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        own = {**own_options(options), "bootstrap.servers": bootstrap, "group.id": group}
        # librdkafka takes a record as processed when it hands it out: here it is when the work on it is done.
        self._stores = not {"enable.auto.offset.store", "enable.auto.commit"} & own.keys()
        if self._stores:
            own["enable.auto.offset.store"] = "false"
        self._last: dict[tuple[str | None, int | None], Message] = {}
        self._most = int(own.pop("max.poll.records", BATCH_RECORDS))
        self._consumer = confluent_kafka.Consumer(own)
        # Asking librdkafka what is assigned takes a round through its threads, milliseconds of each poll.
        self._held: set[tuple[str, int]] = set()
        self._consumer.subscribe(list(topics), on_assign=self._given, on_revoke=self._taken)

    def _given(self, _: object, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        self._held.update((one.topic, one.partition) for one in partitions)

    def _taken(self, _: object, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        self._held.difference_update((one.topic, one.partition) for one in partitions)

    def poll(self, timeout_s: float) -> list[Polled]:
        # `consume` waits for as many as it is asked for: take the first, then what is there.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages = [first]
        if self._most > 1:
            messages += self._consumer.consume(self._most - 1, 0)
        # What is asked of each message is asked within `map` and `groupby`: that takes a third of a loop's time.
        if list(map(Message.error, messages)).count(None) < len(messages):
            messages = [message for message in messages if _is_record(message)]
        runs = [
            list(run)
            for _, of_topic in groupby(messages, Message.topic)
            for _, run in groupby(of_topic, Message.partition)
        ]
        self._last = {(run[-1].topic(), run[-1].partition()): run[-1] for run in runs}
        return [
            Polled(
                str(run[0].topic()),
                int(run[0].partition() or 0),
                list(map(Message.value, run)),
                _offsets(run) if self.each else None,
            )
            for run in runs
        ]

    def assigned(self) -> int:
        return len(self._held)

    def done(self) -> None:
        for message in self._last.values() if self._stores else ():
            # A partition may have gone to another member meanwhile.
            with contextlib.suppress(confluent_kafka.KafkaException):
                self._consumer.store_offsets(message)

    def close(self) -> None:
        self._consumer.close()


def _is_record(message: Message) -> bool:
    """Whether it is one, and no event that the client goes on after by itself.

    Raises:
        DriverError: it says that the client cannot go on.
    """
    error = message.error()
    if error is not None and (error.fatal() or not error.retriable()):
        raise DriverError(str(error))
    return error is None


def _offsets(messages: Sequence[Message]) -> NDArray[np.int64]:
    return np.array(list(map(Message.offset, messages)), np.int64)


def _share_member(
    bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]
) -> ConfluentShareConsumer:
    return ConfluentShareConsumer({**own_options(options), "bootstrap.servers": bootstrap, "group.id": group}, topics)


VERSION: Final = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
DRIVER: Final = Driver("confluent-kafka", VERSION, _Producer, _Consumer, _share_member)
