"""The measurements: as rows, as Kafka records, and as the result that the pipeline must arrive at."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOW_TOPIC: Final = "ndwflow"
SPEED_TOPIC: Final = "ndwspeed"
END_SITE: Final = "end"
"""Site of the two records behind the last minute that let the stream's watermark pass it."""

_MONIBAS: Final = re.compile(r"MONIBAS_(\d{3})\d(hrl|hrr|vw.)(\d{4})")
_CARRIAGEWAY: Final = {"hrl": "left", "hrr": "right"}


@dataclass(frozen=True)
class Minute:
    """All measurements of one data minute, ready to be sent."""

    label: str
    """Local time, as in the data."""
    flow: pa.RecordBatch
    """Records for the flow topic: key, value."""
    speed: pa.RecordBatch
    """Records for the speed topic: key, value."""


def load() -> pa.Table:
    """The 68,400 measurements, one row a minute, lane and kind, in the order of time."""
    with as_file(files("headrace.demo") / "ndw-2017-03-15.parquet") as path:
        table = parquet.read_table(path)
    return table.sort_by([("timestamp", "ascending"), ("site", "ascending"), ("lane", "ascending")])


def minutes(table: pa.Table) -> Iterator[Minute]:
    """The measurements minute by minute, as records in the form of OSPBench."""
    kinds = {}
    for kind in ("flow", "speed"):
        rows = table.filter(pc.is_valid(table[kind]))
        kinds[kind] = (rows, _records(rows, kind))
    stamps = table["timestamp"].unique().to_pylist()
    starts = {kind: _starts(rows, len(stamps)) for kind, (rows, _) in kinds.items()}
    for i, stamp in enumerate(stamps):
        flow, speed = (
            kinds[kind][1].slice(starts[kind][i], starts[kind][i + 1] - starts[kind][i]) for kind in ("flow", "speed")
        )
        yield Minute(stamp.strftime("%Y-%m-%d %H:%M"), flow, speed)


def ending(last: str) -> Minute:
    """One record a topic, two days behind the last minute."""
    stamp = f"{last[:8]}{int(last[8:10]) + 2:02d} 00:00:00"
    return Minute(
        "end",
        *(
            pa.record_batch(
                {
                    "key": pa.array([f"{END_SITE}/lane1".encode()]),
                    "value": pa.array([json.dumps({"internalId": "lane1", kind: 0, "timestamp": stamp}).encode()]),
                }
            )
            for kind in ("flow", "speed")
        ),
    )


def expected(table: pa.Table) -> pa.Table:
    """What the pipeline must arrive at: per site and minute the sum of flow and the mean of speed over its lanes."""
    keys = ["site", "lane", "timestamp"]
    flow = table.filter(pc.is_valid(table["flow"])).select([*keys, "flow"])
    speed = table.filter(pc.is_valid(table["speed"])).select([*keys, "speed"])
    joined = flow.join(speed, keys, join_type="inner")
    grouped = joined.group_by(["site", "timestamp"]).aggregate([("flow", "sum"), ("speed", "mean"), ("lane", "count")])
    named = grouped.rename_columns({"flow_sum": "flow", "speed_mean": "speed", "lane_count": "lanes"})
    return named.select(["site", "timestamp", "flow", "speed", "lanes"]).sort_by(
        [("site", "ascending"), ("timestamp", "ascending")]
    )


def site_label(site: str) -> str:
    """A site as a driver would call it: road, kilometre and carriageway where the id tells."""
    found = _MONIBAS.search(site)
    if found is None:
        return f"loop {site.removeprefix('RWS01_MONICA_00D0').removesuffix('_1')}"
    road, way, km = int(found[1]), found[2], int(found[3]) / 10
    return f"A{road} km {km:.1f} {_CARRIAGEWAY.get(way, 'connecting road')}"


def _records(rows: pa.Table, kind: str) -> pa.RecordBatch:
    keys, values = [], []
    for row in rows.to_pylist():
        keys.append(f"{row['site']}/{row['lane']}".encode())
        value = {"internalId": row["lane"], "lat": row["lat"], "long": row["long"], kind: row[kind]}
        if kind == "flow":
            value["period"] = row["period"]
        value |= {
            "accuracy": row["accuracy"],
            "timestamp": row["timestamp"].strftime("%Y-%m-%d %H:%M:%S"),
            "num_lanes": row["num_lanes"],
        }
        values.append(json.dumps(value, separators=(",", ":")).encode())
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _starts(rows: pa.Table, count: int) -> list[int]:
    sizes = rows.group_by("timestamp", use_threads=False).aggregate([([], "count_all")])["count_all"].to_pylist()
    if len(sizes) != count:
        message = f"the data has {len(sizes)} minutes of one kind and {count} in all"
        raise ValueError(message)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
