"""`tierlog index rebuild` of stores: the bytes of the copier again, and nothing sound touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remote.kafka_layouts import kafka_url, lay_out_golden
from tests.remote.s3_server import ACCESS_KEY, SECRET_KEY, running_s3_server
from tests.tools.golden_copy import overwrite
from tests.tools.rebuild.stored import header_of, indexes_of, lost
from tierlog.cli import main
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.segment import scan_segment
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes, verify_indexes
from tierlog.tools.rebuild.index import (
    RebuildReport,
    plan_rebuild,
    rebuild_index,
    rebuild_report,
    rebuild_task,
)
from tierlog.tools.rebuild.segment import Outcome
from tierlog.tools.verify.source import verify_store
from tierlog.types import StopReason

HOUR_MS = 3_600_000


def rebuild(store: Path, *, age_ms: int = HOUR_MS, **more: object) -> RebuildReport:
    files = (path for path in store.rglob("*") if path.is_file())
    newest_ms = max(path.stat().st_mtime_ns for path in files) // 1_000_000
    return rebuild_index(store.as_uri(), now_ms=newest_ms + age_ms, **more)  # type: ignore[arg-type]


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in indexes_of(store)}


def whats(report: RebuildReport) -> set[str]:
    return {found.what for found in report.findings}


@pytest.mark.parametrize("kind", [kind for kind in IndexKind if kind is not IndexKind.METADATA])
def test_a_damaged_section_comes_back_byte_for_byte(kind: IndexKind, store_copy: Path) -> None:
    whole, damaged = contents(store_copy), 0
    for path in indexes_of(store_copy):
        section = header_of(path.read_bytes()).section(kind)
        if section.size_bytes:
            overwrite(path, section.position, b"\xee")
            damaged += 1
    report = rebuild(store_copy)
    assert report.ok, report.findings
    assert report.summary.written == damaged > 0
    if kind is IndexKind.LEADER_EPOCH:
        forget_deleted(whole)
    found = contents(store_copy)
    assert {key: data for key, data in found.items() if key in whole} == whole


def forget_deleted(contents: dict[str, bytes]) -> None:
    """No log says where records were deleted, and with no lineage left nothing does."""
    for key in [key for key in contents if key.startswith("deleted-records-")]:
        del contents[key]


def assert_same_but_for_the_copy(found: dict[str, bytes], whole: dict[str, bytes]) -> None:
    """Every section, and of the metadata all but which broker copied it when."""
    assert found.keys() == whole.keys()

    def bare(description: SegmentDescription) -> SegmentDescription:
        metadata = replace(description.metadata, event_timestamp_ms=0, broker_id=0)
        return replace(description, metadata=metadata, claim_epoch=None)

    for key, data in found.items():
        (header, told), (other, expected) = (
            verify_indexes(one, path=key) for one in (data, whole[key])
        )
        assert bare(told) == bare(expected)
        for kind in set(IndexKind) - {IndexKind.METADATA}:
            assert bytes(header.read_section(kind, data)) == bytes(
                other.read_section(kind, whole[key])
            ), (key, kind)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_lost_objects_come_back_from_their_logs(every: int, store_copy: Path) -> None:
    whole = contents(store_copy)
    gone = indexes_of(store_copy)[::every]
    lost(store_copy, gone)
    report = rebuild(store_copy, jobs=2)
    assert report.ok, report.findings
    assert report.summary.written == len(gone)
    found = contents(store_copy)
    if every == 1:
        forget_deleted(whole)
        forget_deleted(found)
    assert_same_but_for_the_copy(found, whole)
    sound = verify_store(store_copy.as_uri(), now_ms=report.summary.size_bytes, deep=True)
    assert sound.summary.problems == 0, sound.findings


def test_the_same_bytes_however_often_and_in_how_many_processes(
    store_copy: Path, tmp_path: Path
) -> None:
    lost(store_copy, indexes_of(store_copy))
    other = Path(shutil.copytree(store_copy, tmp_path / "other"))
    half = Path(shutil.copytree(store_copy, tmp_path / "half"))
    rebuild(store_copy)
    rebuild(other, jobs=2)
    rebuild(half)
    for path in indexes_of(half)[1::2]:
        path.unlink()
    rebuild(half)
    assert contents(store_copy) == contents(other)
    assert_same_but_for_the_copy(contents(half), contents(other))


def test_sound_objects_stay(store_copy: Path) -> None:
    paths = indexes_of(store_copy)
    paths[3].unlink()
    before = {path: path.stat().st_mtime_ns for path in paths if path != paths[3]}
    assert rebuild(store_copy).summary.written == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = rebuild(store_copy)
    assert (again.summary.written, again.summary.sound) == (0, len(paths))


def test_a_dry_run_writes_nothing(store_copy: Path) -> None:
    lost(store_copy, indexes_of(store_copy)[:4])
    before = contents(store_copy)
    report = rebuild(store_copy, dry_run=True)
    assert report.summary.written == 4
    assert contents(store_copy) == before


def test_leavings_of_copies_are_left_alone(store_copy: Path) -> None:
    path = indexes_of(store_copy, "epochs")[1]
    again = path.with_name(f"{path.name[:20]}-{'B' * 21}A.log")
    shutil.copy(path.with_suffix(".log"), again)
    report = rebuild(store_copy)
    assert report.ok
    assert whats(report) == {"superseded"}
    again.unlink()
    path.unlink()
    young = rebuild(store_copy, age_ms=1000)
    assert whats(young) == {"copy_under_way"}
    assert young.summary.left_alone == 1
    assert not path.exists()


def test_a_damaged_log_is_quarantined_and_the_others_are_done(store_copy: Path) -> None:
    whole = contents(store_copy)
    lost(store_copy, indexes_of(store_copy))
    log = sorted(store_copy.glob("idempotent-*/0/*.log"))[0]
    overwrite(log, log.stat().st_size - 3, b"\xff\xff\xff")
    report = rebuild(store_copy, jobs=2)
    assert not report.ok
    (bad,) = [row for row in report.segments if row.outcome is Outcome.QUARANTINED]
    assert (bad.topic, bad.base_offset, bad.crc) == ("idempotent", 0, "bad")
    (found,) = [one for one in report.findings if one.severity == "problem"]
    assert (found.what, found.position is not None) == ("bad_crc", True)
    # What follows is rebuilt, but what producers did before is not made up.
    assert "producer_state_unknown" in whats(report)
    assert report.summary.written == len(whole) - 1


def test_transactions_after_a_damaged_log_are_not_guessed_at(store_copy: Path) -> None:
    logs = [path.with_suffix(".log") for path in indexes_of(store_copy, "transactions")]
    assert len(logs) > 1
    for path in indexes_of(store_copy, "transactions"):
        path.unlink()
    overwrite(logs[0], 30, b"\xff\xff")
    report = rebuild(store_copy)
    rows = [row for row in report.segments if row.topic == "transactions"]
    assert {row.outcome for row in rows} == {Outcome.QUARANTINED}
    assert indexes_of(store_copy, "transactions") == []


def other_log(store: Path, size_stays: bool) -> Path:
    """Replaces a log by one that scans clean, too, and damages what its .indexes says of epochs."""
    path = indexes_of(store, "headers")[0]
    overwrite(path, header_of(path.read_bytes()).section(IndexKind.LEADER_EPOCH).position, b"\xee")
    log = path.with_suffix(".log")
    last = int(scan_segment(log).position[-1])
    if size_stays:
        # The leader epoch of the last batch, which its checksum does not cover.
        overwrite(log, last + 12, (7).to_bytes(4, "big"))
    else:
        os.truncate(log, last)
    assert scan_segment(log).stop_reason is StopReason.END
    return path


@pytest.mark.parametrize(("size_stays", "what"), [(True, "wrong_checksum"), (False, "wrong_size")])
def test_a_log_that_is_not_what_was_copied(size_stays: bool, what: str, store_copy: Path) -> None:
    path = other_log(store_copy, size_stays)
    before = path.read_bytes()
    report = rebuild(store_copy)
    (found,) = [one for one in report.findings if one.severity == "problem"]
    assert found.what == what
    assert path.read_bytes() == before


def test_a_lineage_that_the_batches_contradict_is_not_taken(store_copy: Path) -> None:
    _, second, third = indexes_of(store_copy, "epochs")
    expected = second.read_bytes()
    second.unlink()
    data = third.read_bytes()
    header, told = verify_indexes(data, path="object")
    sections = {
        kind: bytes(header.read_section(kind, data))
        for kind in set(IndexKind) - {IndexKind.METADATA}
    }
    sections[IndexKind.LEADER_EPOCH] = LeaderEpochs(
        (EpochEntry(1, 0), EpochEntry(3, 200), EpochEntry(4, 320))
    ).encode()
    third.write_bytes(encode_indexes(told, sections))
    assert rebuild(store_copy).ok
    assert_same_but_for_the_copy({"second": second.read_bytes()}, {"second": expected})


def test_indexes_without_a_log(store_copy: Path) -> None:
    indexes_of(store_copy)[0].with_suffix(".log").unlink()
    report = rebuild(store_copy)
    assert not report.ok
    assert whats(report) == {"indexes_without_log"}


def test_logs_that_are_gone_since_the_plan(store_copy: Path) -> None:
    whole, wanted = contents(store_copy), indexes_of(store_copy)[::2]
    lost(store_copy, wanted)
    gone = wanted[::5]
    left = contents(store_copy)
    url = store_copy.as_uri()
    plan = plan_rebuild(url, target=None, dry_run=False, now_ms=2**53, slots=2)
    for path in gone:
        path.with_suffix(".log").unlink()
    report = rebuild_report(plan, [one for task in plan.tasks for one in rebuild_task(task)])
    found = contents(store_copy)
    names = {str(path.relative_to(store_copy)) for path in gone}
    assert {key: found.get(key) for key in names} == {key: left.get(key) for key in names}
    failed = {row.path for row in report.segments if "failed" in row.findings}
    assert failed == {name.replace(".indexes", ".log") for name in names}
    done = [row for row in report.segments if row.outcome is Outcome.WRITTEN]
    assert done
    for row in done:
        key = row.path.replace(".log", ".indexes")
        assert_same_but_for_the_copy({key: found[key]}, {key: whole[key]})


@pytest.mark.integration
def test_a_bucket_from_several_processes(
    golden_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_s3_server("moto") as server:
        name, client = server.new_bucket(), server.client()
        for path in golden_store.rglob("*"):
            if path.is_file():
                key = f"kafka/{path.relative_to(golden_store).as_posix()}"
                client.put_object(Bucket=name, Key=key, Body=path.read_bytes())
        for variable, value in {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(variable, value)
        whole = contents(golden_store)
        forget_deleted(whole)

        def spoil() -> None:
            for key, data in whole.items():
                start = header_of(data).section(IndexKind.OFFSET).position
                broken = data[:start] + bytes(len(data) - start)
                client.put_object(Bucket=name, Key=f"kafka/{key}", Body=broken)

        def require_whole() -> None:
            for key, data in whole.items():
                body = client.get_object(Bucket=name, Key=f"kafka/{key}")["Body"].read()
                assert body == data

        spoil()
        index = tmp_path / "index"
        command = ["index", "rebuild", f"s3://{name}/kafka", "--jobs", "2", "--to", str(index)]
        monkeypatch.setattr("tierlog.tools.rebuild.tasks._SMALLEST_TASK_BYTES", 1)
        assert main(command) == 0, capsys.readouterr().out
        require_whole()
        kept = golden_store.parent / "state" / "index"
        names = {path.relative_to(kept) for path in kept.rglob("*.remote*")}
        assert {path.relative_to(index) for path in index.rglob("*.remote*")} == names
        assert all((index / one).read_bytes() == (kept / one).read_bytes() for one in names)


def test_kafkas_own_layout_is_only_read(tmp_path: Path) -> None:
    lay_out_golden(tmp_path)
    with pytest.raises(ConfigError, match="Kafka's own layout, which is only read"):
        rebuild_index(kafka_url(tmp_path), now_ms=0)
