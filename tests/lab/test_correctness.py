"""`headrace lab run --mode correctness`: real clients, crashes, and restarts."""

from __future__ import annotations

import json

import pytest
from pyarrow import parquet

from headrace.lab import bundle
from headrace.lab.histogram import merged
from tests.lab.test_run import ended, nothing_left, result

WORKLOAD = """
name: {name}
mode: correctness
partitions: 3
messageSize: 60
messageDistributor: PINNED_PARTITIONS
producers: 2
consumers: 2
workers: 2
producerRate: 600
consumerConfig: {{session.timeout.ms: 6000, heartbeat.interval.ms: 1000, max.poll.records: 50}}
warmupDurationSeconds: 0
testDurationSeconds: 5
"""
CRASH = "{atSeconds: 2, kind: killConsumer, downSeconds: 1}"


def right(found, *, share: bool = False) -> None:
    verdict = found["verdict"]
    assert found["complete"]
    assert verdict["drained"]
    assert "failed" not in verdict
    assert verdict["records"] == found["sent"] >= 3000 * 0.9
    zero = ("lost", "corrupt", "writtenTwice", "acceptedTwice" if share else "outOfOrder")
    assert [verdict[what] for what in zero] == [0] * 4


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_consumer_that_crashes(lab, tmp_path, topic, embedded_broker):
    reported = tmp_path / "told"
    command = f"{{atSeconds: 1, kind: command, command: 'echo $HEADRACE_BOOTSTRAP >> {reported}'}}"
    text = WORKLOAD.format(name=topic) + f"faults: [{CRASH}, {command}]\n"
    ended(lab(text, "--driver", "headrace,confluent-kafka"), 0)
    [folder] = (tmp_path / "out").iterdir()
    for found in bundle.read(folder):
        right(found)
        findings = json.loads((folder / found["folder"] / "findings.json").read_text())
        assert {fault["kind"] for fault in findings["faults"]} == {"killConsumer", "command"}
        assert all(fault["endedSeconds"] >= fault["beganSeconds"] for fault in findings["faults"])
        assert not (folder / found["folder"] / "journals").exists()
        assert (folder / found["folder"] / "logs" / "consumers-0-0~1.log").exists()
    assert "consumers 0 killed" in (folder / "report.html").read_text()
    assert reported.read_text().split() == [embedded_broker.bootstrap_servers] * 2
    nothing_left(embedded_broker.bootstrap_servers, topic)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(240)
def test_java_in_a_group(apache_kafka, lab, tmp_path, topic):
    # A JVM on a busy machine takes seconds to come up again, and is to have some records then.
    text = WORKLOAD.format(name=topic).replace("Seconds: 5", "Seconds: 40") + f"driver: java\nfaults: [{CRASH}]\n"
    ended(lab(text, bootstrap=apache_kafka.bootstrap_servers), 0)
    folder, found = result(tmp_path)
    right(found)
    assert (found["errors"], found["foreign"]) == ({}, 0)
    # Its own measuring, which no other test of it looks at.
    rows = (folder / "latency.hlog").read_text().splitlines()
    logged = {
        kind: merged(row.split(",")[-1] for row in rows if row.startswith(f"Tag={kind},")).total
        for kind in ("publish", "delay")
    }
    assert logged == {"publish": found["sent"], "delay": found["due"]}
    assert sum(found["receivedByPartition"].values()) == found["received"]
    series = parquet.read_table(folder / "series.parquet").to_pylist()
    produced = [row for row in series if row["role"] == "produce"]
    assert (sum(row["records"] for row in produced), sum(row["bytes"] for row in produced)) == (
        found["sent"],
        60 * found["sent"],
    )
    assert {row["member"] for row in series if row["role"] == "consume"} == {0, 1}
    versions = json.loads((folder / "versions.json").read_text())
    assert versions["workers"]["producers-0"]["version"].startswith("kafka-clients")
    nothing_left(apache_kafka.bootstrap_servers, topic)


