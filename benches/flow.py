"""Slow and fast readers of many partitions: Lightbend's workload for flow control (KAFKA-7548).

Each partition has a reader of its own behind one consumer. A reader that was given records works on them for a while,
and its partition is paused for as long: half of the readers are fast, half of them slow. Every client reads the whole
topic so, through a proxy that counts. What it receives beyond what the log holds was fetched more than once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import html
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

import headrace as hr
from benches import harness
from benches.harness import Row, paired, program, say
from benches.pause import tapped
from benches.peers import raw_fetch
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Meter, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benches.run import Bench
    from benches.wiretap import Wiretap

PARTITIONS = 100
RECORDS = 100_000
"""A tenth of Lightbend's, and of its 5 GB."""
SIZE = 5000
ROWS_MAX = 500
FAST_SECONDS, SLOW_SECONDS = 0.001, 0.05
TIMEOUT_SECONDS = 0.1
IDLE_SECONDS_MAX = 60.0
TICK_SECONDS = 0.05
PICTURE = harness.ROOT / "benches" / "results" / "flow.svg"


class Readers:
    """Which partitions are at work, and until when."""

    def __init__(self, records: int) -> None:
        self.left = [records // PARTITIONS] * PARTITIONS
        self.until = [0.0] * PARTITIONS
        self.paused: set[int] = set()

    def free(self) -> list[int]:
        """Those whose work is done: to be resumed."""
        now = time.perf_counter()
        done = [number for number in self.paused if self.until[number] <= now]
        self.paused.difference_update(done)
        return done

    def take(self, number: int, rows: int) -> None:
        """A partition's reader was given rows: it is to be paused."""
        self.left[number] -= rows
        self.until[number] = time.perf_counter() + (SLOW_SECONDS if number % 2 else FAST_SECONDS)
        self.paused.add(number)


def read(
    records: int,
    resume: Callable[[list[int]], None],
    pause: Callable[[list[int]], None],
    poll: Callable[[], dict[int, int]],
    *,
    strays: bool = False,
) -> Sample:
    """Until everything is read; `poll` says how many rows of which partitions came, with `strays` also paused ones."""
    readers = Readers(records)
    meter = Meter()
    meter.start()
    heard = time.perf_counter()
    while any(readers.left):
        if free := readers.free():
            resume(free)
        found = poll()
        for number, rows in found.items():
            if number in readers.paused and not strays:
                raise RuntimeError(f"{rows} rows of partition {number}, which is paused")
            readers.take(number, rows)
            meter.count(rows, rows * SIZE)
        if found:
            pause(list(found))
            heard = time.perf_counter()
        elif time.perf_counter() - heard > IDLE_SECONDS_MAX:
            raise RuntimeError(f"nothing for {IDLE_SECONDS_MAX} s, and {sum(readers.left)} records are left")
    return meter.sample()


def ours(bootstrap: str, topic: str, records: int) -> Sample:
    """Ours, from Python."""
    partitions = [(topic, number) for number in range(PARTITIONS)]
    with hr.Consumer(bootstrap, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign(partitions)

        def poll() -> dict[int, int]:
            batches = consumer.poll_all(TIMEOUT_SECONDS, ROWS_MAX)
            return {batch.column("partition")[0].as_py(): batch.num_rows for batch in batches if batch.num_rows}

        return read(
            records,
            lambda numbers: consumer.resume([partitions[number] for number in numbers]),
            lambda numbers: consumer.pause([partitions[number] for number in numbers]),
            poll,
        )


def confluent(bootstrap: str, topic: str, records: int) -> Sample:
    """confluent-kafka, which may still hand out what was on its way to the caller when a partition was paused."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.queue.backoff.ms": 1})
    partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    seen = 0

    def poll() -> dict[int, int]:
        nonlocal seen
        found: dict[int, int] = {}
        for message in consumer.consume(max(1, min(ROWS_MAX, records - seen)), TIMEOUT_SECONDS):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            number = message.partition()
            assert number is not None
            found[number] = found.get(number, 0) + 1
            seen += 1
        return found

    sample = read(
        records,
        lambda numbers: consumer.resume([partitions[number] for number in numbers]),
        lambda numbers: consumer.pause([partitions[number] for number in numbers]),
        poll,
        strays=True,
    )
    consumer.close()
    return sample


@dataclasses.dataclass(frozen=True)
class Run:
    """What one client did."""

    name: str
    sample: Sample
    fetches: int
    curve: list[tuple[float, float]]
    """Seconds, and megabytes received until then."""

    @property
    def received(self) -> float:
        """Megabytes."""
        return self.curve[-1][1]


@contextlib.contextmanager
def watched(tap: Wiretap, curve: list[tuple[float, float]], fetches: list[int]) -> Iterator[None]:
    """Notes now and then what has gone through."""
    over = threading.Event()
    tap.take()
    began = time.perf_counter()

    def note() -> None:
        taken = tap.take()
        fetches.append(taken.fetches)
        before = curve[-1][1] if curve else 0.0
        curve.append((time.perf_counter() - began, before + taken.received / 1e6))

    def watch() -> None:
        while not over.wait(TICK_SECONDS):
            note()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        note()


def measure(tap: Wiretap, name: str, records: int, run: Callable[[], Sample]) -> Run:
    """One client, with its traffic."""
    curve: list[tuple[float, float]] = []
    fetches: list[int] = []
    with watched(tap, curve, fetches):
        sample = run()
    assert sample.records == records, f"{name} read {sample.records} of {records} records"
    return Run(name, sample, sum(fetches), curve)


def rows(bench: Bench) -> Iterator[Row]:
    """All clients once: the traffic is counted, not measured. The picture goes beside the results."""
    records = max(PARTITIONS, int(RECORDS * bench.scale) // PARTITIONS * PARTITIONS)
    with tapped() as (far, tap), bench.empty_topic(far, PARTITIONS) as topic, JavaPeer() as java:
        bootstrap = far.bootstrap_servers
        fill = ("--partitions", PARTITIONS, "--records", records, "--size", SIZE)
        program("benches.peers.raw_produce", bootstrap, topic, *fill)
        held = sum(raw_fetch.size(bootstrap, topic, number) for number in range(PARTITIONS)) / 1e6
        say(f"flow[{PARTITIONS}p-{SIZE}B]: {records} records, {held:.0f} MB")
        clients: list[tuple[str, Callable[[], Sample]]] = [
            ("headrace", partial(program, "benches.flow", "ours", bootstrap, topic, records)),
            ("Java", lambda: java.flow(bootstrap, topic, PARTITIONS, records)),
            ("confluent-kafka", partial(program, "benches.flow", "confluent", bootstrap, topic, records)),
        ]
        runs = [measure(tap, name, records, run) for name, run in clients]
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(runs, held, PICTURE)
    mine, *peers = runs
    case = f"flow[{PARTITIONS}p-{SIZE}B]"
    yield paired(f"{case}: received / in the log", [mine.received], [held], "MB", bar_below=1.05)
    for peer in peers:
        yield paired(f"{case}: received / {peer.name}", [mine.received], [peer.received], "MB")
        yield paired(f"{case}: Fetch requests / {peer.name}", [mine.fetches], [peer.fetches], "requests")
        rates = [mine.sample.rate / 1e3], [peer.sample.rate / 1e3]
        yield paired(f"{case}: records read / {peer.name}", *rates, "k records/s")


COLOURS = ("#0b7285", "#c92a2a", "#868e96")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 820, 380, 70, 50, 200, 50


def draw(runs: Sequence[Run], held: float, path: Path) -> None:
    """Megabytes received over time, a line a client; what the log holds is dashed."""
    seconds = max(run.curve[-1][0] for run in runs)
    most = max(held, *(run.received for run in runs)) * 1.05

    def at(x: float, y: float) -> str:
        across = LEFT + x / seconds * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM):.1f}"

    def text(x: float, y: float, words: str, colour: str = "#212529") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{html.escape(words)}</text>'

    end = WIDTH - RIGHT
    title = f"{PARTITIONS} partitions, slow and fast readers: megabytes that the consumer receives, by second"
    parts = [text(LEFT, TOP - 24, title)]
    parts.append(f'<polyline points="{at(0, most)} {at(0, 0)} {at(seconds, 0)}" fill="none" stroke="#adb5bd"/>')
    dashed = 'fill="none" stroke="#212529" stroke-dasharray="5 4"'
    parts.append(f'<polyline points="{at(0, held)} {at(seconds, held)}" {dashed}/>')
    parts.append(text(end + 8, TOP + 8, f"- - in the log: {held:.0f} MB"))
    for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        points = " ".join(at(*point) for point in [(0.0, 0.0), *run.curve])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 40 + 56 * number
        parts.append(text(end + 8, y, run.name, colour))
        parts.append(text(end + 8, y + 16, f"{run.received:.0f} MB, {run.fetches} Fetches", colour))
        parts.append(text(end + 8, y + 32, f"{run.curve[-1][0]:.1f} s", colour))
    for share in (0.25, 0.5, 0.75, 1.0):
        across, down = (float(part) for part in at(seconds * share, most * share).split(","))
        parts.append(text(across - 12, HEIGHT - BOTTOM + 18, f"{seconds * share:.1f} s"))
        parts.append(text(LEFT - 62, down + 4, f"{most * share:.0f} MB"))
    style = 'font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    path.write_text("\n".join([head, *parts, "</svg>"]) + "\n", encoding="utf-8")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ours", "confluent"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    o = parser.parse_args()
    print((ours if o.what == "ours" else confluent)(o.bootstrap, o.topic, o.records).line())


if __name__ == "__main__":
    main()
