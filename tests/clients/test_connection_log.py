"""What clients say of their connections: the logger ``headrace.connection``, and the errors of calls that wait."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

import pytest

import headrace as hr
from headrace.errors import KafkaTimeoutError
from tests.clients.helpers import bounded

LOGGER = "headrace.connection"
REFUSED = "Connection refused"


@pytest.fixture
def dead():
    """Where a broker was a moment ago."""
    with hr.Broker.start() as broker:
        return broker.bootstrap_servers


def wait_for(condition, what):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def lines(caplog, level=logging.WARNING):
    return [record.getMessage() for record in caplog.records if record.name == LOGGER and record.levelno == level]


def consumer_of(servers):
    consumer = hr.Consumer(servers)
    consumer.assign([("t", 0)])
    return consumer


def share_of(servers):
    consumer = hr.ShareConsumer(servers, group_id="g")
    consumer.subscribe(["t"])
    return consumer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "make"),
    [
        ("consumer", consumer_of),
        ("share consumer", share_of),
        ("producer", lambda servers: hr.Producer(servers, delivery_timeout_ms=1000, request_timeout_ms=500)),
    ],
    ids=["consumer", "share", "producer"],
)
def test_a_broker_that_is_not_there_is_logged_while_nobody_waits(dead, caplog, client, make):
    made = make(dead)
    future = made.send("t", b"x") if client == "producer" else None
    named = f"{client} headrace: bootstrap server {dead}: cannot connect: {REFUSED}"
    wait_for(lambda: any(named in line for line in lines(caplog)), named)
    # It goes on failing, and the log does not go on with it.
    time.sleep(1.5)
    assert len(lines(caplog)) == 1
    if future is not None:
        assert REFUSED in str(future.exception(30))
    made.close()


def test_a_broker_that_comes_back_is_logged(caplog, tmp_path):
    caplog.set_level(logging.INFO, LOGGER)
    broker = hr.Broker.start(tmp_path)
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    producer = hr.Producer(broker.bootstrap_servers, linger_ms=0)
    producer.send("t", b"1").result(10)
    broker.stop()
    future = producer.send("t", b"2")
    wait_for(lambda: any(REFUSED in line for line in lines(caplog)), "the failure")
    with hr.Broker.start(tmp_path, port=port):
        assert future.result(30).offset == 1
        wait_for(lambda: any(": connected, after " in line for line in lines(caplog, logging.INFO)), "its end")
        producer.close()


def test_errors_of_calls_that_wait_say_why(dead):
    options = {"default_api_timeout_ms": 300, "request_timeout_ms": 200}
    with hr.Consumer(dead, group_id="g") as consumer:
        consumer.assign([("t", 0)])
        calls = {
            "send": lambda: hr.Producer(dead, max_block_ms=300, request_timeout_ms=200).send("t", b"x").result(10),
            "position": lambda: consumer.position(("t", 0), timeout=0.3),
            "commit": lambda: consumer.commit({("t", 0): 1}, timeout=0.3),
            "end_offsets": lambda: consumer.end_offsets([("t", 0)], timeout=0.3),
            "admin": hr.Admin(dead, **options).list_topics,
            "read": lambda: hr.read(dead, "t", **options).read_all(),
        }
        for name, call in calls.items():
            with pytest.raises(KafkaTimeoutError, match=REFUSED) as raised:
                call()
            assert raised.value.retriable, name


def test_a_flush_and_a_close_say_why():
    with hr.Broker.start() as broker:
        producer = hr.Producer(broker.bootstrap_servers, linger_ms=0)
        producer.send("t", b"1").result(10)
    producer.send("t", b"2")
    with pytest.raises(KafkaTimeoutError, match=f"flushing.*{REFUSED}"):
        producer.flush(0.5)
    with pytest.raises(KafkaTimeoutError, match=REFUSED):
        producer.close(0.3)


def test_a_flush_in_asyncio_says_why():
    async def work():
        with hr.Broker.start() as broker:
            producer = hr.aio.Producer(broker.bootstrap_servers, linger_ms=0)
            await (await producer.send("t", b"1"))
        await producer.send("t", b"2")
        with pytest.raises(KafkaTimeoutError, match=f"flushing.*{REFUSED}"):
            await producer.flush(0.5)
        with pytest.raises(KafkaTimeoutError, match=REFUSED):
            await producer.close(0.3)

    bounded(work())


def test_a_handler_that_hangs_holds_up_no_records(cluster, dead, topic):
    """Nor does one that raises, or that uses a client itself."""
    cluster.create_topic(topic)
    entered, let_go = threading.Event(), threading.Event()

    class Hanging(logging.Handler):
        def emit(self, record):  # noqa: ARG002  (as of any handler)
            entered.set()
            let_go.wait(30)

    handler = Hanging()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        with consumer_of(dead):
            assert entered.wait(20)
            with hr.Producer(cluster.bootstrap_servers) as producer:
                assert producer.send(topic, b"x").result(20).offset == 0
    finally:
        let_go.set()
        logging.getLogger(LOGGER).removeHandler(handler)


def test_a_handler_that_raises_costs_its_line_alone(dead, capsys):
    seen = []

    def refuse(record):
        seen.append(record.getMessage())
        raise SystemExit(7) if len(seen) > 1 else ZeroDivisionError

    logger = logging.getLogger(LOGGER)
    logger.addFilter(refuse)
    try:
        for client_id in ("one", "two", "three\n\x1b[31m"):
            with hr.Consumer(dead, client_id=client_id) as consumer:
                consumer.assign([("t", 0)])
                wait_for(lambda: any(f"consumer {client_id[:3]}" in line for line in seen), client_id)  # noqa: B023
    finally:
        logger.removeFilter(refuse)
    assert seen[2].startswith(r"consumer three\n\u{1b}[31m: bootstrap server"), "and no line begins another"
    wait_for(lambda: "ZeroDivisionError" in capsys.readouterr().err, "what it raised")


SLOW = """
import logging, sys, time
import headrace as hr
logging.getLogger("headrace.connection").addFilter(lambda record: time.sleep(600))
for n in range(5):
    consumer = hr.Consumer(sys.argv[1], client_id=str(n))
    consumer.assign([("t", 0)])
    globals()[f"c{n}"] = consumer
