"""``headrace demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from headrace.demo.main import configure as configure_demo  # noqa: PLC0415  (light; the demo itself is not)

    configure_demo(parser)
