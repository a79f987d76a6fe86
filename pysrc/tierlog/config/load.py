"""Where the values come from: a properties file, the environment, flags; the last one wins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from tierlog.arguments import MAPPING, TEXT, instance_of, optional, takes
from tierlog.config.groups import GroupConfig
from tierlog.config.kinds import Setting, settings
from tierlog.config.sections import (
    LogConfig,
    NodeConfig,
    PluginConfig,
    QuotaConfig,
    RemoteIndexConfig,
    RemoteLogConfig,
    Section,
    TierConfig,
)
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.config.transactions import TransactionConfig
from tierlog.errors import ConfigError

__all__ = ["LEFT_TO_KAFKA", "SECTIONS", "Config", "environment_name", "load_config"]

S = TypeVar("S", bound=Section)

_ENVIRONMENT_PREFIX = "TIERLOG_"
_OWN_NAMESPACES = ("tierlog.", "remote.")
# How alike (0 to 1) a key outside of these must be to one of ours to be taken for a mistake. No
# setting of Kafka 4.3 comes closer than 0.862, except those of LEFT_TO_KAFKA.
_SLIP_OF_THE_PEN = 0.87

# Kafka's own settings in our namespaces, or close to our names, that mean nothing to tierlog.
LEFT_TO_KAFKA = frozenset(
    {
        "group.share.max.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.session.timeout.ms",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.min.session.timeout.ms",
        "remote.log.delete.on.disable",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.listener.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.system.enable",
        "remote.storage.enable",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings."""

    log: LogConfig = field(default_factory=LogConfig)
    remote_log: RemoteLogConfig = field(default_factory=RemoteLogConfig)
    remote_index: RemoteIndexConfig = field(default_factory=RemoteIndexConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    tier: TierConfig = field(default_factory=TierConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
    # Keys below the managers' prefixes, as they are.
    plugin_settings: tuple[tuple[str, str], ...] = ()
    # Defaults for the topics of a node, as they are: other commands take no notice of them.
    topic_defaults: tuple[tuple[str, str], ...] = ()

    def settings_below(self, prefix: str) -> dict[str, str]:
        """Return the settings of a plug-in, without the prefix of their keys."""
        return {
            key.removeprefix(prefix): value
            for key, value in self.plugin_settings
            if key.startswith(prefix)
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str = "settings") -> Config:
        """``load_config`` with nothing but properties."""
        return _config(_given(properties, source), properties)


SECTIONS: dict[str, type[Section]] = {
    "log": LogConfig,
    "remote_log": RemoteLogConfig,
    "remote_index": RemoteIndexConfig,
    "quota": QuotaConfig,
    "tier": TierConfig,
    "node": NodeConfig,
    "group": GroupConfig,
    "transaction": TransactionConfig,
    "plugin": PluginConfig,
}


def environment_name(name: str) -> str:
    """The environment variable of a setting: ``tierlog.state.dir`` is ``TIERLOG_STATE_DIR``."""
    return _ENVIRONMENT_PREFIX + name.removeprefix("tierlog.").replace(".", "_").upper()


_BY_NAME: dict[str, Setting] = {
    name: setting
    for section in SECTIONS.values()
    for _, setting in settings(section)
    for name in setting.names
}
_TOPIC_DEFAULTS = {name for one in TOPIC_SETTINGS.values() for name, _ in one.broker_names}
_BY_ENVIRONMENT: dict[str, str] = {environment_name(name): name for name in _BY_NAME}


class _Given(NamedTuple):
    """A given value, its key and its source."""

    value: Any
    key: str


@takes(
    properties=optional(MAPPING),
    environment=optional(MAPPING),
    flags=optional(MAPPING),
    reserved=instance_of("a collection of names", Collection),
    source=TEXT,
)
def load_config(
    *,
    properties: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    reserved: Collection[str] = (),
    source: str = "properties",
) -> Config:
    """Settings from a properties file, overridden by the environment, overridden by flags.

    Of ``environment`` only variables that start with ``TIERLOG_`` count, except those in
    ``reserved``, which mean something else. ``flags`` has property names for keys. ``source`` is
    the file's name for messages. ConfigError: an unknown key, a value it cannot have, two
    names of one setting with different values in one place. Nothing is half applied.
    """
    variables = {
        key: value
        for key, value in (environment or {}).items()
        if key.startswith(_ENVIRONMENT_PREFIX) and key not in reserved
    }
    for key in variables:
        if key not in _BY_ENVIRONMENT:
            raise ConfigError(_unknown("environment", key, _BY_ENVIRONMENT))
    named = {_BY_ENVIRONMENT[key]: value for key, value in variables.items()}
    given = _given(properties or {}, source)
    given |= _given(named, "environment", environment_name)
    for key in flags or {}:
        if key not in _BY_NAME:
            raise ConfigError(_unknown("flags", key, _BY_NAME))
    return _config(given | _given(flags or {}, "flags"), properties or {})


def _config(given: Mapping[str, _Given], properties: Mapping[str, str]) -> Config:
    parts: dict[str, Any] = {name: _section(part, given) for name, part in SECTIONS.items()}
    prefixes = _plugin_prefixes(properties)
    others = tuple((key, text) for key, text in properties.items() if key.startswith(prefixes))
    defaults = tuple((key, text) for key, text in properties.items() if key in _TOPIC_DEFAULTS)
    return Config(**parts, plugin_settings=others, topic_defaults=defaults)


def _plugin_prefixes(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return what the keys of the plug-ins' own settings begin with."""
    defaults = PluginConfig()
    return tuple(
        properties.get(name, default).strip() or default
        for name, default in (
            ("remote.log.storage.manager.impl.prefix", defaults.storage_manager_impl_prefix),
            ("remote.log.metadata.manager.impl.prefix", defaults.metadata_manager_impl_prefix),
        )
    )


def _section(section: type[S], given: Mapping[str, _Given]) -> S:
    return section(
        **{
            name: given[setting.name].value
            for name, setting in settings(section)
            if setting.name in given
        }
    )


def _given(
    properties: Mapping[str, str], source: str, shown: Callable[[str], str] = str
) -> dict[str, _Given]:
    """What one place says, by the settings' own names; ``shown`` is how it calls a property."""
    given: dict[str, _Given] = {}
    fallbacks: dict[str, _Given] = {}
    prefixes = _plugin_prefixes(properties)
    for key, text in properties.items():
        setting = _BY_NAME.get(key)
        if setting is None and key.startswith(prefixes):
            continue
        if setting is None:
            _let_pass(key, source)
            continue
        found = _Given(setting.parse(text, shown(key), source), shown(key))
        if key in setting.fallbacks:
            fallbacks[setting.name] = found
            continue
        other = given.setdefault(setting.name, found)
        if other.value != found.value:
            raise ConfigError(
                f"{source}: {other.key} and {key} are two names of one setting with different "
                f"values; keep {shown(setting.name)} alone"
            )
    return fallbacks | given


def _let_pass(key: str, source: str) -> None:
    """Accept a key of Kafka; ConfigError for an unknown key."""
    if key in LEFT_TO_KAFKA or key in _TOPIC_DEFAULTS:
        return
    if key.startswith(_OWN_NAMESPACES) or get_close_matches(key, _BY_NAME, 1, _SLIP_OF_THE_PEN):
        raise ConfigError(_unknown(source, key, (*_BY_NAME, *LEFT_TO_KAFKA)))


def _unknown(source: str, key: str, known: Collection[str]) -> str:
    near = get_close_matches(key, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "docs/CONFIG.md lists all settings"
    return f"{source}: unknown setting {key}; {hint}"
