"""The log: `HEADRACE_LOG` and Python's `logging` as its receivers, and what it tells of a client that hangs."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import time

import pytest

import headrace as hr

SECRET = "correct horse battery staple"  # noqa: S105  (of nothing)
REFUSED = "Connection refused"


@pytest.fixture
def dead():
    """Where a broker was a moment ago."""
    with hr.Broker.start() as broker:
        return broker.bootstrap_servers


@pytest.fixture(autouse=True)
def _levels():
    """Levels are looked at when a client starts: the next test is not to have those of this one."""
    yield
    hr.Consumer("localhost:1").close()


def wait_for(condition, what):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def run(code, *arguments, log=None):
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_LOG"}
    if log is not None:
        environment["HEADRACE_LOG"] = log
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


HANGS = """
import sys, time
import headrace as hr
with hr.Consumer(sys.argv[1], client_id="app", group_id="g") as consumer:
    consumer.subscribe(["orders"])
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        consumer.poll(0.1)
    sys.exit(0)
"""
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (ERROR| WARN| INFO|DEBUG|TRACE) (headrace::\w+): (.*)")


def test_the_log_of_a_consumer_that_hangs_tells_where_it_connects_why_not_and_that_it_tries_again(dead):
    ended = run(HANGS, dead, log="headrace=debug")
    assert ended.returncode == 0, ended.stderr
    found = [match for line in ended.stderr.splitlines() if (match := LINE.fullmatch(line))]
    of_connections = [match[3] for match in found if match[2] == "headrace::connection"]
    begun = [text for text in of_connections if text.startswith("consumer app: connecting")]
    assert len(begun) > 1, "it tries again"
    assert all(f"address={dead}" in text for text in begun)
    over = [text for text in of_connections if text.startswith("consumer app: connection ended")]
    assert over
    assert all(REFUSED in text and f"address={dead}" in text and "again_in_ms=" in text for text in over)
    texts = [match[3] for match in found]
    assert any("asking for metadata" in text and 'why="a topic is new"' in text for text in texts)
    assert any("looking for the coordinator" in text and "group=g" in text for text in texts)
    assert not any(match[1] == "TRACE" for match in found)


WORKS = """
import sys
import headrace as hr
with hr.Broker.start() as broker:
    with hr.Producer(broker.bootstrap_servers, client_id="app") as producer:
        producer.send("t", b"a secret value", key=b"a secret key").result(20)
    assert hr.read(broker.bootstrap_servers, "t").read_all().num_rows == 1
