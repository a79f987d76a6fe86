"""Checks a log directory or a store. It reads everything and changes nothing."""

from __future__ import annotations

from tierlog.errors import ConfigError
from tierlog.log.files import printable
from tierlog.log.records import MAX_DECOMPRESSED_BYTES
from tierlog.reader.sources import Source
from tierlog.tools.findings import Report
from tierlog.tools.progress import Progress
from tierlog.tools.verify.log_dir import verify_log_dir
from tierlog.tools.verify.store import verify_store

__all__ = ["verify"]


def verify(
    source: Source,
    *,
    now_ms: int,
    deep: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    metadata: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a log directory or a store; see `verify_log_dir` and `verify_store`.

    Damage is a finding. An error is raised only when the source cannot be opened; ConfigError for
    ``metadata`` with a log directory, which has none.
    """
    if source.is_store:
        return verify_store(
            source.location,
            now_ms=now_ms,
            deep=deep,
            max_decompressed_bytes=max_decompressed_bytes,
            metadata=metadata,
            progress=progress,
        )
    if metadata is not None:
        raise ConfigError(
            f"{printable(source.location)}: a log directory has no remote metadata; give the URL "
            "of the store that the metadata is about"
        )
    return verify_log_dir(
        source.location,
        deep=deep,
        max_decompressed_bytes=max_decompressed_bytes,
        progress=progress,
    )
