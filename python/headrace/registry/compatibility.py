"""Whether a schema is one, and whether what was written with one can be read with another."""

from __future__ import annotations

from typing import Final

from headrace import _native
from headrace.registry import json_documents, json_schema
from headrace.registry.refusal import Refusal

LEVELS: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
)  # fmt: skip

Whole = tuple[str, str, "list[tuple[str, str]]"]
"""Type and text of a schema, and name and text of those that it names."""


def check(kind: str, text: str, definitions: list[tuple[str, str]]) -> None:
    """Raises unless the text is a schema of its type."""
    try:
        if kind == "AVRO":
            _native.check_avro(text, [one for _, one in definitions])
        elif kind == "PROTOBUF":
            _native.protobuf_file(text, definitions)
        else:
            json_schema.check(json_documents.whole(text, definitions))
    except ValueError as error:
        raise Refusal(422, 42201, f"Invalid schema: {error}") from None


def reasons(level: str, new: Whole, old: Whole) -> list[str]:
    """Why a schema may not follow another at a level; nothing if it may.

    ``BACKWARD``: what was written with the old one can be read with the new one. ``FORWARD``: the other way round.
    ``FULL``: both.
    """
    if new[0] != old[0]:
        return [f"it is of type {old[0]}, not {new[0]}"]
    found = []
    if level.startswith(("BACKWARD", "FULL")):
        found += [f"the new schema cannot read it: {why}" for why in _unreadable(new, old)]
    if level.startswith(("FORWARD", "FULL")):
        found += [f"it cannot read the new schema: {why}" for why in _unreadable(old, new)]
    return found


def _unreadable(reader: Whole, writer: Whole) -> list[str]:
    """Why a reader cannot read all that a writer may have written."""
    try:
        if reader[0] == "AVRO":
            found = _native.avro_incompatibilities(_texts(reader), _texts(writer))
        elif reader[0] == "PROTOBUF":
            found = _native.protobuf_incompatibilities(reader[1:], writer[1:])
        else:
            documents = [json_documents.whole(*of[1:]) for of in (reader, writer)]
            found = json_schema.incompatibilities(*documents)
    except ValueError as error:
        return [str(error)]
    return [f"{kind} at {path}: {why}" for kind, path, why in found]


def _texts(of: Whole) -> tuple[str, list[str]]:
    """A schema of Avro, which finds others by the names in them."""
    return of[1], [text for _, text in of[2]]
