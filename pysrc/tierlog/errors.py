"""The exceptions of tierlog.

    TierlogError
    |- ConfigError                     unknown setting, impossible value
    |- CorruptDataError                bytes are not what their format says
    |- GapError                        the archive lacks offsets that the log had
    |- OutOfRangeError                 offset or timestamp not held here
    |- RemoteStorageError              the store failed; retriable
    |  `- RemoteResourceNotFoundError  the object is not there
    |- RemoteMetadataError             illegal state change, lost update
    |  |- FencedLeaderError            a later leader epoch owns the partition
    |  `- MetadataNotReadyError        not loaded yet, which is not "empty"; retriable
    `- ClosedError                     used after close

A class exists only where callers react differently. Operating system errors on local
files stay ``OSError``; wrong argument types and values stay ``TypeError`` and ``ValueError``.
"""

from __future__ import annotations

from functools import partial

__all__ = [
    "ClosedError",
    "ConfigError",
    "CorruptDataError",
    "FencedLeaderError",
    "GapError",
    "MetadataNotReadyError",
    "OutOfRangeError",
    "RemoteMetadataError",
    "RemoteResourceNotFoundError",
    "RemoteStorageError",
    "TierlogError",
]


class TierlogError(Exception):
    """The base class. ``retriable``: the same call may succeed later."""

    retriable: bool = False


class ConfigError(TierlogError, ValueError):
    """An unknown setting or an impossible value."""


class CorruptDataError(TierlogError):
    """Bytes that violate their format.

    ``reason`` is a short word (``bad_crc``, ``bad_length`` ...), ``path`` the file or object
    (None for a buffer), ``position`` the byte position in it, ``expected`` and ``found`` say
    what a valid file would hold there and what this one holds.
    """

    def __init__(
        self,
        *,
        reason: str,
        position: int,
        expected: str,
        found: str,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.reason = reason
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(reason, path, position, expected, found)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return (
            f"{where}{self.reason} at byte {self.position}: "
            f"expected {self.expected}, found {self.found}{hint}"
        )

    def located(
        self, path: str | None, hint: str | None = None, *, shift: int = 0
    ) -> CorruptDataError:
        """Return the error with the path of its file; `shift` is added to the position."""
        return CorruptDataError(
            reason=self.reason,
            path=path,
            position=self.position + shift,
            expected=self.expected,
            found=self.found,
            hint=hint or self.hint,
        )

    def __reduce__(self) -> tuple[object, ...]:
        # The default passes the arguments by position.
        fields = ("reason", "path", "position", "expected", "found", "hint")
        return partial(CorruptDataError, **{name: getattr(self, name) for name in fields}), ()


class GapError(TierlogError):
    """Offsets that the log had, that were never deleted, and that no segment has.

    `first_offset` to `last_offset`, both included, are missing; `last_offset` is None when only
    the missing segment would tell where it ends. `hint` says what to do next.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        first_offset: int,
        last_offset: int | None,
        *,
        hint: str | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.hint = hint
        super().__init__(topic, partition, first_offset, last_offset)

    def __str__(self) -> str:
        if self.last_offset is None:
            missing = f"the offsets from {self.first_offset} on are"
        elif self.last_offset == self.first_offset:
            missing = f"offset {self.first_offset} is"
        else:
            missing = f"offsets {self.first_offset} to {self.last_offset} are"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.topic}-{self.partition}: {missing} in no segment{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self.topic, self.partition, self.first_offset, self.last_offset
        return partial(GapError, *arguments, hint=self.hint), ()


class OutOfRangeError(TierlogError, LookupError):
    """An offset or timestamp that no segment has."""


class RemoteStorageError(TierlogError):
    """The object store failed or did not answer in time."""

    retriable = True


class RemoteResourceNotFoundError(RemoteStorageError):
    """An expected object is missing."""

    retriable = False


class RemoteMetadataError(TierlogError):
    """A state change that the segment's state does not allow, or a lost update."""


class FencedLeaderError(RemoteMetadataError):
    """A later leader epoch owns the partition. The update was not applied; a retry cannot
    succeed."""


class MetadataNotReadyError(RemoteMetadataError):
    """The metadata of this partition is not loaded yet; unknown is not empty."""

    retriable = True


class ClosedError(TierlogError):
    """Used after close."""
