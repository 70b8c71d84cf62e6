"""The broker's life: start, stop, restart, kill, and what it refuses."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import BrokerStartError, ConfigError, KafkaError
from tests.broker.process import BrokerProcess


def values(servers, topic):
    return hr.read(servers, topic).read_all()["value"].to_pylist()


def test_a_temporary_broker_leaves_nothing_behind(topic, tmp_path, monkeypatch):
    # Not where all tests have theirs.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with hr.Broker.start() as broker:
        assert broker.recovery == []
        assert len(list(tmp_path.glob("headrace-*"))) == 1
        servers = broker.bootstrap_servers
        with hr.Producer(servers) as producer:
            producer.send(topic, b"x").result(10)
    assert not broker.is_running
    assert list(tmp_path.iterdir()) == []
    host, port = servers.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=1)
    broker.stop()


def test_data_outlives_a_clean_stop(tmp_path, topic):
    with hr.Broker.start(tmp_path) as broker:
        with hr.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic(topic, 2, 1, {"retention.ms": "77777777"})
            admin.alter_group_offsets("g", {(topic, 1): 1})
            before = admin.describe_topics([topic])
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send(topic, b"one", partition=1).result(10)
    with hr.Broker.start(tmp_path) as broker:
        assert broker.recovery == []
        with hr.Admin(broker.bootstrap_servers) as admin:
            after = admin.describe_topics([topic])
            assert after[topic].topic_id == before[topic].topic_id
            assert len(after[topic].partitions) == 2
            assert admin.describe_topic_config(topic)["retention.ms"] == "77777777"
            assert admin.group_offsets("g") == {(topic, 1): 1}
        assert values(broker.bootstrap_servers, topic) == [b"one"]


def test_kill_9_with_a_torn_tail_loses_nothing_acknowledged(tmp_path, topic):
    with BrokerProcess(tmp_path / "data") as broker:
        with hr.Producer(broker.bootstrap_servers, batch_size=5000) as producer:
            futures = [producer.send(topic, b"%d" % i * 50) for i in range(2000)]
            acknowledged = [f.result(10).offset for f in futures]
            assert acknowledged == list(range(2000))
            with hr.Consumer(broker.bootstrap_servers, group_id="g") as consumer:
                consumer.commit({(topic, 0): 1234})
            assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    log = max(broker.data.glob(f"{topic}-0/*.log"))
    with log.open("ab") as file:
        file.write(log.read_bytes()[:700])
    with hr.Broker.start(broker.data) as again:
        (cut,) = again.recovery
        assert (cut.topic, cut.partition, cut.what, cut.start_offset) == (topic, 0, "cut", 2000)
        assert (cut.bytes, Path(cut.file)) == (700, log)
        assert len(Path(cut.moved_to).read_bytes()) == 700
        assert str(cut).startswith(f"{topic}-0: cut, offsets 2000 on: {log.name} lost 700 bytes, kept in {log.name}.")
        assert values(again.bootstrap_servers, topic) == [b"%d" % i * 50 for i in range(2000)]
        with hr.Admin(again.bootstrap_servers) as admin:
            assert admin.group_offsets("g") == {(topic, 0): 1234}
        with hr.Producer(again.bootstrap_servers) as producer:
            assert producer.send(topic, b"next").result(10).offset == 2000


def test_a_lost_state_file_is_refused_unless_it_is_to_be_taken_over(tmp_path, topic):
    data = tmp_path / "data"
    with hr.Broker.start(data) as broker, hr.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 2, config={"retention.ms": "-1"})
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send(topic, b"kept", partition=1).result(10)
    (data / "headrace-state.json").unlink()
    with pytest.raises(BrokerStartError, match=r"headrace-state\.json.*headrace\.adopt=true"):
        hr.Broker.start(data)
    with BrokerProcess(data, "headrace.adopt=true") as process:
        assert values(process.bootstrap_servers, topic) == [b"kept"]
        process.stop()
        assert f"with default settings: {topic}" in process.output.read_text()
    with hr.Broker.start(data) as broker:
        assert broker.adopted == []
    (data / "headrace-state.json").unlink()
    with hr.Broker.start(data, headrace_adopt=True) as broker:
        assert broker.adopted == [topic]


def test_a_fifo_in_the_data_folder_ends_the_start(tmp_path, topic):
    with hr.Broker.start(tmp_path) as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"kept").result(10)
    (snapshot,) = tmp_path.glob(f"{topic}-0/*.snapshot")
    kept = snapshot.read_bytes()
    snapshot.unlink()
    os.mkfifo(snapshot)
    with pytest.raises(BrokerStartError, match=snapshot.name):
        hr.Broker.start(tmp_path)
    snapshot.unlink()
    snapshot.write_bytes(kept)
    with hr.Broker.start(tmp_path) as broker:
        assert values(broker.bootstrap_servers, topic) == [b"kept"]


def test_one_broker_a_directory(tmp_path):
    with hr.Broker.start(tmp_path):
        with pytest.raises(BrokerStartError, match=f"{tmp_path}.*use"):
            hr.Broker.start(tmp_path)
        command = [sys.executable, "-m", "headrace.cli", "broker", "--port", "0", "--data-dir", str(tmp_path)]
        other = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert other.returncode == 1
        assert str(tmp_path) in other.stderr
    hr.Broker.start(tmp_path).stop()


def test_a_port_that_is_taken():
    with hr.Broker.start() as broker:
        port = int(broker.bootstrap_servers.split(":")[1])
        with pytest.raises(BrokerStartError, match=str(port)):
            hr.Broker.start(port=port)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"log\.segment\.bites.*log\.segment\.bytes"):
        hr.Broker.start(config={"log.segment.bites": 1})
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes"):
        hr.Broker.start(log_segment_bytes="large")


def test_a_folder_that_cannot_be_used(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(BrokerStartError, match=str(file)):
        hr.Broker.start(file)


def test_segments_roll_and_retention_deletes_the_oldest(tmp_path, topic):
    config = {"log.retention.check.interval.ms": 100}
    with hr.Broker.start(tmp_path, config=config) as broker:
        with hr.Admin(broker.bootstrap_servers) as admin, hr.Producer(broker.bootstrap_servers) as producer:
            admin.create_topic(topic, 1, 1, {"segment.bytes": "1048576", "retention.bytes": "2000000"})
            for i in range(60):
                producer.send(topic, b"%d" % i + b"x" * 100_000).result(10)
            deadline = time.monotonic() + 20
            seen = [-1, 0]
            # Until retention has begun, and has come to rest.
            while seen[-1] == 0 or seen[-1] != seen[-2]:
                assert time.monotonic() < deadline
                time.sleep(0.5)
                seen.append(admin.list_offsets({(topic, 0): "earliest"})[topic, 0].offset)
            start = seen[-1]
        rest = values(broker.bootstrap_servers, topic)
        assert 20 <= len(rest) <= 60 - start
        assert rest[-1].startswith(b"59x")


def test_a_full_disk_is_an_error_of_the_partition(tmp_path, topic):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    with BrokerProcess(tmp_path / "data", before=limit) as broker:
        options = {"delivery_timeout_ms": 4000, "request_timeout_ms": 2000, "retries": 2}
        with hr.Producer(broker.bootstrap_servers, **options) as producer:
            for i in range(20):
                producer.send(topic, b"%d" % i + b"x" * 10_000, partition=0).result(10)
            with pytest.raises(KafkaError, match=topic) as caught:
                for _ in range(20):
                    producer.send(topic, b"x" * 10_000, partition=0).result(10)
            assert caught.value.topic == topic
            other = producer.send(f"{topic}-other", b"fits").result(10)
            assert other.offset == 0
            producer.flush()
        kept = values(broker.bootstrap_servers, topic)
        assert [v[: len(b"%d" % i)] for i, v in enumerate(kept[:20])] == [b"%d" % i for i in range(20)]
        assert broker.stop() == 0
    with hr.Broker.start(broker.data) as again:
        assert values(again.bootstrap_servers, topic) == kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_cleanly(tmp_path, topic, number):
    with BrokerProcess(tmp_path / "data") as broker:
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send(topic, b"x").result(10)
        assert broker.stop(number) == 0
    assert broker.output.read_text().startswith(f"serving on {broker.bootstrap_servers} ")
    with hr.Broker.start(broker.data) as again:
        assert again.recovery == []
        assert values(again.bootstrap_servers, topic) == [b"x"]


def test_the_command_does_not_load_pyarrow():
    code = "import sys, headrace.cli.broker; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0
