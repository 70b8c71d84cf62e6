"""What the streaming source answers to Spark's questions, asked directly: admission, ends, losses."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import headrace as hr
from headrace.errors import ConfigError, KafkaTimeoutError, UnknownTopicOrPartitionError
from headrace.spark import clients
from headrace.spark.offsets import DataLossError, OffsetReader
from headrace.spark.options import source_options
from headrace.spark.planning import Range
from headrace.spark.source import BatchReader, StreamReader, read_range
from tests.spark.conftest import numbers, produce


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    clients.close_idle()


@pytest.fixture
def admin(cluster):
    with hr.Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def options(cluster, topic):
    def options(*, streaming=True, **more):
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **more}
        given = {name: value for name, value in given.items() if value is not None}
        return source_options(given, streaming=streaming)

    return options


@pytest.fixture
def reader(options):
    return lambda **more: StreamReader(options(**more))


def ranges(partitions) -> list[tuple[int, int, int]]:
    return [(p.value.partition, p.value.start, p.value.stop) for p in partitions]


def values(opts, partitions) -> list[int]:
    batches = [batch for p in partitions for batch in read_range(opts, p.value)]
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


def test_begins_at_the_end_by_default_and_where_it_is_told(cluster, topic, reader):
    cluster.create_topic(topic, 2)
    numbers(cluster, topic, range(10), partitions=2)
    assert reader().initialOffset() == {topic: {"0": 5, "1": 5}}
    assert reader(startingOffsets="earliest").initialOffset() == {topic: {"0": 0, "1": 0}}
    given = f'{{"{topic}":{{"0":3,"1":-2}}}}'
    assert reader(startingOffsets=given).initialOffset() == {topic: {"0": 3, "1": 0}}


def test_spark_asks_where_to_begin_more_than_once_and_hears_the_same(cluster, topic, reader):
    cluster.create_topic(topic)
    stream = reader()
    start = stream.initialOffset()
    numbers(cluster, topic, range(5))
    # The first micro-batch is empty: it puts the beginning into the checkpoint.
    assert stream.latestOffset(start, ReadAllAvailable()) == start == stream.initialOffset() == {topic: {"0": 0}}
    assert stream.partitions(start, start) == []
    end = stream.latestOffset(start, ReadAllAvailable())
    assert ranges(stream.partitions(start, end)) == [(0, 0, 5)]
    # Killed before the first micro-batch was committed: only its end is known to the next run.
    again = reader()
    assert again.initialOffset() == {topic: {"0": 5}}
    assert again.partitions(again.initialOffset(), start) == []
    end = again.latestOffset(start, ReadAllAvailable())
    assert ranges(again.partitions(start, end)) == [(0, 0, 5)]


def test_available_now_may_begin_behind_the_end_that_it_fixed(cluster, topic, reader):
    cluster.create_topic(topic)
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    numbers(cluster, topic, range(5))
    start = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(start, ReadAllAvailable()) == start == {topic: {"0": 5}}


def test_reads_all_that_is_there_unless_told_otherwise(cluster, topic, reader):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    stream = reader(startingOffsets="earliest")
    assert stream.getDefaultReadLimit() == ReadAllAvailable()
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end == stream.reportLatestOffset() == {topic: {"0": 10}}
    assert ranges(stream.partitions({topic: {"0": 0}}, end)) == [(0, 0, 10)]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert stream.partitions(end, end) == []


def test_max_offsets_per_trigger_is_shared_in_proportion(cluster, topic, reader):
    cluster.create_topic(topic, 2)
    produce(cluster, topic, [{"value": b"x", "partition": 0}] * 90 + [{"value": b"x", "partition": 1}] * 10)
    stream = reader(maxOffsetsPerTrigger="20")
    assert stream.getDefaultReadLimit() == ReadMaxRows(20)
    start = {topic: {"0": 0, "1": 0}}
    assert stream.latestOffset(start, ReadMaxRows(20)) == {topic: {"0": 18, "1": 2}}
    # Trigger.Once asks for all, whatever the options say.
    assert stream.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 90, "1": 10}}
    assert stream.reportLatestOffset() == {topic: {"0": 90, "1": 10}}


def test_min_offsets_per_trigger_waits_for_enough_or_for_the_delay(cluster, topic, reader, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("headrace.spark.source.time.monotonic", lambda: clock[0])
    cluster.create_topic(topic)
    stream = reader(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="15", maxTriggerDelay="30s")
    limit = stream.getDefaultReadLimit()
    numbers(cluster, topic, range(2))
    at = stream.latestOffset({topic: {"0": 0}}, limit)
    assert at == {topic: {"0": 2}}  # the first batch is made at once
    numbers(cluster, topic, range(9))
    clock[0] += 29.9
    assert stream.latestOffset(at, limit) is at
    clock[0] += 0.2
    at = stream.latestOffset(at, limit)
    assert at == {topic: {"0": 11}}
    numbers(cluster, topic, range(20))
    at = stream.latestOffset(at, limit)  # enough, so at once; and not more than the maximum
    assert at == {topic: {"0": 26}}
    assert stream.latestOffset(at, limit) is at
    assert stream.latestOffset(at, ReadAllAvailable()) == {topic: {"0": 31}}
    assert reader(minOffsetsPerTrigger="10").getDefaultReadLimit() == ReadMinRows(10)


def test_available_now_ends_where_the_topic_ended_and_warns_of_the_minimum(cluster, topic, reader, admin, caplog):
    cluster.create_topic(topic)
    reader(startingOffsets="earliest", maxOffsetsPerTrigger="500").prepareForTriggerAvailableNow()
    assert not caplog.messages
    numbers(cluster, topic, range(7))
    stream = reader(startingOffsets="earliest", minOffsetsPerTrigger="100", maxOffsetsPerTrigger="500")
    stream.prepareForTriggerAvailableNow()
    [warning] = caplog.messages
    assert "minOffsetsPerTrigger has no effect with Trigger.AvailableNow" in warning
    numbers(cluster, topic, range(50))
    admin.create_partitions(topic, 2)
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset({topic: {"0": 0}}, limit)
    assert end == {topic: {"0": 7}}
    assert stream.latestOffset(end, limit) == end


def test_a_partition_made_during_the_query_is_read_from_its_beginning(cluster, topic, reader, options, admin):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(3))
    stream = reader()
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert start == {topic: {"0": 3}}
    admin.create_partitions(topic, 2)
    wait_for_partitions(OffsetReader(options()), 2)
    produce(cluster, topic, [{"value": b"7", "partition": 1}] * 4)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 3, "1": 4}}
    tasks = stream.partitions(start, end)
    assert ranges(tasks) == [(1, 0, 4)]
    assert values(options(), tasks) == [7] * 4


def wait_for_partitions(offsets: OffsetReader, count: int) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        found = offsets.partitions()
        if len(found) == count:
            offsets.latest(found)
            return
        time.sleep(0.02)
    raise TimeoutError(f"{count} partitions never came")


def test_a_pattern_finds_topics_made_later_and_whole_names_only(cluster, topic, reader):
    cluster.create_topic(f"{topic}-a")
    cluster.create_topic(f"x{topic}-a")
    stream = reader(subscribe=None, subscribePattern=f"{topic}-.")
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert start == {f"{topic}-a": {"0": 0}}
    cluster.create_topic(f"{topic}-b")
    numbers(cluster, f"{topic}-b", range(5))
    assert stream.latestOffset(start, ReadAllAvailable()) == {f"{topic}-a": {"0": 0}, f"{topic}-b": {"0": 5}}


def test_assign_reads_what_it_names(cluster, topic, reader):
    cluster.create_topic(topic, 3)
    numbers(cluster, topic, range(6), partitions=3)
    assert reader(subscribe=None, assign=f'{{"{topic}":[2,0]}}').initialOffset() == {topic: {"0": 2, "2": 2}}
    with pytest.raises(UnknownTopicOrPartitionError, match=f"assign names {topic}-3, which is not there"):
        reader(subscribe=None, assign=f'{{"{topic}":[3]}}').initialOffset()


def test_an_unknown_topic_is_named_and_not_made(cluster, topic, reader, admin):
    with pytest.raises(UnknownTopicOrPartitionError, match=topic):
        reader().initialOffset()
    with pytest.raises(UnknownTopicOrPartitionError, match=topic):
        reader(failOnDataLoss="false").initialOffset()
    assert topic not in admin.list_topics()


def test_starting_offsets_outside_of_the_log_are_a_loss(cluster, topic, reader, admin):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    admin.delete_records({(topic, 0): 4})
    for at, nearest in ((3, 4), (11, 10)):
        given = f'{{"{topic}":{{"0":{at}}}}}'
        with pytest.raises(DataLossError, match=f"startingOffsets of {topic}-0 is {at}, but its records .* 4 to 10"):
            reader(startingOffsets=given).initialOffset()
        assert reader(startingOffsets=given, failOnDataLoss="false").initialOffset() == {topic: {"0": nearest}}


def test_bounds_must_name_all_partitions(cluster, topic, reader):
    cluster.create_topic(topic, 2)
    with pytest.raises(ConfigError, match=f"must name every partition .*: missing {topic}-1, not read {topic}-7"):
        reader(startingOffsets=f'{{"{topic}":{{"0":0,"7":0}}}}').initialOffset()


def test_times(cluster, topic, reader):
    cluster.create_topic(topic, 2, {"retention.ms": "-1"})  # or the broker deletes what is from 1970
    produce(cluster, topic, [{"value": b"x", "timestamp": 1000 * i, "partition": 0} for i in range(1, 6)])
    produce(cluster, topic, [{"value": b"x", "timestamp": 9000, "partition": 1}])
    assert reader(startingTimestamp="2500").initialOffset() == {topic: {"0": 2, "1": 0}}
    given = f'{{"{topic}":{{"0":5000,"1":0}}}}'
    assert reader(startingOffsetsByTimestamp=given).initialOffset() == {topic: {"0": 4, "1": 0}}
    with pytest.raises(ConfigError, match=f"no record of {topic}-0 is at or after 6000 ms"):
        reader(startingTimestamp="6000").initialOffset()
    late = reader(startingTimestamp="6000", startingOffsetsByTimestampStrategy="latest")
    assert late.initialOffset() == {topic: {"0": 5, "1": 0}}


def test_deleted_records_are_a_loss(cluster, topic, reader, options, admin, caplog):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    start, end = {topic: {"0": 2}}, {topic: {"0": 10}}
    tasks = reader().partitions(start, end)
    admin.delete_records({(topic, 0): 6})
    with pytest.raises(DataLossError, match=f"offsets 2 to 6 of {topic}-0 are gone: its log begins at 6"):
        values(options(), tasks)
    assert values(options(failOnDataLoss="false"), tasks) == [6, 7, 8, 9]
    assert "going on, as failOnDataLoss is false" in caplog.text
    admin.delete_records({(topic, 0): 10})
    assert values(options(failOnDataLoss="false"), tasks) == []


@pytest.mark.slow
def test_a_deleted_topic_is_a_loss(cluster, topic, reader, options, admin):
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-b")
    numbers(cluster, topic, range(4))
    numbers(cluster, f"{topic}-b", range(4))
    both = f"{topic},{topic}-b"
    start = {topic: {"0": 0}, f"{topic}-b": {"0": 0}}
    end = {topic: {"0": 4}, f"{topic}-b": {"0": 4}}
    tasks = reader(subscribe=both).partitions(start, end)
    admin.delete_topics([topic])
    with pytest.raises(DataLossError, match=f"topic {topic}, which has been read from, is gone"):
        reader(subscribe=both).latestOffset(start, ReadAllAvailable())
    going_on = reader(subscribe=both, failOnDataLoss="false")
    assert going_on.latestOffset(start, ReadAllAvailable()) == {f"{topic}-b": {"0": 4}}
    with pytest.raises(DataLossError, match=f"partitions {topic}-0 are gone"):
        reader(subscribe=both).partitions(start, {f"{topic}-b": {"0": 4}})
    # Tasks that were planned before the topic went.
    quick = {"subscribe": both, "kafkaConsumer.pollTimeoutMs": "400"}
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone, with its offsets 0 to 4"):
        values(options(**quick), tasks)
    assert values(options(**quick, failOnDataLoss="false"), tasks) == [0, 1, 2, 3]
    assert topic not in admin.list_topics()


def test_a_topic_made_again_is_a_loss(cluster, topic, reader, options, admin):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(3))
    start = {topic: {"0": 10}}
    stream = reader()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 3}}
    with pytest.raises(DataLossError, match=f"{topic}-0 has been read to 10 but ends at 3"):
        stream.partitions(start, end)
    going_on = reader(failOnDataLoss="false")
    assert going_on.partitions(start, end) == []
    numbers(cluster, topic, range(3, 5))
    later = going_on.latestOffset(end, ReadAllAvailable())
    assert values(options(), going_on.partitions(end, later)) == [3, 4]


def test_a_task_beyond_the_end_is_a_loss_and_not_a_long_wait(cluster, topic, options):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(5))
    quick = {"kafkaConsumer.pollTimeoutMs": "300"}
    with pytest.raises(DataLossError, match=f"offsets 5 to 8 of {topic}-0 are gone: its log ends at 5"):
        list(read_range(options(**quick), Range(topic, 0, 2, 8)))
    rows = [b.num_rows for b in read_range(options(**quick, failOnDataLoss="false"), Range(topic, 0, 2, 8))]
    assert sum(rows) == 3


def test_a_new_partition_that_lost_its_beginning_is_a_loss(cluster, topic, reader, admin):
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-b")
    numbers(cluster, f"{topic}-b", range(5))
    admin.delete_records({(f"{topic}-b", 0): 2})
    start, end = {topic: {"0": 0}}, {topic: {"0": 0}, f"{topic}-b": {"0": 5}}
    both = f"{topic},{topic}-b"
    with pytest.raises(DataLossError, match=f"the new partition {topic}-b-0 begins at 2, not at 0"):
        reader(subscribe=both).partitions(start, end)
    assert ranges(reader(subscribe=both, failOnDataLoss="false").partitions(start, end)) == [(0, 2, 5)]


def test_an_end_that_seems_to_go_back_is_asked_for_again(cluster, topic, options, monkeypatch):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(5))
    offsets = OffsetReader(options(**{"fetchOffset.retryIntervalMs": "1"}))
    answers = iter([{(topic, 0): 0}, {(topic, 0): 0}])
    real = OffsetReader._lookup
    monkeypatch.setattr(OffsetReader, "_lookup", lambda self, specs: next(answers, None) or real(self, specs))
    assert offsets.latest([(topic, 0)], read={(topic, 0): 4}) == {(topic, 0): 5}


def test_nobody_home(topic, options):
    alone = options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "400"})
    with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
        StreamReader(alone).initialOffset()


def test_batch_reads_end_where_the_topic_ended(cluster, topic, options):
    cluster.create_topic(topic, 2)
    numbers(cluster, topic, range(10), partitions=2)
    batch = BatchReader(options(streaming=False))
    tasks = batch.partitions()
    numbers(cluster, topic, range(10, 20), partitions=2)
    assert values(batch.options, tasks) == list(range(10))
    assert ranges(BatchReader(options(streaming=False, minPartitions="4")).partitions()) == [
        *((0, 0, 5), (0, 5, 10)),
        *((1, 0, 5), (1, 5, 10)),
    ]


def test_a_batch_beyond_the_log_fails_when_it_is_planned(cluster, topic, options):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(5))
    bounds = {"startingOffsets": f'{{"{topic}":{{"0":1}}}}', "endingOffsets": f'{{"{topic}":{{"0":9}}}}'}
    with pytest.raises(DataLossError, match=f"endingOffsets of {topic}-0 is 9, but its records .* 0 to 5"):
        BatchReader(options(streaming=False, **bounds)).partitions()
    assert ranges(BatchReader(options(streaming=False, failOnDataLoss="false", **bounds)).partitions()) == [(0, 1, 5)]


def test_what_travels_to_a_task_is_the_options_alone(cluster, topic, reader):
    cluster.create_topic(topic)
    stream = reader(maxOffsetsPerTrigger="5")
    stream.prepareForTriggerAvailableNow()
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 -- our own
    assert copy.options == stream.options
    assert copy._stop_at is None
    stream.stop()
    assert not clients._idle


# As Spark's own program does it, whose socket is closed when the query is stopped.
STOPPED = """
from headrace.spark.options import source_options
from headrace.spark.source import StreamReader

reader = StreamReader(source_options({{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}}, streaming=True))
try:
    try:
        raise {first}
    finally:
        reader.stop()
except Exception:
    raise {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "quiet"),
    [
        ("EOFError", "BrokenPipeError", True),
        ("BrokenPipeError", "BrokenPipeError", True),
        ("ConnectionResetError", "BrokenPipeError", True),
        ("EOFError", "ConnectionResetError", True),
        ("EOFError", "ValueError", False),
        ("ValueError", "BrokenPipeError", False),
    ],
)
def test_a_stopped_query_ends_without_a_traceback_unless_something_is_wrong(first, second, quiet):
    code = STOPPED.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert ("Traceback" not in done.stderr) is quiet, done.stderr
