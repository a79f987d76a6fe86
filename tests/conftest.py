"""Fixtures that several folders share."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kafka_tools.golden import DATA_DIR
from tests.proofs import THOROUGH, usually

# The background of a shell ignores Ctrl-C, and so would the tests of it and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no finding, and a run that anybody may repeat draws the same examples.
settings.register_profile(
    "tierlog",
    deadline=None,
    derandomize=not THOROUGH,
    max_examples=usually(100, thorough=1_000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tierlog")


@pytest.fixture
def broker_copy(tmp_path: Path) -> list[str]:
    """The log directories of the cleanly stopped golden broker, copied: a test may damage them."""
    copies = []
    for name in ("disk1", "disk2"):
        target = tmp_path / "broker" / name
        shutil.copytree(DATA_DIR / "clean" / name, target)
        copies.append(str(target))
    return copies
