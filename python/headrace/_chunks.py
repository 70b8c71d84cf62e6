"""Chunks of rows from the native half, as pyarrow has them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace import _native

if TYPE_CHECKING:
    from headrace._native import Taken


KEPT_MAX = 32
"""Partitions of which a chunk is kept that was handed out in part. One that was dropped meanwhile, by a seek or with
its partition, stays no longer than this."""

NO_CHUNK: tuple[int, pa.RecordBatch] = (-1, None)


class Chunks:
    """Imports what was taken: a chunk once, its slices from there, and the schema once for all chunks."""

    __slots__ = ("_begun", "_lock", "_stream")

    def __init__(self) -> None:
        self._stream: tuple[_native.Handover, pa.RecordBatchReader] | None = None
        # By the partition's number in its consumer: callers take turns between partitions, row by row if they like.
        self._begun: dict[int, tuple[int, pa.RecordBatch]] = {}
        self._lock = Lock()

    def batch(self, taken: Taken) -> pa.RecordBatch:
        """The rows."""
        part, offset, length = taken.part, taken.offset, taken.length
        with self._lock:  # threads may take turns at polling
            # Importing a chunk through the C interface costs ten times what a slice of it does.
            number, whole = self._begun.pop(part, NO_CHUNK)
            if number != taken.chunk_id:
                whole = self._next(taken)
            if offset + length < whole.num_rows:
                if len(self._begun) >= KEPT_MAX:
                    del self._begun[next(iter(self._begun))]
                self._begun[part] = (taken.chunk_id, whole)
            elif offset == 0:
                return whole
        return whole.slice(offset, length)

    def _next(self, taken: Taken) -> pa.RecordBatch:
        if self._stream is None:
            handover = _native.Handover(taken)
            self._stream = (handover, pa.RecordBatchReader.from_stream(handover))
        handover, reader = self._stream
        handover.put(taken)
        return reader.read_next_batch()
