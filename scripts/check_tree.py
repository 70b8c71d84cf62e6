"""Small guards over the tree: sizes, names of machines, pages that name files that exist, minimal Rust, import circles.

A file over 1,000 lines or a function over 80 asks for a split; one that has a reason not to says so in a
comment in the line above it (a file: in its first ten lines), `size: REASON`. A guard that finds nothing to
look at fails.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from import_graph import import_circles

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 80
RUST_FUNCTION = re.compile(r"^(?P<indent> *)(?:pub(?:\([\w: ]+\))? )?(?:const |async |unsafe )*fn (?P<name>\w+)")
EXCUSE = re.compile(r"(?://|#).*\bsize: \S+")
# Paths of one machine; the brackets keep these patterns from finding themselves.
PRIVATE = re.compile(r"/wor[k]/|\.\./share[d]\b|/roo[t]/|/home/\w+/|crates\.io-[0-9a-f]{8}")
# A file or folder of this project in a sentence; the extension may be left out.
NAMED = re.compile(r"(?<![\w./-])(?:crates|python|tests|docs|scripts|benches)/[\w./-]*\w")
BINARY = {".parquet", ".png", ".zip", ".bin", ".gz", ".jar"}


def tracked() -> list[Path]:
    """The files that git knows, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def rust_functions(lines: list[str]) -> Iterator[tuple[int, str, int]]:
    """First line, name and length of each function; rustfmt's indentation tells where it ends."""
    for number, line in enumerate(lines):
        found = RUST_FUNCTION.match(line)
        if not found or "{{" in line:  # the second is a template of code, not code
            continue
        for offset, later in enumerate(lines[number:]):
            if later.rstrip() == f"{found['indent']}}}" or (offset == 0 and line.rstrip().endswith(("}", ";"))):
                yield number, found["name"], offset + 1
                break


def python_functions(text: str) -> Iterator[tuple[int, str, int]]:
    """First line, name and length of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno - 1, node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def sizes(files: list[Path]) -> Iterator[str]:
    """Files and functions that ask for a split."""
    sources = [file for file in files if file.suffix in {".rs", ".py"}]
    if not sources:
        yield "no source file found to measure"
    for file in sources:
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        name = file.relative_to(ROOT)
        if len(lines) > FILE_LINES_MAX and not any(EXCUSE.search(line) for line in lines[:10]):
            yield f"{name}: {len(lines)} lines, over {FILE_LINES_MAX}"
        functions = rust_functions(lines) if file.suffix == ".rs" else python_functions(text)
        for first, function, length in functions:
            excused = first > 0 and EXCUSE.search(lines[first - 1])
            if length > FUNCTION_LINES_MAX and not excused:
                yield f"{name}:{first + 1}: {function} has {length} lines, over {FUNCTION_LINES_MAX}"


def private_names(files: list[Path]) -> Iterator[str]:
    """Lines that name a path of somebody's machine."""
    texts = [file for file in files if file.suffix not in BINARY]
    if not texts:
        yield "no text file found to read"
    for file in texts:
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found = PRIVATE.search(line)
            if found:
                yield f"{file.relative_to(ROOT)}:{number}: names a path of one machine: {found[0]}"


def lost_names(files: list[Path]) -> Iterator[str]:
    """Files and folders that pages of this project name and that are not there."""
    names = {str(file.relative_to(ROOT)) for file in files}
    names |= {str(parent) for name in names for parent in Path(name).parents}
    # What lies in a crate is often named from there.
    known = {"/".join(parts[start:]) for name in names for parts in [name.split("/")] for start in range(len(parts))}
    pages = [file for file in files if file.suffix == ".md" and file.name != "CHANGELOG.md"]
    if not pages:
        yield "no page found to read"
    for page in pages:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for found in NAMED.findall(line):
                if found not in known and not found.startswith("benches/results/"):
                    yield f"{page.relative_to(ROOT)}:{number}: names {found}, which is not there"


def dotted(text: str) -> tuple[int, ...]:
    """A version for comparison: 1.89 is 1.89.0."""
    major, minor, patch = (int(part) for part in [*text.split("."), "0", "0"][:3])
    return major, minor, patch


def minimal_rust() -> Iterator[str]:
    """Locked dependencies that need a newer Rust than `rust-version` states; clippy watches our own code."""
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    )
    members = set(metadata["workspace_members"])
    stated = min(package["rust_version"] for package in metadata["packages"] if package["id"] in members)
    others = [package for package in metadata["packages"] if package["id"] not in members]
    if not others:
        yield "cargo metadata lists no dependency"
    for package in others:
        needs = package["rust_version"]
        if needs and dotted(needs) > dotted(stated):
            yield f"{package['name']} {package['version']} needs Rust {needs}; Cargo.toml states {stated}"


def main() -> int:
    """Entry point."""
    files = tracked()
    complaints = [*sizes(files), *private_names(files), *lost_names(files), *minimal_rust(), *import_circles()]
    print(*complaints, f"{len(files)} files looked at, {len(complaints)} complaints", sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
