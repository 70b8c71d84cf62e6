"""Fetch answers that are damaged on their way, from our broker and from Apache Kafka: typed errors, nothing lost.

A proxy before the broker writes lies over one batch of what the broker sends, so that a broker with a good disk seems
to have a bad one, and heals it again.
"""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ProtocolError, RecordError
from tests.broker import test_damaged_batches
from tests.broker.raw import Connection, batch, record
from tests.broker.test_damaged_batches import UNREADABLE, VALUE
from tests.clients.helpers import bounded
from tests.clients.spoiler import FETCH, Spoiler
from tests.clients.spoiler import UNREADABLE as BROKEN

LIES = {
    **test_damaged_batches.LIES,
    "end-beyond-the-log": batch([VALUE], last_delta=2**30, crc=1),
    "end-within-the-next": batch([VALUE], last_delta=1, crc=1),
}
ON_ITS_WAY = ["wrong-crc", "end-beyond-the-log", "end-within-the-next"]
"""Those whose checksum is wrong."""
CHECKSUM_WRONG = [LIES[name] for name in ON_ITS_WAY]
BAD_AT = 2
ROWS = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
AROUND = [row for row in ROWS if row != (0, BAD_AT)]
BEFORE = [row for row in AROUND if row < (0, BAD_AT) or row[0] == 1]
PLAIN_MAX = 256 << 20
"""What a batch may have once decompressed."""


def now_ms():
    """Records of long ago would go by retention."""
    return int(time.time() * 1000)


def bomb():
    """A batch whose one record would take more than it may."""
    packed = pa.compress(record(0, bytes(PLAIN_MAX + 1)), codec="zstd", asbytes=True)
    return batch([b""], attributes=4, body=packed)


def good_of(size):
    """A batch of one record and so many bytes."""
    batches = (batch([b"x" * (size - less)], timestamp=now_ms()) for less in range(60, 90))
    return next(one for one in batches if len(one) == size)


class Damage:
    """Five records of partition 0 in three batches, the second of one record; two of partition 1."""

    def __init__(self, cluster, topic, good):
        self.good = good
        now = now_ms()
        batches = {0: [batch([b"a", b"b"], timestamp=now), self.good, batch([b"c", b"d"], timestamp=now)]}
        batches[1] = [batch([b"e", b"f"], timestamp=now)]
        cluster.create_topic(topic, 2)
        with Connection(cluster.bootstrap_servers) as connection:
            for partition, several in batches.items():
                for one in several:
                    assert connection.produce(topic, one, partition) == 0

    def written_as(self, lie):
        """What makes this of the batch in an answer: its base offset and leader epoch are the broker's."""

        def change(frame):
            at = frame.find(self.good[16:]) - 16
            if at < 0:
                return frame
            spoiled = bytearray(frame)
            for place in (*range(8, 12), *range(16, len(lie))):
                spoiled[at + place] = lie[place]
            return bytes(spoiled)

        return change


@pytest.fixture
def spoiler(cluster):
    with Spoiler(cluster.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def damage(cluster, topic):
    return Damage(cluster, topic, batch([VALUE], timestamp=now_ms()))


def consumer(spoiler, topic, **options):
    one = hr.Consumer(
        spoiler.address, group_id=f"g-{topic}", auto_offset_reset="earliest", enable_auto_commit=False, **options
    )
    one.assign([(topic, 0), (topic, 1)])
    return one


def rows_of(rows):
    return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def read(one, count, errors=0):
    """Rows, sorted, and errors, until there are so many of both."""
    rows, reported = [], []
    deadline = time.monotonic() + 60
    while len(rows) < count or len(reported) < errors:
        assert time.monotonic() < deadline, (rows, reported)
        try:
            rows += rows_of(one.poll(1.0))
        except hr.KafkaError as error:
            reported.append(error)
    return sorted(rows), reported


def check_bad(reported, topic):
    for error in reported:
        assert isinstance(error, RecordError), repr(error)
        assert (error.topic, error.partition, error.offset) == (topic, 0, BAD_AT)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [*LIES.values(), *UNREADABLE.values()], ids=[*LIES, *UNREADABLE])
