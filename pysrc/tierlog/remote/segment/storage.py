"""Copy segments to the remote tier and fetch ranges of segments.

`RemoteStorageManager` is the interface of the same name in KIP-405. `ObjectStorageManager`
implements it over an object store, with the formats of `layout` and `indexes`. A segment has a
`.log` object and an `.indexes` object. The objects are written in this order and removed in reverse
order, so a segment with an `.indexes` object is always complete.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tierlog._core import ReadFile, crc32c
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import (
    Problem,
    ProblemReason,
    corrupt_indexes,
    wrong_key,
    wrong_size,
)
from tierlog.remote.segment.indexes import (
    FIRST_READ_BYTES,
    MAX_INDEXES_BYTES,
    IndexesHeader,
    IndexKind,
    read_indexes_header,
    read_sections,
    verify_indexes,
)
from tierlog.remote.segment.layout import encode_rdi, indexes_key, log_key, log_key_of, parse_rdi
from tierlog.remote.store.object_store import (
    Draft,
    ObjectInfo,
    ObjectStore,
    file_chunks,
    open_regular_file,
    storage_error,
)
from tierlog.types import RemoteLogSegmentId

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ObjectStorageManager", "RemoteStorageManager", "check_same_segment"]

_CHECK_CHUNK_BYTES = 4 << 20


class RemoteStorageManager(Protocol):
    """The interface of the same name in KIP-405: stores the bytes of segments and returns them.

    The log consists of Kafka's own bytes. The indexes are one object of tierlog (`indexes`), which
    a manager stores and returns unchanged. Calls block and may come from any thread. Each call may
    raise RemoteStorageError, whose ``retriable`` says whether the caller should try again. A
    missing segment raises RemoteResourceNotFoundError.

    A manager of another package subclasses this class and implements the abstract methods. The
    setting ``remote.log.storage.manager.class.name`` names the manager's class, as an entry point
    of the group ``tierlog.storage_managers`` or as ``module:Class``. The manager is created without
    arguments, and `configure` is its first call. `tierlog.testing.StorageConformance` tests a
    manager.
    """

    def configure(self, settings: Mapping[str, str]) -> None:
        """Accept the settings that begin with the manager's prefix, without this prefix, plus
        ``tierlog.store.url``."""
        return

    @property
    @abstractmethod
    def url(self) -> str:
        """Location of the segments, without credentials, for messages."""

    @property
    def store(self) -> ObjectStore | None:
        """The store that holds the segments under tierlog's own keys (`layout`), so that callers
        can list it. None when only the metadata manager can list the segments."""
        return None

    @property
    def is_local(self) -> bool:
        """Whether this machine holds the segments; see `ObjectStore.is_local`."""
        return False

    def open_file(self, key: str) -> ReadFile | None:
        """Return the open file of the `.log` object `key`; None when it is not a local file."""
        return None

    # -- writing

    def draft_log_segment_data(
        self, segment_id: RemoteLogSegmentId, start_offset: int, size_bytes: int
    ) -> Draft | None:
        """Return a draft of the log for `copy_log_segment_data`. The scan of the segment writes the
        draft, so that the segment is read only once. Return None when the manager does not support
        drafts."""
        return None

    @abstractmethod
    def copy_log_segment_data(
        self,
        metadata: RemoteLogSegmentMetadata,
        log: int | str | os.PathLike[str] | Draft,
        indexes: Buffer,
        *,
        before_chunk: Callable[[int], None] | None = None,
    ) -> bytes | None:
        """Store the file `log` (a path, an open descriptor, or a draft that has its bytes), and
        then `indexes`. Return custom metadata, which later calls find in `metadata`.

        Before each chunk is sent, `before_chunk` is called with the size of the chunk.
        `before_chunk` may block to slow the upload down, or raise to stop the upload. Raises
        CorruptDataError when the file does not match `metadata`. After an error nothing is removed;
        the caller decides when to delete.
        """

    @abstractmethod
    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove the segment. The call may be repeated, even after a call that removed only a
        part."""

    # -- reading

    @abstractmethod
    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Buffer:
        """Return bytes [`start_position`, `end_position`) of the log, in one request.

        The end is exclusive (in Kafka it is inclusive). An end of None, or beyond the segment's
        end, means the segment's end. Returns exactly these bytes, or raises RemoteStorageError.
        """

    @abstractmethod
    def fetch_index_object(self, metadata: RemoteLogSegmentMetadata) -> Buffer:
        """Return the indexes as `copy_log_segment_data` received them, in one request."""

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, kinds: Iterable[IndexKind] | None = None
    ) -> dict[IndexKind, memoryview]:
        """Return the sections `kinds` (all when None) of the indexes, with verified checksums.

        Raises CorruptDataError when the indexes are damaged or belong to another segment.
        """
        header, _, data = self.fetch_whole_indexes(metadata)
        requested = IndexKind if kinds is None else kinds
        return {kind: header.read_section(kind, data) for kind in requested}

    def fetch_whole_indexes(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[IndexesHeader, RemoteLogSegmentMetadata, Buffer]:
        """Return header, metadata and bytes of the indexes, in one request.

        Every checksum is compared. Raises CorruptDataError when the indexes are damaged or belong
        to another segment.
        """
        data = self.fetch_index_object(metadata)
        header, description = verify_indexes(data, path=self._describe_indexes(metadata))
        check_same_segment(header, description.metadata, metadata)
        return header, description.metadata, data

    def _describe_indexes(self, metadata: RemoteLogSegmentMetadata) -> str:
        """Return the name of the stored indexes in error messages."""
        return f"{self.url}: indexes of {metadata.segment_id}"

    # -- remote data ids

    def encode_data_id(self, metadata: RemoteLogSegmentMetadata, position: int) -> bytes:
        """Return the remote data id of the batch at byte `position` of the segment."""
        return encode_rdi(metadata, position)

    def resolve_data_id(self, data_id: bytes, metadata: RemoteLogSegmentMetadata) -> int:
        """Return the byte position in the segment that a remote data id names. The id is untrusted.
        Raises CorruptDataError unless `encode_data_id` could have made the id for this segment."""
        key, position = parse_rdi(data_id, metadata.topic_id_partition)
        if str(key) != log_key(metadata):
            raise CorruptDataError(
                reason="bad_rdi",
                position=0,
                expected=f"a position in {log_key(metadata)}",
                found=str(key),
            )
        return position

    # -- verifying

    def verify(
        self, metadata: RemoteLogSegmentMetadata, *, deep: bool = False
    ) -> tuple[Problem, ...]:
        """Return findings about the stored segment; empty when it is intact.

        With `deep`, the whole log is read and its checksum is compared. If the store does not
        answer, an error is raised instead of a finding returned.
        """
        name, expected = str(metadata.segment_id), metadata.log_crc32c
        try:
            self.fetch_whole_indexes(metadata)
            if deep and expected is not None:
                found = log_checksum(self, metadata)
                return () if found == expected else (_wrong_checksum(name, expected, found),)
            if metadata.segment_size_bytes:
                self.fetch_log_segment(metadata, metadata.segment_size_bytes - 1)
        except RemoteResourceNotFoundError as error:
            return (missing_object(name, error),)
        except CorruptDataError as error:
            return (corrupt_indexes(name, error),)
        return ()

    def verify_copy(
        self, metadata: RemoteLogSegmentMetadata, indexes: Buffer
    ) -> tuple[Problem, ...]:
        """Verify a segment right after it was copied with `indexes`; see `verify`."""
        return self.verify(metadata)

    def close(self) -> None:
        """Release the manager's resources. The call may be repeated."""
        return


class ObjectStorageManager(RemoteStorageManager):
    """Keeps segments in one object store, as `.log` and `.indexes` objects under the keys of
    `layout`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"ObjectStorageManager({self._store.url!r})"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def store(self) -> ObjectStore:
        return self._store

    # -- writing

    def draft_log_segment_data(
        self, segment_id: RemoteLogSegmentId, start_offset: int, size_bytes: int
    ) -> Draft | None:
        return self._store.draft(log_key_of(segment_id, start_offset), size_bytes)

    def copy_log_segment_data(
        self,
        metadata: RemoteLogSegmentMetadata,
        log: int | str | os.PathLike[str] | Draft,
        indexes: Buffer,
        *,
        before_chunk: Callable[[int], None] | None = None,
    ) -> bytes | None:
        """See `RemoteStorageManager`.

        The bytes are checksummed during the upload, and the object becomes visible only if size and
        CRC-32C equal the values in `metadata`. Raises CorruptDataError when the file has changed
        since its scan. The bytes of a draft were checksummed when the draft was written.
        """
        if metadata.log_crc32c is None:
            raise ValueError(f"{metadata.segment_id}: expected a log checksum, found none")
        _check_indexes(metadata, indexes)
        if isinstance(log, int | str | os.PathLike):
            with _opened_log(log) as (descriptor, path):
                chunks = _read_verified_chunks(descriptor, path, metadata, before_chunk)
                self._store.put_stream(log_key(metadata), chunks, metadata.segment_size_bytes)
        else:
            _put_draft(log, metadata, before_chunk)
        if before_chunk is not None:
            before_chunk(memoryview(indexes).nbytes)
        self._store.put_bytes(indexes_key(metadata), indexes)
        return None

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove the segment's objects. The call may be repeated, even after a call that removed
        only one object."""
        self._store.delete(indexes_key(metadata))
        self._store.delete(log_key(metadata))

    # -- reading

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Buffer:
        size_bytes = metadata.segment_size_bytes
        end = size_bytes if end_position is None else min(end_position, size_bytes)
        if not 0 <= start_position < end:
            raise ValueError(
                f"{metadata.segment_id}: expected a range within {size_bytes} bytes, got "
                f"{start_position} to {end_position}"
            )
        key = log_key(metadata)
        data = self._store.get_range(key, start_position, end - start_position)
        received = memoryview(data).nbytes
        if received != end - start_position:
            raise storage_error(
                f"{self._store.url}: {key}: expected {end - start_position} bytes from position "
                f"{start_position}, got {received}"
            )
        return data

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    def open_file(self, key: str) -> ReadFile | None:
        """See `RemoteStorageManager`. The caller must not keep the file."""
        return self._store.open_file(key)

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, kinds: Iterable[IndexKind] | None = None
    ) -> dict[IndexKind, memoryview]:
        """See `RemoteStorageManager`.

        The call makes one request when the sections are within the first 16 KiB, else two requests.
        """
        key = indexes_key(metadata)
        header, first = read_indexes_header(self._store, key)
        requested = list(header.kinds if kinds is None else kinds)
        sections = read_sections(self._store, key, header, first, {*requested, IndexKind.METADATA})
        described = header.description(sections[IndexKind.METADATA]).metadata
        check_same_segment(header, described, metadata)
        return {kind: sections[kind] for kind in requested}

    def fetch_index_object(self, metadata: RemoteLogSegmentMetadata) -> Buffer:
        # The store returns fewer bytes at the object's end. The header states the object's size.
        return self._store.get_range(indexes_key(metadata), 0, MAX_INDEXES_BYTES)

    def _describe_indexes(self, metadata: RemoteLogSegmentMetadata) -> str:
        return f"{self._store.url}/{indexes_key(metadata)}"

    # -- verifying

    def verify(
        self, metadata: RemoteLogSegmentMetadata, *, deep: bool = False
    ) -> tuple[Problem, ...]:
        """Return findings about the segment's two objects; empty when they are intact.

        Sizes, the `.indexes` header and its description are compared. With `deep`, all bytes are
        read and every checksum is compared. If the store does not answer, an error is raised
        instead of a finding returned.
        """
        return (*self._verify_log(metadata, deep), *self._verify_indexes(metadata, deep))

    def verify_copy(
        self, metadata: RemoteLogSegmentMetadata, indexes: Buffer
    ) -> tuple[Problem, ...]:
        """Verify a segment right after its copy. The first bytes of the `.indexes` object are
        compared with `indexes` instead of being decoded again."""
        return (*self._verify_log(metadata, deep=False), *self._compare_indexes(metadata, indexes))

    def _verify_log(self, metadata: RemoteLogSegmentMetadata, deep: bool) -> Iterator[Problem]:
        info = self._find_object(log_key(metadata))
        if isinstance(info, Problem):
            yield info
        elif info.size_bytes != metadata.segment_size_bytes:
            yield wrong_size(info, metadata.segment_size_bytes)
        elif deep and metadata.log_crc32c is not None:
            computed = log_checksum(self, metadata)
            if computed != metadata.log_crc32c:
                yield _wrong_checksum(info.key, metadata.log_crc32c, computed)

    def _verify_indexes(self, metadata: RemoteLogSegmentMetadata, deep: bool) -> Iterator[Problem]:
        info = self._find_object(indexes_key(metadata))
        if isinstance(info, Problem):
            yield info
            return
        try:
            header, first = read_indexes_header(self._store, info.key, info.size_bytes)
            kinds = header.kinds if deep else (IndexKind.METADATA,)
            sections = read_sections(self._store, info.key, header, first, kinds)
            described = header.description(sections[IndexKind.METADATA]).metadata
        except CorruptDataError as error:
            yield corrupt_indexes(info.key, error)
            return
        if not _same_segment(described, metadata):
            yield wrong_key(info.key, described)

    def _compare_indexes(
        self, metadata: RemoteLogSegmentMetadata, indexes: Buffer
    ) -> Iterator[Problem]:
        stored = memoryview(indexes).cast("B")
        info = self._find_object(indexes_key(metadata))
        if isinstance(info, Problem):
            yield info
        elif info.size_bytes != stored.nbytes:
            yield wrong_size(info, stored.nbytes)
        else:
            expected = stored[:FIRST_READ_BYTES]
            found = self._store.get_range(info.key, 0, FIRST_READ_BYTES)
            if memoryview(found).cast("B") != expected:
                yield _wrong_checksum(info.key, crc32c(expected), crc32c(found))

    def _find_object(self, key: str) -> ObjectInfo | Problem:
        try:
            return self._store.head(key)
        except RemoteResourceNotFoundError:
            return Problem(
                key=key, reason=ProblemReason.MISSING, expected="an object", found="none"
            )


