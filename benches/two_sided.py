"""What a consumer's operations cost our broker's processor: one-sided reads beside requests and answers as messages.

Both go over the same Soft-RoCE in the tests' guest; crates/net/examples/fetch_cost.rs measures. The guest has one
emulated processor and a device that is software, so the times say nothing of a card: what counts is what the broker's
process is charged for each operation. On kernel 6.1 the device's own work is charged to whoever runs, on 6.12
(`HEADRACE_GUEST_KERNEL=linux-image-6.12-amd64`) to the kernel's threads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benches.harness import ROOT, Row, paired, say
from tests.rdma.guest import Guest
from tests.rdma.image import NoGuestError, ensure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench

PROGRAM = ROOT / "target" / "release" / "examples" / "fetch_cost"
OPERATIONS = 4000
TIMEOUT_SECONDS = 600
LEAST = 10.0
"""So many times the operations in a second of the broker's processor."""


def rows(bench: Bench) -> Iterator[Row]:
    """Batches of several sizes got one at a time, and looks at nothing."""
    try:
        image = ensure()
    except NoGuestError as reason:
        say(f"two-sided: NO SOFT-ROCE GUEST: {reason}")
        return
    operations, rounds = max(500, int(OPERATIONS * bench.scale)), max(1, bench.pairs // 2)
    say(f"two-sided: {operations} batches of each size in the guest, {rounds} rounds")
    with Guest(image) as guest:
        words = [str(PROGRAM), str(operations), str(rounds), "verbs", "two-sided", "tcp"]
        done = guest.run(words, timeout=TIMEOUT_SECONDS)
    assert done.status == 0, done.output
    found = [json.loads(line) for line in done.output.splitlines()]

    def rates(case: str, datapath: str) -> list[float]:
        """In a millisecond of the broker's processor; what costs it nothing counts as a nanosecond."""
        of = [line for line in found if (line["case"], line["datapath"]) == (case, datapath)]
        return [1000 / max(line["broker_us"], 0.001) for line in of]

    for case in dict.fromkeys(line["case"] for line in found):
        for other in ("two-sided", "tcp"):
            name = f"one-sided on Soft-RoCE: {case} for the broker's processor / {other}"
            bar = {"bar": LEAST} if other == "two-sided" else {}
            yield paired(name, rates(case, "verbs"), rates(case, other), "operations/ms", **bar)
