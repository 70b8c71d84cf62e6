"""What a broken or hostile peer sends: each gets its answer, and broker, data and other clients are unharmed."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import zlib

import pytest

import headrace as hr
from headrace.errors import KafkaError, KafkaTimeoutError, RecordError
from tests.broker.raw import Connection, batch, record

CORRUPT_MESSAGE = 2
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


@pytest.fixture
def servers(embedded_broker):
    """Our broker; at the end it must still serve."""
    yield embedded_broker.bootstrap_servers
    assert embedded_broker.is_running
    with hr.Admin(embedded_broker.bootstrap_servers, default_api_timeout_ms=5000) as admin:
        admin.describe_cluster()


@pytest.fixture
def made(servers, topic):
    with hr.Producer(servers) as producer:
        producer.send(topic, b"before").result(10)
    yield topic
    with hr.Producer(servers) as producer:
        producer.send(topic, b"after").result(10)
    assert hr.read(servers, topic).read_all()["value"].to_pylist() == [b"before", b"after"]


@pytest.mark.parametrize(
    ("what", "records", "codes"),
    [
        ("wrong crc", batch([b"x"], crc=1), {CORRUPT_MESSAGE}),
        ("count too high", batch([b"x"], count=5, last_delta=4), {INVALID_RECORD, CORRUPT_MESSAGE}),
        ("count too low", batch([b"x", b"y"], count=1, last_delta=0), {INVALID_RECORD, CORRUPT_MESSAGE}),
        (
            "count beyond the bytes",
            batch([b"x"], count=1 << 30, last_delta=(1 << 30) - 1),
            {INVALID_RECORD, CORRUPT_MESSAGE},
        ),
        ("negative count", batch([b"x"], count=-1, last_delta=-1), {INVALID_RECORD, CORRUPT_MESSAGE}),
        ("count against last offset", batch([b"x", b"y"], last_delta=7), {INVALID_RECORD, CORRUPT_MESSAGE}),
        ("old magic", batch([b"x"], magic=1), {CORRUPT_MESSAGE, 43, INVALID_RECORD}),
        ("unknown codec", batch([b"x"], attributes=7), {UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, CORRUPT_MESSAGE}),
        ("codec that it is not", batch([b"x"], attributes=4), {CORRUPT_MESSAGE, INVALID_RECORD}),
        ("control batch", batch([b"x"], attributes=32), {INVALID_RECORD}),
        ("truncated batch", batch([b"xyz"])[:-2], {CORRUPT_MESSAGE, INVALID_RECORD}),
        ("half a header", batch([b"xyz"])[:30], {CORRUPT_MESSAGE, INVALID_RECORD}),
        ("two batches", batch([b"x"]) + batch([b"y"]), {INVALID_RECORD, CORRUPT_MESSAGE}),
        (
            "record longer than the batch",
            batch([b"x"], body=record(0, b"x" * 90)[:20]),
            {INVALID_RECORD, CORRUPT_MESSAGE},
        ),
        (
            "bomb",
            batch(
                [b"x"], attributes=1, body=zlib.compressobj(9, zlib.DEFLATED, 31).compress(b"\0" * 300_000_000) or b""
            ),
            {INVALID_RECORD, CORRUPT_MESSAGE, 10},
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(servers, made, what, records, codes):
    with Connection(servers) as connection:
        assert connection.produce(made, records) in codes, what
        assert connection.produce(made, records) in codes, what


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1) + b"x" * 1000,
        struct.pack(">i", 8) + struct.pack(">hhi", 9999, 0, 1),
        struct.pack(">i", 10) + struct.pack(">hhih", 3, 0, 1, 5000),
        struct.pack(">i", 14) + struct.pack(">hhih", 1, 4, 1, -1) + b"\xff" * 4,
    ],
    ids=["http", "tls", "negative", "empty", "huge", "unknown-api", "short-header", "garbage-body"],
)
def test_garbage_on_the_port_closes_that_connection_only(servers, opening):
    with Connection(servers) as other, Connection(servers) as connection:
        connection.socket.sendall(opening)
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.receive() == b""
        other.send(struct.pack(">hhih", 18, 0, 7, -1))
        assert struct.unpack_from(">ih", other.receive()) == (7, 0)


def test_noise_never_stops_the_broker(servers):
    noise = random.Random(7)
    for _ in range(200):
        key = noise.choice([0, 1, 2, 3, 8, 9, 10, 11, 14, 18, 19, 20, 22, 23, 32, 36, 37, 60, 75])
        frame = struct.pack(">hhih", key, noise.randrange(14), 1, -1) + noise.randbytes(noise.randrange(200))
        with Connection(servers) as connection:
            connection.socket.settimeout(0.5)
            connection.send(frame)
            connection.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                connection.receive()


def test_a_half_frame_and_a_silent_client_hold_nobody_up(servers, made):
    with Connection(servers) as half, Connection(servers):
        half.socket.sendall(struct.pack(">i", 1000) + b"x" * 10)
        with hr.Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(made, 0)])
            assert consumer.poll(10.0)["value"].to_pylist() == [b"before"]


class LyingServer:
    """A server that answers every connection with the same bytes."""

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(2)
                try:
                    peer.recv(4096)
                    peer.sendall(self._answer)
                    peer.recv(1)
                except OSError:
                    pass

    def close(self):
        self._listener.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        struct.pack(">i", 6) + b"\0\0\x99\x99\0\0",
        b"",
    ],
    ids=["http", "tls", "wrong-correlation-id", "nothing"],
)
def test_a_server_that_does_not_speak_kafka_is_named(answer):
    server = LyingServer(answer)
    try:
        with hr.Admin(server.address, default_api_timeout_ms=1500) as admin:
            with pytest.raises(KafkaError, match=server.address):
                admin.list_topics()
        with hr.Producer(server.address, max_block_ms=1500) as producer:
            with pytest.raises(KafkaError, match=server.address):
                producer.send("t", b"x").result(10)
            producer.flush()
    finally:
        server.close()


@pytest.mark.slow
def test_a_topic_deleted_while_it_is_read(servers, made, topic):
    doomed = f"{topic}-doomed"
    with hr.Admin(servers) as admin, hr.Producer(servers) as producer:
        admin.create_topic(doomed, 1)
        producer.send(doomed, b"x").result(10)
        options = {"auto.offset.reset": "earliest", "allow.auto.create.topics": False, "fetch.max.wait.ms": 200}
        with hr.Consumer(servers, options) as consumer:
            consumer.assign([(doomed, 0), (made, 0)])
            got = []
            while len(got) < 2:
                got += consumer.poll(5.0)["value"].to_pylist()
            admin.delete_topics([doomed])
            with pytest.raises(KafkaError, match=doomed) as caught:
                for _ in range(50):
                    consumer.poll(0.2)
            assert caught.value.topic == doomed


def test_a_record_that_is_damaged_on_disk_is_named(tmp_path, topic):
    with hr.Broker.start(tmp_path) as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"first" * 100).result(10)
        producer.send(topic, b"second" * 100).result(10)
        log = next(tmp_path.glob(f"{topic}-0/*.log"))
        with log.open("r+b") as file:
            file.seek(-20, 2)
            file.write(b"?")
        with hr.Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.poll(10.0)["offset"].to_pylist() == [0]
            with pytest.raises((RecordError, KafkaTimeoutError), match=topic) as caught:
                consumer.poll(10.0)
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == (topic, 0, 1)
            consumer.seek((topic, 0), 2)
            producer.send(topic, b"third").result(10)
            assert consumer.poll(10.0)["value"].to_pylist() == [b"third"]
