"""The measurements: as rows, as records with their schemas, and as the result that the pipeline must arrive at."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import pairwise
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
END_AFTER: Final = dt.timedelta(days=2)
"""How far behind it they are."""


def _field(name: str, kind: str | dict[str, str], doc: str) -> dict[str, object]:
    return {"name": name, "type": kind, "doc": doc}


def _schema(name: str, *measured: dict[str, object]) -> str:
    """A record of Avro with OSPBench's fields, in its order."""
    fields = [
        _field("internalId", "string", "the lane"),
        _field("lat", "double", "degrees north"),
        _field("long", "double", "degrees east"),
        *measured,
        _field("accuracy", "int", "percent"),
        # As if the clocks of the place showed UTC: Spark's watermarks take no local-timestamp-millis.
        _field("timestamp", {"type": "long", "logicalType": "timestamp-millis"}, "the minute, in local time"),
        _field("num_lanes", "int", "lanes at the site"),
    ]
    return json.dumps({"type": "record", "name": name, "namespace": "headrace.demo", "fields": fields})


SCHEMAS: Final = {
    FLOW_TOPIC: _schema("Flow", _field("flow", "int", "vehicles an hour"), _field("period", "int", "seconds")),
    SPEED_TOPIC: _schema("Speed", _field("speed", "double", "km/h")),
}
"""Avro's JSON of each topic's values."""

MIDDLE: Final = (51.42, 5.48)
KM_A_DEGREE: Final = 111.2
STRAIGHT_MAX: Final = 1.1
"""So much longer than the straight line a road may be to be drawn as one."""

_MONIBAS: Final = re.compile(r"MONIBAS_(\d{3})\d(hrl|hrr|vw.)(\d{4})")
_CARRIAGEWAY: Final = {"hrl": "left", "hrr": "right"}


@dataclass(frozen=True)
class Minute:
    """All measurements of one data minute, ready to be sent."""

    label: str
    """Local time, as in the data."""
    flow: pa.RecordBatch
    """Records for the flow topic: key, a string, and value, a struct of its schema's fields."""
    speed: pa.RecordBatch
    """The same for the speed topic."""


@dataclass(frozen=True)
class Site:
    """Where measurements are taken."""

    id: str
    lanes: tuple[str, ...]
    lat: float
    long: float
    """Degrees north and east."""
    road: str
    """Such as A2; empty where the id does not name it."""
    km: float | None
    """Along the road, as on its signs."""

    @property
    def label(self) -> str:
        """As a driver would call it; a loop, whose id names no road, by where it is."""
        if self.road:
            return site_label(self.id)
        return f"loop at {self.lat:.3f}° N, {', '.join(lane.replace('lane', 'lane ') for lane in self.lanes)}"


@dataclass(frozen=True)
class Stretch:
    """From one site to the next along a road, as a straight line."""

    start: Site
    stop: Site
    straight: bool
    """Whether the line is about as long as the road: else it says where the road goes to, not how."""


def load() -> pa.Table:
    """The 68,400 measurements, one row a minute, lane and kind, in the order of time."""
    with as_file(files("headrace.demo") / "ndw-2017-03-15.parquet") as path:
        table = parquet.read_table(path)
    return table.sort_by([("timestamp", "ascending"), ("site", "ascending"), ("lane", "ascending")])


def minutes(table: pa.Table) -> Iterator[Minute]:
    """The measurements minute by minute, as records in the form of OSPBench."""
    kinds = {}
    for kind, topic in (("flow", FLOW_TOPIC), ("speed", SPEED_TOPIC)):
        rows = table.filter(pc.is_valid(table[kind]))
        kinds[kind] = (rows, _records(rows, topic))
    stamps = table["timestamp"].unique().to_pylist()
    starts = {kind: _starts(rows, len(stamps)) for kind, (rows, _) in kinds.items()}
    for i, stamp in enumerate(stamps):
        flow, speed = (
            kinds[kind][1].slice(starts[kind][i], starts[kind][i + 1] - starts[kind][i]) for kind in ("flow", "speed")
        )
        yield Minute(stamp.strftime("%Y-%m-%d %H:%M"), flow, speed)


def ending(last: Minute) -> Minute:
    """One record a topic, two days behind the last minute."""
    return Minute("end", _ending(last.flow), _ending(last.speed))


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


def sites(table: pa.Table) -> list[Site]:
    """The sites from north to south; those at one place by their lanes."""
    grouped = table.group_by(["site", "lat", "long"]).aggregate([("lane", "distinct")]).to_pylist()
    found = []
    for row in grouped:
        named = _MONIBAS.search(row["site"])
        road, km = (f"A{int(named[1])}", int(named[3]) / 10) if named else ("", None)
        found.append(Site(row["site"], tuple(sorted(row["lane_distinct"])), row["lat"], row["long"], road, km))
    return sorted(found, key=lambda site: (-site.lat, site.lanes, site.id))


def stretches(found: list[Site]) -> list[Stretch]:
    """The roads between sites that their ids place on the same one."""
    placed = sorted(((site, site.km) for site in found if site.km is not None), key=lambda at: (at[0].road, at[1]))
    return [
        Stretch(a, b, straight=stop - start <= STRAIGHT_MAX * distance_km(a, b))
        for (a, start), (b, stop) in pairwise(placed)
        if a.road == b.road
    ]


def distance_km(a: Site, b: Site) -> float:
    """As the crow flies."""
    (ax, ay), (bx, by) = place_km(a), place_km(b)
    return math.hypot(ax - bx, ay - by)


def place_km(site: Site) -> tuple[float, float]:
    """East and north of the data's middle, on a plane that is good enough for an area of twenty kilometres."""
    return (site.long - MIDDLE[1]) * KM_A_DEGREE * math.cos(math.radians(MIDDLE[0])), (
        site.lat - MIDDLE[0]
    ) * KM_A_DEGREE


def site_label(site: str) -> str:
    """A site as a driver would call it: road, kilometre and carriageway where the id tells."""
    found = _MONIBAS.search(site)
    if found is None:
        return f"loop {site.removeprefix('RWS01_MONICA_00D0').removesuffix('_1')}"
    road, way, km = int(found[1]), found[2], int(found[3]) / 10
    return f"A{road} km {km:.1f} {_CARRIAGEWAY.get(way, 'connecting road')}"


def _records(rows: pa.Table, topic: str) -> pa.RecordBatch:
    fields = [field["name"] for field in json.loads(SCHEMAS[topic])["fields"]]
    named = rows.append_column("internalId", rows["lane"])
    at = named.column_names.index("timestamp")
    named = named.set_column(at, "timestamp", rows["timestamp"].cast(pa.timestamp("ms", "UTC")))
    keys = pc.binary_join_element_wise(rows["site"], rows["lane"], "/")
    return pa.record_batch(
        {"key": keys.combine_chunks(), "value": named.select(fields).to_struct_array().combine_chunks()}
    )


def _ending(records: pa.RecordBatch) -> pa.RecordBatch:
    value = records["value"][0].as_py()
    value["timestamp"] += END_AFTER
    key = f"{END_SITE}/{value['internalId']}"
    return pa.record_batch({"key": [key], "value": pa.array([value], records["value"].type)})


def _starts(rows: pa.Table, count: int) -> list[int]:
    sizes = rows.group_by("timestamp", use_threads=False).aggregate([([], "count_all")])["count_all"].to_pylist()
    if len(sizes) != count:
        message = f"the data has {len(sizes)} minutes of one kind and {count} in all"
        raise ValueError(message)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
