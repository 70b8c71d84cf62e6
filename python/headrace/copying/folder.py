"""A topic as a folder of Parquet files, each with a range of offsets of one partition, which its name says."""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from headrace.copying.places import CopyError, Origin, Positions, Ranges, Source
from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

ROWS_PER_FILE: Final = 1_000_000
_NAME: Final = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d{20})-(?P<end>\d{20})\.parquet")
_KEY: Final = b"headrace.copy"
_LOCK: Final = ".headrace-copy.lock"
_PART: Final = ".part"
_UNFINISHED: Final = re.compile(rf"\..+-\d+-\d{{20}}{re.escape(_PART)}")
_ROWS_READ: Final = 65_536
# Of each partition so much is kept before it is written as a row group; of all partitions together, four times as much.
_GROUP_BYTES: Final = 64 << 20
_GROUPS_BYTES: Final = 4 * _GROUP_BYTES
_OPEN_FILES: Final = 128
_TYPE_CHARACTERS: Final = 60
"""So much of a type stands in a message."""


class Piece(NamedTuple):
    """A file of the folder."""

    first: int
    end: int
    path: Path


def pieces(folder: Path) -> dict[int, list[Piece]]:
    """The files of each partition, by offsets.

    Raises:
        CopyError: they are of several topics, or their ranges do not join.
    """
    found: dict[int, list[Piece]] = {}
    topics: dict[str, Path] = {}
    for path in sorted(folder.glob("*.parquet")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            message = f"{path} is not a file that headrace copy has written; a single file is sent by: produce --file"
            raise CopyError(message)
        topics.setdefault(name["topic"], path)
        piece = Piece(int(name["first"]), int(name["end"]), path)
        found.setdefault(int(name["partition"]), []).append(piece)
    if len(topics) > 1:
        message = f"the folder holds more than one topic: {' and '.join(str(path) for path in topics.values())}"
        raise CopyError(message)
    for of_partition in found.values():
        of_partition.sort()
        for before, after in pairwise(of_partition):
            if before.end != after.first:
                what = "a hole" if before.end < after.first else "offsets twice"
                message = f"there is {what} between {before.path} and {after.path.name}"
                raise CopyError(message)
    return found


def _origin(path: Path) -> Origin:
    """What a file says of where its records come from."""
    try:
        metadata = parquet.read_schema(path).metadata or {}
        said = json.loads(metadata[_KEY])
        return Origin(said["cluster_id"], said["topic"], said["topic_id"])
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        message = f"{path} is damaged, or not a file that headrace copy has written: {error}"
        raise CopyError(message) from None


class FolderSource:
    """A folder that a copy has written.

    Args:
        folder: where it is.

    Raises:
        CopyError: there are no such files.
    """

    def __init__(self, folder: Path) -> None:
        self._pieces = pieces(folder)
        self.name = f"parquet:{folder}"
        if not self._pieces:
            message = f"{folder} has no Parquet files"
            raise CopyError(message)
        self.origin = _origin(min(self._pieces.items())[1][0].path)

    def ends(self) -> Ranges:
        """The ranges of its files."""
        return {partition: (found[0].first, found[-1].end) for partition, found in self._pieces.items()}

    def start(self, ends: Ranges) -> Positions:
        """With the first record of each partition."""
        return {partition: first for partition, (first, _) in ends.items()}

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """The rows, file by file."""
        for partition, (first, end) in sorted(ranges.items()):
            for piece in self._pieces[partition]:
                if piece.first < end and first < piece.end:
                    yield from _rows(partition, piece, first, end)


def _rows(partition: int, piece: Piece, first: int, end: int) -> Iterator[pa.RecordBatch]:
    try:
        with parquet.ParquetFile(piece.path) as file:
            # Batches of a whole file would join groups, and be as large as `_ROWS_READ` large records.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=_ROWS_READ, row_groups=[group]):
                    if not batch.num_rows:
                        continue
                    offsets = batch.column("offset")
                    _check_rows(partition, piece, offsets, batch.column("partition"))
                    inside = batch.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
                    if inside.num_rows:
                        yield inside
    except (pa.ArrowException, OSError, KeyError) as error:
        message = f"{piece.path} is damaged, or cannot be read: {error}"
        raise CopyError(message) from None


def _check_rows(partition: int, piece: Piece, offsets: pa.Array, partitions: pa.Array) -> None:
    """Refuses rows that are not in the range that the file's name says: they would be left out, or sent twice."""
    of_offsets, of_partitions = pc.min_max(offsets).as_py(), pc.min_max(partitions).as_py()
    in_range = piece.first <= of_offsets["min"] and of_offsets["max"] < piece.end
    if not in_range or set(of_partitions.values()) != {partition}:
        message = (
            f"{piece.path} has offsets {of_offsets['min']} to {of_offsets['max']} of partition "
            f"{of_partitions['min']}, and its name says otherwise"
        )
        raise CopyError(message)


class _File:
    """A range of a partition that is not whole yet.

    Args:
        folder: where it is to be.
        origin: said in the file.
        partition: of these records.
        first: offset at which the range begins.
        schema: of its rows.
        compression: of Parquet.
    """

    def __init__(
        self, folder: Path, origin: Origin, partition: int, first: int, schema: pa.Schema, *, compression: str
    ) -> None:
        self.first, self.end, self.schema = first, first, schema
        self.rows = self.kept_bytes = 0
        self._folder, self._compression = folder, compression
        self._stem = f"{origin.topic}-{partition}-{first:020}"
        self._path = folder / f".{self._stem}{_PART}"
        self._said = json.dumps({**origin._asdict(), "partition": partition}).encode()
        self._kept: list[pa.RecordBatch] = []
        self._writer: parquet.ParquetWriter | None = None

    @property
    def is_open(self) -> bool:
        """Whether it takes a descriptor."""
        return self._writer is not None

    def keep(self, rows: pa.RecordBatch) -> None:
        """Takes rows."""
        self._kept.append(rows)
        self.kept_bytes += rows.nbytes
        self.rows += rows.num_rows
        self.end = rows.column("offset")[-1].as_py() + 1

    def write(self) -> None:
        """Writes what is kept as a row group."""
        with self._named():
            if self._writer is None:
                schema = self.schema.with_metadata({**(self.schema.metadata or {}), _KEY: self._said})
                self._writer = parquet.ParquetWriter(self._path, schema, compression=self._compression)
            if self._kept:
                table = pa.Table.from_batches(self._kept)
                self._writer.write_table(table, row_group_size=table.num_rows)
                self._kept, self.kept_bytes = [], 0

    def finish(self, end: int) -> None:
        """Makes it whole: on the disk, and by its name."""
        self.write()
        with self._named():
            self.close()
            with self._path.open("rb") as written:
                os.fsync(written.fileno())
        self._path.rename(self._folder / f"{self._stem}-{end:020}.parquet")
        _sync_folder(self._folder)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the disk name the file, as Arrow's do not."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def close(self) -> None:
        """Gives the descriptor back."""
        if self._writer is not None:
            self._writer.close()

    def remove(self) -> None:
        """Leaves nothing of it."""
        with suppress(OSError):
            self.close()
        self._path.unlink(missing_ok=True)


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= _TYPE_CHARACTERS else text[:_TYPE_CHARACTERS] + "..."


class FolderTarget:
    """A folder that is written to; as a context manager, which it is for one process at a time.

    Args:
        folder: where; it is made if it is not there.
        rows_per_file: a file has no more rows.
        compression: of Parquet, such as ``zstd``.

    Raises:
        CopyError: another copy writes to it.
    """

    def __init__(self, folder: Path, rows_per_file: int = ROWS_PER_FILE, compression: str = "zstd") -> None:
        self._folder, self._rows_per_file, self._compression = folder, rows_per_file, compression
        self.name = f"parquet:{folder}"
        self._origin: Origin | None = None
        self._files: dict[int, _File] = {}
        self._begun: Positions = {}
        # Of keys and values in the files that are there. Fields may come and go, but nobody reads bytes beside columns.
        self._types: dict[str, pa.DataType] = {}
        self._lock: int | None = None

    def positions(self, source: Source, ends: Ranges) -> Positions:
        """The ends of its files."""
        found = pieces(self._folder)
        for of_partition in found.values():
            origin = _origin(of_partition[-1].path)
            if origin.topic != source.origin.topic or origin.cluster_id != source.origin.cluster_id:
                message = (
                    f"{self._folder} holds the topic {origin.topic} of the cluster {origin.cluster_id}, and this "
                    f"one is {source.origin.topic} of {source.origin.cluster_id}: name another folder"
                )
                raise CopyError(message)
            if origin.topic_id != source.origin.topic_id:
                message = (
                    f"{source.name} was deleted and made anew since it was copied to {self._folder}: its id was "
                    f"{origin.topic_id} and is {source.origin.topic_id}; use another folder"
                )
                raise CopyError(message)
            schema = parquet.read_schema(of_partition[-1].path)
            self._types = {side: schema.field(side).type for side in ("key", "value")}
        self._origin = source.origin
        # Also where offsets are left out that are there no more: ranges of files join.
        known = {partition: of_partition[-1].end for partition, of_partition in found.items() if partition in ends}
        self._begun |= known
        return known

    def begin(self, positions: Positions) -> None:
        """The next file of each partition begins there, or where the one before it ends."""
        self._begun = {**positions, **self._begun}

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Keeps rows until a row group is worth it."""
        schema = pa.schema([field.with_type(_nullable(field.type)) for field in batch.schema])
        batch = batch if batch.schema.equals(schema) else batch.cast(schema)
        while batch.num_rows:
            file = self._files.get(partition)
            if file is not None and not file.schema.equals(batch.schema):
                self._finish(partition, batch.column("offset")[0].as_py())
                file = None
            if file is None:
                file = self._begin_file(partition, batch.schema)
            part = batch.slice(0, self._rows_per_file - file.rows)
            batch = batch.slice(part.num_rows)
            file.keep(part)
            if file.rows == self._rows_per_file:
                self._finish(partition, file.end)
            elif file.kept_bytes >= _GROUP_BYTES:
                self._write_group(file)
        while sum(each.kept_bytes for each in self._files.values()) > _GROUPS_BYTES:
            self._write_group(max(self._files.values(), key=lambda each: each.kept_bytes))

    def commit(self, positions: Positions) -> None:
        """Ends all files that have rows."""
        for partition in list(self._files):
            self._finish(partition, positions[partition])

    def _begin_file(self, partition: int, schema: pa.Schema) -> _File:
        if self._origin is None:
            message = "write before positions"
            raise UsageError(message)
        for side, there in self._types.items():
            new = schema.field(side).type
            if pa.types.is_binary(there) != pa.types.is_binary(new):
                message = (
                    f"the files in {self._folder} have {_short(there)} as {side}, and this copy would write "
                    f"{_short(new)}: give the same formats (-F) as before, or name another folder"
                )
                raise CopyError(message)
        made = _File(
            self._folder, self._origin, partition, self._begun[partition], schema, compression=self._compression
        )
        self._files[partition] = made
        return made

    def _write_group(self, file: _File) -> None:
        opened = {partition: each for partition, each in self._files.items() if each.is_open}
        if not file.is_open and len(opened) >= _OPEN_FILES:
            longest = max(opened, key=lambda partition: opened[partition].rows)
            self._finish(longest, opened[longest].end)
        file.write()

    def _finish(self, partition: int, end: int) -> None:
        self._files[partition].finish(end)
        self._begun[partition] = end
        del self._files[partition]

    def __enter__(self) -> Self:
        """Makes the folder, and removes what an earlier copy has not finished."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            message = f"another copy writes to {self._folder}"
            raise CopyError(message) from None
        self._lock = lock
        for left in self._folder.glob(f".*{_PART}"):
            if _UNFINISHED.fullmatch(left.name):
                left.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes what is not whole."""
        for file in self._files.values():
            file.remove()
        if self._lock is not None:
            os.close(self._lock)


def _nullable(of: pa.DataType) -> pa.DataType:
    """A type whose fields may all be null, as they are where a value is null: Parquet's writer insists on that."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_nullable(field.type)).with_nullable(nullable=True)

    if pa.types.is_struct(of):
        return pa.struct([inner(field) for field in of])
    if pa.types.is_map(of):
        return pa.map_(of.key_type, inner(of.item_field))
    if pa.types.is_list(of):
        return pa.list_(inner(of.value_field))
    if pa.types.is_large_list(of):
        return pa.large_list(inner(of.value_field))
    return of


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
