"""Consuming as a member of a share group: records one by one, each acknowledged."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headrace import _native
from headrace._acknowledgements import AcknowledgeType, How, marks
from headrace._commits import Commits
from headrace._options import OptionValue, Servers, pairs
from headrace._process import CLIENTS, at_end, check_process
from headrace._types import TopicPartition
from headrace.errors import KafkaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

_log = logging.getLogger("headrace.share")
_decisions = logging.getLogger("headrace.share.decisions")
_open: weakref.WeakSet[ShareConsumer] = weakref.WeakSet()

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for the last acknowledgements and for leaving the group."""

Results: TypeAlias = dict[TopicPartition, "KafkaError | None"]
"""What a commit came to, by partition; None: all its records were acknowledged."""

Ended: TypeAlias = "tuple[int, list[tuple[tuple[str, int], KafkaError | None]] | None, KafkaError | None]"
"""A commit that nobody waited for: its number, and its results or an error of the whole."""


class ShareConsumer:
    """Takes records as a member of a share group (KIP-932; Apache Kafka 4.1 or newer, 4.2 for all of it).

    The members of a share group take records from the same partitions. The broker locks each record that it gives, for
    ``group.share.record.lock.duration.ms`` (30 s by default), until it is acknowledged: accepted, released to be
    delivered again, or rejected. With ``share_acknowledgement_mode="implicit"`` (the default) the next `poll`, `commit`
    or `close` accepts what the polls before gave; with ``"explicit"`` each row is acknowledged by `acknowledge`.

    With ``share_acquire_mode="record_limit"`` at most ``max_poll_records`` records are locked for this consumer at any
    time (KIP-1206), and a broker that has none never makes another one wait; ``"batch_optimized"`` (the default) takes
    whole batches as they were written.

    A batch has the columns of `headrace.Consumer` and delivery_count (int16): 1 for a first delivery. One thread at a
    time may poll. What no call can raise, such as a lock that was over before a row was acknowledged, is a warning of
    the logger ``headrace.share``; the logger ``headrace.share.decisions`` says on DEBUG why which broker was asked.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names; docs/options.md lists them.
        **options: the same as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range, or is one of the group, which
            `Admin.alter_group_config` changes; ``group.id`` is not given.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | None = None,
        config: Mapping[str, OptionValue] | None = None,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on first use."""
        self._native = _native.ShareConsumer(pairs(bootstrap_servers, config, options))
        self._topics: list[str] = []
        self._process = os.getpid()
        self._reads = False
        self._empty: pa.RecordBatch | None = None
        self._commits: Commits[Callable[[Results, KafkaError | None], object] | None, Ended] = Commits()
        self._decided = 0
        _open.add(self)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._no_rows().schema

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the share group for these topics; the coordinator gives partitions with the next `poll` calls.

        Args:
            topics: names of topics: the protocol knows no patterns.

        Raises:
            UsageError: there is no topic, or what is given are no names.
        """
        names = topic_names(topics)
        self._native.subscribe(names)
        self._topics = names
        self._reads = True

    def unsubscribe(self) -> None:
        """Leaves the group. Rows that were handed out can still be acknowledged; others that are held are released."""
        self._native.subscribe([])
        self._topics = []

    def subscription(self) -> list[str]:
        """The topics of `subscribe`."""
        return list(self._topics)

    def assignment(self) -> list[TopicPartition]:
        """The partitions given at present; other members may have the same."""
        return [TopicPartition(*tp) for tp in self._native.assignment()]

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """Takes the next batch, rows of one partition; sends what was acknowledged, or accepts what polls before gave.

        Args:
            timeout: seconds to wait for the first row.
            max_records: the most rows to return; None uses ``max.poll.records``.

        Returns:
            A batch; it has no rows if the time ran out.

        Raises:
            KafkaError: what the group or a broker refuses; the next poll tries again.
            UnsupportedVersionError: the cluster has no share groups, or none with ``record_limit``.
            RecordError: a batch cannot be read; its records were released, or rejected with
                ``on_bad_records="skip"``.
            UsageError: nothing was subscribed, another thread polls, or, with explicit acknowledgement, rows were not
                acknowledged.
        """
        self._check_reads()
        rows = self._native.poll(timeout, max_records)
        self._tell()
        return self._no_rows() if rows is None else rows

    def poll_all(self, timeout: float = 1.0, max_records: int | None = None) -> list[pa.RecordBatch]:
        """Takes all that is ready, batches of one partition each; waits up to ``timeout`` for the first.

        ``max_records`` limits the rows of all batches together.
        """
        self._check_reads()
        found = self._native.poll_all(timeout, max_records)
        self._tell()
        return found

    def acknowledge(self, rows: Any, how: How = "accept", *, otherwise: str | int = "release") -> None:
        """Says what became of rows; the next `poll`, `commit` or `close` sends it, and until then it may be changed.

        Rows are known by their columns topic, partition, offset and delivery_count: batches of polls, slices of them,
        filtered or joined tables, also those that went through polars or duckdb.

        Args:
            rows: a RecordBatch, a Table, a list of batches, or any Arrow data with those columns.
            how: one word for all rows (``"accept"``, ``"release"``, ``"reject"``, ``"renew"``) or `AcknowledgeType`; a
                boolean mask, a value a row (true: accept, false: ``otherwise``); or a column of words or of Kafka's
                numbers. Of a row that is there twice the last word counts. Renewed rows stay with the caller, are not
                given by `poll` again, and are acknowledged later.
            otherwise: what rows are of which the mask is false.

        Raises:
            UsageError: acknowledgement is implicit, a column is missing, or ``how`` does not fit the rows.
            InvalidRecordStateError: rows are not held: acknowledged and sent before, their lock is over, of another
                consumer, or of an earlier delivery. All other rows of the call are marked.
            UnsupportedVersionError: locks are to be renewed by brokers that are older than Kafka 4.2.
        """
        self._native.acknowledge(marks(rows, how, otherwise))

    def commit(self, timeout: float | None = None) -> Results:
        """Sends what is acknowledged, or accepts what polls gave if that is implicit, and waits for the answers.

        Args:
            timeout: seconds; by default ``default.api.timeout.ms``.

        Returns:
            By partition None where all its records were acknowledged, or why some were not: `InvalidRecordStateError`
            where their lock was over, `KafkaTimeoutError` where no answer came in time. Nothing is raised for those.
            Partitions of which nothing was to be said are left out: what an earlier poll has sent is no matter of this
            commit, and a warning of the logger ``headrace.share`` where it was refused.
        """
        results = results_of(self._native.commit(timeout))
        self._tell()
        return results

    def commit_async(self, callback: Callable[[Results, KafkaError | None], object] | None = None) -> None:
        """Sends what `commit` sends and does not wait.

        Args:
            callback: called with what `commit` gives and None, or with nothing and an error where it is not known what
                became of the records; by the thread that polls, within `poll`, `poll_all`, `commit` and `close`. What
                it raises comes out of that call. Without it errors are warnings of the logger ``headrace.share``.
        """
        given: object = callback
        if given is not None and not callable(given):
            message = f"callback is called with the results: {type(given).__name__} cannot be"
            raise TypeError(message)
        self._commits.begin(self._native.commit_async, callback)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long brokers lock a record for a member, in milliseconds; None before the first answer."""
        return self._native.lock_timeout_ms

    def metrics(self) -> dict[str, float]:
        """Counters since the consumer was made.

        Returns:
            ``records-consumed-total`` (rows handed out), ``records-acquired-total`` (offsets that brokers locked for
            this consumer, gaps included), ``records-acknowledged-total`` (those whose acknowledgement a broker has
            confirmed), ``records-lock-expired-total`` (locks that were over while the rows were with the caller),
            ``records-excess-total`` (what brokers gave beyond what they were asked for with ``record_limit``) and
            ``assigned-partitions``.
        """
        return self._native.metrics()

    def decisions(self) -> list[str]:
        """Why brokers were asked for records, as sentences, the last 256, the oldest first."""
        return self._native.decisions()[1]

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Accepts the rows of the last poll, or sends what was acknowledged; releases all else; leaves the group.

        With implicit acknowledgement the rows of the last poll are released instead when a ``with`` block ends by an
        exception, and when the interpreter ends before anybody closed the consumer.
        """
        self._close(timeout, finished=True)

    def _close(self, timeout: float, *, finished: bool) -> None:
        _open.discard(self)
        try:
            self._native.close(timeout, finished)
        finally:
            self._tell()

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it.

        After an exception in the block the rows of the last poll are released, and what closing raises does not hide
        that exception.
        """
        try:
            self._close(CLOSE_TIMEOUT_S, finished=error is None)
        except Exception:
            if error is None:
                raise

    def _tell(self) -> None:
        if self._native.troubled:
            for trouble in self._native.take_troubles():
                _log.warning("%s", trouble)
        if _decisions.isEnabledFor(logging.DEBUG):
            self._decided, new = self._native.decisions(self._decided)
            for decision in new:
                _decisions.debug("%s", decision)
        self._tell_commits()

    def _tell_commits(self) -> None:
        raised: BaseException | None = None
        while (told := self._commits.ended(self._native.take_ended)) is not None:
            callback, (_, found, error) = told
            results = results_of(found or [])
            if callback is None:
                _warn(results, error)
                continue
            try:
                callback(results, error)
            except BaseException as failure:  # noqa: BLE001  (the first comes out below, when all have been called)
                raised = raised or failure
        if raised is not None:
            raise raised

    def _check_reads(self) -> None:
        # After `unsubscribe` polls go on: what they gave before is still to be acknowledged.
        if not self._reads:
            check_process(self._process)
            message = "this consumer reads nothing: call subscribe before poll"
            raise UsageError(message, name="ILLEGAL_STATE")

    def _no_rows(self) -> pa.RecordBatch:
        if self._empty is None:
            self._empty = pa.record_batch(self._native.empty())
        return self._empty


