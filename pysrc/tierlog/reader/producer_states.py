"""Finds the producer state at the start of a segment, from the broker's snapshots or from the
log."""

from __future__ import annotations

from collections.abc import Callable

from tierlog import _core
from tierlog.errors import CorruptDataError
from tierlog.log.files import read_small
from tierlog.log.log_dir import PartitionLog
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.segment_files import SegmentFiles

__all__ = ["ProducerStates"]

MAX_SNAPSHOT_BYTES = 256 << 20


class ProducerStates:
    """Finds producer states at the base offsets of a partition's segments, and keeps one state.

    ``log`` may be replaced by a later listing of the same log. ``earlier`` is called if the
    directory has no snapshot for its first offset, and returns the state before that offset.
    """

    def __init__(
        self, log: PartitionLog, earlier: Callable[[int], bytes | None] | None = None
    ) -> None:
        self.log = log
        self._earlier = earlier
        self._offset = -1
        self._snapshot: bytes | None = None

    def remember(self, offset: int, snapshot: bytes) -> None:
        """Keep `snapshot` as the state before `offset`."""
        self._offset, self._snapshot = offset, snapshot

    def before(self, segment: SegmentFiles) -> bytes | None:
        """Return the producer state before the segment. This is the kept state, the state in the
        broker's snapshot, or a state that is rebuilt from earlier segments. A broker that has no
        snapshot rebuilds its state in the same way. None if there are no producers."""
        if self._offset == segment.base_offset:
            return self._snapshot
        upto = [one for one in self.log.segments if one.base_offset <= segment.base_offset]
        to_scan: list[SegmentFiles] = []
        snapshot = _read_snapshot(upto[-1])
        while snapshot is None and len(upto) > 1:
            upto.pop()
            to_scan.append(upto[-1])
            snapshot = _read_snapshot(upto[-1])
        if snapshot is None and self._earlier is not None:
            snapshot = self._earlier(upto[-1].base_offset)
        for one in reversed(to_scan):
            snapshot = _rebuilt_snapshot(one, snapshot)
        return snapshot


def _rebuilt_snapshot(segment: SegmentFiles, snapshot: bytes | None) -> bytes:
    """Return the producer state at the end of `segment`, computed from the state at its start."""
    with segment.open() as handle:
        try:
            rebuilt = rebuild_indexes(
                handle, base_offset=segment.base_offset, producer_snapshot=snapshot
            )
        except CorruptDataError as error:
            raise error.located(segment.log_path) from None
    return rebuilt.producer_snapshot


def _read_snapshot(segment: SegmentFiles) -> bytes | None:
    """Return the broker's snapshot at the start of the segment; None when the snapshot is missing
    or damaged."""
    if segment.start_snapshot_path is None:
        return None
    try:
        data = read_small(segment.start_snapshot_path, MAX_SNAPSHOT_BYTES)
        _core.parse_producer_snapshot(data)
    except (OSError, CorruptDataError):
        return None
    return data