SHORT = {
    "group_share_session_timeout_ms": "3000",
    "group_share_min_session_timeout_ms": "3000",
    "group_share_heartbeat_interval_ms": "1000",
    "group_share_min_heartbeat_interval_ms": "1000",
    "group_share_record_lock_duration_ms": "2000",
    "group_share_min_record_lock_duration_ms": "1000",
}


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("driver", "acknowledgement"),
    [
        ("headrace", "batch"),
        ("java", "record"),
        ("confluent-kafka", "record"),
        pytest.param("headrace", "record", marks=pytest.mark.soak),
        pytest.param("java", "batch", marks=pytest.mark.soak),
    ],
)
def test_members_of_share_groups(own_apache_kafka, lab, tmp_path, topic, driver, acknowledgement):
    """One member crashes, another stands still for longer than what it has is locked for.

    That one may come late with what others have done since, which brokers confirm.
    """
    kafka = own_apache_kafka(**SHORT)
    # A JVM on a busy machine takes seconds to come up, and is to hold something when it is killed.
    at, seconds = (10, 11) if driver == "java" else (4, 5)
    pause = f"{{atSeconds: {at}, kind: pauseConsumer, worker: 1, downSeconds: 4}}"
    crash = CRASH.replace("atSeconds: 2", f"atSeconds: {at}")
    text = WORKLOAD.format(name=topic) + f"driver: {driver}\nconsumerType: share\nfaults: [{crash}, {pause}]\n"
    # It is more work than two members can do at once: each has some of it when a fault comes.
    # No more comes while a fault takes its time.
    text += f"acknowledgement: {acknowledgement}\nconsumerProcMsMin: 4\n"
    segments = f"[{{rate: 600, durationSeconds: {seconds}}}, {{rate: 0, durationSeconds: 1}}]"
    text += f"producerRateSchedule: {{segments: {segments}}}\n"
    text = text.replace("testDurationSeconds: 5", f"testDurationSeconds: {seconds}")
    mode = "batch_optimized" if driver == "confluent-kafka" else "record_limit"
    options = f"{{share.acquire.mode: {mode}, max.poll.records: 50}}"
    text = text.replace("producerRate: 600\n", "")
    process = lab(text, "--set", f"consumerConfig={options}", bootstrap=kafka.bootstrap_servers)
    ended(process, 0, timeout=200)
    _, found = result(tmp_path)
    right(found, share=True)
    assert found["verdict"]["deliveriesMax"] >= 2
    # No more than the one that stood still had, of polls and on the way.
    assert found["verdict"]["acceptedLate"] <= (50 if mode == "record_limit" else 1000)
    nothing_left(kafka.bootstrap_servers, topic)


