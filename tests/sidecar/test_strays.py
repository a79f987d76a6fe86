"""Interrupted copies of partitions that this broker does not lead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.remote.segment.sections import DESCRIPTION
from tierlog.clock import ManualClock
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore
from tierlog.sidecar.strays import StraySettler
from tierlog.tiering.copy import SegmentCopier

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@pytest.mark.parametrize("is_own", [True, False])
def test_copy_of_another_broker_in_shared_metadata_is_not_touched(
    tmp_path: Path, is_own: bool
) -> None:
    """Its objects are not complete because that broker is still copying."""
    segment = replace(DESCRIPTION.metadata, state=STARTED)
    metadata = InMemoryRemoteLogMetadataManager()
    metadata.add(segment)
    copier = SegmentCopier(
        ObjectStorageManager(LocalStore(tmp_path / "store")),
        metadata,
        clock=ManualClock(),
        broker_id=segment.broker_id + (not is_own),
    )
    warnings: list[str] = []
    StraySettler(metadata, copier).settle((), warnings.append)
    found = metadata.get(segment.segment_id)
    assert (found is None) is is_own
    assert len(warnings) == is_own
