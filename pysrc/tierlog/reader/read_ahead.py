"""Fetches the bytes that sequential readers will read next.

A reader is identified by its next offset: a read that begins where an earlier read ended continues
the `Stream` of that read. So several readers of a partition have separate streams, and no reader
needs an id. A stream is created by the second read.

* If the store is on this machine and answers at once, bytes are fetched only when the reader needs
  these bytes, in ranges of at least `chunk_bytes`.
* From every other store a few threads fetch the next chunks. Chunks follow the entries of the
  remoteLogIndex and continue in the next segment, whose indexes are fetched in advance.

The window is the number of bytes that are fetched ahead. If the server sends at once, two chunks
are requested while the reader uses the chunk before, so that neither the server nor the reader
waits. For a slow store the window is twice the bytes that the reader consumes during one request.
If the reader still has to wait, the window of its stream becomes four times as large. If a window
then has more chunks than there are threads, its chunks become larger. The limits are
`max_window_bytes` and the read-ahead share of the memory. Chunks that are not read are dropped
after `idle_ms`, and at once when another reader needs the memory.

Chunks that are requested together arrive together, and after them no chunk arrives for some time.
So requests are spread evenly: the requests of one window are sent within the time that it takes to
fetch and check one chunk. Chunks that arrive faster wait for a processor, and meanwhile leave the
processor's caches.

A chunk is charged, when it is requested, to the quota of the read that planned it. No chunk is
planned while that quota is used up. If the quota is used up when a chunk is to be fetched, the
chunk waits until its reader needs it or the quota has room.

Each chunk is checked on the thread that fetched it. A damaged or failed chunk is dropped. The
reader requests the bytes of the chunk again, and gets the error if the error persists.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tierlog.clock import Clock
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.batch_run import BatchRun
from tierlog.reader.charges import Payer
from tierlog.reader.memory import FetchMemory, Permit
from tierlog.reader.places import Place
from tierlog.reader.store_waits import StoreWaits
from tierlog.reader.workers import Threads, Workers
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["Chunk", "ReadAhead", "ReadAheadSettings", "ReadAheadStats", "Stream", "Work"]

_GROWTH = 4
# The number of chunks that are requested ahead from a server that sends at once. With one chunk,
# the processors are idle at times. Three chunks are not faster than two.
_UNDER_WAY = 2
# A window is requested within at most this multiple of the store's wait, so that one slow chunk
# does not delay the chunks after it.
_MOST_SPREAD = 2
# The expected time of a chunk is the moving mean of the times of about this many chunks.
_CHUNKS = 16
# The assumed pause between two reads of a reader that reads again within the same millisecond.
_NO_PAUSE_MS = 0.25
# The largest number of segments whose indexes are fetched in advance.
_MAX_WARMED = 16
# Topic id, partition, and the next offset of a reader.
_Key = tuple[str, int, int]
# The place and the position at which a first read ended, and the time of the read.
_Begun = tuple[Place, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadSettings:
    """Limits of read-ahead. ``threads`` is the number of threads for all streams together. If
    ``max_window_bytes`` is 0, nothing is read ahead. A store for which readers wait ``slow_ms``
    counts as slow."""

    threads: int = 32
    chunk_bytes: int = 1 << 20
    max_chunk_bytes: int = 4 << 20
    max_window_bytes: int = 128 << 20
    max_streams: int = 1024
    idle_ms: int = 30_000
    slow_ms: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadStats:
    """Counts since the start, but ``streams`` and ``threads`` are present numbers.

    ``pieces`` and ``bytes`` count planned chunks. ``stalls`` counts how often a reader waited for a
    chunk. ``wasted_bytes`` counts bytes that were fetched and then dropped. ``failed`` chunks were
    damaged or not available.
    """

    pieces: int
    bytes: int
    wasted_bytes: int
    failed: int
    stalls: int
    streams: int
    threads: int


class Fetch(Protocol):
    """Fetches and scans a range of the object of `place`."""

    def __call__(self, place: Place, position: int, end: int, permit: Permit) -> BatchRun: ...


class Work(Enum):
    """The result of an attempt to fetch a chunk."""

    DONE = "done"
    # Another thread is fetching the chunk or has fetched it.
    TAKEN = "taken"
    # The quota is used up.
    REFUSED = "refused"


class Chunk:
    """The bytes [`position`, `end`) of a place's object. They are planned, being fetched, fetched,
    or failed."""

    __slots__ = (
        "_done",
        "_dropped",
        "_fetch",
        "_last_offset",
        "_lowest_offset",
        "_permit",
        "_turn",
        "end",
        "first_offset",
        "is_refused",
        "payer",
        "place",
        "position",
        "run",
    )

    def __init__(
        self,
        fetch: Fetch,
        place: Place,
        span: tuple[int, int],
        permit: Permit,
        offsets: tuple[int | None, int, int],
        payer: Payer,
    ) -> None:
        self.place = place
        self.payer = payer
        # Whether the quota had no room when a worker tried to fetch the chunk.
        self.is_refused = False
        # The first offset is known only for the first chunk of a segment. The batches of any other
        # chunk begin at or above its lowest offset and end with its last offset.
        self.first_offset, self._lowest_offset, self._last_offset = offsets
        self.position, self.end = span
        self.run: BatchRun | None = None
        self._fetch = fetch
        self._done = threading.Event()
        self._dropped = False
        # The thread that takes the permit fetches the chunk or drops it. Only one thread tries at a
        # time.
        self._permit: Permit | None = permit
        self._turn = threading.Lock()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def is_waiting(self) -> bool:
        """Whether the chunk was not requested yet."""
        return self._permit is not None

    def fetch_ahead(self) -> Work:
        """Fetch the chunk before its reader needs it. Never waits for the quota or a thread."""
        if not self._turn.acquire(blocking=False):
            return Work.TAKEN
        try:
            if self._permit is None:
                return Work.TAKEN
            if not self.payer.charge_ahead(self.end - self.position):
                self.is_refused = True
                return Work.REFUSED
            permit, self._permit = self._permit, None
        finally:
            self._turn.release()
        self._fetch_and_check(permit)
        return Work.DONE

    def fetch_now(self, payer: Payer) -> Work:
        """Fetch the chunk for the reader that needs the chunk now; `payer` pays for that reader."""
        with self._turn:
            if self._permit is None:
                return Work.TAKEN
            if not payer.charge(self.end - self.position):
                return Work.REFUSED
            permit, self._permit = self._permit, None
        self._fetch_and_check(permit)
        return Work.DONE

    def _fetch_and_check(self, permit: Permit) -> None:
        run = None
        try:
            run = self._fetch(self.place, self.position, self.end, permit)
            if not self._is_sound(run):
                run = None
        except (TierlogError, OSError):
            # The reader requests the range again and gets the error.
            run = None
        finally:
            self.run = run
            # Checked last: `drop` sets the flag before it clears `run`.
            if self._dropped:
                self.run = None
            self._done.set()

    def result(self) -> BatchRun | None:
        """Wait for the thread that fetches the chunk, and return the batches. Return None when the
        fetch failed or the chunk was dropped."""
        self._done.wait()
        return self.run

    def drop(self) -> int:
        """Drop the chunk. Return how many bytes were fetched and not used."""
        self._dropped = True
        with self._turn:
            permit, self._permit = self._permit, None
        if permit is not None:
            permit.release()
            self._done.set()
            return 0
        self.run = None
        return self.end - self.position

    def _is_sound(self, run: BatchRun) -> bool:
        """Whether the offsets of the batches match the index. Offsets are checked because no
        checksum covers a base offset."""
        return (
            run.is_whole
            and run.base_offset[0] >= self._lowest_offset
            and run.last_offset[len(run) - 1] == self._last_offset
        )


class Stream:
    """The state of one sequential reader: its next batch begins at byte `position` of `place`.

    `chunks` follow each other from this batch on without a gap, also into later segments. The next
    chunk begins at (`plan_place`, `plan_position`). Only one thread at a time may use a stream.
    """

    __slots__ = (
        "answered_ms",
        "chunks",
        "due_ms",
        "partition",
        "place",
        "plan_lowest",
        "plan_offset",
        "plan_place",
        "plan_position",
        "position",
        "reads",
        "run",
        "warmed",
        "window_bytes",
    )

    def __init__(
        self, partition: TopicIdPartition, place: Place, position: int, answered_ms: int
    ) -> None:
        self.partition = partition
        self.window_bytes = 0
        self.place: Place | None = place
        self.position = position
        # Batches of the last request that no read has returned yet.
        self.run: BatchRun | None = None
        self.chunks: deque[Chunk] = deque()
        self.plan_place: Place | None = None
        self.plan_position = 0
        self.plan_offset: int | None = None
        self.plan_lowest = 0
        self.reads = 0
        # The place of the last chunk when indexes were last fetched in advance.
        self.warmed: Place | None = None
        self.answered_ms = answered_ms
        # The time from which the next chunk may be requested.
        self.due_ms: float = answered_ms

    def is_at(self, place: Place) -> bool:
        """Whether the next batch is in this segment."""
        return self.place is not None and self.place.is_of(place)

    @property
    def at_end(self) -> bool:
        """Whether all bytes of the stream's segment were returned."""
        return self.place is not None and self.position >= self.place.segment.segment_size_bytes

    def goes_on(self, place: Place, position: int) -> None:
        """Set the position of the next batch, and drop the chunks before this position."""
        self.place, self.position = place, position
        while self.chunks and self.chunks[0].end <= position and self.chunks[0].place.is_of(place):
            self.chunks.popleft()

    def enters(self, place: Place, offset: int) -> bool:
        """Whether the next chunk is the first chunk of a segment, and begins at `offset`."""
        while self.chunks and not self.chunks[0].place.is_of(place):
            self.chunks.popleft().drop()
        if not self.chunks:
            return False
        first_offset = self.chunks[0].first_offset
        return first_offset is not None and first_offset <= offset

    def plan_from(self, place: Place, position: int, offset: int) -> None:
        """Plan the next chunk right after the returned batches. The chunk begins with `offset` or a
        later offset."""
        self.plan_place, self.plan_position, self.plan_offset = place, position, None
        self.plan_lowest = offset

    def planned_bytes(self) -> int:
        """Return the number of bytes of all chunks together."""
        return sum(chunk.end - chunk.position for chunk in self.chunks)


