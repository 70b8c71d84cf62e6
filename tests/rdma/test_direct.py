"""Clients and a broker over verbs, in a guest: gives the tests of crates/net/tests/verbs.rs what they need."""

from __future__ import annotations

import re

import pytest

from tests.rdma.test_verbs import as_nobody, on_ext4, one, passed

# The first one builds, and boots.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPECIAL = {
    "broker_of_another",
    "producer_of_another",
    "sender_of_another",
    "what_may_not_be_locked_is_explained",
    "what_reading_costs_the_broker",
}


@pytest.mark.timeout(400)
def test_records_and_faults_over_verbs(guest, net_tests):
    listed = guest.run([str(net_tests), "--list", "--ignored"]).output
    names = set(re.findall(r"^(\S+): test$", listed, re.MULTILINE)) - SPECIAL
    assert len(names) > 3, listed
    command = [str(net_tests), "--ignored", "--test-threads=1", "--show-output", "--exact", *sorted(names)]
    done = guest.run(command, timeout=300)
    print(done.output)
    assert done.status == 0
    assert passed(done.output) == names


def test_a_user_who_may_lock_too_little_is_told(guest, net_tests):
    one(as_nobody(guest, mode=666, limit=4096), net_tests, "what_may_not_be_locked_is_explained")


@pytest.mark.parametrize(
    "name",
    [
        "records_go_both_ways_around_rings_and_over_segments",
        "a_broker_that_is_killed_loses_nothing_that_it_has_acknowledged",
    ],
)
def test_a_broker_whose_data_lie_on_ext4(guest, net_tests, name):
    # Kernels from 6.5 on register no file of a disk that a peer may write, which its segments are not.
    one(on_ext4(guest), net_tests, name)
