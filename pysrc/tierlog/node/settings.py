"""Settings of a node and of its topics: where each value comes from, what clients are shown, and
what a change makes of them. Pure values.

A value comes from the first of: the topic itself, the dynamic settings of this node, those of all
nodes, the settings that the node was started with, the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import dropwhile
from typing import Any, NamedTuple

from tierlog.config import Config, Setting, settings
from tierlog.config.kinds import ConfigType
from tierlog.config.load import SECTIONS
from tierlog.config.topic import TOPIC_SETTINGS, TopicConfig, topic_config
from tierlog.errors import ConfigError

__all__ = [
    "NodeSettings",
    "Operation",
    "SettingChange",
    "SettingSource",
    "SettingView",
    "Synonym",
    "change_settings",
]


class SettingSource(IntEnum):
    """Where a value comes from, by Kafka's number."""

    TOPIC = 1
    THIS_NODE = 2
    ALL_NODES = 3
    STATIC = 4
    DEFAULT = 5


class Operation(IntEnum):
    """What a change does, by Kafka's number."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    """A change of one setting."""

    name: str
    operation: int
    value: str | None


class Synonym(NamedTuple):
    """A value that a setting has, or would have without those before it."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A setting as clients see it; the first of ``synonyms`` is in force."""

    name: str
    value: str | None
    synonyms: tuple[Synonym, ...] = ()
    type: ConfigType = ConfigType.STRING
    is_read_only: bool = True
    is_private: bool = False
    doc: str = ""

    @property
    def source(self) -> SettingSource:
        """Where its value comes from."""
        return self.synonyms[0].source if self.synonyms else SettingSource.DEFAULT


Layer = tuple[SettingSource, Mapping[str, str]]

_SECTION_OF = {
    setting.name: (part, name, setting)
    for part, section in SECTIONS.items()
    for name, setting in settings(section)
}
_DYNAMIC = {name: setting for name, (_, _, setting) in _SECTION_OF.items() if setting.dynamic}
# The setting of topics that a setting of a node is the default of, by all its names.
_DEFAULT_OF = {name: one for one in TOPIC_SETTINGS.values() for name, _ in one.broker_names}
_DYNAMIC_DEFAULT_OF = {
    one.broker_names[0][0]: one for one in TOPIC_SETTINGS.values() if one.broker_names
}
_POOLS = (
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)


