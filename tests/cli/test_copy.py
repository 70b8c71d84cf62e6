"""``headrace copy``: what arrives, once each, also where copies are killed; what it says when something is wrong."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyarrow import parquet

import headrace as hr
from headrace.admin import OffsetAndMetadata
from headrace.cli.copy import _Shown, _tell
from headrace.copying.folder import FolderSource, FolderTarget, pieces
from headrace.copying.places import CopyError, Origin
from headrace.copying.run import Copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ["key", "value", "partition", "timestamp", "timestampType", "headers"]
TIMEOUT_SECONDS = 90


def command(servers: str, *words: object) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "copy", *map(str, words), "-b", servers]


def copy(servers: str, *words: object, status: int = 0) -> str:
    """Runs it; gives what it printed, or said where it fails."""
    done = subprocess.run(
        command(servers, *words), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stderr if status else done.stdout


def write(servers: str, topic: str, count: int, partitions: int = 3, first: int = 0) -> None:
    numbers = range(first, first + count)
    rows = pa.table(
        {
            "key": pa.array([None if n % 5 == 0 else b"k\xff%d" % n for n in numbers], pa.binary()),
            "value": pa.array([None if n % 7 == 0 else b"value %d" % n for n in numbers], pa.binary()),
            "partition": pa.array([n % partitions for n in numbers], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000 + n for n in numbers], pa.int64()),
            "headers": pa.array(
                [[] if n % 3 else [{"key": "h", "value": b"%d" % n}, {"key": "h", "value": None}] for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with hr.Producer(servers) as producer:
        assert producer.send_arrow(topic, rows).result(30) == count


def rows(servers: str, topic: str, *columns: str) -> pa.Table:
    table = hr.read(servers, topic, include_headers=True).read_all()
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).select(columns or COPIED)


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def source(cluster: Cluster, topic: str) -> str:
    cluster.create_topic(topic, 3)
    write(cluster.bootstrap_servers, topic, 1000)
    return topic


@pytest.mark.kafka
@pytest.mark.slow
def test_records_go_to_files_and_to_a_topic_and_back_as_they_are(servers, source, tmp_path):
    wanted = rows(servers, source)
    files = f"parquet:{tmp_path}"
    done = json.loads(copy(servers, source, files, "--json"))
    assert (done["source"], done["target"], done["records"], done["gaps"]) == (source, files, 1000, 0)
    columns = hr.read(servers, source, include_headers=True).read_all().schema
    found = parquet.read_table(tmp_path).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert found.schema.equals(columns)
    assert found.select(COPIED).equals(wanted)
    copy(servers, files, f"{source}-2")
    copy(servers, f"{source}-2", f"{source}-3")
    copy(servers, source, f"{source}-4", "--to", servers, "--to-option", "linger.ms=5")
    for name in ("2", "3", "4"):
        assert rows(servers, f"{source}-{name}").equals(wanted), name


@pytest.mark.kafka
@pytest.mark.slow
def test_the_same_command_again_copies_what_has_come_since(servers, source, tmp_path):
    files = f"parquet:{tmp_path}"
    for count in (1000, 0, 10, 0):
        if count == 10:
            write(servers, source, 10, partitions=2, first=1000)
        planned = json.loads(copy(servers, source, files, "--json", "--dry-run"))
        assert planned["offsets"] == count
        for target in (files, f"{source}-2"):
            assert json.loads(copy(servers, source, target, "--json"))["records"] == count
    assert len(list(tmp_path.glob("*.parquet"))) == 5
    assert parquet.read_table(tmp_path).num_rows == 1010
    assert rows(servers, f"{source}-2").equals(rows(servers, source))
    # Files that are copied later go on as well.
    for count in (1010, 0):
        assert json.loads(copy(servers, files, f"{source}-3", "--json"))["records"] == count
    assert rows(servers, f"{source}-3").equals(rows(servers, source))


def test_a_dry_run_makes_nothing(embedded_broker, topic, tmp_path):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 2)
        write(servers, topic, 9, partitions=2)
        said = copy(servers, topic, f"parquet:{tmp_path}/new", "--dry-run")
        assert said.split() == ["PARTITION", "FROM", "TO", "OFFSETS", "0", "0", "5", "5", "1", "0", "4", "4"]
        copy(servers, topic, f"{topic}-new", "--dry-run")
        assert f"{topic}-new" not in admin.list_topics()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("start", "count"), [("latest", 0), ("earliest", 9), ("2023-11-14T22:13:20.005Z", 4)])
def test_where_a_copy_begins(embedded_broker, topic, tmp_path, start, count):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 2)
    write(servers, topic, 9, partitions=2)
    for _ in range(2):
        copy(servers, topic, f"parquet:{tmp_path}", "--from", start)
    assert sum(parquet.read_table(path).num_rows for path in tmp_path.glob("*.parquet")) == count


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_not_committed_is_not_copied(apache_kafka, topic, tmp_path):
    servers = apache_kafka.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
    with hr.Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, good in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            producer.send(topic, value)
            (producer.commit_transaction if good else producer.abort_transaction)()
        for target in (f"parquet:{tmp_path}", f"{topic}-2"):
            for count in (2, 0):
                assert json.loads(copy(servers, topic, target, "--json"))["records"] == count
        producer.begin_transaction()
        producer.send(topic, b"d").result(10)
        assert json.loads(copy(servers, topic, f"{topic}-2", "--json"))["records"] == 0
        producer.commit_transaction()
    assert json.loads(copy(servers, topic, f"{topic}-2", "--json"))["records"] == 1
    assert parquet.read_table(tmp_path)["value"].to_pylist() == [b"a", b"c"]
    assert rows(servers, f"{topic}-2")["value"].to_pylist() == [b"a", b"c", b"d"]


class Load:
    """Writes to a topic until it is stopped."""

    def __init__(self, servers: str, topic: str, partitions: int = 3) -> None:
        self._servers, self._topic, self._partitions = servers, topic, partitions
        self._stop, self.sent = threading.Event(), 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            write(self._servers, self._topic, 500, self._partitions, first=self.sent)
            self.sent += 500

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("to", ["files", "topic"])
def test_each_record_is_there_once_however_often_copies_are_killed(servers, source, tmp_path, to):
    target = f"parquet:{tmp_path}" if to == "files" else f"{source}-2"
    words = (source, target, "--follow", "--interval", "0.1", "--rows-per-file", "700")

    def written() -> int:
        with contextlib.suppress(hr.errors.UnknownTopicOrPartitionError):
            return len(pieces(tmp_path).get(0, ())) if to == "files" else rows(servers, target).num_rows
        return 0

    chance = random.Random(7)
    load = Load(servers, source)
    kills = [signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT]
    try:
        for number in kills:
            before, until = written(), time.monotonic() + 30
            with subprocess.Popen(command(servers, *words), stderr=subprocess.PIPE, text=True) as process:
                while written() == before and time.monotonic() < until:
                    time.sleep(0.02)
                time.sleep(chance.uniform(0, 0.3))
                process.send_signal(number)
                _, said = process.communicate(timeout=30)
            assert process.returncode in {-number, 128 + number}, said
            assert written() > before
    finally:
        load.stop()
    copy(servers, *words[:2])
    wanted = rows(servers, source)
    assert wanted.num_rows > 1000
    if to == "topic":
        assert rows(servers, target).equals(wanted)
        return
    found = pieces(tmp_path)
    table = pa.concat_tables(parquet.read_table(piece.path) for files in found.values() for piece in files)
    assert table.sort_by([("partition", "ascending"), ("offset", "ascending")]).select(COPIED).equals(wanted)
    assert not list(tmp_path.glob(".*.part"))


@pytest.fixture
def copied(embedded_broker, topic) -> Iterator[tuple[str, str, hr.Admin]]:
    """A topic of ten records that was copied to another one."""
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
        write(servers, topic, 10, partitions=1)
        copy(servers, topic, f"{topic}-2")
        yield servers, topic, admin


def state(servers: str, topic: str, admin: hr.Admin) -> tuple[str, OffsetAndMetadata]:
    group = f"headrace-copy-{admin.describe_cluster().cluster_id}-{topic}"
    [(partition, at)] = admin.group_offsets_and_metadata(group).items()
    assert partition == (f"{topic}-2", 0)
    return group, at


def test_what_a_killed_copy_had_written_is_compared_and_not_written_again(copied):
    servers, topic, admin = copied
    group, at = state(*copied)
    assert (at.offset, json.loads(at.metadata)["next"]) == (10, 10)
    # As if it had been killed after seven records were acknowledged, of which three were committed.
    said = json.dumps({**json.loads(at.metadata), "next": 3})
    admin.alter_group_offsets(group, {(f"{topic}-2", 0): OffsetAndMetadata(3, said)})
    write(servers, topic, 5, partitions=1, first=10)
    assert json.loads(copy(servers, topic, f"{topic}-2", "--json"))["records"] == 5
    assert rows(servers, f"{topic}-2").equals(rows(servers, topic))


def test_a_target_that_somebody_else_has_written_to_is_refused(copied):
    servers, topic, _ = copied
    write(servers, f"{topic}-2", 1, partitions=1, first=99)
    write(servers, topic, 5, partitions=1, first=10)
    message = copy(servers, topic, f"{topic}-2", status=1)
    assert f"headrace copy: {topic}-2-0 has other records from offset 10 on than {topic} has from 10 on" in message


def test_a_target_that_somebody_else_writes_to_meanwhile_is_refused(copied):
    servers, topic, _ = copied
    load = Load(servers, topic, partitions=1)
    words = (topic, f"{topic}-2", "--follow", "--interval", "0.1")
    other = threading.Timer(2.0, write, (servers, f"{topic}-2", 1, 1, 10**6 + 1))
    try:
        with subprocess.Popen(command(servers, *words), stderr=subprocess.PIPE, text=True) as process:
            other.start()
            try:
                _, said = process.communicate(timeout=30)
            finally:
                process.kill()
        assert process.returncode == 1, said
        assert re.search(rf"{topic}-2-0 (ends at|has other records)", said), said
    finally:
        load.stop()
        other.join()


@pytest.mark.parametrize("to", ["files", "topic"])
def test_a_source_that_was_made_anew_or_cut_is_refused(embedded_broker, topic, tmp_path, to):
    servers, target = embedded_broker.bootstrap_servers, f"parquet:{tmp_path}" if to == "files" else f"{topic}-2"
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
        write(servers, topic, 10, partitions=1)
        copy(servers, topic, target)
        write(servers, topic, 10, partitions=1)
        admin.delete_records({(topic, 0): 15})
        message = copy(servers, topic, target, status=1)
        assert f"{topic}-0: offsets 10 to 14 were deleted before they were copied; --allow-gaps goes" in message
        done = json.loads(copy(servers, topic, target, "--allow-gaps", "--json"))
        assert (done["records"], done["gaps"]) == (5, 5)
        admin.delete_topics([topic])
        admin.create_topic(topic)
        write(servers, topic, 30, partitions=1)
        message = copy(servers, topic, target, status=1)
        assert f"{topic} was deleted and made anew since it was copied to" in message


def test_a_folder_that_is_not_what_a_copy_has_left_is_named(embedded_broker, topic, tmp_path):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
        admin.create_topic(f"{topic}-3")
    write(servers, topic, 10, partitions=1)
    for folder in ("hole", "damaged", "foreign", "mixed"):
        copy(servers, topic, f"parquet:{tmp_path / folder}", "--rows-per-file", 4)
    found = sorted((tmp_path / "hole").glob("*.parquet"))
    assert [path.name.removeprefix(f"{topic}-0-") for path in found] == [
        f"{first:020}-{end:020}.parquet" for first, end in ((0, 4), (4, 8), (8, 10))
    ]
    found[1].unlink()
    damaged = sorted((tmp_path / "damaged").glob("*.parquet"))
    damaged[0].write_bytes(damaged[0].read_bytes()[:-10])
    (tmp_path / "foreign" / "own.parquet").write_bytes(b"")
    shutil.copy(damaged[1], tmp_path / "mixed" / damaged[1].name.replace(topic, "other"))
    said = {
        folder: copy(servers, f"parquet:{tmp_path / folder}", f"{topic}-2", status=1)
        for folder in ("hole", "damaged", "foreign", "mixed", "none")
    }
    assert f"there is a hole between {found[0]} and {found[2].name}" in said["hole"]
    assert f"{damaged[0]} is damaged" in said["damaged"]
    assert f"{tmp_path / 'foreign' / 'own.parquet'} is not a file that headrace copy has written" in said["foreign"]
    assert "the folder holds more than one topic" in said["mixed"]
    assert f"{tmp_path / 'none'} has no Parquet files" in said["none"]
    message = copy(servers, f"{topic}-3", f"parquet:{tmp_path / 'hole'}", status=1)
    assert "there is a hole between" in message
    found[2].unlink()
    message = copy(servers, f"{topic}-3", f"parquet:{tmp_path / 'hole'}", status=1)
    assert f"hole holds the topic {topic} of the cluster" in message


def test_a_target_that_does_not_fit_is_named(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 2)
        admin.create_topic(f"{topic}-2")
        admin.create_topic(f"{topic}-3", 2)
    write(servers, topic, 10, partitions=2)
    write(servers, f"{topic}-3", 10, partitions=2)
    message = copy(servers, topic, f"{topic}-2", status=1)
    assert message == f"headrace copy: {topic}-2 has 1 partition(s), and 2 are needed\n"
    message = copy(servers, topic, f"{topic}-3", status=1)
    assert f"{topic}-3 has records already (partition 0: 5), and no earlier copy of {topic} to it" in message
    for count in (10, 0):
        assert json.loads(copy(servers, topic, f"{topic}-3", "--append", "--json"))["records"] == count
    assert rows(servers, f"{topic}-3").num_rows == 20


def test_two_copies_to_one_folder(tmp_path):
    with FolderTarget(tmp_path), pytest.raises(CopyError, match="another copy writes to"):
        FolderTarget(tmp_path).__enter__()
    with FolderTarget(tmp_path):
        pass


def batch(first: int, count: int, kind: pa.DataType | None = None, partition: int = 0) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.record_batch(
        {
            "value": pa.array([None] * count, kind or pa.binary()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
        }
    )


class Known:
    """A source, as far as a target asks."""

    name, origin = "orders", Origin("cluster", "orders", "id")


def names(folder: Path) -> list[tuple[int, int, int]]:
    found = pieces(folder)
    return [(partition, piece.first, piece.end) for partition in sorted(found) for piece in found[partition]]


def test_files_end_with_their_rows_and_where_the_columns_change(tmp_path):
    with FolderTarget(tmp_path, rows_per_file=5) as target:
        known: Any = Known()
        assert target.positions(known, {0: (0, 99)}) == {}
        target.begin({0: 2})
        target.write(0, batch(3, 12))
        assert names(tmp_path) == [(0, 2, 8), (0, 8, 13)]
        target.write(0, batch(20, 2, pa.string()))
        assert names(tmp_path) == [(0, 2, 8), (0, 8, 13), (0, 13, 20)]
        target.commit({0: 30})
        assert names(tmp_path)[-1] == (0, 20, 30)
        assert parquet.read_table(pieces(tmp_path)[0][-1].path).num_rows == 2
        target.commit({0: 30})
        assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("error", [None, OSError])
def test_records_that_do_not_count_are_not_called_copied(capsys, error):
    source, target = MagicMock(), MagicMock()
    source.ends.return_value, source.start.return_value, target.positions.return_value = {0: (0, 5)}, {0: 0}, {}
    source.name = target.name = "orders"
    source.read.return_value, target.commit.side_effect = [batch(0, 5)], error
    copying = Copy(source, target, False, False, MagicMock(), MagicMock())
    with contextlib.suppress(OSError):
        copying.round(copying.plan())
    _Shown(terminal=False).end(copying)
    _tell(Namespace(json=True), copying)
    out, err = capsys.readouterr()
    done = json.loads(out)
    assert (done["records"], done["committed"]) == (5, error is None)
    assert err.startswith("5 records copied in" if error is None else "5 records read, and not all of them copied, in")


class Interrupted:
    """Rows that a signal follows as soon as they are written."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def column(self, name: str) -> pa.Array:
        if name == "offset":
            raise KeyboardInterrupt
        return self._rows.column(name)


