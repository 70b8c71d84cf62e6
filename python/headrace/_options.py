"""Client options: Kafka's names, as a dict with dots or as keywords with underscores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OptionValue: TypeAlias = "str | int | float | bool | Iterable[str] | None"

COMMON: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "request.timeout.ms",
        "default.api.timeout.ms",
        "metadata.max.age.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "connections.max.idle.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.token",
    }
)
"""What every client takes (docs/options.md, "All clients")."""


def pairs(
    bootstrap_servers: str | Iterable[str] | None,
    config: Mapping[str, OptionValue] | None,
    options: Mapping[str, OptionValue],
) -> list[tuple[str, str]]:
    """Joins the three ways to give options into ``(name, value)`` pairs with Kafka's dotted names.

    Raises:
        ConfigError: an option is given twice, or its value is of a type that no option has.
    """
    merged: dict[str, str] = {}
    given: list[tuple[str, OptionValue]] = []
    if bootstrap_servers is not None:
        given.append(("bootstrap.servers", bootstrap_servers))
    given.extend((config or {}).items())
    given.extend(options.items())
    for name, value in given:
        if value is None:
            continue
        key = name if "." in name else name.replace("_", ".")
        if key in merged:
            message = f"option {key} is given twice"
            raise ConfigError(message)
        merged[key] = text(name, value)
    return list(merged.items())


def common(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of one client's options that another kind of client takes as well; names are Kafka's, with dots."""
    return {name: value for name, value in settings if name in COMMON or name.startswith(("ssl.", "sasl."))}


def text(name: str, value: OptionValue) -> str:
    """An option's value as Kafka writes it in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    # What is not even a text may still hold the secret.
    shown = "" if "password" in name or "token" in name else f": {value!r}"
    message = (
        f"option {name} takes a string, a number, a boolean or a list of strings, not {type(value).__name__}{shown}"
    )
    raise ConfigError(message)
