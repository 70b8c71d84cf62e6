"""What a share consumer says of clusters, groups, topics and rows that are not as they should be, on Apache Kafka."""

from __future__ import annotations

import struct
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    GroupIdNotFoundError,
    InvalidRecordStateError,
    InvalidTopicExceptionError,
    KafkaError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
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
from tests.clients.spoiler import API_VERSIONS, Spoiler

pytestmark = pytest.mark.kafka
SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
EXPLICIT = {"share_acknowledgement_mode": "explicit"}


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


@pytest.fixture
def older(servers):
    """The address of a broker as of Kafka 4.1: version 1 is the last that it knows of requests of share sessions."""

    def narrowed(frame):
        for key in (SHARE_FETCH, SHARE_ACKNOWLEDGE):
            now, then = (struct.pack(">hhh", key, 1, last) for last in (2, 1))
            assert now in frame
            frame = frame.replace(now, then)
        return frame

    with Spoiler(servers) as spoiler:
        spoiler.rewrite(API_VERSIONS, narrowed)
        yield spoiler.address


def reported(share, kind):
    """What polls raise at last."""
    deadline = time.monotonic() + SECONDS_MAX
    with pytest.raises(kind) as caught:
        while time.monotonic() < deadline:
            assert share.poll(0.5).num_rows == 0
    return caught.value


def go_on(share, done, act=lambda _: None):
    """Values and delivery counts that polls give, and what they raise of a topic that is gone, until that is done."""
    rows, errors = [], []
    deadline = time.monotonic() + SECONDS_MAX
    while not done(rows, errors):
        assert time.monotonic() < deadline, (rows, errors)
        try:
            batch = share.poll(0.5)
        except UnknownTopicOrPartitionError as error:
            errors.append(error)
        else:
            act(batch)
            rows += zip(batch["value"].to_pylist(), batch["delivery_count"].to_pylist(), strict=True)
    return rows, errors


def test_before_kafka_4_2_there_is_no_record_limit(older, topic, group):
    options = {"share_acquire_mode": "record_limit"}
    with joined(older, group, topic, **options) as share:
        for _ in range(2):
            assert "share.acquire.mode=record_limit needs Kafka 4.2" in str(reported(share, UnsupportedVersionError))
        assert share.metrics()["records-acquired-total"] == 0


def test_before_kafka_4_2_all_but_renewal_works(older, servers, admin, topic, group):
    produce(servers, topic, numbered(20))
    with joined(older, group, topic, **EXPLICIT) as share:
        rows = rows_of(share, 20).to_batches()[0]
        with pytest.raises(UnsupportedVersionError, match=r"renewing locks needs Kafka 4\.2"):
            share.acknowledge(rows, ["accept"] * 19 + ["renew"])
        share.acknowledge(rows, [True] * 10 + [False] * 10)
        assert share.commit() == {(topic, 0): None}
        again = rows_of(share, 10, share.acknowledge)
        assert again["offset"].to_pylist() == list(range(10, 20))
        assert set(again["delivery_count"].to_pylist()) == {2}
        share.commit()
        nothing_left(admin, group, topic)


def test_rows_whose_lock_is_over_can_be_neither_acknowledged_nor_committed(servers, admin, topic, group):
    begins_at_the_beginning(admin, group, record_lock_duration_ms="1000")
    produce(servers, topic, numbered(6))
    with joined(servers, group, topic, **EXPLICIT) as share:
        rows = rows_of(share, 6).to_batches()[0]
        share.acknowledge(rows.slice(0, 4))
        wait_until(lambda: share.metrics()["records-lock-expired-total"] == 6)
        with pytest.raises(InvalidRecordStateError, match=r"2 of the rows are not held .* at offset 4.*lock is over"):
            share.acknowledge(rows.slice(4))
        results = share.commit()
        assert list(results) == [(topic, 0)]
        error = results[topic, 0]
        assert isinstance(error, InvalidRecordStateError)
        assert (error.topic, error.partition) == (topic, 0)
        assert "4 records" in str(error)
        assert share.commit() == {}, "it is told once"
        again = rows_of(share, 6, share.acknowledge)
        assert set(again["delivery_count"].to_pylist()) == {2}
        assert share.commit() == {(topic, 0): None}


def test_rows_of_an_earlier_delivery_or_of_another_consumer_are_not_held(servers, topic, group):
    produce(servers, topic, numbered(4))
    with joined(servers, group, topic, **EXPLICIT) as share:
        first = rows_of(share, 4, lambda batch: share.acknowledge(batch, "release"))
        assert share.commit() == {(topic, 0): None}
        second = rows_of(share, 4)
        assert second["offset"].to_pylist() == first["offset"].to_pylist()
        refused = pytest.raises(InvalidRecordStateError, match="4 of the rows are not held")
        with refused:
            share.acknowledge(first)
        with joined(servers, group, topic, **EXPLICIT) as other, refused:
            other.acknowledge(second)
        # Of a row that is there twice the last word counts.
        share.acknowledge(pa.concat_tables([second, second]), ["release"] * 4 + ["reject"] * 4)
        assert share.commit() == {(topic, 0): None}
        assert share.poll(1).num_rows == 0