def test_nothing_is_committed_between_a_write_and_its_position():
    source, target = MagicMock(), MagicMock()
    source.ends.return_value = source.start.return_value = {0: (0, 5)}
    source.start.return_value, target.positions.return_value = {0: 0}, {}
    source.read.return_value = [Interrupted(batch(0, 5))]
    copying = Copy(source, target, True, False, MagicMock(), MagicMock())
    with pytest.raises(KeyboardInterrupt):
        copying.round(copying.plan())
    target.write.assert_called_once()
    target.commit.assert_not_called()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten rows of one partition, in two files."""
    with FolderTarget(tmp_path, rows_per_file=5) as target:
        known: Any = Known()
        target.positions(known, {0: (0, 10)})
        target.begin({0: 0})
        target.write(0, batch(0, 10))
    return tmp_path


def read_again(folder: Path) -> list[int]:
    source = FolderSource(folder)
    return [n for found in source.read(source.ends()) for n in found.column("offset").to_pylist()]


@pytest.mark.parametrize(("first", "second"), [((0, 0, 3), (0, 3, 10)), ((0, 5, 10), (0, 10, 15)), ((1, 0, 5), None)])
def test_a_file_whose_name_lies_is_named(folder, first, second):
    assert read_again(folder) == list(range(10))
    paths = [piece.path for piece in pieces(folder)[0]]
    for path, name in reversed(list(zip(paths, (first, second), strict=True))):
        if name is None:
            path.unlink()
        else:
            path.rename(folder / f"orders-{name[0]}-{name[1]:020}-{name[2]:020}.parquet")
    with pytest.raises(CopyError, match=r"offsets 0 to 4 of partition 0, and its name says otherwise"):
        read_again(folder)


def test_a_damaged_file_is_named_whatever_parquet_says_of_it(folder):
    path = pieces(folder)[0][0].path
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        # The end is where the description of the columns is.
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(len(damaged) // 2, len(damaged) - 8)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read_again(folder)
        except CopyError as error:
            assert str(path) in str(error)  # noqa: PT017  (not every damage is seen)


def test_files_are_read_a_row_group_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.copying.folder._GROUP_BYTES", 1)
    with FolderTarget(tmp_path) as target:
        known: Any = Known()
        target.positions(known, {0: (0, 9)})
        target.begin({0: 0})
        for first in (0, 3, 6):
            target.write(0, batch(first, 3))
        target.commit({0: 9})
    source = FolderSource(tmp_path)
    assert [rows.num_rows for rows in source.read(source.ends())] == [3, 3, 3]


def test_only_leftovers_of_copies_are_removed(tmp_path):
    for name in (".orders-0-00000000000000000000.part", ".film.part"):
        (tmp_path / name).touch()
    with FolderTarget(tmp_path):
        assert [path.name for path in tmp_path.glob(".*.part")] == [".film.part"]


def test_no_more_files_are_open_than_are_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.copying.folder._GROUP_BYTES", 1)
    monkeypatch.setattr("headrace.copying.folder._OPEN_FILES", 3)
    with FolderTarget(tmp_path) as target:
        known: Any = Known()
        target.positions(known, dict.fromkeys(range(10), (0, 99)))
        target.begin(dict.fromkeys(range(10), 0))
        for partition in range(10):
            target.write(partition, batch(0, 5, partition=partition))
        assert len(list(tmp_path.glob(".*.part"))) == 3
        target.commit(dict.fromkeys(range(10), 7))
    assert len(names(tmp_path)) == 10
    assert sum(parquet.read_table(piece.path).num_rows for [piece] in pieces(tmp_path).values()) == 50


def test_a_full_disk_is_named_and_what_is_whole_stays(tmp_path, monkeypatch):
    said = r"No space left on device: '.*/\.orders-0-0{19}5\.part'"
    with pytest.raises(OSError, match=said), FolderTarget(tmp_path, rows_per_file=5) as target:
        known: Any = Known()
        target.positions(known, {0: (0, 99)})
        target.begin({0: 0})
        target.write(0, batch(0, 7))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        target.commit({0: 7})
    assert names(tmp_path) == [(0, 0, 5)]
    assert not list(tmp_path.glob(".*.part"))


SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"], "default": null}]}"""


