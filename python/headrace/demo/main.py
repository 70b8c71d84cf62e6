"""Runs the demo: broker, replay, query, check, report."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.demo.cluster import cluster, say, schemas, topics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headrace.demo.pipeline import Results
    from headrace.demo.replay import Replay

SETTLE_TIMEOUT_S = 90.0
"""How long the query may take to finish after the last record."""
IDLE_TIMEOUT_S = 10.0
"""How long it may take to come to rest before it is stopped."""
TOLERANCE = 1e-9
"""Relative difference allowed between two means of the same numbers added in another order."""

_EPILOG: Final = """\
Replays 68,400 real measurements of road traffic near Eindhoven into the topics ndwflow and ndwspeed, joins both per
lane in Spark Structured Streaming, aggregates per site, compares the result with the table computed from the file
(exit status 1 if they differ), and writes a page with pictures.

Values are Avro. Their schemas are registered under ndwflow-value and ndwspeed-value, and the query reads columns by
value.format=avro and schema.registry.url. The embedded registry ends with the demo: with --bootstrap alone, nobody
can look up the schemas of the records that stay in the topics. --schema-registry-url keeps them in a registry that
stays.

examples:
  headrace demo
  headrace demo --live
  headrace demo --minutes 300 --speed 60
  headrace demo --bootstrap localhost:9092 --schema-registry-url http://localhost:8081
      against any Kafka and registry, such as those of `headrace broker --registry`
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--speed",
        type=float,
        default=40.0,
        metavar="N",
        help="data minutes per second: 40 plays the 30 hours in 45 seconds, 1 is the pace of OSPBench (default: 40)",
    )
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="use this Kafka instead of an embedded broker")
    parser.add_argument(
        "--schema-registry-url",
        metavar="URL",
        help="use this schema registry, which asks for no login, instead of an embedded one",
    )
    parser.add_argument(
        "--partitions", type=int, default=2, metavar="N", help="partitions of each topic that is created (default: 2)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("demo-report.html"),
        metavar="FILE",
        help="file for the report (default: %(default)s)",
    )
    parser.add_argument(
        "--live", action="store_true", help="open the report in a browser at the start; it moves while the demo runs"
    )
    parser.add_argument("--minutes", type=int, metavar="N", help="play only the first N data minutes")
    parser.set_defaults(run=run)
    parser.epilog = _EPILOG


def run(options: argparse.Namespace) -> int:
    """Runs everything; 0 when the result is right."""
    from headrace.demo import data, pipeline, report, stopwatch  # noqa: PLC0415  (Spark and pyarrow are slow to load)
    from headrace.demo.live import Live  # noqa: PLC0415  (the same)
    from headrace.demo.replay import Replay  # noqa: PLC0415

    if options.speed <= 0:
        message = f"--speed is above 0, not {options.speed}"
        raise ValueError(message)
    say("loading 68,400 traffic measurements")
    table = data.load()
    if options.minutes is not None:
        stamps = table["timestamp"].unique()[: options.minutes]
        table = table.slice(0, sum(1 for t in table["timestamp"].to_pylist() if t <= stamps[-1].as_py()))
    wanted, results = data.expected(table), pipeline.Results()
    with ExitStack() as pages:
        live = pages.enter_context(closing(Live(options.report))) if options.live else None
        with ExitStack() as stack:
            used = stack.enter_context(cluster(options.bootstrap, options.schema_registry_url))
            starting = topics(used.bootstrap_servers, options.partitions)
            registered = schemas(used.registry_url)
            replay = Replay(used, table, options.speed)
            ran = report.Run(
                wanted, results, replay.progress, [], options, used, registered, data.sites(table), differences=[]
            )
            if live is not None:
                live.begin(ran)
            say("starting Spark")
            spark = stack.enter_context(spark_session())
            folders = pipeline.Folders(temporary(stack), temporary(stack))
            query = pipeline.start(spark, used, starting, folders, results)
            stack.callback(stop_idle, query)

            def look() -> None:
                ran.batches, ran.busy = progress(query), stopwatch.times(folders.stopwatch)

            def follow() -> None:
                if live is not None and live.is_due():
                    look()
                    live.update(ran)

            # The first, empty batch compiles the query; the replay's clock should not run against that.
            wait_for_first_batch(query)
            replay.start()
            stack.callback(replay.stop)
            finished = watch(replay, query, results, wanted.num_rows, follow)
            wait_for_report(query, results)
            look()
        ran.differences = compare(wanted, results)
        if not finished:
            ran.differences.insert(0, f"only {len(results)} of {wanted.num_rows} rows came out in time")
        page = report.write(options.report, ran)
    summary(replay, results, wanted, ran.differences, page)
    return 1 if ran.differences else 0


def temporary(stack: ExitStack) -> Path:
    """A folder that goes with the demo."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def progress(query: Any) -> list[dict[str, Any]]:
    """Spark's reports of all micro-batches so far."""
    return [json.loads(p.json) if hasattr(p, "json") else p for p in query.recentProgress]


