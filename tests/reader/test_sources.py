"""Places as somebody who comes from Spark writes them: taken, or refused with what to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main
from tierlog.errors import ConfigError
from tierlog.reader.sources import Source, SourceKind, source_of

LOG_DIR = DATA_DIR / "clean" / "disk1"


@pytest.mark.parametrize("slashes", ["/", "///"])
def test_a_store_of_files(slashes: str, tmp_path: Path) -> None:
    url = f"file:{slashes}{str(tmp_path).lstrip('/')}"
    assert source_of(url) == Source(SourceKind.STORE, tmp_path.as_uri())


@pytest.mark.parametrize("slashes", ["/", "///"])
def test_the_url_of_a_log_directory(slashes: str) -> None:
    with pytest.raises(ConfigError, match=f"found a broker's log directory; write {LOG_DIR}"):
        source_of(f"file:{slashes}{str(LOG_DIR).lstrip('/')}")


def test_a_folder_whose_name_looks_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copy_log_dir(tmp_path, "clean/disk1", "headers-0")
    (tmp_path / "a:").mkdir()
    copied.rename(tmp_path / "a:" / "logs")
    monkeypatch.chdir(tmp_path)
    assert source_of("a:/logs").kind is SourceKind.LOG_DIR


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("s3a://bucket/kafka", "s3://bucket/prefix"),
        ("dbfs:/kafka", "/dbfs/... for a log"),
    ],
)
@pytest.mark.parametrize("verb", [["ls"], ["verify"], ["index", "rebuild"]])
def test_a_scheme_of_hadoop(
    verb: list[str], source: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb, source]) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--to", "--report"])
@pytest.mark.parametrize("url", ["file:/indexes", "s3a://bucket/indexes", "dbfs:/indexes"])
def test_a_url_where_a_folder_is_meant(
    url: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not a folder of that name beneath the current one."""
    monkeypatch.chdir(tmp_path)
    given = {"--to": str(tmp_path / "to"), "--report": str(tmp_path / "report"), option: url}
    options = [part for pair in given.items() for part in pair]
    assert main(["index", "rebuild", str(LOG_DIR), *options]) == 2
    assert f"{url}: expected a folder of this machine, found a URL" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["--to", "--report"])
@pytest.mark.parametrize("below", ["", "folder/of/it"])
def test_a_file_where_a_folder_is_meant(
    below: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before anything is scanned."""
    file = tmp_path / "file"
    file.touch()
    given = {"--to": str(tmp_path / "to"), option: str(file / below)}
    options = [part for pair in given.items() for part in pair]
    assert main(["index", "rebuild", str(LOG_DIR), *options]) == 2
    assert f"expected a folder, found the file {file}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file"]


def test_a_report_in_the_log_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0")
    before = sorted(os.listdir(source))
    command = ["index", "rebuild", str(source), "--to", str(tmp_path / "to"), "--report"]
    for inside in (source, source / "report"):
        assert main([*command, str(inside)]) == 2
        assert "expected a folder outside of" in capsys.readouterr().err
    assert sorted(os.listdir(source)) == before
    assert not (tmp_path / "to").exists()


def test_a_folder_that_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Too deep for the archives of other tests to be near.
    folder = tmp_path / "a/b/c/d/e/f/g/h/i"
    folder.mkdir(parents=True)
    assert main(["index", "rebuild", folder.as_uri()]) == 1
    told = capsys.readouterr().err
    assert "found neither its marker cluster.json nor a segment" in told
    assert "give the URL that `tierlog tier --to` has" in told
