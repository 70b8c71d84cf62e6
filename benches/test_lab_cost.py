"""The lab's own cost, small: `make bench ARGS='--only lab'` has the full size, and the same clients without the lab."""

from __future__ import annotations

import pytest

from benches import lab_cost

RECORDS = 40_000
PARTITIONS = 3


@pytest.mark.parametrize("driver", list(lab_cost.BARE))
def test_lab_produces_and_consumes(benchmark, cluster, topic, driver):
    bootstrap = cluster.bootstrap_servers
    cluster.create_topic(topic, PARTITIONS)
    work = lab_cost.workload(driver, lab_cost.SIZE, PARTITIONS, 16 << 10)
    assert lab_cost.produce(bootstrap, topic, driver, work, RECORDS).records == RECORDS
    where = (bootstrap, topic, driver, work, RECORDS)
    sample = benchmark.pedantic(lab_cost.consume, where, rounds=2, warmup_rounds=1)
    assert 0 < sample.records < RECORDS
