"""Apache Kafka as one process: a single node, broker and controller in one, on loopback."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka import java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

VERSION = "4.3.1"
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 15
START_ATTEMPTS = 3
PR_SET_PDEATHSIG = 1
FIRST_PORT = 10_000
PORTS_MIN = 1000
LEFT_BEHIND = re.compile(r"headrace-[a-z]+-(\d+)-\w+")

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters={node}@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.share.min.record.lock.duration.ms=1000
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
# Tests write timestamps of long ago; each five minutes Kafka would delete what they are about to read.
log.retention.ms=-1
num.network.threads=3
num.io.threads=4
"""


class StartError(RuntimeError):
    """Apache Kafka did not come up; the message holds the end of its log."""


def scratch() -> Path:
    """Where data goes: memory when the machine has it, so that disks do not decide.

    A test about these folders has some of its own, by ``HEADRACE_SCRATCH``.
    """
    if chosen := os.environ.get("HEADRACE_SCRATCH"):
        return Path(chosen)
    shm = Path("/dev/shm")  # noqa: S108 -- the folders in it are made by mkdtemp
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def scratch_folder(kind: str) -> Path:
    """Makes a folder for data of this process, `kind` and its id in the name; removes those of processes that are gone.

    A process that is killed with -9 cleans nothing up, and what it leaves may be memory.
    """
    root = scratch()
    for left in root.glob("headrace-*-*-*"):
        owner = LEFT_BEHIND.fullmatch(left.name)
        if owner and not Path("/proc", owner[1]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"headrace-{kind}-{os.getpid()}-", dir=root))


def own_ports() -> Iterator[int]:
    """Ports for the servers of this process, round and round.

    They lie below those that the kernel gives to connections that go out, and each of the processes that run tests side
    by side has its share of them. So a port is still free when its server comes, or comes back.
    """
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (ephemeral - FIRST_PORT) // workers
    while share < PORTS_MIN:
        yield 0  # the kernel gives nearly all of them to connections: so it chooses
    first = FIRST_PORT + number % workers * share
    # Other processes of this worker, such as programs under test, begin elsewhere.
    at = random.randrange(share)
    while True:
        yield first + at
        at = (at + 1) % share


_ports = own_ports()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", next(_ports)))
            found.append(one.getsockname()[1])
    return found


def serves(port: int, timeout: float = 1.0) -> bool:
    """Whether a broker on this port of loopback answers ApiVersions (version 0, which all know)."""
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as peer:
            peer.settimeout(timeout)
            peer.sendall(struct.pack(">i", len(request)) + request)
            head = peer.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack_from(">ih", head, 4) == (7, 0)


@contextlib.contextmanager
def one_starts() -> Iterator[None]:
    """While a server starts, those of the other processes of this run wait: it takes all the processor that it gets.

    Starting side by side they would take as long together, and nobody else would get any.
    """
    with (Path(tempfile.gettempdir()) / f"headrace-starts-{os.getuid()}").open("wb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def die_with_parent() -> None:
    """In a child before exec: the kernel kills it when the thread that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def new_id() -> str:
    """An id of a cluster or a folder, as Kafka writes them."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return made.replace("-", "A")  # or the tool takes it for an option


_formatted: dict[tuple[str, ...], dict[str, bytes]] = {}
"""What Kafka's tool writes, by its arguments."""


def format_data(data: Path, properties: Path, cluster: str, node: int, *arguments: str) -> None:
    """Makes a folder for data as Kafka's own tool does.

    The tool is a JVM of its own, so it runs once in this process for each way of calling it; other folders are made of
    what it wrote then, with ids of their own.
    """
    roles = next(line for line in reversed(properties.read_text(encoding="utf-8").split()) if "process.roles" in line)
    way = (roles, *arguments)
    known = _formatted.get(way)
    if known is None:
        java.run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties), *arguments)
        _formatted[way] = {file.name: file.read_bytes() for file in data.iterdir()}
        return
    data.mkdir()
    own = {"cluster.id": cluster, "node.id": str(node), "directory.id": new_id()}
    for name, content in known.items():
        if name == "meta.properties":
            lines = [line.partition("=")[::2] for line in content.decode().splitlines()]
            content = "".join(f"{key}={own.get(key, value)}\n" for key, value in lines if key[:1] != "#").encode()  # noqa: PLW2901
        (data / name).write_bytes(content)


