"""Chunks of rows from the native half, as pyarrow has them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace import _native

if TYPE_CHECKING:
    from headrace._native import Taken


class Chunks:
    """Imports what was taken: a chunk once, its slices from there, and the schema once for all chunks."""

    __slots__ = ("_last", "_lock", "_stream")

    def __init__(self) -> None:
        self._stream: tuple[_native.Handover, pa.RecordBatchReader] | None = None
        self._last: tuple[int, pa.RecordBatch] | None = None
        self._lock = Lock()

    def batch(self, taken: Taken) -> pa.RecordBatch:
        """The rows."""
        # Importing a chunk through the C interface costs ten times what a slice of it does.
        chunk = self._last
        if chunk is None or chunk[0] != taken.chunk_id:
            chunk = self._last = (taken.chunk_id, self._next(taken))
        whole = chunk[1]
        if taken.offset + taken.length == whole.num_rows:
            self._last = None  # nothing more comes of it
        if taken.offset == 0 and taken.length == whole.num_rows:
            return whole
        return whole.slice(taken.offset, taken.length)

    def _next(self, taken: Taken) -> pa.RecordBatch:
        with self._lock:  # two threads may take turns at polling: each is to read what it has put
            if self._stream is None:
                handover = _native.Handover(taken)
                self._stream = (handover, pa.RecordBatchReader.from_stream(handover))
            handover, reader = self._stream
            handover.put(taken)
            return reader.read_next_batch()
