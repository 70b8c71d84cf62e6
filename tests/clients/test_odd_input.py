"""Arguments that no caller should give, and moments at which none should call: an error that says so, and no harm."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

import headrace as hr
from headrace._commits import Commits
from headrace.errors import (
    ClosedError,
    ConfigError,
    InvalidRecordStateError,
    OffsetOutOfRangeError,
    SchemaError,
    UsageError,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def servers(embedded_broker):
    return embedded_broker.bootstrap_servers


@pytest.fixture
def ten(servers, topic):
    """A topic of one partition with ten records."""
    with hr.Producer(servers) as producer:
        producer.send_arrow(topic, pa.table({"value": [str(i) for i in range(10)]}))
    return topic


def count(servers, topic):
    return hr.read(servers, topic).read_all().num_rows


class Pair:
    """Speaks the interface for one array, with whatever capsules it is given."""

    def __init__(self, capsules):
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema=None):
        return self._capsules


def capsules():
    return pa.record_batch({"value": ["x"]}).__arrow_c_array__()


@pytest.mark.parametrize(
    "data",
    [
        pa.array([b"a column"]),
        pa.array([1, 2]),
        Pair((1, 2)),
        Pair(capsules()[:1]),
        Pair(None),
    ],
    ids=["binary", "int", "no-capsules", "half-a-pair", "nothing"],
)
def test_arrow_data_that_is_no_batch_is_refused(servers, ten, data):
    with hr.Producer(servers) as producer:
        with pytest.raises(TypeError, match=type(data).__name__):
            producer.send_arrow(ten, data)
        # The rows of an array of structs are as good as those of a batch.
        assert producer.send_arrow(ten, pa.array([{"value": b"row"}, None])[:1]).result(10) == 1
    assert count(servers, ten) == 11


# What lies beneath a null struct may be anything.
HOLES = pa.StructArray.from_arrays([pa.array([b"a", b"hidden", b"c"])], ["value"], mask=pa.array([False, True, False]))


@pytest.mark.parametrize(
    ("data", "where", "sent"),
    [
        (pa.array([{"value": b"row"}, None]), "row 1 of chunk 0", 0),
        (HOLES, "row 1 of chunk 0", 0),
        (HOLES.slice(1), "row 0 of chunk 0", 0),
        (pa.chunked_array([HOLES]), "row 1 of chunk 0", 0),
        (pa.chunked_array([HOLES.slice(2), HOLES.slice(0, 1), HOLES]), "row 1 of chunk 2", 2),
    ],
    ids=["array", "hidden-value", "slice", "stream", "third-chunk"],
)
@pytest.mark.parametrize("results", [False, True])
def test_a_row_that_is_null_as_a_whole_is_no_tombstone(servers, ten, data, where, sent, results):
    with hr.Producer(servers) as producer:
        with pytest.raises(SchemaError, match=f"{where}.* null as a whole"):
            producer.send_arrow(ten, data, results=results)
    assert hr.read(servers, ten).read_all()["value"].to_pylist()[10:] == [b"c", b"a"][:sent]

    async def work():
        async with hr.aio.Producer(servers) as producer:
            with pytest.raises(SchemaError, match=f"{where}.* null as a whole"):
                await producer.send_arrow(ten, data, results=results)

    asyncio.run(work())
    assert count(servers, ten) == 10 + 2 * sent


def test_what_a_batch_made_of_structs_says_of_null_rows_counts(servers, ten):
    """A batch knows no null rows: Arrow itself makes null columns of them, and those are the caller's words."""
    with hr.Producer(servers) as producer:
        for data in (
            pa.RecordBatch.from_struct_array(HOLES),
            pa.Table.from_struct_array(pa.chunked_array([HOLES])),
            pa.RecordBatchReader.from_batches(
                pa.schema([("value", pa.binary())]), [pa.RecordBatch.from_struct_array(HOLES)]
            ),
        ):
            assert producer.send_arrow(ten, data).result(10) == 3
    assert hr.read(servers, ten).read_all()["value"].to_pylist()[10:] == [b"a", None, b"c"] * 3


def test_a_stream_of_a_single_column_is_refused(servers, ten):
    with hr.Producer(servers) as producer, pytest.raises(ValueError, match="ChunkedArray is no stream of batches"):
        producer.send_arrow(ten, pa.chunked_array([[b"a column"]]))
    assert count(servers, ten) == 10