def test_a_damaged_batch_is_named_and_comes_whole_after_a_seek(cluster, spoiler, damage, topic, lie):
    spoiler.rewrite(FETCH, damage.written_as(lie))
    with consumer(spoiler, topic) as one:
        rows, reported = read(one, len(BEFORE), errors=2)
        assert rows == BEFORE
        check_bad(reported, topic)
        assert one.position((topic, 0)) == BAD_AT
        one.commit()
        assert one.committed([(topic, 0), (topic, 1)]) == {(topic, 0): BAD_AT, (topic, 1): 2}
        with Connection(cluster.bootstrap_servers) as connection:
            assert connection.produce(topic, batch([b"later"], timestamp=now_ms()), 1) == 0
        assert read(one, 1)[0] == [(1, 2)], "the other partition goes on"
        spoiler.rewrite(FETCH, None)
        one.seek((topic, 0), BAD_AT)
        rows, reported = read(one, 3)
        assert (rows, reported) == ([(0, 2), (0, 3), (0, 4)], [])


@pytest.mark.parametrize("value_type", ["binary", "binary_view"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_damaged_batch_can_be_left_out_alone(spoiler, damage, topic, lie, value_type, caplog):
    spoiler.rewrite(FETCH, damage.written_as(lie))
    with consumer(spoiler, topic, on_bad_records="skip", value_type=value_type) as one:
        assert read(one, len(AROUND)) == (AROUND, [])
        assert one.position((topic, 0)) == 5
    messages = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    (reported,) = [message for message in messages if "on.bad.records" in message]
    # With a checksum that is right it was not damaged on its way.
    assert len(messages) == 1 + (lie in CHECKSUM_WRONG), messages
    assert f"offset {BAD_AT}" in reported
    table = hr.read(spoiler.address, topic, on_bad_records="skip").read_all()
    assert sorted(rows_of(table)) == AROUND


class Once:
    """Changes the first answer that it can change, and no other."""

    def __init__(self, change):
        self._change = change
        self.done = False

    def __call__(self, frame):
        spoiled = frame if self.done else self._change(frame)
        self.done |= spoiled != frame
        return spoiled


ONCE = [("error", name) for name in [*LIES, *UNREADABLE]] + [("skip", name) for name in [*ON_ITS_WAY, *UNREADABLE]]


@pytest.mark.parametrize(("on_bad", "name"), ONCE)
def test_a_batch_that_is_damaged_once_on_its_way_costs_nothing(spoiler, damage, topic, name, on_bad, caplog):
    lie = {**LIES, **UNREADABLE}[name]
    spoils = Once(damage.written_as(lie))
    spoiler.rewrite(FETCH, spoils)
    with consumer(spoiler, topic, on_bad_records=on_bad) as one:
        assert read(one, len(ROWS)) == (ROWS, [])
        assert spoils.done
        assert [one.position((topic, number)) for number in range(2)] == [5, 2]
    reported = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    # A batch that the answer does not have all of may be cut off by a limit.
    assert len(reported) == (name != "length-beyond-the-file"), reported
    assert all("fetched once more over a new connection" in message for message in reported)
    spoils = Once(damage.written_as(lie))
    spoiler.rewrite(FETCH, spoils)
    assert sorted(rows_of(hr.read(spoiler.address, topic, on_bad_records=on_bad).read_all())) == ROWS
    assert spoils.done


@pytest.mark.parametrize("face", ["consumer", "aio", "stream"])
def test_an_error_that_lasts_is_not_raised_as_fast_as_the_caller_asks(  # noqa: C901  (one loop for each face)
    spoiler, damage, topic, face
):
    spoiler.rewrite(FETCH, damage.written_as(LIES["wrong-crc"]))
    # Once for each of these waits, so within this test once.
    options = {"auto_offset_reset": "earliest", "retry_backoff_max_ms": 600_000}

    async def polled(one):
        await one.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(RecordError):
                while True:
                    await one.poll(1.0)
            for _ in range(3):
                assert (await one.poll(0.1)).num_rows == 0
            one.seek((topic, 0), BAD_AT)

    async def streamed():
        async with hr.aio.Stream(spoiler.address, [(topic, 0)], **options) as stream:
            with pytest.raises(RecordError):
                while True:
                    await anext(aiter(stream))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(aiter(stream)), 0.3)

    async def awaited():
        async with hr.aio.Consumer(spoiler.address, **options) as one:
            await polled(one)

    if face != "consumer":
        return bounded(awaited() if face == "aio" else streamed())
    with hr.Consumer(spoiler.address, **options) as one:
        one.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(RecordError):
                while True:
                    one.poll(1.0)
            for _ in range(3):
                assert one.poll(0.1).num_rows == 0
            one.seek((topic, 0), BAD_AT)
    return None


@pytest.mark.parametrize("lie", UNREADABLE.values(), ids=UNREADABLE)
def test_a_batch_without_bounds_cannot_be_left_out(spoiler, damage, topic, lie):
    spoiler.rewrite(FETCH, damage.written_as(lie))
    with consumer(spoiler, topic, on_bad_records="skip") as one:
        rows, reported = read(one, len(BEFORE), errors=1)
        assert rows == BEFORE
        check_bad(reported, topic)
    with pytest.raises(RecordError, match=topic):
        hr.read(spoiler.address, topic, on_bad_records="skip").read_all()


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_a_decompression_bomb_does_not_go_off(cluster, spoiler, topic, skip):
    lie = bomb()
    assert len(lie) < 100_000
    damage = Damage(cluster, topic, good_of(len(lie)))
    spoiler.rewrite(FETCH, damage.written_as(lie))
    with consumer(spoiler, topic, on_bad_records="skip" if skip else "error") as one:
        rows, reported = read(one, len(AROUND if skip else BEFORE), errors=int(not skip))
        assert rows == (AROUND if skip else BEFORE)
        check_bad(reported, topic)
        assert one.position((topic, 0)) == (5 if skip else BAD_AT)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*BROKEN, "cut", "silence"])
