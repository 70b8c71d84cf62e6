"""The way into the event loop: which of the tasks that wait for rows are woken, and what becomes of outcomes."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.aio._loop import Lookout, Mailbox
from headrace.errors import ClosedError, KafkaError
from tests.clients.helpers import bounded


class Native:
    """The native half as the lookout sees it."""

    def __init__(self):
        self.ready = []
        self.bell = None
        self.armed = False
        self.closed = False

    def hang_bell(self, bell):
        self.bell = bell

    def arm(self):
        self.armed = True

    def has_rows(self, part):
        return bool(self.ready) if part is None else part in self.ready

    def parts_ready(self):
        if self.closed:
            raise ClosedError("closed")
        return self.ready

    def ring(self):
        assert self.armed
        self.armed = False
        self.bell.set_result(None)


async def waiting(lookout, parts):
    tasks = [asyncio.create_task(lookout.wait(part, None)) for part in parts]
    await asyncio.sleep(0.01)
    return tasks


def done(tasks):
    return [task.done() for task in tasks]


def test_only_those_are_woken_whose_partition_has_rows():
    async def work():
        native = Native()
        lookout = Lookout(native)
        tasks = await waiting(lookout, [1, 2, None, 3])
        native.ready = [2]
        native.ring()
        await asyncio.sleep(0.01)
        assert done(tasks) == [False, True, True, False]
        assert native.armed, "the others wait on"
        native.ready = []
        assert not lookout.look()
        await asyncio.sleep(0.01)
        assert done(tasks) == [False, True, True, False]
        native.ready = [3]
        assert lookout.look()
        await asyncio.sleep(0.01)
        assert done(tasks) == [False, True, True, True]
        tasks[0].cancel()

    bounded(work())


def test_a_ring_without_rows_is_for_all():
    async def work(*, closed):
        native = Native()
        tasks = await waiting(Lookout(native), [1, None])
        native.closed = closed
        native.ring()
        await asyncio.sleep(0.01)
        assert done(tasks) == [True, True]

    bounded(work(closed=False))
    bounded(work(closed=True))


def test_what_came_before_the_wait_is_not_waited_for():
    async def work():
        native = Native()
        native.ready = [1]
        tasks = await waiting(Lookout(native), [1, None, 2])
        assert done(tasks) == [True, True, False]
        tasks[2].cancel()

    bounded(work())


def test_who_is_cancelled_is_forgotten():
    async def work():
        native = Native()
        lookout = Lookout(native)
        tasks = await waiting(lookout, [1, 2])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not lookout._waiting
        native.ring()
        await asyncio.sleep(0.01)
        assert not native.armed, "nobody is left to be rung for"

    bounded(work())


def test_an_outcome_that_nobody_keeps_is_not_complained_about():
    async def work():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        mailbox = Mailbox(asyncio.get_running_loop(), "producer")
        dropped, kept = mailbox.slot(), mailbox.slot()
        for slot in (dropped, kept):
            slot.set_exception(KafkaError("refused"))
        del slot, dropped
        await asyncio.sleep(0.01)
        gc.collect()
        with pytest.raises(KafkaError):
            await kept.future
        assert complaints == []

    bounded(work())


def test_outcomes_for_a_loop_that_is_closed_do_not_pile_up():
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop, "producer")
    slots = [mailbox.loop.create_future() for _ in range(3)]
    loop.close()
    for future in slots:
        mailbox.post(future, None, None)
    assert not mailbox._posts
