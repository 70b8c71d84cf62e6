"""Rows that are read from the broker's memory are those that Fetch brings, whatever happens in between."""

from __future__ import annotations

import gc
import signal
import threading
import time

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import headrace as hr
from tests.broker.process import BrokerProcess

SECONDS = 20.0
SEGMENT_BYTES = 1 << 20
READ = "direct-bytes-consumed-total"


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(log_segment_bytes=SEGMENT_BYTES, num_partitions=1) as one:
        yield one


@pytest.fixture
def name(request):
    return f"{request.node.name.translate(str.maketrans('[]', '--'))}-{time.time_ns()}"


def consumer(broker, datapath="shm", **options):
    options = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | options
    return hr.Consumer(broker.bootstrap_servers, headrace_datapath=datapath, **options)


def rows(first, count, size=100):
    return [b"%010d" % at * (size // 10) for at in range(first, first + count)]


def send(broker, name, values, **options):
    with hr.Producer(broker.bootstrap_servers, **options) as producer:
        producer.send_arrow(name, pa.table({"value": pa.array(values, pa.binary())}))


def read(one, count):
    """So many rows, of whatever partitions."""
    found = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        batch = one.poll(1.0)
        found += batch["value"].to_pylist()
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
    return found


def read_to(one, name, end):
    """All rows up to an offset, as a table."""
    batches = []
    while one.position((name, 0)) < end:
        batch = one.poll(SECONDS)
        assert batch.num_rows
        batches.append(batch)
    return pa.Table.from_batches(batches)


def wait_for_memory(one, broker, name):
    """Reads what is there, and then some that come from memory for certain."""
    before = one.metrics()[READ]
    deadline = time.monotonic() + SECONDS
    while one.metrics()[READ] == before:
        send(broker, name, [b"warm"])
        assert one.poll(1.0).num_rows
        assert time.monotonic() < deadline
    while one.poll(0.2).num_rows:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("value_type", ["binary", "binary_view"])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_rows_are_those_of_tcp_across_segments(broker, name, compression, value_type):
    count = 60_000
    table = pa.table(
        {
            "key": pa.array([b"%d" % at if at % 3 else None for at in range(count)], pa.binary()),
            "value": pa.array([b"%06d" % at * (at % 25) if at % 50 else None for at in range(count)], pa.binary()),
            "headers": pa.array(
                [[("h", b"%d" % at)] if at % 7 == 0 else None for at in range(count)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    tables = {}
    with consumer(broker, value_type=value_type, include_headers=True) as one:
        one.assign([(name, 0)])
        wait_for_memory(one, broker, name)
        first = one.position((name, 0))
        before = one.metrics()[READ]
        with hr.Producer(broker.bootstrap_servers, compression_type=compression, batch_size=50_000) as producer:
            producer.send_arrow(name, table)
        tables["shm"] = read_to(one, name, first + count)
        assert one.metrics()[READ] > before
    with consumer(broker, "tcp", value_type=value_type, include_headers=True) as one:
        one.assign([(name, 0)])
        one.seek((name, 0), first)
        tables["tcp"] = read_to(one, name, first + count)
        assert one.metrics()[READ] == 0
    gc.collect()
    tables["shm"].validate(full=True)
    assert tables["shm"].to_pylist() == tables["tcp"].to_pylist()


def test_nothing_is_fetched_once_there_is_memory_and_an_empty_poll_asks_nobody(broker, name):
    with consumer(broker) as one:
        one.assign([(name, 0)])
        wait_for_memory(one, broker, name)
        before = one.metrics()
        values = rows(0, 30_000)
        send(broker, name, values)
        assert read(one, len(values)) == values
        after = one.metrics()
        # One may have been on its way from before.
        assert after["fetch-total"] <= before["fetch-total"] + 1
        grown = after[READ] - before[READ]
        assert grown > 3 * SEGMENT_BYTES / 2, "more than one segment"
        assert after["bytes-consumed-total"] - before["bytes-consumed-total"] == grown
        assert after["records-lag-max"] == 0


def test_a_segment_that_may_grow_further_than_it_was_lent_is_read_from_memory_again(broker, name):
    with consumer(broker) as one:
        one.assign([(name, 0)])
        wait_for_memory(one, broker, name)
        change = ConfigEntry("segment.bytes", str(8 * SEGMENT_BYTES), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
        values = rows(0, 30_000)
        send(broker, name, values)
        assert read(one, len(values)) == values
        wait_for_memory(one, broker, name)


def test_reading_while_producing_loses_and_doubles_nothing(broker, name):
    count = 200_000
    values = rows(0, count, 40)

    def produce():
        with hr.Producer(broker.bootstrap_servers, headrace_datapath="auto", linger_ms=1) as producer:
            for first in range(0, count, 2_000):
                part = pa.table({"value": pa.array(values[first : first + 2_000], pa.binary())})
                producer.send_arrow(name, part)

    send(broker, name, [b"first"])
    thread = threading.Thread(target=produce)
    with consumer(broker) as one, consumer(broker, value_type="binary_view") as other:
        for reader in (one, other):
            reader.assign([(name, 0)])
        thread.start()
        found = {reader: [] for reader in (one, other)}
        deadline = time.monotonic() + 3 * SECONDS
        while any(len(got) <= count for got in found.values()):
            for reader in found:
                found[reader] += reader.poll(0.05)["value"].to_pylist()
            assert time.monotonic() < deadline
        thread.join()
        for reader, got in found.items():
            assert got[1:] == values
            assert reader.metrics()[READ] > 0


def test_seeks_and_pauses(broker, name):
    send(broker, name, rows(0, 30_000))
    with consumer(broker) as one:
        one.assign([(name, 0)])
        for start in (29_990, 3, 15_000, 29_999):
            one.seek((name, 0), start)
            assert read(one, 30_000 - start)[:5] == rows(start, 30_000 - start)[:5]
            assert one.position((name, 0)) == 30_000
        one.pause([(name, 0)])
        send(broker, name, rows(30_000, 10))
        assert one.poll(0.3).num_rows == 0
        one.resume([(name, 0)])
        assert read(one, 10) == rows(30_000, 10)
        assert one.metrics()[READ] > 0


def test_views_outlive_their_consumer_and_the_segment(broker, name):
    values = rows(0, 20_000, 500)
    batches = []
    with consumer(broker, value_type="binary_view") as one:
        one.assign([(name, 0)])
        wait_for_memory(one, broker, name)
        send(broker, name, values)
        while sum(batch.num_rows for batch in batches) < len(values):
            batches.append(one.poll(SECONDS))
    with hr.Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([name])
    gc.collect()
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    assert table["value"].to_pylist() == values


@pytest.mark.slow
def test_a_topic_that_is_deleted_is_named_and_others_go_on(broker, name):
    other = f"{name}-other"
    with consumer(broker, allow_auto_create_topics=False) as one:
        for topic in (name, other):
            send(broker, topic, [b"there"])
        one.assign([(name, 0), (other, 0)])
        for topic in (name, other):
            wait_for_memory(one, broker, topic)
        with hr.Admin(broker.bootstrap_servers) as admin:
            admin.delete_topics([name])
        deadline = time.monotonic() + SECONDS
        with pytest.raises(hr.KafkaError, match=name):
            while time.monotonic() < deadline:
                one.poll(0.5)
        send(broker, other, [b"after"])
        found = []
        while b"after" not in found and time.monotonic() < deadline + SECONDS:
            try:
                found += one.poll(1.0)["value"].to_pylist()
            except hr.KafkaError as error:
                assert error.topic == name  # noqa: PT017  (it may be told again)
        assert found == [b"after"]


@pytest.mark.slow
def test_a_group_shares_partitions_and_commits(broker, name):
    with hr.Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([hr.NewTopic(name, 4)])
    options = {"group_id": name, "value_type": "binary"}
    with hr.Producer(broker.bootstrap_servers) as producer:
        with consumer(broker, **options) as one:
            one.subscribe([name])
            for number in range(4):
                producer.send(name, b"a%d" % number, partition=number)
            assert sorted(read(one, 4)) == [b"a0", b"a1", b"a2", b"a3"]
            one.commit()
            with consumer(broker, **options) as other:
                other.subscribe([name])
                deadline = time.monotonic() + SECONDS
                while not (len(one.assignment()) == len(other.assignment()) == 2):
                    assert one.poll(0.1).num_rows + other.poll(0.1).num_rows == 0
                    assert time.monotonic() < deadline
                for number in range(4):
                    producer.send(name, b"b%d" % number, partition=number)
                assert sorted(read(one, 2) + read(other, 2)) == [b"b0", b"b1", b"b2", b"b3"]
                other.commit()
            one.commit()
        for number in range(4):
            producer.send(name, b"c%d" % number, partition=number)
        with consumer(broker, **options) as again:
            again.subscribe([name])
            assert sorted(read(again, 4)) == [b"c0", b"c1", b"c2", b"c3"]


def test_a_broker_that_is_killed_and_comes_back_is_read_on(tmp_path, name):
    with BrokerProcess(tmp_path / "data", "log.segment.bytes=1048576") as process:
        with consumer(process, "auto", reconnect_backoff_max_ms=200) as one:
            send(process, name, rows(0, 1_000))
            one.assign([(name, 0)])
            assert read(one, 1_000) == rows(0, 1_000)
            before = 0
            for life in range(1, 4):
                values = rows(life * 20_000, 20_000)
                send(process, name, values[:10_000])
                assert read(one, 10_000) == values[:10_000]
                process.stop(signal.SIGTERM) if life == 1 else process.kill()
                process.start()
                send(process, name, values[10_000:])
                assert read(one, 10_000) == values[10_000:]
                # A new link is made after a while.
                deadline = time.monotonic() + SECONDS
                while one.metrics()[READ] == before:
                    send(process, name, [b"again"])
                    assert read(one, 1) == [b"again"]
                    assert time.monotonic() < deadline
                before = one.metrics()[READ]


def test_a_broker_that_comes_back_with_memory_is_read_through_it(tmp_path, name):
    with BrokerProcess(tmp_path / "data", "headrace.direct=false") as process:
        send(process, name, [b"there"])
        with consumer(process, "auto", reconnect_backoff_max_ms=200) as one:
            one.assign([(name, 0)])
            assert read(one, 1) == [b"there"]
            process.stop()
            process.settings = []
            process.start()
            deadline = time.monotonic() + SECONDS
            while one.metrics()[READ] == 0:
                send(process, name, [b"again"])
                assert read(one, 1) == [b"again"]
                assert time.monotonic() < deadline


@pytest.mark.slow
def test_a_broker_that_shares_no_memory_is_read_over_tcp_or_is_an_error(name):
    with hr.Broker.start(headrace_direct=False) as broker:
        send(broker, name, [b"there"])
        with consumer(broker, "auto") as one:
            one.assign([(name, 0)])
            assert read(one, 1) == [b"there"]
            assert one.metrics()[READ] == 0
        with consumer(broker, "shm") as one:
            one.assign([(name, 0)])
            with pytest.raises(hr.KafkaError, match=r"headrace\.datapath"):
                for _ in range(20):
                    one.poll(1.0)
