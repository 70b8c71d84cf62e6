"""A consumer whose broker is not there, or is no broker, says which and why."""

from __future__ import annotations

import time

import pytest

import headrace as hr
from headrace.errors import KafkaTimeoutError
from tests.broker.test_bad_input import Liar

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
    liar = Liar(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    try:
        with hr.Consumer(liar.address, default_api_timeout_ms=1500) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(hr.KafkaError, match=liar.address):
                consumer.position(("t", 0))
    finally:
        liar.close()
