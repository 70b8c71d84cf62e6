"""Streams of columns: every row once and in order, whatever cuts a batch, keeps its schema away or cancels who asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
import threading
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace._stop import Stop
from headrace.aio._ledger import Part
from headrace.aio._pending import Pending
from headrace.errors import (
    ConfigError,
    DecodeError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from headrace.values import registered
from tests.clients.helpers import assert_free, bounded, heartbeat
from tests.clients.test_streams import anext_of, group, until
from tests.kafka.cluster import Cluster
from tests.values.test_avro import framed
from tests.values.test_registry import answering

ROWS = 40
PARTITIONS = 2
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}
TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
ANSWER = json.dumps({"schema": json.dumps(OLD)}).encode()
FORMS = ["plain", "committable", "at most once", "partitions", "committable partitions"]
FORMS += [f"map of {form}" for form in FORMS]


@pytest.fixture(scope="module")
def registry():
    with hr.Broker.start(registry=True) as broker:
        yield hr.SchemaRegistry(broker.registry_url)


def send(cluster, topic, rows):
    """The rows of each partition, with their number as key."""
    cluster.create_topic(topic, len(rows))
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for partition, values in enumerate(rows):
            for number, value in enumerate(values):
                producer.send(topic, value, key=struct.pack(">i", number), partition=partition)


def orders(registry, topic, bad=()):
    """Rows of two schemas of the registry in turns; those of `bad`, as (partition, number), end early."""
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in (OLD, NEW)]

    def row(number):
        schema, value = (OLD, {"id": number}) if number % 2 else (NEW, {"id": number, "city": f"c{number}"})
        return framed(ids[schema is NEW], schema, value)

    return [
        [row(number)[: -1 if (partition, number) in bad else None] for number in range(ROWS)]
        for partition in range(PARTITIONS)
    ]


def expected(number):
    return {"id": number, "city": None if number % 2 else f"c{number}"}


def stream_of(cluster, topic, **options):
    """Small batches, so that there are many; commits only at the end or where a test wants one."""
    defaults = {"auto_offset_reset": "earliest", "max_poll_records": 7, "commit_interval_ms": 60_000}
    return hr.aio.Stream(cluster.bootstrap_servers, topic, **{**defaults, **group_of(topic), **options})


def group_of(topic):
    return group(topic if isinstance(topic, str) else next(iter(topic))[0])


def whole(topic):
    return [(topic, number) for number in range(PARTITIONS)]


async def committed(cluster, topic):
    async with hr.aio.Consumer(cluster.bootstrap_servers, **group_of(topic)) as consumer:
        found = await consumer.committed(whole(topic))
        return [found[topic, number] for number in range(PARTITIONS)]


async def flows_of(stream, form, partitions=PARTITIONS):
    """The iterators of a form, each with its partition."""
    plain = form.removeprefix("map of ")
    if plain.endswith("partitions"):
        offered = stream.partitions(committable=plain.startswith("committable"))
        flows = sorted([await anext_of(offered) for _ in range(partitions)], key=lambda pair: pair[0].partition)
    else:
        of_all = {"plain": stream.__aiter__, "committable": stream.committable, "at most once": stream.at_most_once}
        flows = [(None, of_all[plain]())]
    return [(tp, flow.map(lambda item: item, 3) if form != plain else flow) for tp, flow in flows]


def batch_of(item):
    """Its rows, which are done."""
    if isinstance(item, pa.RecordBatch):
        return item
    item.done()
    return item.batch


def offsets_of(batches, partition):
    return [
        offset
        for batch in batches
        if batch["partition"][0].as_py() == partition
        for offset in batch["offset"].to_pylist()
    ]


async def read(flows, count):
    """So many rows, from each flow its part of them. This task has taken them, so leaving finishes the last ones."""
    batches = []
    for _, flow in flows:
        left = count // len(flows)
        while left > 0:
            batches.append(batch_of(await anext_of(flow)))
            left -= batches[-1].num_rows
    return batches


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_columns(cluster, topic, registry, form):
    send(cluster, topic, orders(registry, topic))

    async def work():
        formats = {"key": hr.Text(pa.int32()), "value": hr.Avro(registry)}
        async with stream_of(cluster, topic, **formats) as stream:
            batches = await read(await flows_of(stream, form), PARTITIONS * ROWS)
            assert {batch.schema for batch in batches} == {stream.schema}
        return batches, await committed(cluster, topic)

    batches, offsets = bounded(work())
    assert batches[0].schema.field("value").type == TYPE
    for partition in range(PARTITIONS):
        assert offsets_of(batches, partition) == list(range(ROWS))
    for batch in batches:
        assert batch["key"].to_pylist() == batch["offset"].to_pylist()
        assert batch["value"].to_pylist() == [expected(number) for number in batch["offset"].to_pylist()]
    assert offsets == [ROWS] * PARTITIONS


async def until_raised(flow):
    """The rows until a bad one is raised, again and again."""
    batches, errors = [], []
    while len(errors) < 3:
        try:
            batches.append(batch_of(await anext_of(flow)))
        except DecodeError as error:
            errors.append(error)
        else:
            assert not errors, "nothing comes after the bad row"
    return batches, errors


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_row_is_raised_after_those_before_it_and_again(cluster, topic, registry, form):
    bad = (0, 10)
    send(cluster, topic, orders(registry, topic, {bad}))

    async def work():
        where = [(topic, 0)]
        async with stream_of(cluster, where, value=hr.Avro(registry)) as stream:
            ((_, flow),) = await flows_of(stream, form, 1)
            return await until_raised(flow), await drained(stream)

    async def drained(stream):
        await stream.drain_and_stop()
        return await committed(cluster, topic)

    (batches, errors), offsets = bounded(work())
    assert offsets_of(batches, 0) == list(range(10))
    for error in errors:
        assert (error.topic, error.partition, error.offset, error.field) == (topic, *bad, "city")
    assert offsets == [10, None]


@pytest.mark.parametrize("form", ["plain", "committable partitions", "map of plain"])
@pytest.mark.parametrize("on_error", ["null", "column"])
def test_a_bad_row_can_be_null(cluster, topic, registry, form, on_error):
    bad = {(0, 0), (0, 10), (1, 39)}
    rows = orders(registry, topic, bad)
    send(cluster, topic, rows)

    async def work():
        async with stream_of(cluster, topic, value=hr.Avro(registry, on_error=on_error)) as stream:
            batches = await read(await flows_of(stream, form), PARTITIONS * ROWS)
            assert {batch.schema for batch in batches} == {stream.schema}
            return batches

    batches = bounded(work())
    for partition in range(PARTITIONS):
        assert offsets_of(batches, partition) == list(range(ROWS))
    table = pa.Table.from_batches(batches)
    found = {
        (row["partition"], row["offset"]): row["value"]
        for row in table.select(["partition", "offset", "value"]).to_pylist()
    }
    assert found == {
        (partition, number): None if (partition, number) in bad else expected(number)
        for partition in range(PARTITIONS)
        for number in range(ROWS)
    }
    if on_error == "column":
        dead = hr.bad_rows(table)
        assert sorted(dead["value"].to_pylist()) == sorted(rows[partition][number] for partition, number in bad)


def test_a_bad_row_stops_the_sub_stream_of_its_partition_alone(cluster, topic, registry):
    send(cluster, topic, orders(registry, topic, {(0, 3)}))

    async def work():
        async with stream_of(cluster, topic, value=hr.Avro(registry)) as stream:
            (_, bad), (_, good) = await flows_of(stream, "partitions")
            batches, errors = await until_raised(bad)
            others = await read([(None, good)], ROWS)
            with pytest.raises(DecodeError, match="offset 3"):
                await anext_of(bad)
            await stream.drain_and_stop()
            return batches, errors, others, await committed(cluster, topic)

    batches, errors, others, offsets = bounded(work())
    assert offsets_of(batches, 0) == [0, 1, 2]
    assert errors[0].partition == 0
    assert offsets_of(others, 1) == list(range(ROWS))
    assert offsets == [3, ROWS]


def test_a_form_over_all_partitions_says_that_one_stands_still(cluster, topic, registry):
    send(cluster, topic, orders(registry, topic, {(0, 3), (1, 0)}))

    async def work():
        async with stream_of(cluster, topic, value=hr.Avro(registry)) as stream:
            batches, errors = await until_raised(stream.__aiter__())
        return batches, errors, await committed(cluster, topic)

    batches, errors, offsets = bounded(work())
    assert len({(error.partition, error.offset) for error in errors}) == 1
    # Which partition came first is open.
    assert offsets in ([3, None], [None, None])
    assert offsets_of(batches, 0) == list(range(offsets[0] or 0))
    assert offsets_of(batches, 1) == []


def test_the_recipe_for_passing_a_bad_row(cluster, topic, registry):
    send(cluster, topic, orders(registry, topic, {(0, 3)}))

    async def work():
        async with stream_of(cluster, [(topic, 0)], value=hr.Avro(registry)) as stream:
            batches, (error, *_) = await until_raised(stream.__aiter__())
        starts = {(error.topic, error.partition): error.offset + 1}
        async with stream_of(cluster, [(topic, 0)], value=hr.Avro(registry), start_offsets=lambda _: starts) as stream:
            return batches + await read([(None, stream.__aiter__())], ROWS - 4)

    assert offsets_of(bounded(work()), 0) == [0, 1, 2, *range(4, ROWS)]


class Door:
    """A registry that knows one schema by every id, and answers for id 7 once it is opened."""

    def __init__(self):
        self.open = threading.Event()

    def __call__(self, handler):
        if handler.path.endswith("/7"):
            self.open.wait(30)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(ANSWER)))
        handler.end_headers()
        handler.wfile.write(ANSWER)


@contextlib.contextmanager
def closed():
    """A door, and the registry behind it; in the end nobody waits before it."""
    door = Door()
    with answering(door) as server:
        try:
            yield door, server
        finally:
            door.open.set()


def numbered(number, rows=ROWS):
    """Rows of a schema with this id."""
    return [framed(number, OLD, {"id": row}) for row in range(rows)]


def avro(server, **options):
    return hr.Avro(OLD, registry=hr.SchemaRegistry(server.url, **options))


@pytest.mark.parametrize("form", FORMS)
def test_cancelled_requests_leave_their_rows_and_one_look_up(cluster, topic, form):
    send(cluster, topic, [numbered(7), []])

    async def work(door, server):
        async with stream_of(cluster, [(topic, 0)], value=avro(server)) as stream, heartbeat() as beats:
            ((_, flow),) = await flows_of(stream, form, 1)
            asking = asyncio.create_task(anext_of(flow))
            await until(lambda: server.seen)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext_of(flow), 0.1)
            assert_free(beats, 3)
            assert [path for path, _ in server.seen] == ["/schemas/ids/7"]
            assert await committed(cluster, topic) == [None, None]
            door.open.set()
            batches = await read([(None, flow)], ROWS)
        return batches, await committed(cluster, topic)

    with closed() as (door, server):
        batches, offsets = bounded(work(door, server))
        assert len(server.seen) == 1
    assert offsets_of(batches, 0) == list(range(ROWS))
    assert offsets == [ROWS, None]


@pytest.mark.parametrize("ending", ["stop", "leave"])
def test_who_waits_for_a_schema_is_let_go(cluster, topic, ending):
    send(cluster, topic, [numbered(7), []])

    async def work(door, server):
        before = asyncio.all_tasks()
        async with stream_of(cluster, [(topic, 0)], value=avro(server)) as stream:
            flow = stream.__aiter__()
            waiting = asyncio.create_task(anext_of(flow))
            await until(lambda: server.seen)
            if ending == "stop":
                stream.stop()
                with pytest.raises(StopAsyncIteration):
                    await waiting
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert asyncio.all_tasks() == before
        assert not door.open.is_set()
        door.open.set()
        assert await committed(cluster, topic) == [None, None]

    with closed() as (door, server):
        bounded(work(door, server))


@pytest.mark.parametrize("form", ["plain", "committable", "partitions", "map of plain"])
def test_rows_come_again_when_the_registry_does(cluster, topic, form):
    send(cluster, topic, [numbered(7), []])

    async def work(server):
        batches, failures = [], 0
        async with stream_of(cluster, [(topic, 0)], value=avro(server, deadline=0.3)) as stream:
            ((_, flow),) = await flows_of(stream, form, 1)
            while failures < 2:
                with pytest.raises(SchemaRegistryUnavailableError):
                    await anext_of(flow)
                failures += 1
            server.said[:] = [ANSWER]
            while sum(batch.num_rows for batch in batches) < ROWS:
                try:
                    batches.append(batch_of(await anext_of(flow)))
                except SchemaRegistryUnavailableError:
                    # A map had asked before the registry answered.
                    failures += 1
        return batches, failures, await committed(cluster, topic)

    with answering((503, b"")) as server:
        batches, failures, offsets = bounded(work(server))
    assert failures <= 3
    assert offsets_of(batches, 0) == list(range(ROWS))
    assert offsets == [ROWS, None]


@pytest.mark.parametrize("form", ["plain", "committable", "at most once", "partitions"])
def test_a_missing_schema_holds_up_no_other_partition(cluster, topic, form):
    send(cluster, topic, [numbered(7), numbered(8)])

    async def work(door, server):
        known = avro(server)
        known.learn(pa.array(numbered(8, 1)))
        async with stream_of(cluster, topic, value=known) as stream:
            flows = await flows_of(stream, form)
            late = []
            if len(flows) > 1:
                waiting = asyncio.create_task(anext_of(flows[0][1]))
                await until(lambda: len(server.seen) == 2)
            free = await read(flows[-1:], ROWS)
            door.open.set()
            if len(flows) > 1:
                late.append(await waiting)
            return free, late + await read(flows[:1], ROWS - sum(batch.num_rows for batch in late))

    with closed() as (door, server):
        free, late = bounded(work(door, server))
    assert offsets_of(free, 1) == list(range(ROWS))
    assert offsets_of(free, 0) == []
    assert offsets_of(late, 0) == list(range(ROWS))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_pending_rows_go_with_their_partition(cluster, topic, assignor):
    """The first batch of each partition is handed out, the second waits for its schema while a partition goes."""
    send(cluster, topic, [[*numbered(8, 7), *numbered(7, ROWS)[7:]]] * PARTITIONS)
    options = {**group_of(topic), "partition_assignment_strategy": assignor}

    async def work(door, server):
        given, more = [], []

        async def go_on(flow):
            async for item in flow:
                more.append(batch_of(item))  # noqa: PERF401  (looked at meanwhile)

        async with stream_of(cluster, topic, value=avro(server), **options) as stream:
            flow = stream.committable()
            while sum(batch.num_rows for batch in given) < 7 * PARTITIONS:
                given.append(batch_of(await anext_of(flow)))
            reading = asyncio.create_task(go_on(flow))
            await until(lambda: any(path.endswith("/7") for path, _ in server.seen))
            options["enable_auto_commit"] = False
            async with hr.aio.Consumer(
                cluster.bootstrap_servers, max_poll_records=7, auto_offset_reset="latest", **options
            ) as other:
                await other.subscribe([topic])
                theirs = []
                while not theirs or len(stream.assignment()) != 1:
                    theirs += [batch for batch in [await other.poll(0.1)] if batch.num_rows]
                (kept,) = stream.assignment()
                assert not more, "what was pending has gone, or waits still"
                door.open.set()
                await until(lambda: sum(batch.num_rows for batch in more) == ROWS - 7)
            stream.stop()
            await reading
        return given, kept.partition, more, theirs

    with closed() as (door, server):
        given, kept, more, theirs = bounded(work(door, server))
    for partition in range(PARTITIONS):
        assert offsets_of(given, partition) == list(range(7))
    assert offsets_of(more, kept) == list(range(7, ROWS))
    assert offsets_of(more, 1 - kept) == []
    assert offsets_of(theirs, 1 - kept)[0] == 7, "nothing that was pending is committed"


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_nothing_pending_is_handed_out_while_the_group_waits(cluster, topic, assignor):
    """What is not done keeps the partitions here; what was pending by then is read by their next owner."""
    send(cluster, topic, [[*numbered(8, 7), *numbered(7, ROWS)[7:]]] * PARTITIONS)
    options = {**group_of(topic), "partition_assignment_strategy": assignor}

    async def work(door, server):
        more = []

        async def go_on(flow):
            async for item in flow:
                more.append(item.batch)  # noqa: PERF401  (looked at meanwhile)

        async with stream_of(cluster, topic, value=avro(server), revoke_wait_ms=60_000, **options) as stream:
            flow = stream.committable()
            held = [await anext_of(flow) for _ in range(PARTITIONS)]
            reading = asyncio.create_task(go_on(flow))
            await until(lambda: len(stream._pending.look_ups(None)) == PARTITIONS)
            async with hr.aio.Consumer(cluster.bootstrap_servers, **options) as other:
                await other.subscribe([topic])
                joining = asyncio.create_task(other.poll(30))
                await until(stream._native.parts_going)
                going = [stream._parts[number].name.partition for number in stream._native.parts_going()]
                look_ups = stream._pending.look_ups(None)
                door.open.set()
                await asyncio.wait(look_ups, return_when=asyncio.ALL_COMPLETED)
                await asyncio.sleep(0.3)
                assert not any(offsets_of(more, partition) for partition in going)
                for item in held:
                    item.done()
                await until(lambda: len(stream.assignment()) == 1)
                joining.cancel()
            stream.stop()
            await reading
        return going

    with closed() as (door, server):
        assert len(bounded(work(door, server))) == (PARTITIONS if assignor == "range" else 1)


class Cutting(hr.Text):
    """Decodes three rows at a time, as if more were too large for a column."""

    def column(self, rows, *more):
        return super().column(rows[:3], *more)


# A map asks for more than it is asked for, which is committed at most once.
@pytest.mark.parametrize("form", [form for form in FORMS if form != "map of at most once"])
def test_a_cut_batch_is_committed_as_far_as_it_was_handed_out(cluster, topic, form):
    send(cluster, topic, [[b"%d" % number for number in range(ROWS)]])

    async def work():
        batches, offsets = [], []
        for count in (1, 2, ROWS - 6):
            async with stream_of(cluster, [(topic, 0)], value=Cutting()) as stream:
                ((_, flow),) = await flows_of(stream, form, 1)
                batches += await read([(None, flow)], count)
            offsets += [(await committed(cluster, topic))[0]]
        return batches, offsets

    batches, offsets = bounded(work())
    assert [batch.num_rows for batch in batches[:5]] == [3, 3, 3, 3, 1]
    assert offsets_of(batches, 0) == list(range(ROWS))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == [str(n) for n in range(ROWS)]
    assert offsets == [3, 6, ROWS]


class Dicey(hr.Text):
    """Cuts where it likes, looks schemas up that it knew a moment ago, and has a registry that comes and goes."""

    def __init__(self, dice):
        super().__init__()
        self.dice = dice
        self.looked_up = 0

    def lacks(self, _rows, *_more):
        return self.dice.random() < 0.3

    def column(self, rows, *more):
        if threading.current_thread() is not threading.main_thread():
            self.looked_up += 1
            time.sleep(self.dice.random() / 500)
            if self.dice.random() < 0.3:
                raise SchemaRegistryUnavailableError("gone for a moment")
        return super().column(rows[: self.dice.randrange(1, 9)], *more)


class Readers:
    """Tasks that read a stream: some of their requests are cancelled, some fail."""

    def __init__(self, dice, count):
        self.dice, self.count = dice, count
        self.batches, self.cancelled, self.failed = [], 0, 0

    @property
    def are_done(self):
        return sum(batch.num_rows for batch in self.batches) == self.count

    async def ask(self, flow):
        try:
            item = await anext_of(flow)
        except SchemaRegistryUnavailableError:
            self.failed += 1
        else:
            # In the order in which they are handed out, as nothing is awaited in between.
            self.batches.append(batch_of(item))

    async def read(self, flow):
        while not self.are_done:
            task = asyncio.ensure_future(self.ask(flow))
            if self.dice.random() < 0.3:
                for _ in range(self.dice.randrange(6)):
                    await asyncio.sleep(0)
            else:
                while not (task.done() or self.are_done):  # noqa: ASYNC110  (another task may take the last rows)
                    await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait((task,))
            self.cancelled += task.cancelled()
            if not task.cancelled():
                task.result()


@pytest.mark.parametrize("form", ["plain", "committable", "at most once", "committable partitions"])
@pytest.mark.parametrize("seed", range(5))
def test_each_row_comes_once_and_in_order_whatever_happens(embedded_broker, topic, form, seed):
    cluster, rows = Cluster("embedded", embedded_broker.bootstrap_servers), 5 * ROWS
    send(cluster, topic, [[b"%d" % number for number in range(rows)]] * PARTITIONS)
    dice = random.Random(seed)
    text, readers = Dicey(dice), Readers(dice, PARTITIONS * rows)
    tasks = 3 if "committable" in form else 1

    async def work():
        async with stream_of(cluster, topic, value=text) as stream:
            flows = [flow for _, flow in await flows_of(stream, form)]
            await asyncio.gather(*(readers.read(flow) for flow in flows * tasks))
            if form == "plain":
                stream.stop()
                with pytest.raises(StopAsyncIteration):
                    await anext_of(flows[0])
        return await committed(cluster, topic)

    offsets = bounded(work())
    for partition in range(PARTITIONS):
        assert offsets_of(readers.batches, partition) == list(range(rows))
    for batch in readers.batches:
        assert batch["value"].to_pylist() == [str(offset) for offset in batch["offset"].to_pylist()]
    assert offsets == [rows] * PARTITIONS
    assert readers.cancelled
    assert readers.failed
    assert text.looked_up > readers.failed


def test_a_row_whose_schema_is_registered_later_is_read_then(cluster, topic, monkeypatch):
    monkeypatch.setattr(registered, "_ABSENT_S", 0.0)
    send(cluster, topic, [[*numbered(8, 3), *numbered(7, ROWS)[3:]], []])

    def answer(handler):
        if handler.path.endswith("/8"):
            door(handler)
        else:
            handler.send_error(404)

    async def work(server):
        async with stream_of(cluster, topic, value=avro(server)) as stream:
            flow = stream.__aiter__()
            batches, (error, *_) = await until_raised(flow)
            server.said[:] = [ANSWER]
            return batches, error, await read([(None, flow)], ROWS - 3)

    door = Door()
    with answering(answer) as server:
        batches, error, late = bounded(work(server))
    assert "schema id 7 is not known" in str(error)
    assert error.offset == 3
    assert offsets_of(batches + late, 0) == list(range(ROWS))


class Pretended:
    """Columns of which each batch needs a look-up; `answers` says how each ends, by its first row. A row "x" is bad."""

    def __init__(self):
        self.lacking = True
        self.answers = {}
        self.asked = []
        self.may_end = threading.Event()

    def lacks(self, _batches):
        return self.lacking

    def decoded(self, batch):
        self.may_end.wait(30)
        names = batch["value"].to_pylist()
        self.asked.append(names[0])
        if names[0] in self.answers:
            raise self.answers[names[0]]
        if "x" not in names:
            return batch, None
        at = names.index("x")
        return batch.slice(0, at), Stop(("t", 0), at, DecodeError("bad"))


def pretended(bad=()):
    columns = Pretended()
    pending = Pending(columns)
    parts = {name: Part(number, hr.TopicPartition("t", number)) for number, name in enumerate("abcd")}
    for name, part in parts.items():
        batch = pa.record_batch({"value": [name, "x"] if name in bad else [name]})
        assert pending.take_in(part, batch, 1, -1) is None
    return columns, pending, parts


async def looked_up(pending, parts):
    """What comes of each partition's rows."""
    found = {}
    for name, part in parts.items():
        await asyncio.wait(pending.look_ups(part))
        try:
            found[name] = pending.next(part, ())
        except SchemaRegistryError as error:
            found[name] = error
    return found


