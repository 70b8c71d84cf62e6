"""What a stream commits, without a broker: offsets follow the work, never overtake it, and never each other."""

from __future__ import annotations

import asyncio
import logging
import random

import pyarrow as pa
import pytest

from headrace import TopicPartition
from headrace.aio._flows import AtMostOnce, Batches, Committables
from headrace.aio._ledger import Committer, Part
from headrace.errors import (
    ClosedError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UsageError,
)
from tests.clients.helpers import bounded

BATCH = pa.record_batch({"value": [b"x"]})


class Group:
    """Takes commits; the answers come at once, or all when `answer` is set."""

    def __init__(self, *, at_once=True):
        self.sent = []
        self.committed = {}
        self.on_way = []
        self.refuse = False
        self.lost = []
        self.lost_as = RebalanceInProgressError
        self.answer = asyncio.Event()
        if at_once:
            self.answer.set()

    async def commit(self, of_parts):
        offsets = {part.name: mark.next_offset for part, mark in of_parts.items()}
        self.sent.append(dict(offsets))
        for name in offsets:
            assert not any(name in others for others in self.on_way), "two commits of a partition could overtake"
        self.on_way.append(offsets)
        try:
            await self.answer.wait()
            await asyncio.sleep(0)
            if self.refuse:
                raise KafkaError("refused")
            if self.lost:
                raise self.lost_as("lost")
            self.committed.update(offsets)
        finally:
            self.on_way.remove(offsets)


def part(number):
    return Part(number, TopicPartition("t", number))


def committer(group, parts, *, batches=1, parallelism=1):

    def refresh():
        while group.lost:
            made.remove(group.lost.pop())

    made = Committer(group.commit, refresh, batches=batches, interval_s=1.0, parallelism=parallelism)
    for one in parts:
        made.add(one)
    return made


def hand_out(part, count):
    return [part.hand_out(BATCH, offset) for offset in range(1, count + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_commits_follow_finished_work_in_any_order(seed):
    dice = random.Random(seed)

    async def work():
        group = Group()
        parts = [part(number) for number in range(3)]
        made = committer(group, parts, batches=dice.randrange(1, 5), parallelism=dice.randrange(1, 4))
        works = [work for part in parts for work in hand_out(part, 20)]
        dice.shuffle(works)
        for at, one in enumerate(works):
            made.finish(one, begin=True)
            if dice.random() < 0.5:
                await asyncio.sleep(0)
            for name, offset in group.committed.items():
                unfinished = [
                    other.end.next_offset for other in works[at + 1 :] if other.part.name == name and not other.finished
                ]
                assert offset < min(unfinished, default=100)
        assert await made.flush(5)
        assert group.committed == {part.name: 20 for part in parts}

    bounded(work())


def test_a_commit_is_sent_after_so_many_batches_or_when_its_time_has_come():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one], batches=3)
        made.tick(0.0)
        works = hand_out(one, 7)
        for number in (0, 1):
            made.finish(works[number], begin=True)
        await asyncio.sleep(0.01)
        assert group.sent == []
        made.finish(works[2], begin=True)
        await asyncio.sleep(0.01)
        assert group.committed == {("t", 0): 3}
        made.finish(works[4], begin=True)
        made.finish(works[3], begin=True)
        made.tick(0.5)
        await asyncio.sleep(0.01)
        assert group.committed == {("t", 0): 3}
        made.tick(1.0)
        await asyncio.sleep(0.01)
        assert group.committed == {("t", 0): 5}
        made.finish(works[6], begin=True)
        made.tick(2.0)
        await asyncio.sleep(0.01)
        assert group.committed == {("t", 0): 5}, "the sixth is not finished"

    bounded(work())


def test_work_that_does_not_begin_commits_only_keeps_its_order():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one])
        for done in hand_out(one, 3):
            made.finish(done, begin=False)
        await asyncio.sleep(0.01)
        assert group.sent == []
        assert not list(made.open())

    bounded(work())


def test_as_many_commits_are_on_their_way_as_wanted_and_one_a_partition():
    async def work():
        group = Group(at_once=False)
        parts = [part(number) for number in range(4)]
        made = committer(group, parts, parallelism=2)
        works = [hand_out(part, 2) for part in parts]
        for number in range(4):
            made.finish(works[number][0], begin=True)
            await asyncio.sleep(0)
        assert len(group.on_way) == 2
        made.finish(works[0][1], begin=True)
        await asyncio.sleep(0.01)
        assert len(group.on_way) == 2
        group.answer.set()
        assert await made.flush(5)
        assert group.committed == {("t", 0): 2, ("t", 1): 1, ("t", 2): 1, ("t", 3): 1}

    bounded(work())


