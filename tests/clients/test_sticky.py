"""The sticky assignors, in groups of ours and in groups with other clients."""

from __future__ import annotations

import contextlib
import time

import pytest

from headrace.errors import FencedInstanceIdError
from tests.clients.members import (
    EACH,
    EVERYTHING,
    PARTITIONS,
    Confluent,
    KafkaPython,
    Ours,
    all_rows,
    eventually,
    fill,
    shared,
)

QUICK = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 300}


@pytest.fixture
def filled(cluster, topic):
    fill(cluster, topic)
    return topic


def member(cluster, topic, strategy, **options):
    """One of ours."""
    return Ours(cluster, topic, partition_assignment_strategy=strategy, **QUICK, **options)


def test_cooperative_members_keep_what_they_have(cluster, filled):
    with contextlib.ExitStack() as stack:
        first = member(cluster, filled, "cooperative-sticky")
        stack.callback(first.close)
        eventually(lambda: shared(first) and len(first.rows) == PARTITIONS * EACH, first)
        second = member(cluster, filled, "cooperative-sticky")
        stack.callback(second.close)
        eventually(lambda: shared(first, second), first, second)
        assert [kind for kind, _ in first.reported] == ["assigned", "revoked"]
        gone = first.reported[1][1]
        assert len(gone) == PARTITIONS // 2
        assert second.assigned() == gone
        assert first.assigned() == first.reported[0][1] - gone
        before = [first.assigned(), second.assigned()]
        third = member(cluster, filled, "cooperative-sticky")
        stack.callback(third.close)
        eventually(lambda: shared(first, second, third), first, second, third)
        for one, had in zip((first, second), before, strict=True):
            assert one.assigned() < had, "it keeps two of three"
        time.sleep(0.5)
        assert all_rows(first, second, third) == EVERYTHING, "each once"


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_cooperative_group_with_librdkafka(cluster, filled, ours_first):
    def ours():
        return member(cluster, filled, "cooperative-sticky")

    def theirs():
        return Confluent(cluster, filled, partition_assignment_strategy="cooperative-sticky", **QUICK)

    with contextlib.ExitStack() as stack:
        members = []
        for make in [ours, theirs, ours] if ours_first else [theirs, ours, theirs]:
            members.append(make())
            stack.callback(members[-1].close)
            eventually(lambda: shared(*members), *members)
        eventually(lambda: set(all_rows(*members)) == set(EVERYTHING), *members)
        for one in members:
            if isinstance(one, Ours):
                taken = [partitions for kind, partitions in one.reported if kind == "revoked"]
                assert all(len(partitions) < PARTITIONS for partitions in taken), one.reported


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_sticky_group_with_kafka_python(cluster, filled, ours_first):
    def ours():
        return member(cluster, filled, "sticky")

    def theirs():
        return KafkaPython(cluster, filled, **QUICK)

    with contextlib.ExitStack() as stack:
        members = []
        for make in [ours, theirs, ours] if ours_first else [theirs, ours, ours]:
            before = members[0].assigned() if members else None
            members.append(make())
            stack.callback(members[-1].close)
            eventually(lambda: shared(*members), *members)
        if ours_first:
            # A leader of theirs does not read what ours say to have had: it takes a version before it for granted.
            assert members[0].assigned() < before
        eventually(lambda: set(all_rows(*members)) == set(EVERYTHING), *members)


def test_a_group_moves_to_cooperative_one_member_at_a_time(cluster, filled):
    with contextlib.ExitStack() as stack:
        members = [member(cluster, filled, "range") for _ in range(2)]
        for strategy in ["cooperative-sticky,range", "cooperative-sticky"]:
            for place in range(2):
                eventually(lambda: shared(*members), *members)
                members[place].close()
                members[place] = member(cluster, filled, strategy)
        for one in members:
            stack.callback(one.close)
        eventually(lambda: shared(*members), *members)
        before = [one.assigned() for one in members]
        third = member(cluster, filled, "cooperative-sticky")
        stack.callback(third.close)
        eventually(lambda: shared(*members, third), *members, third)
        assert all(one.assigned() < had for one, had in zip(members, before, strict=True))


def test_a_second_consumer_of_the_same_instance_fences_the_first(cluster, filled):
    with contextlib.ExitStack() as stack:
        first = member(cluster, filled, "cooperative-sticky", group_instance_id="one")
        stack.callback(first.close)
        eventually(lambda: shared(first), first)
        first.may_fail = True
        second = member(cluster, filled, "cooperative-sticky", group_instance_id="one")
        stack.callback(second.close)
        eventually(lambda: first.error is not None and shared(second), first, second)
        assert isinstance(first.error, FencedInstanceIdError)
        assert first.assigned() == set()
