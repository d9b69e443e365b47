"""Read-only inspection of log files: `amqpctl dump_log` and `amqpctl verify_log`.

It works on the data directory of a running or a killed broker, or on a copy, locks nothing, and does not trust the
files. `inspect_file` reads one file and yields events in the order of its bytes. Events are batches, records, index
entries, entries of settled offsets, checkpoint lines, and `Damage` with file and position. `check_queue` compares
the files of one queue: segments must follow each other, totals must match, and settled offsets must be in the log.

In a live directory the last segment grows. Bytes after its last complete batch and missing index entries are
harmless above the high watermark, and so is what recovery cuts off.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from amqpd.storage.acks import ack_set, replay_file
from amqpd.storage.acks.ack_set import KIND_NAMES, AckFileReader, AckSet, add_acked_offsets, totals_entries
from amqpd.storage.acks.retained import decode_hold, is_hold
from amqpd.storage.filesystem import READ, FileSystem
from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import (
    CODECS,
    COMPRESSION,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    TRANSIENT,
    BatchCursor,
    BatchHeader,
    crc_fits,
    decompressed,
)
from amqpd.storage.log.record import BadRecord, Record
from amqpd.storage.log.segment import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex, segment_name

CHUNK_SIZE: Final = 1 << 20
CHECKPOINTS: Final = {checkpoint.LEADER_EPOCH: 2, checkpoint.RECOVERY_POINT: 1, checkpoint.LOG_START: 1}
"""Text checkpoints: name -> numbers in a line."""

IN_BETWEEN: Final = (".deleted", ".cleaned", ".swap")
_REST: Final = struct.Struct(">qqqhi")  # base timestamp, max timestamp, producer id, its epoch, base sequence


class Damage(NamedTuple):
    """An error in `file` at byte `position`.

    Harmless damage is expected by recovery and contains no confirmed message.
    """

    file: str
    position: int
    text: str
    harmless: bool = False


class InspectedBatch(NamedTuple):
    """A good batch. `records` is None unless requested, and empty for a transaction marker."""

    file: str
    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    epoch: int
    crc: int
    attributes: int
    base_timestamp_ms: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: list[Record] | None

    @property
    def flags(self) -> list[str]:
        names = ((TRANSIENT, "transient"), (TRANSACTIONAL, "transaction"), (CONTROL, "marker"))
        found = [name for bit, name in names if self.attributes & bit]
        if not self.attributes & LOG_APPEND_TIME:
            found.append("create-time")
        if self.attributes & COMPRESSION:
            found.append(CODECS[self.attributes & COMPRESSION])
        return found


class IndexEntry(NamedTuple):
    """An entry of `.index`: the batch that ends with `offset` begins at `log_position`."""

    file: str
    position: int
    offset: int
    log_position: int


class TimeEntry(NamedTuple):
    """An entry of `.timeindex`: no batch up to `offset` has a time after `timestamp_ms`."""

    file: str
    position: int
    timestamp_ms: int
    offset: int


class SettledEntry(NamedTuple):
    """An entry of a `.settled` file: see acks/ack_set.py."""

    file: str
    position: int
    kind: str
    a: int
    b: int
    c: int


class Text(NamedTuple):
    """The content of a small file."""

    file: str
    text: str


Event = InspectedBatch | IndexEntry | TimeEntry | SettledEntry | Text | Damage


def final_name(path: str) -> str:
    """Return the file's name without `.deleted`, `.cleaned` or `.swap`."""
    name = path.rpartition("/")[2]
    for suffix in IN_BETWEEN:
        name = name.removesuffix(suffix)
    return name


