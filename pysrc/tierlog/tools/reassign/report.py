"""The text and the HTML page of moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.output import human_size, iso_time
from tierlog.tools.page import legend, page, section
from tierlog.tools.reassign.estimate import Estimate
from tierlog.tools.reassign.moves import ClearedThrottles, DirMove
from tierlog.tools.reassign.watch import MoveProgress
from tierlog.tools.svg import Line, line_chart

__all__ = [
    "cleared_text",
    "estimate_text",
    "plain_value",
    "progress_text",
    "report_html",
    "time_text",
]

_COLOURS = 6


def plain_value(value: Any) -> Any:
    """Return a result in the form of a JSON document. Dataclasses and partitions become objects."""
    if isinstance(value, TopicPartition):
        return value._asdict()
    if is_dataclass(value):
        found = {one.name: plain_value(getattr(value, one.name)) for one in fields(value)}
        return found | ({"status": value.status} if isinstance(value, DirMove) else {})
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    if isinstance(value, dict):
        return {name: plain_value(one) for name, one in value.items()}
    return value


def time_text(seconds: float | None) -> str:
    """Return a time such as ``1 h 20 min`` or ``45 s``; ``never`` for None."""
    if seconds is None:
        return "never"
    whole = round(seconds)
    if whole < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def estimate_text(estimate: Estimate) -> Iterator[str]:
    """Yield lines about the size of a move, the load of each broker and, if there is a throttle,
    the time."""
    yield (
        f"MoveRatio {estimate.move_ratio:.3f}: {estimate.moved_partitions} of "
        f"{estimate.partitions} partitions move, {human_size(estimate.move_bytes)}"
    )
    throttle = estimate.throttle_bytes_per_second
    for load in estimate.brokers:
        if not load.send_bytes and not load.receive_bytes:
            continue
        time = "" if throttle is None else f", {time_text(load.seconds)}"
        yield (
            f"  broker {load.broker_id}: sends {human_size(load.send_bytes)}, receives "
            f"{human_size(load.receive_bytes)}; producers and replication add "
            f"{human_size(int(load.bytes_in_per_second))}/s{time}"
        )
    if throttle is None:
        return
    yield (
        f"Estimated time: {time_text(estimate.seconds)} at {human_size(throttle)}/s, for the "
        "slowest broker"
    )
    yield (
        f"  MoveTime of KIP-73: {time_text(estimate.kip_seconds)} = {estimate.move_ratio:.3f} x "
        f"{human_size(estimate.log_size_per_broker_bytes)} x {len(estimate.brokers)} brokers / "
        f"({human_size(throttle)}/s - {human_size(int(estimate.max_bytes_in_per_second))}/s)"
    )


def cleared_text(cleared: ClearedThrottles) -> Iterator[str]:
    """Yield lines that report the removed throttles, in the words of Kafka's tool."""
    brokers, topics = cleared.broker_ids, cleared.topics
    yield f"Clearing broker-level throttles on {_named('broker', brokers)}"
    if topics:
        yield f"Clearing topic-level throttles on {_named('topic', topics)}"
    for one in cleared.unreachable_broker_ids:
        yield f"Broker {one} is down and keeps its throttle: run --verify again when it is back"


def _named(what: str, names: Sequence[object]) -> str:
    return f"{what}{'' if len(names) == 1 else 's'} {','.join(map(str, names))}"


def progress_text(progress: MoveProgress) -> str:
    """Return one line with the bytes, the rate, the lag and the time left."""
    share = 100 * progress.moved_bytes / progress.move_bytes if progress.move_bytes else 100.0
    falls = "falls" if progress.is_lag_falling else "does not fall"
    lag = human_size(progress.sum_replica_lag_bytes)
    measured, estimated = map(
        _left, (progress.seconds_left_measured, progress.seconds_left_estimated)
    )
    text = (
        f"{progress.partitions_moving} moving, {progress.partitions_done} done: "
        f"{human_size(progress.moved_bytes)} of {human_size(progress.move_bytes)} ({share:.0f} %), "
        f"{human_size(int(progress.bytes_per_second))}/s; SumReplicaLag {lag} {falls}; "
        f"left: {measured} measured, {estimated} estimated"
    )
    if progress.suggested_throttle is not None:
        text += f"; stuck: raise the throttle to {progress.suggested_throttle} B/s"
    return text


def _size(size_bytes: float) -> str:
    return human_size(int(size_bytes))


def _left(seconds: float | None) -> str:
    return "?" if seconds is None else time_text(seconds)


def report_html(samples: Sequence[MoveProgress]) -> str:
    """Return the page of a watched move: rates against the throttle, and SumReplicaLag."""
    last = samples[-1]
    brokers = sorted({one.broker_id for sample in samples for one in sample.brokers})
    title = "Every partition moved" if last.is_done else "The move goes on"
    throttles = {
        throttle
        for sample in samples
        for one in sample.brokers
        for throttle in (
            one.leader_throttle_bytes_per_second,
            one.follower_throttle_bytes_per_second,
        )
        if throttle is not None
    }
    series = [(number % _COLOURS, f"broker {one}") for number, one in enumerate(brokers)]
    marks = [("throttle", float(one)) for one in sorted(throttles)]
    charts = [
        line_chart(
            _rates(samples, brokers, field),
            marks,
            time_text,
            lambda rate: f"{human_size(int(rate))}/s",
            f"Bytes that brokers {what} per second",
            base=1024,
        )
        for field, what in (
            ("receive_bytes_per_second", "receive"),
            ("send_bytes_per_second", "send"),
        )
    ]
    lag = Line(
        series=0,
        label="SumReplicaLag",
        points=[(one.elapsed_seconds, float(one.sum_replica_lag_bytes)) for one in samples],
    )
    return page(
        "tierlog reassign",
        title,
        f"<p>{escape(progress_text(last))}</p>",
        tiles=_tiles(samples),
        sections=[
            section("Received for new replicas", charts[0], legend(series)),
            section("Sent to new replicas", charts[1], legend(series)),
            section(
                "SumReplicaLag",
                line_chart([lag], [], time_text, _size, "Bytes that new replicas lack", base=1024),
            ),
        ],
        footer=escape(f"{iso_time(samples[0].timestamp_ms)} to {iso_time(last.timestamp_ms)}"),
        good=last.is_done,
    )


def _tiles(samples: Sequence[MoveProgress]) -> Iterator[tuple[str, str, str]]:
    last = samples[-1]
    seconds = last.elapsed_seconds - samples[0].elapsed_seconds
    grown = last.moved_bytes - samples[0].moved_bytes
    yield human_size(last.moved_bytes), "moved", f"of {human_size(last.move_bytes)}"
    yield str(last.partitions_done), "partitions done", f"{last.partitions_moving} still move"
    yield time_text(seconds), "watched", "from the first to the last measurement"
    rate = int(grown / seconds) if seconds else 0
    yield f"{human_size(rate)}/s", "on average", "all brokers together"


def _rates(samples: Sequence[MoveProgress], brokers: Sequence[int], field: str) -> list[Line]:
    return [
        Line(
            series=number % _COLOURS,
            label=f"broker {broker_id}",
            points=[
                (sample.elapsed_seconds, getattr(one, field))
                for sample in samples
                for one in sample.brokers
                if one.broker_id == broker_id
            ],
        )
        for number, broker_id in enumerate(brokers)
    ]
