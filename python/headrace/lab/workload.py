"""A workload: every field with its value, read from the entries of a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from yaml.nodes import MappingNode, SequenceNode

from headrace.lab import omb
from headrace.lab.distribution import DISTRIBUTORS, Distribution
from headrace.lab.faults import DOWN_S, KINDS, Fault
from headrace.lab.fields import BY_NAME, DRIVERS, FIELDS, PREVIEW, SHARING, Field
from headrace.lab.nodes import Entry, Mark, WorkloadError, nearest
from headrace.lab.schedule import Schedule, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from yaml.nodes import Node

    from headrace.lab.nodes import Entries, Reader

NAME_MAX: Final = 100
RATE_MAX: Final = 1e9
SEGMENTS_MAX: Final = 1_000
DURATION_MAX_S: Final = 864_000
PARALLELISM_MAX: Final = 1_000_000
FAULTS_MAX: Final = 100
ACKNOWLEDGEMENT_MODE: Final = "share.acknowledgement.mode"
"""The option that the field ``acknowledgement`` sets."""

ACQUIRE_MODE: Final = "share.acquire.mode"
BATCH_OPTIMIZED: Final = "batch_optimized"

_READERS: Final = ("subscriptionsPerTopic", "consumerPerSubscription")
_ALL: Final = ("producersPerTopic", *_READERS)
NEEDED: Final = {"run": (), "drain-backlog": _READERS, "explore-limits": _ALL, "correctness": _ALL}
"""What there must be one of, by mode."""


@dataclass(frozen=True)
class Explore:
    """How explore-limits looks for its limit."""

    target_latency_ms: float = 100.0
    percentile: float = 99.0
    start_rate: float = 1_000.0
    max_rate: float = 1e7
    precision: float = 0.05
    step_seconds: float = 20.0


EXPLORE: Final = {
    "targetLatencyMs": ("target_latency_ms", 0.001, 3_600_000),
    "percentile": ("percentile", 1, 100),
    "startRate": ("start_rate", 1, RATE_MAX),
    "maxRate": ("max_rate", 1, RATE_MAX),
    "precision": ("precision", 0.001, 0.5),
    "stepSeconds": ("step_seconds", 1, 3_600),
}
"""Fields of ``explore``: attribute, least and most."""


@dataclass(frozen=True)
class Workload:
    """One variation of a workload file; `fields.FIELDS` says what each field means."""

    name: str
    description: str
    mode: str
    driver: tuple[str, ...]
    topics: int
    partitions_per_topic: int
    replication_factor: int
    topic_config: Mapping[str, str]
    message_size: int
    use_randomized_payloads: bool
    random_bytes_ratio: float
    randomized_payload_pool_size: int
    payload_file: str | None
    message_distributor: Distribution
    producers_per_topic: int
    producer_rate: float
    producer_rate_schedule: Schedule | None
    consumer_type: str
    subscriptions_per_topic: int
    consumer_per_subscription: int
    acknowledgement: str
    workers: int
    consumer_proc_ms_min: float
    consumer_proc_ms_max: float
    consumer_proc_parallelism: int
    producer_config: Mapping[str, str]
    consumer_config: Mapping[str, str]
    common_config: Mapping[str, str]
    group_config: Mapping[str, str]
    driver_config: Mapping[str, Mapping[str, str]]
    backlog_records: int
    warmup_duration_seconds: float
    test_duration_seconds: float
    drain_timeout_seconds: float
    explore: Explore
    faults: tuple[Fault, ...]
    seed: int

    @property
    def schedule(self) -> Schedule | None:
        """What is due when; None if producers send as much as they can."""
        if self.producer_rate_schedule is not None:
            return self.producer_rate_schedule
        return Schedule.constant(self.producer_rate) if self.producer_rate else None

    def options(self, driver: str, side: str) -> dict[str, str]:
        """Kafka's options of a driver's producers (`side` is ``producer``) or consumers."""
        own = self.producer_config if side == "producer" else self.consumer_config
        given = {**self.common_config, **own, **self.driver_config.get(driver, {})}
        if side == "consumer" and self.acknowledgement == "record":
            given[ACKNOWLEDGEMENT_MODE] = "explicit"
        return given

    def to_json(self) -> dict[str, Any]:
        """With the names of the file, all defaults filled in."""
        written: dict[str, Any] = {}
        for field in FIELDS:
            if field.kind == "dimensions":
                continue
            value = getattr(self, field.attribute)
            if isinstance(value, Schedule | Distribution):
                value = value.to_json()
            elif isinstance(value, Explore):
                value = {name: getattr(value, attribute) for name, (attribute, _, _) in EXPLORE.items()}
            elif isinstance(value, tuple):
                value = [one.to_json() if isinstance(one, Fault) else one for one in value]
            written[field.name] = value
        return written

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Workload:
        """What `to_json` wrote."""
        values = {f.attribute: given[f.name] for f in FIELDS if f.kind != "dimensions"}
        values["driver"] = tuple(given["driver"])
        values["faults"] = tuple(Fault.from_json(one) for one in given["faults"])
        values["message_distributor"] = Distribution.from_json(given["messageDistributor"])
        if given["producerRateSchedule"] is not None:
            values["producer_rate_schedule"] = Schedule.from_json(given["producerRateSchedule"])
        explore = given["explore"]
        values["explore"] = Explore(**{attribute: explore[name] for name, (attribute, _, _) in EXPLORE.items()})
        return cls(**values)

    def replaced(self, **changes: Any) -> Workload:
        """The same with other values."""
        return dataclasses.replace(self, **changes)


def resolve(entries: Entries, reader: Reader, name: str) -> tuple[Workload | None, list[WorkloadError]]:
    """Reads a workload from a file's entries; None with everything that is wrong if something is."""
    return _Resolving(reader).run(entries, name)