def test_one_look_up_is_for_all_and_what_is_refused_fails_alone():
    async def work():
        columns, pending, parts = pretended()
        refused, down = SchemaRegistryError("who are you"), SchemaRegistryUnavailableError("no answer")
        columns.answers = {"b": refused, "c": down, "d": SchemaRegistryUnavailableError("asked in vain again")}
        columns.may_end.set()
        found = await looked_up(pending, parts)
        assert found["a"].batch["value"].to_pylist() == ["a"]
        assert (found["b"], found["c"], found["d"]) == (refused, down, down)
        assert columns.asked == ["a", "b", "c"], "d would have been asked for in vain"
        assert [part for part in parts.values() if pending.has(part)] == [parts["b"], parts["c"], parts["d"]]
        columns.answers = {}
        del parts["a"]
        assert all(pending.next(part, ()) is None for part in parts.values()), "they are looked up once more"
        assert [work.batch["value"].to_pylist() for work in (await looked_up(pending, parts)).values()] == [
            ["b"],
            ["c"],
            ["d"],
        ]
        assert not pending.has(None)

    bounded(work())


def test_what_is_bad_comes_before_what_others_have():
    async def work():
        columns, pending, parts = pretended("c")
        columns.may_end.set()
        await asyncio.wait(pending.look_ups(None), return_when=asyncio.ALL_COMPLETED)
        columns.lacking = False
        assert pending.next(parts["c"], ()).batch["value"].to_pylist() == ["c"]
        for of in (None, None, parts["c"]):
            with pytest.raises(DecodeError):
                pending.next(of, ())
        assert pending.next(parts["a"], ()).batch["value"].to_pylist() == ["a"]
        pending.remove(parts["c"])
        assert pending.next(None, ()).part is parts["b"]

    bounded(work())


