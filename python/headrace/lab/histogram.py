"""HdrHistogram with numpy: microseconds from 1 to an hour, three digits, the usual layout and the usual text form.

The text form is HdrHistogram's V2, compressed, in base64: other languages' libraries read it, and this reads theirs. A
batch of values is recorded at once, which in a library that takes one at a time costs a microsecond for each.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace._native import TimeCounts
from headrace.lab.columns import column

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

LOWEST: Final = 1
HIGHEST: Final = 3_600_000_000
DIGITS: Final = 3
_HALF_BITS: Final = 10
_HALF: Final = 1 << _HALF_BITS
_BUCKETS: Final = 22
_COUNTS: Final = (_BUCKETS + 1) * _HALF
_COOKIE: Final = 0x1C849313
_COOKIE_COMPRESSED: Final = 0x1C849314
_HEADER: Final = struct.Struct(">iiiiqqd")
_BYTES_MAX: Final = _COUNTS * 9 + _HEADER.size

QUANTILES: Final = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p99.9": 99.9, "p99.99": 99.99}


class HistogramError(ValueError):
    """A text is no histogram, or one of another range."""


class Histogram:
    """Counts of values."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(_COUNTS, np.int64)
        self.total = 0

    def add(self, values_us: NDArray[Any], weight: int = 1) -> None:
        """Records values, each `weight` times; those out of the range count as its ends."""
        if len(values_us):
            np.add.at(self.counts, _index(np.clip(values_us, 0, HIGHEST).astype(np.int64)), weight)
            self.total += len(values_us) * weight

    def merge(self, other: Histogram) -> None:
        """Adds another's counts."""
        self.counts += other.counts
        self.total += other.total

    def at(self, percentile: float) -> int:
        """The value that so many percent do not exceed, in microseconds; 0 if there is none."""
        if not self.total:
            return 0
        wanted = max(int(np.ceil(percentile / 100 * self.total - 1e-9)), 1)
        return _highest(int(np.searchsorted(np.cumsum(self.counts), wanted)))

    @property
    def highest(self) -> int:
        """The largest value, in microseconds; 0 if there is none."""
        return self.at(100)

    @property
    def mean(self) -> float:
        """The mean in microseconds; 0 if there is none."""
        if not self.total:
            return 0.0
        used = np.flatnonzero(self.counts)
        middles = np.array([(_lowest(int(i)) + _highest(int(i)) + 1) / 2 for i in used])
        return float((middles * self.counts[used]).sum() / self.total)

    def summary(self) -> dict[str, float]:
        """Percentiles, mean and maximum in milliseconds, and the count."""
        reported: dict[str, float] = {name: self.at(percentile) / 1000 for name, percentile in QUANTILES.items()}
        return {**reported, "max": self.highest / 1000, "mean": self.mean / 1000, "count": self.total}

    def encode(self) -> str:
        """HdrHistogram's text form."""
        payload = bytearray()
        before = 0
        for index in np.flatnonzero(self.counts).tolist():
            if index > before:
                _put(payload, before - index)
            _put(payload, int(self.counts[index]))
            before = index + 1
        head = _HEADER.pack(_COOKIE, len(payload), 0, DIGITS, LOWEST, HIGHEST, 1.0)
        packed = zlib.compress(head + bytes(payload), 1)
        return base64.b64encode(struct.pack(">ii", _COOKIE_COMPRESSED, len(packed)) + packed).decode()

    @classmethod
    def decode(cls, text: str) -> Histogram:
        """Reads the text form.

        Raises:
            HistogramError: it is none, or of another range or precision.
        """
        try:
            raw = base64.b64decode(text, validate=True)
            cookie, length = struct.unpack_from(">ii", raw)
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(raw[8 : 8 + length], _BYTES_MAX)
            inner, size, shift, digits, lowest, highest, _ = _HEADER.unpack_from(plain)
        except (ValueError, struct.error, zlib.error) as error:
            raise HistogramError(f"not a histogram: {error}") from None
        if (cookie, inner) != (_COOKIE_COMPRESSED, _COOKIE) or size != len(plain) - _HEADER.size:
            raise HistogramError("not a histogram of version 2")
        if (shift, digits, lowest, highest) != (0, DIGITS, LOWEST, HIGHEST):
            raise HistogramError(f"a histogram from {lowest} to {highest} with {digits} digits")
        histogram = cls()
        at = 0
        for number in _numbers(plain[_HEADER.size :]):
            if number < 0:
                at -= number
                continue
            if at >= _COUNTS:
                raise HistogramError("a histogram with too many counts")
            histogram.counts[at] = number
            at += 1
        histogram.total = int(histogram.counts.sum())
        return histogram


def merged(texts: Iterable[str]) -> Histogram:
    """The sum of encoded histograms."""
    total = Histogram()
    for text in texts:
        total.merge(Histogram.decode(text))
    return total


class Recorder:
    """A histogram that several threads record in, and one takes away from time to time."""

    def __init__(self) -> None:
        self.counts = TimeCounts()
        """Where native code counts."""

    def add(self, begins_ns: int | NDArray[np.int64], ends_ns: int | NDArray[np.int64], times: int = 1) -> None:
        """Records the times between these moments, each so many times; either may be one for all."""
        self.counts.add(_moments(begins_ns), _moments(ends_ns), times)

    def take(self) -> str | None:
        """What was recorded since the last time; None if nothing."""
        counts = self.counts.take()
        if counts is None:
            return None
        full = Histogram()
        full.counts = np.frombuffer(counts, "<i8")
        return full.encode()


def _moments(given: int | NDArray[np.int64]) -> int | pa.Int64Array:
    return given if isinstance(given, int) else column(given)


def _index(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where values are counted. The exponent of a float is the number of an integer's bits, exact below 2^53."""
    bits = np.frexp((values | (2 * _HALF - 1)).astype(np.float64))[1].astype(np.int64)
    bucket = bits - (_HALF_BITS + 1)
    indexes: NDArray[np.int64] = (bucket << _HALF_BITS) + (values >> bucket)
    return indexes


def _lowest(index: int) -> int:
    bucket = max((index >> _HALF_BITS) - 1, 0)
    return (index - (bucket << _HALF_BITS)) << bucket


def _highest(index: int) -> int:
    return _lowest(index) + (1 << max((index >> _HALF_BITS) - 1, 0)) - 1


def _put(payload: bytearray, number: int) -> None:
    """ZigZag, then LEB128 whose ninth byte has eight bits."""
    rest = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    for _ in range(8):
        if rest < 0x80:  # noqa: PLR2004
            payload.append(rest)
            return
        payload.append(rest & 0x7F | 0x80)
        rest >>= 7
    payload.append(rest)


def _numbers(payload: bytes) -> Iterable[int]:
    at = 0
    while at < len(payload):
        value = shift = 0
        while True:
            if at >= len(payload):
                raise HistogramError("a histogram that ends within a number")
            byte = payload[at]
            at += 1
            if shift == 56:  # noqa: PLR2004  (the ninth byte)
                value |= byte << shift
                break
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004
                break
        yield (value >> 1) ^ -(value & 1)
