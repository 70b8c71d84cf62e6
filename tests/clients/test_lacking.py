"""What the embedded broker lacks: our clients say so at once, by name."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import TlsError, UnsupportedVersionError

# Far more than it takes, and less than any time-out of the clients.
PATIENT_SECONDS = 20


def polled(consumer, topic):
    """What polling raises; nothing within some polls is a failure."""
    consumer.subscribe([topic])
    with pytest.raises(UnsupportedVersionError) as refused:
        for _ in range(PATIENT_SECONDS):
            consumer.poll(timeout=1.0)
    return str(refused.value)


def test_transactions(embedded_broker):
    with hr.Producer(embedded_broker.bootstrap_servers, transactional_id="x") as producer:
        with pytest.raises(UnsupportedVersionError) as refused:
            producer.init_transactions()
        said = str(refused.value)
    assert "this broker has no transactions yet: docs/compatibility.md#what-the-embedded-broker-lacks" in said
    assert "transactional id 'x'" in said


def test_the_new_group_protocol(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Consumer(servers, group_id=topic, group_protocol="consumer") as consumer:
        said = polled(consumer, topic)
    assert "does not know ConsumerGroupHeartbeat" in said
    assert "group.protocol=consumer needs Kafka 4.0 or newer; group.protocol=classic does without" in said


def test_share_groups(embedded_broker, topic):
    with hr.ShareConsumer(embedded_broker.bootstrap_servers, group_id=topic) as consumer:
        said = polled(consumer, topic)
    assert "share groups need Kafka 4.1 or newer" in said


def test_tls_and_sasl(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    sasl = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b"}
    with (
        pytest.raises(UnsupportedVersionError, match="SaslHandshake"),
        hr.Producer(servers, security_protocol="SASL_PLAINTEXT", **sasl) as producer,
    ):
        producer.send(topic, value=b"x").result(PATIENT_SECONDS)
    with (
        pytest.raises(TlsError, match="without TLS"),
        hr.Producer(servers, security_protocol="SSL") as producer,
    ):
        producer.send(topic, value=b"x").result(PATIENT_SECONDS)
