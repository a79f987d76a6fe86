"""The report of the demo: one screen of text and one HTML page without external assets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from html import escape

from tierlog.tools.demo.figures import ms_text, quantile, rate_text
from tierlog.tools.demo.run import CODECS, MIXED, CodecFigures, DemoResult
from tierlog.tools.output import human_size
from tierlog.tools.page import legend, page, section
from tierlog.tools.svg import Bar, Dot, bar_chart, strip_chart

__all__ = ["next_commands", "report_html", "summary_text"]

_SERIES = (*CODECS, MIXED)


def summary_text(result: DemoResult) -> Iterator[str]:
    """Return one screen of text: the results, the segments left out and why, and the speed."""
    yield f"{_verdict(result)}."
    yield ""
    for holds, claim, detail in _claims(result):
        yield f"  {'ok' if holds else 'NO'}  {claim:<34}{detail}"
    yield ""
    for mismatch in result.mismatches[:10]:
        yield f"  DIFFERENT  {mismatch}"
    if result.left_out:
        yield f"  {'LEFT OUT':<24}{'SEGMENTS':>8}{'SIZE':>12}  FOR EXAMPLE"
        for one in result.left_out:
            size = human_size(one.size_bytes)
            yield f"  {one.reason:<24}{one.segments:>8}{size:>12}  {_short(one.text, 74)}"
        yield ""
    yield f"  {'CODEC':<8}{'RECORDS':>9}{'STORED':>12}{'OPENED':>12}{'RATIO':>8}{'DECODE':>14}"
    for figures in _codecs(result):
        yield (
            f"  {figures.codec:<8}{figures.records:>9,}{human_size(figures.stored_bytes):>12}"
            f"{human_size(figures.opened_bytes):>12}{_ratio(figures):>8}{_decode(figures):>14}"
        )
    yield ""
    cold = sorted(segment.cold_read_us for segment in result.segments)
    yield (
        f"  a segment scanned, its indexes rebuilt, copied durably and verified in "
        f"{ms_text(_per_segment(result))}; scanned alone at "
        f"{rate_text(result.size_bytes, result.scan_us)}"
    )
    yield (
        f"  from any offset to its record, cold: {ms_text(quantile(cold, 0.5))} (median), "
        f"{ms_text(quantile(cold, 0.95))} (95 %); small segments: make bench has the real figures"
    )


def _verdict(result: DemoResult) -> str:
    if result.passed:
        return "Every byte and every record came back"
    if result.mismatches:
        return "NOT everything came back the same"
    if not result.segments:
        return "Nothing was tiered"
    return "Not everything was tiered; what was came back"


def next_commands(result: DemoResult) -> list[str]:
    """Return commands that work on the demo's results."""
    if not result.segments:
        return []
    store = shlex.quote(result.store_url)
    biggest = max(result.segments, key=lambda one: one.records)
    partition = f"{biggest.topic}:{biggest.partition}"
    return [
        f"tierlog ls {store}",
        f"tierlog cat {store} {partition} -o -3 -J",
        f"tierlog verify {store} --deep",
        f"tierlog ls {shlex.quote(result.log_dirs[0])} --segments --format wide",
    ]


def _claims(result: DemoResult) -> Iterator[tuple[bool, str, str]]:
    topics = len({segment.topic for segment in result.segments})
    count = len(result.segments)
    yield (
        count > 0 and not result.failed,
        f"{_segments(count)} tiered",
        f"{human_size(result.size_bytes)} of {result.partitions} partitions, {topics} topics",
    )
    yield (
        result.objects_equal == count,
        f"{result.objects_equal} objects equal the files",
        "byte for byte, as the broker wrote them",
    )
    yield (
        result.records_equal == result.records,
        f"{result.records_equal:,} records read back equal",
        "offset, timestamp, key, value and headers",
    )


def _codecs(result: DemoResult) -> list[CodecFigures]:
    return [result.codecs[codec] for codec in CODECS if codec in result.codecs]


def _ratio(figures: CodecFigures) -> str:
    return f"{figures.opened_bytes / figures.stored_bytes:.2f}" if figures.stored_bytes else "-"


def _decode(figures: CodecFigures) -> str:
    return rate_text(figures.decoded_bytes, figures.decode_us) if figures.decode_us else "-"


def _segments(count: int) -> str:
    return "1 segment" if count == 1 else f"{count} segments"


def _per_segment(result: DemoResult) -> float:
    return result.copy_us / len(result.segments) if result.segments else 0.0


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def report_html(result: DemoResult, made_at: str) -> str:
    """Return the page; ``made_at`` is the time that it shows."""
    title = _verdict(result)
    sections = [
        section("Where the bytes are", _topics_chart(result), _legend(result)),
        section("Cold reads", _cold_chart(result), _COLD_NOTE),
        section("What was left alone, and why", _left_out_table(result)),
        section("Codecs", _codec_table(result), _CODEC_NOTE),
        section("Segments", _segment_table(result)),
        section("Try next", f"<pre>{escape(chr(10).join(next_commands(result)))}</pre>"),
    ]
    wrong = "".join(f"<li>{escape(mismatch)}</li>" for mismatch in result.mismatches)
    return page(
        "tierlog demo",
        title,
        f"<p>The logs of a real Kafka broker (cluster {escape(result.cluster_id)})"
        f" were tiered to <code>{escape(result.store_url)}</code>, read back and compared."
        f"</p>{f'<ul>{wrong}</ul>' if wrong else ''}",
        tiles=_tiles(result),
        sections=sections,
        footer=f"{escape(made_at)}, {ms_text(result.all_us)} in all. Small segments on one "
        "machine: this shows the shape of things, <code>make bench</code> measures them.",
        good=result.passed,
    )