def test_who_waits_for_a_commit_waits_for_the_work_before():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one], batches=1000)
        first, second, third = hand_out(one, 3)
        made.finish(second, begin=True)
        waiting = asyncio.create_task(made.committed(second))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        made.finish(first, begin=True)
        await waiting
        assert group.committed == {("t", 0): 2}
        await made.committed(first)
        assert len(group.sent) == 1
        made.finish(third, begin=True)
        await made.committed(third)
        assert group.committed == {("t", 0): 3}

    bounded(work())


def test_a_refused_commit_is_told_once_and_tried_again_later(caplog):
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one])
        group.refuse = True
        first, second = hand_out(one, 2)
        made.finish(first, begin=False)
        with pytest.raises(KafkaError, match="refused"):
            await made.committed(first)
        assert not caplog.records
        assert not await made.flush(5), "it is refused again"
        assert len(group.sent) == 2
        assert "may be read again: refused" in caplog.text
        group.refuse = False
        made.finish(second, begin=True)
        assert await made.flush(5)
        assert group.committed == {("t", 0): 2}

    with caplog.at_level(logging.WARNING, "headrace.consumer"):
        bounded(work())


def test_a_partition_that_goes_tells_who_waits_and_is_not_committed():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one], batches=1000)
        first, second = hand_out(one, 2)
        waiting = asyncio.create_task(made.committed(second))
        await asyncio.sleep(0)
        made.remove(one)
        with pytest.raises(RebalanceInProgressError, match="t-0 went back") as caught:
            await waiting
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        made.finish(first, begin=True)
        made.finish(second, begin=True)
        with pytest.raises(RebalanceInProgressError):
            await made.committed(second)
        assert await made.flush(1)
        assert group.sent == []

    bounded(work())


def test_a_commit_that_was_on_its_way_when_the_partition_went_counts():
    async def work():
        group, one = Group(at_once=False), part(0)
        made = committer(group, [one])
        first, second = hand_out(one, 2)
        made.finish(first, begin=True)
        waiting = [asyncio.create_task(made.committed(work)) for work in (first, second)]
        await asyncio.sleep(0.01)
        made.remove(one)
        group.answer.set()
        await waiting[0]
        with pytest.raises(RebalanceInProgressError):
            await waiting[1]

    bounded(work())


def test_a_flush_ends_when_its_time_has_passed():
    async def work():
        group, one = Group(at_once=False), part(0)
        made = committer(group, [one])
        made.finish(hand_out(one, 1)[0], begin=False)
        assert not await made.flush(0.05)
        assert list(made.owing()) == [one]
        group.answer.set()
        assert await made.flush(5)
        assert not list(made.owing())

    bounded(work())


@pytest.mark.parametrize("lost_as", [RebalanceInProgressError, IllegalGenerationError, UnknownMemberIdError])
def test_a_commit_that_comes_too_late_for_one_partition_is_made_for_the_others(lost_as):
    async def work():
        group, parts = Group(), [part(0), part(1)]
        group.lost_as = lost_as
        made = committer(group, parts, batches=1000)
        works = [hand_out(part, 1)[0] for part in parts]
        for one in works:
            made.finish(one, begin=False)
        group.lost.append(parts[0])
        ended = await asyncio.gather(*(made.committed(one) for one in works), return_exceptions=True)
        assert isinstance(ended[0], RebalanceInProgressError)
        assert isinstance(ended[0].__cause__, lost_as)
        assert ended[1] is None
        assert group.committed == {("t", 1): 1}

    bounded(work())


def test_a_commit_that_is_refused_after_its_partition_went_is_told():
    async def work():
        group, one = Group(at_once=False), part(0)
        made = committer(group, [one])
        (first,) = hand_out(one, 1)
        made.finish(first, begin=True)
        waiting = asyncio.create_task(made.committed(first))
        await asyncio.sleep(0.01)
        made.remove(one)
        group.lost.append(part(9))  # so it is refused, and the refresh finds nothing new
        group.answer.set()
        with pytest.raises(RebalanceInProgressError, match="t-0 went back"):
            await asyncio.wait_for(waiting, 5)

    bounded(work())


