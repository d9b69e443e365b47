"""The journal: one file that makes the appends of several logs safe with one sync.

A commit that touches several logs writes the bytes of all of them into one *frame* and syncs the journal once. The
logs have the same bytes in the page cache. A sync of the logs follows later, in the background. A start restores bytes
that a log lost with the page cache, before anything else reads the log.

**File.** `<data_dir>/journal` has two halves, written in turn. It is created with zeros and synced, so that a commit
changes no metadata of the file system. Frames follow each other from the beginning of a half, each at a multiple of
BLOCK_SIZE: a torn write never touches an earlier frame.

    file    key block, half, half, key block; a key block is the magic, the key of 16 random bytes, its CRC-32C u32
    frame   magic 4 bytes, CRC-32C u32 of the rest, size u32 of the whole frame, count u32 of the entries,
            sequence i64 of this use of the half, number i64 in it, the key; then the entries
    entry   position i64 in the log file, data size u32, path size u16; path below the data directory, data

All numbers are big-endian. A half is used again when a sync of the logs began after the last frame in it. Its
sequence is then higher by two, that of the other half by one: old frames behind the new ones do not count.

**Empty.** `empty` writes frames without entries over the beginning of both halves. This happens after each recovery, at
a clean stop, and before a compacted segment takes the name of another one: then no frame is about a file whose content
is different. The sequence grows by two, and only the last two sequences of a file count: otherwise a torn write over
an empty frame would make the frames behind it count again.

Publishers do not know the key, so no body of a message can be a frame. Recovery searches torn frames for whole ones.

A frame may be about a file that was removed since (its segment was settled, or its queue deleted); it is skipped. The
directories of queues have random names that are used once. Logs of other things do not use the journal.

**Failures.** After a failed sync of a log, or of the journal, the frames stay for the next start, and no new ones are
written until then.
"""

from __future__ import annotations

import logging
import os
import secrets
import struct
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from google_crc32c import extend, value

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.sync_job import SyncPart

logger = logging.getLogger(__name__)

NAME: Final = "journal"
SIZE_BYTES: Final = 32 << 20
BLOCK_SIZE: Final = 4096
# Free disk space, in sizes of the journal, without which it is not created.
FREE_FACTOR: Final = 16
MAGIC: Final = b"aqj1"
KEY_SIZE: Final = 16
_HEADER = struct.Struct(">4sIIIqq16s")
_CHECKED_FROM: Final = 8  # the CRC is over the bytes from here on
_ENTRY = struct.Struct(">qIH")
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


FrameEntry: TypeAlias = tuple[bytes, int, list[bytes]]
"""Path below the data directory, position in the file, parts of the data."""


class JournalFrame:
    """A frame that was read. `entries` are (path below the data directory, position, data); `size` is with padding."""

    def __init__(self, sequence: int, number: int, entries: list[tuple[str, int, bytes]], size: int) -> None:
        self.size = size
        self.sequence = sequence
        self.number = number
        self.entries = entries


def encode_key_block(key: bytes) -> bytes:
    """Return the first and last block of a journal."""
    return b"".join((MAGIC, key, struct.pack(">I", value(key)))).ljust(BLOCK_SIZE, b"\x00")


def decode_key_block(data: bytes) -> bytes:
    """Return the key, nothing if the block is damaged."""
    key = data[len(MAGIC) : len(MAGIC) + KEY_SIZE]
    crc = data[len(MAGIC) + KEY_SIZE : len(MAGIC) + KEY_SIZE + 4]
    return key if data.startswith(MAGIC) and len(crc) == 4 and value(key) == int.from_bytes(crc, "big") else b""


def _padded(size: int) -> int:
    return size + -size % BLOCK_SIZE


def frame_size(entries: list[FrameEntry]) -> int:
    """Return the size of a frame with these entries and its padding."""
    return _padded(_HEADER.size + sum([_ENTRY.size + len(path) + sum(map(len, data)) for path, _, data in entries]))


