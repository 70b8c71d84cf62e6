"""Tokens that a function gives (`oauth_cb`), and sessions that are renewed before the broker ends them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace._oauth import parts_of
from headrace.errors import ConfigError, KafkaTimeoutError, SaslAuthenticationFailedError
from tests.kafka.secure import PASSWORD, SESSION_MS, USER, SecureKafka, unsigned_token

BEARER: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
SESSIONS = 3


class Issuer:
    """Gives tokens, and counts."""

    def __init__(self, seconds: float = 600) -> None:
        self.seconds = seconds
        self.configs: list[str] = []
        self.threads: set[str] = set()

    def __call__(self, config: str) -> tuple[str, float]:
        self.configs.append(config)
        self.threads.add(threading.current_thread().name)
        return unsigned_token(self.seconds), time.time() + self.seconds


def local_ports(port: int) -> set[int]:
    """Ports of this machine from which established TCP connections lead to `port`."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            if int(remote.rsplit(":", 1)[1], 16) == port and state == "01":
                found.add(int(local.rsplit(":", 1)[1], 16))
    return found


@pytest.mark.kafka
class TestTokens:
    def test_every_client_takes_them(self, secure_kafka: SecureKafka, topic: str) -> None:
        server = secure_kafka.server("SASL")
        issuers = [Issuer() for _ in range(5)]
        options = [{**BEARER, "oauth_cb": issuer, "sasl.oauthbearer.config": "scope=a"} for issuer in issuers]
        with hr.Admin(server, options[0]) as admin:
            admin.create_topics([hr.NewTopic(topic, 1)])
        with hr.Producer(server, options[1]) as producer:
            producer.send(topic, b"1").result(30)
        with hr.Consumer(server, options[2], auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.poll(timeout=30.0)["value"].to_pylist() == [b"1"]
        assert hr.read(server, topic, config=options[3]).read_all().num_rows == 1

        async def send() -> None:
            async with hr.aio.Producer(server, options[4]) as producer:
                await (await producer.send(topic, b"2"))

        asyncio.run(send())
        for issuer in issuers:
            assert issuer.configs == ["scope=a"], "one token serves all connections, of both clients of a read too"
            assert issuer.threads == {"headrace-oauth"}

    def test_principal_and_extensions_are_taken(self, secure_kafka: SecureKafka) -> None:
        extensions = {"traceId": "a b"}

        def issue(_: str) -> tuple[str, float, str, dict[str, str]]:
            return unsigned_token(), time.time() + 600, USER, extensions

        options = {**BEARER, "oauth_cb": issue}
        with hr.Admin(secure_kafka.server("SASL"), options) as admin:
            assert admin.describe_cluster().nodes
        extensions["auth"] = "Bearer of another"
        with hr.Admin(secure_kafka.server("SASL"), options) as admin:
            with pytest.raises(SaslAuthenticationFailedError, match="'auth'"):
                admin.describe_cluster()

    def test_an_exception_is_told_at_once_with_its_cause(self, secure_kafka: SecureKafka) -> None:
        raised = ValueError("the issuer knows nobody of this name")

        def issue(_: str) -> tuple[str, float]:
            raise raised

        options = {**BEARER, "oauth_cb": issue}
        server = secure_kafka.server("SASL")
        said = "oauth_cb raised ValueError: the issuer"
        with hr.Admin(server, options) as admin:
            with pytest.raises(SaslAuthenticationFailedError, match=said) as asked:
                admin.describe_cluster()
        with pytest.raises(SaslAuthenticationFailedError, match=said) as sent, hr.Producer(server, options) as producer:
            producer.send("t", b"1").result(30)
        for caught in (asked, sent):
            assert caught.value.__cause__ is raised
            assert str(secure_kafka.ports["SASL"]) in str(caught.value)

    def test_a_token_that_the_broker_refuses_is_asked_for_anew(self, secure_kafka: SecureKafka) -> None:
        tokens = itertools.chain(["nonsense"], itertools.repeat(unsigned_token()))
        options = {**BEARER, "oauth_cb": lambda _: (next(tokens), time.time() + 600)}
        with hr.Admin(secure_kafka.server("SASL"), options) as admin:
            with pytest.raises(SaslAuthenticationFailedError) as caught:
                admin.describe_cluster()
            assert "nonsense" not in str(caught.value)
            assert admin.describe_cluster().nodes

    def test_a_function_that_hangs_holds_up_nobody_else(self, secure_kafka: SecureKafka) -> None:
        server = secure_kafka.server("SASL")
        release = threading.Event()
        calls = []

        def hang(config: str) -> tuple[str, float]:
            calls.append(config)
            release.wait(60)
            return unsigned_token(), time.time() + 600

        limits = {"socket.connection.setup.timeout.ms": 300, "default.api.timeout.ms": 2_000}
        with hr.Admin(server, {**BEARER, **limits, "oauth_cb": hang}) as hanging:
            with pytest.raises(KafkaTimeoutError, match="oauth_cb"):
                hanging.describe_cluster()
            with hr.Admin(server, {**BEARER, "oauth_cb": Issuer()}) as other:
                assert other.describe_cluster().nodes
            assert calls == [""], "it is not called again while it runs"
            release.set()
            assert hanging.describe_cluster().nodes


@pytest.mark.kafka
class TestSessions:
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_a_session_is_renewed_without_a_new_connection(
        self, secure_kafka: SecureKafka, topic: str, mechanism: str
    ) -> None:
        server = secure_kafka.server("BRIEF")
        options: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            options["oauth_cb"] = Issuer()
        else:
            options |= {"sasl.username": USER, "sasl.password": PASSWORD}
        with hr.Admin(server, options) as admin:
            admin.create_topics([hr.NewTopic(topic, 1)])
        read: list[int] = []
        with (
            hr.Producer(server, options, linger_ms=1) as producer,
            hr.Consumer(server, options, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([(topic, 0)])
            numbers = itertools.count()
            sent = [producer.send(topic, b"%d" % next(numbers))]
            while not read:
                read.extend(int(value) for value in consumer.poll(timeout=1.0)["value"].to_pylist())
            before = local_ports(secure_kafka.ports["BRIEF"])
            end = time.monotonic() + SESSIONS * SESSION_MS / 1_000
            while time.monotonic() < end:
                sent.extend(producer.send(topic, b"%d" % next(numbers)) for _ in range(10))
                read.extend(int(value) for value in consumer.poll(timeout=0.01)["value"].to_pylist())
            offsets = [future.result(30).offset for future in sent]
            while len(read) < len(sent):
                read.extend(int(value) for value in consumer.poll(timeout=1.0)["value"].to_pylist())
            after = local_ports(secure_kafka.ports["BRIEF"])
        assert offsets == list(range(len(sent)))
        assert read == offsets
        # Produce and fetch connections are in use all the time, and the broker ends any that outlives its session. One
        # that nobody uses is left as it is.
        assert before == after

    def test_a_group_keeps_its_members(self, secure_kafka: SecureKafka, topic: str) -> None:
        server = secure_kafka.server("BRIEF")
        options: dict[str, Any] = {**BEARER, "oauth_cb": Issuer()}
        with hr.Admin(server, options) as admin:
            admin.create_topics([hr.NewTopic(topic, 2)])
        often: dict[str, Any] = {"group.id": topic, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 100}
        with hr.Consumer(server, {**options, **often}) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                consumer.poll(timeout=0.1)
            generation = consumer.group_metadata().generation_id
            before = local_ports(secure_kafka.ports["BRIEF"])
            end = time.monotonic() + SESSIONS * SESSION_MS / 1_000
            while time.monotonic() < end:
                consumer.poll(timeout=0.1)
            assert consumer.group_metadata().generation_id == generation
            # One more may have come after the assignment; none of those there was given up.
            assert before <= local_ports(secure_kafka.ports["BRIEF"])


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"oauth_cb": lambda _: ("t", 1.0)}, "SASL_SSL"),
            ({**BEARER, "oauth_cb": "a.b.c"}, "takes a function"),
            ({**BEARER, "oauth_cb": lambda _: ("t", 1.0), "sasl.oauthbearer.token": "t"}, "already"),
            ({**BEARER, "sasl.oauthbearer.method": "oidc"}, "oauth_cb"),
        ],
    )
    def test_what_does_not_fit_is_named(self, options: dict[str, Any], said: str) -> None:
        for client in (hr.Admin, hr.Producer, hr.Consumer):
            with pytest.raises(ConfigError, match=said):
                client("localhost:1", options)

    def test_it_may_be_a_keyword(self) -> None:
        issuer = Issuer()
        with hr.Admin(
            "localhost:1", security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", oauth_cb=issuer
        ) as admin:
            assert isinstance(admin, hr.Admin)
        assert issuer.configs == [], "nobody has logged in"

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (None, "not NoneType"),
            (("t",), "a tuple of 1"),
            (("t", 1.0, "p", {}, 5), "a tuple of 5"),
            ((b"t", 1.0), "a string, not bytes"),
            (("t", "soon"), "not of type str$"),
            (("t", float("nan")), "not nan"),
            (("t", True), "not of type bool$"),
            (("t", 1.0, None, {"a": 1}), "a dict of strings"),
            (("t", 1.0, None, "a=b"), "a dict of strings"),
        ],
    )
    def test_an_answer_that_is_none_is_told(self, answer: object, said: str) -> None:
        with pytest.raises(TypeError, match=said):
            parts_of(answer)

    def test_answers_of_every_length(self) -> None:
        assert parts_of(("t", 1)) == ("t", 1, [])
        assert parts_of(("t", 1.5, "alice")) == ("t", 1.5, [])
        assert parts_of(("t", 1.5, None, {"a": "b"})) == ("t", 1.5, [("a", "b")])
