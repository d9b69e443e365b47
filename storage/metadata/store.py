"""`SqlMetadataStore`: vhosts, users, permissions, exchanges, queues, bindings, policies and so on in a database.

At run time the broker's memory is authoritative. `open` returns all rows once, at a start. Later changes are
submitted, and the client gets its reply after `done`. One thread uses the database. It writes all waiting
submissions in one transaction; while one commit syncs, the next group fills. If a group fails, each submission is
written alone, so that only the invalid one fails; if the database is unavailable, the whole group fails. `done`
callbacks run on the loop in the order of submission, in slices of ANSWERS_A_TURN.

The default database is `<data_dir>/metadata.sqlite` (WAL, synchronous=FULL, foreign keys, mode 0600). A URL of
SQLAlchemy names another SQLite file or a PostgreSQL database. Formats: schema.py. Our file: sqlite.py, without
SQLAlchemy. Other databases: sql.py.

**Instance id.** `<data_dir>/instance-id` and the database contain the same 32 hex digits. If they differ, every
queue's directory would be unknown, so the broker does not start. The file is written and synced first, then the
database in one transaction. A crash between them leaves an empty database: the next start creates it if the
directory has no queues.

**After a crash.** A change with `done(None)` exists; any other may exist. A deletion takes two changes: Put(row
with state `deleting`), then the files are deleted, then Delete(row). `open` returns rows in state `deleting`
separately, so that the broker completes the deletion. A deleted queue never returns.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    QueueRow,
    Row,
    ScramRow,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import SCHEMA_VERSION, TABLES
from amqpd.storage.metadata.sqlite import SqliteTables

if TYPE_CHECKING:
    from amqpd.storage.metadata.sql import SqlAlchemyTables

logger = logging.getLogger(__name__)

DATABASE_NAME: Final = "metadata.sqlite"
INSTANCE_FILE: Final = "instance-id"
GROUP_MAX: Final = 1000
"""Submissions per transaction, so that the first of many does not wait for the last."""
ANSWERS_A_TURN: Final = 50
"""`done` callbacks in one loop turn, some 3 ms. A thousand of them make a thousand queues."""

Done: TypeAlias = Callable[[BaseException | None], None]
Post: TypeAlias = Callable[..., object]
"""post(function, *arguments): thread-safe; calls the function later on the loop, in order."""

R = TypeVar("R", bound=Row)


class MetadataError(Exception):
    """The metadata cannot be used; the text is for the operator."""


class NewerSchema(MetadataError):
    """A later version wrote this database. Nothing was changed."""


class InstanceMismatch(MetadataError):
    """Data directory and database do not belong together. Nothing was changed."""


class WriteFailed(MetadataError):
    """A submission was not written; `__cause__` is the driver's error."""


class MetadataClosed(MetadataError):
    """`submit` was called after `close`."""


class MetadataState(NamedTuple):
    """All rows at the start; the lists have the names of the tables.

    The broker completes the deletion of rows in state `deleting`, which are in separate lists.

    The rows of a vhost that is being deleted are in no other list; they are deleted with it.
    """

    instance_id: str
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
    """Without those of queues that are being deleted."""
    user_limits: list[UserLimitsRow]
    seen_caches: list[SeenCacheRow]
    seen: list[SeenRow]
    """Unordered; `number` is the order."""
    scram_credentials: list[ScramRow]


class MetadataStore(Protocol):
    """The metadata as the broker uses it: in a database of this node (`SqlMetadataStore`), or in Kafka in a cluster."""

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """Return all rows. Call once. Raises: MetadataError."""

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """Write all changes or none; `done` gets None or WriteFailed on the loop. Raises: MetadataClosed."""

    def checkpoint(self, done: Done) -> None:
        """Call `done(None)` when nothing can undo earlier changes. Raises: MetadataClosed."""

    def copy(self, path: Path, done: Done) -> None:
        """Copy all earlier changes to `path`, then call `done(None)`. Raises: MetadataClosed."""

    def close(self, timeout_s: float = 5.0) -> None:
        """End the store. No `submit` may follow."""


class _Submission(NamedTuple):
    changes: tuple[Change, ...]
    done: Done
    checkpoint: bool = False
    copy: Path | None = None


def random_id() -> str:
    """Return 32 random hex digits: the id of a vhost, a queue or an instance."""
    return os.urandom(16).hex()


