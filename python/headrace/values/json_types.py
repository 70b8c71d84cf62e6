"""The columns that a JSON Schema describes, and some of them by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.registry.json_schema import check, resolved

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEPTH_MAX: Final = 60
_COLUMNS_MAX: Final = 10_000
_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_FORMATS: Final = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}


def type_of(schema: dict[str, Any]) -> pa.DataType:
    """The type of the values that a JSON Schema takes.

    Raises:
        ValueError: it is no schema, or takes values that have no type in common; with the field.
    """
    check(schema)
    return _Reading(schema).field(schema, "", 0).type


class _Reading:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._columns = 0

    def field(self, schema: Any, path: str, depth: int) -> pa.Field:
        """The type, and whether it may be null, of the values of a schema."""
        schema = resolved(schema, self._document)
        self._columns += 1
        if self._columns > _COLUMNS_MAX:
            raise _wrong(
                path, f"the schema has more than {_COLUMNS_MAX} columns: give a schema of Arrow with those you want"
            )
        if depth > _DEPTH_MAX:
            raise _wrong(path, f"it is nested more than {_DEPTH_MAX} deep, or contains itself, which no column can")
        if not isinstance(schema, dict):
            raise _wrong(path, "it takes any value: give a schema of Arrow, which says what its column is")
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self._one_of(
                    [{**_others(schema, name), **_object(one, self._document)} for one in schema[name]], path, depth
                )
        types = schema.get("type", [])
        types = types if isinstance(types, list) else [types]
        nullable = "null" in types
        kinds = {one for one in types if one != "null"} or ({"null"} if nullable else set())
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if not types:
            kinds = _implied(schema)
        if len(kinds) != 1:
            raise _wrong(path, "its values are of several types, or of any: give a schema of Arrow")
        (kind,) = kinds
        return pa.field("", self._of_kind(kind, schema, path, depth), nullable or kind == "null")

    def _one_of(self, branches: list[dict[str, Any]], path: str, depth: int) -> pa.Field:
        """Of alternatives one that may be null."""
        fields = [self.field(branch, path, depth + 1) for branch in branches]
        others = [field for field in fields if not pa.types.is_null(field.type)]
        if len(others) != 1:
            raise _wrong(path, "it has several alternatives: give a schema of Arrow, which says what its column is")
        return others[0].with_nullable(others[0].nullable or len(fields) > 1)

    def _of_kind(self, kind: str, schema: dict[str, Any], path: str, depth: int) -> pa.DataType:
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), pa.string())
        if kind == "array":
            item = self.field(schema.get("items", True), f"{path}[]", depth + 1)
            return pa.list_(item.with_name("item"))
        if kind != "object":
            return _PLAIN[kind]
        further = schema.get("additionalProperties")
        if not schema.get("properties") and isinstance(further, dict):
            return pa.map_(pa.string(), self.field(further, f"{path}[]", depth + 1).with_name("value"))
        required, fields = schema.get("required", []), []
        for name, of in schema.get("properties", {}).items():
            field = self.field(of, f"{path}.{name}" if path else name, depth + 1)
            fields.append(field.with_name(name).with_nullable(field.nullable or name not in required))
        return pa.struct(fields)


def _implied(schema: dict[str, Any]) -> set[str]:
    """The type that is not named, where keywords or values stand for one only."""
    if "properties" in schema:
        return {"object"}
    if "items" in schema:
        return {"array"}
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return {"string"} if values and all(isinstance(value, str) for value in values) else set()


def _others(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _object(schema: Any, document: Any) -> dict[str, Any]:
    schema = resolved(schema, document)
    return schema if isinstance(schema, dict) else {}


def _wrong(path: str, why: str) -> ValueError:
    return ValueError(f"field {path}: {why}" if path else why)


def pruned(of: pa.DataType, paths: Sequence[str]) -> pa.DataType:
    """A type with the fields at some paths only, through lists and maps as if they were not there.

    Raises:
        ValueError: there is no such field.
    """
    wanted: dict[str, list[str] | None] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        inner = wanted.setdefault(name, [])
        # All of a field, and some of it: all of it.
        wanted[name] = None if not rest or inner is None else [*inner, rest]
    return _pruned(of, wanted)


def _pruned(of: pa.DataType, wanted: dict[str, list[str] | None]) -> pa.DataType:
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_pruned(of.value_type, wanted)))
    if pa.types.is_map(of):
        return pa.map_(of.key_field, of.item_field.with_type(_pruned(of.item_type, wanted)))
    fields = list(of) if pa.types.is_struct(of) else []
    names = [field.name for field in fields]
    if missing := [name for name in wanted if name not in names]:
        known = f"which has {', '.join(names[:30])}" if names else "which is no object"
        message = f"there is no field {missing[0]!r} in {str(of)[:100]}, {known}"
        raise ValueError(message)
    kept = []
    for field in fields:
        if field.name in wanted:
            inner = wanted[field.name]
            kept.append(field if inner is None else field.with_type(pruned(field.type, inner)))
    return pa.struct(kept)
