"""The file behind the SQLite metadata manager: one process at a time, checked before it is used.

Commits are synchronous (WAL, ``synchronous=FULL``): what was committed survives a power cut. The
process holds a lock on ``<file>.lock``, which ends with it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tierlog import _core
from tierlog.errors import CorruptDataError, RemoteMetadataError
from tierlog.remote.metadata.schema import (
    APPLICATION_ID,
    SCHEMA,
    SCHEMA_V2,
    SCHEMA_VERSION,
    add_checksums,
)

__all__ = ["MetadataDatabase"]

_REBUILD = "move the file away and rebuild the metadata from the bucket"
# SQLite's own file header, and where it keeps what is looked at here.
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE_POSITION = 16
_PAGE_COUNT_POSITION = 28
_USER_VERSION_POSITION = 60
_APPLICATION_ID_POSITION = 68
_SCHEMAS = {2: SCHEMA_V2, SCHEMA_VERSION: SCHEMA}
_ROWS = 1_024
# After these the file is as it was, so the next change may be tried.
_HARMLESS = {"SQLITE_FULL", "SQLITE_BUSY", "SQLITE_NOMEM"}


class MetadataDatabase:
    """The SQLite file `path`, created if missing, in the present schema.

    RemoteMetadataError when another process has it open or it cannot be opened, CorruptDataError
    when it is not such a database. Not to be used in a child after a fork. Not thread-safe.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: str | None = None
        self._process_id = os.getpid()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with ExitStack() as undo:
            self._lock_descriptor = _take_lock(path)
            undo.callback(os.close, self._lock_descriptor)
            self._check_size()
            try:
                self.connection = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False
                )
                undo.callback(self.connection.close)
                self._prepare()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._unreadable(error) from error
            undo.pop_all()

    def close(self) -> None:
        self.connection.close()
        os.close(self._lock_descriptor)

    def rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """What `query` finds. CorruptDataError for damage, RemoteMetadataError when it fails."""
        self._check_process()
        try:
            for row in self.connection.execute(query, parameters):  # noqa: UP028
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def checked_rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """What `query` finds, whole rows of a table. Raises as `rows`, CorruptDataError also for a
        row that is not as it was written."""
        self._check_process()
        try:
            cursor = self.connection.execute(query, parameters)
            while rows := cursor.fetchmany(_ROWS):
                if (bad := _core.first_bad_row(rows)) is not None:
                    raise self._bad_checksum(cursor, rows[bad])
                yield from rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. After an input or output error nothing more is written, since
        nobody knows then what the disk holds (only a fresh start reads it back)."""
        self._check_process()
        if self.failure is not None:
            raise RemoteMetadataError(
                f"{self.path}: closed for changes after {self.failure}; open it again"
            )
        try:
            with self._all_or_nothing():
                yield self.connection
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", None) not in _HARMLESS:
                self.failure = str(error)
            raise RemoteMetadataError(f"{self.path}: change not stored: {error}") from error

    def bad_row(self, found: object) -> CorruptDataError:
        """A row whose values cannot be."""
        return self._corrupt("bad_row", "rows that describe segments", str(found))

    # -- inside

    def _bad_checksum(self, cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> CorruptDataError:
        names = [column[0] for column in cursor.description]
        key = ", ".join(
            f"{name} {value!r:.40}" for name, value in zip(names[:3], row[:3], strict=True)
        )
        try:
            expected = f"checksum {_core.row_checksum(row[:-1])} of the values"
        except (TypeError, OverflowError):
            expected = "integers, text, blobs and nulls"
        return self._corrupt("bad_row_checksum", expected, f"{row[-1]!r:.40} in the row of {key}")

    def _prepare(self) -> None:
        database = self.connection
        # What stands in the file must not run as code with our rights.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        version = self._checked_version()
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if version == 0:
            with self._all_or_nothing():
                for statement in filter(str.strip, SCHEMA.split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            _sync_folder(os.path.dirname(self.path))
        elif version != SCHEMA_VERSION:
            try:
                with self._all_or_nothing():
                    add_checksums(database)
            except (TypeError, ValueError) as error:
                raise self.bad_row(error) from None

    def _checked_version(self) -> int:
        """The schema's version, 0 for an empty file."""
        found = self._schema_objects()
        application_id = self._number("application_id")
        version = self._number("user_version")
        # The version is written with the tables: a file with the one only has lost the others.
        if not found and version == 0 and application_id in (0, APPLICATION_ID):
            return 0
        if application_id != APPLICATION_ID:
            raise self._corrupt(
                "unknown_version",
                f"application_id {APPLICATION_ID}",
                f"application_id {application_id}",
                position=_APPLICATION_ID_POSITION,
                hint="somebody else's database; choose another file",
            )
        if version not in _SCHEMAS:
            raise self._corrupt(
                "unknown_version",
                f"user_version {' or '.join(map(str, _SCHEMAS))}",
                f"user_version {version}",
                position=_USER_VERSION_POSITION,
                hint=f"use the version of tierlog that wrote it, or {_REBUILD}",
            )
        expected = {_one_line(text) for text in _SCHEMAS[version].split(";") if text.strip()}
        for text in sorted(found ^ expected):
            there = text in found
            raise self._corrupt(
                "bad_schema",
                "the tables of schema version " + str(version),
                f"{'also' if there else 'not'} {text[:100]}",
            )
        return version

    def _schema_objects(self) -> set[str]:
        """How every table, index, trigger and view was made, but for SQLite's own."""
        rows = self.connection.execute("SELECT type, name, sql FROM sqlite_schema")
        return {
            _one_line(str(sql))
            for kind, name, sql in rows
            if not (kind == "index" and sql is None)
            and not (kind == "table" and str(name).startswith("sqlite_stat"))
        }

    def _number(self, pragma: str) -> int:
        (found,) = self.connection.execute(f"PRAGMA {pragma}").fetchone()
        return int(found)

    def _check_size(self) -> None:
        """A file that lost its end is found here, not when what stood there is first asked for."""
        wal = f"{self.path}-wal"
        if not os.path.isfile(self.path) or (os.path.exists(wal) and os.path.getsize(wal)):
            return
        with open(self.path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return
        if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
            # A short one SQLite would take for an empty one, and write over it.
            raise self._corrupt("bad_database", "an SQLite database", f"{header[:16]!r}")
        if header[24:28] != header[92:96]:
            # Written by a version of SQLite that does not keep the count.
            return
        page_bytes = int.from_bytes(header[_PAGE_SIZE_POSITION : _PAGE_SIZE_POSITION + 2], "big")
        pages = int.from_bytes(header[_PAGE_COUNT_POSITION : _PAGE_COUNT_POSITION + 4], "big")
        expected = pages * (65_536 if page_bytes == 1 else page_bytes)
        if size_bytes < expected:
            raise self._corrupt(
                "truncated", f"{expected} bytes", f"{size_bytes} bytes", position=size_bytes
            )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise RemoteMetadataError(f"{self.path}: opened before the fork of this process")

    def _unreadable(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        """Damage is CorruptDataError; anything else (no access, no space) is worth a new try. Where
        damage is in the schema, SQLite's own message quotes it, which need not be text."""
        # Text that is none is found by the sqlite3 module itself, which gives no code.
        has_code = getattr(error, "sqlite_errorcode", None) is not None
        if isinstance(error, sqlite3.OperationalError) and has_code:
            return RemoteMetadataError(f"{self.path}: cannot open the metadata: {error}")
        return self._corrupt("bad_database", "an SQLite database", str(error))

    def _corrupt(
        self, reason: str, expected: str, found: str, *, position: int = 0, hint: str = _REBUILD
    ) -> CorruptDataError:
        return CorruptDataError(
            reason=reason,
            path=self.path,
            position=position,
            expected=expected,
            found=found,
            hint=hint,
        )


def _one_line(statement: str) -> str:
    return " ".join(statement.split())


def _take_lock(path: str) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RemoteMetadataError(
            f"{path}: in use by another process (lock on {path}.lock); stop that one or give "
            "each its own file"
        ) from None
    return descriptor


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
