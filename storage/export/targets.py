"""Targets of an export job: files in a directory or an object store, a table, or a database.

Each target makes a batch visible once, even after kills:

    Files      staged files get their final names, by rename (checkpoint.py) or upload (object_store.py)
    Iceberg    the same; then one commit of the table, with the export's id and the batch's number (iceberg.py)
    Delta      the same; then one transaction of the table, with the export's id and the batch's number (delta.py)
    Database   one transaction with the rows, and with the batch's number in a second table

`has` tells whether a target has a batch whose outcome the job does not know.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from amqpd.storage.export.checkpoint import (
    NO_LINKS,
    Progress,
    create_once,
    directory_lock,
    move,
    sync_files,
)
from amqpd.storage.export.engine import ExportEngine, ExportRows
from amqpd.storage.export.file_writer import REJECTED_KIND, FileLayout
from amqpd.storage.export.object_store import ObjectStore, is_object_store
from amqpd.storage.export.shared_checkpoint import ExportLedger
from amqpd.storage.export.shared_place import SharedObjects

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table


CHUNK_ROWS: Final = 5000
LABEL_MAX: Final = 120  # a file name has at most 255 bytes, which includes the offsets
_PART: Final = re.compile(r"part-(\d+)-[0-9a-f-]{32,36}(?:[-.]c(\d+))?\.[a-z0-9.]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^[_.]")
"""Characters that no file name should have. Readers leave out names that begin with a dot or _."""


class TargetError(Exception):
    """The target cannot store the batch; the text says what to do."""


class ExportTarget(ABC):
    """A place for exported batches.

    Attributes:
        batch_rows: Default number of offsets in a batch.
    """

    batch_rows = 1_000_000

    @abstractmethod
    def write(self, engine: ExportEngine, rows: ExportRows, progress: Progress, label: str) -> None:
        """Write the rows, make them visible, and set the counts in `progress`.

        Args:
            label: Part of file names; equal for equal offsets.

        Raises: TargetError, OSError, and Spark's exceptions.
        """

    def has(self, progress: Progress) -> bool:
        """Return whether the target has a batch with an unknown outcome. Completes its renames if only these are
        missing.
        """
        return False

    def check_fresh(self) -> None:
        """Check, before a checkpoint's first rows, that the target has no rows of another checkpoint.

        Raises: TargetError.
        """
        return

    def root(self, to: str) -> str:
        """Return the place of the files for `--to`. A directory below it has those of rejected messages."""
        return to.rstrip("/")

    def close(self) -> None:
        return


class FilePlace(Protocol):
    """The place of a target's files. Methods raise OSError and CheckpointError."""

    def names(self) -> Iterator[str]:
        """Yield the paths or names of all files that are there."""

    def final(self, path: Path) -> str:
        """Return the final name of a file with this relative path, for `Progress.moves`."""

    def publish(self, moves: list[list[str]]) -> None:
        """Give staged files their final names. It may have happened already, completely or in part."""


