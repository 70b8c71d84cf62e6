"""Apache Kafka's own command-line tools, unchanged, on our broker."""

from __future__ import annotations

import random
import re

import pytest
from confluent_kafka import Producer

from tests.broker.process import BrokerProcess
from tests.kafka import java

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOOLS = "org.apache.kafka.tools."
TIMEOUT_SECONDS = 15
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def tool(name, servers, *arguments, **options):
    """What a tool printed."""
    done = java.run(TOOLS + name, "--bootstrap-server", servers, *arguments, **options)
    return done.stdout.decode()


@pytest.fixture
def servers(broker_process):
    return broker_process.bootstrap_servers


@pytest.fixture
def made(servers, topic):
    """A topic of two partitions, made by Kafka's tool."""
    tool(
        "TopicCommand", servers, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=86400000"
    )
    return topic


def test_topics(servers, made):
    described = tool("TopicCommand", servers, "--describe", "--topic", made)
    assert re.search(
        rf"Topic: {made}\t.*PartitionCount: 2\tReplicationFactor: 1\tConfigs: .*retention.ms=86400000", described
    )
    assert len(re.findall(r"Partition: \d\tLeader: \d+\tReplicas: \d+\tIsr: \d+", described)) == 2
    tool("TopicCommand", servers, "--alter", "--topic", made, "--partitions", "3")
    assert "PartitionCount: 3" in tool("TopicCommand", servers, "--describe", "--topic", made)
    tool("TopicCommand", servers, "--delete", "--topic", made)
    assert made not in tool("TopicCommand", servers, "--list").split()


def test_console_producer_to_console_consumer(servers, made):
    lines = [f"k{i}:v{i}" for i in range(50)]
    parsed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool("ConsoleProducer", servers, "--topic", made, *parsed, stdin="\n".join(lines) + "\n")
    group = f"g-{made}"
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"]
    ends = ["--max-messages", "50", "--timeout-ms", "15000"]
    got = tool(
        "consumer.ConsoleConsumer", servers, "--topic", made, "--from-beginning", "--group", group, *shown, *ends
    )
    assert sorted(got.split()) == sorted(lines)

    offsets = tool("GetOffsetShell", servers, "--topic", made)
    ends_by_partition = dict(re.findall(rf"^{made}:(\d):(\d+)$", offsets, re.MULTILINE))
    assert sum(map(int, ends_by_partition.values())) == 50

    groups = "consumer.group.ConsumerGroupCommand"
    assert group in tool(groups, servers, "--list").split()
    described = tool(groups, servers, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert {row[2]: (row[3], row[4], row[5]) for row in rows} == {
        partition: (end, end, "0") for partition, end in ends_by_partition.items() if end != "0"
    }
    tool(groups, servers, "--reset-offsets", "--group", group, "--topic", made, "--to-earliest", "--execute")
    described = tool(groups, servers, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert sum(int(row[5]) for row in rows) == 50
    assert "was successful" in tool(groups, servers, "--delete", "--group", group)
    assert group not in tool(groups, servers, "--list").split()


def test_the_performance_tools(servers, made):
    props = ["--bootstrap-server", servers, "--topic", made]
    for codec in CODECS:
        load = ["--num-records", "4000", "--record-size", "100", "--throughput", "-1"]
        settings = ["--command-property", f"compression.type={codec}"]
        sent = java.run(TOOLS + "ProducerPerformance", *props, *load, *settings).stdout.decode()
        assert re.search(r"^4000 records sent, ", sent, re.MULTILINE), sent
    got = java.run(
        TOOLS + "ConsumerPerformance", *props, "--num-records", "20000", "--timeout", "15000"
    ).stdout.decode()
    row = got.strip().splitlines()[-1].split(", ")
    assert int(row[4]) >= 20_000, got


def dumped_values(log, dump):
    """The values of a dump; it may find fault with nothing but a segment that does not start at 0."""
    base = int(log.stem)
    faults = [
        line
        for line in dump.splitlines()
        if re.search(r"non-consecutive|mismatch|corrupt|invalid", line, re.IGNORECASE)
    ]
    start = rf"(Non-consecutive offsets in .*|  -1 is followed by {base})"
    assert all(base > 0 and re.fullmatch(start, line.rstrip()) for line in faults), faults
    assert re.findall(r"isvalid: (\w+)", dump) == ["true"] * dump.count("isvalid")
    return re.findall(r"\| offset: (\d+) .* payload: (\S+)", dump)


def test_dump_log_segments_reads_our_data_before_and_after_a_kill(tmp_path):
    count = 0
    digits = random.Random(1)
    with BrokerProcess(tmp_path / "data", "log.segment.bytes=1048576", "log.index.interval.bytes=1024") as broker:
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
            for _ in range(200):
                # Hex digits: a codec halves them, and yet the segments fill.
                producer.produce("dumped", f"{count}-{digits.randbytes(1500).hex()}")
                count += 1
                if count % 20 == 0:
                    assert producer.flush(TIMEOUT_SECONDS) == 0
            assert producer.flush(TIMEOUT_SECONDS) == 0
        folder = broker.data / "dumped-0"
        for killed in (False, True):
            if killed:
                broker.kill()
                newest = max(folder.glob("*.log"))
                with newest.open("ab") as torn:
                    torn.write(b"\0\0\0\0torn")
                broker.start()
            logs = sorted(folder.glob("*.log"))
            assert len(logs) > 1
            found, codecs = [], set()
            for log in logs:
                dump = java.dump_log_segments(log)
                found += dumped_values(log, dump)
                codecs |= set(re.findall(r"compresscodec: (\w+)", dump))
            assert [int(offset) for offset, _ in found] == list(range(count))
            assert [value.split("-")[0] for _, value in found] == [str(i) for i in range(count)]
            assert codecs == set(CODECS)
            for index in [*sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex"))]:
                assert "Mismatches" not in java.dump_log_segments(index, deep=False)
