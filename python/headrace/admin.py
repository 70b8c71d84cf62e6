"""Topics, offsets and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace import _native
from headrace._options import OptionValue, Servers, pairs
from headrace._types import TopicPartition
from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

OffsetSpec: TypeAlias = "Literal['earliest', 'latest', 'max_timestamp'] | int | datetime"

_SPECS = {"latest": -1, "earliest": -2, "max_timestamp": -3}


@dataclass(frozen=True)
class NewTopic:
    """A topic to create."""

    name: str
    """Its name."""
    num_partitions: int = -1
    """Number of partitions; -1 uses the broker's ``num.partitions``."""
    replication_factor: int = -1
    """Replicas of each partition; -1 uses the broker's ``default.replication.factor``."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Topic settings by Kafka's names, such as ``retention.ms``; docs/broker.md lists those of headrace's broker."""


@dataclass(frozen=True)
class PartitionDescription:
    """Which nodes hold a partition."""

    partition: int
    """Its number."""
    leader: int
    """Its leader; -1 if it has none."""
    leader_epoch: int
    """Its leader epoch; -1 if unknown."""
    replicas: list[int]
    """Nodes that hold a replica."""
    isr: list[int]
    """Nodes whose replica is in sync."""


@dataclass(frozen=True)
class TopicDescription:
    """A topic as the cluster describes it."""

    name: str
    """Its name."""
    topic_id: str
    """Its id in Kafka's text form."""
    is_internal: bool
    """Whether it is internal to the broker."""
    partitions: list[PartitionDescription]
    """Its partitions, by number."""


@dataclass(frozen=True)
class Node:
    """A broker of the cluster."""

    node_id: int
    """Its id."""
    host: str
    """Host that it advertises to clients."""
    port: int
    """Port that it advertises to clients."""
    rack: str | None
    """Its rack, if it has one."""


@dataclass(frozen=True)
class ClusterDescription:
    """A description of the cluster."""

    cluster_id: str
    """Its id."""
    controller_id: int
    """The controller; -1 if unknown."""
    nodes: list[Node]
    """Its brokers."""


@dataclass(frozen=True)
class FeatureMetadata:
    """Features, such as ``share.version``: what a cluster may do only once all of its brokers can (KIP-584)."""

    finalized_features: dict[str, int]
    """The level of each that the cluster keeps to. One that is not here is not in use."""
    supported_features: dict[str, tuple[int, int]]
    """The least and the greatest level that the broker knows that was asked."""


@dataclass(frozen=True)
class GroupListing:
    """A group as listed."""

    group_id: str
    """Its id."""
    protocol_type: str
    """``consumer`` for consumer groups."""
    state: str
    """Kafka's name of its state, such as ``Stable`` or ``Empty``."""


@dataclass(frozen=True)
class OffsetAndMetadata:
    """What a group has committed for a partition."""

    offset: int
    """The offset of the next record to read."""
    metadata: str = ""
    """A text of whoever committed it."""


@dataclass(frozen=True)
class OffsetInfo:
    """The result of looking up an offset."""

    offset: int
    """The offset; -1 if no record matches."""
    timestamp: int
    """Timestamp of the record found, milliseconds since the epoch; -1 if the look-up was not by timestamp."""
    leader_epoch: int
    """Epoch of the partition's leader; -1 if unknown."""


@dataclass(frozen=True)
class ShareOffset:
    """A share group's progress in a partition."""

    start_offset: int
    """The first offset that the group had not finished when the broker last recorded it; -1 while the group has read
    nothing there."""
    lag: int | None
    """Number of records that it has not finished; None if the broker does not know."""


@dataclass(frozen=True)
class Reassignment:
    """A partition that is being given other replicas."""

    replicas: list[int]
    """Node ids of all replicas that it has at the moment."""
    adding: list[int]
    """Of these the new ones, which do not have all records yet."""
    removing: list[int]
    """Of these the ones that are removed once the new ones have all records."""


