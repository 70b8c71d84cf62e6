"""Workers that say what they should not, and what a run adds up."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.errors import KafkaError
from headrace.lab import campaign
from headrace.lab.bundle import Bundle, new_folder
from headrace.lab.coordinator import SILENT_S, Plan, Run, Stopping
from headrace.lab.histogram import Histogram
from headrace.lab.lab import _surely
from headrace.lab.protocol import Assigned, Failed, Ready, Second
from headrace.lab.totals import Totals
from headrace.lab.workers import WorkerProcess


def said(program: str, tmp_path) -> tuple[list, WorkerProcess]:
    """What the coordinator hears of a worker that runs this program, until it has ended."""
    heard = []

    async def run() -> WorkerProcess:
        ended = asyncio.Event()

        def hear(_worker, message) -> None:
            heard.append(message)
            if message is None:
                ended.set()

        worker = WorkerProcess("w", "headrace", tmp_path / "w.log", hear)
        await worker.start([sys.executable, "-c", program])
        await asyncio.wait_for(ended.wait(), 60)
        return worker

    return heard, asyncio.run(run())


def test_lines_that_are_no_messages_fail_the_worker(tmp_path):
    heard, worker = said("print('hello')", tmp_path)
    assert isinstance(heard[0], Failed)
    assert heard[1:] == [None]
    assert not worker.done


def test_a_line_that_never_ends_fails_the_worker(tmp_path):
    heard, _ = said("print('x' * (3 << 20))", tmp_path)
    assert isinstance(heard[0], Failed)


def test_the_end_of_the_log_is_told(tmp_path):
    heard, worker = said("import sys; sys.stderr.write('one\\ntwo\\n'); sys.exit(3)", tmp_path)
    assert heard == [None]
    assert str(worker.failure()) == "the worker w (headrace): ended with 3; its log:\n  one\n  two"


def encoded(*values_ms: float) -> str:
    histogram = Histogram()
    histogram.add(np.array(values_ms) * 1000)
    return histogram.encode()


@pytest.fixture
def bundle(tmp_path):
    return Bundle(tmp_path / "b")


def sent(n: int, records: int, **more) -> Second:
    return Second(n=n, at_ns=0, counts=[[0, "t", -1, records, 10]], hist={"publish": encoded(1)}, **more)


def received(n: int, member: int, records: int, *ms: float) -> Second:
    hist = {"delivery": {str(member): encoded(*ms)}, "partition": {"t-0": encoded(*ms)}}
    return Second(n=n, at_ns=0, counts=[[member, "t", 0, records, 10]], hist=hist, polls=3, empty=1)


def test_seconds_add_up(bundle):
    totals = Totals("headrace", bundle, groups=1)
    totals.counted = (1, 3)
    for n in range(4):
        totals.take("p", "produce", sent(n, 10, due=10 * (n + 1), sent=10 * (n + 1), errors=["oh"] if n else []))
        totals.take("c0", "consume", received(n, 0, 4, 1, 1, 1, 1 if n else 500))
        totals.take("c1", "consume", received(n, 1, 5, 2, 2, 2, 2, 2))
    totals.finish()
    reported = totals.summary()
    assert (reported["sent"], reported["received"], reported["due"]) == (40, 36, 40)
    assert reported["publishRate"] == [10] * 4
    assert reported["consumeRate"] == [9] * 4
    assert reported["backlog"] == [1, 2, 3, 4]
    assert totals.backlog == 4
    # Of the two seconds that count.
    assert reported["deliveryMs"]["count"] == 18
    assert reported["deliveryMs"]["max"] == pytest.approx(2, rel=1e-3)
    assert reported["deliveryMs"]["p50"] == pytest.approx(2, rel=1e-3)
    assert reported["deliveryMsByMember"]["0"]["max"] == pytest.approx(1, rel=1e-3)
    assert reported["deliveryMsByPartition"]["t-0"]["count"] == 18
    assert reported["aggregatedEndToEndLatency50pct"] == reported["deliveryMs"]["p50"]
    assert reported["aggregatedPublishLatencyQuantiles"]["100"] == reported["publishMs"]["max"]
    assert reported["errors"] == {"oh": 3}
    assert (reported["polls"], reported["emptyPolls"]) == (24, 8)
    whole = {row[0]: row for row in totals.latency if row[2] == "delivery" and row[3] == ""}
    assert set(whole) == {0, 1, 2, 3}
    assert whole[0][8] == pytest.approx(500, rel=1e-3)
    assert whole[0][9] == 9


def test_what_comes_before_its_acknowledgement_does_not_stay_in_the_backlog(bundle):
    totals = Totals("headrace", bundle, groups=1)
    totals.take("c", "consume", received(0, 0, 5, 1))
    totals.take("p", "produce", sent(1, 5))
    assert totals.summary()["backlog"] == [0, 0]


def test_a_step_has_only_its_seconds(bundle):
    totals = Totals("headrace", bundle, groups=1)
    totals.measure(range(2, 4))
    for n in range(6):
        totals.take("c0", "consume", received(n, 0, 1, 10 * (n + 1)))
    assert totals.step["delivery"].total == 2
    assert totals.step["delivery"].highest / 1000 == pytest.approx(40, rel=1e-3)


def test_groups_receive_everything_each(bundle):
    totals = Totals("headrace", bundle, groups=2)
    totals.backlog_written = 7
    totals.take("p", "produce", sent(0, 3))
    totals.take("c", "consume", received(0, 0, 19, 1))
    assert totals.backlog == 1
    totals.take("c", "consume", received(1, 0, 1, 1))
    assert totals.backlog == 0


@pytest.fixture
def run(tmp_path, bundle):
    path = tmp_path / "w.yaml"
    path.write_text("name: w\nconsumers: 3\npartitions: 4\n")
    [variation] = campaign.load(path).variations
    notes: list[str] = []
    view = SimpleNamespace(note=notes.append, second=lambda _: None)
    one = Run(Plan(variation, "headrace", "r"), SimpleNamespace(), bundle, view, Stopping())
    for name in ("consumers-0-0", "consumers-0-1"):
        worker = WorkerProcess(name, "headrace", tmp_path / name, one._hear)
        one._workers[name], one._roles[name], one._groups[name], one._told[name] = worker, "consume", "r-group-0", -1
    return one


@pytest.mark.parametrize("row", [[1], [0, "t", 0, "many", 1], 7, [0, "t", 0, None, 1]])
def test_what_a_driver_tells_is_not_trusted(run, row):
    run._hear(run._workers["consumers-0-0"], Second(n=0, at_ns=0, counts=[row]))
    with pytest.raises(KafkaError, match="what it tells cannot be used"):
        asyncio.run(run.until())


def test_a_histogram_that_is_none_is_told(run):
    run._hear(run._workers["consumers-0-0"], Second(n=0, at_ns=0, hist={"delivery": {"0": "rubbish"}}))
    with pytest.raises(KafkaError, match="not a histogram"):
        asyncio.run(run.until())


def test_a_group_is_ready_when_all_have_their_part(run):
    first, second = run._workers.values()
    assert not run._all_assigned()
    run._hear(first, Ready(driver="headrace", version="1", runtime=""))
    # The first member has all until the others are in.
    run._hear(first, Assigned(partitions=4, holding=1))
    run._hear(second, Assigned(partitions=0, holding=0))
    assert not run._all_assigned()
    run._hear(first, Assigned(partitions=2, holding=1))
    assert not run._all_assigned()
    run._hear(second, Assigned(partitions=2, holding=2))
    assert run._all_assigned()
    # An assignor may leave one without for good.
    run._hear(second, Assigned(partitions=2, holding=1))
    assert not run._all_assigned()
    run._assigned_at -= 60
    assert run._all_assigned()
    # A client that does not tell.
    run._hear(second, Assigned(partitions=None))
    assert not run._all_assigned()
    run._assigned_at -= 60
    assert run._all_assigned()


def test_a_worker_that_is_silent_has_failed_once_it_was_ready(run, monkeypatch):
    monkeypatch.setattr(WorkerProcess, "ended", False)
    run.began_ns = 1
    run._heard = dict.fromkeys(run._workers, time.monotonic() - 2 * SILENT_S)
    run._watch()
    assert run._trouble is None
    run._ready.add("consumers-0-1")
    run._watch()
    assert "consumers-0-1 (headrace): has told nothing for 60 s" in str(run._trouble)


def test_a_second_is_shown_when_all_have_told_it(run):
    shown = []
    run.view.second = shown.append
    first, second = run._workers.values()
    run._hear(first, received(0, 0, 1, 5))
    assert shown == []
    run._hear(second, received(0, 1, 2, 7))
    assert [(one.t_s, one.received_rate) for one in shown] == [(1, 3)]
    assert run.complete == 0


def test_what_must_be_done_is_done_though_it_is_cancelled():
    done = []

    async def work() -> None:
        await asyncio.sleep(0.2)
        done.append(1)

    async def main() -> None:
        task = asyncio.ensure_future(_surely(work()))
        for _ in range(2):
            await asyncio.sleep(0.02)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == [1]


def test_no_two_campaigns_share_a_folder(tmp_path):
    first = new_folder(tmp_path, "c")
    Bundle(first)
    second = new_folder(tmp_path, "c")
    Bundle(second).finish()
    assert len({first, second, new_folder(tmp_path, "c")}) == 3


def test_a_bundle_has_its_name_only_when_it_is_whole(tmp_path):
    one = Bundle(tmp_path / "x")
    one.json("summary.json", {"a": "ä"})
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
    assert json.loads((one.finish() / "summary.json").read_text()) == {"a": "ä"}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
