"""Streams whose members come, go, fail and are cancelled: nothing is lost, no commit covers unfinished work."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict

import pytest

import headrace as hr
from tests.clients.test_streams import PARTITIONS, ROWS, committed, fill, group, rows_of

TIMEOUT_SECONDS = 90
MEMBERS = 7


class Board:
    """What all members have finished, and the order in which each sub-stream gave its rows."""

    def __init__(self):
        self.finished = defaultdict(set)
        self.given = defaultdict(list)

    def reached(self, number):
        """All before this offset is finished."""
        offset = 0
        while offset in self.finished[number]:
            offset += 1
        return offset

    @property
    def is_full(self):
        return all(self.reached(number) == ROWS for number in range(PARTITIONS))


async def member(cluster, topic, board, dice, *, life, assignor, until=lambda: False, failing=0.01):
    """Works for `life` seconds, or `until` that is so; some of its calls fail, some are slow."""

    async def work(item):
        await asyncio.sleep(dice.random() / 8)
        if dice.random() < failing:
            raise RuntimeError("broken")
        return item

    async def read(batches, given):
        with contextlib.suppress(RuntimeError):
            async for item in batches.map(work, dice.randrange(1, 5)):
                rows = rows_of(item.batch)
                given += [offset for _, offset in rows]
                board.finished[rows[0][0]] |= {offset for _, offset in rows}
                item.done()

    async def accept(stream, tasks):
        async for tp, batches in stream.partitions(committable=True):
            given = []
            board.given[tp.partition].append(given)
            tasks.append(asyncio.create_task(read(batches, given)))

    options = group(topic, commit_interval_ms=50, commit_batches=3, revoke_wait_ms=dice.choice([0, 200]))
    options |= {"auto_offset_reset": "earliest", "partition_assignment_strategy": assignor}
    async with hr.aio.Stream(cluster.bootstrap_servers, topic, max_poll_records=7, **options) as stream:
        tasks = []
        accepting = asyncio.create_task(accept(stream, tasks))
        end = asyncio.get_running_loop().time() + life
        while asyncio.get_running_loop().time() < end and not until():  # noqa: ASYNC110  (of the other members)
            await asyncio.sleep(0.05)
        if dice.random() < 0.5:
            stream.stop()
        else:
            for task in tasks:
                task.cancel()
        accepting.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize(("assignor", "seed"), [("range", 1), ("cooperative-sticky", 2)])
def test_members_that_come_and_go_lose_nothing(cluster, topic, assignor, seed):
    cluster.create_topic(topic, PARTITIONS)
    fill(cluster.bootstrap_servers, topic, PARTITIONS, ROWS)
    dice, board = random.Random(seed), Board()
    known = []

    async def check():
        while True:
            known[:] = await committed(cluster, topic)
            for number, offset in enumerate(known):
                assert (offset or 0) <= board.reached(number), f"partition {number}"
            await asyncio.sleep(0.05)

    async def work():
        checking = asyncio.create_task(check())
        for _ in range(MEMBERS):
            pair = [
                {"life": 0.5 + 3 * dice.random(), "assignor": assignor, "until": lambda: board.is_full}
                for _ in range(2)
            ]
            await asyncio.gather(*(member(cluster, topic, board, dice, **options) for options in pair))
            assert not checking.done()
        options = {"life": 60, "assignor": assignor, "until": lambda: known == [ROWS] * PARTITIONS}
        await member(cluster, topic, board, random.Random(0), failing=0, **options)
        checking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await checking

    asyncio.run(asyncio.wait_for(work(), TIMEOUT_SECONDS))
    assert board.is_full
    assert known == [ROWS] * PARTITIONS, "who works to the end has committed all"
    assert max(len(board.given[number]) for number in range(PARTITIONS)) > 3, "no partition has changed hands"
    for number in range(PARTITIONS):
        for given in board.given[number]:
            assert given == list(range(given[0], given[0] + len(given))) if given else True
