"""Records through memory shared with our broker, beside Apache Kafka over TCP, each round in turns.

The Rust core is measured by crates/net/examples/direct.rs: one record of 100 bytes at a time, then streams of them in
batches of 64 KiB. There producer, consumer and broker are three threads, spinning (`headrace.poll.spin.us` 50) or
sleeping (0); in one_thread.rs beside it they take turns in one thread, and in_place.rs is the broker's work on a batch
alone. From Python, producer and consumer are in one process and the broker in another.

The first program runs once more over RDMA, in the tests' guest with Soft-RoCE: that every figure of the paper's can be
had so. Its processor is emulated and its device is software, so that the values say nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa

import headrace as hr
from benches import startup
from benches.harness import ROOT, Row, last_line, paired, say
from benches.peers import raw_fetch, wire
from tests.kafka.cluster import Cluster
from tests.rdma.guest import Guest
from tests.rdma.image import NoGuestError, ensure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benches.run import Bench

PROGRAMS = ROOT / "target" / "release" / "examples"
TIMEOUT_SECONDS = 180
RECORDS = 20_000
MEBIBYTES = 100
END_TO_END = 3000
MANY_PARTITIONS = 64
MANY_ROWS = 10_000
MANY_BATCHES = 200
WARM_UP = 500
EMPTY_FETCHES = 3000
VALUE = b"x" * 100
SPIN_US = 50
GUEST_RECORDS, GUEST_MEBIBYTES = 300, 4
# Bars are of the spinning mode: least rate in millions a second, most microseconds.
RATES: dict[str, float | None] = {
    "produce": None,
    "produce from Arrow": 8.0,
    "consume, copied": 25.0,
    "consume, copied, without CRC": 35.0,
    "consume, views": 50.0,
}
# Of values of 1 KiB, as a share of the rate at which one thread copies memory.
OF_MEMORY: dict[str, float | None] = {
    "produce from Arrow, 1 KiB": None,
    "consume, 1 KiB, copied": 0.6,
    "consume, 1 KiB, copied, without CRC": 0.6,
    "consume, 1 KiB, views": 1.0,
}
LATENCIES: dict[str, float | None] = {
    "empty poll": 0.5,
    "produce, acknowledged": 6.0,
    "produce, acknowledged, beside a consumer": None,
    "from send to batch": 20.0,
}
ONE_THREAD_US = 3.0

# From Python, medians.
EMPTY_POLL_US, END_TO_END_US = 3.0, 40.0
# What the paper (SIGMOD 2022, section 5) says of KafkaDirect and of Kafka beside it, between machines with cards of
# 56 Gbit/s: the figure and its case, unit, what it says, and ours that comes nearest. Not here: 6 to 8 are of a card's
# operations, 12 and 13 of many clients and 16 cores, 14 to 17 of replication, which does not go through memory; 21 is
# in benches/direct_spark.py.
PAPER = (
    ("10: one small record produced", "us", "90", "300", "produce, acknowledged", "p50_us"),
    ("19: one record end to end", "us", "100", "600", "from send to batch", "p50_us"),
    ("11: produced, large records", "MiB/s", "1690", "280", "produce from Arrow, 1 KiB", "bytes_s"),
    ("11: large records, shared", "MiB/s", "5 times Kafka", "280", "produce from Arrow, 1 KiB, 4 producers", "bytes_s"),
    ("11: produced, 512 B, 100 B here", "MiB/s", "10 times Kafka", "unsaid", "produce from Arrow", "bytes_s"),
    ("11: 512 B, 100 B here, shared", "MiB/s", "5 times Kafka", "unsaid", "produce from Arrow, 4 producers", "bytes_s"),
    ("20: consumed, large records", "MiB/s", "1024 to 5300", "150", "consume, 1 KiB, copied", "bytes_s"),
)

ON_ROCE = "here on Soft-RoCE, functional only / Apache Kafka over TCP"

Figures = dict[str, dict[str, float]]


def core(datapath: str, spin_us: int, records: int, mebibytes: int, *bootstrap: str) -> Figures:
    """One run of the Rust program."""
    command = [str(PROGRAMS / "direct"), datapath, str(spin_us), str(records), str(mebibytes), *bootstrap]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def soft_roce() -> Figures | None:
    """The same over RDMA, in the guest; none where there can be no guest."""
    try:
        image = ensure()
    except NoGuestError as reason:
        say(f"direct: NO SOFT-ROCE GUEST: {reason}")
        return None
    with Guest(image) as guest:
        words = [str(PROGRAMS / "direct"), "verbs", "0", str(GUEST_RECORDS), str(GUEST_MEBIBYTES)]
        done = guest.run(words, timeout=TIMEOUT_SECONDS)
    assert done.status == 0, done.output
    return {line["name"]: line for line in map(json.loads, done.output.splitlines())}


def one_thread(records: int) -> float:
    """Median microseconds of a record's whole way, producer, broker and consumer taking turns in one thread."""
    command = [str(PROGRAMS / "one_thread"), str(records)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    return float(json.loads(done.stdout)["p50_us"])


def taken(batches: int) -> dict[str, float]:
    """Median microseconds that a broker spends on a batch, copied out of its ring or checked where it lies."""
    command = [str(PROGRAMS / "in_place"), str(batches)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    return {line["name"]: line["p50_us"] for line in map(json.loads, done.stdout.splitlines())}


def rounds(runners: Sequence[Callable[[], Any]], pairs: int) -> list[list[Any]]:
    """All of them in turns, every second round backwards."""
    found: list[list[Any]] = [[] for _ in runners]
    for number in range(pairs):
        order = list(enumerate(runners))
        for index, runner in order if number % 2 == 0 else reversed(order):
            found[index].append(runner())
    return found


def rows(bench: Bench) -> Iterator[Row]:
    """The Rust core, then from Python."""
    records, mebibytes = max(500, int(RECORDS * bench.scale)), max(4, int(MEBIBYTES * bench.scale))
    bootstrap = bench.apache.bootstrap_servers
    say(f"direct: {records} records one by one, {mebibytes} MiB in streams, {bench.pairs} rounds")
    spinning, sleeping, apache, fetches, alone, takes = rounds(
        [
            partial(core, "shm", SPIN_US, records, mebibytes),
            partial(core, "shm", 0, records, mebibytes),
            partial(core, "tcp", 0, records, mebibytes, bootstrap),
            partial(empty_fetches, bench),
            partial(one_thread, records),
            partial(taken, records // 10),
        ],
        bench.pairs,
    )
    for mode, samples in (("spinning", spinning), ("sleeping", sleeping)):
        yield from core_rows(mode, samples, apache)
    three = [run["from send to batch"]["p50_us"] for run in spinning]
    case = "direct: from send to batch in one thread / in three, p50"
    yield paired(case, alone, three, "us", bar_on_ours=ONE_THREAD_US)
    shared, own = (
        [run[f"produce from Arrow{who}"]["records_s"] / 1e6 for run in spinning] for who in (", 4 producers", "")
    )
    case = "direct[spinning]: produce from Arrow, 4 producers of one partition / one producer"
    yield paired(case, shared, own, "M records/s", bar=0.6)
    for what in ("64 KiB", "one record"):
        copied, placed = ([run[f"{what}, {way}"] for run in takes] for way in ("copied out", "in place"))
        yield paired(
            f"direct: a batch of {what} taken by the broker / checked in place, the paper's way", copied, placed, "us"
        )
    roce = soft_roce()
    yield from paper_rows(spinning, apache, roce)
    empty = [run["empty poll"]["p50_us"] for run in spinning]
    said = "direct, the paper's empty fetch: 2.5 there, Kafka 200"
    yield paired(f"{said}; here / Apache Kafka over TCP", empty, fetches, "us")
    if roce:
        yield paired(f"{said}; {ON_ROCE}", [roce["empty poll"]["p50_us"]], fetches, "us")
    polls = [1 / run["empty poll"]["p50_us"] for run in spinning]
    rates = [1 / us for us in fetches]
    yield paired("direct[spinning]: empty polls / empty Fetches of Apache Kafka", polls, rates, "M/s", bar=500)
    yield from python_rows(bench)


def core_rows(mode: str, ours: Sequence[Figures], apache: Sequence[Figures]) -> Iterator[Row]:
    """Latencies, tails, and rates of one mode beside our client on Apache Kafka over TCP."""
    bars = mode == "spinning"
    for name, most in LATENCIES.items():
        for part in ("p50_us", "p99_us", "p999_us"):
            mine, theirs = ([run[name][part] for run in runs] for runs in (ours, apache))
            bar = most if bars and part == "p50_us" else None
            case = f"direct[{mode}]: {name}, {part.removesuffix('_us')}"
            # What an empty poll costs over TCP is no Fetch: the broker is not asked.
            yield paired(f"{case} / the same over TCP to Apache Kafka", mine, theirs, "us", bar_on_ours=bar)
    acknowledged = [run["produce, acknowledged"] for run in ours]
    tail, middle = ([run[part] for run in acknowledged] for part in ("p999_us", "p50_us"))
    yield paired(f"direct[{mode}]: p99.9 / p50 of an acknowledged record", tail, middle, "us", bar_below=20)
    for name, least in RATES.items():
        mine, theirs = ([run[name]["records_s"] / 1e6 for run in runs] for runs in (ours, apache))
        case = f"direct[{mode}]: {name} / the same over TCP to Apache Kafka"
        yield paired(case, mine, theirs, "M records/s", bar_least=least if bars else None)
    for name, share in OF_MEMORY.items():
        mine, copies = ([run[part]["bytes_s"] / (1 << 30) for run in ours] for part in (name, "copy of memory"))
        case = f"direct[{mode}]: {name} / copying memory"
        yield paired(case, mine, copies, "GiB/s", bar=share if bars else None)


def paper_rows(ours: Sequence[Figures], apache: Sequence[Figures], roce: Figures | None) -> Iterator[Row]:
    """The paper's figures beside ours through memory and over RDMA; Kafka's are those of Apache Kafka over TCP here."""
    for figure, unit, theirs, kafka, name, part in PAPER:
        scale = 1 << 20 if unit == "MiB/s" else 1
        shm, tcp = ([run[name][part] / scale for run in runs] for runs in (ours, apache))
        said = f"direct, the paper's figure {figure}: {theirs} there, Kafka {kafka}"
        yield paired(f"{said}; here / Apache Kafka over TCP", shm, tcp, unit)
        if roce:
            yield paired(f"{said}; {ON_ROCE}", [roce[name][part] / scale], tcp, unit)


def empty_fetches(bench: Bench) -> float:
    """Median microseconds of a Fetch that waits for nothing and finds nothing, on one connection."""
    with bench.empty_topic(bench.apache) as topic:
        connection = wire.Connection(bench.apache.bootstrap_servers)
        request = bytearray(raw_fetch.request(topic, 0, 0))
        # max_wait_ms follows the replica's id.
        request[4:8] = bytes(4)
        taken = []
        for _ in range(EMPTY_FETCHES):
            since = time.perf_counter()
            connection.send(wire.FETCH, 1, bytes(request))
            connection.receive()
            taken.append(time.perf_counter() - since)
        connection.close()
    return statistics.median(taken) * 1e6


def python_rows(bench: Bench) -> Iterator[Row]:
    """One record at a time from a Python producer to a Python consumer."""
    records = max(200, int(END_TO_END * bench.scale))
    say(f"direct: {records} records from Python to Python, {bench.pairs} rounds")
    with (
        startup.broker_process() as process,
        startup.broker_process("headrace.poll.spin.us=0") as asleep,
    ):
        own, drowsy = (Cluster("headrace", each.bootstrap_servers) for each in (process, asleep))

        def run(what: str, cluster: Cluster) -> dict[str, float]:
            with bench.empty_topic(cluster) as topic:
                where = (cluster.bootstrap_servers, topic, records)
                return dict(json.loads(last_line("benches.direct", what, *where)))

        mine, sleeping, tcp, peer = rounds(
            [
                partial(run, "ours", own),
                partial(run, "sleeping", drowsy),
                partial(run, "tcp", own),
                partial(run, "confluent", bench.apache),
            ],
            bench.pairs,
        )
    for part in ("p50_us", "p99_us", "p999_us"):
        us = [[sample[part] for sample in samples] for samples in (mine, tcp, peer, sleeping)]
        case = f"direct: Python to Python, {part.removesuffix('_us')}"
        ratio, most = (0.1, END_TO_END_US) if part == "p50_us" else (None, None)
        yield paired(f"{case} / confluent-kafka on Apache Kafka", us[0], us[2], "us", bar_below=ratio)
        yield paired(f"{case}, sleeping / confluent-kafka on Apache Kafka", us[3], us[2], "us")
        yield paired(f"{case} / our broker over TCP", us[0], us[1], "us", bar_on_ours=most)
    for part, most in (("empty_us", EMPTY_POLL_US), ("result_us", None)):
        case = {"empty_us": "poll of an empty consumer", "result_us": "send, and wait for its future"}[part]
        mine_us, tcp_us = ([sample[part] for sample in samples] for samples in (mine, tcp))
        yield paired(f"direct: from Python, {case} / over TCP", mine_us, tcp_us, "us", bar_on_ours=most)
    yield from many_rows(bench)


def many_rows(bench: Bench) -> Iterator[Row]:
    """Rows with keys, from Python to many partitions: first into memory that nobody has touched, then again."""
    count = max(1, int(MANY_BATCHES * bench.scale))
    say(f"direct: {count} times {MANY_ROWS} rows to {MANY_PARTITIONS} partitions, {bench.pairs} rounds")
    with startup.broker_process() as process:

        def run(datapath: str) -> tuple[float, float]:
            return to_many(process.bootstrap_servers, datapath, count)

        shm, tcp = rounds([partial(run, "shm"), partial(run, "tcp")], bench.pairs)
    case = f"direct: from Python, produce from Arrow to {MANY_PARTITIONS} partitions"
    for number, when in enumerate(("at first", "then")):
        mine, theirs = ([sample[number] for sample in samples] for samples in (shm, tcp))
        yield paired(f"{case}, {when} / our broker over TCP", mine, theirs, "M records/s")


def to_many(bootstrap: str, datapath: str, count: int) -> tuple[float, float]:
    """Millions of records a second of a new producer, then of the same one again."""
    topic = f"many-{datapath}-{time.time_ns()}"
    table = pa.table({"key": [b"%d" % row for row in range(MANY_ROWS)], "value": [VALUE] * MANY_ROWS})
    rates = []
    with (
        hr.Admin(bootstrap) as admin,
        hr.Producer(bootstrap, headrace_datapath=datapath, batch_size=64 << 10) as producer,
    ):
        admin.create_topic(topic, MANY_PARTITIONS)
        if datapath == "shm":
            for partition in range(MANY_PARTITIONS):
                went = producer.metrics()["direct-bytes-produced-total"]
                while producer.metrics()["direct-bytes-produced-total"] == went:
                    producer.send(topic, VALUE, partition=partition).result()
        for _ in range(2):
            since = time.perf_counter()
            for _ in range(count):
                producer.send_arrow(topic, table)
            producer.flush()
            rates.append(count * MANY_ROWS / (time.perf_counter() - since) / 1e6)
        admin.delete_topics([topic])
    return rates[0], rates[1]


def end_to_end(send: Callable[[], None], take: Callable[[], int], records: int) -> dict[str, float]:
    """Microseconds from before a send until its record is there."""
    taken = []
    for number in range(records + WARM_UP):
        since = time.perf_counter()
        send()
        while take() == 0:
            pass
        if number >= WARM_UP:
            taken.append((time.perf_counter() - since) * 1e6)
    taken.sort()
    return {f"p{name}_us": taken[int(len(taken) * part)] for name, part in (("50", 0.5), ("99", 0.99), ("999", 0.999))}


def median_us(act: Callable[[], object], times: int) -> float:
    """Microseconds of what is done again and again."""
    taken = []
    for _ in range(times):
        since = time.perf_counter()
        act()
        taken.append((time.perf_counter() - since) * 1e6)
    return statistics.median(taken)


def ours(bootstrap: str, topic: str, records: int, datapath: str, spin_us: int = SPIN_US) -> dict[str, float]:
    """Our client at both ends."""
    with (
        hr.Producer(bootstrap, headrace_datapath=datapath, headrace_poll_spin_us=spin_us, linger_ms=0) as producer,
        hr.Consumer(
            bootstrap, headrace_datapath=datapath, headrace_poll_spin_us=spin_us, auto_offset_reset="earliest"
        ) as consumer,
    ):
        consumer.assign([(topic, 0)])

        def send() -> None:
            producer.send(topic, VALUE, partition=0)

        found = end_to_end(send, lambda: consumer.poll(1.0).num_rows, records)
        found["empty_us"] = median_us(lambda: consumer.poll(0), records)
        found["result_us"] = median_us(lambda: producer.send(topic, VALUE, partition=0).result(), records)
        went = producer.metrics()["direct-bytes-produced-total"], consumer.metrics()["direct-bytes-consumed-total"]
    assert all(went) == (datapath == "shm"), "it went another way"
    return found


def confluent(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    """confluent-kafka at both ends, set to send and answer at once."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "direct",
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def send() -> None:
        producer.produce(topic, VALUE, partition=0)
        producer.poll(0)

    def take() -> int:
        message = consumer.poll(1.0)
        return int(message is not None and message.error() is None)

    found = end_to_end(send, take, records)
    producer.flush(TIMEOUT_SECONDS)
    consumer.close()
    return found


def main() -> None:
    """Entry point of one side in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ours", "sleeping", "tcp", "confluent"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    o = parser.parse_args()
    if o.what == "confluent":
        found = confluent(o.bootstrap, o.topic, o.records)
    else:
        datapath, spin_us = ("tcp" if o.what == "tcp" else "shm"), (0 if o.what == "sleeping" else SPIN_US)
        found = ours(o.bootstrap, o.topic, o.records, datapath, spin_us)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
