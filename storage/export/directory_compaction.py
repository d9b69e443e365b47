"""Compaction of a directory of Parquet files, for readers that list it.

A directory is replaced as a whole. Its successor has the merged files, and hard links to all other files. One system
call exchanges the two (renameat2 with RENAME_EXCHANGE), so a reader lists the old files or the new ones. A reader that
has listed the old files, but not opened them yet, does not find them: an error, not a wrong result.

Successors and replaced directories are in `.<to>.<id>.compaction`, beside the target, because the exchange needs one
file system. After a kill everything there can be deleted: before the exchange these are copies, after it the old files.

Exports rename files with a shared lock of the target's directory, and the exchange has its exclusive lock. So no file
appears in a directory while its successor is made. A file system without these locks has no such exchange.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from amqpd.storage.export.checkpoint import checkpoint_kind, directory_lock, sync_path
from amqpd.storage.export.file_compaction import (
    WORK_SUFFIX,
    CompactionError,
    CompactionOptions,
    CompactionReport,
    FoundFile,
    Watch,
    by_schema,
    merge,
    merged_name,
    plan,
)
from amqpd.storage.export.shared_checkpoint import known_export

RETIRE_S: float = 1.0
"""So long after the last exchange the replaced directories stay for readers that are listing them."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def compact_directory(options: CompactionOptions, watch: Watch) -> CompactionReport:
    """Merge small files below `options.to`. Raises CompactionError, CheckpointError, OSError."""
    root = Path(options.to).resolve()
    if not root.is_dir():
        raise CompactionError(f"{options.to} is not a directory")
    if root.is_mount():
        raise CompactionError(f"{root} is the root of a file system, which cannot be exchanged: use a directory in it")
    found = [
        FoundFile(str(path.relative_to(root)), path.stat().st_size)
        for path in root.rglob("*.parquet")
        if path.is_file() and not path.is_symlink()
    ]
    export = known_export(options.checkpoint)
    work = root.with_name(f".{root.name}.{export.id}{WORK_SUFFIX}")
    _remove(work)
    groups = plan(found, export, options)
    report = CompactionReport(waiting=sum(map(len, groups)))
    watch.say(report)
    try:
        for directory, of_directory in groupby(groups, key=lambda group: group[0].directory):
            if watch.stopped():
                break
            _compact(root, work, directory, list(of_directory), report)
            watch.say(report)
    except Exception:
        _retire(work, report)
        raise
    _retire(work, report)
    return report


def _retire(work: Path, report: CompactionReport) -> None:
    if report.merged:
        time.sleep(RETIRE_S)
    _remove(work)


def _remove(work: Path) -> None:
    if work.exists():
        shutil.rmtree(work)


def _compact(root: Path, work: Path, directory: str, groups: list[list[FoundFile]], report: CompactionReport) -> None:
    """Replace the groups of one directory by merged files."""
    work.mkdir(mode=0o700, exist_ok=True)  # the directory may have readers that others must not be
    successor = work / f"{len(list(work.iterdir()))}"
    successor.mkdir()
    merged: list[FoundFile] = []
    sizes: list[int] = []
    for group in groups:
        for files in by_schema(group, lambda each: root / each.name):
            sizes.append(merge((root / each.name for each in files), successor / merged_name(files)))
            merged += files
    report.waiting -= sum(map(len, groups)) - len(merged)
    if not merged:
        return
    place = root / directory
    with directory_lock(root, fcntl.LOCK_EX):
        if not all(_is_unchanged(root, each) for each in merged):
            raise CompactionError(f"{place}: another program has changed its files. A rerun merges the others")
        _link_others(place, successor, {Path(each.name).name for each in merged})
        exchange(place, successor)
        for parent in (place.parent, work, work.parent):
            sync_path(parent)
    report.add(merged, len(sizes), sum(sizes))


def _is_unchanged(root: Path, file: FoundFile) -> bool:
    path = root / file.name
    return path.exists() and path.stat().st_size == file.size


def _link_others(place: Path, successor: Path, merged: Collection[str]) -> None:
    """Make the successor equal to a directory without its merged files. Files are linked, not copied."""
    if kind := checkpoint_kind(place):
        raise CompactionError(
            f"{place} is the checkpoint of an {kind}, which may change meanwhile: move the checkpoint elsewhere"
        )
    with os.scandir(place) as found:
        entries = list(found)
    for entry in entries:
        target = successor / entry.name
        if entry.is_dir(follow_symlinks=False):
            target.mkdir()
            _link_others(Path(entry.path), target, ())
        elif entry.name not in merged:
            os.link(entry.path, target, follow_symlinks=False)
    for user, group in ((-1, place.stat().st_gid), (place.stat().st_uid, -1)):
        with suppress(PermissionError):  # only root may give a directory to another user
            os.chown(successor, user, group)
    shutil.copystat(place, successor)
    sync_path(successor)


def exchange(one: Path, other: Path) -> None:
    """Exchange two directories in one step. Raises CompactionError where the system cannot, OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise CompactionError("this system's C library has no renameat2, which the exchange of directories needs")
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY):
        raise CompactionError(
            f"{one}: its file system cannot exchange directories ({os.strerror(number)}). ext4, XFS, Btrfs and tmpfs "
            "can; for others export to a table (--format delta, iceberg)"
        )
    raise OSError(number, os.strerror(number), str(one))
