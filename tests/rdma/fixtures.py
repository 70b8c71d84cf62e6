"""The guest that tests share, and the programs that they run in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.rdma.guest import Guest
from tests.rdma.image import Image, NoGuestError, ensure

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def guest_image() -> Image:
    """What a guest is made of; what needs one is skipped, with the reason, where there can be none."""
    try:
        return ensure()
    except NoGuestError as reason:
        pytest.skip(f"NO SOFT-ROCE GUEST: {reason}")


@pytest.fixture(scope="session")
def guest(guest_image: Image) -> Iterator[Guest]:
    """A guest with a Soft-RoCE device, rxe0; started once."""
    with Guest(guest_image) as started:
        yield started


@pytest.fixture(scope="session")
def fabric_tests() -> dict[str, Path]:
    """The test programs of crates/fabric by name, `lib` for that of the crate itself."""
    return programs("crates/fabric")


@pytest.fixture(scope="session")
def net_tests() -> Path:
    """The test program of clients and a broker over verbs."""
    return programs("crates/net")["verbs"]


def programs(crate: str) -> dict[str, Path]:
    """A crate's tests, built as `make test` has built them: alone, a crate's dependencies have fewer features."""
    command = ["cargo", "test", "--workspace", "--lib", "--bins", "--tests", "--locked", "--quiet"]
    built = subprocess.run(
        [*command, "--no-run", "--message-format=json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    found = (json.loads(line) for line in built.stdout.splitlines() if line.startswith("{"))
    own = (line for line in found if line.get("manifest_path") == str(ROOT / crate / "Cargo.toml"))
    made = [line for line in own if line.get("executable") and line["profile"]["test"]]
    return {
        "lib" if "lib" in line["target"]["kind"] else line["target"]["name"]: Path(line["executable"]) for line in made
    }