class SqlMetadataStore:
    """The metadata of one data directory. Call `open` once, `submit` from the loop, then `close`.

    Args:
        url: an SQLAlchemy URL, or "" for the SQLite file in `data_dir`.
        post: see `Post`.
    """

    def __init__(self, url: str, data_dir: Path, post: Post) -> None:
        self._url: str | Path = url or data_dir / DATABASE_NAME
        self._data_dir = data_dir
        self._post = post
        self._tables: SqliteTables | SqlAlchemyTables | None = None
        self._waiting: deque[_Submission] = deque()
        # Callbacks that the loop has not called yet.
        self._answers: deque[tuple[Done, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """Return all rows and start the thread. Blocks: call it before the loop accepts connections.

        Args:
            seed: called for a new database; its rows are written in the transaction that creates it. So there is
                never a database without the first user.

        Cost: 2 ms and 3 us per row for our file, 10 ms for a new one; other databases add 160 ms for importing
        SQLAlchemy.
        Raises: NewerSchema; InstanceMismatch; MetadataError (unreadable, no driver, no connection).
        """
        try:
            state = self._open(self._connected(), seed)
        except MetadataError:
            self._dispose()
            raise
        except Exception as error:
            self._dispose()
            if not _is_database_error(error):
                raise
            raise MetadataError(f"cannot open the metadata ({self._database()}): {_text(error)}") from error
        self._thread = threading.Thread(target=self._run, name="amqpd-metadata", daemon=True)
        self._thread.start()
        return state

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """Write `changes` in one transaction.

        `done` is called on the loop with None when it is durable, else with WriteFailed.

        Cost: 1 us here. Raises: MetadataClosed.
        """
        self._submit(_Submission(tuple(changes), done))

    def checkpoint(self, done: Done) -> None:
        """Call `done(None)` on the loop when earlier submissions are in the database file itself.

        A damaged SQLite log cannot undo them then. Other databases do this themselves.

        Cost: the changed pages, written and synced in the thread. Raises: MetadataClosed.
        """
        self._submit(_Submission((), done, True))

    def copy(self, path: Path, done: Done) -> None:
        """Copy SQLite's file with all earlier submissions to `path`, which must not exist.

        Then call `done(None)` on the loop.

        Cost: a read and a write of the file, in the thread; later changes wait. Raises: MetadataClosed.
        """
        self._submit(_Submission((), done, copy=path))

    def _submit(self, submission: _Submission) -> None:
        with self._changed:
            if self._closing or self._thread is None:
                raise MetadataClosed("the metadata is not open")
            self._waiting.append(submission)
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write waiting submissions, post their callbacks, and end the thread. Give up after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("the metadata database does not answer; waiting changes are lost")
        self._thread = None

    # -- start ---------------------------------------------------------------------------------------------------------

    def _open(self, tables: SqliteTables | SqlAlchemyTables, seed: Callable[[], Sequence[Row]] | None) -> MetadataState:
        header = tables.header()
        ours = _read_instance(self._data_dir)
        if header is None:
            if ours is not None and _holds_queues(self._data_dir):
                raise InstanceMismatch(
                    f"the data directory holds queues, but the metadata ({self._database()}) is empty; put the "
                    f"database back, or choose an empty data directory. If the database is lost, remove "
                    f"{self._data_dir}/{INSTANCE_FILE}: the queues with messages are then declared again from their "
                    "directories; users, permissions, exchanges, bindings and queues that never had a message are lost"
                )
            rows = list(seed()) if seed is not None else []
            instance = ours or random_id()
            if ours is None:
                _write_instance(self._data_dir, instance)
            tables.create({"instance_id": instance, "schema_version": str(SCHEMA_VERSION)}, rows)
            FileSystem().fsync_dir(str(self._data_dir))
        else:
            instance = self._check(header, ours)
            version = int(header["schema_version"])
            if version < SCHEMA_VERSION:
                logger.info(
                    "metadata (%s): upgrading schema version %d to %d", self._database(), version, SCHEMA_VERSION
                )
                tables.upgrade(version)
        return state_of(instance, tables.rows())

    def _check(self, header: dict[str, str], ours: str | None) -> str:
        """Return the instance id if the database may be used."""
        version = header.get("schema_version", "")
        theirs = header.get("instance_id", "")
        if not version.isdecimal() or not theirs:
            raise MetadataError(f"the metadata ({self._database()}) has no schema version or no instance id")
        if int(version) > SCHEMA_VERSION:
            raise NewerSchema(
                f"the metadata ({self._database()}) has schema version {version}, this amqpd knows {SCHEMA_VERSION}; "
                "start the newer amqpd that wrote it"
            )
        if int(version) < 1:
            raise MetadataError(f"the metadata ({self._database()}) has the unknown schema version {version}")
        if ours is None:
            raise InstanceMismatch(
                f"the metadata ({self._database()}) belongs to instance {theirs}, but the data directory "
                f"{self._data_dir} has no {INSTANCE_FILE}; if they belong together, write that id into {INSTANCE_FILE}"
            )
        if ours != theirs:
            raise InstanceMismatch(
                f"the metadata ({self._database()}) belongs to instance {theirs}, the data directory {self._data_dir} "
                f"to instance {ours}; used together, they would lose every queue"
            )
        return theirs

    def _database(self) -> str:
        """Return the database for error texts, without its password."""
        if isinstance(self._url, Path):
            return str(self._url)
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
            if group:
                self._report(group, self._write_group(group))
                del group  # release their objects while the thread waits
            else:
                self._dispose()
                return

    def _write_group(self, group: list[_Submission]) -> list[BaseException | None]:
        """Write a group in one transaction or, if that fails, each submission alone.

        If an empty transaction fails too, the database is unavailable, and the whole group fails: an attempt can wait
        for seconds (SQLite's busy_timeout, a server that does not answer).

        Return one result per submission.
        """
        error = self._write([change for submission in group for change in submission.changes])
        errors = [error] * len(group)
        if error is not None and len(group) > 1 and self._write(()) is None:
            errors = [self._write(submission.changes) for submission in group]
        if any(submission.checkpoint for submission in group):
            error = self._attempt(lambda: self._connected().checkpoint())
            errors = [error if each.checkpoint else before for each, before in zip(group, errors, strict=True)]
        for index, submission in enumerate(group):
            if submission.copy is not None:
                path = submission.copy
                errors[index] = self._attempt(partial(self._copy_to, path))
        return errors

    def _copy_to(self, path: Path) -> None:
        self._connected().copy_to(path)

    def _write(self, changes: Sequence[Change]) -> BaseException | None:
        return self._attempt(lambda: self._connected().write(changes))

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
            self._post(self._call, list(zip((submission.done for submission in group), errors, strict=True)))
        except RuntimeError:
            # The loop is closed and no callback can run. The changes remain written.
            logger.warning("metadata: %d results after the end of the loop", len(group))

    def _call(self, answers: list[tuple[Done, BaseException | None]] | None = None) -> None:
        """Call the callbacks of a group, on the loop, or without `answers` the next slice of earlier groups."""
        if answers is not None:
            is_first = not self._answers
            self._answers.extend(answers)
            if not is_first:
                return
        count = 0
        while self._answers:
            done, error = self._answers[0]
            try:
                done(error)
            except Exception:
                # A bug in one callback must not prevent the others.
                logger.exception("metadata: a done callback failed")
            self._answers.popleft()
            count += 1
            if count >= ANSWERS_A_TURN and self._answers and not self._closing:
                self._post(self._call)
                return

    def _connected(self) -> SqliteTables | SqlAlchemyTables:
        if self._tables is None:
            if isinstance(self._url, Path):
                self._tables = SqliteTables(self._url)
            else:
                from amqpd.storage.metadata.sql import SqlAlchemyTables

                self._tables = SqlAlchemyTables(self._url)
        return self._tables

    def _dispose(self) -> None:
        if self._tables is not None:
            self._tables.close()
            self._tables = None


def state_of(instance: str, rows: dict[type[Row], list[Row]]) -> MetadataState:
    """Return the state at a start, from all rows by their type."""
    deleting_names = {row.name for row in rows[VhostRow] if isinstance(row, VhostRow) and row.state == "deleting"}

    def rows_of(kind: type[R]) -> list[R]:
        found = cast("list[R]", rows[cast("type[Row]", kind)])
        if deleting_names and "vhost" in kind._fields:
            return [row for row in found if getattr(row, "vhost", None) not in deleting_names]
        return found

    vhosts, queues = rows_of(VhostRow), rows_of(QueueRow)
    live = {row.id for row in queues if row.state != "deleting"}
    known = {row.id for row in rows_of(SeenCacheRow)}
    found: dict[str, Any] = {table.name: rows_of(table.row) for table in TABLES}
    found["vhosts"] = [row for row in vhosts if row.state != "deleting"]
    found["deleting_vhosts"] = [row for row in vhosts if row.state == "deleting"]
    found["queues"] = [row for row in queues if row.state != "deleting"]
    found["deleting_queues"] = [row for row in queues if row.state == "deleting"]
    found["stored_offsets"] = [row for row in rows_of(StoredOffsetRow) if row.queue_id in live]
    found["seen"] = [row for row in rows_of(SeenRow) if row.cache_id in known]
    return MetadataState(instance, **found)


def _is_database_error(error: Exception) -> bool:
    """Return whether the error comes from a database, its driver or its URL, and not from a bug."""
    if isinstance(error, sqlite3.Error | OSError | ValueError | ImportError):
        return True
    return any(base.__module__ == "sqlalchemy.exc" for base in type(error).__mro__)


def _text(error: BaseException) -> str:
    """Return the first line: SQLAlchemy appends the statement and a link."""
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
        raise InstanceMismatch(f"{path} does not contain an instance id (32 hex digits)")
    return text


def _write_instance(data_dir: Path, instance: str) -> None:
    """Write the file atomically and sync it. The database is created after it."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    filesystem = FileSystem()
    filesystem.replace_file(f"{data_dir}/{INSTANCE_FILE}", f"{instance}\n".encode("ascii"), sync=True)
    filesystem.fsync_dir(str(data_dir))
