"""Schemas from a registry: the embedded one and Apicurio's with Confluent's serializers, and one that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import ssl
import struct
import threading
import time

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import headrace as hr
from headrace.errors import (
    ConfigError,
    DecodeError,
    SchemaError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
    UsageError,
)
from headrace.registry import SchemaReference
from tests.clients.sharing import begins_at_the_beginning, joined, rows_of
from tests.values.apicurio import Apicurio
from tests.values.test_avro import framed

TIMEOUT = 30
pytestmark = pytest.mark.timeout(300)
JSON_SCHEMA = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
V1 = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module", params=["embedded", pytest.param("apicurio", marks=pytest.mark.kafka)])
def url(request, tmp_path_factory):
    if request.param == "embedded":
        with hr.Broker.start(registry=True) as broker:
            yield broker.registry_url
    else:
        with Apicurio(tmp_path_factory.mktemp("registry")) as registry:
            yield registry.url


@pytest.fixture(scope="module")
def registry(url):
    return hr.SchemaRegistry(url)


def serialized(url, topic, schema, rows):
    """What Confluent's serializer makes of them; it registers the schema."""
    serializer = AvroSerializer(confluent.SchemaRegistryClient({"url": url}), json.dumps(schema))
    context = SerializationContext(topic, MessageField.VALUE)
    return [serializer(row, context) for row in rows]


def send(servers, topic, values):
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT) == 0


def test_what_confluents_serializer_wrote_is_read_by_the_newest_schema(url, registry, cluster, topic):
    cluster.create_topic(topic, 1)
    old = serialized(url, topic, V1, [{"id": 1}])
    new = serialized(url, topic, V2, [{"id": 2, "city": "x"}])
    send(cluster.bootstrap_servers, topic, [*old, *new, *old])
    table = hr.read(cluster.bootstrap_servers, topic, value=hr.Avro(registry)).read_all()
    expected = [{"id": 1, "city": None}, {"id": 2, "city": "x"}, {"id": 1, "city": None}]
    assert table["value"].to_pylist() == expected
    first = registry.version(f"{topic}-value", 1)
    assert (first.id, first.schema_type, first.version) == (struct.unpack(">I", old[0][1:5])[0], "AVRO", 1)
    by_id = hr.Avro(registry=registry, reader=first.id, columns=["id"])
    assert hr.decode(pa.array([*old, *new]), by_id).to_pylist() == [{"id": 1}, {"id": 2}]
    by_hand = hr.Avro(
        {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "double"}]}, registry=registry
    )
    assert hr.decode(pa.array(new), by_hand).to_pylist() == [{"id": 2.0}]
    by_subject = hr.Avro(registry, subject=f"{topic}-value")
    assert hr.decode(pa.array(old), by_subject).to_pylist() == expected[:1]


def test_the_columns_stay_while_newer_schemas_come(url, registry, embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    send(servers, topic, serialized(url, topic, V1, [{"id": 1}]))
    with hr.Consumer(servers, auto_offset_reset="earliest", value=hr.Avro(registry)) as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll(TIMEOUT)
        send(servers, topic, serialized(url, topic, V2, [{"id": 2, "city": "x"}]))
        second = consumer.poll(TIMEOUT)
        assert first.schema == second.schema == consumer.schema
        assert [first["value"].to_pylist(), second["value"].to_pylist()] == [[{"id": 1}], [{"id": 2}]]


def test_references_are_followed(registry, topic):
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "price", "type": "shop.Money"}]}
    order = {"type": "record", "name": "Big", "namespace": "shop", "fields": [
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}}, {"name": "total", "type": "shop.Money"},
    ]}  # fmt: skip
    names = [f"{topic}-money", f"{topic}-line", f"{topic}-order"]
    registry.register(names[0], json.dumps(money))
    to_money = SchemaReference("shop.Money", names[0], 1)
    registry.register(names[1], json.dumps(line), references=[to_money])
    references = [SchemaReference("shop.Line", names[1], 1), to_money]
    number = registry.register(names[2], json.dumps(order), references=references)
    found = hr.SchemaRegistry(registry._urls).schema(number)
    assert [json.loads(text)["name"] for _, text in found.definitions] == ["Money", "Line"]
    assert found.references == tuple(references)
    # lines: one of 3 cents; total: 5
    row = struct.pack(">BI", 0, number) + b"\x02\x06\x00\x0a"
    column = hr.decode(pa.array([row]), hr.Avro(registry, reader=number))
    assert column.to_pylist() == [{"lines": [{"price": {"cents": 3}}], "total": {"cents": 5}}]