@pytest.mark.slow
def test_values_with_a_schema_are_columns_in_files_and_the_same_bytes_again(topic, tmp_path):
    with hr.Broker.start(registry=True) as broker, hr.Admin(servers := broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 2)
        form = hr.Avro(SCHEMA, registry=hr.SchemaRegistry(broker.registry_url))
        orders = [None if n % 4 == 3 else {"id": n, "city": None if n % 2 else "Köln"} for n in range(8)]
        table = pa.table({"value": orders, "partition": pa.array([n % 2 for n in range(8)], pa.int32())})
        with hr.Producer(servers) as producer:
            producer.send_arrow(topic, table, value=form).result(10)
            typed: tuple[str, ...] = ("-F", "value.format=avro", "-F", f"schema.registry.url={broker.registry_url}")
            copy(servers, topic, f"parquet:{tmp_path}", *typed)
            found = parquet.read_table(tmp_path).sort_by([("partition", "ascending"), ("offset", "ascending")])
            assert found["value"].to_pylist() == orders[::2] + orders[1::2]
            # Who forgets the format would leave bytes beside columns, which nothing reads together.
            producer.send_arrow(topic, table.slice(0, 1), value=form).result(10)
            message = copy(servers, topic, f"parquet:{tmp_path}", status=1)
            assert "city: string> as value, and this copy would write binary" in message
            copy(servers, topic, f"parquet:{tmp_path}", *typed)
            again = f"{topic}-2"
            assert f"{again}-value' not found" in copy(servers, f"parquet:{tmp_path}", again, *typed, status=1)
            typed = (*typed, "-F", f"value.subject={topic}-value")
            copy(servers, f"parquet:{tmp_path}", again, *typed)
            assert hr.read(servers, again, value=form).read_all()["value"].to_pylist().count(None) == 2
            assert rows(servers, again, "value", "timestamp").equals(rows(servers, topic, "value", "timestamp"))
            # A killed copy is found out by bytes.
            group = f"headrace-copy-{admin.describe_cluster().cluster_id}-{topic}"
            at = admin.group_offsets_and_metadata(group)
            said = json.loads(at[hr.TopicPartition(again, 0)].metadata)
            said = json.dumps({**said, "next": 1})
            admin.alter_group_offsets(group, {(again, 0): OffsetAndMetadata(1, said)})
            assert json.loads(copy(servers, f"parquet:{tmp_path}", again, *typed, "--json"))["records"] == 0
            producer.send(topic, b"no avro", partition=1).result(10)
            message = copy(servers, topic, f"parquet:{tmp_path}", *typed, status=1)
            assert f"{topic}-1" in message
            assert "--format is for copies to files" in copy(servers, topic, f"{topic}-3", *typed, status=1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("parquet:a", "parquet:b"), "both are folders"),
        (("a", "a"), "source and target are the same topic"),
        (("a", "parquet:"), "parquet: lacks a folder"),
        (("a", "b", "--interval", "5"), "--interval is for --follow"),
        (("a", "parquet:b", "-F", "value.fromat=avro"), "--format has no value.fromat"),
        (("parquet:a", "b", "--follow"), "--follow and --from are for a source that is a topic"),
        (("a", "parquet:b", "--append"), "--append is for a target that is a topic"),
        (("a", "parquet:b", "--to", "x:1"), "--to and --to-option are for a target that is a topic"),
    ],
)
def test_words_that_do_not_go_together(words, why):
    assert why in copy("127.0.0.1:1", *words, status=1)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("yesterday", "is neither earliest nor latest"),
        ("2026-11-01T00:00:00", "has no time zone"),
        ("1969-12-31T23:59:59.999Z", "is before 1970"),
    ],
)
def test_a_beginning_that_is_none(start, why):
    assert why in copy("127.0.0.1:1", "a", "b", "--from", start, status=2)


