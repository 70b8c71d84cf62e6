"""The sink: Arrow batches of a task go to the producer of its process as they are, or encoded by a schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace._formats import SIDES
from headrace.errors import ConfigError
from headrace.spark import clients

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.options import SinkOptions
    from headrace.values import Format

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
    formats = {spec.side: spec.name for spec in options.formats}
    for name, accepted in _TYPES.items():
        if name not in schema.names:
            continue
        found = schema[name].dataType.simpleString()
        if name in formats:
            if not found.startswith("struct<"):
                raise ConfigError(
                    f"column {name} is {found}; {name}.format={formats[name]} takes a struct of the fields"
                )
        elif found not in accepted:
            hint = f", or a struct with {name}.format" if found.startswith("struct<") and name in SIDES else ""
            raise ConfigError(f"column {name} is {found}; the headrace sink takes {' or '.join(accepted)}{hint}")
        columns.append(name)
    if missing := [name for name in formats if name not in columns]:
        raise ConfigError(f"{missing[0]}.format needs a column {missing[0]}, a struct of the fields")
    if "value" not in columns:
        raise ConfigError(f"the headrace sink needs a column value; there are {', '.join(schema.names) or 'none'}")
    if options.topic is not None:
        columns = [name for name in columns if name != "topic"]
    elif "topic" not in columns:
        raise ConfigError("the headrace sink needs the option topic or a column topic")
    return columns


def check_formats(options: SinkOptions, schema: StructType) -> None:
    """Encodes no rows, so that a wrong schema or column fails before any task; registers schemas.

    Raises:
        ConfigError: a column has a type that has no place in its schema, or the schema is wrong.
        SchemaRegistryError: the registry refuses a schema, or does not answer.
    """
    if not options.formats:
        return
    from headrace.spark.columns import check_written  # noqa: PLC0415  (who sends bytes needs no formats)

    check_written(options.formats, schema, options.topic)


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
        SchemaError: a value has no place in its schema.
        KafkaError: the broker's error for the first row that failed, or that it did not answer.
    """
    waiting = []
    rows = 0
    formats: dict[str, Format] = {}
    with clients.producer(options.client) as producer:
        for batch in batches:
            if options.topic is None and batch.column("topic").null_count:
                raise ConfigError("column topic is null in some row, and the option topic is not set")
            if options.formats and not formats:
                from headrace.values.from_options import written_formats  # noqa: PLC0415  (as above)

                formats = written_formats(options.formats, batch.schema)
            key, value = formats.get("key"), formats.get("value")
            waiting.append(producer.send_arrow(options.topic, batch.select(columns), key=key, value=value))
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
