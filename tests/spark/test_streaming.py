"""`spark.readStream.format("headrace")`: micro-batches, checkpoints, restarts, losses."""

from __future__ import annotations

import json
import time

import pytest

import headrace as hr
from tests.kafka.cluster import Cluster
from tests.spark.conftest import numbers, threads

pytestmark = pytest.mark.spark


class Stream:
    """A query over one topic that keeps what each micro-batch brought, and can be started again on its checkpoint."""

    def __init__(self, spark, cluster, topic, folder) -> None:
        self.spark = spark
        self.cluster = cluster
        self.options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[int]] = {}
        self.fail_at: int | None = None

    @property
    def values(self) -> list[int]:
        return sorted(value for batch in self.batches.values() for value in batch)

    def take(self, frame, batch_id) -> None:
        rows = [int(row.value) for row in frame.select("value").collect()]
        if batch_id == self.fail_at:
            raise RuntimeError(f"batch {batch_id} fails after it was read")
        # A batch that is run again replaces what its first run brought: Spark promises the same rows.
        self.batches[batch_id] = rows

    def start(self, trigger=None, **options):
        reader = self.spark.readStream.format("headrace").options(**{**self.options, **options})
        writer = reader.load().writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def drain(self, **options):
        """Reads all that is there now, and ends."""
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(60)
        return query

    def offsets(self) -> list[dict]:
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


@pytest.fixture
def stream(spark, cluster, topic, tmp_path):
    return Stream(spark, cluster, topic, tmp_path)


@pytest.fixture
def ours(spark, embedded_broker, topic, tmp_path):
    """The same where one broker will do."""
    return Stream(spark, Cluster("embedded", embedded_broker.bootstrap_servers), topic, tmp_path)


