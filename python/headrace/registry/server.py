"""A schema registry beside an embedded broker: the part of Confluent's REST API that clients use.

It keeps its schemas in the broker's topic ``_schemas``, as Confluent's registry does, so that either can go on with
what the other has written. It is made for tests, for development and for one machine: there is one of it, without
logins and without encryption.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import KafkaError, SchemaRegistryError
from headrace.registry import rest
from headrace.registry.journal import Journal
from headrace.registry.refusal import Refusal
from headrace.registry.subjects import Subjects

if TYPE_CHECKING:
    from headrace.registry.subjects import Change


BODY_BYTES_MAX: Final = 8 << 20
"""The longest request."""
CONNECTIONS_MAX: Final = 64
"""How many connections there are at a time; one more ends the one that has said nothing for longest."""
IDLE_S: Final = 30.0
"""How long a connection may say nothing."""
LINGER_S: Final = 1.0
"""How long it is still read what comes of a request that was refused."""
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

_log = logging.getLogger("headrace.registry")


class RegistryServer:
    """Serves until `stop`."""

    def __init__(self, servers: str, host: str, port: int) -> None:
        """Reads what the topic has, and begins to serve.

        Raises:
            SchemaRegistryError: the topic holds something else, or the port is taken.
        """
        self.subjects = Subjects()
        self._lock = threading.Lock()
        self._journal = Journal(servers)
        try:
            self._load()
            self._server = _Server((host, port), self)
        except BaseException:
            self._journal.close()
            raise
        self.url = f"http://{_host(host)}:{self._server.server_address[1]}"
        """Where it is."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="headrace registry", daemon=True
        )
        self._thread.start()

    def _load(self) -> None:
        try:
            for key, value, where in self._journal.records():
                try:
                    self.subjects.take(key, value)
                except ValueError as error:
                    message = f"{where}: {error}"
                    raise ValueError(message) from None
        except ValueError as error:
            message = f"the schema registry cannot read its topic: {error}"
            raise SchemaRegistryError(message, name="INVALID_RECORD") from None

    def stop(self) -> None:
        """Stops serving. What was answered is in the topic."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._journal.close()

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Any:
        """The answer to a request. Raises `Refusal`."""
        with self._lock:
            return rest.answer(self, method, path, query, body)

    def change(self, changes: list[Change]) -> None:
        """Writes records, and takes them in."""
        try:
            self._journal.append(changes)
        except KafkaError as error:
            if error.name in {"MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}:
                raise Refusal(413, 413, f"The schema is larger than a record may be: {error}") from None
            raise Refusal(500, 50001, f"Error in the backend data store: {error}") from None
        for key, value in changes:
            self.subjects.take(json.loads(json.dumps(key)), json.loads(json.dumps(value)))


class _Server(http.server.ThreadingHTTPServer):
    """A thread for each connection, up to a number."""

    daemon_threads = True
    # A thread that waits for its client's next request would hold up the end.
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], registry: RegistryServer) -> None:
        self.registry = registry
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._connections: set[socket.socket] = set()
        # Those from which a request is awaited, the one that waits longest first.
        self._awaited: dict[socket.socket, None] = {}
        self._stopping = False
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Connection)
        except OSError as error:
            message = f"the schema registry cannot listen on {_host(address[0])}:{address[1]}: {error}"
            raise SchemaRegistryError(message, name="INVALID_CONFIG") from None

    def server_bind(self) -> None:
        # The base class asks the name of the address, which may take seconds where no server of names answers.
        http.server.socketserver.TCPServer.server_bind(self)  # type: ignore[attr-defined]
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free.acquire(blocking=False):
            self._end_one()
            if self._stopping:
                self.shutdown_request(request)
                return
            if self._free.acquire(timeout=0.1):
                break
        self._connections.add(request)
        self.awaits(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def awaits(self, connection: socket.socket) -> None:
        """Its next request is awaited."""
        self._awaited[connection] = None

    def answers(self, connection: socket.socket) -> None:
        """Its request is whole, and is answered now."""
        self._awaited.pop(connection, None)

    def _end_one(self) -> None:
        for connection in list(self._awaited)[:1]:
            self._awaited.pop(connection, None)
            _end(connection)

    def _ended(self, request: socket.socket) -> None:
        self._awaited.pop(request, None)
        self._connections.discard(request)
        self._free.release()

    def shutdown(self) -> None:
        self._stopping = True
        super().shutdown()
        for connection in list(self._connections):
            _end(connection)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        _log.debug("a connection from %s has ended", client_address, exc_info=True)


class _Connection(http.server.BaseHTTPRequestHandler):
    """One client."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "headrace"
    sys_version = ""
    timeout = IDLE_S
    wbufsize = -1

    def _serve(self) -> None:
        try:
            path, query = self._asked()
            body = self._body()
            self.server.answers(self.connection)
            answer: Any = self.server.registry.answer(self.command, path, query, body)
            status = 200
        except Refusal as refusal:
            status, answer = refusal.status, {"error_code": refusal.code, "message": refusal.message}
        except Exception:  # noqa: BLE001  (whatever it was, it is the answer)
            _log.exception("%s %s failed", self.command, self.path[:200])
            status, answer = 500, {"error_code": 50001, "message": "Internal Server Error"}
        # It may be ended while it does not read its answer.
        self.server.awaits(self.connection)
        self._say(status, answer)
        self.server.answers(self.connection)
        self.server.awaits(self.connection)

    def _say(self, status: int, answer: Any) -> None:
        data = json.dumps(answer, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()
        if self.close_connection:
            self._linger()

    def _linger(self) -> None:
        """Reads what is still on its way: to close with it unread resets the connection, which can cost the answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_S)
            until = time.monotonic() + LINGER_S
            while time.monotonic() < until and self.connection.recv(1 << 16):
                pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong, as all other errors are said."""
        del explain
        self.close_connection = True
        self._say(code, {"error_code": code, "message": message or f"HTTP {code}"})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = _serve  # noqa: N815  (the base class looks for these)

    def _asked(self) -> tuple[str, dict[str, str]]:
        """The path and the parameters."""
        if "Origin" in self.headers:
            # A browser says so for a page of elsewhere; without logins it could do all that its user can.
            self.close_connection = True
            raise Refusal(403, 403, "Requests of web pages are not taken")
        try:
            parts = urllib.parse.urlsplit(self.path)
            query = {name: values[-1] for name, values in urllib.parse.parse_qs(parts.query).items()}
        except ValueError:
            self.close_connection = True
            raise Refusal(400, 400, "The request's path is malformed") from None
        return parts.path.rstrip("/") or "/", query

    def _body(self) -> bytes:
        text = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (text.isascii() and text.isdecimal()):
            self.close_connection = True
            raise Refusal(411, 411, "A request has a Content-Length")
        if len(text) > 12 or int(text) > BODY_BYTES_MAX:  # noqa: PLR2004  (more digits than any length has)
            self.close_connection = True
            raise Refusal(413, 413, f"A request has at most {BODY_BYTES_MAX} bytes")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            self.close_connection = True
            raise Refusal(400, 400, "The request ends before its length")
        return body

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's)
        _log.debug(format, *args)


def _end(connection: socket.socket) -> None:
    """Ends a connection, whose thread notices."""
    # It may have ended meanwhile.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