class NextPlaces(Protocol):
    """Gives the facts about segments and their indexes that the planning of chunks needs."""

    def following(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, place: Place
    ) -> tuple[Place, int] | None:
        """Return the place after `place`, and the first offset of that next place."""
        ...

    def is_loaded(self, place: Place) -> bool:
        """Whether `start_of` and `run_end` need no request."""
        ...

    def start_of(self, place: Place, offset: int) -> int | None:
        """Return the position of the batch that holds `offset`; None when no batch holds it."""
        ...

    def run_end(self, place: Place, position: int, size_bytes: int) -> tuple[int, int] | None:
        """Return the end and the last offset of the index entries that fit into `size_bytes` after
        `position`. If not even one entry fits, return those of the first entry."""
        ...

    def load(self, place: Place) -> object:
        """Request the indexes of a segment, so that they are loaded."""
        ...


class ReadAhead:
    """The streams of one `RemoteBatchReader`, and the threads that fetch the chunks of the streams.
    Any thread."""

    def __init__(
        self,
        settings: ReadAheadSettings,
        *,
        fetch: Fetch,
        places: NextPlaces,
        memory: FetchMemory,
        clock: Clock,
        is_local: bool,
        workers: Workers | None = None,
    ) -> None:
        self.settings = settings
        self.waits = StoreWaits()
        self._is_local = is_local
        self._fetch = fetch
        self._places = places
        self._memory = memory
        self._clock = clock
        self._workers: Workers = workers or Threads(
            settings.threads, settings.idle_ms, clock, self.sweep
        )
        self._lock = threading.Lock()
        self._streams: OrderedDict[_Key, list[Stream]] = OrderedDict()
        self._count = 0
        # The next positions of readers that have read once. When the first table is full, it
        # becomes the second table, and a new first table is begun.
        self._begun: dict[_Key, _Begun] = {}
        self._begun_before: dict[_Key, _Begun] = {}
        self._max_begun = settings.max_streams if settings.max_window_bytes > 0 else 0
        self._loading: set[RemoteLogSegmentId] = set()
        self._pieces = self._bytes = self._wasted = self._failed = self._stalls = 0
        # The mean time to fetch and check a chunk.
        self._chunk_ms = 0.0
        self._closed = False
        memory.on_shortage(self.give_up)

    # -- streams

    def take(self, partition: TopicIdPartition, offset: int) -> Stream | None:
        """Remove and return the stream whose next offset is `offset`. If there are several such
        streams, take the stream with the most chunks. Return None if there is no such stream."""
        key = (partition.topic_id, partition.partition, offset)
        if self._streams and key in self._streams:
            with self._lock:
                found = self._streams.get(key)
                if found:
                    stream = max(found, key=lambda one: len(one.chunks))
                    found.remove(stream)
                    self._count -= 1
                    if not found:
                        del self._streams[key]
                    return stream
        begun = self._begun.pop(key, None)
        if begun is None and self._begun_before:
            begun = self._begun_before.pop(key, None)
        return None if begun is None else Stream(partition, *begun)

    def begin(self, offset: int, place: Place, position: int, now_ms: int) -> None:
        """Remember a first read. If the reader is sequential, its next read begins at `offset`,
        which is byte `position` of `place`."""
        if self._closed or not self._max_begun:
            return
        begun = self._begun
        if len(begun) >= self._max_begun:
            self._begun_before, self._begun = begun, {}
            begun = self._begun
        topic_id, partition, _ = place.index_key
        begun[topic_id, partition, offset] = place, position, now_ms

    def put(self, stream: Stream, offset: int) -> None:
        """Keep a stream for the read that will begin at `offset`."""
        stream.answered_ms = self._clock.monotonic_ms()
        key = (stream.partition.topic_id, stream.partition.partition, offset)
        surplus: list[Stream] = []
        with self._lock:
            if self._closed:
                surplus.append(stream)
            else:
                self._streams.setdefault(key, []).append(stream)
                self._count += 1
                self._streams.move_to_end(key)
            surplus += self._remove_surplus()
        for one in surplus:
            self.drop_chunks(one)

    def sweep(self) -> None:
        """Drop the chunks of readers that did not return in time."""
        with self._lock:
            surplus = self._remove_surplus()
        for one in surplus:
            self.drop_chunks(one)

    def _remove_surplus(self) -> list[Stream]:
        """Remove and return the streams that are too many or too old."""
        found: list[Stream] = []
        now_ms = self._clock.monotonic_ms()
        while self._streams:
            key = next(iter(self._streams))
            streams = self._streams[key]
            if (
                self._count <= self.settings.max_streams
                and streams[-1].answered_ms + self.settings.idle_ms > now_ms
            ):
                break
            del self._streams[key]
            self._count -= len(streams)
            found += streams
        return found

    # -- pieces

    def in_place(self, stream: Stream, size_bytes: int) -> int:
        """Return how many bytes to fetch for a reader that waits for `size_bytes`. A sequential
        reader gets more bytes, which serve its next reads. If the store is not slow, the number
        grows with each read, because a random reader may begin at the end of its earlier read by
        chance."""
        if stream.reads < 1 or self.settings.max_window_bytes <= 0:
            return size_bytes
        chunk_bytes = self.settings.chunk_bytes
        if not self.is_slow:
            chunk_bytes = min(chunk_bytes, size_bytes * _GROWTH ** min(stream.reads, 16))
        return max(size_bytes, chunk_bytes)

    @property
    def is_slow(self) -> bool:
        """Whether readers wait for the store."""
        return self.waits.wait_ms >= self.settings.slow_ms

    def wait_for(self, stream: Stream, chunk: Chunk, payer: Payer) -> tuple[BatchRun | None, Work]:
        """Return the batches of a chunk, after a wait if necessary, and the result of the caller's
        own attempt to fetch it. If the reader waits for the store, the window of its stream
        grows."""
        if chunk.is_done:
            return self._count_failure(chunk.run), Work.TAKEN
        begun_ms = self._clock.monotonic_ms()
        work = chunk.fetch_now(payer)
        if work is Work.REFUSED:
            return None, work
        run = chunk.result()
        waited = self._clock.monotonic_ms() - begun_ms >= self.settings.slow_ms
        # If the payer is limited, the reader may have waited for the quota and not for the store.
        if waited and not (work is Work.DONE and payer.is_limited):
            self._stalls += 1
            if self.is_slow:
                stream.window_bytes *= _GROWTH
        return self._count_failure(run), work

    def _count_failure(self, run: BatchRun | None) -> BatchRun | None:
        if run is None:
            self._failed += 1
        return run

    def extend(self, stream: Stream, lineage: LeaderEpochs, max_bytes: int, payer: Payer) -> None:
        """Request the next chunks within the window of the stream. If the server sends at once,
        request only a few chunks ahead. Request none while the quota of the payer is used up."""
        is_slow = self.is_slow
        if self._closed or stream.plan_place is None:
            return
        if not is_slow and not self._is_sent_ahead(stream, max_bytes):
            return
        if not payer.charge_ahead(0):
            return
        for chunk in stream.chunks:
            if chunk.is_refused:
                chunk.is_refused, chunk.payer = False, payer
                self._workers.submit(self._fetch_job(chunk))
        now_ms, wait_ms = self._clock.monotonic_ms(), self.waits.wait_ms if is_slow else 0.0
        window = self._window(stream, max_bytes, now_ms, wait_ms)
        spread_ms = min(max(wait_ms, self._chunk_ms), _MOST_SPREAD * wait_ms)
        planned = stream.planned_bytes()
        while planned < window and (is_slow or len(stream.chunks) <= _UNDER_WAY):
            most_bytes = self._chunk_bytes(window, max_bytes)
            next_chunk = self._plan_chunk(stream, lineage, most_bytes, payer)
            if next_chunk is None:
                return
            chunk = next_chunk
            size_bytes = chunk.end - chunk.position
            planned += size_bytes
            stream.chunks.append(chunk)
            self._pieces += 1
            self._bytes += size_bytes
            due_ms = max(stream.due_ms, now_ms)
            stream.due_ms = due_ms + spread_ms * size_bytes / window
            self._workers.submit(self._fetch_job(chunk), due_ms - now_ms)

    def _fetch_job(self, chunk: Chunk) -> Callable[[], None]:
        def job() -> None:
            begun_ms = self._clock.monotonic_ms()
            if chunk.fetch_ahead() is Work.DONE:
                took_ms = self._clock.monotonic_ms() - begun_ms
                before_ms = self._chunk_ms or took_ms
                self._chunk_ms = before_ms + (took_ms - before_ms) / _CHUNKS

        return job

    def _is_sent_ahead(self, stream: Stream, max_bytes: int) -> bool:
        """Whether chunks of a quick server are fetched ahead for this reader. Chunks are fetched
        ahead as soon as the requests of the reader are whole chunks. A random reader that began at
        the end of its earlier read by chance does not make such requests."""
        return not self._is_local and (
            self.in_place(stream, max_bytes) >= self.settings.chunk_bytes
        )

    def _window(self, stream: Stream, max_bytes: int, now_ms: int, wait_ms: float) -> int:
        """Return how many bytes the chunks of a stream should have."""
        if stream.reads == 1:
            pause_ms = now_ms - stream.answered_ms
            stream.window_bytes = int(2 * max_bytes * wait_ms / max(pause_ms, _NO_PAUSE_MS))
        least = (1 + _UNDER_WAY) * max(max_bytes, self.settings.chunk_bytes)
        window = min(max(stream.window_bytes, least), self.settings.max_window_bytes)
        stream.window_bytes = window
        return window

    def _chunk_bytes(self, window: int, max_bytes: int) -> int:
        """Return the size of the next chunk, which is enough for one or several reads of
        `max_bytes`. The size is larger when the window has more chunks than there are threads."""
        settings = self.settings
        size = min(max(settings.chunk_bytes, window // settings.threads), settings.max_chunk_bytes)
        if max_bytes >= size:
            return min(max_bytes, settings.max_window_bytes)
        return size - size % max_bytes if max_bytes > 0 else size

    def _plan_chunk(
        self, stream: Stream, lineage: LeaderEpochs, size_bytes: int, payer: Payer
    ) -> Chunk | None:
        place = self._find_plan_place(stream, lineage)
        if place is None:
            return None
        found = self._places.run_end(place, stream.plan_position, size_bytes)
        if found is None:
            return None
        end, last_offset = found
        permit = self._memory.try_acquire(end - stream.plan_position, ahead=True)
        if permit is None:
            return None
        span = stream.plan_position, end
        offsets = stream.plan_offset, stream.plan_lowest, last_offset
        chunk = Chunk(self._fetch, place, span, permit, offsets, payer)
        stream.plan_position, stream.plan_offset = end, None
        stream.plan_lowest = last_offset + 1
        return chunk

    def _find_plan_place(self, stream: Stream, lineage: LeaderEpochs) -> Place | None:
        """Return the place of the next chunk. Return None while the place is unknown or if there is
        no next chunk."""
        place = stream.plan_place
        assert place is not None
        if stream.warmed is not place:
            stream.warmed = place
            self._load_indexes(stream, lineage, place)
        if not self._places.is_loaded(place):
            return None
        if self._places.run_end(place, stream.plan_position, 1) is not None:
            return place
        following = self._places.following(stream.partition, lineage, place)
        if following is None or not self._places.is_loaded(following[0]):
            return None
        place, offset = following
        position = self._places.start_of(place, offset)
        if position is None:
            return None
        stream.plan_place, stream.plan_position, stream.plan_offset = place, position, offset
        stream.plan_lowest = 0
        return place

    def _load_indexes(self, stream: Stream, lineage: LeaderEpochs, place: Place) -> None:
        """Request the indexes of the segments into which the window of the stream will soon
        extend."""
        ahead_bytes = -place.segment.segment_size_bytes
        for _ in range(_MAX_WARMED):
            if not self._places.is_loaded(place):
                self._workers.submit(self._load_job(place))
            ahead_bytes += place.segment.segment_size_bytes
            following = self._places.following(stream.partition, lineage, place)
            if following is None or ahead_bytes > 2 * stream.window_bytes:
                return
            place = following[0]

    def _load_job(self, place: Place) -> Callable[[], None]:
        segment_id = place.segment.segment_id

        def load() -> None:
            if self._closed or segment_id in self._loading:
                return
            self._loading.add(segment_id)
            try:
                self._places.load(place)
            except (TierlogError, OSError):
                # The reader requests the indexes again and gets the error.
                self._failed += 1
            finally:
                self._loading.discard(segment_id)

        return load

    # -- giving up

    def has_ready(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether bytes for a reader whose next offset is `offset` were already requested."""
        key = (partition.topic_id, partition.partition, offset)
        with self._lock:
            return any(
                one.run is not None or (one.chunks and not one.chunks[0].is_waiting)
                for one in self._streams.get(key, ())
            )

    def drop_chunks(self, stream: Stream) -> int:
        """Drop the chunks of a stream. Return the number of freed bytes."""
        freed = 0 if stream.run is None else stream.run.view.nbytes
        stream.run = None
        while stream.chunks:
            chunk = stream.chunks.pop()
            freed += chunk.end - chunk.position
            self._wasted += chunk.drop()
        stream.plan_place = None
        return freed

    def give_up(self, needed_bytes: int) -> None:
        """Free `needed_bytes` for another reader. Streams that were idle longest are dropped
        first."""
        with self._lock:
            for streams in self._streams.values():
                for stream in streams:
                    if needed_bytes <= 0:
                        return
                    needed_bytes -= self.drop_chunks(stream)

    def stats(self) -> ReadAheadStats:
        """Return the counts for metrics."""
        return ReadAheadStats(
            pieces=self._pieces,
            bytes=self._bytes,
            wasted_bytes=self._wasted,
            failed=self._failed,
            stalls=self._stalls,
            streams=self._count,
            threads=self._workers.threads,
        )

    def close(self) -> None:
        """Drop all streams. A chunk that is being fetched is dropped when it arrives."""
        with self._lock:
            self._closed = True
            streams = [one for found in self._streams.values() for one in found]
            self._streams.clear()
            self._begun, self._begun_before = {}, {}
            self._count = 0
        self._workers.close()
        for stream in streams:
            self.drop_chunks(stream)
        self._memory.remove_on_shortage(self.give_up)
