"""An SQLite file of the state directory. The file is locked for one process and verified before it
is used.

Each row of a table ends with a checksum of its values (`with_checksum`). Commits are synchronous
(WAL, ``synchronous=FULL``), so a committed change survives a power cut. The process holds a lock on
``<file>.lock``, which the kernel releases when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tierlog import _core
from tierlog.errors import CorruptDataError, RemoteMetadataError
from tierlog.remote.file_io import make_durable_folder, sync_folder

__all__ = ["Database", "DatabaseSchema", "with_checksum"]

# Size and magic of SQLite's file header, and the positions of the header fields that are checked
# here.
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE_POSITION = 16
_PAGE_COUNT_POSITION = 28
_USER_VERSION_POSITION = 60
_APPLICATION_ID_POSITION = 68
_ROWS = 1_024
# Errors that leave the file unchanged, so that the next change may be tried.
_HARMLESS = {"SQLITE_FULL", "SQLITE_BUSY", "SQLITE_NOMEM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSchema:
    """The tables of a kind of file.

    ``versions`` maps each version that can be read to its SQL statements. ``upgrade`` rewrites a
    file of an earlier version as the present ``version``, within a transaction; it raises TypeError
    or ValueError for impossible rows. ``rows`` names what the rows describe, for error messages.
    ``remedy`` tells the user what to do about a damaged file.
    """

    application_id: int
    version: int
    versions: Mapping[int, str]
    upgrade: Callable[[sqlite3.Connection], None] | None = None
    rows: str
    remedy: str

    @property
    def statements(self) -> list[str]:
        """The SQL statements that create the tables of the present version."""
        return [text for text in self.versions[self.version].split(";") if text.strip()]


def with_checksum(*values: object) -> tuple[object, ...]:
    """Return the row of `values` and their checksum."""
    return *values, _core.row_checksum(values)


class Database:
    """The SQLite file `path` in the present schema. A missing file is created. Not thread-safe.

    Raises RemoteMetadataError when another process has the file open or the file cannot be opened,
    and CorruptDataError when the file is no database with this schema. A child process must not use
    the object after a fork.
    """

    def __init__(self, path: str, schema: DatabaseSchema) -> None:
        self.path = path
        self._schema = schema
        self.failure: str | None = None
        self._process_id = os.getpid()
        make_durable_folder(os.path.dirname(path))
        with ExitStack() as undo:
            self._lock_descriptor = _lock_file(path)
            undo.callback(os.close, self._lock_descriptor)
            self._check_size()
            try:
                self.connection = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False
                )
                undo.callback(self.connection.close)
                self._open_schema()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._to_error(error) from error
            undo.pop_all()

    def close(self) -> None:
        self.connection.close()
        os.close(self._lock_descriptor)

    def rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `query`. Raises CorruptDataError when the file is damaged, and
        RemoteMetadataError for any other failure."""
        self._check_process()
        try:
            for row in self.connection.execute(query, parameters):  # noqa: UP028
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._to_error(error) from error

    def checked_rows(
        self, query: str, *parameters: object, subject: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `query`, which selects all columns of a table. `subject` names the
        table in errors. Raises the same errors as `rows`, and CorruptDataError for a row with a
        wrong checksum."""
        self._check_process()
        try:
            cursor = self.connection.execute(query, parameters)
            while rows := cursor.fetchmany(_ROWS):
                if (bad := _core.first_bad_row(rows)) is not None:
                    raise self._checksum_error(subject, cursor, rows[bad])
                yield from rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._to_error(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit either all changes of the body, or none of them. After an I/O error no more
        changes are accepted, because the state on disk is unknown until the file is opened
        again."""
        self._check_process()
        if self.failure is not None:
            raise RemoteMetadataError(
                f"{self.path}: changes are refused after {self.failure}; open it again"
            )
        try:
            with self._atomic_transaction():
                yield self.connection
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", None) not in _HARMLESS:
                self.failure = str(error)
            raise RemoteMetadataError(f"{self.path}: change not stored: {error}") from error

    def bad_row(self, found: object) -> CorruptDataError:
        """Return the error for a row with impossible values."""
        return self._corrupt_error("bad_row", f"rows that describe {self._schema.rows}", str(found))

    # -- internals

    def _checksum_error(
        self, subject: str, cursor: sqlite3.Cursor, row: tuple[Any, ...]
    ) -> CorruptDataError:
        names = [column[0] for column in cursor.description]
        key = ", ".join(
            f"{name} {value!r:.40}" for name, value in zip(names[:3], row[:3], strict=True)
        )
        try:
            expected = f"checksum {_core.row_checksum(row[:-1])} of the values"
        except (TypeError, OverflowError):
            expected = "integers, text, blobs and nulls"
        return self._corrupt_error(
            "bad_row_checksum", expected, f"{row[-1]!r:.40} in {subject}, row with {key}"
        )

    def _open_schema(self) -> None:
        database = self.connection
        # Expressions in the schema of an untrusted file must not run as code.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        version = self._check_version()
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if version == 0:
            with self._atomic_transaction():
                for statement in self._schema.statements:
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {self._schema.application_id}")
                database.execute(f"PRAGMA user_version = {self._schema.version}")
        elif version != self._schema.version and self._schema.upgrade is not None:
            try:
                with self._atomic_transaction():
                    self._schema.upgrade(database)
            except (TypeError, ValueError) as error:
                raise self.bad_row(error) from None
        # SQLite ignores an error when it syncs the name of its write-ahead log, so sync the folder
        # here. The log exists by now, and every later commit is in it.
        sync_folder(os.path.dirname(self.path))

    def _check_version(self) -> int:
        """Check and return the version of the schema; 0 for an empty file."""
        found = self._schema_objects()
        application_id = self._read_pragma("application_id")
        version = self._read_pragma("user_version")
        # Version and tables were written in one commit, so a file with a version but no tables is
        # damaged.
        expected_id, versions = self._schema.application_id, self._schema.versions
        if not found and version == 0 and application_id in (0, expected_id):
            return 0
        if application_id != expected_id:
            raise self._corrupt_error(
                "unknown_version",
                f"application_id {expected_id}",
                f"application_id {application_id}",
                position=_APPLICATION_ID_POSITION,
                hint="the file belongs to another program; choose another file",
            )
        if version not in versions:
            raise self._corrupt_error(
                "unknown_version",
                f"user_version {' or '.join(map(str, versions))}",
                f"user_version {version}",
                position=_USER_VERSION_POSITION,
                hint=f"use the version of tierlog that wrote it, or {self._schema.remedy}",
            )
        expected = {_one_line(text) for text in versions[version].split(";") if text.strip()}
        for text in sorted(found ^ expected):
            is_extra = text in found
            raise self._corrupt_error(
                "bad_schema",
                "the tables of schema version " + str(version),
                f"{'also' if is_extra else 'not'} {text[:100]}",
            )
        return version

    def _schema_objects(self) -> set[str]:
        """Return the SQL of every table, index, trigger and view that SQLite did not create
        itself."""
        rows = self.connection.execute("SELECT type, name, sql FROM sqlite_schema")
        return {
            _one_line(str(sql))
            for kind, name, sql in rows
            if not (kind == "index" and sql is None)
            and not (kind == "table" and str(name).startswith("sqlite_stat"))
        }

    def _read_pragma(self, pragma: str) -> int:
        (found,) = self.connection.execute(f"PRAGMA {pragma}").fetchone()
        return int(found)

    def _check_size(self) -> None:
        """Detect a truncated file now, when it is opened, instead of when a query needs the missing
        part."""
        wal = f"{self.path}-wal"
        if not os.path.isfile(self.path) or (os.path.exists(wal) and os.path.getsize(wal)):
            return
        with open(self.path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return
        if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
            # SQLite would treat a very short file as empty, and overwrite it.
            raise self._corrupt_error("bad_database", "an SQLite database", f"{header[:16]!r}")
        if header[24:28] != header[92:96]:
            # The file was written by a version of SQLite that does not maintain the page count.
            return
        page_bytes = int.from_bytes(header[_PAGE_SIZE_POSITION : _PAGE_SIZE_POSITION + 2], "big")
        pages = int.from_bytes(header[_PAGE_COUNT_POSITION : _PAGE_COUNT_POSITION + 4], "big")
        expected = pages * (65_536 if page_bytes == 1 else page_bytes)
        if size_bytes < expected:
            raise self._corrupt_error(
                "truncated", f"{expected} bytes", f"{size_bytes} bytes", position=size_bytes
            )

    @contextmanager
    def _atomic_transaction(self) -> Iterator[None]:
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
            raise RemoteMetadataError(
                f"{self.path}: opened before the fork of this process; open it in the child"
            )

    def _to_error(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        """Return a CorruptDataError when the file is damaged, else a RemoteMetadataError (for
        example no access, no space). SQLite's message quotes a damaged schema, and may then be
        invalid text."""
        # An error without an error code comes from the sqlite3 module, which found invalid text.
        has_code = getattr(error, "sqlite_errorcode", None) is not None
        if isinstance(error, sqlite3.OperationalError) and has_code:
            return RemoteMetadataError(f"{self.path}: cannot open the database: {error}")
        return self._corrupt_error("bad_database", "an SQLite database", str(error))

    def _corrupt_error(
        self, reason: str, expected: str, found: str, *, position: int = 0, hint: str | None = None
    ) -> CorruptDataError:
        return CorruptDataError(
            reason=reason,
            path=self.path,
            position=position,
            expected=expected,
            found=found,
            hint=hint or self._schema.remedy,
        )


def _one_line(statement: str) -> str:
    return " ".join(statement.split())


def _lock_file(path: str) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise RemoteMetadataError(
            f"{path}: in use by another process (lock on {path}.lock); stop that process or give "
            "each process its own file"
        ) from None
    return descriptor
