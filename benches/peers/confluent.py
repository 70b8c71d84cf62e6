"""confluent-kafka: messages, and the same built into Arrow, tuned as the C tool is."""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benches.peers.meter import Meter, Sample, arguments
from benches.peers.rdkafka import CONSUMER, PRODUCER

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


def consume(bootstrap: str, topic: str, partitions: int, records: int, *, arrow: bool) -> Sample:
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
        batch = to_arrow(messages) if arrow else None
        seen += len(messages)
        if not meter.running:
            meter.start()
        else:
            meter.count(len(messages), batch.column("value").nbytes if batch is not None else 0)
    sample = meter.sample()
    consumer.close()
    return sample


def produce(bootstrap: str, topic: str, records: int, *, size: int, batch_bytes: int) -> Sample:
    """`produce` for every record, the way its users write it."""
    settings = {"bootstrap.servers": bootstrap, "acks": "1", "batch.size": batch_bytes}
    producer = Producer({**settings, **PRODUCER, "queue.buffering.max.messages": 1_000_000})
    value = b"x" * size
    meter = Meter()
    meter.start()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    if producer.flush(TIMEOUT_SECONDS) != 0:
        raise RuntimeError("not everything was delivered")
    meter.count(records, records * size)
    return meter.sample()


def main() -> None:
    """Entry point."""
    o = arguments(__doc__, "consume", "consume-arrow", "produce")
    if o.what == "produce":
        sample = produce(o.bootstrap, o.topic, o.records, size=o.size, batch_bytes=o.batch_bytes)
    else:
        sample = consume(o.bootstrap, o.topic, o.partitions, o.records, arrow=o.what == "consume-arrow")
    print(sample.line())


if __name__ == "__main__":
    main()
