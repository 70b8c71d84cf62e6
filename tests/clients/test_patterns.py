"""Subscriptions by pattern in the classic protocol, where members look for topics, on our broker and Apache Kafka."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

import headrace as hr
from headrace.errors import ConfigError
from tests.clients.helpers import bounded
from tests.clients.members import Ours, eventually
from tests.kafka.cluster import Cluster


def write(cluster, topic, values):
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value)


def member(cluster, topic, pattern, **options):
    quick = {"metadata_max_age_ms": 500, "heartbeat_interval_ms": 300}
    return Ours(cluster, topic, re.compile(pattern), **quick, **options)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_topics_join_and_leave_as_they_are_made_and_deleted(cluster, topic, strategy):
    mine, more, other = f"{topic}-a", f"{topic}-b", f"other-{topic}-a"
    for name in (mine, other):
        cluster.create_topic(name)
    with contextlib.ExitStack() as stack:
        one = member(cluster, topic, f"{topic}-.*", partition_assignment_strategy=strategy)
        stack.callback(one.close)
        eventually(lambda: one.assigned() == {(mine, 0)}, one)
        write(cluster, mine, [b"1"])
        eventually(lambda: len(one.rows) == 1, one)
        cluster.create_topic(more)
        eventually(lambda: one.assigned() == {(mine, 0), (more, 0)}, one)
        write(cluster, more, [b"2"])
        eventually(lambda: len(one.rows) == 2, one)
        cluster.delete_topic(more)
        eventually(lambda: one.assigned() == {(mine, 0)}, one)
        write(cluster, mine, [b"3"])
        eventually(lambda: len(one.rows) == 3, one)


def test_two_members_divide_what_matches(cluster, topic):
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names[:2]:
        cluster.create_topic(name)
    with contextlib.ExitStack() as stack:
        pair = []
        for _ in range(2):
            pair.append(member(cluster, topic, f"{topic}-.", partition_assignment_strategy="roundrobin"))
            stack.callback(pair[-1].close)

        def shared(topics):
            shares = [one.assigned() for one in pair]
            return not shares[0] & shares[1] and shares[0] | shares[1] == {(name, 0) for name in topics}

        eventually(lambda: shared(names[:2]), *pair)
        for name in names[2:]:
            cluster.create_topic(name)
        eventually(lambda: shared(names), *pair)
        assert [len(one.assigned()) for one in pair] == [2, 2]


@pytest.mark.slow
def test_internal_topics_match_where_they_are_not_excluded(apache_kafka, topic):
    cluster = Cluster("apache", apache_kafka.bootstrap_servers)
    cluster.create_topic(topic)
    pattern = f"{topic}|__consumer_offsets"
    for exclude in (True, False):
        one = member(cluster, topic, pattern, exclude_internal_topics=exclude)
        try:
            eventually(lambda one=one: one.assigned(), one)
            assert {name for name, _ in one.assigned()} == ({topic} if exclude else {topic, "__consumer_offsets"})
        finally:
            one.close()


def test_a_pattern_that_cannot_be_used_is_told_at_once(cluster, topic):
    with hr.Consumer(cluster.bootstrap_servers, group_id=topic) as consumer:
        for pattern in ("(?=a)b", r"(a)\1"):
            with pytest.raises(ConfigError, match="cannot be used"):
                consumer.subscribe(re.compile(pattern))
        with pytest.raises(ConfigError, match="must stand in it"):
            consumer.subscribe(re.compile("a.*", re.IGNORECASE))


def test_coroutines_and_streams_take_patterns(cluster, topic):
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        cluster.create_topic(name)
        write(cluster, name, [name.encode()])
    servers, pattern = cluster.bootstrap_servers, re.compile(f"(?i){topic.upper()}-.*")

    async def work():
        async with hr.aio.Consumer(servers, group_id=f"c-{topic}", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe(pattern)
            found = []
            while len(found) < 2:
                found += (await consumer.poll(1.0))["value"].to_pylist()
        async with hr.aio.Stream(servers, pattern, group_id=f"s-{topic}", auto_offset_reset="earliest") as stream:
            values = []
            async for batch in stream:
                values += batch["value"].to_pylist()
                if len(values) == 2:
                    break
        assert sorted(found) == sorted(values) == [name.encode() for name in names]

    bounded(work())


@pytest.mark.slow
@pytest.mark.parametrize("leads", ["name", "pattern"])
def test_a_topic_that_a_pattern_has_found_is_not_made_again(cluster, topic, leads):
    found, named = f"{topic}-a", f"n-{topic}"
    for name in (found, named):
        cluster.create_topic(name)
    quick = {"metadata_max_age_ms": 500, "heartbeat_interval_ms": 300}
    join = {
        "name": lambda: Ours(cluster, topic, [named], **quick),
        "pattern": lambda: Ours(cluster, topic, re.compile(f"{topic}-.*"), **quick),
    }
    with contextlib.ExitStack() as stack:
        members = {}
        # Whoever comes first leads, and asks for the topics of both.
        for kind in sorted(join, key=lambda kind: kind != leads):
            members[kind] = join[kind]()
            stack.callback(members[kind].close)
            eventually(lambda kind=kind: members[kind].assigned(), *members.values())
        eventually(lambda: members["pattern"].assigned() == {(found, 0)}, *members.values())
        cluster.delete_topic(found)
        eventually(lambda: not members["pattern"].assigned(), *members.values())
        # Each of them asks for metadata some times more.
        time.sleep(3)
        with hr.Admin(cluster.bootstrap_servers) as admin:
            assert {found, named} & set(admin.list_topics()) == {named}
