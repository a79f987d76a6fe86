"""The rules of every storage manager."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tierlog._core import crc32c
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.testing.segments import segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StorageConformance"]

_LOG = b"".join(number.to_bytes(8, "big") for number in range(4_000))


def _segment(name: str = "stored", start_offset: int = 0) -> RemoteLogSegmentMetadata:
    return segment(
        name, start_offset, start_offset + 99, size_bytes=len(_LOG), log_crc32c=crc32c(_LOG)
    )


def _indexes(metadata: RemoteLogSegmentMetadata) -> bytes:
    description = SegmentDescription(
        metadata=metadata, record_count=100, batch_count=1, cluster_id="conformance"
    )
    given: dict[IndexKind, Buffer] = {
        kind: kind.name.encode() for kind in IndexKind if kind is not IndexKind.METADATA
    }
    return encode_indexes(description, given)


class StorageConformance:
    """Takes the fixture `storage`: an empty manager."""

    def copied(
        self,
        storage: RemoteStorageManager,
        folder: Path,
        metadata: RemoteLogSegmentMetadata,
        before_chunk: Callable[[int], None] | None = None,
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment, and return its metadata as later calls get it."""
        path = folder / f"{metadata.segment_id.id}.source"
        path.write_bytes(_LOG)
        custom = storage.copy_log_segment_data(
            metadata, path, _indexes(metadata), before_chunk=before_chunk
        )
        return replace(metadata, custom_metadata=custom)

    def test_what_was_copied_comes_back(
        self, storage: RemoteStorageManager, tmp_path: Path
    ) -> None:
        metadata = self.copied(storage, tmp_path, _segment())
        assert bytes(storage.fetch_log_segment(metadata, 0)) == _LOG
        assert bytes(storage.fetch_log_segment(metadata, 5, 17)) == _LOG[5:17]
        assert bytes(storage.fetch_log_segment(metadata, 31_990, 2**40)) == _LOG[31_990:]
        assert bytes(storage.fetch_index_object(metadata)) == _indexes(metadata)
        kinds = [IndexKind.OFFSET, IndexKind.LEADER_EPOCH]
        found = storage.fetch_indexes(metadata, kinds)
        assert {kind: bytes(data) for kind, data in found.items()} == {
            kind: kind.name.encode() for kind in kinds
        }
        assert storage.verify(metadata, deep=True) == ()
        assert storage.verify_copy(metadata, _indexes(metadata)) == ()

    def test_an_open_descriptor_is_copied_and_stays_open(
        self, storage: RemoteStorageManager, tmp_path: Path
    ) -> None:
        metadata = _segment()
        path = tmp_path / "log"
        path.write_bytes(_LOG)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            custom = storage.copy_log_segment_data(metadata, descriptor, _indexes(metadata))
            assert os.fstat(descriptor).st_size == len(_LOG)
        finally:
            os.close(descriptor)
        stored = replace(metadata, custom_metadata=custom)
        assert bytes(storage.fetch_log_segment(stored, 0)) == _LOG

    def test_a_piece_goes_when_the_gate_lets_it(
        self, storage: RemoteStorageManager, tmp_path: Path
    ) -> None:
        pieces: list[int] = []
        metadata = self.copied(storage, tmp_path, _segment(), pieces.append)
        assert sum(pieces) >= len(_LOG)

        def refuse(_size_bytes: int) -> None:
            raise InterruptedError("stopped by the gate")

        with pytest.raises(InterruptedError):
            self.copied(storage, tmp_path, _segment("other", 100), refuse)
        assert bytes(storage.fetch_log_segment(metadata, 0)) == _LOG

    def test_a_file_that_has_changed_is_not_stored(
        self, storage: RemoteStorageManager, tmp_path: Path
    ) -> None:
        metadata = _segment()
        path = tmp_path / "log"
        for changed in (_LOG[:-1], _LOG[:-1] + b"x"):
            path.write_bytes(changed)
            with pytest.raises(CorruptDataError):
                storage.copy_log_segment_data(metadata, path, _indexes(metadata))

    def test_what_was_deleted_is_not_found(
        self, storage: RemoteStorageManager, tmp_path: Path
    ) -> None:
        kept = self.copied(storage, tmp_path, _segment("kept", 100))
        metadata = self.copied(storage, tmp_path, _segment())
        for _ in range(2):
            storage.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError):
            storage.fetch_log_segment(metadata, 0)
        with pytest.raises(RemoteResourceNotFoundError):
            storage.fetch_index_object(metadata)
        assert storage.verify(metadata)
        assert storage.verify(kept, deep=True) == ()

    def test_a_data_id_means_a_position_of_its_segment(self, storage: RemoteStorageManager) -> None:
        metadata, other = _segment(), _segment("other", 100)
        for position in (0, 1, 4_096, len(_LOG) - 1):
            data_id = storage.encode_data_id(metadata, position)
            assert storage.resolve_data_id(data_id, metadata) == position
            with pytest.raises(CorruptDataError):
                storage.resolve_data_id(data_id, other)
        for hostile in (b"", b"../../etc/passwd:0", b"\xff\xfe:0", b"x" * 2_000, b":", b"0"):
            with pytest.raises(CorruptDataError):
                storage.resolve_data_id(hostile, metadata)

    def test_the_url_is_for_messages(self, storage: RemoteStorageManager) -> None:
        assert storage.url
        storage.close()
        storage.close()
