"""Schemas by id and subject, from a schema registry."""

from __future__ import annotations

import base64
import http
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError, SchemaRegistryError, SchemaRegistryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RegisteredSchema", "SchemaReference", "SchemaRegistry"]

_ANSWER_BYTES_MAX: Final = 16 << 20
_REFERENCES_MAX: Final = 500
"""All that one schema names, and those name in turn."""
_TYPES: Final = "application/vnd.schemaregistry.v1+json, application/json"
_DEFAULT_CONTEXTS: Final = (".", ":.:")
_TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True)
class SchemaReference:
    """A version of a subject that another schema names."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry has it."""

    id: int
    schema: str
    schema_type: str = "AVRO"
    """``AVRO``, ``JSON`` or ``PROTOBUF``."""
    references: tuple[SchemaReference, ...] = ()
    guid: str | None = None
    """What names it in every registry, if this one says it (Confluent's since 8.0)."""
    subject: str | None = None
    """With `version`, where it was asked for by subject."""
    version: int | None = None
    definitions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Name and text of the schemas that it names, directly or not, each after those that it names itself."""


class SchemaRegistry:
    """A client of a schema registry that speaks Confluent's REST API, for ``registry=`` of `Avro` and other formats.

    What was found is kept; a schema's id never gets another meaning. Threads may share a client. A request that fails
    for want of an answer, or is answered with 408, 429 or 5xx, is sent again, to the next URL if there are several.

    >>> registry = hr.SchemaRegistry("http://127.0.0.1:8081")  # doctest: +SKIP
    >>> registry.latest("orders-value").version  # doctest: +SKIP
    3

    Args:
        url: ``"http://host:8081"``, with a path if the API has one; several in a list or separated by commas.
        auth: ``(user, password)`` for basic authentication, or a token for bearer authentication.
        ssl_ca_location: a file of certificates to trust, in PEM; the system's by default.
        ssl_certificate_location: a certificate of the client's own, in PEM, for mutual TLS.
        ssl_key_location: its key, if it is in a file of its own.
        ssl_key_password: opens the key.
        timeout: seconds that one request may take.
        deadline: seconds after which a request that is sent again and again has failed.

    Raises:
        ConfigError: a URL is none, or a certificate cannot be read.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        auth: tuple[str, str] | str | None = None,
        ssl_ca_location: str | None = None,
        ssl_certificate_location: str | None = None,
        ssl_key_location: str | None = None,
        ssl_key_password: str | None = None,
        timeout: float = 10.0,
        deadline: float = 30.0,
    ) -> None:
        self._given = {name: of for name, of in locals().items() if name not in {"self", "__class__"}}
        self._urls = [_base(one.strip()) for one in (url.split(",") if isinstance(url, str) else url)]
        if not self._urls:
            raise _config("url names no registry")
        self._timeout, self._deadline = timeout, deadline
        self._headers = {"Accept": _TYPES}
        if isinstance(auth, str):
            self._headers["Authorization"] = f"Bearer {auth}"
        elif auth is not None:
            user, password = auth
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        context = ssl.create_default_context()
        try:
            if ssl_ca_location is not None:
                context.load_verify_locations(ssl_ca_location)
            if ssl_certificate_location is not None:
                context.load_cert_chain(ssl_certificate_location, ssl_key_location, ssl_key_password)
        except OSError as error:
            raise _config(f"a certificate or key of the schema registry's client cannot be read: {error}") from None
        # No other handlers: what a proxy's variables or a redirect would add is not asked for here.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}
        self._by_guid: dict[str, int] = {}
        self._by_version: dict[tuple[str, int], RegisteredSchema] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """The same in another process, which asks by itself."""
        return (_client, (self._given,))

    def __repr__(self) -> str:
        """Where it is, without what opens it."""
        return f"SchemaRegistry({', '.join(self._urls)})"

    def schema(self, id: int) -> RegisteredSchema:  # noqa: A002  (the field's name)
        """The schema of an id.

        Raises:
            SchemaRegistryError: there is none (``status`` 404), or the registry refuses.
            SchemaRegistryUnavailableError: the registry did not answer within ``deadline``.
        """
        with self._lock:
            known = self._by_id.get(id)
        if known is not None:
            return known
        found = self._whole(self._ask("GET", f"/schemas/ids/{id}"), id)
        with self._lock:
            return self._by_id.setdefault(id, found)

    def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema of a GUID, such as ``"8f4f1f2c-..."``, in the registry's default context.

        Raises:
            SchemaRegistryError: as for `schema`; ``status`` is 404 also for a registry that knows no GUIDs.
            SchemaRegistryUnavailableError: as for `schema`.
        """
        with self._lock:
            known = self._by_guid.get(guid)
        if known is None:
            path = f"/schemas/guids/{_quoted(guid)}/ids"
            found = self._ask("GET", path)
            if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
                raise _malformed(path, found)
            ids = [one.get("id") for one in found if one.get("context") in _DEFAULT_CONTEXTS]
            if not ids:
                error = SchemaRegistryError(
                    f"the schema registry has no schema of GUID {guid}", name="SCHEMA_NOT_FOUND"
                )
                error.status = http.HTTPStatus.NOT_FOUND
                raise error
            if not _is_number(ids[0]):
                raise _malformed(path, found)
            with self._lock:
                known = self._by_guid.setdefault(guid, ids[0])
        return self.schema(known)

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject; asked for each time. Raises as `schema` does."""
        return self._of_subject(subject, "latest")

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject. Raises as `schema` does."""
        with self._lock:
            known = self._by_version.get((subject, version))
        return known if known is not None else self._of_subject(subject, str(version))

    def subjects(self) -> list[str]:
        """The names of all subjects. Raises as `schema` does."""
        found = self._ask("GET", "/subjects")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise _malformed("/subjects", found)
        return found

    def register(
        self,
        subject: str,
        schema: str,
        *,
        schema_type: str = "AVRO",
        references: Sequence[SchemaReference] = (),
    ) -> int:
        """Registers a version of a subject, unless it is there already; gives the schema's id.

        Raises:
            SchemaRegistryError: the schema is not compatible with those before it (``status`` 409), or is none (422).
            SchemaRegistryUnavailableError: as for `schema`.
        """
        path = f"/subjects/{_quoted(subject)}/versions"
        return _number(path, self._ask("POST", path, _body(schema, schema_type, references)))

    def lookup(
        self,
        subject: str,
        schema: str,
        *,
        schema_type: str = "AVRO",
        references: Sequence[SchemaReference] = (),
    ) -> int:
        """The id of a schema that is a version of a subject already; nothing is changed.

        Raises:
            SchemaRegistryError: there is no such subject, or the schema is none of its versions (``status`` 404).
            SchemaRegistryUnavailableError: as for `schema`.
        """
        path = f"/subjects/{_quoted(subject)}"
        return _number(path, self._ask("POST", path, _body(schema, schema_type, references)))

    def _of_subject(self, subject: str, version: str) -> RegisteredSchema:
        path = f"/subjects/{_quoted(subject)}/versions/{version}"
        found = self._ask("GET", path)
        if not isinstance(found, dict) or not _is_number(found.get("id")) or not _is_number(found.get("version")):
            raise _malformed(path, found)
        made = self._whole(found, int(found["id"]), subject, int(found["version"]))
        with self._lock:
            self._by_version[subject, int(found["version"])] = made
            self._by_id.setdefault(made.id, made)
        return made

    def _whole(
        self, found: Any, number: int, subject: str | None = None, version: int | None = None
    ) -> RegisteredSchema:
        """A schema with all that it names."""
        text, kind, references = _parts(found, number)
        definitions: dict[tuple[str, str, int], tuple[str, str]] = {}
        self._define(references, definitions, ())
        guid = found.get("guid")
        return RegisteredSchema(
            number,
            text,
            kind,
            references,
            guid if isinstance(guid, str) else None,
            subject,
            version,
            tuple(definitions.values()),
        )

    def _define(
        self,
        references: tuple[SchemaReference, ...],
        definitions: dict[tuple[str, str, int], tuple[str, str]],
        within: tuple[tuple[str, str, int], ...],
    ) -> None:
        for reference in references:
            name = (reference.name, reference.subject, reference.version)
            if name in within:
                raise SchemaRegistryError(f"version {name[2]} of {name[1]} refers to itself", name="INVALID_SCHEMA")
            if name in definitions:
                continue
            if len(definitions) + len(within) >= _REFERENCES_MAX:
                message = f"a schema names more than {_REFERENCES_MAX} others"
                raise SchemaRegistryError(message, name="INVALID_SCHEMA")
            path = f"/subjects/{_quoted(name[1])}/versions/{name[2]}"
            text, _, further = _parts(self._ask("GET", path), path)
            self._define(further, definitions, (*within, name))
            definitions[name] = (reference.name, text)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request, whichever URL gives it."""
        until = time.monotonic() + self._deadline
        pause, number = _FIRST_PAUSE_S, 0
        while True:
            url = self._urls[number % len(self._urls)]
            number += 1
            why = self._ask_one(method, url, path, body, min(self._timeout, max(until - time.monotonic(), 0.01)))
            if not isinstance(why, str):
                return why.value
            if number % len(self._urls):
                continue
            if time.monotonic() + pause > until:
                message = f"the schema registry {url} did not answer {method} {path}: {why}"
                raise SchemaRegistryUnavailableError(message, name="SCHEMA_REGISTRY_UNAVAILABLE")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _ask_one(self, method: str, url: str, path: str, body: object, timeout: float) -> _Answer | str:
        """An answer, or why there is none that counts."""
        request = urllib.request.Request(url + path, method=method, headers=dict(self._headers))  # noqa: S310  (_base)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                status, data = answer.status, _read(answer, time.monotonic() + timeout)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                message = f"the schema registry {url} is not trusted: {error.reason}"
                raise SchemaRegistryError(message, name="SSL_HANDSHAKE_FAILED") from None
            return str(error.reason)
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        if status in _TRY_AGAIN:
            return f"status {status}{_said(data)}"
        if len(data) > _ANSWER_BYTES_MAX:
            message = f"the schema registry {url} answered {method} {path} with more than {_ANSWER_BYTES_MAX >> 20} MiB"
            raise SchemaRegistryError(message, name="INVALID_ANSWER")
        if status != http.HTTPStatus.OK:
            message = f"the schema registry {url} answered {method} {path} with status {status}{_said(data)}"
            refusal = SchemaRegistryError(message, name=_NAMES.get(status, "SCHEMA_REGISTRY_ERROR"))
            refusal.status = status
            raise refusal
        try:
            return _Answer(json.loads(data))
        except (ValueError, RecursionError):
            raise _malformed(path, data[:200]) from None


