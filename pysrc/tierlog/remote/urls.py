"""Where tierlog opens its object stores.

| URL | Store | Keys lie beneath |
|---|---|---|
| ``file:///folder`` | files, see `local_store` | the folder |
| ``memory:///name`` | this process only; the same URL is the same store | - |
| ``s3://bucket/prefix`` | S3 and what speaks its protocol | the prefix |
| ``gs://bucket/prefix`` | Google Cloud Storage | the prefix |
| ``az://container/prefix`` | Azure Blob Storage; ``account_name`` is an option | the prefix |
| ``hdfs://host:port/folder`` | HDFS, see `hdfs_store`; needs the extra ``hdfs`` | the folder |
| another scheme | what an installed package opens, see `plugins` | |
| ``kafka+`` and one of these | what Kafka's LocalTieredStorage wrote, read only: `kafka_layout` | |

A URL holds no credentials: they come from the environment or from options, and appear in no
error and no `repr`.
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
# What Hadoop's file systems call the same, which is what Spark's users have at hand.
_OURS = {
    **dict.fromkeys(("s3a", "s3n"), "s3://bucket/prefix"),
    "gcs": "gs://bucket/prefix",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az://container/prefix"),
    "dbfs": "file:///dbfs/... for a store, /dbfs/... for a log directory",
}


@takes(url=TEXT)
def open_store(url: str, **options: Any) -> ObjectStore:
    """The store behind `url`; see the table above. ConfigError for what cannot be one.

    `options` go to the cloud provider's client, or are those of `HdfsOptions`; the other schemes
    refuse them. Nothing is read or written yet, so a missing folder or bucket shows on first use.
    """
    if url.startswith(KAFKA_SCHEME):
        return KafkaLayoutStore(open_store(url.removeprefix(KAFKA_SCHEME), **options))
    scheme = url.partition("://")[0]
    opener = None if scheme in _SCHEMES else find_store_opener(scheme)
    if opener is not None:
        return opener(url, **options)
    parts = _split(url)
    # What servers need takes longer to import than all the rest.
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
    if parts.scheme in _OURS:
        raise ConfigError(
            f"unknown kind of store, {parts.scheme}:; tierlog opens it without Hadoop: write "
            f"{_OURS[parts.scheme]}"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"a {parts.scheme}: store URL holds credentials; give them as options or environment"
        )
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ConfigError(f"{shown_url(url)}: unknown kind of store, expected one of {known}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{parts.scheme}://{parts.netloc}{parts.path}: no ? or # in a store URL")
    _check_place(url, parts)
    return parts


def _check_place(url: str, parts: SplitResult) -> None:
    """A local path is absolute, a bucket is named, and no path leads upwards."""
    local = parts.scheme in ("file", "memory")
    if local and parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{shown_url(url)}: write three slashes, {parts.scheme}:///...")
    if not local and not parts.netloc:
        place = "NameNode" if parts.scheme == "hdfs" else "bucket"
        example = "host:port/folder" if parts.scheme == "hdfs" else "bucket/prefix"
        raise ConfigError(f"{shown_url(url)}: the {place} is missing, {parts.scheme}://{example}")
    if parts.scheme in _CLOUD_SCHEMES and ":" in parts.netloc:
        raise ConfigError(f"{shown_url(url)}: the name of a bucket has no colon")
    if parts.scheme == "file" and not parts.path.startswith("/"):
        raise ConfigError(f"{shown_url(url)}: the path must be absolute, file:///folder")
    if parts.scheme != "file":
        try:
            check_prefix(unquote(parts.path).strip("/"))
        except ValueError as error:
            raise ConfigError(f"{shown_url(url)}: {error}") from None
    elif "\0" in unquote(parts.path):
        raise ConfigError(f"{shown_url(url)!r}: NUL in the path")
