"""The fabric over verbs, on Soft-RoCE in a guest: gives the tests of crates/fabric/tests/verbs.rs what they need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.rdma.guest import LOAD

# The first one builds, and boots.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPECIAL = {
    "conforming_peer",
    "echo",
    "more_than_may_be_locked_is_explained",
    "a_device_that_may_not_be_opened_is_explained",
    "no_device_is_explained",
    "files_of_a_disk_are_registered_where_the_kernel_does",
}


def passed(output: str) -> set[str]:
    return set(re.findall(r"^test (\S+) \.\.\. ok$", output, re.MULTILINE))


@pytest.mark.timeout(400)
def test_every_operation_and_fault_on_a_device(guest, fabric_tests):
    program = str(fabric_tests["verbs"])
    listed = guest.run([program, "--list", "--ignored"]).output
    names = set(re.findall(r"^(\S+): test$", listed, re.MULTILINE)) - SPECIAL
    assert len(names) > 15, listed
    skipped = ["--exact", *sorted(names)]
    done = guest.run([program, "--ignored", "--test-threads=1", "--show-output", *skipped], timeout=300)
    print(done.output)
    assert done.status == 0
    assert passed(done.output) == names


def one(run, program, name, **options):
    done = run([str(program), "--ignored", "--exact", "--nocapture", name], **options)
    print(done.output)
    assert done.status == 0
    assert "1 passed" in done.output
    return done.output


def as_nobody(guest, mode, limit):
    """Runs a command as a user who may lock so many KiB, with such rights to the device."""

    def run(command):
        # The folder of the program may be its owner's alone.
        program, *words = command
        return guest.script(f"""
        cp {program} /run/tests && chmod 755 /run/tests && chmod {mode} /dev/infiniband/uverbs0
        busybox su -s /bin/sh nobody -c 'ulimit -l {limit}; exec /run/tests {" ".join(words)}'
        """)

    return run


def test_a_user_may_lock_only_so_much(guest, fabric_tests):
    one(as_nobody(guest, mode=666, limit=1024), fabric_tests["verbs"], "more_than_may_be_locked_is_explained")


def test_a_user_without_the_right_to_the_device(guest, fabric_tests):
    one(as_nobody(guest, mode=600, limit=1024), fabric_tests["verbs"], "a_device_that_may_not_be_opened_is_explained")


def on_ext4(guest):
    """Runs a command whose files lie on a disk's file system."""
    made = guest.script(f"""
    set -e
    busybox grep -q ' /mnt ext4 ' /proc/mounts && exit 0
    {LOAD} ext4
    cd /dev/shm && busybox truncate -s 128M disk && mkfs.ext4 -q disk
    busybox mkdir -p /mnt && busybox mount -o loop disk /mnt
    """)
    assert made.status == 0, made.output
    return lambda command: guest.run(command, environment={"TMPDIR": "/mnt"})


def test_files_of_ext4(guest, fabric_tests):
    name = "files_of_a_disk_are_registered_where_the_kernel_does"
    said = one(on_ext4(guest), fabric_tests["verbs"], name)
    assert "written" in said or "refused" in said


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine may have RDMA devices")
def test_a_machine_with_the_library_and_no_device(guest_image, fabric_tests):
    program = str(fabric_tests["verbs"])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(guest_image.libraries)}
    done = subprocess.run(
        [program, "--ignored", "--exact", "no_device_is_explained"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_layouts_are_those_of_the_headers(guest_image, fabric_tests):
    name = "verbs::sys::tests::layouts_and_constants_are_those_of_the_systems_headers"
    done = subprocess.run(
        [str(fabric_tests["lib"]), "--ignored", "--exact", name],
        env={**os.environ, "CPATH": str(guest_image.headers)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
