"""Stores and metadata managers that several test files need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.s3_server import S3_SERVERS, S3Server, running_s3_server


@pytest.fixture(scope="session", params=S3_SERVERS)
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """One S3 server of each kind per test process; every test takes its own bucket."""
    with running_s3_server(request.param) as server:
        yield server


def pytest_report_header() -> list[str]:
    """Says which servers are missed, and why."""
    if "versitygw" in S3_SERVERS:
        return []
    return [
        "S3: only moto runs; make test builds versitygw too, where Go and its registry are there"
    ]
