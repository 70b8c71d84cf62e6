"""Batch reads in one Spark session, in turns: our source, over TCP or through memory, and Spark's own connector.

Runs on the pyspark that PYTHONPATH names first. Prints one line of JSON a read: format, topic, action and sample.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benches.peers.meter import Sample
from benches.peers.orders import TEXT as ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TUNED = {
    # The connector's own defaults hold it back; these are what its users set.
    "kafka": {
        "kafka.max.partition.fetch.bytes": "10485760",
        "kafka.fetch.max.bytes": "104857600",
        "kafka.max.poll.records": "20000",
    },
    "headrace": {},
    "headrace-shm": {"headrace.datapath": "shm"},
}
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds() -> float:
    """CPU of this process and all below it: the JVM and Spark's Python workers."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(ticks) for ticks in fields[11:15]) / CLOCK_TICKS
    total = 0.0
    for pid, cpu in used.items():
        above: int | None = pid
        while above and above != os.getpid():
            above = parents.get(above)
        total += cpu if above else 0.0
    return total


def session(jars: str) -> SparkSession:
    """`local[2]`, as on the machine of a developer."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- PYTHONPATH decides at run time

    builder = SparkSession.builder.master("local[2]").appName("headrace-bench")
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, form: str, where: tuple[str, str], more: dict[str, str] | None = None) -> DataFrame:
    """The whole topic."""
    reader = (
        spark.read.format(form.partition("-")[0])
        .option("kafka.bootstrap.servers", where[0])
        .option("subscribe", where[1])
    )
    return reader.option("startingOffsets", "earliest").options(**TUNED[form], **(more or {})).load()


def orders(spark: SparkSession, form: str, where: tuple[str, str], kind: str, registry: str) -> DataFrame:
    """The amounts and quantities of orders: by our source, and by Spark's own functions behind its connector."""
    from pyspark.sql import functions  # noqa: PLC0415 -- PYTHONPATH decides at run time
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415 -- as above
    from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType  # noqa: PLC0415 -- as above

    if form == "headrace":
        if kind == "avro":
            given = {"value.format": "avro", "schema.registry.url": registry}
        else:
            schema = StructType([StructField("amount", DoubleType()), StructField("quantity", IntegerType())])
            given = {"value.format": "json", "value.schema": schema.json()}
        chosen = {"value.columns": "amount,quantity", "columns": "value"}
        return read(spark, form, where, {**given, **chosen}).select("value.amount", "value.quantity")
    raw = read(spark, form, where)
    if kind == "avro":
        column = from_avro(functions.expr("substring(value, 6)"), ORDER)
    else:
        column = functions.from_json(functions.col("value").cast("string"), "amount double, quantity int")
    return raw.select(column.alias("value")).select("value.amount", "value.quantity")


def act_on_orders(frame: DataFrame, records: int) -> None:
    """Adds them up, and looks whether all were there."""
    from pyspark.sql import functions  # noqa: PLC0415 -- PYTHONPATH decides at run time

    row = frame.select(functions.sum("amount"), functions.sum("quantity"), functions.count("amount")).collect()[0]
    assert row[2] == records, f"{row[2]} rows of {records}"


def act(frame: DataFrame, action: str, records: int) -> None:
    """`noop` writes every column nowhere; `sum` adds up the lengths, which checks the count too."""
    from pyspark.sql import functions  # noqa: PLC0415 -- PYTHONPATH decides at run time

    if action == "noop":
        frame.write.format("noop").mode("overwrite").save()
        return
    row = frame.select(functions.sum(functions.length("value")), functions.count("offset")).collect()[0]
    assert row[1] == records, f"{row[1]} rows of {records}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", nargs="+", choices=list(TUNED), default=["headrace", "kafka"])
    parser.add_argument("--jars", default="", help="the connector's jars, comma separated")
    parser.add_argument("--orders", choices=["avro", "json"], help="the topic holds orders; their amounts are added up")
    parser.add_argument("--registry", default="", help="url of the registry that has the schema of orders")
    options = parser.parse_args()
    spark = session(options.jars)
    if set(options.formats) != {"kafka"}:
        from headrace.spark import HeadraceDataSource  # noqa: PLC0415 -- as above

        spark.dataSource.register(HeadraceDataSource)
    for number in range(options.rounds + 1):  # the first round warms up and is not reported
        for action in ("noop", "sum") if options.orders is None else (options.orders,):
            for form in options.formats:
                where = (options.bootstrap, options.topic)
                if options.orders is None:
                    frame = read(spark, form, where)
                else:
                    frame = orders(spark, form, where, options.orders, options.registry)
                cpu, began = tree_cpu_seconds(), time.perf_counter()
                if options.orders is None:
                    act(frame, action, options.records)
                else:
                    act_on_orders(frame, options.records)
                seconds = time.perf_counter() - began
                sample = Sample(options.records, 0, seconds, tree_cpu_seconds() - cpu)
                if number > 0:
                    print(json.dumps({"format": form, "action": action, "sample": sample.line()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
