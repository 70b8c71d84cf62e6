"""The five cases are workloads that the lab takes."""

from __future__ import annotations

import pytest

from headrace.lab import campaign
from tests.kafka import java

CASES = java.ROOT / "examples" / "lab"
VARIATIONS = {"case1": 1, "case2": 2, "case3": 1, "case4": 1, "case5": 8, "case5-waits": 10}


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_case_is_the_same_in_its_full_size(name):
    small, full = (campaign.load(folder / f"{name}.yaml") for folder in (CASES, CASES / "full"))
    assert len(small.variations) == len(full.variations) == VARIATIONS[name]
    scaled = {"backlogRecords", "drainTimeoutSeconds", "producerRateSchedule", "testDurationSeconds"}
    for a, b in zip(small.variations, full.variations, strict=True):
        assert a.name == b.name
        ours, theirs = a.workload.to_json(), b.workload.to_json()
        assert {field for field in ours if ours[field] != theirs[field]} <= scaled
        assert ours["consumerType"] == "share"
        assert ours["driver"] == ["headrace", "java"]
        assert f"{name}.yaml --kafka {6 if name >= 'case3' else 3}" in small.text
        assert f"examples/lab/full/{name}.yaml" in full.text


def test_schedules_end_with_the_test():
    for path in (CASES / "case4.yaml", CASES / "full" / "case4.yaml"):
        [variation] = campaign.load(path).variations
        schedule = variation.workload.schedule
        assert schedule is not None
        assert schedule.duration_s == variation.workload.test_duration_seconds
    for path in (CASES / "case3.yaml", CASES / "full" / "case3.yaml"):
        [variation] = campaign.load(path).variations
        schedule = variation.workload.schedule
        assert schedule is not None
        assert schedule.repeating
        assert variation.workload.test_duration_seconds == 3 * schedule.duration_s


def test_every_case_is_parsed():
    assert (
        {path.stem for path in CASES.glob("*.yaml")} == {p.stem for p in (CASES / "full").glob("*")} == set(VARIATIONS)
    )
