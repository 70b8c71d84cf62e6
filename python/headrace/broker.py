"""The embedded broker: one node or several, in this process, serving stock Kafka clients over TCP."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace import _native
from headrace._options import OptionValue, pairs
from headrace._process import BROKERS, at_end
from headrace.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from headrace.registry.server import RegistryServer

PORT_MAX = 65535
"""The highest number of a port."""

NODES_MAX = 16
"""Most brokers of one process."""

_COPIES = 3
"""Copies of a partition where there are several brokers, as many at least."""

_running: weakref.WeakSet[Broker] = weakref.WeakSet()


class RecoveryEntry(NamedTuple):
    """A problem in a partition's log that the broker found and repaired when it started."""

    topic: str
    """The partition's topic."""
    partition: int
    """The partition's number."""
    what: str
    """``hole``, ``cut``, ``rebuilt``, ``repaired``, ``deleted`` or ``skipped``.

    ``hole``: records are gone, and their offsets are not used again. ``cut``: the log now ends here, because a write
    was cut short or its last batches are damaged. ``rebuilt``: an index was built again; ``repaired``: the length or
    magic of a batch was corrected; neither loses a record. ``deleted``: segments before the log's start were removed.
    ``skipped``: records of ``__consumer_offsets`` could not be understood when groups were loaded."""
    start_offset: int
    """First offset that is affected."""
    end_offset: int | None
    """The offset after the last; None if it is not known how far the records went."""
    bytes: int
    """Number of bytes that were removed from the file."""
    file: str
    """Path of the damaged or missing file."""
    moved_to: str | None
    """Path of the file that now holds the removed bytes; None if there are none, or they were not kept."""
    reason: str
    """What was found."""

    def __str__(self) -> str:
        """The entry as a line."""
        end = "on" if self.end_offset is None else f"to {self.end_offset}"
        line = f"{self.topic}-{self.partition}: {self.what}, offsets {self.start_offset} {end}: {Path(self.file).name}"
        if self.bytes:
            kept = f"kept in {Path(self.moved_to).name}" if self.moved_to else "not kept"
            line += f" lost {self.bytes} bytes, {kept}"
        return f"{line} ({self.reason})"


class Figure(NamedTuple):
    """One figure of a broker."""

    group: str
    """Kafka's group of metrics, such as ``kafka.server:type=ReplicaManager``."""
    name: str
    """Kafka's name of it."""
    help: str
    """What it is."""
    is_counter: bool
    """Whether it only grows, until the broker is started again."""
    value: int
    """How much it is now."""


class _Node(NamedTuple):
    """What one broker is started with."""

    host: str
    port: int
    folder: Path
    settings: Sequence[tuple[str, OptionValue]]
    temporary: bool
    metadata: _native.Metadata | None

    def start(self) -> _native.Broker:
        """Starts it, for the first time or again."""
        return _native.Broker(
            self.host, self.port, os.fsdecode(self.folder), self.settings, self.temporary, self.metadata
        )


