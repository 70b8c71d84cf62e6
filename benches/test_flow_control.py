"""Pausing, resuming, and many idle partitions, small: `make bench` has the full sizes and the rates."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benches import flow, idle_paused, pause, resume
from benches.flow import Run
from benches.peers import raw_fetch, raw_produce
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Sample
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.wiretap import Wiretap

RECORDS = 2000


@pytest.fixture(scope="module")
def tapped() -> Iterator[tuple[Cluster, Wiretap]]:
    with pause.tapped(quick=True) as both:
        yield both


def fill(cluster: Cluster, topic: str, partitions: int, records: int, size: int) -> tuple[str, str]:
    cluster.create_topic(topic, partitions)
    raw_produce.measure(cluster.bootstrap_servers, topic, partitions, records, size=size, batch_bytes=16 << 10)
    return cluster.bootstrap_servers, topic


def test_a_draw_ends_with_the_first_partition_that_is_used_up_or_with_the_last():
    short, whole = (pause.Draw(100, to_the_end=to_the_end) for to_the_end in (False, True))
    counts = []
    for draw in (short, whole):
        count = 0
        while (kept := draw.next()) is not None:
            draw.left[kept] -= 1
            count += 1
        counts.append(count)
    assert counts[0] < 100
    assert counts[1] == 100


def test_readers_are_free_when_their_work_is_done(monkeypatch):
    clock = itertools.count(0, 0.02)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    readers = flow.Readers(flow.PARTITIONS * 10)
    readers.take(0, 4)
    readers.take(1, 4)
    assert readers.free() == [0]
    assert readers.paused == {1}
    assert [readers.free(), readers.free(), readers.free()] == [[], [1], []]
    assert readers.left[:3] == [6, 6, 10]


def test_the_picture_names_every_client(tmp_path):
    sample = Sample(10, 0, 1.0, 0.0)
    runs = [Run(name, sample, 7, [(0.5, 3.0), (1.0, 10.0)]) for name in ("headrace", "Java & co")]
    flow.draw(runs, 9.5, tmp_path / "flow.svg")
    tree = ET.parse(tmp_path / "flow.svg")  # noqa: S314 -- our own file
    texts = {element.text for element in tree.iter() if element.tag.endswith("text")}
    assert {"headrace", "Java & co", "10 MB, 7 Fetches"} <= texts


@pytest.mark.kafka
def test_each_client_reads_all_of_it_with_pauses_and_the_tap_counts_it(tapped, topic):
    cluster, tap = tapped
    where = fill(cluster, topic, pause.PARTITIONS, RECORDS, 100)
    held = pause.log_bytes(*where)
    limits = (50, 0.0, RECORDS)
    with JavaPeer() as java:
        for run in (pause.ours, pause.confluent, partial(_java, java)):
            tap.take()
            assert run(*where, limits).records == RECORDS
            traffic = tap.take()
            assert traffic.received >= held
            assert 0 < traffic.fetches < traffic.requests
        assert 0 < pause.ours(*where, (1, 0.2, RECORDS)).records <= RECORDS


def _java(java: JavaPeer, bootstrap: str, topic: str, limits: pause.Limits) -> Sample:
    return java.pause(bootstrap, topic, pause.PARTITIONS, limits)


@pytest.mark.kafka
def test_each_client_reads_all_of_it_with_slow_and_fast_readers(tapped, topic):
    cluster, tap = tapped
    where = fill(cluster, topic, flow.PARTITIONS, RECORDS, flow.SIZE)
    with JavaPeer() as java:
        for run in (flow.ours, flow.confluent, lambda b, t, n: java.flow(b, t, flow.PARTITIONS, n)):
            done = flow.measure(tap, "client", RECORDS, partial(run, *where, RECORDS))
            assert done.received * 1e6 >= RECORDS * flow.SIZE
            assert done.fetches > 0


@pytest.mark.kafka
def test_a_resumed_partition_delivers(apache_kafka, topic):
    where = fill(Cluster("apache", apache_kafka.bootstrap_servers), topic, 2, 2, 100)
    assert len(resume.raw(*where, 2)) == 2
    assert len(resume.ours(*where, 2)) == 2
    assert raw_fetch.count(*where, 1) == 3
    with JavaPeer() as java:
        assert java.resume(*where, 1) > 0


@pytest.mark.kafka
def test_idle_partitions_stay_paused(apache_kafka, topic):
    cluster = Cluster("apache", apache_kafka.bootstrap_servers)
    where = fill(cluster, topic, 1, RECORDS, 100)
    idle = cluster.create_topic(f"{topic}-idle", idle_paused.IDLE)
    assert 0 < idle_paused.consume(*where, RECORDS, idle).records < RECORDS
    assert 0 < idle_paused.consume(*where, RECORDS, None).records < RECORDS
