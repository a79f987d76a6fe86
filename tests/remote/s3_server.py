"""A real S3 endpoint on loopback: moto's server in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import boto3  # type: ignore[import-untyped]

from tests.kafka_tools.support import LOOPBACK, free_ports, wait_until

ACCESS_KEY = "AKIDCANARY0001"
SECRET_KEY = "canary-secret-key-0002"
START_TIMEOUT_S = 60


@dataclass
class S3Server:
    """Where the server listens, and buckets on demand."""

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


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/moto-api/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """A started server; it is stopped by its process id at the end."""
    (port,) = free_ports(1)
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
        )
        try:
            wait_until(lambda: _answers(port), START_TIMEOUT_S, what="S3 server")
            yield S3Server(port=port, process_id=process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)
