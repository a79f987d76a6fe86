"""A bucket that the real copier filled, its metadata file, and every kind of damage to them.

Each `Damage` is done to partitions of its own, so that all of them can stand in one bucket. Beside
it stands what an audit has to find then: kind and folder, and only in a deep look if so marked.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.oracle.indexes import encode_leader_epochs
from tests.oracle.producer_state import decode_snapshot, encode_snapshot
from tests.tools.golden_copy import overwrite
from tierlog._core import crc32c
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind, encode_indexes
from tierlog.remote.segment.log_index import decode_remote_log_index, encode_remote_log_index
from tierlog.testing.segments import DELETING, GONE, STARTED, uuid_of
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["DAMAGES", "Bucket", "Damage", "Expected"]

Expected = tuple[str, str]
"""The word for a kind of finding, and the topic it is about; ``""`` for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A folder that is a store, the metadata file of its copier, and a second copy of all of it
    that was made independently, with segment ids of its own."""

    store: Path
    metadata: Path
    second: Path

    def object(self, topic: str, base_offset: int, suffix: str = ".log") -> Path:
        (path,) = self.store.glob(f"{topic}-{'?' * 22}/0/{base_offset:020d}-*{suffix}")
        return path

    def pair(self, topic: str, base_offset: int) -> tuple[Path, Path]:
        return self.object(topic, base_offset), self.object(topic, base_offset, ".indexes")

    def remove(self, topic: str, base_offset: int) -> None:
        for path in self.pair(topic, base_offset):
            path.unlink()

    def take_second(self, topic: str, base_offset: int) -> None:
        """The second copy of a segment, beside what is there."""
        for path in self.second.glob(f"{topic}-{'?' * 22}/0/{base_offset:020d}-*"):
            shutil.copy2(path, self.store / path.relative_to(self.second))

    def known(self, topic: str, base_offset: int) -> RemoteLogSegmentMetadata:
        """What the `.indexes` object says; the metadata says the same before it is changed."""
        return _described(self.object(topic, base_offset, ".indexes")).metadata

    def tell(self, metadata: RemoteLogSegmentMetadata) -> None:
        """The metadata says this now, whatever it said before."""
        forgotten = replace(metadata, state=GONE)
        with closing(SqliteRemoteLogMetadataManager(self.metadata)) as manager:
            manager.load([forgotten])
            manager.load([metadata])

    def forget(self, topic: str, base_offset: int) -> None:
        """Neither objects nor metadata, as after retention."""
        gone = replace(self.known(topic, base_offset), state=GONE)
        self.remove(topic, base_offset)
        self.tell(gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is done, and what is to be found then: at once, or only in a deep look."""

    do: Callable[[Bucket], None]
    found: frozenset[Expected]
    deep: frozenset[Expected] = frozenset()


def _described(path: Path) -> SegmentDescription:
    whole = path.read_bytes()
    header = IndexesHeader.parse(whole, path="x")
    return header.description(header.read_section(IndexKind.METADATA, whole))


def rewrite(
    path: Path,
    change: Callable[[SegmentDescription], SegmentDescription] = lambda told: told,
    **sections: bytes,
) -> None:
    """Another description or sections in an `.indexes` object, all its checksums right."""
    whole = path.read_bytes()
    header = IndexesHeader.parse(whole, path="x")
    contents = {kind: bytes(header.read_section(kind, whole)) for kind in IndexKind}
    told = header.description(contents.pop(IndexKind.METADATA))
    contents |= {IndexKind[name]: data for name, data in sections.items()}
    path.write_bytes(encode_indexes(change(told), contents))


def _of_metadata(**changes: object) -> Callable[[SegmentDescription], SegmentDescription]:
    return lambda told: replace(told, metadata=replace(told.metadata, **changes))  # type: ignore[arg-type]


# -- what only the objects show


def _flipped_log(bucket: Bucket) -> None:
    overwrite(bucket.object("codec-lz4", 0), 2_200, b"\xff\xff\xff")


def _flipped_section(bucket: Bucket) -> None:
    path = bucket.object("codec-lz4", 256, ".indexes")
    section = IndexesHeader.parse(path.read_bytes(), path="x").section(IndexKind.OFFSET)
    overwrite(path, section.position, b"\xee")