def is_segment_file(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in {".log", ".index", ".timeindex", ".settled"}


def is_known(name: str) -> bool:
    """Return whether `inspect_file` can read files with this plain name."""
    return (
        is_segment_file(name)
        or name in CHECKPOINTS
        or is_hold(name)
        or name == replay_file.NAME
        or name in {checkpoint.CLEAN_SHUTDOWN, checkpoint.HIGH_WATERMARK, "queue.json"}
    )


def inspect_file(
    filesystem: FileSystem, path: str, *, deep: bool = False, offsets: tuple[int, int] | None = None
) -> Iterator[Event]:
    """Yield the events of one file.

    Args:
        deep: include records.
        offsets: only batches and entries that overlap this range, both ends inclusive.

    Cost: one read of the file; a `.log` is read in pieces, so memory stays small.
    Raises: OSError; ValueError for an unknown file name.
    """
    name = final_name(path)
    kind = name[20:] if is_segment_file(name) else name
    base = int(name[:20]) if is_segment_file(name) else 0
    first, last = offsets if offsets is not None else (0, 1 << 62)
    if kind == ".log":
        yield from _log(filesystem, path, base, deep, first, last)
    elif kind == ".index":
        yield from _index(filesystem, path, base, first, last)
    elif kind == ".timeindex":
        yield from _time_index(filesystem, path, base, first, last)
    elif kind == ".settled":
        yield from _settled(filesystem, path, base)
    elif is_known(name):
        yield from _small(filesystem, path, name)
    else:
        raise ValueError(f"{path}: not a file name of a log")


class _LogFile:
    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self.fd = filesystem.open(path, READ)
        self.size = filesystem.file_size(self.fd)
        self._chunk = b""
        self._start = 0

    def close(self) -> None:
        self._filesystem.close(self.fd)

    def load(self, position: int, size: int) -> tuple[bytes, int] | None:
        """Return bytes and the index of `position` in them, with at least `size` bytes after it; None at the end."""
        at = position - self._start
        if not (at >= 0 and at + size <= len(self._chunk)):
            self._chunk = self._filesystem.pread(self.fd, max(size, CHUNK_SIZE), position)
            self._start, at = position, 0
        return (self._chunk, at) if len(self._chunk) - at >= size else None

    def header(self, position: int) -> BatchHeader | None:
        piece = self.load(position, int(HEADER_SIZE))
        return BatchHeader(*piece) if piece is not None else None

    def fault(self, position: int) -> str:
        """Return the fault of the batch at `position`, "" if it is good."""
        header = self.header(position)
        if header is None:
            return f"{self.size - position} bytes, too few for a batch"
        if not header.is_plausible():
            return f"not a batch (magic {header.magic}, size {header.size}, {header.count} records)"
        piece = self.load(position, header.size)
        if piece is None:
            return f"a batch of {header.size} bytes, of which {self.size - position} exist"
        if not crc_fits(*piece, header):
            return f"the batch of offsets {header.base_offset} to {header.last_offset} has a wrong checksum"
        return ""

    def next_good(self, position: int, index: OffsetIndex) -> int:
        """Return the position of the next good batch, -1 for none.

        It follows the bad batch if the size of that one is plausible; otherwise an entry of `index` leads to it.
        """
        header = self.header(position)
        if header is not None and header.is_plausible() and not self.fault(position + header.size):
            return position + int(header.size)
        while (position := index.next_position(position)) >= 0:
            if not self.fault(position):
                return position
        return -1


def read_sibling(filesystem: FileSystem, path: str, suffix: str) -> bytes:
    """Return the file of the same segment with `suffix`, nothing if it is missing."""
    try:
        return filesystem.read_file(path[: path.rfind("/") + 1] + final_name(path)[:20] + suffix)
    except OSError:
        return b""


def _confirmed_end(filesystem: FileSystem, path: str, base: int) -> int:
    """Return the offset below which a segment must be complete: the next segment, or the high watermark."""
    directory = path[: path.rfind("/")] if "/" in path else "."
    later = [
        int(name[:20]) for name in filesystem.listdir(directory) if is_segment_file(name) and int(name[:20]) > base
    ]
    return (
        min(later) if later else checkpoint.read_high_watermark(filesystem, f"{directory}/{checkpoint.HIGH_WATERMARK}")
    )


def _log(filesystem: FileSystem, path: str, base: int, deep: bool, first: int, last: int) -> Iterator[Event]:
    file = _LogFile(filesystem, path)
    try:
        index = OffsetIndex(read_sibling(filesystem, path, ".index"))
        position = 0
        expected = base
        if first > base:
            relative, start = index.floor(first - base)
            header = file.header(start) if relative >= 0 else None
            if header is not None and header.last_offset == base + relative and not file.fault(start):
                position, expected = start, int(header.base_offset)
        while position < file.size:
            fault = file.fault(position)
            if fault:
                good_position = file.next_good(position, index)
                if good_position < 0:
                    is_torn = expected >= _confirmed_end(filesystem, path, base)
                    yield Damage(path, position, f"{fault}; no good batch after it", harmless=is_torn)
                    return
                yield Damage(path, position, f"{fault}; {good_position - position} bytes are skipped")
                position = good_position
                continue
            header = file.header(position)
            assert header is not None
            if header.base_offset > last:
                return
            if header.base_offset < expected:
                yield Damage(path, position, f"offset {header.base_offset} where {expected} or more was expected")
            elif header.last_offset >= first:
                yield from _batch(file, path, position, header, deep)
                expected = int(header.last_offset) + 1
            position += int(header.size)
    finally:
        file.close()


def _batch(file: _LogFile, path: str, position: int, header: BatchHeader, deep: bool) -> Iterator[Event]:
    piece = file.load(position, header.size)
    assert piece is not None
    records: list[Record] = []
    try:
        BatchCursor(*decompressed(*piece, header)).read(0, None, {}, 1 << 62, records)
    except (BadRecord, IndexError) as error:
        yield Damage(path, position, f"the checksum is right, but the records are invalid: {error}")
        return
    base_ms, latest_ms, producer, producer_epoch, sequence = _REST.unpack_from(piece[0], piece[1] + 27)
    yield InspectedBatch(
        path,
        position,
        int(header.size),
        int(header.base_offset),
        int(header.last_offset),
        int(header.count),
        int(header.epoch),
        int(header.crc),
        int(header.attributes),
        base_ms,
        latest_ms,
        producer,
        producer_epoch,
        sequence,
        records if deep else None,
    )


def _index(filesystem: FileSystem, path: str, base: int, first: int, last: int) -> Iterator[Event]:
    data = filesystem.read_file(path)
    index = OffsetIndex(data)
    try:
        log: _LogFile | None = _LogFile(filesystem, path.removesuffix(".index") + ".log")
    except OSError:
        log = None
    try:
        before = (-1, -1)
        for number in range(len(index)):
            relative, position = index.entry(number)
            place = number * OFFSET_ENTRY_SIZE
            header = log.header(position) if log is not None else None
            if log is not None and (header is None or header.last_offset != base + relative):
                yield Damage(path, place, f"no batch at position {position} ends with offset {base + relative}")
                continue
            if relative <= before[0] or position <= before[1]:
                yield Damage(path, place, f"entry ({relative}, {position}) is not above {before}")
                continue
            before = (relative, position)
            if first <= base + relative <= last:
                yield IndexEntry(path, place, base + relative, position)
    finally:
        if log is not None:
            log.close()
    if len(data) % OFFSET_ENTRY_SIZE:
        yield Damage(path, len(index) * OFFSET_ENTRY_SIZE, "an incomplete entry", harmless=True)


def _time_index(filesystem: FileSystem, path: str, base: int, first: int, last: int) -> Iterator[Event]:
    data = filesystem.read_file(path)
    times = TimeIndex(data)
    latest, known = _latest_times(filesystem, path.removesuffix(".timeindex") + ".log")
    before = (-1, -1)
    for number in range(len(times)):
        timestamp_ms, relative = times.entry(number)
        place = number * TIME_ENTRY_SIZE
        if base + relative < known and latest.get(base + relative) != timestamp_ms:
            yield Damage(path, place, f"no batch of {timestamp_ms} ends with offset {base + relative}")
            continue
        if timestamp_ms <= before[0] or relative <= before[1]:
            yield Damage(path, place, f"entry ({timestamp_ms}, {relative}) is not above {before}")
            continue
        before = (timestamp_ms, relative)
        if first <= base + relative <= last:
            yield TimeEntry(path, place, timestamp_ms, base + relative)
    if len(data) % TIME_ENTRY_SIZE:
        yield Damage(path, len(times) * TIME_ENTRY_SIZE, "an incomplete entry", harmless=True)


def _latest_times(filesystem: FileSystem, path: str) -> tuple[dict[int, int], int]:
    """Return (last offset of each batch -> latest time up to it, offset below which these are known)."""
    found: dict[int, int] = {}
    latest = position = known = 0
    try:
        file = _LogFile(filesystem, path)
    except OSError:
        return found, known
    try:
        while (header := file.header(position)) is not None and header.is_plausible():
            latest = max(latest, int(header.max_timestamp_ms))
            known = int(header.last_offset) + 1
            found[known - 1] = latest
            position += int(header.size)
        if position >= file.size and position:
            known = 1 << 62
    finally:
        file.close()
    return found, known


def _settled(filesystem: FileSystem, path: str, base: int) -> Iterator[Event]:
    data = filesystem.read_file(path)
    file = AckFileReader(data)
    for position, entry in file.entries_by_position():
        if entry is None:
            whole = position != file.torn
            text = "an entry with a wrong checksum" if whole else "an incomplete entry"
            yield Damage(path, position, f"{text}; what it settled is delivered again", harmless=not whole)
            continue
        kind, a, b, c = entry
        if kind == ack_set.HEADER and b > ack_set.VERSION:
            yield Damage(path, position, f"format {b} of a newer version; this one knows {ack_set.VERSION}")
            return
        if kind == ack_set.HEADER and a != base:
            yield Damage(path, position, f"belongs to the segment of offset {a}")
        yield SettledEntry(path, position, KIND_NAMES[kind], a, b, c)


def _small(filesystem: FileSystem, path: str, name: str) -> Iterator[Event]:
    data = filesystem.read_file(path)
    if name in CHECKPOINTS:
        entries = checkpoint.read_lines(filesystem, path, CHECKPOINTS[name])
        if not entries and data.split()[1:2] != [b"0"]:
            yield Damage(path, 0, "not a checkpoint; it counts as missing")
            return
        yield Text(path, ", ".join(" ".join(map(str, entry)) for entry in entries))
    elif name == checkpoint.CLEAN_SHUTDOWN:
        try:
            clean = checkpoint.read_clean(filesystem, path)
        except checkpoint.UnknownFormat:
            yield Damage(path, 0, "format of a newer version")
            return
        if clean is None:
            yield Damage(path, 0, "a wrong checksum; the next start checks the log")
        else:
            yield Text(path, f"next offset {clean[0]}, active segment {segment_name(clean[1])} of {clean[2]} bytes")
    elif name == checkpoint.HIGH_WATERMARK:
        mark = checkpoint.decode_high_watermark(data)
        if mark == 0 and data.strip(b"\0") and checkpoint.encode_high_watermark(0) != data[:16]:
            yield Damage(path, 0, "a wrong checksum", harmless=True)
        else:
            yield Text(path, f"offsets below {mark} are synced")
    elif name == replay_file.NAME:
        told = replay_file.decode_rewind(data)
        if told is None:
            yield Damage(path, 0, "incomplete; nothing is rewound", harmless=True)
        else:
            yield Text(path, "a rewind that the next start completes")
    elif is_hold(name):
        held = decode_hold(data)
        if held is None:
            yield Damage(path, 0, "a wrong checksum; all is kept until the exporter commits again", harmless=True)
        else:
            yield Text(path, f"exported below offset {held[0]}; at most {held[1]} bytes are kept")
    else:
        try:
            yield Text(path, json.dumps(json.loads(data), ensure_ascii=False))
        except ValueError:
            yield Damage(path, 0, "not JSON")


class QueueReport:
    """The result of `check_queue`. `settled_count`: offsets of existing logs that are settled, lost or no message."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.queue = ""
        self.vhost = ""
        self.segment_count = 0
        self.batch_count = 0
        self.record_count = 0
        self.settled_count = 0
        self.size_bytes = 0
        self.start_offset = 0
        self.next_offset = 0
        self.epoch_count = 0
        self.damage: list[Damage] = []
        self.foreign: list[str] = []

    @property
    def bad(self) -> list[Damage]:
        return [each for each in self.damage if not each.harmless]


def check_queue(filesystem: FileSystem, directory: str) -> QueueReport:
    """Read all files of one queue's directory and compare them.

    Files that a live queue deletes meanwhile are skipped.

    Cost: one read of everything. Raises: OSError.
    """
    report = QueueReport(directory)
    names = sorted(filesystem.listdir(directory))
    report.epoch_count = len(checkpoint.read_lines(filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2))
    logs = [name for name in names if is_segment_file(name) and name.endswith(".log")]
    bases = [int(name[:20]) for name in logs]
    report.start_offset = bases[0] if bases else 0
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(IN_BETWEEN):
            continue  # temporary names, which recovery handles
        if not is_known(name):
            report.foreign.append(name)
            continue
        try:
            if name.endswith(".log"):
                number = bases.index(int(name[:20]))
                _check_log(filesystem, path, report, bases[number + 1] if number + 1 < len(bases) else -1)
            else:
                for event in inspect_file(filesystem, path):
                    if isinstance(event, Damage):
                        report.damage.append(event)
                    elif isinstance(event, Text) and name == "queue.json":
                        described = json.loads(event.text)
                        if isinstance(described, dict):
                            report.queue = str(described.get("queue", ""))
                            report.vhost = str(described.get("vhost", ""))
        except FileNotFoundError:
            continue
    report.segment_count = len(logs)
    return report


def _check_log(filesystem: FileSystem, path: str, report: QueueReport, next_base: int) -> None:
    base = int(final_name(path)[:20])
    end = base
    count = 0
    for event in inspect_file(filesystem, path):
        if isinstance(event, Damage):
            report.damage.append(event)
        elif isinstance(event, InspectedBatch):
            if 0 <= next_base <= event.last_offset:
                text = f"offsets {event.base_offset} to {event.last_offset} belong to the next segment"
                report.damage.append(Damage(path, event.position, text))
            end = event.last_offset + 1
            report.batch_count += 1
            if not event.attributes & CONTROL:
                count += event.record_count
            report.size_bytes += event.size
    known = AckSet(base)
    data = read_sibling(filesystem, path, ".settled") + read_sibling(filesystem, path, ".settled.swap")
    entries = AckFileReader(data).entries
    add_acked_offsets(entries, known, end)
    for told, size in totals_entries(entries):
        if next_base >= 0 and size > filesystem.size(path) and told > end:
            text = f"{size} bytes were sealed here; the rest is missing"
            report.damage.append(Damage(path, filesystem.size(path), text))
    report.record_count += count
    report.settled_count += int(known.count)
    report.next_offset = max(report.next_offset, end)


def queue_directories(filesystem: FileSystem, data_dir: str) -> list[str]:
    """Return the sorted directories of all logs: queues, then delayed messages, per vhost.

    Empty for another directory.
    """
    root = f"{data_dir}/vhosts"
    found: list[str] = []
    for vhost in sorted(filesystem.listdir(root)):
        found += _below(filesystem, f"{root}/{vhost}/queues")
        for exchange in _below(filesystem, f"{root}/{vhost}/delays"):
            found += _below(filesystem, exchange)
    return found


def _below(filesystem: FileSystem, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in sorted(filesystem.listdir(directory))]
