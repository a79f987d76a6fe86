"""The metadata manager that keeps its segments in a cluster's ``__remote_log_metadata`` topic.

Every event is a record; all events of a user partition share one partition of the topic and so have
one order. A manager reads the topic from its beginning and applies what it reads; what a state does
not allow is dropped, by every reader alike. A write returns when this manager has read its own
record back: then it is durable, visible here, and known whether it was accepted or dropped because
somebody else was faster (Kafka's ``TopicBasedRemoteLogMetadataManager``, which does not tell).

**Fencing** is decided in the order of the topic. A record names the leader epoch of its writer
(`records`); one that names an earlier epoch than an accepted record before it is dropped
by every reader, and its writer is told a FencedLeaderError. A claim is a record of its own, which
Kafka passes over, so the fence stands before the new leader has done anything; and as a claim is
read back, too, a leader that has claimed knows all that was decided before it. A repeat carries
the same epoch as the first time: nobody fences himself, and an event told twice counts once.

What is not fenced:

* events without an epoch: those of Kafka's own brokers and of tools;
* Kafka's own readers: they know no epochs here and apply a dropped event where a segment's state
  allows it. Only on their side a zombie's segment may seem finished, or seem to go;
* what a leader was allowed to do before the later claim and does after it: it may still remove the
  objects of a segment whose deletion was accepted, and an upload that was under way may finish.
  Nothing refers to that object; it is the orphan that a comparison with the store finds;
* whoever woke up after the topic itself forgot the later epoch: a topic that drops old records
  (``retention.ms``; Kafka's default is never) drops claims with them.

**Deleted partitions** take no event any more: a Kafka broker that has the partition stops reading
all metadata at the first event after a DELETE_PARTITION_FINISHED. So nothing is written there, and
what is read there changes nothing.

Needs the extra ``kafka``. Kafka's brokers and tierlog may follow and write the same topic.
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
    metadata_partition,
    note_about,
)
from tierlog.remote.metadata.topic_client import MetadataTopicClient, unavailable, write_token
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing import Self

    from confluent_kafka import Message

    from tierlog.remote.metadata.partition import PartitionChange, PartitionMetadata

__all__ = ["METADATA_TOPIC", "TopicBasedRemoteLogMetadataManager"]

METADATA_TOPIC = "__remote_log_metadata"
_PARTITION_GONE = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_POLL_S = 0.1
_POLL_RECORDS = 500
# The reader looks up every `_POLL_S`; for what may hold up the client library nobody waits longer.
_CLOSE_S = 4.0


class _Write(NamedTuple):
    """A record on its way: the topic's partition it goes to, and what became of it."""

    number: int
    outcome: Future[None]


