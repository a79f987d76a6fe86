"""What a start makes of segments that were half replaced, by a broker or by this node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build
from tests.oracle.model import Record
from tierlog import decode_records
from tierlog.config.topic import TopicConfig

KINDS = ("log", "index", "timeindex")
TOPIC = TopicConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=400,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
)
Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def written(folder: Path) -> tuple[Files, Files]:
    """The files of a log with several rolled segments, and those after its compaction."""
    writer = open_writer(folder, TOPIC)
    for number in range(40):
        record = Record(offset=0, timestamp_ms=NOW_MS, key=b"%d" % (number % 3), value=bytes(60))
        writer.append(build.batch([record]), leader_epoch=0)
    writer.flush()
    old = files_of(folder)
    # Full segments stay apart: a larger size makes one of all.
    writer.configure(replace(TOPIC, internal_segment_bytes=1 << 20))
    assert writer.compact(1 << 20) == writer.view().segments[-1].base_offset
    writer.flush()
    new = files_of(folder)
    writer.close()
    bases = [name for name in old if name.endswith(".log")]
    assert len(bases) > 3
    assert len([name for name in new if name.endswith(".log")]) == 2
    return old, new


def compacted(new: Files, suffix: str, kinds: Iterable[str] = KINDS) -> Files:
    """The files of the compacted segment under the names that they have during the swap."""
    return {f"{0:020d}.{kind}{suffix}": new[f"{0:020d}.{kind}"] for kind in kinds}


def offsets_after_start(folder: Path, files: Files) -> list[int]:
    """Write `files` into a new folder, start on it, and return the offsets of its records."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    writer = open_writer(folder, TOPIC, is_clean=False, log_start_offset=0, recovery_point=40)
    assert writer.log_end_offset == 40
    found = [
        offset
        for one in writer.view().segments
        for offset in decode_records(one.log_path).offset.tolist()
    ]
    writer.close()
    odd = [name for name in os.listdir(folder) if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert odd == []
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    return written(tmp_path_factory.mktemp("log") / "orders-0")


def kept(files: Files) -> list[int]:
    names = sorted(name for name in files if name.endswith(".log"))
    return [one for name in names for one in decode_records(files[name]).offset.tolist()]


def old_segments(old: Files, new: Files) -> list[str]:
    """The base offsets of the segments that were replaced, the first one left out."""
    return sorted(
        name.removesuffix(".log") for name in old if name.endswith(".log") and name not in new
    )


def test_drafts_are_deleted(both: tuple[Files, Files], tmp_path: Path) -> None:
    old, new = both
    for number in range(len(KINDS)):
        files = old | compacted(new, ".cleaned", KINDS[: number + 1])
        files[f"{0:020d}.log.cleaned"] = b"half of it"
        files[f"{0:020d}.log.deleted"] = b"of a segment that is deleted"
        assert offsets_after_start(tmp_path / f"{number}", files) == kept(old) == list(range(40))


@pytest.mark.parametrize("order", [KINDS, KINDS[::-1]], ids=["log first", "log last"])
def test_a_swap_counts_when_no_draft_is_left(
    order: tuple[str, ...], both: tuple[Files, Files], tmp_path: Path
) -> None:
    old, new = both
    for done in range(len(KINDS) + 1):
        files = (
            old | compacted(new, ".swap", order[:done]) | compacted(new, ".cleaned", order[done:])
        )
        expected = kept(new) if done == len(KINDS) else kept(old)
        assert offsets_after_start(tmp_path / f"{done}", files) == expected


def test_old_segments_go_wherever_the_swap_stopped(
    both: tuple[Files, Files], tmp_path: Path
) -> None:
    """Brokers delete the newest segment first, or rename files for a later deletion."""
    old, new = both
    bases = old_segments(old, new)
    swap = compacted(new, ".swap")
    for number, gone in enumerate([bases[:1], bases[-1:], bases[1:], bases]):
        files = {name: data for name, data in old.items() if name.partition(".")[0] not in gone}
        assert offsets_after_start(tmp_path / f"{number}", files | swap) == kept(new)
    renamed = {f"{name}.deleted": data for name, data in old.items() if name[:20] in bases}
    files = {name: data for name, data in old.items() if name[:20] not in bases}
    assert offsets_after_start(tmp_path / "renamed", files | renamed | swap) == kept(new)


def test_the_last_renames_are_repeated(both: tuple[Files, Files], tmp_path: Path) -> None:
    _, new = both
    for done in range(len(KINDS) + 1):
        swap = compacted(new, ".swap", KINDS[done:])
        files = {name: data for name, data in new.items() if f"{name}.swap" not in swap}
        assert offsets_after_start(tmp_path / f"{done}", files | swap) == kept(new)
