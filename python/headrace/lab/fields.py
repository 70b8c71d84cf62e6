"""The fields of a workload: one table for the parser, its messages, ``--set`` and the page docs/lab.md."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DRIVERS: Final = ("headrace", "java", "confluent-kafka", "kafka-python")
SHARING: Final = frozenset({"headrace", "java", "confluent-kafka"})
"""The drivers with share groups."""

PREVIEW: Final = frozenset({"confluent-kafka"})
"""Those whose authors call their share groups a preview; they only have ``batch_optimized``."""

MODES: Final = ("run", "explore-limits", "drain-backlog", "correctness")
HEAD_BYTES: Final = 24
"""The first bytes of a value carry what is measured: due time, producer, magic, CRC-32, sequence."""


@dataclass(frozen=True)
class Field:
    """One field. `kind` says how its value is read, `default_text` how the page shows the default, if not literally."""

    name: str
    kind: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    default_text: str = ""

    @property
    def attribute(self) -> str:
        """Its name in `Workload`."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name).lower()


FIELDS: Final = (
    Field(
        "name",
        "name",
        "",
        "name of the results, and part of the names of topics and groups",
        default_text="the file's name",
    ),
    Field("description", "text", "", "shown in the report"),
    Field("mode", "word", "run", "what to do, see below", words=MODES),
    Field(
        "driver",
        "words",
        ("headrace",),
        "the client libraries to drive; several run one after the other",
        words=DRIVERS,
    ),
    Field("topics", "whole", 1, "number of topics, which the run creates and deletes", 1, 1_000),
    Field("partitionsPerTopic", "whole", 1, "partitions of each topic", 1, 10_000, aliases=("partitions",)),
    Field("replicationFactor", "whole", -1, "replicas of each partition; -1 is the broker's default", -1, 100),
    Field("topicConfig", "map", {}, "topic settings by Kafka's names"),
    Field("messageSize", "whole", 100, "size of a value in bytes", HEAD_BYTES, 100_000_000),
    Field("useRandomizedPayloads", "flag", default=False, meaning="whether part of each value is random"),
    Field("randomBytesRatio", "number", 0.5, "fraction of random bytes in a value", 0, 1),
    Field("randomizedPayloadPoolSize", "whole", 1000, "number of different random payloads", 1, 100_000),
    Field("payloadFile", "file", None, "file with the bytes that follow the measured head of a value"),
    Field("messageDistributor", "distributor", None, "which partition a record goes to, see below"),
    Field("producersPerTopic", "whole", 1, "producers for each topic", 0, 1_000, aliases=("producers",)),
    Field("producerRate", "number", 0.0, "records per second, all producers together; 0: no limit", 0, 1e9),
    Field("producerRateSchedule", "schedule", None, "rates that change over time, instead of producerRate, see below"),
    Field("consumerType", "word", "group", "consumer groups or share groups", words=("group", "share")),
    Field("subscriptionsPerTopic", "whole", 1, "number of groups; each reads all topics", 0, 100),
    Field("consumerPerSubscription", "whole", 1, "members of each group", 0, 1_000, aliases=("consumers",)),
    Field(
        "acknowledgement",
        "word",
        "batch",
        "how share groups acknowledge: a poll's records by the next poll, or one by one with a commit per poll",
        words=("batch", "record"),
    ),
    Field("workers", "whole", 1, "processes that a group's members are spread over", 1, 100),
    Field(
        "consumerProcMsMin", "number", 0.0, "simulated work per record in ms, uniformly random from this", 0, 3_600_000
    ),
    Field("consumerProcMsMax", "number", None, "… to this", 0, 3_600_000, default_text="`consumerProcMsMin`"),
    Field("consumerProcParallelism", "parallelism", 1, "records worked on in parallel; -1: all records of a poll"),
    Field("producerConfig", "map", {}, "producer options, by Kafka's names"),
    Field("consumerConfig", "map", {}, "consumer options, by Kafka's names"),
    Field("commonConfig", "map", {}, "options for both producers and consumers"),
    Field("groupConfig", "map", {}, "settings of each group, applied before it is used"),
    Field("driverConfig", "maps", {}, "options that override those three for one driver: a map from driver to maps"),
    Field("backlogRecords", "whole", 0, "records written before consumers start", 0, 10_000_000_000),
    Field("warmupDurationSeconds", "number", 10.0, "time at the start that is not measured", 0, 86_400),
    Field("testDurationSeconds", "number", 60.0, "time that is measured", 1, 864_000),
    Field("drainTimeoutSeconds", "number", 600.0, "the longest that a drain may take", 1, 86_400),
    Field("explore", "explore", None, "how explore-limits searches for the limit, see below"),
    Field("faults", "faults", (), "what correctness does to consumers and brokers, see below"),
    Field(
        "dimensions",
        "dimensions",
        {},
        "a map from field to list of values; every combination is run, the last field varying fastest",
    ),
    Field("seed", "whole", 1, "random seed of distributors, work and payloads", 0, 2**32 - 1),
)

BEGIN: Final = "<!-- fields -->\n"
END: Final = "<!-- /fields -->"
BY_NAME: Final = {name: field for field in FIELDS for name in (field.name, *field.aliases)}


def page() -> str:
    """The table of docs/lab.md."""
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for field in FIELDS:
        names = ", ".join(f"`{name}`" for name in (field.name, *field.aliases))
        lines.append(f"| {names} | {_default(field)} | {_meaning(field)} |")
    return "\n".join(lines) + "\n"


def _default(field: Field) -> str:
    if field.default_text:
        return field.default_text
    if field.kind == "flag":
        return str(field.default).lower()
    if field.kind == "words":
        return ", ".join(field.default)
    if field.default is None or field.default in ("", {}, ()):
        return "NO_KEY" if field.kind == "distributor" else ""
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _meaning(field: Field) -> str:
    if field.words:
        return f"{field.meaning}: {', '.join(field.words)}"
    if field.low is None or field.high is None:
        return field.meaning
    return f"{field.meaning} ({field.low:,.12g} to {field.high:,.12g})"


def rewrite(text: str) -> str:
    """The page with the current table between its marks."""
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return head + BEGIN + page() + END + tail


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
