"""A directory beside the tier that its broker itself wrote: the directory's log start holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tierlog
from tests.kafka_tools.golden import DATA_DIR
from tests.remote.kafka_layouts import kafka_url, lay_out
from tierlog.cli import main
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.open import open_reader
from tierlog.testing.segments import uuid_of

TOPIC = "epochs"
# Records below were deleted with DeleteRecords; the segment that holds them is still in the tier.
LOG_START = 10


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """The first two segments only in the tier, and the log start inside the first one."""
    (source,) = DATA_DIR.glob(f"clean/disk*/{TOPIC}-0")
    copied = tmp_path / "disk"
    shutil.copytree(source, copied / f"{TOPIC}-0", ignore=shutil.ignore_patterns("*.dump.txt*"))
    for path in source.parent.iterdir():
        if path.is_file():
            shutil.copy(path, copied)
    log = open_log_dir(copied).partition(TOPIC, 0)
    for number, segment in enumerate(log.segments[:2]):
        lay_out(tmp_path / "tier", log, segment, uuid_of(f"{number}"))
    for segment in log.segments[:2]:
        for path in (copied / f"{TOPIC}-0").glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
    text = f"0\n1\n{TOPIC} 0 {LOG_START}\n"
    (copied / "log-start-offset-checkpoint").write_text(text)
    return copied


def truth() -> list[int]:
    (source,) = DATA_DIR.glob(f"clean/disk*/{TOPIC}-0")
    return [
        offset
        for records in tierlog.read(source.parent, TOPIC, 0)
        for offset in records.offset.tolist()
    ]


def test_deleted_records_are_not_served_from_the_brokers_tier(
    log_dir: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = kafka_url(tmp_path / "tier")
    expected = [offset for offset in truth() if offset >= LOG_START]
    read = tierlog.read(log_dir, TOPIC, 0, store=url)
    assert [offset for records in read for offset in records.offset.tolist()] == expected
    assert main(["cat", str(log_dir), f"{TOPIC}:0", "--store", url, "-f", "%o\n"]) == 0
    assert list(map(int, capsysbinary.readouterr().out.split())) == expected


def test_bounds_and_times_begin_at_the_log_start(log_dir: Path, tmp_path: Path) -> None:
    reader = open_reader(log_dir, store=kafka_url(tmp_path / "tier"))
    begin, end = reader.bounds(TOPIC, 0)
    assert begin == LOG_START
    assert end > truth()[-1]
    assert reader.offset_for_timestamp(TOPIC, 0, 0) == LOG_START


def test_all_of_it_is_read_where_the_checkpoint_is_silent(log_dir: Path, tmp_path: Path) -> None:
    (log_dir / "log-start-offset-checkpoint").unlink()
    read = tierlog.read(log_dir, TOPIC, 0, store=kafka_url(tmp_path / "tier"))
    assert [offset for records in read for offset in records.offset.tolist()] == truth()
