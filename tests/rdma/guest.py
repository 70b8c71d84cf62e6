"""A guest with a Soft-RoCE device under an emulator: started once, then one job after another.

By hand: `python -m tests.rdma.guest COMMAND...` runs a command in a guest of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.kafka.apache import scratch_folder
from tests.rdma.image import ensure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from tests.rdma.image import Image

BOOT_SECONDS: Final = 180
LIFE_SECONDS: Final = 1800
"""Then it ends by itself, whoever has forgotten it."""
MEMORY: Final = "1536M"
LOAD: Final = "/run/load"
"""A program of the guest's: loads a group of `image.MODULES`."""


class GuestError(Exception):
    """The guest did not start, or is gone."""


@dataclass(frozen=True)
class Done:
    """A job that has ended."""

    status: int
    output: str


class Guest:
    """Runs what is on this machine, in a system of its own: files are this machine's, and what is written is lost."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._folder = scratch_folder("guest")
        self._jobs = self._folder / "jobs"
        self._jobs.mkdir()
        self._numbers = itertools.count(1)
        self._emulator: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.sendall(b"off\n")
            self._line.close()
            self._line = None
        if self._emulator is not None:
            try:
                self._emulator.wait(5)
            except subprocess.TimeoutExpired:
                self._emulator.kill()
                self._emulator.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60) -> Done:
        """Runs a command as root, with its files' names as on this machine, and waits for it.

        Raises:
            GuestError: The guest is gone.
        """
        words = ["env", *(f"{name}={value}" for name, value in (environment or {}).items()), *command]
        return self.script(f"exec busybox timeout {timeout:.0f} {shlex.join(words)}", timeout=timeout)

    def script(self, text: str, *, timeout: float = 60) -> Done:
        """Runs a script of the shell; as `run`."""
        name = f"job{next(self._numbers)}"
        (self._jobs / name).write_text(text + "\n")
        assert self._line is not None, "the guest was not started"
        self._line.sendall(f"{name}\n".encode())
        # Emulated time may pass more slowly than ours.
        reported, _, status = self._next_line(timeout + 10, name).partition(" ")
        if reported != name:
            raise GuestError(f"the guest says {reported} and not {name}\n{self._console()}")
        return Done(int(status), (self._jobs / f"{name}.out").read_text(errors="replace"))

    def _start(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            listener.bind(str(self._folder / "line"))
            listener.listen()
            listener.settimeout(BOOT_SECONDS)
            self._emulator = subprocess.Popen(
                self._command(),
                env=self._image.environment(),
                stdin=subprocess.DEVNULL,
                stdout=(self._folder / "emulator").open("wb"),
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 a plain system call
            )
            try:
                self._line, _ = listener.accept()
            except TimeoutError:
                raise GuestError(f"the emulator did not start\n{self._console()}") from None
        if self._next_line(BOOT_SECONDS, "boot") != "ready":
            raise GuestError(f"the guest did not start\n{self._console()}")

    def _command(self) -> list[str]:
        words = [*self._image.emulator(), "-machine", "q35", "-cpu", "max,la57=off", "-m", MEMORY]
        # One CPU, emulated: the same everywhere, and with two of them a kernel has been seen to fail at boot.
        words += ["-accel", "tcg,tb-size=512", "-smp", "1", "-nodefaults", "-no-user-config", "-no-reboot"]
        words += ["-display", "none", "-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)]
        words += ["-serial", f"file:{self._folder / 'console'}"]
        words += ["-chardev", f"socket,id=line,path={self._folder / 'line'}", "-serial", "chardev:line"]
        append = (
            "console=ttyS0 mitigations=off quiet nokaslr no5lvl tsc=reliable audit=0 apparmor=0 nowatchdog panic=-1"
        )
        words += ["-append", f"{append} random.trust_cpu=on rcupdate.rcu_expedited=1 headrace.seconds={LIFE_SECONDS}"]
        shared = (("host", Path("/"), ",readonly=on"), ("packages", self._image.packages, ",readonly=on"))
        for tag, path, rights in (*shared, ("jobs", self._jobs, "")):
            words += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{rights}"]
            words += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return words

    def _next_line(self, seconds: float, what: str) -> str:
        deadline = time.monotonic() + seconds
        assert self._line is not None, "the guest was not started"
        while b"\n" not in self._rest:
            self._line.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                received = self._line.recv(4096)
            except TimeoutError:
                raise GuestError(f"the guest took more than {seconds:.0f} s for {what}\n{self._console()}") from None
            if not received:
                raise GuestError(f"the guest ended during {what}\n{self._console()}")
            self._rest += received
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace").strip()

    def _console(self) -> str:
        """The last of what it and the emulator have said."""
        texts = (self._folder / name for name in ("emulator", "console"))
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in texts if path.exists())


def die_with_parent() -> None:
    """Has the system end this process when its parent's thread ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> int:
    """Runs a command of this machine's, whose files have the same names there."""
    if len(sys.argv) == 1:
        print(__doc__, file=sys.stderr)
        return 2
    program, *words = sys.argv[1:]
    with Guest(ensure()) as guest:
        done = guest.run([shutil.which(program) or str(Path(program).resolve()), *words], timeout=600)
    print(done.output, end="")
    return done.status


if __name__ == "__main__":
    sys.exit(main())