class RunningKafka:
    """Where an Apache Kafka is, whoever has started it.

    Args:
        port: of its listener on 127.0.0.1.
        directory: the folder of its settings, logs and data.
    """

    def __init__(self, port: int, directory: Path) -> None:
        self.port = port
        self.directory = directory

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """The folder of the partitions."""
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        """Its server.log."""
        return self.directory / "server.log"


class ApacheKafka(RunningKafka):
    """An Apache Kafka of one's own; a context manager that kills it and removes its data.

    Args:
        heap: the JVM's largest heap. Benches take more than the tests' 512m.
        quick: start sooner at the cost of top speed (C1 compiler, serial collector); not for benches.
        overrides: broker settings over those of this module.
    """

    def __init__(self, *, heap: str = "512m", quick: bool = True, **overrides: str) -> None:
        super().__init__(0, Path())
        self.heap = heap
        self.quick = quick
        self.overrides = overrides
        self.started_in_seconds = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Starts it and waits until it serves.

        Raises:
            StartError: it ended, or did not serve within a minute.
            java.MissingError: there is no Java, or no jars.
        """
        self.directory = scratch_folder("apache")
        try:
            for attempt in range(1, START_ATTEMPTS + 1):
                try:
                    self._start_once()
                except StartError:
                    # Another process may have taken a port between our look and Kafka's bind.
                    if attempt == START_ATTEMPTS or "BindException" not in self.log_tail():
                        raise
                    self._kill()
                    shutil.rmtree(self.data)
                else:
                    break
        except BaseException:
            self.stop()
            raise
        return self

    def more_settings(self, controller: int) -> str:
        """Settings of a kind of broker, over those of this module; `controller` is the controller's port."""
        del controller
        return ""

    def format_arguments(self) -> list[str]:
        """What the tool that formats the data folder is told besides."""
        return []

    def _start_once(self) -> None:
        self.port, controller = free_ports(2)
        overrides = {name.replace("_", "."): value for name, value in self.overrides.items()}
        node = int(overrides.get("node.id", "1"))
        settings = PROPERTIES.format(port=self.port, controller=controller, data=self.data, node=node)
        settings += self.more_settings(controller)
        settings += "".join(f"{name}={value}\n" for name, value in overrides.items())
        properties = self.directory / "server.properties"
        properties.write_text(settings, encoding="utf-8")
        format_data(self.data, properties, new_id(), node, *self.format_arguments())
        self._launch()

    def jvm(self) -> Sequence[str]:
        """Options of its JVM."""
        return java.quick_jvm() if self.quick else ("-XX:+UseG1GC",)

    def _launch(self) -> None:
        command = [
            java.java(),
            "-Xms256m",
            f"-Xmx{self.heap}",
            *self.jvm(),
            f"-Dkafka.logs.dir={self.directory}",
            f"-Dlog4j2.configurationFile={java.HERE / 'log4j2.properties'}",
            "-cp",
            java.classpath(),
            "kafka.Kafka",
            str(self.directory / "server.properties"),
        ]
        with (self.directory / "console").open("ab") as console, one_starts():
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the tests alone; they stop the broker last
                preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
            )
            self._await_serving()

    def _await_serving(self) -> None:
        began = time.monotonic()
        assert self.process is not None
        while not serves(self.port):
            if self.process.poll() is not None:
                raise StartError(f"Apache Kafka ended with {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() - began > START_TIMEOUT_SECONDS:
                raise StartError(f"Apache Kafka did not serve in {START_TIMEOUT_SECONDS} s:\n{self.log_tail()}")
            time.sleep(0.05)
        self.started_in_seconds = time.monotonic() - began

    def log_tail(self, lines: int = 30) -> str:
        """The end of what it logged."""
        text = ""
        for file in (self.directory / "console", self.log_file):
            if file.exists():
                text += "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) + "\n"
        return text

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM now."""
        assert self.process is not None
        return resident_bytes(self.process.pid)

    def _kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_SECONDS)
            self.process = None

    def kill(self) -> None:
        """Kills it as a crash would, and keeps its data."""
        self._kill()

    def restart(self) -> None:
        """Kills it and starts it again on its data and port; returns when it serves.

        Raises:
            StartError: it ended, or did not serve within a minute.
        """
        self._kill()
        self._launch()

    def stop(self, keep_logs: Path | None = None) -> None:
        """Kills it and removes its data; `keep_logs` is a folder that gets its log files."""
        self._kill()
        if keep_logs is not None:
            keep_logs.mkdir(parents=True, exist_ok=True)
            for name in ("server.log", "console", "server.properties"):
                if (self.directory / name).exists():
                    shutil.copy(self.directory / name, keep_logs / name)
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)
