"""What sequential readers will ask for next, fetched before they do.

A reader is known by where it goes on: whoever asks for the offset after the last one that was
handed out, of whatever partition, is taken for the one that got those. So several readers of one
partition each have a `Stream`, and nobody has to say who he is. It is made for the second read:

* a store of this machine that answers at once is read in place, in pieces of `chunk_bytes` at
  least;
* from any other the next pieces are fetched by a few threads: run after run of the remote log
  index, on into the next segment, whose indexes are fetched before it is reached.

How far ahead: of a server that sends at once two pieces are under way while the reader is at the
one before, so that neither rests. Of one that lets readers wait, twice what the reader gets
through, at his pace, while one request is under way. A stream whose reader had to wait all the same
asks for four times as much from then on, in larger pieces when there are more of them than threads,
up to `max_window_bytes` and the share of the memory that may be read ahead. What nobody came for
goes after `idle_ms`, and at once when somebody else needs the memory.

Requests that go out at one moment come back at one moment, and then for a while nothing does: those
that take their places are all on their way. So they go out evenly, a window in the time that a
piece takes until it is checked: what goes out faster waits for a processor, in more memory than
lies in the caches.

A piece is charged to the quota of the read that had it planned, when it is asked of the store. No
piece is planned while that quota is used up; one that finds it used up stays where it is, until its
reader comes to it or there is room again.

A piece is checked where it was fetched, on that thread. One that is damaged or could not be had is
dropped: the reader asks for it again itself and gets the error, if there still is one.
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

__all__ = ["Piece", "ReadAhead", "ReadAheadSettings", "ReadAheadStats", "Stream", "Work"]

_GROWTH = 4
# So many pieces of a server that sends at once, after the one that the reader is at. With one the
# processors still rest at times, three bring no more than two.
_UNDER_WAY = 2
# A window goes out in at most so many times what the store lets readers wait: one piece that took
# for ever does not hold up those after it.
_MOST_SPREAD = 2
# So many pieces, about, tell how long one takes.
_PIECES = 16
# A reader that is back within the same millisecond.
_NO_PAUSE_MS = 0.25
# So many segments' indexes are fetched beforehand at most.
_MAX_WARMED = 16
# Topic id, partition and where a reader goes on.
_Key = tuple[str, int, int]
# Place, position and time of a first read.
_Begun = tuple[Place, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadSettings:
    """Sizes in bytes. ``threads`` fetch for all streams together; with ``max_window_bytes`` 0
    nothing is read ahead. ``slow_ms``: a store that lets readers wait that long is read ahead."""

    threads: int = 32
    chunk_bytes: int = 1 << 20
    max_chunk_bytes: int = 4 << 20
    max_window_bytes: int = 128 << 20
    max_streams: int = 1024
    idle_ms: int = 30_000
    slow_ms: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadStats:
    """Counts since the start, but ``streams`` and ``threads``, which are of now.

    ``stalls``: how often a reader waited for a piece that was on its way. ``wasted_bytes`` were
    fetched and dropped, ``failed`` pieces were damaged or not to be had.
    """

    pieces: int
    bytes: int
    wasted_bytes: int
    failed: int
    stalls: int
    streams: int
    threads: int


class Fetch(Protocol):
    """How a piece gets its bytes."""

    def __call__(self, place: Place, position: int, end: int, permit: Permit) -> BatchRun: ...


class Work(Enum):
    """What came of an attempt to fetch a piece."""

    DONE = "done"
    # Another thread fetches it, or has done so.
    TAKEN = "taken"
    # The quota is used up.
    REFUSED = "refused"


class Piece:
    """Bytes [`position`, `end`) of a place's object: waiting, under way, here or failed."""

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
        # Whether the quota had no room when a worker came to it.
        self.is_refused = False
        # The first one where a stream enters a segment: from there on nothing is left out. Its
        # batches begin with the lowest one or later and end with the last one.
        self.first_offset, self._lowest_offset, self._last_offset = offsets
        self.position, self.end = span
        self.run: BatchRun | None = None
        self._fetch = fetch
        self._done = threading.Event()
        self._dropped = False
        # The thread that takes the permit fetches the piece, or gives it up. One at a time tries.
        self._permit: Permit | None = permit
        self._turn = threading.Lock()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def is_waiting(self) -> bool:
        """Whether no thread has asked the store for it yet."""
        return self._permit is not None

    def fetch_ahead(self) -> Work:
        """Fetch it before its reader comes; never waits for the quota or another thread."""
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
        self._work(permit)
        return Work.DONE

    def fetch_now(self, payer: Payer) -> Work:
        """Fetch it for the reader that has come to it, at its expense."""
        with self._turn:
            if self._permit is None:
                return Work.TAKEN
            if not payer.charge(self.end - self.position):
                return Work.REFUSED
            permit, self._permit = self._permit, None
        self._work(permit)
        return Work.DONE

    def _work(self, permit: Permit) -> None:
        run = None
        try:
            run = self._fetch(self.place, self.position, self.end, permit)
            if not self._is_sound(run):
                run = None
        except (TierlogError, OSError):
            # The reader asks again itself and gets the error.
            run = None
        finally:
            self.run = run
            # Looked at afterwards: `drop` first says so and then takes it away.
            if self._dropped:
                self.run = None
            self._done.set()

    def result(self) -> BatchRun | None:
        """Its batches; None when it failed or was dropped. Waits for the thread that fetches it."""
        self._done.wait()
        return self.run

    def drop(self) -> int:
        """Give it up; how many bytes were fetched in vain."""
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
        """No checksum covers the base offset of a batch, but the index knows the run's offsets."""
        return (
            run.is_whole
            and run.base_offset[0] >= self._lowest_offset
            and run.last_offset[len(run) - 1] == self._last_offset
        )


