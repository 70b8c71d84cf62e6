"""The source's and sink's options, read and checked once; names and rules are those of Spark's own connector."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from headrace._formats import OPTIONS as FORMATS
from headrace._formats import SINK_OPTIONS as SINK_FORMATS
from headrace._formats import SideFormat, side_formats, sink_formats
from headrace._options import common
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = -2
LATEST: Final = -1
LETTER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest dead letter, before compression: as much as a producer's ``buffer.memory``."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets (or times) by topic and partition."""

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of the source in Spark's order; `headers` follows with ``includeHeaders``."""

_REFUSED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "use key.format",
    "kafka.value.deserializer": "use value.format",
    "kafka.key.serializer": "use key.format",
    "kafka.value.serializer": "use value.format",
    "kafka.enable.auto.commit": "offsets live in the checkpoint",
    "kafka.interceptor.classes": "interceptors are Java classes",
}
OURS: Final = "headrace."
"""The prefix of client options that Kafka does not have. They work without ``kafka.`` in front, too."""

SOURCE: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "includeHeaders",
    "columns",
    "deadLetterTopic",
    *FORMATS,
)
"""The source's options, but for those of clients, which begin with ``kafka.`` or `OURS`."""

SINK: Final = ("topic", "includeHeaders", *SINK_FORMATS)
"""The sink's options, but for those of clients."""

_INSTEAD_OF_PATH: Final = {
    "source": "name topics with the option subscribe, subscribePattern or assign",
    "sink": "name the topic with the option or the column topic",
}

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark hands to a streaming source or sink besides its options."""

_DURATION: Final = re.compile(r"\s*(\d+)\s*(us|ms|s|min|m|h|d)?\s*", re.IGNORECASE)
_DURATION_MS: Final = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Topics:
    """Which partitions to read."""

    kind: Literal["assign", "subscribe", "subscribePattern"]
    """The option that was given."""
    assigned: dict[str, list[int]] = field(default_factory=dict)
    """Partitions by topic, for ``assign``."""
    names: tuple[str, ...] = ()
    """Topics, for ``subscribe``."""
    pattern: str = ""
    """Regular expression over whole topic names, for ``subscribePattern``."""

    def __contains__(self, name: str) -> bool:
        """Whether a topic of this name is read, or would be if it were there."""
        if self.kind == "subscribePattern":
            return re.fullmatch(self.pattern, name) is not None
        return name in self.names or name in self.assigned


@dataclass(frozen=True)
class Bound:
    """Where to begin or to end."""

    option: str
    """The option it came from, for messages."""
    everywhere: int | None = None
    """`EARLIEST` or `LATEST` for every partition."""
    offsets: Offsets | None = None
    """An offset (or `EARLIEST`, `LATEST`) by partition."""
    timestamp: int | None = None
    """Milliseconds since the epoch, for every partition."""
    timestamps: Offsets | None = None
    """Milliseconds since the epoch by partition."""


@dataclass(frozen=True)
class SourceOptions:
    """All options of a query's source."""

    topics: Topics
    start: Bound
    end: Bound
    client: tuple[tuple[str, str], ...] = field(repr=False)
    """Client options, names without ``kafka.``, sorted."""
    fail_on_data_loss: bool = True
    start_strategy: Literal["error", "latest"] = "error"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    fetch_retries: int = 3
    fetch_retry_interval_ms: int = 10
    poll_timeout_ms: int = 120_000
    columns: tuple[str, ...] = COLUMNS
    formats: tuple[SideFormat, ...] = ()
    """Of keys and values that are columns and not bytes."""
    dead_letter_topic: str | None = None
    """Where rows that cannot be decoded go; no ``on.error`` of `formats` is ``raise`` then."""

    @property
    def begins_at_end(self) -> bool:
        """Whether a new query begins, in some partition at least, wherever the log happens to end."""
        if self.start.timestamp is not None or self.start.timestamps is not None:
            return self.start_strategy == "latest"
        named = [at for partitions in (self.start.offsets or {}).values() for at in partitions.values()]
        return self.start.everywhere == LATEST or LATEST in named

    @property
    def reader(self) -> tuple[tuple[str, str], ...]:
        """Options of the reading clients: no commits, no automatic creation of topics, and the query's timeouts."""
        options = {
            "allow.auto.create.topics": "false",
            "default.api.timeout.ms": str(self.poll_timeout_ms),
            **dict(self.client),
            "enable.auto.commit": "false",
        }
        in_headers = any(spec.names_schema_in_headers for spec in self.formats)
        if self.include_headers or in_headers or self.dead_letter_topic is not None:
            options["include.headers"] = "true"
        return tuple(sorted(options.items()))

    @property
    def letters(self) -> tuple[tuple[str, str], ...]:
        """Options of the producer of dead letters: those that every client takes, and the query's time-out.

        How large a letter may be is for its topic to say, not for a default of the producer. Letters are compressed, as
        their records may have been: with the headers of origin they are larger.
        """
        options = {
            **common(self.client),
            "acks": "all",
            "compression.type": "zstd",
            "max.block.ms": dict(self.reader)["default.api.timeout.ms"],
            "max.request.size": str(LETTER_BYTES_MAX),
        }
        return tuple(sorted(options.items()))


