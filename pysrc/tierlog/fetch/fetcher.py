"""One entry for a fetch over many partitions, local and remote (kafka-behaviour 5).

    fetcher = Fetcher(host, reads, pool=ReaderPool(...), quotas=FetchQuotas(...))
    response = await fetcher.fetch(request)          # or fetcher.fetch_sync(request)

Local partitions are read at once, remote ones by the threads of a bounded pool. A request with
remote partitions is answered when all of them are read, or after ``max_remote_wait_ms`` with what
there is; a read that comes later waits for the next request that asks for the same. Whatever is
wrong with one partition is the answer for that partition alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError, GapError, OutOfRangeError, TierlogError
from tierlog.fetch.decision import decide_fetch, decide_leader_epoch
from tierlog.fetch.offsets import (
    OffsetAnswer,
    OffsetReader,
    SpecialTimestamp,
    TimeSearch,
)
from tierlog.fetch.pool import ReaderPool, ReaderPoolFullError, ReadTicket
from tierlog.fetch.quotas import FetchPayer, FetchQuotas
from tierlog.log.same_log import VanishedError
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.local import LocalFetchReader
from tierlog.reader.remote import RemoteReader
from tierlog.reader.types import (
    CONSUMER,
    FetchError,
    FetchHost,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from tierlog.log.index_files import AbortedTransaction

__all__ = ["Fetcher"]

MAX_REMOTE_WAIT_MS = 500
LIST_OFFSETS_TIMEOUT_MS = 30_000
# A quota that is used up is looked at again when there may be room, no more often than that, and no
# less often, since its limit may change.
_QUOTA_LOOKS_MS = (100, 1_000)
# As often a partition is looked at whose files go while they are read.
_LOOKS = 3
# A read that the pool never began: it was closed before.
_CLOSED = FetchError.KAFKA_STORAGE_ERROR
_CLOSED_TEXT = "the fetcher was closed before the read began"
_NOT_LEADER = FetchError.NOT_LEADER_OR_FOLLOWER
_NOT_LEADER_TEXT = "this host does not lead the partition"


@dataclass(slots=True)
class _Looked:
    """One look at all partitions of a request: answers, and reads that are on their way."""

    answers: list[PartitionData]
    tickets: dict[int, ReadTicket[PartitionData]]
    size_bytes: int = 0
    failed: bool = False

    def take(self, row: int) -> bool:
        """A remote read is done: the answer for that partition. False when time is up before."""
        ticket = self.tickets.pop(row)
        if not ticket.future.done():
            ticket.give_up()
            return False
        now = self.answers[row]
        if ticket.future.cancelled():
            data = replace(now, source=FetchSource.ERROR, error=_CLOSED, text=_CLOSED_TEXT)
        else:
            data = ticket.future.result()
        # What came late, or was read for somebody else, stands beside what is true now.
        self.answers[row] = replace(
            data,
            high_watermark=now.high_watermark,
            last_stable_offset=now.last_stable_offset,
            log_start_offset=now.log_start_offset,
        )
        self.failed = self.failed or data.error is not FetchError.NONE
        return True

    def give_up(self) -> None:
        """Nobody waits for the reads any more."""
        for ticket in self.tickets.values():
            ticket.give_up()


@dataclass(frozen=True, slots=True)
class _Look:
    """A search for an offset, and how far it has come."""

    partition: TopicIdPartition
    timestamp: int
    isolation_level: IsolationLevel
    follower: bool
    client_id: str
    search: TimeSearch = field(default_factory=TimeSearch)


class Fetcher:
    """Answers fetches of one host's partitions. Any thread, any number of event loops.

    ``remote`` None: nothing is tiered here. The host calls `notify` when a partition has more to
    read; without it a request that waits for ``min_bytes`` waits its whole time.
    """

    def __init__(
        self,
        host: FetchHost,
        remote: RemoteReader | None,
        *,
        pool: ReaderPool,
        quotas: FetchQuotas,
        transactions: TransactionReader,
        offsets: OffsetReader | None = None,
        metrics: RemoteLogMetrics | None = None,
        max_remote_wait_ms: int = MAX_REMOTE_WAIT_MS,
        on_close: Callable[[], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._on_close = on_close
        self._host = host
        self._remote = remote
        self._pool = pool
        # Limits for all, by topic and by client id; they may be changed at any moment.
        self.quotas = quotas
        self._transactions = transactions
        self._offsets = offsets or OffsetReader()
        self._clock = clock or SystemClock()
        self._metrics = metrics or RemoteLogMetrics(self._clock)
        self.max_remote_wait_ms = max_remote_wait_ms
        self._local = LocalFetchReader()
        self._lock = threading.Lock()
        self._waiting: dict[TopicIdPartition, set[concurrent.futures.Future[None]]] = {}

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes what was opened for it (`open_fetcher`); may be repeated."""
        if self._on_close is not None:
            self._on_close()

    # -- asking

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer, without blocking the event loop. Cancelling it gives up what it waits for."""
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        while True:
            with self._told_of_more(request) as more:
                looked = await self._look_in_thread(request)
                try:
                    if looked.tickets:
                        futures = [
                            asyncio.wrap_future(ticket.future) for ticket in looked.tickets.values()
                        ]
                        await asyncio.wait(futures, timeout=_seconds(self.max_remote_wait_ms))
                finally:
                    response = self._finish(looked)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if self._is_answer(request, looked) or left_ms <= 0:
                    return response
                wait_ms = self._wait_ms(request, looked, left_ms)
                waits = [asyncio.wrap_future(more)]
                done, _ = await asyncio.wait(waits, timeout=_seconds(wait_ms))
                if not done and wait_ms >= left_ms:
                    return response

    def fetch_sync(self, request: FetchRequest) -> FetchResponse:
        """The same for plain threads."""
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        while True:
            with self._told_of_more(request) as more:
                looked = self._look(request)
                try:
                    if looked.tickets:
                        concurrent.futures.wait(
                            [ticket.future for ticket in looked.tickets.values()],
                            timeout=_seconds(self.max_remote_wait_ms),
                        )
                finally:
                    response = self._finish(looked)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if self._is_answer(request, looked) or left_ms <= 0:
                    return response
                wait_ms = self._wait_ms(request, looked, left_ms)
                done, _ = concurrent.futures.wait([more], timeout=_seconds(wait_ms))
                if not done and wait_ms >= left_ms:
                    return response

    async def list_offset(
        self,
        partition: TopicIdPartition,
        timestamp: int,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        client_id: str = "",
        timeout_ms: int = LIST_OFFSETS_TIMEOUT_MS,
    ) -> OffsetAnswer:
        """The offset of a time, searched by the pool, or of one of `SpecialTimestamp`. What a
        search asks of the store counts for the quotas of `client_id` and the topic; it waits while
        they are used up."""
        look = _Look(partition, timestamp, isolation_level, replica_id != CONSUMER, client_id)
        if _is_known(timestamp):
            return await asyncio.to_thread(self._look_up, look)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            ticket = self._search(look)
            if isinstance(ticket, OffsetAnswer):
                return ticket
            wait_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            try:
                future = asyncio.wrap_future(ticket.future)
                await asyncio.wait([future], timeout=_seconds(wait_ms))
            finally:
                answer = _in_time(ticket, timeout_ms)
            if answer.error is not FetchError.THROTTLING_QUOTA_EXCEEDED:
                return answer
            wait_ms = self._quota_wait_ms(look, deadline_ms)
            if wait_ms <= 0:
                return _timed_out(timeout_ms)
            await asyncio.sleep(_seconds(wait_ms))

    def list_offset_sync(
        self,
        partition: TopicIdPartition,
        timestamp: int,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        client_id: str = "",
        timeout_ms: int = LIST_OFFSETS_TIMEOUT_MS,
    ) -> OffsetAnswer:
        """The same for plain threads."""
        look = _Look(partition, timestamp, isolation_level, replica_id != CONSUMER, client_id)
        if _is_known(timestamp):
            return self._look_up(look)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            ticket = self._search(look)
            if isinstance(ticket, OffsetAnswer):
                return ticket
            wait_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            try:
                concurrent.futures.wait([ticket.future], timeout=_seconds(wait_ms))
            finally:
                answer = _in_time(ticket, timeout_ms)
            if answer.error is not FetchError.THROTTLING_QUOTA_EXCEEDED:
                return answer
            wait_ms = self._quota_wait_ms(look, deadline_ms)
            if wait_ms <= 0:
                return _timed_out(timeout_ms)
            self._clock.sleep(wait_ms)

    def notify(self, partition: TopicIdPartition) -> None:
        """The partition may have more to read: requests that wait for it look again."""
        with self._lock:
            for future in self._waiting.pop(partition, ()):
                # It may wait for several partitions, and have been told of another one.
                if not future.done():
                    future.set_result(None)

    # -- looking

    async def _look_in_thread(self, request: FetchRequest) -> _Looked:
        look = asyncio.get_running_loop().run_in_executor(None, self._look, request)
        try:
            return await asyncio.shield(look)
        except asyncio.CancelledError:
            # It goes on, and the reads that it begins are waited for by nobody.
            look.add_done_callback(self._give_up)
            raise

    def _give_up(self, look: asyncio.Future[_Looked]) -> None:
        if not look.cancelled() and look.exception() is None:
            self._finish(look.result())

    def _look(self, request: FetchRequest) -> _Looked:
        looked = _Looked(answers=[], tickets={})
        try:
            self._look_at_all(request, looked)
        except BaseException:
            looked.give_up()
            raise
        return looked

    def _look_at_all(self, request: FetchRequest, looked: _Looked) -> None:
        left_bytes = request.max_bytes
        minimum_one = True
        for row, asked in enumerate(request.partitions):
            try:
                answer, ticket, used_bytes = self._look_at(request, asked, left_bytes, minimum_one)
            except Exception as failed:  # noqa: BLE001 - of one partition, whatever it is
                answer, ticket, used_bytes = _error(asked, _code(failed), _words(failed)), None, 0
            looked.answers.append(answer)
            if ticket is not None:
                looked.tickets[row] = ticket
            left_bytes -= used_bytes
            looked.size_bytes += used_bytes
            looked.failed = looked.failed or answer.error is not FetchError.NONE
            minimum_one = minimum_one and used_bytes == 0 and ticket is None

    def _look_at(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        left_bytes: int,
        minimum_one: bool,
        looks: int = _LOOKS,
    ) -> tuple[PartitionData, ReadTicket[PartitionData] | None, int]:
        """The answer there is, the read that will make a better one, and the bytes it may take."""
        view = self._view(asked.partition)
        if view is None:
            return _error(asked, FetchError.UNKNOWN_TOPIC_OR_PARTITION, "not here"), None, 0
        wrong = decide_leader_epoch(asked.current_leader_epoch, view.leader_epoch)
        if wrong is not None:
            text = f"leader epoch {asked.current_leader_epoch}, here {view.leader_epoch}"
            return _error(asked, wrong[1], text, view), None, 0
        follower = request.replica_id != CONSUMER
        if follower and not view.leads:
            return _error(asked, _NOT_LEADER, _NOT_LEADER_TEXT, view), None, 0
        source, error = decide_fetch(
            asked.fetch_offset,
            view.log_start_offset,
            view.local_log_start_offset,
            view.log_end_offset,
            view.tiered and self._remote is not None,
            follower,
            False,
            1 if minimum_one else min(asked.max_bytes, left_bytes),
        )
        if source is FetchSource.LOCAL:
            try:
                answer = self._local_answer(request, asked, view, left_bytes, minimum_one)
            except VanishedError as vanished:
                # The log went on under the view: its next one knows how, and where to read.
                if looks > 1:
                    return self._look_at(request, asked, left_bytes, minimum_one, looks - 1)
                answer = _error(asked, FetchError.KAFKA_STORAGE_ERROR, str(vanished), view)
            except Exception as failed:  # noqa: BLE001 - of one partition, whatever it is
                answer = _error(asked, _code(failed), _words(failed), view)
            return answer, None, answer.size_bytes
        if source is not FetchSource.REMOTE:
            return _answer(asked, view, source, error, self._text(error, asked, view)), None, 0
        return self._read_remote(request, asked, view, left_bytes, minimum_one)

    def _view(self, partition: TopicIdPartition) -> FetchView | None:
        """None also when the host shows another topic of the same name."""
        view = self._host.view(partition)
        same = view is None or view.log.archive_id in (None, partition.topic_id)
        return view if same else None

    def _text(self, error: FetchError, asked: FetchPartition, view: FetchView) -> str:
        if error is FetchError.NONE:
            return ""
        return (
            f"offset {asked.fetch_offset}: the log has {view.log_start_offset} to "
            f"{view.log_end_offset}, here from {view.local_log_start_offset} on"
        )

    def _upper_offset(self, request: FetchRequest, view: FetchView) -> int:
        if request.replica_id != CONSUMER:
            return view.log_end_offset
        if request.isolation_level is IsolationLevel.READ_COMMITTED:
            return min(view.last_stable_offset, view.high_watermark)
        return view.high_watermark

    # -- local

    def _local_answer(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        left_bytes: int,
        minimum_one: bool,
    ) -> PartitionData:
        max_bytes = max(0, min(asked.max_bytes, left_bytes))
        return self._local_data(request, asked, view, asked.fetch_offset, max_bytes, minimum_one)

    def _local_data(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        offset: int,
        max_bytes: int,
        minimum_one: bool,
    ) -> PartitionData:
        upper_offset = self._upper_offset(request, view)
        read = self._local.read(view, offset, max_bytes, upper_offset, minimum_one=minimum_one)
        aborted: tuple[AbortedTransaction, ...] | None = None
        if _committed_only(request):
            aborted = self._transactions.of_local(view, read)
        answer = _answer(asked, view, FetchSource.LOCAL, FetchError.NONE, "")
        return replace(answer, records=read.records, aborted_transactions=aborted)

    # -- remote

    def _read_remote(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        left_bytes: int,
        minimum_one: bool,
    ) -> tuple[PartitionData, ReadTicket[PartitionData] | None, int]:
        max_bytes = max(0, min(asked.max_bytes, left_bytes))
        payer = self.quotas.payer(asked.partition.topic, request.client_id)
        upper_offset = self._upper_offset(request, view)
        lineage = view.log.leader_epochs
        key = (
            asked.partition,
            asked.fetch_offset,
            max_bytes,
            minimum_one,
            request.isolation_level,
            upper_offset,
            view.leader_epoch,
            # Of another history the offset is another record.
            lineage and lineage.entries[-1:],
            # Another client's quota may have room.
            request.client_id if self.quotas.limits_client(request.client_id) else None,
        )
        wait_ms = payer.throttle_ms()
        if wait_ms > 0 and not self._is_paid(key, asked):
            self._metrics.fetch_throttled(wait_ms)
            return _answer(asked, view, FetchSource.THROTTLED, FetchError.NONE, ""), None, 0
        read = self._remote_read(request, asked, view, max_bytes, upper_offset, minimum_one, payer)
        empty = _answer(asked, view, FetchSource.REMOTE, FetchError.NONE, "")
        try:
            ticket = self._pool.submit(
                key, lambda: self._count(asked.partition.topic, request.client_id, read)
            )
        except (ReaderPoolFullError, ClosedError) as error:
            return _error(asked, _code(error), str(error), view), None, 0
        return empty, ticket, max_bytes

    def _is_paid(self, key: Hashable, asked: FetchPartition) -> bool:
        """Whether what is asked for was asked of the store before."""
        if key in self._pool:
            return True
        remote = self._remote
        return remote is not None and remote.has_ready(asked.partition, asked.fetch_offset)

    def _remote_read(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        max_bytes: int,
        upper_offset: int,
        minimum_one: bool,
        payer: FetchPayer,
    ) -> Callable[[], PartitionData]:
        """What a thread of the pool does for a partition; an error is an answer too."""

        def read() -> PartitionData:
            now = view
            for left in reversed(range(_LOOKS)):
                try:
                    return self._tier_data(
                        request, asked, now, max_bytes, upper_offset, minimum_one, payer
                    )
                except VanishedError as vanished:
                    # Of the local log, that goes on behind what is read here.
                    latest = self._view(asked.partition)
                    if not left or latest is None:
                        code = FetchError.KAFKA_STORAGE_ERROR
                        return _error(asked, code, str(vanished), now)
                    now = latest
                except GapError as gap:
                    # Retention may have moved the log start since the view was taken.
                    latest = self._view(asked.partition)
                    moved = latest is not None and latest.log_start_offset > gap.first_offset
                    if not left or latest is None or not moved:
                        return _error(asked, _code(gap), _words(gap), now)
                    now = latest
                except BaseException as failed:  # noqa: BLE001 - of one partition, whatever it is
                    return _error(asked, _code(failed), _words(failed), now)
            raise AssertionError("the last look answers")

        return read

    def _tier_data(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        max_bytes: int,
        upper_offset: int,
        minimum_one: bool,
        payer: FetchPayer,
    ) -> PartitionData:
        remote, lineage = self._remote, view.log.leader_epochs
        if remote is None or lineage is None:
            text = "the leader epochs of the log are unknown"
            return _error(asked, FetchError.KAFKA_STORAGE_ERROR, text, view)
        found = remote.read(
            asked.partition,
            lineage,
            asked.fetch_offset,
            max_bytes,
            upper_offset,
            minimum_one=minimum_one,
            log_start_offset=view.log_start_offset,
            tier_end_offset=view.local_log_start_offset,
            payer=payer,
        )
        if found.throttled:
            self._metrics.fetch_throttled(payer.throttle_ms())
            return _answer(asked, view, FetchSource.THROTTLED, FetchError.NONE, "")
        if found.first_offset < 0 and found.next_offset >= view.local_log_start_offset:
            # Nothing but a gap is left in the tier: the log goes on here.
            return self._local_data(request, asked, view, found.next_offset, max_bytes, minimum_one)
        aborted: tuple[AbortedTransaction, ...] | None = None
        if _committed_only(request):
            aborted = self._transactions.of_remote(view, asked.partition, found)
        answer = _answer(asked, view, FetchSource.REMOTE, FetchError.NONE, "")
        return replace(answer, records=found.records, aborted_transactions=aborted)

    def _count(
        self, topic: str, client_id: str, read: Callable[[], PartitionData]
    ) -> PartitionData:
        """The metrics count what came."""
        self._metrics.fetch_started(topic)
        began_ms = self._clock.monotonic_ms()
        data = read()
        if data.source is FetchSource.REMOTE and data.size_bytes:
            self._metrics.fetch_took(self._clock.monotonic_ms() - began_ms)
        if data.error is FetchError.NONE:
            self._metrics.fetched(topic, data.size_bytes, client_id)
        elif data.error is not FetchError.OFFSET_OUT_OF_RANGE:
            self._metrics.fetch_failed(topic)
        return data

    # -- offsets

    def _search(self, look: _Look) -> OffsetAnswer | ReadTicket[OffsetAnswer]:
        def search() -> OffsetAnswer:
            try:
                return self._look_up(look)
            except BaseException as failed:  # noqa: BLE001 - the thread belongs to the pool
                return OffsetAnswer(error=_code(failed), text=_words(failed))

        # The newest record may be another one for each request.
        key: Hashable = object()
        if look.timestamp >= 0 and not self.quotas.limits_client(look.client_id):
            key = ("offset", look.partition, look.timestamp, look.isolation_level, look.follower)
        try:
            return self._pool.submit(key, search)
        except (ReaderPoolFullError, ClosedError) as error:
            return OffsetAnswer(error=_code(error), text=str(error))

    def _quota_wait_ms(self, look: _Look, deadline_ms: int) -> int:
        """How long a search waits until it looks at its quotas again; 0: it has no time left."""
        least_ms, most_ms = _QUOTA_LOOKS_MS
        free_ms = self.quotas.throttle_ms(look.partition.topic, look.client_id)
        left_ms = deadline_ms - self._clock.monotonic_ms()
        return max(0, min(left_ms, max(least_ms, free_ms), most_ms))

    def _look_up(self, look: _Look, looks: int = 2) -> OffsetAnswer:
        partition = look.partition
        try:
            view = self._view(partition)
            if view is None:
                error = FetchError.UNKNOWN_TOPIC_OR_PARTITION
                return OffsetAnswer(error=error, text="not here")
            if not view.leads:
                return OffsetAnswer(error=_NOT_LEADER, text=_NOT_LEADER_TEXT)
            return self._offsets.look_up(
                view,
                partition,
                look.timestamp,
                isolation_level=look.isolation_level,
                follower=look.follower,
                payer=self.quotas.payer(partition.topic, look.client_id),
                search=look.search,
            )
        except Exception as failed:  # noqa: BLE001 - that is the answer, whatever it is
            if not isinstance(failed, VanishedError) or looks == 1:
                return OffsetAnswer(error=_code(failed), text=_words(failed))
        # The log went on meanwhile: once more, as it is now.
        return self._look_up(look, looks - 1)

    # -- answering

    def _finish(self, looked: _Looked) -> FetchResponse:
        for row in list(looked.tickets):
            if not looked.take(row):
                self._metrics.fetch_expired()
        return FetchResponse(partitions=tuple(looked.answers))

    def _is_answer(self, request: FetchRequest, looked: _Looked) -> bool:
        """Whether nothing is gained by waiting: data enough, an error, or something remote, which
        has waited already."""
        if not request.partitions or looked.failed or looked.size_bytes >= request.min_bytes:
            return True
        return any(one.source is FetchSource.REMOTE for one in looked.answers)

    def _wait_ms(self, request: FetchRequest, looked: _Looked, left_ms: int) -> int:
        """How long to wait for more before looking again."""
        throttled = [one for one in looked.answers if one.source is FetchSource.THROTTLED]
        if not throttled:
            return left_ms
        topics = {one.partition.topic for one in throttled}
        free_ms = min(self.quotas.throttle_ms(topic, request.client_id) for topic in topics)
        least_ms, most_ms = _QUOTA_LOOKS_MS
        return min(left_ms, max(least_ms, free_ms), most_ms)

    @contextmanager
    def _told_of_more(self, request: FetchRequest) -> Iterator[concurrent.futures.Future[None]]:
        """A future that `notify` of any of the partitions ends; made before looking, so that
        nothing that comes meanwhile is slept over."""
        more: concurrent.futures.Future[None] = concurrent.futures.Future()
        wanted: Sequence[TopicIdPartition] = [one.partition for one in request.partitions]
        with self._lock:
            for partition in wanted:
                self._waiting.setdefault(partition, set()).add(more)
        try:
            yield more
        finally:
            with self._lock:
                for partition in wanted:
                    waiting = self._waiting.get(partition)
                    if waiting is not None:
                        waiting.discard(more)
                        if not waiting:
                            del self._waiting[partition]


def _is_known(timestamp: int) -> bool:
    """Whether it is told without reading any records: no store that hangs keeps that back."""
    return timestamp < 0 and timestamp != SpecialTimestamp.MAX_TIMESTAMP


def _in_time(ticket: ReadTicket[OffsetAnswer], timeout_ms: int) -> OffsetAnswer:
    if ticket.future.cancelled():
        return OffsetAnswer(error=_CLOSED, text=_CLOSED_TEXT)
    if ticket.future.done():
        return ticket.future.result()
    ticket.give_up()
    return _timed_out(timeout_ms)


def _timed_out(timeout_ms: int) -> OffsetAnswer:
    return OffsetAnswer(
        error=FetchError.REQUEST_TIMED_OUT, text=f"not found within {timeout_ms} ms"
    )


def _committed_only(request: FetchRequest) -> bool:
    consumer = request.replica_id == CONSUMER
    return consumer and request.isolation_level is IsolationLevel.READ_COMMITTED


def _seconds(wait_ms: int) -> float:
    """For a wait; no system can wait for ever."""
    return min(wait_ms / 1000, threading.TIMEOUT_MAX)


def _answer(
    asked: FetchPartition, view: FetchView, source: FetchSource, error: FetchError, text: str
) -> PartitionData:
    return PartitionData(
        partition=asked.partition,
        source=source,
        error=error,
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        log_start_offset=view.log_start_offset,
        text=text,
    )


def _error(
    asked: FetchPartition, error: FetchError, text: str, view: FetchView | None = None
) -> PartitionData:
    if view is None:
        return PartitionData(
            partition=asked.partition, source=FetchSource.ERROR, error=error, text=text
        )
    return _answer(asked, view, FetchSource.ERROR, error, text)


def _code(error: BaseException) -> FetchError:
    """What a client is told: nothing but a missing offset makes it go elsewhere."""
    if isinstance(error, OutOfRangeError):
        return FetchError.OFFSET_OUT_OF_RANGE
    if isinstance(error, ReaderPoolFullError) or not isinstance(error, (TierlogError, OSError)):
        return FetchError.UNKNOWN_SERVER_ERROR
    return FetchError.KAFKA_STORAGE_ERROR


def _words(error: BaseException) -> str:
    """What a person is told; of what nobody expected also what it was."""
    return str(error) if isinstance(error, (TierlogError, OSError)) else repr(error)
