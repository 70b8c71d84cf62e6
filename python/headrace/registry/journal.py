"""The topic in which a registry keeps what it knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.admin import Admin
from headrace.errors import KafkaError, SchemaRegistryError
from headrace.producer import Producer
from headrace.reading import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.registry.subjects import Change

TOPIC: Final = "_schemas"
TIMEOUT_S: Final = 30.0
"""How long a record may take to be written; on the broker of this process it takes a millisecond."""


class Journal:
    """``_schemas``: one partition, a JSON object for a record's key and one for its value, as Confluent's has them."""

    def __init__(self, servers: str) -> None:
        """Makes the topic if it is not there."""
        with Admin(servers) as admin:
            try:
                admin.create_topic(TOPIC, 1, 1, {"cleanup.policy": "compact", "retention.ms": "-1"})
            except KafkaError as error:
                if error.name != "TOPIC_ALREADY_EXISTS":
                    raise
            partitions = len(admin.describe_topics([TOPIC])[TOPIC].partitions)
        if partitions != 1:
            message = f"the topic {TOPIC!r} has {partitions} partitions; a registry's has 1"
            raise SchemaRegistryError(message, name="INVALID_CONFIG")
        self._servers = servers
        self._producer = Producer(servers, acks="all", linger_ms=0)

    def records(self) -> Iterator[tuple[Any, Any, str]]:
        """All that was written, as key, value and where it stands.

        Raises:
            ValueError: a record is not JSON.
        """
        for batch in read(self._servers, TOPIC):
            names = ("key", "value", "offset")
            for key, value, offset in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                where = f"{TOPIC}-0, offset {offset}"
                try:
                    yield json.loads(key or b"null"), None if value is None else json.loads(value), where
                except ValueError as error:
                    message = f"{where}: {error}"
                    raise ValueError(message) from None

    def append(self, changes: Iterable[Change]) -> None:
        """Writes records, and returns once the broker has them."""
        sent = [self._producer.send(TOPIC, _json(value), key=_json(key), partition=0) for key, value in changes]
        for future in sent:
            future.result(TIMEOUT_S)

    def close(self) -> None:
        """Ends the connection."""
        self._producer.close(1.0)


def _json(value: dict[str, Any] | None) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()