class Broker:
    """A broker that runs in a thread of this process, or several of one cluster, each in a thread of its own.

    Create it with `Broker.start`. It stops at the end of its ``with`` block, on `stop`, and when the process ends.
    """

    def __init__(self, nodes: Mapping[int, _Node], temporary: Path | None) -> None:
        """Starts brokers; users call `start`."""
        self._nodes = dict(nodes)
        self._natives: dict[int, _native.Broker] = {}
        self._temporary = temporary
        try:
            for number in nodes:
                self.start_node(number)
        except BaseException:
            self._stop_native()
            raise
        self._registry: RegistryServer | None = None
        self._process = os.getpid()
        _running.add(self)

    @classmethod
    def start(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        nodes: int = 1,
        cluster: str | None = None,
        node: int = 1,
        registry: bool = False,
        registry_port: int = 0,
        config: Mapping[str, OptionValue] | None = None,
        **options: OptionValue,
    ) -> Self:
        """Starts a broker, or a cluster of them, and returns once it accepts clients, which takes some milliseconds.

        Args:
            data_dir: folder for the data, created if missing. The default is a temporary one that is deleted with the
                broker and never synced to disk, whatever ``flush.messages`` and ``flush.ms`` say. Only one broker at a
                time may use a folder.
            host: address to listen on.
            port: port to listen on; 0 picks a free one. Several brokers listen on this one and those that follow.
            nodes: number of brokers, 1 to 16, which have the numbers 1, 2, 3 and so on. Several are a cluster: a
                partition has copies on as many of them as its topic says (``default.replication.factor``, here 3
                where there are so many), and its records survive the end of any of these. Each has a folder of its
                own in ``data_dir``, ``node-1`` and so on; who leads what is in the file ``metadata.json`` there.
            cluster: address of the etcd that has the metadata of the cluster which this broker is to join, such as
                ``etcd://host:2379``; several addresses have commas between them, and a path is the prefix of its keys
                (``/headrace/``); docs/cluster.md has TLS. The other brokers are other processes, here or elsewhere.
            node: number of this broker in its cluster.
            registry: whether a schema registry goes with it, at `registry_url`, with the part of Confluent's REST API
                that clients use. It keeps its schemas in the broker's topic ``_schemas``. For tests, development and
                one machine: it asks for no login.
            registry_port: port that it listens on; 0 picks a free one.
            config: broker settings by Kafka's names, such as ``{"log.segment.bytes": 1 << 20}``; docs/broker.md lists
                them.
            **options: the same as keywords, with underscores for the dots.

        Raises:
            BrokerStartError: the port is taken, the folder cannot be used or another broker uses it, or the metadata
                store cannot be reached or is another cluster's.
            SchemaRegistryError: the registry's port is taken, or its topic holds something else.
            ConfigError: a setting or argument is unknown or out of range; the message names it.
        """
        _check_arguments(data_dir, host, port=port, registry_port=registry_port)
        _check_nodes(nodes, port)
        if cluster is not None and nodes != 1:
            message = "nodes starts a cluster of its own: give it, or the cluster that this broker is to join"
            raise ConfigError(message, name="INVALID_CONFIG")
        settings = pairs(None, config, options)
        metadata = None if cluster is None else _native.Metadata(etcd=cluster)
        temporary = None
        if data_dir is None:
            temporary = Path(tempfile.mkdtemp(prefix="headrace-"))
            data_dir = temporary
        place = Path(os.fsdecode(data_dir))
        started: dict[int, _Node] = {}
        if nodes == 1:
            own = settings if metadata is None else [*settings, ("node.id", str(node))]
            started[node] = _Node(host, port, place, own, temporary is not None, metadata)
        else:
            place.mkdir(parents=True, exist_ok=True)
            metadata = _native.Metadata(None if temporary else os.fsdecode(place / "metadata.json"))
            usual = [("default.replication.factor", str(min(nodes, _COPIES))), *settings]
            for number in range(1, nodes + 1):
                own = [*usual, ("node.id", str(number))]
                at = 0 if port == 0 else port + number - 1
                folder = place / f"node-{number}"
                started[number] = _Node(host, at, folder, own, temporary is not None, metadata)
        broker = cls(started, temporary)
        if registry:
            # It needs the clients, which a broker does not.
            from headrace.registry.server import RegistryServer  # noqa: PLC0415

            try:
                broker._registry = RegistryServer(broker.bootstrap_servers, host, registry_port)
            except BaseException:
                broker.stop()
                raise
        return broker

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for a client's ``bootstrap.servers``; of several brokers all, with commas."""
        return ",".join(native.bootstrap_servers for native in self._natives.values())

    @property
    def nodes(self) -> dict[int, str]:
        """The brokers that run: ``host:port`` by number."""
        return {number: native.bootstrap_servers for number, native in self._natives.items() if native.is_running}

    def stop_node(self, number: int) -> None:
        """Stops one of several brokers, which hands over what it leads first: to try out what becomes of clients.

        Raises:
            ConfigError: there is no such broker, or it does not run.
        """
        native = self._natives.pop(number, None)
        if native is None:
            message = f"no broker {number} runs: there are {', '.join(map(str, self._natives)) or 'none'}"
            raise ConfigError(message, name="INVALID_CONFIG")
        native.stop()

    def start_node(self, number: int) -> None:
        """Starts a broker again that was stopped, on its folder.

        Raises:
            ConfigError: there is no such broker, or it runs.
            BrokerStartError: its port is taken.
        """
        node = self._nodes.get(number)
        if node is None or number in self._natives:
            message = f"broker {number} cannot be started: " + ("there is none" if node is None else "it runs")
            raise ConfigError(message, name="INVALID_CONFIG")
        native = node.start()
        self._natives[number] = native
        self._natives = dict(sorted(self._natives.items()))
        # It is to be found where it was.
        port = int(native.bootstrap_servers.rpartition(":")[2])
        self._nodes[number] = node._replace(port=port)

    @property
    def registry_url(self) -> str:
        """The address of its schema registry, for `SchemaRegistry`.

        Raises:
            UsageError: it was started without one.
        """
        if self._registry is None:
            message = "this broker has no schema registry: Broker.start(registry=True) starts one with it"
            raise UsageError(message)
        return self._registry.url

    @property
    def is_running(self) -> bool:
        """Whether it is still running; of several brokers, whether all are that were not stopped."""
        natives = self._natives.values()
        return bool(natives) and all(native.is_running for native in natives)

    @property
    def recovery(self) -> list[RecoveryEntry]:
        """What was found damaged or missing in the logs of the data folder at the start, and repaired.

        Each entry names its partition and offsets. Empty if nothing was, as after a clean stop. Every loss of records
        that can be detected at the start has an entry.
        """
        return [RecoveryEntry(*entry) for native in self._natives.values() for entry in native.recovery]

    @property
    def strays(self) -> list[str]:
        """Folders of partitions that belong to no topic; they were renamed to these names in the data folder."""
        return [stray for native in self._natives.values() for stray in native.strays]

    @property
    def adopted(self) -> list[str]:
        """Topics that were recovered from their folders alone, with default settings.

        Empty unless the data folder had no ``headrace-state.json``: either another broker wrote it, such as Kafka, or
        the file was lost and ``headrace.adopt`` is on.
        """
        return [topic for native in self._natives.values() for topic in native.adopted]

    @property
    def was_clean(self) -> bool:
        """Whether the data folder was new or had been stopped cleanly; if not, the logs were checked."""
        return all(native.was_clean for native in self._natives.values())

    def metrics(self, node: int | None = None) -> dict[str, int]:
        """Figures of the broker at the moment, by Kafka's names: docs/cluster.md says which of them to watch.

        Args:
            node: which of several brokers; without one they are added up, which is of use for what is counted by the
                broker that leads, such as ``UnderReplicatedPartitions``.

        Raises:
            ConfigError: there is no such broker, or it does not run.
        """
        figures: dict[str, int] = {}
        for figure in self._figures(node):
            figures[figure.name] = figures.get(figure.name, 0) + figure.value
        return figures

    def _figures(self, node: int | None = None) -> list[Figure]:
        if node is not None and node not in self._natives:
            message = f"no broker {node} runs: there are {', '.join(map(str, self._natives)) or 'none'}"
            raise ConfigError(message, name="INVALID_CONFIG")
        natives = self._natives.values() if node is None else [self._natives[node]]
        return [Figure(*one) for native in natives for one in native.metrics() or ()]

    def take_troubles(self) -> list[str]:
        """Errors since the last call that could not be reported to any client, such as a failed sync; at most 1,000."""
        return [trouble for native in self._natives.values() for trouble in native.take_troubles()]

    def stop(self) -> None:
        """Stops, and writes everything to disk, or removes the folder if it is a temporary one.

        In a forked child it does nothing: the broker is the parent's.
        """
        _running.discard(self)
        if self._process != os.getpid():
            return
        try:
            # While the broker runs: what the registry was asked for is written to it.
            registry, self._registry = self._registry, None
            if registry is not None:
                registry.stop()
        finally:
            self._stop_native()

    def _stop_native(self) -> None:
        try:
            with contextlib.ExitStack() as all_of_them:
                for native in self._natives.values():
                    all_of_them.callback(native.stop)
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None

    def __enter__(self) -> Self:
        """The broker itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops it."""
        self.stop()

    def __repr__(self) -> str:
        """The address it listens on."""
        state = "serving" if self.is_running else "stopped"
        return f"<headrace.Broker {self.bootstrap_servers} {state}>"


