"""Settings: Kafka's names, their checks, and where their values come from.

One frozen dataclass per concern. Each field carries its property name, what it means and which
values it can have, so that reading, checking and docs/CONFIG.md follow from one place.

    config = load_config(properties=parse_properties(text), environment=os.environ, flags={...})
    config.quota.copy_max_bytes_per_second

A broker's ``server.properties`` is read as it is. Keys that start with ``tierlog.`` or
``remote.`` are ours: an unknown one is an error that names the nearest known one. All other keys
belong to Kafka and pass, unless one is a slip of the pen away from one of ours.

Not here: reading the environment or files (callers hand them in), and components such as stores
or clocks, which are arguments and never settings.
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
