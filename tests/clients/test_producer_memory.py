"""Where a producer's batches keep their bytes: both allocation strategies, full buffers, many threads (KIP-1332)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ConfigError, KafkaTimeoutError

if TYPE_CHECKING:
    from pathlib import Path

STRATEGIES = ["full", "incremental"]
TOPIC = "memory"


def written(folder: Path, strategy: str, codec: str, batch_size: int) -> bytes:
    """The log of one partition after the same rows went through a producer with this strategy."""
    rows = 3000
    table = pa.table(
        {
            "key": pa.array([b"k%d" % n for n in range(rows)], pa.binary()),
            "value": pa.array([b"%05d" % n * (n % 700) for n in range(rows)], pa.binary()),
            "partition": pa.array([0] * rows, pa.int32()),
            "timestamp": pa.array([1_700_000_000_000 + n for n in range(rows)], pa.int64()),
        }
    )
    options = {"batch_size": batch_size, "buffer_memory_allocation_strategy": strategy, "compression_type": codec}
    with hr.Broker.start(folder) as broker:
        with hr.Producer(broker.bootstrap_servers, linger_ms=60_000, enable_idempotence=False, **options) as producer:
            producer.send_arrow(TOPIC, table)
            producer.send(TOPIC, b"z" * 300_000, partition=0, timestamp=1_700_000_009_000)
            producer.flush()
    (log,) = folder.glob(f"{TOPIC}-0/*.log")
    return log.read_bytes()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("batch_size", [5_000, 131_072])
def test_both_strategies_write_the_same_bytes(tmp_path, codec, batch_size):
    logs = [written(tmp_path / strategy, strategy, codec, batch_size) for strategy in STRATEGIES]
    assert len(logs[0]) > 5_000
    assert logs[0] == logs[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_full_buffer_slows_down_and_loses_nothing(cluster, topic, strategy, codec):
    """Rows for three partitions, arrow batches and single records from several threads, through 200 kB."""
    cluster.create_topic(topic, 3)
    table = pa.table(
        {
            "value": pa.array([b"%04d" % n + b"x" * 1000 for n in range(2000)], pa.binary()),
            "partition": pa.array([n * 7 % 3 for n in range(2000)], pa.int32()),
        }
    )
    options = {"buffer_memory": 200_000, "batch_size": 16_384, "compression_type": codec}
    with hr.Producer(cluster.bootstrap_servers, buffer_memory_allocation_strategy=strategy, **options) as producer:

        def one_by_one(name: int) -> None:
            for n in range(300):
                producer.send(topic, b"%d:%03d" % (name, n) + b"y" * 500, partition=name)

        threads = [threading.Thread(target=one_by_one, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        assert producer.send_arrow(topic, table).result(60) == 2000
        for thread in threads:
            thread.join(60)
        producer.flush()
    got = hr.read(cluster.bootstrap_servers, topic).read_all()
    got = got.sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert got.num_rows == 2900
    for partition in range(3):
        here = [row["value"] for row in got.to_pylist() if row["partition"] == partition]
        rows = [value[:4] for value in here if b":" not in value[:4]]
        assert rows == [b"%04d" % n for n in range(2000) if n * 7 % 3 == partition]
        singles = [value[:5] for value in here if value[1:2] == b":"]
        assert singles == [b"%d:%03d" % (partition, n) for n in range(300)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_memory_for_max_block_ms_is_an_error_that_names_it(strategy):
    """Nobody answers on the port, but the topic's metadata is known from a broker that has gone since."""
    broker = hr.Broker.start()
    options = {"buffer_memory": 70_000, "batch_size": 16_384, "max_block_ms": 800}
    producer = hr.Producer(broker.bootstrap_servers, buffer_memory_allocation_strategy=strategy, **options)
    try:
        producer.send(TOPIC, b"first").result(10)
        broker.stop()
        with pytest.raises(KafkaTimeoutError, match=r"buffer\.memory"):
            for _ in range(100):
                producer.send(TOPIC, b"x" * 5_000)
    finally:
        with pytest.raises(KafkaTimeoutError):
            producer.close(timeout=0.5)


def test_an_unknown_strategy_is_told():
    with pytest.raises(ConfigError, match=r"buffer\.memory\.allocation\.strategy.*full.*incremental"):
        hr.Producer("127.0.0.1:1", buffer_memory_allocation_strategy="lazy")


@pytest.mark.parametrize("share", [0, 1.5, "half", "-0.5"])
def test_a_share_that_is_none_is_told(share):
    with pytest.raises(ConfigError, match=r"buffer.memory.broker.share.*a decimal number above 0 and at most 1"):
        hr.Producer("127.0.0.1:1", buffer_memory_broker_share=share)


def test_metrics_tell_how_much_memory_waits_for_each_broker(cluster, topic):
    options = {"buffer_memory_broker_share": 0.25, "linger_ms": 60_000, "batch_size": 16_384}
    with hr.Producer(cluster.bootstrap_servers, options) as producer:
        producer.send(topic, b"the first record waits for the topic, and counts for no broker")
        producer.flush(10)
        producer.send(topic, b"x" * 1000)
        held = {name: value for name, value in producer.metrics().items() if name.startswith("buffer-node-")}
        assert list(held.values()) == [16_384], "one broker, one batch"
        producer.flush(10)
        assert not any(name.startswith("buffer-node-") for name in producer.metrics())
