"""Where copies go when a broker is emptied, or all are to have as many."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import TopicPartition
from headrace.cli import _reassign
from headrace.cli._placement import balanced, drained


def placed(*replicas: list[int]) -> dict[TopicPartition, list[int]]:
    return {TopicPartition("t", index): of for index, of in enumerate(replicas)}


def test_a_brokers_copies_go_to_those_with_the_fewest_and_keep_their_place():
    racks = dict.fromkeys([1, 2, 3, 4, 5])
    changes, stuck = drained(placed([3, 1], [1, 3], [1, 2], [3, 4]), 3, racks)
    assert changes == placed([5, 1], [1, 2]) | {TopicPartition("t", 3): [5, 4]}
    assert stuck == []


def test_a_copy_goes_to_a_rack_of_its_own_if_there_is_one():
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b", 4: "a", 5: None}
    # Broker 4 has none, and is of the rack of broker 1.
    busy = [[2], [2], [3], [3], [5], [5], [5]]
    changes, _ = drained(placed([1, 2], *busy), 2, racks)
    assert changes[TopicPartition("t", 0)] == [1, 3]


def test_what_is_on_all_brokers_has_nowhere_to_go():
    changes, stuck = drained(placed([1, 2, 3], [1, 2]), 2, dict.fromkeys([1, 2, 3]))
    assert changes == {TopicPartition("t", 1): [1, 3]}
    assert stuck == [TopicPartition("t", 0)]


def test_a_new_broker_gets_its_share_and_no_more_is_moved():
    before = placed(*([1, 2, 3] for _ in range(8)))
    changes = balanced(before, dict.fromkeys([1, 2, 3, 4]))
    after = Counter(node for replicas in (before | changes).values() for node in replicas)
    assert after == {1: 6, 2: 6, 3: 6, 4: 6}
    assert len(changes) == 6
    assert balanced(before | changes, dict.fromkeys([1, 2, 3, 4])) == {}


def test_no_rack_gets_two_copies_of_a_partition():
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "c", 4: "a"}
    changes = balanced(placed(*([1, 2, 3] for _ in range(6))), racks)
    assert changes == placed([4, 2, 3], [4, 2, 3], [4, 2, 3])


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True), max_size=30),
    st.dictionaries(st.integers(1, 7), st.sampled_from([None, "a", "b"]), min_size=1),
    st.integers(1, 7),
)
def test_whatever_is_moved_goes_to_a_broker_that_is_there_and_to_none_twice(replicas, racks, leaving):
    before = placed(*replicas)
    changes, stuck = drained(before, leaving, racks)
    for partition, after in changes.items():
        assert len(set(after)) == len(after) == len(before[partition])
        assert leaving not in after
        assert set(after) - set(before[partition]) <= racks.keys()
    touched = {partition for partition, of in before.items() if leaving in of}
    assert touched == changes.keys() | set(stuck)
    even = balanced(before, racks)
    for partition, after in even.items():
        assert len(set(after)) == len(after) == len(before[partition])
        assert set(after) - set(before[partition]) <= racks.keys()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_cancels_nothing(capsys, dry_run):
    moving, still = TopicPartition("orders", 0), TopicPartition("orders", 1)
    admin = MagicMock()
    admin.list_partition_reassignments.return_value = {moving: MagicMock()}
    _reassign._cancel(admin, [moving, still], Namespace(json=True, dry_run=dry_run))
    assert json.loads(capsys.readouterr().out) == {"cancelled": [{"topic": "orders", "partition": 0}]}
    assert admin.alter_partition_reassignments.called == (not dry_run)
