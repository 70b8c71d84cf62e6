"""The base of all errors, apart from the table so that both it and `headrace.errors` can stand on it."""

from __future__ import annotations


class KafkaError(Exception):
    """Everything that a client, a broker or the network can fail with."""

    code: int | None
    """Kafka's error code, if a broker answered with one."""
    name: str
    """Kafka's name of the error, such as ``UNKNOWN_TOPIC_OR_PARTITION``; of the same style where it has none."""
    retriable: bool
    """Whether the same call may succeed later."""
    topic: str | None
    """The topic it is about."""
    partition: int | None
    """The partition it is about."""
    offset: int | None
    """The offset it is about."""

    def __init__(
        self,
        message: str = "",
        *,
        code: int | None = None,
        name: str = "",
        retriable: bool | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Takes the whole sentence, and what programs want to know of it."""
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = isinstance(self, Retriable) if retriable is None else retriable
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with all attributes: Spark carries errors from its workers."""
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[KafkaError], args: tuple[object, ...], attributes: dict[str, object]) -> KafkaError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(attributes)
    return error


class Retriable:
    """The same call may succeed later, and the client has already tried for as long as its options say."""


class Fatal:
    """The client cannot go on; make a new one."""


class Abortable:
    """The transaction must be aborted; then the producer can go on."""
