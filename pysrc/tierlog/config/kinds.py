"""What a setting is: its names, its meaning, the values it can have, and how text becomes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any

from tierlog.errors import ConfigError

__all__ = [
    "MAX_INT32",
    "MAX_INT64",
    "ConfigType",
    "Kind",
    "Setting",
    "decimal",
    "host_and_port",
    "names",
    "one_of",
    "paths",
    "rate",
    "rates_by_name",
    "servers",
    "setting",
    "settings",
    "store_url",
    "text",
    "true_or_false",
    "whole_number",
]

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]{1,19}(\.[0-9]{0,19})?|\.[0-9]{1,19})")
_HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9._-]{1,253}):([0-9]{1,5})")
_MAX_PORT = 65_535
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)


class ConfigType(IntEnum):
    """The type that DescribeConfigs names, by Kafka's number."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value: what to tell people, text to value (ValueError), which values are legal.

    ``show`` is for people; ``write`` is the text that ``parse`` takes back, None for no value.
    """

    what: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    show: Callable[[Any], str] = str
    write: Callable[[Any], str | None] = str
    type: ConfigType = ConfigType.STRING


def whole_number(minimum: int, maximum: int, *, or_off: int | None = None) -> Kind:
    """A whole number in a range, or ``or_off``, which switches something off."""

    def parse(text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ValueError(text)
        return int(text)

    def accepts(value: Any) -> bool:
        number = isinstance(value, int) and not isinstance(value, bool)
        return number and (minimum <= value <= maximum or value == or_off)

    off = "" if or_off is None else f" or {or_off}"
    top = "" if maximum == MAX_INT64 else f" to {maximum}"
    return Kind(
        what=f"a whole number from {minimum}{top}{off}",
        parse=parse,
        accepts=accepts,
        write=lambda value: None if value is None else str(value),
        type=ConfigType.INT if maximum <= MAX_INT32 else ConfigType.LONG,
    )


def rate() -> Kind:
    """Bytes per second; Kafka's largest long is no limit at all (None)."""
    number = whole_number(1, MAX_INT64)

    def parse(text: str) -> int | None:
        value: int = number.parse(text)
        return None if value == MAX_INT64 else value

    return Kind(
        what=f"{number.what}; {MAX_INT64} is unlimited",
        parse=parse,
        accepts=lambda value: value is None or number.accepts(value),
        show=lambda value: f"{MAX_INT64} (unlimited)" if value is None else str(value),
        write=lambda value: str(MAX_INT64 if value is None else value),
        type=ConfigType.LONG,
    )


def rates_by_name() -> Kind:
    """Bytes per second for each of several names, as pairs; a name may hold any character but a
    comma."""
    number = rate()

    def parse(text: str) -> tuple[tuple[str, int | None], ...]:
        found: dict[str, int | None] = {}
        for part in text.split(",") if text else ():
            name, separator, value = part.rpartition("=")
            name = name.strip()
            if not separator or name in found:
                raise ValueError(part)
            found[name] = number.parse(value.strip())
        return tuple(found.items())

    def accepts(value: Any) -> bool:
        return isinstance(value, tuple) and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and number.accepts(pair[1])
            for pair in value
        )

    def write(value: tuple[tuple[str, int | None], ...]) -> str:
        return ",".join(f"{name}={MAX_INT64 if one is None else one}" for name, one in value)

    return Kind(
        what=f"name=rate pairs separated by commas, each name once and each rate {number.what}",
        parse=parse,
        accepts=accepts,
        show=lambda value: write(value) or "none",
        write=write,
        type=ConfigType.LIST,
    )


def decimal(minimum: float, maximum: float) -> Kind:
    def parse(text: str) -> float:
        if not _DECIMAL_NUMBER.fullmatch(text):
            raise ValueError(text)
        return float(text)

    def accepts(value: Any) -> bool:
        return isinstance(value, float | int) and minimum <= value <= maximum

    return Kind(
        what=f"a number from {minimum:g} to {maximum:g}",
        parse=parse,
        accepts=accepts,
        type=ConfigType.DOUBLE,
    )


def one_of(names: type[StrEnum], *, any_case: bool = True) -> Kind:
    return Kind(
        what=" or ".join(name.value for name in names),
        parse=lambda text: names(text.lower() if any_case else text),
        accepts=lambda value: isinstance(value, names),
        show=lambda value: str(value.value),
        write=lambda value: str(value.value),
    )


