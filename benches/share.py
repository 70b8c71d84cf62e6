"""Share consumers beside Java's, on several Apache Kafka brokers behind a judge that reads what they answer.

Workloads are those of examples/lab, run by `headrace lab`: its rates and delays are what is compared. What a member
holds is not what a client says of itself: crates/net/examples/sharetap.rs counts it from the brokers' answers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from benches import harness
from benches.harness import Row, paired, say
from tests.kafka import java
from tests.kafka.apache import die_with_parent
from tests.kafka.nodes import ApacheNodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from benches.run import Bench

JUDGE = harness.ROOT / "target" / "release" / "examples" / "sharetap"
CASES = harness.ROOT / "examples" / "lab"
BACKLOG = 1_000_000
POLL_RECORDS = 500
LAB_TIMEOUT_SECONDS = 400
DRAIN_TIMEOUT_SECONDS = 30
TAIL_SECONDS = 8
"""The end of a drain that was given up: its rate is that of one which waits."""
ROUNDS_MAX = 3
"""A round takes minutes."""

FLOOR_BAR = 0.8
AFTER_BAR = {1: 30.0, 6: 15.0}
ONE_BROKER_BAR = 0.9
P50_BAR_MS = 20.0
P99_BAR_MS = 100.0
IDLE_BAR = 1.2
IDLE_PARTITIONS = 12
ONE_COPY = {"share_coordinator_state_topic_replication_factor": "1"}
"""As on a cluster of one broker: what is compared is waits, and no replication of what is acknowledged."""
IDLE_WARM_UP_SECONDS = 20.0
IDLE_SECONDS = 60.0
POLLS = {"ShareFetch", "ShareAcknowledge", "Fetch", "ListOffsets", "ShareGroupHeartbeat", "Metadata", "FindCoordinator"}


class Judge:
    """The proxies; a context manager. They have their ports before there are brokers, which must know them."""

    def __init__(self, count: int) -> None:
        self._command = [str(JUDGE), str(count)]
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
        )
        self.ports = [int(port) for port in self._read().split()]
        return self

    def forward_to(self, ports: list[int]) -> None:
        """Where the brokers listen."""
        self._say(" ".join(map(str, ports)))

    def take(self) -> tuple[dict[str, dict[str, int]], dict[tuple[str, str], int]]:
        """What was counted since the last call: of each member, and requests by client id and kind."""
        self._say("")
        reported = json.loads(self._read())
        requests: dict[tuple[str, str], int] = {}
        for client, _, kind, count in reported["requests"]:
            requests[client, kind] = requests.get((client, kind), 0) + count
        return reported["members"], requests

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def judged(count: int) -> Iterator[tuple[str, Judge]]:
    """So many brokers behind the judge: where clients connect, and the judge."""
    if not JUDGE.exists():
        raise RuntimeError(f"{JUDGE} is not there: cargo build --release -p headrace-net --example sharetap")
    heap = "700m" if count <= 3 else "400m"  # six of them are small
    with (
        Judge(count) as judge,
        ApacheNodes(count, heap=heap, quick=False, advertised=judge.ports, **ONE_COPY) as nodes,
    ):
        judge.forward_to([node.port for node in nodes.nodes])
        address = f"127.0.0.1:{judge.ports[0]}"
        first_group(address)
        yield address, judge


def first_group(bootstrap: str) -> None:
    """The first share group of a cluster has its coordinator's topic made, which takes seconds."""
    with hr.Admin(bootstrap) as admin:
        admin.create_topic("first", 1, 1)
    with hr.ShareConsumer(bootstrap, group_id="first") as share:
        share.subscribe(["first"])
        deadline = time.monotonic() + 60
        while not share.assignment():
            assert time.monotonic() < deadline, "no partition was given"
            share.poll(0.2)


