"""What a run leaves: a folder that others can check."""

from __future__ import annotations

import csv
import json
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PARTIAL: Final = ".partial"
SERIES: Final = pa.schema(
    [
        ("second", pa.int32()),
        ("driver", pa.string()),
        ("role", pa.string()),
        ("member", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
LATENCY: Final = pa.schema(
    [
        ("second", pa.int32()),
        ("driver", pa.string()),
        ("kind", pa.string()),
        ("of", pa.string()),
        ("p50_ms", pa.float64()),
        ("p95_ms", pa.float64()),
        ("p99_ms", pa.float64()),
        ("p99_9_ms", pa.float64()),
        ("max_ms", pa.float64()),
        ("count", pa.int64()),
    ]
)


class Bundle:
    """A folder that is written to; its name ends in ``.partial`` until it is finished."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder."""
        self.final = folder
        self.folder = folder.with_name(folder.name + PARTIAL)
        self.folder.mkdir(parents=True)
        (self.folder / "logs").mkdir()
        self._hlog: list[str] = []

    def text(self, name: str, text: str) -> None:
        """Writes a text."""
        (self.folder / name).write_text(text, encoding="utf-8")

    @property
    def journals(self) -> Path:
        """Where the workers of a correctness run write down what they have seen."""
        folder = self.folder / "journals"
        folder.mkdir(exist_ok=True)
        return folder

    def remove_journals(self) -> None:
        """Removes them: they are large, and nobody needs them where all is well."""
        shutil.rmtree(self.journals)

    def json(self, name: str, content: object) -> None:
        """Writes JSON."""
        self.text(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def table(self, name: str, schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> None:
        """Writes rows as Parquet and as CSV."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), self.folder / f"{name}.parquet")
        with (self.folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(schema.names)
            writer.writerows(rows)

    def interval(self, tag: str, begin_s: float, max_ms: float, encoded: str) -> None:
        """Adds a second's histogram to the HdrHistogram log."""
        self._hlog.append(f"Tag={tag},{begin_s:.3f},1.000,{max_ms:.3f},{encoded}")

    @staticmethod
    def write_index(folder: Path, content: object) -> None:
        """Writes what a campaign's folder has in it."""
        (folder / "index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def finish(self, begun_s: float = 0.0) -> Path:
        """Gives it its name; gives the folder. `begun_s`: when second 0 began, since the epoch."""
        head = [
            "#[Histogram log format version 1.3]",
            f"#[StartTime: {begun_s:.3f} (seconds since epoch)]",
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
        ]
        self.text("latency.hlog", "\n".join([*head, *self._hlog]) + "\n")
        self.folder.rename(self.final)
        return self.final


def new_folder(results: Path, name: str) -> Path:
    """A folder for a campaign's results that nobody has yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1, 1_000):
        folder = results / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
        if not folder.exists() and not folder.with_name(folder.name + PARTIAL).exists():
            return folder
    raise FileExistsError(str(results / f"{name}-{stamp}"))


def read(folder: Path) -> list[dict[str, Any]]:
    """The runs of a bundle, or of a campaign of them: summaries, each with its folder as ``folder``.

    Raises:
        ValueError: it is none.
    """
    summary = folder / "summary.json"
    if summary.is_file():
        return [{**_json(summary), "folder": str(folder)}]
    index = folder / "index.json"
    if not index.is_file():
        raise ValueError(f"{folder}: neither summary.json nor index.json is in it: no bundle of the lab")
    runs: Iterable[Mapping[str, Any]] = _json(index)["runs"]
    found = []
    for run in runs:
        inner = folder / run["folder"]
        found += read(inner)
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
