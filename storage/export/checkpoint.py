"""Checkpoint of an export job: a directory with small files that are replaced as a whole.

    <checkpoint>/lock           locked while a job runs: one at a time
    <checkpoint>/export.json    source and target of the export; another export may not use this checkpoint
    <checkpoint>/state.json     see State
    <checkpoint>/spark.log      Spark's log of the last run, for people
    <checkpoint>/payload-schema.json    JSON Schema of the column `payload`, if there is one
    <checkpoint>/staging/       files being written; only the attempt named in state.json counts
    <checkpoint>/compaction/    lock and files of a compaction (compaction_job.py)

A batch has three states. Each is written and synced before the next step:

    begun       `next` has its offsets. Nothing is visible; a rerun drops the batch and plans again.
    staged      its files are complete and synced, and `moves` has their final names. A rerun only renames.
    committed   `position` is behind it.

So a reader of the directory never sees a partial file or a row twice. After a kill during the renames, it sees some
of the batch's files until the rerun. Staged files are outside the exported directory, because some readers'
`**/*.parquet` also searches hidden directories.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1


class CheckpointError(Exception):
    """The checkpoint cannot be used; the text says why and what to do."""


@dataclass
class Progress:
    """The batch that is being exported.

    Attributes:
        position: The next value of `State.position`.
        moves: [staged, final] paths, set when all files are staged.
        rejected: Messages whose bodies do not fit `payload`; `rows` is without them.
    """

    batch: int
    position: dict[str, dict[str, Any]]
    rows: int = 0
    bytes: int = 0
    moves: list[list[str]] | None = None
    rejected: int = 0


@dataclass
class State:
    """The committed state of an export.

    Attributes:
        batch: Number of the last committed batch; 0 for none.
        position: {"vhost/queue": {"id": incarnation, "offset": next}}.
        rows: Rows exported so far.
        bytes: Bytes of bodies exported so far.
    """

    batch: int = 0
    position: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    next: Progress | None = None


@dataclass(frozen=True)
class KnownExport:
    """An export as its checkpoint describes it at one moment.

    Attributes:
        id: Part of the names of its files.
        what: Its options, see `ExportOptions.identity`.
        pending: Names, without directories, of files of the batch that is not committed.
    """

    id: str
    what: dict[str, Any]
    pending: frozenset[str]


def read_checkpoint(directory: Path) -> KnownExport:
    """Read a checkpoint without its lock, also while its job runs. Raises CheckpointError, OSError."""
    if not (directory / "export.json").exists():
        raise CheckpointError(f"{directory} is not the checkpoint of an export: give its --checkpoint")
    what = _json_of(directory / "export.json")
    _check_version(directory, what)
    moves: list[list[str]] = []
    if (directory / "state.json").exists():
        moves = (_json_of(directory / "state.json")["next"] or {}).get("moves") or []
    pending = frozenset(final.rpartition("/")[2] for _, final in moves)
    return KnownExport(str(what["id"]), what, pending)


def _check_version(directory: Path, known: dict[str, Any]) -> None:
    if known.get("version") != VERSION:
        raise CheckpointError(f"the checkpoint {directory} was written by another version")


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged")
    return found


def lock_checkpoint(directory: Path, user: str) -> int:
    """Create the directory if it is missing, and lock it. Return the lock's descriptor.

    Args:
        user: `export`, `import` or `compaction`, for the error.

    Raises: CheckpointError if another process has the lock; OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise CheckpointError(f"another {user} uses the checkpoint {directory}") from None
    return lock


