"""Producers of one client, a thread each: every record when it is due, whatever became of those before it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.lab.distribution import Distributor
from headrace.lab.histogram import Recorder
from headrace.lab.journal import SENT
from headrace.lab.payload import Payloads
from headrace.lab.schedule import NEVER, Schedule
from headrace.lab.worker.drivers import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.lab.journal import Journal
    from headrace.lab.worker.drivers import Driver, Rows, Times
    from headrace.lab.workload import Workload

BLOCK_BYTES_MAX: Final = 2 << 20
TICK_S: Final = 0.001
FLUSH_TIMEOUT_S: Final = 30.0
ERRORS_MAX: Final = 20


class Tally:
    """What became of one worker's records; told by the clients' threads, taken once a second."""

    def __init__(self, *, scheduled: bool) -> None:
        """`scheduled`: whether records have due times; else there is no delay to tell."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str, int], list[int]] = defaultdict(lambda: [0, 0])
        self._failed = 0
        self._errors: list[str] = []
        self._publish, self._delay = Recorder(), Recorder()
        self.scheduled = scheduled

    def acknowledged(self, member: int, block: Block, rows: Rows, sent_ns: int, acked_ns: Times) -> None:
        """Counts records that were acknowledged, all of a block's if `rows` is None."""
        due = block.due if rows is None else block.due[rows]
        if not len(due):
            return
        self._publish.add(sent_ns, acked_ns, len(due) if isinstance(acked_ns, int) else 1)
        if self.scheduled:
            self._delay.add(due, sent_ns)
        size = block.values.buffers()[2].size // len(block.values)
        partitions = block.placement.partitions
        with self._lock:
            if partitions is None:
                self._count((member, block.topic, -1), len(due), size)
                return
            chosen = partitions if rows is None else partitions[rows]
            found = np.bincount(chosen)
            for partition in np.flatnonzero(found).tolist():
                self._count((member, block.topic, partition), int(found[partition]), size)

    def _count(self, place: tuple[int, str, int], records: int, size: int) -> None:
        self._counts[place][0] += records
        self._counts[place][1] += records * size

    def failed(self, count: int, why: str) -> None:
        """Counts records that were not acknowledged."""
        with self._lock:
            self._failed += count
            if len(self._errors) < ERRORS_MAX and why not in self._errors:
                self._errors.append(why)

    def take(self) -> dict[str, Any]:
        """What came since the last time, as fields of a `Second`."""
        with self._lock:
            counts = [[*place, *numbers] for place, numbers in self._counts.items()]
            failed, errors = self._failed, self._errors
            self._counts.clear()
            self._failed, self._errors = 0, []
        hist = {"publish": self._publish.take(), "delay": self._delay.take()}
        return {"counts": counts, "failed": failed, "errors": errors, "hist": {k: v for k, v in hist.items() if v}}


@dataclass
class _Outcome:
    """A producer's part of the tally."""

    tally: Tally
    member: int
    journal: Journal | None = None

    @property
    def each(self) -> bool:
        return self.journal is not None

    def acknowledged(self, block: Block, rows: Rows, sent_ns: int, acked_ns: Times) -> None:
        if self.journal is not None:
            sequence = block.first + (np.arange(len(block.due)) if rows is None else rows)
            self.journal.add(SENT, len(sequence), producer=self.member, sequence=sequence)
        self.tally.acknowledged(self.member, block, rows, sent_ns, acked_ns)

    def failed(self, count: int, why: str) -> None:
        self.tally.failed(count, why)


@dataclass(frozen=True)
class Plan:
    """From when on which schedule; None is as fast as the client takes records."""

    at_ns: int
    schedule: Schedule | None


