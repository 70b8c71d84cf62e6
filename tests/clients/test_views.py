"""Values as views: what is read is the same, and stays in the memory in which it arrived."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

import headrace as hr

ROWS = 6_000
SECONDS = 20.0


def written():
    """Values shorter and longer than what stands in a view, empty ones and nulls among them."""
    lengths = (0, 1, 11, 12, 13, 100, 1024)
    values = [str(row).zfill(5).encode() * 300 for row in range(ROWS)]
    return [None if row % 50 == 0 else value[: lengths[row % 7]] for row, value in enumerate(values)]


def read(bootstrap_servers, topic, value_type, start=0):
    """All batches from there on."""
    options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "value_type": value_type}
    batches = []
    with hr.Consumer(bootstrap_servers, **options) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), start)
        while consumer.position((topic, 0)) < ROWS:
            batch = consumer.poll(SECONDS)
            assert batch.num_rows, f"stands at {consumer.position((topic, 0))}"
            batches.append(batch)
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_rows_are_the_same_as_with_binary_and_outlive_the_consumer(cluster, topic, compression):
    cluster.create_topic(topic, 1)
    values = written()
    table = pa.table(
        {
            "key": pa.array([b"k" * (row % 40) if row % 3 else None for row in range(ROWS)], pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    with hr.Producer(cluster.bootstrap_servers, compression_type=compression, batch_size=100_000) as producer:
        producer.send_arrow(topic, table)
    copies = read(cluster.bootstrap_servers, topic, "binary")
    views = read(cluster.bootstrap_servers, topic, "binary_view")
    # The consumer that read them, and its memory for what arrives, are gone.
    gc.collect()
    views.validate(full=True)
    assert views.schema.field("value").type == pa.binary_view()
    assert views["value"].to_pylist() == values
    assert views.set_column(1, "value", views["value"].cast(pa.binary())).equals(copies)
    last = read(cluster.bootstrap_servers, topic, "binary_view", ROWS - 100).slice(90)
    del copies, views
    gc.collect()
    assert last["value"].to_pylist() == values[-10:]
    assert last["offset"].to_pylist() == list(range(ROWS - 10, ROWS))


def test_a_slice_is_good_while_its_consumer_reads_on(cluster, topic):
    cluster.create_topic(topic, 1)
    rows = 40_000
    values = [str(row).zfill(8).encode() * 50 for row in range(rows)]
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())}))
    kept = []
    with hr.Consumer(cluster.bootstrap_servers, value_type="binary_view", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        at = 0
        while at < rows:
            batch = consumer.poll(SECONDS, 500)
            assert batch.num_rows, f"stands at {at}"
            # One row of each batch; all else may be used again.
            kept.append((at, batch.slice(0, 1)))
            at += batch.num_rows
    del batch
    gc.collect()
    assert [row["value"].to_pylist() for _, row in kept] == [[values[at]] for at, _ in kept]