class ExportCheckpoint:
    """An open checkpoint.

    Args:
        what: The export's identity. It must equal that of the checkpoint's first export.

    Raises: CheckpointError, OSError.
    """

    def __init__(self, directory: Path, what: dict[str, Any]) -> None:
        self.directory = directory
        self._lock = lock_checkpoint(directory, "export")
        try:
            self.state = State()
            if (directory / "state.json").exists():
                self._read(what)
            else:  # a run that ended before its first batch fixes nothing
                self.id = secrets.token_hex(4)
                self._write("export.json", {"version": VERSION, "id": self.id, **what})
            self._clear_staging()
        except BaseException:
            self.close()
            raise

    def _read(self, what: dict[str, Any]) -> None:
        if not (self.directory / "export.json").exists():
            raise CheckpointError(
                f"{self.directory / 'export.json'} is missing, so the checkpoint belongs to an unknown export"
            )
        known = _json_of(self.directory / "export.json")
        _check_version(self.directory, known)
        self.id = str(known["id"])
        for name, value in what.items():
            if known.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint {self.directory} belongs to an export with --{name.replace('_', '-')} "
                    f"{_format(known.get(name))}, not {_format(value)}: use another --checkpoint"
                )
        found = _json_of(self.directory / "state.json")
        under_way = found.pop("next")
        self.state = State(**found, next=None if under_way is None else Progress(**under_way))

    def save(self) -> None:
        """Write the state and sync it to disk."""
        self._write("state.json", asdict(self.state))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        temporary = self.directory / f"{name}.tmp"
        with temporary.open("wb") as file:
            file.write(json.dumps(content, indent=1, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.directory / name)
        sync_directory(self.directory)

    def begin(self, position: dict[str, dict[str, Any]]) -> Progress:
        self.state.next = Progress(self.state.batch + 1, position)
        self.save()
        return self.state.next

    def commit(self) -> None:
        done = self.state.next
        assert done is not None
        before = self.state
        position = {**before.position, **done.position}
        self.state = State(done.batch, position, before.rows + done.rows, before.bytes + done.bytes)
        self.save()
        self._clear_staging()

    def attempt(self) -> Path:
        """Return a new directory for staged files. A killed job's JVM may still write to the old one."""
        path = self.directory / "staging" / secrets.token_hex(8)
        path.parent.mkdir(exist_ok=True)
        return path

    def _clear_staging(self) -> None:
        if self.state.next is None or self.state.next.moves is None:
            shutil.rmtree(self.directory / "staging", ignore_errors=True)  # a dying JVM may still write there

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


@contextmanager
def directory_lock(directory: Path, kind: int) -> Iterator[None]:
    """Hold a lock of a directory, not of one that an exchange has put elsewhere.

    Args:
        kind: LOCK_SH for an export, LOCK_EX for a compaction, as for `flock`. A file system without locks of
            directories has no compaction, so an export works there without the lock.

    Raises: OSError.
    """
    while True:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, kind)
            except OSError:
                if kind & fcntl.LOCK_EX:
                    raise
            if os.path.samestat(os.fstat(descriptor), directory.stat()):
                yield
                return
        finally:
            os.close(descriptor)


def sync_files(paths: list[Path], root: Path) -> None:
    """Sync files, their names, and the names of their directories up to `root`. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    directories = {root, root.parent}
    for path in paths:
        directories |= {parent for parent in path.parents if root in parent.parents}
    for directory in sorted(directories):
        if directory.exists():
            sync_directory(directory)


def move(moves: list[list[str]]) -> None:
    """Rename all staged files, except those that have their final names already. Raises CheckpointError, OSError."""
    directories: set[Path] = set()
    for staged, final in moves:
        source, target = Path(staged), Path(final)
        for parent in (target.parent, *target.parent.parents):
            if parent.exists():
                directories.add(parent)
                break
            directories.add(parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.replace(target)
        except FileNotFoundError:
            if not target.exists():
                raise CheckpointError(f"{source} does not exist, and neither does {target}") from None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(source, target)
    for directory in sorted(directories):
        sync_directory(directory)


def _copy(source: Path, target: Path) -> None:
    """Move between file systems: copy to a name that readers ignore, sync, rename."""
    temporary = target.with_name(f".{target.name}.moving")
    with source.open("rb") as old, temporary.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(target)
    source.unlink()


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _format(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(value)
    return "(none)" if value in (None, "") else repr(value)
