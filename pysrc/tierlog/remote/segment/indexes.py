"""The `.indexes` object: all indexes and metadata of one segment in one object.

All integers are big-endian. The object is written once and never changes.

| Position | Field | Type | Value |
|---|---|---|---|
| 0 | magic | 8 bytes | ``TIERIDX\\n`` |
| 8 | version | i16 | 2; 1 without section 8 |
| 10 | section count n | i16 | 1 to 64 |
| 12 | section table | n x 24 bytes | below |
| 12 + 24 n | header checksum | u32 | CRC-32C of bytes 0 to 12 + 24 n |
| 16 + 24 n | sections | | contiguous, in the order of the table, up to the end of the object |

One row of the section table:

| Position | Field | Type | Value |
|---|---|---|---|
| 0 | kind | i16 | below; each at most once |
| 2 | reserved | i16 | 0 |
| 4 | checksum | u32 | CRC-32C of the section |
| 8 | position | i64 | from the start of the object |
| 16 | size | i64 | may be 0 |

| Kind | Section | Content |
|---|---|---|
| 1 | segment metadata, always the first | JSON, see `description` |
| 2 | offset index | as Kafka's `.index` |
| 3 | time index | as Kafka's `.timeindex` |
| 4 | transaction index | as Kafka's `.txnindex`; empty when there are no aborted transactions |
| 5 | producer snapshot | as Kafka's `.snapshot` at the next segment's base offset |
| 6 | leader epochs | text of Kafka's leader-epoch-checkpoint, the lineage up to the end offset |
| 7 | remoteLogIndex | contiguous entries, no trailer |
| 8 | batch checksums | u32 each: the checksum field of the first batch, then of the batches that
    the offset index points at |

A reader skips unknown kinds. Header and metadata nearly always fit into the first 16 KiB, so
describing a segment takes one small range request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tierlog._core import crc32c
from tierlog.errors import CorruptDataError, TierlogError
from tierlog.remote.segment.description import SegmentDescription, decode_segment, encode_segment
from tierlog.remote.store.object_store import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "FIRST_READ_BYTES",
    "MAX_INDEXES_BYTES",
    "MAX_METADATA_BYTES",
    "IndexKind",
    "IndexesHeader",
    "IndexesTooLargeError",
    "Section",
    "encode_indexes",
    "read_indexes_header",
    "read_sections",
    "verify_indexes",
]

MAGIC = b"TIERIDX\n"
VERSION = 2
# Objects of version 1 have no batch checksums. Such objects were written by older versions of
# tierlog, or are built from the files of Kafka's own tier.
_VERSION_1 = 1
FIRST_READ_BYTES = 16 << 10
# Upper limit on the number of bytes that a reader has to load. Kafka limits one index file to 10
# MiB by default.
MAX_INDEXES_BYTES = 256 << 20
# Upper limit for the metadata section. It is low because parsed JSON takes about fifty times the
# memory of its text. The metadata of a segment with 60,000 leader epochs fits.
MAX_METADATA_BYTES = 4 << 20
_MAX_OTHER_BYTES = MAX_INDEXES_BYTES - MAX_METADATA_BYTES - FIRST_READ_BYTES
_MAX_SECTIONS = 64
_START = struct.Struct(">8shh")
_ROW = struct.Struct(">hhIqq")
_CHECKSUM = struct.Struct(">I")


class IndexKind(IntEnum):
    """The known sections, with their numbers in the table."""

    METADATA = 1
    OFFSET = 2
    TIME = 3
    TRANSACTION = 4
    PRODUCER_SNAPSHOT = 5
    LEADER_EPOCH = 6
    REMOTE_LOG = 7
    BATCH_CHECKSUM = 8


_OF_VERSION_1 = frozenset(IndexKind) - {IndexKind.METADATA, IndexKind.BATCH_CHECKSUM}


class Section(NamedTuple):
    """One row of the section table. Position and size are in bytes."""

    kind: int
    crc32c: int
    position: int
    size_bytes: int

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes

    @property
    def name(self) -> str:
        known = self.kind in IndexKind.__members__.values()
        return IndexKind(self.kind).name if known else f"section kind {self.kind}"


class IndexesTooLargeError(TierlogError):
    """The indexes of a segment are larger than a reader can load."""


def _require_fit(sections: Mapping[IndexKind, Buffer]) -> None:
    """Raise IndexesTooLargeError if the sections are too large, before memory is allocated for the
    object."""
    sizes = {kind: memoryview(data).nbytes for kind, data in sections.items()}
    size_bytes = sum(sizes.values())
    if size_bytes > _MAX_OTHER_BYTES:
        largest = max(sizes, key=lambda kind: sizes[kind])
        name = largest.name.lower().replace("_", " ")
        raise IndexesTooLargeError(
            f"the indexes take {size_bytes:,} bytes: expected at most "
            f"{_MAX_OTHER_BYTES:,} (the {name} alone takes "
            f"{sizes[largest]:,})"
        )


def encode_indexes(description: SegmentDescription, sections: Mapping[IndexKind, Buffer]) -> bytes:
    """Encode the object. `sections` holds the sections of every kind except METADATA, which this
    function encodes.

    If `sections` lacks BATCH_CHECKSUM, the object has version 1, and readers cannot distinguish its
    `.log` object from another object with the same size, offsets and timestamps. Raises ValueError
    when another section is missing or METADATA is given, and IndexesTooLargeError when the object
    would exceed `MAX_INDEXES_BYTES`.
    """
    has_checksums = IndexKind.BATCH_CHECKSUM in sections
    if sections.keys() - {IndexKind.BATCH_CHECKSUM} != _OF_VERSION_1:
        wrong = sorted(kind.name for kind in _OF_VERSION_1 ^ sections.keys())
        raise ValueError(
            f"{description.metadata.segment_id}: sections missing or unexpected: {wrong}"
        )
    _require_fit(sections)
    metadata = encode_segment(description)
    if len(metadata) > MAX_METADATA_BYTES:
        raise IndexesTooLargeError(
            f"the metadata take {len(metadata):,} bytes: expected at most {MAX_METADATA_BYTES:,}"
        )
    contents = [(IndexKind.METADATA, metadata)]
    contents += [(kind, bytes(sections[kind])) for kind in sorted(sections)]
    position = _START.size + _ROW.size * len(contents) + _CHECKSUM.size
    version = VERSION if has_checksums else _VERSION_1
    header = _START.pack(MAGIC, version, len(contents))
    for kind, data in contents:
        header += _ROW.pack(kind, 0, crc32c(data), position, len(data))
        position += len(data)
    return b"".join([header, _CHECKSUM.pack(crc32c(header)), *(data for _, data in contents)])


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexesHeader:
    """The verified section table of the object `path`."""

    path: str
    sections: tuple[Section, ...]

    @property
    def object_size_bytes(self) -> int:
        """Size of the object according to its header."""
        return self.sections[-1].end_position

    @classmethod
    def parse(
        cls, data: Buffer, *, path: str, object_size_bytes: int | None = None
    ) -> IndexesHeader:
        """Parse the header from `data`, the first bytes of an object. 16 KiB always contain the
        whole header.

        `object_size_bytes` is the size that the store reports, None when unknown. Raises
        CorruptDataError unless the header is valid and its sections fill the object exactly.
        """
        view = memoryview(data).cast("B")
        count = _section_count(view, path)
        table_end = _START.size + _ROW.size * count
        if len(view) < table_end + _CHECKSUM.size:
            raise _corrupt(path, len(view), "bad_length", f"{count} table rows", "end of object")
        (stored,) = _CHECKSUM.unpack_from(view, table_end)
        computed = crc32c(view[:table_end])
        if stored != computed:
            raise _corrupt(
                path, table_end, "bad_crc", f"header checksum {computed:#010x}", f"{stored:#010x}"
            )
        sections = _read_table(view, count, path)
        _check_table(sections, table_end + _CHECKSUM.size, object_size_bytes, path)
        return cls(path=path, sections=sections)

    def section(self, kind: IndexKind) -> Section:
        """Return the table row of the section `kind`; raise CorruptDataError when the object lacks
        it."""
        for section in self.sections:
            if section.kind == kind:
                return section
        raise _corrupt(self.path, _START.size, "missing_section", f"a section {kind.name}", "none")

    @property
    def kinds(self) -> tuple[IndexKind, ...]:
        """The kinds of sections in this version of the object; version 1 has no BATCH_CHECKSUM."""
        last = IndexKind.BATCH_CHECKSUM
        has_last = any(section.kind == last for section in self.sections)
        return tuple(kind for kind in IndexKind if has_last or kind is not last)

    def checked(self, kind: IndexKind, data: Buffer) -> memoryview:
        """Return `data`; raise CorruptDataError unless its size and checksum match the section
        `kind`."""
        return self._check_bytes(self.section(kind), data)

    def _check_bytes(self, section: Section, data: Buffer) -> memoryview:
        view = memoryview(data).cast("B")
        if len(view) != section.size_bytes:
            raise _corrupt(
                self.path,
                section.position,
                "bad_length",
                f"{section.size_bytes} bytes of {section.name}",
                f"{len(view)}",
            )
        computed = crc32c(view)
        if computed != section.crc32c:
            raise _corrupt(
                self.path,
                section.position,
                "bad_crc",
                f"{section.name} with checksum {section.crc32c:#010x}",
                f"{computed:#010x}",
            )
        return view

    def check_all(self, data: Buffer) -> None:
        """Compare the checksum of every section of the object `data`, including unknown sections.
        Raises CorruptDataError for a wrong checksum."""
        view = memoryview(data).cast("B")
        for section in self.sections:
            self._check_bytes(section, view[section.position : section.end_position])

    def read_section(self, kind: IndexKind, data: Buffer, data_position: int = 0) -> memoryview:
        """Return a verified section. `data` holds the object's bytes from `data_position` on."""
        section = self.section(kind)
        start = section.position - data_position
        if start < 0:
            raise ValueError(f"{kind.name} starts before byte {data_position}, the start of data")
        return self.checked(kind, memoryview(data).cast("B")[start : start + section.size_bytes])

    def description(self, metadata_section: Buffer) -> SegmentDescription:
        """Decode the metadata section; raise CorruptDataError when it is damaged."""
        view = self.checked(IndexKind.METADATA, metadata_section)
        position = self.section(IndexKind.METADATA).position
        return decode_segment(bytes(view), path=self.path, position=position)