def lab(bootstrap: str, case: str, driver: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """One run of a workload; gives its summary."""
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headrace.cli", "lab", "run", str(CASES / f"{case}.yaml"), "-b", bootstrap]
        command += ["--driver", driver, "--plain", "--out", folder, *given]
        environment = os.environ | harness.ENVIRONMENT | {"HEADRACE_LAB_CLASSPATH": java.classpath()}
        # A drain that was given up on ends with 1, and has its figures all the same.
        subprocess.run(
            command,
            cwd=harness.ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=LAB_TIMEOUT_SECONDS,
            check=False,
        )
        [summary] = Path(folder).glob("**/summary.json")
        found: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
        return found | {"received": received(summary.parent / "series.parquet")}


def received(series: Path) -> list[int]:
    """Records that consumers got in each second."""
    table = pq.read_table(series, columns=["second", "role", "records"])
    table = table.filter(pc.equal(table["role"], "consume"))
    counts = [0] * (pc.max(table["second"]).as_py() + 1 if table.num_rows else 0)
    for second, records in zip(table["second"].to_pylist(), table["records"].to_pylist(), strict=True):
        counts[second] += records
    return counts


def mean(run: Mapping[str, Any]) -> float:
    """Records a second between the first second that has some and the last."""
    counts: list[int] = run["received"]
    first = next(second for second, count in enumerate(counts) if count)
    # The first and the last second are not whole.
    inside = counts[first + 1 : -1]
    assert inside, f"all was drained within {len(counts)} s: more records show more"
    return sum(inside) / len(inside)


def tail(run: Mapping[str, Any]) -> float:
    """Records a second at the end of a drain that was given up: one broker after the other is empty by then."""
    counts: list[int] = run["received"][:-1]
    assert not run["verdict"]["drained"], f"all was drained after {len(counts)} s: more records show more"
    return sum(counts[-TAIL_SECONDS:]) / TAIL_SECONDS


def most_held(judge: Judge) -> tuple[int, int]:
    """The most that any member held, and what brokers gave beyond what they were asked for."""
    members, _ = judge.take()
    return max(one["most"] for one in members.values()), sum(one["excess"] for one in members.values())


def rounds(bench: Bench) -> int:
    """How many are worth their minutes."""
    return max(1, min(ROUNDS_MAX, bench.pairs))


def rows(bench: Bench) -> Iterator[Row]:
    """A skewed backlog (case 2): rates until it is empty, and the hard limit."""
    with judged(3) as (bootstrap, judge), judged(1) as (alone, _):
        for consumers in (1, 6):
            yield from drain(bench, bootstrap, alone, judge, consumers)


def drain(bench: Bench, bootstrap: str, alone: str, judge: Judge, consumers: int) -> Iterator[Row]:
    """With so many consumers; `alone` is a cluster of one broker, where nothing waits for another."""
    case = f"share groups, case 2[{consumers} consumers]"
    backlog = bench.records(BACKLOG)
    say(f"{case}: {backlog} records, {rounds(bench)} rounds")
    settings = {"dimensions": "{}", "backlogRecords": backlog, "consumers": consumers}
    settings |= {"drainTimeoutSeconds": DRAIN_TIMEOUT_SECONDS}
    soft = settings | {"consumerConfig.share.acquire.mode": "batch_optimized"}
    # Brokers that have just started get faster for a while.
    lab(bootstrap, "case2", "headrace", settings)
    lab(bootstrap, "case2", "java", soft)
    lab(alone, "case2", "java", soft)
    ours, after, one_broker, steady, whole = [], [], [], [], []
    held = 0
    for _ in range(rounds(bench)):
        judge.take()
        run = lab(bootstrap, "case2", "headrace", settings)
        ours.append(run["verdict"] | {"mean": mean(run)})
        most, excess = most_held(judge)
        assert excess == 0, f"brokers gave {excess} records beyond what they were asked for"
        held = max(held, most)
        after.append(tail(lab(bootstrap, "case2", "java", settings)))
        unhindered = lab(alone, "case2", "java", settings)
        one_broker.append(mean(unhindered))
        steady.append(unhindered["verdict"])
        whole.append(mean(lab(bootstrap, "case2", "java", soft)))
    floors, peaks, means = ([one[what] for one in ours] for what in ("floorRate", "peakRate", "mean"))
    bar = AFTER_BAR[consumers]
    yield paired(f"{case}: slowest / Java after the first broker is drained", floors, after, "records/s", bar=bar)
    yield paired(f"{case}: slowest / our own peak", floors, peaks, "records/s", bar=FLOOR_BAR)
    # How steady brokers are by themselves: nothing waits there.
    floors, peaks = ([one[what] for one in steady] for what in ("floorRate", "peakRate"))
    yield paired(f"{case}: Java, one broker: slowest / its own peak", floors, peaks, "records/s")
    yield paired(f"{case}: all of it / Java, one broker", means, one_broker, "records/s", bar=ONE_BROKER_BAR)
    yield paired(f"{case}: all of it / Java, batch_optimized", means, whole, "records/s")
    yield paired(f"{case}: held at most / max.poll.records", [held], [POLL_RECORDS], "records", bar_below=1.0)


def trickle_rows(bench: Bench) -> Iterator[Row]:
    """A record at a time (case 5): delays."""
    seconds = max(5, int(40 * bench.scale))
    with judged(6) as (bootstrap, judge):
        for distributor in ("{type: PARTITION_ZIPF, alpha: 1.5}", "PINNED_PARTITIONS", "KEY_ROUND_ROBIN", "NO_KEY"):
            for consumers in (1, 6):
                settings = {"dimensions": "{}", "messageDistributor": distributor, "consumers": consumers}
                settings |= {"testDurationSeconds": seconds}
                name = distributor.strip("{}").replace("type: ", "").replace("alpha: ", "")
                yield from trickle(bootstrap, judge, f"share groups, case 5[{name}, {consumers} consumers]", settings)
        for wait_ms in (100, 2000):
            settings = {"dimensions": "{}", "consumers": 1, "consumerConfig.fetch.max.wait.ms": wait_ms}
            settings |= {"messageDistributor": "{type: PARTITION_ZIPF, alpha: 1.5}", "testDurationSeconds": seconds}
            yield from trickle(bootstrap, judge, f"share groups, case 5[fetch.max.wait.ms {wait_ms}]", settings)


def trickle(bootstrap: str, judge: Judge, case: str, settings: Mapping[str, object]) -> Iterator[Row]:
    """One variation."""
    say(case)
    judge.take()
    mine = lab(bootstrap, "case5", "headrace", settings)
    held, _ = most_held(judge)
    theirs = lab(bootstrap, "case5", "java", settings)
    for key, bar in (("p50", P50_BAR_MS), ("p99", P99_BAR_MS)):
        ours, peer = mine["deliveryMs"][key], theirs["deliveryMs"][key]
        yield paired(f"{case}: delay {key}", [ours], [peer], "ms", bar_on_ours=bar)
    yield paired(f"{case}: held at most / max.poll.records", [held], [1], "records", bar_below=1.0)


def idle_rows(bench: Bench) -> Iterator[Row]:
    """An empty topic: requests and CPU beside Java's in batch_optimized mode."""
    seconds = max(5.0, IDLE_SECONDS * min(1.0, bench.scale))
    with judged(3) as (bootstrap, judge):
        with hr.Admin(bootstrap) as admin:
            admin.create_topic("idle", IDLE_PARTITIONS, 1)
        for limit in (POLL_RECORDS, 1):
            say(f"share groups, idle, max.poll.records {limit}: {seconds} s each, {rounds(bench)} rounds")
            ours, peer = [], []
            for number in range(rounds(bench)):
                ours.append(idle(judge, "ours", idle_ours(bootstrap, f"ours-{limit}-{number}", limit), seconds))
                peer.append(idle(judge, "java", idle_java(bootstrap, f"java-{limit}-{number}"), seconds))
            case = f"share groups, idle[max.poll.records {limit}]"
            for index, what, unit in ((0, "requests", "1/s"), (1, "CPU", "ms/s")):
                mine, theirs = ([sample[index] for sample in samples] for samples in (ours, peer))
                yield paired(f"{case}: {what} / Java", mine, theirs, unit, bar_below=IDLE_BAR)


def idle_ours(bootstrap: str, group: str, limit: int) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "benches.share", bootstrap, group, str(limit)]


