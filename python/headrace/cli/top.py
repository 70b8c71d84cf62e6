"""``headrace top``: which topics are written to and which groups read, and how fast."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from headrace.admin import Admin
from headrace.cli._common import client_options, objects, seconds, table, watch, whole
from headrace.cli.lag import Behind, lags

if TYPE_CHECKING:
    import argparse

    from headrace._types import TopicPartition

_EXAMPLES = """\
examples:
  headrace top                  every two seconds, until Ctrl-C; the busiest first
  headrace top --interval 10    with rates of ten seconds
  headrace top --once --json    one measurement for a script

It asks as a client does, so it shows any Apache Kafka cluster too. Rates are of offsets; a group's is of what it has
committed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="SECONDS", help="between two looks (default: %(default)g)"
    )
    parser.add_argument(
        "--rows", type=whole(0), default=20, metavar="N", help="topics and groups, at most (default: 20)"
    )
    parser.add_argument("--once", action="store_true", help="measure once, and end")
    parser.add_argument("--json", action="store_true", help="with --once: print an object with topics and groups")
    client_options(parser)
    parser.set_defaults(run=run)


class State(NamedTuple):
    """What was there at a moment."""

    seconds: float
    first: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    groups: list[Behind]

    @classmethod
    def read(cls, admin: Admin) -> State:
        """Asks for it."""
        names = admin.list_topics()
        described = admin.describe_topics(names) if names else {}
        partitions = [(name, one.partition) for name, topic in described.items() for one in topic.partitions]
        first, ends = (
            {tp: found.offset for tp, found in admin.list_offsets(dict.fromkeys(partitions, spec)).items()}
            for spec in ("earliest", "latest")
        )
        return cls(time.monotonic(), first, ends, list(lags(admin, ())))


def topics(before: State, after: State) -> list[tuple[str, int, int, float]]:
    """Name, partitions, offsets that are kept, offsets a second; the busiest first."""
    took = max(after.seconds - before.seconds, 1e-9)
    found: dict[str, list[int]] = {}
    for tp, end in after.ends.items():
        sums = found.setdefault(tp.topic, [0, 0, 0])
        sums[0] += 1
        sums[1] += end - after.first.get(tp, end)
        # A topic that was made anew begins anew.
        sums[2] += max(end - before.ends.get(tp, end), 0)
    rows = [(name, count, kept, round(written / took, 1)) for name, (count, kept, written) in found.items()]
    return sorted(rows, key=lambda row: (-row[3], row[0]))


def groups(before: State, after: State) -> list[tuple[str, str, int, float]]:
    """Group, topic, lag, offsets a second; who reads most first."""
    took = max(after.seconds - before.seconds, 1e-9)
    earlier = {each[:3]: each.committed for each in before.groups}
    found: dict[tuple[str, str], list[int]] = {}
    for each in after.groups:
        sums = found.setdefault((each.group, each.topic), [0, 0])
        sums[0] += each.lag
        sums[1] += max(each.committed - earlier.get(each[:3], each.committed), 0)
    rows = [(*both, lag, round(read / took, 1)) for both, (lag, read) in found.items()]
    return sorted(rows, key=lambda row: (-row[3], row[:2]))


_TOPICS = ("TOPIC", "PARTITIONS", "OFFSETS", "WRITTEN/S")
_GROUPS = ("GROUP", "TOPIC", "LAG", "READ/S")


def run(options: argparse.Namespace) -> None:
    """Shows it again and again, or once."""
    if options.json and not options.once:
        message = "--json needs --once"
        raise ValueError(message)
    with Admin(options.bootstrap, dict(options.option)) as admin:
        before = State.read(admin)

        def look() -> str:
            nonlocal before
            after = State.read(admin)
            by_topic, by_group = topics(before, after)[: options.rows], groups(before, after)[: options.rows]
            before = after
            if options.json:
                found = {"topics": objects(_TOPICS, by_topic), "groups": objects(_GROUPS, by_group)}
                return json.dumps(found) + "\n"
            text = f"{len(after.ends)} partitions, {sum(row[3] for row in by_topic):,.0f} offsets written a second\n\n"
            text += table(_TOPICS, by_topic)
            return text + (f"\n{table(_GROUPS, by_group)}" if by_group else "")

        time.sleep(options.interval)
        if not options.once:
            watch(options.interval, look)
        sys.stdout.write(look())
