"""Writes docs/CONFIG.md from the settings."""

from __future__ import annotations

from inspect import cleandoc

from tierlog.config.kinds import Setting, settings
from tierlog.config.load import LEFT_TO_KAFKA, SECTIONS, environment_name

__all__ = ["config_markdown"]

_INTRODUCTION = """\
# Settings

<!-- Written by `python -m tierlog.config > docs/CONFIG.md`; do not edit. -->

Settings come from an unchanged Kafka `server.properties`, from environment variables that start
with `TIERLOG_` (they win over the file), and from flags (they win over both).

Keys that start with `tierlog.` or `remote.` are tierlog's: an unknown key is an error that names
the nearest known one, and so is an unknown `TIERLOG_` variable. Every other key is Kafka's and is
ignored, unless it is so close to a name on this page that it must be a mistake. It is an error to
give one setting two different values by two of its names in one place.
"""

_PASSED_ON = """\
## Left to Kafka

tierlog knows these settings and does not use them. `log.retention.*` is how long a broker keeps
its own copy; `tierlog.retention.*` is how long the store keeps what `tierlog tier` copied.
"""


def config_markdown() -> str:
    """Return the text of docs/CONFIG.md."""
    parts = [_INTRODUCTION]
    for section in SECTIONS.values():
        heading, _, text = cleandoc(section.__doc__ or "").partition("\n")
        about = f"In Python: `tierlog.{section.__name__}`. {text.strip()}".rstrip()
        parts.append(f"## {heading.removesuffix('.')}\n\n{about}\n")
        parts += [_setting_markdown(name, setting) for name, setting in settings(section)]
    passed = "\n".join(f"* `{name}`" for name in sorted(LEFT_TO_KAFKA))
    return "\n".join([*parts, _PASSED_ON, passed, ""])


def _setting_markdown(name: str, setting: Setting) -> str:
    default = f"`{setting.kind.show(setting.default)}`"
    if setting.kafka_default is not None:
        default += f" (Kafka: `{setting.kafka_default}`)"
    lines = [
        f"### {setting.name}\n",
        f"{setting.doc}\n",
        f"* Default: {default}",
        f"* Values: {setting.kind.what}",
        f"* Environment: `{environment_name(setting.name)}`; field `{name}`",
    ]
    if setting.aliases:
        lines.append(f"* Also known as {', '.join(f'`{alias}`' for alias in setting.aliases)}")
    if setting.fallbacks:
        lines.append(f"* If not given: {', '.join(f'`{name}`' for name in setting.fallbacks)}")
    return "\n".join([*lines, ""])
