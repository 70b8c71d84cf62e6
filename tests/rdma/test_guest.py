"""The guest itself: if these fail, believe no other test here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kafka.apache import scratch_folder
from tests.rdma import image
from tests.rdma.fixtures import ROOT
from tests.rdma.guest import Guest, GuestError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_job_brings_back_what_it_says_and_how_it_ended(guest):
    done = guest.script("echo out; echo err >&2; exit 7")
    assert (done.status, done.output) == (7, "out\nerr\n")
    assert guest.run(["sh", "-c", 'echo "$WORD $1"', "sh", "a b"], environment={"WORD": "x y"}).output == "x y a b\n"
    assert "rxe0/1 state ACTIVE" in guest.run(["rdma", "link"]).output


def test_a_job_that_takes_too_long_is_ended(guest):
    assert guest.run(["sleep", "60"], timeout=1).status == 143
    assert guest.run(["true"]).status == 0


def test_what_a_job_writes_stays_in_the_guest(guest, tmp_path):
    seen = guest.script(f"echo lost > {tmp_path}/file; cat {tmp_path}/file")
    assert (seen.status, seen.output) == (0, "lost\n")
    assert not list(tmp_path.iterdir())


def test_a_guest_that_dies_is_told_from_a_job_that_fails(guest_image):
    with Guest(guest_image) as own, pytest.raises(GuestError, match="ended during job1"):
        own.script("echo o > /proc/sysrq-trigger; sleep 60")


def test_it_ends_with_the_process_that_started_it(guest_image):
    program = (
        "import os, signal\n"
        "from tests.rdma.guest import Guest\nfrom tests.rdma.image import ensure\n"
        "guest = Guest(ensure()).__enter__()\n"
        "print(guest._emulator.pid, guest._folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    emulator, folder = done.stdout.split()
    assert Path(folder).exists(), "nobody was left to remove it; whoever makes one next does"
    deadline = time.monotonic() + 10
    while Path(f"/proc/{emulator}").exists():
        assert time.monotonic() < deadline, "the emulator outlived its parent"
        time.sleep(0.05)
    scratch_folder("guest").rmdir()
    assert not Path(folder).exists()


def test_a_machine_that_cannot_have_one_is_told_what_it_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(image.NoGuestError, match=r"no apt-get.*qemu-system-x86.*linux-image"):
        image.ensure()
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'E: Unable to locate package qemu-system-x86'\nexit 100\n")
    for name in ("apt-cache", "dpkg-deb", "tar"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(image.NoGuestError, match=r"apt cannot fetch.*Unable to locate"):
        image.ensure()
    assert os.listdir(tmp_path / "headrace") == ["guest.lock"]  # noqa: PTH208 names are what is compared
