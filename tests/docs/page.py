"""Runs the snippets of a page as a reader does, from top to bottom: ``python -m tests.docs.page PAGE SERVERS``.

Python runs in one process, and so do commands in a shell. A block of text behind a snippet is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

SERVERS = "localhost:9092"
"""What pages call the broker."""
SECONDS_MAX = 60
_BLOCK = re.compile(r"^```(?P<kind>python|sh|text)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# What the test has done for the reader.
_DONE = ("pip install", "headrace broker")


class Snippet(NamedTuple):
    """A part of a page that runs."""

    kind: str
    text: str
    line: int
    prints: str | None


def snippets(page: str) -> list[Snippet]:
    """Those of a page, in order."""
    found: list[Snippet] = []
    for block in _BLOCK.finditer(page):
        line = page.count("\n", 0, block.start()) + 1
        if block["kind"] == "text":
            found[-1] = found[-1]._replace(prints=block["text"])
        else:
            found.append(Snippet(block["kind"], block["text"], line, None))
    return found


def run(path: Path, servers: str) -> int:
    """Runs them; gives their number."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    os.environ["HEADRACE_BOOTSTRAP"] = servers
    found = snippets(path.read_text(encoding="utf-8"))
    for snippet in found:
        where = f"{path}:{snippet.line}"
        if snippet.kind == "sh":
            printed = _shell(snippet.text)
        else:
            # With lines as they are in the page, for tracebacks.
            code = compile("\n" * snippet.line + snippet.text.replace(SERVERS, servers), str(path), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)  # noqa: S102 -- it is ours
            printed = out.getvalue()
        if snippet.prints is not None and printed != snippet.prints:
            message = f"{where} prints\n{printed}and not\n{snippet.prints}"
            raise AssertionError(message)
    return len(found)


def _shell(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(_DONE)]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode:
        message = f"{text}ended with {done.returncode}: {done.stderr}"
        raise AssertionError(message)
    return done.stdout


if __name__ == "__main__":
    print(f"{run(Path(sys.argv[1]), sys.argv[2])} snippets")