def verify_indexes(data: Buffer, *, path: str) -> tuple[IndexesHeader, SegmentDescription]:
    """Compare every checksum of an `.indexes` object; return its header and description."""
    view = memoryview(data).cast("B")
    header = IndexesHeader.parse(view, path=path, object_size_bytes=len(view))
    header.check_all(view)
    section = header.section(IndexKind.METADATA)
    text = bytes(view[section.position : section.end_position])
    return header, decode_segment(text, path=path, position=section.position)


def read_indexes_header(
    store: ObjectStore, key: str, object_size_bytes: int | None = None
) -> tuple[IndexesHeader, Buffer]:
    """Return the header and the first 16 KiB of an `.indexes` object. Makes one request.

    `object_size_bytes` comes from a listing; it is None or -1 when unknown."""
    path = f"{store.url}/{key}"
    if object_size_bytes == -1:
        object_size_bytes = None
    if object_size_bytes == 0:
        raise _corrupt(path, 0, "bad_length", f"at least {_START.size} bytes", "an empty object")
    first = store.get_range(key, 0, FIRST_READ_BYTES)
    return IndexesHeader.parse(first, path=path, object_size_bytes=object_size_bytes), first


def read_sections(
    store: ObjectStore, key: str, header: IndexesHeader, first: Buffer, kinds: Iterable[IndexKind]
) -> dict[IndexKind, memoryview]:
    """Return the sections `kinds`, verified. Makes at most one request, for bytes after `first`."""
    first_bytes = memoryview(first).nbytes
    requested = {kind: header.section(kind) for kind in kinds}
    later = {
        kind: section
        for kind, section in requested.items()
        if section.size_bytes and section.end_position > first_bytes
    }
    rest: Buffer = b""
    rest_position = min((section.position for section in later.values()), default=0)
    if later:
        end_position = max(section.end_position for section in later.values())
        rest = store.get_range(key, rest_position, end_position - rest_position)
    return {
        kind: header.read_section(kind, rest, rest_position)
        if kind in later
        else header.read_section(kind, first)
        for kind in requested
    }


