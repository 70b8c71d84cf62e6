"""A producer that is meant to be killed: it writes numbered records and notes in a file what was acknowledged.

Usage: python -m tests.soak.writer BOOTSTRAP TOPIC PARTITIONS NAME ACKED_FILE

A value is `NAME:PARTITION:NUMBER` and padding. A line `PARTITION NUMBER` of the file says that the broker has
acknowledged that record; the file is written by one unbuffered write a line, so that a kill loses no whole line that
was noted. SIGTERM makes it flush and end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import headrace as hr

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace import RecordMetadata

PADDING = b"." * 80
IN_FLIGHT_MAX = 5_000
# Longer than any pause between kill and restart.
DELIVERY_TIMEOUT_MS = 60_000


def main() -> int:
    bootstrap, topic, partitions, name, path = sys.argv[1:6]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    acked = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    room = threading.Semaphore(IN_FLIGHT_MAX)
    failed: list[BaseException] = []

    def note(partition: int, number: int, future: Future[RecordMetadata]) -> None:
        error = future.exception()
        if error is None:
            os.write(acked, f"{partition} {number}\n".encode())
        else:
            failed.append(error)
        room.release()

    options = {"delivery_timeout_ms": DELIVERY_TIMEOUT_MS, "request_timeout_ms": 5_000, "linger_ms": 5}
    with hr.Producer(bootstrap, acks="all", enable_idempotence=True, **options) as producer:
        number = 0
        while not stopping.is_set() and not failed:
            for partition in range(int(partitions)):
                room.acquire()
                value = f"{name}:{partition}:{number}:".encode() + PADDING
                future = producer.send(topic, value, partition=partition)
                future.add_done_callback(lambda done, p=partition, n=number: note(p, n, done))
            number += 1
        if not failed:
            producer.flush(DELIVERY_TIMEOUT_MS / 1000)
    if failed:
        print(f"writer {name}: {failed[0]!r} and {len(failed) - 1} more", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
