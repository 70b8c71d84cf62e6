"""What README and docs/spark.md show of Spark runs as it stands, but for addresses and paths."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.kafka.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_SECONDS = 60

pytestmark = pytest.mark.spark


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "city", "type": "string"}, {"name": "amount", "type": "double"}]}"""


@pytest.fixture
def broker():
    with hr.Broker.start(registry=True) as broker:
        hr.SchemaRegistry(broker.registry_url).register("orders-value", ORDER)
        yield broker


def test_the_snippets(spark, broker, tmp_path):
    servers, registry = broker.bootstrap_servers, broker.registry_url.removeprefix("http://")
    for name in ("orders", "shouted"):
        Cluster("embedded", servers).create_topic(name)
    of_spark = [snippet for snippet in snippets("README.md") if "spark." in snippet]
    assert of_spark
    found: dict[str, Any] = {}
    for snippet in (*of_spark, *snippets("docs/spark.md")):
        code = re.sub(r"(localhost|127\.0\.0\.1):9092", servers, snippet).replace("localhost:8081", registry)
        exec(code.replace("/data/checkpoints", str(tmp_path)), found)  # noqa: S102 -- it is ours
        assert found["orders"].columns[:2] == ["key", "value"]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        with hr.Producer(servers) as producer:
            # The query begins at the end, wherever that is when it looks.
            while not hr.read(servers, "shouted").read_all().num_rows:
                assert time.monotonic() < deadline
                producer.send("orders", b"two pears").result(10)
                time.sleep(0.2)
    finally:
        found["query"].stop()
    assert hr.read(servers, "shouted").read_all()["value"][0].as_py() == b"TWO PEARS"