class Producing:
    """All producers of a worker."""

    def __init__(
        self,
        driver: Driver,
        bootstrap: str,
        workload: Workload,
        topics: Sequence[str],
        members: Sequence[int],
        *,
        first: int = 0,
        of: int = 0,
        records: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Makes the producers.

        Args:
            driver: the client.
            bootstrap: where it connects.
            workload: what is sent.
            topics: by turns one for each producer.
            members: numbers of the producers.
            first: the place of the first of them among all producers of the run.
            of: how many those are; 0: these.
            records: how many all send together before they end by themselves.
            journal: is told each record that a broker has acknowledged; values have checksums then.
        """
        self.workload = workload
        self.tally = Tally(scheduled=workload.schedule is not None and records is None)
        self._members = list(members)
        self._records = records
        self._places = {member: first + i for i, member in enumerate(self._members)}
        self._of = of or len(self._members)
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._stopped = False
        self._due: dict[int, int] = {}
        self._sent = dict.fromkeys(self._members, 0)
        # Made here, not by the threads: this may take a second or two, in which records would be due already.
        self._makers = {
            member: (
                Distributor(workload.message_distributor, workload.partitions_per_topic, member, workload.seed),
                Payloads(workload, member, checked=journal is not None),
            )
            for member in self._members
        }
        self._block_rows = driver.block_rows
        options = workload.options(driver.name, "producer")
        self._producers = {
            member: driver.producer(bootstrap, options, _Outcome(self.tally, member, journal))
            for member in self._members
        }
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(member, topics[place % len(topics)]), name=f"producer-{member}"
            )
            for member, place in self._places.items()
        ]
        self.trouble: str | None = None

    def start(self, at_ns: int) -> None:
        """Begins at that time."""
        unbounded = self._records is not None
        self.rate(at_ns, None if unbounded else self.workload.schedule)
        for thread in self._threads:
            thread.start()

    def rate(self, at_ns: int, schedule: Schedule | None) -> None:
        """Goes over to another schedule; what was due under the old one and is not sent is left."""
        with self._changed:
            self._plan = Plan(at_ns, schedule)
            self._changed.notify_all()

    def stop(self) -> None:
        """Sends nothing more, and waits for the outcome of what was."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for producer in self._producers.values():
            producer.close()

    @property
    def ended(self) -> bool:
        """Whether all have sent what they were to send, or cannot go on."""
        return all(thread.ident is not None and not thread.is_alive() for thread in self._threads)

    def take(self) -> dict[str, Any]:
        """What came since the last time, as fields of a `Second`."""
        return {**self.tally.take(), "due": sum(self._due.values()), "sent": sum(self._sent.values())}

    def _guarded(self, member: int, topic: str) -> None:
        try:
            self._work(member, topic)
        except Exception as error:  # noqa: BLE001  (the worker tells it)
            self.trouble = f"producer {member}: {error}"

    def _work(self, member: int, topic: str) -> None:
        workload, producer = self.workload, self._producers[member]
        place, payloads = self._makers[member]
        block_rows = max(min(self._block_rows, BLOCK_BYTES_MAX // workload.message_size), 1)
        share = _Share(self._places[member], self._of, self._records)
        sequence = 0
        while (plan := self._current()) is not None:
            due = share.due(plan, block_rows)
            self._due[member] = share.due_total
            if not len(due):
                if share.exhausted:
                    break
                producer.poll()
                self._rest(plan, share)
                continue
            values = payloads.make(due, sequence)
            producer.send(Block(topic, values, place.next(len(due)), due, sequence))
            sequence += len(due)
            self._sent[member] = sequence
        producer.flush(FLUSH_TIMEOUT_S)

    def _current(self) -> Plan | None:
        with self._changed:
            return None if self._stopped else self._plan

    def _rest(self, plan: Plan, share: _Share) -> None:
        """Waits until the next record is due, or something changes."""
        wait_s = min(max(share.next_ns(plan) - time.time_ns(), 0) / 1e9, 0.1)
        with self._changed:
            if not self._stopped and self._plan is plan:
                # What is due within a tick goes together: a block costs more than its rows.
                self._changed.wait(max(wait_s, TICK_S))


class _Share:
    """A producer's part of the records: those whose number is its own modulo the number of producers."""

    def __init__(self, index: int, producers: int, records: int | None) -> None:
        self._index, self._producers = index, producers
        self._limit = None if records is None else (records - index + producers - 1) // producers
        self._plan: Plan | None = None
        self._taken = 0
        self._taken_before = 0
        self.due_total = 0

    @property
    def exhausted(self) -> bool:
        """Whether it has sent all that it was to send."""
        return self._limit is not None and self._taken_before + self._taken >= self._limit

    def due(self, plan: Plan, most: int) -> NDArray[np.int64]:
        """The due times of records that are due now and were not given yet, in nanoseconds since the epoch."""
        if plan is not self._plan:
            self._taken_before += self._taken
            self._plan, self._taken = plan, 0
        now = time.time_ns()
        if plan.schedule is None:
            count = most if now >= plan.at_ns else 0
            if self._limit is not None:
                count = min(count, self._limit - self._taken_before - self._taken)
            self._taken += count
            self.due_total = self._taken_before + self._taken
            return np.full(count, now, np.int64)
        counted = int(plan.schedule.count((now - plan.at_ns) / 1e9))
        mine = max((counted - self._index + self._producers - 1) // self._producers, 0)
        self.due_total = self._taken_before + mine
        count = min(mine - self._taken, most)
        if count <= 0:
            return np.empty(0, np.int64)
        due = plan.schedule.due(self._numbers(count)) + plan.at_ns
        self._taken += count
        return due

    def _numbers(self, count: int) -> NDArray[np.int64]:
        return (self._taken + np.arange(count)) * self._producers + self._index

    def next_ns(self, plan: Plan) -> int:
        """When its next record is due."""
        if plan.schedule is None:
            return plan.at_ns
        due = int(plan.schedule.due(self._numbers(1))[0])
        return NEVER if due == NEVER else due + plan.at_ns
