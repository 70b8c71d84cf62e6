"""How a producer's process ends, and what a fork does to it: nothing is lost without a word."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import headrace as hr
from tests.clients.helpers import committed

TIMEOUT_SECONDS = 60


def run(program, *arguments):
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def values(servers, topic):
    return sorted(hr.read(servers, topic).read_all()["value"].to_pylist())


NO_FLUSH = """
import sys
import pyarrow as pa
import headrace as hr
servers, topic, how = sys.argv[1:]
producer = hr.Producer(servers, linger_ms=600_000, acks=0 if how == "acks=0" else "all")
producer.send(topic, b"0")
producer.send_arrow(topic, pa.table({"value": [b"1", b"2"]}), results=how == "results")
if how == "dropped":
    del producer
if how == "exit":
    sys.exit(3)
if how == "error":
    raise RuntimeError("the program's own")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "results", "dropped", "exit", "error", "acks=0"])
def test_an_interpreter_that_ends_without_a_flush_loses_nothing(cluster, topic, how):
    cluster.create_topic(topic)
    code, _, said = run(NO_FLUSH, cluster.bootstrap_servers, topic, how)
    assert code == {"exit": 3, "error": 1}.get(how, 0)
    assert "headrace" not in said.replace("import headrace", "")
    deadline = time.monotonic() + 10
    while (found := values(cluster.bootstrap_servers, topic)) != [b"0", b"1", b"2"]:
        # Without acknowledgements the process may end before the broker has written.
        assert how == "acks=0", found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


ORDER = """
import sys
from headrace.{first} import {First}
import headrace as hr
broker = hr.Broker.start(sys.argv[1])
producer = hr.Producer(broker.bootstrap_servers, linger_ms=600_000)
for n in range(5):
    producer.send("t", b"%d" % n)
"""


@pytest.mark.parametrize("first", ["producer", "broker"])
def test_clients_end_before_the_broker_of_their_process_whatever_was_imported_first(tmp_path, first):
    program = ORDER.format(first=first, First=first.title())
    assert run(program, str(tmp_path)) == (0, "", "")
    with hr.Broker.start(tmp_path) as broker:
        assert values(broker.bootstrap_servers, "t") == [b"%d" % n for n in range(5)]


LOST = """
import sys
import headrace as hr
broker = hr.Broker.start()
producer = hr.Producer(broker.bootstrap_servers, linger_ms=0, request_timeout_ms=500, delivery_timeout_ms=1000)
producer.send("t", b"there").result(10)
broker.stop()
producer.send("t", b"lost")
"""


def test_records_that_are_lost_with_the_process_are_reported_and_its_exit_code_is_1():
    code, _, said = run(LOST)
    assert code == 1
    assert "headrace: records were lost when the process ended: delivery to topic 't', partition 0" in said
    assert said.count("Connection refused") >= 2, "in the log, at once, and in the error"


LOST_OTHERWISE = """
import os, sys
import headrace as hr
how = sys.argv[1]
broker = hr.Broker.start()
producer = hr.Producer(broker.bootstrap_servers, linger_ms=0, request_timeout_ms=200, delivery_timeout_ms=400)
producer.send("t", b"there").result(10)
broker.stop()
future = producer.send("t", b"lost")
if how == "dropped":
    del producer, future
elif how == "exit":
    sys.exit(3)
elif how == "asked":
    assert "Connection refused" in str(future.exception(10))
elif how == "child":
    future.exception(10)
    if os.fork() == 0:
        sys.exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(("how", "code"), [("dropped", 1), ("exit", 3), ("asked", 0), ("child", 0)])
def test_the_exit_code_is_1_only_where_nobody_knows_of_the_loss(how, code):
    assert run(LOST_OTHERWISE, how)[0] == code


OPEN = """
import sys
import headrace as hr
servers, topic, name = sys.argv[1:]
producer = hr.Producer(servers, transactional_id=name, linger_ms=0)
producer.init_transactions()
producer.begin_transaction()
producer.send(topic, b"sent").result(10)
producer.send(topic, b"unsent")
"""


@pytest.mark.kafka
def test_a_transaction_that_is_open_when_the_interpreter_ends_is_aborted(kafka, topic, name):
    kafka.create_topic(topic)
    code, _, said = run(OPEN, kafka.bootstrap_servers, topic, name)
    assert code == 0
    # The record that was still to be sent is told.
    assert said == "" or "the transaction of this record was aborted" in said
    # No reader has to wait for it.
    assert committed(kafka, topic) == []


FORKED = """
import asyncio, os, sys
import pyarrow as pa
import headrace as hr
from headrace.errors import ForkedError
servers, topic, how = sys.argv[1:]
producer = hr.Producer(servers, linger_ms=600_000)
pending = hr.aio.Producer(servers, linger_ms=600_000)
unused = hr.Producer(servers)
transactional = hr.Producer(servers, transactional_id=topic)
futures = [producer.send(topic, b"%03d" % n) for n in range(100)]
rows = pa.table({"value": [b"child"]})

async def of_asyncio():
    await (await pending.send(topic, b"child"))

async def rows_of_asyncio():
    await (await pending.send_arrow(topic, rows))

