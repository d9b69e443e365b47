"""The metadata tables in SQLAlchemy Core, for the database of `metadata.url`.

SQLite and PostgreSQL write rows by INSERT ... ON CONFLICT DO UPDATE, many rows of a table per executemany (5 us per
row). Other databases get UPDATE or INSERT after a SELECT.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite

from amqpd.storage.metadata.rows import BindingRow, Change, Put, Row
from amqpd.storage.metadata.schema import (
    HEADER_TABLE,
    NAME_LENGTH,
    SCHEMA_VERSION,
    TABLE_OF,
    TABLES,
    ColumnType,
    Plain,
    Table,
    group_changes,
    parent_key,
    tables_after,
)
from amqpd.storage.metadata.sqlite import PRAGMAS, index_name, private_file

_TYPES: Final[dict[ColumnType, sa.types.TypeEngine[Any]]] = {
    ColumnType.NAME: sa.String(NAME_LENGTH),
    ColumnType.TEXT: sa.Text(),
    ColumnType.BYTES: sa.LargeBinary(),
    ColumnType.BOOL: sa.Integer(),
    ColumnType.INT: sa.Integer(),
    ColumnType.WORDS: sa.Text(),
    ColumnType.KEY: sa.LargeBinary(),
    ColumnType.LONG: sa.BigInteger(),
}

_BINDINGS: Final = TABLE_OF[BindingRow].name


def core_schema() -> sa.MetaData:
    """Return `schema.TABLES` as SQLAlchemy tables."""
    schema = sa.MetaData()
    sa.Table(
        HEADER_TABLE,
        schema,
        sa.Column("name", sa.String(NAME_LENGTH), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    for table in TABLES:
        sa.Table(
            table.name,
            schema,
            *(
                sa.Column(name, _TYPES[kind], primary_key=name in table.key, nullable=False, autoincrement=False)
                for name, kind in table.columns
            ),
            *(
                sa.ForeignKeyConstraint([column], [f"{parent}.{parent_key(parent)}"], ondelete="CASCADE")
                for column, parent in table.parents
            ),
            *(sa.Index(index_name(table, columns), *columns) for columns in table.indexes),
        )
    return schema


class SqlAlchemyTables:
    """The metadata in one SQLAlchemy engine, used by one thread at a time.

    Raises sqlalchemy.exc.SQLAlchemyError, which store.py translates.

    Args:
        url: an SQLAlchemy URL.
    """

    def __init__(self, url: str) -> None:
        address = sa.make_url(url)
        # pool_pre_ping detects a connection dropped by the server before a group is written.
        self._engine = sa.create_engine(address, pool_pre_ping=True, hide_parameters=True)
        self._dialect = self._engine.dialect.name
        if self._dialect == "sqlite":
            event.listen(self._engine, "connect", _sqlite_connected)
            event.listen(self._engine, "begin", _sqlite_begin)
            if address.database and address.database != ":memory:":
                private_file(Path(address.database))
        self._schema = core_schema()
        self._puts = {table.name: self._put_statement(table) for table in TABLES}
        self._deletes = {table.name: self._delete_statement(table) for table in TABLES}
        bindings = self._schema.tables[_BINDINGS]
        name: sa.BindParameter[str] = sa.bindparam("key_name")
        of_vhost = bindings.delete().where(bindings.c.vhost == sa.bindparam("key_vhost"))
        self._delete_by_source = of_vhost.where(bindings.c.source == name)
        self._delete_by_destination = of_vhost.where(
            bindings.c.destination == name, bindings.c.destination_type == sa.bindparam("key_kind")
        )

    def header(self) -> dict[str, str] | None:
        """Return the header table, None if it does not exist."""
        table = self._schema.tables[HEADER_TABLE]
        with self._engine.connect() as connection:
            if not sa.inspect(connection).has_table(HEADER_TABLE):
                return None
            return {row.name: row.value for row in connection.execute(sa.select(table.c.name, table.c.value))}

    def rows(self) -> dict[type[Row], list[Row]]:
        with self._engine.connect() as connection:
            return {
                table.row: [
                    table.decode(tuple(values))
                    for values in connection.execute(sa.select(self._schema.tables[table.name]))
                ]
                for table in TABLES
            }

    def create(self, header: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Create tables, header and first rows; in one transaction if the database supports it."""
        with self._engine.begin() as connection:
            self._schema.create_all(connection)
            table = self._schema.tables[HEADER_TABLE]
            connection.execute(table.insert(), [{"name": name, "value": value} for name, value in header.items()])
            self._apply(connection, [Put(row) for row in rows])

    def upgrade(self, version: int) -> None:
        """Add what a database of this schema version lacks; in one transaction if the database supports it.

        Otherwise a crash may leave some of the tables, and the next start skips these.
        """
        with self._engine.begin() as connection:
            missing = [self._schema.tables[table.name] for table in tables_after(version)]
            self._schema.create_all(connection, tables=missing)
            header = self._schema.tables[HEADER_TABLE]
            connection.execute(
                header.update().where(header.c.name == "schema_version").values(value=str(SCHEMA_VERSION))
            )

    def write(self, changes: Iterable[Change]) -> None:
        """Apply `changes` in order in one transaction, durable at return."""
        with self._engine.begin() as connection:
            self._apply(connection, changes)

    def checkpoint(self) -> None:
        """Move SQLite's log into its file. Does nothing for other databases."""
        if self._dialect != "sqlite":
            return
        # A raw connection, because a checkpoint is not possible in the transaction that other connections begin.
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            cursor.close()
        finally:
            connection.close()
        if busy:
            raise OSError(errno.EBUSY, "another program uses the metadata's log")

    def copy_to(self, path: Path) -> None:
        """Copy SQLite's file consistently. Raises: OSError for other databases."""
        if self._dialect != "sqlite":
            raise OSError(errno.EOPNOTSUPP, "only an SQLite database can be copied")
        connection = self._engine.raw_connection()  # see `checkpoint`
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM INTO ?", (str(path),))
            cursor.close()
        finally:
            connection.close()

    def close(self) -> None:
        self._engine.dispose()

    def _apply(self, connection: sa.Connection, changes: Iterable[Change]) -> None:
        for group in group_changes(changes):
            ends = [{f"key_{name}": value for name, value in each._asdict().items()} for each in group.unbound]
            if ends:
                connection.execute(self._delete_by_destination, ends)
            if exchanges := [each for each in ends if each["key_kind"] == "exchange"]:
                connection.execute(self._delete_by_source, exchanges)
            for table in TABLES:  # parents first
                if table.name in group.deleted:
                    encoded = [table.encode(row) for row in group.deleted[table.name]]
                    keys = [{f"key_{name}": row[name] for name in table.key} for row in encoded]
                    connection.execute(self._deletes[table.name], keys)
                if table.name in group.put:
                    self._put(connection, table, [table.encode(row) for row in group.put[table.name]])

    def _put(self, connection: sa.Connection, table: Table, rows: Sequence[dict[str, Plain]]) -> None:
        upsert = self._puts[table.name]
        if upsert is not None:
            connection.execute(upsert, rows)
            return
        target = self._schema.tables[table.name]
        for row in rows:
            here = sa.and_(*(target.c[name] == row[name] for name in table.key))
            if connection.execute(sa.select(sa.literal(1)).select_from(target).where(here)).first() is None:
                connection.execute(target.insert(), row)
            else:
                connection.execute(target.update().where(here), row)

    def _put_statement(self, table: Table) -> sa.Insert | None:
        """Return the upsert statement, None if we know none for this database."""
        target = self._schema.tables[table.name]
        others = [name for name, _ in table.columns if name not in table.key]
        if self._dialect == "sqlite":
            lite = sqlite.insert(target)
            values = {name: lite.excluded[name] for name in others}
            return lite.on_conflict_do_update(index_elements=list(table.key), set_=values)
        if self._dialect == "postgresql":
            post = postgresql.insert(target)
            values = {name: post.excluded[name] for name in others}
            return post.on_conflict_do_update(index_elements=list(table.key), set_=values)
        return None

    def _delete_statement(self, table: Table) -> sa.Delete:
        target = self._schema.tables[table.name]
        return target.delete().where(*(target.c[name] == sa.bindparam(f"key_{name}") for name in table.key))


def _sqlite_connected(connection: Any, _record: object) -> None:
    # The driver must not begin transactions itself: DDL would be outside them.
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(pragma).close()


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
