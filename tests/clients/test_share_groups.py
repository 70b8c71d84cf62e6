"""Share groups as an admin client sees them: their settings, and where they stand."""

from __future__ import annotations

import json
import time

import pytest

import headrace as hr
from headrace.admin import ShareOffset
from headrace.cli import main
from headrace.errors import InvalidConfigError, KafkaError, UnsupportedVersionError
from tests.clients.sharing import begins_at_the_beginning, configure, wait_until
from tests.kafka import java

pytestmark = pytest.mark.kafka


@pytest.fixture
def admin(apache_kafka):
    with hr.Admin(apache_kafka.bootstrap_servers) as client:
        yield client


def test_settings_of_a_group_are_set_read_and_taken_back(admin, topic):
    group = f"shares-{topic}"
    assert admin.describe_group_config(group)["share.auto.offset.reset"] == "latest"
    configure(admin, group, {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "15000"})
    admin.alter_group_config(group, {"share.auto.offset.reset": None})
    wait_until(lambda: admin.describe_group_config(group)["share.auto.offset.reset"] == "latest")
    assert admin.describe_group_config(group)["share.record.lock.duration.ms"] == "15000"
    assert admin.describe_group_config(f"other-{topic}")["share.record.lock.duration.ms"] == "30000"


@pytest.mark.parametrize(
    "config", [{"share.fnord": "1"}, {"share.record.lock.duration.ms": "1"}, {"share.auto.offset.reset": "newest"}]
)
def test_a_setting_that_is_none_and_a_value_that_is_not_taken_are_errors(admin, topic, config):
    with pytest.raises(InvalidConfigError, match=f"group 'shares-{topic}'"):
        admin.alter_group_config(f"shares-{topic}", config)


def test_where_a_group_stands(admin, apache_kafka, topic, capsys):
    group = f"shares-{topic}"
    admin.create_topic(topic, 2, 1)
    assert admin.share_group_offsets(group) == {}
    begins_at_the_beginning(admin, group)
    with hr.Producer(apache_kafka.bootstrap_servers) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
    address = ("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic, "--group", group)
    java.run("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *address, "--max-messages", "5")
    deadline = time.monotonic() + 30
    while (found := admin.share_group_offsets(group))[topic, 0].lag != 0:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert 0 <= found[topic, 0].start_offset <= 5
    assert set(found.values()) - {found[topic, 0]} <= {ShareOffset(-1, None)}
    # And so on the command line.
    assert main(["lag", group, "--partitions", "--json", "-b", apache_kafka.bootstrap_servers]) == 0
    shown = {one["partition"]: one for one in json.loads(capsys.readouterr().out)}
    assert shown[0] == {
        "group": group,
        "topic": topic,
        "partition": 0,
        "committed": found[topic, 0].start_offset,
        "latest": 5,
        "lag": 0,
    }


def test_our_broker_has_no_share_groups(embedded_broker):
    with hr.Admin(embedded_broker.bootstrap_servers) as admin:
        with pytest.raises(UnsupportedVersionError, match="does not know DescribeShareGroupOffsets"):
            admin.share_group_offsets("g")
        with pytest.raises(KafkaError):
            admin.alter_group_config("g", {"share.auto.offset.reset": "earliest"})
