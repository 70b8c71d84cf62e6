"""Dead letters: rows that cannot be decoded go to a topic of their own, before the query sees the rows around them."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from headrace._columns import SIDES, bad_rows
from headrace.errors import KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError, UsageError
from headrace.spark import clients

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from headrace.producer import Producer
    from headrace.spark.options import SourceOptions

HELD_MAX: Final = 4
"""Most batches, of about 1 MB of records each, that a task holds back until their letters are acknowledged."""

ROWS_MAX: Final = 1000
"""Most rows that become letters at once: as Python's objects each takes some KB."""

CREATION_MS: Final = 10_000
"""How long a cluster has to create a topic that is asked for, as one with ``auto.create.topics.enable`` does."""

_NO_PARTITION: Final = 2**31 - 1
"""The number of a partition that no topic has."""


class DeadLetterError(KafkaError):
    """A row that cannot be decoded did not reach the topic of the option ``deadLetterTopic``."""


def check_letters(options: SourceOptions) -> None:
    """Looks, on the driver, whether letters have a topic to go to. A cluster that creates topics on demand creates it.

    Raises:
        DeadLetterError: it is not there and is not created, or this client may not use it.
    """
    topic = options.dead_letter_topic
    if topic is None:
        return
    with _named(topic):
        try:
            with clients.admin(options.client) as admin:
                admin.describe_topics([topic])
        except UnknownTopicOrPartitionError:
            _create(options, topic)


def _create(options: SourceOptions, topic: str) -> None:
    """Asks for a topic as a producer does, by a record for a partition that no topic has, so that nothing is written.

    Only the cluster can say whether it creates topics on demand: its setting is hidden from most clients.
    """
    settings = tuple(sorted({**dict(options.letters), "max.block.ms": str(CREATION_MS)}.items()))
    with clients.producer(settings) as producer:
        error = producer.send(topic, partition=_NO_PARTITION).exception()
    if isinstance(error, KafkaTimeoutError):
        message = "there is no such topic, and the cluster does not create it on demand: create it"
        raise UnknownTopicOrPartitionError(message, topic=topic) from error
    if error is not None and not isinstance(error, UsageError):
        raise error


def after_letters(options: SourceOptions, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    """Decoded batches, each after all letters of its bad rows, and of those before it, are acknowledged.

    So a query that has a row, be it one that stops its tasks early (``limit``), has lost no bad row around it. Letters
    of `HELD_MAX` batches are on their way at a time. A producer is made at the first bad row.

    Raises:
        DeadLetterError: the cluster refuses a letter, or does not acknowledge it in time.
    """
    topic = str(options.dead_letter_topic)
    held: deque[tuple[pa.RecordBatch, list[Future[int]]]] = deque()
    with ExitStack() as lent:
        producer: Producer | None = None
        for batch in batches:
            sent: list[Future[int]] = []
            if _has_bad(batch):
                if producer is None:
                    producer = lent.enter_context(clients.producer(options.letters))
                with _named(topic):
                    sent = list(_send(producer, topic, batch))
            held.append((batch, sent))
            while held and (len(held) > HELD_MAX or all(future.done() for future in held[0][1])):
                yield _acknowledged(topic, *held.popleft())
        while held:
            yield _acknowledged(topic, *held.popleft())


def _has_bad(batch: pa.RecordBatch) -> bool:
    errors = [batch.column(f"{side}_error") for side in SIDES if f"{side}_error" in batch.schema.names]
    return any(column.null_count < len(column) for column in errors)


def _send(producer: Producer, topic: str, batch: pa.RecordBatch) -> Iterator[Future[int]]:
    for start in range(0, batch.num_rows, ROWS_MAX):
        letters = bad_rows(batch.slice(start, ROWS_MAX))
        if letters.num_rows:
            yield producer.send_arrow(topic, letters)


def _acknowledged(topic: str, batch: pa.RecordBatch, sent: list[Future[int]]) -> pa.RecordBatch:
    with _named(topic):
        for future in sent:
            future.result()
    return batch


@contextmanager
def _named(topic: str) -> Iterator[None]:
    """Errors name the option: a query may have a sink, too, and other topics."""
    try:
        yield
    except KafkaError as error:
        message = f"deadLetterTopic {topic}: {error}"
        raise DeadLetterError(
            message, code=error.code, name=error.name, retriable=error.retriable, topic=topic
        ) from error
