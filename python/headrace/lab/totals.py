"""What a run adds up to: series by second, histograms, and the numbers of its summary."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from headrace.lab.histogram import Histogram
from headrace.lab.view import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.lab.bundle import Bundle
    from headrace.lab.protocol import Second

LATE_SECONDS: Final = 5
"""A second's histograms are closed so many seconds later, or when all workers have told theirs."""

ERRORS_MAX: Final = 100
EVERY_SECOND: Final = (0, 1 << 40)
KINDS: Final = ("publish", "delay", "delivery")


class Totals:
    """Takes what workers tell, a second at a time."""

    def __init__(self, driver: str, bundle: Bundle, *, groups: int) -> None:
        """`groups` is how many times every record is received."""
        self.driver = driver
        self.groups = max(groups, 1)
        self.series: list[list[Any]] = []
        self.latency: list[list[Any]] = []
        self.sent_by_second: dict[int, int] = defaultdict(int)
        self.received_by_second: dict[int, int] = defaultdict(int)
        self.fresh_by_second: dict[int, int] = defaultdict(int)
        self.acknowledged = self.received = self.fresh = self.failed = self.foreign = 0
        self.backlog_written = 0
        self.polls = self.empty_polls = 0
        self.due_by_worker: dict[str, int] = {}
        self.handed_by_worker: dict[str, int] = {}
        self.cpu_s: dict[str, float] = defaultdict(float)
        self.errors: dict[str, int] = {}
        self.whole = {kind: Histogram() for kind in KINDS}
        self.by_member: dict[str, Histogram] = defaultdict(Histogram)
        self.by_partition: dict[str, Histogram] = defaultdict(Histogram)
        self.received_by_partition: dict[str, int] = defaultdict(int)
        self.step = {kind: Histogram() for kind in KINDS}
        """Of the seconds of `stepped`: what a step of explore-limits measures."""
        self.stepped = range(0)
        self.counted = EVERY_SECOND
        """The first second that counts, and the first after those that do."""
        self._bundle = bundle
        self._open: dict[int, dict[str, Histogram]] = {}
        self._last: dict[str, tuple[float, float]] = {}
        self.newest = -1

    def take(self, worker: str, role: str, second: Second) -> None:
        """Adds what a worker tells of a second."""
        self.newest = max(self.newest, second.n)
        produced = role == "produce"
        for member, topic, partition, records, size in second.counts:
            self.series.append([second.n, self.driver, role, member, topic, partition, records, size])
            if not produced:
                self.received_by_partition[f"{topic}-{partition}"] += records
        records = sum(row[3] for row in second.counts)
        if produced:
            self.acknowledged += records
            self.sent_by_second[second.n] += records
            self.due_by_worker[worker], self.handed_by_worker[worker] = second.due, second.sent
        else:
            self.received += records
            self.received_by_second[second.n] += records
            self.fresh_by_second[second.n] += second.fresh
            self.fresh += second.fresh
        self.failed += second.failed
        self.foreign += second.foreign
        self.polls += second.polls
        self.empty_polls += second.empty
        self.cpu_s[role] += second.cpu_s
        for error in second.errors:
            if error in self.errors or len(self.errors) < ERRORS_MAX:
                self.errors[error] = self.errors.get(error, 0) + 1
        for kind, of, text in _histograms(second.hist):
            self._histogram(second.n, kind, of, Histogram.decode(text))
        for n in sorted(n for n in self._open if n < self.newest - LATE_SECONDS):
            self._close(n)

    def _histogram(self, n: int, kind: str, of: str, histogram: Histogram) -> None:
        if of:
            self._row(n, kind, of, histogram)
        counts = self.counted[0] <= n < self.counted[1]
        if kind == "partition":
            if counts:
                self.by_partition[of].merge(histogram)
            return
        self._open.setdefault(n, {}).setdefault(kind, Histogram()).merge(histogram)
        if n in self.stepped:
            self.step[kind].merge(histogram)
        if counts:
            self.whole[kind].merge(histogram)
            if of:
                self.by_member[of].merge(histogram)

    def _row(self, n: int, kind: str, of: str, histogram: Histogram) -> None:
        quantiles = [histogram.at(p) / 1000 for p in (50, 95, 99, 99.9, 100)]
        self.latency.append([n, self.driver, kind, of, *quantiles, histogram.total])

    def _close(self, n: int) -> None:
        """A second is over: what all workers told of it becomes a row, and an interval of the log."""
        for kind, histogram in self._open.pop(n).items():
            self._row(n, kind, "", histogram)
            self._bundle.interval(kind, float(n), histogram.highest / 1000, histogram.encode())

    def finish(self) -> None:
        """Nothing more comes."""
        for n in sorted(self._open):
            self._close(n)

    def measure(self, seconds: range) -> None:
        """Begins a step over these seconds, none of which has been told yet."""
        self.step = {kind: Histogram() for kind in KINDS}
        self.stepped = seconds

    @property
    def due(self) -> int:
        """Records that were due up to now."""
        return sum(self.due_by_worker.values())

    @property
    def handed(self) -> int:
        """Records that were handed to the clients up to now."""
        return sum(self.handed_by_worker.values())

    @property
    def backlog(self) -> int:
        """Records that are acknowledged and not received by every group."""
        return max(self.backlog_written + self.acknowledged - self.received // self.groups, 0)

    def snapshot(self, n: int, progress: float | None, eta_s: float | None) -> Snapshot:
        """A second for the view."""
        delivery = self._open.get(n, {}).get("delivery", Histogram())
        return Snapshot(
            t_s=n + 1,
            sent_rate=self.sent_by_second[n],
            received_rate=self.received_by_second[n],
            sent=self.acknowledged + self.backlog_written,
            received=self.received,
            backlog=self.backlog,
            p50_ms=delivery.at(50) / 1000,
            p99_ms=delivery.at(99) / 1000,
            progress=progress,
            eta_s=eta_s,
            partitions=tuple(self.received_by_partition[name] for name in sorted(self.received_by_partition)),
        )

    def summary(self) -> dict[str, Any]:
        """Numbers by our names, and by those of the OpenMessaging Benchmark."""
        seconds = range(self.newest + 1)
        sent = [self.sent_by_second[n] for n in seconds]
        received = [self.received_by_second[n] for n in seconds]
        backlog, waiting = [], float(self.backlog_written)
        for out, into in zip(sent, received, strict=True):
            # A record may be counted as received before its acknowledgement has come.
            waiting += out - into / self.groups
            backlog.append(max(round(waiting), 0))
        reported: dict[str, Any] = {
            "sent": self.acknowledged,
            "backlogWritten": self.backlog_written,
            "failed": self.failed,
            "due": self.due,
            "received": self.received,
            "foreign": self.foreign,
            "polls": self.polls,
            "emptyPolls": self.empty_polls,
            "publishMs": self.whole["publish"].summary(),
            "delayMs": self.whole["delay"].summary(),
            "deliveryMs": self.whole["delivery"].summary(),
            "deliveryMsByMember": {of: one.summary() for of, one in sorted(self.by_member.items())},
            "deliveryMsByPartition": {of: one.summary() for of, one in sorted(self.by_partition.items())},
            "receivedByPartition": dict(sorted(self.received_by_partition.items())),
            "cpuSeconds": {role: round(spent, 3) for role, spent in self.cpu_s.items()},
            "quantiles": {kind: dict(_curve(one)) for kind, one in self.whole.items()},
            "errors": self.errors,
            "publishRate": sent,
            "consumeRate": received,
            "backlog": backlog,
        }
        if self.received:
            reported["consumerCpuSecondsPerMillion"] = round(self.cpu_s["consume"] / self.received * 1e6, 3)
        for name, kind in (("Publish", "publish"), ("PublishDelay", "delay"), ("EndToEnd", "delivery")):
            reported.update(_omb(f"aggregated{name}Latency", self.whole[kind]))
        return reported


def _histograms(hist: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Kind, of what, and text of each histogram of a `Second`."""
    for kind, given in hist.items():
        if isinstance(given, str):
            yield kind, "", given
        else:
            for of, text in given.items():
                yield kind, of, text


def _curve(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Percentile to milliseconds, ever closer to 100 as HdrHistogram's plots have it."""
    if not histogram.total:
        return
    left = 100.0
    while True:
        for part in range(5):
            percentile = 100 - left * (1 - part / 10)
            yield f"{percentile:.6g}", histogram.at(percentile) / 1000
        left /= 2
        if left / 100 * histogram.total < 1:
            break
    yield "100", histogram.highest / 1000


def _omb(prefix: str, histogram: Histogram) -> dict[str, Any]:
    names = {"50pct": 50, "75pct": 75, "95pct": 95, "99pct": 99, "999pct": 99.9, "9999pct": 99.99, "Max": 100}
    reported: dict[str, Any] = {f"{prefix}{name}": histogram.at(p) / 1000 for name, p in names.items()}
    reported[f"{prefix}Avg"] = histogram.mean / 1000
    reported[f"{prefix}Quantiles"] = dict(_curve(histogram))
    return reported
