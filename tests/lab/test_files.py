"""Workload files: what is taken, and what is wrong where."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.cli import main
from headrace.lab import campaign
from headrace.lab.campaign import VARIATIONS_MAX
from headrace.lab.distribution import Distribution
from headrace.lab.faults import Fault
from headrace.lab.fields import FIELDS, page, rewrite
from headrace.lab.nodes import FILE_BYTES_MAX, WorkloadErrors
from headrace.lab.schedule import Segment
from headrace.lab.workload import Explore, Workload
from tests.kafka import java

if TYPE_CHECKING:
    from headrace.lab.campaign import Campaign


@pytest.fixture
def load(tmp_path):
    def read(text: str | bytes, *overrides: tuple[str, str], name: str = "w.yaml") -> Campaign:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return campaign.load(path, overrides)

    return read


def only(found: Campaign) -> Workload:
    [variation] = found.variations
    return variation.workload


def test_every_field_has_its_place_in_a_workload():
    assert {f.attribute for f in FIELDS if f.kind != "dimensions"} == {f.name for f in dataclasses.fields(Workload)}
    table = page()
    assert table.count("\n") == len(FIELDS) + 2
    assert "| `partitionsPerTopic`, `partitions` | 1 | partitions of each topic (1 to 10,000) |" in table


def test_the_page_has_the_table_of_the_fields():
    text = (java.ROOT / "docs" / "lab.md").read_text()
    assert rewrite(text) == text, "make generate writes it"
    assert rewrite(text.replace("partitions of each topic", "")) == text


def test_faults(load):
    text = "mode: correctness\nfaults:\n- {atSeconds: 3, kind: killConsumer, worker: 1, downSeconds: 0.5}\n"
    text += "- {atSeconds: 1, kind: command, command: make tea}\n- {atSeconds: 4, kind: killBroker}\n"
    workload = only(load(text))
    assert workload.faults == (
        Fault("killConsumer", 3, 0.5, worker=1),
        Fault("command", 1, command="make tea"),
        Fault("killBroker", 4, broker=1),
    )
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_acknowledgement_of_each_record_is_an_option_of_consumers(load):
    workload = only(load("consumerType: share\nacknowledgement: record\nconsumerConfig: {a: 1}"))
    assert workload.options("java", "consumer") == {"a": "1", "share.acknowledgement.mode": "explicit"}
    assert workload.options("java", "producer") == {}
    assert only(load("consumerType: share")).options("java", "consumer") == {}


def test_how_a_preview_takes_records(load):
    text = "consumerType: share\ndriver: [java, confluent-kafka]\nconsumerConfig: {share.acquire.mode: %s}\n"
    assert only(load(text % "batch_optimized")).consumer_type == "share"
    own = "driverConfig: {confluent-kafka: {share.acquire.mode: batch_optimized}}\n"
    workload = only(load(text % "record_limit" + own))
    assert workload.options("java", "consumer")["share.acquire.mode"] == "record_limit"


def test_defaults(load):
    workload = only(load("name: quick\n"))
    assert workload.name == "quick"
    assert workload.driver == ("headrace",)
    assert workload.message_distributor == Distribution("NO_KEY")
    assert workload.explore == Explore()
    assert workload.schedule is None
    assert only(load("topics: 1", name="by-file.yaml")).name == "by-file"
    assert only(load("topics: 1", name="büro 2.yaml")).name == "b-ro-2"


def test_values_mean_what_was_written(load):
    text = """
messageSize: 1e3
backlogRecords: 20_000_000
consumerConfig: {a: NO, b: 1e6, c: 010, d: "", e: yes, f: 12:30:45}
useRandomizedPayloads: Yes
"""
    workload = only(load(text))
    assert (workload.message_size, workload.backlog_records) == (1000, 20_000_000)
    assert workload.consumer_config == {"a": "NO", "b": "1e6", "c": "010", "d": "", "e": "yes", "f": "12:30:45"}
    assert workload.use_randomized_payloads is True


def test_all_kinds_of_values(load):
    text = """
