"""The benches check before they measure, and measure what they say. No speed is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benches import GROUPS, items_of
from benches.__main__ import QUICK
from benches.corpus import KEY_BYTES, SHAPES, Corpora
from benches.frame import (
    OURS,
    Bench,
    Case,
    DisagreementError,
    Limit,
    PeerMissingError,
    Row,
    Run,
    Sides,
    Timed,
    measure,
)
from benches.peers.quotas import SampledRate
from benches.report import as_markdown, as_table
from tests.oracle import batches as oracle
from tests.proofs import usually

ROOT = Path(__file__).parents[1]
# These start Spark, or a broker for each case.
SLOW = {"datasource", "serve", "spark", "spark_kafka"}


def case_of(ours: Run, peer: Run, *, goal: float | None = 0.5, amount: float = 6.0) -> Case:
    def prepare(_stack: ExitStack) -> Sides:
        return Sides(amount=amount, ours=ours, peers={"peer": peer})

    return Case(operation="walk", shape="small", unit="GB", peers={"peer": goal}, prepare=prepare)


def timed(seconds: float) -> Run:
    return lambda: Timed(seconds=seconds, cpu_seconds=0.5, result={"bytes": 7})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    return Corpora(directory=tmp_path_factory.mktemp("bench"), quick=True)


def test_every_side_of_every_case_agrees(corpora: Corpora, tmp_path: Path) -> None:
    """The slow ones only in a proof."""
    groups = usually([one for one in GROUPS if one not in SLOW], thorough=list(GROUPS))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benches", *groups, "--quick", "--json", str(report)]
    command += ["--cache-dir", str(corpora.directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())["rows"]
    expected = []
    for group in groups:
        for item in items_of(group, Bench(corpora=corpora)):
            peers = item.peers if isinstance(item, Case) else [""]
            expected += [(item.operation, item.shape, peer) for peer in peers]
    assert [(row["operation"], row["shape"], row["peer_name"]) for row in rows] == expected
    for row in rows:
        measured = row["peer"] is not None or row["peer_name"] == ""
        # What runs in a JVM and kcat may be out of reach, and then the row says why.
        assert measured != bool(row["note"]), row
        assert measured or row["peer_name"].startswith(("Kafka", "Caffeine", "kcat")), row
        assert row["met"] is None
    assert len(done.stdout.splitlines()) == 1 + len(rows)


def test_consumers_of_all_servers_read_the_same(corpora: Corpora, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benches", "serve", "--quick", "--match", "hot fetch by"]
    command += ["--json", str(report), "--cache-dir", str(corpora.directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert [row["peer_name"] for row in rows] == ["ready frames", "Kafka"]
    assert all(row["peer"] > 0 for row in rows)


def test_a_ratio_is_of_medians_in_the_same_run() -> None:
    def alternating(*seconds: float) -> Run:
        taken: Iterator[float] = iter(seconds)
        return lambda: Timed(seconds=next(taken), cpu_seconds=0.5, result={"bytes": 7})

    ours, peer = alternating(9, 2.0, 100.0, 3.0), alternating(9, 5.0, 6.0, 0.1)
    (row,) = measure(case_of(ours, peer, goal=1.5), replace(QUICK, rounds=3))
    assert (row.ours, row.peer, row.ratio) == (2.0, 6.0 / 5.0, 5.0 / 3.0)
    assert (row.goal, row.met) == (">= 1.5x", True)


@pytest.mark.parametrize(("goal", "met"), [(2.0, True), (2.1, False), (None, None)])
def test_a_goal_is_a_floor(goal: float | None, met: bool | None) -> None:
    (row,) = measure(case_of(timed(1), timed(2), goal=goal), QUICK)
    assert row.met is met


def test_time_on_a_core_only_where_one_thread_does_it_all() -> None:
    case = case_of(timed(1), timed(2), amount=1.0)
    on_core = replace(QUICK, cpu_time=True)
    assert [row.ours for row in measure(case, on_core)] == [2.0]
    assert [row.ours for row in measure(replace(case, one_thread=False), on_core)] == [1.0]


@pytest.mark.parametrize("found", [{"bytes": 8}, {"rows": 7}, {}])
def test_no_figure_when_a_peer_sees_something_else(found: dict[str, int]) -> None:
    def ours() -> dict[str, int]:
        return {"bytes": 7}

    with pytest.raises(DisagreementError, match="peer found"):
        measure(case_of(ours, lambda: found), QUICK)


def test_a_missing_peer_keeps_its_row() -> None:
    def missing() -> object:
        raise PeerMissingError("java not found")

    (row,) = measure(case_of(timed(1), missing), QUICK)
    assert (row.peer, row.ratio, row.met, row.note) == (None, None, None, "java not found")
    assert "peer: java not found" in as_table([row])


def test_what_is_reset_is_not_timed() -> None:
    events: list[str] = []

    def prepare(_stack: ExitStack) -> Sides:
        def run(name: str) -> Run:
            return lambda: events.append(name) or {"n": 1}  # type: ignore[func-returns-value]

        return Sides(
            amount=1,
            ours=run(OURS),
            peers={"peer": run("peer")},
            reset=lambda: events.append("reset"),
        )

    case = replace(case_of(timed(1), timed(1)), prepare=prepare)
    measure(case, replace(QUICK, rounds=2))
    assert events == ["reset", OURS, "reset", "peer"] * 3


@pytest.mark.parametrize(("value", "met"), [(64.0, True), (64.5, False)])
def test_a_limit_is_a_ceiling(value: float, met: bool) -> None:
    limit = Limit(operation="memory", shape="1 GiB", unit="MiB", at_most=64, measure=lambda: value)
    (row,) = measure(limit, QUICK)
    assert (row.ours, row.goal, row.met) == (value, "<= 64 MiB", met)


def test_the_markdown_block_is_a_table() -> None:
    row = Row(operation="walk", shape="s", unit="GB", ours=20.125, peer_name="p", peer=5.0)
    block = as_markdown([replace(row, ratio=4.025, goal=">= 3x", met=True)], {"cores": "2"})
    assert "| walk | s | 20.1 GB/s | 5.00 (p) | 4.03 | >= 3x | yes |" in block
    assert "cores: 2" in block


@pytest.mark.parametrize("name", SHAPES)
def test_segments_are_sound_and_the_same_every_time(
    name: str, corpora: Corpora, tmp_path: Path
) -> None:
    data = corpora.data(name)
    found, reason, position = oracle.scan(data)
    assert (reason, position) == ("end", len(data))
    assert [batch.base_offset for batch in found[1:]] == [b.last_offset + 1 for b in found[:-1]]
    shape = SHAPES[name]
    for record in oracle.records(found[1]):
        assert record.key is not None
        assert record.value is not None
        assert len(record.key) == KEY_BYTES
        assert len(record.key + record.value) == shape.record_bytes
    assert replace(corpora, directory=tmp_path).data(name) == data


def test_the_pure_python_sensor_answers_as_kafkas() -> None:
    """Figures of Kafka's own classes: a check while nothing came, and a sample that left."""
    looked_at = SampledRate(11, 1000, 1000)
    looked_at.record(20_000, 0)
    assert looked_at.throttle_ms(50_000) == 0
    looked_at.record(20_000, 60_000)
    rates = [looked_at.rate(now_ms) for now_ms in (60_000, 61_000, 65_000)]
    assert rates == [2000, 20_000, 4000]
    assert looked_at.throttle_ms(65_000) == 15_000

    short = SampledRate(3, 1000, 1000)
    waits = [short.record_and_throttle_ms(1000, now_ms) for now_ms in (0, 1000, 2000, 3000)]
    assert (waits[-1], short.rate(3000)) == (1000, 1500)