class NodeSettings:
    """The settings in force. ``this_node`` and ``all_nodes`` are the dynamic ones; an archive has
    none, and no defaults of topics.

    ConfigError for a value that is impossible.
    """

    def __init__(
        self,
        static: Config,
        *,
        this_node: Mapping[str, str] | None = None,
        all_nodes: Mapping[str, str] | None = None,
        is_archive: bool = False,
    ) -> None:
        self._static = static
        self._is_archive = is_archive
        self.this_node = dict(this_node or {})
        self.all_nodes = dict(all_nodes or {})
        self._dynamic: tuple[Layer, ...] = (
            (SettingSource.THIS_NODE, self.this_node),
            (SettingSource.ALL_NODES, self.all_nodes),
        )
        self._layers = (*self._dynamic, (SettingSource.STATIC, dict(static.topic_defaults)))
        self.config = self._config_in_force()
        if not is_archive:
            self.topic({})

    def _config_in_force(self) -> Config:
        changed: dict[str, dict[str, Any]] = {}
        for source, layer in reversed(self._dynamic):
            for key, text in layer.items():
                if key in _DYNAMIC:
                    part, name, setting = _SECTION_OF[key]
                    changed.setdefault(part, {})[name] = setting.parse(text, key, _WORD_OF[source])
        config = self._static
        for part, values in changed.items():
            config = replace(config, **{part: replace(getattr(config, part), **values)})
        return config

    def replace_dynamic(self, node: str, values: Mapping[str, str]) -> NodeSettings:
        """Return the settings with other dynamic ones: of this node, or of all nodes when `node` is
        empty. ConfigError for a value that is impossible, or that this node does not change while
        it runs."""
        old = self.this_node if node else self.all_nodes
        fixed = sorted(
            name
            for name, text in values.items()
            if old.get(name) != text and name not in _DYNAMIC and name not in _DYNAMIC_DEFAULT_OF
        )
        if fixed:
            raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
        found = NodeSettings(
            self._static,
            this_node=values if node else self.this_node,
            all_nodes=self.all_nodes if node else values,
        )
        for name in _POOLS:
            _check_pool(name, _value_of(self.config, name), _value_of(found.config, name))
        return found

    # -- topics

    def topic(self, own: Mapping[str, str]) -> TopicConfig:
        """Return the settings in force of a topic with these settings of its own."""
        texts = {}
        for name, setting in TOPIC_SETTINGS.items():
            found = own.get(name)
            for _, layer in () if found is not None else self._layers:
                found = found if found is not None else _default_in(layer, setting)
            if found is not None:
                texts[name] = found
        return topic_config({**own, **texts})

    def topic_views(self, own: Mapping[str, str]) -> tuple[SettingView, ...]:
        """Return what clients see of a topic's settings. Internal ones are shown when they are
        set."""
        config = self.topic(own)
        return tuple(
            self._topic_view(setting, own, config)
            for name, setting in TOPIC_SETTINGS.items()
            if name in own or not name.startswith("internal.")
        )

    def _topic_view(
        self, setting: Setting, own: Mapping[str, str], config: TopicConfig
    ) -> SettingView:
        synonyms = self._default_synonyms(setting)
        text = own.get(setting.name)
        if text is not None:
            shown = _rewritten(setting, text)
            synonyms = (Synonym(setting.name, shown, SettingSource.TOPIC), *synonyms)
        return SettingView(
            name=setting.name,
            value=setting.kind.write(getattr(config, _FIELD_OF[setting.name])),
            synonyms=synonyms,
            type=setting.type,
            is_read_only=False,
            doc=setting.doc,
        )

    def _default_synonyms(self, setting: Setting) -> tuple[Synonym, ...]:
        """Return the values that the node's settings give, and the default."""
        names = setting.broker_names
        if not names:
            return ()
        found = [
            Synonym(name, _rewritten(setting, layer[name]), source)
            for source, layer in self._layers
            for name, _ in names
            if name in layer
        ]
        last, factor = names[-1]
        default = str(setting.default // factor) if factor > 1 else _default_text(setting)
        found.append(Synonym(last, default, SettingSource.DEFAULT))
        # As in Kafka: what comes before the first value under the main name is left out.
        return tuple(dropwhile(lambda one: one.name != names[0][0], found))

    # -- the node

    def node_views(self) -> tuple[SettingView, ...]:
        """Return what clients see of the settings of this node."""
        defaults = {} if self._is_archive else _DYNAMIC_DEFAULT_OF
        own = [
            self._node_view(one)
            for name, (_, _, one) in _SECTION_OF.items()
            if name not in defaults
        ]
        return (*own, *(self._default_view(name, one) for name, one in defaults.items()))

    def _node_view(self, setting: Setting) -> SettingView:
        static = _value_of(self._static, setting.name)
        texts = [
            (layer.get(setting.name), source) for source, layer in self._dynamic if setting.dynamic
        ]
        if static != setting.default:
            texts.append((setting.kind.write(static), SettingSource.STATIC))
        texts.append((_default_text(setting), SettingSource.DEFAULT))
        synonyms = tuple(
            Synonym(setting.name, None if setting.private else text, source)
            for text, source in texts
            if text is not None
        )
        return SettingView(
            name=setting.name,
            value=synonyms[0].value if synonyms else None,
            synonyms=synonyms,
            type=setting.type,
            is_read_only=not setting.dynamic or self._is_archive,
            is_private=setting.private,
            doc=setting.doc,
        )

    def _default_view(self, name: str, setting: Setting) -> SettingView:
        synonyms = self._default_synonyms(setting)
        return SettingView(
            name=name,
            value=synonyms[0].value if synonyms else None,
            synonyms=synonyms,
            type=setting.type,
            is_read_only=False,
            doc=f"Default of {setting.name}. {setting.doc}",
        )

    def all_nodes_views(self) -> tuple[SettingView, ...]:
        """Return what clients see of the dynamic settings of all nodes."""
        views = {one.name: one for one in self.node_views()}
        return tuple(_only_of_all(views[name]) for name in self.all_nodes if name in views)


_WORD_OF = {SettingSource.THIS_NODE: "this node", SettingSource.ALL_NODES: "all nodes"}
_FIELD_OF = {one.name: name for name, one in settings(TopicConfig)}


def _only_of_all(view: SettingView) -> SettingView:
    kept = tuple(one for one in view.synonyms if one.source is SettingSource.ALL_NODES)
    return replace(view, value=kept[0].value, synonyms=kept)


def _value_of(config: Config, name: str) -> Any:
    part, field, _ = _SECTION_OF[name]
    return getattr(getattr(config, part), field)


def _default_text(setting: Setting) -> str | None:
    return setting.kind.write(setting.default)


def _rewritten(setting: Setting, text: str) -> str | None:
    """Return a text as `Kind.write` writes it: Kafka shows parsed values."""
    return setting.kind.write(setting.kind.parse(text.strip()))


def _default_in(layer: Mapping[str, str], setting: Setting) -> str | None:
    """Return the value that a layer of the node's settings gives a setting of topics."""
    for name, factor in setting.broker_names:
        text = layer.get(name)
        if text is None:
            continue
        value = setting.parse(text, name, "settings of the node")
        # A negative number switches off, whatever its unit.
        return text if factor == 1 or value < 0 else str(value * factor)
    return None


def _check_pool(name: str, before: int, after: int) -> None:
    if not before // 2 <= after <= before * 2:
        raise ConfigError(
            f"Dynamic thread count update validation failed for {name}={after}: expected at least "
            f"half and at most double the present value, {before}"
        )


def change_settings(
    stored: Mapping[str, str], changes: Sequence[SettingChange], defaults: Sequence[SettingView]
) -> dict[str, str]:
    """Return the settings after `changes`. ``defaults`` are all settings as they are in force: a
    list is appended to the value there.

    ConfigError for a change that its setting cannot have, ValueError for a request that is wrong by
    itself.
    """
    names = [one.name for one in changes]
    if len(set(names)) < len(names):
        raise ValueError("Error due to duplicate config keys")
    for one in changes:
        if one.value is None and one.operation != Operation.DELETE:
            raise ValueError(f"Null value not supported for : {one.name}")
    views = {one.name: one for one in defaults}
    after = dict(stored)
    for name, operation, value in changes:
        if operation == Operation.DELETE:
            after.pop(name, None)
        elif operation == Operation.SET:
            after[name] = value or ""
        else:
            after[name] = ",".join(_changed_list(views.get(name), name, operation, value or ""))
    return after


def _changed_list(view: SettingView | None, name: str, operation: int, value: str) -> Iterator[str]:
    word = Operation(operation).name
    if view is None or view.type is not ConfigType.LIST:
        raise ConfigError(f"Can't {word} to key {name} because its type is not LIST.")
    present = [one for one in (view.value or "").split(",") if one]
    given = [one.strip() for one in value.split(",") if one.strip()]
    if operation == Operation.SUBTRACT:
        yield from (one for one in present if one not in given)
        return
    yield from present
    yield from (one for one in given if one not in present)
