"""confluent-kafka: messages, and the same built into Arrow, tuned as the C tool is."""

from __future__ import annotations

import json
import tempfile
from itertools import cycle, islice, repeat
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyarrow import parquet

from benches.peers import orders
from benches.peers.meter import Meter, Sample, arguments
from benches.peers.rdkafka import CONSUMER, PRODUCER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BATCH_RECORDS = 20_000
TIMEOUT_SECONDS = 30.0


def to_arrow(messages: list[Message]) -> pa.RecordBatch:
    """The columns that our consumer gives, without headers."""
    stamps = [message.timestamp() for message in messages]
    return pa.record_batch(
        {
            "key": pa.array([message.key() for message in messages], pa.binary()),
            "value": pa.array([message.value() for message in messages], pa.binary()),
            "topic": pa.array([message.topic() for message in messages], pa.string()),
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": pa.array([stamp[1] * 1000 for stamp in stamps], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([stamp[0] - 1 for stamp in stamps], pa.int32()),
        }
    )


def deserializer(topic: str) -> Callable[[list[Message]], pa.RecordBatch]:
    """Orders to Arrow, with a registry in this process that is never asked twice."""
    registry = SchemaRegistryClient.new_client({"url": "mock://orders"})
    assert registry.register_schema(f"{topic}-value", Schema(orders.TEXT, "AVRO")) == orders.ID
    to_dict, context = AvroDeserializer(registry), SerializationContext(topic, MessageField.VALUE)
    return lambda messages: pa.RecordBatch.from_pylist([to_dict(message.value(), context) for message in messages])


def from_protobuf(topic: str) -> Callable[[list[Message]], pa.RecordBatch]:
    """Orders to Arrow, from the messages that ProtobufDeserializer makes."""
    to_message = ProtobufDeserializer(orders.message_class(), {"use.deprecated.format": False})
    context = SerializationContext(topic, MessageField.VALUE)
    enum = orders.message_class().DESCRIPTOR.fields_by_name["channel"].enum_type.values_by_number

    def build(messages: list[Message]) -> pa.RecordBatch:
        found = [to_message(message.value(), context) for message in messages]
        columns = {name: [getattr(one, name) for one in found] for name in orders.COLUMNS.names}
        for name in ("note", "discount"):
            columns[name] = [getattr(one, name) if one.HasField(name) else None for one in found]
        columns["channel"] = [enum[number].name for number in columns["channel"]]
        return pa.RecordBatch.from_pydict(columns)

    return build


def from_json(loads: Callable[[bytes], object]) -> Callable[[list[Message]], pa.RecordBatch]:
    """Orders to Arrow, by one of Python's readers of JSON."""
    return lambda messages: pa.RecordBatch.from_pylist(
        [loads(message.value() or b"") for message in messages], schema=orders.COLUMNS
    )


def consume(
    bootstrap: str, topic: str, partitions: int, records: int, build: Callable[[list[Message]], pa.RecordBatch] | None
) -> Sample:
    """One pass over a topic."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    meter = Meter()
    seen = 0
    while seen < records:
        # It waits for as many as it is asked for: never more than there are.
        messages = consumer.consume(min(BATCH_RECORDS, records - seen), TIMEOUT_SECONDS)
        if not messages:
            raise RuntimeError(f"nothing for {TIMEOUT_SECONDS} s after {seen} of {records} records")
        if messages[0].error():
            raise RuntimeError(str(messages[0].error()))
        batch = build(messages) if build else None
        seen += len(messages)
        if not meter.running:
            meter.start()
        else:
            meter.count(len(messages), batch.nbytes if batch is not None else 0)
    sample = meter.sample()
    consumer.close()
    return sample


def copy(bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
    """Records to a Parquet file, the way its users write it: a table of each block of messages; ours has this codec."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    meter = Meter()
    meter.start()
    consumer = Consumer({**settings, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    with tempfile.NamedTemporaryFile() as file:
        writer = None
        while meter.records < records:
            messages = consumer.consume(min(BATCH_RECORDS, records - meter.records), TIMEOUT_SECONDS)
            if not messages or messages[0].error():
                raise RuntimeError(f"nothing after {meter.records} of {records} records")
            batch = to_arrow(messages)
            writer = writer or parquet.ParquetWriter(file.name, batch.schema, compression="zstd")
            writer.write_batch(batch)
            meter.count(len(messages), 0)
        assert writer is not None
        writer.close()
        sample = meter.sample()
        consumer.close()
    return sample


def send_all(producer: Producer, topic: str, values: Iterable[bytes | None]) -> None:
    """`produce` for every record, the way its users write it, and the last acknowledgement."""
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=0)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    if producer.flush(TIMEOUT_SECONDS) != 0:
        raise RuntimeError("not everything was delivered")


def produce(bootstrap: str, topic: str, records: int, *, size: int, batch_bytes: int) -> Sample:
    """`produce` for every record, the way its users write it."""
    settings = {"bootstrap.servers": bootstrap, "acks": "1", "batch.size": batch_bytes}
    producer = Producer({**settings, **PRODUCER, "queue.buffering.max.messages": 1_000_000})
    value = b"x" * size
    meter = Meter()
    meter.start()
    send_all(producer, topic, repeat(value, records))
    meter.count(records, records * size)
    return meter.sample()


def produce_orders(bootstrap: str, topic: str, records: int) -> Sample:
    """Orders that are dicts at first, through AvroSerializer, up to the last acknowledgement."""
    registry = SchemaRegistryClient.new_client({"url": "mock://orders"})
    serialized, context = AvroSerializer(registry, orders.TEXT), SerializationContext(topic, MessageField.VALUE)
    settings = {"bootstrap.servers": bootstrap, "acks": "1", "batch.size": 128 << 10}
    producer = Producer({**settings, **PRODUCER, "queue.buffering.max.messages": 1_000_000})
    given = list(orders.orders())
    meter = Meter()
    meter.start()
    send_all(producer, topic, (serialized(order, context) for order in islice(cycle(given), records)))
    meter.count(records, 0)
    return meter.sample()


def main() -> None:
    """Entry point."""
    o = arguments(
        __doc__,
        *("consume", "consume-arrow", "consume-avro", "consume-json", "consume-orjson", "consume-protobuf"),
        *("produce", "produce-avro", "copy"),
    )
    if o.what == "produce":
        sample = produce(o.bootstrap, o.topic, o.records, size=o.size, batch_bytes=o.batch_bytes)
    elif o.what == "copy":
        sample = copy(o.bootstrap, o.topic, o.partitions, o.records)
    elif o.what == "produce-avro":
        sample = produce_orders(o.bootstrap, o.topic, o.records)
    else:
        builders: dict[str, Callable[[], Callable[[list[Message]], pa.RecordBatch] | None]] = {
            "consume": lambda: None,
            "consume-arrow": lambda: to_arrow,
            "consume-avro": lambda: deserializer(o.topic),
            "consume-json": lambda: from_json(json.loads),
            "consume-orjson": lambda: from_json(orjson.loads),
            "consume-protobuf": lambda: from_protobuf(o.topic),
        }
        build = builders[o.what]()
        sample = consume(o.bootstrap, o.topic, o.partitions, o.records, build)
    print(sample.line())


if __name__ == "__main__":
    main()