class _Resolving:
    """One file's values on their way."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.errors: list[WorkloadError] = []
        self.values: dict[str, Any] = {f.attribute: f.default for f in FIELDS if f.kind != "dimensions"}
        self.given: dict[str, Mark] = {}
        self.places: dict[str, Mark] = {}
        """Of options."""
        self.backlog_bytes: float | None = None

    def run(self, entries: Entries, name: str) -> tuple[Workload | None, list[WorkloadError]]:
        for written, entry in entries.items():
            try:
                self._take(written, entry)
            except WorkloadError as error:
                self.errors.append(error)
        values = self.values
        values["name"] = values["name"] or name
        values["explore"] = values["explore"] or Explore()
        values["message_distributor"] = values["message_distributor"] or Distribution()
        if values["consumer_proc_ms_max"] is None:
            values["consumer_proc_ms_max"] = values["consumer_proc_ms_min"]
        if self.backlog_bytes is not None:
            values["backlog_records"] = int(self.backlog_bytes / values["message_size"])
            if self.backlog_bytes and "mode" not in self.given:
                values["mode"] = "drain-backlog"
        if values["consumer_type"] == "share" and "groupConfig" not in self.given:
            values["group_config"] = {"share.auto.offset.reset": "earliest"}
        self._together()
        return (None if self.errors else Workload(**values)), self.errors

    def _take(self, written: str, entry: Entry) -> None:
        if written in omb.IGNORED:
            return
        if written in omb.FOREIGN:
            sentence = f"is a field of OMB that means nothing here: {omb.FOREIGN[written]}"
            raise WorkloadError(entry.mark, written, sentence)
        field = BY_NAME.get(omb.RENAMED.get(written, written))
        if field is None:
            known = [*BY_NAME, *omb.RENAMED]
            raise WorkloadError(entry.mark, written, f"unknown field{nearest(written, known)}")
        if field.name in self.given:
            line = self.given[field.name].line
            raise WorkloadError(
                entry.mark, written, f"is the same as {field.name}, which is there already in line {line}"
            )
        self.given[field.name] = entry.mark
        if field.kind == "dimensions":
            return
        if written.endswith("Minutes"):
            self.values[field.attribute] = omb.minutes(self.reader, entry.node, written)
        elif written == "consumerBacklogSizeGB":
            self.backlog_bytes = omb.backlog_bytes(self.reader, entry.node, written)
        else:
            self.values[field.attribute] = getattr(self, f"_read_{field.kind}")(field, entry.node)

    def _read_name(self, field: Field, node: Node) -> str:
        text = self.reader.text(node, field.name)
        if not all(c.isascii() and (c.isalnum() or c in "-_.") for c in text) or len(text) > NAME_MAX:
            raise self.reader.error(node, field.name, f"is made of letters, digits, '-', '_' and '.', not {text!r}")
        return text

    def _read_text(self, field: Field, node: Node) -> str:
        return self.reader.text(node, field.name)

    def _read_word(self, field: Field, node: Node) -> str:
        return self.reader.word(node, field.name, field.words, field.name)

    def _read_words(self, field: Field, node: Node) -> tuple[str, ...]:
        items = node.value if isinstance(node, SequenceNode) else [node]
        if not items:
            raise self.reader.error(node, field.name, "is an empty list")
        return tuple(dict.fromkeys(self.reader.word(item, field.name, field.words, field.name) for item in items))

    def _read_whole(self, field: Field, node: Node) -> int:
        return self.reader.whole(node, field.name, field.low, field.high)

    def _read_number(self, field: Field, node: Node) -> float:
        return self.reader.number(node, field.name, field.low, field.high)

    def _read_flag(self, field: Field, node: Node) -> bool:
        return self.reader.flag(node, field.name)

    def _read_parallelism(self, field: Field, node: Node) -> int:
        value = self.reader.whole(node, field.name, -1, PARALLELISM_MAX)
        if value == 0:
            raise self.reader.error(node, field.name, "is -1 (all that a poll gave) or at least 1, not 0")
        return value

    def _read_file(self, field: Field, node: Node) -> str:
        path = Path(self.reader.text(node, field.name))
        for one in (Path(self.reader.file).parent / path, path):
            if one.is_file():
                return str(one)
        raise self.reader.error(node, field.name, f"there is no file {str(path)!r}")

    def _read_map(self, field: Field, node: Node) -> dict[str, str]:
        return self._texts(node, field.name)

    def _read_maps(self, field: Field, node: Node) -> dict[str, dict[str, str]]:
        found = {}
        for driver, entry in self._mapping(node, field.name).items():
            if driver not in DRIVERS:
                sentence = f"unknown driver {driver!r}: one of {', '.join(DRIVERS)}"
                self.errors.append(WorkloadError(entry.mark, field.name, sentence))
                continue
            found[driver] = self._texts(entry.node, f"{field.name}.{driver}")
        return found

    def _read_distributor(self, field: Field, node: Node) -> Distribution:
        if not isinstance(node, MappingNode):
            kind = self.reader.word(node, field.name, DISTRIBUTORS, "distributor")
            if kind == "PARTITION_ZIPF":
                raise self.reader.error(
                    node, field.name, "PARTITION_ZIPF wants its alpha: {type: PARTITION_ZIPF, alpha: 2}"
                )
            return Distribution(kind)
        entries = self._known(node, field.name, ("type", "alpha"))
        if "type" not in entries:
            raise self.reader.error(node, field.name, "lacks its type")
        kind = self.reader.word(entries["type"].node, field.name, DISTRIBUTORS, "distributor")
        alpha = entries.get("alpha")
        if kind != "PARTITION_ZIPF":
            if alpha:
                raise WorkloadError(alpha.mark, f"{field.name}.alpha", f"is of PARTITION_ZIPF, not of {kind}")
            return Distribution(kind)
        if alpha is None:
            raise self.reader.error(node, field.name, "PARTITION_ZIPF lacks its alpha")
        value = self.reader.number(alpha.node, f"{field.name}.alpha", None, 100)
        if value <= 0:
            raise self.reader.error(alpha.node, f"{field.name}.alpha", f"is above 0, not {value:g}")
        return Distribution(kind, value)

    def _read_schedule(self, field: Field, node: Node) -> Schedule:
        entries = self._known(node, field.name, ("type", "segments"))
        repeating = False
        if "type" in entries:
            words = ("ONCE", "REPEATING")
            repeating = self.reader.word(entries["type"].node, f"{field.name}.type", words, "type") == "REPEATING"
        if "segments" not in entries:
            raise self.reader.error(node, field.name, "lacks its segments")
        path = f"{field.name}.segments"
        items = self.reader.sequence(entries["segments"].node, path)
        if not 1 <= len(items) <= SEGMENTS_MAX:
            sentence = f"has 1 to {SEGMENTS_MAX:,} segments, not {len(items):,}"
            raise self.reader.error(entries["segments"].node, path, sentence)
        segments = tuple(self._segment(item, f"{path}[{i}]") for i, item in enumerate(items))
        return Schedule(segments, repeating=repeating)

    def _segment(self, node: Node, path: str) -> Segment:
        entries = self._known(node, path, ("rate", "fromRate", "toRate", "durationSeconds"))
        given = set(entries) - {"durationSeconds"}
        if given not in ({"rate"}, {"fromRate", "toRate"}):
            raise self.reader.error(node, path, "has a rate, or fromRate and toRate")
        if "durationSeconds" not in entries:
            raise self.reader.error(node, path, "lacks its durationSeconds")
        values = {
            name: self.reader.number(entry.node, f"{path}.{name}", 0, RATE_MAX)
            for name, entry in entries.items()
            if name != "durationSeconds"
        }
        at = entries["durationSeconds"].node
        duration_s = self.reader.number(at, f"{path}.durationSeconds", None, DURATION_MAX_S)
        if duration_s <= 0:
            raise self.reader.error(at, f"{path}.durationSeconds", f"is above 0, not {duration_s:g}")
        constant = values.get("rate", 0.0)
        return Segment(values.get("fromRate", constant), values.get("toRate", constant), duration_s)

    def _read_explore(self, field: Field, node: Node) -> Explore:
        values = {}
        for name, entry in self._known(node, field.name, EXPLORE).items():
            attribute, low, high = EXPLORE[name]
            values[attribute] = self.reader.number(entry.node, f"{field.name}.{name}", low, high)
        explore = Explore(**values)
        if explore.start_rate > explore.max_rate:
            sentence = f"startRate ({explore.start_rate:g}) is above maxRate ({explore.max_rate:g})"
            raise self.reader.error(node, field.name, sentence)
        return explore

    def _read_faults(self, field: Field, node: Node) -> tuple[Fault, ...]:
        items = self.reader.sequence(node, field.name)
        if len(items) > FAULTS_MAX:
            raise self.reader.error(node, field.name, f"has at most {FAULTS_MAX} faults, not {len(items)}")
        return tuple(self._one_fault(item, f"{field.name}[{i}]") for i, item in enumerate(items))

    def _one_fault(self, node: Node, path: str) -> Fault:
        entries = self._known(node, path, ("atSeconds", "kind", "downSeconds", "worker", "broker", "command"))
        for name in ("atSeconds", "kind"):
            if name not in entries:
                raise self.reader.error(node, path, f"lacks its {name}")
        kind = self.reader.word(entries["kind"].node, f"{path}.kind", KINDS, "fault")
        for name, entry in entries.items():
            if name not in ("atSeconds", "kind", *KINDS[kind]):
                raise WorkloadError(entry.mark, f"{path}.{name}", f"is not of {kind}")
        if "command" in KINDS[kind] and "command" not in entries:
            raise self.reader.error(node, path, "lacks its command")
        given = {name: entry.node for name, entry in entries.items()}

        def number(name: str, default: float, high: float) -> float:
            return self.reader.number(given[name], f"{path}.{name}", 0, high) if name in given else default

        def whole(name: str, low: int) -> int:
            return self.reader.whole(given[name], f"{path}.{name}", low, 1_000) if name in given else low

        return Fault(
            kind,
            number("atSeconds", 0, DURATION_MAX_S),
            number("downSeconds", DOWN_S, 3_600),
            whole("worker", 0),
            whole("broker", 1),
            self.reader.text(given["command"], f"{path}.command") if "command" in given else "",
        )

    def _mapping(self, node: Node, path: str) -> Entries:
        entries, errors = self.reader.mapping(node, path)
        self.errors += errors
        return entries

    def _known(self, node: Node, path: str, names: Mapping[str, object] | tuple[str, ...]) -> Entries:
        found = {}
        for name, entry in self._mapping(node, path).items():
            if name in names:
                found[name] = entry
            else:
                sentence = f"unknown: one of {', '.join(names)}{nearest(name, names)}"
                self.errors.append(WorkloadError(entry.mark, f"{path}.{name}", sentence))
        return found

    def _texts(self, node: Node, path: str) -> dict[str, str]:
        found = {}
        for name, entry in self._mapping(node, path).items():
            if name == ACKNOWLEDGEMENT_MODE:
                sentence = f"is set by the field acknowledgement: {', '.join(BY_NAME['acknowledgement'].words)}"
                self.errors.append(WorkloadError(entry.mark, f"{path}.{name}", sentence))
                continue
            try:
                # An empty value is one of Kafka's own.
                empty = getattr(entry.node, "value", None) == ""
                self.places[f"{path}.{name}"] = entry.mark
                found[name] = "" if empty else self.reader.text(entry.node, f"{path}.{name}")
            except WorkloadError as error:
                self.errors.append(error)
        return found

    def _fault(self, field: str, sentence: str) -> None:
        """What is wrong with several fields together, told at one of them."""
        mark = self.given.get(field) or Mark(self.reader.file)
        self.errors.append(WorkloadError(mark, field, sentence))

    def _faults_together(self) -> None:
        values = self.values
        if values["faults"] and values["mode"] != "correctness":
            self._fault("faults", "are of mode correctness")
        for fault in values["faults"]:
            if fault.at_s > values["warmup_duration_seconds"] + values["test_duration_seconds"]:
                self._fault("faults", f"{fault.kind} comes after the end of the test")

    def _groups_together(self) -> None:
        values = self.values
        if values["consumer_type"] != "share":
            if values["acknowledgement"] == "record":
                self._fault("acknowledgement", "record is of share groups: consumerType is to be share")
            return
        for driver in values["driver"]:
            if driver not in SHARING:
                self._fault("consumerType", f"share: the driver {driver} has no share groups")
            elif driver in PREVIEW:
                self._whole_batches(driver)

    def _whole_batches(self, driver: str) -> None:
        """A driver whose share consumers know no other way to take records."""
        values = self.values
        maps = {
            "commonConfig": values["common_config"],
            "consumerConfig": values["consumer_config"],
            f"driverConfig.{driver}": values["driver_config"].get(driver, {}),
        }
        # The last of them that has it is the one that counts.
        given = [(path, options[ACQUIRE_MODE]) for path, options in maps.items() if ACQUIRE_MODE in options]
        if given and given[-1][1] != BATCH_OPTIMIZED:
            path, mode = given[-1]
            sentence = f"{mode}: the share groups of {driver} are a preview, which has {BATCH_OPTIMIZED} alone"
            place = f"{path}.{ACQUIRE_MODE}"
            self.errors.append(WorkloadError(self.places[place], place, sentence))

    def _together(self) -> None:
        """What fields mean beside each other."""
        values = self.values
        if values["consumer_proc_ms_min"] > values["consumer_proc_ms_max"]:
            self._fault("consumerProcMsMax", "is less than consumerProcMsMin")
        self._groups_together()
        if "producerRate" in self.given and "producerRateSchedule" in self.given:
            self._fault("producerRateSchedule", "stands beside producerRate: one of them")
        if values["mode"] == "drain-backlog" and not values["backlog_records"]:
            self._fault("mode", "drain-backlog wants backlogRecords")
        if values["mode"] == "explore-limits" and values["producer_rate_schedule"] is not None:
            self._fault("producerRateSchedule", "stands beside explore-limits, which chooses the rate itself")
        self._faults_together()
        for name in NEEDED[values["mode"]]:
            if not values[BY_NAME[name].attribute]:
                self._fault(name, f"is at least 1 in {values['mode']}")
