"""``headrace groups``: list, describe, set offsets, delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from headrace.admin import Admin, OffsetSpec
from headrace.cli._common import client_options, rendered, whole
from headrace.cli.lag import lags

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    every = verbs.add_parser("list", help="list groups")
    every.add_argument("--json", action="store_true", help="print an array of objects, one a group")
    every.set_defaults(run=list_groups)
    describe = verbs.add_parser("describe", help="show committed offsets and lag")
    describe.add_argument("group")
    describe.add_argument("--json", action="store_true", help="print an array of objects, one a partition")
    describe.set_defaults(run=describe_group)
    reset = verbs.add_parser("reset", help="set the offsets of a group without members, for all partitions of topics")
    reset.add_argument("group")
    reset.add_argument("topic", nargs="+")
    reset.add_argument(
        "--to",
        type=_spec,
        default="earliest",
        help="earliest (default), latest, or ms since the epoch: the first record at or after that time, else the end",
    )
    reset.set_defaults(run=reset_group)
    delete = verbs.add_parser("delete", help="delete groups with their offsets")
    delete.add_argument("group", nargs="+")
    delete.set_defaults(run=delete_groups)
    for verb in (every, describe, reset, delete):
        client_options(verb)


def _spec(text: str) -> OffsetSpec:
    """A time in ms, or the name of an offset, which `Admin.list_offsets` checks."""
    return whole(0)(text) if text.isdecimal() else cast("OffsetSpec", text)


def list_groups(options: argparse.Namespace) -> None:
    """Prints all groups."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        rows = [(g.group_id, g.protocol_type, g.state) for g in admin.list_groups()]
    sys.stdout.write(rendered(("GROUP", "TYPE", "STATE"), rows, as_json=options.json))


def describe_group(options: argparse.Namespace) -> None:
    """Prints a group's offsets and lag."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        rows = [found[1:] for found in lags(admin, [options.group])]
    sys.stdout.write(rendered(("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG"), rows, as_json=options.json))


def reset_group(options: argparse.Namespace) -> None:
    """Sets a group's offsets."""
    to: OffsetSpec = options.to
    with Admin(options.bootstrap, dict(options.option)) as admin:
        topics = admin.describe_topics(options.topic)
        partitions = [(name, p.partition) for name, topic in topics.items() for p in topic.partitions]
        found = admin.list_offsets(dict.fromkeys(partitions, to))
        younger = [tp for tp, info in found.items() if info.offset < 0]
        found |= admin.list_offsets(dict.fromkeys(younger, "latest"))
        admin.alter_group_offsets(options.group, {tp: info.offset for tp, info in found.items()})
    sys.stdout.write(f"set {len(found)} offset(s) of {options.group}\n")


def delete_groups(options: argparse.Namespace) -> None:
    """Deletes groups."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        admin.delete_groups(options.group)
    sys.stdout.write(f"deleted {', '.join(options.group)}\n")
