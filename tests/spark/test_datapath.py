"""Spark's workers read and write through the broker's memory where they are asked to."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.spark import clients
from headrace.spark.options import source_options
from headrace.spark.planning import Range
from headrace.spark.source import read_range
from tests.spark.conftest import descendants
from tests.spark.test_streaming import Stream, wait_until

pytestmark = pytest.mark.spark

ROWS = 20_000
SECONDS_MAX = 90
"""A link takes milliseconds; a segment that did not come within a second is read over TCP for a minute."""
ROUNDS_MAX = 10
"""Whatever worker a task comes to has a link after its first."""


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(num_partitions=2) as one:
        yield one


def send(broker, topic, values):
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())}))


def frame(spark, broker, topic, **options):
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, **options}
    return spark.read.format("headrace").options(**given).load()


def rows(found):
    return sorted((row.partition, row.offset, bytes(row.value)) for row in found.collect())


def mapped(spark, what):
    """Whether a process of Spark's has memory whose name holds `what`."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    for pid in descendants(jvm):
        try:
            if what in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:
            continue  # it ended meanwhile
    return False


def test_a_batch_query_reads_the_broker_s_files(spark, broker, topic):
    send(broker, topic, [b"%d" % i for i in range(ROWS)])
    file = f"/{topic}-"
    over_tcp = rows(frame(spark, broker, topic))
    assert len(over_tcp) == ROWS
    assert not mapped(spark, file)
    for _ in range(ROUNDS_MAX):
        assert rows(frame(spark, broker, topic, **{"headrace.datapath": "shm"})) == over_tcp
        if mapped(spark, file):
            break
    assert mapped(spark, file)


def test_a_range_is_read_from_memory_once_there_is_a_link(broker, topic):
    send(broker, topic, [b"%d" % i for i in range(ROWS)])
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "headrace.datapath": "shm"}
    options = source_options(given, streaming=False)
    with hr.Consumer(broker.bootstrap_servers) as consumer:
        # The producer may have taken one partition for all of them.
        ends = consumer.end_offsets([(topic, 0), (topic, 1)])
    (_, partition), end = max(ends.items(), key=lambda item: item[1])
    clients.close_idle()
    read = 0
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        batches = list(read_range(options, Range(topic, partition, 0, end)))
        assert [at for batch in batches for at in batch["offset"].to_pylist()] == list(range(end))
        with clients.range_reader(options.reader) as reader:
            before, read = read, reader.direct_bytes()
        if read - before > sum(len(value) for batch in batches for value in batch["value"].to_pylist()):
            break
        time.sleep(0.05)
    assert read > before
    clients.close_idle()


def test_micro_batches_come_from_memory(spark, broker, topic, tmp_path):
    send(broker, topic, [b"0"])
    stream = Stream(spark, broker, topic, tmp_path)
    query = stream.start(startingOffsets="earliest", **{"headrace.datapath": "shm"})
    try:
        for number in range(ROUNDS_MAX):
            wait_until(lambda number=number: stream.values == list(range(number + 1)), query)
            if mapped(spark, f"/{topic}-"):
                break
            send(broker, topic, [b"%d" % (number + 1)])
        assert mapped(spark, f"/{topic}-")
    finally:
        query.stop()


def test_the_sink_writes_into_memory(spark, broker, topic):
    written = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as value")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "kafka.headrace.datapath": "shm"}
    for number in range(ROUNDS_MAX):
        written.write.format("headrace").mode("append").options(**options).save()
        found = [int(row.value) for row in frame(spark, broker, topic).select("value").collect()]
        assert sorted(found) == sorted(list(range(ROWS)) * (number + 1))
        if mapped(spark, "memfd:headrace-landing"):
            break
    assert mapped(spark, "memfd:headrace-landing")


def test_a_broker_that_lends_no_memory(spark, topic):
    with hr.Broker.start(headrace_direct=False) as broker:
        send(broker, topic, [b"1"])
        assert len(rows(frame(spark, broker, topic, **{"headrace.datapath": "auto"}))) == 1
        with pytest.raises(Exception, match=r"headrace\.datapath"):
            rows(frame(spark, broker, topic, **{"headrace.datapath": "shm"}))
