"""The requests that a registry answers, by Confluent's REST API: what each asks for, and what `Subjects` says to it."""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace import _native
from headrace.registry.refusal import Refusal
from headrace.registry.subjects import OF_JSON, TYPES, Reference, Schema, Subjects, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.registry.subjects import Change

    _Handlers = Mapping[str, Callable[["Registry", "Request"], Any]]


_CONTEXT: Final = "."
"""The name of the one context."""


class Registry(Protocol):
    """Who answers."""

    subjects: Subjects
    """What it knows."""

    def change(self, changes: list[Change]) -> None:
        """Writes records, and takes them in."""


def answer(registry: Registry, method: str, path: str, query: dict[str, str], body: bytes) -> Any:
    """The answer to a request.

    Raises:
        Refusal: there is none.
    """
    known = False
    for pattern, handlers in _ROUTES:
        found = pattern.fullmatch(path)
        known = known or found is not None
        if found is not None and method in handlers:
            try:
                names = [urllib.parse.unquote(name, errors="strict") for name in found.groups()]
            except UnicodeDecodeError:
                raise Refusal(400, 400, "The path is not UTF-8") from None
            try:
                return handlers[method](registry, Request(names, query, body))
            except RecursionError:
                raise Refusal(422, 42201, "Invalid schema: it is nested too deep") from None
    if known:
        raise Refusal(405, 405, "HTTP 405 Method Not Allowed")
    raise Refusal(404, 404, "HTTP 404 Not Found")


