"""kafka-python's own integration tests, on our broker and on Apache Kafka.

They come out of its source distribution, which pip brings to `.deps` once; nothing of it is kept here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from xml.etree import ElementTree as ET

import pytest

from tests.broker.process import BrokerProcess
from tests.kafka import java
from tests.kafka.apache import VERSION

pytestmark = pytest.mark.slow

RELEASE = "3.0.12"
SDIST = java.ROOT / ".deps" / f"kafka_python-{RELEASE}.tar.gz"
FILES = [f"test/integration/test_{part}_integration.py" for part in ("producer", "consumer", "admin")]
SUITE_TIMEOUT_SECONDS = 300

# What the suite's own brokers are set to, as far as its tests rest on it.
SETTINGS = {"node.id": "0", "num.partitions": "4", "group.min.session.timeout.ms": "1000"}
APACHE_SETTINGS = SETTINGS | {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}

# What our broker does not have yet; docs/compatibility.md says the same in words.
DIFFERENCES = {
    "test_transactional_producer_messages": "transactions",
    "test_transactional_producer_offsets": "transactions",
    "test_create_describe_delete_acls": "security",
    "test_alter_replica_log_dirs": "wider admin API",
    "test_describe_metadata_quorum": "wider admin API",
    "test_list_config_resources": "wider admin API",
}

# The source distribution leaves this module of the tests out; with a broker that runs already, this is all of it.
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass


class SpawnedService:
    pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with the suite in it."""
    if not SDIST.exists():
        SDIST.parent.mkdir(exist_ok=True)
        wanted = ["--no-binary", ":all:", "--no-deps", f"kafka-python=={RELEASE}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(SDIST.parent), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"pip could not bring kafka-python's source to {SDIST}: {done.stderr}"
    folder = tmp_path_factory.mktemp("suite")
    with tarfile.open(SDIST) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            if member.isfile() and name.startswith("test/") and ".." not in name:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE, encoding="utf-8")
    (folder / "kafka-bin").mkdir()
    return folder


def run_once(suite, servers, *tests):
    """How each test ended: "passed", "failed" or "skipped"."""
    report = suite / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-c", os.devnull]
    command += ["--rootdir", str(suite), "--timeout", "60", f"--junitxml={report}", *(tests or FILES)]
    environment = {"KAFKA_ROOT": str(suite / "kafka-bin"), "KAFKA_VERSION": VERSION, "KAFKA_URI": f"kafka://{servers}"}
    done = subprocess.run(
        command,
        cwd=suite,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    print(done.stdout[-20_000:])
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 -- our own pytest wrote it a moment ago
        kinds = {child.tag for child in case}
        failed = "failure" in kinds or "error" in kinds
        outcomes[case.get("name")] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return outcomes


def run(suite, servers, known):
    """As `run_once`; what fails and is not known to gets a second go, for some of these tests race with the clock."""
    outcomes = run_once(suite, servers)
    assert len(outcomes) > 50
    doubtful = [name for name, outcome in outcomes.items() if outcome == "failed" and name not in known]
    if doubtful:
        names = {name.partition("[")[0] for name in doubtful}
        again = run_once(suite, servers, *FILES, "-k", " or ".join(sorted(names)))
        outcomes |= {name: again[name] for name in doubtful}
    return outcomes


def failures(outcomes):
    return {name for name, outcome in outcomes.items() if outcome == "failed"}


@pytest.mark.timeout(2 * SUITE_TIMEOUT_SECONDS)
def test_the_suite_on_our_broker(suite, tmp_path):
    with BrokerProcess(tmp_path / "data", *(f"{name}={value}" for name, value in SETTINGS.items())) as broker:
        outcomes = run(suite, broker.bootstrap_servers, DIFFERENCES)
    assert failures(outcomes) == set(DIFFERENCES)


@pytest.mark.kafka
@pytest.mark.timeout(2 * SUITE_TIMEOUT_SECONDS)
def test_the_suite_on_apache_kafka(suite, own_apache_kafka):
    kafka = own_apache_kafka(**{name.replace(".", "_"): value for name, value in APACHE_SETTINGS.items()})
    assert failures(run(suite, kafka.bootstrap_servers, {})) == set()
