"""The demo itself, cut short, against our broker and against Apache Kafka."""

from __future__ import annotations

import os
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
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\ngrep -c data-live=.report.live.js {report} >> {opened}\n')
    browser.chmod(0o755)
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
        "--live",
    ]
    if broker != "own":
        command += ["--bootstrap", request.getfixturevalue(broker).bootstrap_servers]
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all 1,440 rows equal the table computed from the file" in done.stderr
    assert re.search(r"embedded .*schema registry at http://127\.0\.0\.1:\d+", done.stderr)
    for number, topic in enumerate(["ndwflow", "ndwspeed"], 1):
        line = f"values of {topic} are Avro: subject {topic}-value, version 1, schema id {number}\n"
        assert line in done.stderr
    # A registry that ends with the demo leaves records in somebody's topics that nobody can read.
    assert ("--schema-registry-url keeps them" in done.stderr) == (broker != "own")
    assert "Traceback" not in done.stderr, done.stderr
    # It was there when the browser was told of it; in the end nothing is left beside it.
    assert opened.read_text().splitlines() == [report.resolve().as_uri(), "1"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["browser", "opened", "report.html"]
    page = report.read_text()
    assert 'data-live=""' in page
    assert "mean of 1,440 rows" in page  # each has parts: Spark has reported both of its micro-batches
    assert page.startswith("<!doctype html>")
    assert "end-to-end delay, p99" in page
    assert "<code>ndwspeed-value</code>, version 1, id 2" in page
    assert "$" not in page.split("</script>", 1)[1].split("<script", 1)[0]
