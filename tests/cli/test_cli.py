"""The command line as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.cli import COMMANDS, main


@pytest.fixture
def run(embedded_broker):
    def call(*arguments, stdin=None, status=0):
        command = [sys.executable, "-m", "headrace.cli", *map(str, arguments), "-b", embedded_broker.bootstrap_servers]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    return call


def test_help_teaches(capsys):
    assert main([]) == 2
    text = capsys.readouterr().out
    for command, summary in COMMANDS.items():
        assert command in text
        assert summary in " ".join(text.split())
    assert "headrace broker --data-dir" in text
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert len(capsys.readouterr().out) > 200
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {version('headrace')}\n"


@pytest.mark.parametrize("port", ["99999", "-1", "65536", "http", "²"])
def test_what_is_no_port_is_named(port, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["broker", f"--port={port}"])
    assert ended.value.code == 2
    assert f"argument --port: {port!r} is not a port, 0 to 65535" in capsys.readouterr().err


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"headrace {version('headrace')}\n"), done.stderr


@pytest.mark.parametrize("package", ["pyspark", "plotly"])
def test_a_demo_without_its_packages_says_what_to_install(package, capsys, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == package or "headrace.demo" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert main(["demo", "--minutes", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"headrace demo: the demo needs the package {package}, which is not installed")
    assert "pip install '.[demo]'" in said
    assert "Traceback" not in said


def test_a_topic_from_its_making_to_its_end(run, topic):
    assert run("topic", "create", topic, "--partitions", 2).startswith(f"created {topic} with 2 partition(s)")
    assert topic in run("topic", "list").split()
    assert run("produce", topic, stdin="one\ntwo\nthree\n") == ""
    described = run("topic", "describe", topic).splitlines()
    assert described[0].split() == ["TOPIC", "PARTITION", "LEADER", "EPOCH", "EARLIEST", "LATEST"]
    assert sum(int(line.split()[-1]) for line in described[1:]) == 3
    lines = run("consume", topic, "--from", "earliest", "--until-end").splitlines()
    assert sorted(lines) == ["one", "three", "two"]
    assert topic in run("topic", "delete", topic)
    assert topic in run("topic", "describe", topic, status=1)


def test_keys_json_and_groups(run, topic):
    run("topic", "create", topic)
    run("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nc\n")
    first_two = ("--from", "earliest", "--max", 2, "-X", "fetch.max.bytes=100000", "-X", "request_timeout_ms=9000")
    assert run("consume", topic, *first_two, "--format", "key-value") == "a\t1\nb\t2\n"
    rows = [
        json.loads(line)
        for line in run("consume", topic, "--from", "earliest", "--max", 3, "--format", "json").splitlines()
    ]
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [("a", "1", 0), ("b", "2", 1), (None, "c", 2)]
    run("consume", topic, "--from", "earliest", "--group", f"g-{topic}", "--max", 2)
    assert f"g-{topic}" in run("group", "list")
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "2", "3", "1"]
    run("group", "reset", f"g-{topic}", topic)
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "0", "3", "3"]
    run("consume", topic, "--group", f"g-{topic}", "--until-end")
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    assert run("group", "reset", f"g-{topic}", topic, "--to", 0) == f"set 1 offset(s) of g-{topic}\n"
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "0", "3", "3"]
    run("consume", topic, "--group", f"g-{topic}", "--until-end", "-X", "enable.auto.commit=false")
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    # No record is that young.
    run("group", "reset", f"g-{topic}", topic, "--to", 32503680000000)
    assert run("group", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    run("group", "delete", f"g-{topic}")


def test_files_in_and_out(run, topic, tmp_path):
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(pa.table({"value": ["x", "y"], "key": ["1", "2"]}), source)
    run("topic", "create", topic)
    run("produce", topic, "--file", source)
    run("consume", topic, "--from", "earliest", "--until-end", "--output", target)
    table = parquet.read_table(target)
    assert table["value"].to_pylist() == [b"x", b"y"]
    run("consume", topic, "--from", "latest", "--until-end", "--output", target)
    assert parquet.read_table(target).schema == table.schema
    assert parquet.read_table(target).num_rows == 0
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert "column" in run("produce", topic, "--file", tmp_path / "rows.csv", status=1)
    run("produce", topic, "--file", tmp_path / "rows.csv", "--as-json")
    assert run("consume", topic, "--from", "earliest", "--max", 3).splitlines()[-1] == '{"a": 1, "b": 2}'


def test_errors_are_one_line(run, topic):
    assert run("topic", "describe", "no-such-topic", status=1).count("\n") == 1
    assert run("produce", topic, "--file", "/no/such.csv", status=1) == (
        "headrace produce: --file /no/such.csv: there is no such file\n"
    )
    assert "linger.msx" in run("produce", topic, "-X", "linger.msx=1", stdin="x\n", status=1)


def test_an_unreachable_cluster_is_named():
    command = [sys.executable, "-m", "headrace.cli", "topic", "list", "-b", "127.0.0.1:1"]
    command += ["-X", "default.api.timeout.ms=500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
