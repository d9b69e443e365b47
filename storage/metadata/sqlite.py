"""The metadata in our own SQLite file, by the standard library. Statements are made of names in `schema.TABLES`.

A start opens an existing file read-only and closes it before any decision, so a refused file remains unchanged. A new
file gets its WAL mode first, then tables, header and first rows in one transaction. A crash leaves an empty database,
which the next start fills, or a complete one.

SQLite maps its `-shm` file into memory. If a full disk has no block for a page of it, access ends the process
(SIGBUS). So writers use exclusive mode, which needs no `-shm`, and a start on a full disk reads a copy.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.metadata.rows import BindingRow, Change, Put, Row
from amqpd.storage.metadata.schema import (
    HEADER_TABLE,
    SCHEMA_VERSION,
    TABLE_OF,
    TABLES,
    ColumnType,
    Table,
    group_changes,
    parent_key,
    tables_after,
)

PRAGMAS: Final = (
    "PRAGMA locking_mode=EXCLUSIVE",  # first: then the WAL index is in process memory
    "PRAGMA journal_mode=WAL",
    # With NORMAL, 12 power cuts lost 3,504 committed rows; with FULL none (measured).
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA busy_timeout=5000",
)
"""Settings of every connection that writes."""

ROOM_SIZE: Final = 1 << 20  # free bytes that SQLite needs for its -shm file
MEMORY: Final = "/dev/shm"  # noqa: S108

_TYPES: Final = {
    ColumnType.NAME: "VARCHAR(255)",
    ColumnType.TEXT: "TEXT",
    ColumnType.BYTES: "BLOB",
    ColumnType.BOOL: "INTEGER",
    ColumnType.INT: "INTEGER",
    ColumnType.WORDS: "TEXT",
    ColumnType.KEY: "BLOB",
    ColumnType.LONG: "BIGINT",
}


def private_file(path: Path) -> None:
    """Create the file with mode 0600 if it is missing. SQLite gives its other files the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    filesystem = FileSystem()
    filesystem.close(filesystem.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))


def table_statements(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        parts = [f'"{name}" {_TYPES[kind]} NOT NULL' for name, kind in table.columns]
        parts.append(f"PRIMARY KEY ({_list(table.key)})")
        for column, parent in table.parents:
            parts.append(f'FOREIGN KEY("{column}") REFERENCES "{parent}" ("{parent_key(parent)}") ON DELETE CASCADE')
        yield f'CREATE TABLE "{table.name}" ({", ".join(parts)})'
        for columns in table.indexes:
            yield f'CREATE INDEX "{index_name(table, columns)}" ON "{table.name}" ({_list(columns)})'


def put_statement(table: Table) -> str:
    columns = [name for name, _ in table.columns]
    values = ", ".join("?" * len(columns))
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in table.key)
    insert = f'INSERT INTO "{table.name}" ({_list(columns)}) VALUES ({values})'  # noqa: S608
    return f"{insert} ON CONFLICT ({_list(table.key)}) DO UPDATE SET {changes}"


def delete_statement(table: Table) -> str:
    return f'DELETE FROM "{table.name}" WHERE ({_list(table.key)}) = ({", ".join("?" * len(table.key))})'  # noqa: S608


def index_name(table: Table, columns: Sequence[str]) -> str:
    """Return the name of an index, which is the same in sql.py."""
    return f"ix_{table.name}_{'_'.join(columns)}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


_BINDINGS: Final = TABLE_OF[BindingRow].name
# Two statements: with OR in one, SQLite would read all bindings of the vhost.
DELETE_BY_DESTINATION: Final = (
    f'DELETE FROM "{_BINDINGS}" '  # noqa: S608
    'WHERE "vhost" = :vhost AND "destination" = :name AND "destination_type" = :kind'
)
DELETE_BY_SOURCE: Final = f'DELETE FROM "{_BINDINGS}" WHERE "vhost" = :vhost AND "source" = :name'  # noqa: S608
_PUT: Final = {table.name: put_statement(table) for table in TABLES}
_DELETE: Final = {table.name: delete_statement(table) for table in TABLES}


