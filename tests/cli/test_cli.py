"""The command line as a user types it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import headrace as hr
from headrace.cli import COMMANDS, _rows, doctor, main
from headrace.cli._common import printable, table
from headrace.cli._page import page

ROOT = Path(__file__).resolve().parent.parent.parent


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


HUGE = str(10**23)


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "create", "t", "-p", "99999999999"),
        ("topics", "create", "t", "-p", "0"),
        ("topics", "create", "t", "-r", "99999"),
        ("consume", "t", "--max", HUGE),
        ("consume", "t", "--max=-3"),
        ("top", "--rows=-1"),
        ("lag", "--max", "many"),
        ("groups", "reset", "g", "t", "--to", HUGE),
        ("cluster", "drain", "99999999999"),
        ("cluster", "reassign", "t", "--replicas", "1,99999999999"),
        ("cluster", "reassign", "t", "--replicas", ""),
        ("cluster", "balance", "--at-once", "0"),
        ("copy", "t", "parquet:x", "--rows-per-file", HUGE),
        ("copy", "t", "parquet:x", "--rows-per-file", "0"),
    ],
)
def test_a_number_that_is_none_is_named(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "-b", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert "is no whole number from" in capsys.readouterr().err


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


@pytest.mark.slow
def test_a_topic_is_altered(run, topic):
    run("topics", "create", topic, "--partitions", 1)
    settings = {one["name"]: one for one in json.loads(run("topics", "describe", topic, "--config", "--json"))}
    usual = settings["retention.ms"]["value"]
    assert run("topics", "alter", topic, "-p", 3, "-c", "retention.ms=2000") == (
        f"retention.ms=2000\n{topic} has 3 partitions\n"
    )
    settings = {one["name"]: one for one in json.loads(run("topics", "describe", topic, "--config", "--json"))}
    assert settings["retention.ms"] == {"topic": topic, "name": "retention.ms", "value": "2000"}
    assert len(json.loads(run("topics", "describe", topic, "--json"))) == 3
    assert run("topics", "alter", topic, "--reset", "retention.ms") == f"retention.ms={usual}\n"
    assert "--partitions, --config or --reset" in run("topics", "alter", topic, status=1)
    assert "3" in run("topics", "alter", topic, "-p", 2, status=1)
    assert "retention.ms" in run("topics", "alter", topic, "-c", "retention.ms=soon", status=1)


@pytest.mark.slow
def test_consume_begins_where_it_is_asked_to(run, topic, embedded_broker):
    run("topics", "create", topic, "--partitions", 2)
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        for number in range(6):
            at = datetime(2026, 11, 1, number, tzinfo=timezone.utc)
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp=at)

    def found(*words):
        return sorted(run("consume", topic, "--until-end", *words).split())

    assert found("--from", "1") == ["2", "3", "4", "5"]
    assert found("--from", "2", "-p", 1) == ["5"]
    assert found("--from", "2026-11-01T03:00:00Z") == ["3", "4", "5"]
    assert found("--from", "2026-11-01T05:30:00+00:30", "-p", "1") == ["5"]
    assert found("--from", "2026-11-02T00:00:00Z") == []
    assert "has no partition 2: it has 2" in run("consume", topic, "-p", 2, status=1)
    assert "`headrace groups reset` sets its offsets" in run("consume", topic, "--group", "g", "--from", 3, status=1)


@pytest.mark.parametrize("where", ["yesterday", "-1", "2026-11-01T00:00:00", "9" * 30])
def test_a_place_to_begin_that_is_none(capsys, where):
    with pytest.raises(SystemExit) as ended:
        main(["consume", "t", "--from", where])
    assert ended.value.code == 2
    assert "--from" in capsys.readouterr().err


@pytest.mark.slow
def test_a_topic_from_its_making_to_its_end(run, topic):
    assert run("topics", "create", topic, "--partitions", 2).startswith(f"created {topic} with 2 partition(s)")
    assert topic in run("topics", "list").split()
    assert run("produce", topic, stdin="one\ntwo\nthree\n") == ""
    described = run("topics", "describe", topic).splitlines()
    assert described[0].split() == ["TOPIC", "PARTITION", "LEADER", "EPOCH", "EARLIEST", "LATEST"]
    assert sum(int(line.split()[-1]) for line in described[1:]) == 3
    lines = run("consume", topic, "--from", "earliest", "--until-end").splitlines()
    assert sorted(lines) == ["one", "three", "two"]
    assert topic in run("topics", "delete", topic)
    assert topic in run("topics", "describe", topic, status=1)


@pytest.mark.slow
def test_keys_json_and_groups(run, topic):
    run("topics", "create", topic)
    sent = json.loads(run("produce", topic, "--key-separator", ":", "--json", stdin="a:1\nb:2\nc\n"))
    assert (sent["topic"], sent["records"]) == (topic, 3)
    first_two = ("--from", "earliest", "--max", 2, "-X", "fetch.max.bytes=100000", "-X", "request_timeout_ms=9000")
    assert run("consume", topic, *first_two, "--format", "key-value") == "a\t1\nb\t2\n"
    rows = [
        json.loads(line)
        for line in run("consume", topic, "--from", "earliest", "--max", 3, "--format", "json").splitlines()
    ]
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [("a", "1", 0), ("b", "2", 1), (None, "c", 2)]
    run("consume", topic, "--from", "earliest", "--group", f"g-{topic}", "--max", 2)
    assert f"g-{topic}" in run("groups", "list")
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "2", "3", "1"]
    run("groups", "reset", f"g-{topic}", topic)
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "0", "3", "3"]
    run("consume", topic, "--group", f"g-{topic}", "--until-end")
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    assert run("groups", "reset", f"g-{topic}", topic, "--to", 0) == f"set 1 offset(s) of g-{topic}\n"
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "0", "3", "3"]
    run("consume", topic, "--group", f"g-{topic}", "--until-end", "-X", "enable.auto.commit=false")
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    # No record is that young.
    run("groups", "reset", f"g-{topic}", topic, "--to", 32503680000000)
    assert run("groups", "describe", f"g-{topic}").splitlines()[1].split() == [topic, "0", "3", "3", "0"]
    run("groups", "delete", f"g-{topic}")


@pytest.mark.slow
def test_files_in_and_out(run, topic, tmp_path):
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(pa.table({"value": ["x", "y"], "key": ["1", "2"]}), source)
    run("topics", "create", topic)
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
    parquet.write_table(pa.table({"n": [1, 2], "raw": pa.array([b"text", b"\xff"], pa.binary())}), source)
    run("produce", topic, "--file", source, "--as-json")
    last = run("consume", topic, "--from", "earliest", "--max", 5).splitlines()[-2:]
    assert [json.loads(line) for line in last] == [{"n": 1, "raw": "text"}, {"n": 2, "raw": {"base64": "/w=="}}]


def test_a_file_that_cannot_be_sent_is_named(run, topic, tmp_path):
    deep = '{"value":' + "[" * 10**5 + "]" * 10**5 + "}"
    texts = {
        "huge.json": '{"value": "a", "partition": 1e30}',
        "infinite.json": '{"value": "a", "timestamp": Infinity}',
        "deep.json": deep,
        "empty.csv": "",
        "headers.csv": "value,headers\na,{bad\n",
        "empty.parquet": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        message = run("produce", topic, "--file", tmp_path / name, status=1)
        assert message.startswith(f"headrace produce: --file {tmp_path / name}"), message
    assert "--as-json is for --file" in run("produce", topic, "--as-json", status=1)
    both = ("--file", tmp_path / "empty.csv", "--key-separator", ":")
    assert "--key-separator is for lines" in run("produce", topic, *both, status=1)


def test_rows_of_csv_files_may_be_large(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("value,other\n" + "x" * 3_000_000 + ",1\ny,2\n")
    assert [len(cell) for batch in _rows.read(path) for cell in batch["value"].to_pylist()] == [3_000_000, 1]
    table = _rows.whole_csv(path, csv.ConvertOptions())
    assert (table.num_rows, table["other"].to_pylist()) == (2, [1, 2])


@pytest.mark.parametrize("ending", [".csv", ".json"])
def test_times_beyond_the_year_9999_are_numbers(tmp_path, ending):
    times = [10**15, None, 1_700_000_000_123, -(10**14)]
    path = tmp_path / f"times{ending}"
    batch = pa.record_batch(
        {"value": ["v"] * 4, "timestamp": pa.array([t and t * 1000 for t in times], pa.timestamp("us", "UTC"))}
    )
    with _rows.writer(path, batch.schema) as writer:
        writer.write_batch(batch)
    assert [cell for found in _rows.read(path) for cell in found["timestamp"].to_pylist()] == times


def awkward(count):
    """Records of every kind that a file must keep apart."""
    parts = [
        None,
        b"",
        b"text",
        b"with,comma",
        b'with "quotes"',
        b"two\nlines\r\nand more",
        b"\xff\x00\xfe",
        b"base64:aGk=",
    ]
    parts += [
        "äöü ☃".encode(),
        b" spaces ",
        b"null",
        b"12",
        b"1.50",
        b"2024-01-01 00:00:00",
        b"true",
        b"base64:no!",
        b"\x00",
    ]
    parts += [b'{"base64": "aGk="}', b'"', b"\\", b"NaN"]
    dice = random.Random(count)
    for number in range(count):
        headers = [(dice.choice(["", "a", "b,c"]), dice.choice(parts)) for _ in range(dice.randrange(4))]
        value = parts[number % len(parts)]
        yield value, dice.choice(parts), dice.randrange(3), 1_700_000_000_000 + dice.randrange(10**9), headers


def rows_of(servers, topic):
    table = hr.read(servers, topic, include_headers=True).read_all()
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return table.drop_columns(["topic", "offset", "timestampType"]).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json", ".ndjson"])
def test_what_consume_writes_produce_takes_back(run, embedded_broker, topic, tmp_path, ending):
    servers, copy, path = embedded_broker.bootstrap_servers, f"{topic}-copy", tmp_path / f"records{ending}"
    for name in (topic, copy):
        run("topics", "create", name, "--partitions", 3)
    with hr.Producer(servers) as producer:
        for value, key, partition, timestamp, headers in awkward(200):
            producer.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)
    run("consume", topic, "--from", "earliest", "--until-end", "--output", path)
    run("produce", copy, "--file", path)
    assert rows_of(servers, copy) == rows_of(servers, topic)
    assert len(rows_of(servers, topic)) == 200


@pytest.mark.slow
def test_printed_json_is_a_file_as_well(run, embedded_broker, topic, tmp_path):
    run("topics", "create", topic)
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        for value, key, _, timestamp, headers in awkward(30):
            producer.send(topic, value, key=key, timestamp=timestamp, headers=headers)
    path = tmp_path / "printed.jsonl"
    path.write_text(run("consume", topic, "--from", "earliest", "--until-end", "--format", "json"))
    run("topics", "create", f"{topic}-copy")
    run("produce", f"{topic}-copy", "--file", path)
    servers = embedded_broker.bootstrap_servers
    assert rows_of(servers, f"{topic}-copy") == rows_of(servers, topic)


def test_a_topic_is_copied_by_a_read(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topics([hr.NewTopic(topic, 3), hr.NewTopic(f"{topic}-copy", 3)])
    with hr.Producer(servers) as producer:
        for value, key, partition, timestamp, headers in awkward(50):
            producer.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)
        producer.flush()
        assert producer.send_arrow(f"{topic}-copy", hr.read(servers, topic, include_headers=True)).result(20) == 50
    assert rows_of(servers, f"{topic}-copy") == rows_of(servers, topic)


@pytest.mark.slow
def test_numbers_and_objects_in_files_are_texts(run, topic, tmp_path):
    run("topics", "create", topic)
    (tmp_path / "rows.csv").write_text("key,value,timestamp\n1,007,1700000000000\n,2.50,2023-11-14T22:13:21+00:00\n")
    run("produce", topic, "--file", tmp_path / "rows.csv")
    (tmp_path / "rows.json").write_text('{"key": 5, "value": {"a": [1, null]}}\n\n{"key": "k", "value": 1.5}\n')
    run("produce", topic, "--file", tmp_path / "rows.json")
    run("produce", topic, "--file", tmp_path / "rows.json", "--as-json", "--key-column", "key")
    lines = run("consume", topic, "--from", "earliest", "--until-end", "--format", "json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["key"], row["value"]) for row in rows] == [
        ("1", "007"),
        (None, "2.50"),
        ("5", '{"a":[1,null]}'),
        ("k", "1.5"),
        ("5", '{"key": 5, "value": {"a": [1, null]}}'),
        ("k", '{"key": "k", "value": 1.5}'),
    ]
    assert [row["timestamp"] for row in rows[:2]] == ["2023-11-14T22:13:20+00:00", "2023-11-14T22:13:21+00:00"]
    (tmp_path / "bad.json").write_text('{"value": "x"}\n{"value": \n')
    assert "bad.json, line 2" in run("produce", topic, "--file", tmp_path / "bad.json", status=1)
    (tmp_path / "bad.csv").write_text("value,partition\nx,first\n")
    assert "column partition" in run("produce", topic, "--file", tmp_path / "bad.csv", status=1)
    assert "ends in none of" in run("consume", topic, "--until-end", "--output", "x.xls", status=1)


@pytest.mark.slow
def test_lines_go_out_as_they_come(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
    command = [sys.executable, "-m", "headrace.cli", "produce", topic, "-b", servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        with hr.Consumer(servers) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek_to_beginning()
            for part, found in [(b"one\ntw", [b"one"]), (b"o\r\n", [b"two"]), (b"three\n\nla", [b"three", b""])]:
                process.stdin.write(part)
                process.stdin.flush()
                got = []
                deadline = time.monotonic() + 30
                while len(got) < len(found) and time.monotonic() < deadline:
                    got += consumer.poll(1.0)["value"].to_pylist()
                assert got == found
            process.stdin.write(b"st")
            process.stdin.close()
            assert process.wait(30) == 0
            assert consumer.poll(20)["value"].to_pylist() == [b"last"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_whole_file(run, embedded_broker, topic, tmp_path, ending, number):
    servers, path = embedded_broker.bootstrap_servers, tmp_path / f"out{ending}"
    run("topics", "create", topic)
    run("produce", topic, stdin="one\ntwo\n")
    command = [sys.executable, "-m", "headrace.cli", "consume", topic, "--from", "earliest", "--group", topic]
    command += ["--output", path, "-b", servers, "-X", "auto.commit.interval.ms=10"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, hr.Admin(servers) as admin:
        deadline = time.monotonic() + 30
        # Rows are committed once they count as processed, with the poll after they were written.
        while admin.group_offsets(topic).get(hr.TopicPartition(topic, 0), 0) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr.read() == f"2 records written to {path}\n"
    run("topics", "create", f"{topic}-copy")
    run("produce", f"{topic}-copy", "--file", path)
    assert [row["value"] for row in rows_of(servers, f"{topic}-copy")] == [b"one", b"two"]


def test_a_group_that_is_not_there_is_an_error(run):
    assert run("groups", "describe", "nope", status=1) == "headrace groups: there is no group 'nope'\n"


def test_errors_are_one_line(run, topic):
    assert run("topics", "describe", "no-such-topic", status=1).count("\n") == 1
    assert run("produce", topic, "--file", "/no/such.csv", status=1) == (
        "headrace produce: --file /no/such.csv: there is no such file\n"
    )
    assert "linger.msx" in run("produce", topic, "-X", "linger.msx=1", stdin="x\n", status=1)


def test_no_name_is_obeyed_by_the_terminal(run):
    """Names come from peers and files: a terminal obeys the control characters in them."""
    assert printable("a\x1b[31m\x9b1m\r\u202eb\n\tc é") == "a\\x1b[31m\\x9b1m\\r\\u202eb\n\\tc é"
    assert table(("NAME",), [("a\x1b[2Jb",)]) == "NAME\na\\x1b[2Jb\n"
    assert table(("NAME",), [("a\nb",)]) == "NAME\na\\nb\n"
    message = run("topics", "create", "a\x1b]0;owned\x07b", status=1)
    assert message.removesuffix("\n").isprintable(), message


def test_an_unreachable_cluster_is_named():
    command = [sys.executable, "-m", "headrace.cli", "topics", "list", "-b", "127.0.0.1:1"]
    command += ["-X", "default.api.timeout.ms=500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_terminal_cannot_show_is_escaped(run, topic, monkeypatch):
    run("topics", "create", topic)
    run("produce", topic, stdin="K\u00f6ln\n")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert run("consume", topic, "--from", "earliest", "--until-end") == "K\\xf6ln\n"
    assert "K\\xf6ln" in run("topics", "describe", "K\u00f6ln", status=1)


def test_a_command_without_a_verb_lists(run, topic):
    run("topics", "create", topic, "--partitions", 2)
    assert topic in run("topics").split()
    assert topic in json.loads(run("topics", "--json"))
    assert run("groups").splitlines()[0].split() == ["GROUP", "TYPE", "STATE"]
    [first, second] = json.loads(run("topics", "describe", topic, "--json"))
    assert (first["topic"], first["partition"], first["latest"], second["partition"]) == (topic, 0, 0, 1)


@pytest.mark.slow
def test_lag_of_groups(run, topic):
    run("topics", "create", topic, "--partitions", 2)
    run("groups", "reset", f"g-{topic}", topic)
    run("produce", topic, stdin="one\ntwo\nthree\n")
    [found] = json.loads(run("lag", f"g-{topic}", "--json"))
    assert found == {"group": f"g-{topic}", "topic": topic, "partitions": 2, "behind": found["behind"], "lag": 3}
    assert [f"g-{topic}", topic, "2"] in [line.split()[:3] for line in run("lag").splitlines()]
    each = json.loads(run("lag", f"g-{topic}", "--partitions", "--json"))
    assert sum(one["lag"] for one in each) == 3
    run("lag", f"g-{topic}", "--max", 3)
    run("lag", f"g-{topic}", "--max", 2, status=1)
    assert run("lag", "nobody", status=1) == "headrace lag: there is no group 'nobody'\n"
    # Its offsets may stay, without a topic that they belong to.
    run("topics", "delete", topic)
    run("lag")


@pytest.mark.slow
def test_top_has_rates(run, topic, embedded_broker):
    run("topics", "create", topic, "--partitions", 2)
    run("groups", "reset", f"g-{topic}", topic)
    command = [sys.executable, "-m", "headrace.cli", "top", "--once", "--json", "--interval", "3", "--rows", "1000"]
    command += ["-b", embedded_broker.bootstrap_servers]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        hr.Producer(embedded_broker.bootstrap_servers) as producer,
    ):
        sent = 0
        while process.poll() is None:
            producer.send(topic, b"x").result(10)
            sent += 1
            time.sleep(0.05)
        found = json.load(process.stdout)
    assert process.returncode == 0
    [of_topic] = [row for row in found["topics"] if row["topic"] == topic]
    assert of_topic["partitions"] == 2
    assert 0 < of_topic["offsets"] <= sent
    assert of_topic["written_per_s"] > 0
    [of_group] = [row for row in found["groups"] if row["group"] == f"g-{topic}"]
    assert (of_group["topic"], of_group["read_per_s"]) == (topic, 0.0)
    assert of_group["lag"] > 0
    assert "--json needs --once" in run("top", "--json", status=1)


@pytest.mark.slow
def test_doctor_says_what_is_there(run, tmp_path, monkeypatch):
    found = {each["what"]: each for each in json.loads(run("doctor", "--json"))}
    assert version("headrace") in found["headrace"]["found"]
    assert found["pyarrow"]["found"] == pa.__version__
    assert {found[what]["state"] for what in ("headrace", "native module", "pyarrow", "broker")} == {"ok"}
    assert found["share groups"]["state"] == "-"
    assert found["features"]["found"] == "none"
    command = [sys.executable, "-m", "headrace.cli", "doctor", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=500"]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0
    assert "pyspark needs Java 17" in said.stdout
    assert "headrace broker --data-dir ./data starts one" in said.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topic list", "there is no command 'topic': did you mean 'topics'?"),
        ("quux", "there is no command 'quux'; there are broker, topics"),
        ("consume t --from-beginning", "arguments: --from-beginning; `--from earliest` reads all"),
        ("produce t hello", "arguments: hello; what is sent comes from standard input"),
        ("consume t extra", "usage: headrace consume"),
        ("consume t -X sasl.password=x secret", "arguments: a value\n"),
        ("consume t sasl.password=secret", "arguments: sasl.password\n"),
    ],
)
def test_what_is_not_known_is_said_with_what_may_be_meant(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert said in found
    assert "secret" not in found


def test_doctor_works_without_the_native_module():
    asked = (
        "import sys; sys.modules['headrace._native'] = None; from headrace.cli import main; main(['doctor', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    found = {each["what"]: each["state"] for each in json.loads(done.stdout)}
    assert (found["native module"], found["broker"]) == ("!", "-")


def test_doctor_sees_a_native_module_of_another_version(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda: "9.9.9")
    [finding] = doctor._native()
    assert finding.state == doctor.BAD
    assert finding.found.endswith(f"it is of version {hr.__version__}, and the package 9.9.9")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("headrace pro", {"produce"}),
        ("headrace topics de", {"delete", "describe"}),
        ("headrace -b x topics create t --par", {"--partitions"}),
        ("headrace copy a b --rows", {"--rows-per-file"}),
    ],
)
def test_bash_completes(capsys, words, completed):
    assert main(["completion", "bash"]) == 0
    asked = f"{capsys.readouterr().out}\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_headrace\n"
    asked += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=30, check=True)
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_all_commands(capsys, shell):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert "--partitions" in text or "-l partitions" in text


def test_the_page_of_commands_is_fresh():
    assert (ROOT / "docs" / "cli.md").read_text() == page(), "make generate"