@dataclass(frozen=True)
class SinkOptions:
    """All options of a query's sink."""

    topic: str | None
    client: tuple[tuple[str, str], ...] = field(repr=False)
    formats: tuple[SideFormat, ...] = ()
    """Of keys and values that are columns and not bytes."""


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Reads the options of a source.

    Args:
        options: as Spark hands them over; names in any case.
        streaming: whether for ``readStream``; None checks only what holds for both, as Spark asks for the schema
            before it says which it is.

    Raises:
        ConfigError: one is missing, unknown, refused or malformed; the message names it as Spark's guide writes it.
    """
    given = {key.lower(): value for key, value in options.items()}
    _check_names(options, SOURCE, "source")
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in given:
                raise ConfigError(f"{name} is for batch queries: a streaming query has no end")
    topics = _topics(given)
    start = _bound(given, "starting", default=LATEST if streaming else EARLIEST)
    end = _bound(given, "ending", default=LATEST)
    if streaming is False:
        _check_batch_bounds(start, end)
    minimum = _positive(given, "minOffsetsPerTrigger")
    maximum = _positive(given, "maxOffsetsPerTrigger")
    if streaming and minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(f"minOffsetsPerTrigger ({minimum}) is greater than maxOffsetsPerTrigger ({maximum})")
    formats = side_formats(given)
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in {"error", "latest"}:
        raise ConfigError(f"startingOffsetsByTimestampStrategy is 'error' or 'latest', not {strategy!r}")
    headers = _boolean(given, "includeHeaders", default=False)
    return SourceOptions(
        topics=topics,
        start=start,
        end=end,
        client=_client(given),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        start_strategy="latest" if strategy == "latest" else "error",
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=_duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        include_headers=headers,
        fetch_retries=_positive(given, "fetchOffset.numRetries") or 3,
        fetch_retry_interval_ms=_positive(given, "fetchOffset.retryIntervalMs") or 10,
        poll_timeout_ms=_positive(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
        columns=_columns(given, headers=headers, formats=formats),
        formats=formats,
        dead_letter_topic=_dead_letter_topic(given, topics, formats),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Reads the options of a sink.

    Raises:
        ConfigError: one is missing, unknown, refused or malformed.
    """
    _check_names(options, SINK, "sink")
    given = {key.lower(): value for key, value in options.items()}
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty; leave it out to take each row's topic from the column topic")
    topic = topic.strip() if topic else None
    return SinkOptions(topic=topic, client=_client(given), formats=sink_formats(given, topic))