def test_what_the_registry_does_not_know_is_a_bad_row(url, registry, topic):
    good = serialized(url, topic, V1, [{"id": 1}])
    other = registry.register(f"{topic}-json", JSON_SCHEMA, schema_type="JSON")
    rows = pa.array([*good, framed(999_999, V1, {"id": 2}), framed(other, V1, {"id": 3}), *good])
    avro = hr.Avro(registry, subject=f"{topic}-value", on_error="null")
    assert hr.decode(rows, avro).to_pylist() == [{"id": 1}, None, None, {"id": 1}]
    raising = hr.Avro(registry, subject=f"{topic}-value")
    with pytest.raises(DecodeError, match="row 1: schema id 999999 is not known"):
        hr.decode(rows, raising)
    with pytest.raises(DecodeError, match="it is of type JSON, not AVRO"):
        hr.decode(rows.slice(2), raising)
    with pytest.raises(SchemaError, match=f"schema id {other} is of type JSON"):
        hr.decode(rows, hr.Avro(registry, reader=other))


def test_what_the_registry_refuses_is_said(registry, topic):
    with pytest.raises(
        SchemaRegistryError, match=rf"/subjects/{topic}-value/versions/latest with status 404: "
    ) as caught:
        registry.latest(f"{topic}-value")
    assert (caught.value.status, caught.value.name, caught.value.retriable) == (404, "SCHEMA_NOT_FOUND", False)
    with pytest.raises(SchemaRegistryError, match="status 4") as caught:
        registry.register(f"{topic}-value", "{")
    assert not isinstance(caught.value, SchemaRegistryUnavailableError)
    assert f"{topic}-value" not in registry.subjects()


class Misbehaving(http.server.ThreadingHTTPServer):
    """Answers what `said` says next, the last for ever: bytes, with a status, a function, or None for no answer."""

    def __init__(self, said):
        super().__init__(("127.0.0.1", 0), Answers)
        self.said, self.seen = list(said), []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    """As its server says."""

    server: Misbehaving

    def do_GET(self):
        server = self.server
        server.seen.append((self.path, self.headers.get("Authorization")))
        said = server.said.pop(0) if len(server.said) > 1 else server.said[0]
        if said is None:
            return
        if callable(said):
            said(self)
            return
        status, body = said if isinstance(said, tuple) else (200, said)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@contextlib.contextmanager
def answering(*said):
    with Misbehaving(said) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


ANSWER = json.dumps({"schema": json.dumps(V1)}).encode()


def test_it_asks_again_and_the_others_when_one_does_not_answer():
    with answering((503, b"{}"), None, ANSWER) as one:
        registry = hr.SchemaRegistry(one.url, auth=("me", "secret"))
        assert json.loads(registry.schema(7).schema) == V1
        assert registry.schema(7).id == 7
        assert one.seen == [("/schemas/ids/7", "Basic bWU6c2VjcmV0")] * 3
        assert "secret" not in repr(registry)
    with answering((500, b"")) as ill, answering(ANSWER) as well:
        registry = hr.SchemaRegistry(["http://127.0.0.1:1", ill.url, well.url], auth="token")
        assert registry.schema(1).schema_type == "AVRO"
        assert well.seen == [("/schemas/ids/1", "Bearer token")]


def test_rows_that_were_never_written_for_a_registry_do_not_flood_it():
    """Each has another id: its first bytes."""
    numbers = pa.array([struct.pack(">BI", 0, number) + b"\x02" for number in range(1 << 20, (1 << 20) + 90_000)])
    headers = [[("__value_schema_id", b"\x01" + struct.pack(">QQ", 0, number))] for number in range(50_000)]
    schema = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with answering((404, b'{"error_code": 40403, "message": "Schema not found"}')) as server:
        avro = hr.Avro(V1, registry=hr.SchemaRegistry(server.url), on_error="null")
        assert hr.decode(numbers, avro).null_count == len(numbers)
        assert len(server.seen) == 50
        assert not avro.lacks(numbers), "they are not asked for again"
        named = pa.array([b"\x02"] * len(headers))
        found = hr._native.schema_headers(pa.array(headers, schema), False)
        column, bad = avro.column(named, pa.array(found))
        assert column.null_count == len(bad) == len(headers)
        assert len(server.seen) == 100


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.05)


