"""Workers as processes: started, spoken to, and ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import KafkaError
from headrace.lab import java_
from headrace.lab.protocol import (
    LINE_BYTES_MAX,
    Done,
    Failed,
    FromWorker,
    LineError,
    ToWorker,
    decode,
    encode,
)
from headrace.lab.worker.drivers import DriverError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Hear: TypeAlias = "Callable[[WorkerProcess, FromWorker | None], None]"

END_TIMEOUT_S: Final = 45.0
LAST_WORDS_S: Final = 2.0
TAIL_LINES: Final = 12
PR_SET_PDEATHSIG: Final = 1


class WorkerError(KafkaError):
    """A worker cannot go on, or has ended by itself."""


def command(driver: str) -> list[str]:
    """How a driver's worker is started.

    Raises:
        WorkerError: what it needs is not there.
    """
    if driver == "java":
        try:
            return java_.command()
        except DriverError as error:
            raise WorkerError(str(error), name="WORKER_FAILED") from None
    return [sys.executable, "-m", "headrace.lab.worker"]


class WorkerProcess:
    """One worker. `hear` is called with what it says, and with None when it has said all."""

    def __init__(self, name: str, driver: str, log: Path, hear: Hear) -> None:
        self.name = name
        self.driver = driver
        self.log = log
        self.done = False
        self._hear = hear
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, arguments: Sequence[str] | None = None) -> None:
        """Starts the process.

        Raises:
            WorkerError: what it needs is not there.
        """
        # The first time Maven may have to fetch what Java needs.
        started = list(arguments) if arguments else await asyncio.to_thread(command, self.driver)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *started,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # numpy's linear algebra, which nobody uses here, would start threads that spin for a while.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is the coordinator's alone; it ends its workers
                preexec_fn=_die_with_parent,
            )
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid if self._process is not None else 0

    @property
    def ended(self) -> bool:
        """Whether it has ended, or was never started."""
        return self._process is None or self._process.returncode is not None

    async def say(self, message: ToWorker) -> None:
        """Tells it something; one that is gone hears nothing, and its end is told."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(encode(message))
                await self._process.stdin.drain()

    async def _listen(self) -> None:
        assert self._process is not None  # noqa: S101  (it was started)
        assert self._process.stdout is not None  # noqa: S101  (as asked for)
        while True:
            try:
                line = await self._process.stdout.readline()
                if not line:
                    break
                message = decode(line)
            except (LineError, ValueError) as error:
                self._hear(self, Failed(why=f"a line of the worker is none: {error}"))
                # Nobody reads on, and it may wait for just that.
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                break
            self.done |= isinstance(message, Done)
            # Only the coordinator says the others.
            self._hear(self, message)  # type: ignore[arg-type]
        await self._process.wait()
        self._hear(self, None)

    def signal(self, number: int) -> None:
        """Sends a signal to it and all that it started."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended and all that it said was heard; whether that came."""
        if self._listening is None:
            return True
        done, _ = await asyncio.wait({self._listening}, timeout=timeout_s)
        return bool(done)

    async def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._listening is not None and not await self.wait(LAST_WORDS_S):
            self._listening.cancel()

    def failure(self, why: str | None = None) -> WorkerError:
        """Why it cannot go on, or what its log ends with."""
        if why is None:
            status = self._process.returncode if self._process is not None else None
            ended = f"was ended by signal {-status}" if status is not None and status < 0 else f"ended with {status}"
            why = f"{ended}; its log:\n{self.log_tail()}"
        return WorkerError(f"the worker {self.name} ({self.driver}): {why}", name="WORKER_FAILED")

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


def _die_with_parent() -> None:
    """In the child before exec: the kernel kills it when the coordinator ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
