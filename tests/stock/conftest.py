"""Brokers that stock clients talk to."""

from __future__ import annotations

import pytest

from tests.broker.process import BrokerProcess


@pytest.fixture(scope="session")
def broker_process(tmp_path_factory):
    """`headrace broker` as a process, for the whole run; killed at the end."""
    with BrokerProcess(tmp_path_factory.mktemp("stock") / "data") as broker:
        yield broker


@pytest.fixture(params=["embedded", "process"])
def stock_servers(request):
    """`bootstrap.servers` of our broker: once inside this process, once as a process of its own."""
    name = {"embedded": "embedded_broker", "process": "broker_process"}[request.param]
    return request.getfixturevalue(name).bootstrap_servers
