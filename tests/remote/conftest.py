"""Stores and metadata managers that several test files need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.s3_server import S3Server, running_s3_server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server per test process; every test takes its own bucket."""
    with running_s3_server() as server:
        yield server
