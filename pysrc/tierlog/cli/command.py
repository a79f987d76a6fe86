"""The command ``tierlog``: its verbs and the handling of errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from tierlog.cli.cat import cat
from tierlog.cli.config import config
from tierlog.cli.demo import demo
from tierlog.cli.index import index
from tierlog.cli.ls import ls
from tierlog.cli.reassign import reassign
from tierlog.cli.serve import serve
from tierlog.cli.support import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    EXIT_USAGE,
    NobodyReadsError,
    Verbs,
    echo,
    tell_store_waits,
)
from tierlog.cli.tier import tier
from tierlog.cli.verify import verify
from tierlog.errors import ConfigError, TierlogError

__all__ = ["main"]

_DEBUG = "TIERLOG_DEBUG"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. ``args`` None means the arguments of this
    process."""
    if not sys.stdout:
        # The parent process closed stdout.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the very end
    # No verb does linear algebra, and idle BLAS threads of NumPy would keep other cores busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with tell_store_waits():
            result = tierlog.main(args, prog_name="tierlog", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except (NobodyReadsError, BrokenPipeError):
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    except (TierlogError, OSError) as error:
        _show_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_PROBLEMS


def _show_error(error: TierlogError | OSError) -> None:
    if os.environ.get(_DEBUG, "") not in ("", "0"):
        traceback.print_exception(error)
        return
    click.echo(f"tierlog: {_one_line(error)}", err=True)


def _one_line(error: TierlogError | OSError) -> str:
    from tierlog.log.files import printable

    if isinstance(error, OSError) and error.filename is not None:
        return f"{printable(str(error.filename))}: {error.strerror}"
    return printable(" ".join(str(error).split()))


def _forget_stdout() -> None:
    """Redirect stdout to the null device, because the interpreter flushes stdout at exit and would
    report an error."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        # The version is imported only here, because looking it up takes 40 ms.
        from tierlog import __version__

        echo(f"tierlog {__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A SOURCE is a broker's log directory or a store: file:///, s3://, gs://, az://, hdfs://.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def tierlog() -> None:
    """Tier Apache Kafka logs to object storage, and read them back without a broker."""


for _verb in (ls, cat, serve, verify, index, tier, reassign, config, demo):
    tierlog.add_command(_verb)
