"""The source with a stopwatch: when headrace was at work in a streaming query, on the driver and in the tasks.

Spark's progress reports say how long a micro-batch took, not which part of it was the source's.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.spark import HeadraceDataSource
from headrace.spark.source import StreamReader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from headrace.spark.options import SourceOptions

FOLDER: Final = "stopwatch.folder"
"""Option of the source: where its processes note their times, on this machine."""


class TimedSource(HeadraceDataSource):
    """`format("headrace")` that notes when it works."""

    def __init__(self, options: Any) -> None:
        # A copy of the same type: Spark's names of options know no case.
        others = type(options)({name: value for name, value in options.items() if name.lower() != FOLDER})
        super().__init__(others)
        self._folder = str(options[FOLDER])

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "headrace_timed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """A reader for ``spark.readStream``."""
        made = cast("StreamReader", super().streamReader(schema))
        return _TimedReader(made.options, self._folder)


class _TimedReader(StreamReader):
    """Notes the time of each call that plans or reads."""

    def __init__(self, options: SourceOptions, folder: str) -> None:
        super().__init__(options)
        self._folder = folder

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        with self._timed():
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._timed():
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Between two batches Spark is at work, and the clock stands.
        with closing(cast("Generator[pa.RecordBatch, None, None]", super().read(partition))) as batches:
            while True:
                with self._timed():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _TimedReader.__init__(self, state["options"], state["folder"])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.time()
        try:
            yield
        finally:
            with (Path(self._folder) / str(os.getpid())).open("a", encoding="ascii") as notes:
                notes.write(f"{began:.6f} {time.time():.6f}\n")


def times(folder: Path) -> list[tuple[float, float]]:
    """When headrace was at work: (begin, end) in seconds since the epoch, as they were noted."""
    found = []
    for notes in folder.iterdir():
        for line in notes.read_text(encoding="ascii").splitlines(keepends=True):
            if line.endswith("\n"):  # else it is being written
                began, ended = map(float, line.split())
                found.append((began, ended))
    return found
