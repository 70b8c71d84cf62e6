"""Records for topics that do not exist (yet): nobody waits for them, and each is answered."""

from __future__ import annotations

import asyncio

import pytest

import headrace as hr
from headrace.errors import ClosedError, KafkaError, KafkaTimeoutError, TransactionAbortedError, UsageError

MAX_BLOCK_MS = 1500
TIMEOUT = 30


def values(cluster, topic):
    table = hr.read(cluster.bootstrap_servers, topic).read_all()
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])["value"].to_pylist()


def test_an_unknown_topic_fails_in_its_time_and_holds_up_no_other(strict, topic):
    strict.create_topic(topic)
    with hr.Producer(strict.bootstrap_servers) as patient:
        # A broker that has just started may take its time to tell of the topic that is there.
        patient.send(topic, b"first").result(TIMEOUT)
    with hr.Producer(strict.bootstrap_servers, max_block_ms=MAX_BLOCK_MS) as producer:
        lost, fine = [], []
        for n in range(50):
            lost.append(producer.send(f"{topic}-none", b"%d" % n))
            fine.append(producer.send(topic, b"%d" % n))
        assert [future.result(TIMEOUT).offset for future in fine] == list(range(1, 51))
        for future in lost:
            error = future.exception(TIMEOUT)
            assert isinstance(error, KafkaTimeoutError)
            assert f"{topic}-none" in str(error)
            assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error), "what the broker said is told"
        producer.flush(TIMEOUT)
        metrics = producer.metrics()
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


def test_a_topic_that_is_made_meanwhile_gets_its_records_in_order(strict, topic):
    with hr.Producer(strict.bootstrap_servers) as producer:
        sent = [producer.send(topic, b"%03d" % n, key=b"%d" % (n % 7)) for n in range(200)]
        wrong = producer.send(topic, b"x", partition=3)
        assert not any(future.done() for future in sent)
        strict.create_topic(topic, 3)
        sent += [producer.send(topic, b"%03d" % n, key=b"%d" % (n % 7)) for n in range(200, 250)]
        assert {future.result(TIMEOUT).topic for future in sent} == {topic}
        with pytest.raises(UsageError, match=f"{topic}.* has no partition 3: it has 3"):
            wrong.result(TIMEOUT)
        producer.flush()
    got = values(strict, topic)
    assert sorted(got) == [b"%03d" % n for n in range(250)]
    for key in range(7):
        of_key = [value for value in got if int(value) % 7 == key]
        assert of_key == sorted(of_key)


def test_a_flush_waits_for_a_topic(strict, topic):
    with hr.Producer(strict.bootstrap_servers) as producer:
        future = producer.send(topic, b"x")
        with pytest.raises(KafkaTimeoutError, match="flushing"):
            producer.flush(0.3)
        strict.create_topic(topic)
        producer.flush(TIMEOUT)
        assert future.result(TIMEOUT).offset == 0


def test_closing_fails_what_waits_for_a_topic(strict, topic):
    producer = hr.Producer(strict.bootstrap_servers)
    future = producer.send(topic, b"x")
    with pytest.raises(KafkaError):
        producer.close(0.3)
    assert isinstance(future.exception(TIMEOUT), KafkaError)
    with pytest.raises(ClosedError):
        producer.send(topic, b"y")


def test_what_a_flush_and_closing_have_waited_for_is_named(strict, topic):
    producer = hr.Producer(strict.bootstrap_servers)
    producer.send(topic, b"x")
    for wait in (producer.flush, producer.close):
        with pytest.raises(KafkaTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION") as late:
            wait(timeout=1.0)
        assert topic in str(late.value)
        assert "may or may not" not in str(late.value), "nobody has seen anything of it"


def test_coroutines_do_not_wait_for_a_topic_either(strict, topic):
    async def work():
        async with hr.aio.Producer(strict.bootstrap_servers) as producer:
            later = await producer.send(topic, b"x")
            await asyncio.to_thread(strict.create_topic, topic)
            assert (await later).offset == 0
        async with hr.aio.Producer(strict.bootstrap_servers, max_block_ms=MAX_BLOCK_MS) as producer:
            lost = await producer.send(f"{topic}-none", b"x")
            assert (await (await producer.send(topic, b"y"))).offset == 1
            with pytest.raises(KafkaTimeoutError, match=f"{topic}-none"):
                await lost
            await producer.flush()

    asyncio.run(asyncio.wait_for(work(), TIMEOUT))


@pytest.mark.kafka
def test_records_of_a_transaction_wait_for_their_topic_and_go_with_it(strict_apache, topic):
    with hr.Producer(strict_apache.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        aborted = producer.send(topic, b"aborted")
        producer.abort_transaction()
        assert isinstance(aborted.exception(TIMEOUT), TransactionAbortedError)
        producer.begin_transaction()
        future = producer.send(topic, b"committed")
        assert not future.done()
        strict_apache.create_topic(topic)
        producer.commit_transaction()
        assert future.result(TIMEOUT).topic == topic
    assert values(strict_apache, topic) == [b"committed"]
