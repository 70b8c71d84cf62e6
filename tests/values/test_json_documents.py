"""JSON Schemas that refer to other documents: as columns, in the registry, and with Confluent's serializers."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import headrace as hr
from headrace.errors import ConfigError, SchemaError, SchemaRegistryError
from headrace.registry import SchemaReference
from headrace.registry.json_documents import whole

TIMEOUT = 30
pytestmark = pytest.mark.timeout(300)
CURRENCY = {"type": "string", "enum": ["EUR", "USD"]}
MONEY: dict[str, Any] = {
    "$id": "https://shop.example/money.json",
    "type": "object",
    "properties": {
        "cents": {"type": "integer"},
        "currency": {"$ref": "currency.json"},
        "change": {"$ref": "#/properties/cents"},
    },
    "required": ["cents"],
}
ORDER: dict[str, Any] = {
    "$id": "https://shop.example/order.json",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"$ref": "money.json"},
        "paid": {"$ref": "https://shop.example/money.json#/properties/cents"},
        "note": {"type": "string", "default": {"$ref": "nowhere"}},
        "last": {"$ref": "order.json#/properties/id"},
    },
    "required": ["id"],
}
NAMES: dict[str, Any] = {"currency.json": CURRENCY, "money.json": MONEY}
TYPE = pa.struct([
    pa.field("id", pa.int64(), nullable=False),
    ("price", pa.struct([
        pa.field("cents", pa.int64(), nullable=False), ("currency", pa.string()), ("change", pa.int64())])),
    ("paid", pa.int64()),
    ("note", pa.string()),
    ("last", pa.int64()),
])  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"id": 1, "price": {"cents": 5, "currency": "EUR", "change": None}, "paid": 3, "note": None, "last": None},
    {"id": 2, "price": None, "paid": None, "note": "x", "last": 1},
]


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture
def client(broker):
    return confluent.SchemaRegistryClient({"url": broker.registry_url})


def texts(**changed):
    return {name: json.dumps(changed.get(name.partition(".")[0], of)) for name, of in NAMES.items()}


def without_ids(of):
    """As Confluent's clients find documents: by the names of references alone."""
    return json.loads(json.dumps(of).replace("https://shop.example/", "").replace('"$id": "', '"$comment": "'))


PLAIN = without_ids({**ORDER, "properties": {name: of for name, of in ORDER["properties"].items() if name != "last"}})


def registered(client, topic):
    """The schemas under subjects of their own; the schema of the topic's values."""
    made = {}
    for name, of in NAMES.items():
        references = (
            [confluent.SchemaReference("currency.json", f"{topic}-currency.json", 1)] if name == "money.json" else []
        )
        client.register_schema(f"{topic}-{name}", confluent.Schema(json.dumps(without_ids(of)), "JSON", references))
        made[name] = confluent.SchemaReference(name, f"{topic}-{name}", 1)
    return confluent.Schema(json.dumps(PLAIN), "JSON", [made["money.json"]])


def test_columns_are_found_through_documents():
    form = hr.Json(ORDER, references=texts())
    assert hr.decode(pa.array([b'{"id": 1}']), form).type == TYPE
    rows = pa.array(ROWS, TYPE)
    assert hr.decode(hr.encode(rows, form), form).to_pylist() == ROWS
    some = hr.Json(ORDER, references=texts(), columns=["price.cents"])
    assert hr.decode(hr.encode(rows, form), some).to_pylist() == [{"price": {"cents": 5}}, {"price": None}]
    copied = copy.deepcopy(form)
    assert hr.decode(pa.array([b'{"id": 1}']), copied).type == TYPE
    # A document may be called as something that the schema defines itself.
    of = {"$defs": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "a"}}}
    typed = hr.decode(pa.array([b"{}"]), hr.Json(of, references={"a": '{"type": "integer"}'})).type
    assert typed == pa.struct([("x", pa.string()), ("y", pa.int64())])
    slashed = {"properties": {"x": {"$ref": "a/~b#/$defs/c"}}}
    documents = {"a/~b": '{"$defs": {"c": {"$ref": "#/$defs/d"}, "d": {"type": "boolean"}}}'}
    typed = hr.decode(pa.array([b"{}"]), hr.Json(slashed, references=documents)).type
    assert typed == pa.struct([("x", pa.bool_())])


