"""What every runner is told and reports: records, seconds and CPU seconds, without start-up.

A runner is a program that ends with one line of JSON on standard output, a `Sample`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import time
from pathlib import Path


def cpu_times() -> tuple[float, float]:
    """Seconds of CPU that this process has used so far: all of it, and the kernel's part."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_stime


def resident_mib(field: str) -> float:
    """VmRSS (now) or VmHWM (the most so far) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(field)


def arguments(description: str | None, *what: str) -> argparse.Namespace:
    """Reads a runner's command line; `what` are the things that it can do, where there is more than one."""
    parser = argparse.ArgumentParser(description=description)
    if what:
        parser.add_argument("what", choices=what)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--batch-bytes", type=int, default=128 << 10)
    parser.add_argument("--in-flight", type=int, default=5, help="requests on their way at the same time")
    parser.add_argument("--compression", default="none", help="codec of what is produced")
    parser.add_argument("--connect-first", action="store_true", help="connect before the clock starts")
    return parser.parse_args()


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run. `bytes` counts record values."""

    records: int
    bytes: int
    seconds: float
    cpu_seconds: float
    kernel_seconds: float = 0.0
    """The kernel's part of `cpu_seconds`, where the runner tells it."""
    grown_mib: float = 0.0
    """How much more memory was resident at most than when the meter was made."""
    batch_mib: float = 0.0
    """The largest batch, where the runner looks."""

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """CPU seconds of the client per million records."""
        return self.cpu_seconds / self.records * 1e6

    @property
    def kernel_per_million(self) -> float:
        """The kernel's part of it."""
        return self.kernel_seconds / self.records * 1e6

    def line(self) -> str:
        """As the last line of a runner."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, line: str) -> Sample:
        """The reverse of `line`."""
        return cls(**json.loads(line))


class Meter:
    """Counts from `start` on: call it when the first batch is here, and do not count that batch."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.largest = 0
        self.resident = resident_mib("VmRSS")
        self.began = 0.0
        self.cpu_began = (0.0, 0.0)

    @property
    def running(self) -> bool:
        """Whether `start` was called."""
        return self.began > 0

    def start(self) -> None:
        """The clock runs from here."""
        self.cpu_began = cpu_times()
        self.began = time.perf_counter()

    def count(self, records: int, size: int) -> None:
        """One more batch."""
        self.records += records
        self.bytes += size

    @property
    def elapsed(self) -> float:
        """Seconds since the clock runs."""
        return time.perf_counter() - self.began

    def sample(self) -> Sample:
        """The clock stops here."""
        seconds = time.perf_counter() - self.began
        (cpu, kernel), (cpu_began, kernel_began) = cpu_times(), self.cpu_began
        grown = resident_mib("VmHWM") - self.resident
        largest = self.largest / (1 << 20)
        return Sample(self.records, self.bytes, seconds, cpu - cpu_began, kernel - kernel_began, grown, largest)
