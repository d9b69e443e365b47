"""`backup` copies a running broker's data directory so that a broker can start on the copy; `restore` copies it back.

    DIR/2026-11-23T03-45-00Z/       one complete backup; DIR/*.partial: an interrupted one
        data/                       a data directory, in a state that a power cut could leave
        backup.json                 {format, amqpd, begun, files: {path: [size, inode, mtime_ns]}}

A file that is unchanged since the previous backup (mostly sealed segments) is a hard link to it. A further backup
therefore costs only the new data, and each backup may be deleted by itself.

Files change, appear and vanish during a backup. The order of the copies makes the result one state. The backup has
every message that was confirmed before it began, except settled ones. A message that was settled during the backup
may come back, as after a crash.

    1. copy small files, which say how far a log is known to be good: they must not be newer than the logs
    2. link every segment into `.backup` in the data directory: what the broker deletes from now on is still there
    3. copy `.settled` files: a message that they settle because it moved is in the other queue's log by now
    4. link segments that appeared meanwhile, until there are no more
    5. copy the linked files, indexes first; an active segment can end in half a batch, which recovery cuts off

`boot-id` in the backup matches no machine, so the next start checks each log as after a power cut. The backup does not
read file contents. The broker only copies its metadata, in the metadata thread.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from amqpd import __version__
from amqpd.cli.command import OPERATIONS, Context, command
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
FOLDER: Final = ".backup"
COMING: Final = ".restore"
PASSES_MAX: Final = 100
NO_BOOT: Final = "0" * 32 + "\n"
# At the top of a data directory: files of the running process, and those that the copy of the metadata replaces. The
# journal has nothing that the logs lack while the machine runs, and would be older than the copies of the logs.
NOT_COPIED: Final = frozenset({
    FOLDER, ".lock", "amqpctl.sock", "reserve", "boot-id", "spill", "metadata.sqlite", "metadata.sqlite-wal",
    "metadata.sqlite-shm", "journal", "journal.swap",
})  # fmt: skip
_SEGMENT: Final = re.compile(r"\d{20}\.(log|log\.swap|index|timeindex|settled|settled\.swap)")
_NAME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")


@command(
    OPERATIONS,
    "Makes a backup of a running broker, without a pause",
    "<directory>",
    (("<directory>", "directory of the backups; a later one has links to unchanged files"),),
    examples=(("backup /backups/amqpd", "creates /backups/amqpd/2026-11-23T03-45-00Z"),),
    needs_app=False,
)
def backup(context: Context) -> None:
    if not context.client.is_local:
        raise Failure(DATA, "backup must run on the broker's machine, as its user, with --data-dir")
    data_dir, target = Path(context.client.data_dir).absolute(), Path(context.operands[0]).absolute()
    if target == data_dir or data_dir in target.parents:
        raise Failure(DATA, f"{target} is in the data directory: use another directory, best on another disk")
    context.info(f"Backing up {data_dir} of node {context.node} to {target} ...")
    try:
        made, files, copied_bytes = _Backup(context, data_dir, target).run()
    except OSError as error:
        raise Failure(DATA, f"{error.filename or target}: {error.strerror}") from None
    context.success(f"{made}: {files} files, {copied_bytes} bytes copied")


class _Backup:
    """One backup."""

    def __init__(self, context: Context, data_dir: Path, target: Path) -> None:
        self._context = context
        self._data_dir = data_dir
        self._target = target
        self._stage = data_dir / FOLDER
        self._into = target
        self._linked: set[str] = set()  # paths below the data directory
        self._files: dict[str, list[int]] = {}
        self._copied_bytes = 0
        self._before: dict[str, list[int]] = {}
        self._base: Path | None = None

    def run(self) -> tuple[Path, int, int]:
        """Make the backup. Return its path, number of files and copied bytes. Raises: OSError; Failure."""
        self._target.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stage.mkdir(mode=0o700, exist_ok=True)
        # Everything in it will be deleted, so it must not be a link to another directory.
        lock = os.open(self._stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.geteuid() == 0:  # the broker writes into it, perhaps as another user
                owner = self._data_dir.stat()
                os.fchown(lock, owner.st_uid, owner.st_gid)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(UNAVAILABLE, f"another backup of {self._data_dir} is being made") from None
            try:
                return self._run()
            finally:
                _remove(self._stage)
        finally:
            os.close(lock)

    def _run(self) -> tuple[Path, int, int]:
        for left in self._stage.iterdir():  # files of a killed backup
            _remove(left)
        name = self._free_name()
        made, partial = self._target / name, self._target / f"{name}.partial"
        self._find_base()
        self._context.no_timeout()
        answer = self._context.client.send("POST", "/api/amqpd/backup_metadata").checked().data
        if Path(answer["data_dir"]).resolve() != self._data_dir.resolve():
            raise Failure(DATA, f"the broker's data directory is {answer['data_dir']}, not {self._data_dir}")
        self._into = partial / "data"
        self._into.mkdir(mode=0o700, parents=True)
        self._copy(self._stage / "metadata.sqlite", "metadata.sqlite")
        self._small_files()  # 1
        self._link(settled=True)  # 2
        self._settled()  # 3
        for _ in range(PASSES_MAX):  # 4
            if not self._link(settled=False):
                break
        for path in sorted(self._linked, key=lambda path: path.endswith((".log", ".log.swap"))):  # 5
            if path not in self._files:
                self._copy(self._stage / "data" / path, path)
        (self._into / "boot-id").write_text(NO_BOOT, "ascii")
        about = {"format": FORMAT, "amqpd": __version__, "begun": name, "files": self._files}
        (partial / MANIFEST).write_text(json.dumps(about), "utf-8")
        _sync(partial)
        partial.rename(made)
        _sync_directory(self._target)
        return made, len(self._files), self._copied_bytes

    def _free_name(self) -> str:
        """Return the present second as a name. If a backup has that name, wait for the next second."""
        while True:
            now = time.time()
            name = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(now))
            if not any((self._target / each).exists() for each in (name, f"{name}.partial")):
                return name
            time.sleep(1 - now % 1)

    def _find_base(self) -> None:
        """Find the previous backup in the same folder, whose unchanged files can be linked."""
        for name in sorted((each.name for each in self._target.iterdir() if _NAME.fullmatch(each.name)), reverse=True):
            about = _manifest(self._target / name)
            if about is not None:
                self._base, self._before = self._target / name / "data", about["files"]
                return

    def _small_files(self) -> None:
        for path in self._walk():
            if not _SEGMENT.fullmatch(path.rpartition("/")[2]):
                self._copy(self._data_dir / path, path)

    def _link(self, *, settled: bool) -> int:
        """Link segments that are not linked yet, with `.settled` files if `settled`. Return their number."""
        count = 0
        for path in self._walk():
            name = path.rpartition("/")[2]
            if path in self._linked or not _SEGMENT.fullmatch(name) or (not settled and ".settled" in name):
                continue
            stage = self._stage / "data" / path
            stage.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.link(self._data_dir / path, stage)
            except FileNotFoundError:
                continue  # the broker deleted it: all its messages are settled
            self._linked.add(path)
            count += 1
            if not settled:
                self._new_log(path)
        return count

    def _new_log(self, path: str) -> None:
        """Copy the small files of a log that is new since step 1. They name the queue of the log."""
        folder = path.rpartition("/")[0]
        for name in _names(self._data_dir / folder):
            if not _SEGMENT.fullmatch(name) and f"{folder}/{name}" not in self._files:
                self._copy(self._data_dir / folder / name, f"{folder}/{name}")

    def _settled(self) -> None:
        for path in [path for path in self._linked if ".settled" in path.rpartition("/")[2]]:
            if not self._copy(self._data_dir / path, path):
                self._copy(self._stage / "data" / path, path)

    def _walk(self) -> Iterator[str]:
        """Yield the paths, below the data directory, of files that belong into a backup."""
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name in _names(self._data_dir / folder):
                path = f"{folder}/{name}" if folder else name
                if (not folder and name in NOT_COPIED) or name.endswith((".deleted", ".cleaned", ".tmp")):
                    continue
                if (self._data_dir / path).is_dir():
                    waiting.append(path)
                else:
                    yield path

    def _copy(self, source: Path, path: str) -> bool:
        """Copy a file up to its present size, or link it if it is unchanged. Return False if it is gone."""
        into = self._into / path
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            file = source.open("rb")
        except FileNotFoundError:
            return False
        with file:
            about = os.fstat(file.fileno())
            # The link in `.backup` changes a file's ctime, so ctime is not compared.
            mark = [about.st_size, about.st_ino, about.st_mtime_ns]
            self._files[path] = mark
            if self._before.get(path) == mark and not path.endswith("high-watermark") and self._linked_before(path):
                return True
            with into.open("xb") as copy:  # x: never write through a link into an earlier backup
                mark[0] = _copy_bytes(file.fileno(), copy.fileno(), about.st_size)
            self._copied_bytes += mark[0]
        return True

    def _linked_before(self, path: str) -> bool:
        """Link the previous backup's file. Return False if it is missing or cut, or the file system refuses links."""
        assert self._base is not None  # the mark came from it
        if _size(self._base / path) != self._before[path][0]:
            return False
        try:
            os.link(self._base / path, self._into / path)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.ENOENT}:
                raise
            return False
        return True


