"""A topic that is copied, and a topic that is copied to."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from headrace._options import common, pairs
from headrace._types import TopicPartition
from headrace.admin import Admin, OffsetAndMetadata
from headrace.consumer import Consumer
from headrace.copying.places import CopyError, Origin, Positions, Ranges, Source
from headrace.errors import UnknownTopicOrPartitionError
from headrace.producer import Producer
from headrace.reading import read
from headrace.values.from_options import decoding, pinned, written_formats
from headrace.values.sending import encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from headrace._formats import SideFormat

Start = Literal["earliest", "latest"] | datetime
_COMPARED: Final = ("key", "value", "headers")


class _Clients:
    """Clients that are closed together; a context manager."""

    _clients: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes them."""
        self._clients.close()


class TopicSource(_Clients):
    """A topic that is read; a context manager.

    Args:
        servers: brokers to begin with.
        topic: its name.
        options: of a consumer, by Kafka's names.
        start: where a copy begins.
        formats: of keys and values that are to be columns.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        options: Mapping[str, str],
        start: Start = "earliest",
        formats: Iterable[SideFormat] = (),
    ) -> None:
        self._formats = {spec.side: decoding(pinned(spec, [topic])) for spec in formats}
        self.name, self._servers, self._start = topic, servers, start
        self._options = {"isolation.level": "read_committed", **dict(pairs(None, options, {}))}
        with ExitStack() as made:
            self._admin = made.enter_context(Admin(servers, common(pairs(None, self._options, {}))))
            self._consumer = made.enter_context(Consumer(servers, self._options))
            self.origin = Origin(self._admin.describe_cluster().cluster_id or "", topic, self._described().topic_id)
            self._clients = made.pop_all()

    def _described(self) -> Any:
        return self._admin.describe_topics([self.name])[self.name]

    def partitions(self) -> list[TopicPartition]:
        """All of its partitions."""
        return [TopicPartition(self.name, each.partition) for each in self._described().partitions]

    def ends(self) -> Ranges:
        """Its first offsets, and its ends as ``isolation.level`` has them."""
        described = self._described()
        if described.topic_id != self.origin.topic_id:
            message = f"{self.name} was deleted and made anew while it was copied"
            raise CopyError(message)
        partitions = [TopicPartition(self.name, each.partition) for each in described.partitions]
        first, end = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
        return {tp.partition: (first[tp], max(first[tp], end[tp])) for tp in partitions}

    def start(self, ends: Ranges) -> Positions:
        """Where the user wants a copy to begin."""
        if isinstance(self._start, datetime):
            asked = self._admin.list_offsets({(self.name, partition): self._start for partition in ends})
            return {
                tp.partition: found.offset if found.offset >= 0 else ends[tp.partition][1]
                for tp, found in asked.items()
            }
        return {partition: both[self._start == "latest"] for partition, both in ends.items()}

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """The records, of several partitions at a time."""
        if not ranges:
            return iter(())
        start, end = ({partition: both[n] for partition, both in ranges.items()} for n in (0, 1))
        options = {**self._options, "include.headers": "true"}
        key, value = self._formats.get("key"), self._formats.get("value")
        return iter(read(self._servers, self.name, start=start, end=end, config=options, key=key, value=value))


class TopicTarget(_Clients):
    """A topic that is written to; a context manager.

    How far it is, is an offset of a group in its own cluster: for each partition the topic's end, and with it the
    source's offset that comes next.

    Args:
        servers: brokers to begin with.
        topic: its name; it is made if there is none.
        options: of a producer, by Kafka's names.
        formats: of keys and values that are columns of the source.
        append: copy into a topic that has other records.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        options: Mapping[str, str],
        formats: Iterable[SideFormat] = (),
        *,
        append: bool = False,
    ) -> None:
        self._formats = tuple(formats)
        self.name, self._append, self._servers = topic, append, servers
        given = pairs(None, options, {})
        self._options = common(given)
        self._group = ""
        self._topic_id = ""
        self._to_make = 0
        self._ends: Positions = {}
        self._stored: Positions = {}
        self._sent: dict[int, int] = {}
        with ExitStack() as made:
            self._admin = made.enter_context(Admin(servers, self._options))
            self._producer = made.enter_context(Producer(servers, dict(given)))
            self._clients = made.pop_all()

    def positions(self, source: Source, ends: Ranges) -> Positions:
        """What the group says, and what was written after it."""
        self._topic_id = source.origin.topic_id
        self._group = f"headrace-copy-{source.origin.cluster_id}-{source.origin.topic}"
        if not self._is_there(source, max(ends) + 1):
            self._ends = dict.fromkeys(ends, 0)
            return {}
        partitions = {partition: TopicPartition(self.name, partition) for partition in ends}
        found = self._admin.list_offsets(dict.fromkeys(partitions.values(), "latest"))
        self._ends |= {partition: found[tp].offset for partition, tp in partitions.items()}
        committed = self._admin.group_offsets_and_metadata(self._group)
        known = {partition: committed[tp] for partition, tp in partitions.items() if tp in committed}
        fresh = [partition for partition in partitions if partition not in known and self._ends[partition] > 0]
        if fresh and not self._append:
            message = (
                f"{self.name} has records already (partition {fresh[0]}: {self._ends[fresh[0]]:,}), and no earlier "
                f"copy of {source.name} to it is known; --append copies all the same"
            )
            raise CopyError(message)
        return {partition: self._resumed(source, ends, partition, at) for partition, at in known.items()}

    def _is_there(self, source: Source, partitions: int) -> bool:
        """Whether there is such a topic; if not, it is to be made with so many partitions."""
        try:
            there = self._admin.describe_topics([self.name])[self.name]
        except UnknownTopicOrPartitionError:
            self._to_make = partitions
            return False
        if isinstance(source, TopicSource) and there.topic_id == source.origin.topic_id:
            message = f"source and target are the same topic, {self.name}, whose id is {there.topic_id}"
            raise CopyError(message)
        if len(there.partitions) < partitions:
            message = f"{self.name} has {len(there.partitions)} partition(s), and {partitions} are needed"
            raise CopyError(message)
        return True

    def _resumed(self, source: Source, ends: Ranges, partition: int, at: OffsetAndMetadata) -> int:
        """The source's offset behind all that the target has."""
        try:
            said = json.loads(at.metadata)
            following, topic_id = int(said["next"]), said["topic_id"]
        except (ValueError, KeyError, TypeError):
            message = f"the group {self._group} has offsets that headrace copy has not committed"
            raise CopyError(message) from None
        if topic_id != self._topic_id:
            message = (
                f"{source.name} was deleted and made anew since it was copied to {self.name}: its id was {topic_id} "
                f"and is {self._topic_id}; use another topic"
            )
            raise CopyError(message)
        behind = self._ends[partition] - at.offset
        if behind < 0:
            message = f"{self.name}-{partition} ends at {self._ends[partition]}, and a copy had got to {at.offset}"
            raise CopyError(message)
        if behind == 0:
            return following
        written = read(
            self._servers,
            self.name,
            start={partition: at.offset},
            end={partition: self._ends[partition]},
            config={**self._options, "include.headers": "true"},
        )
        ours = _Rows(map(self._encoded, source.read({partition: (following, ends[partition][1])})))
        for batch in written:
            behind -= batch.num_rows
            same = ours.take(batch.num_rows)
            if same is None or not _equal(same, batch):
                offset = batch.column("offset")[0].as_py()
                message = (
                    f"{self.name}-{partition} has other records from offset {offset} on than {source.name} has from "
                    f"{following} on: somebody else has written to it, or records of a broken copy were refused"
                )
                raise CopyError(message)
            following = same.column("offset")[-1].as_py() + 1
        if behind:
            message = f"{self.name}-{partition} lacks {behind} records behind offset {at.offset}: is it compacted?"
            raise CopyError(message)
        return following

    def begin(self, positions: Positions) -> None:
        """Commits where the copy begins, before anything is written."""
        if self._to_make:
            self._admin.create_topic(self.name, self._to_make)
            self._to_make = 0
        self._store(positions)

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Sends records."""
        self._producer.send_arrow(self.name, self._encoded(batch))
        self._sent[partition] = self._sent.get(partition, 0) + batch.num_rows

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._formats:
            return batch
        made = written_formats(self._formats, batch.schema)
        table = encoded(batch, self.name, key=made.get("key"), value=made.get("value"))
        return table.combine_chunks().to_batches()[0]

    def commit(self, positions: Positions) -> None:
        """Waits until all is acknowledged, looks whether anybody else has written, and commits."""
        self._producer.flush()
        partitions = {partition: TopicPartition(self.name, partition) for partition in self._sent}
        found = self._admin.list_offsets(dict.fromkeys(partitions.values(), "latest"))
        for partition, tp in partitions.items():
            wanted = self._ends[partition] + self._sent[partition]
            if found[tp].offset != wanted:
                message = (
                    f"{self.name}-{partition} ends at {found[tp].offset:,}, and with what was copied it would end at "
                    f"{wanted:,}: somebody else writes to it"
                )
                raise CopyError(message)
            self._ends[partition] = wanted
        self._sent = {}
        self._store(positions)

    def _store(self, positions: Positions) -> None:
        """Commits those that are not committed yet: a copy that follows has mostly few new ones."""
        changed = {partition: at for partition, at in positions.items() if self._stored.get(partition) != at}
        offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {
            (self.name, partition): OffsetAndMetadata(
                self._ends[partition], json.dumps({"next": following, "topic_id": self._topic_id})
            )
            for partition, following in changed.items()
        }
        if offsets:
            self._admin.alter_group_offsets(self._group, offsets)
            self._stored |= changed


class _Rows:
    """Batches of one partition, in other portions."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def take(self, count: int) -> pa.RecordBatch | None:
        """The next rows; None if there are fewer."""
        parts: list[pa.RecordBatch] = []
        while count:
            if not self._left:
                self._left = next(self._batches, None)
                if self._left is None:
                    return None
            parts.append(self._left.slice(0, count))
            count -= parts[-1].num_rows
            self._left = self._left.slice(parts[-1].num_rows)
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _equal(ours: pa.RecordBatch, theirs: pa.RecordBatch) -> bool:
    return all(ours.column(name).equals(theirs.column(name)) for name in _COMPARED)
