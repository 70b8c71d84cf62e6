"""Futures of records that go through memory: however one learns of them, one learns of all."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import pytest

import headrace as hr
from tests.one_sided.test_produce import linked

RECORDS = 300
SECONDS = 20


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(num_partitions=1) as one:
        yield one


@pytest.fixture
def topic(request):
    return f"{request.node.name.translate(str.maketrans('[]', '--'))}-{time.time_ns()}"


@pytest.fixture(params=[50, 0], ids=["spinning", "sleeping"])
def producer(broker, topic, request):
    spin = request.param
    options = {"headrace_datapath": "shm", "linger_ms": 0, "headrace_poll_spin_us": spin}
    with hr.Producer(broker.bootstrap_servers, **options) as one:
        linked(one, topic)
        yield one


def send(producer, topic, count=RECORDS):
    return [producer.send(topic, b"x", partition=0) for _ in range(count)]


def offsets(futures):
    return [future.result(0).offset for future in futures]


def test_who_waits_for_each_gets_it(producer, topic):
    found = [producer.send(topic, b"x", partition=0).result(SECONDS).offset for _ in range(RECORDS)]
    assert found == list(range(found[0], found[0] + RECORDS))


def test_who_waits_for_the_last_has_the_others(producer, topic):
    futures = send(producer, topic)
    assert futures[-1].exception(SECONDS) is None
    found = offsets(futures)
    assert found == list(range(found[0], found[0] + RECORDS))


def test_who_looks_again_and_again_sees_it(producer, topic):
    for future in send(producer, topic, 20):
        deadline = time.monotonic() + SECONDS
        while not future.done():
            assert time.monotonic() < deadline


def test_a_flush_leaves_none_open(producer, topic):
    futures = send(producer, topic)
    producer.flush()
    assert len(offsets(futures)) == RECORDS


def test_those_that_do_not_look_are_told(producer, topic):
    futures = send(producer, topic)
    assert not concurrent.futures.wait(futures, SECONDS).not_done
    futures = send(producer, topic)
    assert len(list(concurrent.futures.as_completed(futures, SECONDS))) == RECORDS


def test_callbacks_run(producer, topic):
    reported, all_told = [], threading.Event()

    def tell(future):
        reported.append(future.result().offset)
        if len(reported) == RECORDS:
            all_told.set()

    for future in send(producer, topic):
        future.add_done_callback(tell)
    assert all_told.wait(SECONDS)
    assert len(set(reported)) == RECORDS


def test_several_threads_wait(producer, topic):
    found: dict[int, list[int]] = {}

    def run(number):
        found[number] = [producer.send(topic, b"x", partition=0).result(SECONDS).offset for _ in range(RECORDS)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len({offset for got in found.values() for offset in got}) == 3 * RECORDS
    assert all(got == sorted(got) for got in found.values())


def test_an_answer_that_does_not_come_is_a_timeout(producer, topic, broker):
    with hr.Producer(broker.bootstrap_servers, headrace_datapath="shm", linger_ms=60_000) as slow:
        future = slow.send(topic, b"x", partition=0)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.01)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.exception(0)
        slow.flush()
        assert future.result(0).partition == 0
