"""Consume, transform, produce in transactions; meant to be killed at any moment and started again.

Usage: python -m tests.clients.transformer BOOTSTRAP INPUT OUTPUT GROUP TRANSACTIONAL_ID PARTITIONS

Writes `>VALUE` for each VALUE it reads, into the same partition, and commits what it has read in the same
transaction. Ends when it has come to the end of the input that it found when it started.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

ROWS_MAX = 20


def main() -> int:
    bootstrap, source, target, group, name, partitions = sys.argv[1:7]
    assigned = [(source, number) for number in range(int(partitions))]
    with (
        hr.Producer(bootstrap, transactional_id=name, linger_ms=0) as producer,
        hr.Consumer(
            bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
    ):
        # First this: it ends what a killed one has left open, so that its offsets count, or do not.
        producer.init_transactions()
        consumer.assign(assigned)
        with hr.Admin(bootstrap) as admin:
            ends = {partition: admin.list_offsets({partition: "latest"})[partition].offset for partition in assigned}
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            batch = consumer.poll(1.0, ROWS_MAX)
            if batch.num_rows == 0:
                continue
            partition = (source, batch["partition"][0].as_py())
            values = pc.binary_join_element_wise(b">", batch["value"], b"")
            with producer.transaction():
                rows = pa.table({"value": values, "partition": batch["partition"]})
                half = batch.num_rows // 2
                producer.send_arrow(target, rows[:half])
                producer.flush()  # so that a kill finds transactions with something in them
                producer.send_arrow(target, rows[half:])
                offset = batch["offset"][-1].as_py() + 1
                producer.send_offsets_to_transaction({partition: offset}, consumer.group_metadata())
            sys.stdout.write(".")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
