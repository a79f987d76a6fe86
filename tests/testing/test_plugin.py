"""The pytest plugin, as a suite of another project uses it: pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "TESTING.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PLUGIN = "tierlog.testing.plugin"


def run_suite(folder: Path, source: str, *options: str) -> str:
    """Run a test file in an empty folder, with errors for warnings; return what pytest shows."""
    (folder / "test_them.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q"]
    command += ["-W", "error", "--rootdir", str(folder)]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def block_with(text: str) -> str:
    (found,) = [block for block in BLOCKS if text in block]
    return found


@pytest.mark.parametrize("client", ["import Consumer", "aiokafka", "pyspark"])
def test_the_examples_of_the_page_pass(client: str, tmp_path: Path) -> None:
    assert "1 passed" in run_suite(tmp_path, block_with(client))


def test_the_settings_of_a_suite_are_those_of_its_node(tmp_path: Path) -> None:
    code = """
def test_it(tierlog_node):
    quota = tierlog_node._node.cluster.tier.manager.copy_quota
    assert quota.limit == 1048576
"""
    assert "1 passed" in run_suite(tmp_path, block_with("tierlog_node_settings") + code)


def test_workers_have_nodes_of_their_own(tmp_path: Path) -> None:
    code = """
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

@pytest.mark.parametrize("number", range(6))
def test_it(tierlog_node, number):
    tierlog_node.create_topic("orders")
    servers = {"bootstrap.servers": tierlog_node.bootstrap_servers}
    producer = Producer(servers)
    producer.produce("orders", b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    tierlog_node.tier_now()
    consumer = Consumer({**servers, "group.id": "readers"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert consumer.poll(30).value() == b"%d" % number
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), 30) == (0, 1)
    consumer.close()
"""
    assert "6 passed" in run_suite(tmp_path, code, "-n", "2")


def test_a_suite_that_uses_no_node_loads_none_of_its_parts(tmp_path: Path) -> None:
    code = """
import sys

def test_it(tmp_path):
    loaded = [name for name in sys.modules if name.startswith("tierlog")]
    assert sorted(loaded) == ["tierlog", "tierlog.testing", "tierlog.testing.plugin"]
    assert not {"numpy", "kafka", "obstore"} & set(sys.modules)
"""
    assert "1 passed" in run_suite(tmp_path, code)