def _wrong_offset_index(bucket: Bucket) -> None:
    path = bucket.object("broker-gzip", 0, ".indexes")
    rewrite(path, OFFSET=struct.pack(">ii", 1, 1))


def _remote_log_index(bucket: Bucket) -> None:
    path = bucket.object("broker-lz4", 0, ".indexes")
    rewrite(path, REMOTE_LOG=_with_rdis(path, lambda rdi: rdi.replace(b".log:0", b".log:7")))


def _with_rdis(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """The remoteLogIndex of an `.indexes` object, leading elsewhere."""
    whole = path.read_bytes()
    section = IndexesHeader.parse(whole, path="x").read_section(IndexKind.REMOTE_LOG, whole)
    found = decode_remote_log_index(section)
    names = ("first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms")
    columns: list[Any] = [getattr(found, name).tolist() for name in (*names, "data_length")]
    columns.append([change(found.rdi[row]) for row in range(len(found))])
    return encode_remote_log_index(*columns)


def _other_epochs(bucket: Bucket) -> None:
    path = bucket.object("broker-snappy", 0, ".indexes")
    rewrite(path, LEADER_EPOCH=encode_leader_epochs([(0, 0), (1, 5)]).encode())


def _bad_snapshot(bucket: Bucket) -> None:
    rewrite(bucket.object("broker-zstd", 0, ".indexes"), PRODUCER_SNAPSHOT=b"\0\2")


def _bad_header(bucket: Bucket) -> None:
    overwrite(bucket.object("codec-zstd", 0, ".indexes"), 0, b"NOT")


def _cut_log(bucket: Bucket) -> None:
    path = bucket.object("times-appended", 0)
    os.truncate(path, path.stat().st_size - 1)


def _no_indexes(bucket: Bucket) -> None:
    bucket.object("sizes-zstd", 0, ".indexes").unlink()


def _no_log(bucket: Bucket) -> None:
    bucket.object("sizes", 8).unlink()


def _other_cluster(bucket: Bucket) -> None:
    """Its id is text that JSON can hold, and UTF-8 cannot."""
    path = bucket.object("rolled-by-index", 0, ".indexes")
    rewrite(path, lambda told: replace(told, cluster_id="hidden"))
    data = bytearray(path.read_bytes().replace(b'"hidden"', b'"\\ud800"'))
    header = IndexesHeader.parse(data, path="x")
    section = header.section(IndexKind.METADATA)
    # The checksums of the first section and of the table itself (formats, `.indexes`).
    checksum = crc32c(data[section.position : section.end_position])
    data[16:20] = checksum.to_bytes(4, "big")
    table_end = section.position - 4
    data[table_end : table_end + 4] = crc32c(data[:table_end]).to_bytes(4, "big")
    path.write_bytes(data)


def _renamed(bucket: Bucket) -> None:
    for path in bucket.pair("codec-snappy", 262):
        path.rename(path.with_name(path.name.replace("262-", "263-", 1)))


def _renamed_folder(bucket: Bucket) -> None:
    """Copied under another name, all its objects made to fit."""
    (folder,) = bucket.store.glob("headers-" + "?" * 22)
    shutil.copytree(folder, folder.with_name(folder.name.replace("headers", "footers", 1)))


def _strays(bucket: Bucket) -> None:
    (bucket.store / "README").write_text("hello")
    folder = bucket.store / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / ".tierlog-0123456789abcdef.tmp").write_bytes(b"half")


# -- what the segments of a partition show together


def _gap(bucket: Bucket) -> None:
    bucket.forget("codec-none", 134)


def _duplicate(bucket: Bucket) -> None:
    bucket.take_second("codec-gzip", 0)


def _later_leader(bucket: Bucket) -> None:
    """The newest segment says that all from offset 114 on was written by a later leader."""
    path = bucket.object("times-shuffled", 240, ".indexes")
    lineage = encode_leader_epochs([(0, 0), (5, 114)]).encode()
    epochs = _of_metadata(leader_epochs=((5, 240),), bytes_per_epoch=None)
    rewrite(path, epochs, LEADER_EPOCH=lineage)
    bucket.tell(bucket.known("times-shuffled", 240))