def test_nothing_pending_is_handed_out_of_partitions_that_go():
    async def work():
        columns, pending, parts = pretended()
        columns.may_end.set()
        await asyncio.wait(pending.look_ups(None), return_when=asyncio.ALL_COMPLETED)
        assert pending.next(parts["a"], {0, 1}) is None
        assert pending.next(None, {0, 1}).part is parts["c"]
        pending.remove(parts["a"])
        assert [pending.next(None, ()).part for _ in range(2)] == [parts["b"], parts["d"]]
        assert pending.next(None, ()) is None

    bounded(work())


def test_a_stream_asks_for_its_columns_when_it_is_entered(cluster, topic, registry):
    send(cluster, topic, orders(registry, topic))
    down = hr.SchemaRegistry("http://127.0.0.1:1", deadline=0.1)

    async def work():
        with pytest.raises(SchemaRegistryUnavailableError):
            async with stream_of(cluster, topic, value=hr.Avro(down)):
                pass
        with pytest.raises(SchemaRegistryError, match=f"{topic}-key") as caught:
            async with stream_of(cluster, [(topic, 0)], key=hr.Avro(registry)):
                pass
        assert caught.value.status == 404
        with pytest.raises(ConfigError, match="subject"):
            async with stream_of(cluster, [(topic, 0), (f"{topic}-2", 0)], value=hr.Avro(registry)):
                pass
        options = {"start_offsets": lambda _: {(topic, 1): ROWS - 1}, "value": hr.Avro(registry)}
        async with stream_of(cluster, [(topic, 1)], **options) as stream:
            assert stream.schema.field("value").type == TYPE
            assert (await anext_of(stream.__aiter__()))["value"].to_pylist() == [expected(ROWS - 1)]

    bounded(work())
    with pytest.raises(ConfigError, match="value takes a format, such as headrace"):
        hr.aio.Stream(cluster.bootstrap_servers, topic, value="avro")
