"""Client options: Kafka's names, as a dict with dots or as keywords with underscores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from headrace.errors import ConfigError

OptionValue: TypeAlias = "str | int | float | bool | Iterable[str] | Callable[[str], tuple[Any, ...]] | None"
Servers: TypeAlias = "str | Iterable[str] | Mapping[str, OptionValue]"
"""Brokers to begin with, or a whole ``config``."""
Setting: TypeAlias = tuple[str, Any]
"""Name and value as the native side takes them: all values are texts but that of `CALLBACK`."""

CALLBACK: Final = "oauth_cb"
"""The function that gives tokens: of all options the only one whose value is no text. Named as in confluent-kafka."""

COMMON: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "request.timeout.ms",
        "default.api.timeout.ms",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
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
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.token",
        "sasl.oauthbearer.config",
    }
)
"""What every client takes (docs/options.md, "All clients")."""


def pairs(
    bootstrap_servers: Servers | None,
    config: Mapping[str, OptionValue] | None,
    options: Mapping[str, OptionValue],
) -> list[Setting]:
    """Joins the three ways to give options into ``(name, value)`` pairs with Kafka's dotted names.

    A mapping in place of the servers is a ``config``, as confluent-kafka takes it. Errors name an option and the type
    of what was given, never the value: it may be a secret, also in the wrong place.

    Raises:
        ConfigError: an option is given twice, or its value is of a type that no option has.
    """
    merged: dict[str, Any] = {}
    given: list[tuple[str, OptionValue]] = []
    if isinstance(bootstrap_servers, Mapping):
        given.extend(_items("the first argument", bootstrap_servers))
    elif bootstrap_servers is not None:
        given.append(("bootstrap.servers", bootstrap_servers))
    given.extend(_items("config", config))
    given.extend(options.items())
    for name, value in given:
        if value is None:
            continue
        key = name if "." in name or name == CALLBACK else name.replace("_", ".")
        if key in merged:
            message = f"option {key} is given twice"
            raise ConfigError(message)
        merged[key] = function(name, value) if key == CALLBACK else text(name, value)
    return list(merged.items())


def _items(argument: str, config: object) -> Iterable[tuple[str, Any]]:
    """Names and values of a mapping."""
    if config is None:
        return ()
    if not isinstance(config, Mapping):
        message = f"{argument} takes a mapping of options by name, not {type(config).__name__}"
        raise ConfigError(message)
    wrong = next((name for name in config if not isinstance(name, str)), None)
    if wrong is not None:
        message = f"{argument} names its options by strings, not by {type(wrong).__name__}"
        raise ConfigError(message)
    return config.items()


def common(settings: Iterable[Setting]) -> dict[str, Any]:
    """Those of one client's options that another kind of client takes as well; names are Kafka's, with dots."""
    shared = (*COMMON, CALLBACK)
    return {name: value for name, value in settings if name in shared or name.startswith(("ssl.", "sasl."))}


def function(name: str, value: OptionValue) -> Callable[..., Any]:
    """An option's value that can be called."""
    if callable(value):
        return value
    message = f"option {name} takes a function that gives a token and when it ends, not {type(value).__name__}"
    raise ConfigError(message)


def text(name: str, value: OptionValue) -> str:
    """An option's value as Kafka writes it in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Python's own error would carry the value.
        if not _is_unicode(value):
            message = f"option {name} takes text of Unicode alone, without surrogates"
            raise ConfigError(message)
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value):
        return ",".join(text(name, item) for item in value)
    if callable(value):
        # What other clients take functions for, the native side knows by its name.
        return "a function"
    message = f"option {name} takes a string, a number, a boolean or a list of strings, not {type(value).__name__}"
    raise ConfigError(message)


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
