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
"""Those whose share groups are a preview, by their makers' word; they have ``batch_optimized`` alone."""

MODES: Final = ("run", "explore-limits", "drain-backlog", "correctness")
HEAD_BYTES: Final = 24
"""What is measured stands in the first bytes of a value: due time, producer, magic, CRC-32, sequence."""


@dataclass(frozen=True)
class Field:
    """One field. `kind` says how its value is read, `default_text` how the page tells the default if not as it is."""

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
    Field("name", "name", "", "of results, topics and groups", default_text="the file's name"),
    Field("description", "text", "", "shown in the report"),
    Field("mode", "word", "run", "what is done, see below", words=MODES),
    Field("driver", "words", ("headrace",), "the clients; several run one after the other", words=DRIVERS),
    Field("topics", "whole", 1, "topics of the run's own, made and deleted by it", 1, 1_000),
    Field("partitionsPerTopic", "whole", 1, "partitions of each", 1, 10_000, aliases=("partitions",)),
    Field("replicationFactor", "whole", -1, "copies of each partition; -1 is the broker's default", -1, 100),
    Field("topicConfig", "map", {}, "topic settings by Kafka's names"),
    Field("messageSize", "whole", 100, "bytes of a value", HEAD_BYTES, 100_000_000),
    Field("useRandomizedPayloads", "flag", default=False, meaning="whether a part of each value is random"),
    Field("randomBytesRatio", "number", 0.5, "the share of random bytes", 0, 1),
    Field("randomizedPayloadPoolSize", "whole", 1000, "different random payloads", 1, 100_000),
    Field("payloadFile", "file", None, "bytes behind the measured head, from this file"),
    Field("messageDistributor", "distributor", None, "which partition a record goes to, see below"),
    Field("producersPerTopic", "whole", 1, "producers of each topic", 0, 1_000, aliases=("producers",)),
    Field("producerRate", "number", 0.0, "records a second of all producers together; 0: as many as they can", 0, 1e9),
    Field("producerRateSchedule", "schedule", None, "rates over time in place of producerRate, see below"),
    Field("consumerType", "word", "group", "consumer groups or share groups", words=("group", "share")),
    Field("subscriptionsPerTopic", "whole", 1, "groups that read all topics", 0, 100),
    Field("consumerPerSubscription", "whole", 1, "members of each group", 0, 1_000, aliases=("consumers",)),
    Field(
        "acknowledgement",
        "word",
        "batch",
        "share groups: a poll's records by the next poll, or each by itself and a commit a poll",
        words=("batch", "record"),
    ),
    Field("workers", "whole", 1, "processes that a group's members are spread over", 1, 100),
    Field("consumerProcMsMin", "number", 0.0, "work on a record in ms, uniformly between this", 0, 3_600_000),
    Field("consumerProcMsMax", "number", None, "… and this", 0, 3_600_000, default_text="`consumerProcMsMin`"),
    Field("consumerProcParallelism", "parallelism", 1, "records worked on at once; -1: all that a poll gave"),
    Field("producerConfig", "map", {}, "options of producers by Kafka's names"),
    Field("consumerConfig", "map", {}, "options of consumers by Kafka's names"),
    Field("commonConfig", "map", {}, "options of both"),
    Field("groupConfig", "map", {}, "settings of each group, set before it is used"),
    Field("driverConfig", "maps", {}, "options over those three, for one driver: a map by driver"),
    Field("backlogRecords", "whole", 0, "records written before consumers start", 0, 10_000_000_000),
    Field("warmupDurationSeconds", "number", 10.0, "at the begin, not counted", 0, 86_400),
    Field("testDurationSeconds", "number", 60.0, "counted", 1, 864_000),
    Field("drainTimeoutSeconds", "number", 600.0, "the longest that a drain may take", 1, 86_400),
    Field("explore", "explore", None, "how explore-limits looks for its limit, see below"),
    Field("faults", "faults", (), "what is done to consumers and brokers in correctness, see below"),
    Field("dimensions", "dimensions", {}, "field to list of values; every combination is run, the last fastest"),
    Field("seed", "whole", 1, "of distributors, work and payloads", 0, 2**32 - 1),
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
    """A page with the table of now between its marks."""
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return head + BEGIN + page() + END + tail


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
