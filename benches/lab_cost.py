"""What the lab costs: a client that its worker drives, beside the same client in a bench's bare loop.

The lab stamps every record with when it was due, reads that again, and counts how long each took. Its loops run here as
in a worker of their own: in a process by themselves, with what was counted taken and encoded once a second.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benches.harness import Row, compare, in_turns, program, say
from benches.peers.meter import Meter, Sample, arguments
from benches.peers.rdkafka import CONSUMER, PRODUCER
from headrace.lab import campaign, protocol
from headrace.lab.worker import drivers
from headrace.lab.worker.__main__ import load
from headrace.lab.worker.consume import Consuming
from headrace.lab.worker.produce import Producing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benches.run import Bench
    from headrace.lab.worker.drivers import Block, Polled
    from headrace.lab.workload import Workload

BAR = 0.8
SIZE = 100
TIMEOUT_SECONDS = 120.0
TAKE_SECONDS = 1.0
RECORDS = {
    ("consume", "headrace"): 8_000_000,
    ("consume", "confluent-kafka"): 2_000_000,
    ("produce", "headrace"): 7_920_000,
    ("produce", "confluent-kafka"): 1_000_000,
}
BARE = {"headrace": "benches.ours", "confluent-kafka": "benches.peers.confluent"}
CONSUMER_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "headrace": {},
    "confluent-kafka": {**CONSUMER, "max.poll.records": "20000", "enable.auto.commit": "false"},
}
PRODUCER_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "headrace": {"acks": "1", "linger.ms": "5", "enable.idempotence": "false"},
    "confluent-kafka": {"acks": "1", **PRODUCER, "queue.buffering.max.messages": "1000000"},
}


class _Consumer(drivers.ConsumerDriver):
    """Another's, which is watched: the clock runs from the first records to the poll after the last ones."""

    def __init__(self, inner: drivers.ConsumerDriver, records: int, run: Run) -> None:
        self._inner = inner
        self._left = records
        self._run = run

    def poll(self, timeout_s: float) -> Sequence[Polled]:
        if self._left <= 0:
            self._run.end()
        found = self._inner.poll(timeout_s)
        rows = sum(len(polled.values) for polled in found)
        self._left -= rows
        if rows:
            self._run.count(rows)
        return found

    def assigned(self) -> int | None:
        return self._inner.assigned()

    def done(self) -> None:
        self._inner.done()

    def close(self) -> None:
        self._inner.close()


class _Producer(drivers.ProducerDriver):
    """Another's, which is watched: the clock stops when all is acknowledged."""

    def __init__(self, inner: drivers.ProducerDriver, run: Run) -> None:
        self._inner = inner
        self._run = run

    def send(self, block: Block) -> None:
        self._inner.send(block)

    def poll(self) -> None:
        self._inner.poll()

    def flush(self, timeout_s: float) -> None:
        self._inner.flush(timeout_s)
        self._run.end()

    def close(self) -> None:
        self._inner.close()


class Run:
    """One of the lab's loops, from begin to end."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._ended = threading.Event()
        self._sample: Sample | None = None
        self._seen = 0
        self.reported = 0
        """Records that the lab says there were."""

    def start(self) -> None:
        """The clock runs."""
        self._meter.start()

    def count(self, records: int) -> None:
        """So many came; the first of them start the clock."""
        self._seen += records
        if self._meter.running:
            self._meter.count(records, 0)
        else:
            self._meter.start()

    def end(self) -> None:
        """All is done."""
        if self._sample is None:
            self._sample = self._meter.sample()
            self._ended.set()

    def follow(self, work: Producing | Consuming) -> None:
        """As a worker does: takes what was counted once a second, and tells it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with Path(os.devnull).open("wb") as answers:
            ended = False
            while not ended:
                ended = self._ended.wait(TAKE_SECONDS)
                assert work.trouble is None, work.trouble
                assert time.monotonic() < deadline, f"not done within {TIMEOUT_SECONDS} s"
                self._tell(work, answers)
            work.stop()
            self._tell(work, answers)

    def _tell(self, work: Producing | Consuming, answers: Any) -> None:
        second = protocol.Second(n=0, at_ns=time.time_ns(), cpu_s=0.0, **work.take())
        answers.write(protocol.encode(second))
        self.reported += sum(row[3] for row in second.counts)

    def sample(self) -> Sample:
        """What it came to."""
        assert self._sample is not None
        assert self.reported == self._seen, f"the lab counted {self.reported} of {self._seen} records"
        return self._sample


