"""``headrace cluster reassign``, ``drain``, ``balance`` and ``elect``: which brokers have the copies, and who leads."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from headrace._types import TopicPartition
from headrace.admin import Admin
from headrace.cli import _placement
from headrace.cli._common import INT32_MAX, client_options, printable, table, whole
from headrace.errors import BrokerError, NoReassignmentInProgressError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.cli._placement import Replicas

AT_ONCE = 20
"""Partitions that are copied at once."""
LOOK_SECONDS = 0.5
"""How often it is looked which are done."""
SHOWN_MAX = 20
"""Moves that are shown one by one."""

_EXAMPLES = """\
examples:
  headrace cluster reassign orders --replicas 1,2,3     the copies of all partitions of a topic
  headrace cluster reassign orders -p 4 --replicas 2,3  of one of them; broker 2 is to lead
  headrace cluster reassign orders --cancel             stop, and keep the copies that there were
  headrace cluster drain 3 --dry-run                    show how broker 3 would be emptied
  headrace cluster drain 3                              empty it, so that it can be taken away
  headrace cluster balance                              give a new broker its share
  headrace cluster elect                                have first replicas lead that are in sync

Copies that a partition has stay until the new ones have all records, and it is read and written all the while. If the
command is stopped, what it has begun goes on: `headrace cluster status` shows it.
"""


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verbs and their options."""

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sentence = text[0].upper() + text[1:] + "."
        shape = argparse.RawDescriptionHelpFormatter
        made = verbs.add_parser(name, help=text, description=sentence, epilog=_EXAMPLES, formatter_class=shape)
        client_options(made)
        return made

    reassign = verb("reassign", "give the partitions of a topic other replicas")
    reassign.add_argument("topic")
    reassign.add_argument(
        "-p",
        "--partition",
        type=whole(0, INT32_MAX),
        action="append",
        metavar="NUMBER",
        help="only this one; can be repeated",
    )
    what = reassign.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--replicas", type=_nodes, metavar="NODES", help="brokers that are to have copies, the one to lead first: 1,2,3"
    )
    what.add_argument("--cancel", action="store_true", help="stop what is under way, and keep the replicas there were")
    reassign.set_defaults(run=run_reassign)
    drain = verb("drain", "move all copies of a broker to others")
    drain.add_argument("node", type=whole(0, INT32_MAX), help="the broker's node id")
    drain.set_defaults(run=run_drain)
    balance = verb("balance", "move copies until each broker has as many")
    balance.set_defaults(run=run_balance)
    for one in (reassign, drain, balance):
        one.add_argument("--dry-run", action="store_true", help="show what would be moved, and move nothing")
        one.add_argument(
            "--json",
            action="store_true",
            help="print an object in the end: moves, refused, and stuck (what cannot move); of --cancel: cancelled",
        )
        one.add_argument(
            "--at-once",
            type=whole(1),
            default=AT_ONCE,
            metavar="NUMBER",
            help="partitions that are copied at once (default: %(default)s)",
        )
    elect = verb("elect", "have the first replica of each partition lead")
    elect.add_argument("topic", nargs="*", help="only these topics")
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="where a partition has no leader, have any replica lead that is there: records that only others have are "
        "lost",
    )
    elect.set_defaults(run=run_elect)


def _nodes(text: str) -> Replicas:
    nodes = [whole(0, INT32_MAX)(part) for part in text.split(",")]
    if len(set(nodes)) != len(nodes):
        message = f"{text} names a broker twice"
        raise argparse.ArgumentTypeError(message)
    return nodes


def run_reassign(options: argparse.Namespace) -> int:
    """Gives a topic's partitions other replicas, or gives up what is under way."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        placed = _placed(admin, [options.topic])
        chosen = options.partition if options.partition is not None else [one.partition for one in placed]
        missing = [number for number in chosen if TopicPartition(options.topic, number) not in placed]
        if missing:
            message = f"topic {options.topic} has no partition {missing[0]}"
            raise UsageError(message)
        partitions = [TopicPartition(options.topic, number) for number in chosen]
        if options.cancel:
            return _cancel(admin, partitions, options)
        return _move(admin, dict.fromkeys(partitions, options.replicas), placed, options)


def run_drain(options: argparse.Namespace) -> int:
    """Moves all copies of a broker to others; 1 if some have nowhere to go."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        placed = _placed(admin)
        changes, stuck = _placement.drained(placed, options.node, _racks(admin))
        for one in stuck[:SHOWN_MAX]:
            why = f"all brokers have copies of it, so that of broker {options.node} stays"
            sys.stderr.write(f"{_name(one)}: {why}\n")
        if len(stuck) > SHOWN_MAX:
            sys.stderr.write(f"and {len(stuck) - SHOWN_MAX} more\n")
        moved = _move(admin, changes, placed, options, stuck)
    return 1 if stuck else moved


