"""Prints the requirements of the extras of pyproject.toml, one a line, for pip to install before the build.

Usage: extras.py NAME...   The package's own dependencies always come with them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
OWN_EXTRA = re.compile(r"^headrace\[([\w,-]+)\]$")


def requirements(extras: dict[str, list[str]], names: list[str]) -> list[str]:
    """The requirements of `names`, with references to our own extras followed; each once, in order."""
    found: dict[str, None] = {}
    for name in names:
        for requirement in extras[name]:
            own = OWN_EXTRA.match(requirement)
            found.update(dict.fromkeys(requirements(extras, own[1].split(",")) if own else [requirement]))
    return list(found)


def main() -> int:
    """Entry point."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    unknown = [name for name in sys.argv[1:] if name not in extras]
    if unknown:
        print(f"extras.py: no such extra: {', '.join(unknown)}; there are {', '.join(extras)}", file=sys.stderr)
        return 2
    print("\n".join([*project["dependencies"], *requirements(extras, sys.argv[1:])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
