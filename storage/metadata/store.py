"""What the broker keeps besides messages: vhosts, users, permissions, exchanges, queues, bindings, policies, and so on.

Memory is the truth at run time. `open` gives all rows once, at start; after that every change is submitted here, and
the declaration is answered when its `done` comes. One thread, which alone talks to the database, takes whatever has
gathered into one transaction: while one commit syncs, the next group fills. When a group fails, each submission is
tried alone, so that only the culprit gets the error. `done` callbacks come on the loop, in order of submission.

Default database: `<data_dir>/metadata.sqlite` (WAL, synchronous=FULL, foreign keys), mode 0600. Any SQLAlchemy URL
otherwise. Formats: schema.py. How a start without SQLAlchemy's import works: store.py.

**Instance id.** The same 32 hex digits stand in `<data_dir>/instance-id` and in the database. When they differ, the
broker would take every queue's directory for unknown, so it does not start. The file is written and synced first, then
the database, tables and first rows in one transaction. A crash between leaves the file and an empty database: the next
start goes on, provided that the directory holds no queues.

**What a crash leaves.** A change is there with `done(None)`; without it, it may be there. Deleting takes two changes:
Put(row with state 'deleting'), then the files go, then Delete(row). `open` gives rows in state 'deleting' apart,
so that the deletion is finished, and a deleted queue never comes back.

The metadata tables through SQLAlchemy Core: every write, and the start on any database that is not our own file.

Imported late, on the metadata thread when the database is our own SQLite file (see store.py). PYTEST_DONT_REWRITE: of
each module of a package with fixtures pytest makes a syntax tree, and CPython 3.11 fails where two threads do at once.
SQLite and PostgreSQL write a row with INSERT ... ON CONFLICT DO UPDATE, many rows of one table in one executemany
(5 us a row); other databases get UPDATE and, when nothing was there, INSERT.

Our own SQLite file at start, by the standard library.

Importing SQLAlchemy takes 160 ms of a start that aims at 300, `sqlite3` takes 2: so the state is read, and a fresh file
made, here; SQLAlchemy (store.py) is imported by the metadata thread for the first write. Both take the tables from
`schema.TABLES`, and a test holds the two against each other.

The statements are put together from the names in `TABLES`, never from data (hence the `noqa: S608`).

A file that exists is opened read-only and closed again before anything is decided, so a file that is refused is left as
it was. A fresh file gets its WAL mode first, then tables, header and first rows in one transaction: a crash leaves
an empty database, which the next start fills, or a whole one.

SQLite maps its `-shm` file into memory, and touching a page of it for which a full disk has no block ends the process
(SIGBUS). So whoever writes has the file to itself, which needs no `-shm`, and a start on a full disk reads a copy.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    Put,
    QueueRow,
    Row,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import (
    HEADER_TABLE,
    NAME_LENGTH,
    SCHEMA_VERSION,
    TABLE_OF,
    TABLES,
    Kind,
    Plain,
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

_SQLITE_TYPES: Final = {
    Kind.NAME: "VARCHAR(255)",
    Kind.TEXT: "TEXT",
    Kind.BYTES: "BLOB",
    Kind.BOOL: "INTEGER",
    Kind.INT: "INTEGER",
    Kind.WORDS: "TEXT",
    Kind.KEY: "BLOB",
    Kind.LONG: "BIGINT",
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
        parts = [f'"{name}" {_SQLITE_TYPES[kind]} NOT NULL' for name, kind in table.columns]
        parts.append(f"PRIMARY KEY ({_list(table.key)})")
        for column, parent in table.parents:
            parts.append(f'FOREIGN KEY("{column}") REFERENCES "{parent}" ("{parent_key(parent)}") ON DELETE CASCADE')
        yield f'CREATE TABLE "{table.name}" ({", ".join(parts)})'
        for columns in table.indexes:
            yield f'CREATE INDEX "{index_name(table, columns)}" ON "{table.name}" ({_list(columns)})'


def index_name(table: Table, columns: Sequence[str]) -> str:
    """Name of an index; the same here and in store.py."""
    return f"ix_{table.name}_{'_'.join(columns)}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class SqliteStart:
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


__all__ = [
    "BindingRow",
    "Change",
    "Delete",
    "DeleteBindings",
    "ExchangeRow",
    "GlobalParameterRow",
    "InstanceMismatch",
    "Metadata",
    "MetadataClosed",
    "MetadataError",
    "MetadataState",
    "NewerSchema",
    "ParameterRow",
    "PermissionRow",
    "PolicyRow",
    "Put",
    "QueueRow",
    "Row",
    "SeenCacheRow",
    "SeenRow",
    "StoredOffsetRow",
    "TopicPermissionRow",
    "UserLimitsRow",
    "UserRow",
    "VhostRow",
    "WriteFailed",
    "random_id",
]

logger = logging.getLogger(__name__)

DATABASE_NAME: Final = "metadata.sqlite"
INSTANCE_FILE: Final = "instance-id"
GROUP_MAX: Final = 1000
"""Submissions in one transaction at most: the first of a flood is not answered with the last."""

Done: TypeAlias = Callable[[BaseException | None], None]
Post: TypeAlias = Callable[..., object]
"""post(function, *arguments): thread-safe, calls it on the loop later; in order."""

R = TypeVar("R", bound=Row)


class MetadataError(Exception):
    """The metadata cannot be used; the text is for the operator."""


class NewerSchema(MetadataError):
    """A later version of the broker wrote this database. Nothing was touched."""


class InstanceMismatch(MetadataError):
    """Data directory and database do not belong together. Nothing was touched."""


class WriteFailed(MetadataError):
    """A submission is not in the database; `__cause__` is the driver's error."""


