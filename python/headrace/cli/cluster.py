"""``headrace cluster``: which brokers there are, who leads, which copies are behind, and where they are to be."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from headrace.admin import Admin
from headrace.cli import _reassign
from headrace.cli._common import client_options, objects, printable, seconds, table, watch, watch_option
from headrace.errors import ClusterAuthorizationFailedError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._types import TopicPartition
    from headrace.admin import ClusterDescription, PartitionDescription, Reassignment

SHOWN_MAX = 20
"""Partitions that are shown one by one."""
LOOK_SECONDS = 0.5
"""How often ``--wait`` looks."""

_BROKERS = ("BROKER", "ADDRESS", "RACK", "LEADS", "FIRST", "COPIES", "IN SYNC")

_EXAMPLES = """\
examples:
  headrace cluster status              brokers, and partitions whose copies are behind
  headrace cluster status --watch      the same every two seconds, until Ctrl-C
  headrace cluster status --wait 60    wait until all copies are in sync: between two steps of a rolling restart
  headrace cluster drain 3             move all copies of broker 3 to others; the verbs' own --help has more

It asks as a client does, so it shows any Apache Kafka cluster too. The exit status is 1 where a copy is not in sync
or a partition has no leader.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    status = verbs.add_parser(
        "status",
        help="show brokers, and partitions whose copies are behind",
        description="Shows brokers, and partitions whose copies are behind.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    how = status.add_mutually_exclusive_group()
    watch_option(how)
    how.add_argument(
        "--wait", type=seconds, metavar="SECONDS", help="wait until each copy is in sync, for so long at most"
    )
    status.add_argument(
        "--json", action="store_true", help="print an object: brokers, partitions that are behind, moves"
    )
    status.set_defaults(run=show_status)
    client_options(status)
    _reassign.add_verbs(verbs)


class Copy(NamedTuple):
    """A partition, and where its copies are."""

    topic: str
    partition: PartitionDescription

    @property
    def missing(self) -> list[int]:
        """Brokers whose copy is not in sync."""
        return [node for node in self.partition.replicas if node not in self.partition.isr]


class State(NamedTuple):
    """What a cluster says of itself at a moment."""

    cluster: ClusterDescription
    topics: int
    partitions: list[Copy]
    moving: dict[TopicPartition, Reassignment]

    @classmethod
    def read(cls, admin: Admin) -> State:
        """Asks for it."""
        names = admin.list_topics(include_internal=True)
        topics = admin.describe_topics(names) if names else {}
        partitions = [Copy(name, one) for name, topic in sorted(topics.items()) for one in topic.partitions]
        try:
            moving = admin.list_partition_reassignments()
        except (UnsupportedVersionError, ClusterAuthorizationFailedError):
            moving = {}
        return cls(admin.describe_cluster(), len(topics), partitions, moving)

    @property
    def troubles(self) -> list[Copy]:
        """Partitions without a leader, then those whose copies are behind."""
        behind = [one for one in self.partitions if one.missing or one.partition.leader < 0]
        return sorted(behind, key=lambda one: one.partition.leader >= 0)

    @property
    def behind(self) -> int:
        """Copies that are not in sync."""
        return sum(len(one.missing) for one in self.partitions)

    def lines(self) -> Iterator[str]:
        """As it is shown."""
        cluster, troubles = self.cluster, self.troubles
        copies = sum(len(one.partition.replicas) for one in self.partitions)
        yield f"cluster {printable(cluster.cluster_id)}: {len(cluster.nodes)} brokers, {self.topics} topics, "
        yield f"{len(self.partitions)} partitions, {copies} copies\n"
        leaderless = sum(one.partition.leader < 0 for one in troubles)
        if not troubles:
            yield "all copies are in sync\n"
        else:
            yield f"{self.behind} copies are not in sync; {leaderless} partitions have no leader\n"
        if self.moving:
            yield f"{len(self.moving)} partitions are getting other replicas\n"
        yield "\n" + table(_BROKERS, self.rows())
        if troubles:
            rows = [
                (one.topic, one.partition.partition, _leader(one), _nodes(one.partition.isr), _nodes(one.missing))
                for one in troubles[:SHOWN_MAX]
            ]
            yield "\n" + table(("TOPIC", "PARTITION", "LEADER", "IN SYNC", "BEHIND"), rows)
        if len(troubles) > SHOWN_MAX:
            yield f"and {len(troubles) - SHOWN_MAX} more\n"
        if self.moving:
            moves = [(*one, _nodes(to.adding), _nodes(to.removing)) for one, to in self.moving.items()][:SHOWN_MAX]
            yield "\n" + table(("TOPIC", "PARTITION", "TO COME", "TO GO"), moves)
        if len(self.moving) > SHOWN_MAX:
            yield f"and {len(self.moving) - SHOWN_MAX} more\n"

    def as_json(self) -> str:
        """As a program reads it: all partitions that are behind, and all moves."""
        behind = [
            {"topic": one.topic, **dataclasses.asdict(one.partition), "missing": one.missing} for one in self.troubles
        ]
        found = {
            "cluster_id": self.cluster.cluster_id,
            "topics": self.topics,
            "partitions": len(self.partitions),
            "brokers": objects(_BROKERS, list(self.rows())),
            "behind": behind,
            "moving": [{**tp._asdict(), **dataclasses.asdict(to)} for tp, to in self.moving.items()],
        }
        return json.dumps(found) + "\n"

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Brokers, and of how many partitions each is the leader, the first replica, has a copy, has one in sync."""
        here = {node.node_id: node for node in self.cluster.nodes}
        named = {node for one in self.partitions for node in one.partition.replicas}
        for number in sorted(here.keys() | named):
            node = here.get(number)
            address = "not there" if node is None else f"{node.host}:{node.port}"
            with_copy = [one.partition for one in self.partitions if number in one.partition.replicas]
            yield (
                *(number, address, (node.rack if node else None) or "-"),
                sum(one.leader == number for one in with_copy),
                sum(one.replicas[0] == number for one in with_copy),
                *(len(with_copy), sum(number in one.isr for one in with_copy)),
            )


def _leader(copy: Copy) -> object:
    return copy.partition.leader if copy.partition.leader >= 0 else "none"


def _nodes(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def show_status(options: argparse.Namespace) -> int:
    """Shows the cluster, once or again and again; 1 if something is wrong with it."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        if options.watch is not None:
            watch(options.watch, lambda: "".join(State.read(admin).lines()))
        state = State.read(admin) if options.wait is None else _wait(admin, options.wait)
    sys.stdout.write(state.as_json() if options.json else "".join(state.lines()))
    return 1 if state.troubles else 0


def _wait(admin: Admin, seconds: float) -> State:
    """Waits until all copies are in sync, and says what it waits for whenever that has changed."""
    until, said = time.monotonic() + seconds, ""
    while True:
        state = State.read(admin)
        left = until - time.monotonic()
        if not state.troubles or left <= 0:
            return state
        waits = f"waiting: {state.behind} copies of {len(state.troubles)} partitions are not in sync\n"
        if waits != said:
            sys.stderr.write(waits)
            said = waits
        time.sleep(min(LOOK_SECONDS, left))
