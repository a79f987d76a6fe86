"""The metadata manager that uses a cluster's ``__remote_log_metadata`` topic.

Every event is a record. All events of a user partition are in one partition of the topic, so all
readers see them in the same order. A manager reads the topic from its beginning and applies the
records. An event that the present state does not allow is dropped, and every reader drops the same
events. A write returns when the manager has read the written record back. The record is then
durable and visible to this manager. The manager also knows whether the event was accepted, or was
dropped because another writer was faster (Kafka's ``TopicBasedRemoteLogMetadataManager`` does not
report that).

**Fencing** follows the order of the topic. A record contains the leader epoch of its writer
(`records`). If an earlier record that was accepted has a later epoch, every reader drops the
record, and its writer gets a FencedLeaderError. A claim is a record of its own, which Kafka
ignores, so a new leader fences earlier leaders before it does anything else. The new leader reads
its claim back, so it has then read all events that were accepted before the claim. A retry has the
same epoch as the first attempt, so it is not fenced, and an event that is written twice counts
once.

The following are not fenced:

* events without an epoch, which Kafka's own brokers and tools write;
* Kafka's own readers, which ignore these epochs and apply a dropped event if the segment's state
  allows it. So a segment of a fenced leader may seem finished or deleted to them;
* actions that a leader was allowed before a later claim but takes after it. That leader may still
  remove the objects of a segment whose deletion was accepted, and its active upload may finish.
  No metadata refers to the uploaded object; a comparison with the store finds it as an orphan;
* an old leader that acts after the topic has dropped the later claim. A topic with a finite
  ``retention.ms`` (Kafka's default is infinite) drops claims with its other records.

**Deleted partitions** accept no events. A Kafka broker that has the partition stops reading all
metadata at the first event after a DELETE_PARTITION_FINISHED. So this manager writes no such event,
and ignores such events of other writers.

Needs the extra ``kafka``. Kafka's brokers and tierlog may read and write the same topic.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    FencedLeaderError,
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.records import (
    MetadataRecord,
    decode_record,
    encode_record,
    make_note_event,
    metadata_partition,
)
from tierlog.remote.metadata.topic_client import MetadataTopicClient, unavailable, write_token
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing import Self

    from confluent_kafka import Message

    from tierlog.remote.metadata.partition import PartitionChange, PartitionMetadata

__all__ = ["METADATA_TOPIC", "TopicBasedRemoteLogMetadataManager"]

METADATA_TOPIC = "__remote_log_metadata"
_PARTITION_DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_POLL_S = 0.1
_POLL_RECORDS = 500
# `close` waits this long for the reader thread, which checks every `_POLL_S` whether it must end.
_CLOSE_S = 4.0


class _Write(NamedTuple):
    """A record that is being written: its partition of the topic, and the future for its result."""

    number: int
    outcome: Future[None]


class TopicBasedRemoteLogMetadataManager(InMemoryRemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` over the metadata topic of a running cluster.

        with TopicBasedRemoteLogMetadataManager("broker:9092") as metadata:
            metadata.wait_until_ready(timeout_s=30)

    ``bootstrap`` is ``host:port[,host:port]``; ``settings`` are further settings of the client
    library (for example for security). Until all events that a partition had at the start are read,
    queries for it raise MetadataNotReadyError. After an unreadable record, the manager reads no
    more of that partition of the topic, and queries for it raise CorruptDataError. If records were
    truncated before the manager has read them, it also reads no more of that partition of the
    topic, and queries raise RemoteMetadataError. The constructor raises ConfigError when the client
    library is missing, and RemoteMetadataError when the cluster or the topic does not answer.

    A write that has no answer in time raises a retriable RemoteMetadataError, although it may have
    taken effect. The caller repeats the call; if the write had taken effect, the repeat changes
    nothing.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        topic: str = METADATA_TOPIC,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
        write_timeout_s: float = 120.0,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(ready=False)
        self._topic = topic
        self._write_timeout_s = write_timeout_s
        self._client = MetadataTopicClient(
            bootstrap, topic, settings or {}, timeout_s=timeout_s, write_timeout_s=write_timeout_s
        )
        self._writer_id = random_bytes(16)
        self._write_numbers = itertools.count()
        self._caught_up = threading.Condition(self._lock)
        self._writes: dict[bytes, _Write] = {}
        self._next_offsets = dict.fromkeys(self._client.end_offsets, 0)
        self._stopped: dict[int, CorruptDataError | RemoteMetadataError] = {}
        self._deleted: set[TopicIdPartition] = set()
        self._dropped_count = 0
        self._fenced_count = 0
        self._failure: RemoteMetadataError | None = None
        self._reader = threading.Thread(
            target=self._read_topic, name=f"tierlog-{topic}-reader", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        self._write(metadata.topic_id_partition, MetadataRecord(metadata, leader_epoch))

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        self._write(update.segment_id.topic_id_partition, MetadataRecord(update, leader_epoch))

    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """See `RemoteLogMetadataManager`. When this method returns, the manager has read every
        event of earlier leaders that was accepted."""
        self._write(partition, MetadataRecord(make_note_event(partition), leader_epoch))

    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """See `RemoteLogMetadataManager`. A deleted partition is never recreated, because its topic
        id is never used again. Further delete steps change nothing."""
        self._write(metadata.partition, MetadataRecord(metadata, leader_epoch))

    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        record = MetadataRecord(make_note_event(partition), log_start_offset=offset)
        self._write(partition, record)

    @property
    def dropped_count(self) -> int:
        """Number of events that were dropped because the state of their segment or partition did
        not allow them."""
        return self._dropped_count

    @property
    def fenced_count(self) -> int:
        """Number of events that were dropped because their leader's epoch was over."""
        return self._fenced_count

    def _write(self, partition: TopicIdPartition, record: MetadataRecord) -> None:
        """Write an event; return when it was read back and accepted. An event that changes nothing
        is not written."""
        with self._lock:
            if self._find_change(self._find_partition(partition), record) is None:
                return
            token = self._writer_id + next(self._write_numbers).to_bytes(8, "big")
            number = metadata_partition(partition, len(self._next_offsets))
            outcome: Future[None] = Future()
            self._writes[token] = _Write(number, outcome)

        def delivered(error: object, _: object) -> None:
            if error is not None:
                _set_outcome(outcome, self._unconfirmed_error(partition, str(error)))

        try:
            self._client.produce(number, encode_record(record), token, delivered)
            outcome.result(self._write_timeout_s)
        except TimeoutError:
            late = f"not read back within {self._write_timeout_s:g} s"
            raise self._unconfirmed_error(partition, late) from None
        finally:
            with self._lock:
                self._writes.pop(token, None)

    def _unconfirmed_error(self, partition: TopicIdPartition, reason: str) -> RemoteMetadataError:
        return unavailable(
            f"{self._topic}: a record for {partition} is not confirmed ({reason}); it may still "
            "take effect; writing it again is safe"
        )

    # -- following the topic

    def _read_topic(self) -> None:
        """Read the topic from its beginning until the manager is closed. Runs in the reader
        thread."""
        reason = "its reader ended"
        try:
            while not self._closed:
                messages = self._client.consume(_POLL_RECORDS, _POLL_S)
                with self._caught_up:
                    for message in messages:
                        self._apply_message(message)
                    self._caught_up.notify_all()
        except self._client.failure as error:
            reason = str(error)
        finally:
            # The reader has ended, so all queries and active writes must fail from now on.
            with self._caught_up:
                self._failure = unavailable(f"{self._topic}: no longer followed: {reason}")
                self.change_count.changed()
                self._fail_writes(None, self._failure)
                self._caught_up.notify_all()
            self._client.close_consumer()

    def _apply_message(self, message: Message) -> None:
        number, offset = message.partition(), message.offset()
        if number is None or offset is None or number in self._stopped:
            return
        if message.error() is not None:
            # Other errors are ignored, because the client library retries by itself.
            if self._client.is_end(message):
                self._next_offsets[number] = max(self._next_offsets[number], offset)
            elif self._client.is_truncated(message):
                self._stop_partition(number, self._truncated_error(number))
            return
        path = f"{self._topic}-{number} offset {offset}"
        try:
            record = decode_record(message.value() or b"", path=path)
        except CorruptDataError as error:
            self._stop_partition(number, error)
            return
        write = self._writes.get(write_token(message))
        outcome = None if write is None else write.outcome
        try:
            self._apply(record)
        except RemoteMetadataError as error:
            if isinstance(error, FencedLeaderError):
                self._fenced_count += 1
            else:
                self._dropped_count += 1
            _set_outcome(outcome, error)
        else:
            _set_outcome(outcome, None)
        self._next_offsets[number] = offset + 1

    def _apply(self, record: MetadataRecord) -> None:
        state = self._find_or_add_partition(record.partition)
        change = self._find_change(state, record)
        if change is not None:
            state.apply(change)
            self.change_count.changed()
        event = record.event
        if isinstance(event, RemotePartitionDeleteMetadata) and event.state is _PARTITION_DELETED:
            self._deleted.add(event.partition)

    def _find_change(
        self, state: PartitionMetadata, record: MetadataRecord
    ) -> PartitionChange | None:
        """Return the change that a record makes, or None if it changes nothing. Raises
        RemoteMetadataError when the record is not allowed."""
        if state.partition not in self._deleted:
            return _change_of(state, record)
        if isinstance(record.event, RemotePartitionDeleteMetadata):
            return None
        if _change_of(state, record) is not None:
            raise RemoteMetadataError(
                f"{state.partition} is deleted and accepts no more events: Kafka's brokers would "
                "stop reading metadata"
            )
        return None

    def _stop_partition(self, number: int, error: CorruptDataError | RemoteMetadataError) -> None:
        self._stopped[number] = error
        self.change_count.changed()
        self._fail_writes(number, error)

    def _truncated_error(self, number: int) -> RemoteMetadataError:
        return RemoteMetadataError(
            f"{self._topic}-{number}: the records from offset {self._next_offsets[number]} on were "
            "removed before they were read: the topic was truncated or recreated; rebuild the "
            "metadata from the store"
        )

    def _fail_writes(self, number: int | None, error: Exception) -> None:
        """Fail the active writes to partition `number` of the topic, or all active writes for
        None."""
        for write in self._writes.values():
            if number is None or write.number == number:
                _set_outcome(write.outcome, error)

    # -- readiness

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Return when all records that the topic had at the start are read.

        Raises MetadataNotReadyError after `timeout_s`, and CorruptDataError when a record cannot be
        read.
        """
        with self._caught_up:
            ready = self._caught_up.wait_for(self._is_all_read, timeout_s)
            self._check_usable(None)
            if not ready:
                raise MetadataNotReadyError(f"{self._topic}: not read within {timeout_s:g} s")

    def is_ready(self, partition: TopicIdPartition) -> bool:
        with self._lock:
            number = metadata_partition(partition, len(self._next_offsets))
            ended = self._closed or self._failure is not None or number in self._stopped
            return not ended and self._is_read(number)

    def _is_read(self, number: int) -> bool:
        return self._next_offsets[number] >= self._client.end_offsets[number]

    def _is_all_read(self) -> bool:
        ended = self._closed or self._failure is not None or bool(self._stopped)
        return ended or all(map(self._is_read, self._next_offsets))

    def _check_usable(self, partition: TopicIdPartition | None) -> None:
        if self._closed:
            raise ClosedError("the metadata manager is closed")
        if self._failure is not None:
            raise unavailable(str(self._failure))
        numbers = list(self._next_offsets)
        if partition is not None:
            numbers = [metadata_partition(partition, len(numbers))]
        for number in numbers:
            if number in self._stopped:
                raise _copy_error(self._stopped[number])
            if not self._is_read(number):
                raise MetadataNotReadyError(
                    f"metadata of {partition or 'all partitions'} is not loaded yet: "
                    f"{self._topic}-{number} is read up to {self._next_offsets[number]} of "
                    f"{self._client.end_offsets[number]}; try again"
                )

    def close(self) -> None:
        """Stop reading. Active writes raise ClosedError, although they may be durable."""
        with self._caught_up:
            self._closed = True
            self.change_count.changed()
            self._fail_writes(None, ClosedError("the metadata manager is closed"))
            self._caught_up.notify_all()
        # `join` is called without the lock, because the reader needs the lock to end.
        self._reader.join(_CLOSE_S)
        self._client.close_producer()


def _change_of(state: PartitionMetadata, record: MetadataRecord) -> PartitionChange | None:
    """Return the change that a record makes to a partition that is not deleted."""
    event, leader_epoch = record.event, record.leader_epoch
    if record.log_start_offset is not None:
        return state.change_of_log_start(record.log_start_offset)
    if isinstance(event, RemoteLogSegmentMetadata):
        return state.change_of_add(event, leader_epoch)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return state.change_of_update(event, leader_epoch)
    return state.change_of_delete(event, leader_epoch)


def _copy_error(error: CorruptDataError | RemoteMetadataError) -> Exception:
    """Return a copy of the error, so that each caller gets its own."""
    if isinstance(error, CorruptDataError):
        return error.located(error.path or "")
    return RemoteMetadataError(str(error))


def _set_outcome(outcome: Future[None] | None, error: Exception | None) -> None:
    if outcome is None or outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