def test_an_answer_that_cannot_be_read_costs_no_row(cluster, spoiler, damage, topic, way):
    """Told where it cannot be read; where it breaks off or does not come it is only asked for again."""
    with consumer(spoiler, topic, request_timeout_ms=1500) as one:
        spoiler.spoil(FETCH, way, way)
        rows, reported = read(one, len(ROWS))
        # Of one whose size is a lie all can be read, and that it does not end is found with the next.
        with Connection(cluster.bootstrap_servers) as connection:
            assert connection.produce(topic, batch([b"later"], timestamp=now_ms()), 1) == 0
        more, told_then = read(one, 1)
        assert rows + more == [*ROWS, (1, 2)], "each once"
        assert spoiler.left(FETCH) == 0
        reported += told_then
        assert all(isinstance(error, ProtocolError) for error in reported), reported
        assert len(reported) <= 2
        if way in BROKEN:
            assert reported
        assert [one.position((topic, number)) for number in range(2)] == [5, 3]


async def awaited(ask, count, errors):
    """As `read`, of what a coroutine gives."""
    rows, reported = [], []
    while len(rows) < count or len(reported) < errors:
        try:
            rows += rows_of(await ask())
        except RecordError as error:
            reported.append(error)
    return sorted(rows), reported


@pytest.mark.parametrize("on_bad", ["error", "skip"])
@pytest.mark.parametrize("face", ["consumer", "stream"])
def test_a_damaged_batch_comes_out_of_asyncio_too(spoiler, damage, topic, face, on_bad):
    spoiler.rewrite(FETCH, damage.written_as(LIES["wrong-crc"]))
    options = {"auto_offset_reset": "earliest", "on_bad_records": on_bad}
    partitions = [(topic, 0), (topic, 1)]
    count, errors = (len(AROUND), 0) if on_bad == "skip" else (len(BEFORE), 2)

    async def polled():
        async with hr.aio.Consumer(spoiler.address, **options) as one:
            await one.assign(partitions)
            return await awaited(one.poll, count, errors)

    async def streamed():
        async with hr.aio.Stream(spoiler.address, partitions, **options) as stream:
            return await awaited(aiter(stream).__anext__, count, errors)

    rows, reported = bounded(polled() if face == "consumer" else streamed())
    assert rows == (AROUND if on_bad == "skip" else BEFORE)
    check_bad(reported, topic)
