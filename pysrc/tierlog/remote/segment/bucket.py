"""List the segments of a store without other metadata, from the listing and object headers.

A segment is complete when both objects exist, its `.indexes` header is valid and names the key
of the object, and the `.log` object has the size that it states. A segment that a deposed leader
finished after another broker took its partition over does not count (`layout.Takeover`). Every
other object is reported as a `Problem`, so nothing in a store is ignored silently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from tierlog.arguments import FUNCTION, INTEGER, TEXT, having, optional, takes
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.parallel import PARALLEL_READS, map_in_parallel
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import (
    IndexesHeader,
    IndexKind,
    read_indexes_header,
    read_sections,
)
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    ObjectKey,
    Takeover,
    indexes_key,
    is_marker,
    parse_key,
    parse_takeover,
    partition_prefix,
)
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore, storage_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "DescribedIndexes",
    "Problem",
    "ProblemReason",
    "bucket_metadata",
    "deposed_copy",
    "describe_indexes",
    "describe_segments",
    "foreign_object",
    "is_left_out",
    "list_objects",
    "list_segments",
    "refuse_hidden",
    "unmatched_object",
]


class ProblemReason(StrEnum):
    """Kinds of findings about one object."""

    FOREIGN_OBJECT = "foreign_object"
    LOG_WITHOUT_INDEXES = "log_without_indexes"
    INDEXES_WITHOUT_LOG = "indexes_without_log"
    CORRUPT_INDEXES = "corrupt_indexes"
    WRONG_KEY = "wrong_key"
    WRONG_SIZE = "wrong_size"
    WRONG_CHECKSUM = "wrong_checksum"
    MISSING = "missing"
    DEPOSED_COPY = "deposed_copy"


_HARMLESS = (
    ProblemReason.FOREIGN_OBJECT,
    ProblemReason.LOG_WITHOUT_INDEXES,
    ProblemReason.DEPOSED_COPY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding about one object: what was expected and what was found."""

    key: str
    reason: ProblemReason
    expected: str
    found: str

    @property
    def hides_segment(self) -> bool:
        """Whether the object may belong to a finished segment that cannot be read."""
        return self.reason not in _HARMLESS

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}: expected {self.expected}, found {self.found}"


class DescribedIndexes(NamedTuple):
    """Result of the first request to an `.indexes` object: description, header, first bytes."""

    description: SegmentDescription
    header: IndexesHeader
    first: Buffer


def describe_segments(
    store: ObjectStore,
    prefix: str = "",
    *,
    wanted: Callable[[ObjectKey], bool] | None = None,
    on_problem: Callable[[Problem], None] | None = None,
    parallel_reads: int = PARALLEL_READS,
    known: dict[ObjectInfo, SegmentDescription] | None = None,
) -> Iterator[SegmentDescription]:
    """Yield every complete segment below the folder `prefix`, in the order of the listing.

    Makes one small request per segment, and none for keys that `wanted` rejects, nor for segments
    in ``known``: the descriptions of an earlier call by their `.indexes` objects as listed, since a
    repair may replace such an object. Each call replaces the content of ``known``. Makes
    `parallel_reads` requests at a time of a remote store; one after the other of a local one, where
    threads cost more than they save. All other objects go to
    `on_problem`. Without it, a segment that exists but cannot be described raises CorruptDataError
    (RemoteStorageError if it vanished between listing and reading). A failing store is an error:
    unreadable is not the same as absent.
    """
    report = on_problem or (lambda problem: refuse_hidden(store, problem))
    objects = store.list(prefix) if prefix else list_objects(store)
    takeovers: defaultdict[str, list[Takeover]] = defaultdict(list)
    pairs = _pair_objects(objects, wanted or _accept_all, report, takeovers)
    described: dict[ObjectInfo, SegmentDescription] = {}
    earlier = known or {}

    def describe(
        pair: tuple[ObjectInfo, ObjectInfo],
    ) -> tuple[ObjectInfo, SegmentDescription | Problem]:
        found = earlier.get(pair[1])
        if found is not None:
            return pair[1], found
        outcome = describe_indexes(store, *pair)
        return pair[1], outcome if isinstance(outcome, Problem) else outcome.description

    workers = 1 if store.is_local else parallel_reads
    for info, outcome in map_in_parallel(describe, pairs, workers):
        if isinstance(outcome, Problem):
            report(outcome)
        else:
            described[info] = outcome
    if known is not None:
        known.clear()
        known.update(described)
    # A store lists in any order, so only now all takeovers are known.
    for description in described.values():
        folder = partition_prefix(description.metadata.segment_id.topic_id_partition)
        if folder in takeovers and is_left_out(description, takeovers[folder]):
            report(deposed_copy(description))
        else:
            yield description


