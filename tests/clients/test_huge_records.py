"""Records larger than every limit of a consumer come all the same (KIP-74), and hold nobody else up."""

from __future__ import annotations

import random
import time

import pytest

import headrace as hr

HUGE = 5 << 20
BUFFER = 1 << 20
LIMITS = {
    "fetch_buffer_bytes": BUFFER,
    "max_partition_fetch_bytes": 1000,
    "fetch_max_bytes": 1000,
    "auto_offset_reset": "earliest",
}


def noise(seed):
    """A value that no codec makes small."""
    return random.Random(seed).randbytes(HUGE)


@pytest.fixture
def written(cluster, topic):
    """Writes (partition, value) of a topic of two partitions, each in a batch of its own."""
    cluster.create_topic(topic, 2, {"max.message.bytes": str(2 * HUGE)})

    def write(rows, **options):
        with hr.Producer(cluster.bootstrap_servers, max_request_size=2 * HUGE, linger_ms=0, **options) as producer:
            for partition, value in rows:
                producer.send(topic, value, partition=partition).result(30)

    return write


def read(consumer, count):
    """Values by partition, in order."""
    values = {0: [], 1: []}
    deadline = time.monotonic() + 60
    while sum(len(one) for one in values.values()) < count:
        assert time.monotonic() < deadline
        batch = consumer.poll(1.0)
        for partition, value in zip(batch["partition"].to_pylist(), batch["value"].to_pylist(), strict=True):
            values[partition].append(value)
    return values


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("value_type", ["binary", "binary_view"])
def test_records_over_every_limit_come_in_order_among_small_ones(cluster, topic, written, codec, value_type):
    first = [b"a", noise(1), b"b", noise(2), noise(3), b"c"]
    second = [b"d", noise(4), b"e"]
    written([(0, value) for value in first] + [(1, value) for value in second], compression_type=codec)
    with hr.Consumer(cluster.bootstrap_servers, value_type=value_type, **LIMITS) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert read(consumer, len(first) + len(second)) == {0: first, 1: second}
        assert consumer.metrics()["fetch-cache-bytes"] == 0
        assert consumer.metrics()["fetch-cache-bytes-discarded-total"] == 0
    rows = hr.read(cluster.bootstrap_servers, topic, **{**LIMITS, "auto_offset_reset": "none"})
    rows = rows.read_all().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["value"].to_pylist() == first + second


def test_a_record_over_the_limit_that_lies_paused_keeps_nobody_from_being_read(cluster, topic, written):
    written([(0, b"a"), (0, noise(1)), (0, b"b")])
    with hr.Consumer(cluster.bootstrap_servers, **LIMITS) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert read(consumer, 1) == {0: [b"a"], 1: []}
        deadline = time.monotonic() + 60
        while consumer.metrics()["fetch-cache-bytes"] < HUGE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        consumer.pause([(topic, 0)])
        # More than the whole buffer, so that it goes through it.
        small = [b"%d" % at * 1000 for at in range(1000)]
        with hr.Producer(cluster.bootstrap_servers) as producer:
            for value in small:
                producer.send(topic, value, partition=1)
        assert read(consumer, len(small)) == {0: [], 1: small}
        assert consumer.metrics()["fetch-cache-bytes"] >= HUGE, "it is kept"
        consumer.resume([(topic, 0)])
        with hr.Producer(cluster.bootstrap_servers) as producer:
            producer.send(topic, b"last", partition=1).result(30)
        assert read(consumer, 3) == {0: [noise(1), b"b"], 1: [b"last"]}
        assert consumer.metrics()["fetch-cache-bytes-discarded-total"] == 0
