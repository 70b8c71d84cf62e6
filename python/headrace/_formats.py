"""Options that say what keys and values are: of the Spark source and sink, and of ``headrace copy``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.values.avro import Record

SIDES: Final = ("key", "value")
TEXTS: Final = ("string", "boolean", "smallint", "int", "bigint", "float", "double")
"""What Kafka's own serializers write, by Spark's names of the types."""
_ON_ERROR: Final = ("raise", "null", "column")
_OF_SIDE: Final = ("format", "schema", "schema.file", "message", "records", "subject", "reader", "columns", "on.error")
_OF_SCHEMA: Final = ("avro", "json", "protobuf")
_OF_SIDE_WRITTEN: Final = ("format", "schema", "schema.file", "message", "subject")
_REGISTRY: Final = {
    "schema.registry.url": "url",
    "basic.auth.user.info": "auth",
    "bearer.auth.token": "auth",
    "schema.registry.ssl.ca.location": "ssl_ca_location",
    "schema.registry.ssl.certificate.location": "ssl_certificate_location",
    "schema.registry.ssl.key.location": "ssl_key_location",
    "schema.registry.ssl.key.password": "ssl_key_password",
}
OPTIONS: Final = (*(f"{side}.{name}" for side in SIDES for name in _OF_SIDE), *_REGISTRY)
"""Options of the source."""
SINK_OPTIONS: Final = (*(f"{side}.{name}" for side in SIDES for name in _OF_SIDE_WRITTEN), *_REGISTRY)
"""Options of the sink."""


@dataclass(frozen=True)
class SideFormat:
    """The format of keys or values, as texts."""

    side: str
    name: str
    """``avro``, ``json``, ``protobuf``, or a type of `TEXTS`."""
    schema: str | bytes | None = None
    """A text; of Protobuf also a FileDescriptorSet, from a file."""
    references: tuple[tuple[str, str], ...] = ()
    message: str | None = None
    records: tuple[tuple[str, str], ...] = ()
    """The records of Avro that become columns: the column, and the record's name."""
    chosen: tuple[Record, ...] = ()
    """The same with the schemas of the registry in which they stand."""
    subject: str | None = None
    reader: str | int = "latest"
    columns: tuple[str, ...] | None = None
    on_error: str = "raise"
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the registry's client; none without one."""

    @property
    def names_schema_in_headers(self) -> bool:
        """Whether a record's headers may say which schema its rows were written with."""
        return bool(self.registry) and self.name in {"avro", "protobuf"}

    @property
    def reported(self) -> tuple[str, ...]:
        """The columns that ``on.error=column`` adds of this side."""
        if self.on_error != "column":
            return ()
        return (f"{self.side}_error", *([f"{self.side}_schema_id"] if self.registry else []))


def side_formats(given: Mapping[str, str]) -> tuple[SideFormat, ...]:
    """Reads the options; their names are in lower case.

    Raises:
        ConfigError: one is malformed, or has no effect.
    """
    registry = _registry_options(given)
    known = (*_OF_SCHEMA, *TEXTS)
    found = [_side(*given_side, registry) for given_side in _given_sides(given, _OF_SIDE, known, "it takes")]
    _check_registry(registry, found)
    return tuple(found)


def sink_formats(given: Mapping[str, str], topic: str | None) -> tuple[SideFormat, ...]:
    """Reads the options of the sink, which writes to ``topic`` if it is given.

    Raises:
        ConfigError: one is malformed, or has no effect.
    """
    registry = _registry_options(given)
    sides = _given_sides(given, _OF_SIDE_WRITTEN, _OF_SCHEMA, "the sink takes")
    found = [_written_side(*given_side, registry, topic) for given_side in sides]
    _check_registry(registry, found)
    return tuple(found)