@pytest.mark.parametrize("said", [None, (503, b'{"message": "overloaded"}'), drip], ids=["nothing", "503", "a drip"])
def test_a_registry_that_does_not_answer_is_retriable_in_the_end(said):
    with answering(said) as server:
        registry = hr.SchemaRegistry(server.url, timeout=0.3, deadline=0.5)
        with pytest.raises(SchemaRegistryUnavailableError, match=r"did not answer GET /schemas/ids/1: ") as caught:
            registry.schema(1)
        assert caught.value.retriable


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"no json", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b"[]", "malformed"),
        (b'{"schema": 5}', "malformed"),
        (b'{"schema": "\\"int\\"", "references": [{"subject": 5}]}', "malformed"),
        ((401, b'{"message": "who are you"}'), "status 401: who are you"),
        ((302, b""), "status 302"),
        (b" " * (17 << 20), "more than 16 MiB"),
    ],
    ids=["text", "depth", "list", "number", "references", "401", "302", "large"],
)
def test_an_answer_that_is_none_is_an_error(said, why):
    with answering(said) as server, pytest.raises(SchemaRegistryError, match=why) as caught:
        hr.SchemaRegistry(server.url).schema(1)
    assert not caught.value.retriable


@pytest.mark.parametrize(
    "said",
    [
        b"{}",
        b"null",
        b"[1]",
        b'[{"context": ".", "id": true}]',
        b'[{"context": ".", "id": "7"}]',
        b'[{"context": ".", "id": -1}]',
        b'[{"context": ".", "id": 4294967296}]',
    ],
)
def test_ids_of_a_guid_that_are_none_are_an_error(said):
    with answering(said) as server, pytest.raises(SchemaRegistryError, match="malformed"):
        hr.SchemaRegistry(server.url).by_guid("00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("said", [b"[]", b'[{"context": ":.other:", "id": 7}]', b'[{"context": ["."], "id": 7}]'])
def test_a_guid_of_no_id_is_not_found(said):
    with answering(said) as server, pytest.raises(SchemaRegistryError, match="no schema of GUID") as caught:
        hr.SchemaRegistry(server.url).by_guid("00000000-0000-0000-0000-000000000000")
    assert caught.value.status == 404


def test_references_in_a_circle_are_refused():
    circle = {"schema": '"x"', "references": [{"name": "x", "subject": "x", "version": 1}]}
    with answering(json.dumps(circle).encode()) as server:
        with pytest.raises(SchemaRegistryError, match="version 1 of x refers to itself"):
            hr.SchemaRegistry(server.url).schema(1)
        assert len(server.seen) == 2


def test_rows_come_again_when_the_registry_does(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    send(servers, topic, [framed(7, V1, {"id": number}) for number in range(5)])
    with answering((503, b"")) as server:
        registry = hr.SchemaRegistry(server.url, deadline=1.5)
        avro = hr.Avro(V1, registry=registry)
        with hr.Consumer(servers, auto_offset_reset="earliest", value=avro) as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(SchemaRegistryUnavailableError):
                consumer.poll(TIMEOUT)
            assert consumer.position((topic, 0)) == 0
            server.said[:] = [ANSWER]
            assert consumer.poll(TIMEOUT)["value"].to_pylist() == [{"id": number} for number in range(5)]


def test_from_coroutines_schemas_are_looked_up_beside_the_loop(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    send(servers, topic, [framed(7, V1, {"id": number}) for number in range(5)])
    let_go = threading.Event()

    def late(handler):
        let_go.wait(TIMEOUT)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(ANSWER)))
        handler.end_headers()
        handler.wfile.write(ANSWER)

    async def work(registry):
        options = {"auto_offset_reset": "earliest", "value": hr.Avro(V1, registry=registry)}
        async with hr.aio.Consumer(servers, **options) as consumer:
            await consumer.assign([(topic, 0)])
            poll = asyncio.ensure_future(consumer.poll(TIMEOUT))
            while not server.seen:  # noqa: ASYNC110 (it is another thread that sees)
                await asyncio.sleep(0.01)
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            let_go.set()
            batch = await consumer.poll(TIMEOUT)
            server.said[:] = [(500, b"")]
            return batch["value"].to_pylist()

    with answering(late) as server:
        assert asyncio.run(work(hr.SchemaRegistry(server.url))) == [{"id": number} for number in range(5)]


@pytest.mark.kafka
def test_a_share_consumer_keeps_its_rows_until_the_registry_answers(apache_kafka, topic):
    servers = apache_kafka.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 1)
        groups = [begins_at_the_beginning(admin, f"{kind}-{topic}") for kind in ("s", "a")]
    send(servers, topic, [framed(7, V1, {"id": number}) for number in range(5)])
    rows = [{"id": number} for number in range(5)]
    with answering((503, b"")) as server:
        formats = {"value": hr.Avro(V1, registry=hr.SchemaRegistry(server.url, deadline=1.5), on_error="null")}
        with joined(servers, groups[0], topic, **formats) as share:
            for _ in range(2):
                with pytest.raises(SchemaRegistryUnavailableError):
                    rows_of(share, 1)
            with pytest.raises(UsageError, match="poll before commit"):
                share.commit()
            server.said[:] = [ANSWER]
            assert rows_of(share, 5)["value"].to_pylist() == rows
            assert share.commit() == {hr.TopicPartition(topic, 0): None}
        server.said[:] = [(503, b"")]

        async def work():
            formats = {"value": hr.Avro(V1, registry=hr.SchemaRegistry(server.url, deadline=1.5), on_error="null")}
            async with hr.aio.ShareConsumer(servers, group_id=groups[1], **formats) as share:
                await share.subscribe([topic])
                with pytest.raises(SchemaRegistryUnavailableError):
                    while True:
                        await share.poll(1)
                server.said[:] = [ANSWER]
                return (await share.poll(1))["value"].to_pylist()

        assert asyncio.run(work()) == rows


