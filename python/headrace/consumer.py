"""Reading records as Arrow batches."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace import _native
from headrace._commits import Commits
from headrace._listener import Listener
from headrace._options import OptionValue, Servers, pairs
from headrace._process import CLIENTS, at_end, check_process
from headrace._stop import Stop, row_at
from headrace._types import GroupMetadata, TopicPartition
from headrace.errors import ConfigError, KafkaTimeoutError, SchemaRegistryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from headrace._columns import Columns
    from headrace.errors import KafkaError
    from headrace.values import Format

_log = logging.getLogger("headrace.consumer")
_Found = TypeVar("_Found")
_open: weakref.WeakSet[Consumer] = weakref.WeakSet()

JOIN_TIMEOUT_S = 60.0
"""How long an Arrow stream of a subscribed consumer waits for partitions to be assigned."""

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for a last commit and for leaving the group."""
DROP_TIMEOUT_S = 2.0
"""The same where a consumer was not closed, but is no longer referenced."""


class Consumer:
    """Reads partitions that are assigned by the caller (`assign`) or by a consumer group (`subscribe`).

    A batch has the columns key (binary), value (binary), topic (string), partition (int32), offset (int64), timestamp
    (timestamp[us, UTC]), timestampType (int32: 0 create time, 1 log append time) and, with ``include_headers=True``,
    headers (list of struct of key and value). One thread at a time may use a consumer.

    Errors that no call can raise, such as an automatic commit that failed, are logged as warnings by the logger
    ``headrace.consumer`` at the next `poll` or `close`.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names; docs/options.md lists them, and docs/security.md describes ``oauth_cb``, the
            only one that is a function.
        key: what keys are, such as `headrace.Text`: their column has the type of the format in place of bytes.
        value: what values are, such as `headrace.Avro` (docs/values.md).
        **options: the same as keywords with underscores.

    Raises:
        ConfigError: an option is unknown, unsupported or out of range.
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

            self._columns = Columns.of(key, value)
        self._stopped: KafkaError | None = None
        settings = pairs(bootstrap_servers, config, options)
        self._native = _native.Consumer(settings if self._columns is None else self._columns.settings(settings))
        self._process = os.getpid()
        self._subscribed = False
        self._closed = False
        # Something was subscribed or assigned, and not given up.
        self._reads = False
        self._empty: pa.RecordBatch | None = None
        self._listener: Listener | None = None
        self._commits: Commits[Callable[[KafkaError | None], object] | None, tuple[int, KafkaError | None]] = Commits()
        self._telling = False
        _open.add(self)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._no_rows().schema

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        on_assigned: Callable[[list[TopicPartition]], object] | None = None,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        """Joins the group ``group.id`` for these topics; partitions are assigned during the next `poll` calls.

        The callbacks are called with the partitions in question, by the thread that polls, within `poll`, `poll_all`,
        `unsubscribe` and `close`. They may call anything except those. An exception in a callback is raised by that
        call; the consumer goes on, and no row is lost.

        Args:
            topics: names of topics, or a compiled pattern for whole names (``re.compile("orders-.*")``). Matching
                topics that are created later are added after ``metadata.max.age.ms`` at the latest; with
                ``group_protocol="consumer"`` the coordinator looks for them periodically. The pattern is not matched by
                Python: look-around and back-references are not supported, and flags go inside it: ``"(?i)orders-.*"``.
            on_assigned: these partitions were assigned. No row of them is returned before it is called, so it can
                `seek`.
            on_revoked: these partitions are about to go to other members. They are still assigned, all rows returned by
                earlier polls count as processed, and `commit` works. Automatic commits have already been made, except
                in `unsubscribe` and `close`, where they follow.
            on_lost: these partitions are already lost, and nothing can be committed for them. By default ``on_revoked``
                is called instead.

        Raises:
            ConfigError: ``group.id`` is not set, or a pattern is of bytes, has flags passed separately, or cannot be
                used; with ``group_protocol="consumer"`` a later `poll` raises it.
        """
        self._not_within_callback("subscribe")
        names, pattern = subscription(topics)
        self._bind([] if pattern is not None else names)
        self._listener = Listener.of(on_assigned, on_revoked, on_lost)
        self._native.listen(self._listener is not None)
        if pattern is not None:
            self._native.subscribe_pattern(pattern)
        else:
            self._native.subscribe(names)
        self._subscribed = self._reads = True

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions, from their committed offsets, or else as ``auto.offset.reset`` says."""
        chosen = several("assign", partitions)
        if chosen:
            self._bind({partition[0] for partition in chosen})
        self._native.assign(chosen)
        self._reads = bool(chosen)

    def unsubscribe(self) -> None:
        """Leaves the group, or drops the assignment."""
        self._not_within_callback("unsubscribe")
        try:
            self._give_back()
        finally:
            self._native.unsubscribe()
            self._native.listen(on=False)
            self._subscribed = self._reads = False
            self._stopped = None

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are being read."""
        return [TopicPartition(*tp) for tp in self._native.assignment()]

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """Returns the next batch: rows of one partition, a slice of what was fetched, not a copy.

        Args:
            timeout: seconds to wait for the first row; 0 or less does not wait, ``float("inf")`` waits for as long as
                it takes.
            max_records: the most rows to return; None uses ``max.poll.records``, whose default returns all that is
                ready of that partition's chunk.

        Returns:
            A batch; it has no rows if the time ran out.

        Raises:
            KafkaError: the broker's error, with topic and partition.
            OffsetOutOfRangeError: the position is not in the log and ``auto.offset.reset`` is ``none``.
            RecordError: a record cannot be read; `seek` past it to go on.
            DecodeError: the next row's key or value is not of its format; `seek` past it to go on. The rows before it
                were returned.
            UsageError: nothing is subscribed or assigned.
        """
        if not self._reads:
            self._refuse_to_poll()
        if self._stopped is not None:
            self._raise_stopped()
        plain = self._listener is None and not self._commits
        rows = self._native.poll(timeout, max_records) if plain else self._poll(timeout, max_records)
        if self._native.troubled:
            self._tell_troubles()
        if rows is None:
            return self._no_rows()
        return rows if self._columns is None else self._decoded([rows])[0]

    def poll_all(self, timeout: float = 1.0, max_records: int | None = None) -> list[pa.RecordBatch]:
        """Returns one batch for each partition that has rows ready; waits up to ``timeout`` for the first.

        ``max_records`` limits the rows of all batches together.

        Raises:
            UsageError: nothing is subscribed or assigned.
        """
        if not self._reads:
            self._refuse_to_poll()
        if self._stopped is not None:
            self._raise_stopped()
        plain = self._listener is None and not self._commits
        found = self._native.poll_all(timeout, max_records) if plain else self._poll_all(timeout, max_records)
        self._tell_troubles()
        return self._decoded(found)

    def _bind(self, topics: Collection[str]) -> None:
        self._stopped = None
        if self._columns is not None:
            self._columns.bind(topics)
            self._empty = None

    def _raise_stopped(self) -> None:
        """Raises what cut the last batches, unless the caller has moved since."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            self._native.begin_poll()
            raise stopped

    def _decoded(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The batches with their columns. Where a row is to be raised, its partition goes on from there.

        Raises:
            DecodeError: such a row is all that there is; else the next poll raises it.
        """
        if self._columns is None:
            return batches
        found: list[pa.RecordBatch] = []
        first: KafkaError | None = None
        for batch in batches:
            try:
                rows, stop = self._columns.decoded(batch)
            except SchemaRegistryError as error:
                # Its rows come again, when the registry may answer.
                rows, stop = batch.slice(0, 0), row_at(batch, 0, error)
            except BaseException:
                for each in batches:
                    self._go_back(row_at(each, 0, None))
                raise
            if rows.num_rows:
                found.append(rows)
            if stop is not None:
                self._go_back(stop)
                first = first or stop.error
        if first is not None and not found:
            raise first
        self._stopped = first
        return found

    def _go_back(self, stop: Stop) -> None:
        # A partition that has gone to another member meanwhile has its rows there.
        with contextlib.suppress(UsageError):
            self._native.seek(stop.partition, stop.offset)

    def _refuse_to_poll(self, hint: str = "") -> None:
        check_process(self._process)
        if self._closed:
            return  # the client says so
        message = f"this consumer reads nothing: call subscribe or assign before poll{hint}"
        raise UsageError(message, name="ILLEGAL_STATE")

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next row that `poll` returns for the partition; looked up if it is not known yet.

        Args:
            partition: an assigned partition.
            timeout: seconds; by default ``default.api.timeout.ms``.
        """
        return self._native.position((partition[0], partition[1]), timeout)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continues from ``offset`` in that partition; what was fetched of it is dropped."""
        self._stopped = None
        self._native.seek((partition[0], partition[1]), offset)

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continues from the earliest offset; by default in every assigned partition."""
        self._stopped = None
        self._native.seek_to_beginning(self._or_all(partitions))

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continues from the end of the log; by default in every assigned partition."""
        self._stopped = None
        self._native.seek_to_end(self._or_all(partitions))

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Returns no rows of these partitions until `resume`; what was fetched of them is kept."""
        self._native.pause(several("pause", partitions))

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Returns rows of these partitions again, first those that were kept."""
        self._native.resume(several("resume", partitions))

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [TopicPartition(*tp) for tp in self._native.paused()]

    def metrics(self) -> dict[str, float]:
        """Figures of what was read and what is in the fetch cache, under Kafka's names where it has them.

        Returns:
            ``records-consumed-total`` (rows returned), ``bytes-consumed-total`` (bytes of records in Fetch responses,
            as they were sent, and of those read from memory), ``direct-bytes-consumed-total`` (the part of these that
            was read from memory that the broker shares, ``headrace.datapath``), ``fetch-total`` (Fetch responses),
            ``assigned-partitions``, ``last-poll-seconds-ago`` (absent before the first poll), ``records-lag-max`` and
            ``records-lag-<topic>-<partition>`` (records between the position and the end of the log in the last
            response; absent while either is unknown), ``fetch-cache-bytes``, ``fetch-cache-total-bytes``
            (``fetch.buffer.bytes``), and ``fetch-cache-bytes-discarded-total``: bytes that were fetched and dropped
            before a poll returned them, also by reason with ``-seek-``, ``-unassign-``, ``-truncation-`` (the log was
            cut, KIP-320) and ``-reset-`` (``auto.offset.reset``) before ``total``. A pause discards nothing.
        """
        return self._native.metrics()

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None, timeout: float | None = None) -> None:
        """Commits positions for the group and waits for the answer.

        Args:
            offsets: next offset to read by partition; by default the position of every assigned partition.
            timeout: seconds; by default ``default.api.timeout.ms``.
        """
        self._native.commit(given_offsets(offsets), timeout)
        self._tell_commits()

    def commit_async(
        self,
        offsets: Mapping[tuple[str, int], int] | None = None,
        callback: Callable[[KafkaError | None], object] | None = None,
    ) -> None:
        """Commits positions for the group, and does not wait for the answer.

        Commits take effect in the order of the calls, including those of `commit`; a commit that is retried never
        undoes a later one. Each is limited by ``default.api.timeout.ms``.

        Args:
            offsets: next offset to read by partition; by default the position of every assigned partition.
            callback: called with None once the offsets are committed, or with the error, in the order of the calls, by
                the thread that polls, within `poll`, `poll_all`, `commit`, `unsubscribe` and `close`; an exception in
                it is raised by that call. Without a callback an error is logged as a warning by the logger
                ``headrace.consumer``.
        """
        given = given_offsets(offsets)
        self._commits.begin(lambda: self._native.commit_async(given), callback)

    def group_metadata(self) -> GroupMetadata:
        """This consumer's membership, for `Producer.send_offsets_to_transaction`; get it anew for each transaction.

        Raises:
            ConfigError: ``group.id`` is not set.
            RebalanceInProgressError: the consumer is joining its group; continue to poll.
            IllegalGenerationError: its partitions were lost since the last poll, and its rows are returned again:
                continue to poll.
        """
        return GroupMetadata(*self._native.group_metadata())

    def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The group's committed offsets, by partition; None where there is none."""
        found = self._native.committed(several("committed", partitions), timeout)
        return {TopicPartition(*tp): offset for tp, offset in found}

    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The earliest offset of each partition."""
        return self._offsets(several("beginning_offsets", partitions), -2, timeout)

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition."""
        return self._offsets(several("end_offsets", partitions), -1, timeout)

    def _offsets(
        self, partitions: list[tuple[str, int]], spec: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        return {TopicPartition(*tp): at for tp, at in self._native.list_offsets(partitions, spec, timeout)}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows not read yet, as an Arrow C stream: for polars, duckdb, pandas and others (docs/interop.md).

        It covers the rows from the positions at least to the ends that the partitions have when the stream is first
        pulled, except those of paused partitions. Rows that were pulled count as read, as with `poll`. After
        `subscribe` it waits for the group to assign partitions. Requesting another schema is not supported.

        Raises:
            UsageError: no partition is assigned, and no topic subscribed.
        """
        check_process(self._process)
        if not self._subscribed and not self.assignment():
            message = "a consumer reads nothing yet: assign partitions or subscribe to topics first"
            raise UsageError(message, name="ILLEGAL_STATE")
        reader = pa.RecordBatchReader.from_batches(self.schema, self._to_the_ends())
        stream: object = reader.__arrow_c_stream__(requested_schema)
        return stream

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commits if ``enable.auto.commit`` is on, leaves the group, and stops the thread.

        All rows that were returned count as processed, with two exceptions: when a ``with`` block ends by an exception,
        and when the interpreter exits before the consumer was closed, the rows of the last poll do not, and are read
        again.
        """
        self._close(timeout, finished=True)

    def _close(self, timeout: float, *, finished: bool) -> None:
        self._not_within_callback("close")
        _open.discard(self)
        self._closed = True
        try:
            self._give_back()
        finally:
            try:
                self._native.close(timeout, finished)
            finally:
                self._tell_troubles()
                self._tell_commits()

    def __del__(self) -> None:
        """One that was only forgotten leaves its group, which would wait for it otherwise; nobody is called back.

        The rows of its last poll do not count as processed.
        """
        if getattr(self, "_closed", True) or self._process != os.getpid():
            return
        with contextlib.suppress(Exception):  # there is nobody to raise it to
            self._native.close(DROP_TIMEOUT_S, False)  # noqa: FBT003  (a function of Rust)

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it.

        After an exception in the block, the rows of the last poll do not count as processed, and an error from closing
        does not hide that exception.
        """
        try:
            self._close(CLOSE_TIMEOUT_S, finished=error is None)
        except Exception:
            if error is None:
                raise

    def _to_the_ends(self) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not self.assignment():
            if time.monotonic() > deadline:
                message = f"the group gave no partitions within {JOIN_TIMEOUT_S:.0f} s"
                raise KafkaTimeoutError(message, name="REQUEST_TIMED_OUT")
            yield self.poll(0.1)
        ends = self.end_offsets(self.assignment())
        while True:
            # A partition may be paused, or go back to the group, at any time.
            ours = set(self.assignment()) - set(self.paused())
            ends = {tp: end for tp, end in ends.items() if tp in ours and self._is_before(tp, end)}
            if not ends:
                return
            yield self.poll(1.0)

    def _is_before(self, partition: TopicPartition, end: int) -> bool:
        """Whether it is ours and has not been read up to there."""
        try:
            return self.position(partition) < end
        except UsageError:
            if partition in self.assignment():
                raise
            return False

    def _tell_troubles(self) -> None:
        for trouble in self._native.take_troubles():
            _log.warning("%s", trouble)

    def _poll(self, timeout: float, max_records: int | None) -> pa.RecordBatch | None:
        return self._between_callbacks(timeout, lambda left: self._native.poll(left, max_records))

    def _poll_all(self, timeout: float, max_records: int | None) -> list[pa.RecordBatch]:
        return self._between_callbacks(timeout, lambda left: self._native.poll_all(left, max_records))

    def _between_callbacks(self, timeout: float, take: Callable[[float], _Found]) -> _Found:
        self._not_within_callback("poll")
        deadline = time.monotonic() + timeout
        while True:
            found = take(max(0.0, deadline - time.monotonic()))
            # Nothing was found also when there is something to be told first.
            if found or not self._tell_next():
                return found

    def _tell_next(self) -> bool:
        notice = self._native.take_notice()
        if notice is None:
            return False
        kind, number, partitions, error = notice
        if kind == "committed":
            self._tell_commit(self._commits.pop(number), error)
            return True
        self._telling = True
        try:
            if self._listener is not None:
                self._listener.tell(kind, partitions)
        finally:
            self._telling = False
            self._native.listener_called(number)
        return True

    def _tell_commits(self) -> None:
        """Calls back for the commits that have ended; rebalances wait for the next poll."""
        raised: BaseException | None = None
        while not self._telling and (ended := self._commits.ended(self._native.take_committed)) is not None:
            callback, (_, error) = ended
            try:
                self._tell_commit(callback, error)
            except BaseException as failure:  # noqa: BLE001  (the first comes out below, when all have been called)
                raised = raised or failure
        if raised is not None:
            raise raised

    @staticmethod
    def _tell_commit(callback: Callable[[KafkaError | None], object] | None, error: KafkaError | None) -> None:
        if callback is not None:
            callback(error)
        elif error is not None:
            _log.warning("commit_async failed: %s", error)

    def _give_back(self) -> None:
        """Tells the listener that its partitions go, and forgets it."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        partitions = self._native.take_back()
        if not partitions:
            return
        self._telling = True
        try:
            listener.tell("revoked", partitions)
        finally:
            self._telling = False

    def _not_within_callback(self, call: str) -> None:
        if self._telling:
            check_process(self._process)
            message = f"{call} was called within a callback of a rebalance, or by another thread during one"
            raise UsageError(message, name="ILLEGAL_STATE")

    def _or_all(self, partitions: Iterable[tuple[str, int]] | None) -> list[tuple[str, int]]:
        return list(self.assignment() if partitions is None else partitions)

    def _no_rows(self) -> pa.RecordBatch:
        if self._empty is None:
            empty = pa.record_batch(self._native.empty())
            self._empty = empty if self._columns is None else self._columns.decoded(empty)[0]
        return self._empty


def given_offsets(offsets: object) -> list[tuple[tuple[str, int], int]] | None:
    """Offsets by partition as the native side takes them."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        message = f"offsets are given by partition, such as {{('orders', 0): 5}}, not as a {type(offsets).__name__}"
        raise UsageError(message, name="INVALID_REQUEST")
    return [((topic, p), offset) for (topic, p), offset in offsets.items()]


def several(call: str, partitions: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Partitions of a call that takes any number of them."""
    found = list(partitions)
    first: object = found[0] if found else None
    if isinstance(first, str):
        message = f"{call} takes partitions in a list: {call}([{partitions!r}])"
        raise UsageError(message, name="INVALID_REQUEST")
    return found


def subscription(topics: Iterable[str] | re.Pattern[Any]) -> tuple[list[str], str | None]:
    """Topics by name, or the text of their pattern."""
    if isinstance(topics, re.Pattern):
        return [], _text_of(topics)
    return [topics] if isinstance(topics, str) else list(topics), None


def _text_of(pattern: re.Pattern[Any]) -> str:
    if not isinstance(pattern.pattern, str):
        message = f"topics: {pattern.pattern!r} is a pattern of bytes; names of topics are text"
        raise ConfigError(message, name="INVALID_CONFIG")
    # Whoever looks for topics gets the text alone.
    if re.compile(pattern.pattern).flags != pattern.flags:
        message = f"topics: the flags of the pattern {pattern.pattern!r} must stand in it, such as '(?i)'"
        raise ConfigError(message, name="INVALID_CONFIG")
    text: str = pattern.pattern
    return text


def _close_all() -> None:
    # It may be an exception that has ended the program: what was being processed is to come again.
    for consumer in list(_open):
        try:
            consumer._close(CLOSE_TIMEOUT_S, finished=False)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  (nobody is left to raise to, and the others are to be closed)
            sys.stderr.write(f"headrace: a consumer was not closed well when the process ended: {error}\n")


at_end(CLIENTS, _close_all)
