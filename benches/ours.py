"""headrace as the benches run it: consume to Arrow, produce from Arrow."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

import headrace as hr
from benches.peers import orders
from benches.peers.meter import Meter, Sample, arguments
from headrace import cli

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from headrace._options import OptionValue
    from headrace.values import Format

BATCH_ROWS = 20_000
TIMEOUT_SECONDS = 30.0


def consume(bootstrap: str, topic: str, partitions: int, records: int, value: Format | None = None) -> Sample:
    """One pass over a topic, every batch a `pyarrow.RecordBatch`; offsets are checked to be without a gap."""
    positions = dict.fromkeys(range(partitions), 0)
    meter = Meter()
    seen = 0
    with hr.Consumer(bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, value=value) as consumer:
        consumer.assign([(topic, number) for number in range(partitions)])
        while seen < records:
            batch = consumer.poll(timeout=TIMEOUT_SECONDS, max_records=None)
            rows = batch.num_rows
            if rows == 0:
                raise RuntimeError(f"nothing for {TIMEOUT_SECONDS} s after {seen} of {records} records")
            offsets = batch.column("offset")
            partition = batch.column("partition")[0].as_py()
            assert offsets[0].as_py() == positions[partition], "a gap in the offsets"
            positions[partition] = offsets[rows - 1].as_py() + 1
            seen += rows
            if value is not None:  # it takes longer than a batch of bytes
                meter.largest = max(meter.largest, batch.nbytes)
            if not meter.running:
                meter.start()
            else:
                meter.count(rows, 0)
        sample = meter.sample()
    assert sum(positions.values()) == seen, "offsets and rows disagree"
    return sample


def read(bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
    """The same through `headrace.read`."""
    meter = Meter()
    for batch in hr.read(bootstrap, topic, partitions=range(partitions)):
        assert batch.num_rows
        if not meter.running:
            meter.start()
        else:
            meter.count(batch.num_rows, 0)
    sample = meter.sample()
    assert sample.records > records / 2, f"{sample.records} of {records} behind the first batch"
    return sample


def copy(bootstrap: str, topic: str, records: int) -> Sample:
    """``headrace copy`` to Parquet files, from its first connection to its last file."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        meter = Meter()
        meter.start()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            status = cli.main(["copy", "-b", bootstrap, topic, f"parquet:{folder}"])
        meter.count(records, 0)
        sample = meter.sample()
        assert status == 0
        assert sum(parquet.read_metadata(path).num_rows for path in Path(folder).glob("*.parquet")) == records
    return sample


def mixed(size: int) -> pa.RecordBatch:
    """Values that compress as logs do: half of each is the same in all, half is drawn from 16 digits."""
    draw = random.Random(1)
    rows = min(BATCH_ROWS, max(1, (2 << 20) // size))
    values = [
        b"x" * (size - size // 2) + draw.randbytes(size // 4 + 1).hex()[: size // 2].encode() for _ in range(rows)
    ]
    return pa.record_batch({"value": pa.array(values, pa.binary()), "partition": pa.array([0] * rows, pa.int32())})


def block(size: int, partition: int = 0) -> pa.RecordBatch:
    """What one call of `send_arrow` takes: values of `size` bytes for one partition."""
    rows = min(BATCH_ROWS, max(1, (2 << 20) // size))
    values = pa.array([b"x" * size] * rows, pa.binary())
    return pa.record_batch({"value": values, "partition": pa.array([partition] * rows, pa.int32())})


def send_all(
    producer: hr.Producer, topic: str, batch: pa.RecordBatch, records: int, value: Format | None = None
) -> None:
    """Sends `batch` again and again until `records` are sent, and waits for the last acknowledgement."""
    left = records
    while left > 0:
        part = batch if left >= batch.num_rows else batch.slice(0, left)
        producer.send_arrow(topic, part, value=value)
        left -= part.num_rows
    producer.flush()


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    size: int,
    batch_bytes: int,
    in_flight: int = 5,
    connect_first: bool = False,
    compression: str = "none",
) -> Sample:
    """`send_arrow` of ready batches to partition 0, up to the last acknowledgement.

    With `connect_first` one record more is sent before the clock starts, so that connecting is not measured.
    """
    batch = block(size) if compression == "none" else mixed(size)
    options: dict[str, OptionValue] = {"acks": "1", "linger.ms": 5, "enable.idempotence": False}
    options |= {"batch.size": batch_bytes, "compression.type": compression}
    options |= {"max.in.flight.requests.per.connection": in_flight}
    meter = Meter()
    with hr.Producer(bootstrap, options) as producer:
        if connect_first:
            send_all(producer, topic, batch, 1)
        meter.start()
        send_all(producer, topic, batch, records)
        meter.count(records, records * size)
        return meter.sample()


def produce_block(
    bootstrap: str, topic: str, records: int, batch: pa.RecordBatch, value: Format | None = None
) -> Sample:
    """Sends a batch again and again, up to the last acknowledgement."""
    meter = Meter()
    with hr.Producer(bootstrap, acks="1", linger_ms=5, enable_idempotence=False, batch_size=128 << 10) as producer:
        meter.start()
        send_all(producer, topic, batch, records, value)
        meter.count(records, 0)
        return meter.sample()


def main() -> None:
    """Entry point."""
    made: dict[str, Callable[[argparse.Namespace], Sample]] = {
        "consume": lambda o: consume(o.bootstrap, o.topic, o.partitions, o.records),
        "consume-avro": lambda o: _consume_orders(o, hr.Avro(orders.SCHEMA, schemas={orders.ID: orders.SCHEMA})),
        "consume-json": lambda o: _consume_orders(o, hr.Json(orders.COLUMNS)),
        "consume-protobuf": lambda o: _consume_orders(o, hr.Protobuf(orders.PROTO, schemas={orders.ID: orders.PROTO})),
        "read": lambda o: read(o.bootstrap, o.topic, o.partitions, o.records),
        "copy": lambda o: copy(o.bootstrap, o.topic, o.records),
        "produce": _produce,
        "produce-avro": lambda o: produce_block(o.bootstrap, o.topic, o.records, orders.block()),
        "produce-json": lambda o: produce_block(o.bootstrap, o.topic, o.records, orders.json_block()),
        "produce-protobuf": lambda o: produce_block(o.bootstrap, o.topic, o.records, orders.protobuf_block()),
        "encode-avro": lambda o: produce_block(
            o.bootstrap, o.topic, o.records, orders.columns(), hr.Avro(orders.SCHEMA)
        ),
    }
    options = arguments(__doc__, *made)
    print(made[options.what](options).line())


def _consume_orders(options: argparse.Namespace, value: Format) -> Sample:
    return consume(options.bootstrap, options.topic, options.partitions, options.records, value)


def _produce(options: argparse.Namespace) -> Sample:
    limits = {"batch_bytes": options.batch_bytes, "in_flight": options.in_flight}
    more = {"connect_first": options.connect_first, "compression": options.compression}
    return produce(options.bootstrap, options.topic, options.records, size=options.size, **limits, **more)


if __name__ == "__main__":
    main()
