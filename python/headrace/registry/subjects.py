"""What a registry knows: subjects, their versions, and the schemas behind them. No clock, no network, no topic.

State is what the records of the topic ``_schemas`` come to, in the form that Confluent's registry writes them. A change
is a list of records, made by `Subjects` and taken in by `Subjects.take` once they are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from headrace import _native
from headrace.registry import compatibility
from headrace.registry.refusal import Refusal

TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
OF_JSON: Final = ("AVRO", "JSON")
"""The types whose schemas are JSON."""
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE")
VERSION_MAX: Final = 2**31 - 1
VERSION_DIGITS_MAX: Final = 10
REFERENCES_MAX: Final = 500
SUBJECT_CHARS_MAX: Final = 500

Change = tuple[dict[str, Any], "dict[str, Any] | None"]
"""Key and value of a record; a value that is None deletes the key."""


@dataclass(frozen=True)
class Reference:
    """A version of a subject that a schema names."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """A schema by itself. Two with the same type, references and JSON are one, and have one id."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()

    @cached_property
    def identity(self) -> tuple[str, str | bytes, tuple[Reference, ...]]:
        """What makes it the schema that it is: spaces, comments and the order of an object's members do not."""
        text: str | bytes = self.text
        # Another registry may have written one of a type that this one does not know, or cannot read.
        if self.type in OF_JSON:
            text = json.dumps(json.loads(self.text), sort_keys=True)
        elif self.type == "PROTOBUF":
            with contextlib.suppress(ValueError):
                text = bytes(_native.protobuf_identity(self.text))
        return (self.type, text, self.references)

    @cached_property
    def guid(self) -> str:
        """What names it in every registry: the MD5 of its text and of what it names, as in Confluent's."""
        of = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for to in self.references:
            of.update(to.name.encode() + to.subject.encode() + to.version.to_bytes(4, "big"))
        return str(uuid.UUID(bytes=of.digest()))


@dataclass(frozen=True)
class Version:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False