"""


def test_trace_has_each_request_of_both_sides_and_no_record():
    lines = run(WORKS, log="trace").stderr
    sent = re.search(r"producer app: request broker=1 conn=\d+ api=Produce version=\d+ correlation=(\d+) bytes=", lines)
    assert sent, lines
    assert re.search(rf"headrace::broker: request .* api=Produce .* correlation={sent[1]} ", lines), lines
    assert re.search(rf"producer app: answer .* api=Produce correlation={sent[1]} bytes=\d+ ms=\d+", lines), lines
    assert "topic created" in lines
    assert "the broker has stopped" in lines
    assert "secret" not in lines


def test_a_target_has_its_own_level():
    lines = run(WORKS, log="headrace=off,headrace::broker=info").stderr.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert found
    assert {(match[1], match[2]) for match in found} == {(" INFO", "headrace::broker")}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("headrace=loud", '"loud" is no level; there are off, error, warn, info, debug and trace'),
        ("headrace::prodcer=debug", "targets are headrace, headrace::connection, headrace::metadata"),
    ],
)
def test_a_value_that_means_nothing_is_named_and_logs_nothing(value, why):
    ended = run(WORKS, log=value)
    assert ended.returncode == 0
    assert ended.stderr.startswith("headrace: HEADRACE_LOG is ignored: ")
    assert why in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_without_the_variable_ordinary_work_logs_nothing():
    assert run(WORKS).stderr == ""
    assert run(WORKS, log="").stderr == ""


def test_the_level_of_python_s_logger_is_that_of_the_events(dead, caplog):
    caplog.set_level(logging.DEBUG, "headrace")
    with hr.Consumer(dead, client_id="app") as consumer:
        consumer.assign([("orders", 3)])
        wait_for(lambda: any("connection ended" in record.getMessage() for record in caplog.records), "the reason")
    record = next(each for each in caplog.records if "connection ended" in each.getMessage())
    assert (record.name, record.levelno) == ("headrace.connection", logging.DEBUG)
    assert record.getMessage().startswith("consumer app: connection ended")
    fields = record.headrace
    assert fields["client_id"] == "app"
    assert fields["address"] == dead
    assert REFUSED in fields["error"]
    assert isinstance(fields["again_in_ms"], int)
    assert abs(record.created - time.time()) < 60, "the time is that of the event"
    caplog.clear()
    caplog.set_level(logging.WARNING, "headrace")
    with hr.Consumer(dead, client_id="quiet") as consumer:
        consumer.assign([("orders", 3)])
        wait_for(lambda: any("consumer quiet" in record.getMessage() for record in caplog.records), "a warning")
    of_it = [record for record in caplog.records if "consumer quiet" in record.getMessage()]
    assert {record.levelno for record in of_it} == {logging.WARNING}


def test_a_broker_says_what_it_did_for_whom(caplog):
    caplog.set_level(logging.INFO, "headrace.broker")
    with hr.Broker.start() as broker:
        with hr.Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([hr.admin.NewTopic("orders", num_partitions=2)])
        created = "topic created, or given partitions topic=orders partitions=2"
        wait_for(lambda: created in caplog.text, "the topic")
        texts = [record.getMessage() for record in caplog.records if record.name == "headrace.broker"]
        assert any("the broker serves" in text and broker.bootstrap_servers in text for text in texts)


def test_a_broker_says_why_it_ends_a_connection_and_a_link(caplog):
    caplog.set_level(logging.DEBUG, "headrace")

    def links(begin):
        of_links = [record for record in caplog.records if record.name == "headrace.link"]
        return [record for record in of_links if record.getMessage().startswith(begin)]

    with hr.Broker.start() as broker:
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"\x7f\xff\xff\xff")
            assert peer.recv(1) == b""

        # Other brokers of this process write such lines as well, and what they say of their connections may come later.
        def said(why):
            texts = [each.getMessage() for each in caplog.records if each.name == "headrace.broker"]
            return any("connection ended conn=1 why=" in text and why in text for text in texts)

        wait_for(lambda: said("a request frame says it has 2147483647 bytes"), "the connection")
        with hr.Producer(broker.bootstrap_servers, client_id="linker", headrace_datapath="shm") as producer:
            producer.send("t", b"x").result(20)
            # The record may have gone over TCP, before the link stood.
            wait_for(lambda: links("producer linker: linked"), "the link")
        wait_for(lambda: any(each.headrace["error"] for each in links("a client's link has ended")), "its end")


CLOSES = """
import os, sys
import headrace as hr
with hr.Broker.start() as broker:
    os.close(2)
    assert os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) == 2
    with hr.Producer(broker.bootstrap_servers, client_id="later") as producer:
        producer.send("t", b"x").result(20)
assert os.path.getsize(sys.argv[1]) == 0
"""


def test_lines_go_to_stderr_as_it_was_and_never_into_what_has_its_number_now(tmp_path):
    """A file that is opened once stderr is closed gets its number: a segment of a log could."""
    ended = run(CLOSES, str(tmp_path / "segment"), log="debug")
    assert ended.returncode == 0, ended.stderr
    assert "producer later: ready" in ended.stderr


def test_who_disables_all_logging_has_clients_all_the_same():
    logging.disable(sys.maxsize)
    try:
        with hr.Broker.start() as broker, hr.Producer(broker.bootstrap_servers) as producer:
            producer.send("t", b"x").result(20)
    finally:
        logging.disable(logging.NOTSET)


def test_no_line_has_a_secret_on_any_level(caplog):
    """Of a login that is refused, and one whose token is made by a function."""
    caplog.set_level(1, "headrace")
    with hr.Broker.start() as broker:
        servers = broker.bootstrap_servers
        plain = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": SECRET}
        token = {"sasl_mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (SECRET.replace(" ", "."), time.time() + 600)}
        for options in (plain, token):
            with hr.Consumer(servers, security_protocol="SASL_PLAINTEXT", **options) as consumer:
                consumer.assign([("t", 0)])
                caplog.clear()
                wait_for(lambda: any("connection ended" in each.getMessage() for each in caplog.records), "the refusal")
    assert SECRET not in caplog.text
    assert SECRET.replace(" ", ".") not in caplog.text


EXITS = """
import logging, sys, threading
import headrace as hr

