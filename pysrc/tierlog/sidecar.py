"""Tiers the log directories of an unmodified Kafka broker, running or stopped.

Strictly read only towards the broker: it lists, opens and reads, and never writes, locks, maps or
renames anything there. What it remembers lies in its own state directory (``metadata.sqlite``) and
can be made again from the store.

One pass over the directories: list the partitions, find the last stable offset of each (asked of
the broker when one is given, else from checkpoints and the transactions in the log), decide
segment by segment, copy what may be copied. A segment that cannot be copied is a row of the
report with its reason and does not stop the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from tierlog.broker import BrokerAnswer, ask_broker
from tierlog.clock import Clock, SystemClock
from tierlog.config import QuotaConfig
from tierlog.errors import ClosedError, ConfigError, CorruptDataError, TierlogError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.eligibility import (
    Coverage,
    Decision,
    StableOffset,
    copy_facts,
    decide_segments,
    last_stable_offset,
)
from tierlog.log.log_dir import LogDir, PartitionLog, open_log_dir
from tierlog.log.names import Skipped
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.log.transactions import OpenTransactions
from tierlog.quota import QuotaManager
from tierlog.remote.bucket import Problem, list_segments
from tierlog.remote.layout import claim_cluster
from tierlog.remote.metadata import RemoteLogMetadataManager, RemoteLogSegmentState
from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.storage import RemoteStorageManager
from tierlog.remote.store import open_store
from tierlog.tiering.copy import SegmentCopier, SegmentRefusedError, prepare
from tierlog.tiering.lineage import ranges_in_lineage
from tierlog.tiering.producer_states import ProducerStates
from tierlog.types import StopReason, TopicIdPartition

__all__ = ["Outcome", "Progress", "Sidecar", "TierReport", "TierRow", "default_state_dir"]

METADATA_FILE = "metadata.sqlite"


class Outcome(StrEnum):
    """What became of a segment in one pass."""

    COPIED = "copied"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """One segment of the report. ``reason`` is a short word, ``text`` says it to a person.

    REFUSED: the segment is damaged or does not fit its log. FAILED: store or disk failed; the
    next pass tries again. Both are problems. SKIPPED is none: nothing to do, or not yet.
    """

    topic: str
    partition: int
    base_offset: int
    size_bytes: int
    outcome: Outcome
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """Everything one pass looked at: segments, left-out files, damaged checkpoints, warnings.

    ``quota_wait_ms``: how long the copy quota made it wait.
    """

    rows: tuple[TierRow, ...]
    skipped_files: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()
    warnings: tuple[str, ...] = ()
    quota_wait_ms: int = 0

    def of(self, outcome: Outcome) -> tuple[TierRow, ...]:
        """The rows of one outcome."""
        return tuple(row for row in self.rows if row.outcome is outcome)

    @property
    def ok(self) -> bool:
        """Nothing refused, nothing failed, no checkpoint of the broker damaged."""
        bad = any(row.outcome in (Outcome.REFUSED, Outcome.FAILED) for row in self.rows)
        return not bad and not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pass is: bytes planned and sent, and the last segment dealt with.

    ``quota_wait_ms`` is above 0 while it waits for the copy quota: how long that may still take.
    """

    total_bytes: int
    done_bytes: int
    row: TierRow | None = None
    quota_wait_ms: int = 0


