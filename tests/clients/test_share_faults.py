"""Share consumers when things fail: no record is accepted by two, none is lost. Apache Kafka on three nodes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

import headrace as hr
from tests.clients.share_members import TIMEOUT_SECONDS, Book, JavaShareMember, ShareMember, eventually
from tests.clients.sharing import configure
from tests.kafka.nodes import ApacheNodes

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]  # three JVMs start

LIMIT = 10
"""How often a record is delivered, at most: on a busy machine locks end that would not end elsewhere."""
QUIET_SECONDS = 40
"""Longer than the longest lock: what a broker believes to be left has come by then."""
NARROW = {"share_acquire_mode": "record_limit", "max_poll_records": 50}
EVERYWHERE = [[2, 3, 1], [3, 1, 2], [1, 2, 3], [2, 1, 3], [3, 2, 1], [1, 3, 2]]


@pytest.fixture(scope="module")
def cluster():
    with ApacheNodes(3) as running:
        yield running


@pytest.fixture
def nodes(cluster):
    yield cluster
    cluster.revive()


@pytest.fixture
def admin(nodes):
    with hr.Admin(nodes.bootstrap_servers) as client:
        yield client


class Scene:
    """A topic, a group that begins at its beginning, and its members."""

    def __init__(self, nodes, admin, topic, stack, replicas, **settings):
        self.nodes, self.admin, self.topic, self.group = nodes, admin, topic, f"g-{topic}"
        self.ends = dict.fromkeys(range(len(replicas)), 0)
        self.book = Book()
        self.members = []
        self._stack = stack
        nodes.create_topic(topic, replicas, {})
        config = {f"share.{name.replace('_', '.')}": value for name, value in settings.items()}
        fixed = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(LIMIT)}
        configure(admin, self.group, fixed | config)

    def write(self, count):
        """So many records to each partition."""
        numbers = pa.array([partition for partition in self.ends for _ in range(count)], pa.int32())
        with hr.Producer(self.nodes.bootstrap_servers, linger_ms=5, batch_size=2000) as producer:
            rows = pa.table({"value": [b"x" * 20] * len(numbers), "partition": numbers})
            producer.send_arrow(self.topic, rows).result(TIMEOUT_SECONDS)
        self.ends = {partition: end + count for partition, end in self.ends.items()}

    @property
    def written(self):
        """All records."""
        return sum(self.ends.values())

    def join(self, work=None, **options):
        """One member of ours more."""
        member = ShareMember(self.book, self.nodes.bootstrap_servers, self.group, self.topic, work, **options)
        return self._added(member)

    def join_java(self):
        """One of Java's more."""
        return self._added(JavaShareMember(self.book, self.nodes.bootstrap_servers, self.group, self.topic))

    def _added(self, member):
        self.members.append(member)
        self._stack.callback(member.close)
        return member

    def wait_for(self, what):
        """Until that is so."""
        eventually(what, *self.members)

    def finish(self):
        """Waits until nothing is left to be done for the group, ends the members, and checks the book."""
        try:
            self.wait_for(self.is_settled)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.left()}") from None
        self._check_nothing_comes()
        for member in self.members:
            member.end()
        self._stack.close()
        self.book.check(self.ends)

    def _check_nothing_comes(self):
        """The group is at its end, by what it says of itself, or by what it gives out.

        An Apache Kafka whose share coordinator was killed may tell of a lag for ever, although its leader knows that
        all is done.
        """
        until = time.monotonic() + QUIET_SECONDS
        given = self._deliveries()
        while any(offset.lag for offset in self.offsets()) and time.monotonic() < until:
            if (now := self._deliveries()) != given:
                given, until = now, time.monotonic() + QUIET_SECONDS
            time.sleep(0.1)

    def _deliveries(self):
        return sum(len(counts) for counts in self.book.counts.values()), len(self.book.accepted)

    def is_settled(self):
        """Whether all has been accepted as far as the members know."""
        book = self.book
        return len(set(book.accepted) | book.unsure) == self.written

    def left(self):
        """What has not been done yet, in words."""
        book = self.book
        everything = {(partition, offset) for partition, end in self.ends.items() for offset in range(end)}
        open_ = sorted(everything - set(book.accepted) - book.unsure)
        some = [(record, book.counts.get(record)) for record in open_[:10]]
        said = [f"{len(open_)} records are open, among them (with delivery counts) {some}", f"group: {self.offsets()}"]
        return "\n".join(said + [str(member) for member in self.members])

    def offsets(self):
        """Where the group stands."""
        found = self.admin.share_group_offsets(self.group)
        return [found[self.topic, partition] for partition in self.ends]


@pytest.fixture
def scene(nodes, admin, topic):
    with contextlib.ExitStack() as stack:
        yield lambda replicas, **settings: Scene(nodes, admin, topic, stack, replicas, **settings)


