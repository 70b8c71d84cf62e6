"""Errors: one class for each thing that can go wrong, all of them `KafkaError`.

Catch by class (`UnknownTopicOrPartitionError`), by what can be done (`Retriable`, `Fatal`, `Abortable`), or by base
class. Errors from brokers are `BrokerError`; docs/errors.md lists them all.
"""

from __future__ import annotations

from headrace._error_table import *  # noqa: F403  (the table is this module's own, kept apart as it is generated)
from headrace._error_table import BY_CODE, BrokerError, OffsetOutOfRangeError, SaslAuthenticationFailedError
from headrace._errors import Abortable, Fatal, KafkaError, Retriable

__all__ = [
    "Abortable",
    "BrokerError",
    "BrokerStartError",
    "ClosedError",
    "ConfigError",
    "DisconnectedError",
    "Fatal",
    "ForkedError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogTruncationError",
    "ProtocolError",
    "RecordError",
    "Retriable",
    "SchemaError",
    "SchemaRegistryError",
    "SchemaRegistryUnavailableError",
    "TlsError",
    "TransactionAbortedError",
    "UsageError",
]
__all__ += [kind.__name__ for kind in BY_CODE.values()]


class KafkaTimeoutError(KafkaError, Retriable, TimeoutError):
    """A timeout; the message says what was waited for, and how long."""


class DisconnectedError(KafkaError, Retriable, ConnectionError):
    """A connection could not be made, or was lost before the answer arrived."""


class TlsError(KafkaError):
    """The TLS handshake failed: a certificate is not trusted, or only one of the two ends uses TLS."""


class ProtocolError(KafkaError):
    """A peer violated Kafka's protocol, or does not speak it at all."""


class ConfigError(KafkaError, ValueError):
    """An option is unknown, not supported, or has a value that is not accepted."""


class UsageError(KafkaError):
    """The call is not allowed in the client's current state."""


class RecordError(KafkaError):
    """A record or batch is damaged, or too large to be sent."""


class LogTruncationError(OffsetOutOfRangeError):
    """Rows that were read are gone from the partition's log: an unclean leader election truncated it (KIP-320).

    Only with ``auto_offset_reset="none"``. `offset` is the position; `seek` to go on.
    """

    end_offset: int | None = None
    """Where the log and what was read diverge, if the leader knows it: the offset to seek to."""


class SchemaError(KafkaError, ValueError):
    """Arrow data has a column that cannot be sent, or lacks one."""


class DecodeError(KafkaError, ValueError):
    """A key or value could not be decoded: its bytes are damaged, or were written with another schema.

    From a client, `topic`, `partition` and `offset` say of which record: `Consumer.seek` past it to go on.
    """

    row: int | None = None
    """The row's number among those that were decoded, from 0."""
    field: str | None = None
    """The field as a path such as ``items[].price``; empty for the value itself."""


class SchemaRegistryError(KafkaError):
    """A schema registry has no such schema, refuses a request, or answers what cannot be understood."""

    status: int | None = None
    """The status of HTTP, such as 404 where there is no such schema."""


class SchemaRegistryUnavailableError(SchemaRegistryError, Retriable):
    """A schema registry did not answer in time."""


class TransactionAbortedError(KafkaError):
    """A record was not sent because its transaction was aborted."""


class ClosedError(KafkaError, Fatal):
    """The client is closed."""


class ForkedError(KafkaError, Fatal):
    """A forked child used its parent's client; it must create its own."""


class BrokerStartError(KafkaError, OSError):
    """The embedded broker cannot start, or could not stop cleanly."""


_KINDS: dict[str, type[KafkaError]] = {
    "Timeout": KafkaTimeoutError,
    "Disconnected": DisconnectedError,
    "Tls": TlsError,
    "Login": SaslAuthenticationFailedError,
    "Protocol": ProtocolError,
    "Config": ConfigError,
    "Usage": UsageError,
    "Record": RecordError,
    "Truncated": LogTruncationError,
    "Aborted": TransactionAbortedError,
    "Closed": ClosedError,
    "Forked": ForkedError,
}


def from_native(  # noqa: PLR0917  (the native side has no keywords)
    kind: str, code: int | None, name: str, message: str, retriable: bool, details: dict[str, object]
) -> KafkaError:
    """Creates the error for what the native side reports."""
    cls = BY_CODE.get(code, BrokerError) if code is not None else _KINDS.get(kind, KafkaError)
    error = cls(message, code=code, name=name, retriable=retriable)
    for attribute, value in details.items():
        setattr(error, attribute, value)
    return error