def _epochs_gone(bucket: Bucket) -> None:
    """The newest segment knows of no leader epoch before its own."""
    path = bucket.object("epochs", 285, ".indexes")
    lineage = encode_leader_epochs([(4, 285)]).encode()
    epochs = _of_metadata(leader_epochs=((4, 285),), bytes_per_epoch=None)
    rewrite(path, epochs, LEADER_EPOCH=lineage)
    bucket.tell(bucket.known("epochs", 285))


def _without_open(path: Path) -> bytes:
    whole = path.read_bytes()
    header = IndexesHeader.parse(whole, path="x")
    entries = decode_snapshot(bytes(header.read_section(IndexKind.PRODUCER_SNAPSHOT, whole)))
    return encode_snapshot(replace(one, current_txn_first_offset=-1) for one in entries)


def _transaction_begins_twice(bucket: Bucket) -> None:
    """Open at the end of the next segment, and unknown where it began."""
    path = bucket.object("transactions", 85, ".indexes")
    rewrite(path, PRODUCER_SNAPSHOT=_without_open(path))


def _transaction_without_end(bucket: Bucket) -> None:
    """Open before, not open after, and no marker between."""
    whole = bucket.object("transactions-java", 0, ".indexes").read_bytes()
    header = IndexesHeader.parse(whole, path="x")
    entries = decode_snapshot(bytes(header.read_section(IndexKind.PRODUCER_SNAPSHOT, whole)))
    more = replace(entries[0], producer_id=99, current_txn_first_offset=50)
    path = bucket.object("transactions-java", 0, ".indexes")
    rewrite(path, PRODUCER_SNAPSHOT=encode_snapshot([*entries, more]))


# -- what the metadata says otherwise


def _lost(bucket: Bucket) -> None:
    bucket.remove("sizes", 0)


def _unknown(bucket: Bucket) -> None:
    """Kept by the bucket alone, under another id than the one that the metadata knows."""
    bucket.take_second("deleted-records", 370)


def _never_copied(bucket: Bucket) -> None:
    known = bucket.known("idempotent", 288)
    bucket.tell(
        replace(
            known,
            segment_id=replace(known.segment_id, id=uuid_of("never copied")),
            start_offset=known.end_offset + 1,
            end_offset=known.end_offset + 10,
            leader_epochs=((0, known.end_offset + 1),),
            state=STARTED,
        )
    )


def _half_deleted(bucket: Bucket) -> None:
    bucket.tell(replace(bucket.known("idempotent", 0), state=DELETING))


def _other_size(bucket: Bucket) -> None:
    known = bucket.known("orders.eu-west_1", 0)
    size_bytes = known.segment_size_bytes + 1
    bucket.tell(replace(known, segment_size_bytes=size_bytes, bytes_per_epoch=None))


def _other_time(bucket: Bucket) -> None:
    known = bucket.known("orders.eu-west_1", 59)
    bucket.tell(replace(known, max_timestamp_ms=known.max_timestamp_ms + 1))


def _log_start_below(bucket: Bucket) -> None:
    """The log starts where no segment is any more."""
    partition = bucket.known("codec-none", 0).topic_id_partition
    bucket.forget("codec-none", 0)
    with closing(SqliteRemoteLogMetadataManager(bucket.metadata)) as manager:
        manager.advance_log_start_offset(partition, 10)


def _damaged_rows(bucket: Bucket) -> None:
    """A partition of which the metadata knows nothing any more, with a segment only it knew of."""
    known = bucket.known("orders.eu-west_1", 0)
    partition = replace(known.topic_id_partition, topic="unread", topic_id=uuid_of("unread"))
    _copied_as(bucket, "headers", 0, partition)
    other = RemoteLogSegmentId(topic_id_partition=partition, id=uuid_of("elsewhere"))
    bucket.tell(replace(known, segment_id=other))
    with closing(sqlite3.connect(bucket.metadata)) as database, database:
        number = "(SELECT number FROM partition WHERE topic = 'unread')"
        database.execute(f"UPDATE segment SET size_bytes = 1 WHERE partition_number = {number}")


