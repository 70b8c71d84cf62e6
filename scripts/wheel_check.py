"""What `make wheel` has made: sizes, tags, what is inside; and each wheel that this machine can run, in an empty venv.

Usage: wheel_check.py DIST   Ends with 1 where a wheel is too large, has what it should not, or does not work.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

import foreign
from auditwheel.wheel_abi import analyze_wheel_abi

ROOT = Path(__file__).resolve().parent.parent
BYTES_MAX = 20_000_000
IMPORT_MS_MAX = 60
LIBC = "musl" if platform.libc_ver()[0] != "glibc" else "many"


def complaints(wheel: Path) -> list[str]:
    """What is wrong with a wheel by itself."""
    found = []
    size = wheel.stat().st_size
    names = zipfile.ZipFile(wheel).namelist()
    print(f"{wheel.name}: {size / 1e6:.1f} MB, {len(names)} files")
    if size > BYTES_MAX:
        found.append(f"{wheel.name} has {size:,} bytes, {BYTES_MAX:,} at most are wanted")
    needed = ["headrace/py.typed", "headrace/demo/report.js", "pyspark_headrace/__init__.py", "LICENSE", "NOTICE"]
    needed += ["headrace/licences-of-crates.txt", "headrace-python.cyclonedx.json"]
    found += [f"{wheel.name} lacks {one}" for one in needed if not any(name.endswith(one) for name in names)]
    abi = analyze_wheel_abi(None, None, wheel, frozenset(), disable_isa_ext_check=True, allow_graft=False)
    print(f"  {abi.overall_policy.name} by what it links")
    if not any(abi.overall_policy.name.startswith(kind) for kind in ("manylinux", "musllinux")):
        found.append(f"{wheel.name} needs more of the system than its tag says")
    return found


def runs_here(wheel: Path) -> bool:
    """Whether this machine can."""
    return f"{LIBC}linux" in wheel.name and platform.machine() in wheel.name


def try_out(wheel: Path) -> list[str]:
    """Installs it in empty environments, with the newest pyarrow and the oldest that it takes, to run smoke.py."""
    found = []
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    [first_record] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for pyarrow in ("pyarrow", _oldest_pyarrow()):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python, began = Path(folder) / "bin" / "python", time.monotonic()
            if not _pip(python, wheel, pyarrow):
                print(f"  not tried with {pyarrow}: pip has none for this Python")
                continue
            subprocess.run([python, "-c", first_record], cwd=folder, check=True, timeout=120, stdout=subprocess.DEVNULL)
            took = time.monotonic() - began
            print(f"  with {pyarrow}: the first record is read {took:.0f} s after pip begins")
            smoke: list[Path | str] = [python, ROOT / "scripts" / "smoke.py", str(IMPORT_MS_MAX)]
            if subprocess.run(smoke, cwd=folder, check=False, timeout=120).returncode:
                found.append(f"{wheel.name} does not work with {pyarrow}")
    return found


def try_elsewhere(wheel: Path) -> list[str]:
    """The same with a Python of another processor, where this machine can run one; its import is not timed."""
    machine = next((name for name in foreign.DEBIAN if wheel.stem.endswith(name)), wheel.stem.rpartition("-")[2])
    reason = foreign.lacks(machine) if "manylinux" in wheel.name else "this machine has no Python for musl"
    if reason:
        print(f"  not tried: {reason}")
        return []
    with tempfile.TemporaryDirectory() as folder:
        python, site = foreign.python(machine, Path(folder)), Path(folder) / "site"
        version = subprocess.run(
            [*python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        command: list[Path | str] = [sys.executable, "-m", "pip", "install", "--quiet", "--target", site]
        for libc in ("2_28", "2_17"):
            command += ["--platform", f"manylinux_{libc}_{machine}"]
        subprocess.run([*command, "--only-binary=:all:", "--python-version", version, wheel], check=True)
        environment = {**os.environ, "PYTHONPATH": str(site), "HEADRACE_SMOKE_PYTHON": shlex.join(python)}
        print(f"  Python {version} for {machine}, by qemu-user")
        smoke: list[Path | str] = [*python, ROOT / "scripts" / "smoke.py"]
        done = subprocess.run(smoke, cwd=folder, env=environment, check=False, timeout=600)
    return [f"{wheel.name} does not work"] if done.returncode else []


def _oldest_pyarrow() -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [oldest] = re.findall(r'"pyarrow>=(\d+)"', project)
    return f"pyarrow=={oldest}.*"


def _pip(python: Path, wheel: Path, pyarrow: str) -> bool:
    """Whether there are packages that fit; nothing is compiled. The newest pyarrow is always there."""
    command: list[Path | str] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
    ]
    done = subprocess.run([*command, wheel, pyarrow], check=pyarrow == "pyarrow")
    return done.returncode == 0


def main() -> int:
    """Entry point."""
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
    wrong = [] if wheels else ["there is no wheel"]
    for wheel in wheels:
        wrong += complaints(wheel)
        if runs_here(wheel):
            wrong += try_out(wheel)
        else:
            wrong += try_elsewhere(wheel)
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
