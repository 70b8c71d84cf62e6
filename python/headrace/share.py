"""Consuming as a member of a share group: each record is acknowledged by itself."""

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
from headrace.errors import KafkaError, SchemaRegistryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from headrace._columns import Columns
    from headrace.values import Format

_log = logging.getLogger("headrace.share")
_decisions = logging.getLogger("headrace.share.decisions")
_open: weakref.WeakSet[ShareConsumer] = weakref.WeakSet()

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for the last acknowledgements, and for the group to be left."""

Results: TypeAlias = dict[TopicPartition, "KafkaError | None"]
"""The results of a commit, by partition; None: all its records were acknowledged."""

Ended: TypeAlias = "tuple[int, list[tuple[tuple[str, int], KafkaError | None]] | None, KafkaError | None]"
"""A commit that was not waited for: its number, and its results or an error of the whole commit."""


class ShareConsumer:
    """Takes records as a member of a share group (KIP-932; Apache Kafka 4.1 or newer, 4.2 for all of it).

    The members of a share group take records from the same partitions. The broker locks each record that it returns,
    for ``group.share.record.lock.duration.ms`` (30 s by default), until it is acknowledged: accepted, released to be
    delivered again, or rejected. With ``share_acknowledgement_mode="implicit"`` (the default) the next `poll`, `commit`
    or `close` accepts the rows of the polls before; with ``"explicit"`` each row must be acknowledged by `acknowledge`.

    With ``share_acquire_mode="record_limit"`` at most ``max_poll_records`` records are locked for this consumer at any
    time (KIP-1206), and a broker without records never delays another; ``"batch_optimized"`` (the default) takes whole
    batches as they were written.

    A batch has the columns of `headrace.Consumer` and delivery_count (int16): 1 for a first delivery. One thread at a
    time may poll. Errors that no call can raise, such as a lock that expired before its row was acknowledged, are
    logged as warnings by the logger ``headrace.share``; the logger ``headrace.share.decisions`` says at level DEBUG
    which broker was asked for records, and why.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names; docs/options.md lists them.
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md). A share
            consumer takes formats with ``on_error`` ``"null"`` or ``"column"``.
        **options: the same as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range, or is a setting of the group, which
            `Admin.alter_group_config` changes; or ``group.id`` is missing.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | None = None,
        config: Mapping[str, OptionValue] | None = None,
        *,
        key: Format | None = None,
        value: Format | None = None,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on first use."""
        self._columns: Columns | None = None
        if key is not None or value is not None:
            from headrace._columns import Columns  # noqa: PLC0415  (with a registry's client, it takes a while)

            self._columns = Columns.of(key, value, may_raise=False)
        # What was taken and not handed out, since its schemas were not found or it is too much for one batch.
        self._raw: list[pa.RecordBatch] = []
        settings = pairs(bootstrap_servers, config, options)
        self._native = _native.ShareConsumer(settings if self._columns is None else self._columns.settings(settings))
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
        """Joins the share group for these topics; the coordinator assigns partitions during the next `poll` calls.

        Args:
            topics: names of topics; the protocol has no patterns.

        Raises:
            UsageError: no topic is given, or something that is not a name.
        """
        names = topic_names(topics)
        self._bind(names)
        self._native.subscribe(names)
        self._topics = names
        self._reads = True

    def _bind(self, topics: list[str]) -> None:
        if self._columns is not None:
            self._columns.bind(topics)
            self._empty = None

    def unsubscribe(self) -> None:
        """Leaves the group. Rows that were returned can still be acknowledged; all other held records are released."""
        self._native.subscribe([])
        self._topics = []

    def subscription(self) -> list[str]:
        """The topics passed to `subscribe`."""
        return list(self._topics)

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions; other members may have the same ones."""
        return [TopicPartition(*tp) for tp in self._native.assignment()]

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """Returns the next batch of one partition; sends acknowledgements, or accepts the rows of the polls before.

        Args:
            timeout: seconds to wait for the first row.
            max_records: the most rows to return; None uses ``max.poll.records``.

        Returns:
            A batch; it has no rows if the time ran out.

        Raises:
            KafkaError: the group or a broker refused; the next poll tries again.
            UnsupportedVersionError: the cluster has no share groups, or none with ``record_limit``.
            RecordError: a batch cannot be read; its records were released, or rejected with
                ``on_bad_records="skip"``.
            UsageError: no topic is subscribed, another thread polls, or, with explicit acknowledgement, some rows are
                not acknowledged.
        """
        self._check_reads()
        if not self._raw:
            rows = self._native.poll(timeout, max_records)
            self._tell()
            if rows is None or self._columns is None:
                return self._no_rows() if rows is None else rows
            self._raw = [rows]
        return self._handed_out(1)[0]

    def poll_all(self, timeout: float = 1.0, max_records: int | None = None) -> list[pa.RecordBatch]:
        """Returns all batches that are ready, each of one partition; waits up to ``timeout`` for the first.

        ``max_records`` limits the rows of all batches together.
        """
        self._check_reads()
        if not self._raw:
            found = self._native.poll_all(timeout, max_records)
            self._tell()
            if self._columns is None:
                return found
            self._raw = found
        return self._handed_out(sys.maxsize)

    def _handed_out(self, most: int) -> list[pa.RecordBatch]:
        """At most so many of the batches that were taken, with their columns.

        Raises:
            SchemaRegistryError: the first needs a schema that cannot be had now; they stay for the next poll.
        """
        if self._columns is None:
            found, self._raw = self._raw[:most], self._raw[most:]
            return found
        found, before = [], list(self._raw)
        try:
            while self._raw and len(found) < most:
                rows, stop = self._columns.decoded(self._raw[0])
                self._raw[:1] = [] if stop is None else [self._raw[0].slice(rows.num_rows)]
                found.append(rows)
        except SchemaRegistryError:
            if not found:
                raise
        except BaseException:
            self._raw = before
            raise
        return found

    def acknowledge(self, rows: Any, how: How = "accept", *, otherwise: str | int = "release") -> None:
        """Acknowledges rows; the next `poll`, `commit` or `close` sends it, and until then it can be changed.

        Rows are identified by their columns topic, partition, offset and delivery_count, so they may be batches of
        polls, slices of them, or filtered or joined tables, also those that went through polars or duckdb.

        Args:
            rows: a RecordBatch, a Table, a list of batches, or any Arrow data with those columns.
            how: one word for all rows (``"accept"``, ``"release"``, ``"reject"``, ``"renew"``) or `AcknowledgeType`; a
                boolean mask, a value a row (true: accept, false: ``otherwise``); or a column of words or of Kafka's
                numbers. If a row occurs twice, its last word counts. Renewed rows stay with the caller: `poll` does not
                return them again, and they must be acknowledged later.
            otherwise: the word for rows whose mask is false.

        Raises:
            UsageError: acknowledgement is implicit, a column is missing, or ``how`` does not fit the rows.
            InvalidRecordStateError: some rows are not held: their acknowledgement was already sent, their lock has
                expired, or they belong to another consumer or an earlier delivery. All other rows of the call are
                acknowledged.
            UnsupportedVersionError: brokers older than Kafka 4.2 cannot renew locks.
        """
        self._native.acknowledge(marks(rows, how, otherwise))

    def commit(self, timeout: float | None = None) -> Results:
        """Sends acknowledgements, or accepts the rows of polls if that is implicit, and waits for the answers.

        Args:
            timeout: seconds; by default ``default.api.timeout.ms``.

        Returns:
            For each partition None if all its records were acknowledged, or the reason why some were not:
            `InvalidRecordStateError` if their lock had expired, `KafkaTimeoutError` if no answer came in time. These
            are not raised. Partitions with nothing to acknowledge are left out. Acknowledgements that an earlier poll
            has sent are not part of this commit; if they were refused, the logger ``headrace.share`` has a warning.
        """
        self._refuse_raw()
        results = results_of(self._native.commit(timeout))
        self._tell()
        return results

    def commit_async(self, callback: Callable[[Results, KafkaError | None], object] | None = None) -> None:
        """Sends what `commit` sends, without waiting for the answers.

        Args:
            callback: called with what `commit` returns and None, or with no results and an error if the outcome is
                unknown; by the thread that polls, within `poll`, `poll_all`, `commit` and `close`. An exception in it
                is raised by that call. Without a callback errors are logged as warnings by the logger
                ``headrace.share``.
        """
        self._refuse_raw()
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
        """Counters since the consumer was created.

        Returns:
            ``records-consumed-total`` (rows returned), ``records-acquired-total`` (offsets that brokers locked for this
            consumer, gaps included), ``records-acknowledged-total`` (those whose acknowledgement a broker has
            confirmed), ``records-lock-expired-total`` (locks that expired while the caller had the rows),
            ``records-excess-total`` (records that brokers returned beyond what they were asked for with
            ``record_limit``) and ``assigned-partitions``.
        """
        return self._native.metrics()

    def decisions(self) -> list[str]:
        """The last 256 decisions to ask a broker for records, with reasons, as sentences, the oldest first."""
        return self._native.decisions()[1]

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Accepts the rows of the last poll, or sends acknowledgements; releases all other records; leaves the group.

        With implicit acknowledgement the rows of the last poll are released instead when a ``with`` block ends by an
        exception, or when the interpreter exits before the consumer was closed.
        """
        self._close(timeout, finished=True)

    def _close(self, timeout: float, *, finished: bool) -> None:
        _open.discard(self)
        try:
            # Rows that nobody has seen go to another member.
            self._native.close(timeout, finished and not self._raw)
        finally:
            self._tell()

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it.

        After an exception in the block, the rows of the last poll are released, and an error from closing does not hide
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
        while (reported := self._commits.ended(self._native.take_ended)) is not None:
            callback, (_, found, error) = reported
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

    def _refuse_raw(self) -> None:
        if self._raw:
            message = "rows that were taken are still to be handed out: poll before commit"
            raise UsageError(message, name="ILLEGAL_STATE")

    def _check_reads(self) -> None:
        # After `unsubscribe` polls go on: what they gave before is still to be acknowledged.
        if not self._reads:
            check_process(self._process)
            message = "this consumer reads nothing: call subscribe before poll"
            raise UsageError(message, name="ILLEGAL_STATE")

    def _no_rows(self) -> pa.RecordBatch:
        if self._empty is None:
            empty = pa.record_batch(self._native.empty())
            self._empty = empty if self._columns is None else self._columns.decoded(empty)[0]
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
