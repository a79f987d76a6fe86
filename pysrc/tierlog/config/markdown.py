"""Writes docs/CONFIG.md from the settings."""

from __future__ import annotations

from inspect import cleandoc

from tierlog.config.kinds import Setting, settings
from tierlog.config.load import LEFT_TO_KAFKA, SECTIONS, environment_name
from tierlog.config.topic import TOPIC_SETTINGS

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

A node (`tierlog serve --data-dir`) takes the settings that are marked as dynamic while it runs, as
a broker does: IncrementalAlterConfigs for this node, or for all nodes. They win over the three.
"""

_TOPICS = """\
## Settings of a topic

A topic of a node ([NODE.md](NODE.md)) takes these when it is created, and later with
IncrementalAlterConfigs or AlterConfigs; a change is in force at once. The meaning and the default
are Kafka's. Another name is refused with INVALID_CONFIG.

Where a topic has no value of its own, the first of these counts: the default that this node was
given while it ran, that of all nodes, and that of the file. The names of such defaults are listed
with each setting. Only a node reads them: for `tierlog tier`, `log.retention.*` is how long a
broker keeps its own copy, and `tierlog.retention.*` how long the store keeps what was copied.
"""

_PASSED_ON = """\
## Left to Kafka

tierlog knows these settings and does not use them.
"""


def config_markdown() -> str:
    """Return the text of docs/CONFIG.md."""
    parts = [_INTRODUCTION]
    for section in SECTIONS.values():
        heading, _, text = cleandoc(section.__doc__ or "").partition("\n")
        about = f"In Python: `tierlog.{section.__name__}`. {text.strip()}".rstrip()
        parts.append(f"## {heading.removesuffix('.')}\n\n{about}\n")
        parts += [_setting_markdown(name, setting) for name, setting in settings(section)]
    parts += [_TOPICS, *map(_topic_setting_markdown, TOPIC_SETTINGS.values())]
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
    if setting.dynamic:
        lines.append("* Dynamic")
    if setting.aliases:
        lines.append(f"* Also known as {', '.join(f'`{alias}`' for alias in setting.aliases)}")
    if setting.fallbacks:
        lines.append(f"* If not given: {', '.join(f'`{name}`' for name in setting.fallbacks)}")
    return "\n".join([*lines, ""])


def _topic_setting_markdown(setting: Setting) -> str:
    default = f"`{setting.kind.show(setting.default)}`".replace("`None`", "none")
    lines = [
        f"### {setting.name} (topic)\n",
        f"{setting.doc}\n",
        f"* Default: {default}",
        f"* Values: {setting.kind.what}",
    ]
    if setting.broker_names:
        names = ", ".join(f"`{name}`" for name, _ in setting.broker_names)
        lines.append(f"* If not given: {names}")
    return "\n".join([*lines, ""])
