"""Many more partitions and segments than the broker's process may have files open."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import headrace as hr
from tests.broker.process import BrokerProcess

DESCRIPTORS = 1024
PARTITIONS = 10_000
SEGMENTS = 5000


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def read_back(servers, topic):
    rows = hr.read(servers, topic).read_all()
    return sorted(zip(rows["partition"].to_pylist(), rows["value"].to_pylist(), strict=True))


@pytest.mark.slow
def test_ten_thousand_partitions_and_five_thousand_segments_with_a_thousand_descriptors(tmp_path):
    data = tmp_path / "data"
    written = range(0, PARTITIONS, 20)
    expected = {"wide": [(p, b"%d" % p) for p in written], "deep": []}
    with BrokerProcess(data, before=few_descriptors) as broker:
        servers = broker.bootstrap_servers
        with hr.Admin(servers) as admin:
            admin.create_topic("wide", PARTITIONS, 1)
            admin.create_topic("deep", 1, 1, {"segment.ms": "1"})
        with hr.Producer(servers) as producer:
            for p in written:
                producer.send("wide", b"%d" % p, partition=p)
        # Each record is a batch that is later than the one before by more than a segment may last.
        with hr.Producer(servers, batch_size=1) as producer:
            for n in range(SEGMENTS):
                producer.send("deep", b"%05d" % n, partition=0, timestamp=1_700_000_000_000 + 10 * n)
        expected["deep"] = [(0, b"%05d" % n) for n in range(SEGMENTS)]
        assert len(list((data / "deep-0").glob("*.log"))) == SEGMENTS
        for life in range(2):
            for topic, rows in expected.items():
                assert read_back(servers, topic) == rows, (life, topic)
            assert len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir())) < DESCRIPTORS
            assert broker.stop() == 0, broker.output.read_text()
            broker.start()
        with hr.Producer(servers) as producer:
            assert producer.send("wide", b"more", partition=0).result(30).offset == 1
        assert "cut" not in broker.output.read_text()
