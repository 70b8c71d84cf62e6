"""Logging in to an Apache Kafka that asks for it, and what is said when that fails."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.errors import (
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    TlsError,
)
from tests.kafka.secure import KEY_PASSWORD, PASSWORD, USER, SecureKafka, unsigned_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": USER, "sasl.password": PASSWORD}
BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SOON_SECONDS = 5.0


def round_trip(server: str, topic: str, options: Mapping[str, str]) -> None:
    """Creates a topic, writes to it and reads it back, all with these options."""
    with hr.Admin(server, options) as admin:
        admin.create_topics([hr.NewTopic(topic, 2)])
    with hr.Producer(server, options) as producer:
        for number in range(200):
            producer.send(topic, b"%d" % number, partition=number % 2)
    table = hr.read(server, topic, config=dict(options)).read_all()
    assert sorted(int(value.as_py()) for value in table["value"]) == list(range(200))


def refusal(server: str, options: Mapping[str, str]) -> KafkaError:
    """How asking for the cluster fails; it must fail at once."""
    began = time.monotonic()
    with hr.Admin(server, options) as admin, pytest.raises(KafkaError) as caught:
        admin.describe_cluster()
    assert time.monotonic() - began < SOON_SECONDS, caught.value
    for secret in (PASSWORD, "wrong secret"):
        assert secret not in str(caught.value)
    return caught.value


@pytest.mark.kafka
class TestSasl:
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_a_password_opens(self, secure_kafka: SecureKafka, topic: str, mechanism: str) -> None:
        round_trip(secure_kafka.server("SASL"), topic, {**SASL, "sasl.mechanism": mechanism})

    def test_a_token_opens(self, secure_kafka: SecureKafka, topic: str) -> None:
        round_trip(secure_kafka.server("SASL"), topic, {**BEARER, "sasl.oauthbearer.token": unsigned_token()})

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    @pytest.mark.parametrize("wrong", ["sasl.password", "sasl.username"])
    def test_a_wrong_password_is_told_at_once(self, secure_kafka: SecureKafka, mechanism: str, wrong: str) -> None:
        options = {**SASL, "sasl.mechanism": mechanism, wrong: "wrong secret"}
        error = refusal(secure_kafka.server("SASL"), options)
        assert isinstance(error, SaslAuthenticationFailedError)
        assert not error.retriable
        assert mechanism in str(error)

    # The processes that run tests side by side must find the same names: no time in them.
    @pytest.mark.parametrize("token", [unsigned_token(seconds=-60), "nonsense"], ids=["expired", "nonsense"])
    def test_a_token_that_is_no_good_is_told_at_once(self, secure_kafka: SecureKafka, token: str) -> None:
        error = refusal(secure_kafka.server("SASL"), {**BEARER, "sasl.oauthbearer.token": token})
        assert isinstance(error, SaslAuthenticationFailedError)
        assert token not in str(error)

    def test_producer_and_consumer_tell_a_wrong_password_too(self, secure_kafka: SecureKafka, topic: str) -> None:
        options = {**SASL, "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "wrong secret"}
        server = secure_kafka.server("SASL")
        began = time.monotonic()
        with pytest.raises(SaslAuthenticationFailedError), hr.Producer(server, options) as producer:
            producer.send(topic, b"x").result(30)
        with hr.Consumer(server, options) as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(SaslAuthenticationFailedError):
                consumer.poll(timeout=30.0)
        assert time.monotonic() - began < 2 * SOON_SECONDS

    def test_a_listener_without_sasl_is_said_to_be_one(self, secure_kafka: SecureKafka) -> None:
        error = refusal(secure_kafka.bootstrap_servers, {**SASL, "sasl.mechanism": "PLAIN"})
        assert "without SASL" in str(error)

    def test_no_login_where_one_is_needed_is_hinted_at(self, secure_kafka: SecureKafka) -> None:
        with hr.Admin(secure_kafka.server("SASL"), default_api_timeout_ms=2_000) as admin:
            with pytest.raises(KafkaError, match="SASL"):
                admin.describe_cluster()


def tls(certificates: Path, protocol: str = "SSL") -> dict[str, str]:
    return {"security.protocol": protocol, "ssl.ca.location": str(certificates / "ca.crt")}


def identity(certificates: Path, name: str) -> dict[str, str]:
    return {
        "ssl.certificate.location": str(certificates / f"{name}.crt"),
        "ssl.key.location": str(certificates / f"{name}.key"),
    }


@pytest.mark.kafka
class TestTls:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
    def test_a_trusted_authority_opens(
        self, secure_kafka: SecureKafka, certificates: Path, topic: str, host: str
    ) -> None:
        round_trip(secure_kafka.server("TLS", host), topic, tls(certificates))

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_sasl_within_tls(self, secure_kafka: SecureKafka, certificates: Path, topic: str, mechanism: str) -> None:
        options = {**SASL, **tls(certificates, "SASL_SSL"), "sasl.mechanism": mechanism}
        round_trip(secure_kafka.server("BOTH"), topic, options)

    def test_large_records_both_ways(self, secure_kafka: SecureKafka, certificates: Path, topic: str) -> None:
        options = tls(certificates)
        server = secure_kafka.server("TLS")
        values = [bytes([number]) * (700_000 + number) for number in range(40)]
        with hr.Producer(server, options) as producer:
            for value in values:
                producer.send(topic, value, partition=0)
        table = hr.read(server, topic, config=dict(options)).read_all()
        assert table["value"].to_pylist() == values

    def test_a_client_certificate_opens_and_none_is_told(
        self, secure_kafka: SecureKafka, certificates: Path, topic: str
    ) -> None:
        server = secure_kafka.server("MUTUAL")
        round_trip(server, topic, {**tls(certificates), **identity(certificates, "client")})
        both = {**tls(certificates), "ssl.certificate.location": str(certificates / "client.pem")}
        with hr.Admin(server, both) as admin:
            assert admin.describe_cluster().nodes
        for options in (tls(certificates), {**tls(certificates), **identity(certificates, "stranger")}):
            error = refusal(server, options)
            assert isinstance(error, TlsError)
            assert "ssl.certificate.location" in str(error)

    def test_an_encrypted_key_opens_with_its_password(self, secure_kafka: SecureKafka, certificates: Path) -> None:
        files = identity(certificates, "client")
        password = {"ssl.key.password": KEY_PASSWORD}
        for own in (
            {**files, "ssl.key.location": str(certificates / "client.encrypted.key")},
            {"ssl.certificate.location": str(certificates / "client.encrypted.pem")},
            files,  # an open key needs no password, and one is no harm
        ):
            with hr.Admin(secure_kafka.server("MUTUAL"), {**tls(certificates), **own, **password}) as admin:
                assert admin.describe_cluster().nodes

    def test_an_authority_that_is_not_trusted(self, secure_kafka: SecureKafka, certificates: Path) -> None:
        options = {"security.protocol": "SSL", "ssl.ca.location": str(certificates / "other-ca.crt")}
        error = refusal(secure_kafka.server("TLS"), options)
        assert isinstance(error, TlsError)
        assert "not trusted" in str(error)

    @pytest.mark.parametrize("options", [{}, {**SASL, "sasl.mechanism": "PLAIN"}])
    def test_no_tls_where_it_is_needed(self, secure_kafka: SecureKafka, options: dict[str, str]) -> None:
        server = secure_kafka.server("BOTH" if options else "TLS")
        error = refusal(server, options)
        assert isinstance(error, TlsError)
        assert "expects TLS" in str(error)
        assert "security.protocol" in str(error)
        assert server in str(error)

    @pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL"])
    def test_tls_where_there_is_none(self, secure_kafka: SecureKafka, certificates: Path, listener: str) -> None:
        plain = listener == "PLAINTEXT"
        server = secure_kafka.bootstrap_servers if plain else secure_kafka.server(listener)
        error = refusal(server, tls(certificates))
        assert isinstance(error, TlsError)
        assert "without TLS" in str(error)
        assert "security.protocol" in str(error)
        assert server in str(error)


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_restarts_is_waited_for(certificates: Path, topic: str) -> None:
    with SecureKafka(certificates) as kafka:
        server, options = kafka.server("BOTH"), {**SASL, **tls(certificates, "SASL_SSL"), "sasl.mechanism": "PLAIN"}
        with hr.Admin(server, options) as admin:
            admin.create_topics([hr.NewTopic(topic, 1)])
        with hr.Producer(server, options) as producer:
            producer.send(topic, b"0").result(30)
            kafka.kill()
            later = [producer.send(topic, b"%d" % number) for number in range(1, 100)]
            kafka.restart()
            assert [future.result(60).offset for future in later] == list(range(1, 100))


@contextlib.contextmanager
def tls_server(certificates: Path, name: str) -> Iterator[int]:
    """Shakes hands with a certificate of this name, and nothing more; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{name}.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as peer:
                    peer.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@contextlib.contextmanager
