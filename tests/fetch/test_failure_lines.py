"""An operator reads why a fetch was answered with an error, and not too often."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fetch.tier import FIRST_TIMESTAMP_MS, PARTITION, Tier, made_batch
from tests.fetch.tier_only import END, TierOnly
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.setup import open_fetcher
from tierlog.reader.types import FetchError, FetchPartition, FetchRequest, FetchView
from tierlog.testing import ShiftedClock
from tierlog.types import TopicIdPartition

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class BadHost(TierOnly):
    """A host with a defect: every view is this error while there is one."""

    failure: Exception | None = None

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        if self.failure is not None:
            raise self.failure
        return super().view(partition)


class Fetching(NamedTuple):
    fetcher: Fetcher
    host: BadHost
    tier: Tier
    clock: ShiftedClock
    lines: list[str]

    def fetch(self, offset: int = 0) -> FetchError:
        asked = FetchPartition(partition=PARTITION, fetch_offset=offset)
        (answer,) = self.fetcher.fetch_sync(
            FetchRequest(partitions=(asked,), max_wait_ms=0)
        ).partitions
        return answer.error


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Fetching]:
    tier = Tier(tmp_path / "tier")
    tier.add([made_batch(one, size=400) for one in range(END)])
    host, clock, lines = BadHost(tier), ShiftedClock(), list[str]()
    with open_fetcher(
        host, tier.storage, tier.metadata, clock=clock, report=lines.append
    ) as fetcher:
        yield Fetching(fetcher, host, tier, clock, lines)


def test_an_unexpected_error_is_one_line(made: Fetching) -> None:
    made.host.failure = RuntimeError("a defect")
    for _ in range(100):
        assert made.fetch() is FetchError.UNKNOWN_SERVER_ERROR
    name = f"{PARTITION.topic}-{PARTITION.partition}"
    assert made.lines == [f"fetch of {name}: UNKNOWN_SERVER_ERROR: RuntimeError('a defect')"]


def test_a_line_a_second_and_the_same_one_a_minute(made: Fetching) -> None:
    for number in range(3):
        made.host.failure = RuntimeError(f"defect {number}")
        made.fetch()
    assert len(made.lines) == 1
    made.clock.advance(SECOND)
    made.fetch()
    assert "defect 2" in made.lines[1]
    made.clock.advance(MINUTE - 2 * SECOND)
    made.fetch()
    assert len(made.lines) == 2
    made.clock.advance(2 * SECOND)
    made.fetch()
    assert made.lines[1] == made.lines[2]


def test_a_missing_object_is_a_line_of_reads_and_of_searches(made: Fetching) -> None:
    folder = Path(made.tier.storage.url.removeprefix("file://"))
    for path in folder.rglob("*.log"):
        path.unlink()
    assert made.fetch() is FetchError.KAFKA_STORAGE_ERROR
    (line,) = made.lines
    assert "KAFKA_STORAGE_ERROR" in line
    assert ".log" in line
    made.clock.advance(MINUTE)
    found = made.fetcher.list_offset_sync(PARTITION, FIRST_TIMESTAMP_MS + 100)
    assert found.error is FetchError.KAFKA_STORAGE_ERROR
    assert len(made.lines) == 2


def test_errors_of_clients_are_no_lines(made: Fetching) -> None:
    assert made.fetch(END + 1) is FetchError.OFFSET_OUT_OF_RANGE
    assert made.fetch() is FetchError.NONE
    assert made.lines == []