@contextmanager
def spark_session() -> Iterator[Any]:
    """A small local Spark."""
    from headrace.spark import session  # noqa: PLC0415

    spark = session(
        "headrace demo",
        master="local[2]",
        spark_ui_enabled=False,
        spark_ui_showConsoleProgress=False,
        spark_driver_memory="2g",
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_shuffle_partitions=2,
        spark_sql_session_timeZone="UTC",
        spark_sql_streaming_numRecentProgressUpdates=10_000,
        spark_log_level="ERROR",
    )
    try:
        yield spark
    finally:
        spark.stop()


def wait_for_first_batch(query: Any) -> None:
    """Waits until the query has looked at its topics once."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress is not None:
            return
        time.sleep(0.1)


def wait_for_report(query: Any, results: Results) -> None:
    """Waits until Spark has reported the micro-batch of the last rows, which are there before it ends."""
    last = max((arrival.batch for arrival in results.arrivals), default=-1)
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress is not None and query.lastProgress["batchId"] >= last:
            return
        time.sleep(0.1)


def stop_idle(query: Any) -> None:
    """Stops the query between two micro-batches, if it comes to rest: tasks that are cut off end in tracebacks.

    The query's status does not say so: a micro-batch that only moves the watermark has no data.
    """

    def rest() -> None:
        with suppress(Exception):  # the query has failed, which `watch` reports
            query.processAllAvailable()

    # The call has no time limit of its own, and ends with the query at the latest.
    resting = threading.Thread(target=rest, name="rest", daemon=True)
    resting.start()
    resting.join(IDLE_TIMEOUT_S)
    query.stop()


def watch(replay: Replay, query: Any, results: Results, wanted: int, follow: Callable[[], None]) -> bool:
    """Shows progress until every row is there, and calls `follow` now and then; false when they do not come."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    settled: float | None = None
    columns = (TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, transient=False) as bars:
        sent = bars.add_task("replayed", total=replay.progress.minutes_total, note="")
        done = bars.add_task("joined", total=wanted, note="")
        while True:
            p = replay.progress
            rate = p.rates[-1][1] / p.rates[-1][0] if p.rates and p.rates[-1][0] > 0 else 0
            bars.update(sent, completed=p.minutes, note=f"{p.label or '-'}  {p.records:,} records  {rate:,.0f}/s")
            follow()
            recent = [arrival.delay for arrival in results.arrivals[-500:]]
            note = f"{len(results):,} rows" + (f"  delay {sorted(recent)[len(recent) // 2]:.1f} s" if recent else "")
            bars.update(done, completed=len(results), note=note)
            if p.error is not None:
                raise p.error
            if not query.isActive:
                error = query.exception()
                raise RuntimeError(f"the query has ended: {error}")
            if len(results) >= wanted:
                return True
            if p.ended is not None:
                settled = settled or time.monotonic()
                if time.monotonic() - settled > SETTLE_TIMEOUT_S:
                    return False
            time.sleep(0.2)


def compare(wanted: pa.Table, results: Results) -> list[str]:
    """What differs between the table computed from the file and the rows that came out, at most ten lines."""
    differences: list[str] = []
    if results.repeated:
        differences.append(f"{results.repeated} rows came out twice")
    left = dict(results.rows)
    for row in wanted.to_pylist():
        key = (row["site"], row["timestamp"].strftime("%Y-%m-%d %H:%M"))
        found = left.pop(key, None)
        if found is None:
            differences.append(f"{key[0]} {key[1]}: missing")
            continue
        flow, speed, lanes = found
        right = abs(speed - row["speed"]) <= TOLERANCE * max(abs(row["speed"]), 1.0)
        if (flow, lanes) != (row["flow"], row["lanes"]) or not right:
            differences.append(
                f"{key[0]} {key[1]}: flow {flow}, speed {speed}, lanes {lanes}; "
                f"the file says {row['flow']}, {row['speed']}, {row['lanes']}"
            )
    differences.extend(f"{site} {minute}: not in the file" for site, minute in sorted(left))
    if len(differences) > 10:  # noqa: PLR2004  (enough to see what is wrong)
        differences = [*differences[:10], f"and {len(differences) - 10} more"]
    return differences


def summary(replay: Replay, results: Results, wanted: pa.Table, differences: list[str], page: Path) -> None:
    """Says how it went."""
    delays = sorted(arrival.delay for arrival in results.arrivals)
    if delays:
        p50, p99 = delays[len(delays) // 2], delays[min(int(len(delays) * 0.99), len(delays) - 1)]
        say(
            f"{replay.progress.records:,} records in, {len(results):,} rows out; delay p50 {p50:.2f} s, p99 {p99:.2f} s"
        )
    if differences:
        say("the result is WRONG:")
        for line in differences:
            say(f"  {line}")
    else:
        say(f"all {wanted.num_rows:,} rows equal the table computed from the file")
    say(f"report: {page.resolve()}")
