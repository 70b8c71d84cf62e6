"""A producer that writes into the broker's memory: what it wrote is in the log, in order and once, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import ConfigError
from tests.broker.process import BrokerProcess

ROWS = 50_000


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start() as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    name = f"{request.node.name[:60]}".replace("[", "-").replace("]", "")
    with hr.Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([hr.NewTopic(name, 2)])
    return name


def numbered(rows=ROWS, start=0, partition=0):
    values = pc.cast(pa.array(range(start, start + rows)), pa.string()).cast(pa.binary())
    return pa.table({"value": values, "partition": pa.array([partition] * rows, pa.int32())})


def linked(producer, topic, partition=0):
    """Sends single records until one has gone through memory; how many were sent."""
    before = producer.metrics()["direct-bytes-produced-total"]
    until = time.monotonic() + 20
    sent = 0
    while time.monotonic() < until:
        producer.send(topic, b"first", partition=partition).result(10)
        sent += 1
        if producer.metrics()["direct-bytes-produced-total"] > before:
            return sent
    pytest.fail("no record has gone through memory")


def values_of(servers, topic, partition=None):
    table = hr.read(servers, topic, start="earliest", end="latest").read_all()
    if partition is not None:
        table = table.filter(pc.equal(table["partition"], partition))
    return table.sort_by("offset")["value"].to_pylist()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("idempotence", [True, False])
def test_rows_come_through_memory_in_order_and_once(broker, topic, compression, idempotence):
    options = {"compression_type": compression, "enable_idempotence": idempotence}
    if not idempotence:
        options |= {"acks": "1", "max_in_flight_requests_per_connection": 1}
    with hr.Producer(broker.bootstrap_servers, headrace_datapath="shm", linger_ms=1, **options) as producer:
        first = linked(producer, topic)
        before = producer.metrics()["direct-bytes-produced-total"]
        assert producer.send_arrow(topic, numbered()).result(60) == ROWS
        written = producer.metrics()["direct-bytes-produced-total"] - before
    payload = sum(len(str(number)) for number in range(ROWS))
    # Compressed ones are smaller, and nothing went another way: else some of it would be missing here.
    assert written > (payload if compression == "none" else payload // 20)
    found = values_of(broker.bootstrap_servers, topic)
    assert found == [b"first"] * first + [str(number).encode() for number in range(ROWS)]


def test_each_row_is_told_where_it_went(broker, topic):
    with hr.Producer(broker.bootstrap_servers, headrace_datapath="shm") as producer:
        first = linked(producer, topic)
        results = producer.send_arrow(topic, numbered(1000), results=True).result(30)
    assert results["offset"].to_pylist() == list(range(first, first + 1000))
    assert results["error"].null_count == 1000


def test_producers_share_a_partitions_memory_beside_tcp(broker, topic):
    servers = broker.bootstrap_servers
    with (
        hr.Producer(servers, headrace_datapath="shm") as one,
        hr.Producer(servers, headrace_datapath="shm") as two,
        hr.Producer(servers) as over_tcp,
    ):
        # The first is alone until the second comes.
        first = linked(one, topic) + linked(two, topic) + linked(one, topic)
        before = [producer.metrics()["direct-bytes-produced-total"] for producer in (one, two)]
        parts = [(one, 0), (two, ROWS), (over_tcp, 2 * ROWS)]
        futures = [producer.send_arrow(topic, numbered(start=start)) for producer, start in parts]
        assert [future.result(60) for future in futures] == [ROWS] * 3
        after = [producer.metrics()["direct-bytes-produced-total"] for producer in (one, two)]
    for less, more, start in zip(before, after, (0, ROWS), strict=True):
        assert more - less > sum(len(str(number)) for number in range(start, start + ROWS)), "all of it went so"
    check_parts(values_of(servers, topic, 0)[first:], 3)


def check_parts(values, parts, rows=ROWS):
    """Each part is there whole, once and in its order."""
    found = [int(value) for value in values]
    assert len(found) == parts * rows
    for start in range(0, parts * rows, rows):
        assert [number for number in found if start <= number < start + rows] == list(range(start, start + rows))


def test_sixty_four_producers_share_a_partition_beside_tcp(broker, topic):
    servers, rows = broker.bootstrap_servers, 400
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(hr.Producer(servers, headrace_datapath="shm", linger_ms=0)) for _ in range(64)]
        for producer in producers:
            linked(producer, topic)
        # Those that came first have had their memory changed since.
        first = sum(linked(producer, topic) for producer in producers)
        producers += [stack.enter_context(hr.Producer(servers, linger_ms=0)) for _ in range(2)]
        before = [producer.metrics()["direct-bytes-produced-total"] for producer in producers]
        futures = []
        for block in range(0, rows, 50):
            for number, producer in enumerate(producers):
                table = numbered(50, number * rows + block)
                futures.append(producer.send_arrow(topic, table))
        assert sum(future.result(60) for future in futures) == 66 * rows
        after = [producer.metrics()["direct-bytes-produced-total"] for producer in producers]
    assert all(more > less for less, more in zip(before[:64], after[:64], strict=True))
    assert after[64:] == [0, 0]
    values = [value for value in values_of(servers, topic, 0) if value != b"first"]
    assert first >= 64
    check_parts(values, 66, rows)


def test_batches_that_no_ring_takes_go_over_tcp_in_their_place(tmp_path):
    settings = ["headrace.direct.ring.bytes.max=65536"]
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        with hr.Producer(broker.bootstrap_servers, headrace_datapath="shm", linger_ms=0) as producer:
            first = linked(producer, "t")
            large = b"x" * 100_000
            futures = [producer.send("t", value, partition=0) for value in [b"a", large, b"b", large, b"c"] * 20]
            offsets = [future.result(30).offset for future in futures]
        assert offsets == list(range(first, first + 100))
        assert values_of(broker.bootstrap_servers, "t")[first:] == [b"a", large, b"b", large, b"c"] * 20


@pytest.mark.slow
def test_a_thousand_partitions_all_get_memory():
    config = {"headrace.direct.ring.bytes.max": 65536}
    with hr.Broker.start(config=config) as broker:
        servers = broker.bootstrap_servers
        with hr.Admin(servers) as admin:
            admin.create_topics([hr.NewTopic("t", 1000)])
        with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer:
            linked(producer, "t")
            # Of all at once the words would be more than wait in a socket.
            for _ in range(3):
                for future in [producer.send("t", b"first", partition=number) for number in range(1000)]:
                    future.result(20)
            for number in range(1000):
                linked(producer, "t", number)


def send_until(done, producer, name, futures):
    """Sends numbered values until `done`, 3,000 at least and 20,000 at most."""
    for number in range(20_000):
        if done.is_set() and number >= 3000:
            return
        futures.append(producer.send("t", f"{name} {number}".encode(), partition=0))


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 3])
def test_a_killed_broker_loses_nothing_that_it_acknowledged(tmp_path, writers):
    with BrokerProcess(tmp_path / "data") as broker, contextlib.ExitStack() as stack:
        servers = broker.bootstrap_servers
        options = {"headrace_datapath": "shm", "linger_ms": 0, "reconnect_backoff_ms": 20}
        producers = [stack.enter_context(hr.Producer(servers, **options)) for _ in range(writers)]
        for producer in producers:
            linked(producer, "t")
        for life in range(3):
            done = threading.Event()
            futures = []

            senders = [
                threading.Thread(target=send_until, args=(done, producer, f"{life}-{who}", futures))
                for who, producer in enumerate(producers)
            ]
            for sender in senders:
                sender.start()
            while len(futures) < 1000:
                done.wait(0.001)
            broker.kill()
            broker.start()
            done.set()
            for sender in senders:
                sender.join(60)
            for producer in producers:
                producer.flush(60)
            assert all(future.exception(1) is None for future in futures)
            # The new broker lends anew.
            for producer in producers:
                linked(producer, "t")
        found = [value for value in values_of(servers, "t") if value != b"first"]
        for name in (f"{life}-{who}" for life in range(3) for who in range(writers)):
            own = [int(value.split()[1]) for value in found if value.startswith(name.encode() + b" ")]
            assert len(own) >= 3000
            assert own == list(range(len(own))), "in order, none lost, none twice"


def test_a_broker_that_shares_no_memory(tmp_path):
    with BrokerProcess(tmp_path / "data", "headrace.direct=false") as broker:
        with hr.Producer(broker.bootstrap_servers, headrace_datapath="auto") as producer:
            assert producer.send_arrow("t", numbered(1000)).result(30) == 1000
            assert producer.metrics()["direct-bytes-produced-total"] == 0
        refused(broker.bootstrap_servers, "t", "headrace.direct is false")


def refused(servers, topic, why):
    """A producer that is to write through memory says why it cannot."""
    with hr.Producer(servers, headrace_datapath="shm") as producer:
        with pytest.raises(ConfigError, match=r"headrace\.datapath") as error:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                producer.send(topic, b"x").result(10)
        assert why in str(error.value)


def test_apache_kafka_shares_no_memory(apache_kafka, request):
    servers, topic = apache_kafka.bootstrap_servers, request.node.name
    with hr.Producer(servers, headrace_datapath="auto") as producer:
        assert producer.send(topic, b"x").result(30).offset >= 0
    refused(servers, topic, "no broker of headrace's")


@pytest.mark.parametrize(
    ("setting", "why"),
    [({"message.timestamp.type": "LogAppendTime"}, "LogAppendTime"), ({"cleanup.policy": "compact"}, "compacted")],
)
def test_a_topic_that_takes_nothing_through_memory(broker, setting, why, request):
    topic = request.node.name.replace("[", "-").replace("]", "")[:60]
    with hr.Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([hr.NewTopic(topic, 1, config=setting)])
    with hr.Producer(broker.bootstrap_servers, headrace_datapath="auto") as producer:
        assert producer.send_arrow(topic, pa.table({"value": [b"x"] * 1000})).result(30) == 1000
        assert producer.metrics()["direct-bytes-produced-total"] == 0
    refused(broker.bootstrap_servers, topic, why)


@pytest.mark.slow
def test_asyncio_writes_through_memory_too(broker, topic):
    async def main():
        async with hr.aio.Producer(broker.bootstrap_servers, headrace_datapath="shm", linger_ms=0) as producer:
            offsets = []
            for number in range(1000):
                future = await producer.send(topic, str(number).encode(), partition=0)
                offsets.append((await future).offset)
            return offsets

    assert asyncio.run(main()) == list(range(1000))
    assert values_of(broker.bootstrap_servers, topic) == [str(number).encode() for number in range(1000)]


def test_an_unknown_datapath_is_an_error_that_names_the_others(broker):
    with pytest.raises(ConfigError, match="one of tcp, auto, shm"):
        hr.Producer(broker.bootstrap_servers, headrace_datapath="pigeon")
