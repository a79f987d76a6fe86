"""Describes and changes dynamic settings of topics and brokers, and checks throttles (KIP-73).

A broker accepts any text as the value of some settings, and fails later when it uses the value. So
this module first checks that the cluster knows each name, that rates are numbers, and that lists of
throttled replicas are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tierlog.admin import ClusterAdmin, Resource, ResourceKind, SettingsChange
from tierlog.errors import ConfigError
from tierlog.tools.output import parse_size
from tierlog.tools.reassign.throttles import (
    ALL_REPLICAS,
    BROKER_RATES,
    REPLICA_LISTS,
    format_replicas,
    parse_replicas,
)

__all__ = ["SettingRow", "change_settings", "check_setting", "describe_settings"]

_QUOTA_WORDS = "max.bytes.per.second"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting of a resource."""

    resource: str
    name: str
    value: str


def describe_settings(
    admin: ClusterAdmin, resources: Iterable[Resource], *, all_settings: bool = False
) -> list[SettingRow]:
    """Return the settings that were set on the resources. With ``all_settings``, return every
    setting with its present value, also settings that have their default."""
    found = admin.settings(resources, dynamic_only=not all_settings)
    return [
        SettingRow(resource=str(resource), name=name, value=value)
        for resource, settings in found.items()
        for name, value in sorted(settings.items())
    ]


def change_settings(
    admin: ClusterAdmin,
    resources: Sequence[Resource],
    set_values: Mapping[str, str],
    remove: Sequence[str] = (),
) -> None:
    """Set and remove settings of each resource.

    Raises ConfigError before it changes anything: for a name that the cluster does not know (the
    message suggests the most similar name), for a name that is both set and removed, and for a
    value that `check_setting` refuses.
    """
    both = set(set_values) & set(remove)
    if both:
        raise ConfigError(f"{min(both)} is both set and removed; give it once")
    values = {name: check_setting(name, value) for name, value in set_values.items()}
    for resource in resources:
        known = _known_names(admin, resource)
        for name in (*values, *remove):
            _require_known(resource, name, known)
    admin.change_settings(
        SettingsChange(resource=one, set=values, remove=tuple(remove)) for one in resources
    )


def check_setting(name: str, value: str) -> str:
    """Return the value in the form that brokers accept. A rate such as ``10MiB`` becomes bytes, and
    ``p-r`` in a list of throttled replicas becomes ``p:r``. Raises ConfigError, which names the
    setting and the wrong entry."""
    try:
        if name in REPLICA_LISTS:
            pairs = parse_replicas(value)
            return ALL_REPLICAS if pairs is None else format_replicas(pairs)
        if name in BROKER_RATES or name.endswith(_QUOTA_WORDS):
            return str(parse_size(value))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    return value


def _known_names(admin: ClusterAdmin, resource: Resource) -> set[str]:
    """Return the names of settings that a resource may have.

    The default of all brokers lists only settings that are set, so the names are read from a
    broker. A broker lists the throttle rates of KIP-73 only while they are set, so these names are
    added.
    """
    if resource.kind is ResourceKind.TOPIC:
        return admin.setting_names(resource) | set(REPLICA_LISTS)
    any_broker = str(admin.brokers()[0].broker_id)
    asked = Resource(ResourceKind.BROKER, resource.name or any_broker)
    return admin.setting_names(asked) | set(BROKER_RATES)


def _require_known(resource: Resource, name: str, known: set[str]) -> None:
    if name in known:
        return
    nearest = get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"{resource} has no setting {name}{hint}")
