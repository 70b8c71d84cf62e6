"""Members of a share group at work, ours and Java's, and the book of what they were given and what was confirmed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.errors import InvalidRecordStateError
from tests.kafka import java

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

TIMEOUT_SECONDS = 90
Record = tuple[int, int]
"""Partition and offset."""


LATE_MAX = 100
"""So many records may be confirmed to two: as many as two members hold that are late with them."""


def named(rows: pa.RecordBatch) -> dict[Record, int]:
    """The records of a batch, and how often each was delivered."""
    records = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    return dict(zip(records, rows["delivery_count"].to_pylist(), strict=True))


class Book:
    """What the members of one group were given of one topic, and what brokers have said of their acknowledgements."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: dict[Record, list[int]] = defaultdict(list)
        """The delivery counts that a record was given with to members of ours, in turn."""
        self.given: set[Record] = set()
        self.accepted: dict[Record, list[int | None]] = defaultdict(list)
        """Each time that a broker has confirmed that it is accepted: of which delivery, where that is known."""
        self.unsure: set[Record] = set()
        """Those whose acknowledgement had another end: it may have been applied."""

    def give(self, rows: pa.RecordBatch) -> None:
        """A member of ours got these."""
        with self._lock:
            for record, count in named(rows).items():
                self.counts[record].append(count)
                self.given.add(record)

    def settle(self, records: Mapping[Record, int | None], *, confirmed: bool) -> None:
        """What became of accepting these deliveries."""
        with self._lock:
            for record, count in records.items():
                self.given.add(record)
                if confirmed:
                    self.accepted[record].append(count)
                else:
                    self.unsure.add(record)

    def done(self) -> int:
        """How many were accepted for certain."""
        with self._lock:
            return len(self.accepted)

    def check(self, ends: dict[int, int]) -> None:
        """All was given to somebody, accepted by at most one, and nothing has got lost.

        Brokers confirm what comes late as well, once the group is past it: of another delivery, and of few records.

        Args:
            ends: how many records each partition has.
        """
        everything = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
        known = {record: [count for count in counts if count] for record, counts in self.accepted.items()}
        twice = [record for record, counts in known.items() if len(set(counts)) < len(counts)]
        late = [record for record, counts in self.accepted.items() if len(counts) > 1]
        assert len(late) <= LATE_MAX, f"{len(late)} records were confirmed to two, among them {sorted(late)[:10]}"
        for records, what in [
            (twice, "accepted more than once"),
            (everything - self.given, "never given to anybody"),
            (everything - set(self.accepted) - self.unsure, "given, and never accepted"),
            (self.given - everything, "given, and never written"),
        ]:
            some = sorted((record, self.counts.get(record)) for record in records)[:10]
            assert not records, f"{len(records)} records were {what}, among them (with delivery counts): {some}"

    def check_counts(self, limit: int, *, once: bool = True) -> None:
        """A count is of one delivery.

        Args:
            limit: the group's ``share.delivery.count.limit``.
            once: no record was given with the same count again, as a new leader may do.
        """
        for record, counts in self.counts.items():
            assert 1 <= min(counts) <= max(counts) <= limit, (record, counts)
            assert len(set(counts)) == len(counts) or not once, (record, counts)


class ShareMember:
    """A member of ours: polls, works, accepts and commits in a thread of its own."""

    def __init__(
        self, book: Book, servers: str, group: str, topic: str, work: Callable[[], object] | None = None, **options: Any
    ) -> None:
        self.error: BaseException | None = None
        self.refused = 0
        """Rows that it accepted too late."""
        self._book = book
        self._work = work
        self._ends = threading.Event()
        self._share = hr.ShareConsumer(servers, group_id=group, share_acknowledgement_mode="explicit", **options)
        self._share.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        """What it did last."""
        last = "\n  ".join(map(str, self._share.decisions()[-12:]))
        return f"member of ours, {self.refused} refused, {self._share.metrics()}\n  {last}"

    def _run(self) -> None:
        try:
            with self._share:
                while not self._ends.is_set():
                    self._turn()
        except BaseException as error:  # noqa: BLE001 -- `eventually` raises it
            self.error = error

    def _turn(self) -> None:
        marked: dict[Any, dict[Record, int | None]] = defaultdict(dict)
        late: dict[Any, dict[Record, int | None]] = defaultdict(dict)
        batches = self._share.poll_all(0.5)
        for batch in batches:
            self._book.give(batch)
        if batches and self._work is not None:
            self._work()
        for batch in batches:
            place = batch["topic"][0].as_py(), batch["partition"][0].as_py()
            try:
                self._share.acknowledge(batch)
            except InvalidRecordStateError:
                self.refused += batch.num_rows
                late[place].update(named(batch))  # some of them may be marked
            else:
                marked[place].update(named(batch))
        results = self._share.commit(TIMEOUT_SECONDS)
        assert set(marked) <= set(results) <= set(marked) | set(late), "results of what was marked, and of nothing else"
        for partition, records in marked.items():
            error = results[partition]
            if isinstance(error, InvalidRecordStateError):
                self.refused += len(records)
            self._book.settle(records, confirmed=error is None)
        for records in late.values():
            self._book.settle(records, confirmed=False)

    def end(self) -> None:
        """Tells it to leave the group, and goes on."""
        self._ends.set()

    def close(self) -> None:
        """Awaits that it has left the group, and raises what it died of."""
        self.end()
        self._thread.join(TIMEOUT_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"it did not close within {TIMEOUT_SECONDS} s")
        if self.error is not None:
            raise self.error


class JavaShareMember:
    """A member of Kafka's own client, in a process: `VerifiableShareConsumer`, which tells all that it does."""

    def __init__(self, book: Book, servers: str, group: str, topic: str) -> None:
        self.error: BaseException | None = None
        self.accepted = 0
        self._book = book
        arguments = ("--bootstrap-server", servers, "--group-id", group, "--topic", topic)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            java.command(
                "org.apache.kafka.tools.VerifiableShareConsumer", *arguments, "--acknowledgement-mode", "sync"
            ),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        """What it did."""
        return f"member of Java, {self.accepted} accepted"

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    self._hear(json.loads(line))
        except BaseException as error:  # noqa: BLE001 -- `eventually` raises it
            self.error = error

    def _hear(self, event: dict[str, Any]) -> None:
        if event["name"] == "offsets_acknowledged":
            parts = event["partitions"]
            records = dict.fromkeys((part["partition"], offset) for part in parts for offset in part["offsets"])
            self.accepted += len(records) if event["success"] else 0
            self._book.settle(records, confirmed=event["success"])

    def end(self) -> None:
        """Ends it as Ctrl-C would, and goes on."""
        self._process.terminate()

    def close(self) -> None:
        """Awaits its end, and reads all that it has to tell."""
        self.end()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._errors.close()
        if self.error is not None:
            raise self.error


def eventually(what: Callable[[], object], *members: ShareMember | JavaShareMember) -> None:
    """Waits until that is so; what one of the members died of comes out."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not what():
        for member in members:
            if member.error is not None:
                raise member.error
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_SECONDS} s")
        time.sleep(0.05)
