"""What a malformed store URL says of itself: never the credentials in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tierlog.cli import main
from tierlog.errors import ConfigError
from tierlog.remote.urls import open_store
from tierlog.types import shown_url

SECRET = "s3cr3t"
MALFORMED = [
    f"s3://key:{SECRET}@bucket/p",
    f"s3:/user:{SECRET}@bucket",
    f"s3:///user:{SECRET}@bucket",
    f"s3://user:{SECRET}/x@bucket/p",
    f"s3://u:{SECRET}@[bad/p",
    f"S3 ://u:{SECRET}@b",
    f"ftp://u:{SECRET}@host/p",
    f"hdfs://u:{SECRET}@nn:abc/p",
    f"file://u:{SECRET}@host/p",
    f"file://u:x/{SECRET}@host/p",
    f"kafka+s3://u:{SECRET}@b/p",
    f"kafka+s3:/u:{SECRET}@b/p",
    f"az://container/p?sig={SECRET}",
    f"ftp://host/p?sig={SECRET}",
    f"s3:?sig={SECRET}",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_malformed_urls_do_not_echo_credentials(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert SECRET not in str(raised.value)
    log_dir = str(DATA_DIR / "clean" / "disk1")
    state = str(tmp_path / "state")
    for command in (
        ["ls", url],
        ["verify", url],
        ["cat", url, "orders:0"],
        ["cat", log_dir, "epochs:0", "--store", url],
        ["tier", log_dir, "--to", url, "--once", "--state-dir", state],
        ["index", "rebuild", url],
    ):
        assert main(command) != 0
        captured = capsys.readouterr()
        assert captured.err, command
        assert SECRET not in captured.err + captured.out, command


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/data/@kafka", "/data/@kafka"),
        ("s3://u:p@bucket/x", "s3://***@bucket/x"),
        ("az://c/p?sig=x#y", "az://c/p?***"),
    ],
)
def test_the_rest_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
