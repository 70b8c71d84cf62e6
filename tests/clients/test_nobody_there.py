"""A consumer whose broker is not there, or is no broker, says which and why."""

from __future__ import annotations

import socket
import time

import pytest

import headrace as hr
from headrace.errors import KafkaTimeoutError
from tests.broker.test_bad_input import LyingServer
from tests.clients.helpers import bounded

QUESTIONS = {
    "position": lambda consumer: consumer.position(("t", 0)),
    "commit": lambda consumer: consumer.commit({("t", 0): 1}),
    "committed": lambda consumer: consumer.committed([("t", 0)]),
    "end-offsets": lambda consumer: consumer.end_offsets([("t", 0)]),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_wait_in_vain_names_the_broker_that_is_not_there(ask):
    with hr.Consumer("127.0.0.1:1", group_id="g", default_api_timeout_ms=600) as consumer:
        consumer.assign([("t", 0)])
        begun = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1: cannot connect"):
            ask(consumer)
        assert time.monotonic() - begun < 5


def test_a_server_that_is_no_broker_is_named():
    server = LyingServer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    try:
        with hr.Consumer(server.address, default_api_timeout_ms=1500) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(hr.KafkaError, match=server.address):
                consumer.position(("t", 0))
    finally:
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_that_never_answers_has_not_ended_the_connection(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as mute:
        shown = f"[{host}]" if ":" in host else host
        address = f"{shown}:{mute.getsockname()[1]}"
        times = {"default_api_timeout_ms": 1500, "socket_connection_setup_timeout_ms": 300}
        with hr.Admin(address, **times) as admin, pytest.raises(KafkaTimeoutError) as failed:
            admin.list_topics()
        assert f"bootstrap server {address}: no answer to ApiVersions" in str(failed.value)
        assert "ended" not in str(failed.value)


@pytest.mark.parametrize("make", [hr.Consumer, hr.ShareConsumer])
def test_a_poll_in_vain_names_the_broker_that_is_not_there(make):
    with make("127.0.0.1:1", group_id="g", request_timeout_ms=600) as consumer:
        consumer.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1: cannot connect"):
                consumer.poll(20)


def test_a_share_consumer_names_a_server_that_is_no_broker_and_closes_at_once():
    server = LyingServer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    try:
        with hr.ShareConsumer(server.address, group_id="g") as share:
            share.subscribe(["t"])
            for _ in range(2):
                with pytest.raises(hr.KafkaError, match=server.address):
                    share.poll(20)
            assert share.commit(20) == {}
    finally:
        server.close()


def test_a_share_consumer_of_brokers_that_are_not_there_is_told_within_coroutines():
    async def work():
        async with hr.aio.ShareConsumer("127.0.0.1:1", group_id="g", request_timeout_ms=600) as share:
            await share.subscribe(["t"])
            with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1: cannot connect"):
                async for _ in share.batches():
                    pass
            assert await share.commit(20) == {}

    bounded(work())
