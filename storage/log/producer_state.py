"""Which producers have numbered their messages, and how far each has come in one log.

A producer that wants each message once gives itself an id, an epoch and to each message a sequence (Kafka's idempotent
producer). The batch header has the three; this is the table of the last ones, by which a copy is told from a new
message. It is remembered over restarts by a file beside the segments:

    00000000000000004711.snapshot    what the log had been told below that offset, as Kafka writes it (version 1):
                                     version i16, CRC-32C u32 over what follows, count i32, then per producer: id i64,
                                     epoch i16, last sequence i32, last offset i64, offset delta i32 (0: single
                                     messages), time i64 ms, coordinator epoch i32 (-1), open transaction i64 (-1)

One is written, synced, when all below its offset is on the disk: before the recovery point moves, before a segment goes
that had any of it, and at a clean stop. What recovery scans (all behind the recovery point) goes on from there. A
damaged one has every segment scanned. A log that no producer has numbered for has none, and its table is not made.

At most PRODUCERS_MAX producers: then the one that has been silent longest is forgotten, and so is who was silent for a
day. What could not be written is taken back (`unwritten`): it may be sent again. Of the last UNSAFE_MAX messages that
are not known to be safe it is known what was before each; of those before them only what was before the first of each
producer. Where so many fail, its copies of what was written may be stored again, but nothing counts as stored that is
not.

Compiled by mypyc. Source: Kafka, ProducerStateManager.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict, deque
from typing import Final, final

from google_crc32c import value
from mypy_extensions import i64

from amqpd.storage.filesystem import FileSystem

logger = logging.getLogger(__name__)

SUFFIX: Final = ".snapshot"
PRODUCERS_MAX: Final = 10_000
SILENT_MS_MAX: Final = 24 * 60 * 60 * 1000
VERSION: Final = 1
UNSAFE_MAX: Final = 65_536
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


@final
class Producer:
    """The last message of one producer in one log. Immutable. offset: where it is. time_ms: when, wall clock."""

    def __init__(self, producer_id: i64, epoch: i64, sequence: i64, offset: i64, time_ms: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.offset: i64 = offset
        self.time_ms: i64 = time_ms

    def has(self, epoch: i64, sequence: i64) -> bool:
        """Whether a message of these numbers is a copy of one that is in the log."""
        return epoch == self.epoch and sequence <= self.sequence


@final
class _Step:
    """A message that is not known to be safe, or several of one producer: the offset of the last, and the producer's
    entry before the first, None: it had none.
    """

    def __init__(self, producer_id: i64, offset: i64, before: Producer | None) -> None:
        self.producer_id: i64 = producer_id
        self.offset: i64 = offset
        self.before: Producer | None = before


@final
class Producers:
    """The producers of one log, or of a queue that has none. due: a snapshot is to be written with the next job."""

    def __init__(self) -> None:
        self.due: bool = False
        self._known: OrderedDict[int, Producer] = OrderedDict()
        self._unsafe: deque[_Step] = deque()
        # Those before them, by producer; none has a higher offset than `_early_last`.
        self._early: dict[int, _Step] = {}
        self._early_last: i64 = -1

    def __len__(self) -> int:
        return len(self._known)

    def find(self, producer_id: i64, now_ms: i64) -> Producer | None:
        """The last message of that producer; None where none is remembered. now_ms: wall clock."""
        producer = self._known.get(producer_id)
        if producer is not None and now_ms - producer.time_ms > SILENT_MS_MAX:
            return None
        return producer

    def note(self, producer: Producer, high_watermark: i64) -> None:
        """This is the producer's last message now. high_watermark: what is below is safe. Cost: about 1 us."""
        unsafe = self._unsafe
        while unsafe and unsafe[0].offset < high_watermark:
            unsafe.popleft()
        if self._early and self._early_last < high_watermark:
            self._early.clear()
        if len(unsafe) >= UNSAFE_MAX:
            self._note_early(unsafe.popleft())
        before = self._put(producer)
        if producer.offset >= high_watermark:
            unsafe.append(_Step(producer.producer_id, producer.offset, before))

    def _note_early(self, step: _Step) -> None:
        early = self._early.get(step.producer_id)
        if early is None:
            self._early[step.producer_id] = step
        else:
            early.offset = step.offset
        self._early_last = step.offset

    def _put(self, producer: Producer) -> Producer | None:
        known = self._known
        before = known.pop(producer.producer_id, None)
        known[producer.producer_id] = producer
        while len(known) > PRODUCERS_MAX:
            known.popitem(last=False)
        return before

    def unwritten(self, first: i64) -> None:
        """What has this offset, or is behind it, is not in the log: it may be sent again."""
        unsafe = self._unsafe
        while unsafe and unsafe[-1].offset >= first:
            _take_back(self._known, unsafe.pop())
        if self._early and self._early_last >= first:
            for step in list(self._early.values()):
                if step.offset >= first:
                    _take_back(self._known, step)
                    del self._early[step.producer_id]

    def cut(self, end: i64) -> None:
        """The log ends at this offset: what was behind it may be sent again."""
        for producer in list(self._known.values()):
            if producer.offset >= end:
                del self._known[producer.producer_id]
        self._unsafe.clear()
        self._early.clear()

    def merge(self, scanned: Producers, start: i64) -> None:
        """What a scan has found from offset `start` on, which is in the log."""
        for producer in scanned._known.values():
            if producer.offset >= start:
                self._put(producer)

    # -- the file

    def encode(self, end: i64) -> bytes:
        """The text of a snapshot of what is below offset `end`. Cost: 1 us per producer."""
        known = dict(self._known)
        for step in reversed(self._unsafe):
            if step.offset >= end:
                _take_back(known, step)
        for step in self._early.values():
            if step.offset >= end:
                _take_back(known, step)
        entries: list[bytes] = []
        for each in known.values():
            entries.append(
                _ENTRY.pack(each.producer_id, each.epoch, each.sequence, each.offset, 0, each.time_ms, -1, -1)
            )
        covered = len(entries).to_bytes(4, "big") + b"".join(entries)
        crc: int = value(covered)
        return VERSION.to_bytes(2, "big") + crc.to_bytes(4, "big") + covered

    def decode(self, data: bytes) -> bool:
        """Takes what a snapshot tells; False, and nothing, for one that is damaged or of another version."""
        if len(data) < _HEAD.size:
            return False
        version, crc, count = _HEAD.unpack_from(data)
        size = _HEAD.size + count * _ENTRY.size
        if version != VERSION or count < 0 or len(data) != size or value(data[6:]) != crc:
            return False
        for number in range(count):
            fields = _ENTRY.unpack_from(data, _HEAD.size + number * _ENTRY.size)
            self._put(Producer(fields[0], fields[1], fields[2], fields[3], fields[5]))
        return True


