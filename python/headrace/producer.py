"""Sending records, one by one or as Arrow columns."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from headrace import _native
from headrace._failures import Failures
from headrace._options import OptionValue, Servers, pairs
from headrace._process import CLIENTS, at_end
from headrace.errors import Abortable, KafkaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Buffer, Self

    from headrace._types import GroupMetadata, RecordMetadata
    from headrace.values import Format

_open: weakref.WeakSet[Producer] = weakref.WeakSet()

CLOSE_TIMEOUT_S = 30.0
"""How long the end of a ``with`` block, or of the process, waits for records that are still in flight."""


_T = TypeVar("_T")
HeaderValue: TypeAlias = "Buffer | str | None"
"""A header's value: bytes, a text that is sent as UTF-8, or null."""


# Whose callback the thread is in.
_calling = threading.local()


class _Sent(Future[_T]):
    """A future of what was sent: a waiting caller polls for the answer itself, which is faster than being woken.

    Futures of records sent through memory (``headrace.datapath``) that nobody waits on are set some milliseconds late,
    so that no thread is woken for each one, and so that the thread that sets them, which needs the GIL, does not hold
    up the senders.
    """

    # Whoever holds a future does not hold its producer, which ends when it is dropped.
    _producer: weakref.ref[Producer]
    _failures: Failures
    # Under the lock of the future: how many ask at present, whether anybody was told, its number among the failures.
    _asking = 0
    _told = False
    _number: int | None = None

    @classmethod
    def of(cls, producer: Producer) -> Self:
        """A future of something that this producer sends."""
        future = cls()
        future._producer = producer._weak  # noqa: SLF001  (its own)
        future._failures = producer._failures  # noqa: SLF001  (its own)
        future.set_running_or_notify_cancel()
        return future

    def set_exception(self, exception: BaseException | None) -> None:
        """As of any future."""
        if exception is not None:
            self._failed(exception)
        super().set_exception(exception)

    def set_results(self, results: _T, why: str) -> None:
        """The outcome of rows, some of which failed, and the error of the first that did."""
        self._failed(KafkaError(why))
        self.set_result(results)

    def _failed(self, error: BaseException) -> None:
        with self._condition:
            if not self._told and not self._asking:
                self._number = self._failures.add(self, error)

    def result(self, timeout: float | None = None) -> _T:
        """As of any future."""
        with self._waiting(timeout):
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any future."""
        with self._waiting(timeout):
            return super().exception(timeout)

    def done(self) -> bool:
        """As of any future."""
        if not super().done() and (producer := self._producer()) is not None:
            producer._native.deliver_now()  # noqa: SLF001  (its own)
        return super().done()

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """As for any future; from then on no future of this producer is set late.

        The client's own thread calls it, so it must not take long, nor wait for another record.
        """
        if (producer := self._producer()) is not None:
            producer._native.be_patient(patient=False)  # noqa: SLF001  (its own)
        with self._condition:
            self._told = True
            self._asked()
        super().add_done_callback(partial(self._call, fn))

    def _call(self, fn: Callable[[Future[_T]], object], future: Future[_T]) -> None:
        before = getattr(_calling, "producer", None)
        _calling.producer = self._producer
        try:
            fn(future)
        finally:
            _calling.producer = before

    def _refuse_to_wait(self) -> None:
        """The thread that would bring the answer must not wait for it. Python has not made it, so it is a dummy."""
        within = getattr(_calling, "producer", None) is self._producer and not super().done()
        if within and isinstance(threading.current_thread(), threading._DummyThread):  # noqa: SLF001
            message = "a callback cannot wait for another record of its producer: its thread would bring the answer"
            raise UsageError(message, name="ILLEGAL_STATE")

    @contextmanager
    def _waiting(self, timeout: float | None) -> Iterator[None]:
        """Polls for the answer, and has it reported at once while a caller sleeps until it comes."""
        self._refuse_to_wait()
        with self._condition:
            self._asking += 1
            self._asked()
        try:
            producer = self._producer()
            if producer is None or self.done() or (timeout is not None and timeout <= 0):
                yield
                return
            native = producer._native  # noqa: SLF001  (its own)
            del producer
            native.begin_wait()
            try:
                yield
            finally:
                native.end_wait()
        finally:
            with self._condition:
                self._asking -= 1
                self._told = self._told or super().done()

    def _asked(self) -> None:
        if self._number is not None:
            self._failures.forget(self._number)


class Producer:
    """Sends records to topics in batches, from a background thread.

    Any number of threads may share one producer. Its memory is bounded by ``buffer.memory``: a call that finds it full
    waits up to ``max.block.ms`` with the GIL released. With several brokers, records for one of them hold at most
    ``buffer.memory.broker.share`` of it (half by default), so that a broker that stops answering leaves room for the
    others.

    Args:
        bootstrap_servers: ``"host:port"``, or several of them separated by commas or in a list; or a mapping of options
            by Kafka's names that includes ``bootstrap.servers``, as confluent-kafka takes it.
        config: options by Kafka's names (``{"linger.ms": 5}``); docs/options.md lists them, and docs/security.md
            describes ``oauth_cb``, the only one that is a function.
        **options: the same as keywords (``linger_ms=5``).

    Raises:
        ConfigError: an option is unknown, unsupported or out of range.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | None = None,
        config: Mapping[str, OptionValue] | None = None,
        **options: OptionValue,
    ) -> None:
        """Checks the options and starts the thread; connects on first use."""
        self._native = _native.Producer(pairs(bootstrap_servers, config, options), patient=True)
        self._initialized = False
        self._weak = weakref.ref(self)
        self._failures = Failures()
        self._results = False
        self._closed = False
        _open.add(self)

    def send(
        self,
        topic: str,
        value: Buffer | None = None,
        *,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None = None,
    ) -> Future[RecordMetadata]:
        """Queues one record and returns at once, unless the buffer is full.

        While the topic's metadata is not known yet, the record waits in the buffer; the call does not wait for it.

        Args:
            topic: the topic to send to.
            value: the payload; None is a tombstone.
            key: chooses the partition (murmur2, as in Java) unless ``partition`` is given.
            partition: a partition of the topic.
            timestamp: milliseconds since the Unix epoch or an aware datetime; by default now.
            headers: names and values, in order, as a mapping or pairs; a str is sent as UTF-8.

        Returns:
            A future of the record's `RecordMetadata`; it raises the error of the broker or the network, or
            `KafkaTimeoutError` if the topic's metadata did not arrive within ``max.block.ms``.

        Raises:
            KafkaTimeoutError: the buffer stayed full for ``max.block.ms``.
            MessageTooLargeError: the record is larger than ``max.request.size``.
        """
        future: _Sent[RecordMetadata] = _Sent.of(self)
        self._native.send(topic, partition, key, value, headers_of(headers), timestamp_of(timestamp), future)
        return future

    @overload
    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: Literal[False] = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> Future[int]: ...

    @overload
    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: Literal[True],
        key: Format | None = None,
        value: Format | None = None,
    ) -> Future[pa.RecordBatch]: ...

    @overload
    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: bool,
        key: Format | None = None,
        value: Format | None = None,
    ) -> Future[int] | Future[pa.RecordBatch]: ...

    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: bool = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> Future[int] | Future[pa.RecordBatch]:
        """Queues every row of Arrow data; returns when all rows are in the buffer.

        It keeps pace with the brokers: while much data is already waiting for them it pauses briefly (at most 100 ms
        per mebibyte), so that the buffer is not filled for nothing.

        Args:
            topic: the topic to send to; None takes each row's topic from the column ``topic``.
            data: a pyarrow Table, RecordBatch or RecordBatchReader, or anything with ``__arrow_c_stream__`` or
                ``__arrow_c_array__`` (polars, duckdb, pandas 3); in an array of structs no row may be null as a whole.
                Columns: ``value`` (binary or string of any width, view or dictionary; null is a tombstone), and
                optionally ``key`` (the same types), ``headers`` (list of struct of key and value), ``partition``
                (integer), ``timestamp`` (timestamp, or integer milliseconds), ``topic``. Ignored, so that batches that
                were read can be sent on: ``offset`` and ``timestampType``, which describe a record where it was read,
                the index that pandas adds (``__index_level_0__``), and ``topic`` if the argument is given;
                ``partition`` is not ignored.
            results: return the outcome of each row. Costs up to 56 bytes per row until the future is done.
            key: as ``value``, for the column ``key``.
            value: a format such as `Avro`, in which structs of the column ``value`` are encoded before anything is
                sent; a null is a tombstone. With a registry the schema is registered for the topic.

        Returns:
            A future of the number of rows, done when the broker has acknowledged all of them; it raises the first
            row's error if any failed.

            With ``results`` a future of a batch with one row for each row of ``data``, in the same order, done when
            every row has been written or has failed: ``partition`` (int32), ``offset`` (int64), ``timestamp``
            (timestamp[ms, UTC], as written) and ``error`` (string, null when the row was written). A row that failed
            has an error and no offset; with ``acks=0`` no row has an offset. A row that cannot be sent does not hold
            back the others; if the buffer stays full, or the topic's metadata is missing, for ``max.block.ms``, all
            remaining rows fail with that error.

        Raises:
            SchemaError: a column is missing or unknown, or its type or one of its values cannot be sent; if the data
                has several chunks, those before that one are already being sent.
            KafkaTimeoutError: the buffer stayed full for ``max.block.ms``; the rows before that are already being sent.
                Not with ``results``.
        """
        arrow_checked(data)
        if key is not None or value is not None:
            from headrace.values.sending import encoded  # noqa: PLC0415  (where something is encoded)

            data = encoded(data, topic, key=key, value=value)
        future: _Sent[Any] = _Sent.of(self)
        self._results |= results
        self._native.send_arrow(topic, data, future, results)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every record sent before has been acknowledged or has failed.

        Args:
            timeout: seconds; None waits as long as needed (each record is limited by ``delivery.timeout.ms``).

        Raises:
            KafkaTimeoutError: some records are still in flight.
            KafkaError: a record sent since the last flush failed, and its future was never asked (by ``result``,
                ``exception`` or a callback); this is the first such error.
        """
        self._native.flush(timeout)
        # Rows with results may have failed before they were in a batch.
        if self._native.take_failed() or self._results:
            self._results = False
            self._settle()
        self._raise_failure()

    def init_transactions(self, timeout: float | None = None) -> None:
        """Takes over ``transactional.id``. Call it once, before the first transaction, and again after a timeout.

        An older producer with the same id is fenced, and the transaction it left open is aborted.

        Args:
            timeout: seconds; None uses ``max.block.ms``.

        Raises:
            ConfigError: ``transactional.id`` is not set.
            KafkaTimeoutError: no coordinator has answered; call it again.
            KafkaError: the coordinator refused; the producer cannot be used any more.
        """
        self._native.init_transactions(timeout)
        self._initialized = True

    def begin_transaction(self) -> None:
        """Begins a transaction: everything sent until its end belongs to it.

        Raises:
            UsageError: a transaction is already open, or `init_transactions` was not called.
            TransactionAbortableError: the previous transaction failed and must be aborted first.
            ProducerFencedError: a newer producer has the same ``transactional.id``.
        """
        self._native.begin_transaction()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[tuple[str, int], int],
        group_metadata: GroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commits a consumer's offsets as part of the open transaction, and waits for the answer.

        The consumer itself must not commit: ``enable_auto_commit=False``.

        Args:
            offsets: next offset to read by partition.
            group_metadata: from `Consumer.group_metadata`.
            timeout: seconds; None uses ``max.block.ms``. After a timeout the transaction can only be aborted.

        Raises:
            TransactionAbortableError: the group refused, for example after a rebalance; abort the transaction.
            ProducerFencedError: a newer producer has the same ``transactional.id``.
        """
        given = [((topic, partition), offset) for (topic, partition), offset in offsets.items()]
        self._native.send_offsets_to_transaction(given, group_metadata, timeout)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Waits until every record of the transaction is written, then commits it.

        Args:
            timeout: seconds; None uses ``max.block.ms``.

        Raises:
            KafkaTimeoutError: the outcome is not known yet; call it again.
            TransactionAbortableError: something in the transaction failed; the message says what. Abort it.
            ProducerFencedError: a newer producer has the same ``transactional.id``.
        """
        self._native.end_transaction(commit=True, timeout=timeout)
        self._failures.take()

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Aborts the transaction. Records that were not sent yet fail with `TransactionAbortedError`.

        Args:
            timeout: seconds; None uses ``max.block.ms``.

        Raises:
            KafkaTimeoutError: the coordinator has not answered; call it again.
            ProducerFencedError: a newer producer has the same ``transactional.id``.
        """
        self._native.end_transaction(commit=False, timeout=timeout)
        # What failed was the transaction's, and it has ended as its caller wished.
        self._settle()
        self._failures.take()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction as a ``with`` block: committed at its end, aborted if it raises.

        Calls `init_transactions` first if that was not done. An exception in the block, or a commit that fails with
        something left to abort, is raised after the abort.
        """
        if not self._initialized:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit_transaction()
        except KafkaError as error:
            if isinstance(error, Abortable):
                self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Aborts; if that fails too, the failure is added to the exception that is being raised.

        Also after an error that is fatal: it may be another client's. A producer that is dead itself says so at once.
        """
        try:
            self.abort_transaction()
        except KafkaError as failed:
            if error.__context__ is None:
                error.__context__ = failed

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flushes for at most ``timeout`` seconds, fails the records that are left, and stops the thread.

        An open transaction is aborted.

        Raises:
            KafkaError: a record sent since the last flush failed, or was not acknowledged in time, and its future was
                never asked.
        """
        self._end(timeout)
        self._raise_failure()

    def _end(self, timeout: float) -> None:
        """`close`, which leaves what has failed for others to raise."""
        self._closed = True
        _open.discard(self)
        self._native.close(timeout)

    def _settle(self) -> None:
        """Waits until the futures of all that has ended are set; not within a callback, which they may be behind."""
        settled: Future[None] = Future()
        if self._native.settle(settled):
            settled.result()

    def _raise_failure(self) -> None:
        """Raises the first failure that nobody has asked for."""
        error = self._failures.take()
        if error is not None:
            raise error

    def __del__(self) -> None:
        """Sends what it took: whoever queued it has been told nothing else."""
        if getattr(self, "_closed", True):
            return
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  (nobody is left to raise to; it must still be seen)
            with suppress(Exception):
                _lost(f"records were lost when their producer was dropped: {error}")

    def metrics(self) -> dict[str, float]:
        """Figures of the buffer, under Kafka's names; docs/design/buffer-pool.md says what each counts.

        Returns:
            ``bufferpool-wait-ratio`` (fraction of time spent waiting), ``bufferpool-wait-time-ns-total`` (ns),
            ``buffer-exhausted-rate`` (per second), ``buffer-exhausted-total``, ``waiting-threads`` (calls that wait,
            including those of asyncio), ``buffer-total-bytes``, ``buffer-available-bytes``, and for each broker whose
            batches hold memory ``buffer-node-<id>-bytes``; ``direct-bytes-produced-total``: bytes of batches that were
            written into shared memory (``headrace.datapath``). Rates are over the last 30 to 60 seconds.
        """
        return self._native.metrics()

    def __enter__(self) -> Self:
        """The producer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. Delivery errors do not hide an exception in the block."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise


