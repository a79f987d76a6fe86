"""Run ``tierlog tier``: make one pass, or tier continuously.

Rows go to stdout, all other lines to stderr. One pass prints a table at its end. Continuous tiering
prints each row at once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from tierlog.cli.log_lines import LogLines
from tierlog.cli.settings import default_state_dir
from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.errors import ConfigError, OutOfRangeError
from tierlog.log.eligibility import Ineligible
from tierlog.log.files import printable
from tierlog.log.log_dir import open_log_dir
from tierlog.sidecar import (
    Outcome,
    Progress,
    Sidecar,
    Status,
    TierListener,
    TierReport,
    TierRow,
)
from tierlog.tools.ls import no_such_partition
from tierlog.tools.output import Format, RowStream, Table, human_size, render

if TYPE_CHECKING:
    from tierlog.metrics import RemoteLogMetrics
    from tierlog.tools.progress import Progress as Bar

__all__ = ["Watched", "run_tier"]

_EXIT_PROBLEMS, _EXIT_INTERRUPTED = 1, 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_tier(
    config: Config,
    log_dirs: Sequence[str],
    *,
    once: bool,
    dry_run: bool,
    repair: bool,
    state_home: str,
    shown: str,
    head: Callable[[str], str],
    clock: Clock,
    reload: Callable[[], Config] | None = None,
    log_format: str = "text",
) -> int:
    """Tier with the settings of `config`; return the exit code. ``log_dirs`` override the
    directories in the settings. ``reload`` reads the settings again; it is None when there is no
    settings file.
    """
    url = config.tier.store_url
    if url is None:
        raise click.UsageError("Missing option '--to'; there is no tierlog.store.url either")
    if not (log_dirs or config.log.dirs):
        raise click.UsageError("Missing argument 'LOGDIR...'; there are no log.dirs either")
    lines = LogLines(log_format, clock, timed=not (once or dry_run))
    with ExitStack() as stack:
        stop = None if once or dry_run else stack.enter_context(_stop_on_signals())
        metrics = _serve_metrics(config, clock, stack, lines)
        sidecar = stack.enter_context(
            Sidecar(
                log_dirs or config.log.dirs,
                url,
                state_dir=config.tier.state_dir or default_state_dir(state_home, url),
                config=config,
                metrics=metrics,
                clock=clock,
                dry_run=dry_run,
                repair=repair,
            )
        )
        told = None if stop is None else _Told(shown, head, stop, clock, lines)
        if config.tier.topics:
            _check_topics(log_dirs or config.log.dirs, config.tier.topics, told)
        if stop is None or told is None:
            return _once(sidecar, shown, head, clock, lines)
        return _on_and_on(sidecar, stop, told, config.tier.close_timeout_ms, reload)


def _serve_metrics(
    config: Config, clock: Clock, stack: ExitStack, lines: LogLines
) -> RemoteLogMetrics | None:
    address = config.tier.metrics_listen
    if address is None:
        return None
    from tierlog.metrics import RemoteLogMetrics
    from tierlog.metrics.server import start_metrics_server

    metrics = RemoteLogMetrics(clock)
    host, _, port = address.rpartition(":")
    server = start_metrics_server(metrics, host.strip("[]"), int(port))
    stack.callback(server.close)
    lines.info("metrics", f"metrics at {server.url}", url=server.url)
    return metrics


# -- one pass


class Watched:
    """Shows a tiering pass as a progress bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._total_bytes = self._done_bytes = 0

    def __call__(self, progress: Progress) -> None:
        if progress.total_bytes != self._total_bytes:
            self._total_bytes = progress.total_bytes
            self._bar.start(progress.total_bytes)
        row = progress.row
        name = f"{row.topic}:{row.partition}" if row else ""
        if progress.quota_wait_ms:
            name = f"copy quota: up to {-(-progress.quota_wait_ms // 1000)} s"
        self._bar.advance(progress.done_bytes - self._done_bytes, name)
        self._done_bytes = progress.done_bytes


def _check_topics(log_dirs: Sequence[str], topics: Sequence[str], told: _Told | None) -> None:
    """Report topics that no directory has. Raise an error if `told` is None; otherwise warn through
    `told`, because the topics may appear later."""
    held = {
        (log.topic, log.partition)
        for log_dir in log_dirs
        for log in open_log_dir(log_dir).listing().partitions
    }
    for topic in topics:
        if topic not in {name for name, _ in held}:
            where = ", ".join(map(printable, log_dirs))
            text = no_such_partition(where, topic, None, sorted(held))
            if told is None:
                raise OutOfRangeError(text)
            told.on_warning(text)