VICTIM = """
import sys, headrace as hr
servers, group, topic = sys.argv[1:]
options = {"share_acquire_mode": "record_limit", "max_poll_records": 50, "share_acknowledgement_mode": "explicit"}
with hr.ShareConsumer(servers, group_id=group, **options) as share:
    share.subscribe([topic])
    accepted = 0
    while True:
        batch = share.poll(5)
        names = " ".join(f"{p}:{o}" for p, o in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist()))
        if accepted >= 300 and batch.num_rows > 1:
            share.acknowledge(batch)
            print("held", names, flush=True)
            sys.stdin.read()
        share.acknowledge(batch)
        for error in share.commit().values():
            if error is not None:
                raise error
        accepted += batch.num_rows
        print("accepted", names, flush=True)
"""


def records_of(words):
    return [tuple(map(int, word.split(":"))) for word in words]


def test_what_a_killed_consumer_held_comes_to_others_and_nothing_that_it_had_accepted(nodes, scene):
    # Only what a member that is gone was given goes to nobody else before its session is over.
    here = scene(EVERYWHERE, session_timeout_ms="3000", heartbeat_interval_ms="1000")
    here.write(200)
    address = (nodes.bootstrap_servers, here.group, here.topic)
    command = [sys.executable, "-c", VICTIM, *address]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    accepted, held = [], []
    try:
        while not held:
            word, *names = victim.stdout.readline().split() or ["ended"]
            assert word in {"accepted", "held"}, word
            (accepted if word == "accepted" else held).extend(records_of(names))
    finally:
        victim.kill()
        victim.wait()
    here.book.settle(dict.fromkeys(accepted, 1), confirmed=True)
    here.join(**NARROW)
    here.join()
    here.finish()
    assert len(accepted) >= 300
    assert here.book.unsure == set()
    assert {record: here.book.counts[record] for record in held} == {record: [2] for record in held}
    others = [counts for record, counts in here.book.counts.items() if record not in held]
    # Rows that it had not handed out by then were delivered to it all the same.
    assert {tuple(counts) for counts in others} <= {(1,), (2,)}
    assert others.count([1]) >= len(others) - 50


def move_back(nodes, topic, partitions):
    """Each partition is led by its first replica again: leaders move while all nodes run."""
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers, "log_level": 0})
    wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
    with contextlib.suppress(confluent_kafka.KafkaException):  # one that is there already is an error
        admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, wanted).result(TIMEOUT_SECONDS)
    for partition in partitions:
        nodes.wait_leader(topic, partition, EVERYWHERE[partition][0])


def test_a_broker_that_is_killed_and_leaders_that_move_back(nodes, scene):
    here = scene(EVERYWHERE, record_lock_duration_ms="3000")
    here.write(200)
    theirs = here.join_java()
    here.join(lambda: time.sleep(0.02), **NARROW)
    here.join(**NARROW)
    here.join(lambda: time.sleep(0.01))
    here.wait_for(lambda: here.book.done() >= 300)
    nodes.node(3).kill()
    here.write(100)
    here.wait_for(lambda: here.book.done() >= 1000)
    nodes.node(3).restart()
    here.write(100)
    nodes.wait_in_sync(here.topic, [[1, 2, 3]] * len(EVERYWHERE))
    writes = threading.Thread(target=lambda: [here.write(20) for _ in range(10)])
    writes.start()
    move_back(nodes, here.topic, [1, 4])
    writes.join()
    here.wait_for(lambda: theirs.accepted)
    here.finish()
    here.book.check_counts(LIMIT, once=False)
    assert len(here.book.unsure) < here.written / 4, "the rest shows little"


def test_a_broker_that_restarts_and_leads_again(nodes, scene):
    """Nobody else has its partitions: what it had given is known to nobody any more."""
    here = scene([[2], [2], [1]], record_lock_duration_ms="2000")
    here.write(300)
    holds, goes_on = threading.Event(), threading.Event()

    def hold():
        holds.set()
        goes_on.wait(TIMEOUT_SECONDS)

    here.join(hold, **NARROW)
    here.wait_for(holds.is_set)
    here.join()
    here.wait_for(lambda: here.book.done() >= 200)
    nodes.node(2).kill()
    nodes.node(2).restart()
    goes_on.set()
    here.write(200)
    here.finish()
    here.book.check_counts(LIMIT, once=False)


def test_locks_that_end_while_the_group_works(scene):
    here = scene(EVERYWHERE, record_lock_duration_ms="1000")
    here.write(150)
    # Not for ever: no record is late so often that it is given up.
    naps = [1.5] * 3

    def dawdle():
        if naps:
            time.sleep(naps.pop())

    slow = here.join(dawdle, **NARROW)
    here.wait_for(lambda: slow.refused)
    here.join(**NARROW)
    here.join()
    here.write(100)
    here.finish()
    here.book.check_counts(LIMIT)
    assert any(len(counts) > 1 for counts in here.book.counts.values())
