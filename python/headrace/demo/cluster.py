"""Where the records go: a Kafka and a schema registry, each one that was given or one of the demo's own."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.registry import RegisteredSchema

REGISTRY_DEADLINE_S: Final = 10.0
"""How long a registry may take for the first schema; one that is not there should not look like a demo that hangs."""


class Cluster(NamedTuple):
    """Addresses for clients."""

    bootstrap_servers: str
    registry_url: str


@contextmanager
def cluster(bootstrap_servers: str | None, registry_url: str | None) -> Iterator[Cluster]:
    """The Kafka and the registry to use; what is None is started, and ends with the block.

    A registry of the demo's own keeps its schemas in a broker of its own also where another Kafka has the records: that
    Kafka may have a registry, whose topic is not the demo's to write to.
    """
    from headrace.broker import Broker  # noqa: PLC0415  (not for --help)

    if bootstrap_servers is not None:
        say("using the Kafka of --bootstrap")
    if registry_url is not None:
        say("using the schema registry of --schema-registry-url")
    if bootstrap_servers is not None and registry_url is not None:
        yield Cluster(bootstrap_servers, registry_url)
        return
    begun = time.perf_counter()
    with Broker.start(registry=registry_url is None) as broker:
        took = (time.perf_counter() - begun) * 1000
        own = [f"broker serves on {broker.bootstrap_servers}"] if bootstrap_servers is None else []
        own += [f"schema registry at {broker.registry_url}"] if registry_url is None else []
        say(f"embedded {', '.join(own)}, after {took:.0f} ms")
        if bootstrap_servers is not None:
            say(
                "schemas end with the demo, and what it leaves in the topics cannot be read then; "
                "--schema-registry-url keeps them"
            )
        yield Cluster(bootstrap_servers or broker.bootstrap_servers, registry_url or broker.registry_url)


def schemas(registry_url: str) -> list[RegisteredSchema]:
    """Registers the schemas of both topics, unless they are there; gives the newest of each subject.

    That one gives the query its columns, also where somebody has evolved it.

    Raises:
        ConfigError: the registry cannot be reached, or refuses them; the message names the option.
    """
    from headrace.demo import data  # noqa: PLC0415  (pyarrow is slow to load)
    from headrace.errors import ConfigError, KafkaError  # noqa: PLC0415  (not for --help)
    from headrace.registry import SchemaRegistry  # noqa: PLC0415  (not for --help)

    found = []
    try:
        registry = SchemaRegistry(registry_url, deadline=REGISTRY_DEADLINE_S)
        for topic, schema in data.SCHEMAS.items():
            subject = f"{topic}-value"
            registry.register(subject, schema)
            newest = registry.latest(subject)
            say(f"values of {topic} are Avro: subject {subject}, version {newest.version}, schema id {newest.id}")
            found.append(newest)
    except KafkaError as error:
        raise ConfigError(f"--schema-registry-url: {error}") from None
    return found


def topics(bootstrap_servers: str, partitions: int) -> dict[str, str]:
    """Sees to it that the topics are there; where the query begins, so that older records are left alone."""
    from headrace.admin import Admin  # noqa: PLC0415  (not for --help)
    from headrace.demo import data  # noqa: PLC0415  (pyarrow is slow to load)

    starting = {}
    with Admin(bootstrap_servers) as admin:
        there = set(admin.list_topics())
        for name in (data.FLOW_TOPIC, data.SPEED_TOPIC):
            if name not in there:
                admin.create_topic(name, partitions, 1)
            described = admin.describe_topics([name])[name]
            ends = admin.list_offsets({(name, p.partition): "latest" for p in described.partitions})
            starting[name] = json.dumps({name: {str(tp.partition): at.offset for tp, at in ends.items()}})
    return starting


def say(text: str) -> None:
    """One line on the terminal."""
    sys.stderr.write(f"demo: {text}\n")
