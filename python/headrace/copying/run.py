"""Copies, in rounds: what the source has at the moment, and then what has come since."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.copying.places import CopyError, Positions, Ranges, Source, Target

if TYPE_CHECKING:
    from collections.abc import Callable

# A copy to a topic can be checked, and goes on, from its last commit; a file is as large as a round.
_COMMIT_SECONDS: Final = 2.0
_COMMIT_BYTES: Final = 64 << 20


@dataclass
class Progress:
    """How far a copy is."""

    rows: int = 0
    """Copied by this run."""
    bytes: int = 0
    """Of their columns, in memory."""
    left: int = 0
    """Offsets that are still to be copied, of those that were there when the round began."""
    gaps: int = 0
    """Offsets that were deleted before they were copied."""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the copy began."""
        return max(time.monotonic() - self.began, 1e-9)


@dataclass
class Copy:
    """A copy from a source to a target.

    Args:
        source: a topic or a folder.
        target: likewise.
        often: commit every two seconds, and not at the end of a round only.
        allow_gaps: go on though the source lacks what comes next.
        report: called often, with how far it is.
        warn: called with a sentence.
    """

    source: Source
    target: Target
    often: bool
    allow_gaps: bool
    report: Callable[[Progress], object]
    warn: Callable[[str], object]
    progress: Progress = field(default_factory=Progress)
    _positions: Positions = field(default_factory=dict)
    _writing: bool = False
    """Or a write has failed: what the target has is then not what `_positions` say."""

    @property
    def is_committed(self) -> bool:
        """Whether all that `progress` counts is; the next run copies again what is not."""
        return not self._writing

    def plan(self) -> Ranges:
        """What a round would copy now.

        Raises:
            CopyError: source and target do not fit together, or the source lacks what comes next.
        """
        ends = self.source.ends()
        fresh = {partition: both for partition, both in ends.items() if partition not in self._positions}
        if fresh:
            known = self.target.positions(self.source, fresh)
            self._positions |= self.source.start(fresh) | known
        ranges: Ranges = {}
        for partition, (first, end) in ends.items():
            at = self._positions[partition]
            if at < first:
                self._skip(partition, at, first)
                at = self._positions[partition] = first
            if at > end:
                message = f"{self.source.name}-{partition} ends at {end:,}, and {at:,} offsets of it were copied before"
                raise CopyError(message)
            if at < end:
                ranges[partition] = (at, end)
        return ranges

    def _skip(self, partition: int, at: int, first: int) -> None:
        what = f"{self.source.name}-{partition}: offsets {at:,} to {first - 1:,} were deleted before they were copied"
        if not self.allow_gaps:
            message = f"{what}; --allow-gaps goes on without them"
            raise CopyError(message)
        self.warn(what)
        self.progress.gaps += first - at

    def round(self, ranges: Ranges) -> None:
        """Copies these ranges."""
        self.target.begin(self._positions)
        self.progress.left = sum(end - at for at, end in ranges.values())
        committed, kept = time.monotonic(), 0
        try:
            for batch in self.source.read(ranges):
                partition = batch.column("partition")[0].as_py()
                self._writing = True
                self.target.write(partition, batch)
                following = batch.column("offset")[-1].as_py() + 1
                self.progress.left -= following - self._positions[partition]
                self._positions[partition] = following
                # Not before: a signal in between would commit positions that lack what was written.
                self._writing = False
                self.progress.rows += batch.num_rows
                self.progress.bytes += batch.nbytes
                kept += batch.nbytes
                if self.often and (kept >= _COMMIT_BYTES or time.monotonic() - committed >= _COMMIT_SECONDS):
                    self._commit()
                    committed, kept = time.monotonic(), 0
                self.report(self.progress)
            self._positions |= {partition: end for partition, (_, end) in ranges.items()}
            self.progress.left = 0
        finally:
            # Also when a signal or the source has broken it off.
            if not self._writing:
                self._commit()
        self.report(self.progress)

    def _commit(self) -> None:
        self._writing = True
        self.target.commit(self._positions)
        self._writing = False

    def follow(self, interval: float) -> None:
        """Copies what comes, until somebody ends it."""
        while True:
            began = time.monotonic()
            if ranges := self.plan():
                self.round(ranges)
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
