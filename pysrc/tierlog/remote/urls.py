"""Open the object store of a URL.

| URL | Store | Keys are below |
|---|---|---|
| ``file:///folder`` | files, see `local_store` | the folder |
| ``memory:///name`` | this process only; equal URLs give the same store | - |
| ``s3://bucket/prefix`` | S3 and compatible stores | the prefix |
| ``gs://bucket/prefix`` | Google Cloud Storage | the prefix |
| ``az://container/prefix`` | Azure Blob Storage; ``account_name`` is an option | the prefix |
| ``hdfs://host:port/folder`` | HDFS, see `hdfs_store`; needs the extra ``hdfs`` | the folder |
| another scheme | a store of an installed package, see `plugins` | |
| ``kafka+`` and one of these | files of Kafka's LocalTieredStorage, read-only: `kafka_layout` | |

A URL contains no credentials. Credentials come from the environment or from options, and no error
and no `repr` shows them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from tierlog.arguments import TEXT, takes
from tierlog.errors import ConfigError
from tierlog.remote.plugins import find_store_opener
from tierlog.remote.segment.kafka_layout import KAFKA_SCHEME, KafkaLayoutStore
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore, check_prefix, file_chunks
from tierlog.types import shown_url

__all__ = ["LocalStore", "ObjectInfo", "ObjectStore", "file_chunks", "open_store"]

_CLOUD_SCHEMES = ("s3", "gs", "az")
_SCHEMES = ("file", "memory", *_CLOUD_SCHEMES, "hdfs")
# Schemes of Hadoop's file systems, which users of Spark may try first.
_REPLACEMENTS = {
    **dict.fromkeys(("s3a", "s3n"), "s3://bucket/prefix"),
    "gcs": "gs://bucket/prefix",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az://container/prefix"),
    "dbfs": "file:///dbfs/... for a store, /dbfs/... for a log directory",
}


@takes(url=TEXT)
def open_store(url: str, **options: Any) -> ObjectStore:
    """Open the store of `url`; see the table above. Raises ConfigError for an invalid URL.

    For a cloud store, `options` are passed to the provider's client; for HDFS, they are the fields
    of `HdfsOptions`; the other schemes refuse options. This function sends no request, so a missing
    folder or bucket is noticed on first use.
    """
    if url.startswith(KAFKA_SCHEME):
        return KafkaLayoutStore(open_store(url.removeprefix(KAFKA_SCHEME), **options))
    scheme = url.partition("://")[0]
    opener = None if scheme in _SCHEMES else find_store_opener(scheme)
    if opener is not None:
        return opener(url, **options)
    parts = _split(url)
    # The client libraries are imported on demand, because importing them takes longer than all
    # other imports.
    if parts.scheme in _CLOUD_SCHEMES:
        from tierlog.remote.store.obstore_store import open_cloud_store

        return open_cloud_store(url, options)
    if parts.scheme == "hdfs":
        from tierlog.remote.store.hdfs_store import open_hdfs_store

        return open_hdfs_store(url, options)
    if options:
        raise ConfigError(
            f"{shown_url(url)}: a {parts.scheme}: store has no options, got {sorted(options)}"
        )
    if parts.scheme == "memory":
        from tierlog.remote.store.obstore_store import open_memory_store

        return open_memory_store(f"memory:///{parts.path.strip('/')}")
    return LocalStore(unquote(parts.path))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"not a store URL: {error}") from None
    if parts.scheme in _REPLACEMENTS:
        raise ConfigError(
            f"unknown scheme {parts.scheme}:; tierlog does not use Hadoop's file systems: write "
            f"{_REPLACEMENTS[parts.scheme]}"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"a {parts.scheme}: store URL has credentials; give them as options or environment"
        )
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ConfigError(f"{shown_url(url)}: unknown kind of store, expected one of {known}")
    if parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        raise ConfigError(f"{shown}: a store URL cannot contain ? or #")
    _check_location(url, parts)
    return parts


def _check_location(url: str, parts: SplitResult) -> None:
    """Check that a local path is absolute, a bucket is named, and no path contains ``..``."""
    local = parts.scheme in ("file", "memory")
    if local and parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{shown_url(url)}: write three slashes, {parts.scheme}:///...")
    if not local and not parts.netloc:
        place = "NameNode" if parts.scheme == "hdfs" else "bucket"
        example = "host:port/folder" if parts.scheme == "hdfs" else "bucket/prefix"
        raise ConfigError(f"{shown_url(url)}: the {place} is missing, {parts.scheme}://{example}")
    if parts.scheme in _CLOUD_SCHEMES and ":" in parts.netloc:
        raise ConfigError(f"{shown_url(url)}: a bucket's name cannot contain a colon")
    if parts.scheme == "file" and not parts.path.startswith("/"):
        raise ConfigError(f"{shown_url(url)}: the path must be absolute, file:///folder")
    if parts.scheme != "file":
        try:
            check_prefix(unquote(parts.path).strip("/"))
        except ValueError as error:
            raise ConfigError(f"{shown_url(url)}: {error}") from None
    elif "\0" in unquote(parts.path):
        raise ConfigError(f"{shown_url(url)!r}: NUL in the path")