def workload(driver: str, size: int, partitions: int, batch_bytes: int) -> Workload:
    """What a bare bench does, as the lab is told it."""
    options = {**PRODUCER_OPTIONS[driver], "batch.size": str(batch_bytes)}
    given = {
        "messageSize": size,
        "partitions": partitions,
        "messageDistributor": "PINNED_PARTITIONS",
        "producerRate": 0,
        "producerConfig": {name: str(value) for name, value in options.items()},
        "consumerConfig": {name: str(value) for name, value in CONSUMER_OPTIONS[driver].items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        return campaign.load(path).variations[0].workload


def consume(bootstrap: str, topic: str, name: str, work: Workload, records: int) -> Sample:
    """The lab consumes a topic of its own values."""
    driver, run = load(name), Run()

    def member(*given: Any) -> drivers.ConsumerDriver:
        return _Consumer(driver.member(*given), records, run)

    watched = dataclasses.replace(driver, member=member)
    run.follow(Consuming(watched, bootstrap, work, [topic], [0], group=f"bench-{time.time_ns()}"))
    return run.sample()


def produce(bootstrap: str, topic: str, name: str, work: Workload, records: int) -> Sample:
    """The lab produces as fast as the client takes records."""
    driver, run = load(name), Run()

    def producer(*given: Any) -> drivers.ProducerDriver:
        return _Producer(driver.producer(*given), run)

    producing = Producing(
        dataclasses.replace(driver, producer=producer), bootstrap, work, [topic], [0], records=records
    )
    run.start()
    producing.start(time.time_ns())
    run.count(records)
    run.follow(producing)
    return run.sample()


def rows(bench: Bench) -> Iterator[Row]:
    """Each driver, consuming and producing."""
    for name in BARE:
        yield from consume_rows(bench, name, 1)
    yield from consume_rows(bench, "headrace", 4)
    for name in BARE:
        yield from produce_rows(bench, name)


def consume_rows(bench: Bench, name: str, partitions: int) -> Iterator[Row]:
    """From one topic, which the lab has filled."""
    records = bench.records(RECORDS["consume", name])
    case = f"lab, {name} consumes[{SIZE}B-{partitions}p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    bootstrap = bench.apache.bootstrap_servers
    with bench.empty_topic(bench.apache, partitions) as topic:
        where = (bootstrap, topic, "--partitions", partitions, "--records", records, "--size", SIZE)
        program("benches.lab_cost", "produce-headrace", *where)
        ours, peer = in_turns(
            [
                partial(program, "benches.lab_cost", f"consume-{name}", *where),
                partial(program, BARE[name], "consume", *where),
            ],
            bench.pairs,
        )
    yield compare(f"{case} / without the lab", ours, peer, bar=BAR)


def produce_rows(bench: Bench, name: str) -> Iterator[Row]:
    """Each run to an empty topic."""
    records = bench.records(RECORDS["produce", name])
    case = f"lab, {name} produces[{SIZE}B-1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    options = ("--records", records, "--size", SIZE)
    senders: list[Callable[[str, str], Sample]] = [
        lambda b, t: program("benches.lab_cost", f"produce-{name}", b, t, *options),
        lambda b, t: program(BARE[name], "produce", b, t, *options),
    ]
    ours, peer = in_turns([bench.into_empty_topic(bench.apache, send) for send in senders], bench.pairs)
    yield compare(f"{case} / without the lab", ours, peer, bar=BAR)


def main() -> None:
    """Entry point."""
    o = arguments(__doc__, *(f"{role}-{name}" for role, name in RECORDS))
    role, _, name = o.what.partition("-")
    run = consume if role == "consume" else produce
    work = workload(name, o.size, o.partitions, o.batch_bytes)
    print(run(o.bootstrap, o.topic, name, work, o.records).line())


if __name__ == "__main__":
    main()