class Admin:
    """Inspects and changes topics, offsets and groups.

    Every call waits for the answer with the GIL released, for at most ``default.api.timeout.ms``, and raises a
    `KafkaError` for the first failure, which names the topic or group.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names, and ``oauth_cb`` (docs/security.md).
        **options: the same as keywords.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | None = None,
        config: Mapping[str, OptionValue] | None = None,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on first use."""
        self._native = _native.Admin(pairs(bootstrap_servers, config, options))

    def create_topics(self, topics: Iterable[NewTopic | str], *, validate_only: bool = False) -> None:
        """Creates topics; a bare name gets the broker's defaults.

        Raises:
            TopicAlreadyExistsError: one of them exists; the others are created all the same.
        """
        given = [topics] if isinstance(topics, str) else topics
        new = [NewTopic(t) if isinstance(t, str) else t for t in given]
        if kinds := {type(t).__name__ for t in new} - {NewTopic.__name__}:
            message = f"topics are names, or headrace.NewTopic(name, num_partitions), not a {min(kinds)}"
            raise UsageError(message, name="INVALID_REQUEST")
        self._native.create_topics(
            [(t.name, t.num_partitions, t.replication_factor, list(t.config.items())) for t in new], validate_only
        )

    def create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Creates one topic, see `NewTopic`."""
        self.create_topics([NewTopic(name, num_partitions, replication_factor, config or {})])

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Deletes topics with all their records."""
        self._native.delete_topics(_names(topics))

    def create_partitions(self, topic: str, total_count: int) -> None:
        """Gives a topic more partitions; ``total_count`` is the number it has afterwards."""
        self._native.create_partitions(topic, total_count)

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(t[0] for t in self._native.describe_topics(None) if include_internal or not t[2])

    def describe_topics(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Describes topics.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        found = self._native.describe_topics(_names(topics))
        return {
            name: TopicDescription(name, topic_id, internal, [PartitionDescription(*p) for p in partitions])
            for name, topic_id, internal, partitions in found
        }

    def describe_cluster(self) -> ClusterDescription:
        """Describes the cluster."""
        cluster_id, controller, nodes = self._native.describe_cluster()
        return ClusterDescription(cluster_id, controller, [Node(*n) for n in nodes])

    def describe_features(self) -> FeatureMetadata:
        """What all brokers of the cluster have agreed to do, such as ``share.version`` (KIP-584)."""
        finalized, supported = self._native.describe_features()
        return FeatureMetadata(dict(finalized), dict(supported))

    def list_offsets(self, specs: Mapping[tuple[str, int], OffsetSpec]) -> dict[TopicPartition, OffsetInfo]:
        """Looks up one offset per partition.

        Args:
            specs: for each partition ``"earliest"``, ``"latest"``, ``"max_timestamp"``, or a time (aware datetime, or
                milliseconds since the epoch): the first record at or after it.
        """
        asked = [((tp[0], tp[1]), _spec(tp, spec)) for tp, spec in specs.items()]
        return {TopicPartition(*tp): OffsetInfo(*info) for tp, info in self._native.list_offsets(asked)}

    def list_groups(self) -> list[GroupListing]:
        """All groups of the cluster."""
        return [GroupListing(*g) for g in self._native.list_groups()]

    def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """A group's committed offsets, by partition."""
        return {tp: found.offset for tp, found in self.group_offsets_and_metadata(group_id).items()}

    def group_offsets_and_metadata(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """As `group_offsets`, with the texts that were committed beside them."""
        return {TopicPartition(*tp): OffsetAndMetadata(*found) for tp, found in self._native.group_offsets(group_id)}

    def alter_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]) -> None:
        """Sets a group's committed offsets. The group must have no members."""
        given = [(tp, o if isinstance(o, OffsetAndMetadata) else OffsetAndMetadata(o)) for tp, o in offsets.items()]
        self._native.alter_group_offsets(group_id, [((tp[0], tp[1]), (o.offset, o.metadata)) for tp, o in given])

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes groups with their offsets. They must have no members."""
        self._native.delete_groups(_names(group_ids))

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records before an offset; returns the new start of each partition."""
        found = self._native.delete_records([((tp[0], tp[1]), o) for tp, o in offsets.items()])
        return {TopicPartition(*tp): start for tp, start in found}

    def alter_partition_reassignments(self, replicas: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Gives partitions other replicas (KIP-455).

        It returns once the cluster has noted it. The replicas that a partition has stay until the new ones have all
        records; `list_partition_reassignments` shows which partitions are not done.

        Args:
            replicas: for each partition the node ids of its replicas, the one that is to lead first; None stops what is
                under way, and the partition keeps the replicas that it had.

        Raises:
            InvalidReplicaAssignmentError: a broker that is not there, or one named twice.
            NoReassignmentInProgressError: None for a partition that is not being given other replicas.
        """
        self._native.alter_partition_reassignments([((tp[0], tp[1]), to) for tp, to in replicas.items()])

    def list_partition_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The partitions that are being given other replicas."""
        found = self._native.list_partition_reassignments()
        return {TopicPartition(*tp): Reassignment(*to) for tp, to in found}

    def elect_leaders(self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False) -> None:
        """Has the first replica of each partition lead (KIP-460), and waits until it does.

        A partition that is led as asked for stays as it is. Where the first replica is not in sync, it waits for that,
        for at most ``default.api.timeout.ms``.

        Args:
            partitions: which; None for all that another replica leads.
            unclean: where a partition has no leader, have any replica lead that is there. Records that only others have
                are lost.

        Raises:
            PreferredLeaderNotAvailableError: a first replica is not in sync.
            EligibleLeadersNotAvailableError: no replica of a partition is there.
        """
        if partitions is None:
            names = self.list_topics(include_internal=True)
            described = self.describe_topics(names).values() if names else ()
            all_of = ((topic.name, one) for topic in described for one in topic.partitions)
            wanted = [(name, one.partition) for name, one in all_of if _is_to_change(one, unclean=unclean)]
        else:
            wanted = [(tp[0], tp[1]) for tp in partitions]
        if wanted:
            self._native.elect_leaders(wanted, unclean)

    def describe_topic_config(self, topic: str) -> dict[str, str | None]:
        """A topic's settings by Kafka's names."""
        return dict(self._native.describe_topic_config(topic))

    def alter_topic_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Changes some of a topic's settings, such as ``retention.ms``; None resets one to its default.

        Raises:
            InvalidConfigError: a name that the broker does not know, or a value that it does not accept.
            UnknownTopicOrPartitionError: there is no such topic.
        """
        self._native.alter_topic_config(topic, list(config.items()))

    def describe_group_config(self, group_id: str) -> dict[str, str | None]:
        """A group's settings by Kafka's names, such as ``share.auto.offset.reset``; the group need not exist yet."""
        return dict(self._native.describe_group_config(group_id))

    def alter_group_config(self, group_id: str, config: Mapping[str, str | None]) -> None:
        """Changes some of a group's settings, which apply to all its members; None resets one to its default.

        docs/options.md lists those of share groups. Needs a broker with such settings: Apache Kafka 4.0 or newer.

        Raises:
            InvalidConfigError: a name that the broker does not know, or a value that it does not accept.
        """
        self._native.alter_group_config(group_id, list(config.items()))

    def share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """A share group's progress, by partition; empty for a group that has read nothing.

        Raises:
            UnsupportedVersionError: the broker has no share groups.
        """
        found = self._native.share_group_offsets(group_id)
        return {TopicPartition(*tp): ShareOffset(*at) for tp, at in found}

    def close(self) -> None:
        """Stops the thread; waiting calls fail."""
        self._native.close()

    def __enter__(self) -> Self:
        """The admin itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()


def _is_to_change(partition: PartitionDescription, *, unclean: bool) -> bool:
    return partition.leader < 0 if unclean else partition.leader != partition.replicas[0]


def _names(given: Iterable[str]) -> list[str]:
    """A name alone is a list of one: taken letter by letter it would delete what nobody named."""
    return [given] if isinstance(given, str) else list(given)


def _spec(tp: tuple[str, int], spec: OffsetSpec) -> int:
    if isinstance(spec, str) and spec in _SPECS:
        return _SPECS[spec]
    if isinstance(spec, datetime) and spec.tzinfo is not None:
        return int(spec.timestamp() * 1000)
    if isinstance(spec, int) and not isinstance(spec, bool):
        return spec
    message = (
        f"{tp[0]}-{tp[1]}: an offset is looked up by {sorted(_SPECS)}, a time in ms or an aware datetime, not {spec!r}"
    )
    raise ValueError(message)
