"""One of two brokers stops answering: what the partitions of the other lose.

Two nodes of Apache Kafka, one partition each, and one producer that sends to both from a thread a partition. A run
measures some seconds with both alive and as many after the second node was stopped (SIGSTOP), then lets that one go
on and checks that everything arrives.

- `backlog`: what is sent to the second node fits beside the rest into the buffer until the end.
- `flood`: it does not. Records that nobody takes fill the second node's share (`buffer.memory.broker.share`), and what
  counts is what is left for the first node.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import headrace as hr
from benches import ours
from benches.harness import Row, last_line, paired, say
from benches.two_nodes import two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from benches.run import Bench
    from headrace._options import OptionValue

SIZE = 1024
SECONDS = 4.0
SETTLE_SECONDS = 0.5
BUFFER_BYTES = 32 << 20
BACKLOG_SHARE = 0.1
"""Of the buffer: what `backlog` sends to the silent broker, all in all."""
ACKS_WAIT_SECONDS = 60.0
STUCK_SECONDS_MAX = 10.0
BACKLOG_BAR = 0.95
FLOOD_BAR = 0.25
"""What must be left of the first node's rate when another broker's backlog has outgrown its share of the buffer."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Acknowledged records a second of the first node's partition."""

    alive: float
    silent: float
    backlog: int
    """Records for the second node that waited at the end."""


class Load:
    """A thread that sends to one partition, as fast as it may or `rows_per_second`."""

    def __init__(self, producer: hr.Producer, topic: str, partition: int, rows_per_second: float | None = None) -> None:
        self.producer = producer
        self.topic = topic
        self.batch: pa.RecordBatch = ours.block(SIZE, partition)
        if rows_per_second is not None:
            self.batch = self.batch.slice(0, 16)
        self.pause = 0.0 if rows_per_second is None else self.batch.num_rows / rows_per_second
        self.sent = self.acknowledged = 0
        self.errors: list[BaseException] = []
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self.ended.wait(self.pause):
            try:
                future = self.producer.send_arrow(self.topic, self.batch)
            except hr.KafkaError as error:
                self.errors.append(error)
                return
            self.sent += self.batch.num_rows
            future.add_done_callback(self._done)

    def _done(self, future: Future[int]) -> None:
        # On the producer's delivery thread, or on this load's own if the answer was faster.
        error = future.exception()
        with self.lock:
            if error is None:
                self.acknowledged += future.result()
            else:
                self.errors.append(error)

    def settle(self, *, until_stuck: bool) -> None:
        """Waits a little, or until this load gets nothing more into the buffer."""
        deadline = time.monotonic() + STUCK_SECONDS_MAX
        while True:
            before = self.sent
            time.sleep(SETTLE_SECONDS)
            if not until_stuck or self.sent == before or time.monotonic() > deadline:
                return

    def rate(self, seconds: float) -> float:
        """Acknowledgements a second over the next `seconds`."""
        before, began = self.acknowledged, time.perf_counter()
        time.sleep(seconds)
        return (self.acknowledged - before) / (time.perf_counter() - began)


def measure(bootstrap: str, topic: str, what: str, seconds: float, pid: int) -> Rates:
    """One run; `pid` is the second node's process."""
    options: dict[str, OptionValue] = {"acks": "1", "enable.idempotence": False, "buffer.memory": BUFFER_BYTES}
    with hr.Producer(bootstrap, options) as producer:
        trickle = BUFFER_BYTES * BACKLOG_SHARE / SIZE / (seconds + SETTLE_SECONDS)
        first, second = Load(producer, topic, 0), Load(producer, topic, 1, trickle if what == "backlog" else None)
        for load in (first, second):
            ours.send_all(producer, topic, load.batch, 1)  # connects
            load.thread.start()
        time.sleep(SETTLE_SECONDS)
        alive = first.rate(seconds)
        os.kill(pid, signal.SIGSTOP)
        try:
            second.settle(until_stuck=what == "flood")
            silent = first.rate(seconds)
            backlog = second.sent - second.acknowledged
        finally:
            os.kill(pid, signal.SIGCONT)
        for load in (first, second):
            load.ended.set()
            load.thread.join(ACKS_WAIT_SECONDS)
        producer.flush(ACKS_WAIT_SECONDS)
    for load in (first, second):
        assert not load.errors, load.errors[0]
        assert load.acknowledged == load.sent, f"{load.acknowledged} of {load.sent} records acknowledged"
    return Rates(alive, silent, backlog)


def rows(bench: Bench) -> Iterator[Row]:
    """What is left for the first node's partition when the second node is silent."""
    seconds = max(0.5, SECONDS * bench.scale)
    with two_nodes(heap="1g", quick=False) as nodes:
        for what, bar in (("backlog", BACKLOG_BAR), ("flood", FLOOD_BAR)):
            say(f"one of two brokers silent, {what}: {bench.pairs} rounds")
            runs: list[Rates] = []
            for number in range(-1, bench.pairs):
                topic = nodes.create_topic(f"{what}-{number + 1}")
                where = (nodes.first.bootstrap_servers, topic, what, seconds, nodes.second.pid)
                rates = Rates(**json.loads(last_line("benches.stalled", *where)))
                if number >= 0:
                    runs.append(rates)
                nodes.delete_topic(topic)
            silent, alive = ([getattr(run, name) / 1e6 for run in runs] for name in ("silent", "alive"))
            name = f"one of two brokers silent[{SIZE}B-{what}]: the other's rate / before"
            yield paired(name, silent, alive, "M records/s", bar=bar)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("what", choices=["backlog", "flood"])
    parser.add_argument("seconds", type=float)
    parser.add_argument("pid", type=int, help="the process to stop")
    o = parser.parse_args()
    print(json.dumps(dataclasses.asdict(measure(o.bootstrap, o.topic, o.what, o.seconds, o.pid))))


if __name__ == "__main__":
    main()