def encode_frame(key: bytes, sequence: int, number: int, entries: list[FrameEntry]) -> bytes:
    """Return a frame, padded to blocks. Cost: a copy and a CRC of the data."""
    parts: list[bytes] = [b""]
    size = _HEADER.size
    for path, position, data in entries:
        data_size = sum(map(len, data))
        size += _ENTRY.size + len(path) + data_size
        parts.append(_ENTRY.pack(position, data_size, len(path)) + path)
        parts += data
    header = _HEADER.pack(MAGIC, 0, size, len(entries), sequence, number, key)
    crc = value(header[_CHECKED_FROM:])
    for part in parts:
        crc = extend(crc, part)
    parts[0] = b"".join((MAGIC, struct.pack(">I", crc), header[_CHECKED_FROM:]))
    parts.append(bytes(-size % BLOCK_SIZE))
    return b"".join(parts)


def decode_frame(data: bytes, start: int, key: bytes) -> JournalFrame | None:
    """Return the frame at `start`, None if there is no whole one."""
    if data[start : start + 4] != MAGIC or start + _HEADER.size > len(data):
        return None
    _, crc, size, count, sequence, number, found = _HEADER.unpack_from(data, start)
    if found != key or size < _HEADER.size or start + size > len(data):
        return None
    if value(data[start + _CHECKED_FROM : start + size]) != crc:
        return None
    entries: list[tuple[str, int, bytes]] = []
    place = start + _HEADER.size
    for _ in range(count):
        position, data_size, path_size = _ENTRY.unpack_from(data, place)
        place += _ENTRY.size
        path = data[place : place + path_size].decode()
        place += path_size
        entries.append((path, position, data[place : place + data_size]))
        place += data_size
    return JournalFrame(sequence, number, entries, _padded(size))


class JournalHalf:
    """The frames of one half.

    Attributes:
        sequence: that of the frames; 0 if there are none.
        missing: frames that are damaged although later ones are whole.
    """

    def __init__(self, data: bytes, key: bytes) -> None:
        self.frames: list[JournalFrame] = []
        self.sequence = 0
        self.missing = 0
        for frame in _whole_frames(data, key):
            if frame.sequence > self.sequence:
                # Frames of an earlier use do not count, wherever damage has left one before these.
                self.frames, self.missing, self.sequence = [], frame.number, frame.sequence
            elif frame.sequence < self.sequence:
                continue
            else:
                self.missing += frame.number - self.frames[-1].number - 1
            self.frames.append(frame)


def _whole_frames(data: bytes, key: bytes) -> Iterator[JournalFrame]:
    place = 0
    while place < len(data):
        frame = decode_frame(data, place, key)
        if frame is None:
            place += BLOCK_SIZE
        else:
            yield frame
            place += frame.size


