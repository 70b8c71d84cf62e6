"""A JSON Schema and the documents that it refers to, as one document.

What reads a schema then finds all that it names within it, at a place such as ``#/$defs/price.json``.
"""

from __future__ import annotations

import json
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords that hold values, in which nothing is a reference."""


def whole(text: str, definitions: Sequence[tuple[str, str]] = ()) -> Any:
    """A schema with the documents of ``definitions``, name and text of each, where it refers to them.

    A reference names a document by the name that is given here, by its ``$id``, or relative to the ``$id`` of the
    document in which it stands. A reference to none of them stays as it is.

    Raises:
        ValueError: a text is not JSON.
    """
    schema = json.loads(text)
    if not isinstance(schema, dict) or not (definitions or _id(schema)):
        return schema
    documents = {name: json.loads(of) for name, of in definitions}
    keys: dict[str, str] = {}
    for name in documents:
        key = name
        while key in (schema.get("$defs") or {}) or key in keys.values():
            key += "'"
        keys[name] = key
    places = {name: "#/$defs/" + key.replace("~", "~0").replace("/", "~1") for name, key in keys.items()}
    known = {_id(document): places[name] for name, document in documents.items()} | places | {_id(schema): "#"}
    # A document without an id is none that could be referred to by it.
    known.pop("", None)
    made: dict[str, Any] = _rewritten(schema, known, _id(schema), "#")
    if documents:
        made["$defs"] = {
            **(made.get("$defs") or {}),
            **{
                keys[name]: _rewritten(document, known, _id(document) or name, places[name])
                for name, document in documents.items()
            },
        }
    return made


def _id(document: Any) -> str:
    found = (document.get("$id") or document.get("id")) if isinstance(document, dict) else None
    return found.rstrip("#") if isinstance(found, str) else ""


def _rewritten(of: Any, places: dict[str, str], base: str, here: str) -> Any:
    """A part of a document at the place ``here``, with its references as those of the whole."""
    if isinstance(of, list):
        return [_rewritten(one, places, base, here) for one in of]
    if not isinstance(of, dict):
        return of
    made = {name: one if name in _VALUES else _rewritten(one, places, base, here) for name, one in of.items()}
    if isinstance(of.get("$ref"), str):
        made["$ref"] = _reference(of["$ref"], places, base, here)
    return made


def _reference(name: str, places: dict[str, str], base: str, here: str) -> str:
    document, _, within = name.partition("#")
    place = here if not document else places.get(document) or places.get(urllib.parse.urljoin(base, document))
    if place is None:
        return name
    return place + within if within or place != "#" else "#"