class LocalFiles:
    """A directory. Raises TargetError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(directory, os.W_OK | os.X_OK)
        except OSError as error:
            raise TargetError(f"--to {directory}: {error.strerror}") from error
        if not writable:
            raise TargetError(f"--to {directory}: it is not writable")

    def names(self) -> Iterator[str]:
        return (str(path) for path in self._directory.rglob("*"))

    def final(self, path: Path) -> str:
        return str((self._directory / path).absolute())

    @contextmanager
    def first_files(self, name: str, owner: str) -> Iterator[None]:
        """Refuse other exports while the first files of this one appear. A killed run is continued by its rerun.

        A file system without hard links refuses none.

        Args:
            owner: The export's id, which the file `.NAME.first` has meanwhile.

        Raises: TargetError, OSError.
        """
        path = self._directory / f".{name}.first"
        with directory_lock(self._directory, fcntl.LOCK_SH):
            if not self._create_or_find(path, owner):
                raise TargetError(
                    f"--to {self._directory}: an export with another checkpoint writes its first files, or was killed "
                    f"meanwhile: run that one again, or delete {path} if its checkpoint is gone"
                )
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    @staticmethod
    def _create_or_find(path: Path, owner: str) -> bool:
        """Create a file with this owner. Return False if it has another one."""
        try:
            while not create_once(path, owner.encode()):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    return path.read_text() == owner
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
        return True

    def publish(self, moves: list[list[str]]) -> None:
        with directory_lock(self._directory, fcntl.LOCK_SH):  # a compaction may exchange directories
            move(moves)


def data_files(moves: list[list[str]] | None) -> list[list[str]]:
    """Return those of `Progress.moves` that are no files of rejected messages."""
    return [each for each in moves or [] if not each[1].endswith(f".{REJECTED_KIND}")]


def file_place(to: str) -> FilePlace:
    """Return the directory or the object store of `--to`. Raises TargetError, ObjectStoreError."""
    return ObjectStore(to) if is_object_store(to) else LocalFiles(Path(to))


class Files(ExportTarget):
    """Parquet, JSON or CSV files in a directory or an object store.

    Files are staged on the local disk, and `publish` gives them their final names. So the place has only files of
    batches whose names are in the checkpoint, and a rerun publishes the same bytes.

    Args:
        partition_by: Columns that become directories `name=value`.
        name: What is exported; names of files begin with it. A place takes it from one checkpoint only.

    Attributes:
        keeps_columns: The files have these columns, too.
    """

    keeps_columns = False

    def __init__(self, place: FilePlace, kind: str, partition_by: list[str], name: str, ledger: ExportLedger) -> None:
        self.place = place
        self.kind = kind
        self.partition_by = partition_by
        self.name = name
        self.ledger = ledger

    def check_fresh(self) -> None:
        label = rf"{re.escape(self.name)}-(\d{{20}}-\d{{20}}|batch-\d{{8}})"
        pattern = re.compile(rf"{label}-(?!{self.ledger.id})[0-9a-f]{{8}}-.*\.({self.kind}|{REJECTED_KIND})")
        for path in self.place.names():
            name = path.rpartition("/")[2]
            if pattern.fullmatch(name):
                raise TargetError(
                    f"--to has {name} of an export with another checkpoint, and all rows would be "
                    "there twice: use that --checkpoint, or another --to"
                )

    def write(self, engine: ExportEngine, rows: ExportRows, progress: Progress, label: str) -> None:
        staging = self.ledger.attempt().absolute()
        layout = FileLayout(str(staging), self.kind, tuple(self.partition_by), self.keeps_columns)
        written = engine.write_files(rows, layout)
        progress.rows, progress.bytes, progress.rejected = written.rows, written.size_bytes, written.rejected
        self._stage(staging, sorted(map(Path, written.paths)), progress, label)
        self._publish(progress)

    def _stage(self, staging: Path, files: list[Path], progress: Progress, label: str) -> None:
        moves: list[list[str]] = []
        names: set[str] = set()
        sync_files(files, staging)
        for path in files:
            match = _PART.fullmatch(path.name)
            if match is None:
                raise TargetError(f"the engine wrote a file with the unexpected name {path.name}")
            piece = match[1] if not int(match[2] or 0) else f"{match[1]}-{match[2]}"
            # Another process, or the log of a queue that was declared again, has other files of the same offsets.
            attempt = staging.name if self.ledger.is_shared else progress.batch
            name = f"{label}-{self.ledger.id}-{attempt}-{piece}{path.suffix}"
            final = self.place.final(path.parent.relative_to(staging) / name)
            moves.append([str(path.absolute()), final])
            names.add(final)
        if len(names) < len(moves):
            raise TargetError("two files of a batch would have one name")
        progress.moves = self._share(moves, staging.name) if self.ledger.is_shared else moves
        self.ledger.save()

    def _share(self, moves: list[list[str]], attempt: str) -> list[list[str]]:
        """Put the files of a shared export where each process can complete the batch. Return their `moves`."""
        return self.place.share(moves, attempt) if isinstance(self.place, SharedObjects) else moves

    def has(self, progress: Progress) -> bool:
        if progress.moves is None:
            return False
        self._publish(progress)
        return True

    def _publish(self, progress: Progress) -> None:
        if not self.ledger.is_first:
            self.place.publish(progress.moves or [])
            return
        with ExitStack() as stack:  # another export may have begun at the same time
            if isinstance(self.place, LocalFiles):
                stack.enter_context(self.place.first_files(f"{self.name}.{self.kind}", self.ledger.id))
            self.check_fresh()
            self.place.publish(progress.moves or [])


class Database(ExportTarget):
    """A table of any database that SQLAlchemy supports, and a second table of its batches.

    Times are UTC. Their column has a zone if the database has such a type; SQLite and MySQL have none.
    """

    batch_rows = 100_000

    def __init__(self, url: str, table: str, columns: list[tuple[str, str]], ledger: ExportLedger) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        self.ledger = ledger
        try:
            # With --follow hours may pass between two batches, and servers and firewalls close idle connections.
            self.database: Engine = create_engine(url, pool_pre_ping=True)
        except ImportError as error:
            raise TargetError(f"--to: the database's driver is not installed: {error}") from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise TargetError(f"--to: {error}") from error
        self.table, self.batches = _tables(table, columns)

    def _prepare(self) -> None:
        self.table.metadata.create_all(self.database)

    def write(self, engine: ExportEngine, rows: ExportRows, progress: Progress, label: str) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._prepare()
            with self.database.begin() as connection:
                is_postgresql = self.database.dialect.name == "postgresql"
                if is_postgresql:
                    # A column without a zone, in a table made by an operator, gets the session's time.
                    connection.execute(text("SET LOCAL TIME ZONE 'UTC'"))
                progress.rows = progress.bytes = 0
                chunk: list[dict[str, Any]] = []
                for row in engine.dicts(rows):
                    chunk.append(_without_nul(row) if is_postgresql else row)
                    progress.rows += 1
                    progress.bytes += len(chunk[-1].get("value") or b"")
                    if len(chunk) == CHUNK_ROWS:
                        connection.execute(self.table.insert(), chunk)
                        chunk = []
                if chunk:
                    connection.execute(self.table.insert(), chunk)
                done = {"row_count": progress.rows, "body_bytes": progress.bytes, "offsets": label}
                key = {"export": self.ledger.id, "batch": progress.batch}
                connection.execute(self.batches.insert().values(**key, **done))
        except SQLAlchemyError as error:
            raise TargetError(f"the database refuses the batch: {error}") from error

    def has(self, progress: Progress) -> bool:
        from sqlalchemy import select
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._prepare()
            known = self.batches.c
            condition = (known.export == self.ledger.id) & (known.batch == progress.batch)
            with self.database.connect() as connection:
                found = connection.execute(select(known.row_count, known.body_bytes).where(condition)).first()
        except SQLAlchemyError as error:
            raise TargetError(f"the database does not answer: {error}") from error
        if found is not None:
            progress.rows, progress.bytes = found
        return found is not None

    def close(self) -> None:
        self.database.dispose()


def _without_nul(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose texts have U+FFFD in place of NUL, which PostgreSQL refuses. JSON has escapes for it."""
    return {key: value.replace("\0", "\ufffd") if isinstance(value, str) else value for key, value in row.items()}


