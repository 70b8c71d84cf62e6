"""No error, repr or log shows the value of a secret option, wherever and however it is given."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import string
import traceback
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import main
from headrace.errors import ConfigError

SECRET = "".join(random.Random(13).choices(string.ascii_letters, k=24))
SECRETS = ["sasl.password", "ssl.key.password", "sasl.oauthbearer.token", "sasl.oauthbearer.config"]
# Kafka's and librdkafka's, which are none here.
FOREIGN = [
    "ssl.keystore.password",
    "ssl.truststore.password",
    "ssl.keystore.key",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "ssl.key.pem",
]
OPTIONS = sorted(
    {
        name
        for line in Path("docs/options.md").read_text().splitlines()
        for name in re.findall(r"^\| `([a-z.]+)`(?: \*)? \|", line)
    }
)


class Hidden:
    """Something that shows what it is."""

    def __repr__(self):
        return f"Hidden({SECRET})"


WRONG = [
    SECRET.encode(),
    [SECRET, 1],
    {"a": SECRET},
    Hidden(),
    SECRET + "\ud800",
    [SECRET + "\ud800"],
    (SECRET, Hidden()),
]


def clients():
    """Everything that takes client options, called with a mapping of them, as confluent-kafka takes it."""
    yield "Producer", hr.Producer
    yield "Consumer", hr.Consumer
    yield "ShareConsumer", hr.ShareConsumer
    yield "Admin", hr.Admin
    yield "read", lambda given: hr.read(given, "topic")
    yield "aio.Producer", hr.aio.Producer
    yield "aio.Consumer", hr.aio.Consumer
    yield "aio.ShareConsumer", hr.aio.ShareConsumer


def ways(given):
    """The ways to give options: alone, beside the servers, as keywords."""
    rest = {name: value for name, value in given.items() if name != "bootstrap.servers"}
    yield lambda make: make(given)
    yield lambda make: make(given["bootstrap.servers"], rest)
    yield lambda make: make(given["bootstrap.servers"], **{name.replace(".", "_"): v for name, v in rest.items()})
    yield lambda make: make([given["bootstrap.servers"], rest])
    yield lambda make: make(given["bootstrap.servers"], list(rest.items()))
    yield lambda make: make(given["bootstrap.servers"], str(rest))


def assert_hidden(call, caplog):
    """Runs it; whatever comes of it does not show the secret."""
    with caplog.at_level(logging.DEBUG):
        try:
            made = call()
        except Exception as error:  # noqa: BLE001 -- whatever it is
            shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
            chain = [error]
            while chain[-1].__context__ is not None:
                chain.append(chain[-1].__context__)
            shown += "".join(repr(each) + repr(each.args) for each in chain)
        else:
            shown = repr(made) + str(made)
    assert SECRET not in shown
    assert SECRET not in caplog.text


def with_slip(name):
    """The name with a letter left out, twice, or changed."""
    dice = random.Random(name)
    for _ in range(3):
        at = dice.randrange(5, len(name))
        yield name[:at] + dice.choice(["", name[at] * 2, "x"]) + name[at + 1 :]


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in clients()])
def test_no_client_shows_a_secret(make, caplog):
    base = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 1, "request.timeout.ms": 1}
    names = [*SECRETS, *FOREIGN, *(slip for name in SECRETS for slip in with_slip(name))]
    for name in names:
        for value in (SECRET, *WRONG):
            assert_hidden(lambda given={**base, name: value}: make(given), caplog)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in clients()])
def test_a_password_among_the_servers_is_not_shown(make, caplog):
    for servers in (
        f"u:{SECRET}@127.0.0.1:1",
        f"{SECRET}@127.0.0.1:1",
        f"127.0.0.1:1,u:{SECRET}%40k:1",
        f"u:{SECRET}:1",
    ):
        assert_hidden(lambda servers=servers: make(servers), caplog)
        with pytest.raises(ConfigError, match=r"bootstrap\.servers.*host:port"):
            make({"bootstrap.servers": servers})


def test_user_info_among_the_servers_is_told_where_it_belongs():
    with pytest.raises(ConfigError, match=r"sasl\.username and sasl\.password"):
        hr.Admin("u:p@127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"no '\\n'"):
        hr.Admin("127.0.0.1\nx:1")


@pytest.mark.parametrize(
    "command", [["topics", "list"], ["consume", "t"], ["produce", "t"], ["groups", "list"], ["demo"]], ids=" ".join
)
def test_the_command_line_shows_no_password_among_the_servers(command, capfd):
    option = "--bootstrap"
    with contextlib.suppress(SystemExit):
        main([*command, option, f"u:{SECRET}@127.0.0.1:1"])
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "bootstrap.servers" in shown.err


@pytest.mark.parametrize(
    ("name", "make"), [pytest.param(n, m, id=n) for n, m in clients() if n in ("Producer", "Admin")]
)
def test_a_secret_in_any_shape_stays_hidden(name, make, caplog):
    for option in SECRETS:
        for value in (SECRET, Hidden()):
            for way in ways({"bootstrap.servers": "127.0.0.1:1", option: value}):
                assert_hidden(lambda way=way: way(make), caplog)


def test_whatever_else_is_wrong_a_secret_stays_hidden(caplog):
    for option in OPTIONS:
        given = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": SECRET}
        if option not in SECRETS:
            given[option] = "\x00 certainly wrong"
        for make in (hr.Producer, hr.Consumer, hr.ShareConsumer, hr.Admin):
            assert_hidden(lambda make=make, given=given: make(given), caplog)
    assert len(OPTIONS) > 80


def test_the_broker_shows_no_secret(caplog):
    for name in [*SECRETS, *FOREIGN]:
        for value in (SECRET, *WRONG):
            assert_hidden(lambda name=name, value=value: hr.Broker.start(config={name: value}), caplog)
            assert_hidden(lambda name=name, value=value: hr.Broker.start({name: value}), caplog)
            assert_hidden(lambda name=name, value=value: hr.Broker.start(**{name.replace(".", "_"): value}), caplog)


def test_the_source_and_sink_of_spark_show_no_secret(caplog):
    from headrace.spark import options  # noqa: PLC0415 -- needs pyspark

    for name in [*SECRETS, *FOREIGN, *(slip for secret in SECRETS for slip in with_slip(secret))]:
        for more in ({}, {name: "other"}, {"kafka.acks": "wrong"}, {"subscribe": "t"}, {"topic": "t"}):
            given = {"kafka.bootstrap.servers": "127.0.0.1:1", f"kafka.{name}": SECRET, **more}
            assert_hidden(lambda given=given: options.source_options(given, streaming=True), caplog)
            assert_hidden(lambda given=given: options.sink_options(given), caplog)


@pytest.mark.parametrize("name", [*SECRETS, *FOREIGN, "sasl.passwrd"])
def test_the_command_line_shows_no_secret(name, capfd):
    for given in (
        ["-X", f"{name}={SECRET}"],
        ["-X", f"{name}:{SECRET}"],
        ["-X", f"{name} {SECRET}"],
        ["-X", f"{name}=", SECRET, "more"],
        ["-X", f"={SECRET}"],
        [f"-X{name}", SECRET],
        [f"--{name}={SECRET}"],
        [f"--{name}", SECRET],
    ):
        for command in (["topics", "list"], ["consume", "t", "--until-end"]):
            arguments = [*command, "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=1", *given]
            with contextlib.suppress(SystemExit):
                main(arguments)
            out, err = capfd.readouterr()
            assert SECRET not in out + err
    for arguments in (["broker", "--config", f"{name}={SECRET}"], ["broker", "-c", f"{name}:{SECRET}"]):
        with contextlib.suppress(SystemExit):
            assert main(arguments) != 0
        out, err = capfd.readouterr()
        assert SECRET not in out + err


def test_a_mapping_as_confluent_takes_it_is_the_config(embedded_broker, topic):
    given = {"bootstrap.servers": embedded_broker.bootstrap_servers, "client.id": "me"}
    with hr.Producer({**given, "linger.ms": 0}) as producer:
        assert producer.send(topic, b"x").result(20).offset == 0
    assert hr.read(given, topic).read_all().num_rows == 1
    with hr.Consumer({**given, "group.id": topic}, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(20).num_rows == 1
    with hr.Admin(given, {"request.timeout.ms": 9000}) as admin:
        assert topic in admin.list_topics()
    with pytest.raises(ConfigError, match=r"client\.id is given twice"):
        hr.Admin(given, {"client.id": "you"})
    with pytest.raises(ConfigError, match="config takes a mapping of options by name, not list"):
        hr.Admin(embedded_broker.bootstrap_servers, [("client.id", "me")])