def _section_count(view: memoryview, path: str) -> int:
    if len(view) < _START.size:
        raise _corrupt(path, 0, "bad_length", f"at least {_START.size} bytes", f"{len(view)}")
    magic, version, count = _START.unpack_from(view)
    if magic != MAGIC:
        raise _corrupt(path, 0, "unknown_magic", repr(MAGIC), repr(magic))
    if version not in (_VERSION_1, VERSION):
        expected = f"version {_VERSION_1} or {VERSION}"
        raise _corrupt(path, 8, "unknown_version", expected, f"version {version}")
    if not 1 <= count <= _MAX_SECTIONS:
        raise _corrupt(path, 10, "bad_header", f"1 to {_MAX_SECTIONS} sections", f"{count}")
    return int(count)


def _read_table(view: memoryview, count: int, path: str) -> tuple[Section, ...]:
    sections = []
    for index in range(count):
        row_position = _START.size + _ROW.size * index
        kind, reserved, checksum, position, size_bytes = _ROW.unpack_from(view, row_position)
        if reserved != 0:
            raise _corrupt(path, row_position + 2, "bad_header", "0", f"{reserved}")
        if size_bytes < 0:
            raise _corrupt(path, row_position + 16, "bad_length", "a size", f"{size_bytes}")
        sections.append(Section(kind, checksum, position, size_bytes))
    return tuple(sections)


