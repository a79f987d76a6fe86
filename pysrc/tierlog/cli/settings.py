"""Read the settings of a verb from a properties file, the environment and flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tierlog.errors import ConfigError

if TYPE_CHECKING:
    from tierlog.config import Config

__all__ = ["config_option", "default_state_dir", "read_config", "state_home", "verb_config"]

# Variables with the prefix TIERLOG_ that are no settings.
_RESERVED = ("TIERLOG_DEBUG", "TIERLOG_SPARK_GC_FREEZE")


def config_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--config FILE`` with the help `text`."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help=text,
    )


def verb_config(config_file: str | None) -> Config:
    """Return the settings of a verb that has no flags for settings. The environment overrides the
    file."""
    return read_config(config_file, os.environ, {})


def read_config(
    config_file: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
) -> Config:
    """Return the settings of a ``server.properties``, the environment and the flags. The
    environment overrides the file, and flags override both. Raises ConfigError, which names the
    file and the setting."""
    from tierlog.config import load_config, parse_properties

    properties: dict[str, str] = {}
    if config_file is not None:
        with open(config_file, encoding="iso-8859-1", newline="") as file:
            text = file.read()
        try:
            properties = parse_properties(text)
        except ConfigError as error:
            raise ConfigError(f"{config_file}: {error}") from None
    return load_config(
        properties=properties,
        environment=environment,
        flags={key: value for key, value in flags.items() if value is not None},
        reserved=_RESERVED,
        source=config_file or "properties",
    )


def state_home() -> str:
    """Return tierlog's folder for state, by the XDG base directory specification."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "tierlog")


def default_state_dir(base: str, store_url: str) -> str:
    """Return the state directory of a store below `base`."""
    # Imported here: it loads OpenSSL, which most verbs do not need.
    import hashlib

    digest = hashlib.sha256(store_url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(base, digest)
