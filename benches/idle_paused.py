"""What a thousand idle, paused partitions cost a consumer that reads another one: CPU per record, with and without."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

import headrace as hr
from benches.harness import Row, compare_cpu, in_turns, program, say
from benches.peers.meter import Meter, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench

IDLE = 1000
RECORDS = 5_000_000
SIZE = 100
ROWS_MAX = 500
"""Of a poll, as Java's default: what each poll pays for paused partitions must show."""
TIMEOUT_SECONDS = 30.0
BAR = 1.02


def consume(bootstrap: str, topic: str, records: int, idle_topic: str | None) -> Sample:
    """One pass over the topic, the first poll left out; the idle partitions are assigned and paused before it."""
    meter = Meter()
    seen = 0
    with hr.Consumer(bootstrap, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        idle = [(idle_topic, number) for number in range(IDLE)] if idle_topic is not None else []
        consumer.assign([(topic, 0), *idle])
        consumer.pause(idle)
        while seen < records:
            rows = consumer.poll(TIMEOUT_SECONDS, ROWS_MAX).num_rows
            if rows == 0:
                raise RuntimeError(f"nothing for {TIMEOUT_SECONDS} s after {seen} of {records} records")
            seen += rows
            if not meter.running:
                meter.start()
            else:
                meter.count(rows, 0)
        assert len(consumer.paused()) == len(idle)
        return meter.sample()


def rows(bench: Bench) -> Iterator[Row]:
    """With and without, in turns."""
    records = bench.records(RECORDS)
    bootstrap = bench.apache.bootstrap_servers
    say(f"idle-paused: {records} records, {bench.pairs} rounds")
    with (
        bench.full_topic(bench.apache, SIZE, 1, records) as topic,
        bench.empty_topic(bench.apache, IDLE) as idle_topic,
    ):
        run = partial(program, "benches.idle_paused", bootstrap, topic, records)
        beside, alone = in_turns([partial(run, "--idle", idle_topic), run], bench.pairs)
    case = f"idle-paused[{SIZE}B-{IDLE}p]: CPU beside {IDLE} paused partitions / alone"
    yield compare_cpu(case, beside, alone, bar_below=BAR)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    parser.add_argument("--idle", help="the topic whose partitions are paused")
    o = parser.parse_args()
    print(consume(o.bootstrap, o.topic, o.records, o.idle).line())


if __name__ == "__main__":
    main()