def topic_names(topics: Iterable[str]) -> list[str]:
    """What `subscribe` takes.

    Raises:
        UsageError: there is none, or what is given are no names.
    """
    names = [topics] if isinstance(topics, str) else topics
    try:
        names = list(names)
    except TypeError:
        names = [names]  # type: ignore[list-item]
    if not names or not all(isinstance(name, str) for name in names):
        message = f"subscribe takes names of topics, at least one (share groups know no patterns), not {topics!r}"
        raise UsageError(message, name="ILLEGAL_ARGUMENT")
    return list(dict.fromkeys(names))


def results_of(found: Iterable[tuple[tuple[str, int], KafkaError | None]]) -> Results:
    """A commit's results under the names of partitions."""
    return {TopicPartition(*tp): error for tp, error in found}


def _warn(results: Results, error: KafkaError | None) -> None:
    for failure in (error, *results.values()):
        if failure is not None:
            _log.warning("commit_async failed: %s", failure)


def _close_all() -> None:
    # It may be an exception that has ended the program: what was being processed is to come again.
    for consumer in list(_open):
        try:
            consumer._close(CLOSE_TIMEOUT_S, finished=False)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  (nobody is left to raise to, and the others are to be closed)
            sys.stderr.write(f"headrace: a share consumer was not closed well when the process ended: {error}\n")


__all__ = ["AcknowledgeType", "ShareConsumer"]


at_end(CLIENTS, _close_all)