def test_capsules_are_taken_once(servers, ten):
    once = Pair(capsules())
    with hr.Producer(servers) as producer:
        assert producer.send_arrow(ten, once).result(10) == 1
        with pytest.raises(ValueError, match="taken before"):
            producer.send_arrow(ten, once)
    assert count(servers, ten) == 11


def test_a_bad_chunk_leaves_those_before_it_on_their_way(servers, ten):
    good = pa.record_batch({"value": ["x"] * 5, "partition": [0] * 5})
    bad = pa.record_batch({"value": ["y"] * 5, "partition": [0, 0, 0, 0, -1]})
    with hr.Producer(servers) as producer:
        with pytest.raises(SchemaError, match=r"partition.*row 4"):
            producer.send_arrow(ten, pa.Table.from_batches([good, bad]))
    assert hr.read(servers, ten).read_all()["value"].to_pylist()[10:] == [b"x"] * 5


def test_sliced_dictionary_and_chunked_columns_keep_their_rows(servers, topic):
    n = 100
    table = pa.table(
        {
            "key": pa.array([None if i % 3 == 0 else str(i) for i in range(n)]).dictionary_encode(),
            "value": pa.array([None if i % 7 == 0 else f"v{i}" for i in range(n)], pa.string_view()),
            "headers": [None if i % 5 == 0 else [{"key": "h", "value": b"%d" % i}] * (i % 3) for i in range(n)],
            "timestamp": pa.array([i * 1000 for i in range(n)], pa.timestamp("us", "UTC")),
        }
    )
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    config = {"retention.ms": "-1"}
    with hr.Admin(servers) as admin, hr.Producer(servers) as producer:
        admin.create_topic(topic, 1, config=config)
        assert producer.send_arrow(topic, table.slice(13, 50)).result(10) == 50
        assert producer.send_arrow(topic, chunked.slice(3, 60)).result(10) == 60
    got = hr.read(servers, topic, include_headers=True).read_all()
    expected = table.slice(13, 50).to_pylist() + table.slice(3, 60).to_pylist()
    for row, sent in zip(got.to_pylist(), expected, strict=True):
        for name in ("key", "value"):
            assert row[name] == (None if sent[name] is None else sent[name].encode())
        assert row["timestamp"] == sent["timestamp"]
        assert (row["headers"] or []) == (sent["headers"] or [])


def test_a_limit_of_no_records_is_refused(servers, ten):
    with hr.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(ten, 0)])
        for poll in (consumer.poll, consumer.poll_all):
            with pytest.raises(ValueError, match="zero"):
                poll(1.0, 0)
            with pytest.raises(OverflowError, match="negative"):
                poll(1.0, -1)
        assert consumer.poll(10.0, 10).num_rows == 10


def test_a_start_behind_the_end_of_the_log_is_told(servers, ten):
    for start in (11, {0: 11}):
        with pytest.raises(OffsetOutOfRangeError, match=rf"{ten}.*11.*ends at 10") as caught:
            hr.read(servers, ten, start=start)
        assert (caught.value.topic, caught.value.partition) == (ten, 0)
    assert hr.read(servers, ten, start=10).read_all().num_rows == 0
    # A range that is empty by itself names no offset that must be there.
    assert hr.read(servers, ten, start=11, end=5).read_all().num_rows == 0


@pytest.mark.parametrize("before_ms", [1, 2, 3, 10, 10**12])
def test_a_time_before_1970_is_before_all_records(servers, ten, before_ms):
    time_of_old = EPOCH - timedelta(milliseconds=before_ms)
    assert hr.read(servers, ten, start=time_of_old).read_all().num_rows == 10
    assert hr.read(servers, ten, end=time_of_old).read_all().num_rows == 0


def test_no_record_is_older_than_1970(servers, topic):
    with hr.Producer(servers) as producer:
        for old in (-1, -5, EPOCH - timedelta(seconds=1)):
            with pytest.raises(UsageError, match=rf"{topic}.*before 1970"):
                producer.send(topic, b"x", timestamp=old)
        assert producer.send(topic, b"x", timestamp=EPOCH).result(10).timestamp == 0


def test_a_negative_offset_is_not_committed(servers, ten):
    group = f"g-{ten}"
    with hr.Admin(servers) as admin:
        admin.alter_group_offsets(group, {(ten, 0): 7})
        with pytest.raises(UsageError, match=f"{ten}-0.*negative"):
            admin.alter_group_offsets(group, {(ten, 0): -5})
        assert admin.group_offsets(group) == {(ten, 0): 7}


