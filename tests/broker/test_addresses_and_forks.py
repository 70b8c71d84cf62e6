"""Where an embedded broker listens and keeps its data, and what a forked child of its process may do to it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import BrokerStartError, ConfigError


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_the_address_of_an_ipv6_broker_can_be_used(topic):
    with hr.Broker.start(host="::1") as broker:
        assert re.fullmatch(r"\[::1\]:\d+", broker.bootstrap_servers)
        with hr.Producer(broker.bootstrap_servers) as producer:
            assert producer.send(topic, b"x").result(10).offset == 0
        assert hr.read(broker.bootstrap_servers, topic).read_all().num_rows == 1


def test_a_host_that_is_not_there_is_named():
    with pytest.raises(BrokerStartError, match=r"no-such-host\.invalid"):
        hr.Broker.start(host="no-such-host.invalid")


def test_a_data_folder_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data_dir .* not int"):
        hr.Broker.start(5)
    assert list(tmp_path.iterdir()) == []
    hr.Broker.start(Path("data")).stop()
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_forked_child_leaves_the_broker_alone(topic):
    with hr.Broker.start() as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"before").result(10)
        child = os.fork()
        if child == 0:
            # As the end of a with block or of the process would in the child.
            status = 1
            try:
                broker.stop()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(topic, b"after").result(10)
        with hr.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic(f"{topic}-new", 1)
        assert hr.read(broker.bootstrap_servers, topic).read_all()["value"].to_pylist() == [b"before", b"after"]
    assert not broker.is_running
