"""kafka-python: `send` for every record, `poll` for batches. Its options have underscores, and values of types."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kafka
import numpy as np
from kafka.errors import KafkaError

from headrace.lab.worker.drivers import (
    Block,
    ConsumerDriver,
    Driver,
    DriverError,
    Outcome,
    Pending,
    Polled,
    ProducerDriver,
    typed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLOSE_TIMEOUT_S: Final = 5.0


def own_options(kind: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """Options as kafka-python takes them.

    Raises:
        DriverError: it does not know one of them.
    """
    own = {}
    for name, text in options.items():
        key = name.replace(".", "_")
        if key not in kind.DEFAULT_CONFIG:
            raise DriverError(f"kafka-python has no option {name}")
        default = kind.DEFAULT_CONFIG[key]
        # Sizes that the system chooses have no default to tell their type.
        own[key] = typed(text, 0 if default is None and key.endswith(("_bytes", "_ms")) else default)
    return own


class _Producer(ProducerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        own = own_options(kafka.KafkaProducer, options)
        self._producer = kafka.KafkaProducer(**{**own, "bootstrap_servers": bootstrap.split(",")})
        self._outcome = outcome

    def send(self, block: Block) -> None:
        pending = Pending(block, self._outcome)
        for row, value, key, partition in block.rows():
            try:
                future = self._producer.send(block.topic, value, key=key, partition=partition)
            except KafkaError as error:
                pending.ended(row, error)
            else:
                future.add_callback(partial(_acknowledged, pending, row))
                future.add_errback(partial(pending.ended, row))

    def flush(self, timeout_s: float) -> None:
        with contextlib.suppress(KafkaError):
            self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.close(CLOSE_TIMEOUT_S)


def _acknowledged(pending: Pending, row: int, _metadata: object) -> None:
    pending.ended(row, None)


class _Consumer(ConsumerDriver):
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        own = own_options(kafka.KafkaConsumer, options)
        self._consumer = kafka.KafkaConsumer(**{**own, "bootstrap_servers": bootstrap.split(","), "group_id": group})
        for topic in topics:
            # A leader shares out the partitions that it knows of when it joins; it is to know all of them by then.
            self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[Polled]:
        found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [_polled(tp, records, each=self.each) for tp, records in found.items() if records]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


def _polled(place: Any, records: Sequence[Any], *, each: bool) -> Polled:
    values = [record.value for record in records]
    offsets = np.array([record.offset for record in records], np.int64) if each else None
    return Polled(place.topic, place.partition, values, offsets)


DRIVER: Final = Driver("kafka-python", f"kafka-python {kafka.__version__}", _Producer, _Consumer)
