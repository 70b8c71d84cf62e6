"""The sink: Arrow batches of a task go to the producer of its process as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.errors import ConfigError
from headrace.spark import clients

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.spark.options import SinkOptions

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
}


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
        found = schema[name].dataType
        if not isinstance(found, accepted):
            names = " or ".join(kind().simpleString() for kind in accepted if kind is not ArrayType)
            raise ConfigError(
                f"column {name} is {found.simpleString()}; the headrace sink takes "
                f"{names or 'array<struct<key:string,value:binary>>'}"
            )
        columns.append(name)
    if "value" not in columns:
        raise ConfigError(f"the headrace sink needs a column value; there are {', '.join(schema.names) or 'none'}")
    if options.topic is not None:
        columns = [name for name in columns if name != "topic"]
    elif "topic" not in columns:
        raise ConfigError("the headrace sink needs the option topic or a column topic")
    return columns


def send(options: SinkOptions, columns: list[str], batches: Iterator[pa.RecordBatch]) -> Written:
    """Sends every row of a task and waits for all acknowledgements."""
    producer = clients.producer(options.client)
    waiting = []
    rows = 0
    try:
        for batch in batches:
            if options.topic is None and batch.column("topic").null_count:
                raise ConfigError("column topic is null in some row, and the option topic is not set")
            chosen = batch.select(columns)
            if "partition" in columns and chosen.column("partition").null_count == batch.num_rows:
                chosen = chosen.select([name for name in columns if name != "partition"])
            waiting.append(producer.send_arrow(options.topic, chosen))
            rows += batch.num_rows
        for future in waiting:
            future.result()
    except BaseException:
        clients.forget_quietly("producer", options.client)
        raise
    return Written(rows)


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query's rows; at least once, as a task may run again."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        """Keeps what the tasks need."""
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows."""
        return send(self.options, self.columns, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query's rows; at least once."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        """Keeps what the tasks need."""
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows of one micro-batch."""
        return send(self.options, self.columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Does nothing: rows are in the topic once a task has ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Does nothing: rows of a failed attempt stay, which is what at least once means."""
