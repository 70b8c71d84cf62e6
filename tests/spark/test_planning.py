"""Admission control, the cutting of ranges and the checkpoint's JSON, over all inputs."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark import planning
from headrace.spark.planning import Range

PARTITIONS = st.tuples(st.sampled_from(["a", "b", 'c"ü']), st.integers(0, 40))
OFFSETS = st.integers(0, 1 << 40)
POSITIONS = st.dictionaries(PARTITIONS, OFFSETS, max_size=12)
RANGES = st.lists(
    st.builds(lambda p, at, size: Range("t", p, at, at + size), st.integers(0, 9), OFFSETS, st.integers(-3, 5_000)),
    max_size=8,
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[planning.Positions, planning.Positions, planning.Positions]:
    """Start, end and earliest of some partitions: some new, some empty, some cut short."""
    earliest = draw(st.dictionaries(PARTITIONS, st.integers(0, 1_000), max_size=10))
    start = {tp: at + draw(st.integers(0, 50)) for tp, at in earliest.items() if draw(st.booleans())}
    end = {tp: start.get(tp, at) + draw(st.integers(-5, 10_000)) for tp, at in earliest.items()}
    return start, end, earliest


@given(logs(), st.integers(1, 20_000))
def test_a_limit_shares_out_forward_and_never_too_much(log, limit):
    start, end, earliest = log
    limited = planning.limit_rows(start, end, limit, earliest)
    assert limited.keys() == end.keys()
    begin = {tp: start.get(tp, earliest[tp]) for tp in end}
    taken = {tp: limited[tp] - begin[tp] for tp in end}
    waiting = {tp for tp in end if end[tp] > begin[tp]}
    assert all(limited[tp] <= end[tp] for tp in end)
    # Everyone who has something gets something; rounding up costs at most a record each.
    assert all(taken[tp] >= 1 for tp in waiting)
    assert sum(taken[tp] for tp in waiting) <= limit + len(waiting)
    if planning.available(start, end, earliest) <= limit:
        assert all(limited[tp] == end[tp] for tp in waiting)


@given(logs(), st.integers(1, 20_000))
def test_a_limit_is_shared_in_proportion(log, limit):
    start, end, earliest = log
    total = planning.available(start, end, earliest)
    limited = planning.limit_rows(start, end, limit, earliest)
    for tp, stop in end.items():
        begin = start.get(tp, earliest[tp])
        if stop > begin:
            share = min(limit * (stop - begin) / total, stop - begin)
            assert abs((limited[tp] - begin) - share) <= 1


def test_a_limit_repeated_reaches_the_end():
    end = {("t", 0): 1_000, ("t", 1): 3, ("t", 2): 0}
    at = dict.fromkeys(end, 0)
    batches = 0
    while at != end:
        at = planning.limit_rows(at, end, 100, {})
        batches += 1
    assert 10 <= batches <= 14


def test_a_new_partition_counts_from_its_beginning():
    start, end, earliest = {("t", 0): 10}, {("t", 0): 20, ("t", 1): 1_010}, {("t", 1): 1_000}
    assert planning.available(start, end, earliest) == 20
    assert planning.limit_rows(start, end, 10, earliest) == {("t", 0): 15, ("t", 1): 1_005}


def joined(pieces: list[Range]) -> list[Range]:
    whole: list[Range] = []
    for piece in pieces:
        if whole and (whole[-1].partition, whole[-1].stop) == (piece.partition, piece.start):
            whole[-1] = Range(piece.topic, piece.partition, whole[-1].start, piece.stop)
        else:
            whole.append(piece)
    return whole


@given(RANGES, st.none() | st.integers(1, 30), st.none() | st.integers(1, 3_000))
def test_cutting_loses_and_repeats_nothing(ranges, min_partitions, max_records):
    pieces = planning.cut(ranges, min_partitions, max_records)
    assert all(piece.size > 0 for piece in pieces)
    assert joined(pieces) == joined([r for r in ranges if r.size > 0])
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    if min_partitions is None and max_records is None:
        assert pieces == [r for r in ranges if r.size > 0]


def test_cutting_makes_about_as_many_pieces_as_asked_for_and_large_ranges_give_most():
    ranges = [Range("t", 0, 0, 900), Range("t", 1, 50, 150), Range("t", 2, 7, 7)]
    pieces = planning.cut(ranges, 10, None)
    assert [p.partition for p in pieces] == [0] * 9 + [1]
    assert {p.size for p in pieces} == {100}
    assert planning.cut(ranges, 2, None) == ranges[:2]
    assert len(planning.cut([Range("t", 0, 0, 3)], 10, None)) == 3


@given(POSITIONS)
def test_positions_keep_their_form_through_a_checkpoint(positions):
    offset = planning.to_json(positions)
    text = json.dumps(offset)
    assert planning.from_json(json.loads(text)) == planning.from_json(text) == positions
    # The same positions are always the same text: Spark compares offsets as text.
    again = planning.to_json(dict(reversed(positions.items())))
    assert json.dumps(again) == text


def test_the_form_is_that_of_sparks_own_connector():
    offset = planning.to_json({("t", 10): 4, ("t", 9): 3, ("s", 0): 1})
    assert json.dumps(offset, separators=(",", ":")) == '{"s":{"0":1},"t":{"9":3,"10":4}}'
