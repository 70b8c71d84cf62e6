"""Kill -9 of broker and of producers under load: nothing acknowledged is lost, nothing is invented or sent twice."""

from __future__ import annotations

import collections
import os
import random
import re
import subprocess
import sys
import time

import pytest

import headrace as hr
from tests.broker.process import BrokerProcess
from tests.kafka import java
from tests.kafka.apache import die_with_parent

PARTITIONS = 3
WRITERS = 2
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
VALUE = re.compile(rb"^(w\d+):(\d+):(\d+):\.{80}$")
START_TIMEOUT_SECONDS = 30
STOP_TIMEOUT_SECONDS = 90


class Writers:
    """Producer processes; each life has a name of its own."""

    def __init__(self, bootstrap: str, topic: str, folder) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.names = 0

    def start(self) -> None:
        name = f"w{self.names}"
        self.names += 1
        arguments = [self.bootstrap, self.topic, str(PARTITIONS), name, str(self.folder / name)]
        self.running.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.soak.writer", *arguments],
                cwd=java.ROOT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
            )
        )

        # The file is there once SIGTERM means "flush and end".
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not (self.folder / name).exists():
            assert self.running[-1].poll() is None, "a writer did not start; its message is above"
            assert time.monotonic() < deadline, "a writer took too long to start"
            time.sleep(0.01)

    def kill_one(self, rng: random.Random) -> None:
        process = self.running.pop(rng.randrange(len(self.running)))
        assert process.poll() is None, f"a writer ended by itself with {process.returncode}"
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            assert process.wait(STOP_TIMEOUT_SECONDS) == 0, "a writer lost records; its message is above"

    def acknowledged(self) -> set[tuple[bytes, int, int]]:
        """Name, partition, number of every record that some writer was told is safe."""
        found = set()
        for file in self.folder.iterdir():
            *lines, torn = file.read_bytes().split(b"\n")
            assert len(torn) < 32
            for line in lines:
                partition, number = line.split()
                found.add((file.name.encode(), int(partition), int(number)))
        return found


def check(bootstrap: str, topic: str, writers: Writers) -> int:
    """Holds the topic against what the writers noted; gives the number of acknowledged records."""
    acknowledged = writers.acknowledged()
    numbers: dict[tuple[bytes, int], list[int]] = collections.defaultdict(list)
    following = dict.fromkeys(range(PARTITIONS), 0)
    for batch in hr.read(bootstrap, topic):
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        for partition, offset, value in zip(*columns, strict=True):
            assert offset == following[partition], f"offsets of partition {partition} jump to {offset}"
            following[partition] = offset + 1
            fields = VALUE.match(value)
            assert fields, f"nobody wrote {value!r} (partition {partition}, offset {offset})"
            assert int(fields[2]) == partition, f"{value!r} is in partition {partition}"
            numbers[fields[1], partition].append(int(fields[3]))
    for (name, partition), found in numbers.items():
        # An idempotent producer's records are there once and in order, without a hole: each counts from zero.
        assert found == list(range(len(found))), f"records of {name!r} in partition {partition} are not 0, 1, 2, ..."
    lost = [one for one in acknowledged if one[2] >= len(numbers[one[0], one[1]])]
    assert not lost, f"{len(lost)} acknowledged records are gone, such as {sorted(lost)[:3]}"
    return len(acknowledged)


def run(seconds: float, tmp_path, topic: str) -> None:
    print(f"seed {SEED}: HEADRACE_SOAK_SEED={SEED} repeats the choices")
    rng = random.Random(SEED)
    folder = tmp_path / "acked"
    folder.mkdir()
    with BrokerProcess(tmp_path / "data", "log.segment.bytes=1048576") as broker:
        with hr.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic(topic, PARTITIONS)
        writers = Writers(broker.bootstrap_servers, topic, folder)
        for _ in range(WRITERS):
            writers.start()
        end = time.monotonic() + seconds
        kills = 0
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.5, 3))
            if rng.random() < 0.7:
                broker.kill()
                time.sleep(rng.uniform(0, 1))
                broker.start()
            else:
                writers.kill_one(rng)
                writers.start()
            kills += 1
        writers.stop()
        count = check(broker.bootstrap_servers, topic, writers)
        assert count > 1000, "too little load to tell anything"
        assert broker.stop() == 0
        print(f"{kills} kills, {count} acknowledged records, all there")
    for log in broker.data.glob(f"{topic}-*/*.log"):
        assert log.stat().st_size < 2 << 20, "segments did not roll"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_kills_under_load(tmp_path, topic):
    run(15, tmp_path, topic)


@pytest.mark.soak
def test_kills_under_load_for_long(tmp_path, topic):
    run(float(os.environ.get("HEADRACE_SOAK_SECONDS", "300")), tmp_path, topic)
