"""Many more partitions and segments than the broker's process may have files open."""

from __future__ import annotations

import contextlib
import resource
import struct
import time
from pathlib import Path

import pytest

import headrace as hr
from tests.broker.process import BrokerProcess
from tests.broker.raw import Connection, request, text

DESCRIPTORS = 1024
PARTITIONS = 10_000
SEGMENTS = 5000


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def read_back(servers, topic):
    rows = hr.read(servers, topic).read_all()
    return sorted(zip(rows["partition"].to_pylist(), rows["value"].to_pylist(), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_partitions_and_five_thousand_segments_with_a_thousand_descriptors(tmp_path):
    data = tmp_path / "data"
    written = range(0, PARTITIONS, 3)
    expected = {"wide": [(p, b"%d" % p) for p in written], "deep": []}
    with BrokerProcess(data, before=few_descriptors) as broker:
        servers = broker.bootstrap_servers
        with hr.Admin(servers) as admin:
            admin.create_topic("wide", PARTITIONS, 1)
            admin.create_topic("deep", 1, 1, {"segment.ms": "1"})
        with hr.Producer(servers) as producer:
            for p in written:
                producer.send("wide", b"%d" % p, partition=p)
            producer.flush()
        # Each record is a batch that is later than the one before by more than a segment may last.
        with hr.Producer(servers, batch_size=1) as producer:
            for n in range(SEGMENTS):
                producer.send("deep", b"%05d" % n, partition=0, timestamp=1_700_000_000_000 + 10 * n)
            producer.flush()
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


READERS = 4
EACH = 250


@pytest.mark.slow
def test_readers_that_do_not_read_keep_no_files_from_others(tmp_path):
    """Together they ask for all files that the process may have open, none of them small, and then read nothing."""
    values = [b"%04d" % p * 15_000 for p in range(READERS * EACH)]
    with BrokerProcess(tmp_path / "data", before=few_descriptors) as broker, contextlib.ExitStack() as hostile:
        servers = broker.bootstrap_servers
        with hr.Admin(servers) as admin:
            admin.create_topic("fat", len(values), 1)
        with hr.Producer(servers) as producer:
            for p, value in enumerate(values):
                producer.send("fat", value, partition=p)
        body = struct.pack(">iiiib", -1, 0, 1, 1 << 30, 0) + struct.pack(">i", 1) + text(b"fat")
        for first in range(0, len(values), EACH):
            reader = hostile.enter_context(Connection(servers))
            named = b"".join(struct.pack(">iqi", p, 0, 1 << 30) for p in range(first, first + EACH))
            reader.socket.sendall(request(1, 4, body + struct.pack(">i", EACH) + named))
            assert len(reader.socket.recv(1)) == 1
        assert read_back(servers, "fat") == list(enumerate(values))
        with hr.Producer(servers) as producer:
            for future in [producer.send("fat", b"more", partition=p) for p in range(len(values))]:
                assert future.result(30).offset == 1


@pytest.mark.slow
def test_a_broker_without_descriptors_says_so_and_when_it_is_over(tmp_path):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with BrokerProcess(tmp_path / "data", before=few) as broker:
        servers = broker.bootstrap_servers
        with contextlib.ExitStack() as opened:
            for _ in range(80):
                opened.enter_context(Connection(servers))
            wait_for(lambda: "cannot accept connections: " in broker.output.read_text())
        said = broker.output.read_text()
        assert "(ulimit -n 64)" in said
        assert said.count("cannot accept connections: ") == 1
        with hr.Admin(servers) as admin:
            admin.create_topic("t", 1)
        wait_for(lambda: "connections are accepted again" in broker.output.read_text())


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
