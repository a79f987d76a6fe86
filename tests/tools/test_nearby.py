"""A prefix that holds no archive: the error names the archives near it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.kafka_tools.support import LOOPBACK
from tests.remote.s3_server import S3Server, running_s3_server
from tierlog.cli import main
from tierlog.errors import RemoteResourceNotFoundError
from tierlog.remote.segment.layout import CLUSTER_KEY
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo
from tierlog.remote.urls import open_store
from tierlog.tools.ls import list_store

VERBS = (
    ["ls"],
    ["verify"],
    ["index", "rebuild", "--dry-run"],
    ["cat", "--", "SOURCE", "epochs:0"],
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, golden_store: Path) -> Path:
    """A folder with two archives, named right, and a folder that is none."""
    place = tmp_path_factory.mktemp("place") / "archives"
    for name in ("kafka", "other"):
        shutil.copytree(golden_store, place / name)
    (place / "photos").mkdir()
    return place


def command(verb: list[str], source: str) -> list[str]:
    if "SOURCE" in verb:
        return [source if word == "SOURCE" else word for word in verb]
    return [*verb, source]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("wrong", ["wrng", "photos", ""])
def test_wrong_prefix_names_the_archives_near_it(
    archive: Path, verb: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(verb, (archive / wrong).as_uri())) == 1
    told = capsys.readouterr().err
    assert f"near it are: {(archive / 'kafka').as_uri()}, {(archive / 'other').as_uri()}\n" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("depth", [1, 2])
def test_place_inside_an_archive_names_the_archive(
    archive: Path, verb: list[str], depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = next((archive / "kafka").glob("epochs-*" + "/0" * (depth - 1)))
    assert main(command(verb, inside.as_uri())) == 1
    assert f"it lies inside {(archive / 'kafka').as_uri()}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_wrong_path_names_log_directories_and_archives(
    archive: Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, code in ((archive, 2), (archive / "wrng", 1)):
        assert main(command(verb, str(wrong))) == code
        assert f"near it are: {(archive / 'kafka').as_uri()}, " in capsys.readouterr().err
    assert main(command(verb, str(DATA_DIR / "clean"))) == 2
    told = capsys.readouterr().err
    assert f"near it are: {DATA_DIR / 'clean' / 'disk1'}, {DATA_DIR / 'clean' / 'disk2'}" in told


@pytest.mark.parametrize("with_marker", [False, True])
def test_fresh_folder_is_empty(
    with_marker: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "archives" / "kafka"
    folder.mkdir(parents=True)
    (tmp_path / "archives" / "photos").mkdir()
    if with_marker:
        (folder / CLUSTER_KEY).write_text('{"cluster_id": "c", "format_version": 1}')
    assert main(["ls", folder.as_uri()]) == 0
    assert capsys.readouterr().err == "no partitions here: the store is empty\n"


def test_looks_and_names_are_bounded(
    golden_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (tmp_path / f"a{number:03d}").mkdir()
    for number in range(30):
        place = tmp_path / f"a{number:03d}" / CLUSTER_KEY
        place.write_bytes((golden_store / CLUSTER_KEY).read_bytes())
    looks: list[str] = []
    head = LocalStore.head

    def counting(self: LocalStore, key: str) -> ObjectInfo:
        looks.append(key)
        return head(self, key)

    monkeypatch.setattr(LocalStore, "head", counting)
    with pytest.raises(RemoteResourceNotFoundError) as caught:
        list_store(tmp_path.as_uri())
    told = str(caught.value)
    assert "/a019 ...; 250 more folders were not looked into" in told
    assert "a020" not in told
    assert len(looks) < 250


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.mark.integration
def test_prefixes_of_a_bucket(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"s3://{server.new_bucket()}"
    for empty in (bucket, f"{bucket}/kafka"):
        assert main(["ls", empty]) == 0
        assert capsys.readouterr().err == "no partitions here: the store is empty\n"
    open_store(f"{bucket}/kafka").put_bytes(CLUSTER_KEY, b'{"cluster_id":"c","format_version":1}')
    for wrong in (bucket, f"{bucket}/wrng"):
        for verb in VERBS:
            assert main(command(verb, wrong)) == 1
            told = capsys.readouterr().err
            assert told.endswith(f"near it are: {bucket}/kafka\n")
            assert LOOPBACK not in told
    open_store(f"{bucket}/kafka").put_bytes("epochs-0/0/one", b"1")
    for verb in VERBS:
        assert main(command(verb, f"{bucket}/kafka/epochs-0")) == 1
        assert f"it lies inside {bucket}/kafka" in capsys.readouterr().err
    assert main(["ls", f"{bucket}/kafka"]) == 0
    open_store(f"{bucket}/photos").put_bytes("one", b"1")
    assert main(["ls", f"{bucket}/photos"]) == 1
