"""Whether all values that one JSON Schema takes are taken by another, as far as their keywords say.

What cannot be decided counts as incompatible, so that a registry never lets a change through that breaks a reader. The
kinds are those of Confluent's registry, and so is the view of objects: a property may be added where no other
properties are allowed, and removed where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Incompatibility: TypeAlias = tuple[str, str, str]
"""Kind, place in the schema, and why."""
Found: TypeAlias = Iterator[Incompatibility]

DEPTH_MAX: Final = 100
PAIRS_MAX: Final = 100_000
REASONS_MAX: Final = 100

_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_NOTES: Final = frozenset({
    "$schema", "$id", "id", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType",
})  # fmt: skip
"""Keywords that refuse no value."""
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_INTERACTING: Final = frozenset({
    "patternProperties", "prefixItems", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
})  # fmt: skip
"""What says which values other keywords look at. They are not compared: with them, schemas are the same or are not."""
_COMPARED: Final = frozenset({
    *_NOTES, *_UPPER, *_LOWER, "type", "enum", "const", "properties", "required", "additionalProperties", "items",
    "anyOf", "oneOf", "allOf", "multipleOf", "uniqueItems", "$ref",
})  # fmt: skip


def check(schema: object) -> None:
    """Raises ValueError unless it is a schema, as far as its types and references say."""
    left = [(schema, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise _wrong(f"{one!r:.100} stands where a schema should: an object, true or false")
        if depth > DEPTH_MAX:
            raise _wrong(f"it is nested more than {DEPTH_MAX} deep")
        resolved(one, schema)
        _check_words(one)
        left += [(inner, depth + 1) for inner in _within(one)]


def _check_words(schema: dict[str, Any]) -> None:
    """What is read without a second look when schemas are compared."""
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    for name, of in (("required", schema.get("required", [])), ("type", types)):
        if not isinstance(of, list) or not all(isinstance(one, str) for one in of):
            raise _wrong(f"{name} is a list of texts")
    if unknown := set(types) - _TYPES:
        raise _wrong(f"{min(unknown)!r} is no type of JSON")


def _within(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas that one is made of."""
    for name in ("properties", "patternProperties", "$defs", "definitions"):
        of = schema.get(name, {})
        if not isinstance(of, dict):
            raise _wrong(f"{name} is an object of schemas")
        yield from of.values()
    for name in ("anyOf", "oneOf", "allOf"):
        of = schema.get(name, [])
        if not isinstance(of, list):
            raise _wrong(f"{name} is a list of schemas")
        yield from of
    items = schema.get("items", True)
    yield from items if isinstance(items, list) else [items]
    yield from (schema[name] for name in ("additionalProperties", "not") if name in schema)


def _wrong(why: str) -> ValueError:
    return ValueError(why)


def incompatibilities(reader: Any, writer: Any) -> list[Incompatibility]:
    """Why not all values that ``writer`` takes are taken by ``reader``; nothing if they are.

    Raises:
        ValueError: the schemas are nested too deep, or too large, to be compared.
    """
    found: list[Incompatibility] = []
    if _same(reader, writer):
        return found
    for one in _Comparison(reader, writer).compare(reader, writer, ()):
        found.append(one)
        if len(found) == REASONS_MAX:
            break
    return found


