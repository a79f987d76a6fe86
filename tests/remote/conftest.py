"""Stores and metadata managers that several test files need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_tools import KafkaBroker
from tests.remote.metadata_topics import new_topic, tiering_broker
from tests.remote.s3_server import S3_SERVERS, S3Server, running_s3_server


@pytest.fixture(scope="session", params=S3_SERVERS)
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """One S3 server of each kind per test process; every test takes its own bucket."""
    with running_s3_server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real cluster for metadata topics, with tiered storage on."""
    with tiering_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    return new_topic(broker)


def pytest_report_header() -> list[str]:
    """Says which servers are missed, and why."""
    if "versitygw" in S3_SERVERS:
        return []
    return ["S3: only moto runs; make test builds versitygw too, where there is Go"]
