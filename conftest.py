"""The fixtures of tests and benches; a session's brokers serve both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["tests.kafka.fixtures", "tests.rdma.fixtures"]

FIRST = ("rdma", "lab", "spark", "demo", "stock")
"""Folders of tests whose files take minutes: with these at the end one worker would go on alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes long first; else all stays in its order."""
    items.sort(key=lambda item: item.path.parent.name not in FIRST)
