"""The memory of a producer of many partitions: 2,000 with a trickle each, `batch.size` 1 MiB, `buffer.memory` 64 MiB.

The runner does one of three things, each in a process of its own:

- `open`: one record to each partition, none of which goes out by itself, until the buffer refuses one. With
  `max.block.ms` 0 a refusal is an error at once, so nothing can hide in a wait.
- `trickle`: a record a second to each partition for some lingers; counts refusals and watches the resident memory.
  Where `full` may wait for memory instead, it sends as much as the others, and their memory can be compared.
- `load`: one partition of another topic takes all that it can get, alone or beside the trickle. The limit is what it
  gets alone while the same trickle comes from another process: what the machine and the broker have left then.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from benches.harness import ROOT, RUN_TIMEOUT_SECONDS, Row, compare, in_turns, last_line, paired, say
from benches.peers.meter import Meter, Sample, resident_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from benches.run import Bench
    from headrace._options import OptionValue
    from tests.kafka.cluster import Cluster

    Send: TypeAlias = Callable[[int], None]

PARTITIONS = 2000
BATCH_BYTES = 1 << 20
BUFFER_BYTES = 64 << 20
LINGER_MS = 1000
TICK_SECONDS = 0.01
TRICKLE_SECONDS = 6.0
TRICKLE_BYTES = 100
LOAD_BYTES = 1024
LOAD_RECORDS = 600_000
CONNECT_SECONDS = 30.0
MIB = 1 << 20
BLOCK_MS = 60_000
WAITING = "-waiting"
"""After a strategy: its sends wait for memory as they do by default."""
CLIENTS = ("incremental", "full", f"full{WAITING}", "confluent")
SHARE_BAR = 0.90
OPEN_BAR = 4


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a trickle did and took. The memory is that of the whole process."""

    sent: int
    refused: int
    resident_mib: float
    """The most that was resident."""
    grown_mib: float
    """How much of that came after all modules were there."""
    cpu_seconds: float


@dataclasses.dataclass(frozen=True)
class Where:
    """What all runs have in common."""

    bootstrap: str
    topic: str
    """Of the trickle."""
    partitions: int = PARTITIONS
    buffer_bytes: int = BUFFER_BYTES


class Refused(Exception):  # noqa: N818 -- not an error: it is what is counted
    """There was no memory for a record."""


@contextlib.contextmanager
def ours(where: Where, client: str, linger_ms: int) -> Iterator[Send]:
    """Sends one record to a partition, or raises `Refused`; the topic is known already."""
    from headrace.errors import KafkaTimeoutError  # noqa: PLC0415 -- the peer's memory is measured without it
    from headrace.producer import Producer  # noqa: PLC0415 -- the same

    strategy = client.removesuffix(WAITING)
    block_ms = 0 if strategy == client else BLOCK_MS
    options = {**settings(strategy, where.buffer_bytes), "linger.ms": linger_ms, "max.block.ms": block_ms}
    value = b"x" * TRICKLE_BYTES
    with Producer(where.bootstrap, options) as producer:

        def send(partition: int) -> None:
            try:
                producer.send(where.topic, value, partition=partition)
            except KafkaTimeoutError as error:
                raise Refused from error

        deadline = time.monotonic() + CONNECT_SECONDS
        while True:  # the first records only make the producer ask for the topic
            producer.send(where.topic, value, partition=0)
            try:
                producer.flush(CONNECT_SECONDS)
            except KafkaTimeoutError:
                assert time.monotonic() < deadline, f"topic {where.topic} is not there"
                time.sleep(TICK_SECONDS)
            else:
                break
        yield send


@contextlib.contextmanager
def confluent(where: Where, linger_ms: int) -> Iterator[Send]:
    """The same through confluent-kafka."""
    from confluent_kafka import Message, Producer  # noqa: PLC0415 -- our memory is measured without it

    limits = {"message.max.bytes": BATCH_BYTES, "batch.num.messages": 1_000_000}
    queue = {"queue.buffering.max.kbytes": where.buffer_bytes >> 10, "queue.buffering.max.messages": 1_000_000}
    batches = {"acks": "1", "batch.size": BATCH_BYTES, "linger.ms": linger_ms}
    producer = Producer({"bootstrap.servers": where.bootstrap, **batches, **limits, **queue})
    value = b"x" * TRICKLE_BYTES
    errors: list[object] = []

    def done(error: object, _: Message) -> None:
        if error is not None:
            errors.append(error)

    def send(partition: int) -> None:
        producer.poll(0)
        try:
            producer.produce(where.topic, value, partition=partition, on_delivery=done)
        except BufferError as error:
            raise Refused from error

    send(0)
    assert producer.flush(CONNECT_SECONDS) == 0
    yield send
    assert producer.flush(CONNECT_SECONDS) == 0
    assert not errors, errors[0]


