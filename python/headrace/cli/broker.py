"""``headrace broker``: a broker in the foreground."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from headrace.broker import Broker
from headrace.cli._common import printable, setting

if TYPE_CHECKING:
    from types import FrameType

PORT_MAX: Final = 65535


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder for the data (default: a temporary one, removed at the end)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=9092, help="port to listen on, 0 for a free one (default: 9092)")
    parser.add_argument(
        "--registry",
        action="store_true",
        help="a schema registry beside it, with Confluent's REST API; its schemas are in the topic _schemas",
    )
    parser.add_argument(
        "--registry-port", type=_port, default=8081, metavar="PORT", help="port of the registry (default: %(default)s)"
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="etcd with the metadata of the cluster to join, such as etcd://host:2379,host2:2379/prefix, or "
        "etcds://host:2379/prefix?ssl.ca.location=FILE with TLS (docs/cluster.md)",
    )
    parser.add_argument(
        "--node",
        type=int,
        default=1,
        metavar="NUMBER",
        help="number of this broker in its cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="serve figures for Prometheus at http://HOST:PORT/metrics, 0 for a free port (docs/cluster.md)",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="a broker setting by Kafka's name, such as log.retention.ms=60000; can be repeated",
    )
    parser.set_defaults(run=run)
    parser.epilog = (
        "Stops on Ctrl-C or SIGTERM once everything is written to disk. After kill -9 the next start recovers."
    )


def _port(text: str) -> int:
    """A port of TCP."""
    if not (text.isascii() and text.isdecimal()) or int(text) > PORT_MAX:
        message = f"{text!r} is not a port, 0 to {PORT_MAX}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Serves until told to stop."""
    begun = time.perf_counter()
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # The command prints by itself what these warn of.
    logging.getLogger("headrace.broker").setLevel(logging.CRITICAL)
    logging.getLogger("headrace.log").setLevel(logging.CRITICAL)
    broker = Broker.start(
        options.data_dir,
        host=options.host,
        port=options.port,
        cluster=options.cluster,
        node=options.node,
        registry=options.registry,
        registry_port=options.registry_port,
        config=dict(options.config),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(broker)
        _report(broker)
        took = (time.perf_counter() - begun) * 1000
        sys.stdout.write(f"serving on {broker.bootstrap_servers} ({took:.0f} ms); Ctrl-C ends\n")
        if options.registry:
            sys.stdout.write(f"schema registry at {broker.registry_url}\n")
        if options.metrics_port is not None:
            # Whoever else has no use for an HTTP server is not to load one.
            from headrace.cli._metrics import MetricsServer  # noqa: PLC0415

            metrics = MetricsServer(broker._figures, options.host, options.metrics_port)  # noqa: SLF001
            stack.callback(metrics.stop)
            sys.stdout.write(f"metrics at {metrics.url}\n")
        sys.stdout.flush()
        while not stopping and broker.is_running:
            time.sleep(0.2)
            for trouble in broker.take_troubles():
                sys.stderr.write(f"headrace broker: {printable(trouble)}\n")
    if not stopping:
        sys.stderr.write("headrace broker: the broker's thread has ended by itself\n")
        return 1
    return 0


def _report(broker: Broker) -> None:
    """Says what was found at the start that is not as it was left."""
    if not broker.was_clean:
        sys.stderr.write("recovered: the broker was not stopped cleanly, logs were checked\n")
    for entry in broker.recovery:
        sys.stderr.write(f"recovered: {printable(entry)}\n")
    for name in broker.strays:
        sys.stderr.write(f"recovered: {printable(name)} belongs to no topic\n")
    if broker.adopted:
        names = ", ".join(broker.adopted)
        sys.stderr.write(f"recovered: headrace-state.json was not there; with default settings: {names}\n")