def idle_java(bootstrap: str, group: str) -> list[str]:
    """Kafka's own console consumer of share groups, in its default mode."""
    tool = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    settings = f"-Dlog4j2.configurationFile={java.HERE / 'tools-log4j2.properties'}"
    address = ["--bootstrap-server", bootstrap, "--topic", "idle", "--group", group]
    return [java.java(), settings, "-cp", java.classpath(), tool, *address, "--command-property", "client.id=java"]


def idle(judge: Judge, client: str, command: list[str], seconds: float) -> tuple[float, float]:
    """Requests a second, and milliseconds of CPU a second, once it has warmed up."""
    process = subprocess.Popen(
        command,
        cwd=harness.ROOT,
        env=os.environ | harness.ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
    )
    try:
        time.sleep(IDLE_WARM_UP_SECONDS)
        judge.take()
        cpu, begun = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        cpu, took = cpu_seconds(process.pid) - cpu, time.monotonic() - begun
        _, requests = judge.take()
    finally:
        process.kill()
        process.wait(10)
    count = sum(number for (name, kind), number in requests.items() if name == client and kind in POLLS)
    assert count, f"no request of {client}: {requests}"
    return count / took, cpu / took * 1000


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Polls an empty topic until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("group")
    parser.add_argument("limit", type=int)
    o = parser.parse_args()
    options: dict[str, Any] = {"share_acquire_mode": "record_limit", "max_poll_records": o.limit, "client_id": "ours"}
    with hr.ShareConsumer(o.bootstrap, group_id=o.group, **options) as share:
        share.subscribe(["idle"])
        while True:
            share.poll(1.0)


if __name__ == "__main__":
    main()
