"""A topic with a damaged batch fails the task that reads it, with the record's place, and the rest can be read."""

from __future__ import annotations

import pytest

import headrace as hr
from tests.broker.raw import Connection, batch

pytestmark = pytest.mark.spark

VALUE = b"x" * 100


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_damaged_batch_is_named_and_is_no_loss_to_pass_over(spark, tmp_path, topic, loss):
    with hr.Broker.start(tmp_path) as broker:
        with Connection(broker.bootstrap_servers) as connection, hr.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic(topic, 1)
            assert connection.produce(topic, batch([VALUE])) == 0
            assert connection.produce(topic, batch([b"behind"])) == 0
        log = next(tmp_path.glob(f"{topic}-0/*.log"))
        with log.open("r+b") as file:
            file.write(batch([VALUE], crc=1))

        def rows(start):
            reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
            starting = f'{{"{topic}":{{"0":{start}}}}}'
            options = {"subscribe": topic, "startingOffsets": starting, "failOnDataLoss": loss}
            return [bytes(row.value) for row in reader.options(**options).load().collect()]

        with pytest.raises(Exception, match=rf"topic '{topic}', partition 0: offset 0: CRC-32C"):
            rows(0)
        assert rows(1) == [b"behind"]
        assert broker.is_running
