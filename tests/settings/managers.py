"""Storage and metadata managers that tests of settings name by their classes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tierlog.errors import RemoteStorageError
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import storage_error
from tierlog.remote.urls import open_store

__all__ = ["FailingStorage", "FolderMetadata", "FolderStorage", "HangingStorage"]


class FolderStorage(ObjectStorageManager):
    """Segments in the store of the URL, whose settings are noted in a file."""

    def __init__(self) -> None:
        return

    def configure(self, settings: Mapping[str, str]) -> None:
        super().__init__(open_store(settings["tierlog.store.url"]))
        Path(self.url.removeprefix("file://") + ".configured").write_text(
            json.dumps(sorted(settings))
        )

    def copy_log_segment_data(self, *arguments: Any, **options: Any) -> bytes | None:
        super().copy_log_segment_data(*arguments, **options)
        return b"x" * 100


class HangingStorage(FolderStorage):
    """A copy that never ends."""

    def copy_log_segment_data(self, *_arguments: Any, **_options: Any) -> bytes | None:
        print("the copy hangs", file=sys.stderr, flush=True)
        threading.Event().wait()
        raise AssertionError("nothing ends the wait")


class FailingStorage(ObjectStorageManager):
    """Every copy fails, and might succeed the next time."""

    def copy_log_segment_data(self, *_arguments: Any, **_options: Any) -> bytes | None:
        raise self.error

    @property
    def error(self) -> RemoteStorageError:
        return storage_error("the store is out of order")


class FolderMetadata(SqliteRemoteLogMetadataManager):
    """Metadata beside the store, whose settings are noted in a file."""

    def __init__(self) -> None:
        return

    def configure(self, settings: Mapping[str, str]) -> None:
        place = settings["tierlog.store.url"].removeprefix("file://") + ".sqlite"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        super().__init__(place)
        Path(place + ".configured").write_text(json.dumps(sorted(settings)))