@dataclass
class Subjects:
    """All subjects of a registry."""

    versions: dict[str, dict[int, Version]] = field(default_factory=dict)
    schemas: dict[int, Schema] = field(default_factory=dict)
    levels: dict[str | None, str] = field(default_factory=dict)
    """Levels of compatibility by subject; None is the registry's own."""
    modes: dict[str | None, str] = field(default_factory=dict)
    _ids: dict[tuple[str, str | bytes, tuple[Reference, ...]], int] = field(default_factory=dict)
    _guids: dict[str, int] = field(default_factory=dict)

    # ── What is there ────────────────────────────────────────────────────────────────────────────────────────────

    def names(self, *, deleted: bool = False) -> list[str]:
        """The subjects that have a version."""
        return sorted(name for name in self.versions if self.of(name, deleted=deleted))

    def of(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """The versions of a subject in order; none if there is no such subject."""
        found = self.versions.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def existing(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """The versions of a subject that there is."""
        found = self.of(subject, deleted=deleted)
        if not found:
            raise Refusal(404, 40401, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, text: str, *, deleted: bool = False) -> Version:
        """A version by its number, ``latest`` or -1."""
        wanted = version_number(text)
        found = self.existing(subject, deleted=deleted)
        if wanted is None:
            return found[-1]
        for one in found:
            if one.version == wanted:
                return one
        raise Refusal(404, 40402, f"Version {wanted} not found.")

    def schema(self, number: int) -> Schema:
        """A schema by its id."""
        found = self.schemas.get(number)
        if found is None:
            raise Refusal(404, 40403, f"Schema {number} not found")
        return found

    def id_of(self, guid: str) -> int | None:
        """The id of a schema by its GUID; None if there is none."""
        try:
            return self._guids.get(str(uuid.UUID(guid)))
        except ValueError:
            return None

    def uses(self, number: int, *, deleted: bool = False) -> list[Version]:
        """The versions that are the schema of an id."""
        self.schema(number)
        return [one for name in sorted(self.versions) for one in self.of(name, deleted=deleted) if one.id == number]

    def referrers(self, subject: str, version: int) -> list[int]:
        """The ids of schemas that name a version of a subject."""
        named = {
            one.id
            for name in self.versions
            for one in self.of(name)
            if any((to.subject, to.version) == (subject, version) for to in one.schema.references)
        }
        return sorted(named)

    def definitions(self, schema: Schema) -> list[tuple[str, str]]:
        """Name and text of the schemas that one names, directly or not, each after those that it names itself."""
        found: dict[tuple[str, str, int], tuple[str, str]] = {}
        self._define(schema, found, ())
        return list(found.values())

    def _define(
        self,
        schema: Schema,
        found: dict[tuple[str, str, int], tuple[str, str]],
        within: tuple[tuple[str, str, int], ...],
    ) -> None:
        for to in schema.references:
            name = (to.name, to.subject, to.version)
            if name in found:
                continue
            target = self.versions.get(to.subject, {}).get(to.version)
            if target is None or target.deleted:
                raise Refusal(422, 42201, f"The reference {to.name!r} names version {to.version} of {to.subject!r}, "
                              "which is not there")  # fmt: skip
            if name in within or len(found) + len(within) >= REFERENCES_MAX:
                raise Refusal(422, 42201, f"The schema names more than {REFERENCES_MAX} others, or itself")
            self._define(target.schema, found, (*within, name))
            found[name] = (to.name, target.schema.text)

    def level(self, subject: str | None) -> str:
        """The level of compatibility that holds for a subject."""
        return self.levels.get(subject) or self.levels.get(None) or "BACKWARD"

    def mode(self, subject: str | None) -> str:
        """The mode that holds for a subject."""
        if self.modes.get(None) == "READONLY_OVERRIDE":
            return "READONLY_OVERRIDE"
        return self.modes.get(subject) or self.modes.get(None) or "READWRITE"

    # ── What is asked for ────────────────────────────────────────────────────────────────────────────────────────

    def checked(self, schema: Schema) -> Schema:
        """A schema that is one, as it is kept."""
        if schema.type not in TYPES:
            raise Refusal(422, 42201, f"Invalid schema type {schema.type}: this registry takes {' and '.join(TYPES)}")
        kept = schema if schema.type == "PROTOBUF" else replace(schema, text=self._compact(schema))
        compatibility.check(kept.type, kept.text, self.definitions(kept))
        return kept

    def _compact(self, schema: Schema) -> str:
        """The JSON of a schema without spaces."""
        try:
            value = json.loads(schema.text, parse_constant=_no_constant)
            # Half of a character that takes two is no text, and a number beyond all floats none of JSON.
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            if schema.type != "AVRO" or not schema.text.strip().isidentifier():
                raise Refusal(422, 42201, f"Invalid schema: it is not JSON: {error}") from None
            # The name of a primitive type may stand there bare.
            value = schema.text.strip()
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> Version:
        """The version of a subject that a schema is."""
        found = self.existing(subject, deleted=deleted)
        identity = self.checked(schema).identity
        for one in reversed(found):
            if one.schema.identity == identity:
                return one
        raise Refusal(404, 40403, "Schema not found")

    def incompatibilities(self, subject: str, schema: Schema, against: list[Version] | None = None) -> list[str]:
        """Why a schema may not follow those of a subject; nothing if it may."""
        level = self.level(subject)
        schema = self.checked(schema)
        if level == "NONE":
            return []
        if against is None:
            before = self.of(subject)
            against = before if level.endswith("_TRANSITIVE") else before[-1:]
        reasons = []
        mine = (schema.type, schema.text, self.definitions(schema))
        for one in reversed(against):
            theirs = (one.schema.type, one.schema.text, self.definitions(one.schema))
            where = f"version {one.version} of {subject!r} (schema id {one.id})"
            reasons += [f"{where}: {why}" for why in compatibility.reasons(level, mine, theirs)]
        return reasons

    def register(self, subject: str, schema: Schema) -> tuple[list[Change], int]:
        """The records of a new version, and the schema's id. No records if it is the subject's already."""
        _check_subject(subject)
        schema = self.checked(schema)
        identity = schema.identity
        for one in reversed(self.of(subject)):
            if one.schema.identity == identity:
                return [], one.id
        self.writable(subject)
        reasons = self.incompatibilities(subject, schema)
        if reasons:
            level = self.level(subject)
            message = (
                f"Schema being registered is incompatible with an earlier schema for subject {json.dumps(subject)}"
            )
            raise Refusal(409, 409, f"{message}, compatibility level {level}: {'; '.join(reasons)}")
        number = self._ids.get(identity) or max(self.schemas, default=0) + 1
        if number > VERSION_MAX:
            raise Refusal(500, 50005, "There is no id left that clients could hold")
        version = max(self.versions.get(subject, {}), default=0) + 1
        return [_record(Version(subject, version, number, schema))], number

    def delete_subject(self, subject: str, *, permanent: bool) -> tuple[list[Change], list[int]]:
        """The records that delete a subject, and the versions that they delete."""
        self.writable(subject)
        found = self.existing(subject, deleted=permanent)
        if permanent and not all(one.deleted for one in found):
            raise Refusal(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
        for one in found:
            self._unreferenced(one)
        if permanent:
            changes: list[Change] = [(_key(one), None) for one in found]
            changes += [(_setting(kind, subject), None) for kind in ("CONFIG", "MODE")]
        else:
            key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
            changes = [(key, {"subject": subject, "version": found[-1].version})]
        return changes, [one.version for one in found]

    def delete_version(self, subject: str, text: str, *, permanent: bool) -> tuple[list[Change], int]:
        """The records that delete a version, and its number."""
        self.writable(subject)
        one = self.version(subject, text, deleted=permanent)
        if permanent and not one.deleted:
            raise Refusal(404, 40407, f"Subject '{subject}' Version {one.version} was not deleted first before being "
                          "permanently deleted")  # fmt: skip
        self._unreferenced(one)
        return [(_key(one), None) if permanent else _record(replace(one, deleted=True))], one.version

    def set_level(self, subject: str | None, level: object) -> list[Change]:
        """The record of a level of compatibility."""
        if level not in compatibility.LEVELS:
            levels = ", ".join(compatibility.LEVELS)
            raise Refusal(422, 42203, f"Invalid compatibility level. Valid values are {levels}")
        return [(_setting("CONFIG", subject), {**_of(subject), "compatibilityLevel": level})]

    def set_mode(self, subject: str | None, mode: object) -> list[Change]:
        """The record of a mode."""
        if mode not in MODES:
            raise Refusal(422, 42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
        return [(_setting("MODE", subject), {**_of(subject), "mode": mode})]

    def unset(self, kind: str, subject: str | None) -> list[Change]:
        """The record that takes a ``CONFIG`` or ``MODE`` back."""
        known = self.levels if kind == "CONFIG" else self.modes
        if subject is not None and subject not in known:
            code, what = (40408, "compatibility") if kind == "CONFIG" else (40409, "mode")
            raise Refusal(404, code, f"Subject '{subject}' does not have subject-level {what} configured")
        return [(_setting(kind, subject), None)] if subject in known else []

    def writable(self, subject: str) -> None:
        """Raises unless the subject's mode lets it be changed."""
        mode = self.mode(subject)
        if mode != "READWRITE":
            raise Refusal(422, 42205, f"Subject {subject} is in {mode} mode")

    def _unreferenced(self, one: Version) -> None:
        if not one.deleted and (named := self.referrers(one.subject, one.version)):
            raise Refusal(422, 42206, f"One or more references exist to the schema {{subject={one.subject}, "
                          f"version={one.version}}}: those of the ids {', '.join(map(str, named))}")  # fmt: skip

    # ── What was written ─────────────────────────────────────────────────────────────────────────────────────────

    def take(self, key: Any, value: Any) -> None:
        """Takes in a record of the topic.

        Raises:
            ValueError: it is none that Confluent's registry would write.
        """
        try:
            self._take(key, value)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            message = f"a record of {key!r:.200} is malformed: {error!r:.200}"
            raise ValueError(message) from None

    def _take(self, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        kind, subject = key["keytype"], key.get("subject")
        if kind == "SCHEMA":
            self._take_schema(str(subject), int(key["version"]), value)
        elif kind in {"CONFIG", "MODE"}:
            known, name = (self.levels, "compatibilityLevel") if kind == "CONFIG" else (self.modes, "mode")
            # A setting may hold other things alone, such as an alias.
            if value is None or value.get(name) is None:
                known.pop(subject, None)
            else:
                known[subject] = str(value[name])
        elif kind in {"DELETE_SUBJECT", "CLEAR_SUBJECT"} and value is not None:
            for number, one in self.versions.get(str(subject), {}).items():
                if number <= int(value["version"]):
                    self.versions[one.subject][number] = replace(one, deleted=True)

    def _take_schema(self, subject: str, number: int, value: dict[str, Any] | None) -> None:
        if value is None:
            left = self.versions.get(subject, {})
            left.pop(number, None)
            if not left:
                self.versions.pop(subject, None)
            return
        named = [
            Reference(str(to["name"]), str(to["subject"]), int(to["version"])) for to in value.get("references") or ()
        ]
        schema = Schema(str(value["schema"]), str(value.get("schemaType") or "AVRO"), tuple(named))
        one = Version(subject, number, int(value["id"]), schema, bool(value.get("deleted")))
        self._ids.setdefault(schema.identity, one.id)
        self.schemas[one.id] = schema
        self._guids[schema.guid] = max(one.id, self._guids.get(schema.guid, 0))
        self.versions.setdefault(subject, {})[number] = one


def version_number(text: str) -> int | None:
    """A version in a path; None is the newest."""
    if text in {"latest", "-1"}:
        return None
    if (
        not (text.isascii() and text.isdecimal() and len(text) <= VERSION_DIGITS_MAX)
        or not 0 < int(text) <= VERSION_MAX
    ):
        message = f"The specified version {text[:100]!r} is not a valid version id"
        raise Refusal(422, 42202, f'{message}. Allowed values are between [1, 2^31-1] and the string "latest"')
    return int(text)


def _check_subject(subject: str) -> None:
    if not subject or len(subject) > SUBJECT_CHARS_MAX or not subject.isprintable():
        raise Refusal(422, 42208, f"The specified subject {subject[:SUBJECT_CHARS_MAX]!r} is not a valid subject.")


def _no_constant(name: str) -> None:
    message = f"{name} is no number of JSON"
    raise ValueError(message)


def _key(one: Version) -> dict[str, Any]:
    return {"keytype": "SCHEMA", "subject": one.subject, "version": one.version, "magic": 1}


def _setting(kind: str, subject: str | None) -> dict[str, Any]:
    return {"keytype": kind, "subject": subject, "magic": 0}


def _of(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}


def _record(one: Version) -> Change:
    value: dict[str, Any] = {"subject": one.subject, "version": one.version, "id": one.id}
    if one.schema.type != "AVRO":
        value["schemaType"] = one.schema.type
    if one.schema.references:
        value["references"] = [vars(to) for to in one.schema.references]
    value |= {"schema": one.schema.text, "deleted": one.deleted}
    return _key(one), value