def _copied_as(bucket: Bucket, topic: str, base_offset: int, partition: TopicIdPartition) -> None:
    """A sound segment of `topic`, as one of `partition`."""
    log, indexes = bucket.pair(topic, base_offset)
    told = _described(indexes).metadata
    name = RemoteLogSegmentId(topic_id_partition=partition, id=told.segment_id.id)
    folder = bucket.store / f"{partition.topic}-{partition.topic_id}/{partition.partition}"
    folder.mkdir(parents=True)
    for path in (log, indexes):
        shutil.copy2(path, folder / path.name)
    key = (folder / log.name).relative_to(bucket.store).as_posix().encode()
    copy = folder / indexes.name
    entries = _with_rdis(copy, lambda rdi: key + b":" + rdi.rpartition(b":")[2])
    rewrite(copy, _of_metadata(segment_id=name), REMOTE_LOG=entries)


def _finds(*found: Expected) -> frozenset[Expected]:
    return frozenset(found)


DAMAGES = {
    "flipped log": Damage(do=_flipped_log, found=_finds(), deep=_finds(("bad_crc", "codec-lz4"))),
    "flipped section": Damage(do=_flipped_section, found=_finds(("bad_crc", "codec-lz4"))),
    "wrong offset index": Damage(
        do=_wrong_offset_index,
        found=_finds(),
        deep=_finds(("no_batch_there", "broker-gzip")),
    ),
    "remote log index": Damage(
        do=_remote_log_index, found=_finds(("remote_log_index", "broker-lz4"))
    ),
    "other epochs": Damage(do=_other_epochs, found=_finds(("leader_epochs", "broker-snappy"))),
    "bad snapshot": Damage(do=_bad_snapshot, found=_finds(("truncated", "broker-zstd"))),
    "bad header": Damage(do=_bad_header, found=_finds(("corrupt_indexes", "codec-zstd"))),
    "cut log": Damage(do=_cut_log, found=_finds(("wrong_size", "times-appended"))),
    "no indexes": Damage(
        do=_no_indexes,
        found=_finds(("log_without_indexes", "sizes-zstd"), ("missing", "sizes-zstd")),
    ),
    "no log": Damage(
        do=_no_log, found=_finds(("indexes_without_log", "sizes"), ("missing", "sizes"))
    ),
    "other cluster": Damage(do=_other_cluster, found=_finds(("wrong_cluster", "rolled-by-index"))),
    "renamed": Damage(
        do=_renamed,
        found=_finds(
            ("wrong_key", "codec-snappy"), ("orphan", "codec-snappy"), ("missing", "codec-snappy")
        ),
    ),
    "renamed folder": Damage(
        do=_renamed_folder,
        found=_finds(("name_mismatch", "headers"), ("wrong_key", "footers"), ("orphan", "footers")),
    ),
    "strays": Damage(do=_strays, found=_finds(("foreign_object", ""), ("temporary", ""))),
    "gap": Damage(do=_gap, found=_finds(("missing_offsets", "codec-none"))),
    "duplicate": Damage(
        do=_duplicate, found=_finds(("duplicate", "codec-gzip"), ("orphan", "codec-gzip"))
    ),
    "later leader": Damage(
        do=_later_leader,
        found=_finds(("epoch_regression", "times-shuffled"), ("missing_offsets", "times-shuffled")),
    ),
    "epochs gone": Damage(do=_epochs_gone, found=_finds(("unreferenced_epochs", "epochs"))),
    "transaction begins twice": Damage(
        do=_transaction_begins_twice, found=_finds(("txn_state", "transactions"))
    ),
    "transaction without end": Damage(
        do=_transaction_without_end,
        found=_finds(),
        deep=_finds(("txn_state", "transactions-java")),
    ),
    "lost": Damage(do=_lost, found=_finds(("missing", "sizes"))),
    "unknown": Damage(
        do=_unknown,
        found=_finds(("orphan", "deleted-records"), ("duplicate", "deleted-records")),
    ),
    "never copied": Damage(do=_never_copied, found=_finds(("dangling", "idempotent"))),
    "half deleted": Damage(do=_half_deleted, found=_finds(("dangling", "idempotent"))),
    "other size": Damage(do=_other_size, found=_finds(("wrong_size", "orders.eu-west_1"))),
    "other time": Damage(do=_other_time, found=_finds(("metadata_mismatch", "orders.eu-west_1"))),
    "log start below": Damage(do=_log_start_below, found=_finds(("missing_offsets", "codec-none"))),
    "damaged rows": Damage(do=_damaged_rows, found=_finds(("bad_row_checksum", "unread"))),
}