def headers_of(
    headers: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None,
) -> list[tuple[str, bytes | None]] | None:
    """A record's headers as the native side takes them.

    Raises:
        TypeError: a header is no pair of a name and bytes, a text, or None.
    """
    if not headers:
        return None
    given: Any = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        message = f"headers takes a mapping or pairs of name and value, not {type(given).__name__}"
        raise TypeError(message)
    return [_header_of(header) for header in given]


def _header_of(header: object) -> tuple[str, bytes | None]:
    if not isinstance(header, (tuple, list)) or len(header) != 2:  # noqa: PLR2004  (a pair)
        message = f"headers takes pairs of name and value; one is {type(header).__name__}"
        raise TypeError(message)
    name, value = header
    if not isinstance(name, str):
        message = f"the name of a header is a str, not {type(name).__name__}"
        raise TypeError(message)
    if value is None or isinstance(value, bytes):
        return name, value
    if isinstance(value, str):
        return name, value.encode()
    try:
        return name, memoryview(value).tobytes()
    except TypeError:
        message = f"header {name!r} takes bytes, a str (sent as UTF-8) or None, not {type(value).__name__}"
        raise TypeError(message) from None


def timestamp_of(timestamp: object) -> int | None:
    """A record's timestamp in milliseconds since the Unix epoch.

    Raises:
        TypeError: it is neither a number of milliseconds nor a datetime.
    """
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            message = "timestamp is a datetime without a time zone; give it one, or milliseconds since the epoch"
            raise ValueError(message)
        return int(timestamp.timestamp() * 1000)
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        message = f"timestamp takes whole milliseconds or an aware datetime, not {type(timestamp).__name__}"
        raise TypeError(message)
    return timestamp


def arrow_checked(data: object) -> None:
    """Raises at once if something is not Arrow data."""
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        message = (
            "send_arrow takes a pyarrow Table or RecordBatch, or anything with __arrow_c_stream__, "
            f"not {type(data).__name__}"
        )
        raise TypeError(message)


def _lost(what: str) -> None:
    """Reports lost records when there is no caller left to raise to: on stderr, and by a non-zero exit code."""
    _native.fail_exit()
    sys.stderr.write(f"headrace: {what}\n")


def _close_all() -> None:
    for producer in list(_open):
        try:
            producer.close()
        except Exception as error:  # noqa: BLE001  (nobody is left to raise to; it must still be seen)
            _lost(f"records were lost when the process ended: {error}")


at_end(CLIENTS, _close_all)