def _copy_bytes(source: int, target: int, size: int) -> int:
    """Copy `size` bytes. Return the number of bytes copied: fewer if the file was cut meanwhile."""
    left = size
    try:
        while left and (sent := os.copy_file_range(source, target, left)):
            left -= sent
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
            raise
        os.lseek(source, size - left, os.SEEK_SET)
        os.lseek(target, size - left, os.SEEK_SET)
        while left and (data := os.read(source, min(left, 1 << 20))):
            left -= os.write(target, data)
            os.lseek(source, size - left, os.SEEK_SET)
    return size - left


def _remove(path: Path) -> None:
    """Delete a file or a whole directory, as far as possible. A missing one is no error."""
    from shutil import rmtree  # 4 ms, because of its compressors: only for this command

    rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@command(
    OPERATIONS,
    "Makes a data directory from a backup",
    "<backup>",
    (("<backup>", "a directory that backup made"),),
    examples=(("restore /backups/amqpd/2026-11-23T03-45-00Z", "into --data-dir, which must be empty"),),
    needs_app=False,
)
def restore(context: Context) -> None:
    if not context.client.is_local:
        raise Failure(DATA, "restore must run on the machine of the new broker, with --data-dir")
    source, data_dir = Path(context.operands[0]).absolute(), Path(context.client.data_dir).absolute()
    about = _manifest(source)
    if about is None:
        inside = sorted(name for name in _names(source) if _NAME.fullmatch(name))
        advice = f"; there is {source / inside[-1]}" if inside else ""
        raise Failure(DATA, f"{source} is not a backup{advice}")
    coming = data_dir / COMING
    if set(_names(data_dir)) - {COMING}:
        raise Failure(DATA, f"{data_dir} is not empty: restore needs an empty directory")
    short = [path for path, mark in about["files"].items() if _size(source / "data" / path) != mark[0]]
    if short:
        raise Failure(DATA, f"{source} is damaged: {len(short)} files are missing or cut, for example {short[0]}")
    context.info(f"Restoring {source} to {data_dir} ...")
    try:
        from shutil import copytree

        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir.chmod(0o700)
        _remove(coming)  # files of a killed restore
        # Copies, not links: a broker writes into its files, and a backup must not change.
        copytree(source / "data", coming)
        _sync(coming)
        # The metadata come last: without them no broker starts on half a restore.
        for name in sorted(_names(coming), key=lambda name: (name == "metadata.sqlite", name)):
            (coming / name).rename(data_dir / name)
        coming.rmdir()
        _sync_directory(data_dir)
    except OSError as error:
        _remove(coming)
        # copytree continues after an error and raises one that has a list of all.
        why = error.strerror or error.args[0][0][2]
        raise Failure(DATA, f"{error.filename or data_dir}: {why}") from None
    context.success(f"amqpd --data-dir {data_dir} starts on it")


def _manifest(backup: Path) -> dict[str, Any] | None:
    """Return the manifest, None if there is no backup. Raises: Failure for another format."""
    try:
        about: object = json.loads((backup / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(about, dict):
        return None
    if about.get("format") != FORMAT:
        raise Failure(DATA, f"{backup} is of format {about.get('format')}, this amqpctl ({__version__}) knows {FORMAT}")
    return about


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # only names are needed, a hundred thousand times
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sync(folder: Path) -> None:
    """Sync every file and directory below a folder, and the folder."""
    for above, _, names in os.walk(folder):
        for name in names:
            _sync_directory(Path(above, name))
        _sync_directory(Path(above))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
