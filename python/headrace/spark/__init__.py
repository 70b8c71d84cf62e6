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
from dataclasses import replace
from typing import TYPE_CHECKING

try:
    import pyspark.sql.streaming.datasource  # noqa: F401  (new in 4.2, and what the source needs of it)
except ImportError as missing:
    raise ImportError("headrace.spark needs PySpark 4.2 or newer: pip install 'pyspark>=4.2'") from missing

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

import pyspark_headrace  # noqa: F401  (quietens the worker that loads the source)
from headrace._options import pairs
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

    from headrace._options import OptionValue
    from headrace.spark.options import SinkOptions, SourceOptions

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

_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "pyspark_headrace.daemon",
}
"""What `session` sets by default."""


class HeadraceDataSource(DataSource):
    """Registered by `register`, by `session`, or by itself through the module ``pyspark_headrace``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "headrace"

    def schema(self) -> StructType:
        """The source's columns: those of Spark's own connector, or those that ``columns`` names."""
        from headrace.spark.source import check_clients  # noqa: PLC0415  (driver only)

        # Whatever is wrong in batch and streaming queries alike is said by `load`; the rest when the query starts.
        options = self._source(streaming=None)
        check_clients(options)
        return _schema(options)

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

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for ``df.write``."""
        from headrace.spark.sink import BatchWriter  # noqa: PLC0415  (driver only)

        if overwrite:
            raise ConfigError("the headrace sink appends: use mode('append'); a topic cannot be overwritten")
        return BatchWriter(*self._sink(schema))

    def streamWriter(  # noqa: N802  (Spark's name)
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A writer for ``df.writeStream``."""
        from headrace.spark.sink import StreamWriter  # noqa: PLC0415  (driver only)

        if overwrite:
            raise ConfigError("the headrace sink appends: outputMode('complete') is not supported")
        return StreamWriter(*self._sink(schema))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, list[str]]:
        from headrace.spark.options import sink_options  # noqa: PLC0415  (driver only)
        from headrace.spark.sink import check_client, check_formats, check_schema  # noqa: PLC0415  (driver only)

        options = sink_options(self.options)
        check_client(options)
        columns = check_schema(schema, options)
        check_formats(options, schema)
        return options, columns

    def _source(self, *, streaming: bool | None) -> SourceOptions:
        from headrace.spark.options import source_options  # noqa: PLC0415  (driver only)

        options = source_options(self.options, streaming=streaming)
        if not options.formats:
            return options
        from headrace.values.from_options import pinned  # noqa: PLC0415  (where there are some)

        topics = list(options.topics.names) or list(options.topics.assigned)
        return replace(options, formats=tuple(pinned(spec, topics) for spec in options.formats))


def register(spark: SparkSession) -> SparkSession:
    """Makes ``format("headrace")`` known to a session that was created elsewhere."""
    if not _is_known(spark):
        spark.dataSource.register(HeadraceDataSource)
    return spark


def session(
    app_name: str = "headrace",
    *,
    master: str | None = None,
    config: Mapping[str, OptionValue] | None = None,
    **options: OptionValue,
) -> SparkSession:
    """A session set up for the source: workers run this Python, over Unix sockets, and the source is registered.

    The workers' daemon is `pyspark_headrace.daemon`, which suppresses tracebacks about results that are no longer
    needed. All settings but the last only work if they are made before the session starts; a session that is already
    running is used as it is. An environment variable ``PYSPARK_PYTHON`` is respected: that Python must have headrace
    too.

    Args:
        app_name: shown in Spark's UI.
        master: such as ``local[2]``; by default that of spark-submit or Spark's own settings, else all local cores.
        config: further Spark settings by name; they override those of this function, as do spark-submit's.
        **options: the same as keywords, underscores for dots: ``spark_sql_shuffle_partitions=2``.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  (heavy)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**_own_settings(), **dict(pairs(None, config, options))}.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _own_settings() -> dict[str, str]:
    """`_SETTINGS`, but for those that spark-submit was given: it has started the JVM with settings of its own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return _SETTINGS
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (heavy)

    SparkContext._ensure_initialized()  # noqa: SLF001  (a SparkConf sees the JVM's settings only after it)
    given = SparkConf()
    return {name: value for name, value in _SETTINGS.items() if not given.contains(name)}


def _is_known(spark: SparkSession) -> bool:
    """Whether the session's own search for modules named ``pyspark_*`` has found the source."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001  (there is no public way)
        return bool(manager.dataSourceExists(HeadraceDataSource.name()))
    except Exception:  # noqa: BLE001  (not a classic session, or Spark has changed: registering twice only warns)
        return False


def _schema(options: SourceOptions) -> StructType:
    made: dict[str, StructField] = {}
    if options.formats:
        from headrace.spark.columns import fields  # noqa: PLC0415  (where there are some)

        made = fields(options.formats)
    return StructType([made.get(name) or StructField(name, _FIELDS[name]) for name in options.columns])


def _check_user_schema(schema: StructType, options: SourceOptions) -> None:
    if schema != _schema(options):
        raise ConfigError("the headrace source has a schema of its own and takes no other: remove .schema(...)")
