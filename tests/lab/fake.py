"""A client that talks to a list in this process."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.lab.worker.drivers import Block, ConsumerDriver, Outcome, Polled, ProducerDriver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class FakeBroker:
    """Keeps blocks; a driver at the same time. `stall_s` is how long the first send after a while waits once."""

    name: str = "headrace"
    version: str = "fake 1"
    block_rows: int = 4_000
    stall_after_s: float | None = None
    stall_s: float = 0.0
    fails: str | None = None
    blocks: deque[Block] = field(default_factory=deque)
    everything: list[Block] = field(default_factory=list)
    options: list[Mapping[str, str]] = field(default_factory=list)
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def producer(self, _bootstrap: str, options: Mapping[str, str], outcome: Outcome) -> Any:
        self.options.append(options)
        return FakeProducer(self, outcome)

    def consumer(
        self, _bootstrap: str, options: Mapping[str, str], _group: str, topics: Sequence[str], *, share: bool
    ) -> Any:
        del share, topics
        self.options.append(options)
        return FakeConsumer(self)


class FakeProducer(ProducerDriver):
    def __init__(self, broker: FakeBroker, outcome: Outcome) -> None:
        self.broker = broker
        self.outcome = outcome
        self.began = time.monotonic()

    def send(self, block: Block) -> None:
        broker, sent_ns = self.broker, time.time_ns()
        if broker.fails:
            raise RuntimeError(broker.fails)
        if broker.stall_after_s is not None and time.monotonic() - self.began > broker.stall_after_s:
            broker.stall_after_s = None
            time.sleep(broker.stall_s)
            sent_ns = time.time_ns()
        with broker.lock:
            broker.blocks.append(block)
            broker.everything.append(block)
        self.outcome.acknowledged(block, np.arange(len(block.due)), sent_ns, time.time_ns())

    def close(self) -> None:
        self.broker.closed += 1


class FakeConsumer(ConsumerDriver):
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def poll(self, timeout_s: float) -> list[Polled]:
        with self.broker.lock:
            if self.broker.blocks:
                block = self.broker.blocks.popleft()
                return [Polled(block.topic, 0, block.values)]
        time.sleep(min(timeout_s, 0.005))
        return []

    def assigned(self) -> int | None:
        return 1

    def close(self) -> None:
        self.broker.closed += 1
