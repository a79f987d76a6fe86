"""``tierlog verify``."""

from __future__ import annotations

import sys

import click

from tierlog.cli.settings import config_option, verb_config
from tierlog.cli.support import (
    EXIT_PROBLEMS,
    FORMATS,
    echo,
    format_option,
    print_tables,
    report_file,
)

__all__ = ["verify"]


@click.command()
@click.argument("source")
@click.option(
    "--deep",
    is_flag=True,
    help="Also decode every record of a log directory, or read every object of a store whole.",
)
@click.option(
    "--metadata",
    metavar="FILE",
    help="A metadata.sqlite with which to compare a store. Only a copy of the file is opened.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also write the report to this file.",
)
@config_option(
    "Settings, also as TIERLOG_... variables: most bytes of a batch after decompression."
)
@format_option(*FORMATS)
def verify(
    source: str,
    deep: bool,
    metadata: str | None,
    json_path: str | None,
    config_file: str | None,
    shown: str,
) -> int:
    """Check all of SOURCE and change nothing. The exit code is 1 if the check finds problems.

    \b
    tierlog verify /var/lib/kafka/data
    tierlog verify s3://bucket/kafka --deep --json report.json
    """
    from tierlog.clock import SystemClock
    from tierlog.reader.sources import source_of
    from tierlog.tools.findings import report_text
    from tierlog.tools.output import Format, render
    from tierlog.tools.progress import progress_on
    from tierlog.tools.verify.source import verify as check

    place = source_of(source)
    most_bytes = verb_config(config_file).log.batch_max_decompressed_bytes
    with progress_on(sys.stderr, "verify") as progress:
        now_ms = SystemClock().now_ms()
        report = check(
            place,
            now_ms=now_ms,
            deep=deep,
            max_decompressed_bytes=most_bytes,
            metadata=metadata,
            progress=progress,
        )
    if shown in ("json", "yaml"):
        print_tables(report.tables(), shown)
    else:
        echo("\n".join(report_text(report, with_notes=shown == "wide")))
    if json_path:
        with report_file(json_path) as file:
            file.writelines(f"{line}\n" for line in render(report.tables(), Format.JSON))
    return 0 if report.sound else EXIT_PROBLEMS