class Handler(logging.Handler):
    def emit(self, record):
        taken.set()
        if sys.argv[2] == "waits":
            threading.Event().wait()
        with hr.Consumer(broker.bootstrap_servers) as own:
            own.assign([("logs", 0)])
            own.poll(0.05)

taken = threading.Event()
broker = hr.Broker.start()
log = logging.getLogger("headrace")
log.propagate = False
log.addHandler(Handler())
log.setLevel(logging.DEBUG)
consumer = hr.Consumer(sys.argv[1])
consumer.assign([("t", 0)])
assert taken.wait(20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["uses a client", "waits"])
def test_a_handler_whose_thread_is_stopped_with_its_lock_does_not_hold_up_the_end(dead, how):
    ended = run(EXITS, dead, how)
    assert ended.returncode == 0, ended.stderr


HOLDS = """
import logging, os, sys, threading, time
import headrace as hr

class Slow(logging.Handler):
    lines = 0
    inner = threading.Lock()  # as a file has one, which no fork makes anew

    def emit(self, record):
        with self.inner:
            Slow.lines += 1
            time.sleep(0.02)

    def flush(self):
        with self.inner:
            pass

log = logging.getLogger("headrace")
log.propagate = False
log.addHandler(Slow())
log.setLevel(logging.DEBUG)
consumer = hr.Consumer(sys.argv[1], reconnect_backoff_ms=5, reconnect_backoff_max_ms=5)
consumer.assign([("t", 0)])
while not Slow.lines:
    time.sleep(0.01)
for _ in range(10):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert Slow.lines
"""


@pytest.mark.slow
def test_a_child_that_is_forked_while_a_line_is_written_ends(dead):
    ended = run(HOLDS, dead)
    assert ended.returncode == 0, ended.stderr


def test_a_level_that_is_lowered_counts_for_what_runs_already(caplog):
    with hr.Broker.start() as broker:
        address = broker.bootstrap_servers.split(":")
        logging.getLogger("headrace.broker").setLevel(logging.DEBUG)
        try:

            def said():
                socket.create_connection((address[0], int(address[1]))).close()
                return "connection ended" in caplog.text

            wait_for(said, "a line of a broker that runs")
        finally:
            logging.getLogger("headrace.broker").setLevel(logging.NOTSET)


class Moody(logging.Logger):
    def getEffectiveLevel(self):  # noqa: N802  (its name there)
        raise LookupError(self.name)


@pytest.mark.parametrize("spoil", ["a level that is a text", "a class that raises"])
def test_a_logger_that_cannot_say_its_level_takes_no_client_down(spoil, monkeypatch):
    logger = logging.getLogger("headrace.consumer")
    if spoil == "a class that raises":
        monkeypatch.setattr(logger, "__class__", Moody)
    else:
        monkeypatch.setattr(logger, "level", "DEBUG")
    with hr.Broker.start() as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send("t", b"x").result(20)


FORKS = """
import logging, os, sys, time
logging.basicConfig(level=logging.DEBUG, format="%(process)d %(name)s %(message)s")
import headrace as hr
servers = sys.argv[1]
parent = hr.Consumer(servers, client_id="parent")
parent.assign([("t", 0)])
time.sleep(0.3)
for n in range(20):
    child = os.fork()
    if child == 0:
        own = hr.Consumer(servers, client_id=f"child{n}")
        own.assign([("t", 0)])
        time.sleep(0.2)
        own.close()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.slow
def test_children_that_are_forked_while_lines_are_written_log_as_their_parent_does(dead):
    ended = run(FORKS, dead, log="headrace=trace")
    assert ended.returncode == 0, ended.stderr
    for n in range(20):
        logged = [line for line in ended.stderr.splitlines() if f"headrace.connection consumer child{n}: " in line]
        assert any("connection ended" in line for line in logged), n
        assert len({line.split()[0] for line in logged}) == 1, "by the child alone"
        assert f"headrace::connection: consumer child{n}: connecting" in ended.stderr