def test_who_awaits_a_commit_is_told_when_none_comes_any_more():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one], batches=1000)
        first, second = hand_out(one, 2)
        made.finish(second, begin=True)
        waiting = asyncio.create_task(made.committed(second))
        await asyncio.sleep(0.01)
        made.end()
        with pytest.raises(ClosedError, match="t-0 were committed"):
            await asyncio.wait_for(waiting, 5)
        made.finish(first, begin=True)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(made.committed(first), 5)
        assert group.sent == []

    bounded(work())


def test_a_commit_that_is_cancelled_before_it_begins_is_made_by_the_next_flush():
    async def work():
        group, one = Group(), part(0)
        made = committer(group, [one])
        made.finish(hand_out(one, 1)[0], begin=True)
        for task in made._tasks:
            task.cancel()
        await asyncio.sleep(0.01)
        assert group.sent == []
        assert await made.flush(5)
        assert group.committed == {("t", 0): 1}

    bounded(work())


def test_a_commit_counts_what_was_handed_out_also_when_offsets_begin_anew():
    async def work():
        group, one = Group(at_once=False), part(0)
        made = committer(group, [one])
        made.finish(one.hand_out(BATCH, 1000), begin=True)
        again = one.hand_out(BATCH, 10)
        waiting = asyncio.create_task(made.committed(again))
        await asyncio.sleep(0)
        group.answer.set()
        assert await made.flush(5)
        assert group.committed == {("t", 0): 1000}
        assert not waiting.done(), "that was a commit of the rows before"
        made.finish(again, begin=True)
        await asyncio.wait_for(waiting, 5)
        assert group.committed == {("t", 0): 10}

    bounded(work())


class Source:
    """What a form asks of its stream; as many batches come as `rows` is released."""

    def __init__(self):
        self.rows = asyncio.Semaphore(0)
        self.part = part(0)
        self.given = 0
        self.fails_at = None
        self.lost = False

    def enter(self, flow):
        pass

    def refresh(self):
        self.part.gone |= self.lost

    def finish(self, work):
        self.part.finish(work)

    async def next_work(self, *_):
        await self.rows.acquire()
        self.given += 1
        if self.given == self.fails_at:
            raise KafkaError("it may pass")
        return self.part.hand_out(BATCH, self.given)

    async def committed(self, _):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("form", [Batches, AtMostOnce, lambda source, part: Batches(source, part).map(len, 2)])
def test_one_task_asks_at_a_time(form):
    async def work():
        source = Source()
        items = form(source, None)
        first, second = (asyncio.ensure_future(items.__anext__()) for _ in range(2))
        with pytest.raises(UsageError, match="another task asks"):
            await second
        source.rows.release()
        await first
        cancelled = asyncio.ensure_future(items.__anext__())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(source.rows.release)
        cancelled.cancel()
        await items.__anext__()
        assert cancelled.cancelled(), "it was under way when the next one came"

    bounded(work())


def test_committable_batches_are_asked_for_by_several_tasks():
    async def work():
        source = Source()
        items = Committables(source, None)
        asked = [asyncio.ensure_future(items.__anext__()) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in asked:
            source.rows.release()
        assert sorted([(await one).next_offset for one in asked]) == [1, 2, 3]

    bounded(work())


def test_a_map_goes_on_after_an_error_of_its_source():
    async def work():
        source = Source()
        source.fails_at = 3
        results = Batches(source, None).map(lambda _: source.given, 5)
        for _ in range(4):
            source.rows.release()
        found = [await results.__anext__() for _ in range(2)]
        with pytest.raises(KafkaError, match="may pass"):
            await results.__anext__()
        found.append(await results.__anext__())
        assert len(found) == 3
        assert source.given == 4
        assert [work.end.next_offset for work in source.part.open] == [4]

    bounded(work())


def test_a_map_gives_nothing_of_a_partition_that_has_just_gone():
    async def work():
        source, calls = Source(), []
        results = Batches(source, None).map(calls.append, 5)
        source.rows.release()
        source.rows.release()
        await results.__anext__()
        while len(calls) < 2:  # noqa: ASYNC110  (of what the map does)
            await asyncio.sleep(0)
        source.lost = True
        asked = asyncio.ensure_future(results.__anext__())
        await asyncio.sleep(0.05)
        assert not asked.done()
        asked.cancel()

    bounded(work())
