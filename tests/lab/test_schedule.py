"""When records are due, and where they go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.lab.distribution import Distribution, Distributor, weights
from headrace.lab.schedule import NEVER, Schedule, Segment

RATES = st.one_of(st.just(0.0), st.floats(0.5, 1e5))
SEGMENTS = st.lists(st.builds(Segment, RATES, RATES, st.floats(0.1, 100)), min_size=1, max_size=6)


# Rounds whose records are no whole number end between records, but for rounding.
@pytest.mark.slow
@example([Segment(0.0, 0.95, 1.8), Segment(0.0, 0.0, 1.0)], True, 4225)
@example([Segment(0.0, 0.95, 1.0), Segment(0.0, 0.0, 1.0)], True, 0)
@given(SEGMENTS, st.booleans(), st.integers(0, 10_000))
def test_a_record_is_due_when_the_count_reaches_it(segments, repeating, first):
    schedule = Schedule(tuple(segments), repeating=repeating)
    numbers = np.arange(first, first + 50)
    due = schedule.due(numbers)
    # Those that are never due come last.
    assert (np.diff(due.astype(float)) >= 0).all()
    for number, at in zip(numbers, due, strict=True):
        if at != NEVER:
            assert schedule.count(at / 1e9) == pytest.approx(number + 1, rel=1e-6, abs=1e-3)
        else:
            assert schedule.count(1e7) < number + 1.001


def test_constant_rates():
    schedule = Schedule.constant(1000)
    assert schedule.count(2.5) == pytest.approx(2500)
    assert schedule.rate(100) == 1000
    assert schedule.due(np.array([0, 999, 10_000_000 - 1])).tolist() == [1_000_000, 1_000_000_000, 10_000 * 10**9]


def test_ramps_from_and_to_nothing():
    schedule = Schedule((Segment(0, 100, 10), Segment(100, 0, 10), Segment(0, 0, 10)), repeating=True)
    assert schedule.count(10) == pytest.approx(500)
    assert schedule.count(20) == pytest.approx(1000)
    assert schedule.count(29.9) == pytest.approx(1000)
    assert schedule.count(35) == pytest.approx(1125)
    assert schedule.rate(5) == 50
    assert schedule.rate(25) == 0
    assert schedule.rate(45) == 50
    # Half of a ramp's records come in its first 7.07 seconds.
    assert schedule.due(np.array([249]))[0] / 1e9 == pytest.approx(50**0.5)
    assert schedule.due(np.array([999]))[0] / 1e9 == pytest.approx(20, abs=1e-3)
    assert schedule.due(np.array([1000]))[0] / 1e9 == pytest.approx(30 + 0.2**0.5)


def test_the_last_rate_goes_on_or_ends():
    once = Schedule((Segment(10, 20, 1), Segment(5, 5, 1)))
    assert once.count(10) == pytest.approx(15 + 5 * 9)
    assert once.due(np.array([20]))[0] == pytest.approx(2.2e9)
    ended = Schedule((Segment(10, 10, 1), Segment(0, 0, 1)))
    assert ended.due(np.array([9, 10])).tolist() == [10**9, NEVER]
    assert Schedule((Segment(0, 0, 1),), repeating=True).due(np.array([0])).tolist() == [NEVER]


def test_zipf_has_the_weights_of_its_formula():
    assert weights(12, 2)[0] == pytest.approx(0.639, abs=5e-4)
    assert weights(12, 2)[1] == pytest.approx(0.639 / 4, abs=5e-4)
    placed = Distributor(Distribution("PARTITION_ZIPF", 2.0), 12, 0, 1).next(200_000).partitions
    assert placed is not None
    assert np.bincount(placed, minlength=12) / 200_000 == pytest.approx(weights(12, 2), abs=4e-3)


def test_the_same_seed_gives_the_same_places():
    def places(producer: int, seed: int, *counts: int) -> list[int]:
        one = Distributor(Distribution("PARTITION_ZIPF", 1.5), 12, producer, seed)
        return [p for count in counts for p in one.next(count).partitions.tolist()]

    assert places(0, 1, 100) == places(0, 1, 30, 70)
    assert places(0, 1, 100) != places(0, 2, 100)
    assert places(0, 1, 100) != places(1, 1, 100)


def test_the_other_distributors():
    assert Distributor(Distribution("NO_KEY"), 3, 0, 1).next(5).keys is None
    pinned = Distributor(Distribution("PINNED_PARTITIONS"), 3, 1, 1)
    assert [*pinned.next(2).partitions.tolist(), *pinned.next(3).partitions.tolist()] == [1, 2, 0, 1, 2]
    robin = Distributor(Distribution("KEY_ROUND_ROBIN"), 3, 0, 1)
    robin.next(9_999)
    assert robin.next(2).keys.to_pylist() == [b"key-9999", b"key-0000"]
    keys = Distributor(Distribution("RANDOM_NANO"), 3, 0, 1).next(100).keys
    assert len(set(keys.to_pylist())) == 100
