"""The exceptions of tierlog.

    TierlogError
    |- ConfigError                     unknown setting, invalid value
    |- CorruptDataError                bytes are not what their format says
    |- GapError                        the archive lacks offsets that the log had
    |- OutOfRangeError                 offset or timestamp not held here
    |- RemoteStorageError              the store failed; retriable
    |  `- RemoteResourceNotFoundError  an expected object is missing
    |- RemoteMetadataError             illegal state change, lost update
    |  |- FencedLeaderError            a later leader epoch owns the partition
    |  `- MetadataNotReadyError        the metadata is not loaded yet; retriable
    `- ClosedError                     used after close

An error has a class of its own only if callers react to it differently. Operating system errors
about local files are ``OSError``. Wrong types and values of arguments are ``TypeError`` and
``ValueError``.
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
    """The base class. ``retriable`` says that the same call may succeed later."""

    retriable: bool = False


class ConfigError(TierlogError, ValueError):
    """An unknown setting or an impossible value."""


class CorruptDataError(TierlogError):
    """Bytes that violate their format.

    ``reason`` is a short word (``bad_crc``, ``bad_length`` ...). ``path`` is the file or object;
    None for a buffer. ``position`` is the byte position in it. ``expected`` says what a valid file
    has at this position, and ``found`` what this file has.
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
        """Return a copy of the error with the path of its file. `shift` is added to the
        position."""
        return CorruptDataError(
            reason=self.reason,
            path=path,
            position=self.position + shift,
            expected=self.expected,
            found=self.found,
            hint=hint or self.hint,
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own __reduce__ passes the arguments by position.
        fields = ("reason", "path", "position", "expected", "found", "hint")
        return partial(CorruptDataError, **{name: getattr(self, name) for name in fields}), ()


class GapError(TierlogError):
    """The log had these offsets and they were never deleted, but no segment has them.

    The offsets `first_offset` to `last_offset`, both inclusive, are missing. `last_offset` is None
    if only the missing segment contains it. `hint` says what to do next.
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
    """A later leader epoch owns the partition. The update was not applied, and a retry cannot
    succeed."""


class MetadataNotReadyError(RemoteMetadataError):
    """The metadata of a partition is not loaded yet, so it is unknown which segments exist."""

    retriable = True


class ClosedError(TierlogError):
    """An object was used after it was closed."""
