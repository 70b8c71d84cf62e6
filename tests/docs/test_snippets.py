"""Snippets of Python on pages that are no tutorial: each runs as it stands, with what its page takes for granted."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import DecodeError
from tests.kafka.secure import PASSWORD, USER, unsigned_token

if TYPE_CHECKING:
    from tests.kafka.apache import RunningKafka
    from tests.kafka.secure import SecureKafka

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
TESTED_ELSEWHERE = {
    "cluster.md": "tests/cluster/test_brokers.py",
    "copy.md": "tests/cli/test_copy.py",
    "interop.md": "tests/clients/test_interop.py",
    "spark.md": "tests/spark/test_docs.py",
    "streams.md": "tests/clients/test_interop.py",
}
TESTED_HERE = {"index.md", "logging.md", "one-sided.md", "security.md", "share-groups.md", "values.md"}


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def run(page: str, snippet: str, names: dict[str, Any], **replaced: str) -> str:
    """Gives what it prints. `replaced`: addresses and paths of the page by those of the test."""
    for old, new in replaced.items():
        assert old in snippet
        snippet = snippet.replace(old, new)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(snippet, page, "exec"), names)  # noqa: S102 -- our own page
    return out.getvalue()


def test_each_page_with_snippets_is_tested():
    pages = {path.name for path in DOCS.glob("*.md") if snippets(path.name)}
    assert pages == TESTED_HERE | set(TESTED_ELSEWHERE)
    for page, test in TESTED_ELSEWHERE.items():
        assert page in (DOCS.parent / test).read_text(encoding="utf-8")


def test_the_first_page():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    [printed] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    [snippet] = snippets("index.md")
    assert run("index.md", snippet, {}) == printed


def test_logging():
    root, before = logging.getLogger(), logging.getLogger().level
    handlers = root.handlers[:]
    root.handlers.clear()
    [snippet] = snippets("logging.md")
    try:
        run("logging.md", snippet, {"logging": logging})
        assert root.level == logging.DEBUG
        assert len(root.handlers) == 1
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


def test_one_sided():
    [snippet] = snippets("one-sided.md")
    names: dict[str, Any] = {"hr": hr}
    run("one-sided.md", snippet, names)
    assert names["broker"] is not None


@pytest.mark.kafka
def test_security(secure_kafka: SecureKafka, monkeypatch):
    of_passwords, of_tokens = snippets("security.md")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    import os  # noqa: PLC0415 -- what the page takes for granted

    server, authority = secure_kafka.server("BOTH"), str(secure_kafka.certificates / "ca.crt")
    names: dict[str, Any] = {"hr": hr, "os": os}
    run("security.md", of_passwords, names, **{"kafka1:9093": server, "/etc/kafka/ca.pem": authority, "alice": USER})
    assert hr.read(server, "orders", config=names["options"]).read_all()["value"].to_pylist() == [b"..."]
    scopes = []

    def token(scope: str) -> SimpleNamespace:
        scopes.append(scope)
        return SimpleNamespace(text=unsigned_token(600), expires_at=time.time() + 600)

    names = {"issuer": SimpleNamespace(token=token)}
    run("security.md", of_tokens, names)
    options = {**names["options"], "ssl.ca.location": authority}
    assert hr.read(server, "orders", config=options).read_all().num_rows == 1
    assert set(scopes) == {"scope-of-orders"}


@pytest.mark.kafka
def test_share_groups(apache_kafka: RunningKafka):
    by_default, explicit = snippets("share-groups.md")
    servers = apache_kafka.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topics([hr.NewTopic("orders", 1)])
        for group in ("mail", "mail-too"):
            admin.alter_group_config(group, {"share.auto.offset.reset": "earliest"})
    with hr.Producer(servers) as producer:
        producer.send_arrow("orders", pa.table({"value": [b"short", b"l" * 1000]}))
    sent = []

    class EnoughError(Exception):
        pass

    def send(batch: pa.RecordBatch) -> None:
        sent.extend(batch["value"].to_pylist())
        if len(sent) == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        run("share-groups.md", by_default, {"servers": servers, "send": send})
    assert sent == [b"short", b"l" * 1000]
    names: dict[str, Any] = {"servers": servers, "hr": hr}
    run("share-groups.md", explicit, names, mail="mail-too")
    with names["share"]:
        assert names["results"] == {hr.TopicPartition("orders", 0): None}
        # What was released comes again, what was accepted does not.
        assert names["share"].poll(30.0)["value"].to_pylist() == [b"l" * 1000]


SHOP_ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}"""
PAYMENT = """{"type": "record", "name": "Payment", "namespace": "shop", "fields": [{"name": "of", "type": "long"}]}"""
ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "city", "type": "string"}]}"""


def test_values():
    with_registry, of_json, of_several, written, own_registry, bad = snippets("values.md")
    with hr.Broker.start(registry=True) as broker, hr.Producer(broker.bootstrap_servers) as producer:
        servers = {"localhost:9092": broker.bootstrap_servers}
        registry = hr.SchemaRegistry(broker.registry_url)
        names: dict[str, Any] = {"hr": hr, "pa": pa, "producer": producer, "registry": registry, "schema": ORDER}
        run("values.md", written, names)
        producer.flush()
        run("values.md", with_registry, names, **servers, **{"http://localhost:8081": broker.registry_url})
        assert names["table"]["value"].to_pylist() == [{"id": 1, "city": "Berlin"}]

        for name, row, schema in (("Payment", {"of": 7}, PAYMENT), ("Order", {"id": 3}, SHOP_ORDER)):
            form = hr.Avro(schema, registry=registry, subject=f"shop.{name}")
            producer.send_arrow("shop", pa.table({"value": pa.array([row])}), value=form)
        producer.flush()
        run("values.md", of_several, names, **servers)
        assert names["orders"].to_pylist() == [None, {"id": 3}]
        run("values.md", own_registry, {"hr": hr})

    with hr.Broker.start() as broker, hr.Producer(broker.bootstrap_servers) as producer:
        producer.send("orders", b'{"id": 1, "price": {"amount": "2.50"}}')
        producer.flush()
        names = {"hr": hr}
        run("values.md", of_json, names, **{"localhost:9092": broker.bootstrap_servers})
        assert str(names["table"]["value"].to_pylist()[0]["price"]["amount"]) == "2.50"

        producer.send("orders", b"no JSON")
        producer.flush()
        bare = hr.Json(names["order"], on_error="column")
        with hr.Consumer(broker.bootstrap_servers, value=bare, auto_offset_reset="earliest") as consumer:
            consumer.assign([("orders", 0)])
            run("values.md", bad, {"hr": hr, "consumer": consumer, "producer": producer})
        producer.flush()
        dead = hr.read(broker.bootstrap_servers, "orders-dead").read_all()
        assert dead["value"].to_pylist() == [b"no JSON"]
        with pytest.raises(DecodeError):
            hr.read(broker.bootstrap_servers, "orders", value=hr.Json(names["order"])).read_all()
