"""What a consumer says of itself in numbers."""

from __future__ import annotations

import pytest

import headrace as hr

ROWS = 300
DISCARDED = "fetch-cache-bytes-discarded"


@pytest.fixture
def filled(cluster, topic):
    cluster.create_topic(topic, 2)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for offset in range(ROWS):
            producer.send(topic, b"%d" % offset, partition=offset % 2)
    return topic


@pytest.fixture
def consumer(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False) as one:
        yield one


def read(consumer, count):
    rows = 0
    while rows < count:
        batch = consumer.poll(20.0, count - rows)
        assert batch.num_rows, f"{rows} of {count}"
        rows += batch.num_rows


def test_rows_fetches_and_lag_are_counted(consumer, filled):
    before = consumer.metrics()
    assert before["records-consumed-total"] == before["fetch-total"] == before["assigned-partitions"] == 0
    assert "last-poll-seconds-ago" not in before
    assert "records-lag-max" not in before
    consumer.assign([(filled, 0), (filled, 1)])
    read(consumer, ROWS - 10)
    half = consumer.metrics()
    lags = [half[f"records-lag-{filled}-{number}"] for number in range(2)]
    assert (half["records-consumed-total"], sum(lags), half["records-lag-max"]) == (ROWS - 10, 10, max(lags))
    assert half["fetch-cache-bytes"] > 0
    read(consumer, 10)
    done = consumer.metrics()
    assert (done["records-consumed-total"], done["records-lag-max"], done["fetch-cache-bytes"]) == (ROWS, 0, 0)
    assert done["fetch-total"] >= 1
    assert done["bytes-consumed-total"] > ROWS * 10
    assert done["assigned-partitions"] == 2
    assert done["last-poll-seconds-ago"] >= 0
    assert done["fetch-cache-total-bytes"] > 0
    assert done[f"{DISCARDED}-total"] == 0


def test_what_is_dropped_is_told_with_the_reason_and_a_pause_drops_nothing(consumer, filled):
    consumer.assign([(filled, 0)])
    read(consumer, 10)
    held = consumer.metrics()["fetch-cache-bytes"]
    assert held > 0
    consumer.pause([(filled, 0)])
    assert consumer.poll(0.2).num_rows == 0
    consumer.resume([(filled, 0)])
    paused = consumer.metrics()
    assert (paused["fetch-cache-bytes"], paused[f"{DISCARDED}-total"]) == (held, 0)
    # While it is paused nothing is fetched anew.
    consumer.pause([(filled, 0)])
    consumer.seek((filled, 0), 0)
    sought = consumer.metrics()
    assert (sought[f"{DISCARDED}-seek-total"], sought["fetch-cache-bytes"]) == (held, 0)
    consumer.resume([(filled, 0)])
    read(consumer, 10)
    held_again = consumer.metrics()["fetch-cache-bytes"]
    assert held_again > 0
    consumer.assign([(filled, 1)])
    gone = consumer.metrics()
    assert gone[f"{DISCARDED}-unassign-total"] == held_again
    assert gone[f"{DISCARDED}-total"] == held + held_again
    assert gone[f"{DISCARDED}-truncation-total"] == gone[f"{DISCARDED}-reset-total"] == 0
