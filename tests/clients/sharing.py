"""What tests of share consumers share: a group's settings, records to read, and polls until they are there."""

from __future__ import annotations

import time

import pyarrow as pa

import headrace as hr

SECONDS_MAX = 40


def configure(admin, group, config):
    """Sets a group's settings, and waits until they hold: brokers hear of what the controller has taken a bit later."""
    admin.alter_group_config(group, config)
    wait_until(lambda: config.items() <= admin.describe_group_config(group).items())


def begins_at_the_beginning(admin, group, **settings):
    config = {f"share.{name.replace('_', '.')}": value for name, value in settings.items()}
    configure(admin, group, {"share.auto.offset.reset": "earliest", **config})
    return group


def produce(servers, topic, values, partition=0):
    with hr.Producer(servers) as producer:
        values = list(values)
        numbers = pa.array([partition] * len(values), pa.int32())
        producer.send_arrow(topic, pa.table({"value": values, "partition": numbers})).result(SECONDS_MAX)


def numbered(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def joined(servers, group, topic, **options):
    consumer = hr.ShareConsumer(servers, group_id=group, **options)
    consumer.subscribe([topic])
    return consumer


def rows_of(consumer, count, act=None):
    """So many rows, from as many polls as it takes; `act` is called with each batch."""
    batches = []
    deadline = time.monotonic() + SECONDS_MAX
    while (found := sum(batch.num_rows for batch in batches)) < count:
        assert time.monotonic() < deadline, f"{found} of {count} rows"
        batch = consumer.poll(0.5)
        if batch.num_rows:
            batches.append(batch)
            if act is not None:
                act(batch)
    return pa.Table.from_batches(batches)


def wait_until(condition):
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def nothing_left(admin, group, topic):
    """All that was written has been accepted or rejected."""
    wait_until(lambda: getattr(admin.share_group_offsets(group).get((topic, 0)), "lag", None) == 0)