def run_balance(options: argparse.Namespace) -> int:
    """Moves copies until each broker has as many."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        placed = _placed(admin)
        return _move(admin, _placement.balanced(placed, _racks(admin)), placed, options)


def run_elect(options: argparse.Namespace) -> int:
    """Has first replicas lead."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        partitions = None
        if options.topic:
            partitions = list(_placed(admin, options.topic))
        admin.elect_leaders(partitions, unclean=options.unclean)
    sys.stdout.write("partitions are led as asked for\n")
    return 0


def _placed(admin: Admin, topics: Iterable[str] | None = None) -> dict[TopicPartition, Replicas]:
    """The replicas that partitions have, or are being given."""
    names = list(admin.list_topics(include_internal=True) if topics is None else topics)
    described = admin.describe_topics(names) if names else {}
    all_of = ((name, one) for name, topic in described.items() for one in topic.partitions)
    found = {TopicPartition(name, one.partition): one.replicas for name, one in all_of}
    for partition, under_way in admin.list_partition_reassignments().items():
        if partition in found:
            found[partition] = [node for node in under_way.replicas if node not in under_way.removing]
    return found


def _racks(admin: Admin) -> dict[int, str | None]:
    return {node.node_id: node.rack or None for node in admin.describe_cluster().nodes}


def _name(partition: TopicPartition) -> str:
    return f"{printable(partition.topic)}-{partition.partition}"


def _cancel(admin: Admin, partitions: list[TopicPartition], options: argparse.Namespace) -> int:
    under_way, stopped = admin.list_partition_reassignments(), list[TopicPartition]()
    for partition in (one for one in partitions if one in under_way):
        try:
            if not options.dry_run:
                admin.alter_partition_reassignments({partition: None})
        except NoReassignmentInProgressError:
            continue
        stopped.append(partition)
    if options.json:
        sys.stdout.write(json.dumps({"cancelled": [one._asdict() for one in stopped]}) + "\n")
    else:
        sys.stdout.write(f"{len(stopped)} partitions keep the replicas that they had\n")
    return 0


def _move(
    admin: Admin,
    changes: Mapping[TopicPartition, Replicas],
    placed: Mapping[TopicPartition, Replicas],
    options: argparse.Namespace,
    stuck: Iterable[TopicPartition] = (),
) -> int:
    """Gives partitions other replicas, so many at once, and waits until they have them. `stuck` is only reported."""
    changes = {partition: to for partition, to in changes.items() if placed[partition] != to}
    if not options.json:
        _show(changes, placed)
    refused = {} if options.dry_run else _carry_out(admin, changes, options.at_once)
    if options.json:
        moves = [{**one._asdict(), "from": placed[one], "to": to} for one, to in sorted(changes.items())]
        found = {
            "moves": moves,
            "refused": [{**one._asdict(), "error": why} for one, why in refused.items()],
            "stuck": [one._asdict() for one in stuck],
        }
        sys.stdout.write(json.dumps(found) + "\n")
    return 1 if refused else 0


def _show(changes: Mapping[TopicPartition, Replicas], placed: Mapping[TopicPartition, Replicas]) -> None:
    if not changes:
        sys.stdout.write("all copies are where they are to be\n")
        return
    rows = [(*one, _text(placed[one]), _text(to)) for one, to in sorted(changes.items())[:SHOWN_MAX]]
    sys.stdout.write(table(("TOPIC", "PARTITION", "FROM", "TO"), rows))
    if len(changes) > SHOWN_MAX:
        sys.stdout.write(f"and {len(changes) - SHOWN_MAX} more\n")
    sys.stdout.flush()


def _carry_out(admin: Admin, changes: Mapping[TopicPartition, Replicas], at_once: int) -> dict[TopicPartition, str]:
    """Asks for the changes, so many at once, and waits until they are done; which were refused, and why."""
    left, under_way = sorted(changes), set[TopicPartition]()
    said, refused = "", dict[TopicPartition, str]()
    while left or under_way:
        under_way &= admin.list_partition_reassignments().keys()
        while left and len(under_way) < at_once:
            partition = left.pop(0)
            try:
                admin.alter_partition_reassignments({partition: changes[partition]})
            except BrokerError as error:  # such as a topic that is gone: the others go on
                sys.stderr.write(f"{printable(error)}\n")
                refused[partition] = str(error)
            else:
                under_way.add(partition)
        done = len(changes) - len(refused) - len(left) - len(under_way)
        line = f"{done} of {len(changes)} partitions are where they are to be\n" + _waits_for(admin, changes, under_way)
        if line != said:
            sys.stderr.write(line)
            said = line
        if left or under_way:
            time.sleep(LOOK_SECONDS)
    return refused


def _waits_for(admin: Admin, changes: Mapping[TopicPartition, Replicas], under_way: Iterable[TopicPartition]) -> str:
    """Which brokers it waits for that are not there."""
    away = {node for partition in under_way for node in changes[partition]} - _racks(admin).keys()
    return f"brokers {_text(sorted(away))} are not there: it goes on once they are back\n" if away else ""


def _text(replicas: Replicas) -> str:
    return ", ".join(map(str, replicas))