def _tables(name: str, columns: list[tuple[str, str]]) -> tuple[Table, Table]:
    """Return the table of rows, for columns (name, Spark type), and the table of batches."""
    from sqlalchemy import (
        TIMESTAMP,
        BigInteger,
        Column,
        DateTime,
        LargeBinary,
        MetaData,
        String,
        Table,
        Text,
        UnicodeText,
    )
    from sqlalchemy.dialects import mysql

    own = ("mysql", "mariadb")  # their BLOB and TEXT have 64 KiB, their DATETIME has seconds
    time = DateTime(timezone=True).with_variant(TIMESTAMP(timezone=True), "oracle")  # Oracle's DateTime is a DATE
    time = time.with_variant(mysql.DATETIME(fsp=6), *own)
    binary = LargeBinary().with_variant(mysql.LONGBLOB(), *own)
    string = Text().with_variant(mysql.LONGTEXT(), *own)
    string = string.with_variant(UnicodeText(), "mssql")  # the Text of SQL Server has the database's code page only
    kinds: dict[str, Any] = {"binary": binary, "bigint": BigInteger(), "timestamp": time}
    metadata = MetaData()
    rows = Table(name, metadata, *(Column(each, kinds.get(kind, string)) for each, kind in columns))
    batches = Table(
        f"{name}_batches",
        metadata,
        Column("export", String(32), primary_key=True),
        Column("batch", BigInteger(), primary_key=True, autoincrement=False),
        Column("offsets", Text()),
        Column("row_count", BigInteger()),
        Column("body_bytes", BigInteger()),
    )
    return rows, batches


def file_label(name: str) -> str:
    """Return a queue's or vhost's name as the start of a file name: valid in all file systems, and not hidden.

    Two names have two labels: the label also tells whether a target has the queue's messages already.
    """
    label = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    if len(label) <= LABEL_MAX:
        return label
    return f"{label[: LABEL_MAX - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
