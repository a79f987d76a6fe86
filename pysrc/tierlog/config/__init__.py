"""Settings: names (Kafka's own names where Kafka has the setting), values and checks.

Each part of tierlog has one frozen dataclass for its settings. Each field states its property name,
its meaning and its valid values. Parsing, checking and docs/CONFIG.md all use these fields.

    config = load_config(properties=parse_properties(text), environment=os.environ, flags={...})
    config.quota.copy_max_bytes_per_second

A broker's ``server.properties`` is read unchanged. Keys that start with ``tierlog.`` or ``remote.``
are tierlog's, so an unknown key is an error that names the most similar known key. All other keys
belong to Kafka and are accepted, unless such a key is so similar to one of tierlog's keys that it
must be a typing error.

This package does not read the environment or files: callers pass their content. Components such as
stores and clocks are arguments, never settings.
"""

from __future__ import annotations

from tierlog.config.groups import GroupConfig
from tierlog.config.kinds import Setting, settings
from tierlog.config.load import Config, environment_name, load_config
from tierlog.config.markdown import config_markdown
from tierlog.config.properties import parse_properties
from tierlog.config.sections import (
    LogConfig,
    MetadataKind,
    NodeConfig,
    PluginConfig,
    QuotaConfig,
    QuotaMode,
    QuotaRateMode,
    RemoteIndexConfig,
    RemoteLogConfig,
    TierConfig,
)
from tierlog.config.transactions import TransactionConfig

__all__ = [
    "Config",
    "GroupConfig",
    "LogConfig",
    "MetadataKind",
    "NodeConfig",
    "PluginConfig",
    "QuotaConfig",
    "QuotaMode",
    "QuotaRateMode",
    "RemoteIndexConfig",
    "RemoteLogConfig",
    "Setting",
    "TierConfig",
    "TransactionConfig",
    "config_markdown",
    "environment_name",
    "load_config",
    "parse_properties",
    "settings",
]
