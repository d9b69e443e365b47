"""The small files beside the segments. Text ones are Kafka's: a version, a count, one line per entry.

    leader-epoch-checkpoint       `epoch start-offset` per line: one line per start of the broker that wrote to the log
    recovery-point-checkpoint     every segment that starts before this offset is known to be on the medium, whole
    log-start-offset-checkpoint   nothing before this offset is wanted any more
    clean-shutdown                log end offset, base offset and size of the active segment, as a clean stop left them;
                                  removed
                                  before anything else is written
    format                        in the data directory: its format as a whole, with a checksum
    high-watermark                16 bytes, mapped: offset i64, zero u32, CRC-32C u32 over the twelve before. Records
                                  below
                                  the offset are synced. Written after each sync; a reader that sees a bad CRC reads
                                  again

A damaged one is taken for a missing one, and a missing one costs time at the start (more is checked), never a message.
"""

from __future__ import annotations

import struct

from google_crc32c import value

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.queue_log import LogUnusable

LEADER_EPOCH = "leader-epoch-checkpoint"
RECOVERY_POINT = "recovery-point-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = "clean-shutdown"
HIGH_WATERMARK = "high-watermark"
HIGH_WATERMARK_SIZE = 16
FORMAT = "format"
FORMAT_VERSION = 2
"""Of a data directory as a whole; raised when an older amqpd must not touch it any more. 1: until the first streams.
2: batches may be compressed or have a time for each record, which format 1 takes for damage."""
FORMAT_WITH_DELAYS = 3
"""Of one in which a message was delayed at some time: format 2 would neither see nor release it. It stays so."""
VERSION = 0


class UnknownFormat(LogUnusable):
    """A file was written by a newer version; nothing was touched."""


def encode_format(version: int = FORMAT_VERSION) -> bytes:
    """The text of a data directory's `format` file: what it is, the version of its layout, and a checksum."""
    text = f"amqpd data directory, format {version}"
    return f"{text} {value(text.encode())}\n".encode()


def check_format(filesystem: FileSystem, path: str) -> bool:
    """Whether there is a good `format` file of today's format, or of the one with delays. A damaged one is as good as
    none: metadata and `.settled` tell theirs. So is one of an older format: all of it is read, and from now on it is of
    today's.

    Cost: one small read. Raises: UnknownFormat when a newer version wrote it; OSError.
    """
    try:
        text, _, crc = filesystem.read_file(path).decode("ascii").strip().rpartition(" ")
        if value(text.encode()) != int(crc):
            return False
        version = int(text.rpartition(" ")[2])
    except (FileNotFoundError, ValueError):
        return False
    if version > FORMAT_WITH_DELAYS:
        known = FORMAT_WITH_DELAYS
        raise UnknownFormat(f"{path}: format {version} of a newer version of amqpd; this one knows {known}")
    return version >= FORMAT_VERSION


def encode_lines(entries: list[tuple[int, ...]]) -> bytes:
    """The text of a checkpoint file."""
    lines = [str(VERSION), str(len(entries)), *(" ".join(map(str, entry)) for entry in entries)]
    return ("\n".join(lines) + "\n").encode()


def read_lines(filesystem: FileSystem, path: str, width: int) -> list[tuple[int, ...]]:
    """The entries of a checkpoint file, each `width` numbers; none where the file is missing or damaged.

    An unknown version counts as damage: these files have no checksum, and `.settled` says which format a log has.
    """
    try:
        lines = filesystem.read_if_there(path).decode("ascii").splitlines()
        entries = [tuple(map(int, line.split())) for line in lines[2:]]
        if int(lines[0]) != VERSION or len(entries) != int(lines[1]) or any(len(entry) != width for entry in entries):
            return []
    except (ValueError, IndexError):
        return []
    return entries


def encode_clean(next_offset: int, base: int, size: int, delivered: int) -> bytes:
    """The clean-shutdown mark: version, four numbers and their checksum."""
    text = f"{VERSION} {next_offset} {base} {size} {delivered}"
    return f"{text} {value(text.encode())}\n".encode()


def read_clean(filesystem: FileSystem, path: str) -> tuple[int, int, int, int] | None:
    """(log end offset, base of the active segment, its size, highest offset that was delivered); None where there is no
    good mark. The last is far above all offsets in a mark of before it was told there. Raises: UnknownFormat.
    """
    try:
        text, _, crc = filesystem.read_if_there(path).decode("ascii").strip().rpartition(" ")
        if value(text.encode()) != int(crc):
            return None
        version, next_offset, base, size, *more = map(int, text.split())
    except ValueError:
        return None
    if version > VERSION:
        raise UnknownFormat(path)
    return next_offset, base, size, more[0] if more else 1 << 62


def encode_high_watermark(offset: int) -> bytes:
    """The 16 bytes of the high-watermark file."""
    data = struct.pack(">qI", offset, 0)
    return data + struct.pack(">I", value(data))


def decode_high_watermark(data: bytes) -> int:
    """The offset, or 0 where the bytes are damaged."""
    if len(data) < HIGH_WATERMARK_SIZE or value(data[:12]) != int.from_bytes(data[12:16], "big"):
        return 0
    return int.from_bytes(data[:8], "big")


def read_high_watermark(filesystem: FileSystem, path: str) -> int:
    """The offset in the file, 0 where there is none."""
    return decode_high_watermark(filesystem.read_if_there(path))