def settings(strategy: str, buffer_bytes: int) -> dict[str, OptionValue]:
    """Of our producer, for all three."""
    return {
        "acks": "1",
        "enable.idempotence": False,
        "batch.size": BATCH_BYTES,
        "buffer.memory": buffer_bytes,
        "buffer.memory.allocation.strategy": strategy,
    }


def open_partitions(where: Where, strategy: str) -> int:
    """How many partitions have an open batch when the first record is refused; at most all."""
    with ours(where, strategy, linger_ms=60_000) as send:
        for partition in range(where.partitions):
            try:
                send(partition)
            except Refused:
                return partition
    return where.partitions


def every_second(partitions: int, go_on: Callable[[], bool], send: Send) -> tuple[int, int]:
    """One record a second to each partition, spread evenly; gives how many were sent and how many refused."""
    sent = refused = 0
    began = time.monotonic()
    while go_on():
        due = int((time.monotonic() - began) * partitions)
        while sent + refused < due:
            try:
                send((sent + refused) % partitions)
            except Refused:
                refused += 1
            else:
                sent += 1
        time.sleep(TICK_SECONDS)
    return sent, refused


def trickle(where: Where, client: str, seconds: float, linger_ms: int = LINGER_MS) -> Footprint:
    """One client's trickle; `client` is one of `CLIENTS`."""
    if client == "confluent":
        import confluent_kafka  # noqa: F401, PLC0415 -- before its memory is counted

        start = partial(confluent, where, linger_ms)
    else:
        import headrace.producer  # noqa: F401, PLC0415 -- as above

        start = partial(ours, where, client, linger_ms)
    before = resident_mib("VmRSS")
    meter = Meter()
    with start() as send:
        print("connected", flush=True)
        meter.start()
        end = time.monotonic() + seconds
        sent, refused = every_second(where.partitions, lambda: time.monotonic() < end, send)
    most = resident_mib("VmHWM")
    return Footprint(sent, refused, most, most - before, meter.sample().cpu_seconds)