def _once(
    sidecar: Sidecar, shown: str, head: Callable[[str], str], clock: Clock, lines: LogLines
) -> int:
    from tierlog.tools.progress import progress_on

    start_ms = clock.monotonic_ms()
    with progress_on(sys.stderr, "tier") as bar:
        report = sidecar.run_once(Watched(bar))
    _print_report(report, shown, head, clock.monotonic_ms() - start_ms, lines)
    return 0 if report.ok else _EXIT_PROBLEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSummary:
    """The figures of one pass. ``copied_before`` counts segments that an earlier pass had
    copied."""

    copied: int
    copied_bytes: int
    duration_ms: int
    bytes_per_second: int | None
    expired: int
    copied_before: int
    not_copied: int


def _print_report(
    report: TierReport,
    shown: str,
    head: Callable[[str], str],
    duration_ms: int,
    lines: LogLines,
) -> None:
    skipped = report.of(Outcome.SKIPPED)
    rows = report.rows
    if shown == "text":
        rows = tuple(row for row in rows if row.outcome is not Outcome.SKIPPED)
    copied = report.of(Outcome.COPIED)
    copied_bytes = sum(row.size_bytes for row in copied)
    reasons = Counter(row.reason for row in skipped)
    copied_before = reasons.pop(Ineligible.COPIED.value, 0)
    summary = TierSummary(
        copied=len(copied),
        copied_bytes=copied_bytes,
        duration_ms=duration_ms,
        bytes_per_second=_bytes_per_second(copied_bytes, duration_ms),
        expired=len(report.of(Outcome.EXPIRED)),
        copied_before=copied_before,
        not_copied=reasons.total(),
    )
    if rows or shown != "text":
        tables = [Table(name="segments", row_type=TierRow, rows=rows)]
        if shown in ("json", "yaml"):
            tables.append(Table(name="summary", row_type=TierSummary, rows=[summary], single=True))
        click.echo("\n".join(render(tables, Format(shown), head)))
    for warning in (*report.warnings, *report.failures, *map(str, report.problems)):
        lines.warn("warning", warning)
    would = report.of(Outcome.WOULD_COPY), report.of(Outcome.WOULD_EXPIRE)
    if any(would):
        lines.info(
            "dry run", f"dry run: {_segments(len(would[0]))} to copy, {len(would[1])} to expire"
        )
    repaired = len(report.of(Outcome.REPAIRED)) + len(report.of(Outcome.WOULD_REPAIR))
    if repaired:
        lines.info("repaired", f"{repaired} repaired without a copy")
    text = _summary_line(summary, reasons, report.quota_wait_ms)
    lines.info("pass", text, **asdict(summary))


def _summary_line(summary: TierSummary, reasons: Counter[str], quota_wait_ms: int) -> str:
    line = f"{_segments(summary.copied)} copied"
    if summary.copied:
        line = _copied_text(summary.copied, summary.copied_bytes, summary.duration_ms)
    if summary.expired:
        line += f", {summary.expired} expired"
    if quota_wait_ms >= 50:
        line += f" after {quota_wait_ms / 1000:.1f} s of waiting for the copy quota"
    if summary.copied_before:
        line += f"; {_segments(summary.copied_before)} copied before"
    if reasons:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        line += f"; {reasons.total()} not copied: {told} (--format wide says why)"
    return line


def _copied_text(copied: int, copied_bytes: int, duration_ms: int) -> str:
    line = f"{_segments(copied)} copied"
    if copied:
        line += f", {human_size(copied_bytes)}"
    line += f" in {duration_ms / 1000:.1f} s"
    rate = _bytes_per_second(copied_bytes, duration_ms)
    return line if rate is None or not copied else f"{line} ({human_size(rate)}/s)"


def _bytes_per_second(size_bytes: int, duration_ms: int) -> int | None:
    return size_bytes * 1000 // duration_ms if duration_ms > 0 else None


def _segments(count: int) -> str:
    return "1 segment" if count == 1 else f"{count} segments"


# -- on and on


