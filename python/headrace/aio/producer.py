"""Producing from coroutines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, overload

from headrace import _native
from headrace import producer as blocking
from headrace._options import pairs
from headrace.aio._loop import Bell, Mailbox
from headrace.aio._order import Order
from headrace.errors import ConfigError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Buffer, Self

    from headrace._options import OptionValue, Servers
    from headrace._types import RecordMetadata
    from headrace.producer import HeaderValue
    from headrace.values import Format

SENDS_PER_TURN = 64
"""After this many sends in one task the event loop gets its turn: a loop that only sends would starve it."""


class Producer:
    """Sends records to topics from coroutines; `headrace.Producer` with its waits turned into awaits.

    It has no transactions.

    A call that finds the buffer full, or that sends rows to a topic that is not known yet, awaits its turn, first come,
    first served, up to ``max.block.ms``. No thread is started for it, and none blocks. All calls must be made in one
    event loop, that of the first call.

    Records are written to a partition in the order of the calls, whether these were awaited one by one or concurrently:
    a waiting call is not overtaken by a later one that may be for the same partition. Rows of ``send_arrow`` may be for
    any partition of their topic or, without a topic, for any partition at all.

    Encoding a record, and compressing a batch that became full, happens in the call itself, as with
    `headrace.Producer`: about a mebibyte at a time, after which other tasks get their turn.

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
        """Checks the options and starts the threads; connects on first use."""
        if any(name == "transactional.id" for name, _ in pairs(bootstrap_servers, config, options)):
            message = "option transactional.id: there are no transactions for asyncio yet; headrace.Producer has them"
            raise ConfigError(message, name="INVALID_CONFIG")
        self._blocking = blocking.Producer(bootstrap_servers, config, **options)
        self._native = self._blocking._native  # noqa: SLF001  (the same client with another face)
        self._failures = self._blocking._failures  # noqa: SLF001
        self._mailbox: Mailbox | None = None
        self._order = Order()
        # Who sent last, and how often without another task's sends in between.
        self._sender = 0
        self._sends = 0

    async def send(
        self,
        topic: str,
        value: Buffer | None = None,
        *,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues one record as soon as there is room for it. If it is cancelled before that, nothing is queued.

        Args:
            topic: the topic to send to.
            value: the payload; None is a tombstone.
            key: chooses the partition (murmur2, as in Java) unless ``partition`` is given.
            partition: a partition of the topic.
            timestamp: milliseconds since the Unix epoch or an aware datetime; by default now.
            headers: names and values, in order, as a mapping or pairs; a str is sent as UTF-8.

        Returns:
            A future of the record's `RecordMetadata`; it raises the error of the broker or the network, or
            `KafkaTimeoutError` if the topic's metadata did not arrive within ``max.block.ms``. Cancelling the future
            does not recall the record.

        Raises:
            KafkaTimeoutError: the buffer stayed full for ``max.block.ms``.
            MessageTooLargeError: the record is larger than ``max.request.size``.
            UsageError: another event loop uses this producer.
        """
        slot = self._mail().delivery(self._failures)
        record = (topic, partition, key, value, blocking.headers_of(headers), blocking.timestamp_of(timestamp))
        sender = id(asyncio.current_task())
        self._sends = self._sends + 1 if sender == self._sender else 1
        self._sender = sender
        attempt = _native.Attempt()
        if not self._order and self._sends % SENDS_PER_TURN and self._native.try_send(*record, slot, attempt):
            return slot.future
        free = key is None and partition is None
        with self._order.claim(topic, None if free else self._native.place_of(*record)) as claim:
            if self._sends % SENDS_PER_TURN == 0:
                await _turn_of_others(attempt)
            while True:
                # A record that may go anywhere goes where nobody waits; others know their partition, or none.
                place = self._native.place_of(*record) if free else None
                if claim.is_behind(place):
                    # Who waits for others holds no memory.
                    attempt.cancel()
                    attempt.has_waited(await claim.first(place))
                elif self._native.try_send(*record, slot, attempt):
                    return slot.future
                else:
                    await self._room(attempt)

    @overload
    async def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: Literal[False] = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> asyncio.Future[int]: ...

    @overload
    async def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: Literal[True],
        key: Format | None = None,
        value: Format | None = None,
    ) -> asyncio.Future[pa.RecordBatch]: ...

    @overload
    async def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: bool,
        key: Format | None = None,
        value: Format | None = None,
    ) -> asyncio.Future[int] | asyncio.Future[pa.RecordBatch]: ...

    async def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        results: bool = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> asyncio.Future[int] | asyncio.Future[pa.RecordBatch]:
        """Queues every row of Arrow data as there is room; returns when all rows are in the buffer.

        Other tasks run after each mebibyte or so. If it is cancelled, no further row is queued; the rows before are
        sent, none of them in part, and `flush` raises if one fails.

        Args:
            topic: the topic to send to; None takes each row's topic from the column ``topic``.
            data: what `headrace.Producer.send_arrow` takes. A stream is read in the event loop's thread.
            results: return the outcome of each row.
            key: a format for structs of the column ``key``, as there.
            value: a format for structs of the column ``value``, as there.

        Returns:
            A future of the number of rows, done when the broker has acknowledged all of them; it raises the first
            row's error if any failed. With ``results`` a future of a batch of each row's outcome, as
            `headrace.Producer.send_arrow` describes it.

        Raises:
            SchemaError: a column is missing or unknown, or its type or one of its values cannot be sent; if the data
                has several chunks, those before that one are already being sent.
            KafkaTimeoutError: the buffer stayed full for ``max.block.ms``; the rows before that are already being sent.
                Not with ``results``.
            UsageError: another event loop uses this producer.
        """
        blocking.arrow_checked(data)
        slot = self._mail().delivery(self._failures)
        attempt = _native.Attempt()
        with self._order.claim(topic, None, many=True) as claim:
            if key is not None or value is not None:
                from headrace.values.sending import encoded  # noqa: PLC0415  (where something is encoded)

                # In a thread: a registry may be asked.
                data = await asyncio.to_thread(encoded, data, topic, key=key, value=value)
            upload = self._native.begin_arrow(topic, data, slot, results)
            if claim.is_behind(None):
                attempt.has_waited(await claim.first())
            while not self._native.step(upload, attempt):
                await _turn_of_others(attempt)
                await self._room(attempt)
        return slot.future

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until every record queued before has been acknowledged or has failed.

        Args:
            timeout: seconds; None waits as long as needed (each record is limited by ``delivery.timeout.ms``).

        Raises:
            KafkaTimeoutError: some records are still in flight.
            KafkaError: a record sent since the last flush failed, and its future was never asked (awaited, or given a
                callback); this is the first such error. A flush that is cancelled or times out leaves it to the next
                one.
        """
        slot = self._mail().slot()
        self._native.begin_flush(slot)
        done, _ = await asyncio.wait((slot.future,), timeout=timeout)
        if not done:
            failing = self._native.failing()
            message = f"flushing the producer took longer than {timeout} s{': ' if failing else ''}{failing}"
            raise KafkaTimeoutError(message, name="REQUEST_TIMED_OUT")
        slot.future.result()
        self._blocking._raise_failure()  # noqa: SLF001  (the same client)

    async def close(self, timeout: float = blocking.CLOSE_TIMEOUT_S) -> None:
        """Flushes for at most ``timeout`` seconds, fails the records that are left, and stops the threads.

        Calls that still wait for room fail with `ClosedError`. A close that is cancelled goes on in the background, in
        the event loop's default executor.

        Raises:
            KafkaError: a record sent since the last flush failed, or was not acknowledged in time, and its future was
                never asked.
        """
        # Raised here and not in that thread, which could take the first of several failures before the loop has the
        # others: one would be raised here then, and another by a flush. The loop has all of them before its end.
        await asyncio.to_thread(self._blocking._end, timeout)  # noqa: SLF001
        self._blocking._raise_failure()  # noqa: SLF001  (the same client)

    def metrics(self) -> dict[str, float]:
        """Figures of the buffer, under Kafka's names: see `headrace.Producer.metrics`."""
        metrics = self._blocking.metrics()
        metrics["waiting-threads"] += self._order.waiting
        return metrics

    async def __aenter__(self) -> Self:
        """The producer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. Delivery errors do not hide an exception in the block."""
        try:
            await self.close()
        except Exception:
            if error is None:
                raise

    def _mail(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop(), "producer")
        return self._mailbox

    async def _room(self, attempt: _native.Attempt) -> None:
        """Awaits until it is worth trying again."""
        while True:
            bell = Bell(self._mail().slot())
            within = self._native.park(attempt, bell)
            if within is None:
                return
            try:
                await asyncio.wait((bell.slot.future,), timeout=within)
            except asyncio.CancelledError:
                # The exception keeps this frame alive, but the place in the queue must go to the next.
                attempt.cancel()
                raise


async def _turn_of_others(attempt: _native.Attempt) -> None:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        # The exception keeps frames alive, but the place in the queue must go to the next.
        attempt.cancel()
        raise