class Request:
    """What is asked for."""

    def __init__(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        self.names = names
        self._query, self._body = query, body

    @property
    def subject(self) -> str:
        """The path's subject, or its id."""
        return self.names[0]

    @property
    def version(self) -> str:
        """The path's version."""
        return self.names[1]

    def flag(self, name: str) -> bool:
        """Whether a parameter is ``true``."""
        return self._query.get(name, "false").lower() == "true"

    def text(self, name: str) -> str:
        """A parameter; empty if it is not given."""
        return self._query.get(name, "")

    def json(self) -> dict[str, Any]:
        """The body."""
        try:
            found = json.loads(self._body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refusal(400, 400, "The request's body is not a JSON object")
        return found

    def schema(self) -> Schema:
        """The schema of the body."""
        found = self.json()
        text, kind = found.get("schema"), found.get("schemaType") or "AVRO"
        for unread in ("metadata", "ruleSet"):
            if found.get(unread):
                raise Refusal(422, 42201, f"Invalid schema: this registry keeps no {unread}")
        if not isinstance(text, str) or not isinstance(kind, str):
            raise Refusal(422, 42201, 'Invalid schema: the request has no text "schema"')
        references = []
        given = found.get("references") or []
        for one in given if isinstance(given, list) else [given]:
            to = one if isinstance(one, dict) else {}
            name, subject, version = to.get("name"), to.get("subject"), to.get("version")
            if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
                raise Refusal(422, 42201, "Invalid schema: a reference has not a name, a subject and a version")
            references.append(Reference(name, subject, version))
        return Schema(text, kind, tuple(references))


def _whole(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {"schema": schema.text, "guid": schema.guid}
    if schema.type != "AVRO":
        made["schemaType"] = schema.type
    if schema.references:
        made["references"] = [vars(to) for to in schema.references]
    return made


def _formatted(registry: Registry, request: Request, schema: Schema) -> dict[str, Any]:
    """A schema as it was given, or as a serialized descriptor, which clients of Protobuf ask for."""
    made = _whole(schema)
    if request.text("format") == "serialized" and schema.type == "PROTOBUF":
        made["schema"], _ = _native.protobuf_file(schema.text, registry.subjects.definitions(schema))
    return made


def _text_of(schema: Schema) -> Any:
    """The schema itself; a text where it is no JSON."""
    return json.loads(schema.text) if schema.type in OF_JSON else schema.text


def _named(one: Version) -> dict[str, Any]:
    return {"subject": one.subject, "version": one.version, "id": one.id}


def _described(one: Version) -> dict[str, Any]:
    return {**_named(one), **_whole(one.schema)}


# ── Subjects ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _list_subjects(registry: Registry, request: Request) -> Any:
    prefix = request.text("subjectPrefix")
    names = registry.subjects.names(deleted=request.flag("deleted") or request.flag("deletedOnly"))
    if request.flag("deletedOnly"):
        names = [name for name in names if not registry.subjects.of(name)]
    return [name for name in names if name.startswith(prefix)]


def _list_versions(registry: Registry, request: Request) -> Any:
    deleted = request.flag("deleted")
    return [one.version for one in registry.subjects.existing(request.subject, deleted=deleted)]


def _register(registry: Registry, request: Request) -> Any:
    changes, number = registry.subjects.register(request.subject, request.schema())
    registry.change(changes)
    return {"id": number, "guid": registry.subjects.schema(number).guid}


def _find(registry: Registry, request: Request) -> Any:
    return _described(registry.subjects.find(request.subject, request.schema(), deleted=request.flag("deleted")))


def _version(registry: Registry, request: Request) -> Any:
    one = registry.subjects.version(request.subject, request.version, deleted=request.flag("deleted"))
    return {**_named(one), **_formatted(registry, request, one.schema)}


def _version_text(registry: Registry, request: Request) -> Any:
    one = registry.subjects.version(request.subject, request.version, deleted=request.flag("deleted"))
    return _text_of(one.schema)


def _referrers(registry: Registry, request: Request) -> Any:
    one = registry.subjects.version(request.subject, request.version)
    return registry.subjects.referrers(one.subject, one.version)


def _delete_subject(registry: Registry, request: Request) -> Any:
    changes, numbers = registry.subjects.delete_subject(request.subject, permanent=request.flag("permanent"))
    registry.change(changes)
    return numbers


def _delete_version(registry: Registry, request: Request) -> Any:
    permanent = request.flag("permanent")
    changes, number = registry.subjects.delete_version(request.subject, request.version, permanent=permanent)
    registry.change(changes)
    return number


# ── Schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _schema(registry: Registry, request: Request) -> Any:
    return _formatted(registry, request, registry.subjects.schema(_id(request)))


def _schema_text(registry: Registry, request: Request) -> Any:
    return _text_of(registry.subjects.schema(_id(request)))


def _schema_subjects(registry: Registry, request: Request) -> Any:
    return sorted({one.subject for one in registry.subjects.uses(_id(request), deleted=request.flag("deleted"))})


def _schema_versions(registry: Registry, request: Request) -> Any:
    uses = registry.subjects.uses(_id(request), deleted=request.flag("deleted"))
    return [{"subject": one.subject, "version": one.version} for one in uses]


def _schema_by_guid(registry: Registry, request: Request) -> Any:
    number = registry.subjects.id_of(request.names[0])
    if number is None:
        raise Refusal(404, 40403, f"Schema {request.names[0]:.100} not found")
    return _formatted(registry, request, registry.subjects.schema(number))


def _guid_ids(registry: Registry, request: Request) -> Any:
    """No id at all is no failure, as in Confluent's registry."""
    number = registry.subjects.id_of(request.names[0])
    return [] if number is None else [{"context": _CONTEXT, "id": number}]


def _list_schemas(registry: Registry, request: Request) -> Any:
    prefix, deleted = request.text("subjectPrefix"), request.flag("deleted")
    names = [name for name in registry.subjects.names(deleted=deleted) if name.startswith(prefix)]
    first = -1 if request.flag("latestOnly") else 0
    return [_described(one) for name in names for one in registry.subjects.of(name, deleted=deleted)[first:]]


def _id(request: Request) -> int:
    text = request.subject
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):  # noqa: PLR2004  (digits of an int)
        raise Refusal(404, 404, "HTTP 404 Not Found")
    return int(text)


# ── Compatibility, settings ──────────────────────────────────────────────────────────────────────────────────────


def _compatible(registry: Registry, request: Request) -> Any:
    """With one version, or with all that the subject's level asks for."""
    against = [registry.subjects.version(request.subject, request.version)] if len(request.names) > 1 else None
    reasons = registry.subjects.incompatibilities(request.subject, request.schema(), against)
    made: dict[str, Any] = {"is_compatible": not reasons}
    if request.flag("verbose"):
        made["messages"] = reasons
    return made


def _get_level(registry: Registry, request: Request) -> Any:
    subject = request.names[0] if request.names else None
    if subject is not None and subject not in registry.subjects.levels and not request.flag("defaultToGlobal"):
        raise Refusal(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")
    return {"compatibilityLevel": registry.subjects.level(subject)}


def _set_level(registry: Registry, request: Request) -> Any:
    level = request.json().get("compatibility")
    registry.change(registry.subjects.set_level(request.names[0] if request.names else None, level))
    return {"compatibility": level}


def _unset_level(registry: Registry, request: Request) -> Any:
    subject = request.names[0] if request.names else None
    before = registry.subjects.level(subject)
    registry.change(registry.subjects.unset("CONFIG", subject))
    return {"compatibilityLevel": before}


def _get_mode(registry: Registry, request: Request) -> Any:
    subject = request.names[0] if request.names else None
    if subject is not None and subject not in registry.subjects.modes and not request.flag("defaultToGlobal"):
        raise Refusal(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")
    return {"mode": registry.subjects.mode(subject)}


def _set_mode(registry: Registry, request: Request) -> Any:
    mode = request.json().get("mode")
    registry.change(registry.subjects.set_mode(request.names[0] if request.names else None, mode))
    return {"mode": mode}


def _unset_mode(registry: Registry, request: Request) -> Any:
    subject = request.names[0] if request.names else None
    before = registry.subjects.mode(subject)
    registry.change(registry.subjects.unset("MODE", subject))
    return {"mode": before}


def _types(_registry: Registry, _request: Request) -> Any:
    return list(TYPES)


def _contexts(_registry: Registry, _request: Request) -> Any:
    return [_CONTEXT]


def _nothing(_registry: Registry, _request: Request) -> Any:
    return {}


def _cluster(_registry: Registry, _request: Request) -> Any:
    return {
        "scope": {"path": [], "clusters": {"kafka-cluster": "headrace", "schema-registry-cluster": "schema-registry"}}
    }


_LEVELS: Final[_Handlers] = {"GET": _get_level, "PUT": _set_level, "DELETE": _unset_level}
_MODES: Final[_Handlers] = {"GET": _get_mode, "PUT": _set_mode, "DELETE": _unset_mode}
_HANDLERS: Final[dict[str, _Handlers]] = {
    "/": {"GET": _nothing},
    "/subjects": {"GET": _list_subjects},
    "/subjects/*": {"POST": _find, "DELETE": _delete_subject},
    "/subjects/*/versions": {"GET": _list_versions, "POST": _register},
    "/subjects/*/versions/*": {"GET": _version, "DELETE": _delete_version},
    "/subjects/*/versions/*/schema": {"GET": _version_text},
    "/subjects/*/versions/*/referencedby": {"GET": _referrers},
    "/schemas": {"GET": _list_schemas},
    "/schemas/types": {"GET": _types},
    "/schemas/guids/*": {"GET": _schema_by_guid},
    "/schemas/guids/*/ids": {"GET": _guid_ids},
    "/schemas/ids/*": {"GET": _schema},
    "/schemas/ids/*/schema": {"GET": _schema_text},
    "/schemas/ids/*/subjects": {"GET": _schema_subjects},
    "/schemas/ids/*/versions": {"GET": _schema_versions},
    "/compatibility/subjects/*/versions/*": {"POST": _compatible},
    "/compatibility/subjects/*/versions": {"POST": _compatible},
    "/config": _LEVELS,
    "/config/*": _LEVELS,
    "/mode": _MODES,
    "/mode/*": _MODES,
    "/contexts": {"GET": _contexts},
    "/v1/metadata/id": {"GET": _cluster},
}
_ROUTES: Final = [(re.compile(path.replace("*", "([^/]+)")), handlers) for path, handlers in _HANDLERS.items()]
