"""What the commands say when the way to a bucket is not right yet: one clear line each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools.support import LOOPBACK
from tests.remote.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server
from tierlog.errors import ConfigError
from tierlog.remote.store.aws_profile import profile_options

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.new_bucket()


class Command:
    """`tierlog ls URL` in an environment with nothing but what is given here."""

    def __init__(self, home: Path, url: str, **environment: str) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tierlog", "ls", url],
            env=plain | {"HOME": str(home)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> tuple[int, str]:
        """Exit code and what is on stderr."""
        _, told = self.process.communicate(timeout=120)
        return self.process.returncode, told


def way(server: S3Server, *without: str) -> dict[str, str]:
    """The environment that leads to the server, without some variables."""
    return {name: text for name, text in server.environment().items() if name not in without}


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    ("without", "more", "name", "code", "told"),
    [
        ((), {}, "no-such-bucket", 1, "there is no such bucket: create it or correct the URL"),
        ((), {KEYS[1]: "wrong"}, "", 1, "the secret key is wrong: check AWS_SECRET_ACCESS_KEY"),
        ((), {KEYS[0]: "wrong"}, "", 1, "the access key is unknown: check AWS_ACCESS_KEY_ID"),
        (("AWS_ALLOW_HTTP",), {}, "", 2, "connect without encryption, set AWS_ALLOW_HTTP=true"),
        (KEYS, {"AWS_PROFILE": "none"}, "", 2, "found 'none'; the profiles are: plain"),
    ],
)
def test_one_clear_line(
    server: S3Server,
    bucket: str,
    tmp_path: Path,
    without: tuple[str, ...],
    more: dict[str, str],
    name: str,
    code: int,
    told: str,
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[profile plain]\nregion = eu-north-1\n")
    command = Command(tmp_path, f"s3://{name or bucket}/kafka", **way(server, *without) | more)
    found, text = command.ended()
    assert (found, text.count("\n")) == (code, 1), text
    assert told in text
    assert SECRET_KEY not in text


@pytest.mark.parametrize("named", [None, "archive"])
def test_a_profile_leads_to_the_bucket(
    server: S3Server, bucket: str, tmp_path: Path, named: str | None
) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    section = named or "default"
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (folder / "credentials").write_text(f"[other]\naws_access_key_id = x\n[{section}]\n{keys}")
    head = "[default]" if named is None else f"[profile {named}]"
    place = f"region = us-east-1\nendpoint_url = {server.endpoint}\n"
    (folder / "config").write_text(f"{head}\n{place}")
    chosen = {} if named is None else {"AWS_PROFILE": named}
    command = Command(tmp_path, f"s3://{bucket}/kafka", AWS_ALLOW_HTTP="true", **chosen)
    assert command.ended() == (0, "no partitions here: the store is empty\n")


def test_a_silent_server_is_told_of_before_its_deadline(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """The line comes while the request is still open, as the server closes it only afterwards."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        endpoint = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        environment = server.environment() | {"AWS_ENDPOINT_URL": endpoint, "AWS_TIMEOUT": "6s"}
        command = Command(tmp_path, f"s3://{bucket}/kafka", **environment)
        assert command.process.stderr is not None
        line = command.process.stderr.readline()
        assert command.process.poll() is None
        assert line.startswith(f"no answer for 3 s, still waiting: s3://{bucket}/kafka (list")
        assert "a request ends after 6s" in line
        code, told = command.ended()
    assert code == 1
    assert told.count("\n") == 1


def test_without_credentials_the_ways_to_give_some_are_named(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Also where the address at which AWS gives credentials to its machines does not answer."""
    environment = way(server, *KEYS) | {"AWS_TIMEOUT": "2s", "AWS_CONNECT_TIMEOUT": "1s"}
    code, told = Command(tmp_path, f"s3://{bucket}/kafka", **environment).ended()
    assert code == 1
    last = told.splitlines()[-1]
    assert "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in last


def test_keys_of_the_environment_win_over_those_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\nregion = r\n")
    place = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "HOME": str(tmp_path)}
    whole = {"access_key_id": "a", "secret_access_key": "b", "region": "r"}
    assert profile_options(place, ()) == whole
    assert profile_options(place | {"AWS_ACCESS_KEY_ID": "c"}, ()) == {"region": "r"}
    assert profile_options(place | {"AWS_REGION": "s"}, ["access_key_id"]) == {}
    assert profile_options({"HOME": str(tmp_path)}, ()) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[p]\nrole_arn = arn:x\n", "aws configure export-credentials --profile p"),
        ("no section = canary\n", "expected sections of key = value lines"),
    ],
)
def test_a_profile_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        profile_options({"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "p"}, ())
    assert "canary" not in str(caught.value)
