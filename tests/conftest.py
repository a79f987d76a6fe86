"""Fixtures that several folders share."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kafka_tools.golden import DATA_DIR
from tests.proofs import EXAMPLES, THOROUGH

# The background of a shell ignores Ctrl-C, and so would the tests of it and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A JVM of a test is gone before it could be faster for having thought.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Whole files go to whoever is free: those that take minutes come first, so that nobody is left
# alone with one in the end.
LONG = (
    "test_benches.py",
    "histories",
    "integration",
    "reliability",
    "spark",
    "packaging",
    "remote",
)

# A busy machine is no finding, and a run that anybody may repeat draws the same examples.
settings.register_profile(
    "tierlog",
    deadline=None,
    derandomize=not THOROUGH,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tierlog")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        found = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(found) if found in LONG else len(LONG)

    items.sort(key=place)


@pytest.fixture
def broker_copy(tmp_path: Path) -> list[str]:
    """The log directories of the cleanly stopped golden broker, copied: a test may damage them."""
    copies = []
    for name in ("disk1", "disk2"):
        target = tmp_path / "broker" / name
        shutil.copytree(DATA_DIR / "clean" / name, target)
        copies.append(str(target))
    return copies
