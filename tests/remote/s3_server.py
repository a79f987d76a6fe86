"""S3 endpoints on loopback, each in a process of its own: moto, which starts in a second, and
versitygw, a real S3 server over a directory, once ``python -m tests.remote.s3_server`` has built it
(``make test`` does, where there is a Go toolchain)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]

from tests.kafka_tools.support import LOOPBACK, free_ports, wait_until

ACCESS_KEY = "AKIDCANARY0001"
SECRET_KEY = "canary-secret-key-0002"
START_TIMEOUT_S = 60
START_ATTEMPTS = 3
BUILD_TIMEOUT_S = 900
CACHE_DIR = Path(__file__).parents[2] / ".cache" / "versitygw"
VERSITYGW_SOURCE = "github.com/versity/versitygw/cmd/versitygw"
VERSITYGW_VERSION = "v1.7.0"
MOTO = (sys.executable, "-W", "ignore", "-m", "moto.server")
VERSITYGW = CACHE_DIR / VERSITYGW_VERSION / "versitygw"
S3_SERVERS = ("moto", "versitygw") if VERSITYGW.exists() else ("moto",)


@dataclass
class S3Server:
    """Where the server listens, and buckets on demand."""

    kind: str
    port: int
    process_id: int
    _bucket_numbers: count[int] = field(default_factory=count)

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def options(self) -> dict[str, Any]:
        """What `open_store` needs to reach this server; failures come back fast."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 1},
        }

    def environment(self) -> dict[str, str]:
        """The variables by which a command finds this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ALLOW_HTTP": "true",
        }

    def client(self) -> Any:
        """boto3's client: another implementation to look at the bucket with."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def new_bucket(self) -> str:
        name = f"bucket-{next(self._bucket_numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def open_uploads(self, bucket: str) -> list[str]:
        """Keys of the uploads in parts that were neither completed nor ended."""
        listed = self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return [upload["Key"] for upload in listed]

    def bucket_of(self, folder: Path, prefix: str) -> str:
        """A new bucket with the files of `folder` under `prefix`."""
        name, client = self.new_bucket(), self.client()
        for path in folder.rglob("*"):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                client.put_object(Bucket=name, Key=key, Body=path.read_bytes())
        return name


def _moto_answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/moto-api/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 5).close()
    except OSError:
        return False
    return True


@contextmanager
def running_s3_server(kind: str = S3_SERVERS[-1]) -> Iterator[S3Server]:
    """A started server of a kind of `S3_SERVERS`, the real one where there is one; it is stopped by
    its process id at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        output = stack.enter_context(tempfile.TemporaryFile())
        for _ in range(START_ATTEMPTS):
            (port,) = free_ports(1)
            process = subprocess.Popen(
                _command(kind, port, Path(folder)),
                stdout=output,
                stderr=output,
                env=os.environ | {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            if _is_up(process, kind, port):
                break
        assert process.poll() is None, f"S3 server {kind} did not start"
        yield S3Server(kind=kind, port=port, process_id=process.pid)


def _command(kind: str, port: int, folder: Path) -> list[str]:
    if kind == "moto":
        return [*MOTO, "-H", LOOPBACK, "-p", str(port)]
    data, users = folder / "data", folder / "users"
    data.mkdir(exist_ok=True)
    users.mkdir(exist_ok=True)
    command = [str(VERSITYGW), "--port", f"{LOOPBACK}:{port}", "--quiet"]
    return [*command, "--iam-dir", str(users), "posix", str(data)]


def _is_up(process: subprocess.Popen[bytes], kind: str, port: int) -> bool:
    """Once it answers, or has ended because somebody else took the port meanwhile."""
    answers = _moto_answers if kind == "moto" else _answers
    wait_until(
        lambda: process.poll() is not None or answers(port),
        START_TIMEOUT_S,
        what=f"S3 server {kind}",
    )
    # It may be the other one that answers, while this one is about to end.
    return process.poll() is None


def build_versitygw() -> None:
    """From its released source, unless that was done before."""
    if not VERSITYGW.exists():
        folder = VERSITYGW.parent / "building"
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["go", "install", f"{VERSITYGW_SOURCE}@{VERSITYGW_VERSION}"],
            check=True,
            env=os.environ | {"GOBIN": str(folder), "GOFLAGS": "-trimpath"},
            timeout=BUILD_TIMEOUT_S,
        )
        os.replace(folder / "versitygw", VERSITYGW)


if __name__ == "__main__":
    try:
        build_versitygw()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"versitygw: {error}")
