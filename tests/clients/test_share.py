"""Share consumers on Apache Kafka: what is delivered, to whom, how often, and what becomes of it."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import ForkedError, InvalidRecordStateError, UnsupportedVersionError, UsageError
from tests.clients.sharing import (
    SECONDS_MAX,
    begins_at_the_beginning,
    joined,
    nothing_left,
    numbered,
    produce,
    rows_of,
    wait_until,
)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def servers(apache_kafka):
    return apache_kafka.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers):
    with hr.Admin(servers) as client:
        yield client


@pytest.fixture
def group(admin, topic):
    """A share group that begins at the beginning; its topic has one partition."""
    admin.create_topic(topic, 1, 1)
    return begins_at_the_beginning(admin, f"g-{topic}")


def test_rows_have_the_columns_of_a_consumer_and_the_next_poll_accepts_them(servers, admin, topic, group):
    produce(servers, topic, numbered(10))
    with joined(servers, group, topic) as share:
        before = share.acquisition_lock_timeout_ms
        assert before is None
        assert share.subscription() == [topic]
        table = rows_of(share, 10)
        assert table["value"].to_pylist() == numbered(10)
        assert table["offset"].to_pylist() == list(range(10))
        assert set(table["delivery_count"].to_pylist()) == {1}
        with hr.Consumer(servers) as plain:
            assert share.schema == plain.schema.append(pa.field("delivery_count", pa.int16()))
        assert table.schema == share.schema
        assert share.assignment() == [(topic, 0)]
        assert share.acquisition_lock_timeout_ms == 30_000
        share.poll(0)
        assert share.commit(SECONDS_MAX) == {}, "the poll before has accepted all"
        wait_until(lambda: share.metrics()["records-acknowledged-total"] == 10)
        metrics = share.metrics()
        assert metrics["records-consumed-total"] == metrics["records-acquired-total"] == 10
        share.unsubscribe()
        wait_until(lambda: share.assignment() == [])
        assert share.subscription() == []
    nothing_left(admin, group, topic)


def test_a_commit_accepts_what_polls_gave_and_says_so(servers, admin, topic, group):
    produce(servers, topic, numbered(5))
    with joined(servers, group, topic) as share:
        rows_of(share, 5)
        assert share.commit() == {hr.TopicPartition(topic, 0): None}
        nothing_left(admin, group, topic)


def test_each_row_is_acknowledged_by_itself(servers, admin, topic, group):
    produce(servers, topic, numbered(20))
    with joined(servers, group, topic, share_acknowledgement_mode="explicit") as share:

        def act(batch):
            offsets = batch["offset"]
            share.acknowledge(batch.filter(pc.less(offsets, 5)))
            share.acknowledge(batch.filter(pc.equal(offsets, 5)), "reject")
            middle = batch.filter(pc.and_(pc.greater(offsets, 5), pc.less(offsets, 10)))
            share.acknowledge(middle, pc.equal(pc.bit_wise_and(middle["offset"], 1), 0))
            late = batch.filter(pc.greater_equal(offsets, 10))
            share.acknowledge(late, ["accept" if offset < 15 else "release" for offset in late["offset"].to_pylist()])

        rows_of(share, 20, act)
        assert share.commit() == {(topic, 0): None}
        again = rows_of(share, 7, lambda batch: share.acknowledge(batch, hr.AcknowledgeType.ACCEPT))
        assert again["offset"].to_pylist() == [7, 9, 15, 16, 17, 18, 19]
        assert set(again["delivery_count"].to_pylist()) == {2}
        share.commit()
        nothing_left(admin, group, topic)


def test_tables_that_went_through_other_libraries_are_acknowledged(servers, admin, topic, group):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    produce(servers, topic, numbered(9))
    with joined(servers, group, topic, share_acknowledgement_mode="explicit") as share:
        rows = rows_of(share, 9, lambda batch: share.acknowledge(batch, "release"))
        frame = polars.from_arrow(rows)
        share.acknowledge(frame.filter(polars.col("offset") < 3))
        some = frame.filter((polars.col("offset") >= 3) & (polars.col("offset") < 6))
        share.acknowledge(some, some["offset"] > 3, otherwise="reject")
        sql = """select *, case "offset" when 6 then 'reject' else 'accept' end as how from rows where "offset" > 5"""
        last = duckdb.sql(sql).to_arrow_table()
        share.acknowledge(last, last["how"])
        assert share.commit() == {(topic, 0): None}
        nothing_left(admin, group, topic)


def with_last_offset(batch, offset):
    at = batch.schema.get_field_index("offset")
    offsets = [*batch["offset"].to_pylist()[:-1], offset]
    return batch.set_column(at, batch.schema.field(at), pa.array(offsets, pa.int64()))


def test_what_does_not_fit_is_refused_and_nothing_is_marked(servers, topic, group):
    produce(servers, topic, numbered(4))
    with joined(servers, group, topic, share_acknowledgement_mode="explicit") as share:
        batch = rows_of(share, 4).to_batches()[0]
        for bad, text in [
            (("fnord",), "'fnord' is no type of acknowledgement; they are accept"),
            ((7,), "7 is no type"),
            (([True],), "1 values for 4 rows"),
            (([True, None, True, True],), "nulls"),
            ((["accept", "accept", "drop", "accept"],), "'drop' is no type"),
            (([1, 2, 3, 9],), "9 is no type"),
            (([1.5] * 4,), "how: values of double"),
            ((object(),), "how: a word"),
        ]:
            with pytest.raises(UsageError, match=text):
                share.acknowledge(batch, *bad)
        with pytest.raises(UsageError, match="otherwise: 'fnord'"):
            share.acknowledge(batch, [True] * 4, otherwise="fnord")
        with pytest.raises(UsageError, match="have no offset, delivery_count"):
            share.acknowledge(batch.select(["topic", "partition", "value"]))
        with pytest.raises(UsageError, match="not int"):
            share.acknowledge(5)
        share.acknowledge([])
        share.acknowledge(batch.slice(0, 0))
        with pytest.raises(UsageError, match=f"{topic}-0 have not been acknowledged"):
            share.poll(0)
        strange = with_last_offset(batch, 77)
        with pytest.raises(InvalidRecordStateError, match=r"1 of the rows are not held .* at offset 77") as caught:
            share.acknowledge(strange)
        assert (caught.value.topic, caught.value.partition) == (topic, 0)
        with pytest.raises(UsageError, match="have not been acknowledged"):
            share.poll(0)
        share.acknowledge(batch)
        share.commit()
        with pytest.raises(InvalidRecordStateError, match="4 of the rows are not held"):
            share.acknowledge(batch)
        share.poll(0)


def test_implicit_acknowledgement_takes_no_marks(servers, topic, group):
    with joined(servers, group, topic) as share, pytest.raises(UsageError, match=r"share\.acknowledgement\.mode"):
        share.acknowledge(share.poll(0))


def test_what_comes_out_of_a_with_block_by_an_exception_is_released(servers, topic, group):
    produce(servers, topic, numbered(6))
    with pytest.raises(ZeroDivisionError), joined(servers, group, topic) as share:
        rows_of(share, 6)
        raise ZeroDivisionError
    with joined(servers, group, topic) as share:
        assert set(rows_of(share, 6)["delivery_count"].to_pylist()) == {2}


def test_a_lock_that_is_over_is_told_and_the_rows_come_again(servers, admin, topic, group, caplog):
    begins_at_the_beginning(admin, group, record_lock_duration_ms="1000")
    produce(servers, topic, numbered(3))
    with joined(servers, group, topic) as share, caplog.at_level(logging.WARNING, "headrace.share"):
        rows_of(share, 3)
        assert share.acquisition_lock_timeout_ms == 1000
        wait_until(lambda: share.metrics()["records-lock-expired-total"] == 3)
        again = rows_of(share, 3)
        assert again["delivery_count"].to_pylist() == [2, 2, 2]
        assert "were held longer than their lock" in caplog.text
        assert f"{topic}" in caplog.text


def test_renewed_rows_stay_longer_than_their_lock(servers, admin, topic, group):
    begins_at_the_beginning(admin, group, record_lock_duration_ms="2000")
    produce(servers, topic, numbered(2))
    with joined(servers, group, topic, share_acknowledgement_mode="explicit") as share:
        rows = rows_of(share, 2)
        begun = time.monotonic()
        while time.monotonic() < begun + 5:
            share.acknowledge(rows, "renew")
            assert share.commit(SECONDS_MAX) == {(topic, 0): None}
            time.sleep(0.5)
        share.acknowledge(rows)
        assert share.commit(SECONDS_MAX) == {(topic, 0): None}
        assert share.metrics()["records-lock-expired-total"] == 0
        assert share.poll(0.5).num_rows == 0
        nothing_left(admin, group, topic)


def test_two_members_of_a_group_share_a_partition(servers, admin, topic, group):
    produce(servers, topic, numbered(2000))
    options = {"share_acquire_mode": "record_limit", "max_poll_records": 50}
    with joined(servers, group, topic, **options) as one, joined(servers, group, topic, **options) as other:
        seen = {0: [], 1: []}
        deadline = time.monotonic() + SECONDS_MAX
        for turn, share in itertools.cycle(enumerate((one, other))):
            batches = share.poll_all(0.2)
            assert sum(batch.num_rows for batch in batches) <= 50
            seen[turn] += [value for batch in batches for value in batch["value"].to_pylist()]
            if len(seen[0]) + len(seen[1]) >= 2000:
                break
            assert time.monotonic() < deadline
        assert sorted(seen[0] + seen[1], key=int) == numbered(2000)
        assert all(len(values) > 100 for values in seen.values())
        one.commit()
        other.commit()
        nothing_left(admin, group, topic)


def test_with_record_limit_polls_say_why_brokers_were_asked(servers, topic, group, caplog):
    produce(servers, topic, numbered(30))
    options = {"share_acquire_mode": "record_limit", "max_poll_records": 10}
    with joined(servers, group, topic, **options) as share, caplog.at_level(logging.DEBUG, "headrace.share.decisions"):
        assert rows_of(share, 30)["value"].to_pylist() == numbered(30)
        decisions = share.decisions()
        assert any("fetch from node 1, at most" in decision for decision in decisions), decisions
        share.poll(0)
        assert [decision for decision in decisions if decision not in caplog.text] == []
        assert share.metrics()["records-excess-total"] == 0


def test_commits_that_nobody_waits_for_are_told_by_a_later_call(servers, topic, group):
    produce(servers, topic, numbered(8))
    reported = []
    with joined(servers, group, topic, share_acknowledgement_mode="explicit") as share:
        rows_of(share, 8, share.acknowledge)
        share.commit_async(lambda results, error: reported.append((results, error)))
        wait_until(lambda: share.poll(0).num_rows == 0 and reported)
        assert reported == [({(topic, 0): None}, None)]
        share.commit_async(lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            wait_until(lambda: share.commit() and False)


def test_rows_that_are_written_while_a_poll_waits_come_at_once(servers, topic, group):
    with joined(servers, group, topic, share_acquire_mode="record_limit", max_poll_records=1) as share:
        share.poll(0)
        wait_until(lambda: share.assignment() or share.poll(0.1))
        produce(servers, topic, numbered(3))
        assert rows_of(share, 3)["value"].to_pylist() == numbered(3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "group.id"),
        ({"group_id": "g", "enable_auto_commit": True}, "enable.auto.commit"),
        ({"group_id": "g", "share_acquire_mode": "some"}, "share.acquire.mode"),
        ({"group_id": "g", "max_poll_records": 0}, "max.poll.records"),
        ({"group_id": "g", "share_auto_offset_reset": "earliest"}, "group"),
    ],
)
def test_options_that_a_share_consumer_does_not_take(servers, options, text):
    with pytest.raises(hr.errors.ConfigError, match=text):
        hr.ShareConsumer(servers, **options)


@pytest.mark.parametrize("topics", [[], [5], 7, b"t"])
def test_a_subscription_is_of_names(servers, topics):
    with hr.ShareConsumer(servers, group_id="g") as share, pytest.raises(UsageError, match="names of topics"):
        share.subscribe(topics)


def test_a_broker_without_share_groups_is_named(embedded_broker):
    with hr.ShareConsumer(embedded_broker.bootstrap_servers, group_id="g") as share:
        share.subscribe(["t"])
        with pytest.raises(UnsupportedVersionError, match=r"share groups need Kafka 4\.1 or newer"):
            for _ in range(20):
                share.poll(1)


def test_one_thread_at_a_time_polls(servers, topic, group):
    with joined(servers, group, topic) as share, ThreadPoolExecutor(2) as threads:
        polls = [threads.submit(share.poll, 3) for _ in range(2)]
        polls.sort(key=lambda one: one.exception(SECONDS_MAX) is None)
        with pytest.raises(UsageError, match="another thread is polling"):
            polls[0].result()
        assert polls[1].result().num_rows == 0


def test_a_forked_child_must_make_its_own(servers, topic, group):
    produce(servers, topic, numbered(2))
    with joined(servers, group, topic) as share:
        rows_of(share, 2)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                share.poll(0)
            except ForkedError:
                share.close()
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert share.commit() == {(topic, 0): None}


def test_a_wait_ends_on_ctrl_c(servers, topic, group):
    code = (
        "import headrace as hr\n"
        f"c = hr.ShareConsumer({servers!r}, group_id={group!r})\n"
        f"c.subscribe([{topic!r}])\n"
        "try:\n    print('waiting', flush=True)\n    c.poll(60)\n"
        "except KeyboardInterrupt:\n    print('stopped', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