class TopicBasedRemoteLogMetadataManager(InMemoryRemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` over the metadata topic of a running cluster.

        with TopicBasedRemoteLogMetadataManager("broker:9092") as metadata:
            metadata.wait_until_ready(timeout_s=30)

    ``bootstrap`` is ``host:port[,host:port]``, ``settings`` what the client library needs besides
    (security). Until a partition's events up to the end at the start are read, every question about
    it is a MetadataNotReadyError. A record that cannot be read stops its partition of the topic for
    good, and every question about what it holds is the CorruptDataError; so do records that were
    cut off the topic before they were read, with a RemoteMetadataError. ConfigError without the
    client library, RemoteMetadataError when the cluster or the topic does not answer.

    A write whose answer is late or lost is a retriable RemoteMetadataError although it may have
    taken effect: repeat the call. What has taken effect meanwhile is a repeat and changes nothing.
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
            target=self._follow, name=f"tierlog-{topic}-reader", daemon=True
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
        """See `RemoteLogMetadataManager`. When this returns, every event that any earlier leader
        may still succeed with has been read."""
        self._write(partition, MetadataRecord(note_about(partition), leader_epoch))

    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """See `RemoteLogMetadataManager`. A partition that is deleted is so for good: its id comes
        never again. Every step of deleting it is a repeat then."""
        self._write(metadata.partition, MetadataRecord(metadata, leader_epoch))

    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        record = MetadataRecord(note_about(partition), log_start_offset=offset)
        self._write(partition, record)

    @property
    def dropped_count(self) -> int:
        """Events read so far that the state of their segment or partition did not allow."""
        return self._dropped_count

    @property
    def fenced_count(self) -> int:
        """Events read so far of leaders whose epoch was over."""
        return self._fenced_count

    def _write(self, partition: TopicIdPartition, record: MetadataRecord) -> None:
        """Returns when the event was read back and accepted, or is known already."""
        with self._lock:
            if self._change(self._known(partition), record) is None:
                return
            token = self._writer_id + next(self._write_numbers).to_bytes(8, "big")
            number = metadata_partition(partition, len(self._next_offsets))
            outcome: Future[None] = Future()
            self._writes[token] = _Write(number, outcome)

        def delivered(error: object, _: object) -> None:
            if error is not None:
                _settle(outcome, self._unconfirmed(partition, str(error)))

        try:
            self._client.produce(number, encode_record(record), token, delivered)
            outcome.result(self._write_timeout_s)
        except TimeoutError:
            late = f"not read back within {self._write_timeout_s:g} s"
            raise self._unconfirmed(partition, late) from None
        finally:
            with self._lock:
                self._writes.pop(token, None)

    def _unconfirmed(self, partition: TopicIdPartition, reason: str) -> RemoteMetadataError:
        return unavailable(
            f"{self._topic}: a record for {partition} is not confirmed ({reason}); it may still "
            "take effect, and may be written again"
        )

    # -- following the topic

    def _follow(self) -> None:
        """The reader thread: everything from the beginning, until closed."""
        reason = "its reader ended"
        try:
            while not self._closed:
                messages = self._client.consume(_POLL_RECORDS, _POLL_S)
                with self._caught_up:
                    for message in messages:
                        self._take(message)
                    self._caught_up.notify_all()
        except self._client.failure as error:
            reason = str(error)
        finally:
            # Nobody reads on: every question and every write under way has to know.
            with self._caught_up:
                self._failure = unavailable(f"{self._topic}: no longer followed: {reason}")
                self.change_count.changed()
                self._settle_writes(None, self._failure)
                self._caught_up.notify_all()
            self._client.close_consumer()

    def _take(self, message: Message) -> None:
        number, offset = message.partition(), message.offset()
        if number is None or offset is None or number in self._stopped:
            return
        if message.error() is not None:
            # What can be repeated the client library repeats by itself.
            if self._client.is_end(message):
                self._next_offsets[number] = max(self._next_offsets[number], offset)
            elif self._client.is_cut_off(message):
                self._stop(number, self._cut_off(number))
            return
        path = f"{self._topic}-{number} offset {offset}"
        try:
            record = decode_record(message.value() or b"", path=path)
        except CorruptDataError as error:
            self._stop(number, error)
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
            _settle(outcome, error)
        else:
            _settle(outcome, None)
        self._next_offsets[number] = offset + 1

    def _apply(self, record: MetadataRecord) -> None:
        known = self._partition(record.partition)
        change = self._change(known, record)
        if change is not None:
            known.apply(change)
            self.change_count.changed()
        event = record.event
        if isinstance(event, RemotePartitionDeleteMetadata) and event.state is _PARTITION_GONE:
            self._deleted.add(event.partition)

    def _change(self, known: PartitionMetadata, record: MetadataRecord) -> PartitionChange | None:
        """What a record changes, None for nothing; RemoteMetadataError when it may not."""
        if known.partition not in self._deleted:
            return _change_of(known, record)
        if isinstance(record.event, RemotePartitionDeleteMetadata):
            return None
        if _change_of(known, record) is not None:
            raise RemoteMetadataError(
                f"{known.partition} is deleted, and nothing may be told of it any more: Kafka's "
                "brokers would stop reading"
            )
        return None

    def _stop(self, number: int, error: CorruptDataError | RemoteMetadataError) -> None:
        self._stopped[number] = error
        self.change_count.changed()
        self._settle_writes(number, error)

    def _cut_off(self, number: int) -> RemoteMetadataError:
        return RemoteMetadataError(
            f"{self._topic}-{number}: the records from offset {self._next_offsets[number]} on are "
            "gone before they were read: the topic was cut or made anew. What the store holds "
            "tells the segments"
        )

    def _settle_writes(self, number: int | None, error: Exception) -> None:
        """Writes under way to that partition of the topic, or all, end with `error`."""
        for write in self._writes.values():
            if number is None or write.number == number:
                _settle(write.outcome, error)

    # -- readiness

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Returns when everything is read that the topic held at the start.

        MetadataNotReadyError after `timeout_s`, CorruptDataError when a record cannot be read.
        """
        with self._caught_up:
            ready = self._caught_up.wait_for(self._all_read, timeout_s)
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

    def _all_read(self) -> bool:
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
                raise _again(self._stopped[number])
            if not self._is_read(number):
                raise MetadataNotReadyError(
                    f"metadata of {partition or 'all partitions'} is not loaded yet: "
                    f"{self._topic}-{number} is read up to {self._next_offsets[number]} of "
                    f"{self._client.end_offsets[number]}; try again"
                )

    def close(self) -> None:
        """Stops following; writes under way end with a ClosedError, though they may be durable."""
        with self._caught_up:
            self._closed = True
            self.change_count.changed()
            self._settle_writes(None, ClosedError("the metadata manager is closed"))
            self._caught_up.notify_all()
        # Never under the lock, which the reader needs to come to its end.
        self._reader.join(_CLOSE_S)
        self._client.close_producer()


def _change_of(known: PartitionMetadata, record: MetadataRecord) -> PartitionChange | None:
    """What a record changes, as long as its partition is not deleted."""
    event, leader_epoch = record.event, record.leader_epoch
    if record.log_start_offset is not None:
        return known.change_of_log_start(record.log_start_offset)
    if isinstance(event, RemoteLogSegmentMetadata):
        return known.change_of_add(event, leader_epoch)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return known.change_of_update(event, leader_epoch)
    return known.change_of_delete(event, leader_epoch)


def _again(error: CorruptDataError | RemoteMetadataError) -> Exception:
    """An error of its own for everybody who asks."""
    if isinstance(error, CorruptDataError):
        return error.located(error.path or "")
    return RemoteMetadataError(str(error))


def _settle(outcome: Future[None] | None, error: Exception | None) -> None:
    if outcome is None or outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
