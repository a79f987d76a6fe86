"""What users read when the way to a cloud store is not right yet; the stores' part of the words is
a canned answer over real HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools.support import LOOPBACK
from tests.remote.canned_server import CannedServer, canned_server
from tierlog.errors import ConfigError, RemoteStorageError
from tierlog.remote.urls import open_store

ONCE = {"max_retries": 0}


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with canned_server() as started:
        yield started


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine leads to a store."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://bucket/x", {}, "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/x", {}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container/x", {"account_name": "a"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_without_credentials_those_of_the_store_are_named(
    url: str, options: dict[str, str], named: str
) -> None:
    waits = {"timeout": "2s", "connect_timeout": "1s"}
    store = open_store(url, client_options=waits, retry_config=ONCE, **options)
    with pytest.raises(RemoteStorageError, match=f"no credentials found: set .*{named}") as caught:
        list(store.list())
    assert caught.value.retriable


@pytest.mark.parametrize(
    ("url", "variable", "option"),
    [
        ("s3://bucket/x", "AWS_ENDPOINT_URL_S3", "endpoint"),
        ("gs://bucket/x", "GOOGLE_BASE_URL", "base_url"),
        ("az://container/x", "AZURE_STORAGE_ENDPOINT", "azure_storage_endpoint"),
        ("az://container/x", "AZURE_ENDPOINT", "azure_endpoint"),
    ],
)
def test_an_endpoint_without_encryption_has_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str, option: str
) -> None:
    endpoint = f"http://{LOOPBACK}:1"
    allow = f"set {variable.partition('_')[0]}_ALLOW_HTTP=true"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    with pytest.raises(ConfigError, match=f"found {option} = .*{allow}"):
        open_store(url, **{option: endpoint})
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(ConfigError, match=f"found {variable} = .*{allow}"):
        open_store(url)
    monkeypatch.setenv(allow.removeprefix("set ").partition("=")[0], "true")
    assert open_store(url).url == url


def test_a_store_without_conditional_puts_is_refused_in_one_line(server: CannedServer) -> None:
    server.say(501, "NotImplemented", "A header implies functionality that is missing.")
    store = server.open()
    for put in (store.put_bytes, store.put_if_absent):
        with pytest.raises(RemoteStorageError, match=r"tierlog needs conditional puts") as caught:
            put("k", b"1")
        assert not caught.value.retriable


def test_conditional_puts_cannot_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, server: CannedServer
) -> None:
    with pytest.raises(ConfigError, match="expected conditional puts"):
        server.open(conditional_put="disabled")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(ConfigError, match="expected conditional puts"):
        server.open()


def test_a_refusal_without_words_is_one_line(server: CannedServer) -> None:
    """The answer to a HEAD request has no body."""
    server.status = 403
    with pytest.raises(RemoteStorageError, match=r"k: access is denied: .*rights") as caught:
        server.open().head("k")
    assert not caught.value.retriable