def test_a_group_is_of_one_kind(servers, topic, group):
    produce(servers, topic, numbered(1))
    name = f"plain-{topic}"
    with hr.Consumer(servers, group_id=name, group_protocol="consumer", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.5).num_rows)
        with joined(servers, name, topic) as share:
            for _ in range(2):
                assert f"Group {name} is not a share group" in str(reported(share, GroupIdNotFoundError))
    with joined(servers, group, topic) as share:
        rows_of(share, 1)
        with hr.Consumer(servers, group_id=group, group_protocol="consumer") as consumer:
            consumer.subscribe([topic])
            with pytest.raises(GroupIdNotFoundError, match=f"Group {group} is not a consumer group"):
                wait_until(lambda: consumer.poll(0.5) and False)


def test_a_topic_that_is_not_there_is_named_once_and_read_when_it_is_made(servers, admin, topic):
    group = begins_at_the_beginning(admin, f"g-{topic}")
    with joined(servers, group, topic, metadata_max_age_ms=1000) as share:
        assert reported(share, UnknownTopicOrPartitionError).topic == topic
        assert share.poll(1).num_rows == 0
        admin.create_topic(topic, 1, 1)
        produce(servers, topic, numbered(3))
        assert rows_of(share, 3)["value"].to_pylist() == numbered(3)


def test_a_name_that_no_topic_can_have_is_named_and_the_others_are_read(servers, topic, group):
    produce(servers, topic, numbered(2))
    with hr.ShareConsumer(servers, group_id=group) as share:
        share.subscribe([topic, "no such/"])
        assert reported(share, InvalidTopicExceptionError).topic == "no such/"
        assert rows_of(share, 2)["value"].to_pylist() == numbered(2)


def test_a_topic_deleted_while_it_is_read_is_named_and_the_others_go_on(servers, admin, topic, group):
    doomed = f"{topic}-doomed"
    admin.create_topic(doomed, 1, 1)
    for name in (topic, doomed):
        produce(servers, name, numbered(2))
    with hr.ShareConsumer(servers, group_id=group, metadata_max_age_ms=1000) as share:
        share.subscribe([topic, doomed])
        assert set(rows_of(share, 4)["topic"].to_pylist()) == {topic, doomed}
        share.commit()
        admin.delete_topics([doomed])
        rows, _ = go_on(share, lambda _, errors: any(error.topic == doomed for error in errors))
        assert rows == []
        produce(servers, topic, numbered(2, start=5))
        rows, _ = go_on(share, lambda rows, _: len(rows) >= 2)
        assert rows == [(b"5", 1), (b"6", 1)]
        wait_until(lambda: share.assignment() == [(topic, 0)] or share.poll(0.2).num_rows)


def test_of_a_topic_that_is_made_anew_nothing_of_the_one_before_counts(servers, admin, topic, group):
    produce(servers, topic, numbered(5))
    with joined(servers, group, topic, metadata_max_age_ms=1000, **EXPLICIT) as share:
        old = rows_of(share, 5)
        share.acknowledge(old.slice(0, 1))
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics())
        wait_until(lambda: made(admin, topic))
        produce(servers, topic, numbered(9, start=100))
        # What becomes of the old rows is told; they are in nobody's way.
        try:
            share.acknowledge(old.slice(1))
        except InvalidRecordStateError as error:
            assert error.topic == topic  # noqa: PT017  (they are gone, if it knows by now)
        assert isinstance(share.commit(SECONDS_MAX)[topic, 0], KafkaError)
        new, errors = go_on(share, lambda rows, _: len(rows) >= 9, share.acknowledge)
        assert {error.topic for error in errors} <= {topic}
        assert new == [(value, 1) for value in numbered(9, start=100)]
        assert share.commit() == {(topic, 0): None}
        nothing_left(admin, group, topic)


def made(admin, topic):
    """Makes a topic, once the one before is gone."""
    try:
        admin.create_topic(topic, 1, 1)
    except KafkaError:
        return False
    return True


def test_a_broker_that_fails_without_a_code_is_asked_again(servers, admin, topic, group):
    """Apache Kafka does so when a topic goes while a ShareFetch waits, and for one whose state is not set up."""
    # The broker has given what stands in the answers that are spoiled: it comes when its lock is over.
    begins_at_the_beginning(admin, group, record_lock_duration_ms="1000")
    produce(servers, topic, numbered(3))
    bad = [2]

    def fails(frame):
        if bad[0] == 0:
            return frame
        bad[0] -= 1
        # No throttling, UNKNOWN_SERVER_ERROR, no message, the lock's time, no topics, no nodes.
        return frame[:4] + b"\0" + struct.pack(">ih", 0, -1) + b"\0" + struct.pack(">i", 1000) + b"\1\1\0"

    with Spoiler(servers) as spoiler, joined(spoiler.address, group, topic) as share:
        spoiler.rewrite(SHARE_FETCH, fails)
        assert rows_of(share, 3)["value"].to_pylist() == numbered(3)
        assert bad == [0]
        share.commit()
        nothing_left(admin, group, topic)


@pytest.mark.parametrize("way", ["refused", "silent"])
def test_what_a_close_could_not_acknowledge_is_told(servers, topic, group, caplog, way):
    produce(servers, topic, numbered(3))
    with Spoiler(servers) as spoiler:
        share = joined(spoiler.address, group, topic)
        rows_of(share, 3)
        if way == "silent":
            spoiler.always(SHARE_ACKNOWLEDGE, "silence")
        else:
            # COORDINATOR_NOT_AVAILABLE for the whole request: it is to be sent again.
            answer = b"\0" + struct.pack(">ih", 0, 15) + b"\0" + struct.pack(">i", 1000) + b"\1\1\0"
            spoiler.rewrite(SHARE_ACKNOWLEDGE, lambda frame: frame[:4] + answer)
        share.close(1)
        assert topic in caplog.text
