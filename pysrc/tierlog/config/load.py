"""Load the values of settings from a properties file, the environment and flags. Flags take
precedence over the environment, and the environment over the file."""

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
# A key outside these namespaces is taken for a typing error if its similarity (0 to 1) to a key of
# tierlog is above this limit. For the settings of Kafka 4.3, apart from LEFT_TO_KAFKA, the highest
# similarity is 0.862.
_SLIP_OF_THE_PEN = 0.87

# Settings of Kafka in tierlog's namespaces, or with similar names, that tierlog does not use.
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
    # Settings that begin with the managers' prefixes, as given.
    plugin_settings: tuple[tuple[str, str], ...] = ()
    # Defaults for the topics of a node, as given. Only `tierlog serve` uses these defaults.
    topic_defaults: tuple[tuple[str, str], ...] = ()

    def settings_below(self, prefix: str) -> dict[str, str]:
        """Return the settings whose keys begin with `prefix`, without this prefix."""
        return {
            key.removeprefix(prefix): value
            for key, value in self.plugin_settings
            if key.startswith(prefix)
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str = "settings") -> Config:
        """Return the settings that `properties` give. No environment and no flags are used."""
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
    """Return the name of a setting's environment variable: ``TIERLOG_STATE_DIR`` for
    ``tierlog.state.dir``."""
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
    """The value of a setting, and the key under which it was given."""

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
    """Return the settings from a properties file, the environment and flags. The environment
    overrides the file, and flags override both.

    Only variables that start with ``TIERLOG_`` are read from ``environment``, except those in
    ``reserved``, which are no settings. The keys of ``flags`` are property names. ``source`` is the
    file's name in messages. Raises ConfigError for an unknown key, for an invalid value, and for
    two names of one setting with different values in the same source.
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
    """Return the prefixes of the keys of plug-in settings."""
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
    """Return the values that one source gives, as a dict whose keys are the main names of the
    settings. ``shown`` converts a property name to the name that this source uses."""
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
    """Accept a key of Kafka; raise ConfigError for an unknown key."""
    if key in LEFT_TO_KAFKA or key in _TOPIC_DEFAULTS:
        return
    if key.startswith(_OWN_NAMESPACES) or get_close_matches(key, _BY_NAME, 1, _SLIP_OF_THE_PEN):
        raise ConfigError(_unknown(source, key, (*_BY_NAME, *LEFT_TO_KAFKA)))


def _unknown(source: str, key: str, known: Collection[str]) -> str:
    near = get_close_matches(key, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "docs/CONFIG.md lists all settings"
    return f"{source}: unknown setting {key}; {hint}"