def _tiles(result: DemoResult) -> Iterator[tuple[str, str, str]]:
    cold = sorted(segment.cold_read_us for segment in result.segments)
    yield f"{result.objects_equal}", "objects equal", "the broker's files, byte for byte"
    yield f"{result.records_equal:,}", "records equal", "offset, time, key, value, headers"
    yield human_size(result.size_bytes), "of log tiered", f"{result.partitions} partitions"
    yield ms_text(quantile(cold, 0.5)), "to the first record", "cold, from any offset, median"
    yield (
        ms_text(_per_segment(result)),
        "to tier a segment",
        "scan, rebuild, copy, fsync, verify",
    )
    yield rate_text(result.size_bytes, result.scan_us), "scanned", "CRC-32C of every batch"


def _topics_chart(result: DemoResult) -> str:
    topics: dict[str, dict[int, float]] = {}
    counts: dict[str, int] = {}
    for segment in result.segments:
        parts = topics.setdefault(segment.topic, {})
        series = _SERIES.index(segment.codec)
        parts[series] = parts.get(series, 0) + segment.size_bytes
        counts[segment.topic] = counts.get(segment.topic, 0) + 1
    bars = [
        Bar(
            label=topic,
            parts=sorted(parts.items()),
            text=f"{human_size(int(sum(parts.values())))}, {_segments(counts[topic])}",
        )
        for topic, parts in sorted(topics.items(), key=lambda item: -sum(item[1].values()))
    ]
    title = "Bytes tiered per topic"
    return bar_chart(bars, _SERIES, lambda size: human_size(int(size)), title, base=1024)


def _legend(result: DemoResult) -> str:
    used = {segment.codec for segment in result.segments}
    return legend((index, codec) for index, codec in enumerate(_SERIES) if codec in used)


def _cold_chart(result: DemoResult) -> str:
    cold = sorted(segment.cold_read_us for segment in result.segments)
    dots = [
        Dot(
            series=_SERIES.index(segment.codec),
            value=segment.cold_read_us / 1000,
            title=f"{segment.name}: {ms_text(segment.cold_read_us)}, "
            f"{human_size(segment.size_bytes)}",
        )
        for segment in result.segments
    ]
    marks = [("median", quantile(cold, 0.5) / 1000), ("95 %", quantile(cold, 0.95) / 1000)]
    return strip_chart(dots, marks if cold else [], lambda ms: f"{ms:.2g} ms", "Cold reads")


def _left_out_table(result: DemoResult) -> str:
    if not result.left_out:
        return "<p>Nothing: every segment was tiered.</p>"
    rows = (
        f"<tr><td class=w>{escape(one.reason)}<td class=n>{one.segments}"
        f"<td class=n>{human_size(one.size_bytes)}<td>{escape(one.text)}"
        for one in result.left_out
    )
    heads = "<th>Reason<th class=n>Segments<th class=n>Size<th>For example"
    return f"<table><tr>{heads}{''.join(rows)}</table>"


def _codec_table(result: DemoResult) -> str:
    rows = (
        f"<tr><td>{figures.codec}<td class=n>{figures.batches:,}<td class=n>{figures.records:,}"
        f"<td class=n>{human_size(figures.stored_bytes)}"
        f"<td class=n>{human_size(figures.opened_bytes)}<td class=n>{_ratio(figures)}"
        f"<td class=n>{_decode(figures)}"
        for figures in _codecs(result)
    )
    return (
        "<table><tr><th>Codec<th class=n>Batches<th class=n>Records<th class=n>Stored"
        f"<th class=n>Keys and values<th class=n>Ratio<th class=n>Decode{''.join(rows)}</table>"
    )


def _segment_table(result: DemoResult) -> str:
    rows = (
        f"<tr><td>{escape(one.topic)}<td class=n>{one.partition}<td class=n>{one.base_offset}"
        f"<td class=n>{one.batches:,}<td class=n>{one.records:,}"
        f"<td class=n>{human_size(one.size_bytes)}<td>{one.codec}"
        f"<td class=n>{ms_text(one.cold_read_us)}<td><code>{escape(one.key)}</code>"
        for one in result.segments
    )
    return (
        "<details><summary>Each one, with its object</summary><div class=scroll><table><tr>"
        "<th>Topic<th class=n>Partition<th class=n>Base offset<th class=n>Batches"
        "<th class=n>Records<th class=n>Size<th>Codec<th class=n>Cold read<th>Object"
        f"{''.join(rows)}</table></div></details>"
    )


_COLD_NOTE = (
    "<p class=note>One dot per segment: from an offset in its middle to the first record, with "
    "nothing open and nothing cached by tierlog: the indexes object, the remoteLogIndex entry, one "
    "ranged read, CRC, decode. The files are in the page cache.</p>"
)
_CODEC_NOTE = (
    "<p class=note>Stored: whole batches, headers included. Ratio: keys and values over stored "
    "bytes. Decode: keys and values per second into columns, from segments of one codec.</p>"
)
