"""The cluster under a run: its topics and groups, made before and removed after."""

from __future__ import annotations

import contextlib
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace.admin import Admin, NewTopic
from headrace.errors import (
    InvalidRequestError,
    KafkaError,
    KafkaTimeoutError,
    Retriable,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    UsageError,
)
from headrace.lab.judge import LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from headrace.lab.workload import Workload

CALL_TIMEOUT_S: Final = 15
MADE_TIMEOUT_S: Final = 30.0
GROUPS_TIMEOUT_S: Final = 5.0
CRASHED_TIMEOUT_S: Final = 60.0
"""A group has a member that crashed until its session is over, which takes 45 seconds by default."""

MOVED_TIMEOUT_S: Final = 60.0
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

    def settings(self, topic: str, brokers: Sequence[int]) -> dict[str, Any]:
        """What a topic, and each broker, is set to, and the features of the cluster.

        Of brokers what is not a default, if confluent-kafka is installed.

        It is for the reader: what cannot be asked is told as a sentence.
        """
        reported: dict[str, Any] = {}
        try:
            reported["topicSettings"] = self._admin.describe_topic_config(topic)
        except KafkaError as error:
            reported["topicSettings"] = str(error)
        reported["finalizedFeatures"] = self._features()
        try:
            confluent = import_module("confluent_kafka.admin")
        except ModuleNotFoundError:
            reported["brokerSettings"] = "confluent-kafka is not installed, which asks for them"
            return reported
        admin = confluent.AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        asked = [confluent.ConfigResource(confluent.ResourceType.BROKER, str(broker)) for broker in brokers]
        reported["brokerSettings"] = {
            resource.name: _settings(answer) for resource, answer in admin.describe_configs(asked).items()
        }
        return reported

    def _features(self) -> dict[str, int] | str:
        """The features that the cluster has finalized, with their levels, if kafka-python is installed."""
        try:
            admins = import_module("kafka.admin")
            errors = import_module("kafka.errors")
        except ModuleNotFoundError:
            return "kafka-python is not installed, which asks for them"
        try:
            with contextlib.closing(admins.KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))) as admin:
                described = admin.describe_features()
        except errors.KafkaError as error:
            return str(error)
        return {name: one["finalized"][1] for name, one in sorted(described.items()) if "finalized" in one}

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

    def deliveries_limit(self, group: str) -> int | None:
        """How often a share group's records are given out before brokers give them up; None if they do not tell."""
        try:
            reported = self._admin.describe_group_config(group).get(LIMIT)
        except KafkaError:
            return None
        return None if reported is None else int(reported)

    def move_leaders(self, topics: Sequence[str]) -> None:
        """Has another broker lead each partition: the next of its replicas, or the next of all if it has one.

        Raises:
            UsageError: there is one broker alone, or kafka-python is not installed.
            KafkaTimeoutError: they have not moved within `MOVED_TIMEOUT_S`.
        """
        try:
            kafka = import_module("kafka")
            admins = import_module("kafka.admin")
            import_module("kafka.errors")
        except ModuleNotFoundError:
            raise UsageError("faults: moveLeaders needs the package kafka-python") from None
        brokers = sorted(node.node_id for node in self._admin.describe_cluster().nodes)
        if len(brokers) == 1:
            raise UsageError("faults: moveLeaders wants two brokers or more")
        wanted = {}
        for topic, described in self._admin.describe_topics(topics).items():
            for p in described.partitions:
                others = [*p.replicas[1:], p.replicas[0]]
                alone = [brokers[(brokers.index(p.replicas[0]) + 1) % len(brokers)]]
                wanted[topic, p.partition] = others if len(others) > 1 else alone
        moves = {kafka.TopicPartition(*place): to for place, to in wanted.items()}
        deadline = time.monotonic() + MOVED_TIMEOUT_S
        while moving := self._led_by_others(topics, wanted):
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"faults: not moved to another leader are {moving}")
            # A broker may be down meanwhile, by another fault; a client that has met it may not get over that.
            with contextlib.suppress(kafka.errors.KafkaError):
                admin = admins.KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
                with contextlib.closing(admin):
                    if moves:
                        reported = admin.alter_partition_reassignments(moves)
                        moves = {place: to for place, to in moves.items() if reported.get(place, True)}
                    # The first of the replicas leads when it is asked to, once it has them.
                    admin.elect_leaders(0, moving, raise_errors=False)
            time.sleep(PAUSE_S)

    def _led_by_others(self, topics: Sequence[str], wanted: dict[tuple[str, int], list[int]]) -> dict[str, list[int]]:
        """The partitions that are not led by the first of these, by topic."""
        found: dict[str, list[int]] = {}
        for topic, described in self._admin.describe_topics(topics).items():
            wrong = [p.partition for p in described.partitions if p.leader != wanted[topic, p.partition][0]]
            if wrong:
                found[topic] = wrong
        return found

    def remove(self, topics: Sequence[str], groups: Sequence[str], *, crashed: bool = False) -> list[str]:
        """Deletes topics and groups; gives a sentence for each that stays. `crashed`: groups may have dead members."""
        # Groups first: Apache Kafka does not get done with a share group whose topics are gone.
        deadline = time.monotonic() + (CRASHED_TIMEOUT_S if crashed else GROUPS_TIMEOUT_S)
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


def _settings(answer: Any) -> dict[str, str | None] | str:
    """A broker's settings that are not defaults, without secrets."""
    try:
        entries = answer.result(CALL_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  (confluent-kafka's own, or a time-out)
        return str(error)
    return {
        name: entry.value for name, entry in sorted(entries.items()) if not entry.is_default and not entry.is_sensitive
    }
