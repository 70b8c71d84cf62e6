"""The runners of the peers, tiny: that each reports what it did, before anybody believes a ratio."""

from __future__ import annotations

import json

import pytest

from benches import harness
from benches.harness import compare, in_turns, paired
from benches.peers import confluent, raw_fetch, raw_produce
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Sample
from tests.kafka.cluster import Cluster


def sample(rate: float, cpu: float = 1.0) -> Sample:
    return Sample(records=1_000_000, bytes=0, seconds=1_000_000 / rate, cpu_seconds=cpu)


def test_pairs_run_in_turns_and_the_warm_up_is_thrown_away():
    order = []

    def runner(name: str, rate: float):
        def run() -> Sample:
            order.append(name)
            return sample(rate)

        return run

    ours, peer = in_turns([runner("ours", 3e6), runner("peer", 1e6)], 2)
    assert order == ["peer", "ours", "ours", "peer", "peer", "ours"]
    assert (len(ours), len(peer)) == (2, 2)


def test_ratio_is_the_median_of_the_pairs_not_the_ratio_of_the_medians():
    ours = [sample(rate) for rate in (1e6, 10e6, 100e6)]
    peer = [sample(rate) for rate in (1e6, 1e6, 50e6)]
    row = compare("x", ours, peer, bar=2)
    assert row.ratio == 2
    assert row.met is True
    assert "2x (1-10)" in harness.table([row])


def test_bar_on_our_own_figure():
    row = paired("start", [60, 40, 80], [4000], "ms", bar_on_ours=50)
    assert row.met is False
    assert (row.ours, row.ratio) == (60, 0.015)
    assert "<= 50 ms MISSED" in harness.table([row])


def test_bar_on_a_ratio_where_less_is_better():
    dear, cheap = ([sample(1e6, cpu)] for cpu in (4.0, 1.0))
    row = harness.compare_cpu("cost", cheap, dear, bar_below=1 / 3)
    assert (row.ours, row.peer, row.ratio, row.met) == (1.0, 4.0, 0.25, True)
    row = harness.compare_cpu("cost", dear, cheap, bar_below=1 / 3)
    assert row.met is False
    assert "<= 0.333x MISSED" in harness.table([row])


def test_the_kernels_part_is_told_apart():
    whole = Sample(records=2_000_000, bytes=0, seconds=1.0, cpu_seconds=4.0, kernel_seconds=1.0)
    assert Sample.parse(whole.line()) == whole
    row = harness.compare_cpu("kernel", [whole], [whole], [whole], kernel=True)
    assert (row.ours, row.limit) == (0.5, 0.5)


def test_results_file_has_the_rows(tmp_path):
    path = tmp_path / "results" / "latest.json"
    harness.save([compare("x", [sample(2e6)], [sample(1e6)], [sample(4e6)])], path)
    row = json.loads(path.read_text())["rows"][0]
    assert {name: row[name] for name in ("name", "ours", "peer", "ratio", "limit", "unit")} == {
        "name": "x",
        "ours": 2,
        "peer": 1,
        "ratio": 2,
        "limit": 4,
        "unit": "M records/s",
    }


@pytest.mark.kafka
def test_runners_count_what_they_do(apache_kafka, topic):
    bootstrap = Cluster("apache", apache_kafka.bootstrap_servers).create_topic(topic) and apache_kafka.bootstrap_servers
    options = {"size": 100, "batch_bytes": 16 << 10}
    with JavaPeer() as java:
        assert raw_produce.measure(bootstrap, topic, 1, 20_000, **options).records == 20_000
        assert confluent.produce(bootstrap, topic, 10_000, **options).records == 10_000
        assert java.produce(bootstrap, topic, 10_000, **options).records == 10_000
        assert raw_fetch.count(bootstrap, topic) == 40_000
        # The first batch of a consumer is not counted: only its size is unknown.
        for read in (
            java.consume(bootstrap, topic, 1, 40_000),
            confluent.consume(bootstrap, topic, 1, 40_000, confluent.to_arrow),
            raw_fetch.measure(bootstrap, topic, 1, 40_000),
        ):
            assert 0 <= read.records < 40_000


@pytest.mark.kafka
def test_raw_producer_says_when_the_broker_refuses(apache_kafka, topic):
    Cluster("apache", apache_kafka.bootstrap_servers).create_topic(topic, config={"max.message.bytes": "1000"})
    with pytest.raises(RuntimeError, match=r"errors \[10\]"):
        raw_produce.measure(apache_kafka.bootstrap_servers, topic, 1, 10_000, size=100, batch_bytes=16 << 10)
