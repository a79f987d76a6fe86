"""What stands between the manager and the world, with a named point at every step.

The object store and the metadata manager are wrapped; what the file store and the index files ask
of the operating system is seen by the name of the file. Nothing of it lives in the product.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.reliability.points import reach
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.layout import LOG_SUFFIX
from tierlog.remote.store import local_store
from tierlog.remote.store.object_store import Draft, ObjectInfo, ObjectStore
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["SeamedDraftStore", "SeamedMemory", "SeamedMetadata", "SeamedStore", "watch_files"]


@contextmanager
def around(name: str) -> Iterator[None]:
    reach(f"{name}.before")
    yield
    reach(f"{name}.after")


class SeamedStore(ObjectStore):
    """An `ObjectStore` that says where it is."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        with around("store.put_indexes"):
            self._store.put_bytes(key, data, overwrite=overwrite)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        with around("store.put_log"):
            self._store.put_stream(key, _told(chunks, size_bytes), size_bytes, overwrite=overwrite)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._store.put_if_absent(key, data)

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        with around("store.get_range"):
            return self._store.get_range(key, start_position, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        with around("store.head"):
            return self._store.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        with around("store.delete_log" if key.endswith(LOG_SUFFIX) else "store.delete_indexes"):
            self._store.delete(key)


class SeamedDraftStore(SeamedStore):
    """The same over a store that takes drafts, which the copy then prefers."""

    def draft(self, key: str, size_bytes: int) -> SeamedDraft | None:
        draft = self._store.draft(key, size_bytes)
        reach("store.draft.after")
        return None if draft is None else SeamedDraft(draft)


class SeamedDraft:
    """A `Draft` that says when it becomes an object."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def put(self) -> None:
        with around("store.put_draft"):
            self._draft.put()


def _told(chunks: Iterable[Buffer], size_bytes: int) -> Iterator[Buffer]:
    sent = 0
    for chunk in chunks:
        sent += memoryview(chunk).nbytes
        first, last = sent == memoryview(chunk).nbytes, sent == size_bytes
        if first:
            reach("store.put_log.first_chunk")
        if last:
            reach("store.put_log.last_chunk")
        if not first and not last:
            reach("store.put_log.middle_chunk")
        yield chunk


_STATES = {
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: "metadata.copy_finished",
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: "metadata.delete_started",
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: "metadata.delete_finished",
}
_DELETE_STATES = ("partition_marked", "partition_started", "partition_finished")


class _Seams(InMemoryRemoteLogMetadataManager):
    """Says where it is with every event."""

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        with around("metadata.copy_started"):
            super().add(metadata, leader_epoch=leader_epoch)

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        known = self.get(update.segment_id)
        same = known is not None and known.state is update.state
        with around("metadata.truncate" if same else _STATES[update.state]):
            super().update(update, leader_epoch=leader_epoch)

    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        with around("metadata.claim"):
            super().claim_leadership(partition, leader_epoch)

    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        with around(f"metadata.{_DELETE_STATES[metadata.state]}"):
            super().update_partition_delete(metadata, leader_epoch=leader_epoch)


class SeamedMemory(_Seams):
    """The metadata manager without a disk."""


class SeamedMetadata(_Seams, SqliteRemoteLogMetadataManager):
    """The durable one, and where it is; SQLite's statements too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file.connection.set_trace_callback(_statement)


def _statement(text: str) -> None:
    match text.split(maxsplit=1)[0].upper():
        case "BEGIN":
            reach("sqlite.begin")
        case "INSERT" | "UPDATE" | "REPLACE":
            reach("sqlite.insert")
        case "DELETE":
            reach("sqlite.delete")
        case "COMMIT":
            reach("sqlite.commit")


# -- what the file store and the index files ask of the operating system


def watch_files(areas: dict[str, Path]) -> None:
    """From now on this process tells what it does to files below the folders of `areas` (``file``
    the file store's, ``index`` that of the index files). For good: only in a child."""
    folders = [(f"{folder}/", area) for area, folder in areas.items()]
    watched = _Watched(folders)
    for name in ("open", "write", "pwrite", "fsync", "link", "rename", "replace", "unlink"):
        call = getattr(os, name)
        setattr(os, name, partial(getattr(watched, name), call))
    publish = local_store.rename_new

    def publish_told(source: str, target: str, folder: int) -> None:
        with around("file.publish"):
            publish(source, target, folder)

    local_store.rename_new = publish_told


class _Watched:
    """The calls of `os`, each with the real one in front of its arguments."""

    def __init__(self, folders: list[tuple[str, str]]) -> None:
        self._folders = folders

    def _area(self, path: str) -> str | None:
        return next((area for folder, area in self._folders if f"{path}/".startswith(folder)), None)

    def _path(self, name: Any, folder: int | None) -> str:
        text = os.fsdecode(os.fspath(name))
        if folder is None or text.startswith("/"):
            return os.path.abspath(text)
        return f"{os.readlink(f'/proc/self/fd/{folder}')}/{text}"

    def _of_descriptor(self, descriptor: int) -> str | None:
        return self._area(os.readlink(f"/proc/self/fd/{descriptor}"))

    def open(self, call: Any, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        descriptor: int = call(path, flags, mode, **options)
        if flags & (os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)):
            area = self._area(self._path(path, options.get("dir_fd")))
            if area is not None:
                reach(f"{area}.create.after")
        return descriptor

    def write(self, call: Any, descriptor: int, *rest: Any) -> int:
        written: int = call(descriptor, *rest)
        area = self._of_descriptor(descriptor)
        if area is not None:
            reach(f"{area}.write.after")
        return written

    pwrite = write

    def fsync(self, call: Any, descriptor: int) -> None:
        area = self._of_descriptor(descriptor)
        if area is None:
            call(descriptor)
            return
        kind = "object" if area == "file" else "file"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            kind = "folder"
        with around(f"{area}.sync_{kind}"):
            call(descriptor)

    def rename(self, call: Any, source: Any, target: Any, **options: Any) -> None:
        area = self._area(self._path(target, options.get("dst_dir_fd")))
        if area is None:
            call(source, target, **options)
            return
        with around(f"{area}.rename"):
            call(source, target, **options)

    replace = rename

    def link(self, call: Any, source: Any, target: Any, **options: Any) -> None:
        area = self._area(self._path(target, options.get("dst_dir_fd")))
        if area is None:
            call(source, target, **options)
            return
        with around(f"{area}.link"):
            call(source, target, **options)

    def unlink(self, call: Any, path: Any, **options: Any) -> None:
        full = self._path(path, options.get("dir_fd"))
        area = self._area(full)
        if area is None:
            call(path, **options)
            return
        if area == "file" and full.endswith(".tmp"):
            reach("file.remove_temporary.before")
            call(path, **options)
            return
        with around("file.unlink_object" if area == "file" else f"{area}.unlink"):
            call(path, **options)
