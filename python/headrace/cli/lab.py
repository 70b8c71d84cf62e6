"""``headrace lab``: workloads from YAML, run and measured. The lab's own modules are loaded when they are called."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    import argparse

PACKAGES: Final = frozenset({"numpy", "plotly", "psutil", "rich", "yaml"})
"""What the lab imports and headrace alone does not bring."""

_EXAMPLES: Final = """\
examples:
  headrace lab check workload.yaml

docs/lab.md has the fields of a workload.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's actions and their options."""
    parser.epilog = _EXAMPLES
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read workload files and name everything that is wrong with them")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    check.set_defaults(run=_check)


def lab(module: str) -> Any:
    """A module of the lab.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    try:
        return import_module(f"headrace.lab.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise ConfigError(f"the lab needs the package {error.name}: pip install 'headrace[lab]'") from None


def _check(options: argparse.Namespace) -> int:
    campaigns, status = lab("campaign"), 0
    for path in options.files:
        try:
            found = campaigns.load(path)
        except lab("nodes").WorkloadErrors as errors:
            sys.stderr.write(f"{errors}\n")
            status = 2
        else:
            count = len(found.variations)
            print(f"{path}: {found.name}: {count} variation{'s' if count > 1 else ''}, all well")
    return status
