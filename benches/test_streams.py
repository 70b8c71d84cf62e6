"""Streams, small: `make bench ARGS='--only streams'` has the full size."""

from __future__ import annotations

import asyncio

import pytest

from benches import streams
from benches.peers import aio_kafka, raw_produce

RECORDS = 40_000


@pytest.fixture
def where(cluster, topic):
    cluster.create_topic(topic, streams.PARTITIONS)
    options = {"size": streams.SIZE, "batch_bytes": 16 << 10}
    raw_produce.measure(cluster.bootstrap_servers, topic, streams.PARTITIONS, RECORDS, **options)
    return cluster.bootstrap_servers, topic, streams.PARTITIONS, RECORDS


@pytest.mark.parametrize("values", [False, True], ids=["batches", "values"])
def test_stream_by_partition(benchmark, where, values):
    sample = benchmark.pedantic(lambda: asyncio.run(streams.consume(*where, values=values)), rounds=3, warmup_rounds=1)
    assert 0 < sample.records < RECORDS


@pytest.mark.parametrize("lists", [False, True], ids=["records", "lists"])
def test_aiokafka_for_comparison(benchmark, where, lists):
    sample = benchmark.pedantic(lambda: asyncio.run(aio_kafka.consume(*where, lists=lists)), rounds=1)
    assert 0 < sample.records < RECORDS