class Journal:
    """The journal of a data directory. The fsync thread writes; the loop and the background thread read `sequence`.

    Args:
        directory: the data directory.
        size_bytes: of a new file; a multiple of two blocks.

    Attributes:
        fd: -1 until `create`. It is also the descriptor for `syncfs` in the background, which gets its own report of
            each error.
        usable: frames may be written.
        sequence: that of the current half.
        synced_sequence: the logs have been synced since the last frame with this sequence.
        frame_count: frames written by this process.
    """

    def __init__(self, filesystem: FileSystem, directory: str, size_bytes: int) -> None:
        self.fd = -1
        self.usable = False
        self.stopped = False
        self.sequence = 0
        self.synced_sequence = 0
        self.frame_count = 0
        self._filesystem = filesystem
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._half_size = _half_size_of(size_bytes)
        self._key = secrets.token_bytes(KEY_SIZE)
        self._position = 0
        self._number = 0
        self._is_empty = True

    # -- the start

    def recover(self) -> None:
        """Put what the logs lost back, sync them, and empty the journal. Before any log is opened.

        Cost: nothing without a journal, some small reads and a write with its sync after a clean stop. Otherwise also a
        read of the journal, a read and a write of as many bytes of logs, and a sync.

        Raises: OSError; the start must fail then, because the logs would use the offsets of what is missing again.
        """
        filesystem = self._filesystem
        if not filesystem.exists(self._path):
            filesystem.unlink(f"{self._path}.swap")  # its creation was interrupted
            return
        self.fd = filesystem.open(self._path, _WRITE)
        self._half_size = _half_size_of(filesystem.file_size(self.fd))
        found = read_journal(filesystem, self.fd, self._half_size)
        self.sequence = self.synced_sequence = found.sequence
        if found.missing:
            logger.error("%s is damaged: %d commits in it cannot be read", self._path, found.missing)
        if not found.key:
            logger.error("%s is damaged and replaced; nothing in it can be read", self._path)
            self.remove()
            return
        self._key = found.key
        frames = found.frames
        if frames:
            try:
                restored = restore(filesystem, self._directory, frames)
                filesystem.syncfs(self.fd)
            except OSError as error:
                reason = f"logs cannot be restored from it: {error.strerror}"
                raise OSError(error.errno, reason, self._path) from error
            if restored:
                logger.warning("%d bytes of logs were restored from %s", restored, self._path)
        # Also if it reads as empty: a kill may have left this in the page cache alone.
        self._is_empty = False
        self.empty()
        self.usable = True

    def create(self) -> None:
        """Create the file, if it does not exist. Raises: OSError. Cost: a sync of the whole file."""
        filesystem = self._filesystem
        if self.fd >= 0:
            return
        temporary = f"{self._path}.swap"
        fd = filesystem.open(temporary, _WRITE | os.O_TRUNC)
        try:
            end = self._start_of(2)
            for start in range(BLOCK_SIZE, end, 1 << 20):
                filesystem.pwrite_whole(fd, bytes(min(1 << 20, end - start)), start)
            for start in (0, end):
                filesystem.pwrite_whole(fd, encode_key_block(self._key), start)
            filesystem.fdatasync(fd)
            filesystem.rename(temporary, self._path)
            filesystem.fsync_dir(self._directory)
        except OSError:
            filesystem.close(fd)
            filesystem.unlink(temporary)
            raise
        self.fd = fd
        self.usable = True

    def has_room_on_disk(self) -> bool:
        """Return whether the disk has enough free space for a new journal."""
        return self._filesystem.free_bytes(self._directory) >= FREE_FACTOR * 2 * self._half_size

    def _start_of(self, index: int) -> int:
        return BLOCK_SIZE + index * self._half_size

    def remove(self) -> None:
        """Delete the file, which is empty. Raises: OSError."""
        self.close()
        self._filesystem.unlink(self._path)

    # -- writing, in the fsync thread

    @property
    def needs_background_sync(self) -> bool:
        """True if frames in the other half wait for a sync of the logs."""
        return self.synced_sequence < self.sequence - 1

    def append(self, parts: list[SyncPart]) -> bool:
        """Write the data of the parts as a frame and sync it. Return False if this is not possible now: sync the logs.

        Raises: OSError; the journal is stopped then.
        """
        start = len(self._directory) + 1
        entries = [(part.journal_path[start:].encode(), part.journal_position, part.journal_data) for part in parts]
        size = frame_size(entries)
        if size > self._half_size:
            return False
        if self._number == 0 or self._position + size > self._half_size:
            if self.needs_background_sync:
                return False
            self.sequence += 1
            self._position = self._number = 0
        frame = encode_frame(self._key, self.sequence, self._number, entries)
        place = self._start_of(self.sequence % 2) + self._position
        try:
            self._is_empty = False
            self._filesystem.pwrite_whole(self.fd, frame, place)
            self._filesystem.fdatasync(self.fd)
        except OSError:
            self.stop()
            raise
        self._position += len(frame)
        self._number += 1
        self.frame_count += 1
        return True

    def on_logs_synced(self, mark: int) -> None:
        """Record that all logs were synced after the last frame with a sequence below `mark`."""
        self.synced_sequence = max(self.synced_sequence, mark - 1)

    def empty(self) -> None:
        """Make all frames void. All logs are synced. Raises: OSError; the journal is stopped then."""
        if self._is_empty or self.fd < 0:
            return
        if self.stopped:
            raise OSError("the journal has data of a log that could not be synced")
        self.sequence += 2  # see Empty in the docstring of the module
        self.synced_sequence = self.sequence
        frame = encode_frame(self._key, self.sequence, 0, [])
        try:
            for index in (0, 1):
                self._filesystem.pwrite_whole(self.fd, frame, self._start_of(index))
            self._filesystem.fdatasync(self.fd)
        except OSError:
            self.stop()
            raise
        self._position = self._number = 0
        self._is_empty = True

    def sync_and_empty(self, root_fd: int) -> None:
        """Sync the whole disk and make all frames void.

        Args:
            root_fd: a descriptor on the disk. A descriptor reports an error once, and `fd` is for another thread.

        Raises: OSError; the journal is stopped then.
        """
        if self._is_empty:
            return
        try:
            self._filesystem.syncfs(root_fd)
        except OSError:
            self.stop()
            raise
        self.empty()

    def stop(self) -> None:
        """Write nothing more; the frames stay for the next start."""
        if self.usable:
            logger.error("%s is not used until the next start, because a sync failed", self._path)
        self.usable = False
        self.stopped = not self._is_empty

    def close(self) -> None:
        self.usable = False
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._filesystem.close(fd)


