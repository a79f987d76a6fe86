"""Checks that the store has the objects of all finished segments, and repairs some defects.

A check lists the objects of one partition and verifies the segments with missing objects. With
``repair`` it compares every byte of every object. Repairs lose no records:

* a missing or damaged `.indexes` object is rebuilt from its `.log` object;
* a segment with a damaged `.log` object is copied again if the broker still has the records; only
  after this copy the damaged segment is removed;
* a segment that a deposed leader finished after a takeover is removed when other segments hold its
  offsets;
* a segment that neither the store nor the broker has is reported as lost and is not changed.

The check changes nothing while the store does not answer or has no cluster marker (a volume that is
not mounted). The copy task calls it in its thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierlog.errors import (
    CorruptDataError,
    FencedLeaderError,
    RemoteMetadataError,
    RemoteStorageError,
)
from tierlog.log.eligibility import Coverage
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.bucket import deposed_copy, is_left_out
from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    is_segment_key,
    log_key,
    parse_key,
    parse_takeover,
)
from tierlog.tiering.copy import SegmentRefusedError
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import Happened, PartitionWork
from tierlog.tiering.restore import StoredObjects, adopt_log_object, restore_indexes, seems_whole
from tierlog.types import RemoteLogSegmentId

__all__ = ["StoreCheck"]

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
# Time to the next check when the store did not answer, unless the interval is shorter.
_AGAIN_MS = 300_000
_NO_REPAIR = (
    "the broker no longer has these records: restore the objects from a backup or an older version "
    "in the bucket"
)


class StoreCheck:
    """Checks one partition while this node leads it under one leader epoch."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work
        self._tier = work.tier
        self._due_ms = 0
        store = work.tier.storage.store
        # None when the storage manager does not use tierlog's keys.
        self._objects = None if store is None else StoredObjects(store)
        self._must_clean = work.tier.repair and store is not None

    def is_due(self) -> bool:
        """Return whether a check is due: at the start and then once per interval."""
        if self._objects is None:
            return False
        if self._tier.check_interval_ms is None and not self._must_clean:
            return False
        return self._tier.clock.monotonic_ms() >= self._due_ms

    @property
    def has_work(self) -> bool:
        """Whether `drop_replaced` or `clean` may have work after a copy."""
        return self._must_clean or bool(self._work.broken)

    def run(self, view: LogView) -> bool:
        """Check every finished segment; return whether the broken segments have changed."""
        interval_ms = self._tier.check_interval_ms
        now_ms = self._tier.clock.monotonic_ms()
        before = frozenset(self._work.broken)
        try:
            if self._objects is not None:
                self._check(view, self._objects)
        except RemoteStorageError as error:
            self._work.report(Happened.NOT_CHECKED, 0, 0, text=str(error))
            interval_ms = _AGAIN_MS if interval_ms is None else min(interval_ms, _AGAIN_MS)
        self._due_ms = 2**63 if interval_ms is None else now_ms + interval_ms
        return self._work.broken.keys() != before

    def _check(self, view: LogView, objects: StoredObjects) -> None:
        segments = self._list_finished()
        listed = objects.list_partition(self._work.partition)
        broken: dict[str, RemoteLogSegmentMetadata] = {}
        for segment in segments:
            if not self._tier.repair and seems_whole(segment, listed):
                continue
            problems = self._tier.storage.verify(segment, deep=self._tier.repair)
            if not problems:
                continue
            objects.require_marker()
            known = self._tier.metadata.get(segment.segment_id)
            if known is None or known.state is not _FINISHED:
                continue
            text = "; ".join(map(str, problems))
            log_is_bad = any(problem.key == log_key(segment) for problem in problems)
            if log_is_bad or not self._restore_indexes(view, objects, segment, listed, text):
                broken[segment.segment_id.id] = segment
                self._report_broken(view, segment, text)
        self._work.broken = broken
        self._remove_left_out(objects, listed)

    def _remove_left_out(self, objects: StoredObjects, listed: Mapping[str, int]) -> None:
        """Remove segments that a deposed leader finished too late, if other segments hold their
        offsets."""
        takeovers = [taken[1] for key in listed if (taken := parse_takeover(key)) is not None]
        if not takeovers:
            return
        held = Coverage((one.start_offset, one.served_end_offset) for one in self._list_sound())
        unknown = [key for key in sorted(listed) if self._is_unknown(key)]
        for key in unknown:
            told = objects.describe(key) if key.endswith(INDEXES_SUFFIX) else None
            if told is None or not is_left_out(told, takeovers):
                continue
            if held.holds(told.metadata.start_offset, told.metadata.end_offset):
                objects.delete(key)
                objects.delete(log_key(told.metadata))
                problem = deposed_copy(told)
                self._work.report_segment(
                    Happened.REPAIRED, told.metadata, "object_removed", str(problem)
                )

    def _restore_indexes(
        self,
        view: LogView,
        objects: StoredObjects,
        segment: RemoteLogSegmentMetadata,
        listed: Mapping[str, int],
        problems: str,
    ) -> bool:
        try:
            restore_indexes(self._work, objects, view, segment, listed)
        except (CorruptDataError, SegmentRefusedError):
            return False
        self._work.report_segment(Happened.REPAIRED, segment, "indexes_rebuilt", problems)
        return True

    def _report_broken(self, view: LogView, segment: RemoteLogSegmentMetadata, text: str) -> None:
        if _local_offsets(view).holds(segment.start_offset, segment.served_end_offset):
            self._work.report_segment(Happened.BROKEN, segment, "broken", text)
        else:
            self._work.report_segment(Happened.LOST, segment, "lost", f"{text}; {_NO_REPAIR}")

    def _list_finished(self) -> list[RemoteLogSegmentMetadata]:
        segments = self._tier.metadata.list(self._work.partition)
        return [segment for segment in segments if segment.state is _FINISHED]

    # -- after the copies

    def drop_replaced(self, copied: Coverage) -> None:
        """Remove each broken segment whose offsets are all in sound segments."""
        for name, segment in tuple(self._work.broken.items()):
            if copied.holds(segment.start_offset, segment.served_end_offset):
                self._delete(segment)
                self._work.broken = {
                    key: one for key, one in self._work.broken.items() if key != name
                }

    def clean(self, view: LogView) -> None:
        """Remove duplicate segments and objects without a segment, and add segments for `.log`
        objects that lack a sound `.indexes` object. This is done once, after the last copy, and
        only with ``repair``."""
        objects = self._objects
        if objects is None or not self._must_clean:
            return
        self._must_clean = False
        for segment in _find_duplicates(self._list_sound()):
            self._delete(segment)
            self._work.report_segment(
                Happened.REPAIRED, segment, "copy_removed", "another segment has the same bytes"
            )
        listed = objects.list_partition(self._work.partition)
        unknown = [key for key in sorted(listed) if self._is_unknown(key)]
        for key in unknown:
            self._clean_object(view, objects, key, listed)

    def _list_sound(self) -> list[RemoteLogSegmentMetadata]:
        broken = self._work.broken
        return [one for one in self._list_finished() if one.segment_id.id not in broken]

    def _is_unknown(self, key: str) -> bool:
        """Return whether `key` is an object of a segment that the metadata does not know."""
        if not is_segment_key(key):
            return False
        name = parse_key(key).segment_id
        segment_id = RemoteLogSegmentId(topic_id_partition=self._work.partition, id=name)
        return self._tier.metadata.get(segment_id) is None

    def _clean_object(
        self, view: LogView, objects: StoredObjects, key: str, listed: Mapping[str, int]
    ) -> None:
        base_offset, size_bytes = parse_key(key).base_offset, listed[key]
        work = self._work
        held = any(
            one.start_offset <= base_offset <= one.served_end_offset for one in self._list_sound()
        )
        is_old = key.endswith(INDEXES_SUFFIX) and _is_below_log_start(objects, key, view)
        if held or is_old:
            objects.delete(key)
            why = "others hold its offsets" if held else "its records are below the log start"
            text = f"{key}: no segment has this object, and {why}"
            work.report(
                Happened.REPAIRED, base_offset, size_bytes, reason="object_removed", text=text
            )
        elif key.endswith(LOG_SUFFIX) and objects.describe(_other_key(key)) is None:
            try:
                adopt_log_object(work, objects, view, key, listed)
            except (CorruptDataError, SegmentRefusedError, ValueError) as error:
                text = f"{key}: left as it is: {error}; {_NO_REPAIR}"
                work.report(Happened.LOST, base_offset, size_bytes, reason="lost", text=text)
            else:
                damage = "damaged" if _other_key(key) in listed else "missing"
                text = f"{key}: its .indexes object was {damage}"
                work.report(
                    Happened.REPAIRED, base_offset, size_bytes, reason="indexes_rebuilt", text=text
                )

    def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        name = segment.segment_id.id
        if not self._work.delete_begins(name):
            return
        try:
            self._tier.copier.delete(segment, leader_epoch=self._work.leader_epoch)
        except FencedLeaderError:
            raise
        except (RemoteStorageError, RemoteMetadataError) as error:
            # The expiration task completes the deletion.
            self._work.report_segment(Happened.DELETE_FAILED, segment, "failed", str(error))
        finally:
            self._work.delete_ended(name)