def test_a_name_alone_is_one_name_and_not_its_letters(servers, topic):
    with hr.Admin(servers) as admin:
        admin.create_topics(topic)
        admin.create_topics(["a", "b"])
        try:
            assert list(admin.describe_topics(topic)) == [topic]
            admin.create_topics("ab")
            admin.delete_topics("ab")
            assert {"a", "b"} <= set(admin.list_topics())
        finally:
            admin.delete_topics(["a", "b"])


def test_a_producer_that_nobody_holds_sends_what_it_took(servers, topic):
    producer = hr.Producer(servers, linger_ms=200)
    futures = [producer.send(topic, b"x") for _ in range(100)]
    del producer
    gc.collect()
    assert [future.result(10).offset for future in futures] == list(range(100))
    assert hr.Producer(servers).send(topic, b"chained").result(10).offset == 100


def test_a_failed_close_is_told_once(topic):
    with hr.Broker.start() as broker:
        producer = hr.Producer(broker.bootstrap_servers)
        producer.send(topic, b"x").result(10)
    producer.send(topic, b"y")
    with pytest.raises(hr.KafkaError):
        producer.close(timeout=0.5)
    producer.close()


def test_a_callback_may_close_its_producer(servers, topic):
    producer = hr.Producer(servers)
    outcome = []

    def close(future):
        try:
            producer.close()
            outcome.append(future.result().offset)
        except BaseException as error:  # noqa: BLE001  (a panic is none of Exception)
            outcome.append(error)

    producer.send(topic, b"x").add_done_callback(close)
    deadline = time.monotonic() + 10
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.01)
    assert outcome == [0]
    producer.close()


def test_closing_under_load_ends_every_sender(servers, topic):
    producer = hr.Producer(servers)
    producer.send(topic, b"first").result(10)
    futures, errors = [], []

    def work():
        try:
            while True:
                futures.append(producer.send(topic, b"x"))
        except hr.KafkaError as error:
            errors.append(error.name)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    producer.close()
    for thread in threads:
        thread.join(10)
    assert errors == ["CLIENT_CLOSED"] * 3
    # What was taken before is written; what the close overtook has failed; nothing is left open.
    written = sum(future.exception(10) is None for future in futures)
    assert written == count(servers, topic) - 1 > 0


def test_threads_that_poll_one_consumer_at_once_are_refused_and_lose_nothing(servers, topic):
    with hr.Producer(servers, batch_size=1000) as producer:
        producer.send_arrow(topic, pa.table({"value": [str(i) for i in range(5000)]}))
    seen, refused = [], []
    with hr.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])

        def work():
            while len(seen) < 5000:
                try:
                    batch = consumer.poll(2.0, 10)
                except UsageError as error:
                    refused.append(str(error))
                    time.sleep(0.001)
                else:
                    seen.extend(batch["offset"].to_pylist())

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert all("another thread" in why for why in refused)
    assert sorted(seen) == list(range(5000))


def test_an_error_in_a_with_block_is_the_one_that_comes_out(servers, ten):
    with pytest.raises(RuntimeError, match="user"), hr.Consumer(servers, group_id=f"g-{ten}") as consumer:
        consumer.subscribe([ten])
        consumer.poll(2.0)
        message = "user"
        raise RuntimeError(message)
    with pytest.raises(hr.KafkaError, match="closed"):
        consumer.poll(0.1)


ROW = {
    "topic": ["t"],
    "partition": pa.array([0], pa.int32()),
    "offset": pa.array([5], pa.int64()),
    "delivery_count": pa.array([1], pa.int16()),
}
ROWS = pa.table(ROW)


@pytest.fixture
def share(servers):
    """A share consumer that nobody has given anything: our broker has no share groups."""
    with hr.ShareConsumer(servers, group_id="g", share_acknowledgement_mode="explicit") as consumer:
        yield consumer


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (pa.array([1]), "have columns; those of Int64Array"),
        (Pair((1, 2)), "have columns; those of Pair"),
        ({"offset": 1}, "not dict"),
        (ROWS.to_pylist(), "not list"),
        (pa.Table.from_arrays([*ROWS.columns, ROWS["topic"]], [*ROW, "topic"]), "several columns topic"),
        (pa.table(ROW | {"partition": ["one"]}), "column partition: values of string"),
        (pa.table(ROW | {"partition": [2**40]}), "column partition: .*not in range"),
        (pa.table(ROW | {"partition": [0.5]}), "column partition: .*truncated"),
        (pa.table(ROW | {"offset": pa.array([None], pa.int64())}), "column offset .* has nulls"),
        (pa.table(ROW | {"topic": pa.array([None], pa.string())}), "column topic .* has nulls"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_names_no_rows_is_not_acknowledged(share, rows, text):
    with pytest.raises(UsageError, match=text):
        share.acknowledge(rows)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (None, "not NoneType"),
        (True, "not bool"),
        (b"accept", "b'accept' is no type"),
        ("ACCEPT", "'ACCEPT' is no type"),
        (0, "0 is no type"),
        (hr.AcknowledgeType, "not EnumType|not EnumMeta"),
        ({}, "0 values for 1 rows"),
        (pa.array([[1]]), "no string"),
        (pa.array([2**40]), "not in range"),
        ([0], "0 is no type"),
    ],
)
def test_what_is_no_acknowledgement_is_refused(share, how, text):
    with pytest.raises(UsageError, match=text):
        share.acknowledge(ROWS, how)


