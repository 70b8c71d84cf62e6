"""The cluster under a run: its topics and groups, made before and removed after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from headrace.admin import Admin, NewTopic
from headrace.errors import (
    InvalidRequestError,
    KafkaError,
    Retriable,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from headrace.lab.workload import Workload

CALL_TIMEOUT_S: Final = 15
MADE_TIMEOUT_S: Final = 30.0
GROUPS_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.1


class Cluster:
    """Makes and removes what a run uses. Its calls wait; the coordinator makes them in a thread."""

    def __init__(self, bootstrap: str) -> None:
        """Does not connect yet."""
        self.bootstrap = bootstrap
        self._admin = Admin(bootstrap, {"default.api.timeout.ms": CALL_TIMEOUT_S * 1000})

    def describe(self) -> dict[str, Any]:
        """Its id and brokers.

        Raises:
            KafkaError: it is not reached within `CALL_TIMEOUT_S`.
        """
        found = self._admin.describe_cluster()
        return {
            "bootstrap": self.bootstrap,
            "clusterId": found.cluster_id,
            "controller": found.controller_id,
            "brokers": [{"id": n.node_id, "host": n.host, "port": n.port, "rack": n.rack} for n in found.nodes],
        }

    def make(self, topics: Sequence[str], workload: Workload) -> dict[str, Any]:
        """Makes topics, waits until every partition has a leader that answers, and gives their layout."""
        config = dict(workload.topic_config)
        partitions, copies = workload.partitions_per_topic, workload.replication_factor
        self._admin.create_topics([NewTopic(name, partitions, copies, config) for name in topics])
        deadline = time.monotonic() + MADE_TIMEOUT_S
        wanted = {(name, number): "latest" for name in topics for number in range(partitions)}
        while True:
            try:
                self._admin.list_offsets(wanted)  # type: ignore[arg-type]
                described = self._admin.describe_topics(topics)
                if all(p.leader >= 0 for one in described.values() for p in one.partitions):
                    break
            except KafkaError as error:
                if not isinstance(error, Retriable) or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_S)
        return {
            name: [{"partition": p.partition, "leader": p.leader, "replicas": p.replicas} for p in one.partitions]
            for name, one in described.items()
        }

    def topic_config(self, topic: str) -> dict[str, str | None]:
        """A topic's settings."""
        return self._admin.describe_topic_config(topic)

    def set_group(self, group: str, config: dict[str, str]) -> None:
        """Sets a group's settings, before it has members.

        Raises:
            UsageError: the cluster refuses them.
        """
        try:
            self._admin.alter_group_config(group, dict(config))
        except (InvalidRequestError, UnsupportedVersionError) as error:
            message = f"groupConfig: the cluster does not take these settings of a group: {error}"
            raise UsageError(message) from error

    def remove(self, topics: Sequence[str], groups: Sequence[str]) -> list[str]:
        """Deletes topics and groups; gives a sentence for each that stays."""
        # Groups first: Apache Kafka does not get done with a share group whose topics are gone.
        deadline = time.monotonic() + GROUPS_TIMEOUT_S
        left = [sentence for group in groups if (sentence := self._remove_group(group, deadline))]
        for topic in topics:
            try:
                self._admin.delete_topics([topic])
            except UnknownTopicOrPartitionError:
                continue  # it was never made
            except KafkaError as error:
                left.append(f"topic {topic} stays: {error}")
        return left

    def _remove_group(self, group: str, deadline: float) -> str | None:
        # Members that left may still be on the coordinator's list for a moment.
        while True:
            try:
                self._admin.delete_groups([group])
            except KafkaError as error:
                if error.name == "GROUP_ID_NOT_FOUND":
                    return None
                if time.monotonic() > deadline:
                    return f"group {group} stays: {error}"
                time.sleep(PAUSE_S)
            else:
                return None

    def close(self) -> None:
        """Ends it."""
        self._admin.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()