GIVEN_UP = """
name: {name}
mode: correctness
driver: {driver}
consumerType: share
consumerProcMsMin: 15000
consumerProcParallelism: -1
producerRateSchedule: {{segments: [{{rate: 1, durationSeconds: 2}}, {{rate: 0, durationSeconds: 1}}]}}
groupConfig: {{share.auto.offset.reset: earliest, share.delivery.count.limit: 2}}
warmupDurationSeconds: 0
testDurationSeconds: 18
drainTimeoutSeconds: 20
"""


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(240)
@pytest.mark.parametrize("driver", ["headrace", "java"])
def test_a_record_that_brokers_give_up_is_lost_and_the_reason_told(own_apache_kafka, lab, tmp_path, topic, driver):
    """Its work takes so long that two lives of the member end in it; there is no third delivery."""
    seconds = {name: value for name, value in SHORT.items() if "lock" not in name}
    kafka = own_apache_kafka(**seconds, group_share_min_delivery_count_limit="2")
    crashes = ", ".join(f"{{atSeconds: {at}, kind: killConsumer, downSeconds: 0}}" for at in (4, 17))
    text = GIVEN_UP.format(name=topic, driver=driver) + f"faults: [{crashes}]\n"
    ended(lab(text, bootstrap=kafka.bootstrap_servers), 1)
    folder, found = result(tmp_path)
    verdict = found["verdict"]
    assert verdict["deliveriesLimit"] == verdict["deliveriesMax"] == 2
    assert 1 <= verdict["givenUp"] == verdict["lost"]
    assert "after 2 deliveries, the group's share.delivery.count.limit" in verdict["failed"]
    assert any("share.delivery.count.limit (2) allows" in warning for warning in found["warnings"])
    [group] = json.loads((folder / "findings.json").read_text())["groups"]
    assert {event["deliveries"] for event in group["named"]["lost"]} == {2}
    assert "the group&#x27;s share.delivery.count.limit" in (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(240)
def test_brokers_of_the_runs_own_move_and_crash(lab, tmp_path, topic):
    text = WORKLOAD.format(name=topic) + "replicationFactor: 2\n"
    text += "faults: [{atSeconds: 1, kind: moveLeaders}, {atSeconds: 3, kind: killBroker, broker: 2, downSeconds: 1}]\n"
    ended(lab(text, "--kafka", "2"), 0)
    folder, found = result(tmp_path)
    right(found)
    assert (folder / "logs" / "broker-1-server.log").is_file()
    assert "node.id=2" in (folder / "logs" / "broker-2-server.properties").read_text()
    assert {fault["kind"] for fault in json.loads((folder / "findings.json").read_text())["faults"]} == {
        "moveLeaders",
        "killBroker",
    }


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["group", "share"])
def test_every_fault_with_every_client(lab, tmp_path, topic, kind):
    text = WORKLOAD.format(name=topic).replace("testDurationSeconds: 5", "testDurationSeconds: 30")
    text += f"replicationFactor: 3\nconsumerType: {kind}\nproducerConfig: {{enable.idempotence: true}}\n"
    text += "" if kind == "group" else "groupConfig: {share.record.lock.duration.ms: 15000}\n"
    # A pause that is longer than a lock, and than a session.
    text += f"faults:\n- {CRASH}\n- {{atSeconds: 5, kind: moveLeaders}}\n"
    text += "- {atSeconds: 10, kind: pauseConsumer, worker: 1, downSeconds: 17}\n"
    text += "- {atSeconds: 12, kind: restartBroker, broker: 3}\n- {atSeconds: 20, kind: killBroker, broker: 2}\n"
    drivers = "headrace,java,confluent-kafka" if kind == "group" else "headrace,java"
    more = () if kind == "group" else ("--set", "consumerConfig={share.acquire.mode: record_limit}")
    process = lab(text, "--driver", drivers, "--kafka", "3", *more)
    out, err = process.communicate(timeout=580)
    assert process.returncode == 0, (out, err)
    [folder] = (tmp_path / "out").iterdir()
    for found in bundle.read(folder):
        right(found, share=kind == "share")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("kind: restartBroker", "restartBroker is of a broker of the lab's own: --kafka 1 or more"),
        ("kind: killConsumer, worker: 7", "worker 7: the consumers have 2 processes, from 0"),
        ("kind: command, command: 'echo no such luck; exit 3'", "ended with 3: no such luck"),
    ],
)
@pytest.mark.slow
def test_a_fault_that_cannot_be_done_ends_the_run(lab, tmp_path, topic, embedded_broker, fault, why):
    ended(lab(WORKLOAD.format(name=topic) + f"faults: [{{atSeconds: 0, {fault}}}]\n"), 1)
    folder, found = result(tmp_path)
    assert not found["complete"]
    assert why in found["stoppedBy"]
    if "command" in fault:
        findings = json.loads((folder / "findings.json").read_text())
        assert [(one["kind"], one.get("endedSeconds")) for one in findings["faults"]] == [("command", None)]
        assert "groups" not in findings
    nothing_left(embedded_broker.bootstrap_servers, topic)
