"""``python -m headrace.lab.worker``: takes messages on stdin, answers on stdout (headrace.lab.protocol)."""

from __future__ import annotations

import gc
import logging
import os
import platform
import queue
import resource
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from headrace.lab.journal import Journal
from headrace.lab.protocol import (
    LINE_BYTES_MAX,
    Assigned,
    Done,
    Failed,
    FromWorker,
    LineError,
    Prepare,
    Rate,
    Ready,
    Second,
    SetWork,
    Start,
    Stop,
    ToWorker,
    decode,
    encode,
)
from headrace.lab.schedule import Schedule
from headrace.lab.worker import drivers
from headrace.lab.worker.consume import Consuming
from headrace.lab.worker.produce import Producing
from headrace.lab.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.lab.worker.drivers import Driver

ASSIGNMENT_S: Final = 0.05


class Worker:
    """Follows the coordinator's messages until it is told to stop, or nobody is there any more."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO, load: Callable[[str], Driver]) -> None:
        self._load = load
        self._answers = answers
        self._inbox: queue.SimpleQueue[ToWorker | FromWorker | None] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read, args=(commands,), daemon=True)
        self._work: Producing | Consuming | None = None
        self._began_ns = 0
        self._second = 0
        self._cpu_s = _cpu_s()
        self._told: tuple[int | None, int] | None = None

    def run(self) -> int:
        """Works; gives the exit status."""
        self._reading.start()
        try:
            while self._step():
                pass
        except Exception as error:  # noqa: BLE001  (the coordinator tells it)
            self._say(Failed(why=f"{type(error).__name__}: {error}"))
            return 1
        return 0

    def _read(self, commands: BinaryIO) -> None:
        try:
            while line := commands.readline(LINE_BYTES_MAX):
                self._inbox.put(decode(line))
        except (LineError, OSError) as error:
            self._say(Failed(why=str(error)))
        self._inbox.put(None)

    def _say(self, message: FromWorker) -> None:
        self._answers.write(encode(message))
        self._answers.flush()

    def _step(self) -> bool:
        """Waits for a message or the next thing to tell; whether to go on."""
        try:
            message = self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            return self._tell()
        if message is None:
            # Nobody listens: what is begun is ended without a word.
            if self._work is not None:
                self._work.stop()
            return False
        if isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Start):
            self._began_ns = message.at_ns
            # One that comes later, in the place of another, does not tell of seconds before it.
            self._second = max((time.time_ns() - message.at_ns) // 1_000_000_000, 0)
            if isinstance(self._work, Producing):
                self._work.start(message.at_ns)
        elif isinstance(message, Rate) and isinstance(self._work, Producing):
            schedule = None if message.schedule is None else Schedule.from_json(message.schedule)
            self._work.rate(message.at_ns, schedule)
        elif isinstance(message, SetWork) and isinstance(self._work, Consuming):
            self._work.work(message.min_ms, message.max_ms)
        elif isinstance(message, Stop):
            return self._end()
        return True

    def _wait_s(self) -> float:
        if self._work is None:
            return 3_600.0
        if not self._began_ns:
            return ASSIGNMENT_S
        return max((self._began_ns + (self._second + 1) * 1_000_000_000 - time.time_ns()) / 1e9, 0)

    def _prepare(self, message: Prepare) -> None:
        driver: Driver = self._load(message.driver)
        workload = Workload.from_json(message.workload)
        journal = Journal(Path(message.journal)) if message.journal else None
        if message.role == "produce":
            self._work = Producing(
                driver,
                message.bootstrap,
                workload,
                message.topics,
                message.members,
                first=message.first,
                of=message.of,
                records=message.records,
                journal=journal,
            )
        else:
            self._work = Consuming(
                driver,
                message.bootstrap,
                workload,
                message.topics,
                message.members,
                group=message.group,
                distinct=message.distinct,
                journal=journal,
            )
        self._say(Ready(driver=message.driver, version=driver.version, runtime=f"Python {platform.python_version()}"))

    def _tell(self) -> bool:
        assert self._work is not None  # noqa: S101  (or nothing would have been waited for)
        if self._work.trouble is not None:
            raise drivers.DriverError(self._work.trouble)
        if isinstance(self._work, Consuming):
            held = self._work.assigned()
            if held is not None and held != self._told:
                self._told = held
                self._say(Assigned(partitions=held[0], holding=held[1]))
        if not self._began_ns:
            return True
        if isinstance(self._work, Producing) and self._work.ended:
            return self._end()
        self._say_second()
        return True

    def _say_second(self) -> None:
        assert self._work is not None  # noqa: S101  (as above)
        cpu_s = _cpu_s()
        spent, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        self._say(Second(n=self._second, at_ns=time.time_ns(), cpu_s=spent, **self._work.take()))
        self._second += 1

    def _end(self) -> bool:
        if self._work is not None:
            self._work.stop()
            if self._work.trouble is not None:
                raise drivers.DriverError(self._work.trouble)
            if self._began_ns:
                self._say_second()
        self._say(Done())
        return False


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def load(name: str) -> Driver:
    """A driver, for a process that does nothing else: what is there by now stays, and the collector skips it."""
    driver = drivers.load(name)
    gc.collect()
    gc.freeze()
    return driver


def main() -> int:
    """Entry point."""
    # What a client prints must not stand between the messages.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return Worker(sys.stdin.buffer, answers, load).run()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # A client's threads that do not end must not keep the process.
    os._exit(status)
