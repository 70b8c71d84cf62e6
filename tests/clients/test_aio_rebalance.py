"""Rebalance callbacks in the event loop, functions and coroutines, on our broker and on Apache Kafka."""

from __future__ import annotations

import asyncio

import pytest

import headrace as hr
from headrace.errors import UsageError
from tests.clients.helpers import bounded

COUNT = 100


@pytest.fixture
def filled(cluster, topic):
    """A topic of two partitions with 100 records each."""
    cluster.create_topic(topic, 2)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for i in range(2 * COUNT):
            producer.send(topic, str(i // 2).encode(), partition=i % 2)
    return topic


@pytest.fixture
def member(cluster, filled):
    """Makes members of one group."""

    def make(**more):
        options = {
            "group.id": f"g-{filled}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
        }
        return hr.aio.Consumer(cluster.bootstrap_servers, options, **more)

    return make


def both(topic):
    return [(topic, 0), (topic, 1)]


async def poll_until(consumers, done):
    """Polls each in turn until it is so; the rows."""
    rows = []
    while not done():
        for consumer in consumers:
            batch = await consumer.poll(0.1)
            rows += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    return rows


class Log:
    """Callbacks that write down what they are told, as functions or as coroutines."""

    def __init__(self, kind):
        self.reported = []
        self._kind = kind

    def _callback(self, what):
        def plain(partitions):
            self.reported.append((what, partitions))

        async def coroutine(partitions):
            await asyncio.sleep(0)
            plain(partitions)

        return plain if self._kind == "function" else coroutine

    def callbacks(self):
        return {f"on_{what}": self._callback(what) for what in ("assigned", "revoked", "lost")}


def test_a_callback_seeks_before_the_first_row_and_commits_before_partitions_go(member, filled):
    async def work():
        async with member() as first, member() as second:
            revoked = []

            async def on_assigned(partitions):
                await asyncio.sleep(0)
                for partition in partitions if not revoked else ():
                    first.seek(partition, 90)

            async def on_revoked(partitions):
                revoked.extend(partitions)
                assert sorted(first.assignment()) == sorted(partitions)
                await first.commit()

            await first.subscribe([filled], on_assigned=on_assigned, on_revoked=on_revoked)
            rows = []
            while len(rows) < 20:
                rows += (await first.poll(5.0, max_records=3))["offset"].to_pylist()
            assert min(rows) == 90
            await second.subscribe([filled])
            shared = lambda: len(first.assignment()) == len(second.assignment()) == 1  # noqa: E731
            rows = await poll_until([first, second], shared)
            assert rows == [], "what was committed in the callback came again"
            assert sorted(revoked) == both(filled)
            assert await first.committed(revoked) == dict.fromkeys(revoked, COUNT)

    bounded(work())


def test_the_group_waits_for_a_coroutine_and_so_does_who_polls(member, filled):
    async def work():
        async with member() as first, member() as second:
            begun, may_end = asyncio.Event(), asyncio.Event()

            async def on_revoked(_partitions):
                begun.set()
                await may_end.wait()

            await first.subscribe([filled], on_revoked=on_revoked)
            await poll_until([first], first.assignment)
            await second.subscribe([filled])
            telling = asyncio.create_task(poll_until([first], begun.is_set))
            while not begun.is_set():
                await second.poll(0.1)
            # Longer than the group's heartbeats are apart: it has had time to go on without waiting.
            for _ in range(10):
                assert (await second.poll(0.1)).num_rows == 0
            assert sorted(first.assignment()) == both(filled)
            assert second.assignment() == []
            first.seek((filled, 0), 0)
            assert (await first.poll(0.1)).num_rows == 0, "another task is in the callback"
            may_end.set()
            await telling
            await poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)

    bounded(work())


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_a_callback_raises_comes_out_of_the_call_and_costs_nothing(member, filled, kind):
    def fail(_partitions):
        raise ZeroDivisionError

    async def fail_later(_partitions):
        await asyncio.sleep(0)
        raise ZeroDivisionError

    failing = fail if kind == "function" else fail_later

    async def work():
        async with member() as consumer:
            await consumer.subscribe([filled], on_assigned=failing, on_revoked=failing)
            with pytest.raises(ZeroDivisionError):
                await poll_until([consumer], lambda: False)
            rows = []
            while len(rows) < 2 * COUNT:
                rows += (await consumer.poll(5.0))["offset"].to_pylist()
            assert sorted(rows) == sorted([*range(COUNT), *range(COUNT)])
            with pytest.raises(ZeroDivisionError):
                await consumer.unsubscribe()
            assert consumer.assignment() == []
            log = Log(kind)
            await consumer.subscribe([filled], **log.callbacks())
            await poll_until([consumer], lambda: log.reported)
            await consumer.close()
            assert log.reported == [("assigned", both(filled)), ("revoked", both(filled))]

    bounded(work())


def test_a_cancelled_poll_leaves_its_callback_running(member, filled):
    async def work():
        async with member() as consumer:
            begun, may_end = asyncio.Event(), asyncio.Event()
            ended = []

            async def on_assigned(partitions):
                begun.set()
                await may_end.wait()
                ended.extend(partitions)
                raise ZeroDivisionError

            await consumer.subscribe([filled], on_assigned=on_assigned)
            polling = asyncio.create_task(consumer.poll(30.0))
            await begun.wait()
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert (await consumer.poll(0.1)).num_rows == 0, "no row before it has ended"
            may_end.set()
            with pytest.raises(ZeroDivisionError):
                await consumer.poll(30.0)
            assert sorted(ended) == both(filled)
            assert (await consumer.poll(30.0)).num_rows > 0

    bounded(work())


def test_a_call_that_would_wait_for_itself_is_refused(member, filled):
    async def work():
        async with member() as consumer:
            refused = []

            async def on_assigned(_partitions):
                others = [filled]
                for call in (consumer.poll, consumer.poll_all, consumer.unsubscribe, consumer.close):
                    with pytest.raises(UsageError, match=f"^{call.__name__} .*within a callback") as caught:
                        await call()
                    refused.append(caught.value)
                with pytest.raises(UsageError, match="within a callback"):
                    await consumer.subscribe(others)

            await consumer.subscribe([filled], on_assigned=on_assigned)
            rows = len(await poll_until([consumer], lambda: len(refused) == 4))
            while rows < 2 * COUNT:
                rows += (await consumer.poll(10.0)).num_rows

    bounded(work())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_partitions_lost_by_polling_too_seldom_are_told_as_lost(member, filled, kind):
    async def work():
        log = Log(kind)
        async with member(max_poll_interval_ms=6000) as consumer:
            await consumer.subscribe([filled], **log.callbacks())
            await poll_until([consumer], lambda: log.reported)
            while consumer.assignment():  # noqa: ASYNC110  (of the group)
                await asyncio.sleep(0.2)
            await poll_until([consumer], lambda: len(log.reported) == 3)
            assert log.reported == [("assigned", both(filled)), ("lost", both(filled)), ("assigned", both(filled))]

    bounded(work())


def test_closing_awaits_the_callback_while_it_can_still_commit(member, filled):
    async def work():
        consumer = member()
        reported = []

        async def on_revoked(partitions):
            await consumer.commit(dict.fromkeys(partitions, 7))
            reported.extend(partitions)

        # What was not told as assigned is not told as revoked.
        assigned = []
        await consumer.subscribe([filled], on_assigned=assigned.extend, on_revoked=on_revoked)
        await poll_until([consumer], lambda: assigned)
        await consumer.close()
        assert sorted(reported) == both(filled)
        async with member() as other:
            assert set((await other.committed(reported)).values()) == {7}

    bounded(work())


def test_a_close_that_is_cancelled_in_the_callback_is_carried_out(member, filled):
    async def work():
        consumer = member()
        begun, may_end, reported = asyncio.Event(), asyncio.Event(), []

        async def on_revoked(partitions):
            begun.set()
            await may_end.wait()
            await consumer.commit(dict.fromkeys(partitions, 7))
            reported.extend(partitions)

        # What was not told as assigned is not told as revoked.
        assigned = []
        await consumer.subscribe([filled], on_assigned=assigned.extend, on_revoked=on_revoked)
        await poll_until([consumer], lambda: assigned)
        closing = asyncio.create_task(consumer.close())
        await begun.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        may_end.set()
        while consumer.assignment():  # noqa: ASYNC110  (until it is closed)
            await asyncio.sleep(0.01)
        async with member() as other:
            assert set((await other.committed(both(filled))).values()) == {7}
        assert sorted(reported) == both(filled)

    bounded(work())
