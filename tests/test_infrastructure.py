"""The fixtures themselves: if these fail, believe no other test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka import java
from tests.kafka.apache import ApacheKafka, StartError, scratch_folder, serves
from tests.kafka.cluster import Cluster

pytestmark = pytest.mark.kafka

MODULE = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def shared():
    with pathlib.Path("made").open("a") as made:
        made.write(f"{pathlib.Path(__file__).stem} {os.environ['PYTEST_XDIST_WORKER']}\\n")

@pytest.mark.parametrize("number", range(6))
def test_it(shared, number): ...
"""


def test_what_a_file_shares_is_made_once_however_many_processes_there_are(tmp_path):
    folder = tmp_path / "tests"
    (folder / "spark").mkdir(parents=True)
    names = ["test_a", "test_b", "spark/test_c", "spark/test_d"]
    for name in names:
        (folder / f"{name}.py").write_text(MODULE)
    done = run(folder)
    assert "24 passed" in done.stdout, done.stdout + done.stderr
    made = dict(line.split() for line in (tmp_path / "made").read_text().splitlines())
    assert len((tmp_path / "made").read_text().splitlines()) == len(made) == len(names)
    assert made["test_c"] == made["test_d"]


DIES = """
import os, pathlib, signal, time

def test_first(): ...

def test_dies():
    time.sleep(1)
    if not pathlib.Path("died").exists():
        pathlib.Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

def test_last(): ...
"""


def test_a_run_ends_though_a_process_of_it_dies(tmp_path):
    """As when memory is short. The others have ended by then, and the dead one has finished files before."""
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("test_a", "test_b", "test_c", "test_d"):
        (folder / f"{name}.py").write_text("".join(f"def test_{number}(): ...\n" for number in range(4)))
    (folder / "test_e.py").write_text(DIES)
    done = run(folder)
    assert "crashed while running 'tests/test_e.py::test_dies'" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 19 passed" in done.stdout


WHERE = """
import os, pathlib

def test_it(apache_kafka):
    assert apache_kafka.data.is_dir()
    with pathlib.Path("where").open("a") as where:
        where.write(f"{apache_kafka.bootstrap_servers} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


def test_several_processes_have_one_apache_kafka(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("test_a", "test_b"):
        (folder / f"{name}.py").write_text(WHERE)
    done = run(folder)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    where = [line.split() for line in (tmp_path / "where").read_text().splitlines()]
    assert len({worker for _, worker in where}) == 2
    assert len({servers for servers, _ in where}) == 1
    assert not serves(int(where[0][0].split(":")[1])), "it ends with the run"
    done = run(folder, {java.CLASSPATH_VARIABLE: str(tmp_path / "gone.jar")})
    assert "2 errors" in done.stdout, done.stdout + done.stderr
    assert f"MissingError: {tmp_path / 'gone.jar'} is gone" in done.stdout


def run(folder: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a folder in two processes, with these fixtures and without this project's settings."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.kafka.fixtures", "--rootdir", str(folder.parent)]
    command += ["-c", os.devnull, "--import-mode=importlib", "-n", "2", "--dist", "loadfile", str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(java.ROOT), **(environment or {})}
    return subprocess.run(
        command, cwd=folder.parent, capture_output=True, text=True, timeout=100, check=False, env=variables
    )


def test_apache_kafka_serves_a_stock_client(apache_kafka, topic):
    cluster = Cluster("apache", apache_kafka.bootstrap_servers)
    cluster.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"value", key=b"key", partition=1)
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 1, 0)])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert (message.key(), message.value(), message.offset()) == (b"key", b"value", 0)


def test_dump_log_segments_reads_what_was_produced(apache_kafka, topic):
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers})
    Cluster("apache", apache_kafka.bootstrap_servers).create_topic(topic)
    producer.produce(topic, b"hello-from-the-log")
    assert producer.flush(10) == 0
    dumped = java.dump_log_segments(*(apache_kafka.data / f"{topic}-0").glob("*.log"))
    assert "payload: hello-from-the-log" in dumped
    assert "isvalid: true" in dumped


def test_java_tool_failure_names_the_tool_and_what_it_said(apache_kafka):
    with pytest.raises(java.ToolError, match=r"(?s)TopicCommand ended with 1.*nope"):
        java.run(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", apache_kafka.bootstrap_servers, "--describe", "--topic", "nope"),
        )


def test_own_broker_takes_settings_and_a_kill_keeps_its_data(own_apache_kafka):
    kafka = own_apache_kafka(auto_create_topics_enable="false")
    assert "auto.create.topics.enable=false" in (kafka.directory / "server.properties").read_text()
    port = kafka.port
    kafka.kill()
    assert not serves(port, timeout=0.2)
    assert (kafka.data / "meta.properties").exists()
    kafka.restart()
    assert serves(port)


def test_wrong_setting_says_what_kafka_said():
    kafka = ApacheKafka(log_retention_ms="soon")
    with pytest.raises((StartError, java.ToolError), match=r"log\.retention\.ms"):
        kafka.start()
    assert not kafka.directory.exists()


def test_broker_dies_with_the_process_that_started_it(tmp_path, monkeypatch):
    # Whoever makes a folder among all tests' own removes that of a process that is gone.
    monkeypatch.setenv("HEADRACE_SCRATCH", str(tmp_path))
    program = (
        "from tests.kafka.apache import ApacheKafka\n"
        "kafka = ApacheKafka().start()\n"
        "print(kafka.port, kafka.directory, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=java.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout.split()
    port, directory = int(printed[0]), Path(printed[1])
    deadline = time.monotonic() + 10
    while serves(port, timeout=0.2):
        assert time.monotonic() < deadline, "Apache Kafka outlived its parent"
        time.sleep(0.05)
    # Nobody was left to clean up; whoever comes next does, and touches nothing of those who are still here.
    assert directory.exists()
    ours = scratch_folder("test")
    assert not directory.exists()
    another = scratch_folder("test")
    assert ours.exists()
    ours.rmdir()
    another.rmdir()