def true_or_false() -> Kind:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return Kind(
        what="true or false",
        parse=parse,
        accepts=lambda value: isinstance(value, bool),
        show=lambda value: str(value).lower(),
        write=lambda value: str(value).lower(),
        type=ConfigType.BOOLEAN,
    )


def text(what: str, legal: Callable[[str], bool] = bool) -> Kind:
    """A text of which ``legal`` approves, or none."""
    return Kind(
        what=what,
        parse=lambda text: text or None,
        accepts=lambda value: value is None or (isinstance(value, str) and legal(value)),
        show=lambda value: value or "none",
        write=lambda value: value,
    )


def store_url() -> Kind:
    # A URL is printed, logged and stored in many places, so it must not contain a password.
    return text(
        "a store's URL without a password in it",
        legal=lambda value: not _URL_PASSWORD.match(value),
    )


def host_and_port() -> Kind:
    """Where to listen or to connect to; an IPv6 address stands in brackets."""
    return text("host:port; port 0 is any free one", legal=lambda value: _has_port(value, 0))


def servers() -> Kind:
    """Where to connect to: host and port of each server."""
    return text("host:port, separated by commas, as in broker:9092", legal=_are_servers)


def zookeeper_servers() -> Kind:
    """Servers of ZooKeeper, and the path below which the cluster lives."""
    return text(
        "host:port, separated by commas, and a path, as in zookeeper:2181/kafka",
        legal=lambda value: _are_servers(value.partition("/")[0]),
    )


def _are_servers(value: str) -> bool:
    return all(_has_port(part.strip(), 1) for part in value.split(","))


def _has_port(value: str, minimum: int) -> bool:
    found = _HOST_AND_PORT.fullmatch(value)
    return found is not None and minimum <= int(found[1]) <= _MAX_PORT


def paths() -> Kind:
    return _parts("paths separated by commas")


def names() -> Kind:
    return _parts("names separated by commas")


def _parts(what: str) -> Kind:
    return Kind(
        what=what,
        parse=lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        accepts=lambda value: isinstance(value, tuple) and all(isinstance(v, str) for v in value),
        show=lambda value: ",".join(value) or "none",
        write=",".join,
        type=ConfigType.LIST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. ``aliases`` mean the same; ``fallbacks`` count where the name is not given.

    ``kafka_default`` is told where Kafka's default is another one than ours. A ``private`` value
    is never shown in an error. A ``dynamic`` one may change while a node runs. ``broker_names``, of
    a setting of topics: the settings of a broker that give its default, each with the factor by
    which its value is multiplied; Kafka derives its default from the last of them.
    ``config_type`` is told where Kafka's type is not that of the kind.
    """

    name: str
    kind: Kind
    doc: str
    default: Any
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    kafka_default: str | None = None
    private: bool = False
    dynamic: bool = False
    broker_names: tuple[tuple[str, int], ...] = ()
    config_type: ConfigType | None = None

    @property
    def type(self) -> ConfigType:
        """The type that Kafka's clients are told."""
        return self.config_type or self.kind.type

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it can be given by, its own first."""
        return (self.name, *self.aliases, *self.fallbacks)

    def parse(self, text: str, key: str, source: str) -> Any:
        """The value in a text; ConfigError naming source, key, what is expected and found."""
        try:
            value = self.kind.parse(text.strip())
        except ValueError:
            value = _UNREADABLE
        if value is _UNREADABLE or not self.kind.accepts(value):
            found = "another value" if self.private else repr(text[:100])
            raise ConfigError(f"{source}: {key}: expected {self.kind.what}, found {found}")
        return value

    def check(self, value: Any) -> None:
        """ConfigError when a value cannot be this setting's."""
        if not self.kind.accepts(value):
            found = "another value" if self.private else repr(value)
            raise ConfigError(f"{self.name}: expected {self.kind.what}, found {found}")


_UNREADABLE = object()


def setting(name: str, kind: Kind, default: Any, doc: str, **more: Any) -> Any:
    found = Setting(name=name, kind=kind, default=default, doc=doc, **more)
    return field(default=default, metadata={"setting": found})


def settings(section: type[Any]) -> Iterator[tuple[str, Setting]]:
    """The fields of a concern with their settings, in order."""
    for each in fields(section):
        yield each.name, each.metadata["setting"]
