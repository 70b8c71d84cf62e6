"""The demo itself, cut short, against our broker and against Apache Kafka."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("broker", ["own", pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.soak])])
def test_the_demo_checks_its_own_result(request, broker, tmp_path):
    report = tmp_path / "report.html"
    command = [
        sys.executable,
        "-m",
        "headrace.cli",
        "demo",
        "--minutes",
        "120",
        "--speed",
        "40",
        "--report",
        str(report),
    ]
    if broker != "own":
        command += ["--bootstrap", request.getfixturevalue(broker).bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all 1,440 rows equal the table computed from the file" in done.stderr
    assert re.search(r"embedded .*schema registry at http://127\.0\.0\.1:\d+", done.stderr)
    for number, topic in enumerate(["ndwflow", "ndwspeed"], 1):
        line = f"values of {topic} are Avro: subject {topic}-value, version 1, schema id {number}\n"
        assert line in done.stderr
    # A registry that ends with the demo leaves records in somebody's topics that nobody can read.
    assert ("--schema-registry-url keeps them" in done.stderr) == (broker != "own")
    assert "Traceback" not in done.stderr, done.stderr
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert "end-to-end delay, p99" in page
    assert "<code>ndwspeed-value</code>, version 1, id 2" in page
    assert "$" not in page.split("</script>", 1)[1].split("<script", 1)[0]