class Stream:
    """One sequential reader: the next batch begins at byte `position` of `place`.

    `pieces` follow each other from there on without a gap, also into later segments;
    (`plan_place`, `plan_position`) is where the next one begins. For one thread at a time.
    """

    __slots__ = (
        "answered_ms",
        "due_ms",
        "partition",
        "pieces",
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
        # What a request brought beyond what was asked for.
        self.run: BatchRun | None = None
        self.pieces: deque[Piece] = deque()
        self.plan_place: Place | None = None
        self.plan_position = 0
        self.plan_offset: int | None = None
        self.plan_lowest = 0
        self.reads = 0
        # Where planning was when indexes were last asked for beforehand.
        self.warmed: Place | None = None
        self.answered_ms = answered_ms
        # When the next piece may be asked for.
        self.due_ms: float = answered_ms

    def is_at(self, place: Place) -> bool:
        """Whether the stream goes on in this segment."""
        return self.place is not None and self.place.is_of(place)

    @property
    def at_end(self) -> bool:
        """Whether all bytes of its segment were handed out."""
        return self.place is not None and self.position >= self.place.segment.segment_size_bytes

    def goes_on(self, place: Place, position: int) -> None:
        """The next batch begins there."""
        self.place, self.position = place, position
        while self.pieces and self.pieces[0].end <= position and self.pieces[0].place.is_of(place):
            self.pieces.popleft()

    def enters(self, place: Place, offset: int) -> bool:
        """Whether the next piece is the one with which to enter a segment at `offset`."""
        while self.pieces and not self.pieces[0].place.is_of(place):
            self.pieces.popleft().drop()
        if not self.pieces:
            return False
        first_offset = self.pieces[0].first_offset
        return first_offset is not None and first_offset <= offset

    def plan_from(self, place: Place, position: int, offset: int) -> None:
        """The next piece begins there, with `offset` or later, right after what was handed out."""
        self.plan_place, self.plan_position, self.plan_offset = place, position, None
        self.plan_lowest = offset

    def planned_bytes(self) -> int:
        """Bytes of all pieces, here or on their way."""
        return sum(piece.end - piece.position for piece in self.pieces)


class NextPlaces(Protocol):
    """What the planning of pieces needs to know of segments and their indexes."""

    def following(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, place: Place
    ) -> tuple[Place, int] | None:
        """The place after `place`, and the offset it goes on at."""
        ...

    def is_loaded(self, place: Place) -> bool:
        """Whether the next two calls need no request."""
        ...

    def start_of(self, place: Place, offset: int) -> int | None:
        """From which byte on to read for `offset`; None when nothing there reaches it."""
        ...

    def run_end(self, place: Place, position: int, size_bytes: int) -> tuple[int, int] | None:
        """Where the runs end that fit into `size_bytes` from `position` on, at least one, and
        their last offset."""
        ...

    def load(self, place: Place) -> object:
        """Get the indexes of a segment."""
        ...


class ReadAhead:
    """The streams of one reader, and the threads that fetch for them. Any thread."""

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
        # Where readers that have read once go on: place, position, and the time of the read. The
        # stream is made for the second read.
        self._begun: dict[_Key, _Begun] = {}
        self._begun_before: dict[_Key, _Begun] = {}
        self._max_begun = settings.max_streams if settings.max_window_bytes > 0 else 0
        self._loading: set[RemoteLogSegmentId] = set()
        self._pieces = self._bytes = self._wasted = self._failed = self._stalls = 0
        # What a piece takes to be fetched and checked, in the mean of the last ones.
        self._piece_ms = 0.0
        self._closed = False
        memory.on_shortage(self.give_up)

    # -- streams

    def take(self, partition: TopicIdPartition, offset: int) -> Stream | None:
        """The stream that goes on at `offset`, for the caller alone; of several the one that has
        read most ahead."""
        key = (partition.topic_id, partition.partition, offset)
        if self._streams and key in self._streams:
            with self._lock:
                found = self._streams.get(key)
                if found:
                    stream = max(found, key=lambda one: len(one.pieces))
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
        """Somebody has read once, and goes on at `offset` if he is sequential: at byte `position`
        of `place`."""
        if self._closed or not self._max_begun:
            return
        begun = self._begun
        if len(begun) >= self._max_begun:
            self._begun_before, self._begun = begun, {}
            begun = self._begun
        topic_id, partition, _ = place.index_key
        begun[topic_id, partition, offset] = place, position, now_ms

    def put(self, stream: Stream, offset: int) -> None:
        """The stream goes on at `offset`; who takes it next reads on there."""
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
            surplus += self._surplus()
        for one in surplus:
            self.drop_pieces(one)

    def sweep(self) -> None:
        """Drop what nobody came for in time."""
        with self._lock:
            surplus = self._surplus()
        for one in surplus:
            self.drop_pieces(one)

    def _surplus(self) -> list[Stream]:
        """Streams that are too many or too old, out of the table."""
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
        """How much to fetch for a reader who waits for `size_bytes`: more than that when he is
        sequential, so that the next reads find it here. From a quick store the more the longer he
        has been it: one who reads here and there comes by his own marks now and then."""
        if stream.reads < 1 or self.settings.max_window_bytes <= 0:
            return size_bytes
        chunk_bytes = self.settings.chunk_bytes
        if not self.is_slow:
            chunk_bytes = min(chunk_bytes, size_bytes * _GROWTH ** min(stream.reads, 16))
        return max(size_bytes, chunk_bytes)

    @property
    def is_slow(self) -> bool:
        """Whether the store lets readers wait."""
        return self.waits.wait_ms >= self.settings.slow_ms

    def awaited(self, stream: Stream, piece: Piece, payer: Payer) -> tuple[BatchRun | None, Work]:
        """The batches of a piece, and whether the caller fetched it itself or must not. A reader
        that has to wait for the store gets more read ahead from then on."""
        if piece.is_done:
            return self._counted(piece.run), Work.TAKEN
        begun_ms = self._clock.monotonic_ms()
        work = piece.fetch_now(payer)
        if work is Work.REFUSED:
            return None, work
        run = piece.result()
        waited = self._clock.monotonic_ms() - begun_ms >= self.settings.slow_ms
        # Under a limit the wait may have been for the quota.
        if waited and not (work is Work.DONE and payer.is_limited):
            self._stalls += 1
            if self.is_slow:
                stream.window_bytes *= _GROWTH
        return self._counted(run), work

    def _counted(self, run: BatchRun | None) -> BatchRun | None:
        if run is None:
            self._failed += 1
        return run

    def extend(self, stream: Stream, lineage: LeaderEpochs, max_bytes: int, payer: Payer) -> None:
        """Have the pieces after those at hand fetched, as far ahead as the stream's window; from a
        server that sends at once no more than are to be under way; none while the quota of the
        payer is used up."""
        is_slow = self.is_slow
        if self._closed or stream.plan_place is None:
            return
        if not is_slow and not self._is_sent(stream, max_bytes):
            return
        if not payer.charge_ahead(0):
            return
        for piece in stream.pieces:
            if piece.is_refused:
                piece.is_refused, piece.payer = False, payer
                self._workers.submit(self._worker(piece))
        now_ms, wait_ms = self._clock.monotonic_ms(), self.waits.wait_ms if is_slow else 0.0
        window = self._window(stream, max_bytes, now_ms, wait_ms)
        spread_ms = min(max(wait_ms, self._piece_ms), _MOST_SPREAD * wait_ms)
        planned = stream.planned_bytes()
        while planned < window and (is_slow or len(stream.pieces) <= _UNDER_WAY):
            most_bytes = self._piece_bytes(window, max_bytes)
            next_piece = self._next_piece(stream, lineage, most_bytes, payer)
            if next_piece is None:
                return
            piece = next_piece
            size_bytes = piece.end - piece.position
            planned += size_bytes
            stream.pieces.append(piece)
            self._pieces += 1
            self._bytes += size_bytes
            due_ms = max(stream.due_ms, now_ms)
            stream.due_ms = due_ms + spread_ms * size_bytes / window
            self._workers.submit(self._worker(piece), due_ms - now_ms)

    def _worker(self, piece: Piece) -> Callable[[], None]:
        def job() -> None:
            begun_ms = self._clock.monotonic_ms()
            if piece.fetch_ahead() is Work.DONE:
                took_ms = self._clock.monotonic_ms() - begun_ms
                before_ms = self._piece_ms or took_ms
                self._piece_ms = before_ms + (took_ms - before_ms) / _PIECES

        return job

    def _is_sent(self, stream: Stream, max_bytes: int) -> bool:
        """Whether a server may send before the reader asks: as soon as he is given whole chunks,
        so not to one who has come by his own mark once, reading here and there."""
        return not self._is_local and (
            self.in_place(stream, max_bytes) >= self.settings.chunk_bytes
        )

    def _window(self, stream: Stream, max_bytes: int, now_ms: int, wait_ms: float) -> int:
        """How many bytes are to be here or on their way."""
        if stream.reads == 1:
            pause_ms = now_ms - stream.answered_ms
            stream.window_bytes = int(2 * max_bytes * wait_ms / max(pause_ms, _NO_PAUSE_MS))
        least = (1 + _UNDER_WAY) * max(max_bytes, self.settings.chunk_bytes)
        window = min(max(stream.window_bytes, least), self.settings.max_window_bytes)
        stream.window_bytes = window
        return window

    def _piece_bytes(self, window: int, max_bytes: int) -> int:
        """Larger pieces when the window has more of them than there are threads; several reads of
        `max_bytes` to a piece, or one."""
        settings = self.settings
        size = min(max(settings.chunk_bytes, window // settings.threads), settings.max_chunk_bytes)
        if max_bytes >= size:
            return min(max_bytes, settings.max_window_bytes)
        return size - size % max_bytes if max_bytes > 0 else size

    def _next_piece(
        self, stream: Stream, lineage: LeaderEpochs, size_bytes: int, payer: Payer
    ) -> Piece | None:
        place = self._planned_place(stream, lineage)
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
        piece = Piece(self._fetch, place, span, permit, offsets, payer)
        stream.plan_position, stream.plan_offset = end, None
        stream.plan_lowest = last_offset + 1
        return piece

    def _planned_place(self, stream: Stream, lineage: LeaderEpochs) -> Place | None:
        """Where the next piece lies; None while that is not known, or when there is no more."""
        place = stream.plan_place
        assert place is not None
        if stream.warmed is not place:
            stream.warmed = place
            self._warm(stream, lineage, place)
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

    def _warm(self, stream: Stream, lineage: LeaderEpochs, place: Place) -> None:
        """Have the indexes fetched of the segments that read-ahead comes to while it waits for
        what it has asked for."""
        ahead_bytes = -place.segment.segment_size_bytes
        for _ in range(_MAX_WARMED):
            if not self._places.is_loaded(place):
                self._workers.submit(self._loader(place))
            ahead_bytes += place.segment.segment_size_bytes
            following = self._places.following(stream.partition, lineage, place)
            if following is None or ahead_bytes > 2 * stream.window_bytes:
                return
            place = following[0]

    def _loader(self, place: Place) -> Callable[[], None]:
        segment_id = place.segment.segment_id

        def load() -> None:
            if self._closed or segment_id in self._loading:
                return
            self._loading.add(segment_id)
            try:
                self._places.load(place)
            except (TierlogError, OSError):
                # The reader asks again himself and gets the error.
                self._failed += 1
            finally:
                self._loading.discard(segment_id)

        return load

    # -- giving up

    def has_ready(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether bytes for a reader that goes on at `offset` are here, or on their way."""
        key = (partition.topic_id, partition.partition, offset)
        with self._lock:
            return any(
                one.run is not None or (one.pieces and not one.pieces[0].is_waiting)
                for one in self._streams.get(key, ())
            )

    def drop_pieces(self, stream: Stream) -> int:
        """What was read ahead for a stream goes; how many bytes that were."""
        freed = 0 if stream.run is None else stream.run.view.nbytes
        stream.run = None
        while stream.pieces:
            piece = stream.pieces.pop()
            freed += piece.end - piece.position
            self._wasted += piece.drop()
        stream.plan_place = None
        return freed

    def give_up(self, needed_bytes: int) -> None:
        """Somebody needs memory: what was read ahead for who has been away longest goes first."""
        with self._lock:
            for streams in self._streams.values():
                for stream in streams:
                    if needed_bytes <= 0:
                        return
                    needed_bytes -= self.drop_pieces(stream)

    def stats(self) -> ReadAheadStats:
        """Counts for metrics."""
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
        """Drop everything; a piece under way is dropped when it comes."""
        with self._lock:
            self._closed = True
            streams = [one for found in self._streams.values() for one in found]
            self._streams.clear()
            self._begun, self._begun_before = {}, {}
            self._count = 0
        self._workers.close()
        for stream in streams:
            self.drop_pieces(stream)
        self._memory.remove_on_shortage(self.give_up)
