"""Whether the tree is ready for a release: Cargo.toml has the version of the tag, and CHANGELOG.md says what is new.

Usage: release.py TAG   such as v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root: Path = ROOT) -> str:
    """That of the project; the one place where it stands."""
    manifest = (root / "Cargo.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(?P<version>[^"]+)"$', manifest, re.MULTILINE)
    if found is None:
        message = "Cargo.toml states no version"
        raise ValueError(message)
    return found["version"]


def complaints(tag: str, root: Path = ROOT) -> list[str]:
    """What is missing."""
    stated, found = version(root), []
    if tag != f"v{stated}":
        found.append(f"the tag is {tag}, and the version in Cargo.toml {stated}: v{stated} is the tag to set")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(stated)}(?![\w.-]).*\n(?P<text>(?:(?!## ).*\n?)*)", changes, re.MULTILINE)
    if section is None:
        found.append(f'CHANGELOG.md has no heading "## {stated}": rename "## Unreleased"')
    elif not section["text"].strip():
        found.append(f"CHANGELOG.md says nothing under {stated}")
    if "\n## Unreleased" in changes:
        found.append('CHANGELOG.md still has "## Unreleased": a tree that is tagged has released all of it')
    return found


def main() -> int:
    """Entry point."""
    if len(sys.argv[1:]) != 1:
        sys.exit(__doc__)
    found = complaints(sys.argv[1])
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