def load(where: Where, topic: str, strategy: str, records: int, *, beside: bool) -> tuple[Sample, float]:
    """Full load to partition 0 of `topic`, alone or beside the trickle of `where`.

    The second figure is what the trickle got into the buffer meanwhile, records a second.
    """
    import headrace as hr  # noqa: PLC0415 -- the peer's memory is measured without it
    from benches import ours as loads  # noqa: PLC0415 -- the same

    options = {**settings(strategy, where.buffer_bytes), "linger.ms": LINGER_MS}
    ended = threading.Event()
    value = b"x" * TRICKLE_BYTES
    trickled = 0
    with hr.Producer(where.bootstrap, options) as producer:

        def send(partition: int) -> None:
            nonlocal trickled
            producer.send(where.topic, value, partition=partition)
            trickled += 1

        batch = loads.block(LOAD_BYTES)
        loads.send_all(producer, topic, batch, 1)  # connects
        thread = threading.Thread(target=every_second, args=(where.partitions, lambda: not ended.is_set(), send))
        if beside:
            thread.start()
            time.sleep(LINGER_MS / 1000)  # all partitions are active
        before = trickled
        meter = Meter()
        meter.start()
        futures = [producer.send_arrow(topic, batch) for _ in range(1 + max(1, records // batch.num_rows))]
        # What is open at the end waits for its linger time, so the last call only fills the batch of the one before.
        for future in futures[:-1]:
            meter.count(future.result(), 0)
        sample = meter.sample()
        trickle_rate = (trickled - before) / sample.seconds
        ended.set()
        if beside:
            thread.join()
            assert trickled, "the trickle has failed; its error is above"
    return sample, trickle_rate


@contextlib.contextmanager
def trickle_elsewhere(bootstrap: str, topic: str) -> Iterator[None]:
    """The trickle of another process, all partitions active."""
    command = [sys.executable, "-m", "benches.memory", "trickle", bootstrap, topic, "--client", "incremental"]
    with subprocess.Popen(
        [*command, "--seconds", str(RUN_TIMEOUT_SECONDS)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as other:
        try:
            # Its first line: it is connected.
            assert other.stdout is not None
            assert other.stdout.readline(), "the trickle of another process has failed; its error is above"
            time.sleep(LINGER_MS / 1000)
            yield
            assert other.poll() is None, "the trickle of another process ended before the load"
        finally:
            other.kill()


def rows(bench: Bench) -> Iterator[Row]:
    """All three, ours with both strategies and confluent-kafka, against Apache Kafka."""
    with bench.empty_topic(bench.apache, PARTITIONS) as topic:
        yield from open_rows(bench.apache, topic)
        yield from trickle_rows(bench, topic)
        yield from load_rows(bench, topic)


def open_rows(cluster: Cluster, topic: str) -> Iterator[Row]:
    """Counts, not times: once is enough."""
    say(f"memory: {PARTITIONS} partitions, one record each")
    where = ("open", cluster.bootstrap_servers, topic, "--client")
    incremental, full = (float(last_line("benches.memory", *where, name)) for name in ("incremental", "full"))
    name = f"memory[{PARTITIONS}p-1MiB-64MiB]: partitions open before a refusal, incremental / full"
    # The bar is far below what the sizes say: who finds no memory makes batches go out, and some are back in time.
    yield paired(name, [incremental], [full], "partitions", bar=OPEN_BAR)


def trickle_rows(bench: Bench, topic: str) -> Iterator[Row]:
    """Refusals, and the memory that is resident."""
    seconds = max(2.0, TRICKLE_SECONDS * bench.scale)
    rounds = min(3, bench.pairs)  # memory is not noisy
    say(f"memory: a trickle to {PARTITIONS} partitions, {seconds:.0f} s, {rounds} rounds")
    where = ("trickle", bench.apache.bootstrap_servers, topic, "--seconds", seconds, "--client")
    runs: dict[str, list[Footprint]] = {client: [] for client in CLIENTS}
    for _ in range(rounds):
        for client, footprints in runs.items():
            footprints.append(Footprint(**json.loads(last_line("benches.memory", *where, client))))

    def all_of(client: str, field: str) -> list[float]:
        return [float(getattr(run, field)) for run in runs[client]]

    case = f"memory[{PARTITIONS}p-1MiB-64MiB]"
    refused = [run.refused / (run.sent + run.refused) * 100 for run in runs["incremental"]]
    peer = [run.refused / (run.sent + run.refused) * 100 for run in runs["full"]]
    assert all(peer), "`full` was refused nothing: the comparison says nothing"
    yield paired(f"{case}: trickle refused, incremental / full", refused, peer, "%", bar_on_ours=0)
    for other in (f"full{WAITING}", "confluent"):
        for field, what in (("resident_mib", "resident"), ("grown_mib", "grown by the producer")):
            yield paired(
                f"{case}: {what}, incremental / {other}", all_of("incremental", field), all_of(other, field), "MiB"
            )
    yield paired(
        f"{case}: CPU of the trickle, incremental / confluent",
        all_of("incremental", "cpu_seconds"),
        all_of("confluent", "cpu_seconds"),
        "s",
    )


def load_rows(bench: Bench, topic: str) -> Iterator[Row]:
    """What full load keeps when the trickle is beside it."""
    records = bench.records(LOAD_RECORDS)
    say(f"memory: full load beside the trickle, {records} records, {bench.pairs} rounds")

    trickles: dict[str, list[float]] = {}

    def run(strategy: str, *more: str) -> Callable[[], Sample]:
        options = ("--records", records, "--trickle", topic, "--client", strategy, *more)

        def once(bootstrap: str, load_topic: str) -> Sample:
            line, trickle_rate = json.loads(last_line("benches.memory", "load", bootstrap, load_topic, *options))
            trickles.setdefault(" ".join((strategy, *more)), []).append(trickle_rate)
            return Sample.parse(line)

        return bench.into_empty_topic(bench.apache, once)

    alone_once = run("incremental", "--alone")

    def elsewhere_once() -> Sample:
        with trickle_elsewhere(bench.apache.bootstrap_servers, topic):
            return alone_once()

    runners = [run("incremental"), alone_once, elsewhere_once, run("full")]
    beside, alone, elsewhere, full = in_turns(runners, bench.pairs)
    case = f"memory[{PARTITIONS}p-1MiB-64MiB]: full load beside the trickle, incremental"
    yield compare(f"{case} / alone", beside, alone, elsewhere, bar=SHARE_BAR)
    yield compare(f"{case} / alone, the trickle from another process", beside, elsewhere, bar=SHARE_BAR)
    yield compare(f"{case} / full", beside, full)
    for strategy in ("incremental", "full"):
        # The first is the warm-up's. What is due is a record a second to each partition.
        name = f"memory[{PARTITIONS}p-1MiB-64MiB]: the trickle beside full load, {strategy} / due"
        yield paired(name, trickles[strategy][1:], [float(PARTITIONS)] * bench.pairs, "records/s")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["open", "trickle", "load"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--seconds", type=float, default=TRICKLE_SECONDS)
    parser.add_argument("--records", type=int, default=LOAD_RECORDS)
    parser.add_argument("--trickle", default="", help="the trickle's topic, for `load`")
    parser.add_argument("--alone", action="store_true", help="`load` without the trickle")
    o = parser.parse_args()
    where = Where(o.bootstrap, o.trickle or o.topic)
    if o.what == "open":
        print(open_partitions(where, o.client))
    elif o.what == "trickle":
        print(json.dumps(dataclasses.asdict(trickle(where, o.client, o.seconds))))
    else:
        sample, trickle_rate = load(where, o.topic, o.client, o.records, beside=not o.alone)
        print(json.dumps([sample.line(), trickle_rate]))


if __name__ == "__main__":
    main()
