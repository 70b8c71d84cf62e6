"""librdkafka's own tests of brokers, on three of ours beside an etcd and on three of Apache Kafka.

`make soak` builds them of the sources that the crate rdkafka-sys carries; nothing of them is kept here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.cluster.nodes import HeadraceNodes
from tests.kafka import java
from tests.kafka.apache import VERSION
from tests.kafka.nodes import ApacheNodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.kafka.nodes import Nodes

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.timeout(3600)]

BUILT = java.ROOT / ".deps" / "librdkafka"
AT_ONCE = 3
TEST_TIMEOUT_SECONDS = 300
DECLARED = re.compile(r"\b_TEST\((?P<name>(?P<number>\d{4})_\w+),\s*(?P<flags>[^,()]*)")
NOT_HERE = re.compile(r"TEST_F_(LOCAL|MANUAL|KNOWN_ISSUE)\b")
"""Tests that need no broker, that somebody watches, or of which librdkafka says that they fail."""
# One test that is as long as thirty others, and ends where the first of its parts fails; so each is run by itself.
ADMIN, ADMIN_PART = "0081_admin", re.compile(r"^(?:static void )?(do_test_[A-Z]\w+)\(", re.MULTILINE)

GOOD = {"PASSED", "SKIPPED"}
SETTINGS = {"num_partitions": "4", "default_replication_factor": "3"}
APACHE_SETTINGS = SETTINGS | {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
}
SCENARIOS = {
    "default": {"auto_create_topics_enable": "true"},
    "noautocreate": {"auto_create_topics_enable": "false"},
}

# What has nothing to do here, and why.
SKIPPED = {
    "0082_fetch_max_bytes": "not among the quick ones",
    "0092_mixed_msgver": "Kafka 4 has no such batches",
    "0097_ssl_verify": "TLS",
    "0126_oauthbearer_oidc": "SASL",
    "0135_sasl_credentials": "SASL",
    "0142_reauthentication": "SASL",
    "0153_memberid": "the new group protocol",
}

# What fails on either broker, and why.
FAIL_EVERYWHERE = {
    "0077_compaction": "a segment.bytes that Kafka 4 does not take",
    "0098_consumer_txn": "a Java program that is not built here",
    "0129_fetch_aborted_msgs": "a segment.bytes that Kafka 4 does not take",
}

# What our brokers do not have; docs/compatibility.md says the same in words.
DIFFERENCES = {
    "0011_produce_batch": "records without a key are not refused where cleanup.policy is compact",
    "0081_admin do_test_CreateTopics": "compression by the broker",
    "0081_admin do_test_AlterConfigs": "compression by the broker",
    "0081_admin do_test_IncrementalAlterConfigs": "compression by the broker",
    "0081_admin do_test_DescribeConfigs_groups": "settings of groups",
    "0081_admin do_test_CreateAcls": "ACLs",
    "0081_admin do_test_DescribeAcls": "ACLs",
    "0081_admin do_test_DeleteAcls": "ACLs",
    "0081_admin do_test_UserScramCredentials": "SASL",
    "0103_transactions": "transactions",
    "0109_auto_create_topics": "ACLs",
    "0115_producer_auth": "ACLs",
    "0119_consumer_auth": "ACLs",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what these tests call of Apache Kafka's distribution."""
    folder: Path = tmp_path_factory.mktemp("kafka")
    (folder / "bin").mkdir()
    for name, main_class in (("topics", "TopicCommand"), ("acls", "AclCommand")):
        script = folder / "bin" / f"kafka-{name}.sh"
        words = java.command(f"org.apache.kafka.tools.{main_class}")
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return folder