time.sleep(0.5)
"""


@pytest.mark.slow
def test_a_handler_that_hangs_holds_up_no_end(dead):
    ended = subprocess.run([sys.executable, "-c", SLOW, dead], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


SECRET = "correct horse battery staple"  # noqa: S105  (of nothing)


def test_no_line_has_a_secret(dead, caplog):
    caplog.set_level(logging.DEBUG)
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    with hr.Consumer(dead, sasl_password=SECRET, **options) as consumer:
        consumer.assign([("t", 0)])
        wait_for(lambda: lines(caplog), "a line")
    assert SECRET not in caplog.text


SILENT_EXIT = """
import sys, time
import headrace as hr
how, servers = sys.argv[1:]
consumer = hr.Consumer(servers)
consumer.assign([("t", 0)])
time.sleep(0.5)
if how == "fork":
    import os
    if os.fork() == 0:
        own = hr.Consumer(servers, client_id="child")
        own.assign([("t", 0)])
        time.sleep(0.5)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "fork"])
def test_lines_are_seen_without_any_setup_and_do_not_outlive_the_process(dead, how):
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", SILENT_EXIT, how, dead],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    said = [line for line in ended.stderr.splitlines() if REFUSED in line]
    assert ended.returncode == 0, ended.stderr
    assert len(said) == (2 if how == "fork" else 1), ended.stderr
    assert said[0].startswith("consumer headrace: bootstrap server ")
    if how == "fork":
        assert said[1].startswith("consumer child: bootstrap server ")