class MetadataClosed(MetadataError):
    """submit after close."""


class MetadataState(NamedTuple):
    """Everything, as it was at start. Rows in state 'deleting' stand apart: finish their deletion.

    What is in a vhost that is being deleted is in none of the other lists: it goes with the vhost.
    """

    instance_id: str
    fresh: bool
    """True when this start made the database."""
    vhosts: list[VhostRow]
    deleting_vhosts: list[VhostRow]
    users: list[UserRow]
    permissions: list[PermissionRow]
    topic_permissions: list[TopicPermissionRow]
    exchanges: list[ExchangeRow]
    queues: list[QueueRow]
    deleting_queues: list[QueueRow]
    bindings: list[BindingRow]
    policies: list[PolicyRow]
    parameters: list[ParameterRow]
    global_parameters: list[GlobalParameterRow]
    stored_offsets: list[StoredOffsetRow]
    """Of queues that are not being deleted: the others' go with them."""
    user_limits: list[UserLimitsRow]
    seen_caches: list[SeenCacheRow]
    seen: list[SeenRow]
    """In no order: `number` has it."""


class _Start(Protocol):
    """What store.py and store.py both can do."""

    def header(self) -> dict[str, str] | None: ...
    def rows(self) -> dict[type[Row], list[Row]]: ...
    def create(self, header: Mapping[str, str], rows: Sequence[Row]) -> None: ...
    def upgrade(self, version: int) -> None: ...


class _Submission(NamedTuple):
    changes: tuple[Change, ...]
    done: Done
    checkpoint: bool = False
    copy: Path | None = None


def random_id() -> str:
    """32 hex digits: the id of a vhost, a queue's incarnation, an instance."""
    return os.urandom(16).hex()


