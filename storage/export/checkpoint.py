"""Checkpoint of an export job: a directory with small files that are replaced as a whole.

    <checkpoint>/lock           locked while a job runs: one at a time
    <checkpoint>/export.json    source and target of the export; another export may not use this checkpoint
    <checkpoint>/state.json     see State
    <checkpoint>/spark.log      Spark's log of the last run, for people
    <checkpoint>/payload-schema.json    JSON Schema of the column `payload`, if there is one
    <checkpoint>/staging/       files being written; only the attempt named in state.json counts
    <checkpoint>/compaction/    lock and files of a compaction (compaction_job.py)
    <checkpoint>/shared/        instead of lock, export.json and state.json: a shared export (shared_checkpoint.py)

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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

VERSION: Final = 1
SHARED: Final = "shared"
"""Directory in the checkpoint of a shared export."""
SCHEMA_FILE: Final = "payload-schema.json"


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
    """Read a checkpoint that is not shared, without its lock, also while its job runs.

    Raises: CheckpointError, OSError.
    """
    if not (directory / "export.json").exists():
        raise CheckpointError(f"{directory} is not the checkpoint of an export: give its --checkpoint")
    what = _read_what(directory)
    begun = _read_state(directory).next if (directory / "state.json").exists() else None
    moves = begun.moves or [] if begun is not None else []
    return KnownExport(str(what["id"]), what, frozenset(final.rpartition("/")[2] for _, final in moves))


def is_shared(directory: Path) -> bool:
    """Return whether a directory is the checkpoint of a shared export."""
    return any((directory / SHARED).glob("*.json"))


def checkpoint_kind(directory: Path) -> str:
    """Return whether a directory is the checkpoint of an "export" or an "import"; "": of neither."""
    is_locked = (directory / "lock").exists()
    if (directory / "export.json").exists() or (is_locked and is_shared(directory)):
        return "export"
    return "import" if is_locked and (directory / "state.json").exists() else ""


def check_identity(place: Path | str, known: dict[str, Any], what: dict[str, Any]) -> None:
    """Compare the options of a checkpoint's first export with those of the present one. Raises CheckpointError."""
    for name, value in what.items():
        if known.get(name) != value:
            raise CheckpointError(
                f"the checkpoint {place} belongs to an export with --{name.replace('_', '-')} "
                f"{_format(known.get(name))}, not {_format(value)}: use another --checkpoint"
            )


def read_unshared(directory: Path, what: dict[str, Any]) -> tuple[str, State] | None:
    """Return the id and state of an export that is not shared yet; None if it has no batch.

    The caller has the lock. Raises CheckpointError, also if the last batch is not complete.
    """
    if not (directory / "state.json").exists():
        return None
    known = _read_what(directory)
    check_identity(directory, known, what)
    found = _read_state(directory)
    if found.next is not None:
        raise CheckpointError(f"the last batch of {directory} is not complete: run the export once without --share")
    return str(known["id"]), found


def _read_what(directory: Path) -> dict[str, Any]:
    known = _json_of(directory / "export.json")
    if known.get("version") != VERSION:
        raise CheckpointError(f"the checkpoint {directory} was written by another version")
    return known


def _read_state(directory: Path) -> State:
    found = _json_of(directory / "state.json")
    begun = found.pop("next")
    return State(**found, next=None if begun is None else Progress(**begun))


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged")
    return found


