"""``tierlog config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tierlog.cli.support import (
    FORMATS,
    Parsed,
    cluster_timeout_option,
    echo,
    format_option,
    print_tables,
)

if TYPE_CHECKING:
    from tierlog.admin import ClusterAdmin, Resource

__all__ = ["config"]

_DEFAULT = "default"


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"expected NAME=VALUE, found {text!r}")
    # Kafka's own tool requires brackets around lists, so accept them.
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    return name, value


def _broker(text: str) -> str:
    if text != _DEFAULT and not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected a broker id or {_DEFAULT!r}, found {text!r}")
    return text


@click.command()
@click.option("--bootstrap", "--bootstrap-server", required=True, metavar="HOST:PORT[,...]")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic; may be repeated.")
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    type=Parsed("broker", _broker),
    metavar="ID",
    help="A broker, or 'default' for the default of all brokers; may be repeated.",
)
@click.option(
    "--set",
    "set_values",
    multiple=True,
    type=Parsed("setting", _setting),
    metavar="NAME=VALUE",
    help="Set a setting; may be repeated. Rates take units: 10MiB.",
)
@click.option("--remove", multiple=True, metavar="NAME", help="Remove a setting; may be repeated.")
@click.option("--all", "all_settings", is_flag=True, help="Show all settings in force.")
@cluster_timeout_option
@format_option(*FORMATS)
def config(**given: Any) -> None:
    """Show and change dynamic settings of topics and brokers of a live cluster.

    \b
    tierlog config --bootstrap HOST:PORT --topic orders
    tierlog config --bootstrap HOST:PORT --broker 3 --set follower.replication.throttled.rate=20MiB
    tierlog config --bootstrap HOST:PORT --topic orders \\
      --set follower.replication.throttled.replicas=0:3,1:3
    """
    from tierlog.admin import ClusterAdmin, Resource, ResourceKind

    resources = [Resource(ResourceKind.TOPIC, one) for one in given["topics"]]
    resources += [
        Resource(ResourceKind.BROKER, "" if one == _DEFAULT else one) for one in given["brokers"]
    ]
    if not resources:
        raise click.UsageError("expected --topic or --broker")
    with ClusterAdmin(given["bootstrap"], timeout_s=given["timeout_ms"] / 1000) as admin:
        if given["set_values"] or given["remove"]:
            _change(admin, resources, given)
        else:
            _describe(admin, resources, given)


def _change(admin: ClusterAdmin, resources: list[Resource], given: dict[str, Any]) -> None:
    from tierlog.tools.cluster_settings import change_settings

    values = dict(given["set_values"])
    if len(values) < len(given["set_values"]):
        raise click.UsageError("a setting is set twice; give it once")
    change_settings(admin, resources, values, given["remove"])
    for one in resources:
        echo(f"Completed updating config for {one}")


def _describe(admin: ClusterAdmin, resources: list[Resource], given: dict[str, Any]) -> None:
    from tierlog.tools.cluster_settings import SettingRow, describe_settings
    from tierlog.tools.output import Table

    rows = describe_settings(admin, resources, all_settings=given["all_settings"])
    print_tables([Table(name="settings", row_type=SettingRow, rows=rows)], given["shown"])
