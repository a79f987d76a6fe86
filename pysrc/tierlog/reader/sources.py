"""Decides whether a source is a log directory or a store, and parses topic and partition
arguments."""

from __future__ import annotations

import errno
import os
import re
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from tierlog.errors import ConfigError
from tierlog.log.checkpoint import META_PROPERTIES
from tierlog.log.files import printable
from tierlog.log.names import shows_log_dir
from tierlog.remote.segment.kafka_layout import KAFKA_FOLDER, KAFKA_SCHEME
from tierlog.remote.segment.layout import CLUSTER_KEY, LOG_SUFFIX
from tierlog.types import check_topic_name, shown_url

__all__ = [
    "Source",
    "SourceKind",
    "is_url",
    "local_path",
    "parse_topic",
    "parse_topic_partition",
    "source_of",
]

# Spark and Hadoop write some URLs with one slash after the scheme.
_URL = re.compile(r"[a-z][a-z0-9+.-]*:/")
_ONE_SLASH = re.compile(r"file:/(?!/)")
_MAX_INT32 = 2**31 - 1


class SourceKind(StrEnum):
    """The kinds of places that hold records."""

    LOG_DIR = "log directory"
    STORE = "store"


class Source(NamedTuple):
    """A log directory with its path, or a store with its URL."""

    kind: SourceKind
    location: str

    @property
    def is_store(self) -> bool:
        """Whether ``location`` is a URL."""
        return self.kind is SourceKind.STORE


def is_url(text: str) -> bool:
    """Whether `text` is a URL rather than a path."""
    return _URL.match(text) is not None and not os.path.lexists(text)


def source_of(text: str) -> Source:
    """Return the source for a path or URL. A URL is a store. A directory is a store, too, if it has
    the marker of a store or if Kafka's LocalTieredStorage writes to it. Raises OSError if the
    source does not exist, and ConfigError for the URL of a broker's log directory."""
    if is_url(text):
        url = _ONE_SLASH.sub("file:///", text)
        folder = local_path(url)
        if folder is not None and os.path.lexists(os.path.join(folder, META_PROPERTIES)):
            raise ConfigError(
                f"{printable(text)}: expected the URL of a store, found a broker's log directory; "
                f"write {printable(folder)}"
            )
        if folder and url.startswith("file:///") and not os.path.isdir(folder):
            raise FileNotFoundError(
                errno.ENOENT, f"expected a store, found no folder{_near(url)}", shown_url(url)
            )
        return Source(SourceKind.STORE, url)
    if not os.path.lexists(text):
        raise FileNotFoundError(
            errno.ENOENT,
            f"expected a broker's log directory or a store URL, found nothing{_near_path(text)}",
            shown_url(text),
        )
    if os.path.isfile(os.path.join(text, CLUSTER_KEY)):
        return Source(SourceKind.STORE, "file://" + quote(os.path.realpath(text)))
    for folder in (text, os.path.join(text, KAFKA_FOLDER)):
        real = os.path.realpath(folder)
        if os.path.basename(real) == KAFKA_FOLDER and os.path.isdir(real):
            return Source(SourceKind.STORE, f"{KAFKA_SCHEME}file://{quote(real)}")
    if not _may_be_log_dir(text):
        raise ConfigError(
            f"{printable(text)}: expected a broker's log directory or a store, found neither a "
            f"partition nor {META_PROPERTIES} nor {CLUSTER_KEY}{_near_path(text)}"
        )
    return Source(SourceKind.LOG_DIR, text)


def _may_be_log_dir(path: str) -> bool:
    """Return whether to open the path as a log directory. Files and unreadable folders are opened,
    too, because the errors of a log directory also describe these cases."""
    try:
        names = os.listdir(path)
    except OSError:
        return True
    return any(shows_log_dir(name) or name.endswith(LOG_SUFFIX) for name in names)


def _near_path(path: str) -> str:
    return _near("file://" + quote(os.path.abspath(path)))


def _near(url: str) -> str:
    # Imported here, because most commands need neither the stores' modules nor threads.
    from tierlog.reader.nearby import describe_nearby

    told = describe_nearby(url)
    return f"; {told}" if told else ""


def local_path(url: str) -> str | None:
    """Return the folder of a store that is a local folder; None for any other store."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{printable(shown_url(url))}: not a store URL: {error}") from None
    return unquote(parts.path) if parts.scheme == "file" else None


def parse_topic(text: str) -> tuple[str, int | None]:
    """Parse ``TOPIC`` or ``TOPIC:PARTITION``. Raises ValueError, which says what is wrong with the
    text."""
    if ":" in text:
        return parse_topic_partition(text)
    return check_topic_name(text), None


def parse_topic_partition(text: str) -> tuple[str, int]:
    """Parse ``TOPIC:PARTITION``. Raises ValueError, which says what is wrong with the text."""
    topic, colon, number = text.rpartition(":")
    if not colon:
        name, dash, digits = text.rpartition("-")
        meant = f"; did you mean {name}:{digits}?" if dash and digits.isdecimal() else ""
        raise ValueError(f"expected TOPIC:PARTITION, found {printable(text)!r}{meant}")
    if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > _MAX_INT32:
        raise ValueError(f"expected a partition number after the colon, found {printable(text)!r}")
    return check_topic_name(topic), int(number)
