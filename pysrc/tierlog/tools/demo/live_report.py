"""The report of the live demo: one screen of text and one HTML page without external assets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from html import escape

from tierlog.quota import PACE_SLACK_MS
from tierlog.tools.demo.figures import ms_text, quantile, rate_text
from tierlog.tools.demo.live import LiveResult
from tierlog.tools.output import human_size
from tierlog.tools.page import legend, page, section
from tierlog.tools.svg import Dot, Line, line_chart, strip_chart

__all__ = ["live_commands", "live_report_html", "live_summary"]

_HOT, _COLD = 1, 3


def live_summary(result: LiveResult) -> Iterator[str]:
    """Return one screen of text: the verdict, the claims with their figures, and the speed."""
    yield f"{_verdict(result)}."
    yield ""
    for holds, claim, detail in _claims(result):
        yield f"  {'ok' if holds else 'NO'}  {claim:<38}{detail}"
    yield ""
    for mismatch in result.mismatches[:10]:
        yield f"  DIFFERENT  {mismatch}"
    yield f"  {'FROM A SEEK TO ITS RECORD':<28}{'MEDIAN':>12}{'95 %':>12}"
    for name, times in (("hot, from the local disk", result.hot_us), ("cold", result.cold_us)):
        ordered = sorted(times)
        median, high = ms_text(quantile(ordered, 0.5)), ms_text(quantile(ordered, 0.95))
        yield f"  {name:<28}{median:>12}{high:>12}"
    yield ""
    yield (
        f"  {result.all_ms / 1000:.1f} s in all, most of it in the client (kafka-python); "
        "make bench has the real figures"
    )


def _verdict(result: LiveResult) -> str:
    if result.passed:
        return "Every record came back from the cold tier"
    if result.mismatches:
        return "NOT every record came back the same"
    return "NOT everything went as it should"


def _claims(result: LiveResult) -> Iterator[tuple[bool, str, str]]:
    tiered_rate = rate_text(result.sent_bytes, result.copy_ms * 1000)
    quota = human_size(result.quota_bytes_per_second)
    yield (
        result.records > 0,
        f"{result.records:,} records written",
        f"{human_size(result.record_bytes)}, {human_size(result.log_bytes)} as a log, half in gzip",
    )
    yield (
        result.keeps_quota and result.sent_bytes > 0,
        f"{result.segments} segments tiered",
        f"{human_size(result.sent_bytes)} at {tiered_rate}, quota {quota}/s",
    )
    yield (
        result.left_local_bytes == 0,
        "local copies dropped",
        f"{human_size(result.left_local_bytes)} of log left on the local disk",
    )
    yield (
        result.records_equal == result.records,
        f"{result.records_equal:,} records equal, by the client",
        f"offset, time, key, value, headers; {result.read_ms / 1000:.1f} s",
    )
    yield (
        result.records_equal_alone == result.records,
        f"{result.records_equal_alone:,} records equal, without node",
        f"from the store alone; {result.read_alone_ms / 1000:.1f} s",
    )


def live_commands(result: LiveResult) -> list[str]:
    """Return commands that work on the demo's results."""
    store, data = shlex.quote(result.store_url), shlex.quote(result.data_dir)
    return [
        f"tierlog ls {store}",
        f"tierlog cat {store} {result.topic}:0 -o -3 -J",
        f"tierlog verify {store} --deep",
        f"tierlog serve --data-dir {data} --store {store}",
    ]


def live_report_html(result: LiveResult, made_at: str) -> str:
    """Return the page, which shows the time ``made_at``."""
    wrong = "".join(f"<li>{escape(mismatch)}</li>" for mismatch in result.mismatches[:100])
    return page(
        "tierlog demo",
        _verdict(result),
        "<p>A Kafka client wrote to a node in one process, the node tiered to "
        f"<code>{escape(result.store_url)}</code> and dropped its local copies, and the client "
        f"read everything back.</p>{f'<ul>{wrong}</ul>' if wrong else ''}",
        tiles=_tiles(result),
        sections=[
            section("Bytes tiered, and the quota", _quota_chart(result), _QUOTA_NOTE),
            section("Hot and cold reads", _read_chart(result), _read_legend(), _READ_NOTE),
            section("Try next", f"<pre>{escape(chr(10).join(live_commands(result)))}</pre>"),
        ],
        footer=f"{escape(made_at)}, {result.all_ms / 1000:.1f} s in all. One machine and a client "
        "in pure Python: this is an illustration; <code>make bench</code> measures.",
        good=result.passed,
    )


def _tiles(result: LiveResult) -> Iterator[tuple[str, str, str]]:
    yield f"{result.records_equal:,}", "records equal", "offset, time, key, value, headers"
    yield f"{result.records_equal_alone:,}", "equal without the node", "from the store alone"
    yield f"{result.segments}", "segments tiered", human_size(result.sent_bytes)
    yield (
        rate_text(result.sent_bytes, result.copy_ms * 1000),
        "tiered",
        f"quota {human_size(result.quota_bytes_per_second)}/s",
    )
    yield human_size(result.left_local_bytes), "left on the local disk", "after tiering"
    yield (
        ms_text(quantile(sorted(result.cold_us), 0.5)),
        "to a record, cold",
        f"hot {ms_text(quantile(sorted(result.hot_us), 0.5))}; medians",
    )


def _quota_chart(result: LiveResult) -> str:
    sent = [(ms / 1000, float(size_bytes)) for ms, size_bytes in result.sent]
    end_s = sent[-1][0] if sent else 0.0
    allowed = [(0.0, 0.0), (end_s, end_s * result.quota_bytes_per_second)]
    lines = [
        Line(series=0, label="what the quota allows", points=allowed),
        Line(series=_COLD, label="bytes tiered", points=sent),
    ]
    return line_chart(
        lines,
        [],
        lambda seconds: f"{seconds:g} s",
        lambda size_bytes: human_size(int(size_bytes)),
        "Bytes tiered",
        base=1024,
    ) + legend([(0, "what the quota allows"), (_COLD, "bytes tiered")])


def _read_chart(result: LiveResult) -> str:
    dots = [
        Dot(series=series, value=time_us / 1000, title=f"{name}: {ms_text(time_us)}")
        for series, name, times in (
            (_HOT, "hot", result.hot_us),
            (_COLD, "cold", result.cold_us),
        )
        for time_us in times
    ]
    marks = [
        (name, quantile(sorted(times), 0.5) / 1000)
        for name, times in (("hot", result.hot_us), ("cold", result.cold_us))
        if times
    ]
    return strip_chart(dots, marks, lambda ms: f"{ms:.2g} ms", "Hot and cold reads")


def _read_legend() -> str:
    return legend([(_HOT, "hot, from the local disk"), (_COLD, "cold, from the store")])


_QUOTA_NOTE = (
    "<p class=note>Copies are paced: a segment starts when the quota has allowed all bytes before "
    f"it, except for the last {PACE_SLACK_MS} ms. So the line is at most one segment and the bytes "
    "of these milliseconds ahead.</p>"
)
_READ_NOTE = (
    "<p class=note>One dot per read: from the seek of a consumer to the record of that offset. "
    "The store is a folder of this machine; a bucket adds its own round trip.</p>"
)
