"""Failed deliveries are raised by flush, close and the end of a block unless somebody has asked for them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import KafkaError, MessageTooLargeError, UsageError
from tests.clients.helpers import bounded

TIMEOUT = 20
# What a broker refuses: a partition that the topic does not have, of a topic that is not known when it is sent.
BAD = {"partition": 7}


def result(future):
    with pytest.raises(UsageError):
        future.result(TIMEOUT)


def exception(future):
    assert isinstance(future.exception(TIMEOUT), UsageError)


def callback(future):
    reported = threading.Event()
    future.add_done_callback(lambda _: reported.set())
    assert reported.wait(TIMEOUT)


ASKED = pytest.mark.parametrize("ask", [result, exception, callback])


def refused(producer, topic):
    """A future that fails after the call: the topic is made by asking for it."""
    return producer.send(topic, b"dead letter", **BAD)


@ASKED
def test_what_was_asked_for_is_not_raised_again(embedded_broker, topic, ask):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        ask(refused(producer, topic))
        producer.flush(TIMEOUT)
        producer.send(topic, b"good").result(TIMEOUT)
        ask(refused(producer, f"{topic}-2"))


@ASKED
def test_what_was_asked_for_before_it_failed_is_not_raised_again(embedded_broker, topic, ask):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        future = refused(producer, topic)
        asking = threading.Thread(target=ask, args=(future,))
        asking.start()
        asking.join(TIMEOUT)
        producer.flush(TIMEOUT)


def test_what_nobody_has_asked_for_is_raised_once(embedded_broker, topic):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        result(refused(producer, topic))
        kept = refused(producer, f"{topic}-2")
        with pytest.raises(UsageError, match=f"{topic}-2"):
            producer.flush(TIMEOUT)
        producer.flush(TIMEOUT)
        exception(kept)
        refused(producer, f"{topic}-3")
        gc.collect()
        with pytest.raises(UsageError, match=f"{topic}-3"):
            producer.flush(TIMEOUT)
    producer = hr.Producer(embedded_broker.bootstrap_servers)
    kept = refused(producer, f"{topic}-4")
    with pytest.raises(UsageError, match=f"{topic}-4"):
        producer.close()
    exception(kept)


def test_a_wait_that_ended_without_an_answer_has_not_asked(embedded_broker, topic):
    with hr.Producer("127.0.0.1:1", max_block_ms=700) as producer:
        future = producer.send(topic, b"x")
        with pytest.raises(TimeoutError):
            future.result(0.01)
        with pytest.raises(hr.errors.KafkaTimeoutError, match=topic):
            producer.flush(TIMEOUT)
        assert future.done()


def test_a_callback_may_flush(embedded_broker, topic):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        reported = threading.Event()

        def flush(future):
            future.exception()
            producer.flush(TIMEOUT)
            reported.set()

        refused(producer, topic).add_done_callback(flush)
        assert reported.wait(TIMEOUT)


@pytest.mark.parametrize("results", [False, True])
def test_rows_are_as_records(embedded_broker, topic, results):
    with hr.Producer(embedded_broker.bootstrap_servers, batch_size=200, max_request_size=300) as producer:
        large = pa.table({"value": [b"x" * 1000]})
        if results:
            errors = producer.send_arrow(topic, large, results=True).result(TIMEOUT)["error"].to_pylist()
            assert "max.request.size" in errors[0]
        else:
            with pytest.raises(MessageTooLargeError):
                producer.send_arrow(topic, large)
        producer.flush(TIMEOUT)
        if results:
            producer.send_arrow(topic, large, results=True)
            with pytest.raises(KafkaError, match=r"max\.request\.size"):
                producer.flush(TIMEOUT)


def test_dead_letters_of_asyncio(embedded_broker, topic):
    async def work():
        async with hr.aio.Producer(embedded_broker.bootstrap_servers) as producer:
            with pytest.raises(UsageError):
                await (await refused(producer, topic))
            await producer.flush(TIMEOUT)
            failed = await asyncio.gather(await refused(producer, f"{topic}-2"), return_exceptions=True)
            assert isinstance(failed[0], UsageError)
            later = await refused(producer, f"{topic}-3")
            await asyncio.wait([later], timeout=TIMEOUT)
            assert isinstance(later.exception(), UsageError)
            called = asyncio.Event()
            (await refused(producer, f"{topic}-4")).add_done_callback(lambda _: called.set())
            await asyncio.wait_for(called.wait(), TIMEOUT)
            await producer.flush(TIMEOUT)
            await (await producer.send(topic, b"good"))

    bounded(work())


def test_asyncio_raises_what_nobody_has_asked_for(embedded_broker, topic):
    async def work():
        async with hr.aio.Producer(embedded_broker.bootstrap_servers) as producer:
            kept = await refused(producer, topic)
            with pytest.raises(UsageError, match=topic):
                await producer.flush(TIMEOUT)
            await producer.flush(TIMEOUT)
            assert isinstance(kept.exception(), UsageError)
            cancelled = await refused(producer, f"{topic}-2")
            cancelled.cancel()
            with pytest.raises(UsageError, match=f"{topic}-2"):
                await producer.flush(TIMEOUT)
            given_up = await producer.send(f"{topic}-3", b"x", partition=7)
            await asyncio.wait([given_up], timeout=0)
            with pytest.raises(UsageError, match=f"{topic}-3"):
                await producer.flush(TIMEOUT)
        producer = hr.aio.Producer(embedded_broker.bootstrap_servers)
        kept = await refused(producer, f"{topic}-4")
        with pytest.raises(UsageError, match=f"{topic}-4"):
            await producer.close()
        assert kept.done()

    bounded(work())


DROPPED = """
import gc, sys
import headrace as hr
producer = hr.Producer(sys.argv[1])
future = producer.send("dropped", b"x", partition=7)
if sys.argv[2] == "asked":
    assert future.exception(20) is not None
del producer
gc.collect()
"""


@pytest.mark.parametrize("asked", [True, False])
def test_a_dropped_producer_says_in_a_line_what_was_lost(asked):
    with hr.Broker.start() as broker:
        program = [sys.executable, "-c", DROPPED, broker.bootstrap_servers, "asked" if asked else "not"]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == (0 if asked else 1)
    if asked:
        assert ended.stderr == ""
    else:
        assert ended.stderr.count("\n") == 1
        assert "'dropped' has no partition 7" in ended.stderr