class _Comparison:
    """One comparison of two documents."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer = reader, writer
        # Whether a reference has the same meaning in both, wherever it stands.
        self._defined_alike = all(
            _same(document.get(name), other.get(name))
            for document, other in [(_object(reader), _object(writer))]
            for name in ("$defs", "definitions", "$id", "id")
        )
        self._open: set[tuple[int, int]] = set()
        self._pairs = 0

    def compare(self, reader: Any, writer: Any, path: tuple[str, ...]) -> Found:
        """Why values that ``writer`` takes may be refused by ``reader``."""
        self._pairs += 1
        if self._pairs > PAIRS_MAX or len(path) > DEPTH_MAX:
            message = f"the schemas are nested more than {DEPTH_MAX} deep, or too large to be compared"
            raise ValueError(message)
        if isinstance(reader, dict) and "$ref" in reader and not set(reader) <= _NOTES | {"$ref"}:
            # Older drafts look at nothing beside a reference; newer ones at all of it.
            reader = {"allOf": [{"$ref": reader["$ref"]}, _without(reader, "$ref")]}
        reader, writer = resolved(reader, self._reader), resolved(writer, self._writer)
        pair = (id(reader), id(writer))
        if pair in self._open or writer is False or _takes_all(reader):
            return
        if reader is False:
            yield _because("TYPE_NARROWED", path, "nothing is taken any more")
            return
        if writer is True:
            writer = {}
        self._open.add(pair)
        try:
            yield from self._combined(reader, writer, path)
        finally:
            self._open.discard(pair)

    def _combined(self, reader: dict[str, Any], writer: dict[str, Any], path: tuple[str, ...]) -> Found:
        """Takes what is combined apart, the writer's alternatives first: each of them may have been written."""
        for name in ("anyOf", "oneOf", "allOf"):
            if name in reader and name in writer and self._unchanged(reader[name], writer[name]):
                # What holds for the written value holds for the one that is read.
                reader, writer = _without(reader, name), _without(writer, name)
        alternatives = next((name for name in ("anyOf", "oneOf") if name in writer), None)
        if alternatives is not None:
            rest = _without(writer, alternatives)
            for number, branch in enumerate(writer[alternatives]):
                of = resolved(branch, self._writer)
                # The branch itself, where it is all: by it a schema that contains itself is known again.
                of = of if set(rest) <= _NOTES else _merged(rest, of)
                yield from self.compare(reader, of, (*path, alternatives, str(number)))
        elif "allOf" in reader:
            parts = [_without(reader, "allOf"), *reader["allOf"]]
            for number, part in enumerate(parts):
                yield from self.compare(part, writer, (*path, "allOf", str(number)))
        elif "allOf" in writer:
            both: Any = _without(writer, "allOf")
            for part in writer["allOf"]:
                both = _merged(both, resolved(part, self._writer))
            yield from self.compare(reader, both, path)
        else:
            yield from self._plain(reader, writer, path)

    def _plain(self, reader: dict[str, Any], writer: dict[str, Any], path: tuple[str, ...]) -> Found:
        """Where only the reader may still have alternatives."""
        for name in ("anyOf", "oneOf"):
            if name in reader:
                takers = [at for at, branch in enumerate(reader[name]) if self._takes(branch, writer, path)]
                if not takers:
                    yield _because("COMBINED_TYPE_SUBSCHEMAS_CHANGED", (*path, name), "no branch takes all of it")
                elif name == "oneOf" and not self._takes_alone(reader[name], takers[0], writer):
                    yield _because("COMBINED_TYPE_SUBSCHEMAS_CHANGED", (*path, name), "two branches may take it")
                reader = _without(reader, name)
        yield from self._keywords(reader, writer, path)

    def _takes_alone(self, branches: list[Any], taker: int, writer: dict[str, Any]) -> bool:
        """Whether no other branch takes anything of what is written, by the types of both."""
        given = _types(writer) or _types(_object(resolved(branches[taker], self._reader)))
        for at, branch in enumerate(branches):
            types = _types(_object(resolved(branch, self._reader)))
            if at != taker and (not given or not types or _overlap(given, types)):
                return False
        return True

    def _unchanged(self, one: Any, other: Any) -> bool:
        """Whether both are one text of one meaning."""
        return _same(one, other) and (self._defined_alike or not _refers(one))

    def _takes(self, reader: Any, writer: Any, path: tuple[str, ...]) -> bool:
        return next(self.compare(reader, writer, path), None) is None

    def _keywords(self, reader: dict[str, Any], writer: dict[str, Any], path: tuple[str, ...]) -> Found:
        if _INTERACTING & {*reader, *writer}:
            if not self._unchanged(_plain(reader), _plain(writer)):
                name = min(_INTERACTING & {*reader, *writer})
                yield _because("KEYWORD_CHANGED", (*path, name), "with it, no change is compared")
            return
        for name in sorted({*reader} - _COMPARED):
            if name not in writer or not self._unchanged({name: reader[name]}, {name: writer[name]}):
                yield _because("KEYWORD_CHANGED", (*path, name), "it is not compared, and is not the same")
        wanted, given = _types(reader), _types(writer)
        values = _values(writer)
        if values is not None:
            yield from _enumerated(reader, values, path)
            return
        if wanted and (
            not given or not all(one in wanted or (one == "integer" and "number" in wanted) for one in given)
        ):
            yield _because("TYPE_NARROWED", (*path, "type"), f"{_names(given)} is not {_names(wanted)}")
            return
        if _values(reader) is not None:
            yield _because("ENUM_ARRAY_NARROWED", (*path, "enum"), "other values were taken")
        yield from _bounds(reader, writer, path)
        possible = given or _TYPES
        if "object" in possible:
            yield from self._objects(reader, writer, path)
        if "array" in possible and "items" in reader:
            yield from self._items(reader["items"], writer.get("items", True), (*path, "items"))

    def _items(self, reader: Any, writer: Any, path: tuple[str, ...]) -> Found:
        if isinstance(reader, list) or isinstance(writer, list):
            if not self._unchanged(reader, writer):
                yield _because("ITEMS_CHANGED", path, "lists of items are not compared, and are not the same")
            return
        yield from self.compare(reader, writer, path)

    def _objects(self, reader: dict[str, Any], writer: dict[str, Any], path: tuple[str, ...]) -> Found:
        wanted, given = reader.get("properties", {}), writer.get("properties", {})
        others, further = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        written = set(writer.get("required", []))
        for name in reader.get("required", []):
            has_default = isinstance(wanted.get(name), dict) and "default" in wanted[name]
            if name not in written and not has_default:
                yield _because("REQUIRED_ATTRIBUTE_ADDED", (*path, "required", str(name)), "it may be missing")
        for name, of in wanted.items():
            place = (*path, "properties", name)
            if name in given:
                yield from self.compare(of, given[name], place)
            elif not self._takes(of, further, place):
                yield _because("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place, "anything may stand there already")
        for name, of in given.items():
            place = (*path, "properties", name)
            if name not in wanted and not self._takes(others, of, place):
                yield _because("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place, "it is not taken any more")
        if not self._takes(others, further, (*path, "additionalProperties")):
            why = "other properties were taken"
            yield _because("ADDITIONAL_PROPERTIES_NARROWED", (*path, "additionalProperties"), why)


def _because(kind: str, path: tuple[str, ...], why: str) -> Incompatibility:
    return kind, "#/" + "/".join(path), why


def _takes_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and set(schema) <= _NOTES)


def _without(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _merged(one: Any, other: Any) -> Any:
    """What both take; where a keyword stands in both, what the second one says, which takes no less than both do."""
    if one is False or other is False:
        return False
    if other is True:
        return one
    made = {**one, **other}
    for name in ("properties", "required"):
        if name in one and name in other:
            made[name] = {**one[name], **other[name]} if name == "properties" else [*one[name], *other[name]]
    return made


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that it names; none if it names no types."""
    of = schema.get("type", [])
    return frozenset(of if isinstance(of, list) else [of])


def _names(types: frozenset[str]) -> str:
    return " or ".join(sorted(types)) if types else "any type"


def _values(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The only values that it takes, by their texts; None if it names none."""
    found: dict[str, Any] | None = None
    if isinstance(schema.get("enum"), list):
        found = {_text(value): value for value in schema["enum"]}
    if "const" in schema:
        one = {_text(schema["const"]): schema["const"]}
        found = one if found is None else {text: value for text, value in one.items() if text in found}
    return found


def _enumerated(reader: dict[str, Any], values: dict[str, Any], path: tuple[str, ...]) -> Found:
    taken, types = _values(reader), _types(reader)
    for text, value in values.items():
        if (taken is not None and text not in taken) or (types and not types & _types_of(value)):
            yield _because("ENUM_ARRAY_NARROWED", (*path, "enum"), f"{text[:100]} is not taken")
            return
    if set(reader) - _NOTES - {"type", "enum", "const"}:
        yield _because("KEYWORD_CHANGED", path, "whether its keywords take each value of the enum is not compared")


def _text(value: Any) -> str:
    """A text by which values of JSON differ that Python takes for the same, such as 1 and true."""
    return json.dumps(value, sort_keys=True)


def _same(one: Any, other: Any) -> bool:
    # Texts only where Python sees no difference, which is seldom.
    return bool(one == other) and _text(one) == _text(other)


def _refers(schema: Any) -> bool:
    """Whether there is a reference anywhere in it."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if not one.keys().isdisjoint({"$ref", "$dynamicRef", "$recursiveRef"}):
                return True
            left += one.values()
        elif isinstance(one, list):
            left += one
    return False


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in _NOTES}


def _object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def _overlap(one: frozenset[str], other: frozenset[str]) -> bool:
    numbers = {"integer", "number"}
    return bool(one & other) or bool(one & numbers and other & numbers)


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def _bounds(reader: dict[str, Any], writer: dict[str, Any], path: tuple[str, ...]) -> Found:
    for name in (*_UPPER, *_LOWER):
        if name in reader and reader[name] != writer.get(name):
            kind = "".join(f"_{char}" if char.isupper() else char for char in name).upper()
            mine, theirs = reader[name], writer.get(name)
            numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (mine, theirs))
            if not numbers or (mine < theirs if name in _UPPER else mine > theirs):
                word = "ADDED" if theirs is None else "DECREASED" if name in _UPPER else "INCREASED"
                yield _because(f"{kind}_{word}", (*path, name), f"{theirs} becomes {mine}")
    step, before = reader.get("multipleOf"), writer.get("multipleOf")
    if step is not None and step != before and not _is_multiple(before, step):
        yield _because("MULTIPLE_OF_CHANGED", (*path, "multipleOf"), f"{before} becomes {step}")
    if reader.get("uniqueItems") is True and writer.get("uniqueItems") is not True:
        yield _because("UNIQUE_ITEMS_ADDED", (*path, "uniqueItems"), "an item may stand there twice")


def _is_multiple(number: object, of: object) -> bool:
    return isinstance(number, int) and isinstance(of, int) and of > 0 and number % of == 0


def resolved(schema: Any, document: Any) -> Any:
    """What a schema is, or what it refers to within its document.

    Raises:
        ValueError: it refers to nothing, or to another document.
    """
    for _ in range(DEPTH_MAX):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        at, name = document, schema["$ref"]
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            message = f"the reference {name!r:.200} names no place that begins with #/, and no document that is given"
            raise ValueError(message)
        for part in name.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            elif isinstance(at, dict) and key in at:
                at = at[key]
            else:
                message = f"the reference {name!r:.200} names nothing"
                raise ValueError(message)
        schema = at
    message = f"references follow each other more than {DEPTH_MAX} times"
    raise ValueError(message)
