"""`pyspark_headrace.daemon`: a result that nobody wants any more is no error; all else is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.kafka.java import ROOT

pytestmark = pytest.mark.spark

PROGRAM = """
import os, sys, time
import headrace as hr
import pyarrow as pa
from headrace.spark import session

spark = session("early ends", master="local[2]", config={
    "spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.driver.host": "127.0.0.1", SETTINGS})
say = lambda text: print("at:", text, file=sys.stderr, flush=True)
with hr.Broker.start() as broker:
    with hr.Producer(broker.bootstrap_servers) as producer:
        value = pa.array([b"x" * 1000] * 20_000)
        for _ in range(5):
            producer.send_arrow("many", pa.record_batch({"value": value})).result(30)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "many"}
    frame = spark.read.format("headrace").options(**options).load()
    for _ in range(2):
        assert len(frame.take(3)) == 3
        frame.show(2)
        assert frame.limit(5).count() == 5
        frame.first()
    say("the end of the early ends")
    def loud(batches):
        for batch in batches:
            print("said by a worker", file=sys.stderr)
            yield batch
            raise BrokenPipeError("of the user's own")
    try:
        frame.select("value").mapInArrow(loud, "value binary").count()
    except Exception as error:
        say("raised " + ("of the user's own" if "of the user's own" in str(error) else repr(error)))
    if STREAM:
        stream = spark.readStream.format("headrace").options(startingOffsets="earliest", **options).load()
        def slowly(batches):
            for batch in batches:
                time.sleep(0.05)
                yield batch
        query = stream.mapInArrow(slowly, stream.schema).writeStream.format("noop").start()
        while query.status["message"] != "Processing new data":
            time.sleep(0.01)
        time.sleep(0.5)
        query.stop()
        say("stopped")
spark.stop()
"""
UNREAD = re.compile("BrokenPipeError|ConnectionResetError|failed to flush")


def run(settings: str = "", *, stream: bool = False) -> str:
    program = PROGRAM.replace("SETTINGS", settings).replace("STREAM", str(stream))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "",
        pytest.param(
            # Where a worker lives on after it could not flush, and over TCP, where it meets a reset.
            '"spark.python.daemon.killWorkerOnFlushFailure": False, "spark.python.unix.domain.socket.enabled": False',
            marks=pytest.mark.soak,
        ),
        # Workers that load the source are quiet in a session that knows nothing of our daemon.
        pytest.param('"spark.python.daemon.module": "pyspark.daemon"', marks=pytest.mark.soak),
    ],
)
def test_take_show_and_limit_print_nothing_and_a_workers_own_errors_are_printed(settings):
    log = run(settings, stream=not settings)
    early, _, later = log.partition("at: the end of the early ends")
    assert not UNREAD.search(early), early
    assert "Traceback" not in early, early
    assert "at: raised of the user's own" in later
    assert "said by a worker" in later
    _, _, stopped = later.partition("at: raised")
    assert not UNREAD.search(stopped), stopped
    assert ("at: stopped" in stopped) is (not settings)


# One task of Spark's own daemon, as its manager runs it; the other end of the socket is closed before the flush.
TASK = """
import socket, sys, types
from pyspark import daemon as sparks
from pyspark_headrace import daemon as ours, unread

if {planner}:  # forked from Spark's own daemon, which is its main module
    sparks.__spec__.name = unread.SPARKS_OWN
    sys.modules["__main__"] = sparks
    unread.settle_worker()
else:
    sparks.manager = lambda: None
    ours.main()
here, there = socket.socketpair()

def main(infile, outfile):
    {task}

sys.modules["pyspark_task"] = module = types.ModuleType("pyspark_task")
module.main = main
sys.argv[1:] = ["pyspark_task"]
try:
    print("worker gives", sparks.worker(here, True))
except BaseException:
    sparks.traceback.print_exc()
"""
WRITE = "there.close(); outfile.write(b'x')"


@pytest.mark.parametrize(("kill", "planner"), [("", False), ("1", False), ("1", True)])
@pytest.mark.parametrize(
    ("task", "printed"),
    [
        (WRITE, None),
        (f"{WRITE}; raise SystemExit(-1)", None),
        ("raise ValueError('wrong')", "ValueError: wrong"),
        ("raise BrokenPipeError('of its own')", "BrokenPipeError: of its own"),
        (f"{WRITE}; raise ValueError('before')", "ValueError: before"),
        ("outfile.close()", "ValueError: flush of closed file"),
    ],
)
def test_only_what_spark_does_not_want_any_more_is_left_out(task, printed, kill, planner):
    code = TASK.format(task=task, planner=planner)
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": kill}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    if printed is None:
        assert done.stderr == ""
    else:
        assert "Traceback" in done.stderr
        assert printed in done.stderr


def test_the_daemon_starts_without_what_could_start_a_thread():
    heavy = "print(sorted({'headrace', 'pyarrow', 'pandas'} & set(sys.modules)))"
    code = f"import sys, pyspark_headrace.daemon, pyspark.daemon; {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_daemon_starts_and_ends_in_silence():
    """Without standard input it ends at once, as when Spark does."""
    command = [sys.executable, "-m", "pyspark_headrace.daemon", "pyspark.worker"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    assert len(done.stdout) == 4  # its port


def test_what_is_installed_has_the_package_that_spark_seeks():
    named = re.search(r"^python-packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert named
    folders = {package.parent.name for package in (ROOT / "python").glob("*/__init__.py")}
    assert set(re.findall(r'"(\w+)"', named[1])) == folders >= {"headrace", "pyspark_headrace"}