def wait_until(condition, query, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, f"not in {seconds} s: {query.status}"
        time.sleep(0.05)


def test_available_now_in_limited_batches_then_more_after_a_restart(stream, cluster, topic):
    cluster.create_topic(topic, 2)
    numbers(cluster, topic, range(50), partitions=2)
    query = stream.drain(startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert [len(stream.batches[i]) for i in range(3)] == [20, 20, 10]
    assert stream.values == list(range(50))
    assert stream.offsets()[-1] == {topic: {"0": 25, "1": 25}}
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == {topic: {"0": 25, "1": 25}}
    numbers(cluster, topic, range(50, 70), partitions=2)
    # A restart goes on at the checkpoint, whatever startingOffsets says.
    stream.drain(startingOffsets="earliest")
    assert stream.values == list(range(70))
    stream.drain()
    assert stream.values == list(range(70))


def test_runs_on_and_finds_new_partitions(stream, cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(5))
    query = stream.start()  # streaming begins at the end
    try:
        wait_until(stream.offsets, query)
        numbers(cluster, topic, range(5, 10))
        wait_until(lambda: stream.values == list(range(5, 10)), query)
        with hr.Admin(cluster.bootstrap_servers) as admin:
            admin.create_partitions(topic, 2)
        cluster_ready(cluster, topic, 2)
        numbers(cluster, topic, range(10, 20), partitions=2)
        wait_until(lambda: stream.values == list(range(5, 20)), query)
    finally:
        query.stop()
    assert stream.offsets()[-1] == {topic: {"0": 15, "1": 5}}


def cluster_ready(cluster, topic, partitions) -> None:
    deadline = time.monotonic() + 15
    with hr.Admin(cluster.bootstrap_servers) as admin:
        while len(admin.describe_topics([topic])[topic].partitions) < partitions:
            assert time.monotonic() < deadline
        admin.list_offsets({(topic, p): "latest" for p in range(partitions)})


def test_a_batch_that_failed_is_read_again_as_it_was(stream, cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(30))
    stream.fail_at = 1
    query = stream.start({"availableNow": True}, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    with pytest.raises(Exception, match="batch 1 fails"):
        query.awaitTermination(60)
    assert stream.values == list(range(10))
    numbers(cluster, topic, range(30, 40))
    stream.fail_at = None
    stream.drain(maxOffsetsPerTrigger="25")
    # Its end is in the checkpoint: neither the new limit nor the new records change it.
    assert stream.batches[1] == list(range(10, 20))
    assert stream.values == list(range(40))


def test_killed_between_the_plan_and_the_commit(ours, topic):
    ours.cluster.create_topic(topic)
    numbers(ours.cluster, topic, range(30))
    ours.drain(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    # What a kill leaves: the plan of the last batch is written, its commit is not.
    for file in ("2", ".2.crc"):
        (ours.checkpoint / "commits" / file).unlink(missing_ok=True)
    first = ours.batches.pop(2)
    numbers(ours.cluster, topic, range(30, 35))
    ours.drain()
    assert ours.batches[2] == first == list(range(20, 30))
    assert ours.values == list(range(35))


def test_killed_before_the_first_batch_was_committed(ours, topic):
    """The beginning was the end of the topic; it must not have moved when the query comes back."""
    ours.cluster.create_topic(topic)
    numbers(ours.cluster, topic, range(5))
    ours.drain()
    assert ours.offsets() == [{topic: {"0": 5}}]
    for file in ("0", ".0.crc"):
        (ours.checkpoint / "commits" / file).unlink(missing_ok=True)
    numbers(ours.cluster, topic, range(5, 12))
    ours.drain()
    assert ours.values == list(range(5, 12))


def test_killed_before_the_plan_was_written(ours, topic):
    ours.cluster.create_topic(topic)
    numbers(ours.cluster, topic, range(20))
    ours.drain(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    for folder in ("commits", "offsets"):
        for file in ("1", ".1.crc"):
            (ours.checkpoint / folder / file).unlink(missing_ok=True)
    del ours.batches[1]
    ours.drain()
    assert ours.values == list(range(20))


def test_a_checkpoint_in_the_form_of_sparks_own_connector(ours, topic):
    ours.cluster.create_topic(topic, 2)
    numbers(ours.cluster, topic, range(20), partitions=2)
    ours.drain(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    # As the connector writes it: no spaces.
    last = max((ours.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    *head, offset = last.read_text().splitlines()
    last.write_text("\n".join([*head, json.dumps(json.loads(offset), separators=(",", ":"))]))
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    numbers(ours.cluster, topic, range(20, 30), partitions=2)
    ours.drain()
    assert ours.values == list(range(30))


def test_min_offsets_per_trigger_waits(ours, topic):
    ours.cluster.create_topic(topic)
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", "startingOffsets": "earliest"}
    numbers(ours.cluster, topic, range(3))
    query = ours.start(**options)
    try:
        wait_until(lambda: ours.values == list(range(3)), query)
        numbers(ours.cluster, topic, range(3, 9))
        time.sleep(1)
        assert ours.values == list(range(3))
        numbers(ours.cluster, topic, range(9, 13))
        wait_until(lambda: ours.values == list(range(13)), query)
    finally:
        query.stop()


def test_lost_records_fail_the_query_or_are_passed_over(ours, topic):
    ours.cluster.create_topic(topic)
    numbers(ours.cluster, topic, range(10))
    ours.drain(startingOffsets="earliest")
    numbers(ours.cluster, topic, range(10, 20))
    with hr.Admin(ours.cluster.bootstrap_servers) as admin:
        admin.delete_records({(topic, 0): 15})
    query = ours.start({"availableNow": True})
    with pytest.raises(Exception, match=f"offsets 10 to 15 of {topic}-0 are gone.*failOnDataLoss=false"):
        query.awaitTermination(60)
    ours.drain(failOnDataLoss="false")
    assert ours.values == [*range(10), *range(15, 20)]


def test_a_deleted_topic_fails_the_query_or_is_passed_over(ours, topic):
    ours.cluster.create_topic(topic)
    ours.cluster.create_topic(f"{topic}-b")
    numbers(ours.cluster, topic, range(5))
    ours.options["subscribe"] = f"{topic},{topic}-b"
    ours.drain(startingOffsets="earliest")
    with hr.Admin(ours.cluster.bootstrap_servers) as admin:
        admin.delete_topics([topic])
    numbers(ours.cluster, f"{topic}-b", range(5, 8))
    query = ours.start()
    with pytest.raises(Exception, match=f"topic {topic}, which has been read from, is gone"):
        query.awaitTermination(60)
    ours.drain(failOnDataLoss="false")
    assert ours.values == list(range(8))
    assert ours.offsets()[-1] == {f"{topic}-b": {"0": 3}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, r"minOffsetsPerTrigger \(5\) is greater"),
    ],
)
def test_what_only_a_stream_refuses(ours, topic, options, message):
    ours.cluster.create_topic(topic)
    with pytest.raises(Exception, match=message):
        ours.drain(**options)


def test_micro_batches_reuse_a_workers_client(ours, spark, topic):
    ours.cluster.create_topic(topic)
    query = ours.start(startingOffsets="earliest")
    seen = []
    try:
        for i in range(4):
            numbers(ours.cluster, topic, range(i, i + 1))
            wait_until(lambda: ours.values == list(range(i + 1)), query)  # noqa: B023 -- called at once
            seen.append({(pid, thread) for pid, ids in threads(spark).items() for thread in ids})
    finally:
        query.stop()
    # The same process and the same thread in it: the driver's admin client and a worker's reader.
    assert len(set.intersection(*seen[1:])) >= 2
    assert len(set.union(*seen[1:])) <= len(seen[1]) + 2


def test_a_stopped_query_leaves_no_admin_client(ours, spark, topic):
    ours.cluster.create_topic(topic)
    before = set(threads(spark))
    query = ours.start()
    wait_until(ours.offsets, query)
    query.stop()
    deadline = time.monotonic() + 20
    while set(threads(spark)) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(threads(spark)) - before == set()