def _half_size_of(size_bytes: int) -> int:
    return max(0, size_bytes // BLOCK_SIZE - 2) // 2 * BLOCK_SIZE


def restore(filesystem: FileSystem, directory: str, frames: list[JournalFrame]) -> int:
    """Write the data of these frames to the log files, without a sync. Return the number of bytes that they lacked.

    Files that do not exist are skipped. Raises: OSError.
    """
    by_path: dict[str, list[tuple[int, bytes]]] = {}
    for frame in frames:
        for path, position, data in frame.entries:
            by_path.setdefault(path, []).append((position, data))
    restored = 0
    for name, pieces in by_path.items():
        path = f"{directory}/{name}"
        if not filesystem.exists(path):
            continue  # its messages were settled, or its queue was deleted
        fd = filesystem.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for position, data in pieces:
                if position > filesystem.file_size(fd):
                    logger.error("%s: a commit before %d is missing in the journal", path, position)
                    break  # recovery would cut off everything behind the hole
                if filesystem.pread(fd, len(data), position) != data:
                    restored += len(data)
                # Also if they are equal: after a failed sync the page cache has bytes that the disk lacks, and the
                # kernel takes these pages for clean.
                filesystem.pwrite_whole(fd, data, position)
        finally:
            filesystem.close(fd)
    return restored


class JournalContent:
    """The content of a journal file.

    Attributes:
        key: empty if the file is damaged so far that no frame can be read.
        sequence: the highest one.
        missing: frames that are damaged although later ones are whole.
        frames: those with entries, oldest first.
    """

    def __init__(self, key: bytes, halves: list[JournalHalf]) -> None:
        self.key = key
        self.sequence = max([half.sequence for half in halves], default=0)
        halves = sorted([half for half in halves if half.sequence >= self.sequence - 1], key=attrgetter("sequence"))
        self.missing = sum(half.missing for half in halves)
        self.frames = [frame for half in halves for frame in half.frames if frame.entries]


def read_journal(filesystem: FileSystem, fd: int, half_size: int) -> JournalContent:
    """Read a journal. A half that was emptied is not read to its end. Raises: OSError."""
    key = b""
    for start in (0, BLOCK_SIZE + 2 * half_size):
        key = key or decode_key_block(filesystem.pread(fd, BLOCK_SIZE, start))
    if not key:
        return JournalContent(key, [])
    halves: list[JournalHalf] = []
    for start in (BLOCK_SIZE, BLOCK_SIZE + half_size):
        data = filesystem.pread(fd, 2 * BLOCK_SIZE, start)
        first = decode_frame(data, 0, key)
        if first is not None and not first.entries and _sequence_at(data, BLOCK_SIZE) <= first.sequence:
            data = data[:BLOCK_SIZE]
        else:
            data = filesystem.pread(fd, half_size, start)
        halves.append(JournalHalf(data, key))
    return JournalContent(key, halves)


def _sequence_at(data: bytes, start: int) -> int:
    sequence: int = _HEADER.unpack_from(data, start)[4] if start + _HEADER.size <= len(data) else 0
    return sequence
