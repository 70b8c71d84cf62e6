"""``headrace topics``: list, create, describe, alter, delete."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from headrace._types import TopicPartition
from headrace.admin import Admin
from headrace.cli._common import INT32_MAX, client_options, printable, rendered, setting, whole

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    every = verbs.add_parser("list", help="list topics")
    every.add_argument("--json", action="store_true", help="print an array of names")
    every.add_argument("--internal", action="store_true", help="include the broker's internal topics")
    every.set_defaults(run=list_topics)
    create = verbs.add_parser("create", help="create a topic")
    create.add_argument("name")
    create.add_argument(
        "-p", "--partitions", type=whole(1, INT32_MAX), default=-1, help="number of partitions (default: the broker's)"
    )
    create.add_argument(
        "-r", "--replication", type=whole(1, 2**15 - 1), default=-1, help="number of replicas (default: the broker's)"
    )
    _settings(create)
    create.set_defaults(run=create_topic)
    describe = verbs.add_parser("describe", help="show partitions, leaders and offsets")
    describe.add_argument("name", nargs="+")
    describe.add_argument("--json", action="store_true", help="print an array of objects, one a partition")
    describe.add_argument("--config", action="store_true", help="show the settings of the topics instead")
    describe.set_defaults(run=describe_topics)
    alter = verbs.add_parser("alter", help="change a topic's settings, or give it more partitions")
    alter.add_argument("name")
    alter.add_argument(
        "-p",
        "--partitions",
        type=whole(1, INT32_MAX),
        help="how many it is to have. Keys go to other partitions from then on",
    )
    _settings(alter)
    alter.add_argument(
        "--reset",
        metavar="NAME",
        action="append",
        default=[],
        help="set it to its default; can be repeated",
    )
    alter.set_defaults(run=alter_topic)
    delete = verbs.add_parser("delete", help="delete topics with all their records")
    delete.add_argument("name", nargs="+")
    delete.set_defaults(run=delete_topics)
    for verb in (every, create, describe, alter, delete):
        client_options(verb)


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="topic setting; can be repeated",
    )


def list_topics(options: argparse.Namespace) -> None:
    """Prints the names of all topics."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        names = admin.list_topics(include_internal=options.internal)
    if options.json:
        sys.stdout.write(json.dumps(names) + "\n")
    else:
        sys.stdout.writelines(f"{printable(name)}\n" for name in names)


def create_topic(options: argparse.Namespace) -> None:
    """Creates a topic."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        admin.create_topic(options.name, options.partitions, options.replication, dict(options.config))
        made = admin.describe_topics([options.name])[options.name]
        sys.stdout.write(f"created {options.name} with {len(made.partitions)} partition(s), id {made.topic_id}\n")


def alter_topic(options: argparse.Namespace) -> None:
    """Changes settings and the number of partitions, and says what it is now."""
    changes: dict[str, str | None] = {**dict(options.config), **dict.fromkeys(options.reset)}
    if not changes and options.partitions is None:
        message = "nothing is to be changed: --partitions, --config or --reset says what"
        raise ValueError(message)
    with Admin(options.bootstrap, dict(options.option)) as admin:
        if changes:
            admin.alter_topic_config(options.name, changes)
            there = admin.describe_topic_config(options.name)
            sys.stdout.writelines(f"{name}={printable(there.get(name))}\n" for name in changes)
        if options.partitions is not None:
            admin.create_partitions(options.name, options.partitions)
            sys.stdout.write(f"{options.name} has {options.partitions} partitions\n")


def describe_topics(options: argparse.Namespace) -> None:
    """Prints partitions and their offsets, or settings."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        if options.config:
            settings = [
                (topic, name, value)
                for topic in options.name
                for name, value in sorted(admin.describe_topic_config(topic).items())
            ]
            sys.stdout.write(rendered(("TOPIC", "NAME", "VALUE"), settings, as_json=options.json))
            return
        topics = admin.describe_topics(options.name)
        partitions = [TopicPartition(name, p.partition) for name, topic in topics.items() for p in topic.partitions]
        first = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        last = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        rows = [
            (
                name,
                p.partition,
                p.leader,
                p.leader_epoch,
                first[TopicPartition(name, p.partition)].offset,
                last[TopicPartition(name, p.partition)].offset,
            )
            for name, topic in topics.items()
            for p in topic.partitions
        ]
    sys.stdout.write(
        rendered(("TOPIC", "PARTITION", "LEADER", "EPOCH", "EARLIEST", "LATEST"), rows, as_json=options.json)
    )


def delete_topics(options: argparse.Namespace) -> None:
    """Deletes topics."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        admin.delete_topics(options.name)
    sys.stdout.write(f"deleted {', '.join(options.name)}\n")