def _check_table(
    sections: tuple[Section, ...], end_position: int, object_size_bytes: int | None, path: str
) -> None:
    """Check that the sections are contiguous from the header to the end of the object."""
    kinds = [section.kind for section in sections]
    if kinds[0] != IndexKind.METADATA or len(set(kinds)) != len(kinds):
        expected = "the metadata section first, each kind once"
        raise _corrupt(path, _START.size, "bad_header", expected, f"kinds {kinds}")
    limit = MAX_INDEXES_BYTES
    if object_size_bytes is not None:
        limit = min(limit, object_size_bytes)
    if sections[0].size_bytes > MAX_METADATA_BYTES:
        expected = f"a metadata section of at most {MAX_METADATA_BYTES} bytes"
        found = f"{sections[0].size_bytes}"
        raise _corrupt(path, _START.size + 16, "bad_length", expected, found)
    for index, section in enumerate(sections):
        row_position = _START.size + _ROW.size * index
        if section.position != end_position:
            raise _corrupt(
                path,
                row_position + 8,
                "bad_header",
                f"section {section.kind} at {end_position}",
                f"{section.position}",
            )
        end_position = section.end_position
        if end_position > limit:
            raise _corrupt(
                path,
                row_position + 16,
                "bad_length",
                f"section {section.kind} to end by byte {limit}",
                f"{section.size_bytes} bytes from {section.position}",
            )
    if object_size_bytes is not None and end_position != object_size_bytes:
        raise _corrupt(
            path, end_position, "bad_length", "end of object", f"{object_size_bytes} bytes in all"
        )


def _corrupt(path: str, position: int, reason: str, expected: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        reason=reason,
        path=path,
        position=position,
        expected=expected,
        found=found,
        hint="rebuild the indexes from the .log object",
    )
