"""librdkafka in C: its own performance tool, tuned, as `make .deps/librdkafka/rdkafka_performance` builds it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from benches.peers.meter import Sample

TOOL = Path(__file__).resolve().parent.parent.parent / ".deps" / "librdkafka" / "rdkafka_performance"
TIMEOUT_SECONDS = 300
DONE = re.compile(r"% (\d+) messages (?:produced )?\((\d+) bytes\),? (.*?)in (\d+)ms")
# The tool starts its clock at the first message. CRC checks are off by default, and stay off; its other defaults
# would hold it back: a pause of a second when its queue is full, and a queue of 64 MiB.
CONSUMER = {
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1048576",
    "queued.min.messages": "1000000",
    "fetch.max.bytes": "104857600",
    "max.partition.fetch.bytes": "10485760",
    "check.crcs": "false",
}
PRODUCER = {
    "linger.ms": "5",
    "batch.num.messages": "1000000",
    "queue.buffering.max.kbytes": "1048576",
}


def run(arguments: list[str], settings: dict[str, str]) -> Sample:
    """Runs the tool once. Its CPU time is that of the whole process; start-up is milliseconds of it."""
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    with subprocess.Popen(
        ["timeout", str(TIMEOUT_SECONDS), TOOL, *arguments, *options, "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    found = DONE.search(printed)
    if found is None or process.returncode != 0:
        raise RuntimeError(f"rdkafka_performance ended with {process.returncode}: {printed[-500:]}")
    if "produced" in found[0] and f"{found[1]} delivered (offset" not in found[3]:
        raise RuntimeError(f"rdkafka_performance did not deliver all: {found[0]}")
    cpu = usage.ru_utime + usage.ru_stime
    return Sample(int(found[1]), int(found[2]), int(found[4]) / 1000, cpu, usage.ru_stime)


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
    """Reads `records` records (a little more, as its batches fall) through its callback."""
    arguments = ["-C", "-t", topic, "-b", bootstrap, "-o", "beginning", "-c", str(records - 1)]
    for partition in range(partitions):
        arguments += ["-p", str(partition)]
    return run(arguments, CONSUMER)


def produce(
    bootstrap: str, topic: str, records: int, *, size: int, batch_bytes: int, acks: int = 1, in_flight: int = 5
) -> Sample:
    """Sends `records` records to partition 0 and waits for every delivery report."""
    arguments = ["-P", "-t", topic, "-b", bootstrap, "-p", "0"]
    arguments += ["-s", str(size), "-c", str(records), "-a", str(acks)]
    limits = {
        "batch.size": str(batch_bytes),
        # It also bounds a batch; the default is less than 1 MiB.
        "message.max.bytes": str(max(1_000_000, batch_bytes)),
        "max.in.flight.requests.per.connection": str(in_flight),
    }
    return run(arguments, {**PRODUCER, **limits})