@pytest.mark.parametrize("seconds", ["0", "nan", "inf", "1e300"])
def test_an_interval_that_is_none(seconds):
    words = ("a", "parquet:b", "--follow", "--interval", seconds)
    assert f"{seconds} is no number of seconds" in copy("127.0.0.1:1", *words, status=2)


def test_a_topic_is_not_copied_to_itself_under_another_address(embedded_broker, topic):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic)
    write(servers, topic, 5, partitions=1)
    words = (topic, topic, "--append", "--to", servers.replace("127.0.0.1", "localhost"))
    assert "source and target are the same topic" in copy(servers, *words, status=1)
    assert rows(servers, topic).num_rows == 5


def test_the_snippets_of_the_page(embedded_broker, topic, tmp_path, monkeypatch):
    servers = embedded_broker.bootstrap_servers
    with hr.Admin(servers) as admin:
        admin.create_topic(topic, 2)
    write(servers, topic, 9, partitions=2)
    monkeypatch.chdir(tmp_path)
    copy(servers, topic, "parquet:orders/")
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "copy.md").read_text(), re.DOTALL)
    assert len(snippets) == 3
    counts = []
    for snippet in snippets:
        found: dict[str, Any] = {}
        exec(snippet, found)  # noqa: S102 -- it is ours
        counts.append(len(found["orders"]) if "orders" in found else sum(row[1] for row in found["rows"]))
    assert counts == [9, 9, 9]
