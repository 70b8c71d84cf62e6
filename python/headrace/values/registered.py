"""What formats have in common that are written, and whose rows name the schema that they were written with."""

from __future__ import annotations

import copy
import http
import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from headrace import _native
from headrace.errors import SchemaError, SchemaRegistryError
from headrace.values.format import (
    BadRow,
    Chosen,
    Format,
    OnError,
    check_choice,
    check_columns,
    check_type,
    config_error,
    unpinned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from typing_extensions import Self

    from headrace.registry import RegisteredSchema, SchemaRegistry

_ABSENT_S = 30.0
"""How long an id is taken as unknown before the registry is asked for it again."""
_ABSENT_MAX = 100_000
_ABSENT_OF_BATCH_MAX = 50
"""Where the registry knows none of so many ids or GUIDs of a batch, it is not asked for the others: rows that were not
written for a registry name another schema each, their first bytes."""
_OF_THIS_PROCESS = frozenset({"_decoder", "_lock", "_absent", "_guids", "_writers"})

Named = tuple[str, str]
"""The name and the text of a schema that another one names."""
SchemaT = TypeVar("SchemaT")
NameT = TypeVar("NameT", int, bytes)
SchemaIdPlace: TypeAlias = Literal["prefix", "header"]
"""Where what is written says which schema it was written with."""


class _Decoder(Protocol):
    """Decodes rows of the schemas that it knows."""

    def missing(self, rows: object) -> list[int]:
        """The ids of those that it does not know."""

    def decode(self, rows: object) -> tuple[_native.Column, list[BadRow]]:
        """The values of rows, and what is wrong with some."""


class _Encoder(Protocol):
    """Encodes rows of one schema."""

    def encode(self, columns: object, number: int | None) -> _native.Column:
        """The rows, each behind the schema's id if there is one."""


class _Writer(NamedTuple):
    """What writes rows of one schema."""

    encoder: _Encoder
    number: int | None
    """The schema's id, if it is one of a registry."""


class Writing(NamedTuple):
    """How a format writes its schema."""

    schema_id: SchemaIdPlace
    """Where each row says it."""
    auto_register: bool
    """Whether it is registered, unless it is already."""

    @property
    def in_header(self) -> bool:
        """Whether rows are bare, and a header has the schema's GUID."""
        return self.schema_id == "header"

    def check(self, registry: object, schema: object) -> None:
        """Raises unless it goes with what else is given."""
        if self.schema_id not in {"prefix", "header"}:
            message = f"schema_id={self.schema_id!r} is not accepted; it takes 'prefix' or 'header'"
            raise ValueError(message)
        if self.in_header and registry is None:
            raise config_error("schema_id='header' writes the GUID of a schema of a registry: give a registry")
        if not self.auto_register and (registry is None or schema is None):
            raise config_error("auto_register=False looks a schema up in a registry: give both")


class Written(Format, Generic[SchemaT]):
    """A format that is written too, by its own schema or a registry's; ``SchemaT`` is what a schema is given as."""

    kind: ClassVar[str]
    """What the registry calls its type."""

    def __init__(
        self,
        schema: SchemaT | None,
        registry: SchemaRegistry | None,
        *,
        reader: Literal["latest"] | int,
        subject: str | None,
        columns: Sequence[str] | None,
        on_error: OnError,
        writing: Writing,
    ) -> None:
        """Checks what belongs together."""
        super().__init__(on_error)
        for what, given in (("registry", registry), ("schema", schema)):
            if isinstance(given, str) and given.startswith(("http://", "https://")):
                raise config_error(f"{what} is the address of a registry: give headrace.SchemaRegistry({given!r})")
        writing.check(registry, schema)
        self._writing = writing
        check_columns(columns)
        if schema is None and registry is None:
            raise config_error(f"{type(self).__name__} takes a schema or a registry")
        # With a schema, it is registered under the subject when it is written.
        chosen = registry is not None and schema is None
        check_choice(reader, None if registry is not None else subject, chosen=chosen)
        self._registry, self._reader, self._subject = registry, reader, subject
        self._wanted = None if columns is None else list(columns)
        self._given = schema
        # By the subject under which the schema is registered.
        self._writers: dict[str | None, _Writer] = {}

    def _encoder_of(self, schema: SchemaT | str, references: list[Named]) -> _Encoder:
        """An encoder of a schema, or of the text of one of the registry."""
        raise NotImplementedError

    def _registered_text(self, schema: SchemaT) -> str:
        """A schema as it is registered."""
        raise NotImplementedError

    def _own(self, side: str) -> tuple[SchemaT | str, list[Named]]:
        """The schema that is written without a registry."""
        raise NotImplementedError

    def _references(self) -> list[Named]:
        """The schemas that the given one names."""
        return []

    def encoded(self, columns: pa.StructArray, topic: str | None, side: str) -> pa.Array:
        """The bytes of rows.

        Without a schema, they are written with the newest of the subject; with one and a registry, it is registered
        there, unless it is already.

        Raises:
            SchemaError: the columns are not those of the schema.
            ConfigError: there is a registry, and nothing says the subject.
            SchemaRegistryError: the registry refuses the schema.
        """
        writer = self._writer(topic, side)
        try:
            return pa.array(writer.encoder.encode(columns, None if self._writing.in_header else writer.number))
        except ValueError as error:
            raise SchemaError(f"{side}: {error.args[0]}") from None

    def header(self, topic: str | None, side: str) -> tuple[bytes, bytes] | None:
        """The GUID of the schema and the place of the message there, if they go into a header.

        Raises:
            SchemaRegistryError: the registry gives schemas no GUID, or as for `encoded`.
        """
        if not self._writing.in_header:
            return None
        writer = self._writer(topic, side)
        assert self._registry is not None  # noqa: S101  (as __init__ has seen)
        assert writer.number is not None  # noqa: S101  (there is a registry)
        guid = self._registry.schema(writer.number).guid
        try:
            named = uuid.UUID(guid or "")
        except ValueError:
            message = (
                f"{side}: the schema registry gives schema id {writer.number} no GUID, which schema_id='header' takes"
            )
            raise SchemaRegistryError(message, name="SCHEMA_NOT_FOUND") from None
        return named.bytes, self._place(writer.encoder)

    def _place(self, encoder: Any) -> bytes:
        """What stands behind a schema's id or GUID."""
        del encoder
        return b""

    def _writer(self, topic: str | None, side: str) -> _Writer:
        subject = self._subject or (None if topic is None else f"{topic}-{side}")
        known = self._writers.get(subject)
        if known is not None:
            return known
        schema: SchemaT | str
        number: int | None
        if self._registry is None:
            (schema, references), number = self._own(side), None
        elif subject is None:
            raise config_error(f"{side}: name the subject= under which the schema is registered")
        elif self._given is None:
            found = self._registry.latest(subject) if self._reader == "latest" else self._registry.schema(self._reader)
            check_type(found, self.kind, side)
            schema, references, number = found.schema, list(found.definitions), found.id
        else:
            schema, references = self._given, self._references()
            if references:
                # Which versions of which subjects they are is not said here.
                name = type(self).__name__
                raise config_error(
                    f"{side}: register a schema with references by hand, and give {name} the registry alone"
                )
            ask = self._registry.register if self._writing.auto_register else self._registry.lookup
            number = ask(subject, self._registered_text(schema), schema_type=self.kind)
        try:
            made = _Writer(self._encoder_of(schema, references), number)
        except ValueError as error:
            raise SchemaError(f"{side}: {error}") from None
        self._writers[subject] = made
        return made


class Registered(Written[SchemaT]):
    """A format whose rows name the schema that they were written with."""

    def __init__(
        self,
        schema: SchemaT | None,
        registry: SchemaRegistry | None,
        references: Sequence[Named],
        schemas: Sequence[tuple[int, str]] | None,
        *,
        reader: Literal["latest"] | int,
        subject: str | None,
        columns: Sequence[str] | None,
        on_error: OnError,
        writing: Writing,
    ) -> None:
        """Checks what belongs together."""
        super().__init__(
            schema,
            registry,
            reader=reader,
            subject=subject,
            columns=columns,
            on_error=on_error,
            writing=writing,
        )
        if registry is not None and (schemas is not None or (schema is None and references)):
            raise config_error("a registry has the schemas and what they refer to: leave schemas and references out")
        self.names_schema = schemas is not None or registry is not None
        self.reads_headers = registry is not None
        # When to ask again for ids and GUIDs that the registry did not know.
        self._absent: dict[int | bytes, float] = {}
        self._guids: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._decoder: Any = None
        self._made_of: tuple[SchemaT | str, list[Named], list[tuple[int, str]] | None] | None = None
        if schema is not None:
            writers = None if schemas is None else list(schemas)
            self._decode_with(schema, list(references), [] if registry is not None else writers)

    def _decoder_of(
        self, schema: SchemaT | str, references: list[Named], writers: list[tuple[int, str]] | None
    ) -> _Decoder:
        """A decoder into the columns of a schema."""
        raise NotImplementedError

    def _with_writer(self, decoder: Any, found: RegisteredSchema, why: str | None) -> _Decoder:
        """The decoder, with what the registry has under one more id, or why that cannot be read."""
        raise NotImplementedError

    def bound(self, topics: Collection[str], side: str) -> Self:
        """With the reader's schema, which is looked up if it is one of the registry.

        Raises:
            ConfigError: no subject is named, and the topics are not one.
            SchemaRegistryError: the registry has no such schema, or does not answer.
        """
        if self._decoder is not None or self._registry is None:
            return self
        found = Chosen(self._registry, self._reader, self._subject).schema(topics, side, self.kind)
        made = copy.copy(self)
        made._decode_with(found.schema, list(found.definitions), [])  # noqa: SLF001  (of this class)
        return made

    def _own(self, side: str) -> tuple[SchemaT | str, list[Named]]:
        if self._made_of is None or self._made_of[2] is not None:
            name = type(self).__name__
            raise config_error(f"{side}: schemas by id are read only: give {name} a registry, or one schema")
        return self._made_of[0], self._made_of[1]

    def _references(self) -> list[Named]:
        return [] if self._made_of is None else self._made_of[1]

    def column(self, rows: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[BadRow]]:
        """The values of rows, in which bad ones are null, and what is wrong with those.

        Raises:
            SchemaRegistryError: a schema is to be looked up, and the registry refuses or does not answer.
        """
        self._learn_guids(headers)
        rows, unknown = self._prefixed(rows, headers)
        self._learn_ids(rows)
        column, bad = self._pinned().decode(rows)
        made = pa.array(column)
        unknown = [one for one in unknown if one[0] < len(made)]
        return made, sorted([*bad, *unknown]) if unknown else bad

    def prefixed(self, rows: pa.Array, headers: pa.Array | None) -> pa.Array:
        """The rows, each behind what its header says of its schema; null where that is not known."""
        return self._prefixed(rows, headers)[0]

    def lacks(self, rows: pa.Array, headers: pa.Array | None = None) -> bool:
        """Whether rows have ids, or headers GUIDs, that have not come before."""
        return bool(self._new_guids(headers) or self._missing(self.prefixed(rows, headers)))

    def learn(self, rows: pa.Array, headers: pa.Array | None = None) -> None:
        """Looks up the schemas that have not come before. Raises as `column` does."""
        self._learn_guids(headers)
        self._learn_ids(self.prefixed(rows, headers))

    def _prefixed(self, rows: pa.Array, headers: pa.Array | None) -> tuple[pa.Array, list[BadRow]]:
        if headers is None:
            return rows, []
        found, bad = _native.with_prefix(rows, headers, self._guids)
        return pa.array(found), bad

    def _pinned(self) -> _Decoder:
        if self._decoder is None:
            raise unpinned()
        decoder: _Decoder = self._decoder
        return decoder

    def _missing(self, rows: pa.Array) -> list[int]:
        if self._registry is None:
            return []
        now = time.monotonic()
        return [number for number in self._pinned().missing(rows) if self._absent.get(number, now) <= now]

    def _new_guids(self, headers: pa.Array | None) -> list[bytes]:
        if headers is None or self._registry is None:
            return []
        now, found = time.monotonic(), _native.header_guids(headers)
        return [guid for guid in found if guid not in self._guids and self._absent.get(guid, now) <= now]

    def _learn_guids(self, headers: pa.Array | None) -> None:
        """Looks up the ids of GUIDs."""
        registry = self._registry
        if registry is not None:
            for guid, found in self._asked(
                self._new_guids(headers), lambda guid: registry.by_guid(str(uuid.UUID(bytes=guid)))
            ):
                self._guids[guid] = found.id

    def _asked(
        self, names: Sequence[NameT], ask: Callable[[NameT], RegisteredSchema]
    ) -> Iterator[tuple[NameT, RegisteredSchema]]:
        """What the registry has under ids or GUIDs. That it has nothing under one holds for a while."""
        absent = 0
        for at, name in enumerate(names):
            try:
                yield name, ask(name)
            except SchemaRegistryError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:
                    raise
                absent += 1
                if absent >= _ABSENT_OF_BATCH_MAX:
                    self._take_as_absent(names[at:])
                    return
                self._take_as_absent([name])

    def _take_as_absent(self, names: Sequence[int | bytes]) -> None:
        """They are unknown for a while."""
        if len(self._absent) + len(names) > _ABSENT_MAX:
            self._absent.clear()
        self._absent.update(dict.fromkeys(names[:_ABSENT_MAX], time.monotonic() + _ABSENT_S))

    def _learn_ids(self, rows: pa.Array) -> None:
        """Looks up the schemas of ids."""
        if self._registry is None:
            return
        for _, found in self._asked(self._missing(rows), self._registry.schema):
            why = None if found.schema_type == self.kind else f"it is of type {found.schema_type}, not {self.kind}"
            # Another thread may have learnt of others meanwhile.
            with self._lock:
                self._decoder = self._with_writer(self._pinned(), found, why)

    def _decode_with(
        self, schema: SchemaT | str, references: list[Named], writers: list[tuple[int, str]] | None
    ) -> None:
        """Makes the decoder, of what is kept for a copy in another process."""
        try:
            self._decoder = self._decoder_of(schema, references, writers)
        except ValueError as error:
            raise SchemaError(str(error)) from None
        self._made_of = (schema, references, writers)

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to this process. A copy learns of writers' schemas by itself."""
        return {name: of for name, of in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begins anew with the same schema."""
        vars(self).update(state)
        self._absent, self._guids, self._lock, self._decoder = {}, {}, threading.Lock(), None
        self._writers = {}
        if self._made_of is not None:
            self._decode_with(*self._made_of)


def documents(references: object) -> list[Named]:
    """The names and texts of the files that a schema names.

    Raises:
        TypeError: they are no mapping of texts.
    """
    if not isinstance(references, Mapping):
        message = f"references takes texts by name, such as {{'price': ...}}, not {type(references).__name__}"
        raise TypeError(message)
    for name, text in references.items():
        if not isinstance(name, str) or not isinstance(text, str):
            message = f"references[{name!r}] is the text of a file, not {type(text).__name__}"
            raise TypeError(message)
    return list(references.items())


def by_id(schemas: object) -> list[tuple[int, Any]]:
    """Schemas by id, as they were given.

    Raises:
        TypeError: they are no mapping.
        ValueError: a key is no id.
    """
    if not isinstance(schemas, Mapping):
        message = f"schemas takes schemas by id, such as {{17: ...}}, not {type(schemas).__name__}"
        raise TypeError(message)
    for number in schemas:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 32:
            message = f"schemas: {number!r} is not the id of a schema, a number of 4 bytes"
            raise ValueError(message)
    return list(schemas.items())
