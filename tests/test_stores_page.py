"""docs/STORES.md against the code: messages, names of variables, commands, the smallest policy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools.golden import DATA_DIR
from tests.kafka_tools.support import LOOPBACK, free_ports
from tests.remote.canned_server import CannedServer, canned_server
from tests.remote.s3_server import (
    ACCESS_KEY,
    S3_SERVERS,
    SECRET_KEY,
    VERSITYGW,
    S3Server,
    running_s3_server,
)
from tierlog.remote.segment.layout import claim_cluster

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "STORES.md").read_text(encoding="utf-8")
DISK = DATA_DIR / "clean" / "disk1"
URL_OF = {"AWS": "s3://bucket/x", "GOOGLE": "gs://bucket/x", "AZURE": "az://container/x"}
# Messages that other tests hold: they need a command, time, another machine or an HDFS.
HELD_ELSEWHERE = {
    "expected a store, found neither its marker cluster.json nor a segment; give the URL that "
    "`tierlog tier --to` has, prefix and all": "test_nearby.py",
    "no answer for 3 s, still waiting: ...; a request ends after ...": "test_s3_first_hours.py",
    "hdfs:// stores need the extra 'hdfs': pip install 'tierlog[hdfs]'": "test_hdfs_store.py",
    "AccessControlException: ...": "test_hdfs_store.py",
    "SafeModeException: ...": "test_hdfs_store.py",
    "no answer within 30 s": "test_hdfs_store.py",
}
USER, USER_SECRET = "tierlog-user", "tierlog-user-secret"
PART_BYTES = 8 << 20


def messages() -> list[str]:
    table = PAGE.partition("| Message | What to do |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    return [cell.removeprefix("| `").removesuffix("`") for cell in cells]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine leads to a store."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HADOOP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def text_of(work: Callable[[], object]) -> str:
    with pytest.raises((tierlog.TierlogError, OSError)) as caught:
        work()
    return str(caught.value)


def opened(url: str, **options: Any) -> Callable[[], object]:
    return lambda: tierlog.open_store(url, **options)


def listed(url: str, **options: Any) -> Callable[[], object]:
    return lambda: list(tierlog.open_store(url, **options).list())


def wrong_settings() -> Iterator[str]:
    """What opening a store says, before anything is asked."""
    yield text_of(opened("ftp://host"))
    yield text_of(opened("s3a://bucket/x"))
    yield text_of(opened("s3://key:secret@bucket/x"))
    yield text_of(opened("s3://bucket/x?sig=1"))
    yield text_of(opened("s3:///x"))
    yield text_of(opened("s3://bucket:80/x"))
    yield text_of(opened("file://folder/x"))
    yield text_of(opened("s3://bucket/x", acces_key="x"))
    yield text_of(opened("s3://bucket/x", timeout="1s"))
    yield text_of(opened("s3://bucket/x", endpoint="http://storage.example.com"))
    yield text_of(opened("s3://bucket/x", conditional_put="disabled"))
    yield text_of(opened("s3://bucket/x", access_key_id="x"))
    yield text_of(opened("gs://bucket/x", application_credentials="/none.json"))
    yield text_of(opened("az://container/x"))
    yield text_of(opened("az://container/x", account_name="a", account_key="!!"))
    yield text_of(opened("hdfs:///folder"))
    yield text_of(opened("hdfs://namenode/folder"))


def wrong_profiles(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "archive")
    for text in ("[plain]\nregion = x\n", "[archive]\nrole_arn = arn:x\n", "no section\n"):
        (folder / "credentials").write_text(text)
        yield text_of(opened("s3://bucket/x"))
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.delenv("AWS_PROFILE")


def without_credentials() -> Iterator[str]:
    quick: dict[str, Any] = {
        "client_options": {"timeout": "2s", "connect_timeout": "1s"},
        "retry_config": {"max_retries": 0},
    }
    yield text_of(listed("s3://bucket/x", **quick))
    yield text_of(listed("gs://bucket/x", **quick))
    yield text_of(listed("az://container/x", account_name="a", **quick))


def said_by_stores(server: CannedServer) -> Iterator[str]:
    """The answers are those that Amazon documents."""
    region = "the region 'us-east-1' is wrong; expecting 'eu-west-1'"
    for status, code, message in (
        (404, "NoSuchBucket", ""),
        (403, "InvalidAccessKeyId", ""),
        (403, "SignatureDoesNotMatch", ""),
        (403, "AccessDenied", ""),
        (400, "ExpiredToken", ""),
        (403, "RequestTimeTooSkewed", ""),
        (400, "AuthorizationHeaderMalformed", region),
        (301, "PermanentRedirect", ""),
        (501, "NotImplemented", ""),
        (503, "SlowDown", ""),
    ):
        server.say(status, code, message)
        yield text_of(lambda: list(server.open().list()))
    (port,) = free_ports(1)
    endpoint = {"endpoint": f"https://{LOOPBACK}:{port}", "skip_signature": "true"}
    yield text_of(listed("s3://bucket/x", **endpoint, retry_config={"max_retries": 0}))
    yield text_of(listed(f"hdfs://{LOOPBACK}:{port}/x", timeout_s=2))


def said_about_files(folder: Path) -> Iterator[str]:
    store = tierlog.open_store((folder / "tier").as_uri())
    yield text_of(lambda: list(store.list()))
    store.put_bytes("k", b"1")
    yield text_of(lambda: store.put_bytes("k", b"2"))
    (folder / "tier" / "link").symlink_to(folder)
    yield text_of(lambda: store.get_range("link", 0, 1))
    claim_cluster(store, "one")
    yield text_of(lambda: claim_cluster(store, "other"))


def test_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each message of the table is really said, and each that is provoked here is in the table."""
    patterns = {
        shown: re.compile(".*".join(map(re.escape, shown.split("...")))) for shown in messages()
    }
    assert len(patterns) > 40
    found: set[str] = set()
    with canned_server() as server:
        for said in (
            *wrong_settings(),
            *wrong_profiles(monkeypatch, tmp_path),
            *without_credentials(),
            *said_by_stores(server),
            *said_about_files(tmp_path),
        ):
            matching = {shown for shown, pattern in patterns.items() if pattern.search(said)}
            assert matching, said
            found |= matching
    assert patterns.keys() - found == HELD_ELSEWHERE.keys()


