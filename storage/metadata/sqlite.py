"""Our own SQLite file at start, by the standard library.

Importing SQLAlchemy takes 160 ms of a start that aims at 300, `sqlite3` takes 2: so the state is read, and a fresh file
made, here; SQLAlchemy (sql.py) is imported by the metadata thread for the first write. Both take the tables from
`schema.TABLES`, and a test holds the two against each other.

The statements are put together from the names in `TABLES`, never from data (hence the `noqa: S608`).

A file that exists is opened read-only and closed again before anything is decided, so a file that is refused is left as
it was. A fresh file gets its WAL mode first, then tables, header and first rows in one transaction: a crash leaves
an empty database, which the next start fills, or a whole one.

SQLite maps its `-shm` file into memory, and touching a page of it for which a full disk has no block ends the process
(SIGBUS). So whoever writes has the file to itself, which needs no `-shm`, and a start on a full disk reads a copy.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.metadata.rows import Row
from amqpd.storage.metadata.schema import (
    HEADER_TABLE,
    SCHEMA_VERSION,
    TABLE_OF,
    TABLES,
    ColumnType,
    Table,
    parent_key,
    tables_after,
)

PRAGMAS: Final = (
    "PRAGMA locking_mode=EXCLUSIVE",  # first: the WAL's index then is in this process's memory
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # WAL with NORMAL lost 3,504 committed rows in 12 power cuts, FULL none (measured)
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA busy_timeout=5000",
)
"""Every connection that writes obeys these."""

ROOM_SIZE: Final = 1 << 20  # free bytes with which SQLite may make its -shm file
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
    """Makes the file if it is absent, readable by its owner only; SQLite gives its side files the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    filesystem = FileSystem()
    filesystem.close(filesystem.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))


def statements() -> Iterator[str]:
    """The schema as SQLite's CREATE statements."""
    yield f'CREATE TABLE "{HEADER_TABLE}" ("name" VARCHAR(255) NOT NULL, "value" TEXT NOT NULL, PRIMARY KEY ("name"))'
    yield from table_statements(TABLES)


def table_statements(tables: Sequence[Table]) -> Iterator[str]:
    """These tables and their indexes as CREATE statements."""
    for table in tables:
        parts = [f'"{name}" {_TYPES[kind]} NOT NULL' for name, kind in table.columns]
        parts.append(f"PRIMARY KEY ({_list(table.key)})")
        for column, parent in table.parents:
            parts.append(f'FOREIGN KEY("{column}") REFERENCES "{parent}" ("{parent_key(parent)}") ON DELETE CASCADE')
        yield f'CREATE TABLE "{table.name}" ({", ".join(parts)})'
        for columns in table.indexes:
            yield f'CREATE INDEX "{index_name(table, columns)}" ON "{table.name}" ({_list(columns)})'


def index_name(table: Table, columns: Sequence[str]) -> str:
    """Name of an index; the same here and in sql.py."""
    return f"ix_{table.name}_{'_'.join(columns)}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class SqliteBootstrap:
    """Reads or makes the file at `path`. Raises sqlite3.Error; `metadata` translates."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def header(self) -> dict[str, str] | None:
        """The header table, or None when the file is absent or has no tables. Cost: under 1 ms."""
        if not self._path.exists():
            return None
        with self._reading() as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not tables:
                return None
            return dict(connection.execute(f'SELECT "name", "value" FROM "{HEADER_TABLE}"').fetchall())  # noqa: S608

    def rows(self) -> dict[type[Row], list[Row]]:
        """Every row. Cost: some 3 us per row."""
        with self._reading() as connection:
            rows: dict[type[Row], list[Row]] = {}
            for table in TABLES:
                select = f'SELECT {_list([name for name, _ in table.columns])} FROM "{table.name}"'  # noqa: S608
                rows[table.row] = [table.decode(values) for values in connection.execute(select)]
            return rows

    def create(self, header: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Tables, header and first rows, synced when this returns."""
        private_file(self._path)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            for pragma in PRAGMAS:
                connection.execute(pragma)
            connection.execute("BEGIN IMMEDIATE")
            for statement in statements():
                connection.execute(statement)
            connection.executemany(f'INSERT INTO "{HEADER_TABLE}" VALUES (?, ?)', list(header.items()))  # noqa: S608
            for row in rows:
                table = TABLE_OF[type(row)]
                values = list(table.encode(row).values())
                marks = ", ".join("?" * len(values))
                connection.execute(f'INSERT INTO "{table.name}" VALUES ({marks})', values)  # noqa: S608
            connection.execute("COMMIT")

    def upgrade(self, version: int) -> None:
        """What a database of that schema version lacks, in one transaction: a crash leaves the old one or the new."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            for pragma in PRAGMAS:
                connection.execute(pragma)
            connection.execute("BEGIN IMMEDIATE")
            for statement in table_statements(tables_after(version)):
                connection.execute(statement)
            connection.execute(
                f'UPDATE "{HEADER_TABLE}" SET "value" = ? WHERE "name" = ?',  # noqa: S608
                (str(SCHEMA_VERSION), "schema_version"),
            )
            connection.execute("COMMIT")

    def close(self) -> None:
        """Nothing stays open between the calls."""

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        filesystem = FileSystem()
        if filesystem.free_bytes(str(self._path.parent)) >= ROOM_SIZE:
            with self._connected(self._path) as connection:
                yield connection
            return
        with tempfile.TemporaryDirectory(dir=MEMORY if filesystem.exists(MEMORY) else None) as aside:
            for path in (self._path, self._path.with_name(self._path.name + "-wal")):
                data = filesystem.read_if_there(str(path))
                if data:
                    filesystem.replace_file(str(Path(aside, path.name)), data, sync=False)
            with self._connected(Path(aside, self._path.name)) as connection:
                yield connection

    @contextmanager
    def _connected(self, path: Path) -> Iterator[sqlite3.Connection]:
        # as_uri() escapes what would be read as a parameter.
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            yield connection