def log_checksum(storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> int:
    """Return the CRC-32C of the stored log."""
    checksum = 0
    for position in range(0, metadata.segment_size_bytes, _CHECK_CHUNK_BYTES):
        end = position + _CHECK_CHUNK_BYTES
        checksum = crc32c(storage.fetch_log_segment(metadata, position, end), checksum)
    return checksum


def missing_object(key: str, error: RemoteResourceNotFoundError) -> Problem:
    """Return the finding for a missing object."""
    return Problem(key=key, reason=ProblemReason.MISSING, expected="an object", found=str(error))


def _wrong_checksum(key: str, expected: int, found: int) -> Problem:
    return Problem(
        key=key,
        reason=ProblemReason.WRONG_CHECKSUM,
        expected=f"CRC-32C {expected:#010x}",
        found=f"{found:#010x}",
    )


def _check_indexes(metadata: RemoteLogSegmentMetadata, indexes: Buffer) -> None:
    """Check, before the indexes are stored, that they are complete, valid and belong to this
    segment."""
    header, description = verify_indexes(indexes, path=f"indexes of {metadata.segment_id}")
    for kind in header.kinds:
        header.section(kind)
    if not _same_segment(description.metadata, metadata):
        raise ValueError(
            f"expected indexes of {_describe(metadata)}, found those of "
            f"{_describe(description.metadata)}"
        )


def check_same_segment(
    header: IndexesHeader, described: RemoteLogSegmentMetadata, expected: RemoteLogSegmentMetadata
) -> None:
    """Raise CorruptDataError unless the indexes of `header` describe the requested segment."""
    if not _same_segment(described, expected):
        raise CorruptDataError(
            reason="wrong_segment",
            path=header.path,
            position=header.section(IndexKind.METADATA).position,
            expected=f"a description of {_describe(expected)}",
            found=f"one of {_describe(described)}",
        )


def _describe(metadata: RemoteLogSegmentMetadata) -> str:
    return (
        f"{metadata.segment_id} with offsets {metadata.start_offset} to {metadata.end_offset} "
        f"in {metadata.segment_size_bytes} bytes"
    )


def _same_segment(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return (
        one.segment_id == other.segment_id
        and one.start_offset == other.start_offset
        and one.end_offset == other.end_offset
        and one.segment_size_bytes == other.segment_size_bytes
        and (None in (one.log_crc32c, other.log_crc32c) or one.log_crc32c == other.log_crc32c)
    )


@contextmanager
def _opened_log(log: int | str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield descriptor and name of the file to copy. A descriptor that the caller passed stays
    open."""
    if isinstance(log, int):
        yield log, f"descriptor {log}"
        return
    descriptor = open_regular_file(log)
    try:
        yield descriptor, os.fspath(log)
    finally:
        os.close(descriptor)


def _read_verified_chunks(
    descriptor: int,
    path: str,
    metadata: RemoteLogSegmentMetadata,
    before_chunk: Callable[[int], None] | None,
) -> Iterator[bytes]:
    """Yield the file in chunks. Raises CorruptDataError unless size and checksum equal those that
    the scan found."""
    size_bytes = metadata.segment_size_bytes
    file_size = os.fstat(descriptor).st_size
    if file_size != size_bytes:
        raise _changed_error(
            path, min(file_size, size_bytes), f"{size_bytes} bytes", f"{file_size}"
        )
    checksum = sent = 0
    for chunk in file_chunks(descriptor, size_bytes):
        if before_chunk is not None:
            before_chunk(len(chunk))
        checksum = crc32c(chunk, checksum)
        sent += len(chunk)
        yield chunk
    if sent != size_bytes:
        raise _changed_error(path, sent, f"{size_bytes} bytes", "end of file")
    if checksum != metadata.log_crc32c:
        raise _changed_error(path, 0, f"CRC-32C {metadata.log_crc32c:#010x}", f"{checksum:#010x}")


def _put_draft(
    draft: Draft,
    metadata: RemoteLogSegmentMetadata,
    before_chunk: Callable[[int], None] | None,
) -> None:
    expected = (metadata.segment_size_bytes, metadata.log_crc32c)
    if (draft.key, draft.holds) != (log_key(metadata), expected):
        raise ValueError(
            f"{metadata.segment_id}: expected a draft of {log_key(metadata)} with size and "
            f"CRC-32C {expected}, found one of {draft.key} with {draft.holds}"
        )
    if before_chunk is not None:
        before_chunk(metadata.segment_size_bytes)
    draft.put()


def _changed_error(path: str, position: int, expected: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        reason="changed_during_copy",
        path=path,
        position=position,
        expected=expected,
        found=found,
        hint="the file changed since it was scanned; scan and copy it again",
    )