class _Told(TierListener):
    """Prints events with their times. A status is printed only when it has changed."""

    def __init__(
        self,
        shown: str,
        head: Callable[[str], str],
        stop: _Stop,
        clock: Clock,
        lines: LogLines,
    ) -> None:
        self._rows = RowStream(TierRow, Format(shown), head)
        self._stop = stop
        self._clock = clock
        self._lines = lines
        self._start_ms = clock.monotonic_ms()
        self._status = ""
        self._counts: Counter[Outcome] = Counter()
        self._copied_bytes = 0
        self.nobody_reads: BrokenPipeError | None = None

    def say(self, event: str, text: str) -> None:
        """Print one line."""
        self._lines.info(event, text)

    def on_row(self, row: TierRow) -> None:
        self._counts[row.outcome] += 1
        if row.outcome is Outcome.COPIED:
            self._copied_bytes += row.size_bytes
        if self.nobody_reads is not None:
            return
        try:
            click.echo("\n".join(self._rows.lines(row)))
        except BrokenPipeError as error:
            self.nobody_reads = error
            self._stop.set()

    def on_change(self, text: str) -> None:
        self.say("change", text)

    def on_warning(self, text: str) -> None:
        self._lines.warn("warning", text)

    def on_failure(self, task: str, text: str) -> None:
        self._lines.warn("failure", f"{task}: {text}; tried again", task=task)

    def on_status(self, status: Status) -> None:
        text = _status_line(status)
        if text != self._status:
            self._status = text
            self._lines.info("status", text, **asdict(status))

    def say_total(self) -> None:
        """Print the totals of the run."""
        duration_ms = self._clock.monotonic_ms() - self._start_ms
        expired, refused = self._counts[Outcome.EXPIRED], self._counts[Outcome.REFUSED]
        line = _copied_text(self._counts[Outcome.COPIED], self._copied_bytes, duration_ms)
        line += f", {expired} expired" if expired else ""
        self.say("total", line + (f"; {refused} refused" if refused else ""))


def _on_and_on(
    sidecar: Sidecar,
    stop: _Stop,
    told: _Told,
    close_timeout_ms: int,
    reload: Callable[[], Config] | None,
) -> int:
    sidecar.run(stop, told, lambda: _reloaded(stop, told, reload))
    told.say(
        "closing",
        "closing: active copies are rolled back; a second signal ends the process at once",
    )
    for text in sidecar.close(close_timeout_ms):
        told.on_warning(text)
    told.say_total()
    if told.nobody_reads is not None:
        raise told.nobody_reads
    return _EXIT_INTERRUPTED if stop.signal_number == signal.SIGINT else 0


def _reloaded(stop: _Stop, told: _Told, reload: Callable[[], Config] | None) -> Config | None:
    """After SIGHUP, read the settings again and return them. Return None without SIGHUP or after a
    failure."""
    if not stop.take_reload():
        return None
    if reload is None:
        told.say("change", "SIGHUP: there is no --config to read again; nothing was changed")
        return None
    try:
        return reload()
    except (ConfigError, OSError) as error:
        told.on_warning(f"SIGHUP: {error}; nothing was changed")
        return None


class _Stop:
    """Receives the signals that end the run or reload its settings."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_set = self._reload = False
        self.signal_number: int | None = None

    def set(self) -> None:
        """End the run."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def ask_for_reload(self) -> None:
        """Request a reload of the settings."""
        with self._changed:
            self._reload = True
            self._changed.notify_all()

    def take_reload(self) -> bool:
        """Return whether a reload was requested since the last call."""
        with self._changed:
            asked, self._reload = self._reload, False
            return asked

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, a reload, or `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_set or self._reload, timeout)
            return self._is_set


@contextmanager
def _stop_on_signals() -> Iterator[_Stop]:
    """Yield a `_Stop` that receives the signals. The first SIGINT or SIGTERM requests an orderly
    end, and the second one ends the process at once. SIGHUP requests a reload of the settings.

    A thread reads the signals from a socket, because the main thread may be in a long call, and a
    signal handler that interrupts it must not take locks.
    """
    stop = _Stop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def wait() -> None:
        while number := int.from_bytes(ours.recv(1)):
            if number not in _SIGNALS:
                continue
            if number == signal.SIGHUP:
                stop.ask_for_reload()
                continue
            if stop.signal_number is not None:
                os._exit(128 + number)
            stop.signal_number = number
            stop.set()

    handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    before = signal.set_wakeup_fd(theirs.fileno())
    thread = threading.Thread(target=wait, name="tierlog-signals", daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        theirs.close()
        thread.join()
        ours.close()


def _status_line(status: Status) -> str:
    copied = f"{_segments(status.copied_segments)} copied, {human_size(status.copied_bytes)}"
    followed = f", {status.followed} followed" if status.followed else ""
    lag = "lag unknown"
    if status.lag_bytes is not None and status.lag_segments is not None:
        size = human_size(status.lag_bytes)
        lag = f"lag {size} in {_segments(status.lag_segments)}" if status.lag_segments else ""
    parts = (
        copied,
        f"{_segments(status.expired_segments)} expired" if status.expired_segments else "",
        f"{_segments(status.refused_segments)} refused" if status.refused_segments else "",
        f"{status.led} partition{'' if status.led == 1 else 's'} led{followed}",
        lag,
        "the broker does not answer" if status.broker_answers is False else "",
        f"stuck tasks: {status.stuck}" if status.stuck else "",
    )
    return "; ".join(filter(None, parts))
