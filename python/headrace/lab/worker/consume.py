"""Members of a group of one client, a thread each: every record's delivery time, and the work on it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace._native import SeenRecords, count_records
from headrace.lab.columns import column
from headrace.lab.histogram import Recorder
from headrace.lab.journal import ACCEPTED, CORRUPT, DELIVERIES_MAX, DELIVERIES_SHIFT, FOREIGN, GIVEN, RECEIVED
from headrace.lab.payload import Heads, read, verify
from headrace.lab.work import Work
from headrace.lab.worker.produce import ERRORS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.lab.journal import Journal
    from headrace.lab.worker.drivers import ConsumerDriver, Driver, Polled
    from headrace.lab.workload import Workload

POLL_S: Final = 0.1
MEASURED_PARTITIONS_MAX: Final = 256
"""So many partitions have histograms of their own."""


class Intake:
    """What one worker's members received; taken once a second."""

    def __init__(self, *, distinct: bool) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str, int], list[int]] = defaultdict(lambda: [0, 0])
        self._numbers = {"fresh": 0, "foreign": 0, "polls": 0, "empty": 0}
        self._errors: list[str] = []
        self._members: dict[int, Recorder] = defaultdict(Recorder)
        self._partitions: dict[str, Recorder] = {}
        self._seen = SeenRecords() if distinct else None

    def polled(self, *, empty: bool) -> None:
        """Counts a poll."""
        with self._lock:
            self._numbers["polls"] += 1
            self._numbers["empty"] += empty

    def received(self, member: int, polled: Polled, began_ns: int | NDArray[np.int64]) -> None:
        """Counts records whose work began then, each at a time of its own or all at one."""
        name = f"{polled.topic}-{polled.partition}"
        with self._lock:
            of_member = self._members[member].counts
            measured = self._partitions.get(name)
            if measured is None and len(self._partitions) < MEASURED_PARTITIONS_MAX:
                measured = self._partitions[name] = Recorder()
        of_partition = None if measured is None else measured.counts
        began = began_ns if isinstance(began_ns, int) else column(began_ns)
        ours, fresh, size = count_records(polled.values, began, of_member, of_partition, self._seen)
        with self._lock:
            counts = self._counts[member, polled.topic, polled.partition]
            counts[0] += ours
            counts[1] += size
            self._numbers["foreign"] += len(polled.values) - ours
            self._numbers["fresh"] += fresh

    def error(self, why: str) -> None:
        """Something went wrong that the member goes on after."""
        with self._lock:
            if len(self._errors) < ERRORS_MAX and why not in self._errors:
                self._errors.append(why)

    def take(self) -> dict[str, Any]:
        """What came since the last time, as fields of a `Second`."""
        with self._lock:
            counts = [[*place, *numbers] for place, numbers in self._counts.items()]
            self._counts.clear()
            numbers, errors = self._numbers, self._errors
            self._numbers, self._errors = dict.fromkeys(numbers, 0), []
            members, partitions = dict(self._members), dict(self._partitions)
        hist = {
            "delivery": {str(member): text for member, one in members.items() if (text := one.take())},
            "partition": {name: text for name, one in partitions.items() if (text := one.take())},
        }
        return {"counts": counts, "errors": errors, "hist": {k: v for k, v in hist.items() if v}, **numbers}


