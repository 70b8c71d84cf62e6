"""Whether an installed headrace works: import, broker, produce, consume, group, through memory, command line.

Usage: smoke.py [MILLISECONDS]   what the import may take, beside that of pyarrow. It needs nothing but headrace.
$HEADRACE_SMOKE_PYTHON is the command that runs this Python, if that is not its file alone, as with an emulator.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

RECORDS = 1000
PYTHON = shlex.split(os.environ.get("HEADRACE_SMOKE_PYTHON") or shlex.quote(sys.executable))


def import_ms() -> float:
    """What a program pays for the producer and the consumer, pyarrow apart; the least of some tries."""
    code = (
        "import time, pyarrow; began = time.perf_counter(); import headrace; headrace.Producer; headrace.Consumer; "
        "headrace.Broker; print(1e3 * (time.perf_counter() - began))"
    )
    runs = [subprocess.run([*PYTHON, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def main() -> int:
    """Entry point."""
    took = import_ms()
    print(f"  imported in {took:.0f} ms beside pyarrow")
    if sys.argv[1:] and took > float(sys.argv[1]):
        print(f"  {sys.argv[1]} ms are wanted", file=sys.stderr)
        return 1
    import headrace as hr  # noqa: PLC0415 -- this is what is tried

    for datapath in ("tcp", "shm"):
        with hr.Broker.start() as broker:
            servers = broker.bootstrap_servers
            with hr.Producer(servers, headrace_datapath=datapath) as producer:
                for number in range(RECORDS):
                    producer.send("smoke", b"%d" % number, partition=0)
            group = "g" if datapath == "tcp" else None
            with hr.Consumer(
                servers, headrace_datapath=datapath, group_id=group, auto_offset_reset="earliest"
            ) as consumer:
                if group:
                    consumer.subscribe(["smoke"])
                else:
                    consumer.assign([("smoke", 0)])
                values: list[bytes] = []
                while len(values) < RECORDS:
                    values += consumer.poll(10.0)["value"].to_pylist()
            if values != [b"%d" % number for number in range(RECORDS)]:
                print(f"  over {datapath} other records came than were sent", file=sys.stderr)
                return 1
            print(f"  {RECORDS} records over {datapath}")
    headrace = [*PYTHON, "-m", "headrace"]
    subprocess.run([*headrace, "--version"], check=True)
    subprocess.run([*headrace, "doctor", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=200"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
