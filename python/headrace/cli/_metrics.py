"""Figures of a broker over HTTP, in Prometheus's text format."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

from headrace.errors import BrokerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.broker import Figure

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_MAX = 10.0
"""How long a client may say nothing."""


def text(figures: Iterable[Figure]) -> str:
    """The figures as Prometheus reads them.

    Names are those that Prometheus's JMX exporter gives Kafka's metrics: ``kafka_server_replicamanager_leadercount``.
    """
    lines = []
    for one in figures:
        domain, _, kind = one.group.partition(":type=")
        name = f"{domain.replace('.', '_')}_{kind}_{one.name}".lower() + ("_total" if one.is_counter else "")
        lines += [f"# HELP {name} {one.help}", f"# TYPE {name} {'counter' if one.is_counter else 'gauge'}"]
        lines.append(f"{name} {one.value}")
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves ``/metrics`` until `stop`, one request after the other."""

    def __init__(self, figures: Callable[[], Iterable[Figure]], host: str, port: int) -> None:
        """Begins to serve.

        Raises:
            BrokerStartError: the port is taken.
        """

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = SECONDS_MAX

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "there is /metrics")
                    return
                body = text(figures()).encode()
                # A broker that does not answer is not well.
                self.send_response(200 if len(body) > 1 else 503)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: it is asked every few seconds."""

        try:
            self._server = http.server.HTTPServer((host, port), Handler)
        except OSError as error:
            message = f"cannot serve metrics on {host}:{port}: {error}"
            raise BrokerStartError(message, name="BROKER_START") from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
