"""The fixtures of tests and benches; a session's brokers serve both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from tests.kafka import java
from tests.polite import be_polite

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["tests.kafka.fixtures", "tests.rdma.fixtures"]

FIRST = ("rdma", "lab", "spark", "demo", "stock")
"""Folders of tests whose files take minutes: with these at the end one worker would go on alone."""


def pytest_configure() -> None:
    """Has Spark's JVMs live for seconds, and processes with hungry tests be polite.

    Of a short program the JVM's second compiler takes half the processor time.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(java.SHORT_LIVED))
    be_polite()
    # How long an example takes says more of the machine than of us.
    settings.register_profile("without clocks", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("without clocks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes long first; else all stays in its order."""
    items.sort(key=lambda item: item.path.parent.name not in FIRST)
