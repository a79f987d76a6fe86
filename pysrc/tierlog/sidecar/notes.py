"""A small JSON document in the state directory, replaced atomically and durably."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tierlog.errors import RemoteResourceNotFoundError
from tierlog.remote.store.object_store import ObjectStore

__all__ = ["Notes"]

_MAX_BYTES = 64 << 20


class Notes:
    """The document `key` in a state directory, which is a store. For one thread."""

    def __init__(self, state: ObjectStore, key: str, version: int) -> None:
        self._state = state
        self._key = key
        self._version = version

    @property
    def url(self) -> str:
        """The URL of the document."""
        return f"{self._state.url}/{self._key}"

    def read(self) -> dict[str, Any] | None:
        """Return the fields; None when there is no document.

        Raises ValueError for a document of another version, and RemoteStorageError when the state
        directory cannot be read.
        """
        try:
            size_bytes = self._state.head(self._key).size_bytes
            if not 0 < size_bytes <= _MAX_BYTES:
                raise ValueError(f"{size_bytes} bytes")
            text = bytes(self._state.get_range(self._key, 0, size_bytes))
        except RemoteResourceNotFoundError:
            return None
        try:
            fields = json.loads(text)
        except RecursionError as error:
            raise ValueError(str(error)) from None
        if not isinstance(fields, dict) or fields.get("format_version") != self._version:
            raise ValueError(repr(fields)[:80])
        return fields

    def write(self, fields: Mapping[str, Any]) -> None:
        """Replace the document. Raises RemoteStorageError when it could not be made durable."""
        text = json.dumps({"format_version": self._version, **fields}, sort_keys=True)
        self._state.put_bytes(self._key, text.encode("utf-8"), overwrite=True)