def _is_below_log_start(objects: StoredObjects, key: str, view: LogView) -> bool:
    """Return whether retention would have deleted the segment of an `.indexes` object without a
    `.log` object. Left there, it would fail every read from the log start."""
    told = objects.describe(key)
    start = view.log_start_offset
    return told is not None and start is not None and told.metadata.end_offset < start


def _local_offsets(view: LogView) -> Coverage:
    """Return the offsets of the rolled local segments."""
    start = view.log.log_start_offset or 0
    return Coverage(
        (max(start, one.base_offset), one.next_base_offset - 1)
        for one in view.log.rolled_segments
        if one.next_base_offset is not None
    )


def _find_duplicates(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> list[RemoteLogSegmentMetadata]:
    """Return each segment that has the same offsets, epochs and bytes as an earlier segment."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for one in sorted(segments, key=lambda one: (one.event_timestamp_ms, one.segment_id.id)):
        offsets = one.start_offset, one.served_end_offset, one.leader_epochs
        content = *offsets, one.segment_size_bytes, one.log_crc32c
        if one.log_crc32c is not None and content in seen:
            found.append(one)
        seen.add(content)
    return found


def _other_key(key: str) -> str:
    """Return the key of the segment's other object."""
    stem, _, suffix = key.rpartition(".")
    return f"{stem}.{'indexes' if suffix == 'log' else 'log'}"
