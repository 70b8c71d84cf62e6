"""The licences of all crates that the native module is linked from, with their texts: goes into every wheel.

Usage: licences.py TARGET   prints it; ends with 1 where a crate brings neither a text nor a licence by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")
HEAD = "The native module of headrace is linked from these crates. A text that several of them have stands once.\n"


def cargo(*arguments: str) -> str:
    """What cargo prints."""
    return subprocess.run(
        ["cargo", *arguments, "--locked"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout


def linked(target: str) -> set[tuple[str, str]]:
    """Names and versions."""
    tree = cargo("tree", "-p", "headrace-python", "-e", "normal,no-proc-macro", "--target", target, "--prefix", "none")
    found = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    return {(name, version.removeprefix("v")) for name, version in found if not name.startswith("headrace-")}


def main() -> int:
    """Entry point."""
    wanted, missing = linked(sys.argv[1]), []
    packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    crates, texts = [], dict[str, list[str]]()
    for package in sorted(packages, key=lambda one: (one["name"], one["version"])):
        name = f"{package['name']} {package['version']}"
        if (package["name"], package["version"]) not in wanted:
            continue
        folder = Path(package["manifest_path"]).parent
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name.upper().startswith(TEXTS):
                texts.setdefault(file.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        if package["license"] is None and not any(name in names for names in texts.values()):
            missing.append(f"{name} does not say what its licence is")
        crates.append(f"{name}: {package['license'] or 'its own, below'}, {package['repository'] or 'no repository'}")
    print(HEAD, *crates, sep="\n")
    for text, names in texts.items():
        print("\n" + "=" * 100 + f"\n{', '.join(names)}\n\n{text}")
    print(*missing, sep="\n", end="\n" if missing else "", file=sys.stderr)
    return 1 if missing or not crates else 0


if __name__ == "__main__":
    sys.exit(main())
