"""The examples, and what README shows first, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_quickstart(cluster):
    out = run(EXAMPLES / "quickstart.py", cluster.bootstrap_servers)
    assert "sent 1000 rows" in out
    assert "the group has read 1001 rows" in out
    assert "1001 rows read; best customers: [('customer-" in out


@pytest.mark.spark
def test_spark_stream():
    assert "|sensor-0|    2000|   8.75|" in run(EXAMPLES / "spark_stream.py")


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"quickstart.py", "spark_stream.py"}


def snippets():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_first_snippet_of_readme():
    snippet = snippets()[0]
    out = run("-c", f"{snippet}\nprint(batch.num_rows, orders['value'].to_pylist())")
    assert out == "3 [b'first', b'second', b'third']\n"


@pytest.mark.slow
def test_the_snippet_of_readme_with_several_brokers():
    [snippet] = [one for one in snippets() if "nodes=3" in one]
    out = run("-c", f"import headrace as hr\n{snippet}\n    print(sorted(cluster.nodes))")
    assert out == "[2, 3]\n"