def _given_sides(
    given: Mapping[str, str], names: tuple[str, ...], known: tuple[str, ...], takes: str
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The sides that have a format, with its name and their options."""
    for side in SIDES:
        options = {name: given[f"{side}.{name}"].strip() for name in names if f"{side}.{name}" in given}
        name = options.get("format", "binary").lower()
        if name != "binary":
            if name not in known:
                raise ConfigError(f"{side}.format is {options['format']!r}; {takes} {', '.join([*known, 'binary'])}")
            yield side, name, options
        elif useless := [option for option in options if option != "format"]:
            raise ConfigError(f"{side}.{useless[0]} needs {side}.format, such as avro")


def _check_registry(registry: tuple[tuple[str, str], ...], found: list[SideFormat]) -> None:
    if registry and not any(spec.name in _OF_SCHEMA for spec in found):
        raise ConfigError("schema.registry.url has no effect without value.format or key.format, such as avro")


def _written_side(
    side: str, name: str, options: Mapping[str, str], registry: tuple[tuple[str, str], ...], topic: str | None
) -> SideFormat:
    schema, subject = _schema(side, name, options), options.get("subject")
    if schema is None and not registry and name != "json":
        raise ConfigError(f"{side}.format={name} needs {side}.schema, {side}.schema.file or schema.registry.url")
    if subject is not None and not registry:
        raise ConfigError(f"{side}.subject needs schema.registry.url")
    if registry and subject is None and topic is None:
        raise ConfigError(f"{side}.subject must be set where rows go to the topics of a column, and not of the option")
    subject = subject or (f"{topic}-{side}" if registry else None)
    return SideFormat(side, name, schema, message=options.get("message"), subject=subject, registry=registry)


def _side(side: str, name: str, options: Mapping[str, str], registry: tuple[tuple[str, str], ...]) -> SideFormat:
    on_error = options.get("on.error", "raise").lower()
    if on_error not in _ON_ERROR:
        raise ConfigError(f"{side}.on.error is {on_error!r}; it takes {', '.join(_ON_ERROR)}")
    if name in TEXTS:
        if useless := [option for option in options if option not in {"format", "on.error"}]:
            raise ConfigError(f"{side}.{useless[0]} has no effect with {side}.format={name}")
        return SideFormat(side, name, on_error=on_error)
    schema = _schema(side, name, options)
    if schema is None and not registry:
        raise ConfigError(f"{side}.format={name} needs {side}.schema, {side}.schema.file or schema.registry.url")
    chooses = [option for option in ("subject", "reader") if option in options]
    if schema is not None and chooses:
        raise ConfigError(f"{side}.{chooses[0]} chooses a schema of the registry: leave {side}.schema out")
    reader = _reader(side, options)
    paths = options.get("columns")
    columns = None if paths is None else tuple(part.strip() for part in paths.split(",") if part.strip())
    return SideFormat(
        side,
        name,
        schema,
        message=options.get("message"),
        records=_records(side, name, options),
        subject=options.get("subject"),
        reader=reader,
        columns=columns,
        on_error=on_error,
        registry=registry,
    )


def _records(side: str, name: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Records by their names, ``shop.Order``, or with the names of their columns, ``order=shop.Order``."""
    given = options.get("records")
    if given is None:
        return ()
    if name != "avro":
        raise ConfigError(f"{side}.records has no effect with {side}.format={name}; it names those of avro")
    pairs = [part.rpartition("=") for part in given.split(",") if part.strip()]
    found = [(column.strip() or record.strip().rpartition(".")[2], record.strip()) for column, _, record in pairs]
    if not found or not all(column and record for column, record in found):
        raise ConfigError(f"{side}.records is {given!r}; it takes names of records: shop.Order, payment=shop.Payment")
    if len(dict(found)) < len(found):
        raise ConfigError(f"{side}.records is {given!r}: two would be one column; order=shop.Order names the column")
    return tuple(found)


def _schema(side: str, name: str, options: Mapping[str, str]) -> str | bytes | None:
    if "message" in options and name != "protobuf":
        raise ConfigError(f"{side}.message has no effect with {side}.format={name}; it names one of protobuf")
    path = options.get("schema.file")
    if path is None:
        return options.get("schema")
    if "schema" in options:
        raise ConfigError(f"{side}.schema and {side}.schema.file exclude each other")
    try:
        if name == "protobuf" and not path.endswith(".proto"):
            return Path(path).read_bytes()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{side}.schema.file {path!r} cannot be read: {error}") from None


def _reader(side: str, options: Mapping[str, str]) -> str | int:
    reader = options.get("reader", "latest").lower()
    if reader != "latest" and not (reader.isascii() and reader.isdecimal()):
        raise ConfigError(f"{side}.reader is {reader!r}; it takes latest or the id of a schema")
    return reader if reader == "latest" else int(reader)


def _registry_options(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {option: given[option] for option in _REGISTRY if option in given}
    if not found:
        return ()
    if "schema.registry.url" not in found:
        raise ConfigError(f"{min(found)} needs schema.registry.url")
    settings = {_REGISTRY[option]: value for option, value in found.items() if _REGISTRY[option] != "auth"}
    if (user := found.get("basic.auth.user.info")) is not None:
        if "bearer.auth.token" in found:
            raise ConfigError("basic.auth.user.info and bearer.auth.token exclude each other")
        settings["user"], _, settings["password"] = user.partition(":")
    elif (token := found.get("bearer.auth.token")) is not None:
        settings["token"] = token
    return tuple(sorted(settings.items()))