@pytest.fixture(params=["headrace", "apache"])
def kind(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture
def nodes(kind: str, scenario: str, tmp_path: Path) -> Iterator[Nodes]:
    own = SCENARIOS[scenario]
    apache = kind == "apache"
    given = ApacheNodes(3, **APACHE_SETTINGS, **own) if apache else HeadraceNodes(tmp_path, 3, **SETTINGS, **own)
    with given as running:
        yield running


def selected(scenario: str) -> list[tuple[str, ...]]:
    """Names of the tests to run, those of a number together, as only a number can be chosen."""
    source = (BUILT / "source" / "tests" / "test.c").read_text(encoding="utf-8")
    names: dict[str, list[str]] = {}
    for found in DECLARED.finditer(source):
        declared = source[found.start() :].partition("_TEST(")[2].partition("_TEST(")[0]
        own = re.search(r'\.scenario = "([^"]*)"', declared)
        if scenario in (own[1] if own else "default").split(",") and not NOT_HERE.search(found["flags"]):
            names.setdefault(found["number"], []).append(found["name"])
    return [tuple(names[number]) for number in sorted(names)]


def admin_parts() -> list[str]:
    """The functions that the test of the admin client consists of."""
    source = (BUILT / "source" / "tests" / "0081-admin.c").read_text(encoding="utf-8")
    return ADMIN_PART.findall(source)


class Suite:
    """The tests against one cluster.

    Args:
        folder: for what they print and report.
        scripts: Apache Kafka's.
        servers: of the cluster.
        scenario: which tests, by what its brokers are set to.
    """

    def __init__(self, folder: Path, scripts: Path, servers: str, scenario: str) -> None:
        self._folder, self._scenario = folder, scenario
        folder.mkdir(exist_ok=True)
        configuration = folder / "test.conf"
        lines = (f"bootstrap.servers={servers}", "test.timeout.multiplier=2", "test.topic.random=true")
        configuration.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._environment = os.environ | {
            "RDKAFKA_TEST_CONF": str(configuration),
            "TEST_KAFKA_VERSION": VERSION,
            "KAFKA_PATH": str(scripts),
            "BROKERS": servers,
        }
        self._environment.pop("CI", None)

    def run(self, names: tuple[str, ...], part: str | None = None, turn: int = 0) -> dict[str, str]:
        """How each of these tests ended: "PASSED", "FAILED" or "SKIPPED"."""
        number = names[0][:4]
        report = self._folder / f"{number}-{part or ''}-{turn}.json"
        command = ["./test-runner", "-L", "-K", "-p1", "-s", self._scenario]
        environment = self._environment | {"TESTS": number, "TEST_REPORT": str(report)}
        if part:
            environment["SUBTESTS"] = f"{part}:"
        else:
            command.append("-Q")
        with report.with_suffix(".log").open("wb") as printed, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=BUILT / "source" / "tests",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                timeout=TEST_TIMEOUT_SECONDS,
                check=False,
            )
        # Without a report it has crashed, or took too long.
        tests = json.loads(report.read_text(encoding="utf-8"))["tests"] if report.exists() else {}
        states = {name: tests[name]["state"] if name in tests else "FAILED" for name in names}
        states = {name: state if state in GOOD else "FAILED" for name, state in states.items()}
        return {f"{name} {part}" if part else name: state for name, state in states.items()}

    def run_all(self, known: Mapping[str, str]) -> dict[str, str]:
        """As `run`, for all; what fails and is not known to gets a second go by itself: some race with the clock."""
        chosen: list[tuple[tuple[str, ...], str | None]] = []
        for names in selected(self._scenario):
            chosen += [(names, part) for part in (admin_parts() if names == (ADMIN,) else [None])]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = list(pool.map(lambda one: self.run(*one), chosen))
        for at, one in enumerate(chosen):
            if any(state not in GOOD and name not in known for name, state in outcomes[at].items()):
                print(f"once more: {outcomes[at]}")
                outcomes[at] = self.run(*one, turn=1)
        return {name: state for outcome in outcomes for name, state in outcome.items()}


def test_the_suite(nodes: Nodes, kind: str, scenario: str, scripts: Path, tmp_path: Path):
    servers = ",".join(node.bootstrap_servers for node in nodes.nodes)
    known = FAIL_EVERYWHERE | (DIFFERENCES if kind == "headrace" else {})
    outcomes = Suite(tmp_path / "suite", scripts, servers, scenario).run_all(known)
    print(f"{kind}, {scenario}: {Counter(outcomes.values())}")
    ended = {state: {name for name, found in outcomes.items() if found == state} for state in ("FAILED", "SKIPPED")}
    assert ended["FAILED"] == {name for name in known if name in outcomes}
    assert ended["SKIPPED"] == {name for name in SKIPPED if name in outcomes}
