"""confluent-kafka's members of share groups, a preview: it takes records batch by batch, whatever it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import numpy as np

from headrace.lab.worker.drivers import Accepted, ConsumerDriver, DriverError, Polled
from headrace.lab.workload import ACKNOWLEDGEMENT_MODE, ACQUIRE_MODE, BATCH_OPTIMIZED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMIT_TIMEOUT_S: Final = 30.0


class ConfluentShareConsumer(ConsumerDriver):
    """What a poll gave is accepted by the next one; each by itself, if that is wanted, with a commit."""

    def __init__(self, options: Mapping[str, str], topics: Sequence[str]) -> None:
        """`options` are librdkafka's.

        Raises:
            DriverError: the package is too old, or is asked for another mode than the one that it has.
        """
        made: Any = getattr(confluent_kafka, "ShareConsumer", None)
        if made is None:
            sentence = "share groups need confluent-kafka 2.15 or newer"
            raise DriverError(f"{sentence}; this is {confluent_kafka.__version__}")
        own = dict(options)
        if (mode := own.pop(ACQUIRE_MODE, BATCH_OPTIMIZED)) != BATCH_OPTIMIZED:
            raise DriverError(f"{ACQUIRE_MODE}: confluent-kafka has {BATCH_OPTIMIZED} alone, not {mode}")
        self._alone = own.get(ACKNOWLEDGEMENT_MODE) == "explicit"
        self._messages: list[Any] = []
        self._accepted: list[Accepted] = []
        self._consumer = made(own)
        self._consumer.set_acknowledgement_commit_callback(self._told)
        self._consumer.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[Polled]:
        """All that it has; the client waits for at most so long."""
        found: dict[tuple[str, int], list[Any]] = {}
        self._messages = []
        for message in self._consumer.poll(timeout_s):
            error = message.error()
            if error is None:
                self._messages.append(message)
                found.setdefault((message.topic(), message.partition()), []).append(message)
            elif error.fatal() or not error.retriable():
                raise DriverError(str(error))
            else:
                self.tell(str(error))
        return [
            Polled(
                topic,
                partition,
                [message.value() for message in some],
                np.array([message.offset() for message in some], np.int64),
                np.array([message.delivery_count() or 0 for message in some], np.int64),
            )
            for (topic, partition), some in found.items()
        ]

    def assigned(self) -> int | None:
        """It does not tell."""
        return None

    def done(self) -> None:
        """Accepts each by itself, if that is wanted."""
        if self._alone:
            for message in self._messages:
                self._consumer.acknowledge(message)
            self._consumer.commit_sync(COMMIT_TIMEOUT_S)

    def _told(self, offsets: Mapping[Any, set[int]], error: object | None) -> None:
        if error is not None:
            self.tell(f"not acknowledged: {error}")
        elif self.each:
            self._accepted += [
                Accepted(place.topic, place.partition, np.array(sorted(those), np.int64))
                for place, those in offsets.items()
            ]

    def accepted(self) -> list[Accepted]:
        """What brokers have taken."""
        reported, self._accepted = self._accepted, []
        return reported

    def close(self) -> None:
        """Accepts what the last poll gave, and leaves."""
        self._consumer.close()
