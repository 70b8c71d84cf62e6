"""Three copies: our brokers beside Apache Kafka's, three processes each, acks all.

One producer, ours, writes to one partition of each cluster in turns: first records of 100 bytes one after the other,
each acknowledged before the next is sent, then as many records of 1 and of 32 KiB as the brokers take. Ours have three
turns: followers fetch over TCP (`fetched`); leaders push into their memory (`pushed`); and the producer writes into the
leader's memory besides (`one-sided`). These are KafkaDirect's figures 14 and 15; 16 is the same records of 32 KiB with
one and two copies. `by_merging` has its figure 17: requests of one record of 32 bytes each, by how many bytes of them a
leader writes into a follower's memory at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import time
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import headrace as hr
from benches import ours
from benches.harness import Row, last_line, paired, say
from tests.cluster.processes import brokers, etcd
from tests.kafka.apache import scratch_folder
from tests.kafka.nodes import ApacheNodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench
    from headrace._options import OptionValue

COPIES = 3
SMALL_BYTES = 100
LARGE_BYTES = 1024
HUGE_BYTES = 32 << 10
ONE_BY_ONE = 2000
WARM_UP = 300
RECORDS = 400_000
TINY_BYTES = 32
TINY_RECORDS = 100_000
MERGED_BYTES = {"one by one": 1, "1 KiB": 1 << 10, "16 KiB": 16 << 10}
HUGE_RECORDS = 12_000
BATCH_BYTES = 128 << 10
P50_BAR = 0.7
RATE_BAR = 1.5
DIRECT_P50_BAR = 1 / 14
DIRECT_RATE_BAR = 9


@dataclasses.dataclass(frozen=True)
class Figures:
    """One run."""

    p50_us: float
    p99_us: float
    rate: float
    """Millions of records of 1 KiB a second."""
    huge: float
    """Bytes of records of 32 KiB a second, in millions."""
    huge_1: float = 0
    """The same with one copy."""
    huge_2: float = 0
    """With two."""


def _rate(bootstrap: str, topic: str, options: dict[str, OptionValue], size: int, records: int) -> float:
    """Records a second."""
    batched = {"linger.ms": 5, "batch.size": max(BATCH_BYTES, 8 * size)}
    with hr.Producer(bootstrap, {**options, **batched}) as producer:
        batch = ours.block(size, 0)
        ours.send_all(producer, topic, batch, 1)
        began = time.perf_counter()
        ours.send_all(producer, topic, batch, records)
        return records / (time.perf_counter() - began)


def measure(bootstrap: str, topic: str, datapath: str, counts: tuple[int, int, int]) -> Figures:
    """One run against one cluster: so many records one by one, of 1 KiB and of 32 KiB."""
    one_by_one, records, huge = counts
    options: dict[str, OptionValue] = {"acks": "all", "enable.idempotence": True, "headrace.datapath": datapath}
    with hr.Producer(bootstrap, {**options, "linger.ms": 0}) as producer:
        value = b"x" * SMALL_BYTES
        times = []
        for number in range(WARM_UP + one_by_one):
            began = time.perf_counter()
            producer.send(topic, value=value, partition=0).result()
            if number >= WARM_UP:
                times.append(time.perf_counter() - began)
    times.sort()
    return Figures(
        p50_us=times[len(times) // 2] * 1e6,
        p99_us=times[len(times) * 99 // 100] * 1e6,
        rate=_rate(bootstrap, topic, options, LARGE_BYTES, records) / 1e6,
        huge=huge_rate(bootstrap, topic, datapath, huge),
    )


def huge_rate(bootstrap: str, topic: str, datapath: str, records: int) -> float:
    """Bytes of records of 32 KiB a second, in millions."""
    options: dict[str, OptionValue] = {"acks": "all", "enable.idempotence": True, "headrace.datapath": datapath}
    return _rate(bootstrap, topic, options, HUGE_BYTES, records) * HUGE_BYTES / 1e6


def alone(bootstrap: str, topic: str, records: int) -> float:
    """Records of 32 bytes a second, in millions, each in a request of its own that does not wait for the last one."""
    options: dict[str, OptionValue] = {"acks": "all", "enable.idempotence": True, "headrace.datapath": "auto"}
    with hr.Producer(bootstrap, {**options, "linger.ms": 0, "batch.size": 1}) as producer:
        batch = ours.block(TINY_BYTES, 0)
        ours.send_all(producer, topic, batch, len(batch))
        began = time.perf_counter()
        ours.send_all(producer, topic, batch, records)
        return records / (time.perf_counter() - began) / 1e6


@contextlib.contextmanager
def _topic(bootstrap: str, name: str, copies: int = COPIES) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    deadline = time.monotonic() + 60
    while len(admin.list_topics(timeout=10).brokers) < COPIES and time.monotonic() < deadline:
        time.sleep(0.1)
    admin.create_topics([NewTopic(name, 1, copies)])[name].result(60)
    time.sleep(1)
    yield
    admin.delete_topics([name])[name].result(60)


def _run(bench: Bench, bootstrap: str, topic: str, datapath: str) -> Figures:
    counts = max(100, int(ONE_BY_ONE * bench.scale)), bench.records(RECORDS), bench.records(HUGE_RECORDS)
    with _topic(bootstrap, topic):
        found = json.loads(last_line("benches.copies", "all", bootstrap, topic, datapath, *counts))
    for copies in range(1, COPIES):
        with _topic(bootstrap, f"{topic}-{copies}", copies):
            of = bootstrap, f"{topic}-{copies}", datapath, bench.records(HUGE_RECORDS)
            found[f"huge_{copies}"] = json.loads(last_line("benches.copies", "huge", *of))
    return Figures(**found)


def rows(bench: Bench) -> Iterator[Row]:
    """Latency and throughput with three copies."""
    say(f"three copies: {bench.pairs} rounds")
    runs: dict[str, list[Figures]] = {"fetched": [], "pushed": [], "one-sided": [], "apache": []}
    with contextlib.ExitStack() as running:
        where = {}
        for side, pushes in ("fetched", "tcp"), ("pushed", "auto"):
            folder = scratch_folder("copies")
            running.callback(shutil.rmtree, folder, ignore_errors=True)
            store = running.enter_context(etcd(folder))
            address = f"etcd://{store.client}"
            nodes = running.enter_context(brokers(folder, address, COPIES, headrace_direct_replication=pushes))
            where[side] = nodes[1].address, "tcp"
        where["one-sided"] = where["pushed"][0], "auto"
        apache = running.enter_context(ApacheNodes(COPIES, heap="512m", quick=False))
        where["apache"] = apache.bootstrap_servers, "tcp"
        for number in range(-1, bench.pairs):
            for side, (bootstrap, datapath) in where.items():
                figures = _run(bench, bootstrap, f"copies-{side}-{number + 1}", datapath)
                if number >= 0:
                    runs[side].append(figures)
    units = {"p50_us": "us", "p99_us": "us", "rate": "M records/s", "huge": "MB/s", "huge_1": "MB/s", "huge_2": "MB/s"}
    what = {"p50_us": "[100B] p50", "p99_us": "[100B] p99", "rate": "[1KiB] rate"}
    what |= {"huge": "[32KiB] rate", "huge_1": "[32KiB, 1 copy] rate", "huge_2": "[32KiB, 2 copies] rate"}
    bars: dict[tuple[str, str], dict[str, float]] = {
        ("fetched", "p50_us"): {"bar_below": P50_BAR},
        ("fetched", "rate"): {"bar": RATE_BAR},
        ("one-sided", "p50_us"): {"bar_below": DIRECT_P50_BAR},
        ("one-sided", "huge"): {"bar": DIRECT_RATE_BAR},
    }
    for side in "fetched", "pushed", "one-sided":
        for name, unit in units.items():
            mine, theirs = ([getattr(one, name) for one in runs[of]] for of in (side, "apache"))
            label = f"three copies, acks all, {side}{what[name]} / Apache Kafka"
            yield paired(label, mine, theirs, unit, **bars.get((side, name), {}))


def by_merging(bench: Bench) -> Iterator[Row]:
    """Small requests by how much of them is written into a follower's memory at once."""
    rates: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as running:
        where = {}
        for name, merged in MERGED_BYTES.items():
            folder = scratch_folder("merging")
            running.callback(shutil.rmtree, folder, ignore_errors=True)
            address = f"etcd://{running.enter_context(etcd(folder)).client}"
            one = brokers(folder, address, COPIES, headrace_direct_replication_batch_bytes=str(merged))
            where[name] = running.enter_context(one)[1].address
        for number in range(-1, bench.pairs):
            for name, bootstrap in where.items():
                for copies in range(2, COPIES + 1):
                    topic = f"merging-{copies}-{number + 1}"
                    with _topic(bootstrap, topic, copies):
                        found = last_line("benches.copies", "alone", bootstrap, topic, bench.records(TINY_RECORDS))
                    if number >= 0:
                        rates.setdefault((name, copies), []).append(float(found))
    for name in list(MERGED_BYTES)[1:]:
        for copies in range(2, COPIES + 1):
            label = f"{copies} copies, one-sided, requests of 32 B: merged up to {name} / pushed one by one"
            yield paired(label, rates[name, copies], rates["one by one", copies], "M records/s")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    of = parser.add_subparsers(dest="what", required=True)
    for what, counts in ("all", ("one_by_one", "records", "huge")), ("huge", ("huge",)), ("alone", ("records",)):
        one = of.add_parser(what)
        one.add_argument("bootstrap")
        one.add_argument("topic")
        if what != "alone":
            one.add_argument("datapath")
        for count in counts:
            one.add_argument(count, type=int)
    o = parser.parse_args()
    if o.what == "all":
        figures = measure(o.bootstrap, o.topic, o.datapath, (o.one_by_one, o.records, o.huge))
        print(json.dumps(dataclasses.asdict(figures)))
    elif o.what == "huge":
        print(huge_rate(o.bootstrap, o.topic, o.datapath, o.huge))
    else:
        print(alone(o.bootstrap, o.topic, o.records))


if __name__ == "__main__":
    main()
