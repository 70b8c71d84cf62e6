"""``group.protocol=consumer`` (KIP-848): on Apache Kafka, in groups of ours and in groups with librdkafka."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

import headrace as hr
from headrace.errors import BrokerError, ConfigError, IllegalGenerationError
from tests.clients.members import EACH, EVERYTHING, PARTITIONS, Confluent, Ours, all_rows, eventually, fill, shared
from tests.kafka.cluster import Cluster


@pytest.fixture(scope="module")
def kafka(apache_kafka):
    return Cluster("apache", apache_kafka.bootstrap_servers)


@pytest.fixture
def filled(kafka, topic):
    """A topic of six partitions with 50 records each."""
    fill(kafka, topic)
    return topic


def options(kafka, topic, **more):
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": f"g-{topic}",
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
    } | more


def ours(kafka, topic, subscription=None, **more):
    return Ours(kafka, topic, subscription, group_protocol="consumer", **more)


def theirs(kafka, topic):
    return Confluent(kafka, topic, group_protocol="consumer")


@pytest.mark.slow
def test_two_members_share_and_keep_what_they_have(kafka, filled):
    with contextlib.ExitStack() as stack:
        first = ours(kafka, filled)
        stack.callback(first.close)
        eventually(lambda: shared(first) and len(first.rows) == PARTITIONS * EACH, first)
        second = ours(kafka, filled)
        eventually(lambda: shared(first, second), first, second)
        assert [kind for kind, _ in first.reported] == ["assigned", "revoked"]
        assert first.reported[1][1] == second.assigned()
        second.close()
        eventually(lambda: shared(first), first)
        assert all_rows(first, second) == EVERYTHING, "each once"


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_group_with_librdkafka(kafka, filled, ours_first):
    with contextlib.ExitStack() as stack:
        members = []
        kinds = [ours, theirs] if ours_first else [theirs, ours]
        for kind in [*kinds, kinds[0]]:
            members.append(kind(kafka, filled))
            stack.callback(members[-1].close)
            eventually(lambda: shared(*members), *members)
        eventually(lambda: set(all_rows(*members)) == set(EVERYTHING), *members)


@pytest.mark.slow
def test_commits_carry_the_epoch_also_after_it_has_moved_on(kafka, filled):
    with hr.Consumer(**options(kafka, filled, enable_auto_commit=False)) as first:
        first.subscribe([filled])
        while len(first.assignment()) != PARTITIONS:
            first.poll(0.1)
        second = ours(kafka, filled)
        try:
            deadline = time.monotonic() + 90
            while len(second.assigned()) != PARTITIONS // 2:
                assert time.monotonic() < deadline
                first.poll(0.1)
                for partition in first.assignment():
                    first.commit_async({partition: 1})
            mine = first.assignment()
            first.commit(dict.fromkeys(mine, 9))
            assert set(first.committed(mine).values()) == {9}
            other = next(iter(second.assigned()))
            with pytest.raises(IllegalGenerationError):
                first.commit({other: 1})
        finally:
            second.close()


@pytest.mark.slow
def test_a_pattern_is_resolved_by_the_coordinator(kafka, topic):
    names = [f"{topic}-a", f"{topic}-b", f"other-{topic}"]
    for name in names[:1] + names[2:]:
        kafka.create_topic(name, 1)
    member = ours(kafka, topic, re.compile(f"{topic}-.*"))
    try:
        eventually(lambda: member.assigned() == {(names[0], 0)}, member)
        with hr.Producer(kafka.bootstrap_servers) as producer:
            producer.send(names[0], b"one")
        eventually(lambda: member.rows == [(0, 0)], member)
    finally:
        member.close()


@pytest.mark.slow
def test_a_topic_that_a_pattern_has_found_is_not_made_again(kafka, topic):
    kafka.create_topic(topic, 1)
    member = ours(kafka, topic, re.compile(f"{topic}.*"), metadata_max_age_ms=500)
    # It may hear that the topic is gone before the coordinator takes it back.
    member.may_fail = True
    try:
        eventually(lambda: member.assigned() == {(topic, 0)}, member)
        kafka.delete_topic(topic)
        eventually(lambda: not member.assigned() or member.error, member)
        # It asks for metadata some times more.
        time.sleep(3)
        with hr.Admin(kafka.bootstrap_servers) as admin:
            assert topic not in admin.list_topics()
    finally:
        member.close()


def test_a_pattern_that_cannot_be_understood_is_told(kafka, topic):
    member = ours(kafka, topic, re.compile("(?=a)b"))
    member.may_fail = True
    try:
        eventually(lambda: member.error is not None, member)
        assert isinstance(member.error, BrokerError)
        assert member.error.name == "INVALID_REGULAR_EXPRESSION"
    finally:
        member.close()


def test_a_pattern_that_cannot_be_sent_is_refused(kafka, topic):
    with hr.Consumer(kafka.bootstrap_servers, group_id=topic, group_protocol="consumer") as consumer:
        with pytest.raises(ConfigError, match="must stand in it"):
            consumer.subscribe(re.compile("a.*", re.IGNORECASE))
        with pytest.raises(ConfigError, match="pattern of bytes"):
            consumer.subscribe(re.compile(b"a.*"))


@pytest.mark.slow
def test_a_static_member_finds_its_partitions_again(kafka, filled):
    with contextlib.ExitStack() as stack:
        first = ours(kafka, filled, group_instance_id="one")
        second = ours(kafka, filled, group_instance_id="two")
        stack.callback(second.close)
        eventually(lambda: shared(first, second), first, second)
        # Whoever came first had all, and has given up what the other has now.
        before, reported = first.assigned(), len(second.reported)
        first.close()
        third = ours(kafka, filled, group_instance_id="one")
        stack.callback(third.close)
        eventually(lambda: third.assigned() == before, third)
        assert not [kind for kind, partitions in second.reported[reported:] if partitions & before]
        fourth = ours(kafka, filled, group_instance_id="one")
        stack.callback(fourth.close)
        fourth.may_fail = True
        eventually(lambda: fourth.error is not None, fourth)
        assert fourth.error.name == "UNRELEASED_INSTANCE_ID"


@pytest.mark.slow
def test_the_assignor_is_the_one_asked_for_and_an_unknown_one_is_told(kafka, filled):
    for assignor in ["range", "uniform"]:
        member = ours(kafka, filled, group_remote_assignor=assignor)
        try:
            eventually(lambda member=member: shared(member), member)
        finally:
            member.close()
    member = ours(kafka, filled, group_remote_assignor="nobody")
    member.may_fail = True
    try:
        eventually(lambda: member.error is not None, member)
        assert member.error.name == "UNSUPPORTED_ASSIGNOR"
    finally:
        member.close()


@pytest.mark.slow
def test_a_member_that_polls_too_seldom_loses_its_partitions_and_comes_back(kafka, filled):
    with hr.Consumer(**options(kafka, filled, max_poll_interval_ms=3000)) as consumer:
        given, lost = [], []
        consumer.subscribe([filled], on_assigned=given.extend, on_lost=lost.extend)
        # What is lost before the listener has heard of it is not reported.
        while len(given) != PARTITIONS:
            consumer.poll(0.1)
        deadline = time.monotonic() + 60
        while consumer.assignment():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        while len(consumer.assignment()) != PARTITIONS:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        assert len(lost) == PARTITIONS


def test_a_broker_without_the_protocol_says_so(embedded_broker, topic):
    with hr.Consumer(embedded_broker.bootstrap_servers, group_id=topic, group_protocol="consumer") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(hr.KafkaError, match="ConsumerGroupHeartbeat"):
            consumer.poll(20.0)
