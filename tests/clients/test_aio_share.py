"""Share consumers in an event loop, on Apache Kafka."""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ClosedError, UsageError
from tests.clients.helpers import TIMEOUT_SECONDS, assert_free, bounded, heartbeat
from tests.clients.sharing import begins_at_the_beginning

pytestmark = pytest.mark.kafka


@pytest.fixture
def servers(apache_kafka):
    return apache_kafka.bootstrap_servers


@pytest.fixture
def group(servers, topic):
    """A share group that begins at the beginning; its topic has one partition."""
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 1, 1)
        begins_at_the_beginning(admin, f"g-{topic}")
    return f"g-{topic}"


def produce(servers, topic, count):
    with hr.Producer(servers) as producer:
        producer.send_arrow(topic, pa.table({"value": [b"%d" % n for n in range(count)]})).result(TIMEOUT_SECONDS)


async def rows_of(share, count, act=lambda _: None):
    values, deadline = [], time.monotonic() + TIMEOUT_SECONDS
    while len(values) < count:
        assert time.monotonic() < deadline, values
        batch = await share.poll(1)
        act(batch)
        values += batch["value"].to_pylist()
    return values


def test_rows_are_awaited_and_acknowledged(servers, topic, group):
    async def work():
        async with hr.aio.ShareConsumer(servers, group_id=group, share_acknowledgement_mode="explicit") as share:
            await share.subscribe([topic])
            assert share.subscription() == [topic]
            async with heartbeat() as beats:
                await share.poll(0.5)
                assert_free(beats)
            produce(servers, topic, 10)
            assert len(await rows_of(share, 10, share.acknowledge)) == 10
            assert await share.commit() == {(topic, 0): None}
            assert share.assignment() == [(topic, 0)]
            assert share.metrics()["records-acknowledged-total"] == 10
            assert share.acquisition_lock_timeout_ms == 30_000
            assert share.schema.names[-1] == "delivery_count"
            await share.unsubscribe()

    bounded(work())


def test_batches_are_accepted_when_the_next_is_asked_for(servers, topic, group):
    produce(servers, topic, 100)

    async def work():
        options = {"share_acquire_mode": "record_limit", "max_poll_records": 10}
        async with hr.aio.ShareConsumer(servers, group_id=group, **options) as share:
            await share.subscribe([topic])
            values = []
            async for batch in share.batches():
                assert batch.num_rows <= 10
                values += batch["value"].to_pylist()
                if len(values) == 100:
                    break
            assert values == [b"%d" % n for n in range(100)]
            assert await share.commit() == {(topic, 0): None}
            assert any("at most 10 records" in decision for decision in share.decisions())
            assert await share.poll_all(0) == []

    bounded(work())


def test_a_cancelled_poll_has_taken_nothing(servers, topic, group):
    async def work():
        async with hr.aio.ShareConsumer(servers, group_id=group) as share:
            await share.subscribe([topic])
            waiting = asyncio.ensure_future(share.poll(30))
            await asyncio.sleep(0.5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            produce(servers, topic, 5)
            assert await rows_of(share, 5) == [b"0", b"1", b"2", b"3", b"4"]

    bounded(work())


def test_one_task_polls_and_a_close_ends_its_wait(servers, topic, group):
    async def work():
        share = hr.aio.ShareConsumer(servers, group_id=group)
        await share.subscribe([topic])
        waiting = asyncio.ensure_future(share.poll(30))
        await asyncio.sleep(0.1)
        with pytest.raises(UsageError, match="another task is polling"):
            await share.poll(0)
        await share.close()
        with pytest.raises(ClosedError):
            await waiting

    bounded(work())


def test_rows_of_a_block_that_fails_come_again(servers, topic, group):
    produce(servers, topic, 3)

    async def fails():
        async with hr.aio.ShareConsumer(servers, group_id=group) as share:
            await share.subscribe([topic])
            await rows_of(share, 3)
            raise ZeroDivisionError

    async def work():
        with pytest.raises(ZeroDivisionError):
            await fails()
        async with hr.aio.ShareConsumer(servers, group_id=group) as share:
            await share.subscribe([topic])
            counts = []
            await rows_of(share, 3, lambda batch: counts.extend(batch["delivery_count"].to_pylist()))
            assert counts == [2, 2, 2]

    bounded(work())