child = os.fork()
if child == 0:
    for name, call in {
        "send": lambda: producer.send(topic, b"child"),
        "first send": lambda: unused.send(topic, b"child"),
        "send_arrow": lambda: producer.send_arrow(topic, rows),
        "flush": producer.flush,
        "metrics": producer.metrics,
        "init": transactional.init_transactions,
        "begin": transactional.begin_transaction,
        "commit": transactional.commit_transaction,
        "abort": transactional.abort_transaction,
        "aio send": lambda: asyncio.run(of_asyncio()),
    }.items():
        try:
            call()
        except ForkedError:
            continue
        print(name, "was taken")
    if how == "close":
        for one in (producer, unused, transactional):
            one.close()
    if how == "own":
        with hr.Producer(servers) as own:
            own.send(topic, b"own").result(10)
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
producer.close()
print([future.result(0).offset for future in futures] == list(range(how == "own", 100 + (how == "own"))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "close", "own"])
def test_a_forked_child_sends_nothing_and_takes_nothing_away(cluster, topic, how):
    """Its calls fail, its end and its closing leave the parent's records alone, and it may have clients of its own."""
    cluster.create_topic(topic)
    assert run(FORKED, cluster.bootstrap_servers, topic, how) == (0, "child 0\nTrue\n", "")
    own = [b"own"] if how == "own" else []
    assert values(cluster.bootstrap_servers, topic) == [b"%03d" % n for n in range(100)] + own


FORKED_MAKER = """
import asyncio, os, sys
import headrace as hr
servers, topic = sys.argv[1:]
producer = hr.Producer(servers)
producer.send(topic, b"0").result(10)
waiting = hr.aio.Consumer(servers, auto_offset_reset="earliest")

async def read(consumer):
    await consumer.assign([(topic, 0)])
    while not (await consumer.poll(1.0)).num_rows:
        pass

asyncio.run(read(waiting))
if os.fork() == 0:
    own, reader = hr.Producer(servers, client_id="child"), hr.aio.Consumer(servers, auto_offset_reset="earliest")
    own.send(topic, b"1").result(10)

    async def end():
        global producer, waiting
        await read(reader)
        # The number of a thread of the parent may be that of a thread of the child.
        del producer, waiting
        own.close()
        await reader.close()

    asyncio.run(end())
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_child_that_drops_its_parents_clients_keeps_its_own(cluster, topic):
    cluster.create_topic(topic)
    assert run(FORKED_MAKER, cluster.bootstrap_servers, topic) == (0, "", "")
    assert values(cluster.bootstrap_servers, topic) == [b"0", b"1"]


FORKED_READERS = """
import asyncio, os, sys, threading, time
import headrace as hr
from headrace.errors import ForkedError
servers, topic = sys.argv[1:]
idle = hr.Consumer(servers)
reading, polled = hr.Consumer(servers), hr.Consumer(servers)
reading.assign([(topic, 0)])
polled.assign([(topic, 0)])
share = hr.ShareConsumer(servers, group_id="g")
of_loop = hr.aio.Consumer(servers)
admin = hr.Admin(servers)
sender = hr.aio.Producer(servers)

async def in_the_parent():
    await of_loop.assign([(topic, 0)])
    await of_loop.poll(0.01)
    await (await sender.send(topic, b"parent"))

async def in_the_child(call):
    await call()

asyncio.run(in_the_parent())
threading.Thread(target=polled.poll, args=(60.0,), daemon=True).start()
time.sleep(0.3)
child = os.fork()
if child == 0:
    for name, call in {
        "idle poll": idle.poll,
        "idle poll_all": idle.poll_all,
        "stream": idle.__arrow_c_stream__,
        "poll": reading.poll,
        "poll beside another": polled.poll,
        "poll_all beside another": polled.poll_all,
        "assign": lambda: idle.assign([(topic, 0)]),
        "subscribe": lambda: idle.subscribe([topic]),
        "position": lambda: reading.position((topic, 0)),
        "commit": reading.commit,
        "assignment": reading.assignment,
        "paused": reading.paused,
        "pause": lambda: reading.pause([(topic, 0)]),
        "resume": lambda: reading.resume([(topic, 0)]),
        "seek": lambda: reading.seek((topic, 0), 0),
        "metrics": reading.metrics,
        "share metrics": share.metrics,
        "share poll": share.poll,
        "share subscribe": lambda: share.subscribe([topic]),
        "aio poll": lambda: asyncio.run(in_the_child(of_loop.poll)),
        "aio position": lambda: asyncio.run(in_the_child(lambda: of_loop.position((topic, 0)))),
        "aio send": lambda: asyncio.run(in_the_child(lambda: sender.send(topic, b"child"))),
        "admin": admin.list_topics,
    }.items():
        try:
            call()
        except ForkedError:
            continue
        except Exception as error:
            print(name, "raised", repr(error))
        else:
            print(name, "was taken")
    sys.stdout.flush()
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.stdout.flush()
os._exit(0)
"""


def test_a_forked_child_hears_of_the_fork_whatever_else_is_wrong(cluster, topic):
    cluster.create_topic(topic)
    assert run(FORKED_READERS, cluster.bootstrap_servers, topic) == (0, "child 0\n", "")
