"""`headrace.datapath=two-sided` where it cannot be had; where it can, crates/net/tests/verbs.rs has it, in a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ConfigError

no_device = pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has an RDMA device")


@no_device
def test_a_producer_without_a_device_is_told_which_option_asks_for_one():
    with hr.Broker.start() as broker:
        with (
            pytest.raises(ConfigError, match=r"headrace\.datapath"),
            hr.Producer(broker.bootstrap_servers, headrace_datapath="two-sided") as producer,
        ):
            producer.send("t", b"never", partition=0).result(10)


@no_device
def test_a_consumer_without_a_device_is_told_which_option_asks_for_one():
    with hr.Broker.start() as broker:
        with hr.Producer(broker.bootstrap_servers) as producer:
            producer.send("t", b"there", partition=0).result(10)
        with hr.Consumer(
            broker.bootstrap_servers, headrace_datapath="two-sided", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(ConfigError, match=r"headrace\.datapath"):
                consumer.poll(10.0)
