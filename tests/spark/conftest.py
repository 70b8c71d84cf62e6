"""One Spark session for all tests of this folder, and what they need around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.kafka.cluster import Cluster

SETTINGS = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "20s",
}


PATIENCE_SECONDS = 300
"""A test's time with the start of Spark. One that is cut off in a call to the JVM spoils all those after it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from headrace.spark import session  # noqa: PLC0415 -- tests without Spark do not wait for it

    spark = session("headrace tests", master="local[2]", config=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster, topic: str) -> Callable[..., DataFrame]:
    """Reads the test's topic as a batch: `load(startingOffsets="earliest")`; an option set to None is left out."""

    def load(**options: Any) -> DataFrame:
        reader = spark.read.format("headrace")
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **options}
        return reader.options(**{name: value for name, value in given.items() if value is not None}).load()

    return load


def produce(cluster: Cluster, topic: str, records: list[dict[str, Any]]) -> None:
    """Sends records through a third party's client, so that a mistake of ours cannot cancel itself out."""
    failed = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for record in records:
        producer.produce(topic, **record, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(20) == 0
    assert not failed


def numbers(cluster: Cluster, topic: str, values: range, partitions: int = 1) -> None:
    """Sends whole numbers as text, in turn to each partition."""
    produce(cluster, topic, [{"value": str(i).encode(), "partition": i % partitions} for i in values])


def threads(spark: SparkSession) -> dict[int, set[int]]:
    """The native clients' threads in Spark's Python processes, by process."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    found = {}
    for pid in descendants(jvm):
        names = {int(task.name): comm(task) for task in Path(f"/proc/{pid}/task").glob("*")}
        found[pid] = {thread for thread, name in names.items() if name.startswith("headrace")}
    return {pid: ids for pid, ids in found.items() if ids}


def descendants(root: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def comm(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return ""
