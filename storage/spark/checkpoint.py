"""What an export job has done: the checkpoint directory, one small file that is replaced whole.

    <checkpoint>/lock           held while a job runs: one at a time
    <checkpoint>/export.json    what is exported to where; another export may not go on from here
    <checkpoint>/state.json     see State
    <checkpoint>/spark.log      what Spark said of the last run, for people
    <checkpoint>/staging/       files being written; only the attempt that state.json names is of any worth

A batch goes through three states, each written and synced before the next step is taken:

    begun       `next` names its offsets. Nothing can be seen of it; a rerun throws it away and plans anew.
    staged      its files are whole and synced, and `moves` says what each will be called. A rerun only renames.
    committed   `position` is behind it.

So a reader of the directory never sees half a file nor a row twice, before the rerun or after; between a kill in the
middle of the renames and the rerun it sees some of a batch's files. Everything staged stands outside the exported
directory: there are readers whose `**/*.parquet` looks into hidden directories too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1


class CheckpointError(Exception):
    """The checkpoint cannot be used; the text says why and what to do."""


@dataclass
class Progress:
    """The batch under way. position: what State.position becomes. moves: [staged, final] paths once all are staged."""

    batch: int
    position: dict[str, dict[str, Any]]
    rows: int = 0
    bytes: int = 0
    moves: list[list[str]] | None = None


@dataclass
class State:
    """batch: the last committed one, 0 for none. position: {"vhost/queue": {"id": incarnation, "offset": next}}.

    rows, bytes: exported since the beginning, bytes of bodies.
    """

    batch: int = 0
    position: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    next: Progress | None = None


class ExportCheckpoint:
    """An open checkpoint. what: the export's identity, compared with what the directory was made for.

    Raises: CheckpointError, OSError.
    """

    def __init__(self, directory: Path, what: dict[str, Any]) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointError(f"another export is at work with the checkpoint {directory}") from None
            self.state = State()
            if (directory / "state.json").exists():
                self._read(what)
            else:  # a run that ended before its first batch binds nobody
                self.id = secrets.token_hex(4)
                self._write("export.json", {"version": VERSION, "id": self.id, **what})
            self._clear_staging()
        except BaseException:
            self.close()
            raise

    def _read(self, what: dict[str, Any]) -> None:
        if not (self.directory / "export.json").exists():
            raise CheckpointError(f"{self.directory / 'export.json'} is missing: the checkpoint says not what it is of")
        known = self._json("export.json")
        if known.get("version") != VERSION:
            raise CheckpointError(f"the checkpoint {self.directory} was written by another version")
        self.id = str(known["id"])
        for name, value in what.items():
            if known.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint {self.directory} belongs to an export with --{name.replace('_', '-')} "
                    f"{_shown(known.get(name))}, not {_shown(value)}: name another --checkpoint"
                )
        found = self._json("state.json")
        under_way = found.pop("next")
        self.state = State(**found, next=None if under_way is None else Progress(**under_way))

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / name).read_bytes())
        except ValueError:
            raise CheckpointError(f"{self.directory / name} is damaged") from None
        return found

    def save(self) -> None:
        """Writes the state; it is on the medium when this returns."""
        self._write("state.json", asdict(self.state))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        aside = self.directory / f"{name}.tmp"
        with aside.open("wb") as file:
            file.write(json.dumps(content, indent=1, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.directory / name)
        sync_directory(self.directory)

    def begin(self, position: dict[str, dict[str, Any]]) -> Progress:
        """The next batch is begun."""
        self.state.next = Progress(self.state.batch + 1, position)
        self.save()
        return self.state.next

    def commit(self) -> None:
        """The batch under way is done."""
        done = self.state.next
        assert done is not None
        before = self.state
        position = {**before.position, **done.position}
        self.state = State(done.batch, position, before.rows + done.rows, before.bytes + done.bytes)
        self.save()
        self._clear_staging()

    def attempt(self) -> Path:
        """A new directory to stage files in; what a killed job's JVM may still write goes elsewhere."""
        path = self.directory / "staging" / secrets.token_hex(8)
        path.parent.mkdir(exist_ok=True)
        return path

    def _clear_staging(self) -> None:
        if self.state.next is None or self.state.next.moves is None:
            shutil.rmtree(self.directory / "staging", ignore_errors=True)  # a dying JVM may be writing into it

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._lock)


def sync_files(paths: list[Path], root: Path) -> None:
    """Their bytes and their names are on the medium, and the names of the directories up to `root`. Raises: OSError."""
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
    """Gives every staged file its name, those that have it already excepted. Raises: CheckpointError, OSError."""
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
                raise CheckpointError(f"{source} is gone, and was not yet {target}") from None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(source, target)
    for directory in sorted(directories):
        sync_directory(directory)


def _copy(source: Path, target: Path) -> None:
    """The move between file systems: copied aside under a name no reader looks for, synced, renamed."""
    aside = target.with_name(f".{target.name}.moving")
    with source.open("rb") as old, aside.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    aside.replace(target)
    source.unlink()


def sync_directory(path: Path) -> None:
    """fsync of a directory: the names in it are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(value)
    return "(none)" if value in (None, "") else repr(value)
