"""What our broker lacks, and what it makes while it is asked: stock clients come to an end with either."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import closing

import confluent_kafka
import kafka
import pytest
from kafka.errors import KafkaError
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.kafka import java

UNKNOWN_TOPIC = 3
TIMEOUT_SECONDS = 60
NO_TRANSACTIONS = "this broker has no transactions yet: docs/compatibility.md#what-the-embedded-broker-lacks"

TRANSACTIONS = """
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    public static void main(String[] args) {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "transactional.id", "x");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            try {
                producer.initTransactions();
                System.out.println("initialized");
            } catch (Exception refused) {
                System.out.println(refused.getClass().getSimpleName() + ": " + refused.getMessage());
            }
        }
    }
}
"""


def metadata(bootstrap_servers, topic, version=9):
    """Code and partitions of one topic, by hand: clients ask again before anybody sees the first answer."""
    host, port = bootstrap_servers.split(":")
    request = MetadataRequest[version](
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    request.with_header(correlation_id=1, client_id="raw")
    with closing(socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)) as peer:
        peer.sendall(request.encode(framed=True, header=True))
        size = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))[0]
        answer = MetadataResponse.decode(peer.recv(size, socket.MSG_WAITALL), version=version, header=True)
    return answer.topics[0].error_code, len(answer.topics[0].partitions)


@pytest.mark.parametrize("version", [0, 1, 4, 9, 12])
def test_a_missing_topic_is_unknown_once(cluster, topic, version):
    assert metadata(cluster.bootstrap_servers, topic, version) == (UNKNOWN_TOPIC, 0)
    end = time.monotonic() + TIMEOUT_SECONDS
    while (found := metadata(cluster.bootstrap_servers, topic, version)) != (0, 1):
        assert found == (UNKNOWN_TOPIC, 0)
        assert time.monotonic() < end


def test_librdkafka_produces_to_a_topic_that_is_made_for_it(cluster, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    reports = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert reports == [None]


def test_kafka_python_produces_to_a_topic_that_is_made_for_it(cluster, topic):
    with closing(kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)) as producer:
        assert producer.send(topic, b"x").get(TIMEOUT_SECONDS).offset == 0


@pytest.mark.kafka
def test_java_produces_to_a_topic_that_is_made_for_it(cluster, topic):
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    producer = "org.apache.kafka.tools.ConsoleProducer"
    java.run(producer, "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, stdin="x\n")
    options = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    assert java.run(tool, "--bootstrap-server", cluster.bootstrap_servers, *options).stdout == b"x\n"


def test_librdkafka_learns_that_there_are_no_transactions(stock_servers):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": stock_servers, "transactional.id": "x", "log_level": 0, "log.connection.close": False}
    )
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(TIMEOUT_SECONDS)
    error = refused.value.args[0]
    assert error.fatal()
    assert NO_TRANSACTIONS in error.str()


def test_kafka_python_learns_that_there_are_no_transactions(stock_servers):
    producer = kafka.KafkaProducer(bootstrap_servers=stock_servers, transactional_id="x")
    try:
        with pytest.raises(KafkaError, match="UnsupportedVersionError"):
            producer.init_transactions()
    finally:
        producer.close(timeout=1)


@pytest.mark.kafka
def test_java_learns_that_there_are_no_transactions(broker_process, tmp_path):
    program = tmp_path / "Transactions.java"
    program.write_text(TRANSACTIONS, encoding="utf-8")
    said = java.run(str(program), broker_process.bootstrap_servers, timeout=TIMEOUT_SECONDS).stdout.decode()
    assert said.startswith("KafkaException: ")
    assert NO_TRANSACTIONS in said
