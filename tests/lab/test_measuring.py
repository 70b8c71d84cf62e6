"""Payloads, histograms and work."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import ValueMaker
from headrace.lab import campaign, payload
from headrace.lab.histogram import HIGHEST, Histogram, HistogramError, Recorder, merged
from headrace.lab.payload import HEAD, Payloads
from headrace.lab.work import Work
from tests.kafka import java


@pytest.fixture
def workload(tmp_path):
    def make(text: str):
        path = tmp_path / "w.yaml"
        path.write_text(text)
        return campaign.load(path).variations[0].workload

    return make


DUE = np.array([10**18, 10**18 + 1, 10**18 + 5])


@pytest.mark.parametrize("size", [24, 25, 100])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()])
def test_what_was_made_is_read(workload, size, kind):
    values = Payloads(workload(f"messageSize: {size}"), 7, checked=True).make(DUE, 40)
    if kind == pa.string():
        kind = pa.dictionary(pa.int8(), pa.binary())
    heads = payload.read(values.cast(kind)[1:])
    assert heads.due.tolist() == DUE[1:].tolist()
    assert heads.sequence.tolist() == [41, 42]
    assert heads.producer.tolist() == [7, 7]
    assert heads.ours.tolist() == [True, True]
    assert payload.verify(values).all()


def test_sequences_end_with_their_64_bits(workload):
    payloads = Payloads(workload("messageSize: 24"), 7)
    assert payload.read(payloads.make(DUE, 2**64 - 3)).sequence.tolist() == [2**64 - 3, 2**64 - 2, 2**64 - 1]
    assert len(payloads.make(DUE[:0], 2**64 - 1)) == 0
    with pytest.raises(ValueError, match="3 values from 18446744073709551614 on"):
        payloads.make(DUE, 2**64 - 2)


def test_bytes_of_others_are_told_apart(workload):
    [good] = Payloads(workload("messageSize: 30"), 1).make(DUE[:1], 0).to_pylist()
    heads = payload.read(pa.array([b"", b"short", good, None, b"x" * 30, good], pa.binary()))
    assert heads.ours.tolist() == [False, False, True, False, False, True]
    assert heads.sequence.tolist() == [0, 0]
    assert len(payload.read(pa.array([], pa.binary())).due) == 0


def test_a_changed_byte_is_seen(workload):
    made = Payloads(workload("messageSize: 40\nuseRandomizedPayloads: true"), 1, checked=True).make(DUE, 0).to_pylist()
    for at in range(40):
        spoiled = bytearray(made[1])
        spoiled[at] ^= 1
        assert payload.verify(pa.array([made[0], bytes(spoiled)], pa.binary())).tolist() == [True, False]


def test_fillers(workload, tmp_path):
    text = "messageSize: 124\nuseRandomizedPayloads: true\nrandomBytesRatio: 0.25\nrandomizedPayloadPoolSize: 3"
    made = Payloads(workload(text), 0).make(np.arange(5), 0).to_pylist()
    fillers = [value[HEAD.itemsize :] for value in made]
    assert all(filler[25:] == bytes(75) for filler in fillers)
    assert len(set(fillers)) == 3
    (tmp_path / "p.bin").write_bytes(b"abc")
    [value] = Payloads(workload("messageSize: 29\npayloadFile: p.bin"), 0).make(np.arange(1), 0).to_pylist()
    assert value[HEAD.itemsize :] == b"abcab"


def by_numpy(work, producer, due, first, *, checked):
    """The bytes of values as docs/lab.md describes them."""
    pool = payload._pool(work, producer)
    for at, moment in enumerate(due.tolist()):
        head = np.zeros(1, HEAD)
        head["due"], head["producer"], head["magic"], head["sequence"] = moment, producer, payload.MAGIC, first + at
        filler = pool[(first + at) % len(pool)].tobytes()
        if checked:
            raw = head.tobytes()
            head["crc"] = zlib.crc32(raw[:12] + raw[16:] + filler)
        yield head.tobytes() + filler


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("text", ["messageSize: 24", "messageSize: 25", "{}", "useRandomizedPayloads: true"])
def test_values_are_made_as_they_are_described(workload, text, checked):
    work = workload(f"{text}\nrandomizedPayloadPoolSize: 7" if text != "{}" else text)
    maker = Payloads(work, 65_535, checked=checked)
    random = np.random.default_rng(1)
    for first in (0, 6, 2**64 - 3_000):
        due = random.integers(-(2**63), 2**63 - 1, 2_000)
        assert maker.make(due, first).to_pylist() == list(by_numpy(work, 65_535, due, first, checked=checked))
    assert len(maker.make(due[:0], 0)) == 0


def test_values_that_cannot_be_made():
    for size, fillers in ((23, b""), (24, b"x"), (26, b"xyz"), (26, b"")):
        with pytest.raises(ValueError, match="bytes of filler for values of"):
            ValueMaker(0, size, fillers, checked=False)
    many = ValueMaker(0, 1 << 20, bytes((1 << 20) - 24), checked=False)
    with pytest.raises(ValueError, match="2048 values are more than an array holds"):
        many.make(pa.array(range(2048)), 0)


VALUES = st.lists(st.integers(0, HIGHEST + 5), min_size=1, max_size=300)


@given(VALUES)
def test_quantiles_are_right_within_a_thousandth(values):
    histogram = Histogram()
    histogram.add(np.array(values))
    ordered = sorted(min(value, HIGHEST) for value in values)
    for percentile in (1, 50, 90, 99, 100):
        exact = ordered[max(int(np.ceil(percentile / 100 * len(ordered) - 1e-9)), 1) - 1]
        assert exact <= histogram.at(percentile) <= exact * 1.001 + 1
    assert histogram.mean == pytest.approx(np.mean(ordered), rel=1e-3, abs=1)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_the_text_form_keeps_everything(parts):
    total = Histogram()
    texts = []
    for values in parts:
        one = Histogram()
        one.add(np.array(values), weight=3)
        texts.append(one.encode())
        total.add(np.array(values), weight=3)
    back = merged(texts)
    assert (back.counts == total.counts).all()
    assert back.total == total.total == 3 * sum(map(len, parts))


def test_large_counts_survive():
    histogram = Histogram()
    histogram.add(np.array([0, 5, HIGHEST]), weight=2**60)
    assert Histogram.decode(histogram.encode()).counts[5] == 2**60


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.hex()))
def test_other_texts_are_refused(text):
    with pytest.raises(HistogramError):
        Histogram.decode(text)


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_damaged_texts_are_refused_or_read(at, byte):
    histogram = Histogram()
    histogram.add(np.array([3, 700, 90_000, 10**9]))
    raw = base64.b64decode(histogram.encode())
    plain = bytearray(zlib.decompress(raw[8:]))
    plain[at % len(plain)] = byte
    packed = zlib.compress(bytes(plain))
    text = base64.b64encode(raw[:4] + len(packed).to_bytes(4, "big") + packed).decode()
    with contextlib.suppress(HistogramError):
        assert Histogram.decode(text).total >= 0


def test_an_empty_histogram():
    assert set(Histogram().summary().values()) == {0}
    assert Histogram.decode(Histogram().encode()).total == 0
    assert Recorder().take() is None


def test_a_recorder_loses_nothing_to_the_one_that_takes():
    recorder, taken = Recorder(), []
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            taken.append(recorder.take())

    taker = threading.Thread(target=take)
    taker.start()

    def write() -> None:
        for _ in range(300):
            recorder.add(np.arange(10), 5_000_000)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    taker.join()
    taken.append(recorder.take())
    assert merged(text for text in taken if text).total == 9_000


PEER = """
import org.HdrHistogram.Histogram;
import java.nio.ByteBuffer;
import java.util.Base64;
public class Peer {
    public static void main(String[] args) throws Exception {
        byte[] raw = Base64.getDecoder().decode(args[0]);
        Histogram theirs = Histogram.decodeFromCompressedByteBuffer(ByteBuffer.wrap(raw), 0);
        for (String p : new String[] {"1", "50", "99", "99.9", "100"})
            System.out.println(theirs.getValueAtPercentile(Double.parseDouble(p)));
        System.out.println(theirs.getTotalCount());
        Histogram ours = new Histogram(1, 3600000000L, 3);
        for (long v = 1; v < 3600000000L; v = v * 3 + 1) ours.recordValueWithCount(v, v % 7 + 1);
        ByteBuffer buffer = ByteBuffer.allocate(ours.getNeededByteBufferCapacity());
        int length = ours.encodeIntoCompressedByteBuffer(buffer);
        System.out.println(Base64.getEncoder().encodeToString(java.util.Arrays.copyOf(buffer.array(), length)));
    }
}
"""


@pytest.mark.kafka
def test_java_reads_our_histograms_and_we_its(tmp_path):
    histogram = Histogram()
    values = np.random.default_rng(1).lognormal(8, 3, 10_000).astype(np.int64)
    histogram.add(values)
    (tmp_path / "Peer.java").write_text(PEER)
    reported = java.run(str(tmp_path / "Peer.java"), histogram.encode()).stdout.decode().split()
    assert [int(word) for word in reported[:5]] == [histogram.at(p) for p in (1, 50, 99, 99.9, 100)]
    assert int(reported[5]) == 10_000
    expected = Histogram()
    value = 1
    while value < HIGHEST:
        expected.add(np.array([value]), weight=value % 7 + 1)
        value = value * 3 + 1
    assert (Histogram.decode(reported[6]).counts == expected.counts).all()


@given(st.integers(1, 60), st.integers(-1, 9).filter(bool), st.floats(0, 5), st.floats(0, 5))
def test_work_is_planned_as_workers_would_do_it(count, parallelism, low, more):
    begins, took = Work(low, low + more, parallelism, 3).plan(count)
    costs = (np.random.default_rng(3).uniform(low * 1e6, (low + more) * 1e6, count)).astype(np.int64)
    width = count if parallelism == -1 else parallelism
    free = [0] * width
    for begin, cost in zip(begins.tolist(), costs.tolist(), strict=True):
        at = free.index(min(free))
        assert begin == free[at]
        free[at] += cost
    assert took == max(free)


def test_work_takes_its_time_and_ends_when_stopped():
    stopped = threading.Event()
    began = time.monotonic()
    begins = Work(10, 10, 1, 1).run(3, stopped)
    assert time.monotonic() - began >= 0.029
    assert np.diff(begins).tolist() == [10_000_000, 10_000_000]
    stopped.set()
    Work(3_600_000, 3_600_000, 1, 1).run(3, stopped)
