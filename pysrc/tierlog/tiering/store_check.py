"""Does the store still hold what the metadata calls finished, and what mends it?

A check lists the objects of one partition and looks closer at what seems missing. With ``deep``
every byte of every object is compared. What it finds is mended without loss:

* a bad `.indexes` object is made again from the `.log` object beside it;
* a segment with a bad `.log` object is copied again while the broker still has the records, and
  only then removed;
* a segment that neither the store nor the broker has is told as lost, and left as it is.

A store that does not answer, or a store without its cluster marker (a volume that is not mounted),
changes nothing. One thread: that of the copy task.
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
from tierlog.remote.segment.layout import LOG_SUFFIX, is_segment_key, log_key, parse_key
from tierlog.tiering.copy import SegmentRefusedError
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import Happened, PartitionWork
from tierlog.tiering.restore import adopt_log_object, restore_indexes
from tierlog.tiering.stored_objects import StoredObjects, seems_whole
from tierlog.types import RemoteLogSegmentId

__all__ = ["StoreCheck"]

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
# A store that did not answer is asked again so soon, or after the interval if that is shorter.
_AGAIN_MS = 300_000
_NO_REPAIR = (
    "the broker does not have these records any more: restore the objects from a backup or an "
    "older version in the bucket"
)


class StoreCheck:
    """The checks of one partition, under one leadership."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work
        self._tier = work.tier
        self._due_ms = 0
        store = work.tier.storage.store
        # The store does not use tierlog's keys, so only the metadata lists the segments.
        self._objects = None if store is None else StoredObjects(store)
        self._must_clean = work.tier.repair and store is not None

    def is_due(self) -> bool:
        """Whether the store is to be checked now: at first, and then at each interval."""
        if self._objects is None:
            return False
        if self._tier.check_interval_ms is None and not self._must_clean:
            return False
        return self._tier.clock.monotonic_ms() >= self._due_ms

    @property
    def has_work(self) -> bool:
        """Whether `drop_replaced` or `clean` may have something to do after a copy."""
        return self._must_clean or bool(self._work.broken)

    def run(self, view: LogView) -> bool:
        """Check every finished segment; True when some have to be copied again."""
        interval_ms = self._tier.check_interval_ms
        now_ms = self._tier.clock.monotonic_ms()
        before = frozenset(self._work.broken)
        try:
            if self._objects is not None:
                self._check(view, self._objects)
        except RemoteStorageError as error:
            self._work.tell(Happened.NOT_CHECKED, 0, 0, text=str(error))
            interval_ms = _AGAIN_MS if interval_ms is None else min(interval_ms, _AGAIN_MS)
        self._due_ms = 2**63 if interval_ms is None else now_ms + interval_ms
        return self._work.broken.keys() != before

    def _check(self, view: LogView, objects: StoredObjects) -> None:
        segments = self._finished()
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
                self._tell_broken(view, segment, text)
        self._work.broken = broken

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
        self._tell(Happened.REPAIRED, segment, "indexes_rebuilt", problems)
        return True

    def _tell_broken(self, view: LogView, segment: RemoteLogSegmentMetadata, text: str) -> None:
        if _local(view).holds(segment.start_offset, segment.served_end_offset):
            self._tell(Happened.BROKEN, segment, "broken", text)
        else:
            self._tell(Happened.LOST, segment, "lost", f"{text}; {_NO_REPAIR}")

    def _tell(
        self, happened: Happened, segment: RemoteLogSegmentMetadata, reason: str, text: str
    ) -> None:
        self._work.tell(
            happened, segment.start_offset, segment.segment_size_bytes, reason=reason, text=text
        )

    def _finished(self) -> list[RemoteLogSegmentMetadata]:
        segments = self._tier.metadata.list(self._work.partition)
        return [segment for segment in segments if segment.state is _FINISHED]

    # -- after the copies

    def drop_replaced(self, copied: Coverage) -> None:
        """Remove the broken segments whose offsets whole segments hold now."""
        for name, segment in tuple(self._work.broken.items()):
            if copied.holds(segment.start_offset, segment.served_end_offset):
                self._delete(segment)
                self._work.broken = {
                    key: one for key, one in self._work.broken.items() if key != name
                }

    def clean(self, view: LogView) -> None:
        """With ``repair``, once, when nothing is left to copy: remove second copies and objects
        without a segment, and take in `.log` objects that only lack a sound `.indexes`."""
        objects = self._objects
        if objects is None or not self._must_clean:
            return
        self._must_clean = False
        for segment in _second_copies(self._whole()):
            self._delete(segment)
            self._tell(
                Happened.REPAIRED, segment, "copy_removed", "another segment has the same bytes"
            )
        listed = objects.list_partition(self._work.partition)
        unknown = [key for key in sorted(listed) if self._is_unknown(key)]
        for key in unknown:
            self._clean_object(view, objects, key, listed)

    def _whole(self) -> list[RemoteLogSegmentMetadata]:
        broken = self._work.broken
        return [one for one in self._finished() if one.segment_id.id not in broken]

    def _is_unknown(self, key: str) -> bool:
        """Whether it is a segment's object, and the metadata does not know the segment."""
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
            one.start_offset <= base_offset <= one.served_end_offset for one in self._whole()
        )
        if held:
            objects.delete(key)
            text = f"{key}: no segment has this object, and others hold its offsets"
            work.tell(
                Happened.REPAIRED, base_offset, size_bytes, reason="object_removed", text=text
            )
        elif key.endswith(LOG_SUFFIX) and objects.describe(_pair_of(key)) is None:
            try:
                adopt_log_object(work, objects, view, key, listed)
            except (CorruptDataError, SegmentRefusedError, ValueError) as error:
                text = f"{key}: left as it is: {error}; {_NO_REPAIR}"
                work.tell(Happened.LOST, base_offset, size_bytes, reason="lost", text=text)
            else:
                damage = "damaged" if _pair_of(key) in listed else "missing"
                text = f"{key}: its .indexes object was {damage}"
                work.tell(
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
            # The expiration task ends what was begun.
            self._tell(Happened.DELETE_FAILED, segment, "failed", str(error))
        finally:
            self._work.delete_ended(name)


def _local(view: LogView) -> Coverage:
    """The offsets of the rolled segments on the broker's disk."""
    start = view.log.log_start_offset or 0
    return Coverage(
        (max(start, one.base_offset), one.next_base_offset - 1)
        for one in view.log.rolled_segments
        if one.next_base_offset is not None
    )


def _second_copies(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """All segments but the first one of those with the same offsets, epochs and bytes."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for one in sorted(segments, key=lambda one: (one.event_timestamp_ms, one.segment_id.id)):
        offsets = one.start_offset, one.served_end_offset, one.leader_epochs
        content = *offsets, one.segment_size_bytes, one.log_crc32c
        if one.log_crc32c is not None and content in seen:
            found.append(one)
        seen.add(content)
    return found


def _pair_of(key: str) -> str:
    """The key of the other object of the segment."""
    stem, _, suffix = key.rpartition(".")
    return f"{stem}.{'indexes' if suffix == 'log' else 'log'}"
