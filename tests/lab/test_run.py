"""`headrace lab run` as a user calls it: what it leaves, and what it does when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyarrow import parquet

import headrace as hr
from headrace.cli import main
from headrace.errors import KafkaTimeoutError
from headrace.lab import bundle
from headrace.lab import cluster as cluster_module
from headrace.lab.histogram import merged
from tests.kafka import java
from tests.kafka.nodes import until

if TYPE_CHECKING:
    from pathlib import Path

DRIVERS = ("headrace", "confluent-kafka", "kafka-python")
CLIENTS = {"java": "kafka-clients"}
WORKLOAD = """
name: {name}
partitions: 4
messageSize: 40
messageDistributor: {{type: PARTITION_ZIPF, alpha: 1}}
producers: 2
consumers: 2
producerRateSchedule:
  segments: [{{rate: 2500, durationSeconds: 2}}, {{rate: 0, durationSeconds: 1}}]
warmupDurationSeconds: 0
testDurationSeconds: {seconds}
"""


def ended(process: subprocess.Popen[str], status: int, timeout: float = 100) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"not within {timeout} s: {(error.stdout or b'').decode()}", pytrace=False)
    if process.returncode != status:
        pytest.fail(f"status {process.returncode} in place of {status}\n{out}\n{err}", pytrace=False)
    assert "Traceback" not in err, err
    return out, err


def result(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    [folder] = (tmp_path / "out").iterdir()
    [found] = bundle.read(folder)
    return folder, found


def nothing_left(bootstrap: str, name: str) -> None:
    with hr.Admin(bootstrap) as admin:
        assert [topic for topic in admin.list_topics() if name in topic] == []
        assert [group.group_id for group in admin.list_groups() if name in group.group_id] == []


def running(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Waits until a run has printed its first second; gives its workers."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[0] == "1s":
            workers: list[psutil.Process] = psutil.Process(process.pid).children()
            return workers
    raise AssertionError(process.communicate())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "driver"),
    [
        *(("embedded_broker", driver) for driver in DRIVERS),
        pytest.param("apache_kafka", "headrace", marks=pytest.mark.kafka),
    ],
)
def test_every_record_there_and_back(request, lab, tmp_path, topic, broker, driver):
    cluster = request.getfixturevalue(broker)
    # A consumer that is thought dead on a busy machine costs records that come twice.
    text = WORKLOAD.format(name=topic, seconds=3) + "consumerConfig: {session.timeout.ms: 45000}\n"
    out, _ = ended(lab(text, "--driver", driver, bootstrap=cluster.bootstrap_servers), 0)
    folder, found = result(tmp_path)
    assert str(folder) in out
    assert (found["complete"], found["driver"], found["errors"]) == (True, driver, {})
    assert (found["sent"], found["due"], found["received"], found["foreign"]) == (5000, 5000, 5000, 0)
    assert found["publishMs"]["count"] == found["delayMs"]["count"] == 5000
    assert sum(found["receivedByPartition"].values()) == 5000
    assert found["receivedByPartition"][next(iter(found["receivedByPartition"]))] > 5000 * 0.4
    assert found["backlog"][-1] == 0
    series = parquet.read_table(folder / "series.parquet").to_pylist()
    for role in ("produce", "consume"):
        rows = [row for row in series if row["role"] == role]
        assert (sum(row["records"] for row in rows), sum(row["bytes"] for row in rows)) == (5000, 200_000)
    assert {row["member"] for row in series if row["role"] == "consume"} == {0, 1}
    assert (folder / "series.csv").read_text().count("\n") == len(series) + 1
    rows = (folder / "latency.hlog").read_text().splitlines()
    logged = merged(row.split(",")[-1] for row in rows if row.startswith("Tag=delivery"))
    assert logged.total == 5000
    assert rows[1] == f"#[StartTime: {found['begun']:.3f} (seconds since epoch)]"
    resolved = json.loads((folder / "resolved.json").read_text())
    assert (resolved["messageSize"], resolved["driver"]) == (40, driver)
    assert json.loads((folder / "hardware.json").read_text())["cores"] >= 1
    versions = json.loads((folder / "versions.json").read_text())
    assert versions["workers"]["producers-0"]["version"].startswith(CLIENTS.get(driver, driver))
    assert (folder / "report.html").stat().st_size > 1 << 20
    brokers = json.loads((folder / "brokers.json").read_text())
    [layout] = brokers["topics"].values()
    assert len(layout) == 4
    assert brokers["topicSettings"]["max.message.bytes"] == "1048588"
    assert "advertised.listeners" in brokers["brokerSettings"]["1"]
    assert brokers["finalizedFeatures"].get("share.version") == (1 if broker == "apache_kafka" else None)
    nothing_left(cluster.bootstrap_servers, topic)


@pytest.mark.slow
@pytest.mark.kafka
def test_two_of_the_cases_small(apache_kafka, lab, tmp_path, topic):
    case2, case5 = ((java.ROOT / "examples" / "lab" / f"case{number}.yaml").read_text() for number in (2, 5))
    bootstrap, arguments = apache_kafka.bootstrap_servers, ("--driver", "headrace", "--set", f"name={topic}")
    small = ("--set", "backlogRecords=20000", "--set", "dimensions.consumers=[2]")
    ended(lab(case2, *arguments, *small, "--out", str(tmp_path / "case2"), bootstrap=bootstrap), 0)
    [folder] = (tmp_path / "case2").iterdir()
    [found] = bundle.read(folder)
    assert (found["verdict"]["drained"], found["verdict"]["records"], found["received"]) == (True, 20_000, 20_000)
    assert "INFO headrace.lab.decisions: " in (folder / "logs" / "consumers-0-0.log").read_text()
    times = ("--set", "warmupDurationSeconds=0", "--set", "testDurationSeconds=3")
    ended(lab(case5, *arguments, *times, "--only", "*ZIPF*consumers=6", bootstrap=bootstrap), 0)
    _, found = result(tmp_path)
    # One record at a time, and only what was sent when they were there.
    assert found["received"] == found["sent"] >= 3 * 6 - 2
    assert found["polls"] - found["emptyPolls"] == found["received"]
    assert found["errors"] == {}
    nothing_left(bootstrap, topic)


@pytest.mark.soak
@pytest.mark.kafka
def test_java_drains_a_share_group(apache_kafka, lab, tmp_path, topic):
    text = f"name: {topic}\nmode: drain-backlog\ndriver: java\nbacklogRecords: 20_000\npartitions: 3\n"
    text += "consumerType: share\n"
    ended(lab(text, bootstrap=apache_kafka.bootstrap_servers), 0)
    _, found = result(tmp_path)
    assert (found["verdict"]["drained"], found["verdict"]["records"]) == (True, 20_000)


@pytest.mark.slow
def test_our_broker_has_no_share_groups_and_the_run_says_so(lab, tmp_path, topic):
    ended(lab(WORKLOAD.format(name=topic, seconds=3) + "consumerType: share\n"), 1)
    _, found = result(tmp_path)
    assert "groupConfig: the cluster does not take these settings of a group" in found["stoppedBy"]


@pytest.mark.slow
def test_a_campaign_has_a_folder_for_each_run(lab, tmp_path, topic, embedded_broker):
    text = f"name: {topic}\nproducerRate: 100\nwarmupDurationSeconds: 0\ntestDurationSeconds: 1\n"
    text += "partitions: 2\ndimensions: {consumers: [0, 1, 2], topics: [1, 2]}\n"
    arguments = ("--driver", "headrace,confluent-kafka", "--only", "consumers=[02],topics=2", "--set", "seed=7")
    ended(lab(text, *arguments), 0)
    [folder] = (tmp_path / "out").iterdir()
    found = bundle.read(folder)
    assert [(run["variation"], run["driver"]) for run in found] == [
        ("consumers=0,topics=2", "headrace"),
        ("consumers=0,topics=2", "confluent-kafka"),
        ("consumers=2,topics=2", "headrace"),
        ("consumers=2,topics=2", "confluent-kafka"),
    ]
    assert [run["received"] > 0 for run in found] == [False, False, True, True]
    nothing_left(embedded_broker.bootstrap_servers, topic)


def test_a_cluster_that_is_not_there(tmp_path, topic, monkeypatch, capsys):
    monkeypatch.setattr(cluster_module, "CALL_TIMEOUT_S", 1)
    (tmp_path / "w.yaml").write_text(WORKLOAD.format(name=topic, seconds=3))
    assert main(["lab", "run", str(tmp_path / "w.yaml"), "-b", "127.0.0.1:1", "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("headrace lab: ")
    assert "127.0.0.1:1" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def refuse(_name: str) -> None:
    raise KafkaTimeoutError("nobody answers")


@pytest.mark.parametrize(
    ("reported", "limit"), [({"share.delivery.count.limit": "7"}.copy, 7), (dict, None), (lambda: refuse(""), None)]
)
def test_how_often_records_are_given_out_is_known_or_not(monkeypatch, reported, limit):
    with cluster_module.Cluster("127.0.0.1:1") as cluster:
        admin = SimpleNamespace(describe_group_config=lambda _: reported(), close=cluster._admin.close)
        monkeypatch.setattr(cluster, "_admin", admin)
        assert cluster.deliveries_limit("g") == limit


def test_what_cannot_be_asked_is_a_sentence(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(cluster_module, "import_module", missing)
    with cluster_module.Cluster("127.0.0.1:1") as cluster:
        admin = SimpleNamespace(describe_topic_config=refuse, close=cluster._admin.close)
        monkeypatch.setattr(cluster, "_admin", admin)
        assert cluster.settings("t", [1]) == {
            "topicSettings": "nobody answers",
            "finalizedFeatures": "kafka-python is not installed, which asks for them",
            "brokerSettings": "confluent-kafka is not installed, which asks for them",
        }


@pytest.mark.slow
@pytest.mark.parametrize("driver", [*DRIVERS, pytest.param("java", marks=pytest.mark.kafka)])
def test_an_option_that_a_client_does_not_know(lab, tmp_path, topic, driver, embedded_broker):
    text = WORKLOAD.format(name=topic, seconds=3) + "consumerConfig: {no.such.option: 1}\n"
    ended(lab(text, "--driver", driver), 1)
    _, found = result(tmp_path)
    assert not found["complete"]
    assert "no.such.option" in found["stoppedBy"]
    nothing_left(embedded_broker.bootstrap_servers, topic)


@pytest.mark.slow
def test_a_worker_that_is_killed(lab, tmp_path, topic, embedded_broker):
    process = lab(WORKLOAD.format(name=topic, seconds=60))
    # The other one would be a member, and the lab would wait for its group to miss it.
    other, victim = running(process)
    victim.kill()
    out, _ = ended(process, 1)
    assert "was ended by signal 9" in out
    _, found = result(tmp_path)
    assert not found["complete"]
    assert "was ended by signal 9" in found["stoppedBy"]
    assert found["sent"] > 0
    assert not other.is_running()
    with hr.Admin(embedded_broker.bootstrap_servers) as admin:
        assert [name for name in admin.list_topics() if topic in name] == []


@pytest.mark.slow
def test_ctrl_c_leaves_a_partial_bundle_and_nothing_else(lab, tmp_path, topic, embedded_broker):
    process = lab(WORKLOAD.format(name=topic, seconds=60))
    workers = running(process)
    process.send_signal(signal.SIGINT)
    out, _ = ended(process, 130)
    assert "stopped by the user" in out
    folder, found = result(tmp_path)
    assert not folder.name.endswith(".partial")
    assert (found["complete"], found["stoppedBy"]) == (False, "the user")
    assert found["sent"] > 0
    assert parquet.read_table(folder / "series.parquet").num_rows > 0
    assert not any(worker.is_running() for worker in workers)
    nothing_left(embedded_broker.bootstrap_servers, topic)


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(lab, tmp_path, topic, embedded_broker):
    process = lab(WORKLOAD.format(name=topic, seconds=60))
    workers = running(process)
    for worker in workers:
        worker.suspend()
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    until(lambda: "once more to stop at once" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    assert not any(worker.is_running() for worker in workers)
    [folder] = (tmp_path / "out").iterdir()
    assert folder.name.endswith(".partial")
    with hr.Admin(embedded_broker.bootstrap_servers) as admin:
        assert [name for name in admin.list_topics() if topic in name] == []


@pytest.mark.slow
def test_no_worker_outlives_the_lab(lab, topic):
    process = lab(WORKLOAD.format(name=topic, seconds=60))
    workers = running(process)
    process.kill()
    until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))


def test_wrong_usage(lab, tmp_path, topic):
    assert "--set partition" in ended(lab("topics: 1", "--set", "partition=x"), 2)[1]
    assert "unknown driver 'rabbit'" in ended(lab("topics: 1", "--driver", "rabbit"), 2)[1]
    assert "is not a number of brokers" in ended(lab("topics: 1", "--kafka", "0"), 2)[1]
    assert "unknown mode" in ended(lab("topics: 1", "--mode", "walk"), 2)[1]
    assert "no variation is called so" in ended(lab(f"name: {topic}", "--only", "x"), 1)[1]
    assert not (tmp_path / "out").exists()


def test_brokers_that_cannot_be_started(tmp_path):
    (tmp_path / "w.yaml").write_text("topics: 1")
    environment = {**os.environ, "HEADRACE_KAFKA_CLASSPATH": "/none/kafka.jar"}
    command = [sys.executable, "-m", "headrace.cli", "lab", "run", str(tmp_path / "w.yaml"), "--kafka", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("headrace lab: --kafka 1: /none/kafka.jar is gone")


def test_the_command_tells_its_drivers():
    command = [sys.executable, "-m", "headrace.cli", "lab", "drivers"]
    environment = {**os.environ, "HEADRACE_LAB_CLASSPATH": "x", "JAVA_HOME": "/none"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    reported = done.stdout.splitlines()
    assert [line.split()[0] for line in reported] == ["headrace", "confluent-kafka", "kafka-python", "java"]
    assert reported[3].split(maxsplit=1)[1] == "the driver java needs a JDK 17 or newer on PATH or in JAVA_HOME"
    assert reported[0].split()[1:] == ["headrace", hr.__version__]
    assert [line.endswith("(share groups: preview)") for line in reported] == [False, True, False, False]