def _client(given: dict[str, Any]) -> SchemaRegistry:
    return SchemaRegistry(**given)


@dataclass(frozen=True)
class _Answer:
    value: Any


def _read(answer: http.client.HTTPResponse, until: float) -> bytes:
    """What an answer holds, up to a bit more than is taken. A byte now and then holds nobody up for ever."""
    parts: list[bytes] = []
    size = 0
    while size <= _ANSWER_BYTES_MAX and (part := answer.read1(1 << 16)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > until:
            raise TimeoutError("timed out")
    return b"".join(parts)


_NAMES: Final = {
    401: "SASL_AUTHENTICATION_FAILED",
    403: "CLUSTER_AUTHORIZATION_FAILED",
    404: "SCHEMA_NOT_FOUND",
    409: "INCOMPATIBLE_SCHEMA",
    422: "INVALID_SCHEMA",
}


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        shown = url if "@" not in url else "(it holds a password)"
        raise _config(f"url {shown} is none of a schema registry; one is http://127.0.0.1:8081")
    if parts.username is not None or parts.password is not None:
        raise _config(f"the url of {parts.hostname} holds a user or a password; give auth=(user, password)")
    return url.rstrip("/")


def _config(message: str) -> ConfigError:
    return ConfigError(message, name="INVALID_CONFIG")


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _is_number(value: object) -> bool:
    """Whether it is an id or a version: rows have four bytes for one."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _said(data: bytes) -> str:
    """What a registry says of a failure."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    message = said.get("message") if isinstance(said, dict) else None
    return f": {message[:500]}" if isinstance(message, str) else ""


def _malformed(where: object, found: object) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"the schema registry's answer to {where} is malformed: {found!r:.200}", name="INVALID_ANSWER"
    )


def _body(schema: str, schema_type: str, references: Sequence[SchemaReference]) -> dict[str, object]:
    """A schema as it is sent."""
    body: dict[str, object] = {"schema": schema}
    # Older registries know no types, and all take Avro's.
    if schema_type != "AVRO":
        body["schemaType"] = schema_type
    if references:
        body["references"] = [vars(reference) for reference in references]
    return body


def _number(path: str, found: Any) -> int:
    """The id in an answer."""
    if not isinstance(found, dict) or not _is_number(found.get("id")):
        raise _malformed(path, found)
    return int(found["id"])


def _parts(found: Any, where: object) -> tuple[str, str, tuple[SchemaReference, ...]]:
    """Text, type and references of a schema in an answer."""
    text = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise _malformed(where, found)
    kind = found.get("schemaType") or "AVRO"
    references = []
    for one in found.get("references") or ():
        if not isinstance(one, dict) or not isinstance(one.get("subject"), str) or not _is_number(one.get("version")):
            raise _malformed(where, found)
        references.append(SchemaReference(str(one.get("name")), one["subject"], one["version"]))
    return text, str(kind), tuple(references)