def is_left_out(description: SegmentDescription, takeovers: Iterable[Takeover]) -> bool:
    """Return whether a deposed leader finished the segment after one of its partition's
    `takeovers`, so that it does not count."""
    epoch, metadata = description.claim_epoch, description.metadata
    return any(takeover.leaves_out(metadata, epoch) for takeover in takeovers)


def list_objects(store: ObjectStore) -> Iterator[ObjectInfo]:
    """Yield every object of the store. A listing that lags, or an error page in its place, can look
    like an empty store; it then lacks the cluster marker as well, which `head` can find."""
    seen = False
    for info in store.list():
        seen = seen or info.key == CLUSTER_KEY
        yield info
    if not seen:
        try:
            store.head(CLUSTER_KEY)
        except RemoteResourceNotFoundError:
            return
        raise storage_error(
            f"{store.url}: the listing lacks {CLUSTER_KEY}, which exists: the listing lags behind "
            "or is incomplete; try again"
        )


def list_segments(
    store: ObjectStore,
    prefix: str = "",
    *,
    wanted: Callable[[ObjectKey], bool] | None = None,
    on_problem: Callable[[Problem], None] | None = None,
    parallel_reads: int = PARALLEL_READS,
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the metadata that `describe_segments` finds; the state is COPY_SEGMENT_FINISHED."""
    for description in describe_segments(
        store, prefix, wanted=wanted, on_problem=on_problem, parallel_reads=parallel_reads
    ):
        yield description.metadata


@takes(
    store=having("a store, as open_store returns it", "list", "get_range"),
    prefix=TEXT,
    wanted=optional(FUNCTION),
    on_problem=optional(FUNCTION),
    parallel_reads=INTEGER,
)
def bucket_metadata(
    store: ObjectStore,
    prefix: str = "",
    *,
    wanted: Callable[[ObjectKey], bool] | None = None,
    on_problem: Callable[[Problem], None] | None = None,
    parallel_reads: int = PARALLEL_READS,
) -> InMemoryRemoteLogMetadataManager:
    """Return a metadata manager with the bucket's present segments; changes stay in memory."""
    manager = InMemoryRemoteLogMetadataManager(ready=False)
    manager.load(
        list_segments(
            store, prefix, wanted=wanted, on_problem=on_problem, parallel_reads=parallel_reads
        )
    )
    manager.mark_ready()
    return manager


def refuse_hidden(store: ObjectStore, problem: Problem) -> None:
    """Raise when the object hides a finished segment, so that it does not look absent."""
    if not problem.hides_segment:
        return
    path = f"{store.url}/{problem.key}"
    if problem.reason is ProblemReason.MISSING:
        raise storage_error(f"{path}: {problem.found}; list the store again")
    raise CorruptDataError(
        reason=problem.reason.value,
        path=path,
        position=0,
        expected=problem.expected,
        found=problem.found,
        hint="run tierlog verify to list all such objects",
    )


def _accept_all(_key: ObjectKey) -> bool:
    return True


def _pair_objects(
    objects: Iterable[ObjectInfo],
    wanted: Callable[[ObjectKey], bool],
    report: Callable[[Problem], None],
    takeovers: defaultdict[str, list[Takeover]],
) -> Iterator[tuple[ObjectInfo, ObjectInfo]]:
    """Yield (`.log`, `.indexes`) of each complete segment; stores only objects still unmatched.

    Adds the takeovers of each folder to `takeovers`."""
    waiting: dict[str, tuple[str, ObjectInfo]] = {}
    for info in objects:
        try:
            key = parse_key(info.key)
        except ValueError:
            taken = parse_takeover(info.key)
            if taken is not None:
                takeovers[taken[0]].append(taken[1])
            elif not is_marker(info.key):
                report(foreign_object(info))
            continue
        if not wanted(key):
            continue
        other = waiting.pop(key.stem, None)
        if other is None:
            waiting[key.stem] = (key.suffix, info)
        else:
            yield (info, other[1]) if key.suffix == LOG_SUFFIX else (other[1], info)
    for _, info in waiting.values():
        report(unmatched_object(info))


def foreign_object(info: ObjectInfo) -> Problem:
    """Return the finding for an object that belongs to no segment."""
    return Problem(
        key=info.key,
        reason=ProblemReason.FOREIGN_OBJECT,
        expected="only segment objects",
        found=f"another object of {info.size_bytes} bytes",
    )


def unmatched_object(info: ObjectInfo) -> Problem:
    """Return the finding for an object whose segment lacks the other object."""
    if info.key.endswith(INDEXES_SUFFIX):
        reason, missing = ProblemReason.INDEXES_WITHOUT_LOG, LOG_SUFFIX
    else:
        reason, missing = ProblemReason.LOG_WITHOUT_INDEXES, INDEXES_SUFFIX
    return Problem(
        key=info.key,
        reason=reason,
        expected=f"a {missing} object beside it",
        found=f"none (an unfinished copy, or an orphan of {info.size_bytes} bytes)",
    )


def deposed_copy(description: SegmentDescription) -> Problem:
    """Return the finding for a segment that `is_left_out`."""
    metadata = description.metadata
    return Problem(
        key=indexes_key(metadata),
        reason=ProblemReason.DEPOSED_COPY,
        expected="a segment that its leader finished before another broker took the partition over",
        found=f"a later one, of broker {metadata.broker_id} under leader epoch "
        f"{description.claim_epoch}",
    )


def describe_indexes(
    store: ObjectStore, log: ObjectInfo, indexes: ObjectInfo
) -> DescribedIndexes | Problem:
    """Describe a segment from the header of its `.indexes` object, or return the finding. Makes
    one request."""
    try:
        header, first = read_indexes_header(store, indexes.key, indexes.size_bytes)
        sections = read_sections(store, indexes.key, header, first, [IndexKind.METADATA])
        description = header.description(sections[IndexKind.METADATA])
    except CorruptDataError as error:
        return corrupt_indexes(indexes.key, error)
    except RemoteResourceNotFoundError:
        return Problem(
            key=indexes.key,
            reason=ProblemReason.MISSING,
            expected="the object that was listed",
            found="none, it was deleted after the listing",
        )
    metadata = description.metadata
    if indexes_key(metadata) != indexes.key:
        return wrong_key(indexes.key, metadata)
    if metadata.segment_size_bytes != log.size_bytes:
        return wrong_size(log, metadata.segment_size_bytes)
    return DescribedIndexes(description, header, first)


def corrupt_indexes(key: str, error: CorruptDataError) -> Problem:
    """Return the finding for an `.indexes` object that cannot be read."""
    return Problem(
        key=key,
        reason=ProblemReason.CORRUPT_INDEXES,
        expected=error.expected,
        found=f"{error.found} at byte {error.position} ({error.reason})",
    )


def wrong_key(key: str, found: RemoteLogSegmentMetadata) -> Problem:
    """Return the finding for an `.indexes` object that describes another segment than its key."""
    return Problem(
        key=key,
        reason=ProblemReason.WRONG_KEY,
        expected="a description of this segment",
        found=f"one of {indexes_key(found)}",
    )


def wrong_size(info: ObjectInfo, expected_bytes: int) -> Problem:
    """Return the finding for an object whose size is not the recorded one."""
    return Problem(
        key=info.key,
        reason=ProblemReason.WRONG_SIZE,
        expected=f"{expected_bytes} bytes",
        found=f"{info.size_bytes} bytes",
    )
