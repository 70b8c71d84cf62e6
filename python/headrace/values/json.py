"""JSON to Arrow columns, and back."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from headrace import _native
from headrace.errors import SchemaError
from headrace.registry import SchemaRegistry
from headrace.registry.json_documents import whole
from headrace.values.format import BadRow, Chosen, OnError, config_error, unpinned
from headrace.values.json_types import pruned, type_of
from headrace.values.registered import Named, Writing, Written, documents

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.values.registered import SchemaIdPlace

_Schema: TypeAlias = "pa.Schema | pa.DataType | str | Mapping[str, object]"


class Json(Written["str | pa.DataType"]):
    """JSON to Arrow columns, and back.

    Fields are found by name, in whatever order they come; unknown ones are skipped, and missing ones are null. How JSON
    becomes columns is in docs/values.md. A row may begin with a byte 0 and the id of a schema, as Confluent's
    serializers write it; what it says does not depend on that schema.

    Args:
        schema: What the columns are: a `pyarrow.Schema`, a `pyarrow.DataType` (if values are no objects), or a JSON
            Schema as its text or as what ``json.loads`` makes of it. Or a `SchemaRegistry`.
        registry: Where a JSON Schema is found.
        reader: Without a schema, which one of the registry gives the columns: ``"latest"`` (default), the newest of the
            subject when reading begins, or the id of one.
        subject: Whose newest schema that is; by default ``topic-value`` or ``topic-key`` of the client's one topic.
            Rows that are encoded have their JSON Schema registered there.
        references: The texts of the documents to which a JSON Schema refers, by the names by which it does.
        columns: The fields to decode, as paths such as ``"price.amount"``; others are skipped, which is faster. All by
            default. Fields come in the schema's order.
        on_error: As for `Avro`.
        schema_id: As for `Avro`.
        auto_register: As for `Avro`.

    Raises:
        SchemaError: The schema is wrong, or has a type that no column of JSON can have.
        ConfigError: Two arguments exclude each other, or there is neither a schema nor a registry.
    """

    kind = "JSON"

    def __init__(
        self,
        schema: _Schema | SchemaRegistry | None = None,
        *,
        registry: SchemaRegistry | None = None,
        reader: Literal["latest"] | int = "latest",
        subject: str | None = None,
        references: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
        schema_id: SchemaIdPlace = "prefix",
        auto_register: bool = True,
    ) -> None:
        if isinstance(schema, SchemaRegistry):
            schema, registry = None, schema
        given = None if schema is None else _given(schema)
        self._documents: list[Named] = [] if references is None else documents(references)
        if registry is not None and given is None and self._documents:
            raise config_error("a registry has what its schemas refer to: leave references out")
        super().__init__(
            given,
            registry,
            reader=reader,
            subject=subject,
            columns=columns,
            on_error=on_error,
            writing=Writing(schema_id, auto_register),
        )
        self.names_schema = registry is not None
        self._decode_with(None if given is None else _type(given, self._documents))

    def bound(self, topics: Collection[str], side: str) -> Json:
        """With the columns of a schema that is looked up, if it is one of the registry.

        Raises:
            ConfigError: no subject is named, and the topics are not one.
            SchemaRegistryError: the registry has no such schema, or does not answer.
        """
        if self._decoder is not None or self._registry is None:
            return self
        found = Chosen(self._registry, self._reader, self._subject).schema(topics, side, self.kind)
        made = copy.copy(self)
        made._decode_with(_type(found.schema, found.definitions))  # noqa: SLF001  (of this class)
        return made

    def column(self, rows: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[BadRow]]:
        """The values of rows, in which bad ones are null, and what is wrong with those."""
        del headers
        if self._decoder is None:
            raise unpinned()
        column, bad = self._decoder.decode(rows)
        return pa.array(column), bad

    def _own(self, side: str) -> tuple[str | pa.DataType, list[Named]]:
        del side
        assert self._given is not None  # noqa: S101  (there is no registry)
        return self._given, self._documents

    def _references(self) -> list[Named]:
        return self._documents

    def _encoder_of(self, schema: str | pa.DataType, references: list[Named]) -> _native.JsonEncoder:
        return _native.JsonEncoder(_type(schema, references))

    def _registered_text(self, schema: str | pa.DataType) -> str:
        if not isinstance(schema, str):
            raise config_error("a registry takes a JSON Schema, and not one of Arrow: give Json a JSON Schema")
        return schema

    def _decode_with(self, of: pa.DataType | None) -> None:
        """Makes the decoder, of what is kept for a copy in another process."""
        self._of, self._decoder = of, None
        if of is not None:
            try:
                self._decoder = _native.JsonDecoder(of if self._wanted is None else pruned(of, self._wanted))
            except ValueError as error:
                raise SchemaError(str(error)) from None

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to this process."""
        return {name: of for name, of in vars(self).items() if name not in {"_decoder", "_writers"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begins anew with the same columns."""
        vars(self).update(state)
        self._writers = {}
        self._decode_with(self._of)


def _given(schema: object) -> str | pa.DataType:
    """A schema of Arrow as a type, and a JSON Schema as its text."""
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if isinstance(schema, pa.DataType):
        return schema
    if isinstance(schema, str):
        if schema.endswith(".json"):
            raise SchemaError(f"schema is a JSON Schema, and not the path of a file: give what {schema!r:.100} holds")
        return schema
    if not isinstance(schema, Mapping):
        message = f"schema is a pyarrow.Schema or DataType, or a JSON Schema, not {type(schema).__name__}"
        raise TypeError(message)
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"schema is no JSON Schema: {error}") from None


def _type(schema: str | pa.DataType, references: Sequence[Named]) -> pa.DataType:
    """The type of the columns."""
    if isinstance(schema, pa.DataType):
        return schema
    try:
        found = whole(schema, references)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"schema is no JSON Schema: {error}") from None
    if not isinstance(found, dict):
        message = f"schema is a JSON Schema, an object, not {schema!r:.100}"
        raise SchemaError(message)
    try:
        return type_of(found)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"schema: {error}") from None