@pytest.mark.parametrize(
    "how", [2, ["release"], [True], pa.array([b"accept"]), pa.array(["reject"]).dictionary_encode()]
)
@pytest.mark.parametrize("rows", [ROWS, ROWS.to_reader, pa.table(ROW | {"offset": [2**63 - 1]})], ids=["t", "r", "max"])
def test_rows_that_nobody_holds_are_not_acknowledged(share, rows, how):
    with pytest.raises(InvalidRecordStateError, match="1 of the rows are not held"):
        share.acknowledge(rows() if callable(rows) else rows, how)


def test_a_share_consumer_that_is_closed_or_has_no_topics(servers):
    share = hr.ShareConsumer(servers, group_id="g", share_acknowledgement_mode="explicit")
    with pytest.raises(UsageError, match="call subscribe"):
        share.poll(0.1)
    assert share.commit() == {}
    share.subscribe(["a", "b", "a"])
    assert share.subscription() == ["a", "b"]
    share.unsubscribe()
    for poll in (share.poll, share.poll_all):
        with pytest.raises(ValueError, match="zero"):
            poll(0, 0)
        with pytest.raises(OverflowError, match="negative"):
            poll(0, -1)
    with pytest.raises(TypeError, match="int cannot be"):
        share.commit_async(5)
    share.close()
    share.close()
    calls = (share.poll, share.poll_all, share.commit, share.commit_async, share.unsubscribe)
    for call in (*calls, lambda: share.subscribe(["t"]), lambda: share.acknowledge(ROWS)):
        with pytest.raises(ClosedError):
            call()
    assert (share.assignment(), share.decisions()) == ([], [])


@pytest.mark.parametrize("tells", [lambda all_: all_.ended(lambda: (7, "done"))[0], lambda all_: all_.pop(7)])
def test_a_commit_that_has_ended_before_its_number_is_known_is_told_all_the_same(tells):
    commits = Commits()
    commits.begin(lambda: 3, "of another")
    with ThreadPoolExecutor(1) as pool:
        reported = []

        def send():
            reported.append(pool.submit(tells, commits))
            # It would have failed by now, or waits.
            wait(reported, timeout=0.1)
            return 7

        commits.begin(send, "mine")
        assert reported[0].result(30) == "mine"
    assert commits.ended(lambda: None) is None


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"error_cb": print}, "errors are raised by the calls"),
        ({"on_delivery": print}, "send gives a future"),
        ({"value_serializer": str}, "there are no serializers"),
        ({"linger_ms": print}, "it takes a whole number"),
    ],
)
def test_a_function_where_another_client_takes_one(option, why):
    with pytest.raises(ConfigError, match=why):
        hr.Producer("127.0.0.1:1", **option)


def test_what_users_of_other_clients_give_is_answered_by_a_sentence(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin, hr.Consumer(servers, group_id=topic) as consumer:
        with pytest.raises(UsageError, match=r"headrace\.NewTopic\(name, num_partitions\), not a tuple"):
            admin.create_topics([(topic, 2, 1)])  # type: ignore[list-item]
        admin.create_topics([topic])
        consumer.assign([(topic, 0)])
        tp = hr.TopicPartition(topic, 0)
        for call in (consumer.pause, consumer.resume, consumer.committed, consumer.end_offsets, consumer.assign):
            with pytest.raises(UsageError, match=rf"{call.__name__} takes partitions in a list"):
                call(tp)
        for wrong in ([tp], consumer.poll(0)):
            with pytest.raises(UsageError, match="offsets are given by partition"):
                consumer.commit(wrong)
        assert consumer.end_offsets([tp]) == {tp: 0}
