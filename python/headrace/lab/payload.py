"""The values of records: a head that says what is measured, and filler.

The head is 24 bytes, little endian: due time (int64, nanoseconds since the epoch: when the record should have been
sent), producer (uint16), magic (uint16), CRC-32 of the rest (uint32; 0 where it is not asked for), sequence (uint64)
within the producer.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace._native import ValueMaker
from headrace.lab.columns import column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lab.workload import Workload

MAGIC: Final = 0x4C48
HEAD: Final = np.dtype([("due", "<i8"), ("producer", "<u2"), ("magic", "<u2"), ("crc", "<u4"), ("sequence", "<u8")])
CRC_BEGIN: Final = 12
CRC_END: Final = 16
POOL_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True)
class Heads:
    """What stands in the heads of some values; `ours` marks those that have one, the others are left out."""

    due: NDArray[np.int64]
    producer: NDArray[np.uint16]
    sequence: NDArray[np.uint64]
    ours: NDArray[np.bool_]


class Payloads:
    """Makes one producer's values."""

    def __init__(self, workload: Workload, producer: int, *, checked: bool = False) -> None:
        fillers = _pool(workload, producer).tobytes()
        self._maker = ValueMaker(producer, workload.message_size, fillers, checked)

    def make(self, due: NDArray[np.int64], first: int) -> pa.BinaryArray:
        """Values of records with these due times; `first` is the sequence of the first."""
        return self._maker.make(column(due), first)


def _pool(workload: Workload, producer: int) -> NDArray[np.uint8]:
    """Different fillers, a row each."""
    size = workload.message_size - HEAD.itemsize
    if workload.payload_file is not None:
        given = np.frombuffer(Path(workload.payload_file).read_bytes() or b"\0", np.uint8)
        return np.resize(given, (1, size))
    if not workload.use_randomized_payloads or not size:
        return np.zeros((1, size), np.uint8)
    count = max(min(workload.randomized_payload_pool_size, POOL_BYTES_MAX // size), 1)
    pool = np.zeros((count, size), np.uint8)
    drawn = round(size * workload.random_bytes_ratio)
    pool[:, :drawn] = np.random.default_rng([workload.seed, producer]).integers(0, 256, (count, drawn), np.uint8)
    return pool


def _crc(row: NDArray[np.uint8]) -> int:
    return zlib.crc32(row[CRC_END:].tobytes(), zlib.crc32(row[:CRC_BEGIN].tobytes()))


def read(values: pa.Array) -> Heads:
    """The heads of some values."""
    data, starts, lengths = _layout(values)
    long_enough = lengths >= HEAD.itemsize
    at = starts[long_enough]
    raw = data[at[:, None] + np.arange(HEAD.itemsize)] if len(at) else np.empty((0, HEAD.itemsize), np.uint8)
    heads = np.ascontiguousarray(raw).view(HEAD).reshape(len(at))
    marked = heads["magic"] == MAGIC
    ours = long_enough.copy()
    ours[long_enough] = marked
    heads = heads[marked]
    return Heads(heads["due"], heads["producer"], heads["sequence"], ours)


def verify(values: pa.Array) -> NDArray[np.bool_]:
    """Which values are as they were made (with ``checked``)."""
    data, starts, lengths = _layout(values)
    right = np.zeros(len(starts), np.bool_)
    for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        row = data[start : start + length]
        if length >= HEAD.itemsize:
            right[i] = int.from_bytes(row[CRC_BEGIN:CRC_END].tobytes(), "little") == _crc(row)
    return right


def _layout(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The bytes of an array of values, and where each begins and how long it is; nulls have no length."""
    kind: Any = values.type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        values = values.cast(pa.large_binary())
        kind = values.type
    width = np.int64 if pa.types.is_large_binary(kind) else np.int32
    _, offsets_buffer, data_buffer = values.buffers()
    if not len(values):
        nothing = np.empty(0, np.int64)
        return np.empty(0, np.uint8), nothing, nothing
    count = len(values) + 1
    offsets = np.frombuffer(offsets_buffer, width, count, values.offset * np.dtype(width).itemsize).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data, offsets[:-1], np.diff(offsets)
