"""Plays the measurements into the two topics at a chosen pace."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.demo import data
from headrace.producer import Producer
from headrace.registry import SchemaRegistry
from headrace.values import Avro

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.demo.cluster import Cluster

ACK_TIMEOUT_S = 30.0


@dataclass
class Progress:
    """How far the replay is; read by the terminal while the thread runs."""

    minutes: int = 0
    minutes_total: int = 0
    records: int = 0
    label: str = ""
    started: float = 0.0
    started_at: float = 0.0
    """The same moment in seconds since the epoch."""
    ended: float | None = None
    behind_s: float = 0.0
    """The most that a minute was sent after its time."""
    error: Exception | None = None
    rates: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and records sent so far."""
    sent_at: dict[str, float] = field(default_factory=dict)
    """When each minute was sent, by its label, in seconds since the epoch."""


class Replay:
    """A thread that sends minute after minute."""

    def __init__(self, cluster: Cluster, table: pa.Table, minutes_per_second: float) -> None:
        """Prepares all records before the clock starts."""
        self.progress = Progress()
        self._bootstrap = cluster.bootstrap_servers
        registry = SchemaRegistry(cluster.registry_url)
        self._formats = {topic: Avro(schema, registry=registry) for topic, schema in data.SCHEMAS.items()}
        self._pace = minutes_per_second
        self._minutes = list(data.minutes(table))
        self.progress.minutes_total = len(self._minutes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        """Starts the clock."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, done or not."""
        self._stop.set()
        self._thread.join(ACK_TIMEOUT_S)

    def _run(self) -> None:
        progress = self.progress
        progress.started, progress.started_at = time.monotonic(), time.time()
        try:
            with Producer(self._bootstrap, linger_ms=0, acks="all") as producer:
                for i, minute in enumerate(self._minutes):
                    due = progress.started + i / self._pace
                    progress.behind_s = max(progress.behind_s, time.monotonic() - due)
                    if self._stop.wait(max(due - time.monotonic(), 0)):
                        return
                    self._send(producer, minute)
                    progress.minutes, progress.label = i + 1, minute.label
                self._send(producer, data.ending(self._minutes[-1]))
        except Exception as error:  # noqa: BLE001  (the main thread raises it)
            progress.error = error
        finally:
            progress.ended = time.monotonic()

    def _send(self, producer: Producer, minute: data.Minute) -> None:
        # Each minute is acknowledged before the next is sent, so no partition ever runs ahead of another by more.
        self.progress.sent_at[minute.label] = time.time()
        sent = [
            producer.send_arrow(topic, records, value=self._formats[topic])
            for topic, records in ((data.FLOW_TOPIC, minute.flow), (data.SPEED_TOPIC, minute.speed))
        ]
        for future in sent:
            self.progress.records += future.result(ACK_TIMEOUT_S)
        self.progress.rates.append((time.monotonic() - self.progress.started, self.progress.records))
