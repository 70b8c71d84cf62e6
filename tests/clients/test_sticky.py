"""The sticky assignors, in groups of ours and in groups with other clients."""

from __future__ import annotations

import contextlib
import threading
import time

import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

import headrace as hr
from headrace.errors import FencedInstanceIdError

PARTITIONS = 6
EACH = 50


@pytest.fixture
def filled(cluster, topic):
    """A topic of six partitions with 50 records each."""
    cluster.create_topic(topic, PARTITIONS)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for i in range(PARTITIONS * EACH):
            producer.send(topic, str(i // PARTITIONS).encode(), partition=i % PARTITIONS)
    return topic


class Member:
    """One of ours, polled by a thread of its own. Writes down what it reads and what it is told."""

    def __init__(self, cluster, topic, strategy, **options):
        self.rows = []
        self.told = []
        self.error = None
        self.consumer = hr.Consumer(
            cluster.bootstrap_servers,
            group_id=f"g-{topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=strategy,
            **options,
        )
        self.consumer.subscribe(
            [topic],
            on_assigned=lambda partitions: self.told.append(("assigned", {p.partition for p in partitions})),
            on_revoked=lambda partitions: self.told.append(("revoked", {p.partition for p in partitions})),
        )
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ends:
            try:
                batch = self.consumer.poll(0.1, max_records=7)
            except hr.KafkaError as error:
                self.error = error
                return
            self.rows += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)

    def assigned(self):
        return {p.partition for p in self.consumer.assignment()}

    def close(self):
        self._ends = True
        self._thread.join()
        self.consumer.close()


class Confluent:
    """A member of librdkafka's."""

    def __init__(self, cluster, topic, strategy):
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": strategy,
        }
        self.rows = []
        self.consumer = confluent_kafka.Consumer(settings)
        self.consumer.subscribe([topic])
        self._ends = False
        self._assigned = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ends:
            message = self.consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                self.rows.append((message.partition(), message.offset()))
            self._assigned = {p.partition for p in self.consumer.assignment()}

    def assigned(self):
        return self._assigned

    def close(self):
        self._ends = True
        self._thread.join()
        self.consumer.close()


class KafkaPython:
    """A member of kafka-python's."""

    def __init__(self, cluster, topic):
        self.rows = []
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=f"g-{topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[StickyPartitionAssignor],
        )
        self._ends = False
        self._assigned = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ends:
            for records in self.consumer.poll(timeout_ms=100).values():
                self.rows += [(record.partition, record.offset) for record in records]
            self._assigned = {p.partition for p in self.consumer.assignment()}

    def assigned(self):
        return self._assigned

    def close(self):
        self._ends = True
        self._thread.join()
        self.consumer.close()


def eventually(what, *members):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, [(member.assigned(), len(member.rows)) for member in members]
        time.sleep(0.05)


def shared(*members):
    """Whether each partition has one owner, and all have as many, or one more."""
    shares = [member.assigned() for member in members]
    sizes = [len(share) for share in shares]
    return sum(sizes) == PARTITIONS == len(set().union(*shares)) and max(sizes) - min(sizes) <= 1


def all_rows(*members):
    return sorted(row for member in members for row in member.rows)


EVERYTHING = [(p, at) for p in range(PARTITIONS) for at in range(EACH)]


def test_cooperative_members_keep_what_they_have(cluster, filled):
    with contextlib.ExitStack() as stack:
        first = Member(cluster, filled, "cooperative-sticky")
        stack.callback(first.close)
        eventually(lambda: shared(first) and len(first.rows) == PARTITIONS * EACH, first)
        second = Member(cluster, filled, "cooperative-sticky")
        stack.callback(second.close)
        eventually(lambda: shared(first, second), first, second)
        assert [kind for kind, _ in first.told] == ["assigned", "revoked"]
        gone = first.told[1][1]
        assert len(gone) == PARTITIONS // 2
        assert second.assigned() == gone
        assert first.assigned() == set(range(PARTITIONS)) - gone
        before = [first.assigned(), second.assigned()]
        third = Member(cluster, filled, "cooperative-sticky")
        stack.callback(third.close)
        eventually(lambda: shared(first, second, third), first, second, third)
        for member, had in zip((first, second), before, strict=True):
            assert member.assigned() < had, "it keeps two of three"
        time.sleep(0.5)
        assert all_rows(first, second, third) == EVERYTHING, "each once"


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_cooperative_group_with_librdkafka(cluster, filled, ours_first):
    def ours():
        return Member(cluster, filled, "cooperative-sticky")

    def theirs():
        return Confluent(cluster, filled, "cooperative-sticky")

    with contextlib.ExitStack() as stack:
        members = []
        for make in [ours, theirs, ours] if ours_first else [theirs, ours, theirs]:
            members.append(make())
            stack.callback(members[-1].close)
            eventually(lambda: shared(*members), *members)
        eventually(lambda: set(all_rows(*members)) == set(EVERYTHING), *members)
        for member in members:
            if isinstance(member, Member):
                taken = [partitions for kind, partitions in member.told if kind == "revoked"]
                assert all(len(partitions) < PARTITIONS for partitions in taken), member.told


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_sticky_group_with_kafka_python(cluster, filled, ours_first):
    def ours():
        return Member(cluster, filled, "sticky")

    def theirs():
        return KafkaPython(cluster, filled)

    with contextlib.ExitStack() as stack:
        members = []
        for make in [ours, theirs] if ours_first else [theirs, ours]:
            members.append(make())
            stack.callback(members[-1].close)
            eventually(lambda: shared(*members), *members)
        before = [member.assigned() for member in members]
        members.append(ours())
        stack.callback(members[-1].close)
        eventually(lambda: shared(*members), *members)
        if ours_first:
            # A leader of theirs does not read what ours say to have had: it takes a version before it for granted.
            assert members[0].assigned() < before[0]
        eventually(lambda: set(all_rows(*members)) == set(EVERYTHING), *members)


def test_a_group_moves_to_cooperative_one_member_at_a_time(cluster, filled):
    with contextlib.ExitStack() as stack:
        members = [Member(cluster, filled, "range") for _ in range(2)]
        for strategy in ["cooperative-sticky,range", "cooperative-sticky"]:
            for place in range(2):
                eventually(lambda: shared(*members), *members)
                members[place].close()
                members[place] = Member(cluster, filled, strategy)
        for member in members:
            stack.callback(member.close)
        eventually(lambda: shared(*members), *members)
        before = [member.assigned() for member in members]
        third = Member(cluster, filled, "cooperative-sticky")
        stack.callback(third.close)
        eventually(lambda: shared(*members, third), *members, third)
        assert all(member.assigned() < had for member, had in zip(members, before, strict=True))


def test_a_second_consumer_of_the_same_instance_fences_the_first(cluster, filled):
    with contextlib.ExitStack() as stack:
        first = Member(cluster, filled, "cooperative-sticky", group_instance_id="one")
        stack.callback(first.close)
        eventually(lambda: shared(first), first)
        second = Member(cluster, filled, "cooperative-sticky", group_instance_id="one")
        stack.callback(second.close)
        eventually(lambda: first.error is not None and shared(second), first, second)
        assert isinstance(first.error, FencedInstanceIdError)
        assert first.assigned() == set()
