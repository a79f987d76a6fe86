"""``python docs/pictures/watch.py``: write ``watch.svg``, the screen of ``reassign --watch``."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tierlog.tools.reassign.screen import progress_screen
from tierlog.tools.reassign.watch import BrokerProgress, MoveProgress

MIB = 1 << 20
THROTTLE = 20 * MIB
# (broker, MiB/s sent, MiB/s received, MiB that its new replicas lack)
BROKERS = ((1, 19.6, 0.0, 0), (2, 0.0, 9.9, 2_840), (3, 0.0, 9.7, 2_905))
PROGRESS = MoveProgress(
    timestamp_ms=1_700_000_000_000,
    elapsed_seconds=214.0,
    partitions_moving=58,
    partitions_done=42,
    moved_bytes=4_190 * MIB,
    move_bytes=9_935 * MIB,
    bytes_per_second=19.6 * MIB,
    sum_replica_lag_bytes=5_745 * MIB,
    is_lag_falling=True,
    seconds_left_measured=293.0,
    seconds_left_estimated=287.0,
    suggested_throttle=None,
    brokers=tuple(
        BrokerProgress(
            broker_id=broker_id,
            send_bytes_per_second=sent * MIB,
            receive_bytes_per_second=received * MIB,
            leader_throttle_bytes_per_second=THROTTLE,
            follower_throttle_bytes_per_second=THROTTLE,
            replica_lag_bytes=lag * MIB,
        )
        for broker_id, sent, received, lag in BROKERS
    ),
)
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }} {styles}</style>
<rect width="100%" height="100%" rx="8" fill="#1b1e23"/>
<g transform="translate(12, 12)" class="{unique_id}-matrix">{backgrounds}{matrix}</g>
</svg>
"""


def picture() -> str:
    """The screen as SVG."""
    console = Console(
        file=io.StringIO(), record=True, width=100, force_terminal=True, color_system="truecolor"
    )
    console.print("$ tierlog reassign --bootstrap HOST:PORT --watch", style="bold")
    console.print(progress_screen(PROGRESS))
    return console.export_svg(code_format=SVG, unique_id="watch")


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
