"""Avro to Arrow columns."""

from __future__ import annotations

import copy
import http
import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from headrace import _native
from headrace.errors import SchemaError, SchemaRegistryError
from headrace.registry import RegisteredSchema, SchemaRegistry
from headrace.values.format import BadRow, Chosen, Format, OnError, check_choice, check_columns, config_error, unpinned

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_Schema: TypeAlias = "str | Mapping[str, object] | Sequence[object]"

_ABSENT_S = 30.0
"""How long an id is taken as unknown before the registry is asked for it again."""
_ABSENT_MAX = 10_000


class Avro(Format):
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
        super().__init__(on_error)
        check_columns(columns)
        if isinstance(references, (str, Mapping)):
            message = "references takes a list of schemas"
            raise TypeError(message)
        if isinstance(schema, SchemaRegistry):
            schema, registry = None, schema
        if schema is None and registry is None:
            raise config_error("Avro takes a schema or a registry")
        if registry is not None and (schemas is not None or (schema is None and references)):
            raise config_error("a registry has the schemas and what they refer to: leave schemas and references out")
        chosen = registry is not None and schema is None
        # With a schema, it is registered under the subject when it is written.
        check_choice(reader, None if registry is not None else subject, chosen=chosen)
        self.names_schema = schemas is not None or registry is not None
        self._registry, self._reader, self._subject = registry, reader, subject
        self._wanted = None if columns is None else list(columns)
        self._absent: dict[int, float] = {}
        self._lock = threading.Lock()
        self._decoder: _native.AvroDecoder | None = None
        self._given = None if schema is None else _text(schema)
        # By the subject under which the schema is registered.
        self._writers: dict[str | None, tuple[_native.AvroEncoder, int | None]] = {}
        self._made_of: tuple[str, list[str], list[tuple[int, str]] | None] | None = None
        if schema is not None:
            writers = None if schemas is None else _ids(schemas)
            if registry is not None:
                writers = []
            self._decode_with(_text(schema), [_text(reference) for reference in references], writers)

    def bound(self, topics: Collection[str], side: str) -> Avro:
        """With the reader's schema, which is looked up if it is one of the registry.

        Raises:
            ConfigError: no subject is named, and the topics are not one.
            SchemaRegistryError: the registry has no such schema, or does not answer.
        """
        if self._decoder is not None or self._registry is None:
            return self
        found = Chosen(self._registry, self._reader, self._subject).schema(topics, side, "AVRO")
        made = copy.copy(self)
        made._decode_with(found.schema, list(found.definitions), [])  # noqa: SLF001  (of this class)
        return made

    def encoded(self, columns: pa.StructArray, topic: str | None, side: str) -> pa.Array:
        """The bytes of rows.

        Without a schema, they are written with the newest of the subject; with one and a registry, it is registered
        there, unless it is already.

        Raises:
            SchemaError: the columns are not those of the schema.
            ConfigError: there is a registry, and nothing says the subject.
            SchemaRegistryError: the registry refuses the schema.
        """
        encoder, number = self._writer(topic, side)
        try:
            return pa.array(encoder.encode(columns, number))
        except ValueError as error:
            raise SchemaError(f"{side}: {error.args[0]}") from None

    def _writer(self, topic: str | None, side: str) -> tuple[_native.AvroEncoder, int | None]:
        subject = self._subject or (None if topic is None else f"{topic}-{side}")
        known = self._writers.get(subject)
        if known is not None:
            return known
        if self._registry is None:
            if self._made_of is None or self._made_of[2] is not None:
                raise config_error(f"{side}: schemas by id are read only: give Avro a registry, or one schema")
            schema, references, number = self._made_of[0], self._made_of[1], None
        elif subject is None:
            raise config_error(f"{side}: name the subject= under which the schema is registered")
        elif self._given is None:
            found = self._registry.latest(subject) if self._reader == "latest" else self._registry.schema(self._reader)
            schema, references, number = found.schema, list(found.definitions), found.id
        else:
            schema, references = self._given, [] if self._made_of is None else self._made_of[1]
            if references:
                # Which versions of which subjects they are is not said here.
                raise config_error(
                    f"{side}: register a schema with references by hand, and give Avro the registry alone"
                )
            number = self._registry.register(subject, schema)
        try:
            made = (_native.AvroEncoder(schema, references), number)
        except ValueError as error:
            raise SchemaError(f"{side}: {error}") from None
        self._writers[subject] = made
        return made

    def column(self, rows: pa.Array) -> tuple[pa.Array, list[BadRow]]:
        """The values of rows, in which bad ones are null, and what is wrong with those.

        Raises:
            SchemaRegistryError: a schema is to be looked up, and the registry refuses or does not answer.
        """
        self.learn(rows)
        column, bad = self._pinned().decode(rows)
        return pa.array(column), bad

    def lacks(self, rows: pa.Array) -> bool:
        """Whether rows have ids that have not come before."""
        return bool(self._missing(rows))

    def _pinned(self) -> _native.AvroDecoder:
        if self._decoder is None:
            raise unpinned()
        return self._decoder

    def _missing(self, rows: pa.Array) -> list[int]:
        if self._registry is None:
            return []
        now = time.monotonic()
        return [number for number in self._pinned().missing(rows) if self._absent.get(number, now) <= now]

    def learn(self, rows: pa.Array) -> None:
        """Looks up the schemas of ids that have not come before. Raises as `column` does."""
        for number in self._missing(rows):
            try:
                found = self._found(number)
            except SchemaRegistryError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:
                    raise
                if len(self._absent) >= _ABSENT_MAX:
                    self._absent.clear()
                self._absent[number] = time.monotonic() + _ABSENT_S
                continue
            why = None if found.schema_type == "AVRO" else f"it is of type {found.schema_type}, not AVRO"
            # Another thread may have learnt of others meanwhile.
            with self._lock:
                self._decoder = self._pinned().with_writer(number, found.schema, found.definitions, why)

    def _found(self, number: int) -> RegisteredSchema:
        assert self._registry is not None  # noqa: S101  (as `_missing` has seen)
        return self._registry.schema(number)

    def _decode_with(self, schema: str, references: list[str], writers: list[tuple[int, str]] | None) -> None:
        """Makes the decoder, of what is kept for a copy in another process."""
        try:
            self._decoder = _native.AvroDecoder(schema, references, self._wanted, writers)
        except ValueError as error:
            raise SchemaError(str(error)) from None
        self._made_of = (schema, references, writers)

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to this process. A copy learns of writers' schemas by itself."""
        return {name: of for name, of in vars(self).items() if name not in {"_decoder", "_lock", "_absent", "_writers"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begins anew with the same schema."""
        vars(self).update(state)
        self._absent, self._lock, self._decoder = {}, threading.Lock(), None
        self._writers = {}
        if self._made_of is not None:
            self._decode_with(*self._made_of)


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


def _ids(schemas: object) -> list[tuple[int, str]]:
    """Schemas by id, as they were given."""
    if not isinstance(schemas, Mapping):
        message = f"schemas takes schemas by id, such as {{17: ...}}, not {type(schemas).__name__}"
        raise TypeError(message)
    for number in schemas:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 32:
            message = f"schemas: {number!r} is not the id of a schema, a number of 4 bytes"
            raise ValueError(message)
    return [(number, _text(written, f"schemas[{number}]")) for number, written in schemas.items()]
