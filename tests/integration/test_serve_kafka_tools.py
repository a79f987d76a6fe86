"""Kafka's own tools against an archive server of the golden logs: a store and a directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_tools.support import KafkaToolsError
from tests.kafka_tools.tools import run_tool
from tests.node.golden_archive import LOG_DIR, golden_archive, records_of
from tests.node.running import serving

pytestmark = pytest.mark.integration

TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return golden_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def bootstrap(archive: str) -> Iterator[str]:
    with serving(archive, LOG_DIR) as server:
        yield server.bootstrap


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_console_consumer_prints_every_record(bootstrap: str, archive: str, level: str) -> None:
    committed = level == "read_committed"
    rows = records_of(LOG_DIR, "epochs", 0, store=archive, committed=committed)
    printed = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "epochs", "--partition", "0"),
        *("--offset", "earliest", "--isolation-level", level, "--max-messages", str(len(rows))),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
    )
    expected = [f"Offset:{offset}\t{text(key)}\t{text(value)}" for offset, key, value, _ in rows]
    assert printed.splitlines() == expected


def text(data: bytes | None) -> str:
    return "null" if data is None else data.decode()


def test_offsets_by_name(bootstrap: str, archive: str) -> None:
    rows = records_of(LOG_DIR, "epochs", 0, store=archive)

    def offset(time: str) -> int:
        printed = run_tool(
            f"{TOOLS}.GetOffsetShell",
            *("--bootstrap-server", bootstrap, "--topic", "epochs", "--time", time),
        )
        name, partition, found = printed.strip().split(":")
        assert (name, partition) == ("epochs", "0")
        return int(found)

    assert offset("earliest") == 0
    assert offset("latest") == rows[-1][0] + 1
    assert offset("earliest-local") == 0
    assert offset("latest-tiered") == offset("earliest-pending-upload") - 1
    assert 0 < offset("latest-tiered") < rows[-1][0]
    newest = max(row[3] for row in rows)
    assert offset("max-timestamp") == next(row[0] for row in rows if row[3] == newest)
    assert offset(str(rows[100][3])) == next(row[0] for row in rows if row[3] >= rows[100][3])


def test_topics_are_described(bootstrap: str) -> None:
    printed = run_tool(f"{TOOLS}.TopicCommand", "--bootstrap-server", bootstrap, "--describe")
    assert "Topic: epochs" in printed
    assert "PartitionCount: 1" in printed
    assert "Leader: 1" in printed


def test_sizes_of_directory_and_store(bootstrap: str, archive: str) -> None:
    printed = run_tool(f"{TOOLS}.LogDirsCommand", "--bootstrap-server", bootstrap, "--describe")
    assert "remote://" + archive.partition("://")[2] in printed
    assert LOG_DIR in printed
    assert '"partition":"epochs-0"' in printed


def test_settings_are_described(bootstrap: str) -> None:
    printed = run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--all"),
        *("--entity-type", "brokers", "--entity-name", "1"),
    )
    assert "remote.log.reader.threads=10" in printed
    printed = run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--all"),
        *("--entity-type", "topics", "--entity-name", "epochs"),
    )
    assert "remote.storage.enable=true" in printed


def test_changes_are_refused_with_a_reason(bootstrap: str) -> None:
    with pytest.raises(KafkaToolsError, match="read only"):
        run_tool(
            f"{TOOLS}.TopicCommand",
            *("--bootstrap-server", bootstrap, "--create", "--topic", "new"),
        )
    with pytest.raises(KafkaToolsError, match="read only"):
        run_tool(
            f"{TOOLS}.TopicCommand",
            *("--bootstrap-server", bootstrap, "--delete", "--topic", "epochs"),
        )