@dataclass(slots=True)
class _Pass:
    """What one pass gathers."""

    on_progress: Callable[[Progress], None]
    rows: list[TierRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    total_bytes: int = 0
    done_bytes: int = 0
    quota_wait_ms: int = 0

    def sent(self, size_bytes: int) -> None:
        self.done_bytes = min(self.done_bytes + size_bytes, self.total_bytes)
        self.on_progress(Progress(total_bytes=self.total_bytes, done_bytes=self.done_bytes))

    def waits(self, wait_ms: int) -> None:
        self.on_progress(
            Progress(
                total_bytes=self.total_bytes, done_bytes=self.done_bytes, quota_wait_ms=wait_ms
            )
        )

    def add(self, row: TierRow) -> None:
        self.rows.append(row)
        self.on_progress(
            Progress(total_bytes=self.total_bytes, done_bytes=self.done_bytes, row=row)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A partition and the decisions about its segments."""

    log: PartitionLog
    decisions: tuple[Decision, ...]
    compacted: bool


def default_state_dir(base: str, store_url: str) -> str:
    """A state directory of its own for every store, below `base`."""
    digest = hashlib.sha256(store_url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(base, digest)


class Sidecar:
    """Tiers the log directories of one broker into one store.

        with Sidecar(["/var/lib/kafka"], "s3://bucket/prefix", state_dir="...") as sidecar:
            report = sidecar.run_once()

    ``bootstrap`` (host:port) asks that cluster for leaders and last stable offsets; a partition
    whose leader is another broker is left to it. When nobody answers, the checkpoints decide, and
    the report warns. ``include_compacted`` and ``include_internal`` copy what is left out
    otherwise. ``copy_quota`` holds for everything that is copied; close it to end a wait, and the
    pass, with a ClosedError. ConfigError when the store belongs to another cluster or the
    directories to several brokers; OSError when a directory cannot be read.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        store_url: str,
        *,
        state_dir: str,
        bootstrap: str | None = None,
        broker_timeout_s: float = 10.0,
        topics: Sequence[str] = (),
        include_compacted: bool = False,
        include_internal: bool = False,
        copy_quota: QuotaManager | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._logs = _open_logs(log_dirs, state_dir)
        self._store = open_store(store_url)
        self._clock = clock or SystemClock()
        self._bootstrap = bootstrap
        self._broker_timeout_s = broker_timeout_s
        self._topics = frozenset(topics)
        self._include_compacted = include_compacted
        self._include_internal = include_internal
        cluster_id = self._logs.cluster_id
        if cluster_id is None:
            raise ConfigError(
                f"{', '.join(self._logs.paths)}: no cluster.id in meta.properties; without it "
                "two clusters could share a store"
            )
        claim_cluster(self._store, cluster_id)
        self._storage = RemoteStorageManager(self._store)
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        self._metadata = SqliteRemoteLogMetadataManager(os.path.join(state_dir, METADATA_FILE))
        self._copy_quota = copy_quota or QuotaManager.for_copies(QuotaConfig(), self._clock)
        self._copier = SegmentCopier(
            self._storage,
            self._metadata,
            clock=self._clock,
            broker_id=-1 if self._logs.node_id is None else self._logs.node_id,
            cluster_id=cluster_id,
        )

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the state directory."""
        self._metadata.close()

    @property
    def metadata(self) -> RemoteLogMetadataManager:
        """What is known about the segments in the store."""
        return self._metadata

    def run_once(self, on_progress: Callable[[Progress], None] | None = None) -> TierReport:
        """One pass over all partitions."""
        state = _Pass(on_progress=on_progress or _ignore)
        self._learn_from_store(state)
        self._settle_interrupted(state)
        listing = self._logs.listing()
        wanted = [
            log for log in listing.partitions if not self._topics or log.topic in self._topics
        ]
        plans = self._plans(wanted, state)
        sizes = [
            decision.segment.size_bytes
            for plan in plans
            for decision in plan.decisions
            if decision.eligible
        ]
        state.total_bytes = sum(sizes)
        oversize = self._copy_quota.oversize_warning(max(sizes, default=0))
        if oversize is not None:
            state.warnings.append(oversize)
        for plan in plans:
            self._copy_partition(plan, state)
        return TierReport(
            rows=tuple(state.rows),
            skipped_files=(
                *listing.skipped,
                *(skipped for log in wanted for skipped in log.skipped),
            ),
            problems=(
                *listing.problems,
                *(problem for log in wanted for problem in log.problems),
            ),
            warnings=tuple(state.warnings),
            quota_wait_ms=state.quota_wait_ms,
        )

    def _learn_from_store(self, state: _Pass) -> None:
        """An empty state directory beside a full store was lost, not new: read the store."""
        if self._metadata.partitions():
            return

        def warn(problem: Problem) -> None:
            state.warnings.append(str(problem))

        self._metadata.load(list_segments(self._store, on_problem=warn))

    def _settle_interrupted(self, state: _Pass) -> None:
        """Finishes or removes what an earlier run left half done."""
        for partition in self._metadata.partitions():
            for metadata in self._metadata.list(partition):
                if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    continue
                try:
                    finished = self._copier.resume(metadata)
                except TierlogError as error:
                    state.warnings.append(f"{metadata.segment_id}: left as it is: {error}")
                    continue
                became = "finished" if finished else "removed"
                state.warnings.append(f"{metadata.segment_id}: interrupted copy {became}")

    def _plans(self, logs: list[PartitionLog], state: _Pass) -> list[_Plan]:
        answers = self._ask_broker(logs, state)
        return [self._plan(log, answers, state) for log in logs]

    def _ask_broker(
        self, logs: list[PartitionLog], state: _Pass
    ) -> dict[TopicPartition, BrokerAnswer] | None:
        if self._bootstrap is None:
            return None
        try:
            return ask_broker(
                self._bootstrap,
                [log.topic_partition for log in logs],
                timeout_s=self._broker_timeout_s,
            )
        except TierlogError as error:
            if not error.retriable:
                raise
            state.warnings.append(f"{error}; going by the checkpoints on disk")
            return None

    def _plan(
        self,
        log: PartitionLog,
        answers: dict[TopicPartition, BrokerAnswer] | None,
        state: _Pass,
    ) -> _Plan:
        answer = answers.get(log.topic_partition) if answers is not None else None
        stable = self._stable_offset(log, answer)
        leader_id = answer.leader_id if answer is not None else None
        elsewhere = leader_id is not None and leader_id != self._logs.node_id
        compacted = answer.compacted if answer is not None else None
        facts = copy_facts(
            log,
            stable,
            copied=self._copied(log),
            compacted=compacted,
            led_by=leader_id if elsewhere else None,
            include_internal=self._include_internal,
            include_compacted=self._include_compacted,
        )
        return _Plan(
            log=log,
            decisions=decide_segments(log.segments, facts),
            compacted=bool(log.compacted if compacted is None else compacted),
        )

    def _stable_offset(self, log: PartitionLog, answer: BrokerAnswer | None) -> StableOffset:
        if answer is not None and answer.last_stable_offset is not None:
            return last_stable_offset(
                broker_last_stable_offset=answer.last_stable_offset,
                high_watermark=None,
                transactions_known=False,
            )
        known, first_open = _open_transactions(log)
        return last_stable_offset(
            broker_last_stable_offset=None,
            high_watermark=log.high_watermark,
            transactions_known=known,
            first_open_transaction_offset=first_open,
        )

    def _copied(self, log: PartitionLog) -> Coverage | None:
        if log.topic_id is None or log.leader_epochs is None:
            return None
        partition = TopicIdPartition(
            topic_id=log.topic_id, topic=log.topic, partition=log.partition
        )
        return Coverage(
            offsets
            for metadata in self._metadata.list(partition)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            for offsets in ranges_in_lineage(metadata, log.leader_epochs)
        )

    def _copy_partition(self, plan: _Plan, state: _Pass) -> None:
        producers = ProducerStates(plan.log)
        for decision in plan.decisions:
            segment = decision.segment
            if decision.reason is not None:
                outcome, reason, text = Outcome.SKIPPED, decision.reason.value, decision.text
            else:
                outcome, reason, text = self._copy_segment(plan, segment, producers, state)
            state.add(
                TierRow(
                    topic=plan.log.topic,
                    partition=plan.log.partition,
                    base_offset=segment.base_offset,
                    size_bytes=segment.size_bytes,
                    outcome=outcome,
                    reason=reason,
                    text=text,
                )
            )

    def _copy_segment(
        self, plan: _Plan, segment: SegmentFiles, producers: ProducerStates, state: _Pass
    ) -> tuple[Outcome, str, str]:
        """Copies one segment; every failure that concerns it alone becomes its row."""
        try:
            # Waiting comes before looking: what is scanned and open is sent at once.
            with self._gate(segment.size_bytes, state) as gate, segment.open() as handle:
                prepared = prepare(
                    plan.log,
                    segment,
                    handle,
                    producer_snapshot=producers.before(segment),
                    allow_gaps=plan.compacted,
                )
                producers.remember(prepared.end_offset + 1, prepared.rebuilt.producer_snapshot)
                self._copier.copy(prepared, handle, gate=gate)
        except ClosedError:
            raise
        except FileNotFoundError as error:
            return Outcome.SKIPPED, "vanished", f"deleted by the broker meanwhile: {error}"
        except SegmentRefusedError as error:
            return Outcome.REFUSED, "damaged", str(error)
        except CorruptDataError as error:
            return Outcome.REFUSED, error.reason, str(error)
        except (TierlogError, OSError) as error:
            return Outcome.FAILED, "failed", str(error)
        return Outcome.COPIED, "", ""

    @contextmanager
    def _gate(self, size_bytes: int, state: _Pass) -> Iterator[Callable[[int], None]]:
        """Waits for the copy quota, then counts what passes."""
        with self._copy_quota.transfer(size_bytes, on_wait=state.waits) as transfer:

            def gate(piece_bytes: int) -> None:
                transfer.before_piece(piece_bytes)
                state.sent(piece_bytes)

            try:
                yield gate
            finally:
                state.quota_wait_ms += transfer.waited_ms


def _open_transactions(log: PartitionLog) -> tuple[bool, int | None]:
    """Whether the log could be searched up to the high watermark, and the first open offset."""
    state = OpenTransactions()
    if log.high_watermark is None:
        return False, None
    for segment in log.segments:
        if segment.base_offset >= log.high_watermark:
            break
        try:
            with segment.open() as handle:
                table = scan_segment(handle, verify_crc=False)
        except OSError:
            return False, None
        last = segment.next_base_offset is None
        if table.stop_reason is not StopReason.END and not last:
            return False, None
        state = state.after(table, log.high_watermark)
    return True, state.first_offset


def _open_logs(log_dirs: Sequence[str], state_dir: str) -> LogDir:
    if not log_dirs:
        raise ConfigError("no log directory given")
    logs = open_log_dir(*log_dirs)
    state = os.path.realpath(state_dir)
    for path in logs.paths:
        if os.path.commonpath([state, path]) == path:
            raise ConfigError(
                f"{state_dir}: the state directory must not lie inside the broker's {path}"
            )
    return logs


def _ignore(_: object) -> None:
    pass
