"""Rebalance listeners and commits that nobody waits for, on our broker and on Apache Kafka."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import threading
import time

import pytest

import headrace as hr
from headrace.errors import IllegalGenerationError, UsageError
from tests.clients.spoiler import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, Spoiler

COUNT = 100
HEARTBEATS = {"classic": HEARTBEAT, "consumer": CONSUMER_GROUP_HEARTBEAT}
FENCED = {"classic": 22, "consumer": 110}
"""ILLEGAL_GENERATION and FENCED_MEMBER_EPOCH."""

in_both_protocols = pytest.mark.parametrize(
    ("cluster", "protocol"),
    [
        pytest.param("embedded", "classic", id="embedded"),
        pytest.param("apache", "classic", id="apache", marks=pytest.mark.kafka),
        pytest.param("apache", "consumer", id="apache-consumer", marks=pytest.mark.kafka),
    ],
    indirect=["cluster"],
)


@pytest.fixture
def filled(cluster, topic):
    """A topic of two partitions with 100 records each."""
    cluster.create_topic(topic, 2)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for i in range(2 * COUNT):
            producer.send(topic, str(i // 2).encode(), partition=i % 2)
    return topic


@pytest.fixture
def protocol():
    return "classic"


@pytest.fixture
def options(cluster, filled, protocol):
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": f"g-{filled}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300,
    }


class Log:
    """A listener that writes down what it is told."""

    def __init__(self):
        self.reported = []

    def callbacks(self):
        return {
            "on_assigned": lambda partitions: self.reported.append(("assigned", partitions)),
            "on_revoked": lambda partitions: self.reported.append(("revoked", partitions)),
            "on_lost": lambda partitions: self.reported.append(("lost", partitions)),
        }


def poll_until(consumers, done):
    deadline = time.monotonic() + 40
    rows = []
    while not done():
        assert time.monotonic() < deadline
        for consumer in consumers:
            rows += rows_of(consumer.poll(0.1))
    return rows


def rows_of(batch):
    return list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))


def test_a_listener_seeks_before_the_first_row_and_commits_before_partitions_go(options, filled):
    first = hr.Consumer(config=options)
    second = hr.Consumer(config=options)
    revoked = []

    def on_assigned(partitions):
        if not revoked:
            for partition in partitions:
                first.seek(partition, 90)

    def on_revoked(partitions):
        revoked.extend(partitions)
        assert sorted(first.assignment()) == sorted(partitions)
        first.commit()

    with first, second:
        first.subscribe([filled], on_assigned=on_assigned, on_revoked=on_revoked)
        rows = []
        while len(rows) < 20:
            batch = first.poll(5.0, max_records=3)
            rows += batch["offset"].to_pylist()
        assert min(rows) == 90
        second.subscribe([filled])
        rows = poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)
        assert rows == [], "what was committed in the callback came again"
        assert sorted(revoked) == [(filled, 0), (filled, 1)]
        assert first.committed(revoked) == dict.fromkeys(revoked, COUNT)


@in_both_protocols
def test_what_a_callback_raises_comes_out_of_poll_and_costs_nothing(options, filled):
    def fail(_partitions):
        raise ZeroDivisionError

    with hr.Consumer(config=options) as consumer:
        consumer.subscribe([filled], on_assigned=fail, on_revoked=fail)
        with pytest.raises(ZeroDivisionError):
            poll_until([consumer], lambda: False)
        rows = []
        while len(rows) < 2 * COUNT:
            rows += consumer.poll(5.0)["offset"].to_pylist()
        assert sorted(rows) == sorted([*range(COUNT), *range(COUNT)])
        with pytest.raises(ZeroDivisionError):
            consumer.unsubscribe()
        assert consumer.assignment() == []
        log = Log()
        consumer.subscribe([filled], **log.callbacks())
        poll_until([consumer], lambda: len(log.reported) == 1)
        assert log.reported == [("assigned", [(filled, 0), (filled, 1)])]


@pytest.mark.slow
def test_partitions_lost_by_polling_too_seldom_are_told_as_lost(options, filled):
    log = Log()
    with hr.Consumer(config=options, max_poll_interval_ms=6000) as consumer:
        consumer.subscribe([filled], **log.callbacks())
        poll_until([consumer], lambda: log.reported)
        deadline = time.monotonic() + 40
        while consumer.assignment():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        poll_until([consumer], lambda: len(log.reported) == 3)
        both = [(filled, 0), (filled, 1)]
        assert log.reported == [("assigned", both), ("lost", both), ("assigned", both)]


@in_both_protocols
def test_closing_tells_the_listener_while_it_can_still_commit(options, filled):
    consumer = hr.Consumer(config=options)
    reported = []

    def on_revoked(partitions):
        consumer.commit(dict.fromkeys(partitions, 7))
        reported.extend(partitions)

    # What was not told as assigned is not told as revoked.
    assigned = []
    consumer.subscribe([filled], on_assigned=assigned.extend, on_revoked=on_revoked)
    poll_until([consumer], lambda: assigned)
    consumer.close()
    assert sorted(reported) == [(filled, 0), (filled, 1)]
    with hr.Consumer(config=options) as other:
        assert set(other.committed(reported).values()) == {7}


def test_a_consumer_that_was_only_forgotten_leaves_its_group(options, filled):
    # The group would wait for it for longer than this test runs.
    forgotten = hr.Consumer(config={**options, "session.timeout.ms": 300_000})
    revoked = []
    forgotten.subscribe([filled], on_revoked=revoked.extend)
    poll_until([forgotten], lambda it=forgotten: len(it.assignment()) == 2)
    knot: list[object] = [forgotten]
    knot.append(knot)
    del forgotten, knot
    gc.collect()
    with hr.Consumer(config=options) as other:
        other.subscribe([filled])
        poll_until([other], lambda: len(other.assignment()) == 2)
    assert revoked == []


@in_both_protocols
def test_polling_within_a_callback_is_refused(options, filled):
    with hr.Consumer(config=options) as consumer:
        consumer.subscribe([filled], on_assigned=lambda _: consumer.poll(0.1))
        with pytest.raises(UsageError, match="within a callback"):
            poll_until([consumer], lambda: False)
        assert consumer.poll(10.0).num_rows > 0


@in_both_protocols
def test_what_closing_raises_does_not_hide_the_exception_of_the_block(options, filled):
    def fail(_partitions):
        raise ZeroDivisionError

    with pytest.raises(LookupError, match="of the block"), hr.Consumer(config=options) as consumer:
        assigned = []
        consumer.subscribe([filled], on_assigned=assigned.extend, on_revoked=fail)
        poll_until([consumer], lambda: assigned)
        raise LookupError("of the block")


@in_both_protocols
def test_two_threads_cannot_poll_at_once(options, filled):
    with hr.Consumer(config=options) as consumer:
        refused = []

        def poll():
            while not refused:
                try:
                    consumer.poll(0.2)
                except UsageError as error:
                    refused.append(error)

        consumer.subscribe([filled])
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)
        for number in range(2):
            consumer.seek((filled, number), COUNT)
        threads = [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "another thread" in str(refused[0])
        consumer.seek((filled, 0), 0)
        assert consumer.poll(5.0).num_rows > 0


def test_asynchronous_commits_keep_their_order_and_call_back(options, filled):
    ended = []
    with hr.Consumer(config=options) as consumer:
        consumer.subscribe([filled])
        poll_until([consumer], consumer.assignment)
        for offset in range(1, 21):
            consumer.commit_async({(filled, 0): offset}, lambda error, at=offset: ended.append((at, error)))
        consumer.commit({(filled, 1): 5})
        assert ended == [(at, None) for at in range(1, 21)]
        assert consumer.committed([(filled, 0), (filled, 1)]) == {(filled, 0): 20, (filled, 1): 5}
        consumer.commit_async({(filled, 0): 3})
    with hr.Consumer(config=options) as other:
        assert other.committed([(filled, 0)]) == {(filled, 0): 3}


@in_both_protocols
def test_a_failed_asynchronous_commit_tells_its_callback_or_the_log(options, filled, caplog):
    ended = []
    with hr.Consumer(config=options) as consumer:
        consumer.subscribe([filled])
        poll_until([consumer], consumer.assignment)
        consumer.commit_async({(filled, 9): 1}, ended.append)
        consumer.commit_async({(filled, 9): 1})
        poll_until([consumer], lambda: ended and caplog.records)
        assert isinstance(ended[0], IllegalGenerationError)
        assert (ended[0].topic, ended[0].partition) == (filled, 9)
        assert "commit_async failed" in caplog.text

        def fail(_error):
            raise ZeroDivisionError

        consumer.commit_async(callback=fail)
        with pytest.raises(ZeroDivisionError):
            poll_until([consumer], lambda: False)


@in_both_protocols
def test_a_commit_of_a_revoked_partition_names_it(options, filled):
    with hr.Consumer(config=options) as first, hr.Consumer(config=options) as second:
        first.subscribe([filled])
        poll_until([first], lambda: len(first.assignment()) == 2)
        second.subscribe([filled])
        poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)
        (gone,) = second.assignment()
        with pytest.raises(IllegalGenerationError) as caught:
            first.commit({gone: 1})
        assert (caught.value.topic, caught.value.partition) == tuple(gone)


@in_both_protocols
def test_a_fenced_member_loses_its_partitions_and_goes_on_from_its_commits(cluster, options, filled, protocol):
    log = Log()
    with Spoiler(cluster.bootstrap_servers) as spoiler:

        def fence(frame):
            """Writes the error into one answer, behind the request's id, the header's tags and the throttle time."""
            spoiler.rewrite(HEARTBEATS[protocol], None)
            return frame[:9] + struct.pack(">h", FENCED[protocol]) + frame[11:]

        with hr.Consumer(config=options | {"bootstrap.servers": spoiler.address}) as consumer:
            consumer.subscribe([filled], **log.callbacks())
            both = {(filled, 0): 30, (filled, 1): 40}
            rows = []
            while len(rows) < 2 * COUNT:
                rows += rows_of(consumer.poll(5.0))
            consumer.commit(both)
            spoiler.rewrite(HEARTBEATS[protocol], fence)
            # Nobody polls: what the caller still holds may be another member's by then.
            refused = None
            deadline = time.monotonic() + 40
            while refused is None:
                assert time.monotonic() < deadline
                try:
                    consumer.commit(both)
                except IllegalGenerationError as error:
                    refused = error
            again = []
            while len(log.reported) < 3 or len(set(again)) < 60 + 70:
                assert time.monotonic() < deadline, (log.reported, len(again))
                again += rows_of(consumer.poll(0.2))
            assert sorted(again) == [(0, at) for at in range(30, COUNT)] + [(1, at) for at in range(40, COUNT)]
            assert [kind for kind, _ in log.reported] == ["assigned", "lost", "assigned"]
            consumer.commit()
            assert set(consumer.committed(both).values()) == {COUNT}


def test_who_subscribes_again_without_a_listener_is_given_rows(options, filled):
    with hr.Consumer(config=options) as consumer:
        consumer.subscribe([filled], on_assigned=lambda _: None)
        deadline = time.monotonic() + 40
        while not consumer.assignment():  # nobody has polled: the listener is still to be told
            assert time.monotonic() < deadline
            time.sleep(0.05)
        consumer.subscribe([filled])
        assert consumer.poll(30.0).num_rows > 0


PROGRAM = """
import contextlib, sys
import headrace as hr
servers, topic, group, way = sys.argv[1:]
consumer = hr.Consumer(servers, group_id=group, auto_offset_reset="earliest")
with contextlib.nullcontext() if way == "not closed" else consumer:
    consumer.subscribe([topic])
    while not consumer.poll(5.0).num_rows:
        pass
    if way != "finished":
        raise ZeroDivisionError
"""


@pytest.mark.parametrize("way", ["finished", "raised", "not closed"])
def test_what_was_being_processed_when_an_exception_came_is_not_committed(cluster, filled, way):
    group = f"g-{filled}"
    program = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, filled, group, way]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode == 0) is (way == "finished"), ended.stderr
    assert (way == "finished") or "ZeroDivisionError" in ended.stderr
    with hr.Consumer(cluster.bootstrap_servers, group_id=group) as consumer:
        committed = consumer.committed([(filled, 0), (filled, 1)])
    assert any(committed.values()) is (way == "finished"), committed