class Metadata:
    """The metadata of one data directory. `open` once, then `submit` from the loop, then `close`."""

    def __init__(self, url: str, data_dir: Path, post: Post) -> None:
        """url: an SQLAlchemy URL, or '' for the SQLite file in `data_dir`. post: see `Post`."""
        self._url: str | Path = url or data_dir / DATABASE_NAME
        self._data_dir = data_dir
        self._post = post
        self._store: CoreStore | None = None
        self._waiting: deque[_Submission] = deque()
        self._changed = threading.Condition()
        self._warm = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """All rows; starts the thread. Blocks, so it belongs before the loop takes connections.

        seed: called when the database is made now; its rows are in it in the transaction that makes it, so there is
        never a broker with tables and without its first user.
        Cost: 2 ms and 3 us per row for our own file, 10 ms for a fresh one; other databases add SQLAlchemy's import
        (160 ms).
        Raises: NewerSchema, InstanceMismatch, MetadataError (unreadable, no driver, no connection).
        """
        try:
            start = self._start()
            state = self._open(start, seed)
        except MetadataError:
            self._dispose()
            raise
        except Exception as error:
            self._dispose()
            if not _is_database_error(error):
                raise
            raise MetadataError(f"cannot open the metadata ({self._where()}): {_text(error)}") from error
        self._thread = threading.Thread(target=self._run, name="amqpd-metadata", daemon=True)
        self._thread.start()
        return state

    def warm(self) -> None:
        """Lets the thread import SQLAlchemy and connect now, so that the first declaration need not wait for it."""
        with self._changed:
            self._warm = True
            self._changed.notify()

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """`changes` in one transaction, all or none; done(None) on the loop once durable, else done(WriteFailed).

        Cost: 1 us here. Raises: MetadataClosed.
        """
        self._submit(_Submission(tuple(changes), done))

    def checkpoint(self, done: Done) -> None:
        """done(None) on the loop once everything submitted before stands in the database itself, where no log that
        loses its tail takes it back: SQLite's is copied and emptied; other databases see to that themselves.

        Cost: the pages that changed, written and synced, in the thread. Raises: MetadataClosed.
        """
        self._submit(_Submission((), done, True))

    def copy(self, path: Path, done: Done) -> None:
        """done(None) on the loop once `path`, which must not be there yet, is SQLite's file of all submitted before.

        Cost: all of it read and written, in the thread; later changes wait. Raises: MetadataClosed.
        """
        self._submit(_Submission((), done, copy=path))

    def _submit(self, submission: _Submission) -> None:
        with self._changed:
            if self._closing or self._thread is None:
                raise MetadataClosed("the metadata is not open")
            self._waiting.append(submission)
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is waiting, posts its `done`s, ends the thread. A hanging database is left after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("the metadata database does not answer; waiting changes are lost")
        self._thread = None

    # --- at start ---------------------------------------------------------------------------------------------------

    def _start(self) -> _Start:
        if isinstance(self._url, Path):
            return SqliteStart(self._url)
        return self._core()

    def _open(self, start: _Start, seed: Callable[[], Sequence[Row]] | None) -> MetadataState:
        header = start.header()
        ours = _read_instance(self._data_dir)
        fresh = header is None
        if header is None:
            if ours is not None and _holds_queues(self._data_dir):
                raise InstanceMismatch(
                    f"the data directory holds queues, but the metadata ({self._where()}) is empty; put the database "
                    f"back, or choose an empty data directory. If the database is lost, remove {self._data_dir}/"
                    f"{INSTANCE_FILE}: the queues that hold messages are then declared again from their directories; "
                    "users, permissions, exchanges, bindings and queues that never held a message are lost"
                )
            rows = list(seed()) if seed is not None else []
            instance = ours or random_id()
            if ours is None:
                _write_instance(self._data_dir, instance)
            start.create({"instance_id": instance, "schema_version": str(SCHEMA_VERSION)}, rows)
            FileSystem().fsync_dir(str(self._data_dir))
        else:
            instance = self._check(header, ours)
            version = int(header["schema_version"])
            if version < SCHEMA_VERSION:
                logger.info("metadata (%s): schema version %d becomes %d", self._where(), version, SCHEMA_VERSION)
                start.upgrade(version)
        return _state(instance, fresh, start.rows())

    def _check(self, header: dict[str, str], ours: str | None) -> str:
        """The instance id, when the database may be used."""
        version = header.get("schema_version", "")
        theirs = header.get("instance_id", "")
        if not version.isdecimal() or not theirs:
            raise MetadataError(f"the metadata ({self._where()}) has no schema version or no instance id")
        if int(version) > SCHEMA_VERSION:
            raise NewerSchema(
                f"the metadata ({self._where()}) has schema version {version}, this amqpd knows {SCHEMA_VERSION}; "
                "start the newer amqpd that wrote it"
            )
        if int(version) < 1:
            raise MetadataError(f"the metadata ({self._where()}) has the unknown schema version {version}")
        if ours is None:
            raise InstanceMismatch(
                f"the metadata ({self._where()}) belongs to instance {theirs}, but the data directory {self._data_dir} "
                f"has no {INSTANCE_FILE}; if they do belong together, write that id into {INSTANCE_FILE}"
            )
        if ours != theirs:
            raise InstanceMismatch(
                f"the metadata ({self._where()}) belongs to instance {theirs}, the data directory {self._data_dir} "
                f"to instance {ours}; with each other they would lose every queue"
            )
        return theirs

    def _where(self) -> str:
        """The database for an error's text, without its password."""
        if isinstance(self._url, Path):
            return str(self._url)
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing or self._warm)
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
                closing, self._warm = self._closing, False
            if group:
                self._report(group, self._write_group(group))
                del group  # who waited for it is not kept until the next
            elif closing:
                self._dispose()
                return
            else:
                self._write([])

    def _write_group(self, group: list[_Submission]) -> list[BaseException | None]:
        """One transaction for all; if that fails, one for each. An error, or None, per submission."""
        error = self._write([change for submission in group for change in submission.changes])
        errors = [error] * len(group)
        if error is not None and len(group) > 1:
            errors = [self._write(submission.changes) for submission in group]
        if any(submission.checkpoint for submission in group):
            error = self._attempt(lambda: self._core().checkpoint())
            errors = [error if each.checkpoint else before for each, before in zip(group, errors, strict=True)]
        for index, submission in enumerate(group):
            if submission.copy is not None:
                path = submission.copy
                errors[index] = self._attempt(partial(self._copy_to, path))
        return errors

    def _copy_to(self, path: Path) -> None:
        self._core().copy_to(path)

    def _write(self, changes: Sequence[Change]) -> BaseException | None:
        return self._attempt(lambda: self._core().write(changes))

    def _attempt(self, call: Callable[[], None]) -> BaseException | None:
        try:
            call()
        except Exception as error:
            if not _is_database_error(error):
                logger.exception("metadata: unexpected error in a write")
            failure = WriteFailed(f"cannot write the metadata: {_text(error)}")
            failure.__cause__ = error
            return failure
        return None

    def _report(self, group: list[_Submission], errors: list[BaseException | None]) -> None:
        try:
            self._post(_call_all, list(zip((submission.done for submission in group), errors, strict=True)))
        except RuntimeError:
            # The loop is closed: nobody is left to be told; what was written stays written.
            logger.warning("metadata: %d answers after the end of the loop", len(group))

    def _core(self) -> CoreStore:
        if self._store is None:
            self._store = CoreStore(self._url)
        return self._store

    def _dispose(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _call_all(answers: list[tuple[Done, BaseException | None]]) -> None:
    for done, error in answers:
        try:
            done(error)
        except Exception:
            # One caller's bug must not cost the others their answer.
            logger.exception("metadata: a done callback failed")


def _state(instance: str, fresh: bool, rows: dict[type[Row], list[Row]]) -> MetadataState:
    leaving = {row.name for row in rows[VhostRow] if isinstance(row, VhostRow) and row.state == "deleting"}

    def of(kind: type[R]) -> list[R]:
        found = cast("list[R]", rows[cast("type[Row]", kind)])
        if leaving and "vhost" in kind._fields:
            return [row for row in found if getattr(row, "vhost", None) not in leaving]
        return found

    caches = of(SeenCacheRow)
    known = {row.id for row in caches}
    live = {row.id for row in of(QueueRow) if row.state != "deleting"}
    return MetadataState(
        instance_id=instance,
        fresh=fresh,
        vhosts=[row for row in of(VhostRow) if row.state != "deleting"],
        deleting_vhosts=[row for row in of(VhostRow) if row.state == "deleting"],
        users=of(UserRow),
        permissions=of(PermissionRow),
        topic_permissions=of(TopicPermissionRow),
        exchanges=of(ExchangeRow),
        queues=[row for row in of(QueueRow) if row.state != "deleting"],
        deleting_queues=[row for row in of(QueueRow) if row.state == "deleting"],
        bindings=of(BindingRow),
        policies=of(PolicyRow),
        parameters=of(ParameterRow),
        global_parameters=of(GlobalParameterRow),
        stored_offsets=[row for row in of(StoredOffsetRow) if row.queue_id in live],
        user_limits=of(UserLimitsRow),
        seen_caches=caches,
        seen=[row for row in of(SeenRow) if row.cache_id in known],
    )


def _is_database_error(error: Exception) -> bool:
    """True for what a database, its driver or its URL may cause; False for bugs of ours."""
    if isinstance(error, sqlite3.Error | OSError | ValueError | ImportError):
        return True
    return any(base.__module__ == "sqlalchemy.exc" for base in type(error).__mro__)


def _text(error: BaseException) -> str:
    """The first line: SQLAlchemy appends the statement and a link."""
    return str(error).split("\n", 1)[0] or type(error).__name__


def _holds_queues(data_dir: Path) -> bool:
    return any(path.suffix != ".deleted" for path in data_dir.glob("vhosts/*/queues/*"))


def _read_instance(data_dir: Path) -> str | None:
    path = data_dir / INSTANCE_FILE
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if len(text) != 32 or not all(digit in "0123456789abcdef" for digit in text):
        raise InstanceMismatch(f"{path} does not hold an instance id (32 hex digits)")
    return text


def _write_instance(data_dir: Path, instance: str) -> None:
    """Whole or not at all, and synced: the database is made only after it."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    filesystem = FileSystem()
    filesystem.replace_file(f"{data_dir}/{INSTANCE_FILE}", f"{instance}\n".encode("ascii"), sync=True)
    filesystem.fsync_dir(str(data_dir))


_TYPES: Final[dict[Kind, sa.types.TypeEngine[Any]]] = {
    Kind.NAME: sa.String(NAME_LENGTH),
    Kind.TEXT: sa.Text(),
    Kind.BYTES: sa.LargeBinary(),
    Kind.BOOL: sa.Integer(),
    Kind.INT: sa.Integer(),
    Kind.WORDS: sa.Text(),
    Kind.KEY: sa.LargeBinary(),
    Kind.LONG: sa.BigInteger(),
}


def core_schema() -> sa.MetaData:
    """`metadata_schema.TABLES` as SQLAlchemy tables."""
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


class CoreStore:
    """One engine. Used by one thread at a time. Raises sqlalchemy.exc.SQLAlchemyError; `metadata` translates."""

    def __init__(self, url: str | Path) -> None:
        """url: an SQLAlchemy URL, or the path of an SQLite file."""
        address = sa.URL.create("sqlite", database=str(url)) if isinstance(url, Path) else sa.make_url(url)
        # A connection that a database server dropped meanwhile is noticed before the group, not in it.
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

    def header(self) -> dict[str, str] | None:
        """The header table, or None when it is not there."""
        table = self._schema.tables[HEADER_TABLE]
        with self._engine.connect() as connection:
            if not sa.inspect(connection).has_table(HEADER_TABLE):
                return None
            return {row.name: row.value for row in connection.execute(sa.select(table.c.name, table.c.value))}

    def rows(self) -> dict[type[Row], list[Row]]:
        """Every row."""
        with self._engine.connect() as connection:
            return {
                table.row: [
                    table.decode(tuple(values))
                    for values in connection.execute(sa.select(self._schema.tables[table.name]))
                ]
                for table in TABLES
            }

    def create(self, header: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Tables, header and first rows, in one transaction where the database can do that."""
        with self._engine.begin() as connection:
            self._schema.create_all(connection)
            table = self._schema.tables[HEADER_TABLE]
            connection.execute(table.insert(), [{"name": name, "value": value} for name, value in header.items()])
            self._apply(connection, [Put(row) for row in rows])

    def upgrade(self, version: int) -> None:
        """What a database of that schema version lacks, in one transaction where the database can do that.

        Where it cannot, a crash between leaves tables that are there already, which the next start passes over.
        """
        with self._engine.begin() as connection:
            missing = [self._schema.tables[table.name] for table in tables_after(version)]
            self._schema.create_all(connection, tables=missing)
            header = self._schema.tables[HEADER_TABLE]
            connection.execute(
                header.update().where(header.c.name == "schema_version").values(value=str(SCHEMA_VERSION))
            )

    def write(self, changes: Iterable[Change]) -> None:
        """All of `changes`, in order, in one transaction; durable when this returns."""
        with self._engine.begin() as connection:
            self._apply(connection, changes)

    def checkpoint(self) -> None:
        """Everything written stands in SQLite's file itself, its log is empty; nothing for other databases."""
        if self._dialect != "sqlite":
            return
        connection = self._engine.raw_connection()  # else a transaction is begun, in which it cannot be done
        try:
            cursor = connection.cursor()
            busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            cursor.close()
        finally:
            connection.close()
        if busy:
            raise OSError(errno.EBUSY, "the metadata's log is in use by somebody else")

    def copy_to(self, path: Path) -> None:
        """A copy of SQLite's file, whole and consistent. Raises: OSError for other databases."""
        if self._dialect != "sqlite":
            raise OSError(errno.EOPNOTSUPP, "only SQLite's file is copied")
        connection = self._engine.raw_connection()  # as in `checkpoint`
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM INTO ?", (str(path),))
            cursor.close()
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def _apply(self, connection: sa.Connection, changes: Iterable[Change]) -> None:
        for (kind, table), run in groupby(changes, _statement_key):
            if kind is DeleteBindings:
                for change in run:
                    assert isinstance(change, DeleteBindings)
                    connection.execute(self._delete_bindings(change))
                continue
            rows = [table.encode(change.row) for change in run if not isinstance(change, DeleteBindings)]
            if kind is Put:
                self._put(connection, table, rows)
            else:
                keys = [{f"key_{name}": row[name] for name in table.key} for row in rows]
                connection.execute(self._deletes[table.name], keys)

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
        """The upsert; None where the dialect has none that we know."""
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

    def _delete_bindings(self, change: DeleteBindings) -> sa.Delete:
        bindings = self._schema.tables[TABLE_OF[BindingRow].name]
        ends_there = sa.and_(bindings.c.destination == change.name, bindings.c.destination_type == change.kind)
        condition = ends_there if change.kind == "queue" else sa.or_(ends_there, bindings.c.source == change.name)
        return bindings.delete().where(bindings.c.vhost == change.vhost, condition)


def _statement_key(change: Change) -> tuple[type[Change], Table]:
    """Neighbouring changes with the same key become one statement."""
    if isinstance(change, Put):
        return Put, TABLE_OF[type(change.row)]
    if isinstance(change, Delete):
        return Delete, TABLE_OF[type(change.row)]
    return DeleteBindings, TABLE_OF[BindingRow]


def _sqlite_connected(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself: it would leave DDL outside them.
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(pragma).close()


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
