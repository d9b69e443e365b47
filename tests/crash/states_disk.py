"""A disk that records what was written and what of it is synced, and lists what a power cut may leave.

A file is the list of its versions: the first is on the medium; each later one is a write, a truncation or an assignment
to a mapping that no sync has covered. A name (created, moved, removed) is safe when its directory was synced. From both
follow the *images* that a machine may find after a power cut:

of a file any of its versions; the next one torn at a sector of 512 bytes; its full length with zeros where bytes were
not written, from a sector on or in one sector; after a truncation, the old tail behind the new bytes of the names every
prefix of the changes since the last sync; each change missing; each change alone (changes of one name keep their order,
as in any file system); an entry of a missing directory is missing

and their product: all names with all files old or new, each form of each file with the others old or new, and as many
random draws as requested. An image is a mapping path -> bytes, None for a directory.

`watch` is called after each change, so that images are taken at every step. `during_sync` is called inside each sync of
a file; the sync does not cover what is written then.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from amqpd.storage.filesystem import RESERVE_SIZE_BYTES, FileSystem, MappedBytes

SECTOR: Final = 512
SECTORS_MAX: Final = 12  # torn and zeroed places tried in one write
RESERVE_PATH: Final = "/data/reserve"
ALONE_MAX: Final = 8  # changes of names tried alone, the latest ones
Image = dict[str, bytes | None]


class File:
    """The versions of one file: the first is on the medium, the others are not synced."""

    __slots__ = ("_forms", "_forms_of", "versions")

    def __init__(self, data: bytes) -> None:
        self.versions = [data]
        self._forms: list[bytes] = []
        self._forms_of: tuple[bytes, bytes, int] = (b"", b"", -1)

    def forms(self) -> list[bytes]:
        """Return the contents that a power cut may leave: the safe version first, the newest last."""
        versions = self.versions
        oldest, newest, count = self._forms_of
        if oldest is versions[0] and newest is versions[-1] and count == len(versions):
            return self._forms
        found: dict[bytes, None] = dict.fromkeys(versions)
        for before, after in pairwise(versions):
            if len(after) == len(before):  # written over, in part
                changed = [cut for cut in range(0, len(after), SECTOR) if after[cut:][:SECTOR] != before[cut:][:SECTOR]]
                for cut in changed[1 : SECTORS_MAX + 1]:
                    found[after[:cut] + before[cut:]] = None
                    found[before[:cut] + after[cut:]] = None
            elif len(after) > len(before):
                for cut in _sectors(len(before), len(after)):
                    found[after[:cut]] = None
        first, last = versions[0], versions[-1]
        size = len(last)
        if last.startswith(first):
            for cut in [len(first), *_sectors(len(first), size)]:
                found[last[:cut] + bytes(size - cut)] = None
                stop = min(size, cut - cut % SECTOR + SECTOR)
                found[last[:cut] + bytes(stop - cut) + last[stop:]] = None
        else:
            for old in versions[:-1]:
                if len(old) > size:
                    found[last + old[size:]] = None
        found.pop(last)
        self._forms = [*found, last]
        self._forms_of = (first, last, len(versions))
        return self._forms


def _sectors(low: int, high: int) -> list[int]:
    """Return the sector borders between low and high, only some of them if they are many."""
    borders = list(range(low - low % SECTOR + SECTOR, high, SECTOR))
    if len(borders) > SECTORS_MAX:
        borders = borders[: SECTORS_MAX // 2] + borders[-SECTORS_MAX // 2 :]
    return borders


class _Mapping:
    def __init__(self, disk: Disk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __setitem__(self, key: slice, value: bytes, /) -> None:
        data = bytearray(self._file.versions[-1])
        data[key] = value
        self._file.versions.append(bytes(data))
        self._disk.changed()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


Entries = dict[str, File | None]
Change = tuple[str, str, str, File | None]  # kind, path, target, file


class Disk(FileSystem):
    """A file system that knows what is synced. image: the content of the medium, all of it synced."""

    def __init__(self, image: Image | None = None) -> None:
        super().__init__()
        self.entries: Entries = {}
        for path, data in (image if image is not None else {}).items():
            self.entries[path] = None if data is None else File(data)
        self.safe: Entries = dict(self.entries)
        self.changes: list[Change] = []
        self.watch: Callable[[], None] | None = None
        self.during_sync: Callable[[], None] | None = None
        self._names: list[Entries] | None = None  # caches of `names` and `listdir`
        self._listed: dict[str, list[str]] | None = None
        self._open: dict[int, tuple[File, str]] = {}
        self._next_fd = 100

    # -- images

    def changed(self) -> None:
        if self.watch is not None:
            self.watch()

    def image(self) -> Image:
        """Return what processes see; a kill leaves the same."""
        return {path: None if file is None else file.versions[-1] for path, file in self.entries.items()}

    def forget(self) -> None:
        """Release the memory of a disk that is not used again."""
        self.entries, self.safe = {}, {}
        self.changes.clear()
        self._names = self._listed = None
        self._open.clear()

    def synced(self, start: str, part: str) -> bool:
        """Return whether all files whose path starts with `start` and contains `part` are synced, and their names
        too.
        """
        paths = [path for path in {**self.entries, **self.safe} if path.startswith(start) and part in path]
        files = [self.entries.get(path) for path in paths]
        return all(self.safe.get(path) is file for path, file in zip(paths, files, strict=True)) and all(
            file is None or len(file.versions) == 1 for file in files
        )

    def killed(self) -> Disk:
        """Return the disk after a kill of the process: unsynced data stays unsynced."""
        twins: dict[File, File] = {}

        def twin(file: File | None) -> File | None:
            if file is None:
                return None
            if file not in twins:
                twins[file] = other = File(b"")
                other.versions = list(file.versions)
            return twins[file]

        after = Disk()
        after.entries = {path: twin(file) for path, file in self.entries.items()}
        after.safe = {path: twin(file) for path, file in self.safe.items()}
        after.changes = [(kind, path, target, twin(file)) for kind, path, target, file in self.changes]
        return after

    def names(self) -> list[Entries]:
        """Return the sets of names that a power cut may leave: the synced ones first, the newest last. Do not change
        them.
        """
        if self._names is not None:
            return self._names
        changes = self.changes
        count = len(changes)
        chosen = [changes[:length] for length in range(count)]
        for alone in range(max(0, count - ALONE_MAX), count):
            chosen.append([*changes[:alone], *_without(changes[alone:])])
            chosen.append(_leading_to(changes[: alone + 1]))
        chosen.append(changes)
        self._names = [self._with(each) for each in chosen]
        return self._names

    def _with(self, changes: list[Change]) -> Entries:
        entries = dict(self.safe)
        for change in changes:
            _apply(entries, change)
        reached: Entries = {}
        for path in sorted(entries):
            parent = path.rpartition("/")[0]
            if not parent or parent in reached:
                reached[path] = entries[path]
        return reached

    def images(self, rng: random.Random, draws: int) -> Iterator[Image]:
        """Yield the images that a power cut may leave now, some more than once."""
        names = self.names()
        newest = names[-1]
        files = list(
            dict.fromkeys(
                file for each in names for file in each.values() if file is not None and len(file.versions) > 1
            )
        )
        for entries in names:
            yield {path: None if file is None else file.versions[0] for path, file in entries.items()}
            yield {path: None if file is None else file.versions[-1] for path, file in entries.items()}
        for entries in (names[0], newest):
            there = set(entries.values())
            for varied in files:
                if varied not in there:
                    continue
                for others in (0, -1):
                    image = {path: None if file is None else file.versions[others] for path, file in entries.items()}
                    places = [path for path, file in entries.items() if file is varied]
                    for form in varied.forms():
                        changed = dict(image)
                        for place in places:
                            changed[place] = form
                        yield changed
        for _ in range(draws if files or len(names) > 1 else 0):
            entries = rng.choice(names)
            forms = {file: rng.choice(file.forms()) for file in files}
            yield {path: None if file is None else forms.get(file, file.versions[-1]) for path, file in entries.items()}

    # -- system calls

    def _file(self, path: str) -> File:
        if path not in self.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        file = self.entries[path]
        if file is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return file

    def path_of(self, fd: int) -> str:
        """Return the path under which it was opened."""
        return self._open[fd][1]

    def _change(self, kind: str, path: str, target: str = "", file: File | None = None) -> None:
        change = (kind, path, target, file)
        _apply(self.entries, change)
        self.changes.append(change)
        self._listed = self._names = None
        self.changed()

    def open(self, path: str, flags: int) -> int:
        """See FileSystem."""
        if path not in self.entries:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if path.rpartition("/")[0] not in self.entries:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self._change("add", path, "", File(b""))
        file = self._file(path)
        if flags & os.O_TRUNC and file.versions[-1]:
            file.versions.append(b"")
            self.changed()
        self._next_fd += 1
        self._open[self._next_fd] = (file, path)
        return self._next_fd

    def close(self, fd: int) -> None:
        """See FileSystem."""
        del self._open[fd]

    def write(self, fd: int, data: bytes) -> int:
        """See FileSystem. Every write is an append."""
        versions = self._open[fd][0].versions
        versions.append(versions[-1] + data)
        self.changed()
        return len(data)

    def writev(self, fd: int, parts: list[bytes]) -> int:
        """See FileSystem."""
        return self.write(fd, b"".join(parts))

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        """See FileSystem."""
        versions = self._open[fd][0].versions
        before = versions[-1].ljust(position, b"\x00")
        versions.append(before[:position] + data + before[position + len(data) :])
        self.changed()
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """See FileSystem."""
        return self._open[fd][0].versions[-1][position : position + size]

    def truncate(self, fd: int, size: int) -> None:
        """See FileSystem."""
        versions = self._open[fd][0].versions
        data = versions[-1]
        versions.append(data[:size] + bytes(max(0, size - len(data))))
        self.changed()

    def fdatasync(self, fd: int) -> None:
        """See FileSystem."""
        file = self._open[fd][0]
        number = len(file.versions) - 1
        during = self.during_sync
        if during is not None:
            self.during_sync = None  # not recursively
            during()
            self.during_sync = during
        file.versions = file.versions[number:]
        self.changed()

    def fsync_dir(self, path: str) -> None:
        """See FileSystem."""
        rest: list[Change] = []
        for change in self.changes:
            if _directory(change[1]) == path or (change[2] and _directory(change[2]) == path):
                _apply(self.safe, change)
            else:
                rest.append(change)
        self.changes = rest
        self._names = None
        self.changed()

    def syncfs(self, fd: int) -> None:
        """See FileSystem."""
        for file in {*self.entries.values(), *self.safe.values()}:
            if file is not None:
                file.versions = file.versions[-1:]
        self.safe = dict(self.entries)
        self.changes = []
        self._names = None
        self.changed()

    def size(self, path: str) -> int:
        """See FileSystem. Of the reserve: see `exists`."""
        return RESERVE_SIZE_BYTES if path == RESERVE_PATH else len(self._file(path).versions[-1])

    def file_size(self, fd: int) -> int:
        """See FileSystem."""
        return len(self._open[fd][0].versions[-1])

    def exists(self, path: str) -> bool:
        """See FileSystem. The reserve always exists and is in no image, since its megabyte tests nothing."""
        return path in self.entries or path == RESERVE_PATH

    def listdir(self, path: str) -> list[str]:
        """See FileSystem."""
        if self._listed is None:
            self._listed = {}
            for name in self.entries:
                parent, _, last = name.rpartition("/")
                self._listed.setdefault(parent, []).append(last)
        return self._listed.get(path, [])[:]

    def mkdir(self, path: str) -> bool:
        """See FileSystem."""
        if path in self.entries:
            return False
        self._change("add", path)
        return True

    def rmdir(self, path: str) -> None:
        """See FileSystem."""
        if path not in self.entries:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._change("del", path)

    def rename(self, source: str, target: str) -> None:
        """See FileSystem."""
        if source not in self.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._change("move", source, target, self.entries[source])

    def unlink(self, path: str) -> None:
        """See FileSystem."""
        if path in self.entries:
            self._file(path)
            self._change("del", path)

    def map(self, path: str, size: int) -> MappedBytes:
        """See FileSystem."""
        self.close(self.open(path, os.O_RDWR | os.O_CREAT))
        file = self._file(path)
        if len(file.versions[-1]) < size:
            file.versions.append(file.versions[-1].ljust(size, b"\x00"))
            self.changed()
        return _Mapping(self, file)

    def free_bytes(self, path: str) -> int:
        """See FileSystem. The disk is never full."""
        return 1 << 40

    def lock(self, fd: int) -> None:
        """See FileSystem."""

    def is_open_at(self, fd: int, path: str) -> bool:
        """See FileSystem."""
        return True

    def read_file(self, path: str) -> bytes:
        """See FileSystem."""
        return self._file(path).versions[-1]


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _without(changes: list[Change]) -> list[Change]:
    """Return the changes without the first one and without later ones of the same names, which keep their order."""
    touched = _names(changes[0])
    kept = []
    for change in changes[1:]:
        if touched.isdisjoint(_names(change)):
            kept.append(change)
        else:
            touched |= _names(change)
    return kept


def _leading_to(changes: list[Change]) -> list[Change]:
    """Return the last change, and the earlier ones of the same names."""
    touched = _names(changes[-1])
    kept = [changes[-1]]
    for change in reversed(changes[:-1]):
        if not touched.isdisjoint(_names(change)):
            touched |= _names(change)
            kept.insert(0, change)
    return kept


def _names(change: Change) -> set[str]:
    return {name for name in change[1:3] if name}


def _apply(entries: Entries, change: Change) -> None:
    kind, path, target, file = change
    if kind == "add":
        entries[path] = file
    elif kind == "del":
        entries.pop(path, None)
    else:
        if file is None:  # with the content of the directory
            for below in [each for each in entries if each.startswith(f"{path}/")]:
                entries[target + below[len(path) :]] = entries.pop(below)
        entries.pop(path, None)
        entries[target] = file
        if file is None:  # with the content of the directory
            start = path + "/"
            for name in [each for each in entries if each.startswith(start)]:
                entries[f"{target}/{name[len(start) :]}"] = entries.pop(name)


def key_of(image: Image) -> int:
    """Return a 64-bit key; images with equal keys are equal."""
    return hash(frozenset(image.items()))
