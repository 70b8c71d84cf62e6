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


async def member(cluster, topic, board, dice, *, life, assignor, failing=0.01):
    """Works for `life` seconds, or until all is done; some of its calls fail, some are slow."""

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
        while asyncio.get_running_loop().time() < end and not board.is_full:  # noqa: ASYNC110  (of the other members)
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

    async def check():
        while True:
            reached = await committed(cluster, topic)
            for number, offset in enumerate(reached):
                assert (offset or 0) <= board.reached(number), f"partition {number}"
            await asyncio.sleep(0.05)

    async def work():
        checking = asyncio.create_task(check())
        for _ in range(MEMBERS):
            pair = (
                member(cluster, topic, board, dice, life=0.5 + 3 * dice.random(), assignor=assignor) for _ in range(2)
            )
            await asyncio.gather(*pair)
            assert not checking.done()
        await member(cluster, topic, board, random.Random(0), life=60, assignor=assignor, failing=0)
        checking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await checking
        return await committed(cluster, topic)

    offsets = asyncio.run(asyncio.wait_for(work(), TIMEOUT_SECONDS))
    assert board.is_full
    assert max(len(board.given[number]) for number in range(PARTITIONS)) > 3, "no partition has changed hands"
    for number in range(PARTITIONS):
        assert (offsets[number] or 0) <= ROWS
        for given in board.given[number]:
            assert given == list(range(given[0], given[0] + len(given))) if given else True
