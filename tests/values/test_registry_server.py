"""The registry of an embedded broker: by Confluent's clients, across restarts, and against what misbehaves."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import urllib.parse

import confluent_kafka.schema_registry as confluent
import pyarrow as pa
import pytest
from avro import compatibility
from avro import schema as avro_schema
from avro.errors import AvroException
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

import headrace as hr
from headrace import _native
from headrace.errors import ConfigError, SchemaRegistryError, UsageError
from headrace.registry import SchemaReference, json_schema
from headrace.registry.refusal import Refusal
from headrace.registry.server import BODY_BYTES_MAX, CONNECTIONS_MAX
from headrace.registry.subjects import Schema, Subjects
from tests.broker.process import BrokerProcess
from tests.kafka.apache import free_ports

TIMEOUT = 30
V1 = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}
# No default: rows of V1 cannot be read with it.
V3 = {**V1, "fields": [*V1["fields"], {"name": "weight", "type": "double"}]}


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture
def client(broker):
    return confluent.SchemaRegistryClient({"url": broker.registry_url})


@pytest.fixture
def ask(broker):
    """Asks for something, and gives the status and the answer."""
    parts = urllib.parse.urlsplit(broker.registry_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT)

    def ask(method, path, body=None):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
        return answer.status, json.loads(answer.read())

    yield ask
    connection.close()


def of(schema, kind="AVRO", references=()):
    return confluent.Schema(json.dumps(schema), kind, [confluent.SchemaReference(*one) for one in references])


def test_confluents_client_does_all_that_it_can(client, topic):
    subject = f"{topic}-value"
    first = client.register_schema(subject, of(V1))
    assert client.register_schema(subject, of(V1)) == first
    assert client.register_schema(f"{topic}-other", of(dict(reversed(V1.items())))) == first
    second = client.register_schema(subject, of(V2))
    assert second > first
    assert json.loads(client.get_schema(second).schema_str) == V2
    assert client.get_versions(subject) == [1, 2]
    assert client.get_latest_version(subject).schema_id == second
    assert (client.get_version(subject, 1).schema_id, client.lookup_schema(subject, of(V1)).version) == (first, 1)
    assert [client.test_compatibility(subject, of(schema)) for schema in (V1, V3)] == [True, False]
    with pytest.raises(confluent.SchemaRegistryError, match=r"/weight: the field .* has no default") as caught:
        client.register_schema(subject, of(V3))
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
    client.set_compatibility(subject, "NONE")
    assert client.get_compatibility(subject) == "NONE"
    assert client.register_schema(subject, of(V3)) == second + 1
    assert client.delete_version(subject, 3) == 3
    assert client.delete_subject(subject) == [1, 2]
    assert subject not in client.get_subjects()
    # It keeps what it has found for a while.
    client.clear_caches()
    with pytest.raises(confluent.SchemaRegistryError) as caught:
        client.get_latest_version(subject)
    assert caught.value.error_code == 40401
    assert json.loads(client.get_schema(first).schema_str) == V1
    assert client.delete_subject(subject, permanent=True) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_confluents_serializers_work_on_it(client, topic, kind):
    context = SerializationContext(topic, MessageField.VALUE)
    if kind == "AVRO":
        data = AvroSerializer(client, json.dumps(V2))({"id": 1, "city": "x"}, context)
        assert AvroDeserializer(client)(data, context) == {"id": 1, "city": "x"}
    else:
        schema = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
        data = JSONSerializer(json.dumps(schema), client)({"id": 1}, context)
        assert json.loads(data[5:]) == {"id": 1}
    assert client.get_latest_version(f"{topic}-value").schema.schema_type == kind


def test_references_are_kept_and_guarded(broker, client, ask, topic):
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "price", "type": "shop.Money"}]}
    assert ask("POST", f"/subjects/{topic}-l/versions", {"schema": json.dumps(line)})[1]["error_code"] == 42201
    client.register_schema(f"{topic}-money", of(money))
    to_money = ("shop.Money", f"{topic}-money", 1)
    number = client.register_schema(f"{topic}-line", of(line, references=[to_money]))
    registry = hr.SchemaRegistry(broker.registry_url)
    assert registry.schema(number).references == (SchemaReference(*to_money),)
    assert ask("GET", f"/subjects/{topic}-money/versions/latest/referencedby") == (200, [number])
    assert ask("DELETE", f"/subjects/{topic}-money")[1]["error_code"] == 42206
    assert ask("GET", f"/schemas/ids/{number}/versions") == (200, [{"subject": f"{topic}-line", "version": 1}])
    gone = {"schema": json.dumps(line), "references": [{"name": "shop.Money", "subject": "nobody", "version": 1}]}
    assert "names version 1 of 'nobody'" in ask("POST", f"/subjects/{topic}-l/versions", gone)[1]["message"]


def test_what_it_keeps_outlives_a_kill(tmp_path):
    port = free_ports(1)[0]
    options = ("--registry", "--registry-port", str(port))
    registry = hr.SchemaRegistry(f"http://127.0.0.1:{port}", deadline=TIMEOUT)
    with BrokerProcess(tmp_path / "data", options=options) as process:
        ids = [registry.register("orders-value", json.dumps(schema)) for schema in (V1, V2)]
        json_id = registry.register("events-value", '{"type": "object"}', schema_type="JSON")
        process.stop(signal.SIGKILL)
        process.start()
        again = hr.SchemaRegistry(f"http://127.0.0.1:{port}", deadline=TIMEOUT)
        assert [json.loads(again.schema(number).schema) for number in ids] == [V1, V2]
        assert (again.latest("orders-value").version, again.latest("events-value").id) == (2, json_id)
        assert again.register("more", '"string"') == json_id + 1
        assert process.stop() == 0
        assert f"schema registry at http://127.0.0.1:{port}" in process.output.read_text()


def written(name, number, text, **more):
    value = {"subject": name, "version": 1, "id": number, "md5": "AAAA", "schema": text, "deleted": False, **more}
    return {"keytype": "SCHEMA", "subject": name, "version": 1, "magic": 1}, value


def test_it_reads_what_confluents_registry_has_written():
    """Records as they are in its topic: keys in its order of members, and those that it writes besides."""
    subjects = Subjects()
    for key, value in [
        ({"keytype": "NOOP", "magic": 0}, None),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL", "alias": None}),
        ({"keytype": "MODE", "subject": "c", "magic": 0}, {"subject": "c", "mode": "READONLY"}),
        written("a", 5, '"int"'),
        written("b", 6, 'syntax = "proto3"; message M {}', schemaType="PROTOBUF"),
        written("c", 7, '"long"', references=None),
        written("d", 8, '"string"'),
        ({"keytype": "DELETE_SUBJECT", "subject": "a", "magic": 0}, {"subject": "a", "version": 1}),
        ({"keytype": "SCHEMA", "subject": "d", "version": 1, "magic": 1}, None),
    ]:  # fmt: skip
        subjects.take(key, value)
    assert (subjects.names(), subjects.names(deleted=True)) == (["b", "c"], ["a", "b", "c"])
    assert (subjects.level("x"), subjects.mode("c"), subjects.mode("x")) == ("FULL", "READONLY", "READWRITE")
    subjects.take({"keytype": "CONFIG", "subject": "c", "magic": 0}, {"subject": "c", "compatibilityLevel": None})
    assert subjects.level("c") == "FULL"
    with pytest.raises(Refusal, match="it is of type PROTOBUF, not AVRO") as caught:
        subjects.register("b", Schema('"int"'))
    assert caught.value.status == 409
    # The id of what is there already, and the next one for what is not.
    assert [subjects.register("new", Schema(text))[1] for text in ('"int"', '"bytes"')] == [5, 9]
    for key in (None, 5, {}, {"keytype": "SCHEMA"}, {"keytype": "SCHEMA", "subject": "x", "version": "v"}):
        with pytest.raises(ValueError, match=r"malformed|invalid"):
            subjects.take(key, {"schema": "x"})


def test_the_topic_of_something_else_is_refused(tmp_path):
    with hr.Broker.start(tmp_path) as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send("_schemas", b"not JSON", partition=0).result(TIMEOUT)
    with pytest.raises(SchemaRegistryError, match=r"cannot read its topic: _schemas-0, offset 0: "):
        hr.Broker.start(tmp_path, registry=True)
    # Without it the broker still starts, and nothing holds the folder.
    with hr.Broker.start(tmp_path, registry_port=0):
        pass


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SchemaRegistryError, match=rf"registry cannot listen on 127\.0\.0\.1:{port}: "):
            hr.Broker.start(registry=True, registry_port=port)
    with pytest.raises(ConfigError, match="registry_port takes a whole number"):
        hr.Broker.start(registry=True, registry_port=70_000)
    with hr.Broker.start() as broker:
        with pytest.raises(UsageError, match=r"Broker\.start\(registry=True\)"):
            _ = broker.registry_url


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, 404),
        ("PUT", "/subjects", None, 405, 405),
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/schemas/ids/999999", None, 404, 40403),
        ("GET", "/schemas/ids/" + "9" * 400, None, 404, 404),
        ("GET", "/subjects/known/versions/0", None, 422, 42202),
        ("GET", "/subjects/known/versions/" + "9" * 400, None, 422, 42202),
        ("GET", "/subjects/known/versions/7", None, 404, 40402),
        ("GET", "/config/known", None, 404, 40408),
        ("PUT", "/config", {"compatibility": "SOME"}, 422, 42203),
        ("PUT", "/mode", {"mode": 5}, 422, 42204),
        ("POST", "/subjects/x/versions", b"{", 400, 400),
        ("POST", "/subjects/x/versions", b"[" * 100_000, 400, 400),
        ("POST", "/subjects/x/versions", [], 400, 400),
        ("POST", "/subjects/x/versions", {}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": 5}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": "[" * 100_000}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": "[" * 400 + '"int"' + "]" * 400}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '{"type": "nothing"}'}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '"int"', "schemaType": "PROTOBUF"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '"int"', "references": 5}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '{"default": 1e999}', "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": "NaN", "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '"\\ud800"', "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '{"type": "thing"}', "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '{"$ref": "#/no"}', "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/x/versions", {"schema": '{"required": 5}', "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/a%0ab/versions", {"schema": '"int"'}, 422, 42208),
        ("POST", "/subjects/%ff/versions", {"schema": '"int"'}, 400, 400),
        ("GET", "/subjects/known/versions/" + "0" * 19 + "1" + "0" * 5000, None, 422, 42202),
        ("PATCH", "/subjects", None, 405, 405),
        ("POST", "/subjects/x/versions", {"schema": '"int"', "metadata": {"properties": {"a": "b"}}}, 422, 42201),
        (
            "POST",
            "/subjects/x/versions",
            {"schema": json.dumps({"title": "x" * (2 << 20)}), "schemaType": "JSON"},
            413,
            413,
        ),
        ("POST", "/subjects/known", {"schema": '"string"'}, 404, 40403),
        ("DELETE", "/subjects/known?permanent=true", None, 404, 40405),
    ],
)
def test_what_it_cannot_do_is_said(client, ask, method, path, body, status, code):
    client.register_schema("known", of(V1))
    answered, said = ask(method, path, body)
    assert (answered, said["error_code"]) == (status, code), said
    assert said["message"]
    assert ask("GET", "/subjects/x/versions")[0] == 404


def test_a_subject_of_any_name_has_its_own_path(broker, ask):
    registry = hr.SchemaRegistry(broker.registry_url)
    names = ["a/b", "a b", "ü%2F", "a?b=c#d"]
    for name in names:
        registry.register(name, '"int"')
        assert registry.latest(name).subject == name
    assert set(names) <= set(registry.subjects())
    assert ask("DELETE", "/subjects/a%2Fb") == (200, [1])


def test_a_mode_that_forbids_changes_is_kept(client, ask, topic):
    client.register_schema(topic, of(V1))
    assert ask("PUT", f"/mode/{topic}", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert ask("POST", f"/subjects/{topic}/versions", {"schema": json.dumps(V2)})[1]["error_code"] == 42205
    # What is there already is no change.
    assert ask("POST", f"/subjects/{topic}/versions", {"schema": json.dumps(V1)})[0] == 200
    assert ask("DELETE", f"/mode/{topic}") == (200, {"mode": "READONLY"})
    assert ask("POST", f"/subjects/{topic}/versions", {"schema": json.dumps(V2)})[0] == 200


def test_floods_and_clients_that_say_nothing_hold_nobody_up(broker):
    parts = urllib.parse.urlsplit(broker.registry_url)
    address = (parts.hostname, parts.port)
    registry = hr.SchemaRegistry(broker.registry_url, timeout=5, deadline=TIMEOUT)
    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(socket.create_connection(address)) for _ in range(2 * CONNECTIONS_MAX)]
        for number, peer in enumerate(peers):
            with contextlib.suppress(OSError):
                peer.sendall(
                    [b"", b"GET /subj", b"POST /subjects/x/versions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"][number % 3]
                )
        assert isinstance(registry.subjects(), list)
        registry.register("flooded", '"int"')
    for head, status in [
        (f"Content-Length: {BODY_BYTES_MAX + 1}", 413),
        ("Content-Length: " + "9" * 100, 413),
        ("Content-Length: -1", 411),
        ("Transfer-Encoding: chunked", 411),
        ("X: " + "y" * 100_000, 431),
        ("Content-Length: 500\r\n\r\n{}", 400),
        ("Origin: http://elsewhere.example\r\nContent-Length: 2\r\n\r\n{}", 403),
    ]:
        with socket.create_connection(address, TIMEOUT) as peer:
            peer.sendall(f"POST /subjects/x/versions HTTP/1.1\r\n{head}\r\n\r\n".encode())
            if status == 400:
                peer.shutdown(socket.SHUT_WR)
            assert peer.recv(100).startswith(b"HTTP/1.1 %d " % status), head


def test_clients_that_do_not_read_their_answers_hold_nobody_up(broker, ask):
    large = json.dumps({"title": "x" * 400_000})
    status, said = ask("POST", "/subjects/large/versions", {"schema": large, "schemaType": "JSON"})
    assert status == 200
    parts = urllib.parse.urlsplit(broker.registry_url)
    with contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS_MAX + 6):
            peer = opened.enter_context(socket.create_connection((parts.hostname, parts.port)))
            peer.sendall(b"GET /schemas/ids/%d HTTP/1.1\r\n\r\n" % said["id"] * 20)
        registry = hr.SchemaRegistry(broker.registry_url, timeout=5, deadline=TIMEOUT)
        assert "large" in registry.subjects()


# ── Compatibility ────────────────────────────────────────────────────────────────────────────────────────────────


NAMED = st.sampled_from(["A", "B"])
PLAIN = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def fields(types):
    """Fields of records, with and without defaults that fit."""

    def field(name, of, has_default):
        return {"name": name, "type": of, **({"default": None} if has_default and of in ("null", ["null"]) else {})}

    one = st.builds(field, st.sampled_from(["a", "b", "c"]), types, st.booleans())
    return st.lists(one, max_size=3, unique_by=lambda field: field["name"])


def kind(value):
    return value if isinstance(value, str) else value["type"] if isinstance(value, dict) else "union"


def schemas():
    """Avro schemas in which each name is defined once at most."""
    small = st.one_of(
        PLAIN,
        st.builds(lambda name, size: {"type": "fixed", "name": name, "size": size}, NAMED, st.integers(1, 2)),
        st.builds(
            lambda name, symbols: {"type": "enum", "name": name, "symbols": sorted(symbols)},
            NAMED, st.sets(st.sampled_from("XYZ"), min_size=1),
        ),
    )  # fmt: skip
    types = st.recursive(
        small,
        lambda inner: st.one_of(
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda values: {"type": "map", "values": values}, inner),
            st.builds(lambda name, of: {"type": "record", "name": name, "fields": of}, NAMED, fields(inner)),
            st.lists(inner.filter(lambda of: kind(of) != "union"), min_size=1, max_size=3, unique_by=kind),
        ),
        max_leaves=5,
    )
    return types.map(json.dumps).filter(is_schema)


def is_schema(text):
    """Whether it is one for both: a name stands twice in some."""
    try:
        _native.check_avro(text, [])
        avro_schema.parse(text)
    except (ValueError, AvroException):
        return False
    return True


@given(schemas(), schemas())
def test_compatible_is_what_apache_avro_says(reader, writer):
    ours = _native.avro_incompatibilities((reader, []), (writer, []))
    theirs = compatibility.ReaderWriterCompatibilityChecker().get_compatibility(
        avro_schema.parse(reader), avro_schema.parse(writer)
    )
    assert (not ours) == (theirs.compatibility == compatibility.SchemaCompatibilityType.compatible), (ours, theirs)


WORD = st.sampled_from(["p", "q", "r"])
LOW = st.integers(0, 3)
JSON_TYPES = ("integer", "number", "string", "boolean", "null")


def json_schemas():
    """JSON Schemas of the keywords that are compared."""
    plain = st.one_of(
        st.booleans(),
        st.just({}),
        st.builds(lambda of: {"type": of}, st.sampled_from([*JSON_TYPES, ["string", "null"]])),
        st.builds(lambda low, high: {"type": "integer", "minimum": low, "maximum": high}, LOW, st.integers(2, 5)),
        st.builds(lambda low: {"type": "string", "minLength": low}, st.integers(0, 2)),
        st.sampled_from([0, 1, True, False, "x"]).map(lambda of: {"const": of}),
        st.builds(lambda of: {"enum": of}, st.lists(st.sampled_from([0, 1, "x", None]), min_size=1, unique_by=repr)),
    )  # fmt: skip

    def combined(inner):
        objects = st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(WORD, inner, max_size=2),
                "required": st.lists(WORD, max_size=2, unique=True),
                "additionalProperties": inner,
                "maxProperties": st.integers(0, 3),
                "patternProperties": st.dictionaries(st.sampled_from(["^p", "q|r"]), inner, min_size=1, max_size=1),
            },
        )
        arrays = st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={"items": inner, "maxItems": st.integers(0, 3), "uniqueItems": st.booleans()},
        )
        several = st.lists(inner, min_size=1, max_size=2)
        names = st.sampled_from(["anyOf", "oneOf"])
        either = st.builds(
            lambda name, of, more: {name: of, **(more if isinstance(more, dict) else {})}, names, several, inner
        )
        other = inner.map(lambda of: {"not": of})
        both = st.builds(lambda of, more: {**(more if isinstance(more, dict) else {}), "allOf": of}, several, inner)
        return st.one_of(objects, arrays, either, both, other)

    return st.recursive(plain, combined, max_leaves=4)


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, 4, 1.5, "", "x", "yy"]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORD, inner, max_size=3)),
    max_leaves=4,
)


@example({"type": "object", "properties": {"p": {"type": "string"}}}, {"type": "object"}, [{"p": 1}])
@given(json_schemas(), json_schemas(), st.lists(VALUES, max_size=20))
def test_what_a_compatible_json_schema_takes_is_taken(reader, writer, values):
    json_schema.check(reader)
    if not json_schema.incompatibilities(reader, writer):
        for value in values:
            assert not Draft7Validator(writer).is_valid(value) or Draft7Validator(reader).is_valid(value), value
    assert json_schema.incompatibilities(reader, reader) == []


def thing(properties, **more):
    return {"type": "object", "properties": properties, **more}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("reader", "writer", "kinds"),
    [
        (thing({"a": TEXT}), thing({"a": TEXT, "b": TEXT}), []),
        (thing({"a": TEXT, "b": TEXT}), thing({"a": TEXT}), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (thing({"a": TEXT, "b": TEXT}, **CLOSED), thing({"a": TEXT}, **CLOSED), []),
        (thing({}, **CLOSED), thing({"b": TEXT}, **CLOSED), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (thing({"a": TEXT}, required=["a"]), thing({"a": TEXT}), ["REQUIRED_ATTRIBUTE_ADDED"]),
        (thing({"a": {**TEXT, "default": ""}}, required=["a"]), thing({"a": TEXT}), []),
        (thing({}, **CLOSED), thing({}), ["ADDITIONAL_PROPERTIES_NARROWED"]),
        (NUMBER, WHOLE, []),
        (WHOLE, NUMBER, ["TYPE_NARROWED"]),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, []),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, ["ENUM_ARRAY_NARROWED"]),
        ({**TEXT, "maxLength": 3}, {**TEXT, "maxLength": 5}, ["MAX_LENGTH_DECREASED"]),
        ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 3}, []),
        ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, ["KEYWORD_CHANGED"]),
        ({"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}, []),
        ({"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
        ({**TEXT, "title": "A", "description": "b"}, TEXT, []),
    ],
)  # fmt: skip
def test_kinds_of_json_schemas_changes(reader, writer, kinds):
    assert [found for found, _, _ in json_schema.incompatibilities(reader, writer)] == kinds


A_TEXT, A_NUMBER = ({"definitions": {"a": {"type": of}}} for of in ("string", "integer"))
TO_A = {"$ref": "#/definitions/a"}
PATTERN = {"type": "object", "patternProperties": {"^a": WHOLE}, **CLOSED}


@pytest.mark.parametrize(
    ("reader", "writer", "value"),
    [
        ({"type": "object", **CLOSED}, PATTERN, {"a": 1}),
        ({**PATTERN, "properties": {"abc": TEXT}}, PATTERN, {"abc": 1}),
        ({**A_NUMBER, "patternProperties": {".": TO_A}}, {**A_TEXT, "patternProperties": {".": TO_A}}, {"q": "s"}),
        ({**A_NUMBER, "items": [TO_A]}, {**A_TEXT, "items": [TO_A]}, ["s"]),
        ({"definitions": {"a": {"type": ["string", "integer"]}}, "not": TO_A}, {**A_TEXT, "not": TO_A}, 5),
        (
            {**A_NUMBER, "dependencies": {"a": TO_A}},
            {"definitions": {"a": True}, "dependencies": {"a": TO_A}},
            {"a": 1},
        ),
        ({**A_NUMBER, "oneOf": [TO_A]}, {**A_TEXT, "oneOf": [TO_A]}, "s"),
        ({"const": 1}, {"const": True}, True),
        ({"enum": [0, 1]}, {"enum": [True, False]}, True),
        ({"enum": []}, {"enum": [1]}, 1),
        ({"enum": [1, 2], "const": 3}, {"enum": [1, 2]}, 1),
        ({"oneOf": [WHOLE, NUMBER]}, WHOLE, 5),
        ({"oneOf": [TEXT, WHOLE, NUMBER]}, {"oneOf": [TEXT, WHOLE]}, 5),
        ({"oneOf": [{"maxLength": 5}, {"minLength": 2}]}, {"type": "string", "maxLength": 4}, "abc"),
    ],
)
def test_what_breaks_a_reader_is_found(reader, writer, value):
    assert Draft7Validator(writer).is_valid(value)
    assert not Draft7Validator(reader).is_valid(value)
    assert json_schema.incompatibilities(reader, writer)


def test_keywords_of_newer_drafts_are_not_passed_over():
    for reader, writer in [
        ({"items": TEXT}, {"items": TEXT, "prefixItems": [WHOLE]}),
        ({"unevaluatedProperties": False}, {"properties": {"b": TEXT}, "unevaluatedProperties": False}),
        ({**A_NUMBER, "$ref": "#/definitions/a", "maximum": 5}, {**A_NUMBER, "$ref": "#/definitions/a"}),
        ({**A_NUMBER, "$dynamicRef": "#x"}, {**A_TEXT, "$dynamicRef": "#x"}),
    ]:
        assert json_schema.incompatibilities(reader, writer)


def test_a_long_list_is_compared_in_its_time(ask, topic):
    """Quadratic, these would keep all others waiting for a minute."""
    names = [f"n{number}" for number in range(20_000)]
    for title in "ab":
        schema = {"title": title, "type": "object", "required": names, "properties": {"e": {"enum": names}}}
        body = {"schema": json.dumps(schema), "schemaType": "JSON"}
        assert ask("POST", f"/subjects/{topic}/versions", body)[0] == 200
    assert ask("GET", f"/subjects/{topic}/versions") == (200, [1, 2])
    of = json.dumps({"type": "enum", "name": "E", "symbols": names})
    turned = json.dumps({"type": "enum", "name": "E", "symbols": names[::-1]})
    assert _native.avro_incompatibilities((of, []), (turned, [])) == []
    assert json_schema.incompatibilities({"required": names, "title": "a"}, {"required": names}) == []


def test_a_json_schema_that_contains_itself_is_compared():
    def node(of):
        chain = {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/node"}]}
        return {
            "definitions": {"node": {"type": "object", "properties": {"v": of, "next": chain}, **CLOSED}},
            "$ref": "#/definitions/node",
        }

    assert json_schema.incompatibilities(node(NUMBER), node(WHOLE)) == []
    assert json_schema.incompatibilities(node(WHOLE), node(NUMBER))[0][0] == "TYPE_NARROWED"


def test_levels(ask, topic):
    """At each level: whether a field without a default may be added, one removed, and one with a default added."""
    one, two = ({**V1, "fields": [{"name": name, "type": "long"} for name in names]} for names in ("a", "ab"))
    optional = {**V1, "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "long", "default": 0}]}
    found = {}
    for level in ("BACKWARD", "FORWARD", "FULL", "NONE"):
        ask("PUT", "/config", {"compatibility": level})
        may = []
        for number, (before, after) in enumerate([(one, two), (two, one), (one, optional)]):
            subject = f"{topic}-{level}-{number}"
            assert ask("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(before)})[0] == 200
            path = f"/compatibility/subjects/{subject}/versions/latest?verbose=true"
            status, said = ask("POST", path, {"schema": json.dumps(after)})
            assert (status, not said["messages"]) == (200, said["is_compatible"])
            may.append(said["is_compatible"])
        found[level] = may
    ask("PUT", "/config", {"compatibility": "BACKWARD"})
    assert found == {
        "BACKWARD": [False, True, True],
        "FORWARD": [True, False, True],
        "FULL": [False, False, True],
        "NONE": [True, True, True],
    }


def test_transitive_looks_at_all_versions(ask, topic):
    a, ab = ({**V1, "fields": [{"name": x, "type": "long", "default": 0} for x in names]} for names in ("a", "ab"))
    b = {**V1, "fields": [{"name": "b", "type": "long"}]}
    for level, status in [("BACKWARD", 200), ("BACKWARD_TRANSITIVE", 409)]:
        subject = f"{topic}-{level}"
        ask("PUT", f"/config/{subject}", {"compatibility": level})
        answers = [
            ask("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)}) for schema in (a, ab, b)
        ]
        assert [one[0] for one in answers] == [200, 200, status]


def test_a_topic_of_avro_is_read_with_nothing_but_headrace(broker, topic):
    """What the first five minutes are: a broker, its registry, and a serializer that registers by itself."""
    servers, url = broker.bootstrap_servers, broker.registry_url
    serializer = AvroSerializer(confluent.SchemaRegistryClient({"url": url}), json.dumps(V2))
    context = SerializationContext(topic, MessageField.VALUE)
    with hr.Producer(servers) as producer:
        for number in range(3):
            producer.send(topic, serializer({"id": number, "city": None}, context), partition=0)
    table = hr.read(servers, topic, value=hr.Avro(hr.SchemaRegistry(url))).read_all()
    assert table["value"].combine_chunks() == pa.array([{"id": n, "city": None} for n in range(3)], table["value"].type)