def _check_arguments(data_dir: object, host: object, **ports: object) -> None:
    """Names the argument that cannot be, before anything is made."""
    wrong = None
    if data_dir is not None and not isinstance(data_dir, (str, bytes, os.PathLike)):
        wrong = f"data_dir takes the path of a folder, not {type(data_dir).__name__}"
    elif not isinstance(host, str) or not host:
        wrong = f"host takes a name or an address, not {host!r}"
    for name, port in ports.items():
        if wrong is None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= PORT_MAX):
            wrong = f"{name} takes a whole number from 0 (any that is free) to {PORT_MAX}, not {port!r}"
    if wrong is not None:
        raise ConfigError(wrong, name="INVALID_CONFIG")


def _check_nodes(nodes: object, port: int) -> None:
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= NODES_MAX:
        message = f"nodes takes a whole number from 1 to {NODES_MAX}, not {nodes!r}"
        raise ConfigError(message, name="INVALID_CONFIG")
    if port and port + nodes - 1 > PORT_MAX:
        message = f"{nodes} brokers from port {port} on need ports above {PORT_MAX}"
        raise ConfigError(message, name="INVALID_CONFIG")


def _stop_all() -> None:
    with contextlib.ExitStack() as all_of_them:
        for broker in list(_running):
            all_of_them.callback(broker.stop)


at_end(BROKERS, _stop_all)
