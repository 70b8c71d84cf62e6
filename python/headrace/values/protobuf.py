"""Protobuf to Arrow columns, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace import _native
from headrace.errors import SchemaError
from headrace.registry import RegisteredSchema, SchemaRegistry
from headrace.values.registered import Named, Registered, Writing, by_id, documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.values.format import OnError
    from headrace.values.registered import SchemaIdPlace

_Schema: TypeAlias = "str | bytes | type[Any]"


class Protobuf(Registered["str | bytes"]):
    """Protobuf to Arrow columns, and back.

    Rows are read by the schema whose columns come out: fields are found by their numbers, and what that schema does not
    have is skipped. How types come out is in docs/values.md.

    With a registry, as with ``schemas``, each row begins with a byte 0, the id of the schema that it was written with,
    4 bytes big endian, and the place of its message there, as Confluent's serializers write it. A new id is looked up
    when it comes. A row of another message is a bad row, as is one whose id the registry does not know; that the
    registry cannot be reached is a `SchemaRegistryUnavailableError`, after which the same rows come again.

    Args:
        schema: The text of a ``.proto`` file; or a message class that ``protoc`` has made, such as
            ``orders_pb2.Order``; or the bytes of a ``FileDescriptorSet``, as ``protoc --include_imports
            --descriptor_set_out`` writes it. Or a `SchemaRegistry`.
        message: The name of the message, with its package or without; the schema's first one by default.
        registry: Where schemas are found.
        reader: Without a schema, which one of the registry gives the columns: ``"latest"`` (default), the newest of the
            subject when reading begins, or the id of one. Later schemas do not change the columns.
        subject: Whose newest schema that is; by default ``topic-value`` or ``topic-key`` of the client's one topic.
            Rows that are encoded have their schema registered there.
        schemas: The writers' schemas by id, as texts, instead of a registry.
        references: The texts of the files that schemas import, by the names by which they do. Google's own need not be
            given.
        columns: As for `Avro`.
        on_error: As for `Avro`.
        schema_id: As for `Avro`.
        auto_register: As for `Avro`.

    Raises:
        SchemaError: A schema is wrong, has no such message, or has no columns, such as a message that contains itself.
        ConfigError: Two arguments exclude each other, or there is neither a schema nor a registry.
    """

    kind = "PROTOBUF"

    def __init__(
        self,
        schema: _Schema | SchemaRegistry | None = None,
        *,
        message: str | None = None,
        registry: SchemaRegistry | None = None,
        reader: Literal["latest"] | int = "latest",
        subject: str | None = None,
        schemas: Mapping[int, str] | None = None,
        references: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
        schema_id: SchemaIdPlace = "prefix",
        auto_register: bool = True,
    ) -> None:
        if isinstance(schema, SchemaRegistry):
            schema, registry = None, schema
        if hasattr(schema, "DESCRIPTOR"):
            schema, message = _of_class(schema, message)
        self._message = message
        super().__init__(
            None if schema is None else _checked(schema),
            registry,
            [] if references is None else documents(references),
            None
            if schemas is None
            else [(number, _text(text, f"schemas[{number}]")) for number, text in by_id(schemas)],
            reader=reader,
            subject=subject,
            columns=columns,
            on_error=on_error,
            writing=Writing(schema_id, auto_register),
        )

    def _decoder_of(
        self, schema: str | bytes, references: list[Named], writers: list[tuple[int, str]] | None
    ) -> _native.ProtobufDecoder:
        return _native.ProtobufDecoder(schema, references, self._message, self._wanted, writers)

    def _encoder_of(self, schema: str | bytes, references: list[Named]) -> _native.ProtobufEncoder:
        return _native.ProtobufEncoder(schema, references, self._message)

    def _place(self, encoder: _native.ProtobufEncoder) -> bytes:
        return encoder.place()

    def _with_writer(
        self, decoder: _native.ProtobufDecoder, found: RegisteredSchema, why: str | None
    ) -> _native.ProtobufDecoder:
        return decoder.with_writer(found.id, found.schema, found.definitions, why)

    def _registered_text(self, schema: str | bytes) -> str:
        if isinstance(schema, str):
            return schema
        file, imports = _native.protobuf_file(schema, [], self._message)
        if imports:
            raise SchemaError(
                f"it imports {', '.join(imports)}: register these and the schema by hand, and give Protobuf the "
                "registry alone"
            )
        return file


def _checked(schema: object) -> str | bytes:
    if isinstance(schema, str) and schema.endswith(".proto"):
        raise SchemaError(f"schema is the text of a file, and not its path: give what {schema!r:.100} holds")
    if not isinstance(schema, (str, bytes)):
        message = (
            "schema is the text of a .proto file, the bytes of a FileDescriptorSet or a message class, not "
            f"{type(schema).__name__}"
        )
        raise TypeError(message)
    return schema


def _text(text: object, what: str) -> str:
    if not isinstance(text, str):
        message = f"{what} is the text of a .proto file, not {type(text).__name__}"
        raise TypeError(message)
    return text


def _of_class(made: Any, message: str | None) -> tuple[bytes, str]:
    """The files of a class that protoc has made, as a FileDescriptorSet, and the name of its message."""
    described = made.DESCRIPTOR
    files: dict[str, bytes] = {}

    def add(file: Any) -> None:
        if file.name not in files:
            for imported in file.dependencies:
                add(imported)
            files[file.name] = file.serialized_pb

    add(getattr(described, "file", described))
    written = b"".join(b"\x0a" + _varint(len(file)) + file for file in files.values())
    return written, message or getattr(described, "full_name", described.name)


def _varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:  # noqa: PLR2004  (seven bits of each byte count)
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
