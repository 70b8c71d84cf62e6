"""Groups of ours with Kafka's own Java consumer, in each protocol and with each strategy that both know."""

from __future__ import annotations

import collections
import contextlib

import pytest

import headrace as hr
from tests.clients.members import PARTITIONS, Java, Ours, all_rows, eventually, fill, shared

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]  # JVMs that compile their program

QUICK = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 300}
RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
WAYS: dict[str, tuple[dict[str, object], str | None]] = {
    "range": ({**QUICK, "partition_assignment_strategy": "range"}, RANGE),
    "cooperative": ({**QUICK, "partition_assignment_strategy": "cooperative-sticky"}, COOPERATIVE),
    "consumer": ({"group_protocol": "consumer"}, None),
}
EACH, MORE = 50, 40


def makers(cluster, topic, way):
    """What makes a member of ours, and one of theirs."""
    options, assignor = WAYS[way]
    theirs = options if assignor is None else options | {"partition_assignment_strategy": assignor}
    return lambda: Ours(cluster, topic, **options), lambda: Java(cluster, topic, **theirs)


def ways(*chosen):
    """A strategy or protocol, a broker, and whether the first member is ours; our broker does not divide by itself."""
    cases = [pytest.param(*one.split(), id=one.replace(" ", "-")) for one in chosen]
    return pytest.mark.parametrize(("way", "cluster", "first"), cases, indirect=["cluster"])


def write(cluster, topic):
    """Forty more records for each partition."""
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for i in range(PARTITIONS * MORE):
            producer.send(topic, b"more", partition=i % PARTITIONS)


def first_reader(members, row):
    return min((member for member in members if row in member.polled_at), key=lambda member: member.polled_at[row])


@ways(
    "range embedded ours",
    "range apache theirs",
    "cooperative embedded theirs",
    "cooperative apache ours",
    "cooperative apache theirs",
    "consumer apache ours",
    "consumer apache theirs",
)
def test_all_partitions_and_each_record_once_while_members_come_and_go(way, cluster, first, topic):
    fill(cluster, topic)
    ours, theirs = makers(cluster, topic, way)
    with contextlib.ExitStack() as stack:
        members = []
        for make in [ours, theirs, ours] if first == "ours" else [theirs, ours, theirs]:
            members.append(make())
            stack.callback(members[-1].close)
            # Records come while the group divides anew.
            write(cluster, topic)
            eventually(lambda: shared(*members), *members)
        members[0].close()
        write(cluster, topic)
        eventually(lambda: shared(*members[1:]), *members[1:])
        everything = [(p, at) for p in range(PARTITIONS) for at in range(EACH + 4 * MORE)]
        eventually(lambda: len(set(all_rows(*members))) == len(everything), *members)
        # One that had them twice would have had the second ones before the last ones.
        rows = all_rows(*members)
        twice = {row for row, times in collections.Counter(rows).items() if times > 1}
        if way == "cooperative":
            # What a Java member polls while the group divides anew, it does not commit before it gives a partition up.
            twice = {row for row in twice if not isinstance(first_reader(members, row), Java)}
        assert not twice


@ways(
    "range embedded ours",
    "range embedded theirs",
    "range apache ours",
    "range apache theirs",
    "consumer apache ours",
    "consumer apache theirs",
)
def test_what_one_has_committed_the_other_goes_on_from(way, cluster, first, topic):
    fill(cluster, topic)
    one, other = makers(cluster, topic, way)[:: 1 if first == "ours" else -1]
    before = one()
    try:
        eventually(lambda: len(before.rows) == PARTITIONS * EACH, before)
    finally:
        before.close()
    partitions = [(topic, number) for number in range(PARTITIONS)]
    with hr.Consumer(cluster.bootstrap_servers, group_id=f"g-{topic}") as asking:
        assert asking.committed(partitions) == dict.fromkeys(partitions, EACH)
    write(cluster, topic)
    after = other()
    try:
        eventually(lambda: len(after.rows) >= PARTITIONS * MORE, after)
        assert all_rows(after) == [(p, EACH + at) for p in range(PARTITIONS) for at in range(MORE)]
    finally:
        after.close()
