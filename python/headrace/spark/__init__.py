"""``format("headrace")``: topics as a batch and streaming source and as a sink, on PySpark 4.2 and newer.

>>> from headrace.spark import session
>>> spark = session("my job")
>>> df = (spark.readStream.format("headrace")
...     .option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load())

Options, columns, offsets and checkpoints are those of Spark's own connector (docs/spark.md).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

    from headrace._options import OptionValue
    from headrace.spark.options import SourceOptions

__all__ = ["HeadraceDataSource", "register", "session"]

_FIELDS = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class HeadraceDataSource(DataSource):
    """Registered by `register`, by `session`, or by itself through the module ``pyspark_headrace``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "headrace"

    def schema(self) -> StructType:
        """The source's columns: those of Spark's own connector, or those that ``columns`` names."""
        return _schema(self._source(streaming=_is_streaming(dict(self.options))))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for ``spark.read``."""
        from headrace.spark.source import BatchReader  # noqa: PLC0415  (driver only)

        options = self._source(streaming=False)
        _check_user_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """A reader for ``spark.readStream``."""
        from headrace.spark.source import StreamReader  # noqa: PLC0415  (driver only)

        options = self._source(streaming=True)
        _check_user_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  (Spark's signature)
        """A writer for ``df.write``."""
        from headrace.spark.options import sink_options  # noqa: PLC0415  (driver only)
        from headrace.spark.sink import BatchWriter, check_schema  # noqa: PLC0415  (driver only)

        if overwrite:
            raise ConfigError("the headrace sink appends: use mode('append'); a topic cannot be overwritten")
        options = sink_options(self.options)
        return BatchWriter(options, check_schema(schema, options))

    def streamWriter(  # noqa: N802  (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001  (Spark's signature)
    ) -> DataSourceStreamWriter:
        """A writer for ``df.writeStream``."""
        from headrace.spark.options import sink_options  # noqa: PLC0415  (driver only)
        from headrace.spark.sink import StreamWriter, check_schema  # noqa: PLC0415  (driver only)

        if overwrite:
            raise ConfigError("the headrace sink appends: outputMode('complete') is not supported")
        options = sink_options(self.options)
        return StreamWriter(options, check_schema(schema, options))

    def _source(self, *, streaming: bool) -> SourceOptions:
        from headrace.spark.options import source_options  # noqa: PLC0415  (driver only)

        return source_options(self.options, streaming=streaming)


def register(spark: SparkSession) -> SparkSession:
    """Makes ``format("headrace")`` known to a session that was made elsewhere."""
    spark.dataSource.register(HeadraceDataSource)
    return spark


def session(app_name: str = "headrace", *, master: str | None = None, **config: OptionValue) -> SparkSession:
    """A session set up for the source: this Python for the workers, Unix sockets to them, the source registered.

    Both settings count only when they are made before the session starts; with a session that runs already they are
    left as they are.

    Args:
        app_name: shown in Spark's UI.
        master: such as ``local[2]``; by default what spark-submit or Spark's own settings say, else all local cores.
        **config: further Spark settings, underscores for dots: ``spark_sql_shuffle_partitions=2``.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  (heavy)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    for name, value in config.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(name.replace("_", "."), text)
    return register(builder.getOrCreate())


def _schema(options: SourceOptions) -> StructType:
    return StructType([StructField(name, _FIELDS[name]) for name in options.columns])


def _check_user_schema(schema: StructType, options: SourceOptions) -> None:
    if schema != _schema(options):
        raise ConfigError("the headrace source has a schema of its own and takes no other: remove .schema(...)")


def _is_streaming(options: dict[str, str]) -> bool:
    """Whether only a streaming query could mean these options; Spark asks for the schema before it says which it is."""
    from headrace.spark.options import source_options  # noqa: PLC0415  (driver only)

    try:
        source_options(options, streaming=False)
    except ConfigError:
        return True
    return False
