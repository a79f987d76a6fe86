"""Lists a store once: its segments, and the objects that are not segments.

An unreadable object may be the only object that is left of a segment. So a reader must not report
the segment's offsets as an unexplained gap, nor assume that the log ends after the readable
segments.
"""

from __future__ import annotations

from collections.abc import Callable

from tierlog.errors import GapError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.bucket import Problem, ProblemReason, bucket_metadata, refuse_hidden
from tierlog.remote.segment.layout import INDEXES_SUFFIX, MAX_TOPIC_LABEL, ObjectKey, parse_key
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import TopicIdPartition

__all__ = ["StoreListing"]


class StoreListing:
    """Lists `store` once and describes each segment whose key is `wanted`.

    `on_problem` receives the objects that are not segments. If `on_problem` is None, an object that
    hides a segment is an error, as in `describe_segments`.
    """

    def __init__(
        self,
        store: ObjectStore,
        wanted: Callable[[ObjectKey], bool],
        on_problem: Callable[[Problem], object] | None = None,
    ) -> None:
        self._store = store
        self._on_problem = on_problem
        self._hidden: list[ObjectKey] = []
        self._unfinished: list[ObjectKey] = []
        self.metadata: RemoteLogMetadataManager = bucket_metadata(
            store, wanted=wanted, on_problem=self._report_problem
        )

    def has_reported(self, error: GapError) -> bool:
        """Whether `on_problem` received the segment with which the missing offsets begin."""
        return any(
            (key.topic_label, key.partition, key.base_offset)
            == (error.topic[:MAX_TOPIC_LABEL], error.partition, error.first_offset)
            for key in self._hidden
        )

    def has_unfinished(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether a `.log` object with offsets from `offset` on still has no `.indexes` object."""
        return any(
            (key.topic_id, key.partition) == (partition.topic_id, partition.partition)
            and key.base_offset >= offset
            and not self._has_indexes(key)
            for key in self._unfinished
        )

    def _has_indexes(self, key: ObjectKey) -> bool:
        """Whether the `.indexes` object exists now. A copy that ended after the listing has stored
        this object."""
        try:
            self._store.head(key.stem + INDEXES_SUFFIX)
        except RemoteResourceNotFoundError:
            return False
        return True

    def _report_problem(self, problem: Problem) -> None:
        if problem.reason is ProblemReason.LOG_WITHOUT_INDEXES:
            self._unfinished.append(parse_key(problem.key))
        if self._on_problem is None:
            refuse_hidden(self._store, problem)
            return
        if problem.hides_segment:
            self._hidden.append(parse_key(problem.key))
        self._on_problem(problem)
