"""Streams: a topic of small records through `async for`, each partition with a reader and back-pressure of its own.

Ours gives batches: one row of the table only counts their rows, the other makes a Python object of every value. The
peer, aiokafka, gives records, all partitions in one loop, which is its fastest form and has no back-pressure by
partition: it does less for them. A second peer row takes lists of records (`getmany`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import headrace as hr
from benches.harness import Row, compare, in_turns, program, say
from benches.peers.meter import Meter, Sample, arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench
    from headrace.aio import Batches

SIZE = 100
PARTITIONS = 4
RECORDS = 1_000_000
TIMEOUT_SECONDS = 120
BAR = 10


class Count:
    """What the readers of all partitions have seen; the clock starts behind the first batch, which is not counted."""

    def __init__(self, records: int) -> None:
        self.left = records
        self.meter = Meter()

    def add(self, rows: int) -> None:
        """So many more."""
        self.left -= rows
        if self.meter.running:
            self.meter.count(rows, 0)
        else:
            self.meter.start()


async def read(batches: Batches, count: Count, stream: hr.aio.Stream, *, values: bool) -> None:
    """One partition; offsets are checked to be without a gap."""
    position = 0
    async for batch in batches:
        rows = batch.num_rows
        offsets = batch.column("offset")
        span = (offsets[0].as_py(), offsets[rows - 1].as_py())
        assert span == (position, position + rows - 1), "a gap in the offsets"
        position += rows
        if values:
            for value in batch.column("value").to_pylist():
                assert len(value) == SIZE
        count.add(rows)
        if count.left == 0:
            stream.stop()


async def consume(bootstrap: str, topic: str, partitions: int, records: int, *, values: bool) -> Sample:
    """One pass over a topic."""
    count = Count(records)
    where = [(topic, number) for number in range(partitions)]
    async with hr.aio.Stream(bootstrap, where, auto_offset_reset="earliest") as stream:
        tasks = []
        async for _, batches in stream.partitions():
            tasks.append(asyncio.create_task(read(batches, count, stream, values=values)))
            if len(tasks) == partitions:
                break
        await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_SECONDS)
        assert count.left == 0, f"{count.left} records are missing"
        return count.meter.sample()


def rows(bench: Bench) -> Iterator[Row]:
    """Both of ours beside both of the peer's, in turns."""
    records = bench.records(RECORDS)
    case = f"async for[{SIZE}B-{PARTITIONS}p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    bootstrap = bench.apache.bootstrap_servers
    with bench.full_topic(bench.apache, SIZE, PARTITIONS, records) as topic:
        where = (bootstrap, topic, "--partitions", PARTITIONS, "--records", records)
        batches, values, one_by_one, lists = in_turns(
            [
                partial(program, "benches.streams", "batches", *where),
                partial(program, "benches.streams", "values", *where),
                partial(program, "benches.peers.aio_kafka", "records", *where),
                partial(program, "benches.peers.aio_kafka", "lists", *where),
            ],
            bench.pairs,
        )
    yield compare(f"{case} / aiokafka", batches, one_by_one, bar=BAR)
    yield compare(f"{case}, every value a Python object / aiokafka", values, one_by_one)
    yield compare(f"{case} / aiokafka's getmany", batches, lists)


def main() -> None:
    """Entry point."""
    o = arguments(__doc__, "batches", "values")
    sample = asyncio.run(consume(o.bootstrap, o.topic, o.partitions, o.records, values=o.what == "values"))
    print(sample.line())


if __name__ == "__main__":
    main()