class SqliteTables:
    """The metadata in the file at `path`. Raises sqlite3.Error, which store.py translates.

    The thread that calls `write`, `checkpoint` or `copy_to` first must call all of them, and `close`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: sqlite3.Connection | None = None

    def header(self) -> dict[str, str] | None:
        """Return the header table, None if the file is missing or has no tables. Cost: under 1 ms."""
        if not self._path.exists():
            return None
        with self._reading() as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not tables:
                return None
            return dict(connection.execute(f'SELECT "name", "value" FROM "{HEADER_TABLE}"').fetchall())  # noqa: S608

    def rows(self) -> dict[type[Row], list[Row]]:
        """Return every row. Cost: about 3 us per row."""
        with self._reading() as connection:
            rows: dict[type[Row], list[Row]] = {}
            for table in TABLES:
                select = f'SELECT {_list([name for name, _ in table.columns])} FROM "{table.name}"'  # noqa: S608
                rows[table.row] = [table.decode(values) for values in connection.execute(select)]
            return rows

    def create(self, header: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Create tables, header and first rows, synced at return."""
        private_file(self._path)
        with closing(self._open()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            columns = '("name" VARCHAR(255) NOT NULL, "value" TEXT NOT NULL, PRIMARY KEY ("name"))'
            connection.execute(f'CREATE TABLE "{HEADER_TABLE}" {columns}')
            for statement in table_statements(TABLES):
                connection.execute(statement)
            connection.executemany(f'INSERT INTO "{HEADER_TABLE}" VALUES (?, ?)', list(header.items()))  # noqa: S608
            _apply(connection, [Put(row) for row in rows])

    def upgrade(self, version: int) -> None:
        """Add what a database of this schema version lacks, in one transaction."""
        with closing(self._open()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in table_statements(tables_after(version)):
                connection.execute(statement)
            connection.execute(
                f'UPDATE "{HEADER_TABLE}" SET "value" = ? WHERE "name" = ?',  # noqa: S608
                (str(SCHEMA_VERSION), "schema_version"),
            )

    def write(self, changes: Iterable[Change]) -> None:
        """Apply `changes` in order in one transaction, synced at return. Cost: a sync, and about 3 us per row."""
        connection = self._connected_writer()
        try:
            with connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                _apply(connection, changes)
        finally:
            if connection.in_transaction:  # not even the rollback was possible
                self.close()

    def checkpoint(self) -> None:
        """Move the WAL into the file. Raises: OSError if another program uses it."""
        busy, _, _ = self._connected_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise OSError(errno.EBUSY, "another program uses the metadata's log")

    def copy_to(self, path: Path) -> None:
        """Copy the database consistently."""
        self._connected_writer().execute("VACUUM INTO ?", (str(path),))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _connected_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            for pragma in PRAGMAS:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._writer is not None:  # its lock is exclusive
            yield self._writer
            return
        filesystem = FileSystem()
        if filesystem.free_bytes(str(self._path.parent)) >= ROOM_SIZE:
            with self._connected(self._path) as connection:
                yield connection
            return
        with tempfile.TemporaryDirectory(dir=MEMORY if filesystem.exists(MEMORY) else None) as temporary_directory:
            for path in (self._path, self._path.with_name(self._path.name + "-wal")):
                data = filesystem.read_optional(str(path))
                if data:
                    filesystem.replace_file(str(Path(temporary_directory, path.name)), data, sync=False)
            with self._connected(Path(temporary_directory, self._path.name)) as connection:
                yield connection

    @contextmanager
    def _connected(self, path: Path) -> Iterator[sqlite3.Connection]:
        # as_uri() escapes characters that would begin a parameter.
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            yield connection


def _apply(connection: sqlite3.Connection, changes: Iterable[Change]) -> None:
    for group in group_changes(changes):
        if group.unbound:
            connection.executemany(DELETE_BY_DESTINATION, [each._asdict() for each in group.unbound])
            exchanges = [each._asdict() for each in group.unbound if each.kind == "exchange"]
            connection.executemany(DELETE_BY_SOURCE, exchanges)
        for table in TABLES:  # parents first
            if table.name in group.deleted:
                encoded = [table.encode(row) for row in group.deleted[table.name]]
                connection.executemany(_DELETE[table.name], [[row[name] for name in table.key] for row in encoded])
            if table.name in group.put:
                rows = [list(table.encode(row).values()) for row in group.put[table.name]]
                connection.executemany(_PUT[table.name], rows)
