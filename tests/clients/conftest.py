"""Brokers that several files of client tests share."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from tests.kafka import java
from tests.kafka.apache import ApacheKafka
from tests.kafka.cluster import Cluster
from tests.kafka.fixtures import CLUSTERS, logs_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

names = (f"tx-{number}-{time.time_ns()}" for number in itertools.count())


@pytest.fixture(scope="session")
def version_one(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An Apache Kafka whose cluster has not agreed on transaction version 2."""
    with logs_kept(ApacheKafka().start(), request) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        java.run("org.apache.kafka.tools.FeatureCommand", *address, "downgrade", "--feature", "transaction.version=1")
        yield Cluster("apache", kafka.bootstrap_servers)


@pytest.fixture(params=["v1", "v2"])
def kafka(request: pytest.FixtureRequest) -> Cluster:
    """Apache Kafka in both versions of its transactions."""
    if request.param == "v1":
        version_one: Cluster = request.getfixturevalue("version_one")
        return version_one
    return Cluster("apache", request.getfixturevalue("apache_kafka").bootstrap_servers)


@pytest.fixture
def name() -> str:
    """A transactional id of the test's own."""
    return next(names)


@pytest.fixture(scope="session")
def strict_apache(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An Apache Kafka that makes no topic because somebody asks for it."""
    with logs_kept(ApacheKafka(auto_create_topics_enable="false").start(), request) as kafka:
        yield Cluster("apache", kafka.bootstrap_servers)


@pytest.fixture(params=CLUSTERS)
def strict(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A broker, ours and Apache Kafka, that makes no topic because somebody asks for it."""
    if request.param == "apache":
        yield request.getfixturevalue("strict_apache")
        return
    with hr.Broker.start(auto_create_topics_enable=False) as broker:
        yield Cluster("embedded", broker.bootstrap_servers)
