"""``headrace demo``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

PACKAGES: Final = frozenset({"plotly", "pyspark", "rich"})
"""What the demo imports and headrace alone does not bring."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from headrace.demo.main import configure as configure_demo  # noqa: PLC0415  (light; the demo itself is not)

    configure_demo(parser)
    parser.set_defaults(run=partial(_run, parser.get_default("run")))


def _run(demo: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        return demo(options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        message = (
            f"the demo needs the package {package}, which is not installed: "
            "in a checkout of headrace, pip install '.[demo]'"
        )
        raise ConfigError(message) from None
