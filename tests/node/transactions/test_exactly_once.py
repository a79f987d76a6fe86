"""Records are read, processed and written exactly once, although the node and its client are
killed again and again in the middle of transactions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.node.nodes import NodeProcess, running_node
from tests.node.transactions.clients import Reader, begin, create, transactional

RECORDS, KILLS = 1500, 6
SMALL = {"internal.segment.bytes": "30000"}


@contextmanager
def copier(node: NodeProcess, seed: int) -> Iterator[subprocess.Popen[str]]:
    """A process that copies until it is done, or is killed at the end."""
    arguments = [node.bootstrap_servers, str(seed), str(RECORDS - 1)]
    module = "tests.node.transactions.copier"
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def copy_until_killed(node: NodeProcess, chance: Random) -> str:
    """Kill the node and its client after some steps; return the last one."""
    step, count = "", chance.randint(1, 20)
    with copier(node, chance.randrange(1000)) as process:
        assert process.stdout is not None
        for _ in range(count):
            step = process.stdout.readline()
        node.kill()
    return step


def read(node: NodeProcess) -> list[bytes]:
    """Return the committed copies."""
    found: list[bytes] = []
    for partition in range(2):
        reader = Reader(node, "out", partition)
        found += reader.values()
        reader.close()
    return found


@pytest.mark.parametrize("seed", range(int(os.environ.get("CRASHES", "1"))))
def test_every_record_is_copied_exactly_once(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    values = [b"%06d" % number * 5 for number in range(RECORDS)]
    with running_node(tmp_path) as node:
        create(node, "in")
        create(node, "out", 2, SMALL)
        source = transactional(node, "source")
        begin(source, "in", values)
        source.commit_transaction(60)
    for _ in range(KILLS):
        with running_node(tmp_path) as node:
            assert copy_until_killed(node, chance) != ""
    with running_node(tmp_path) as node:
        with copier(node, seed) as process:
            assert process.wait(120) == 0
        assert sorted(read(node)) == values
