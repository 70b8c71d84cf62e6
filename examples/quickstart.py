"""The first five minutes: a broker, a table in, a table out, a group, and SQL over the topic.

Run it with `.venv/bin/python examples/quickstart.py` after `make check`; with an argument such as 127.0.0.1:9092 it
uses that Kafka instead of a broker of its own.
"""

from __future__ import annotations

import contextlib
import sys

import duckdb
import pyarrow as pa

import headrace as hr

TOPIC = "quickstart-orders"
ORDER = hr.Json(pa.schema([("id", pa.int64()), ("amount", pa.int64())]))


def main() -> None:
    """Sends a thousand orders and reads them in three ways."""
    with contextlib.ExitStack() as stack:
        servers = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(hr.Broker.start()).bootstrap_servers
        with hr.Admin(servers) as admin:
            if TOPIC in admin.list_topics():
                admin.delete_topics([TOPIC])
            admin.create_topic(TOPIC, num_partitions=2, replication_factor=1)

        orders = pa.table(
            {
                "key": [f"customer-{i % 10}" for i in range(1000)],
                "value": [{"id": i, "amount": i % 97} for i in range(1000)],
            }
        )
        with hr.Producer(servers, linger_ms=5, compression_type="zstd") as producer:
            print(f"sent {producer.send_arrow(TOPIC, orders, value=ORDER).result()} rows")
            where = producer.send(TOPIC, b'{"id": 1000, "amount": 1}', key=b"customer-0").result()
            print(f"one more went to partition {where.partition}, offset {where.offset}")

        with hr.Consumer(servers, group_id="quickstart", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([TOPIC])
            rows = 0
            while rows < orders.num_rows + 1:
                rows += consumer.poll(timeout=5.0).num_rows
            consumer.commit()
            print(f"the group has read {rows} rows and committed")

        table = hr.read(servers, TOPIC, key=hr.Text(), value=ORDER).read_all()  # key is text, value a struct
        top = duckdb.sql('select key, sum("value".amount) from "table" group by key order by 2 desc limit 3')
        print(f"{table.num_rows} rows read; best customers: {top.fetchall() if top else []}")


if __name__ == "__main__":
    main()