def _check_names(options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
    by_name = {name.lower(): name for name in (*known, "kafka.bootstrap.servers")}
    for key in options:
        name = key.lower()
        if name in _REFUSED:
            raise ConfigError(f"{key} cannot be set: {_REFUSED[name]}")
        if name == "kafka.isolation.level" and options[key].strip().lower() == "read_committed":
            # A task would wait for rows behind an open transaction: where a query ends is asked without regard to it.
            raise ConfigError(f"{key} cannot be read_committed yet: queries read up to the end of the log")
        if name.startswith(("kafka.", OURS)) or name in by_name or name in _SPARKS_OWN:
            continue
        if name == "path":
            raise ConfigError(f"the headrace {what} has no path: {_INSTEAD_OF_PATH[what]}")
        near = get_close_matches(name, by_name, n=1)
        hint = f"; did you mean {by_name[near[0]]}?" if near else ""
        raise ConfigError(f"unknown option {key} of the headrace {what}{hint}")


def _client(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    client = {key.removeprefix("kafka."): value for key, value in given.items() if key.startswith("kafka.")}
    for key, value in given.items():
        if key.startswith(OURS) and client.setdefault(key, value) != value:
            raise ConfigError(f"{key} and kafka.{key} are one option, and differ")
    if not client.get("bootstrap.servers"):
        raise ConfigError("option kafka.bootstrap.servers must be set, such as 'host1:9092,host2:9092'")
    return tuple(sorted(client.items()))


def _topics(given: Mapping[str, str]) -> Topics:
    chosen = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none of them"
        raise ConfigError(f"exactly one of assign, subscribe and subscribePattern must be set, found {found}")
    text = given[chosen[0].lower()].strip()
    if chosen[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise ConfigError("subscribe names no topic")
        return Topics("subscribe", names=names)
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern {text!r} is no regular expression: {error}") from error
        return Topics("subscribePattern", pattern=text)
    wrong = ConfigError(f'assign is a JSON object such as {{"topicA":[0,1]}}, not {text!r}')
    parsed = _json("assign", text, wrong)
    if not isinstance(parsed, dict) or not parsed:
        raise wrong
    assigned: dict[str, list[int]] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions):
            raise wrong
        assigned[topic] = sorted(set(partitions))
    return Topics("assign", assigned=assigned)


def _bound(given: Mapping[str, str], prefix: Literal["starting", "ending"], *, default: int) -> Bound:
    timestamp = given.get(f"{prefix}timestamp")
    if timestamp is not None:
        name = f"{prefix}Timestamp"
        if not timestamp.strip().isdecimal():
            raise ConfigError(f"{name} is milliseconds since the epoch, not {timestamp!r}")
        return Bound(name, timestamp=int(timestamp))
    times = given.get(f"{prefix}offsetsbytimestamp")
    if times is not None:
        name = f"{prefix}OffsetsByTimestamp"
        return Bound(name, timestamps=parse_offsets(name, times, least=0))
    name = f"{prefix}Offsets"
    text = given.get(f"{prefix}offsets", "").strip()
    if not text:
        return Bound(name, everywhere=default)
    if text.lower() in {"earliest", "latest"}:
        return Bound(name, everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    return Bound(name, offsets=parse_offsets(name, text, least=EARLIEST))


def parse_offsets(name: str, text: str, *, least: int) -> Offsets:
    """Reads ``{"topic":{"0":23}}``; ``least`` is the smallest number allowed.

    Raises:
        ConfigError: it is not of that form.
    """
    wrong = ConfigError(f'{name} is a JSON object such as {{"topicA":{{"0":23,"1":-1}}}}, not {text!r}')
    parsed = _json(name, text, wrong)
    if not isinstance(parsed, dict):
        raise wrong
    offsets: Offsets = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool) or offset < least:
                raise wrong
            found = offsets.setdefault(topic, {})
            if int(partition) in found:
                # JSON's keys are texts: "0" and "00" are two of them.
                raise ConfigError(f"{name} names {topic}-{int(partition)} twice: {text!r}")
            found[int(partition)] = offset
    return offsets


def _json(name: str, text: str, wrong: ConfigError) -> Any:
    """Reads JSON in which each object has a key once: of two values for one key, nobody knows which is meant.

    Raises:
        ConfigError: a key is there twice; or ``wrong``, as it is no JSON.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{name} names {key!r} twice: {text!r}")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise wrong from error


def _check_batch_bounds(start: Bound, end: Bound) -> None:
    if start.everywhere == LATEST:
        raise ConfigError("startingOffsets 'latest' is for streaming queries: a batch would always be empty")
    if end.everywhere == EARLIEST:
        raise ConfigError("endingOffsets cannot be 'earliest': a batch would always be empty")
    for bound, forbidden, word in ((start, LATEST, "-1 (latest)"), (end, EARLIEST, "-2 (earliest)")):
        for topic, partitions in (bound.offsets or {}).items():
            for partition, offset in partitions.items():
                if offset == forbidden:
                    raise ConfigError(f"{bound.option} of {topic}-{partition} cannot be {word} in a batch query")
    if start.offsets is not None and end.offsets is not None:
        _check_pairs(start.offsets, end.offsets)


def _check_pairs(start: Offsets, end: Offsets) -> None:
    """Holds a batch's explicit offsets against each other; negative ones are not known yet."""
    if {t: set(parts) for t, parts in start.items()} != {t: set(parts) for t, parts in end.items()}:
        raise ConfigError("startingOffsets and endingOffsets must name the same partitions")
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            stop = end[topic][partition]
            if 0 <= stop < offset:
                raise ConfigError(
                    f"startingOffsets of {topic}-{partition} ({offset}) is greater than its endingOffsets ({stop})"
                )


def _columns(given: Mapping[str, str], *, headers: bool, formats: tuple[SideFormat, ...]) -> tuple[str, ...]:
    allowed = (*COLUMNS, "headers") if headers else COLUMNS
    reported = [name for spec in formats for name in spec.reported]
    # If any side reports, the bytes of both are those of its bad rows.
    allowed = (*allowed, *reported, *(f"{spec.side}_bytes" for spec in formats if reported))
    text = given.get("columns")
    if text is None:
        return allowed
    by_name = {name.lower(): name for name in allowed}
    wanted = {part.strip().lower() for part in text.split(",") if part.strip()}
    unknown = sorted(wanted - by_name.keys())
    if unknown or not wanted:
        raise ConfigError(f"columns takes some of {', '.join(allowed)}, not {text!r}")
    return tuple(name for name in allowed if name.lower() in wanted)


def _dead_letter_topic(given: Mapping[str, str], topics: Topics, formats: tuple[SideFormat, ...]) -> str | None:
    name = given.get("deadlettertopic")
    if name is None:
        return None
    name = name.strip()
    if not name:
        raise ConfigError("deadLetterTopic is empty; leave it out to send bad rows nowhere")
    if not formats:
        raise ConfigError("deadLetterTopic has no effect without value.format or key.format: nothing is decoded")
    for spec in formats:
        if spec.on_error == "raise":
            raise ConfigError(
                f"deadLetterTopic and {spec.side}.on.error=raise (the default) exclude each other, as a bad row would "
                f"end the task: set {spec.side}.on.error to null or column"
            )
    if name in topics:
        raise ConfigError(
            f"deadLetterTopic is {name}, which {topics.kind} reads: its letters would come back as rows; name another"
        )
    return name


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name.lower())
    if value is None:
        return default
    if value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    raise ConfigError(f"{name} is true or false, not {value!r}")


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if value.strip().isdecimal() and int(value) > 0:
        return int(value)
    raise ConfigError(f"{name} is a whole number above 0, not {value!r}")


def _duration_ms(name: str, text: str) -> int:
    found = _DURATION.fullmatch(text)
    if not found:
        raise ConfigError(f"{name} is a duration such as 500ms, 30s, 15m or 2h, not {text!r}")
    return int(int(found[1]) * _DURATION_MS[(found[2] or "ms").lower()])