def is_known(url: str, option: str) -> bool:
    try:
        tierlog.open_store(url, **{option: "x"})
    except tierlog.ConfigError as error:
        # A value that cannot be is a value of an option that is known.
        return "is not valid for store" not in str(error)
    return True


def test_every_variable_is_an_option_of_its_store() -> None:
    """In lower case; those of S3 also without the first word."""
    names = set(re.findall(r"\b(?:AWS|GOOGLE|AZURE)_[A-Z0-9_]+[A-Z0-9]", PAGE))
    assert len(names) > 35
    # A client's option, what tierlog itself reads, and what the client knows as a variable only.
    client = ("_TIMEOUT", "_PROXY_URL", "_ROOT_CERTIFICATE", "_ALLOW_HTTP")
    ours = ("_PROFILE", "_CONFIG_FILE", "_SHARED_CREDENTIALS_FILE", "_ENDPOINT_URL_S3")
    stores = sorted(name for name in names if not name.endswith(client + ours))
    unknown = [n for n in stores if not is_known(URL_OF[n.partition("_")[0]], n.lower())]
    short = [name.removeprefix("AWS_").lower() for name in stores if name.startswith("AWS_")]
    assert unknown + [name for name in short if not is_known(URL_OF["AWS"], name)] == []


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


def test_the_commands_for_another_server(s3: S3Server, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = (
        block.replace("https://storage.example.com", s3.endpoint)
        .replace("AKIDEXAMPLE", ACCESS_KEY)
        .replace("secret-example", SECRET_KEY)
        .replace("s3://bucket", f"s3://{s3.new_bucket()}")
        .replace("/var/lib/kafka/data", str(DISK))
        .replace("--once", f"--once --state-dir {tmp_path / 'state'}")
    )
    environment = os.environ | {
        "AWS_ALLOW_HTTP": "true",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "codec-none" in done.stdout


class FailingError(Exception):
    """Ends an upload in parts."""


def failing_chunks() -> Iterator[bytes]:
    yield bytes(PART_BYTES)
    yield bytes(PART_BYTES)
    raise FailingError


def end_upload(store: tierlog.ObjectStore, s3: S3Server, bucket: str) -> None:
    with pytest.raises(FailingError):
        store.put_stream("failing", failing_chunks(), 3 * PART_BYTES)
    if s3.open_uploads(bucket):
        raise tierlog.RemoteStorageError("the upload was left open")


def refused(store: tierlog.ObjectStore, s3: S3Server, bucket: str) -> set[str]:
    """Which requests of tierlog fail, each kind once."""
    s3.client().put_object(Bucket=bucket, Key="kafka/k", Body=b"12345")
    large = bytes(2 * PART_BYTES)
    works: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list()),
        "get": lambda: store.get_range("k", 0, 5),
        "head": lambda: store.head("k"),
        "put": lambda: store.put_if_absent("new", b"1"),
        "put in parts": lambda: store.put_stream("large", iter([large]), len(large)),
        "end an upload": lambda: end_upload(store, s3, bucket),
        "delete": lambda: store.delete("k"),
    }
    failed = set()
    for name, work in works.items():
        try:
            work()
        except tierlog.RemoteStorageError:
            failed.add(name)
    return failed


@pytest.mark.integration
@pytest.mark.parametrize("kind", [kind for kind in S3_SERVERS if kind == "versitygw"])
def test_the_smallest_policy(kind: str) -> None:
    """With it every request of tierlog passes; without any of its actions one does not.

    moto enforces no policies; the head of the test report says when it is the only server.
    """
    (policy,) = map(json.loads, re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    needed = {action for one in policy["Statement"] for action in one["Action"]}
    reading = {"s3:GetObject", "s3:ListBucket"}
    with running_s3_server(kind) as server:
        command = [str(VERSITYGW), "admin", "-a", ACCESS_KEY, "-s", SECRET_KEY]
        user = ["--er", server.endpoint, "create-user", "-a", USER, "-s", USER_SECRET, "-r", "user"]
        subprocess.run([*command, *user], check=True, capture_output=True)

        def refused_with(actions: set[str]) -> set[str]:
            bucket = server.new_bucket()
            text = json.dumps(allowing(policy, actions)).replace(":::bucket", f":::{bucket}")
            server.client().put_bucket_policy(Bucket=bucket, Policy=text)
            keys = {"access_key_id": USER, "secret_access_key": USER_SECRET}
            # versitygw refuses one request for many objects although the policy allows deletion.
            keys["disable_bulk_delete"] = "true"
            store = tierlog.open_store(f"s3://{bucket}/kafka", **server.options() | keys)
            return refused(store, server, bucket)

        assert refused_with(needed) == set()
        for action in needed:
            assert refused_with(needed - {action}), action
        assert refused_with(reading) == {"put", "put in parts", "end an upload", "delete"}


def allowing(policy: dict[str, Any], actions: set[str]) -> dict[str, Any]:
    """The policy with these actions alone, for the user of the test."""
    statements = [
        one | {"Action": kept, "Principal": USER}
        for one in policy["Statement"]
        if (kept := sorted(set(one["Action"]) & actions))
    ]
    return policy | {"Statement": statements}
