"""How a session comes to know the source: `headrace.spark.session`, `register`, or by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kafka.java import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLAIN_SESSION = """
import json, sys, warnings
import headrace as hr
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with hr.Broker.start() as broker:
    with hr.Producer(broker.bootstrap_servers) as producer:
        producer.send("orders", b"1").result(10)
    frame = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    print(json.dumps({"rows": frame.option("subscribe", "orders").load().count()}))
"""

OWN_SESSION = """
import json, os, sys
from headrace.spark import register, session
spark = session("named", master="local[1]", config={"spark.ui.enabled": False}, spark_sql_shuffle_partitions=3)
again = session("other name")
conf = spark.sparkContext.getConf()
print(json.dumps({
    "same": again.sparkContext is spark.sparkContext and register(spark) is spark,
    "python": os.environ["PYSPARK_PYTHON"],
    "sockets": conf.get("spark.python.unix.domain.socket.enabled"),
    "daemon": conf.get("spark.python.daemon.module"),
    "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
    "name": conf.get("spark.app.name"),
    "ui": conf.get("spark.ui.enabled"),
}))
"""


def run(program: str, **environment: str) -> tuple[dict, str]:
    env = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_session_made_elsewhere_finds_the_source_by_itself():
    found, _ = run(PLAIN_SESSION, PYSPARK_PYTHON=sys.executable)
    assert found == {"rows": 1}


def test_session_sets_what_must_be_set_before_the_start():
    found, log = run(OWN_SESSION)
    assert found == {
        "same": True,
        "python": sys.executable,
        "sockets": "true",
        "daemon": "pyspark_headrace.daemon",
        "shuffle": "3",
        "name": "named",
        "ui": "false",
    }
    assert "replaced a statically registered data source" not in log


@pytest.mark.soak
def test_what_spark_submit_was_given_stays(tmp_path):
    (tmp_path / "program.py").write_text(OWN_SESSION)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    given = ["--conf", "spark.python.daemon.module=pyspark.daemon", "--master", "local[1]"]
    done = subprocess.run(
        [submit, *given, tmp_path / "program.py"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (found["daemon"], found["sockets"]) == ("pyspark.daemon", "true")


def test_an_older_pyspark_is_told_apart_and_leaves_other_sources_alone():
    program = """
import sys
sys.modules["pyspark.sql.streaming.datasource"] = None  # as before 4.2
import pyspark_headrace
assert not hasattr(pyspark_headrace, "DefaultSource")
try:
    import headrace.spark
except ImportError as error:
    import json; print(json.dumps({"error": str(error)}))
"""
    found, _ = run(program)
    assert found == {"error": "headrace.spark needs PySpark 4.2 or newer: pip install 'pyspark>=4.2'"}
