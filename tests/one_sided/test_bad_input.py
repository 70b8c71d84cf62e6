"""Who cannot have memory is told why, with the setting's name; with `auto` its records go over TCP, all of them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

import headrace as hr
from headrace.errors import ConfigError
from tests.broker.process import BrokerProcess
from tests.clients.spoiler import DIRECT_CONNECT, Spoiler
from tests.one_sided.test_consume import READ, read, rows, wait_for_memory
from tests.one_sided.test_produce import linked, refused, values_of

SECONDS = 60
WRITTEN = "direct-bytes-produced-total"

WORKS = """
import json, os, resource, sys
import headrace as hr

def work(servers, datapath):
    with (
        hr.Producer(servers, headrace_datapath=datapath, linger_ms=0) as producer,
        hr.Consumer(servers, headrace_datapath=datapath, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([("t", 0)])
        for number in range(200):
            value = b"%d" % number
            offset = producer.send("t", value, partition=0).result(20).offset
            while consumer.position(("t", 0)) <= offset:
                batch = consumer.poll(20)
                assert batch.num_rows
            assert batch["value"].to_pylist()[-1] == value
        return [consumer.metrics()["direct-bytes-consumed-total"], producer.metrics()["direct-bytes-produced-total"]]

servers, datapath, limit = sys.argv[1:]
# Whatever Python loads is loaded before something is taken away.
work(servers, "tcp")
exec(limit)
try:
    said = work(servers, datapath)
except hr.KafkaError as error:
    said = [type(error).__name__, str(error)]
print(json.dumps(said))
"""

LITTLE = {
    # What two clients have over TCP, four each and one until a broker's address is known, and one more.
    "descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir('/proc/self/fd'))) + 10,) * 2)",
    # A segment is mapped for all that it can become, a GiB.
    "address space": (
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (300 << 20),) * 2)"
    ),
}


def worked(servers, datapath, limit):
    """What a process of its own is told, or how many bytes it has read and written through memory."""
    done = subprocess.run(
        [sys.executable, "-c", WORKS, servers, datapath, limit],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def broker():
    with hr.Broker.start() as one:
        yield one


def test_a_process_that_lacks_nothing_uses_memory(broker):
    assert min(worked(broker.bootstrap_servers, "auto", "pass")) > 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told_or_goes_over_tcp(broker):
    servers = broker.bootstrap_servers
    name, said = worked(servers, "shm", "os.setuid(65534)")
    assert name == "ConfigError"
    assert "headrace.datapath" in said
    assert "user 0" in said
    assert worked(servers, "auto", "os.setuid(65534)") == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("what", LITTLE)
@pytest.mark.parametrize("datapath", ["shm", "auto"])
def test_a_process_that_can_map_or_open_little_goes_over_tcp(broker, what, datapath):
    servers = broker.bootstrap_servers
    consumed, _ = worked(servers, datapath, LITTLE[what])
    # Who comes first may have its link until a socket needs what that holds.
    assert consumed == 0 or what == "descriptors"
    # The broker has noticed nothing.
    with hr.Producer(servers, headrace_datapath="shm") as producer:
        linked(producer, "t")


GIVES_UP = """
import json, os, resource, sys, time
import headrace as hr

servers = sys.argv[1]
with hr.Producer(servers, headrace_datapath="auto", linger_ms=0) as producer:

    def written():
        value = b"%d" % time.time_ns()
        offset = producer.send("t", value, partition=0).result(20).offset
        return value, offset, producer.metrics()["direct-bytes-produced-total"]

    while not written()[2]:
        time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        # For the thread of a consumer, and none for its sockets.
        os.close(held.pop())
        os.close(held.pop())
    with hr.Consumer(servers, headrace_datapath="tcp", auto_offset_reset="latest") as consumer:
        consumer.assign([("t", 0)])
        found = consumer.position(("t", 0))
        _, _, before = written()
        value, offset, after = written()
        values = []
        while len(values) <= offset - found:
            batch = consumer.poll(20)
            assert batch.num_rows
            values += batch["value"].to_pylist()
    print(json.dumps([before, after, values[-1] == value]))
"""


def test_links_are_given_up_for_a_socket_that_finds_no_descriptor(broker):
    command = [sys.executable, "-c", GIVES_UP, broker.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    before, after, came = json.loads(done.stdout)
    assert came
    assert before == after, "the producer's records go over TCP"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("headrace.direct", "false"),
        ("headrace.direct.links.max", 0),
        ("headrace.direct.grants.max", 0),
        ("headrace.direct.memory.bytes", 60_000),
    ],
)
def test_what_a_brokers_settings_never_allow_is_an_error_that_names_them(setting, value):
    with hr.Broker.start(config={setting: value}) as broker:
        servers = broker.bootstrap_servers
        refused(servers, "t", setting)
        with hr.Producer(servers, headrace_datapath="auto", linger_ms=0) as producer:
            offset = producer.send("t", b"over TCP", partition=0).result(10).offset
            assert producer.metrics()[WRITTEN] == 0
        assert values_of(servers, "t")[offset:] == [b"over TCP"]


@pytest.mark.parametrize(
    ("setting", "value", "memory"),
    [("headrace.direct.links.max", 1, 1), ("headrace.direct.grants.max", 1, 1), ("headrace.direct.memory.bytes", 0, 1)],
)
def test_what_is_used_up_for_now_goes_over_tcp_until_it_is_there(setting, value, memory):
    # One ring of the size that a producer wishes for, and less than the smallest beside it.
    config = {setting: value or (1 << 20) + 60_000, "num.partitions": 1}
    with hr.Broker.start(config=config) as broker:
        servers = broker.bootstrap_servers
        with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as late:
            with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as early:
                linked(early, "t")
                futures = [late.send("other", b"%d" % number) for number in range(1000)]
                assert [future.result(10).offset for future in futures] == list(range(1000))
                assert late.metrics()[WRITTEN] == 0
            linked(late, "other")
        assert values_of(servers, "other")[:1000] == [b"%d" % number for number in range(1000)]


def test_a_broker_of_another_host_is_told_apart_or_goes_over_tcp(broker):
    # Its socket of links is one of that host, or of another network namespace: not one of ours.
    with Spoiler(broker.bootstrap_servers) as elsewhere:
        elsewhere.rewrite(DIRECT_CONNECT, lambda answer: answer.replace(b"headrace-", b"headrace_"))
        servers = elsewhere.address
        refused(servers, "t", "network namespace")
        with hr.Producer(servers, headrace_datapath="auto", linger_ms=0) as producer:
            offset = producer.send("t", b"over TCP", partition=0).result(10).offset
            assert producer.metrics()[WRITTEN] == 0
        assert values_of(servers, "t")[offset:] == [b"over TCP"]


def test_a_consumer_that_finds_no_grant_is_told_or_goes_over_tcp():
    with hr.Broker.start(config={"headrace.direct.grants.max": 1}) as broker:
        servers = broker.bootstrap_servers
        options = {"auto_offset_reset": "earliest"}
        with hr.Producer(servers, headrace_datapath="shm") as producer:
            linked(producer, "t")
            with hr.Consumer(servers, headrace_datapath="shm", **options) as one:
                one.assign([("t", 0)])
                with pytest.raises(ConfigError, match=r"headrace\.datapath.*headrace\.direct\.grants\.max"):
                    for _ in range(20):
                        one.poll(1.0)
            with hr.Consumer(servers, headrace_datapath="auto", **options) as one:
                one.assign([("t", 0)])
                producer.send("t", b"last", partition=0).result(10)
                while read(one, 1)[-1] != b"last":
                    pass
                assert one.metrics()[READ] == 0


def test_a_broker_without_memory_to_lend_takes_all_over_tcp(tmp_path):
    def little():
        # Memory to lend is a file without a name.
        resource.setrlimit(resource.RLIMIT_FSIZE, (768 << 10, 768 << 10))

    with BrokerProcess(tmp_path / "data", before=little) as process:
        servers = process.bootstrap_servers
        for datapath in ("shm", "auto"):
            with hr.Producer(servers, headrace_datapath=datapath, linger_ms=0) as producer:
                for number in range(100):
                    producer.send(datapath, b"%d" % number, partition=0).result(10)
                assert producer.metrics()[WRITTEN] == 0
            assert values_of(servers, datapath) == [b"%d" % number for number in range(100)]
        # Segments are its files, and need none of it.
        with hr.Consumer(servers, headrace_datapath="shm", auto_offset_reset="earliest") as one:
            one.assign([("t", 0)])
            wait_for_memory(one, process, "t")


def test_producers_that_come_at_once_all_get_memory(broker):
    servers, count = broker.bootstrap_servers, 8
    begin = threading.Barrier(count)
    reported = []

    def one():
        with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer:
            begin.wait(SECONDS)
            reported.append(linked(producer, "t"))
            begin.wait(SECONDS)
            # Whoever was alone first has had its memory changed since.
            reported.append(linked(producer, "t"))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(reported) == 2 * count
    assert values_of(servers, "t") == [b"first"] * sum(reported)


def test_a_forked_child_leaves_its_parents_memory_alone(broker):
    servers = broker.bootstrap_servers
    with (
        hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer,
        hr.Consumer(servers, headrace_datapath="shm", auto_offset_reset="earliest") as consumer,
    ):
        linked(producer, "t")
        consumer.assign([("t", 0)])
        wait_for_memory(consumer, broker, "t")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for use in (lambda: producer.send("t", b"child"), lambda: consumer.poll(0.1)):
                    with pytest.raises(hr.errors.ForkedError):
                        use()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        linked(producer, "t")
        before = consumer.metrics()[READ]
        values = rows(0, 1000)
        futures = [producer.send("t", value, partition=0) for value in values]
        assert all(future.exception(10) is None for future in futures)
        found = []
        while values[-1] not in found:
            found += read(consumer, 1)
        assert found[-1000:] == values
        assert consumer.metrics()[READ] > before


FORKED = """
import os
import sys
import time
import headrace as hr

with hr.Producer(sys.argv[1], headrace_datapath="shm", linger_ms=0) as producer:
    while not producer.metrics()["direct-bytes-produced-total"]:
        producer.send("t", b"parent").result(10)
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print("closed", flush=True)
sys.stdin.readline()
"""


def test_what_a_client_closes_is_free_although_a_child_of_its_has_it_open():
    """A child that was forked has the parent's sockets open, of the link and to the broker."""
    command = [sys.executable, "-c", FORKED]
    with hr.Broker.start(config={"headrace.direct.links.max": 1}) as broker:
        # A session of its own: the child ends with it.
        parent = subprocess.Popen(
            [*command, broker.bootstrap_servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"closed\n"
            with hr.Producer(broker.bootstrap_servers, headrace_datapath="shm", linger_ms=0) as producer:
                linked(producer, "t")
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.communicate(timeout=SECONDS)
