"""The live demo does what it says, and notices when what comes back is not the same."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.tools.golden_copy import overwrite
from tierlog.cli import main
from tierlog.clock import SystemClock
from tierlog.config import Config
from tierlog.node.embedded import EmbeddedNode
from tierlog.quota import PACE_SLACK_MS
from tierlog.tools.demo.live import NODE_SETTINGS, LiveResult, run_live
from tierlog.tools.demo.live_report import live_commands, live_report_html, live_summary
from tierlog.tools.demo.records import demo_record, find_difference
from tierlog.tools.progress import Progress

Disturbance = Callable[[EmbeddedNode], object]


class Shown:
    """Progress that is added up."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total_bytes: int) -> None:
        self.total = total_bytes

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        self.done += size_bytes


class DisturbedNode:
    """A node that something else happens to: before it tiers, or after."""

    def __init__(
        self, node: EmbeddedNode, before: Disturbance | None, after: Disturbance | None
    ) -> None:
        self._node = node
        self._before = before
        self._after = after

    @property
    def bootstrap_servers(self) -> str:
        return self._node.bootstrap_servers

    @property
    def sent_bytes(self) -> int:
        return self._node.sent_bytes

    def tier_now(self) -> None:
        if self._before:
            self._before(self._node)
        self._node.tier_now()
        if self._after:
            self._after(self._node)


def write_one_more(node: EmbeddedNode) -> None:
    with closing(KafkaProducer(bootstrap_servers=node.bootstrap_servers)) as producer:
        producer.send("orders", b"from elsewhere", partition=0).get(30)


def change_stored_byte(node: EmbeddedNode) -> None:
    (partition,) = [one for one in node.cluster.tier.metadata.partitions() if one.partition == 0]
    folder = Path(node.cluster.tier.storage.url.removeprefix("file://"))
    (log,) = folder.glob(f"orders-{partition.topic_id}/0/00000000000000000000-*.log")
    overwrite(log, 200, bytes([log.read_bytes()[200] ^ 1]))


def run(
    place: Path,
    *,
    before: Disturbance | None = None,
    after: Disturbance | None = None,
    settings: dict[str, str] | None = None,
) -> tuple[LiveResult, list[str], dict[str, Shown]]:
    result = LiveResult(data_dir=str(place / "node"), store_url=(place / "store").as_uri())
    said: list[str] = []
    bars: dict[str, Shown] = {}

    @contextmanager
    def progress(title: str) -> Iterator[Progress]:
        yield bars.setdefault(title, Shown())

    config = Config.from_properties(NODE_SETTINGS | (settings or {}))
    with EmbeddedNode(result.data_dir, result.store_url, config=config) as node:
        run_live(
            DisturbedNode(node, before, after),
            result,
            clock=SystemClock(),
            timer_ns=time.perf_counter_ns,
            progress=progress,
            say=said.append,
            records=4_000,
            silence_ms=2_000 if after else 30_000,
        )
    return result, said, bars


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[LiveResult, list[str], dict[str, Shown]]:
    return run(tmp_path_factory.mktemp("live"))


def test_every_record_comes_back_cold(
    ran: tuple[LiveResult, list[str], dict[str, Shown]],
) -> None:
    result, said, bars = ran
    assert result.mismatches == []
    assert result.records_equal == result.records_equal_alone == result.records == 4_000
    assert result.left_local_bytes == 0 < result.log_bytes <= result.sent_bytes
    assert result.keeps_quota
    assert result.passed
    assert [line.split()[0] for line in said] == [
        "started",
        "wrote",
        "tiered",
        "dropped",
        "read",
        "read",
    ]
    assert bars["writing"].done == bars["writing"].total == 4_000
    assert bars["tiering"].done == result.sent_bytes
    assert bars["reading"].done == bars["reading"].total == 4_000


def test_the_summary_fits_a_screen(ran: tuple[LiveResult, list[str], dict[str, Shown]]) -> None:
    lines = list(live_summary(ran[0]))
    assert lines[0] == "Every record came back from the cold tier."
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 132
    page = live_report_html(ran[0], "2026-01-01")
    assert "<h1>Every record came back from the cold tier</h1>" in page
    assert page.count("<svg") == 2
    assert page.count("<circle") == len(ran[0].hot_us) + len(ran[0].cold_us)
    assert "<script" not in page
    assert "src=" not in page


def test_a_record_that_is_not_the_same_is_shouted(tmp_path: Path) -> None:
    result, _, _ = run(tmp_path, before=write_one_more)
    assert not result.passed
    assert result.mismatches[-1].startswith("orders:0 @ 1000: key: expected b'customer-")
    lines = list(live_summary(result))
    assert lines[0] == "NOT every record came back the same."
    assert f"  DIFFERENT  {result.mismatches[0]}" in lines
    page = live_report_html(result, "now")
    assert "<h1>NOT every record came back the same</h1>" in page


def test_a_damaged_store_is_shouted(tmp_path: Path) -> None:
    result, _, _ = run(tmp_path, after=change_stored_byte)
    assert not result.passed
    assert [one.partition(": ")[0] for one in result.mismatches] == [
        "the client",
        "without the node",
    ]
    assert "bad_crc" in result.mismatches[1]
    assert next(iter(live_summary(result))) == "NOT every record came back the same."


def test_copies_ahead_of_the_quota_are_shouted(tmp_path: Path) -> None:
    result, _, _ = run(
        tmp_path, settings={"remote.log.manager.copy.max.bytes.per.second": str(1 << 30)}
    )
    result.quota_bytes_per_second = 1 << 20
    assert not result.keeps_quota
    assert not result.passed
    assert next(iter(live_summary(result))) == "NOT everything went as it should."


def test_every_field_of_a_record_is_compared() -> None:
    record = demo_record(1, 1_000)
    assert find_difference(record, demo_record(1, 1_000)) is None
    for other in (
        record._replace(key=None),
        record._replace(value=None),
        record._replace(headers=[("other", b"")]),
        record._replace(timestamp_ms=0),
    ):
        assert find_difference(other, record) is not None
    numbers = range(1_000)
    assert any(demo_record(number, 0).key is None for number in numbers)
    assert any(demo_record(number, 0).value is None for number in numbers)
    assert any(demo_record(number, 0).headers for number in numbers)


def test_the_command_and_what_to_try_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--to", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Every record came back from the cold tier.\n")
    assert re.search(r"^Report: file://.*/report\.html$", captured.err, re.MULTILINE)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    result = LiveResult(data_dir=str(tmp_path / "node"), store_url=(tmp_path / "store").as_uri())
    *commands, serve = live_commands(result)
    for command in commands:
        assert f"  {command}\n" in captured.err
        arguments = shlex.split(command)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "tierlog", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
    arguments = [*shlex.split(serve)[1:], "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "tierlog", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Serving 1 topic;")
        while "Ctrl-C" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_paced_copies_may_be_ahead_by_a_segment_and_the_slack() -> None:
    """The bound of tests/test_quota_line.py, with the segments of the demo."""
    rate, ms = 1_000_000, 500
    most = rate * (ms + PACE_SLACK_MS) // 1000 + (1 << 20)
    for ahead, keeps in ((0, True), (1, False)):
        result = LiveResult(
            data_dir="", store_url="", quota_bytes_per_second=rate, sent=[(ms, most + ahead)]
        )
        assert result.keeps_quota is keeps
