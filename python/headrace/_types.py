"""Small values that every part of the API shares."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic; a plain ``(topic, partition)`` tuple works everywhere too."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition, from 0."""


class GroupMetadata(NamedTuple):
    """A consumer's membership: lets the group refuse a transaction's offsets after its partitions were lost."""

    group_id: str
    """Name of the group."""
    generation_id: int = -1
    """The group's generation; -1 for a consumer that assigns its partitions itself."""
    member_id: str = ""
    """The member; empty for a consumer that assigns its partitions itself."""
    group_instance_id: str | None = None
    """``group.instance.id``."""


class RecordMetadata(NamedTuple):
    """Where a sent record was written."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record; -1 with ``acks=0``, where the broker does not report it."""
    timestamp: int
    """Timestamp of the record as written, milliseconds since the Unix epoch."""
