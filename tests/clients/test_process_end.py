"""A process ends cleanly whatever its threads are doing with a client."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

BEGIN = """
import threading, time
import headrace as hr
broker = hr.Broker.start()
servers = broker.bootstrap_servers
nobody = "127.0.0.1:1"
with hr.Producer(servers) as producer:
    producer.send("t", b"x").result(10)

def forever(call):
    def work():
        while True:
            try:
                call()
            except hr.KafkaError:
                pass
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)

"""

# The token is asked for before the broker is notified of a login, so one without logins does.
LOGIN = """
def admin(token):
    return hr.Admin(servers, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth_cb=token)

"""

WORK = {
    "admin": "forever(hr.Admin(nobody).list_topics)",
    "read": "forever(lambda: hr.read(servers, 't', end=10).read_all())",
    "refused": "forever(lambda: hr.Consumer(servers, no_such_option='x'))",
    "decode": "rows = hr.read(servers, 't').read_all()['value']; forever(lambda: hr.decode(rows, hr.Text()))",
    "poll": "consumer = hr.Consumer(servers); consumer.assign([('t', 0)]); forever(lambda: consumer.poll(10))",
    "send": "producer = hr.Producer(nobody, max_block_ms=300); forever(lambda: producer.send('t', b'x'))",
    "token": LOGIN + "token = lambda _: time.sleep(60); forever(admin(token).describe_cluster)",
    "tokens": LOGIN + "token = lambda _: time.sleep(0.001) or ('', 0); forever(admin(token).describe_cluster)",
    "nothing": "consumer = hr.Consumer(servers, group_id='g'); consumer.subscribe(['t']); consumer.poll(2)",
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
def test_threads_that_still_work_do_not_take_the_process_down(work):
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + WORK[work]], capture_output=True, text=True, timeout=40, check=False
    )
    said = re.sub(r"(?m)^(admin client|producer) headrace: .*\n", "", ended.stderr)
    assert ended.returncode == (1 if work == "send" else 0), ended.stderr
    if work == "send":
        # What was taken and not sent is reported.
        assert re.fullmatch(r"headrace: records were lost .* topic 't' .*\n", said)
    else:
        assert said == ""


TWO = """
def fail(partitions):
    print("revoked", flush=True)
    raise ZeroDivisionError("of the callback")

consumers = []
for group in "ab":
    assigned = []
    consumers.append(hr.Consumer(servers, group_id=group))
    consumers[-1].subscribe(["t"], on_assigned=assigned.append, on_revoked=fail)
    while not assigned:
        consumers[-1].poll(0.1)
"""


def test_every_consumer_is_closed_though_one_fails():
    ended = subprocess.run([sys.executable, "-c", BEGIN + TWO], capture_output=True, text=True, timeout=40, check=False)
    assert ended.stdout == "revoked\n" * 2, ended.stderr
    assert ended.stderr.count("not closed well when the process ended: of the callback") == 2
