"""The sink: Arrow batches of a task go to the producer of its process as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import ConfigError
from headrace.spark import clients

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.options import SinkOptions

_TYPES: Final = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are sent, and the types of Spark that each may have."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has written and the broker has acknowledged."""

    records: int


def check_schema(schema: StructType, options: SinkOptions) -> list[str]:
    """Finds the columns to send; others are left out, as Spark's own connector does.

    Raises:
        ConfigError: ``value`` is missing, a column has a type that cannot be sent, or nothing names the topic.
    """
    columns = []
    for name, accepted in _TYPES.items():
        if name not in schema.names:
            continue
        found = schema[name].dataType.simpleString()
        if found not in accepted:
            raise ConfigError(f"column {name} is {found}; the headrace sink takes {' or '.join(accepted)}")
        columns.append(name)
    if "value" not in columns:
        raise ConfigError(f"the headrace sink needs a column value; there are {', '.join(schema.names) or 'none'}")
    if options.topic is not None:
        columns = [name for name in columns if name != "topic"]
    elif "topic" not in columns:
        raise ConfigError("the headrace sink needs the option topic or a column topic")
    return columns


def check_client(options: SinkOptions) -> None:
    """Has the client read its options, without connecting, so that a wrong one fails before any task.

    Raises:
        ConfigError: an option is unknown, not supported, or has a value that is not accepted.
    """
    with clients.producer(options.client):
        pass
    clients.close_idle()


def send(options: SinkOptions, columns: list[str], batches: Iterator[pa.RecordBatch]) -> Written:
    """Sends every row of a task and waits for all acknowledgements.

    Raises:
        ConfigError: a row has no topic.
        KafkaError: the broker's error for the first row that failed, or that it did not answer.
    """
    waiting = []
    rows = 0
    with clients.producer(options.client) as producer:
        for batch in batches:
            if options.topic is None and batch.column("topic").null_count:
                raise ConfigError("column topic is null in some row, and the option topic is not set")
            waiting.append(producer.send_arrow(options.topic, batch.select(columns)))
            rows += batch.num_rows
        for future in waiting:
            future.result()
    return Written(rows)


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query's rows; at least once, as a task may run again. A failed job's rows stay in the topic."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows."""
        return send(self.options, self.columns, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query's rows; at least once."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows of one micro-batch."""
        return send(self.options, self.columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Does nothing: rows are in the topic once a task has ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Does nothing: rows of a failed attempt stay in the topic."""
