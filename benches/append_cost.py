"""What an append costs with the two strategies of the buffer pool: CPU time of the appending thread, in Rust.

The program is `crates/client/examples/producer_bench.rs`: its broker is in the same process, so that nothing but
the producer is measured.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from benches.harness import ROOT, Row, paired, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench

BAR = 1.10
MEGABYTES = 1000  # a run: tenths of a second of appending
BUILD_TIMEOUT_SECONDS = 1200
STRATEGIES = ("incremental", "full")


def program(*, release: bool) -> str:
    """Builds the program, in the way in which the whole workspace is built: so most of it is there already."""
    command = ["cargo", "build", "--quiet", "--locked", "--workspace", "--example", "producer_bench"]
    command += ["--message-format", "json", *(["--release"] if release else [])]
    built = run(command).splitlines()
    (path,) = {message["executable"] for message in map(json.loads, built) if message.get("executable")}
    return str(path)


def run(command: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=BUILD_TIMEOUT_SECONDS, check=True
    ).stdout


def measure(pairs: int, megabytes: int, *, release: bool = True) -> dict[str, dict[str, list[float]]]:
    """CPU nanoseconds a record by case and strategy, in turns."""
    printed = run([program(release=release), "strategies", str(pairs), str(megabytes)])
    cases: dict[str, dict[str, list[float]]] = {}
    for line in printed.splitlines():
        result = json.loads(line)
        strategies = cases.setdefault(result["case"], {name: [] for name in STRATEGIES})
        strategies[result["strategy"]].append(result["ns"])
    return cases


def rows(bench: Bench) -> Iterator[Row]:
    """`incremental` beside `full`; where less is better."""
    say(f"append cost: {bench.pairs} rounds")
    for case, strategies in measure(bench.pairs, max(1, int(MEGABYTES * bench.scale))).items():
        incremental, full = (strategies[name] for name in STRATEGIES)
        yield paired(f"append cost[{case}]: incremental / full", incremental, full, "CPU ns/record", bar_below=BAR)
