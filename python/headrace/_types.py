"""Small values that every part of the API shares."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic; a plain ``(topic, partition)`` tuple serves as well everywhere."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition, from 0."""


class RecordMetadata(NamedTuple):
    """Where a sent record has been written."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record; -1 with ``acks=0``, where the broker does not tell."""
    timestamp: int
    """Timestamp of the record as written, milliseconds since the Unix epoch."""
