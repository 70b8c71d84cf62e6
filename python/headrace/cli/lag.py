"""``headrace lag``: how far groups are behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from headrace.admin import Admin
from headrace.cli._common import client_options, rendered, watch, watch_option, whole
from headrace.errors import GroupIdNotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping

    from headrace._types import TopicPartition

_EXAMPLES = """\
examples:
  headrace lag                         all groups, a line for each topic that they read
  headrace lag billing --partitions    one group, a line for each partition
  headrace lag --watch                 the same every two seconds, until Ctrl-C
  headrace lag --json --max 10000      for a script: the exit status is 1 where a group is further behind
"""


class Behind(NamedTuple):
    """How far a group is in a partition."""

    group: str
    topic: str
    partition: int
    committed: int
    """Of a share group, the first offset that it is not done with; -1 where it has read nothing."""
    latest: int
    lag: int
    """Records that it has not read; of a share group, that it is not done with."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument("group", nargs="*", help="which groups (default: all)")
    parser.add_argument("--partitions", action="store_true", help="a line for each partition, not for each topic")
    parser.add_argument(
        "--max", type=whole(0), metavar="N", help="exit with status 1 where a group's lag in a topic is more"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print an array of objects")
    watch_option(how)
    client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Shows it, once or again and again; 1 if a group is further behind than it may be."""
    with Admin(options.bootstrap, dict(options.option)) as admin:
        if options.watch is not None:
            watch(options.watch, lambda: _text(list(lags(admin, options.group)), options))
        found = list(lags(admin, options.group))
    sys.stdout.write(_text(found, options))
    most = max((row[-1] for row in _by_topic(found)), default=0)
    return 1 if options.max is not None and most > options.max else 0


def lags(admin: Admin, groups: Iterable[str]) -> Iterator[Behind]:
    """Of these groups, or of all.

    Raises:
        GroupIdNotFoundError: there is no such group.
    """
    there = {group.group_id: group.protocol_type for group in admin.list_groups()}
    for missing in (group for group in groups if group not in there):
        message = f"there is no group {missing!r}"
        raise GroupIdNotFoundError(message, name="GROUP_ID_NOT_FOUND")
    found = {group: _offsets(admin, group, there[group]) for group in (groups or sorted(there))}
    partitions = {partition for offsets in found.values() for partition in offsets}
    if not partitions:
        return
    # Offsets of topics that are deleted stay for a while.
    known = admin.list_topics(include_internal=True)
    ends = admin.list_offsets({tp: "latest" for tp in partitions if tp.topic in known})
    for group, offsets in found.items():
        for tp, (at, lag) in sorted(offsets.items()):
            if tp in ends:
                latest = ends[tp].offset
                yield Behind(
                    group, tp.topic, tp.partition, at, latest, max(latest - max(at, 0), 0) if lag is None else lag
                )


def _offsets(admin: Admin, group: str, kind: str) -> Mapping[TopicPartition, tuple[int, int | None]]:
    """By partition where the group stands, and how many records are left, where the broker knows that."""
    if kind == "share":
        return {tp: (found.start_offset, found.lag) for tp, found in admin.share_group_offsets(group).items()}
    return {tp: (at, None) for tp, at in admin.group_offsets(group).items()}


def _by_topic(found: Iterable[Behind]) -> list[tuple[str, str, int, int, int]]:
    """Group, topic, partitions, those of them with a lag, and the lag of all."""
    topics: dict[tuple[str, str], list[int]] = {}
    for each in found:
        topics.setdefault((each.group, each.topic), []).append(each.lag)
    return [(*both, len(lag), sum(one > 0 for one in lag), sum(lag)) for both, lag in topics.items()]


def _text(found: list[Behind], options: argparse.Namespace) -> str:
    if options.partitions:
        rows: list[tuple[object, ...]] = [*found]
        header = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG")
        return rendered(header, rows, as_json=options.json)
    return rendered(("GROUP", "TOPIC", "PARTITIONS", "BEHIND", "LAG"), _by_topic(found), as_json=options.json)
