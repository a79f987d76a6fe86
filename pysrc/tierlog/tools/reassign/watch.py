"""Watches moves: bytes, rates against the throttle, SumReplicaLag, time left (KIP-73)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tierlog.admin import (
    ClusterAdmin,
    OngoingReassignment,
    PartitionState,
    Replica,
    Resource,
    ResourceKind,
)
from tierlog.clock import Clock
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.throttles import FOLLOWER_RATE, LEADER_RATE

__all__ = ["BrokerProgress", "MoveProgress", "MoveWatch"]

_RATE_WINDOW_MS = 15_000
STUCK_MS = 30_000
"""A move is stuck when its SumReplicaLag has reached no new minimum for this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProgress:
    """The progress of one broker: the bytes per second that it sends and receives for the moves,
    its throttles (None if not set) and the bytes that its new replicas still lack."""

    broker_id: int
    send_bytes_per_second: float
    receive_bytes_per_second: float
    leader_throttle_bytes_per_second: int | None
    follower_throttle_bytes_per_second: int | None
    replica_lag_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """The state of all moves at one moment.

    ``move_bytes`` is the size of all new replicas, and ``moved_bytes`` is the size that they have
    reached. ``sum_replica_lag_bytes`` is the SumReplicaLag of the KIP. This lag is in bytes, since
    followers do not report how many records they lack. ``seconds_left_measured`` is computed from
    the rate of the last seconds, ``seconds_left_estimated`` from the throttles. None means unknown,
    or that the move never ends at this rate. ``suggested_throttle`` is set when the move is stuck.
    """

    timestamp_ms: int
    elapsed_seconds: float
    partitions_moving: int
    partitions_done: int
    moved_bytes: int
    move_bytes: int
    bytes_per_second: float
    sum_replica_lag_bytes: int
    is_lag_falling: bool
    seconds_left_measured: float | None
    seconds_left_estimated: float | None
    suggested_throttle: int | None
    brokers: tuple[BrokerProgress, ...]

    @property
    def is_done(self) -> bool:
        """Whether no partition moves any more."""
        return self.partitions_moving == 0


@dataclass(slots=True)
class _Sample:
    at_ms: int
    moved_bytes: int
    received: Mapping[int, int]
    sent: Mapping[int, int]


