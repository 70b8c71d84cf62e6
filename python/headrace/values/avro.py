"""Avro to Arrow columns, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace import _native
from headrace.errors import SchemaError
from headrace.registry import RegisteredSchema, SchemaRegistry
from headrace.values.registered import Named, Registered, by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.values.format import OnError

_Schema: TypeAlias = "str | Mapping[str, object] | Sequence[object]"


class Avro(Registered[str]):
    """Avro to Arrow columns.

    Rows may have been written with other schemas than the one whose columns come out: fields are matched by name or
    alias, numbers widened, missing fields filled with their defaults and unknown ones skipped (Avro 1.12, "Schema
    Resolution"). How types come out is in docs/values.md.

    With a registry, as with ``schemas``, each row begins with a byte 0 and the id of the schema that it was written
    with, 4 bytes big endian, as Confluent's serializers write it. A new id is looked up when it comes. A row whose id
    the registry does not know is a bad row; that the registry cannot be reached is a `SchemaRegistryUnavailableError`,
    after which the same rows come again.

    Args:
        schema: The reader's schema, as Avro's JSON or as what ``json.loads`` makes of it. Without ``schemas`` and
            ``registry``, it is also the one that all rows were written with. Or a `SchemaRegistry`.
        registry: Where schemas are found.
        reader: Without a schema, which one of the registry gives the columns: ``"latest"`` (default), the newest of the
            subject when reading begins, or the id of one. Later schemas do not change the columns.
        subject: Whose newest schema that is; by default ``topic-value`` or ``topic-key`` of the client's one topic.
            Rows that are encoded have their schema registered there.
        schemas: The writers' schemas by id, instead of a registry.
        references: Schemas that define types which the others name, each after those that it names itself.
        columns: The fields to decode, as paths such as ``"price.amount"``; others are skipped, which is faster. All by
            default. Fields come in the schema's order.
        on_error: What becomes of a row that cannot be decoded: ``"raise"`` (default) raises a `DecodeError` that names
            the first such row, ``"null"`` makes it null, and ``"column"`` makes it null and says why in further columns
            of the batch (docs/values.md; clients only). Other rows are not affected.

    Raises:
        SchemaError: A schema is wrong, or has no columns, such as a record that contains itself.
        ConfigError: Two arguments exclude each other, or there is neither a schema nor a registry.
    """

    kind = "AVRO"

    def __init__(
        self,
        schema: _Schema | SchemaRegistry | None = None,
        *,
        registry: SchemaRegistry | None = None,
        reader: Literal["latest"] | int = "latest",
        subject: str | None = None,
        schemas: Mapping[int, _Schema] | None = None,
        references: Sequence[_Schema] = (),
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if isinstance(references, (str, Mapping)):
            message = "references takes a list of schemas"
            raise TypeError(message)
        if isinstance(schema, SchemaRegistry):
            schema, registry = None, schema
        super().__init__(
            None if schema is None else _text(schema),
            registry,
            [("", _text(reference)) for reference in references],
            None
            if schemas is None
            else [(number, _text(written, f"schemas[{number}]")) for number, written in by_id(schemas)],
            reader=reader,
            subject=subject,
            columns=columns,
            on_error=on_error,
        )

    def _decoder_of(
        self, schema: str, references: list[Named], writers: list[tuple[int, str]] | None
    ) -> _native.AvroDecoder:
        return _native.AvroDecoder(schema, _texts(references), self._wanted, writers)

    def _encoder_of(self, schema: str, references: list[Named]) -> _native.AvroEncoder:
        return _native.AvroEncoder(schema, _texts(references))

    def _with_writer(
        self, decoder: _native.AvroDecoder, found: RegisteredSchema, why: str | None
    ) -> _native.AvroDecoder:
        return decoder.with_writer(found.id, found.schema, _texts(found.definitions), why)

    def _registered_text(self, schema: str) -> str:
        return schema


def _texts(references: Sequence[Named]) -> list[str]:
    """Schemas by themselves: Avro finds them by the names in them."""
    return [text for _, text in references]


def _text(schema: object, what: str = "schema") -> str:
    if isinstance(schema, str):
        if schema.endswith((".avsc", ".json")):
            raise SchemaError(f"{what} is Avro's JSON, and not the path of a file: give what {schema!r:.100} holds")
        return schema
    if not isinstance(schema, (Mapping, list, tuple)):
        message = f"{what} is Avro's JSON as a string, or what json.loads makes of it, not {type(schema).__name__}"
        raise TypeError(message)
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{what} is no JSON: {error}") from None
