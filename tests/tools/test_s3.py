"""The read-side verbs on a bucket, reached as a user does: a URL and the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.s3_server import (
    S3_SERVERS,
    SECRET_KEY,
    S3Server,
    running_s3_server,
)
from tierlog.cli import main


@pytest.fixture(scope="module", params=S3_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with running_s3_server(request.param) as started:
        yield started


@pytest.fixture
def bucket(
    server: S3Server, golden_store: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[S3Server, str]:
    """A bucket with the golden store under a prefix, and the environment that leads there."""
    name = server.bucket_of(golden_store, "kafka")
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    return server, f"s3://{name}/kafka"


@pytest.mark.integration
def test_list_read_and_verify_a_bucket(
    bucket: tuple[S3Server, str],
    golden_store: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    server, url = bucket
    assert main(["ls", url, "--format", "json"]) == 0
    from_bucket = json.loads(capsysbinary.readouterr().out)
    assert main(["ls", golden_store.as_uri(), "--format", "json"]) == 0
    assert from_bucket == json.loads(capsysbinary.readouterr().out)

    assert main(["cat", url, "epochs:0", "-J"]) == 0
    lines = capsysbinary.readouterr().out
    assert main(["cat", golden_store.as_uri(), "epochs:0", "-J"]) == 0
    assert lines == capsysbinary.readouterr().out

    assert main(["verify", url, "--deep"]) == 0
    capsysbinary.readouterr()
    name = url.split("/")[2]
    held = server.client().list_objects_v2(Bucket=name, Prefix="kafka/epochs-")["Contents"]
    log = next(one["Key"] for one in held if one["Key"].endswith(".log"))
    server.client().delete_object(Bucket=name, Key=log)
    assert main(["verify", url]) == 1
    assert b"indexes_without_log" in capsysbinary.readouterr().out


@pytest.mark.integration
def test_no_such_bucket_is_one_line(
    bucket: tuple[S3Server, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (["ls"], ["verify"], ["cat"]):
        topic = ["epochs:0"] if verb == ["cat"] else []
        assert main([*verb, "s3://no-such-bucket/kafka", *topic]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert SECRET_KEY not in captured.err
