"""confluent-kafka: `produce` for every record, `consume` for up to ``max.poll.records`` of them."""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import groupby
from typing import TYPE_CHECKING, Final

import confluent_kafka
import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from headrace._native import Deliveries
from headrace.lab.payload import read
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
        told = Deliveries(len(block.due), sent.failed, sent.ended).told
        for _, value, key, chosen in block.rows():
            while True:
                try:
                    # Names would cost as much as the call.
                    produce(block.topic, value, key, -1 if chosen is None else chosen, told)
                except BufferError:
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
        """All were told of; the others were acknowledged at these times."""
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
        self._consumer.subscribe(list(topics))

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
        return len(self._consumer.assignment())

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


VERSION: Final = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
DRIVER: Final = Driver("confluent-kafka", VERSION, _Producer, _Consumer)
