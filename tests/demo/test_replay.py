"""The replay against a broker and a registry, without Spark: what stands in the topics, and in the registry."""

from __future__ import annotations

import io
import json
import struct

import confluent_kafka
import confluent_kafka.schema_registry as confluent
import fastavro
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import headrace as hr
from headrace.cli import main
from headrace.demo import cluster, data
from headrace.demo.replay import Replay
from headrace.errors import ConfigError

MINUTES = 5
TOPICS = {data.FLOW_TOPIC: "flow", data.SPEED_TOPIC: "speed"}
SECRET = "open-sesame"  # noqa: S105  (of no one)


@pytest.fixture(scope="module")
def table():
    whole = data.load()
    last = whole["timestamp"].unique()[MINUTES - 1].as_py()
    return whole.slice(0, sum(at <= last for at in whole["timestamp"].to_pylist()))


@pytest.fixture
def broker():
    with hr.Broker.start(registry=True) as broker:
        yield broker


@pytest.fixture
def replayed(broker, table):
    """A broker with its registry that both were given, when the replay is done."""
    with cluster.cluster(broker.bootstrap_servers, broker.registry_url) as used:
        cluster.topics(used.bootstrap_servers, 2)
        cluster.schemas(used.registry_url)
        replay = Replay(used, table, 1000)
        replay.start()
        replay._thread.join(60)
        replay.stop()
    assert replay.progress.error is None
    assert replay.progress.records == table.num_rows + 2
    return broker


def messages(servers, topic):
    """All of a topic, by Confluent's client."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    partitions = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(2)]
    count = sum(consumer.get_watermark_offsets(partition, 20)[1] for partition in partitions)
    consumer.assign(partitions)
    found = consumer.consume(count, 20)
    consumer.close()
    assert len(found) == count
    return found


def wanted(table, kind):
    """Keys and values as they were measured, without the record that ends the stream."""
    return {
        (f"{row['site']}/{row['lane']}", row["timestamp"], row[kind], row["lat"], row["num_lanes"])
        for row in table.to_pylist()
        if row[kind] is not None
    }


@pytest.mark.parametrize("topic", TOPICS)
def test_what_is_sent_is_read_by_confluents_deserializer_and_by_fastavro(replayed, table, topic):
    client = confluent.SchemaRegistryClient({"url": replayed.registry_url})
    deserializer, context = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    number = client.get_latest_version(f"{topic}-value").schema_id
    schema = fastavro.parse_schema(json.loads(data.SCHEMAS[topic]))
    found = set()
    for message in messages(replayed.bootstrap_servers, topic):
        key, framed = message.key().decode(), message.value()
        assert struct.unpack(">BI", framed[:5]) == (0, number)
        value = deserializer(framed, context)
        assert value == fastavro.schemaless_reader(io.BytesIO(framed[5:]), schema, None)
        assert key.endswith(f"/{value['internalId']}")
        at = value["timestamp"].replace(tzinfo=None)
        found.add((key, at, value[TOPICS[topic]], value["lat"], value["num_lanes"]))
    ends = {row for row in found if row[0].startswith(data.END_SITE)}
    assert found - ends == wanted(table, TOPICS[topic])
    assert len(ends) == 1


def test_a_registry_that_was_given_keeps_the_schemas(replayed):
    registry = hr.SchemaRegistry(replayed.registry_url)
    assert registry.subjects() == ["ndwflow-value", "ndwspeed-value"]
    for topic, schema in data.SCHEMAS.items():
        newest = registry.latest(f"{topic}-value")
        assert (newest.version, json.loads(newest.schema)) == (1, json.loads(schema))
        value = hr.read(replayed.bootstrap_servers, topic, value=hr.Avro(registry)).read_all()["value"]
        assert value.combine_chunks().field("timestamp").null_count == 0


def test_what_is_not_given_is_started(broker, capfd):
    with cluster.cluster(broker.bootstrap_servers, None) as used:
        assert used.bootstrap_servers == broker.bootstrap_servers
        assert used.registry_url != broker.registry_url
        assert [schema.version for schema in cluster.schemas(used.registry_url)] == [1, 1]
    # That of the Kafka that was given is not the demo's to write to.
    assert hr.SchemaRegistry(broker.registry_url).subjects() == []
    assert (
        "what it leaves in the topics cannot be read then; --schema-registry-url keeps them" in capfd.readouterr().err
    )
    with cluster.cluster(None, broker.registry_url) as used:
        assert used.bootstrap_servers != broker.bootstrap_servers
        assert used.registry_url == broker.registry_url
    said = capfd.readouterr().err
    assert f"embedded broker serves on {used.bootstrap_servers}" in said
    assert "schema registry at" not in said
    with cluster.cluster(None, None) as used:
        assert hr.SchemaRegistry(used.registry_url).subjects() == []
    said = capfd.readouterr().err
    assert f"embedded broker serves on {used.bootstrap_servers}, schema registry at {used.registry_url}, after" in said
    assert "--schema-registry-url" not in said


def test_the_newest_schema_is_the_one_that_is_shown(broker, capfd):
    registry = hr.SchemaRegistry(broker.registry_url)
    cluster.schemas(broker.registry_url)
    newer = json.loads(data.SCHEMAS[data.FLOW_TOPIC])
    newer["fields"].append({"name": "more", "type": "int", "default": 0})
    number = registry.register("ndwflow-value", json.dumps(newer))
    flow, speed = cluster.schemas(broker.registry_url)
    assert (flow.version, flow.id, speed.version) == (2, number, 1)
    assert f"subject ndwflow-value, version 2, schema id {number}\n" in capfd.readouterr().err


def test_a_registry_that_refuses_or_is_not_there_is_named_by_its_option(broker, monkeypatch):
    other = {"type": "record", "name": "Other", "fields": [{"name": "a", "type": "int"}]}
    hr.SchemaRegistry(broker.registry_url).register("ndwspeed-value", json.dumps(other))
    with pytest.raises(ConfigError, match=r"--schema-registry-url: .*/subjects/ndwspeed-value/versions .*409"):
        cluster.schemas(broker.registry_url)
    monkeypatch.setattr(cluster, "REGISTRY_DEADLINE_S", 0.1)
    with pytest.raises(ConfigError, match=r"--schema-registry-url: the schema registry http://127\.0\.0\.1:1 did not"):
        cluster.schemas("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"--schema-registry-url: url 127\.0\.0\.1:8081 is none of a schema registry"):
        cluster.schemas("127.0.0.1:8081")


def test_a_password_in_the_registrys_url_is_not_shown(capfd):
    assert main(["demo", "--schema-registry-url", f"http://u:{SECRET}@127.0.0.1:1"]) == 1
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "headrace demo: --schema-registry-url: " in shown.err
