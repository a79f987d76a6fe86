"""``tierlog ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tierlog.cli.support import FORMATS, Parsed, format_option, hint, print_tables, topic_value

if TYPE_CHECKING:
    from tierlog.tools.ls import SkippedRow

__all__ = ["ls"]


@click.command()
@click.argument("source")
@click.argument("topic", required=False, type=Parsed("topic", topic_value), metavar="[TOPIC[:P]]")
@click.option("--segments", is_flag=True, help="List segments instead of partitions.")
@format_option(*FORMATS)
def ls(source: str, topic: tuple[str, int | None] | None, segments: bool, shown: str) -> None:
    """List the partitions of SOURCE, or the segments of one partition.

    \b
    tierlog ls /var/lib/kafka/data
    tierlog ls /var/lib/kafka/data orders:0 --format wide
    tierlog ls s3://bucket/kafka orders --segments
    """
    from tierlog.reader.sources import source_of
    from tierlog.tools.ls import list_source

    name, partition = topic or (None, None)
    place = source_of(source)
    listed = list_source(
        place,
        topic=name,
        partition=partition,
        segments=segments or partition is not None,
    )
    print_tables(listed.tables(), shown)
    if not (listed.partitions or listed.segments):
        is_empty = place.is_store and not listed.skipped
        hint("no partitions here" + (": the store is empty" if is_empty else ""))
    if shown == "text":
        _hint_at_left_out(len(listed.skipped), len(listed.problems))
        if place.is_store and (listed.gaps or any(map(_is_damaged, listed.skipped))):
            hint(
                "tierlog tier --repair mends what is missing or damaged while the broker has the "
                "records; tierlog verify says more"
            )


def _is_damaged(row: SkippedRow) -> bool:
    return row.reason != "foreign_object"


def _hint_at_left_out(skipped: int, problems: int) -> None:
    if skipped:
        names = "1 name" if skipped == 1 else f"{skipped} names"
        hint(f"{names} not read; --format wide says which and why")
    if problems:
        checkpoints = "1 checkpoint is" if problems == 1 else f"{problems} checkpoints are"
        hint(f"{checkpoints} damaged; --format wide says where")