driver: [headrace, java]
messageDistributor: {type: PARTITION_ZIPF, alpha: 2}
producerRateSchedule:
  type: REPEATING
  segments: [{fromRate: 1, toRate: 10, durationSeconds: 2}, {rate: 0, durationSeconds: 1}]
consumerType: share
consumers: 5
consumerProcParallelism: -1
consumerProcMsMin: 10
driverConfig: {java: {client.id: j}}
commonConfig: {client.id: c, metadata.max.age.ms: 1}
explore: {targetLatencyMs: 5}
"""
    workload = only(load(text))
    assert workload.driver == ("headrace", "java")
    assert workload.message_distributor == Distribution("PARTITION_ZIPF", 2.0)
    assert workload.producer_rate_schedule is not None
    assert workload.producer_rate_schedule.repeating
    assert workload.producer_rate_schedule.segments == (Segment(1, 10, 2), Segment(0, 0, 1))
    assert workload.group_config == {"share.auto.offset.reset": "earliest"}
    assert workload.consumer_per_subscription == 5
    assert workload.consumer_proc_ms_max == 10
    assert workload.options("java", "consumer") == {"client.id": "j", "metadata.max.age.ms": "1"}
    assert workload.options("headrace", "producer")["client.id"] == "c"
    assert workload.explore.target_latency_ms == 5
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_dimensions_multiply_the_last_fastest(load):
    found = load("""
consumerConfig: {fetch.max.wait.ms: 1, max.poll.records: 7}
dimensions:
  messageDistributor: [{type: PARTITION_ZIPF, alpha: 1.5}, NO_KEY]
  consumerConfig.fetch.max.wait.ms: [10, 50]
  consumers: [1, 6]
