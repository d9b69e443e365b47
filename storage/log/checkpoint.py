"""Small files beside the segments, and the `format` file of a data directory.

Kafka's text files: a version, a count, and one line per entry.

    leader-epoch-checkpoint       `epoch start-offset` per line: one line per process that wrote to the log
    recovery-point-checkpoint     all segments that start before this offset are synced as a whole
    log-start-offset-checkpoint   no message before this offset is needed any more

Files of ours:

    clean-shutdown                one line: version, log end offset, base offset and size of the active segment, highest
                                  delivered offset, CRC-32C. Removed before anything else is written
    high-watermark                16 bytes, mapped: offset i64, zero u32, CRC-32C u32 over the 12 bytes before. Records
                                  below the offset are synced. Written after each sync; a reader that finds a bad CRC
                                  reads again
    format                        in the data directory: version of the format as a whole, and a checksum

A damaged file counts as missing. A missing file costs time at the start, because more is checked, but no message.
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
"""Format of a data directory. Increase it when an older amqpd must not open the directory any more. 1: before streams.
2: batches may be compressed or have a time per record, which an amqpd of format 1 takes for damage."""
FORMAT_WITH_DELAYS = 3
"""Format of a directory in which a message was ever delayed: an amqpd of format 2 would never release it."""
FORMAT_WITH_TRANSACTIONS = 4
"""Format of a directory that ever had a transaction of a Kafka producer: an amqpd of format 3 takes its batches for
damage."""
FORMAT_WITH_JOURNAL = 5
"""Format of a directory that ever had a journal (storage/journal.py): an amqpd of format 4 would not read it."""
VERSION = 0


class UnknownFormat(LogUnusable):
    """A newer version wrote a file. Nothing was changed."""


def encode_format(version: int = FORMAT_VERSION) -> bytes:
    """Return the content of the `format` file of a data directory."""
    text = f"amqpd data directory, format {version}"
    return f"{text} {value(text.encode())}\n".encode()


def check_format(filesystem: FileSystem, path: str) -> bool:
    """Return whether there is a good `format` file of the current version, or of a higher one that is known.

    A damaged file counts as missing, since metadata and `.settled` have versions of their own. So does an older
    version: its data is readable, and the directory becomes one of the current version.

    Cost: one small read. Raises: UnknownFormat if a newer version wrote it; OSError.
    """
    version = read_format(filesystem, path)
    if version > FORMAT_WITH_JOURNAL:
        known = FORMAT_WITH_JOURNAL
        raise UnknownFormat(f"{path}: format {version} of a newer version of amqpd; this one knows {known}")
    return version >= FORMAT_VERSION


def read_format(filesystem: FileSystem, path: str) -> int:
    """Return the version in the `format` file; 0 if it is missing or damaged. Raises: OSError."""
    try:
        text, _, crc = filesystem.read_file(path).decode("ascii").strip().rpartition(" ")
        return int(text.rpartition(" ")[2]) if value(text.encode()) == int(crc) else 0
    except (FileNotFoundError, ValueError):
        return 0


def encode_lines(entries: list[tuple[int, ...]]) -> bytes:
    """Return the content of a checkpoint file."""
    lines = [str(VERSION), str(len(entries)), *(" ".join(map(str, entry)) for entry in entries)]
    return ("\n".join(lines) + "\n").encode()


def read_lines(filesystem: FileSystem, path: str, width: int) -> list[tuple[int, ...]]:
    """Return the entries of a checkpoint file, `width` numbers each. Empty if the file is missing or damaged.

    An unknown version counts as damage: these files have no checksum, and `.settled` has the version of the log.
    """
    try:
        lines = filesystem.read_optional(path).decode("ascii").splitlines()
        entries = [tuple(map(int, line.split())) for line in lines[2:]]
        if int(lines[0]) != VERSION or len(entries) != int(lines[1]) or any(len(entry) != width for entry in entries):
            return []
    except (ValueError, IndexError):
        return []
    return entries


def encode_clean(next_offset: int, base: int, size: int, delivered: int) -> bytes:
    """Return the clean-shutdown mark."""
    text = f"{VERSION} {next_offset} {base} {size} {delivered}"
    return f"{text} {value(text.encode())}\n".encode()


def read_clean(filesystem: FileSystem, path: str) -> tuple[int, int, int, int] | None:
    """Return (log end offset, base of the active segment, its size, highest delivered offset), None without a good
    mark.

    In a mark of an older version the last number is missing; it is then far above all offsets. Raises: UnknownFormat.
    """
    try:
        text, _, crc = filesystem.read_optional(path).decode("ascii").strip().rpartition(" ")
        if value(text.encode()) != int(crc):
            return None
        version, next_offset, base, size, *more = map(int, text.split())
    except ValueError:
        return None
    if version > VERSION:
        raise UnknownFormat(path)
    return next_offset, base, size, more[0] if more else 1 << 62


def encode_high_watermark(offset: int) -> bytes:
    """Return the 16 bytes of the high-watermark file."""
    data = struct.pack(">qI", offset, 0)
    return data + struct.pack(">I", value(data))


def decode_high_watermark(data: bytes) -> int:
    """Return the offset, 0 if the bytes are damaged."""
    if len(data) < HIGH_WATERMARK_SIZE or value(data[:12]) != int.from_bytes(data[12:16], "big"):
        return 0
    return int.from_bytes(data[:8], "big")


def read_high_watermark(filesystem: FileSystem, path: str) -> int:
    """Return the offset in the file, 0 if there is none."""
    return decode_high_watermark(filesystem.read_optional(path))
