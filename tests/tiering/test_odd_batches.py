"""Batches that brokers keep and Kafka's consumer reads, though no usual producer makes them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.batch_bombs import TOPIC, write_log_dir
from tests.kafka_tools.support import wait_until
from tests.oracle import build
from tests.oracle.compression import GZIP, LZ4, lz4_frame
from tests.oracle.model import Record
from tests.oracle.primitives import varint
from tests.settings.observing import command
from tests.sidecar.running import running
from tierlog.metrics import RemoteLogMetrics

BASE_MS = 1_700_000_000_000
I64_MAX = 2**63 - 1


def _payload() -> bytes:
    return _record(0, b"v")


def _sealed(payload: bytes, **fields: int) -> bytes:
    values = {
        "base_offset": 0,
        "leader_epoch": 0,
        "record_count": 1,
        "last_offset_delta": 2,
        "base_timestamp_ms": BASE_MS,
        "max_timestamp_ms": BASE_MS,
        **fields,
    }
    return build.seal(payload, **values)


def _record(delta: int, value: bytes, *, timestamp_delta: int = 0) -> bytes:
    return build.record(delta, timestamp_delta, None, value)


def behind_gzip() -> bytes:
    return _sealed(gzip.compress(_payload()) + b"bytes behind the last member", attributes=GZIP)


def behind_lz4() -> bytes:
    return _sealed(lz4_frame(_payload()) + b"bytes behind the frame", attributes=LZ4)


def wrong_lz4_content_checksum() -> bytes:
    frame = lz4_frame(_payload(), content_checksum=True)
    return _sealed(frame[:-1] + bytes([frame[-1] ^ 1]), attributes=LZ4)


def negative_lengths() -> bytes:
    body = b"\0" + varint(0) + varint(0) + varint(-2) + varint(1) + b"v" + varint(0)
    return _sealed(varint(len(body)) + body)


def offsets_out_of_order() -> bytes:
    records = [_record(0, b"v"), _record(2, b"w"), _record(1, b"lost")]
    return _sealed(b"".join(records), record_count=3)


def timestamp_that_wraps() -> bytes:
    return _sealed(_record(0, b"v", timestamp_delta=10), base_timestamp_ms=I64_MAX)


ODD: list[tuple[Callable[[], bytes], str]] = [
    (behind_gzip, f"0 {BASE_MS} v\n"),
    (behind_lz4, f"0 {BASE_MS} v\n"),
    (wrong_lz4_content_checksum, f"0 {BASE_MS} v\n"),
    (negative_lengths, f"0 {BASE_MS} v\n"),
    (offsets_out_of_order, f"0 {BASE_MS} v\n2 {BASE_MS} w\n"),
    (timestamp_that_wraps, f"0 {-(2**63) + 9} v\n"),
]


@pytest.mark.parametrize(("make", "printed"), ODD, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("place", ["logs", "store"])
def test_cat_prints_what_kafkas_consumer_reads(
    make: Callable[[], bytes], printed: str, place: str, tmp_path: Path
) -> None:
    last = build.batch([Record(offset=3, timestamp_ms=BASE_MS, key=None, value=b"x")])
    logs = write_log_dir(tmp_path / "logs", [[make()], [last]], high_watermark=4)
    source, end = str(logs), f"3 {BASE_MS} x\n"
    if place == "store":
        source, end = (tmp_path / "store").as_uri(), ""
        assert command("tier", str(logs), "--to", source, "--once").code == 0
    said = command("cat", source, f"{TOPIC}:0", "-f", "%o %T %s\\n")
    assert (said.code, said.out, said.err) == (0, printed + end, "")
    assert command("verify", source, "--deep").code == 0


def offset_beyond() -> bytes:
    return _sealed(_record(0, b"v") + _record(9, b"w"), record_count=2)


def record_missing() -> bytes:
    return _sealed(_record(0, b"v"), record_count=2)


@pytest.mark.parametrize("make", [offset_beyond, record_missing])
@pytest.mark.parametrize("mode", ["once with repair", "without end"])
def test_tier_names_a_copied_batch_that_cannot_be_read(
    make: Callable[[], bytes], mode: str, tmp_path: Path
) -> None:
    first = build.batch([Record(offset=0, timestamp_ms=BASE_MS, key=None, value=b"a")])
    odd = struct.pack(">q", 1) + make()[8:]
    behind = build.batch([Record(offset=4, timestamp_ms=BASE_MS, key=None, value=b"b")])
    last = build.batch([Record(offset=5, timestamp_ms=BASE_MS, key=None, value=b"x")])
    logs = write_log_dir(tmp_path / "logs", [[first, odd, behind], [last]], high_watermark=6)
    store = (tmp_path / "store").as_uri()
    if mode == "without end":
        metrics = RemoteLogMetrics()
        with running(tmp_path, [logs], metrics=metrics) as told:
            wait_until(lambda: bool(told.warnings), 10)
        assert metrics.snapshot().counts.unreadable_batches == 1
        said = " ".join(told.warnings)
    else:
        once = command("tier", str(logs), "--to", store, "--once", "--repair")
        assert once.code == 0
        said = once.out + once.err
    assert f"offsets 1 to 3 at byte {len(first)}" in said
    assert "--on-corrupt skip" in said
    stored = next((tmp_path / "store").rglob("*.log"))
    assert stored.read_bytes() == first + odd + behind
    read = command("cat", store, f"{TOPIC}:0", "-f", "%o %s\\n", "--on-corrupt", "skip")
    assert (read.code, read.out) == (1, "0 a\n4 b\n")
    assert command("cat", store, f"{TOPIC}:0").code == 1


@pytest.mark.parametrize(("make", "_"), ODD, ids=lambda one: getattr(one, "__name__", ""))
def test_tier_says_nothing_of_batches_that_can_be_read(
    make: Callable[[], bytes], _: str, tmp_path: Path
) -> None:
    last = build.batch([Record(offset=3, timestamp_ms=BASE_MS, key=None, value=b"x")])
    logs = write_log_dir(tmp_path / "logs", [[make()], [last]], high_watermark=4)
    said = command("tier", str(logs), "--to", (tmp_path / "store").as_uri(), "--once", "--repair")
    assert (said.code, "cannot be read" in said.out + said.err) == (0, False)
