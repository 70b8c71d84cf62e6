"""The limit of a TCP consumer: plain Fetch requests, one connection a partition, records not decoded."""

from __future__ import annotations

import struct
import threading

from benches.peers import wire
from benches.peers.meter import Meter, Sample, arguments

FETCH_BYTES = 16 << 20
MAX_WAIT_MS = 500


def request(topic: str, partition: int, offset: int) -> bytes:
    """The body of Fetch version 4."""
    head = struct.pack(">iiiib", -1, MAX_WAIT_MS, 1, FETCH_BYTES, 0)
    one = struct.pack(">iiqi", 1, partition, offset, FETCH_BYTES)
    return head + struct.pack(">i", 1) + wire.text(topic) + one


def walk(response: memoryview, topic: str, partition: int) -> tuple[int, int, int]:
    """Whole batches of a response: their records, their bytes, and the offset after them (-1: none)."""
    at = 4 + 4 + 4 + len(wire.text(topic)) + 4
    got, error, _high, _stable, aborted = struct.unpack_from(">ihqqi", response, at)
    if (got, error) != (partition, 0):
        raise RuntimeError(f"partition {got} of {topic}: error {error}")
    at += 26 + 16 * max(aborted, 0)
    size = struct.unpack_from(">i", response, at)[0]
    at += 4
    begin, end = at, at + size
    records, following = 0, -1
    while at + wire.HEADER_BYTES <= end:
        base, length = struct.unpack_from(">qi", response, at)
        if at + 12 + length > end:
            break
        following = base + struct.unpack_from(">i", response, at + 23)[0] + 1
        records += struct.unpack_from(">i", response, at + 57)[0]
        at += 12 + length
    return records, at - begin, following


class Reader(threading.Thread):
    """Reads one partition up to `end`; the first response starts the clock that all share."""

    def __init__(self, bootstrap: str, topic: str, partition: int, end: int, meter: Meter) -> None:
        super().__init__()
        self.connection = wire.Connection(bootstrap)
        self.topic = topic
        self.partition = partition
        self.end = end
        self.meter = meter
        self.records = 0
        self.bytes = 0
        self.reached = 0

    def run(self) -> None:
        """Until the end; `reached` tells the caller that it got there."""
        offset = 0
        while offset < self.end:
            self.connection.send(wire.FETCH, 1, request(self.topic, self.partition, offset))
            records, size, following = walk(self.connection.receive(), self.topic, self.partition)
            if offset == 0:
                # What came before the clock ran is not counted, on any of the partitions.
                if not self.meter.running:
                    self.meter.start()
            else:
                self.records += records
                self.bytes += size
            offset = max(offset, following)
        self.connection.close()
        self.reached = offset


def measure(bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
    """One pass over a topic whose partitions hold `records / partitions` records each."""
    meter = Meter()
    end = records // partitions
    readers = [Reader(bootstrap, topic, number, end, meter) for number in range(partitions)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if any(reader.reached < end for reader in readers):
        raise RuntimeError("a partition was not read to its end")
    for reader in readers:
        meter.count(reader.records, reader.bytes)
    return meter.sample()


def whole(bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
    """The records that batch headers of a partition claim, and the bytes of its batches."""
    connection = wire.Connection(bootstrap)
    offset = records = size = 0
    while True:
        connection.send(wire.FETCH, 1, request(topic, partition, offset))
        found, found_bytes, following = walk(connection.receive(), topic, partition)
        if found == 0:
            connection.close()
            return records, size
        records += found
        size += found_bytes
        offset = following


def count(bootstrap: str, topic: str, partition: int = 0) -> int:
    """The records of a partition."""
    return whole(bootstrap, topic, partition)[0]


def size(bootstrap: str, topic: str, partition: int = 0) -> int:
    """The bytes of a partition's batches."""
    return whole(bootstrap, topic, partition)[1]


def main() -> None:
    """Entry point."""
    o = arguments(__doc__)
    print(measure(o.bootstrap, o.topic, o.partitions, o.records).line())


if __name__ == "__main__":
    main()