class MoveWatch:
    """Follows the partitions that move in the cluster. Only one thread may use a watch.

    ``adding`` has the partitions to follow and, as far as known, the brokers that get a new replica
    of each. If ``adding`` is None, the watch follows every partition that it sees moving.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        clock: Clock,
        adding: Mapping[TopicPartition, tuple[int, ...]] | None = None,
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._wanted = None if adding is None else frozenset(adding)
        self._adding = {partition: some for partition, some in (adding or {}).items() if some}
        self._sizes: dict[tuple[TopicPartition, int], int] = {}
        self._moved: dict[tuple[TopicPartition, int], int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._samples: deque[_Sample] = deque()
        self._started_ms = clock.monotonic_ms()
        self._lowest_lag: int | None = None
        self._lowest_at_ms = self._started_ms
        self._throttles: dict[int, tuple[int | None, int | None]] = {}

    def measure(self) -> MoveProgress:
        """Ask the cluster, and return the current progress."""
        now_ms = self._clock.monotonic_ms()
        ongoing = {
            partition: one
            for partition, one in self._admin.reassignments().items()
            if self._wanted is None or partition in self._wanted
        }
        for partition, one in ongoing.items():
            self._adding[partition] = one.adding or self._adding.get(partition, ())
        live = {one.broker_id for one in self._admin.brokers()}
        states = self._admin.partitions({one.topic for one in self._adding})
        replicas = self._admin.replicas(self._adding, live)
        lags = self._take(ongoing, states, replicas)
        involved = sorted(
            {one for some in self._adding.values() for one in some} | set(self._leaders.values())
        )
        self._read_throttles([one for one in involved if one in live])
        sample = self._remember(now_ms)
        return self._progress(now_ms, sample, ongoing, lags, involved)

    def _take(
        self,
        ongoing: Mapping[TopicPartition, OngoingReassignment],
        states: Mapping[TopicPartition, PartitionState],
        replicas: Iterable[Replica],
    ) -> dict[int, int]:
        """Record the sizes of leaders and new replicas. Return, for each broker, the bytes that its
        new replicas lack."""
        found = {(one.partition, one.broker_id): one for one in replicas if not one.is_future}
        lags: dict[int, int] = defaultdict(int)
        for partition, adding in self._adding.items():
            state = states.get(partition)
            if state is None:
                continue
            if state.leader_id is not None:
                self._leaders[partition] = state.leader_id
            leader = found.get((partition, self._leaders.get(partition, -1)))
            for broker_id in adding:
                key = (partition, broker_id)
                replica = found.get(key)
                if leader is not None and (partition in ongoing or key not in self._sizes):
                    self._sizes[key] = leader.size_bytes
                if partition not in ongoing:
                    self._moved[key] = self._sizes.get(key, 0)
                elif replica is not None:
                    self._moved[key] = min(replica.size_bytes, self._sizes.get(key, 0))
                lags[broker_id] += self._sizes.get(key, 0) - self._moved.get(key, 0)
        return lags

    def _read_throttles(self, broker_ids: Iterable[int]) -> None:
        settings = self._admin.settings(
            Resource(ResourceKind.BROKER, str(one)) for one in broker_ids
        )
        for resource, values in settings.items():
            leader, follower = values.get(LEADER_RATE), values.get(FOLLOWER_RATE)
            self._throttles[int(resource.name)] = (
                None if leader is None else int(leader),
                None if follower is None else int(follower),
            )

    def _remember(self, now_ms: int) -> _Sample:
        received: dict[int, int] = defaultdict(int)
        sent: dict[int, int] = defaultdict(int)
        for (partition, broker_id), size in self._moved.items():
            received[broker_id] += size
            if partition in self._leaders:
                sent[self._leaders[partition]] += size
        sample = _Sample(
            at_ms=now_ms, moved_bytes=sum(received.values()), received=received, sent=sent
        )
        self._samples.append(sample)
        while now_ms - self._samples[0].at_ms > _RATE_WINDOW_MS:
            self._samples.popleft()
        return sample

    def _progress(
        self,
        now_ms: int,
        sample: _Sample,
        ongoing: Mapping[TopicPartition, OngoingReassignment],
        lags: Mapping[int, int],
        involved: Iterable[int],
    ) -> MoveProgress:
        first = self._samples[0]
        seconds = max(0.001, (sample.at_ms - first.at_ms) / 1000)
        move_bytes = sum(self._sizes.values())
        rate = max(0, sample.moved_bytes - first.moved_bytes) / seconds
        lag = sum(lags.values())
        if self._lowest_lag is None or lag < self._lowest_lag:
            self._lowest_lag, self._lowest_at_ms = lag, now_ms
        falls = now_ms - self._lowest_at_ms < STUCK_MS or not ongoing
        left = move_bytes - sample.moved_bytes
        brokers = tuple(
            BrokerProgress(
                broker_id=one,
                send_bytes_per_second=_grown(sample.sent, first.sent, one) / seconds,
                receive_bytes_per_second=_grown(sample.received, first.received, one) / seconds,
                leader_throttle_bytes_per_second=self._throttles.get(one, (None, None))[0],
                follower_throttle_bytes_per_second=self._throttles.get(one, (None, None))[1],
                replica_lag_bytes=lags.get(one, 0),
            )
            for one in involved
        )
        throttles = [one for pair in self._throttles.values() for one in pair if one is not None]
        return MoveProgress(
            timestamp_ms=self._clock.now_ms(),
            elapsed_seconds=(now_ms - self._started_ms) / 1000,
            partitions_moving=len(ongoing),
            partitions_done=len(self._adding.keys() - ongoing.keys()),
            moved_bytes=sample.moved_bytes,
            move_bytes=move_bytes,
            bytes_per_second=rate,
            sum_replica_lag_bytes=lag,
            is_lag_falling=falls,
            seconds_left_measured=0.0 if not ongoing else left / rate if rate > 0 else None,
            seconds_left_estimated=0.0 if not ongoing else self._estimate_left(),
            suggested_throttle=None if falls or not throttles else 2 * max(throttles),
            brokers=brokers,
        )

    def _estimate_left(self) -> float | None:
        """Return the seconds that the remaining bytes take under the throttles; None if no throttle
        applies."""
        send: dict[int, int] = defaultdict(int)
        receive: dict[int, int] = defaultdict(int)
        for (partition, broker_id), size in self._sizes.items():
            left = size - self._moved.get((partition, broker_id), 0)
            receive[broker_id] += left
            if partition in self._leaders:
                send[self._leaders[partition]] += left
        times = [
            size / throttle
            for side, sizes in enumerate((send, receive))
            for broker_id, size in sizes.items()
            if size and (throttle := self._throttles.get(broker_id, (None, None))[side])
        ]
        return max(times, default=None)


def _grown(now: Mapping[int, int], before: Mapping[int, int], broker_id: int) -> int:
    return max(0, now.get(broker_id, 0) - before.get(broker_id, 0))
