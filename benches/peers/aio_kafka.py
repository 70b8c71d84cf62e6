"""aiokafka: records one by one, and in lists."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from benches.peers.meter import Meter, Sample, arguments

TIMEOUT_SECONDS = 30
LIST_RECORDS = 20_000
FETCH_BYTES = 8 << 20
"""As much of a partition in an answer as our consumer takes by default."""


async def consume(bootstrap: str, topic: str, partitions: int, records: int, *, lists: bool) -> Sample:
    """One pass over a topic; the clock starts behind the first record or list, which is not counted."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        positions = dict.fromkeys(range(partitions), 0)
        meter = Meter()
        seen = await (by_lists if lists else one_by_one)(consumer, positions, records, meter)
        sample = meter.sample()
    finally:
        await consumer.stop()
    assert sum(positions.values()) == seen == records, "offsets and records disagree"
    return sample


async def one_by_one(consumer: AIOKafkaConsumer, positions: dict[int, int], records: int, meter: Meter) -> int:
    """Gives the number of records."""
    seen = 0
    async for record in consumer:
        positions[record.partition] = record.offset + 1
        seen += 1
        if seen == 1:
            meter.start()
        if seen == records:
            break
    meter.count(seen - 1, 0)
    return seen


async def by_lists(consumer: AIOKafkaConsumer, positions: dict[int, int], records: int, meter: Meter) -> int:
    """Gives the number of records."""
    seen = 0
    while seen < records:
        found = await consumer.getmany(timeout_ms=TIMEOUT_SECONDS * 1000, max_records=LIST_RECORDS)
        if not found:
            raise RuntimeError(f"nothing for {TIMEOUT_SECONDS} s after {seen} of {records} records")
        rows = 0
        for partition, batch in found.items():
            positions[partition.partition] = batch[-1].offset + 1
            rows += len(batch)
        seen += rows
        if meter.running:
            meter.count(rows, 0)
        else:
            meter.start()
    return seen


def main() -> None:
    """Entry point."""
    o = arguments(__doc__, "records", "lists")
    print(asyncio.run(consume(o.bootstrap, o.topic, o.partitions, o.records, lists=o.what == "lists")).line())


if __name__ == "__main__":
    main()
