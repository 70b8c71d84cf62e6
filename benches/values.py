"""Typed values to Arrow, from memory beside Rust's libraries, and from brokers beside confluent-kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import headrace as hr
from benches import startup
from benches.harness import ROOT, Row, compare, in_turns, paired, program, say
from benches.peers import orders
from benches.peers.meter import Sample
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench

# From memory: each case beside another, and what it must reach.
FROM_MEMORY = {
    "avro": (
        ("all columns", "arrow-avro, all columns", 1.5),
        ("2 of 10 columns", "all columns", 2),
        ("two schemas in turns", "all columns", 0.8),
        ("1 bad row in 100", "all columns", 0.7),
    ),
    # With two of ten columns the others are still read, if only to be skipped.
    "json": (
        ("all columns", "arrow-json, all columns", 1.5),
        ("2 of 10 columns", "all columns", 1),
        ("1 bad row in 100", "all columns", 0.7),
    ),
    "protobuf": (
        ("all columns", "ptars-core, all columns", 1),
        ("2 of 10 columns", "all columns", 1),
        ("1 bad row in 100", "all columns", 0.7),
    ),
}
DEPS = ROOT / ".deps"
LEAST_M_ROWS = 4
ENCODE_FASTER = 15
# The batch that arrives and the one that is decoded are there as well, and what allocators keep.
MEMORY_BAR = 1.1
FETCH_BUFFER_MIB = 64
"""`fetch.buffer.bytes`, by default."""
# Of what our consumer does, how much faster it must be than confluent-kafka with a reader of Python's.
PEERS = {
    "avro": (("consume-avro", "AvroDeserializer", 25),),
    "json": (("consume-json", "json.loads", 20), ("consume-orjson", "orjson", 5)),
    "protobuf": (("consume-protobuf", "ProtobufDeserializer", 20),),
}
IN_SPARK = {"avro": ("from_avro", 4), "json": ("from_json", 3)}
NAMES = {"avro": "Avro", "json": "JSON", "protobuf": "Protobuf"}


def rows(bench: Bench) -> Iterator[Row]:
    """Orders of ten columns: Avro and Protobuf, framed, 73 and 80 bytes; JSON, 185 bytes."""
    for kind in PEERS:
        yield from _from_memory(bench, kind)
    with startup.broker_process() as process:
        own = Cluster("headrace", process.bootstrap_servers)
        for kind in PEERS:
            for name, cluster in (("our broker", own), ("Apache Kafka", bench.apache)):
                yield from _from_broker(bench, kind, name, cluster)
        for name, cluster in (("our broker", own), ("Apache Kafka", bench.apache)):
            yield from _to_broker(bench, name, cluster)
        yield _memory(bench, own)
    with hr.Broker.start(registry=True) as registry:
        assert registry.registry_url is not None
        for kind in IN_SPARK:
            yield from _from_spark(bench, kind, registry.registry_url)


def _from_memory(bench: Bench, kind: str) -> Iterator[Row]:
    what = f"{NAMES[kind]} from memory"
    say(f"{what}, one thread")
    example = f"{kind}_speed"
    subprocess.run(
        [
            "cargo",
            "build",
            "--locked",
            "--quiet",
            "--release",
            "-p",
            "headrace-values",
            "--features",
            "peers",
            "--example",
            example,
        ],
        cwd=ROOT,
        check=True,
        timeout=1800,
    )
    command = [str(ROOT / "target/release/examples" / example), str(bench.records(200_000)), str(4 * bench.pairs)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    rates: dict[str, list[float]] = json.loads(printed.splitlines()[-1])
    for case, peer, bar in FROM_MEMORY[kind]:
        yield paired(f"{what}: {case} / {peer}", rates[case], rates[peer], "M rows/s", bar=bar)
    if kind == "avro":
        case, peer, _ = FROM_MEMORY[kind][0]
        yield paired(f"{what}: {case}", rates[case], rates[peer], "M rows/s", bar_least=LEAST_M_ROWS)


def _from_broker(bench: Bench, kind: str, name: str, cluster: Cluster) -> Iterator[Row]:
    records = bench.records(2_000_000)
    few = bench.records(200_000)
    case = f"{NAMES[kind]} to Arrow from {name}[10 columns-1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    with bench.empty_topic(cluster) as topic:
        where = (cluster.bootstrap_servers, topic)
        program("benches.ours", f"produce-{kind}", *where, "--records", records)
        ours, bare, *peers = in_turns(
            [
                partial(program, "benches.ours", f"consume-{kind}", *where, "--records", records),
                partial(program, "benches.ours", "consume", *where, "--records", records),
                *(
                    partial(program, "benches.peers.confluent", what, *where, "--records", few)
                    for what, _, _ in PEERS[kind]
                ),
            ],
            bench.pairs,
        )
    for (_, peer, bar), samples in zip(PEERS[kind], peers, strict=True):
        yield compare(f"{case} / {peer} to Arrow", ours, samples, bare, bar=bar)


def _memory(bench: Bench, cluster: Cluster) -> Row:
    """What a long read takes over one of a few rows, beside what is fetched ahead and one batch."""
    records, few = bench.records(10_000_000), 1_000
    say(f"memory of a read of {records} records of Avro")
    with bench.empty_topic(cluster) as long, bench.empty_topic(cluster) as short:
        runs = []
        for topic, count in ((long, records), (short, few)):
            where = (cluster.bootstrap_servers, topic)
            program("benches.ours", "produce-avro", *where, "--records", count)
            runs.append(partial(program, "benches.ours", "consume-avro", *where, "--records", count))
        many, some = in_turns(runs, min(bench.pairs, 3))  # memory is not noisy
    took = [one.grown_mib - other.grown_mib for one, other in zip(many, some, strict=True)]
    limit = [FETCH_BUFFER_MIB + one.batch_mib for one in many]
    return paired(
        f"Avro to Arrow: memory of {records} records / of the fetch buffer and a batch",
        took,
        limit,
        "MiB",
        bar_below=MEMORY_BAR,
    )


def _to_broker(bench: Bench, name: str, cluster: Cluster) -> Iterator[Row]:
    records, few = bench.records(2_000_000), bench.records(200_000)
    case = f"Avro from Arrow to {name}[10 columns-1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    with bench.empty_topic(cluster) as topic:
        where = (cluster.bootstrap_servers, topic)
        ours, bare, confluent = in_turns(
            [
                partial(program, "benches.ours", "encode-avro", *where, "--records", records),
                partial(program, "benches.ours", "produce-avro", *where, "--records", records),
                partial(program, "benches.peers.confluent", "produce-avro", *where, "--records", few),
            ],
            bench.pairs,
        )
    yield compare(f"{case} / AvroSerializer", ours, confluent, bare, bar=ENCODE_FASTER)


def _from_spark(bench: Bench, kind: str, registry: str) -> Iterator[Row]:
    """A sum of two fields, in one session of pyspark 4.2, from Apache Kafka."""
    records = bench.records(2_000_000)
    case = f"{NAMES[kind]} in Spark, a sum of 2 of 10 fields[1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    jars = (DEPS / "connector.cp").read_text(encoding="utf-8").strip().replace(os.pathsep, ",")
    env = {**os.environ, "PYTHONPATH": f"{DEPS / 'pyspark-4.2'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    env["PYSPARK_PYTHON"] = sys.executable
    with bench.empty_topic(bench.apache) as topic:
        where = (bench.apache.bootstrap_servers, topic)
        hr.SchemaRegistry(registry).register(f"{topic}-value", orders.TEXT)
        program("benches.ours", f"produce-{kind}", *where, "--records", records)
        command = [sys.executable, "-m", "benches.peers.spark_batch", *where, "--records", str(records)]
        command += ["--rounds", str(bench.pairs), "--jars", jars, "--orders", kind, "--registry", registry]
        printed = subprocess.run(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=1800, check=True
        )
    samples: dict[str, list[Sample]] = {}
    for line in printed.stdout.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            samples.setdefault(result["format"], []).append(Sample.parse(result["sample"]))
    peer, bar = IN_SPARK[kind]
    yield compare(f"{case} / {peer}", samples["headrace"], samples["kafka"], bar=bar)