def _take_back(known: dict[int, Producer], step: _Step) -> None:
    if step.before is not None:
        known[step.producer_id] = step.before
    else:
        known.pop(step.producer_id, None)


def snapshot_path(directory: str, end: i64) -> str:
    """Where the snapshot of what is below offset `end` stands."""
    number: int = end
    return f"{directory}/{number:020d}{SUFFIX}"


def write_snapshot(filesystem: FileSystem, path: str, data: bytes) -> None:
    """Writes it, synced with its name; those before it go. Any thread. Raises: OSError."""
    directory, _, own = path.rpartition("/")
    filesystem.replace_file(path, data, sync=True)
    filesystem.fsync_dir(directory)
    for name in filesystem.listdir(directory):
        if name.endswith(SUFFIX) and name != own:
            filesystem.unlink(f"{directory}/{name}")


def read_snapshot(filesystem: FileSystem, directory: str, names: list[str]) -> tuple[Producers, int] | None:
    """The newest good snapshot, and its offset; None where there is none. Raises: OSError."""
    for name in sorted([name for name in names if name[:20].isdigit() and name[20:] == SUFFIX], reverse=True):
        producers = Producers()
        if producers.decode(filesystem.read_file(f"{directory}/{name}")):
            return producers, int(name[:20])
        logger.error("%s/%s is damaged", directory, name)
    return None
