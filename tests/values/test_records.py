"""Topics whose rows are of several records, each of which becomes a column."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry import (
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import headrace as hr
from headrace.errors import ConfigError, DecodeError, SchemaError, SchemaRegistryError
from headrace.registry import SchemaReference

TIMEOUT = 30
pytestmark = pytest.mark.timeout(300)
MONEY: dict[str, Any] = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
ORDER: dict[str, Any] = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"}, {"name": "price", "type": MONEY},
]}  # fmt: skip
# Another type of the same name, as two services may have it.
EURO = {**MONEY, "fields": [{"name": "euro", "type": "string"}]}
PAYMENT: dict[str, Any] = {"type": "record", "name": "Payment", "namespace": "shop", "fields": [
    {"name": "order", "type": "long"}, {"name": "sum", "type": EURO},
]}  # fmt: skip
NOTE = {"type": "record", "name": "Note", "namespace": "shop", "fields": [
    {"name": "text", "type": "string"}, {"name": "more", "type": {"type": "array", "items": "int"}},
]}  # fmt: skip
ORDER_ROW: dict[str, Any] = {"id": 1, "price": {"cents": 2}}
ROWS = [
    (ORDER, ORDER_ROW),
    (PAYMENT, {"order": 1, "sum": {"euro": "0.02"}}),
    (NOTE, {"text": "n", "more": [1, 2, 3]}),
    (ORDER, {"id": 2, "price": {"cents": 5}}),
]
COLUMNS = [
    {"Order": {"id": 1, "price": {"cents": 2}}, "Payment": None},
    {"Order": None, "Payment": {"order": 1, "sum": {"euro": "0.02"}}},
    {"Order": None, "Payment": None},
    {"Order": {"id": 2, "price": {"cents": 5}}, "Payment": None},
]
BOTH = ["shop.Order", "shop.Payment"]


@pytest.fixture(scope="module")
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def registry(broker):
    return hr.SchemaRegistry(broker.registry_url)


def bare(schema, row):
    """A row of a schema."""
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return data.getvalue()


def framed(number, schema, row):
    return struct.pack(">BI", 0, number) + bare(schema, row)


def written(broker, topic, strategy):
    """ROWS in a topic, as Confluent's serializer writes them with a strategy for subjects."""
    client = confluent.SchemaRegistryClient({"url": broker.registry_url})
    context = SerializationContext(topic, MessageField.VALUE)
    conf = {"subject.name.strategy": strategy}
    values = [AvroSerializer(client, json.dumps(schema), conf=conf)(row, context) for schema, row in ROWS]
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": [*values, None]})).result(TIMEOUT)


@pytest.mark.parametrize("strategy", [record_subject_name_strategy, topic_record_subject_name_strategy])
def test_each_record_has_its_column_by_confluents_strategies(broker, registry, topic, strategy):
    written(broker, topic, strategy)
    table = hr.read(broker.bootstrap_servers, topic, value=hr.Avro(registry, records=BOTH)).read_all()
    assert table["value"].to_pylist() == [*COLUMNS, None]
    named = hr.Avro(registry, records={"note": "shop.Note", "paid": "shop.Payment"}, columns=["note.text", "paid.sum"])
    with hr.Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", value=named) as consumer:
        consumer.assign([(topic, 0)])
        batch = consumer.poll(TIMEOUT)
    assert batch["value"].to_pylist() == [
        {"note": None, "paid": None},
        {"note": None, "paid": {"sum": {"euro": "0.02"}}},
        {"note": {"text": "n"}, "paid": None},
        {"note": None, "paid": None},
        None,
    ]
    one = hr.Avro(registry, records=BOTH, columns=["Order.id"])
    assert hr.read(broker.bootstrap_servers, topic, value=one).read_all()["value"].to_pylist()[:2] == [
        {"Order": {"id": 1}},
        {"Order": None},
    ]


def test_a_union_of_references_is_the_schema_of_the_topic(broker, registry, topic):
    order = {**ORDER, "fields": ORDER["fields"][:1]}
    registry.register("union-order", json.dumps(order))
    registry.register("union-note", json.dumps(NOTE))
    union = ["null", "shop.Order", "shop.Note", "string"]
    to = [SchemaReference("shop.Order", "union-order", 1), SchemaReference("shop.Note", "union-note", 1)]
    number = registry.register(f"{topic}-value", json.dumps(union), references=to)
    of = ["null", order, NOTE, "string"]
    rows = [("shop.Order", {"id": 7}), ("shop.Note", {"text": "x", "more": []}), None, "text"]
    with hr.Producer(broker.bootstrap_servers) as producer:
        values = [framed(number, of, row) for row in rows]
        producer.send_arrow(topic, pa.table({"value": values})).result(TIMEOUT)
    chosen = hr.Avro(registry, records=["shop.Note", "shop.Order"], subject=f"{topic}-value")
    read = hr.read(broker.bootstrap_servers, topic, value=chosen).read_all()["value"].to_pylist()
    assert read == [
        {"Note": None, "Order": {"id": 7}},
        {"Note": {"text": "x", "more": []}, "Order": None},
        None,
        {"Note": None, "Order": None},
    ]
    alone = hr.Avro(of, records=["shop.Order"])
    assert hr.decode(pa.array([bare(of, rows[0]), bare(of, rows[1])]), alone).to_pylist() == [
        {"Order": {"id": 7}},
        {"Order": None},
    ]


