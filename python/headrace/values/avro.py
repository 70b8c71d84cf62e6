"""Avro to Arrow columns, and back."""

from __future__ import annotations

import copy
import http
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace import _native
from headrace.errors import SchemaError, SchemaRegistryError
from headrace.registry import RegisteredSchema, SchemaRegistry
from headrace.values.format import Chosen, check_type, config_error
from headrace.values.registered import Named, Registered, Writing, by_id

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from typing_extensions import Self

    from headrace.values.format import OnError
    from headrace.values.registered import SchemaIdPlace

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
        records: The names of records, with their namespaces, of a topic whose rows are of several: each becomes a
            column, called as its last part, or as the keys of a mapping say (``{"order": "shop.Order"}``). Of the
            columns of a row one is not null, and none if its record is not among these. Without a schema, ``reader`` or
            ``subject``, each is that of the subject ``topic-record`` or ``record`` (Confluent's TopicRecordNameStrategy
            and RecordNameStrategy), or stands in that of ``topic-value``. Read only.
        columns: The fields to decode, as paths such as ``"price.amount"``; others are skipped, which is faster. All by
            default. Fields come in the schema's order.
        on_error: What becomes of a row that cannot be decoded: ``"raise"`` (default) raises a `DecodeError` that names
            the first such row, ``"null"`` makes it null, and ``"column"`` makes it null and says why in further columns
            of the batch (docs/values.md; clients only). Other rows are not affected.
        schema_id: Where a row that is written says its schema: ``"prefix"`` (default), its id in front of the row, or
            ``"header"``, its GUID in a header of the record (Confluent's HeaderSchemaIdSerializer, since 8.0). Rows
            with either are read.
        auto_register: Whether a schema that is written is registered (default). If not, it must be a version of the
            subject already, which takes no right to change the registry.

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
        records: Sequence[str] | Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
        schema_id: SchemaIdPlace = "prefix",
        auto_register: bool = True,
    ) -> None:
        if isinstance(references, (str, Mapping)):
            message = "references takes a list of schemas"
            raise TypeError(message)
        if isinstance(schema, SchemaRegistry):
            schema, registry = None, schema
        self._records = None if records is None else _by_column(records)
        self._chosen: list[Record] = []
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
            writing=Writing(schema_id, auto_register),
        )

    def bound(self, topics: Collection[str], side: str) -> Self:
        """With the reader's schemas, which are looked up if they are those of the registry.

        Raises:
            ConfigError: no subject is named, and the topics are not one.
            SchemaRegistryError: the registry has no such schema, or does not answer.
        """
        if self._records is None or self._decoder is not None or self._registry is None:
            return super().bound(topics, side)
        return self.with_records(self.chosen(topics, side))

    def chosen(self, topics: Collection[str], side: str) -> list[Record]:
        """The records that become columns, with the schemas of the registry in which they stand.

        Raises:
            SchemaRegistryError: the registry has no schema of one, or does not answer.
        """
        return [
            (column, name, found.schema, tuple(_texts(found.definitions)))
            for column, name in (self._records or {}).items()
            for found in [self._schema_with(name, topics, side)]
        ]

    def with_records(self, chosen: Sequence[Record]) -> Self:
        """With schemas that `chosen` has found, here or in another process."""
        made = copy.copy(self)
        made._chosen = list(chosen)  # noqa: SLF001  (of this class)
        made._decode_with("", [], [])  # noqa: SLF001  (of this class)
        return made

    def _schema_with(self, record: str, topics: Collection[str], side: str) -> RegisteredSchema:
        """The schema of the registry that has a record."""
        assert self._registry is not None  # noqa: S101  (as `bound` has seen)
        if self._reader != "latest" or self._subject is not None:
            return Chosen(self._registry, self._reader, self._subject).schema(topics, side, self.kind)
        names = sorted(topics)
        subjects = [*(f"{topic}-{record}" for topic in names), record, *(f"{topic}-{side}" for topic in names)]
        for subject in subjects:
            try:
                found = self._registry.latest(subject)
            except SchemaRegistryError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:
                    raise
                continue
            check_type(found, self.kind, side)
            return found
        message = f"{side}: the schema registry has no schema of record {record}: no subject {', '.join(subjects)}"
        raise SchemaRegistryError(message, name="SCHEMA_NOT_FOUND")

    def _writer(self, topic: str | None, side: str) -> Any:
        if self._records is not None:
            raise config_error(
                f"{side}: records= is for reading: write each record with an Avro and a subject of its own"
            )
        return super()._writer(topic, side)

    def _decoder_of(
        self, schema: str, references: list[Named], writers: list[tuple[int, str]] | None
    ) -> _native.AvroDecoder:
        if self._records is None:
            return _native.AvroDecoder(schema, _texts(references), self._wanted, writers)
        texts = _texts(references)
        chosen = self._chosen or [(column, name, schema, tuple(texts)) for column, name in self._records.items()]
        decoder = _native.AvroDecoder.of_records(chosen, self._wanted, (schema, texts) if writers is None else None)
        for number, written in writers or ():
            decoder = decoder.with_writer(number, written, texts)
        return decoder

    def _encoder_of(self, schema: str, references: list[Named]) -> _native.AvroEncoder:
        return _native.AvroEncoder(schema, _texts(references))

    def _with_writer(
        self, decoder: _native.AvroDecoder, found: RegisteredSchema, why: str | None
    ) -> _native.AvroDecoder:
        return decoder.with_writer(found.id, found.schema, _texts(found.definitions), why)

    def _registered_text(self, schema: str) -> str:
        return schema


Record: TypeAlias = tuple[str, str, str, tuple[str, ...]]
"""The column of a record, its name, a schema that has it, and those that this one names."""


def _by_column(records: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The names of records by the columns that they become."""
    if isinstance(records, Mapping):
        found = list(records.items())
    elif isinstance(records, (list, tuple)):
        found = [(str(name).rpartition(".")[2], name) for name in records]
    else:
        found = []
    named: list[object] = [part for pair in found for part in pair]
    if not named or not all(isinstance(part, str) and part for part in named):
        message = f"records={records!r:.100} is not accepted; it takes names of records, or a mapping of such by column"
        raise TypeError(message)
    made = dict(found)
    if len(made) < len(found):
        message = f"records={records!r:.100}: two would be one column: give a mapping of names by column"
        raise ValueError(message)
    return made


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
