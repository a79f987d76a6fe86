"""Write docs/CONFIG.md from the settings."""

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
with `TIERLOG_`, and from flags. Variables override the file, and flags override both.

Keys that start with `tierlog.` or `remote.` are tierlog's. An unknown key of this kind is an error
that names the most similar known key, and so is an unknown `TIERLOG_` variable. Every other key is
Kafka's and is ignored, unless it is so similar to a name on this page that it must be a mistake.
If one source gives two names of a setting different values, that is an error.

Clients can change the dynamic settings of a running node (`tierlog serve --data-dir`), as with a
broker. They send IncrementalAlterConfigs for this node or for all nodes. Values that clients set
override file, variables and flags.
"""

_TOPICS = """\
## Settings of a topic

A client sets these settings when it creates a topic of a node ([NODE.md](NODE.md)), and changes
them with IncrementalAlterConfigs or AlterConfigs. A change takes effect at once. The meanings and
the defaults are Kafka's. Any other name is refused with INVALID_CONFIG.

If a topic has no value of its own, a node uses its default for topics. "If not given" names the
settings that hold this default. The node looks for the default first among its own dynamic
settings, then among the dynamic settings of all nodes, then in the file. `tierlog tier` does not
use these defaults. For `tierlog tier`, `log.retention.*` is how long a broker keeps its own copy,
and `tierlog.retention.*` is how long the store keeps the copied segments.
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