def lock_checkpoint(directory: Path, user: str, wait_s: float = 0.0) -> int:
    """Create the directory if it is missing, and lock it. Return the lock's descriptor.

    Args:
        user: `export`, `import` or `compaction`, for the error.
        wait_s: Limit for the time that another process has the lock.

    Raises: CheckpointError if another process has the lock; OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                raise CheckpointError(f"another {user} uses the checkpoint {directory}") from None
        except OSError as error:  # for example a file system without locks
            os.close(lock)
            error.filename = f"{directory}/lock"
            raise
        time.sleep(0.05)


class ExportCheckpoint:
    """An open checkpoint.

    Args:
        what: The export's identity. It must equal that of the checkpoint's first export.

    Attributes:
        id: Part of the names of the export's files.
        directory: A local directory for the files of the run.
        state: The committed state.
        schema_place: The place of the payload's schema, for people.
        is_shared: Other processes may complete a batch of this one.

    Raises: CheckpointError, OSError.
    """

    is_shared: ClassVar[bool] = False

    def __init__(self, directory: Path, what: dict[str, Any]) -> None:
        self.directory = directory
        self.schema_place = str(directory / SCHEMA_FILE)
        self._lock = lock_checkpoint(directory, "export")
        try:
            self.state = State()
            if is_shared(directory):
                raise CheckpointError(f"the checkpoint {directory} belongs to a shared export: give --share")
            if (directory / "state.json").exists():
                self._read(what)
            else:  # a run that ended before its first batch fixes nothing
                self.id = secrets.token_hex(4)
                self._write("export.json", {"version": VERSION, "id": self.id, **what})
            self._clear_staging()
        except BaseException:
            os.close(self._lock)
            raise

    def _read(self, what: dict[str, Any]) -> None:
        if not (self.directory / "export.json").exists():
            raise CheckpointError(
                f"{self.directory / 'export.json'} is missing, so the checkpoint belongs to an unknown export"
            )
        known = _read_what(self.directory)
        self.id = str(known["id"])
        check_identity(self.directory, known, what)
        self.state = _read_state(self.directory)

    def save(self) -> None:
        """Write the state and sync it to disk."""
        self._write("state.json", asdict(self.state))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_file(self.directory / name, json.dumps(content, indent=1, sort_keys=True).encode())

    @property
    def is_first(self) -> bool:
        """Return whether no rows are committed: the target may have rows of another export only."""
        return self.state.rows == 0

    def begin(self, position: dict[str, dict[str, Any]]) -> Progress:
        self.state.next = Progress(self.state.batch + 1, position)
        self.save()
        return self.state.next

    def commit(self) -> None:
        """Count the present batch as done."""
        done = self.state.next
        assert done is not None
        before = self.state
        position = {**before.position, **done.position}
        after = State(done.batch, position, before.rows + done.rows, before.bytes + done.bytes)
        self._write("state.json", asdict(after))  # if it fails, the next run needs the staged files
        self.state = after
        self._clear_staging()

    def exported_offset(self, key: str, queue_id: str) -> int:
        """Return the offset below which all offsets of a queue are exported."""
        found = self.state.position.get(key)
        return int(found["offset"]) if found is not None and found["id"] == queue_id else 0

    def schema(self) -> str | None:
        """Return the schema of the column `payload`; None: it is not fixed yet."""
        path = self.directory / SCHEMA_FILE
        return path.read_text(encoding="utf-8") if path.exists() else None

    def fix_schema(self, text: str) -> str:
        """Fix the schema of the column `payload`. Return the one that counts."""
        write_file(self.directory / SCHEMA_FILE, text.encode())
        return text

    def attempt(self) -> Path:
        """Return a new directory for staged files. A killed job's JVM may still write to the old one."""
        path = self.directory / "staging" / secrets.token_hex(8)
        path.parent.mkdir(exist_ok=True)
        return path

    def _clear_staging(self) -> None:
        if self.state.next is None or self.state.next.moves is None:
            shutil.rmtree(self.directory / "staging", ignore_errors=True)  # a dying JVM may still write there

    def close(self) -> None:
        """Remove files of a batch that has failed, which may have filled the disk, and release the lock."""
        self._clear_staging()
        os.close(self._lock)


NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems without hard links."""


def write_file(path: Path, data: bytes) -> None:
    """Write a file or replace it as a whole, and sync it. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    _write_synced(temporary, data)
    temporary.replace(path)
    sync_path(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def create_once(path: Path, data: bytes) -> bool:
    """Create a file with its content in one step. Return False if there is another one.

    A hard link is one step in each version of NFS. If its answer is lost, the client sends it again, and the server
    may say that the file exists. So the file that is there decides, not the error.

    Raises: OSError, with one of NO_LINKS if there are no hard links. FileNotFoundError if another process has removed
        the temporary file, whose name begins with a dot.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        _write_synced(temporary, data)
        os.link(temporary, path)
    except FileExistsError:
        with suppress(FileNotFoundError):  # it was removed meanwhile
            return path.samefile(temporary)
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


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
        sync_path(path)
    directories = {root, root.parent}
    for path in paths:
        directories |= {parent for parent in path.parents if root in parent.parents}
    for directory in sorted(directories):
        if directory.exists():
            sync_path(directory)


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
        sync_path(directory)


def _copy(source: Path, target: Path) -> None:
    """Move between file systems: copy to a name that readers ignore, sync, rename."""
    temporary = target.with_name(f".{target.name}.moving")
    with source.open("rb") as old, temporary.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(target)
    source.unlink()


def sync_path(path: Path) -> None:
    """Sync a file, or a directory, so that the names in it are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _format(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(value)
    return "(none)" if value in (None, "") else repr(value)