def test_an_unknown_id_is_asked_for_once_in_a_while():
    with answering((404, b'{"error_code": 40403, "message": "Schema not found"}')) as server:
        avro = hr.Avro(V1, registry=hr.SchemaRegistry(server.url), on_error="null")
        rows = pa.array([framed(number, V1, {"id": 1}) for number in (8, 9, 8)])
        for _ in range(3):
            assert hr.decode(rows, avro).null_count == 3
        assert sorted(path for path, _ in server.seen) == ["/schemas/ids/8", "/schemas/ids/9"]


def test_what_excludes_each_other_is_said(registry, embedded_broker):
    servers = embedded_broker.bootstrap_servers
    for arguments, why in [
        ({}, "takes a schema or a registry"),
        ({"registry": registry, "schemas": {1: V1}}, "leave schemas and references out"),
        ({"schema": V1, "subject": "x"}, "give a registry, and no schema"),
        ({"schema": V1, "registry": registry, "reader": 3}, "give a registry, and no schema"),
        ({"registry": registry, "reader": "newest"}, "'latest' or the id"),
    ]:
        with pytest.raises(ConfigError, match=why):
            hr.Avro(**arguments)
    for url in ("ftp://x", "127.0.0.1:8081", ""):
        with pytest.raises(ConfigError, match="url"):
            hr.SchemaRegistry(url)
    with pytest.raises(ConfigError, match=r"auth=\(user, password\)") as caught:
        hr.SchemaRegistry("http://me:secret@127.0.0.1")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        hr.SchemaRegistry("https://127.0.0.1", ssl_ca_location="/nowhere")
    with hr.Consumer(servers, value=hr.Avro(registry)) as consumer:
        with pytest.raises(ConfigError, match="value: the columns of several topics"):
            consumer.assign([("a", 0), ("b", 0)])
        with pytest.raises(ConfigError, match="name its subject"):
            _ = consumer.schema
    with pytest.raises(ConfigError, match="name its subject"):
        hr.decode(pa.array([b""]), hr.Avro(registry))


def test_tls_on_both_sides(certificates):
    """The registry shows its certificate and asks for one: all of it is checked, by name and by who has signed it."""
    with Misbehaving([ANSWER]) as server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.crt")
        context.load_cert_chain(certificates / "broker.crt", certificates / "broker.key")
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            url = f"https://localhost:{server.server_port}"
            ours = {
                "ssl_ca_location": str(certificates / "ca.crt"),
                "ssl_certificate_location": str(certificates / "client.crt"),
                "ssl_key_location": str(certificates / "client.key"),
            }
            assert json.loads(hr.SchemaRegistry(url, **ours).schema(7).schema) == V1
            with pytest.raises(SchemaRegistryError, match="is not trusted") as caught:
                hr.SchemaRegistry(url, deadline=0.5).schema(7)
            assert caught.value.name == "SSL_HANDSHAKE_FAILED"
            with pytest.raises(SchemaRegistryUnavailableError):
                hr.SchemaRegistry(url, ssl_ca_location=ours["ssl_ca_location"], deadline=0.5).schema(7)
        finally:
            server.shutdown()
            thread.join()
