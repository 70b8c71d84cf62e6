"""The limit of a TCP producer: one prebuilt record batch, sent again and again over one connection.

It also fills the topics that the other benches read.
"""

from __future__ import annotations

import struct
import threading
import time

from benches.peers import wire
from benches.peers.meter import Meter, Sample, arguments
from tests.broker import raw

TIMEOUT_MS = 30_000
RECORD_OVERHEAD_BYTES = 12  # lengths, deltas and attributes of a short record, at most


def head(topic: str, partition: int, size: int, acks: int) -> bytes:
    """The body of Produce version 7, up to the record bytes."""
    one = struct.pack(">iii", 1, partition, size)
    return struct.pack(">hhi", -1, acks, TIMEOUT_MS) + struct.pack(">i", 1) + wire.text(topic) + one


def collect(connection: wire.Connection, responses: int, at: int, free: threading.Semaphore, errors: set[int]) -> None:
    """Takes the responses; each frees a place in flight."""
    try:
        for _ in range(responses):
            errors.add(struct.unpack_from(">h", connection.receive(), at)[0])
            free.release()
    except OSError:
        errors.add(-1)
        free.release(responses)


def measure(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    *,
    size: int,
    batch_bytes: int,
    acks: int = 1,
    in_flight: int = 5,
) -> Sample:
    """Sends `records` (rounded down to whole batches on every partition) of `size` bytes."""
    in_batch = max(1, batch_bytes // (size + RECORD_OVERHEAD_BYTES))
    while records % (in_batch * partitions):
        in_batch -= 1  # so that each partition gets the same count, and the sum is exact
    batch = raw.batch([b"x" * size] * in_batch, timestamp=time.time_ns() // 1_000_000)
    heads = [head(topic, partition, len(batch), acks) for partition in range(partitions)]
    connection = wire.Connection(bootstrap)
    free = threading.Semaphore(in_flight)
    errors: set[int] = set()
    count = records // in_batch
    error_at = 4 + 4 + len(wire.text(topic)) + 4 + 4
    meter = Meter()
    meter.start()
    reader = threading.Thread(target=collect, args=(connection, count, error_at, free, errors))
    reader.start()
    for number in range(count):
        free.acquire()
        connection.send(wire.PRODUCE, number, heads[number % partitions], batch)
    reader.join()
    meter.count(count * in_batch, count * in_batch * size)
    sample = meter.sample()
    connection.close()
    if errors != {0}:
        raise RuntimeError(f"producing to {topic}: errors {sorted(errors)}")
    return sample


def main() -> None:
    """Entry point."""
    o = arguments(__doc__)
    sizes = {"size": o.size, "batch_bytes": o.batch_bytes, "in_flight": o.in_flight}
    sample = measure(o.bootstrap, o.topic, o.partitions, o.records, **sizes)
    print(sample.line())


if __name__ == "__main__":
    main()