def test_records_evolve_and_bad_rows_cost_no_neighbour():
    newer: dict[str, Any] = {**ORDER, "name": "Purchase", "aliases": ["Order"], "fields": [
        *ORDER["fields"], {"name": "note", "type": "string", "default": "-"},
    ]}  # fmt: skip
    other = {**ORDER, "namespace": "elsewhere"}
    wrong = {**PAYMENT, "fields": [{"name": "order", "type": "string"}]}
    schemas = {1: ORDER, 2: newer, 3: PAYMENT, 4: other, 5: wrong}
    union = [newer, "string", {**PAYMENT, "fields": PAYMENT["fields"][:1]}]
    form = hr.Avro(union, schemas=schemas, records=["shop.Purchase", "shop.Payment"], on_error="null")
    order, payment = dict(ORDER_ROW), ROWS[1][1]
    rows = [
        framed(1, ORDER, order),
        framed(2, newer, {**order, "note": "new"}),
        framed(3, PAYMENT, payment),
        framed(3, PAYMENT, payment)[:-1],
        framed(4, other, order),
        framed(5, wrong, {"order": "1"}),
        framed(6, ORDER, order),
        framed(4, other, order) + b"\x00",
        framed(1, ORDER, order),
    ]
    price = {"price": {"cents": 2}}
    old = {"Purchase": {"id": 1, **price, "note": "-"}, "Payment": None}
    expected = [
        old,
        {"Purchase": {"id": 1, **price, "note": "new"}, "Payment": None},
        {"Purchase": None, "Payment": {"order": 1}},
        None,
        {"Purchase": None, "Payment": None},
        None,
        None,
        None,
        old,
    ]
    assert hr.decode(pa.array(rows), form).to_pylist() == expected
    raising = hr.Avro(union, schemas=schemas, records=["shop.Purchase", "shop.Payment"])
    for start, why in [
        (3, "row 0.*the bytes end"),
        (5, "row 0: schema id 5 cannot be read.*string is not long"),
        (6, "id 6 is not known"),
        (7, "row 0: 1 bytes are left behind"),
    ]:
        with pytest.raises(DecodeError, match=why):
            hr.decode(pa.array(rows[start:]), raising)


def test_many_rows_of_many_records_come_in_order():
    draw = random.Random(7)
    schemas = dict(enumerate([ORDER, PAYMENT, NOTE], 1))
    form = hr.Avro([ORDER], schemas=schemas, records=["shop.Order"])
    rows, expected = [], []
    for number in range(5_000):
        which = draw.choice([1, 1, 2, 3])
        note = {"text": "x" * draw.randrange(40), "more": [1] * draw.randrange(3)}
        row = {1: {"id": number, "price": {"cents": -number}}, 2: ROWS[1][1], 3: note}[which]
        rows.append(framed(which, schemas[which], row))
        expected.append({"Order": row if which == 1 else None})
    assert hr.decode(pa.array(rows), form).to_pylist() == expected


def test_what_cannot_be_is_said(broker, registry, topic):
    records = hr.Avro([ORDER, NOTE], records=["shop.Order"])
    with pytest.raises(ConfigError, match="records= is for reading"):
        hr.encode(pa.table({"Order": [None]}), records)
    with pytest.raises(SchemaError, match=r'there is no record "shop\.Payment" in union of shop\.Order'):
        hr.Avro([ORDER, NOTE], records=["shop.Payment"])
    with pytest.raises(SchemaError, match='there is no column "Orders"; the records are Order'):
        hr.Avro([ORDER], records=["shop.Order"], columns=["Orders.id"])
    with pytest.raises(SchemaError, match='no field "x"'):
        hr.Avro([ORDER], records=["shop.Order"], columns=["Order.x"])
    for wrong in ("shop.Order", [], [1], {"a": ""}, {}):
        with pytest.raises(TypeError, match="it takes names of records"):
            hr.Avro([ORDER], records=wrong)
    with pytest.raises(ValueError, match="two would be one column"):
        hr.Avro([ORDER], records=["a.Order", "b.Order"])
    missing = hr.Avro(registry, records=["shop.Missing"])
    with pytest.raises(SchemaRegistryError, match=f"no subject {topic}-shop.Missing, shop.Missing, {topic}-value"):
        hr.read(broker.bootstrap_servers, topic, value=missing)
