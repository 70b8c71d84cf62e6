"""How long a partition takes no records when its leader is stopped or killed: our brokers beside Apache Kafka's.

Three brokers each, a process apiece, one partition with three copies, acks all. A producer has one record confirmed
after the other while the leader is stopped (SIGTERM) or killed (SIGKILL), and comes back; a figure is the longest time
between two confirmations. The stock producer (librdkafka) writes to both, ours to ours, over TCP and into the leader's
memory. Sessions are 3 s on both sides.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import headrace as hr
from benches.harness import Row, paired, say
from tests.cluster.processes import Node, brokers, etcd
from tests.kafka.apache import scratch_folder
from tests.kafka.nodes import ApacheNodes, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from benches.run import Bench

COPIES = 3
TOPIC = "handover"
KILLS = 2
"""In each round, beside as many stops; each of them waits for a session to end."""
SETTLED_SECONDS = 1.0
STOP_BAR_MS = 50
KILL_BAR_MS = 4000
"""A second after the lease ends."""


class Writing:
    """A producer that has one record confirmed after the other, in a thread."""

    def __init__(self, servers: str, kind: str) -> None:
        self._servers, self._kind = servers, kind
        self._times: list[float] = []
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: len(self._times) > 100 or self._error is not None)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                send = self._stock() if self._kind == "stock" else self._own(stack)
                while not self._ends.is_set():
                    send()
                    self._times.append(time.monotonic())
        except BaseException as error:  # noqa: BLE001 -- whoever waits for the thread raises it
            self._error = error

    def _own(self, stack: contextlib.ExitStack) -> Callable[[], object]:
        options: dict[str, str | int] = {"acks": "all", "linger.ms": 0, "headrace.datapath": self._kind}
        producer = stack.enter_context(hr.Producer(self._servers, options))
        return lambda: producer.send(TOPIC, value=b"x", partition=0).result(120)

    def _stock(self) -> Callable[[], object]:
        fixed = {"acks": "all", "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers, **fixed})

        def send() -> None:
            answers: list[object] = []
            producer.produce(TOPIC, b"x", partition=0, on_delivery=lambda error, _: answers.append(error))
            while not answers:
                producer.poll(1)
            if answers != [None]:
                raise confluent_kafka.KafkaException(answers[0])

        return send

    def longest_gap_ms(self, since: float) -> float:
        """Between two confirmations, from shortly before `since` on, once it goes on."""
        seen = len(self._times)
        until(lambda: len(self._times) > seen + 20 or self._error is not None)
        later = [at for at in self._times if at > since - 0.1]
        return max(b - a for a, b in pairwise(later)) * 1000


def _partition(servers: str) -> tuple[int, int]:
    """The leader, and how many are in sync."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    found = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0]
    return found.leader, len(found.isrs)


def _create(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    until(lambda: len(admin.list_topics(timeout=10).brokers) == COPIES)
    # Node 1 of Apache Kafka is the controller too: it is not to lead.
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[2, 3, 1]])])[TOPIC].result(60)
    until(lambda: _partition(servers)[1] == COPIES)


def _gaps(servers: str, end: Callable[[int, int], None], begin: Callable[[int], None], kind: str) -> list[list[float]]:
    """Milliseconds of stops, and of kills."""
    gaps: list[list[float]] = [[], []]
    with Writing(servers, kind) as writing:
        for number in (signal.SIGTERM, signal.SIGKILL) * KILLS:
            until(lambda: _partition(servers)[1] == COPIES and _partition(servers)[0] in {2, 3})
            time.sleep(SETTLED_SECONDS)
            led_by, since = _partition(servers)[0], time.monotonic()
            end(led_by, number)
            gaps[number == signal.SIGKILL].append(writing.longest_gap_ms(since))
            begin(led_by)
    return gaps


def _of_ours(nodes: dict[int, Node]) -> tuple[Callable[[int, int], None], Callable[[int], None]]:
    def end(number: int, how: int) -> None:
        if how == signal.SIGTERM:
            nodes[number].stop()
        else:
            nodes[number].kill()

    return end, lambda number: nodes[number].start()


def _of_apache(nodes: ApacheNodes) -> tuple[Callable[[int, int], None], Callable[[int], None]]:
    def end(number: int, how: int) -> None:
        process = nodes.node(number).process
        assert process is not None
        os.kill(process.pid, how)
        process.wait(60)

    return end, lambda number: nodes.node(number).restart()


def rows(bench: Bench) -> Iterator[Row]:
    """Stops and kills of leaders."""
    say(f"leaders are stopped and killed: {bench.pairs} rounds of {KILLS} each")
    runs: dict[str, list[list[float]]] = {}
    with contextlib.ExitStack() as running:
        folder = scratch_folder("handover")
        running.callback(shutil.rmtree, folder, ignore_errors=True)
        address = f"etcd://{running.enter_context(etcd(folder)).client}"
        nodes = running.enter_context(brokers(folder, address, COPIES, auto_leader_rebalance_enable="false"))
        servers = ",".join(node.address for node in nodes.values())
        apache = running.enter_context(
            ApacheNodes(COPIES, heap="512m", quick=False, auto_leader_rebalance_enable="false")
        )
        _create(servers)
        _create(apache.bootstrap_servers)
        for _ in range(bench.pairs):
            sides = [(f"ours, {kind}", servers, _of_ours(nodes), kind) for kind in ("tcp", "auto", "stock")]
            for side, at, (end, begin), kind in [
                *sides,
                ("apache", apache.bootstrap_servers, _of_apache(apache), "stock"),
            ]:
                stops, kills = _gaps(at, end, begin, kind)
                known = runs.setdefault(side, [[], []])
                known[0] += stops
                known[1] += kills
    names = {"tcp": "over TCP", "auto": "one-sided", "stock": "librdkafka"}
    for what, label, bar in (0, "stopped", STOP_BAR_MS), (1, "killed", KILL_BAR_MS):
        for kind, name in names.items():
            bars = {} if kind == "stock" else {"bar_on_ours": bar}
            title = f"a leader is {label}: no record confirmed [{name}] / librdkafka at Apache Kafka"
            yield paired(title, runs[f"ours, {kind}"][what], runs["apache"][what], "ms", **bars)