def test_what_no_document_has_is_said():
    for schema, references, why in [
        (ORDER, {"money.json": json.dumps(MONEY)}, "the reference 'currency.json' names no place"),
        (ORDER, None, r"the reference '\S*money\.json\S*' names no place"),
        ({"$ref": "money.json#/properties/none"}, texts(), "names nothing"),
        (ORDER, {"money.json": "{"}, "no JSON Schema"),
        ({"$ref": "a"}, {"a": '{"$ref": "a"}'}, "follow each other"),
    ]:
        with pytest.raises(SchemaError, match=why):
            hr.Json(schema, references=references)
    with pytest.raises(TypeError, match="references takes texts by name"):
        hr.Json(ORDER, references=[json.dumps(MONEY)])
    with pytest.raises(TypeError, match=r"references\['currency.json'\] is the text of a file, not dict"):
        hr.Json(ORDER, references=NAMES)


def test_confluents_serializers_and_ours_read_each_other(broker, client, topic):
    registry = hr.SchemaRegistry(broker.registry_url)
    schema = registered(client, topic)
    serializer = JSONSerializer(schema, client, conf={"auto.register.schemas": True})
    context = SerializationContext(topic, MessageField.VALUE)
    rows = [{name: of for name, of in row.items() if name != "last"} for row in ROWS]
    sent = [{name: of for name, of in row.items() if of is not None} for row in rows]
    sent[0] = {**sent[0], "price": {"cents": 5, "currency": "EUR"}}
    written = [serializer(row, context) for row in sent]
    form = hr.Json(registry)
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": written})).result(TIMEOUT)
        read = hr.read(broker.bootstrap_servers, topic, value=form).read_all()
        assert read["value"].to_pylist() == rows
        producer.send_arrow(topic, read.select(["value"]), value=form).result(TIMEOUT)
    ours = hr.read(broker.bootstrap_servers, topic).read_all()["value"].to_pylist()[2:]
    deserializer = JSONDeserializer(None, schema_registry_client=client)
    assert [deserializer(row, context) for row in ours] == sent
    with pytest.raises(ConfigError, match="leave references out"):
        hr.Json(registry, references=texts())
    by_hand = hr.Json(ORDER, registry=registry, references=texts())
    with hr.Producer(broker.bootstrap_servers) as producer, pytest.raises(ConfigError, match="register a schema with"):
        producer.send_arrow(topic, read.select(["value"]), value=by_hand)


def test_compatibility_looks_into_documents(broker, client, topic):
    registry = hr.SchemaRegistry(broker.registry_url)
    client.register_schema(f"{topic}-value", registered(client, topic))
    # The document changes, and so what the same text means.
    text = copy.deepcopy(MONEY)
    text["properties"]["cents"] = {"type": "string"}
    text = without_ids(text)
    registry.register(f"{topic}-other", json.dumps(text), schema_type="JSON", references=[
        SchemaReference("currency.json", f"{topic}-currency.json", 1)])  # fmt: skip
    with pytest.raises(SchemaRegistryError, match=r"TYPE_NARROWED at #/properties/p(aid|rice)") as caught:
        registry.register(f"{topic}-value", json.dumps(PLAIN), schema_type="JSON", references=[
            SchemaReference("money.json", f"{topic}-other", 1)])  # fmt: skip
    assert caught.value.status == 409
    wider = copy.deepcopy(MONEY)
    wider["properties"]["cents"] = {"type": "number"}
    registry.register(f"{topic}-wider", json.dumps(without_ids(wider)), schema_type="JSON", references=[
        SchemaReference("currency.json", f"{topic}-currency.json", 1)])  # fmt: skip
    registry.register(f"{topic}-value", json.dumps(PLAIN), schema_type="JSON", references=[
        SchemaReference("money.json", f"{topic}-wider", 1)])  # fmt: skip
    with pytest.raises(SchemaRegistryError, match=r"Invalid schema: the reference '\S*money\.json"):
        registry.register(f"{topic}-x", json.dumps(PLAIN), schema_type="JSON")


def test_one_document_of_all_refers_to_itself_only():
    made = whole(json.dumps(ORDER), list(texts().items()))
    left = [made]
    references = []
    while left:
        one = left.pop()
        if isinstance(one, dict):
            references += [one["$ref"]] if "$ref" in one else []
            left += [of for name, of in one.items() if name != "default"]
    assert len(references) == 5
    assert all(name.startswith("#/") for name in references)
    assert made["properties"]["note"]["default"] == {"$ref": "nowhere"}
    assert whole(json.dumps(MONEY)) == MONEY
    assert whole(json.dumps(ORDER))["properties"]["last"] == {"$ref": "#/properties/id"}
    assert whole("true", [("a", "{}")]) is True