def hanging_up() -> Iterator[tuple[int, list[bytes]]]:
    """Takes the first bytes of a connection and hangs up, as a broker does that starts; its port, and those bytes."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    heard.append(accepted.recv(4))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


class TestCertificates:
    @pytest.mark.slow
    def test_a_peer_that_only_hangs_up_is_tried_again(self, certificates: Path) -> None:
        options = {**tls(certificates), "default.api.timeout.ms": "1500"}
        with hanging_up() as (port, heard):
            error = refusal(f"localhost:{port}", options)
        assert isinstance(error, KafkaTimeoutError)
        assert "does the listener expect TLS?" in str(error)
        assert sum(first.startswith(b"\x16\x03") for first in heard) > 2, "it may be a broker that starts"

    @pytest.mark.parametrize(
        ("name", "said"), [("expired", "expired"), ("elsewhere", "not for 'localhost'"), ("stranger", "not trusted")]
    )
    def test_a_certificate_that_is_no_good_is_told_at_once(self, certificates: Path, name: str, said: str) -> None:
        with tls_server(certificates, name) as port:
            error = refusal(f"localhost:{port}", tls(certificates))
        assert isinstance(error, TlsError)
        assert said in str(error)
        assert not error.retriable

    def test_a_name_is_not_checked_where_that_is_off(self, certificates: Path) -> None:
        for off in ("none", ""):
            options = {
                **tls(certificates),
                "ssl.endpoint.identification.algorithm": off,
                "default.api.timeout.ms": "500",
            }
            with tls_server(certificates, "elsewhere") as port:
                assert not isinstance(refusal(f"localhost:{port}", options), TlsError)
            # The rest is checked as ever.
            with tls_server(certificates, "stranger") as port:
                assert isinstance(refusal(f"localhost:{port}", options), TlsError)

    def test_files_that_are_no_good_are_named(self, certificates: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty.pem"
        empty.touch()
        damaged = tmp_path / "damaged.key"
        damaged.write_text((certificates / "client.encrypted.key").read_text(encoding="utf-8").replace("M", "A", 1))
        crt = {"ssl.certificate.location": str(certificates / "client.crt")}
        mismatch = {**identity(certificates, "client"), "ssl.key.location": str(certificates / "broker.key")}
        for options, option in (
            ({"ssl.ca.location": str(tmp_path / "gone")}, "ssl.ca.location"),
            ({"ssl.ca.location": str(empty)}, "ssl.ca.location"),
            ({"ssl.certificate.location": str(empty)}, "ssl.certificate.location"),
            ({"ssl.certificate.location": str(certificates / "client.crt")}, "ssl.certificate.location"),
            (mismatch, "ssl.key.location"),
            ({**crt, "ssl.key.location": str(certificates / "client.old.key")}, "openssl pkcs8 -topk8"),
            ({**crt, "ssl.key.location": str(certificates / "client.encrypted.key")}, "ssl.key.password"),
            ({**crt, "ssl.key.location": str(damaged), "ssl.key.password": KEY_PASSWORD}, "damaged"),
        ):
            with pytest.raises(ConfigError, match=option):
                hr.Admin("localhost:1", {**tls(certificates), **options})

    def test_a_wrong_password_of_a_key_is_named(self, certificates: Path) -> None:
        for wrong in ("wrong secret", KEY_PASSWORD.upper()):
            options = {
                **tls(certificates),
                "ssl.certificate.location": str(certificates / "client.encrypted.pem"),
                "ssl.key.password": wrong,
            }
            with pytest.raises(ConfigError, match=r"ssl\.key\.password.*does not open the key") as caught:
                hr.Admin("localhost:1", options)
            assert wrong not in str(caught.value)


class TestOptions:
    def test_secrets_are_in_no_message(self) -> None:
        for options in (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.password": "hunter2"},
            {"sasl.password": "hunter2"},
            {"sasl.pasword": "hunter2"},
            {"sasl.password": b"hunter2"},
            {"sasl.jaas.config": 'username="u" password="hunter2";'},
        ):
            with pytest.raises(ConfigError) as caught:
                hr.Admin("localhost:1", options)
            assert "hunter2" not in str(caught.value)

    def test_a_token_is_asked_for(self) -> None:
        with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token"):
            hr.Producer("localhost:1", BEARER)
