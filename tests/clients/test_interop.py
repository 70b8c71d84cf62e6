"""What other tools make of our Arrow streams; the snippets of docs/interop.md and docs/streams.md, as they stand."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


SNIPPETS = snippets("interop.md")
STREAMS = snippets("streams.md")
ROWS = 1000
TOTAL = sum(range(ROWS))
PARTITIONS = 4


@pytest.fixture(scope="module")
def orders():
    """A broker with the topic that the page speaks of."""
    with hr.Broker.start() as broker:
        admin = hr.Admin(broker.bootstrap_servers)
        admin.create_topics([hr.NewTopic("orders", PARTITIONS)])
        values = [json.dumps({"customer": f"c{i % 7}", "amount": i}) for i in range(ROWS)]
        numbers = pa.array([i % PARTITIONS for i in range(ROWS)], pa.int32())
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send_arrow("orders", pa.table({"value": values, "partition": numbers}))
        yield broker.bootstrap_servers


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: re.findall(r"import (\w+)", text)[0])
def test_the_snippets_of_the_page(orders, snippet):
    names = {"servers": orders, "__name__": "snippet"}
    exec(compile(snippet, "interop.md", "exec"), names)  # noqa: S102  (our own page)
    assert names["total"] in {TOTAL, ROWS}
    assert ("amount" in snippet) == (names["total"] == TOTAL)


@pytest.mark.parametrize("number", range(len(STREAMS)))
def test_the_examples_of_streams(orders, number):
    names = {"servers": orders, "__name__": "snippet"}
    exec(compile(STREAMS[number], "streams.md", "exec"), names)  # noqa: S102  (our own page)
    assert names["total"] == ROWS


def test_the_page_has_what_it_promises():
    text = "".join(SNIPPETS)
    for word in ("duckdb", "polars", "to_pandas", "IterableDataset", "hr.Consumer", "hr.aio.Stream", "hr.read"):
        assert word in text


def test_a_consumer_is_a_stream_up_to_the_ends_of_now(orders):
    where = [("orders", number) for number in range(PARTITIONS)]
    with hr.Consumer(orders, auto_offset_reset="earliest") as consumer:
        consumer.assign(where)
        consumer.seek(("orders", 0), 100)
        first = consumer.poll(10.0, 5)
        table = pa.table(consumer)
        assert table.schema == consumer.schema
        assert first.num_rows == 5
        assert first.num_rows + table.num_rows == ROWS - 100
        assert consumer.position(("orders", 0)) == ROWS // PARTITIONS
        assert pa.table(consumer).num_rows == 0
        consumer.seek_to_beginning()
        frame = pl.DataFrame(consumer)
        for number in range(PARTITIONS):
            offsets = frame.filter(pl.col("partition") == number)["offset"].to_list()
            assert offsets == list(range(ROWS // PARTITIONS))


def test_records_that_come_while_it_is_read_are_left(orders):
    with hr.Consumer(orders, auto_offset_reset="latest") as consumer, hr.Producer(orders, linger_ms=0) as producer:
        hr.Admin(orders).create_topics([hr.NewTopic("growing", 1)])
        producer.send("growing", b"first").result(10)
        consumer.assign([("growing", 0)])
        consumer.seek_to_beginning()
        reader = pa.RecordBatchReader.from_stream(consumer)
        stop = threading.Event()

        def grow():
            while not stop.is_set():
                producer.send("growing", b"more").result(10)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            rows = sum(batch.num_rows for batch in reader)
        finally:
            stop.set()
            thread.join()
        assert rows >= 1
        assert consumer.position(("growing", 0)) == rows


def test_a_stream_of_a_consumer_says_what_is_wrong(orders):
    with hr.Consumer(orders, group_id="g") as consumer:
        with pytest.raises(UsageError, match="assign"):
            pa.table(consumer)
        consumer.subscribe(["orders"])
        consumer.unsubscribe()
        with pytest.raises(UsageError, match="subscribe"):
            pa.table(consumer)
