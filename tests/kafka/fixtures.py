"""What tests and benches share: brokers to talk to, and topics of their own."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.kafka import java, shared
from tests.kafka.apache import ApacheKafka, RunningKafka
from tests.kafka.cluster import Cluster
from tests.kafka.secure import SecureKafka, make_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from tests.together import Together

LOGS_OF_FAILURES = java.ROOT / ".pytest_cache" / "kafka-logs"
SHARED = pytest.StashKey[shared.Shared]()
numbers = itertools.count(1)
Kafka = TypeVar("Kafka", bound=ApacheKafka)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Not in one of several processes, which share the folder, nor in a run that a test has started.
    if not hasattr(session.config, "workerinput") and session.config.rootpath == java.ROOT:
        shutil.rmtree(LOGS_OF_FAILURES, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)  # pytest without xdist does not know it
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together | None:
    """With ``--dist loadfile`` files stay together. (xdist's groups do not: pytest 9.2 does not take its new names.)"""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.together import Together  # noqa: PLC0415 -- xdist is there, or nobody would ask

    return Together(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """In xdist's controller, before a worker starts."""
    stash = node.config.stash
    if SHARED not in stash:
        stash[SHARED] = shared.Shared()
    stash[SHARED].give_address(node)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (kafka := session.config.stash.get(SHARED, None)) is not None:
        kafka.stop(LOGS_OF_FAILURES if session.testsfailed else None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LOGS_OF_FAILURES.exists():
        terminalreporter.write_line(f"Apache Kafka's logs of this failing run: {LOGS_OF_FAILURES}")


@contextlib.contextmanager
def logs_kept(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Stops the broker at the end, whatever happens; its logs stay when a test failed."""
    try:
        yield kafka
    finally:
        failed = request.session.testsfailed > 0
        kafka.stop(keep_logs=LOGS_OF_FAILURES / str(kafka.port) if failed else None)


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[RunningKafka]:
    """One Apache Kafka for the whole run, of several processes too. Without Java or its jars an error, no skip."""
    given = getattr(request.config, "workerinput", {}).get(shared.INPUT)
    if given is not None:
        yield shared.ask(given)
        return
    with logs_kept(ApacheKafka().start(), request) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the PEM files that `make_certificates` writes."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secure_kafka(request: pytest.FixtureRequest, certificates: Path) -> Iterator[SecureKafka]:
    """One Apache Kafka with SASL and TLS listeners for the whole run."""
    with logs_kept(SecureKafka(certificates).start(), request) as kafka:
        yield kafka


@pytest.fixture
def own_apache_kafka(request: pytest.FixtureRequest) -> Iterator[Callable[..., ApacheKafka]]:
    """Starts Apache Kafkas of the test's own: `own_apache_kafka(log_segment_bytes="1048576")`."""
    with contextlib.ExitStack() as started:
        yield lambda **settings: started.enter_context(logs_kept(ApacheKafka(**settings).start(), request))


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[object]:
    """One `headrace.Broker` inside this process for the whole run."""
    import headrace  # noqa: PLC0415 -- tests of the infrastructure alone run without the native module

    # Tests write timestamps of long ago, as with Apache Kafka (apache.py).
    with headrace.Broker.start(log_retention_ms=-1) as broker:
        yield broker


CLUSTERS = [
    pytest.param("embedded", id="embedded"),
    pytest.param("apache", id="apache", marks=pytest.mark.kafka),
]


@pytest.fixture(params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A broker to talk to: the test runs once against ours and once against Apache Kafka."""
    if request.param == "embedded":
        broker = request.getfixturevalue("embedded_broker")
        return Cluster("embedded", broker.bootstrap_servers)
    return Cluster("apache", request.getfixturevalue("apache_kafka").bootstrap_servers)


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses; the topic does not exist yet."""
    return f"t{next(numbers)}-{time.time_ns()}"


@pytest.fixture
def scratch_directory(tmp_path: Path) -> Path:
    """A folder on the file system that `tmp_path` is on, for a broker's data."""
    directory = tmp_path / "data"
    directory.mkdir()
    return directory
