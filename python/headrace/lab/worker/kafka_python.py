"""kafka-python: `send` for every record, `poll` for batches. Its options have underscores, and values of types."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kafka
import pyarrow as pa
from kafka.errors import KafkaError

from headrace.lab.worker.drivers import Block, DriverError, Outcome, Pending, Polled, typed

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
        own[key] = typed(text, kind.DEFAULT_CONFIG[key])
    return own


class _Producer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> None:
        own = own_options(kafka.KafkaProducer, options)
        self._producer = kafka.KafkaProducer(**{**own, "bootstrap_servers": bootstrap.split(",")})
        self._outcome = outcome

    def send(self, block: Block) -> None:
        count = len(block.due)
        keys = [None] * count if block.placement.keys is None else block.placement.keys.to_pylist()
        chosen = block.placement.partitions
        partitions = [None] * count if chosen is None else chosen.tolist()
        pending = Pending(block, self._outcome)
        for row, value in enumerate(block.values.to_pylist()):
            try:
                future = self._producer.send(block.topic, value, key=keys[row], partition=partitions[row])
            except KafkaError as error:
                pending.ended(row, error)
            else:
                future.add_callback(partial(_acknowledged, pending, row))
                future.add_errback(partial(pending.ended, row))

    def poll(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        with contextlib.suppress(KafkaError):
            self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.close(CLOSE_TIMEOUT_S)


def _acknowledged(pending: Pending, row: int, _metadata: object) -> None:
    pending.ended(row, None)


class _Consumer:
    def __init__(self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        own = own_options(kafka.KafkaConsumer, options)
        self._consumer = kafka.KafkaConsumer(
            *topics, **{**own, "bootstrap_servers": bootstrap.split(","), "group_id": group}
        )

    def poll(self, timeout_s: float) -> list[Polled]:
        found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [
            Polled(tp.topic, tp.partition, pa.array([record.value for record in records], pa.large_binary()))
            for tp, records in found.items()
            if records
        ]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def done(self) -> None:
        pass

    def close(self) -> None:
        self._consumer.close()


class _Driver:
    name = "kafka-python"

    def version(self) -> str:
        return f"kafka-python {kafka.__version__}"

    def producer(self, bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> _Producer:
        return _Producer(bootstrap, options, outcome)

    def consumer(
        self, bootstrap: str, options: Mapping[str, str], group: str, topics: Sequence[str], *, share: bool
    ) -> _Consumer:
        if share:
            raise DriverError("kafka-python has no share groups")
        return _Consumer(bootstrap, options, group, topics)


DRIVER: Final = _Driver()
