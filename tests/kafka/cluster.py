"""A broker under test, ours or Apache Kafka, and what a test asks of it through a third party's client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS = 15


@dataclass(frozen=True)
class Cluster:
    """Where it is and which one: `kind` is "embedded" (ours) or "apache"."""

    kind: str
    bootstrap_servers: str

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
    ) -> str:
        """Makes a topic and waits, `timeout` seconds at most, until every partition answers; gives its name.

        Through confluent-kafka, so that a test of our client does not rest on our admin.
        """
        admin = self._admin()
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin.create_topics([new], operation_timeout=timeout)[name].result(timeout)
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        deadline = time.monotonic() + timeout
        while True:
            # Apache Kafka answers CreateTopics before the broker has taken up the leadership.
            try:
                for future in admin.list_offsets(wanted).values():
                    future.result(timeout)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic; its records may stay for the broker's ``log.segment.delete.delay.ms``."""
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=TIMEOUT_SECONDS)[name].result(TIMEOUT_SECONDS)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 4})
