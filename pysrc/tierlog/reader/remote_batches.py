"""Reads whole checked batches of one partition from the tier, from an offset on.

    reader = RemoteBatchReader(storage, metadata, index_cache=cache, memory=FetchMemory(256 << 20))
    found = reader.read_batches(partition, lineage, 4711, 1 << 20, upper_offset, minimum_one=True)
    found.records, found.next_offset

A read needs no request when its bytes were read ahead. It needs one request when the segment's
indexes are in the index cache or the remote index files, and otherwise two. A read returns batches
of one segment, as Kafka does. If the first batch is larger than `max_bytes`, one more request is
needed. A damaged batch is requested again, and kept indexes and bytes of its segment are not used.

If the lineage of a segment, or a truncated log, ends inside a batch, the batch is not part of the
log. Kafka removes the whole batch, and its offsets are a gap. Reads skip gaps, compacted tails and
empty segments.

Bytes of `.log` objects are charged to the payer of the read when they are requested, read-ahead
included (`charges`). A later use of the same bytes is not charged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tierlog._core import join_pooled
from tierlog.clock import Clock, SystemClock
from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    GapError,
    OutOfRangeError,
    RemoteResourceNotFoundError,
)
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.batch_run import BatchRun
from tierlog.reader.charges import UNCHARGED, Payer
from tierlog.reader.gaps import OnGap, gap_error, gap_handler, gap_start_in
from tierlog.reader.kept_indexes import Indexes
from tierlog.reader.memory import FetchMemory, Permit
from tierlog.reader.places import Place, SegmentPlaces
from tierlog.reader.positions import NO_LIMIT, SPARSE_BYTES, IndexFilesOf, Positions, Start
from tierlog.reader.read_ahead import (
    ReadAhead,
    ReadAheadSettings,
    ReadAheadStats,
    Stream,
)
from tierlog.reader.remote_read import (
    Fetched,
    RefusedError,
    RemoteRead,
    ThrottledError,
    Wanted,
    nothing_read,
)
from tierlog.reader.run_checks import (
    WRONG_POSITION,
    check_start,
    too_long,
    wrong_position,
)
from tierlog.reader.sequential import Outcome, Part, take_parts
from tierlog.reader.workers import Workers
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import StopReason, TopicIdPartition

__all__ = ["RemoteBatchReader", "RemoteRead"]

# The first request fetches a first batch of up to this size, whatever the size of the read.
_WHOLE_BATCH_BYTES = 1 << 20
# The number of bytes that the first request fetches of a larger batch.
_LEAST_BYTES = 64 << 10
# A range includes the base offset of the batch after it, which is compared with the last batch.
_NEXT_BYTES = 17
# A walk, which uses no index, requests this many bytes at a time.
_WALK_BYTES = 1 << 20
# A smaller result is copied, so that the larger range from which it comes can be freed.
_COPY_BELOW_BYTES = 64 << 10
_MEMORY_WAIT_MS = 500
# These kinds of damage are also found when a position is not at the start of a batch.
_STRUCTURAL = frozenset(
    {reason.value for reason in StopReason} - {StopReason.END.value, StopReason.BAD_CRC.value}
    | {"wrong_segment", "wrong_position"}
)


# The constructor of a `NamedTuple` is a Python function and takes twice as long.
_new_tuple = tuple.__new__


class RemoteBatchReader:
    """Reads segments, which `metadata` lists, from the objects of `storage`. Blocking, any thread.

    ``index_cache`` belongs to the same store; if None, the indexes of a few segments are kept.
    ``index_files`` returns the remote index files of a partition if this node has some. All buffers
    are charged to ``memory``, which several readers may share. While the memory is full, a read
    waits up to ``memory_wait_ms``. ``read_ahead`` sets how much is fetched in advance, by the
    threads of ``workers`` (None: threads of this reader). ``alarm`` is called with each error after
    which the reader could continue; it runs on the reading thread and must not raise. ``on_gap``
    decides what happens when the tier lacks offsets.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        memory: FetchMemory,
        index_cache: Indexes | None = None,
        index_files: IndexFilesOf | None = None,
        alarm: Callable[[Exception], object] | None = None,
        on_gap: OnGap = "fail",
        memory_wait_ms: int = _MEMORY_WAIT_MS,
        read_ahead: ReadAheadSettings | None = None,
        workers: Workers | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.storage = storage
        self._memory = memory
        self._budget = memory.budget
        self._memory_wait_ms = memory_wait_ms
        self._alarm = alarm or (lambda _error: None)
        self._on_gap = gap_handler(on_gap)
        self._clock = clock or SystemClock()
        self.places = SegmentPlaces(metadata, gap_start_in(storage))
        self._positions = Positions(
            storage,
            index_cache=index_cache,
            index_files=index_files,
            is_current=self.places.is_current,
            alarm=self._alarm,
            clock=self._clock,
        )
        self._ahead = ReadAhead(
            read_ahead or ReadAheadSettings(),
            fetch=self._fetch_chunk,
            places=_NextPlaces(self.places, self._positions),
            memory=memory,
            clock=self._clock,
            is_local=storage.is_local,
            workers=workers,
        )
        # Stored here for random reads, which spend much of their time on looking up attributes.
        self._find_known, self._find_entry = self.places.find_known, self._positions.find_entry
        self._closed = False

    def __repr__(self) -> str:
        return f"RemoteBatchReader({self.storage!r}, {self._memory!r})"

    def read_batches(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        minimum_one: bool,
        log_start_offset: int | None = None,
        tier_end_offset: int | None = None,
        payer: Payer = UNCHARGED,
    ) -> RemoteRead:
        """Return the batches from the batch that holds `offset` on, or from the next batch.

        The batches have at most `max_bytes` and at most the memory's budget, but with `minimum_one`
        the first batch is returned whatever its size. All end below `upper_offset`. A sequential
        reader of a slow store may get only half of a large `max_bytes`, up to the end of a chunk
        that was read ahead. The read is empty when the tier has a segment that covers `offset` but
        no batch after it. Local segments then continue at `next_offset`.

        The log begins at `log_start_offset`, and the tier should hold the log up to, not including,
        `tier_end_offset`; None means unknown. `payer` pays for the requests of the read and of the
        read-ahead that it starts.

        OutOfRangeError when `offset` lies below `log_start_offset`, when no segment holds it or a
        later offset, or when it was deleted meanwhile. RemoteStorageError when the store fails or
        lacks an object. CorruptDataError for damage that a second request returns as well. GapError
        when the tier lacks offsets, unless `on_gap` skips these offsets. MetadataNotReadyError,
        ClosedError.
        """
        if offset < (log_start_offset or 0):
            raise OutOfRangeError(
                f"{partition}: offset {offset} is before the log start {log_start_offset}"
            )
        stream = self._ahead.take(partition, offset)
        if stream is None and not payer.is_limited:
            read = self._read_file(
                partition, lineage, offset, max_bytes, upper_offset - 1, minimum_one, payer.count
            )
            if read is not None:
                return read
        wanted = Wanted(
            partition,
            lineage,
            offset,
            min(max(max_bytes, 0), self._memory.limit_bytes),
            upper_offset - 1,
            minimum_one,
            payer,
            log_start_offset,
            tier_end_offset,
            stream,
        )
        return self._read_wanted(wanted)

    def older_until(
        self, segment: RemoteLogSegmentMetadata, first_offset: int, timestamp_ms: int
    ) -> int:
        """See `IndexLookups`."""
        return self._positions.lookups.older_until(segment, first_offset, timestamp_ms)

    def has_ready(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether bytes for a read from `offset` on were already requested."""
        return self._ahead.has_ready(partition, offset)

    def close(self) -> None:
        """Release everything. Active reads end with a ClosedError, and their bytes are dropped."""
        self._closed = True
        self._ahead.close()
        self._positions.clear()

    def sweep(self) -> None:
        """Drop the chunks of readers that did not return in time."""
        self._ahead.sweep()

    def stats(self) -> ReadAheadStats:
        """Return the counts of read-ahead, for metrics."""
        return self._ahead.stats()

    # -- from an open file

    def _read_file(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        max_bytes: int,
        last_offset: int,
        minimum_one: bool,
        count: Callable[[int], object] | None,
    ) -> RemoteRead | None:
        """Read a few batches of a local object in one native call. None unless the place and the
        index are known and every batch is sound.

        This method is tried first, because random reads need hardly any other step.
        """
        place = self._find_known(partition, lineage, offset)
        if place is None or max_bytes < 0 or self._closed or self._positions.walked:
            return None
        entry = self._find_entry(place.index_key)
        if entry is None or entry.checked_for is not place.segment or entry.index is None:
            return None
        try:
            file = self.storage.open_file(place.log_key)
        except RemoteResourceNotFoundError:
            return None
        if file is None:
            return None
        if last_offset > place.last_offset:
            last_offset = place.last_offset
        if max_bytes > self._budget.limit_bytes:
            max_bytes = self._budget.limit_bytes
        data, start, first_offset, next_offset, read_bytes = entry.index.read(
            file, SPARSE_BYTES, offset, last_offset, max_bytes, minimum_one
        )
        if read_bytes and count is not None:
            count(read_bytes)
        if data is None:
            return None
        size_bytes = len(data)
        permit = self._budget.take(size_bytes)
        if permit is None or self._closed:
            return None
        end = start + size_bytes
        # A file needs no read-ahead window, so the time of this read does not matter.
        self._ahead.begin(next_offset, place, end, 0)
        records, segment = permit.hold(data), place.segment
        return _new_tuple(
            RemoteRead, (records, first_offset, next_offset, segment, start, end, 1, False, False)
        )

    # -- finding the segment

    def _read_wanted(self, wanted: Wanted) -> RemoteRead:
        read, offset, stream = None, wanted.offset, wanted.stream
        try:
            read = self._read_segments(wanted)
        except RefusedError:
            read = nothing_read(wanted, refused=True)
        except ThrottledError:
            # The next read asks for the same offset again.
            wanted.offset = offset
            read = nothing_read(wanted, throttled=True)
        except (CorruptDataError, GapError) as error:
            # The frames of a kept error must not keep the damaged bytes in memory.
            error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            if read is None and stream is not None:
                self._ahead.drop_chunks(stream)
        if stream is not None:
            self._ahead.put(stream, read.next_offset)
        if self._closed:
            del read
            self._check_open()
        return read

    def _read_segments(self, wanted: Wanted) -> RemoteRead:
        """Read from the segment of the offset, or from the next segment that has a batch."""
        asked = wanted.offset
        looked_again = False
        while True:
            self._check_open()
            if wanted.offset > wanted.last_offset:
                return nothing_read(wanted)
            place = self._find_place(wanted, asked)
            if place is None:
                return nothing_read(wanted)
            try:
                read = self._read_place(place, wanted)
            except (RemoteResourceNotFoundError, CorruptDataError) as error:
                if looked_again or self.places.is_current(place):
                    raise
                looked_again = True
                self._require_another(wanted, error)
                continue
            if read is not None:
                return read
            wanted.go_to(place.last_offset + 1)

    def _find_place(self, wanted: Wanted, asked: int) -> Place | None:
        """Return the place to read next, and move `wanted` to this place. None if the place is
        above the wanted offsets, or if no place follows those already read.

        OutOfRangeError when no segment holds the offset `asked` or a later one.
        """
        partition, lineage = wanted.partition, wanted.lineage
        stay = None if wanted.stream is None else wanted.stream.place
        found = self.places.find_or_next(partition, lineage, wanted.offset, stay)
        next_offset = None if found is None else found[1]
        if next_offset != wanted.offset:
            end = wanted.last_offset + 1
            self.check_gap(
                partition,
                lineage,
                wanted.offset,
                end if next_offset is None else min(next_offset, end),
                log_start_offset=wanted.log_start_offset,
                tier_end_offset=wanted.tier_end_offset,
            )
        if found is None:
            if wanted.offset > asked:
                return None
            raise OutOfRangeError(f"{partition}: no remote segment holds offset {asked}")
        place, start_offset = found
        if start_offset > wanted.last_offset:
            wanted.offset = max(wanted.offset, wanted.last_offset + 1)
            return None
        if start_offset > wanted.offset:
            wanted.go_to(start_offset)
        return place

    def check_gap(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        next_offset: int,
        *,
        log_start_offset: int | None = None,
        tier_end_offset: int | None = None,
    ) -> None:
        """Raise GapError for a gap that overlaps [`offset`, `next_offset`), unless `on_gap` skips
        it. See `read_batches` for the other arguments."""
        gap = self.places.find_gap(
            partition,
            lineage,
            offset,
            next_offset,
            log_start_offset=log_start_offset,
            end_offset=tier_end_offset,
        )
        if gap is not None:
            self._on_gap(gap_error(partition, gap.first_offset, gap.last_offset))

    def _require_another(
        self, wanted: Wanted, error: RemoteResourceNotFoundError | CorruptDataError
    ) -> None:
        """Raise OutOfRangeError when no other segment holds the offset of a segment that was
        deleted while it was read."""
        self.places.forget(wanted.partition)
        if self.places.find(wanted.partition, wanted.lineage, wanted.offset) is None:
            raise OutOfRangeError(
                f"{wanted.partition}: offset {wanted.offset} was deleted while it was being read "
                f"({error})"
            ) from error.with_traceback(None)

    # -- reading from one segment

    def _read_place(self, place: Place, wanted: Wanted) -> RemoteRead | None:
        """Read from one segment. Return None when the segment has no batch from the offset on."""
        try:
            if wanted.stream is None:
                read = self._read_indexed(place, wanted)
                if read is not None:
                    return read
            else:
                found = self._read_stream(wanted.stream, place, wanted)
                if found is not Outcome.MISSED:
                    return found
            start = self._find_start(place, wanted)
            return None if start is None else self._read_ranges(place, wanted, start)
        except CorruptDataError as error:
            # The kept indexes may be wrong, or the bytes may have been changed on the way.
            if error.reason != WRONG_POSITION:
                self._positions.forget(place)
            if wanted.stream is not None:
                self._ahead.drop_chunks(wanted.stream)
                wanted.stream.place = None
        start = self._positions.find(place, wanted.offset)
        if start is None:
            return None
        try:
            return self._read_ranges(place, wanted, start)
        except CorruptDataError as error:
            return self._read_past_index(place, wanted, start, error)

    def _read_indexed(self, place: Place, wanted: Wanted) -> RemoteRead | None:
        """Read with the segment's own index, in one request that a native call checks. None when
        more requests are needed, or when the bytes have to be examined batch by batch. In the
        second case `wanted.fetched` holds the bytes."""
        index = self._positions.index_of(place)
        if index is None:
            index = self._positions.fetch_index(place)
            if index is None:
                return None
            wanted.requests += 1
        offset, max_bytes = wanted.offset, wanted.max_bytes
        last_offset = min(place.last_offset, wanted.last_offset)
        first_last_offset, position, latest, covers = index.span(offset, SPARSE_BYTES)
        if (
            not 0 < position <= latest <= covers <= place.segment.segment_size_bytes
            or latest - position > SPARSE_BYTES
            or covers - latest > _WHOLE_BATCH_BYTES
        ):
            return None
        end = self._limit_range(place, position, max(covers, latest + max_bytes) + _NEXT_BYTES)
        permit = self._memory.try_acquire(end - position)
        if permit is None:
            return None
        view, now_ms = self._charge_and_fetch(place, wanted, position, end, permit)
        found = index.answer(
            view, position, first_last_offset, offset, last_offset, max_bytes, wanted.minimum_one
        )
        if found is None:
            wanted.fetched = Fetched(place, position, view)
            return None
        start, stop, first_offset, next_offset = found
        records, segment = self._copy_if_small(view[start:stop], end - position), place.segment
        start, stop = position + start, position + stop
        self._ahead.begin(next_offset, place, stop, now_ms)
        return RemoteRead(records, first_offset, next_offset, segment, start, stop, wanted.requests)

    def _find_start(self, place: Place, wanted: Wanted) -> Start | None:
        """Return the next position of the stream, or else the position from the index."""
        stream = wanted.stream
        if stream is None or not stream.is_at(place):
            return self._positions.find(place, wanted.offset)
        position = stream.position
        end = position + max(_LEAST_BYTES, wanted.max_bytes)
        # A later offset there is a gap, or the store returned other bytes: the index decides.
        return Start(position, position, end, wanted.offset, lowest_offset=wanted.offset)

    # -- sequential readers

    def _read_stream(
        self, stream: Stream, place: Place, wanted: Wanted
    ) -> RemoteRead | Literal[Outcome.MISSED] | None:
        """Read from chunks that were fetched before; None when the place has no more batches."""
        stream.reads += 1
        at_place = stream.is_at(place)
        if at_place and stream.at_end:
            return None
        if at_place and stream.run is not None:
            read = self._read_leftover(stream.run, place, wanted)
            if read is not None:
                return read
        stream.run = None
        if not at_place and not stream.enters(place, wanted.offset):
            self._ahead.drop_chunks(stream)
            return Outcome.MISSED
        if not stream.chunks:
            stream.plan_from(place, stream.position, wanted.offset)
        self._ahead.extend(stream, wanted.lineage, wanted.max_bytes, wanted.payer)
        parts = take_parts(self._ahead, stream, place, wanted)
        if isinstance(parts, list):
            return self._join_parts(parts, place, wanted)
        if parts is Outcome.THROTTLED:
            raise ThrottledError
        if parts is Outcome.MISSED:
            self._ahead.drop_chunks(stream)
            return Outcome.MISSED
        return nothing_read(wanted) if parts is Outcome.NOTHING else None

    def _read_leftover(self, run: BatchRun, place: Place, wanted: Wanted) -> RemoteRead | None:
        """Serve the whole read from bytes left over from the previous request."""
        row = run.row_reaching(wanted.offset)
        if row == len(run):
            return None
        last_offset = min(place.last_offset, wanted.last_offset)
        end = run.end_row(row, wanted.max_bytes, last_offset)
        whole = end < len(run) or run.stop_position >= place.segment.segment_size_bytes
        return self._answer_from(run, row, place, wanted) if whole else None

    def _join_parts(self, parts: list[Part], place: Place, wanted: Wanted) -> RemoteRead:
        """Join batches of several chunks to one read."""
        first = parts[0]
        records = None
        if len(parts) > 1:
            size_bytes = sum(part.size_bytes for part in parts)
            permit = self._memory.try_acquire(size_bytes)
            if permit is None:
                parts = parts[:1]
            else:
                pieces = [part.run.bytes_of(part.row, part.end) for part in parts]
                records = permit.hold(join_pooled(pieces, size_bytes))
        if records is None:
            records = self._copy_if_small(
                first.run.bytes_of(first.row, first.end), first.run.view.nbytes
            )
        return self._make_read(records, first, parts[-1], place, wanted)

    def _read_past_index(
        self, place: Place, wanted: Wanted, start: Start, error: CorruptDataError
    ) -> RemoteRead | None:
        """Walk from an earlier position, because no batch begins at the position from the index."""
        suspect = error.position == start.position and error.reason in _STRUCTURAL
        if start.guessed or not suspect:
            raise error
        before = self._positions.run_before(place, wanted.offset)
        for position in sorted({min(before, start.position), 0}, reverse=True):
            if position >= start.position:
                continue
            walk = Start(position, position, position, NO_LIMIT, guessed=True)
            try:
                read = self._read_ranges(place, wanted, walk)
            except CorruptDataError as found:
                if found.position == error.position or position == 0:
                    # A walk from an earlier position leads to the same damage.
                    raise error from None
                continue
            except ThrottledError:
                # The next read continues this walk.
                self._positions.distrust(place, error)
                raise
            self._positions.distrust(place, error)
            return read
        raise error

    def _read_ranges(self, place: Place, wanted: Wanted, start: Start) -> RemoteRead | None:
        """Fetch one range after another until a range holds the batch. If the index is sound, the
        first range holds the batch."""
        wanted.requests += start.requests
        size_bytes = place.segment.segment_size_bytes
        position, end = start.position, self._end_first_range(place, wanted, start)
        stride = _WALK_BYTES if start.guessed else max(wanted.max_bytes, _LEAST_BYTES)
        whole = False
        known_offset = -1
        while position < size_bytes:
            run = self._fetch_run(place, wanted, position, end)
            if whole and len(run) and run.base_offset[0] != known_offset:
                raise wrong_position(run, place, f"the batch of offset {known_offset}")
            if position == start.position:
                check_start(run, start, place)
            row = run.row_reaching(wanted.offset)
            if row < len(run):
                wanted.require_no_gap(run.base_offset[row])
                again = None if whole else self._find_rest(run, row, place, wanted)
                if again is None:
                    return self._answer_from(run, row, place, wanted)
                known_offset = run.base_offset[row]
                position, end, whole = *again, True
                del run
                continue
            position, end = self._find_next_range(run, place, wanted, stride)
            if len(run):
                self._positions.note(place, run.last_offset[len(run) - 1], run.stop_position)
                # A walk can resume after each step, so each step is charged separately.
                wanted.is_begun = wanted.is_begun and not start.guessed
            # Release the views before the next range is fetched.
            del run
        wanted.require_no_gap(NO_LIMIT)
        return None

    def _end_first_range(self, place: Place, wanted: Wanted, start: Start) -> int:
        if start.guessed:
            return self._limit_range(place, start.position, start.position + _WALK_BYTES)
        end = start.covers
        if end - start.latest > _WHOLE_BATCH_BYTES:
            # The header of a large batch is fetched first, and says how many bytes are needed.
            end = start.latest + _LEAST_BYTES
        size_bytes = wanted.max_bytes
        if wanted.stream is not None:
            size_bytes = self._ahead.in_place(wanted.stream, size_bytes)
        return self._limit_range(
            place, start.position, max(end, start.latest + size_bytes) + _NEXT_BYTES
        )

    def _limit_range(self, place: Place, position: int, end: int) -> int:
        """Return `end`, or less if the range is larger than the memory or goes beyond the object.
        A range always has room for the header of a batch."""
        size_bytes: int = place.segment.segment_size_bytes
        return min(end, size_bytes, position + max(self._memory.limit_bytes, _NEXT_BYTES))

    def _fetch_run(self, place: Place, wanted: Wanted, position: int, end: int) -> BatchRun:
        fetched, wanted.fetched = wanted.fetched, None
        if fetched is not None and fetched.place.is_of(place) and fetched.position == position:
            return self._scan_range(fetched.view, position, place)
        del fetched
        permit = self._memory.try_acquire(end - position)
        if permit is None:
            if wanted.stream is not None:
                self._ahead.drop_chunks(wanted.stream)
            permit = self._memory.acquire(end - position, self._memory_wait_ms)
        if permit is None:
            raise RefusedError
        view, _ = self._charge_and_fetch(place, wanted, position, end, permit)
        return self._scan_range(view, position, place)

    def _charge_and_fetch(
        self, place: Place, wanted: Wanted, position: int, end: int, permit: Permit
    ) -> tuple[memoryview, int]:
        """Charge a range to the payer and fetch the range. Return the bytes and the time they
        arrived."""
        try:
            if wanted.is_begun:
                if wanted.payer.count is not None:
                    wanted.payer.count(end - position)
            elif not wanted.payer.charge(end - position):
                self._positions.keep_walk(place)
                raise ThrottledError
        except BaseException:
            permit.release()
            raise
        wanted.is_begun = True
        wanted.requests += 1
        return self._fetch_view(place, position, end, permit)

    def _fetch_chunk(self, place: Place, position: int, end: int, permit: Permit) -> BatchRun:
        view, _ = self._fetch_view(place, position, end, permit)
        return self._scan_range(view, position, place)

    def _scan_range(self, view: memoryview, position: int, place: Place) -> BatchRun:
        index = self._positions.index_of(place)
        return BatchRun(view, position, place.segment, place.log_key, index)

    def _fetch_view(
        self, place: Place, position: int, end: int, permit: Permit
    ) -> tuple[memoryview, int]:
        """Fetch a range. Return the bytes and the time they arrived."""
        waits, size_bytes = self._ahead.waits, end - position
        begun_ms = self._clock.monotonic_ms()
        shared_bytes = waits.begin(size_bytes)
        try:
            data = self.storage.fetch_log_segment(place.segment, position, end)
        except BaseException:
            waits.end(size_bytes, shared_bytes, None)
            permit.release()
            raise
        now_ms = self._clock.monotonic_ms()
        waits.end(size_bytes, shared_bytes, now_ms - begun_ms)
        view = permit.hold(data)
        self._check_open()
        return view, now_ms

    def _find_rest(
        self, run: BatchRun, row: int, place: Place, wanted: Wanted
    ) -> tuple[int, int] | None:
        """Return the range of further batches that fit; None when `run` already has all."""
        if run.end_position >= place.segment.segment_size_bytes:
            return None
        position = run.position_of(row)
        full = position + wanted.max_bytes
        if run.end_position >= full or run.last_offset[len(run) - 1] >= wanted.last_offset:
            return None
        if not run.is_whole and run.stop_reason is not StopReason.TORN_TAIL:
            return None
        claimed = run.claimed_size()
        if claimed is not None and run.stop_position + claimed > full:
            return None
        return position, self._limit_range(place, position, full)

    def _find_next_range(
        self, run: BatchRun, place: Place, wanted: Wanted, stride: int
    ) -> tuple[int, int]:
        """Return the range after a range that lacks the batch. CorruptDataError for damage that
        hides where the next batch begins."""
        position = run.stop_position
        cut_off = run.stop_reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL)
        if run.is_whole or (cut_off and run.end_position < place.segment.segment_size_bytes):
            claimed = None if run.is_whole else run.claimed_size()
            if claimed is None:
                return position, self._limit_range(place, position, position + stride)
            limit = self._positions.run_limit(place, position, wanted.offset)
            if not 0 < claimed <= limit - position or run.stop_reason is StopReason.ZERO_TAIL:
                raise too_long(place, position, claimed, limit - position)
            # The whole batch must be fetched, however large it is.
            end = min(position + claimed + _NEXT_BYTES, place.segment.segment_size_bytes)
            return position, max(end, self._limit_range(place, position, position + stride))
        if run.stop_reason is StopReason.BAD_CRC:
            return self._step_over(run, place, wanted, stride)
        raise run.damage()

    def _step_over(
        self, run: BatchRun, place: Place, wanted: Wanted, stride: int
    ) -> tuple[int, int]:
        """Return the range after a damaged batch. Raise the damage if the read wants that batch."""
        at = run.stop_position - run.start_position
        rest = BatchRun(
            run.view[at:], run.stop_position, place.segment, place.log_key, verify_crc=False
        )
        row = rest.row_reaching(wanted.offset)
        if row == 0 or not len(rest):
            # A variable for the error would keep this frame, and so the bytes, in memory.
            raise run.damage()
        wanted.stepped_over = run.damage()
        self._alarm(wanted.stepped_over)
        position = rest.position_of(row)
        return position, self._limit_range(place, position, position + stride)

    def _answer_from(
        self, run: BatchRun, row: int, place: Place, wanted: Wanted
    ) -> RemoteRead | None:
        last_offset = min(place.last_offset, wanted.last_offset)
        if run.last_offset[row] > last_offset:
            # The lineage or the read ends within this batch, so no later batch is wanted.
            return nothing_read(wanted) if place.last_offset > wanted.last_offset else None
        end = run.end_row(row, wanted.max_bytes, last_offset, minimum_one=wanted.minimum_one)
        if end == row:
            return nothing_read(wanted)
        part = Part(run, row, end)
        records = self._copy_if_small(run.bytes_of(row, end), run.view.nbytes)
        read = self._make_read(records, part, part, place, wanted)
        stream = wanted.stream
        if stream is not None:
            keep = stream.reads and end < len(run) and not self._ahead.is_slow
            stream.run = run if keep else None
        return read

    def _make_read(
        self, records: memoryview, first: Part, last: Part, place: Place, wanted: Wanted
    ) -> RemoteRead:
        next_offset = last.run.last_offset[last.end - 1] + 1
        end_position = last.run.position_of(last.end)
        if wanted.stream is not None:
            wanted.stream.goes_on(place, end_position)
        else:
            self._ahead.begin(next_offset, place, end_position, self._clock.monotonic_ms())
        return RemoteRead(
            records=records,
            first_offset=first.run.base_offset[first.row],
            next_offset=next_offset,
            segment=place.segment,
            start_position=first.run.position_of(first.row),
            end_position=end_position,
            requests=wanted.requests,
        )

    def _copy_if_small(self, records: memoryview, kept_bytes: int) -> memoryview:
        """Return a copy if `records` are few of the kept bytes, so that the rest can be freed."""
        size_bytes = records.nbytes
        if size_bytes >= _COPY_BELOW_BYTES or kept_bytes <= 4 * size_bytes:
            return records
        permit = self._memory.try_acquire(size_bytes)
        return records if permit is None else permit.hold(bytes(records))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the remote reader was closed")


class _NextPlaces:
    """Gives read-ahead the facts that it needs about segments and their indexes."""

    def __init__(self, places: SegmentPlaces, positions: Positions) -> None:
        self.places = places
        self.is_loaded = positions.is_loaded
        self.run_end = positions.run_end
        self.load = positions.load
        self._find = positions.find

    def following(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, place: Place
    ) -> tuple[Place, int] | None:
        return self.places.find_or_next(partition, lineage, place.last_offset + 1)

    def start_of(self, place: Place, offset: int) -> int | None:
        start = self._find(place, offset)
        return None if start is None or start.guessed else start.position