class Consuming:
    """All members of a worker."""

    def __init__(
        self,
        driver: Driver,
        bootstrap: str,
        workload: Workload,
        topics: Sequence[str],
        members: Sequence[int],
        *,
        group: str,
        distinct: bool = False,
        journal: Journal | None = None,
    ) -> None:
        """Makes the members, and has them poll at once: a group is given its partitions within polls."""
        self.workload = workload
        self.intake = Intake(distinct=distinct)
        self.trouble: str | None = None
        self._journal = journal
        self._topics = {topic: number for number, topic in enumerate(topics)}
        self._stopped = threading.Event()
        share = workload.consumer_type == "share"
        options = {"auto.offset.reset": "earliest"} if not share else {}
        options |= workload.options(driver.name, "consumer")
        self._consumers = {
            member: driver.consumer(bootstrap, options, group, topics, share=share) for member in members
        }
        for consumer in self._consumers.values():
            consumer.each = journal is not None
            consumer.tell = self.intake.error  # type: ignore[method-assign]
        self._works = {
            member: Work(
                workload.consumer_proc_ms_min,
                workload.consumer_proc_ms_max,
                workload.consumer_proc_parallelism,
                workload.seed + member,
            )
            for member in members
        }
        self._held: dict[int, int | None] = {}
        self._threads = [
            threading.Thread(target=self._guarded, args=(member,), name=f"consumer-{member}") for member in members
        ]
        for thread in self._threads:
            thread.start()

    def assigned(self) -> tuple[int | None, int] | None:
        """How many partitions all hold, and how many members hold one; None until every member has polled.

        The first is None where the client does not tell.
        """
        held = list(self._held.values())
        if len(held) < len(self._consumers):
            return None
        known = [count for count in held if count is not None]
        return sum(known) if len(known) == len(held) else None, sum(count > 0 for count in known)

    def work(self, min_ms: float, max_ms: float) -> None:
        """Changes the work on each record."""
        for one in self._works.values():
            one.set(min_ms, max_ms)

    def stop(self) -> None:
        """Ends the polls, and leaves the group."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def take(self) -> dict[str, Any]:
        """What came since the last time, as fields of a `Second`."""
        return self.intake.take()

    def _guarded(self, member: int) -> None:
        consumer = self._consumers[member]
        try:
            try:
                while not self._stopped.is_set():
                    self._turn(member, consumer)
            finally:
                consumer.close()
                if self._journal is not None:
                    self._accepted(self._journal, member, consumer)
        except Exception as error:  # noqa: BLE001  (the worker tells it)
            self.trouble = f"consumer {member}: {error}"

    def _turn(self, member: int, consumer: ConsumerDriver) -> None:
        found = consumer.poll(POLL_S)
        now = time.time_ns()
        self._held[member] = consumer.assigned()
        self.intake.polled(empty=not found)
        if self._journal is not None:
            self._accepted(self._journal, member, consumer)
        if not found:
            return
        written: list[tuple[pa.Array, Heads]] = []
        if self._journal is not None:
            arrays = [_array(polled.values) for polled in found]
            written = [(values, read(values)) for values in arrays]
            for polled, (_, heads) in zip(found, written, strict=True):
                self._given(self._journal, member, polled, heads)
        work = self._works[member]
        rows = [len(polled.values) for polled in found]
        began = work.run(sum(rows), self._stopped) if work.needed else None
        at = 0
        for polled, count in zip(found, rows, strict=True):
            self.intake.received(member, polled, now if began is None else began[at : at + count])
            at += count
        if self._journal is not None:
            for polled, (values, heads) in zip(found, written, strict=True):
                self._received(self._journal, member, polled, values, heads)
        consumer.done()

    def _given(self, journal: Journal, member: int, polled: Polled, heads: Heads) -> None:
        """Writes down how often brokers have given records out: a member that crashes does not come to tell."""
        if polled.deliveries is None or polled.offsets is None:
            return
        place = {"member": member, "topic": self._topics[polled.topic], "partition": polled.partition}
        count, offset = np.minimum(polled.deliveries[heads.ours], DELIVERIES_MAX), polled.offsets[heads.ours]
        names = {"producer": heads.producer, "sequence": heads.sequence, "offset": offset, **place}
        journal.add(GIVEN, len(offset), flags=count << DELIVERIES_SHIFT, **names)

    def _received(self, journal: Journal, member: int, polled: Polled, values: pa.Array, heads: Heads) -> None:
        flags = np.full(len(heads.ours), FOREIGN, np.uint8)
        flags[heads.ours] = np.where(verify(values.filter(pa.array(heads.ours))), 0, CORRUPT)
        producer, sequence = np.zeros(len(flags), np.uint16), np.zeros(len(flags), np.uint64)
        producer[heads.ours], sequence[heads.ours] = heads.producer, heads.sequence
        place = {"member": member, "topic": self._topics[polled.topic], "partition": polled.partition}
        offset = -1 if polled.offsets is None else polled.offsets
        journal.add(RECEIVED, len(flags), flags=flags, producer=producer, sequence=sequence, offset=offset, **place)

    def _accepted(self, journal: Journal, member: int, consumer: ConsumerDriver) -> None:
        for one in consumer.accepted():
            place = {"member": member, "topic": self._topics[one.topic], "partition": one.partition}
            journal.add(ACCEPTED, len(one.offsets), offset=one.offsets, **place)


def _array(values: pa.Array | list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary()) if isinstance(values, list) else values