""")
    assert [v.name for v in found.variations][:3] == [
        "messageDistributor=PARTITION_ZIPF(1.5),consumerConfig.fetch.max.wait.ms=10,consumers=1",
        "messageDistributor=PARTITION_ZIPF(1.5),consumerConfig.fetch.max.wait.ms=10,consumers=6",
        "messageDistributor=PARTITION_ZIPF(1.5),consumerConfig.fetch.max.wait.ms=50,consumers=1",
    ]
    assert len(found.variations) == 8
    last = found.variations[-1].workload
    assert last.consumer_config == {"fetch.max.wait.ms": "50", "max.poll.records": "7"}
    assert (last.message_distributor.kind, last.consumer_per_subscription) == ("NO_KEY", 6)


def test_overrides(load):
    text = "partitions: 3\nconsumerConfig: {a: 1, b: 2}\n"
    workload = only(
        load(text, ("partitionsPerTopic", "4"), ("consumerConfig.b", "x"), ("messageDistributor", "RANDOM_NANO"))
    )
    assert workload.partitions_per_topic == 4
    assert workload.consumer_config == {"a": "1", "b": "x"}
    assert workload.message_distributor.kind == "RANDOM_NANO"
    assert len(load(text, ("dimensions.topics", "[1, 2, 3]")).variations) == 3
    for override, sentence in {
        ("partitoins", "1"): "--set partitoins: unknown field; did you mean partitions?",
        ("partitions", "none"): "--set partitions: partitionsPerTopic: is a number, not 'none'",
        ("messageDistributor", "[1"): "--set messageDistributor: not YAML: ",
        ("messageSize", ""): "--set messageSize: has no value",
        ("messageSize.x", "1"): "--set messageSize.x: messageSize has no parts",
    }.items():
        with pytest.raises(WorkloadErrors) as caught:
            load(text, override)
        assert str(caught.value).startswith(sentence), str(caught.value)
    with pytest.raises(WorkloadErrors, match=r"is a dimension: --set 'dimensions.consumers=\[3\]'"):
        load("dimensions: {consumers: [1]}", ("consumers", "3"))


OMB = """
name: 1-topic-16-partitions-1kb
topics: 1
partitionsPerTopic: 16
keyDistributor: "KEY_ROUND_ROBIN"
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.3
randomizedPayloadPoolSize: 100
subscriptionsPerTopic: 2
consumerPerSubscription: 3
producersPerTopic: 4
producerRate: 50000
consumerBacklogSizeGB: 0
backlogDrainRatio: 1.0
warmupDurationMinutes: 1
testDurationMinutes: 5
"""


def test_files_of_the_openmessaging_benchmark(load):
    workload = only(load(OMB))
    assert workload.mode == "run"
    assert workload.message_distributor.kind == "KEY_ROUND_ROBIN"
    assert (workload.warmup_duration_seconds, workload.test_duration_seconds) == (60, 300)
    assert (workload.producers_per_topic, workload.consumer_per_subscription) == (4, 3)
    drained = only(load(OMB.replace("SizeGB: 0", "SizeGB: 0.5").replace("1024", "1000")))
    assert (drained.mode, drained.backlog_records) == ("drain-backlog", 500_000)


# What stands in the file, and what is said: from its line on.
WRONG = [
    (
        "messageDistributor: ZIPF",
        "1:21: messageDistributor: unknown distributor 'ZIPF': one of NO_KEY, KEY_ROUND_ROBIN",
    ),
    ("a: b: c", "1:5: not YAML: mapping values are not allowed here"),
    ("topics: 1\n\tpartitions: 2", "2:1: not YAML: "),
    ("topics: [1, 2", "1:14: not YAML: while parsing a flow sequence"),
    ("topics: 1\n---\ntopics: 2", "2:1: not YAML: expected a single document"),
    ("topics: *gone", "1:9: not YAML: found undefined alias"),
    ("- topics", "1:1: is a mapping (NAME: VALUE), not a list"),
    ("just words", "1:1: is a mapping (NAME: VALUE), not 'just words'"),
    ("? [a]\n: 1", "1:3: a name is a word"),
    ("topics: 1\ntopics: 2", "2:1: topics: is there already in line 1"),
    (
        "consumers: 1\nconsumerPerSubscription: 2",
        "2:1: consumerPerSubscription: is the same as consumerPerSubscription",
    ),
    ("partitons: 3", "1:1: partitons: unknown field; did you mean partitions?"),
    ("quux: 3", "1:1: quux: unknown field"),
    ("topics: many", "1:9: topics: is a number, not 'many'"),
    ("topics: 1.5", "1:9: topics: is a whole number, not '1.5'"),
    ("topics: 0", "1:9: topics: is at least 1, not 0"),
    ("topics: 1e9", "1:9: topics: is at most 1,000, not 1e+09"),
    ("topics:", "1:8: topics: has no value"),
    ("topics: {a: 1}", "1:9: topics: is one value, not a mapping"),
    ("producerRate: .inf", "1:15: producerRate: is a number, not '.inf'"),
    ("producerRate: inf", "1:15: producerRate: is a finite number, not 'inf'"),
    ("messageSize: 23", "1:14: messageSize: is at least 24, not 23"),
    ("name: a b", "1:7: name: is made of letters, digits"),
    (
        "mode: ruin",
        "1:7: mode: unknown mode 'ruin': one of run, explore-limits, drain-backlog, correctness; did",
    ),
    ("faults: [{atSeconds: 1, kind: moveLeaders}]", "1:1: faults: are of mode correctness"),
    ("mode: correctness\nfaults: {}", "2:9: faults: is a list"),
    ("mode: correctness\nfaults: [{kind: moveLeaders}]", "2:10: faults[0]: lacks its atSeconds"),
    ("mode: correctness\nfaults: [{atSeconds: 1}]", "2:10: faults[0]: lacks its kind"),
    ("mode: correctness\nfaults: [{atSeconds: 1, kind: killer}]", "2:31: faults[0].kind: unknown fault 'killer'"),
    ("mode: correctness\nfaults: [{atSeconds: 1, kind: command}]", "2:10: faults[0]: lacks its command"),
    (
        "mode: correctness\nfaults: [{atSeconds: 1, kind: moveLeaders, broker: 1}]",
        "2:44: faults[0].broker: is not of moveLeaders",
    ),
    (
        "mode: correctness\nfaults: [{atSeconds: 71, kind: moveLeaders}]",
        "2:1: faults: moveLeaders comes after the end of the test",
    ),
    ("mode: correctness\nproducers: 0", "2:1: producersPerTopic: is at least 1 in correctness"),
    ("driver: []", "1:9: driver: is an empty list"),
    ("driver: [java, rabbit]", "1:16: driver: unknown driver 'rabbit'"),
    ("driverConfig: {rabbit: {a: 1}}", "1:16: driverConfig: unknown driver 'rabbit'"),
    ("driverConfig: {java: 1}", "1:22: driverConfig.java: is a mapping (NAME: VALUE), not '1'"),
    ("consumerConfig: {a: [1]}", "1:21: consumerConfig.a: is one value, not a list"),
    ("useRandomizedPayloads: 3", "1:24: useRandomizedPayloads: is true or false, not '3'"),
    ("consumerProcParallelism: 0", "1:26: consumerProcParallelism: is -1"),
    ("payloadFile: no/such", "1:14: payloadFile: there is no file 'no/such'"),
    ("messageDistributor: PARTITION_ZIPF", "1:21: messageDistributor: PARTITION_ZIPF wants its alpha"),
    ("messageDistributor: {type: PARTITION_ZIPF}", "1:21: messageDistributor: PARTITION_ZIPF lacks its alpha"),
    ("messageDistributor: {alpha: 1}", "1:21: messageDistributor: lacks its type"),
    ("messageDistributor: {type: PARTITION_ZIPF, alpha: 0}", "1:51: messageDistributor.alpha: is above 0, not 0"),
    ("messageDistributor: {type: NO_KEY, alpha: 1}", "1:36: messageDistributor.alpha: is of PARTITION_ZIPF"),
    ("messageDistributor: {type: NO_KEY, alfa: 1}", "1:36: messageDistributor.alfa: unknown: one of type, alpha"),
    ("producerRateSchedule: {type: ONCE}", "1:23: producerRateSchedule: lacks its segments"),
    ("producerRateSchedule: {segments: []}", "1:34: producerRateSchedule.segments: has 1 to 1,000 segments, not 0"),
    (
        "producerRateSchedule: {type: TWICE, segments: [{rate: 1, durationSeconds: 1}]}",
        "1:30: producerRateSchedule.type",
    ),
    (
        "producerRateSchedule:\n  segments:\n    - {rate: 1, fromRate: 1, durationSeconds: 1}",
        "3:7: producerRateSchedule.segments[0]: has a rate, or fromRate and toRate",
    ),
    (
        "producerRateSchedule:\n  segments:\n    - {durationSeconds: 1}",
        "3:7: producerRateSchedule.segments[0]: has a rate, or fromRate and toRate",
    ),
    (
        "producerRateSchedule:\n  segments:\n    - {rate: 1, durationSeconds: 0}",
        "3:34: producerRateSchedule.segments[0].durationSeconds: is above 0, not 0",
    ),
    ("producerRateSchedule:\n  segments:\n    - {rate: 1}", "3:7: producerRateSchedule.segments[0]: lacks its dura"),
    (
        "producerRate: 1\nproducerRateSchedule: {segments: [{rate: 1, durationSeconds: 1}]}",
        "2:1: producerRateSchedule: stands beside producerRate",
    ),
    ("explore: {startRate: 10, maxRate: 5}", "1:10: explore: startRate (10) is above maxRate (5)"),
    ("explore: {targetLatency: 5}", "1:11: explore.targetLatency: unknown: one of targetLatencyMs"),
    ("consumerProcMsMin: 5\nconsumerProcMsMax: 4", "2:1: consumerProcMsMax: is less than consumerProcMsMin"),
    ("consumerType: share\ndriver: kafka-python", "1:1: consumerType: share: the driver kafka-python has no share"),
    (
        "consumerType: share\nacknowledgement: each",
        "2:18: acknowledgement: unknown acknowledgement 'each': one of",
    ),
    ("acknowledgement: record\ndriver: java", "1:1: acknowledgement: record is of share groups: consumerType is to be"),
    (
        "consumerType: share\nacknowledgement: record\ndriver: [java, kafka-python]",
        "1:1: consumerType: share: the driver kafka-python has no share groups",
    ),
    (
        "consumerType: share\ndriverConfig:\n  java: {share.acknowledgement.mode: explicit}",
        "3:10: driverConfig.java.share.acknowledgement.mode: is set by the field acknowledgement: batch, record",
    ),
    (
        "consumerType: share\ndriver: [java, confluent-kafka]\nconsumerConfig: {share.acquire.mode: record_limit}",
        "3:18: consumerConfig.share.acquire.mode: record_limit: the share groups of confluent-kafka are a preview",
    ),
    (
        "consumerType: share\ndriver: confluent-kafka\ndimensions: {consumerConfig.share.acquire.mode: [record_limit]}",
        "3:50: consumerConfig.share.acquire.mode: record_limit: the share groups of confluent-kafka",
    ),
    ("mode: drain-backlog", "1:1: mode: drain-backlog wants backlogRecords"),
    ("mode: explore-limits\nconsumers: 0", "2:1: consumerPerSubscription: is at least 1 in explore-limits"),
    ("dimensions: {consumer: [1]}", "1:14: dimensions.consumer: unknown field; did you mean consumers?"),
    ("dimensions: {consumers: []}", "1:25: dimensions.consumers: is an empty list"),
    (
        "dimensions:\n  consumers: [1]\n  consumerPerSubscription: [2]",
        "3:3: dimensions.consumerPerSubscription: is the same field as that in line 2",
    ),
    ("dimensions: {consumers: 3}", "1:25: dimensions.consumers: is a list, not '3'"),
    ("dimensions: {dimensions.consumers: [3]}", "1:14: dimensions.dimensions.consumers: a dimension is another field"),
    ("dimensions: {consumers: [1, two]}", "1:29: consumerPerSubscription: is a number, not 'two'"),
    ("tpcHFiles: x", "1:1: tpcHFiles: is a field of OMB that means nothing here"),
    ("keyDistributor: NO\ntopics: 1", "1:17: messageDistributor: unknown distributor 'NO'"),
    ("", "w.yaml: is empty"),
    (b"a: \xff", "1:1: is not UTF-8"),
    (b"#" * (FILE_BYTES_MAX + 1), "is over 1,048,576 bytes"),
    ("[" * 50_000, "not YAML: "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named_with_its_place(load, text, sentence):
    with pytest.raises(WorkloadErrors) as caught:
        load(text)
    [error] = caught.value.errors
    assert sentence in str(error)
    assert "w.yaml" in str(error)


def test_all_faults_are_told_by_line_and_once(load):
    with pytest.raises(WorkloadErrors) as caught:
        load("topics: 0\nquux: 1\nmode: x\ndimensions: {consumers: [1, 2, -3], partitions: [1, 2]}\n")
    assert [(error.mark.line, error.field) for error in caught.value.errors] == [
        (1, "topics"),
        (2, "quux"),
        (3, "mode"),
        (4, "consumerPerSubscription"),
    ]


def test_too_many_variations(load):
    with pytest.raises(WorkloadErrors, match=f"make 1,024 variations; at most {VARIATIONS_MAX:,}"):
        load("dimensions:\n" + "".join(f"  consumerConfig.{c}: [1, 2]\n" for c in "abcdefghij"))


def test_the_command_checks_files(tmp_path, capsys):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("dimensions: {topics: [1, 2]}")
    bad.write_text("topics: 0\nmode: x\n")
    assert main(["lab", "check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: good: 2 variations, all well\n"
    assert main(["lab", "check", str(good), str(bad), str(tmp_path / "none.yaml")]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(str(tmp_path)).split(": ")[0] for line in reported] == [
        "/bad.yaml:1:9",
        "/bad.yaml:2:7",
        "/none.yaml",
    ]


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "yaml":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from headrace.cli import main
sys.exit(main(["lab", "check", "x.yaml"]))
"""


def test_a_missing_package_is_named():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "headrace lab: the lab needs the package yaml: in a checkout of headrace, pip install '.[lab]'\n",
    )


def test_headrace_itself_needs_none_of_the_lab():
    program = "import sys, headrace, headrace.cli, headrace.broker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "headrace.broker" in loaded
    assert not {"yaml", "numpy", "rich", "plotly", "psutil", "headrace.lab"} & set(loaded)
