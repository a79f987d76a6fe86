"""kcat, a command that its users know: it writes to a node, and reads from node and archive."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.node.golden_archive import TRANSACTIONS_LOG_DIR, Row, golden_archive, records_of
from tests.node.nodes import NodeProcess, running_node
from tests.node.running import PATIENCE_S, serving

LINES = [f"line {number}" for number in range(1000)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        for future in node.admin.create_topics([NewTopic("orders", 2, 1)]).values():
            future.result(PATIENCE_S)
        kcat(node.bootstrap_servers, "-P", "-t", "orders", "-p", "0", "-z", "snappy", lines=LINES)
        pair = ("-P", "-t", "orders", "-p", "1", "-K:", "-H", "source=kcat")
        kcat(node.bootstrap_servers, *pair, lines=["k1:v1", "k2:v2"])
        yield node


def kcat(bootstrap: str, *arguments: str, lines: list[str] | None = None) -> list[str]:
    """Run kcat with `lines` as its input, and return the lines that it prints."""
    result = subprocess.run(
        ["kcat", "-b", bootstrap, *arguments],
        input="".join(f"{line}\n" for line in lines or ()),
        capture_output=True,
        encoding="utf-8",
        # kcat prints the bytes of a record as they are.
        errors="surrogateescape",
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def read(bootstrap: str, topic: str, *arguments: str) -> list[Row]:
    """Read partition 0 up to its end."""
    command = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-J")
    found = [json.loads(line) for line in kcat(bootstrap, *command, *arguments)]
    return [(one["offset"], _bytes(one["key"]), _bytes(one["payload"]), one["ts"]) for one in found]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def test_what_kcat_writes_it_reads(node: NodeProcess) -> None:
    rows = read(node.bootstrap_servers, "orders", "-o", "beginning")
    assert [row[0] for row in rows] == list(range(1000))
    assert [row[2] for row in rows] == [line.encode() for line in LINES]
    assert read(node.bootstrap_servers, "orders", "-o", "-3") == rows[-3:]
    assert read(node.bootstrap_servers, "orders", "-o", "500") == rows[500:]
    command = ("-C", "-t", "orders", "-p", "1", "-e", "-q", "-f", "%o %k %s %h\n")
    assert kcat(node.bootstrap_servers, *command, "-o", "beginning") == [
        "0 k1 v1 source=kcat",
        "1 k2 v2 source=kcat",
    ]


def test_kcat_reads_by_time(node: NodeProcess) -> None:
    rows = read(node.bootstrap_servers, "orders", "-o", "beginning")
    at_ms = rows[500][3]
    expected = [row for row in rows if row[0] >= next(r[0] for r in rows if r[3] >= at_ms)]
    assert read(node.bootstrap_servers, "orders", "-o", f"s@{at_ms}") == expected
    (found,) = kcat(node.bootstrap_servers, "-Q", "-t", f"orders:0:{at_ms}")
    assert found == f"orders [0] offset {expected[0][0]}"


def test_kcat_lists_the_topics(node: NodeProcess) -> None:
    (text,) = kcat(node.bootstrap_servers, "-L", "-J")
    (topic,) = json.loads(text)["topics"]
    assert topic["topic"] == "orders"
    assert [(one["partition"], one["leader"]) for one in topic["partitions"]] == [(0, 1), (1, 1)]


def test_kcat_joins_a_group_and_goes_on_from_its_commits(node: NodeProcess) -> None:
    group = ("-G", "readers", "-q", "-X", "auto.offset.reset=earliest", "-f", "%p %o\n")
    first = kcat(node.bootstrap_servers, *group, "-c", "400", "orders")
    rest = kcat(node.bootstrap_servers, *group, "-c", "602", "orders")
    expected = [f"0 {offset}" for offset in range(1000)] + ["1 0", "1 1"]
    assert sorted(first + rest) == sorted(expected)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_kcat_reads_an_archive(tmp_path: Path, level: str) -> None:
    url = golden_archive(tmp_path, TRANSACTIONS_LOG_DIR)
    expected = records_of(url, "transactions", 0, committed=level == "read_committed")
    with serving(url) as server:
        isolated = ("-X", f"isolation.level={level}")
        rows = read(server.bootstrap, "transactions", "-o", "beginning", *isolated)
        assert rows == expected
        middle = expected[len(expected) // 2][0]
        from_middle = read(server.bootstrap, "transactions", "-o", str(middle), *isolated)
        assert from_middle == [row for row in expected if row[0] >= middle]
