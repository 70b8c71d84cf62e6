"""What the modes make of what they measure."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.lab import bundle
from headrace.lab.drain import course
from headrace.lab.explore import CONFIRM_ATTEMPTS, Step, judge, search
from headrace.lab.modes import MODES, unbalanced
from headrace.lab.workload import Explore
from tests.lab.test_run import ended, nothing_left, result


class Steady:
    """A run in mode run whose workers have told all that they will."""

    def __init__(self, sent: int, received: int, failed: int = 0, groups: int = 1) -> None:
        self.workload = SimpleNamespace(
            warmup_duration_seconds=1, test_duration_seconds=2, schedule=None, producers_per_topic=0
        )
        self.totals = SimpleNamespace(
            acknowledged=sent,
            received=received,
            failed=failed,
            backlog_written=0,
            groups=groups,
            sent_by_second=Counter({1: sent}),
            received_by_second=Counter({1: received}),
        )
        self.plan = SimpleNamespace(groups=["a"] * groups)
        self.t_s = 0.0
        self.warnings: list[str] = []

    async def nothing(self, *_: object, **__: object) -> None: ...

    backlog = consumers = producers = start = stop = until = nothing

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize(
    ("run", "kept_up", "missing", "repeated"),
    [
        (Steady(20_184, 20_184), True, 0, 0),
        (Steady(20_184, 30_193), False, 0, 10_009),
        (Steady(20_184, 20_185), True, 0, 1),
        (Steady(20_184, 10_000), False, 10_184, 0),
        (Steady(20_184, 20_183), True, 1, 0),
        (Steady(20_184, 40_368, groups=2), True, 0, 0),
        (Steady(20_184, 30_193, groups=2), False, 10_175, 0),
        # What was not acknowledged may have come all the same.
        (Steady(20_000, 20_050, failed=50), True, 0, 0),
        (Steady(20_000, 20_051, failed=50), True, 0, 1),
    ],
)
def test_a_run_that_did_not_receive_what_was_sent_says_so(run, kept_up, missing, repeated):
    verdict = asyncio.run(MODES["run"](run))
    assert (verdict["keptUp"], verdict["missing"], verdict["repeated"]) == (kept_up, missing, repeated)
    assert unbalanced(100, 100, 5) == (0, 0)
    assert len(run.warnings) == (missing > 0) + (repeated > 0)
    wanted = run.totals.acknowledged * run.totals.groups
    for warning in run.warnings:
        assert f"received {run.totals.received:,} of {wanted:,}: {max(missing, repeated):,} " in warning


def test_a_drain_that_collapses():
    # From second 5 on one partition of a broker is left, at 2 a second, until its last record comes.
    received = [0, 400, 1000, 1000, 800, *[2] * 400]
    found = course(received, sum(received))
    assert found.peak == 1000
    assert found.floor == 2
    assert found.floor_percent == pytest.approx(0.2)
    assert found.times["50"] == pytest.approx(3 + (2000 - 1400) / 1000)
    assert found.times["90"] > 190
    assert found.times["100"] == len(received)


def test_a_drain_that_keeps_its_rate():
    received = [0, 300, 1000, 950, 1000, 900, 1000, 400]
    found = course(received, sum(received))
    assert found.peak == 975
    assert found.floor == 950
    assert set(found.times) == {"50", "90", "99", "100"}


def test_drains_that_are_too_short_have_no_floor():
    for received in ([], [0], [10], [0, 10], [5, 5, 1]):
        found = course(received, sum(received))
        assert found.floor is None
        assert found.floor_percent is None
        assert found.peak <= sum(received)


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_times_are_in_order_and_the_floor_is_not_above_the_peak(received):
    found = course(received, sum(received))
    times = list(found.times.values())
    assert times == sorted(times)
    if found.floor is not None:
        assert found.floor <= found.peak


class Target:
    """Keeps up with `capacity` records a second; `tired` is by how much less it can do when asked for longer."""

    def __init__(self, explore: Explore, capacity: float, *, tired: float = 1.0, drains: str = "") -> None:
        self.explore = explore
        self.capacity = capacity
        self.tired = tired
        self.drains = drains
        self.drained = 0
        self.seconds: list[int] = []

    async def measure(self, rate: float, seconds: int) -> Step:
        self.seconds.append(seconds)
        capacity = self.capacity * (self.tired if seconds > self.explore.step_seconds else 1)
        got = min(rate, capacity)
        late = 5.0 if rate <= capacity else 10_000.0
        step = Step(rate, seconds, rate, got, late, int(max(rate - got, 0) * seconds), "")
        return Step(**{**vars(step), "why": judge(self.explore, step)})

    async def drain(self) -> str:
        self.drained += 1
        return self.drains


@given(st.floats(2, 3e6))
def test_the_capacity_is_found_within_its_precision(capacity):
    target = Target(Explore(max_rate=1e7), capacity)
    found = asyncio.run(search(target, Explore()))
    # The steps' own bar lets two per cent go missing.
    assert capacity * 0.94 <= found.rate <= capacity * 1.021
    assert found.failed == ""
    assert found.steps[-1].confirming
    assert found.steps[-1].seconds == 40
    assert target.drained == sum(not step.holds for step in found.steps)
    assert len(found.steps) < 40


def test_a_target_without_a_limit_ends_at_the_highest_rate():
    explore = Explore(max_rate=50_000)
    found = asyncio.run(search(Target(explore, 1e9), explore))
    assert found.rate == 50_000
    assert [step.rate for step in found.steps] == [1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 50e3, 50e3]


def test_what_does_not_hold_for_longer_becomes_less():
    explore = Explore()
    found = asyncio.run(search(Target(explore, 10_000, tired=0.9), explore))
    assert 8_300 <= found.rate <= 9_200
    never = asyncio.run(search(Target(explore, 10_000, tired=0.1), explore))
    assert "no rate near" in never.failed
    assert sum(step.confirming for step in never.steps) == CONFIRM_ATTEMPTS


def test_nothing_holds():
    explore = Explore()
    found = asyncio.run(search(Target(explore, 0.1), explore))
    assert found.rate == 0
    assert not any(step.holds for step in found.steps)


def test_a_backlog_that_stays_ends_the_search():
    explore = Explore()
    found = asyncio.run(search(Target(explore, 3_000, drains="7 records were left"), explore))
    assert found.failed == "7 records were left"
    assert len([step for step in found.steps if not step.holds]) == 1


def test_a_step_is_judged_by_each_of_its_numbers():
    explore = Explore(target_latency_ms=100, percentile=99)
    good = {"rate": 1000.0, "seconds": 20, "sent_rate": 1000.0, "received_rate": 990.0, "latency_ms": 99.0}
    assert judge(explore, Step(**good, backlog_growth=1000, why="")) == ""
    for worse, why in (
        ({"sent_rate": 970.0}, "only 970 a second were sent"),
        ({"received_rate": 970.0}, "only 970 a second were received"),
        ({"latency_ms": 101.0}, "p99 is 101.0 ms"),
        ({"backlog_growth": 1001}, "the backlog grew by 1,001"),
    ):
        assert judge(explore, Step(**{"backlog_growth": 0, **good, **worse}, why="")) == why


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["headrace", "confluent-kafka"])
def test_a_backlog_is_drained_to_its_last_record(lab, tmp_path, topic, driver, embedded_broker):
    text = f"name: {topic}\nmode: drain-backlog\npartitions: 3\ntopics: 2\nbacklogRecords: 20_001\nconsumers: 2\n"
    text += "subscriptionsPerTopic: 2\ncommonConfig: {}\n"
    ended(lab(text, "--driver", driver), 0)
    folder, found = result(tmp_path)
    verdict = found["verdict"]
    assert (verdict["drained"], verdict["records"], found["backlogWritten"]) == (True, 40_002, 20_001)
    # Members that join while others read may make some come again.
    assert found["received"] >= 40_002
    assert found["sent"] == 0
    assert found["backlog"][-1] == 0
    assert set(verdict["secondsTo"]) == {"50", "90", "99", "100"}
    assert bundle.read(folder)[0]["mode"] == "drain-backlog"
    assert found["countedSeconds"] is None
    nothing_left(embedded_broker.bootstrap_servers, topic)


@pytest.mark.slow
def test_a_drain_that_takes_too_long_fails_and_tells_its_rate(lab, tmp_path, topic):
    text = f"name: {topic}\nmode: drain-backlog\nbacklogRecords: 5000\nconsumerProcMsMin: 20\ndrainTimeoutSeconds: 3\n"
    out, _ = ended(lab(text, "--set", "consumerConfig.max.poll.records=10"), 1)
    _, found = result(tmp_path)
    assert found["complete"]
    assert not found["verdict"]["drained"]
    assert "records were left after 3 s" in found["verdict"]["failed"]
    assert "not drained" in out
    assert found["verdict"]["drainRate"] > 0
    assert "100" not in found["verdict"]["secondsTo"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_limit_of_a_consumer_that_works(lab, tmp_path, topic, embedded_broker):
    # Two ms a record: 500 a second and no more, whatever the machine.
    text = f"""
name: {topic}
mode: explore-limits
consumerProcMsMin: 2
consumerConfig: {{max.poll.records: 20}}
explore: {{startRate: 200, targetLatencyMs: 1000, precision: 0.3, stepSeconds: 2}}
"""
    process = lab(text)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, (out, err)
    _, found = result(tmp_path)
    steps = found["verdict"]["steps"]
    assert 0 < found["verdict"]["limit"] <= 520
    assert any(step["why"] for step in steps)
    assert steps[-1]["confirming"]
    assert steps[-1]["seconds"] == 4
    assert found["deliveryMs"]["count"] > 0
    assert "a second: holds" in out
    assert "a second: too high: " in out
    nothing_left(embedded_broker.bootstrap_servers, topic)
