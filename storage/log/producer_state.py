"""Producers that number their messages: the last sequence of each one in one log.

An idempotent producer gives itself an id and an epoch, and each message a sequence, as in Kafka. The batch header has
all three. This table has the last message of each producer, so that a repeated message is recognised. Kafka's clients
send whole batches, up to five at a time, so the table also has the last BATCHES_MAX batches of a producer. A file
beside the segments preserves the table:

    00000000000000004711.snapshot    state below this offset, in Kafka's format (version 1):
                                     version i16, CRC-32C u32 over the rest, count i32, then per producer: id i64,
                                     epoch i16, last sequence i32, last offset i64, offset delta i32 (0: single
                                     messages), time i64 ms, coordinator epoch i32 (-1), first offset of the open
                                     transaction i64 (-1 for none).
                                     A producer has an entry for each batch that is known, the oldest first; Kafka
                                     writes the last one only. An entry with sequence and offset -1 only says that an
                                     otherwise unknown producer has an open transaction

A snapshot is written and synced when all below its offset is on the disk: before the recovery point moves, before a
segment with such messages is removed, and at a clean stop. Recovery continues from it with the segments that it
scans. If the snapshot is damaged, all segments are scanned. A log without such producers has no table and no file.

Limits: beyond PRODUCERS_MAX the producer that was silent longest is forgotten, and so is one that was silent for a
day.

Failed writes: `undo_from` restores the previous state of a producer, because its messages may be sent again. The
previous states of the last UNSAFE_MAX unsynced messages are known; before those, only the state before the first
message of each producer. If so many writes fail, messages may be stored twice, but no lost message counts as stored.

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
from amqpd.storage.log.batch import BatchHeader

logger = logging.getLogger(__name__)

SUFFIX: Final = ".snapshot"
PRODUCERS_MAX: Final = 10_000
SILENT_MS_MAX: Final = 24 * 60 * 60 * 1000
VERSION: Final = 1
UNSAFE_MAX: Final = 65_536
BATCHES_MAX: Final = 5
"""Batches that are known of a producer: as many as Kafka's clients send without waiting for an answer."""
NO_SEQUENCE: Final[i64] = -1
"""The last sequence of a producer of which only a marker is known: its next one is 0."""
SEQUENCE_MAX: Final[i64] = 0x7FFF_FFFF
"""The highest sequence; Kafka's producers continue with 0."""
EPOCH_MAX: Final[i64] = 0x7FFF
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_FIRST: Final = struct.Struct(">q")  # the last field of an entry


@final
class Producer:
    """The last message of one producer in one log. Immutable.

    Attributes:
        offset: the offset of that message.
        time_ms: the time of its append, wall clock.
        batches: entries of a snapshot for the last batches of this epoch, the oldest first; empty if the last message
            was recorded alone.
    """

    def __init__(
        self, producer_id: i64, epoch: i64, sequence: i64, offset: i64, time_ms: i64, batches: bytes = b""
    ) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.offset: i64 = offset
        self.time_ms: i64 = time_ms
        self.batches: bytes = batches

    def find_batch(self, epoch: i64, first: i64, last: i64) -> i64:
        """Return the offset of the last message of the batch with these sequences, -1 if it is not known."""
        if epoch == self.epoch:
            for place in range(0, len(self.batches), _ENTRY.size):
                fields = _ENTRY.unpack_from(self.batches, place)
                if fields[2] == last and (last - fields[4]) & SEQUENCE_MAX == first:
                    offset: i64 = fields[3]
                    return offset
        return -1

    def entries(self) -> bytes:
        """Return the entries of a snapshot for this producer."""
        if self.batches:
            return self.batches
        return _ENTRY.pack(self.producer_id, self.epoch, self.sequence, self.offset, 0, self.time_ms, -1, -1)

    def contains(self, epoch: i64, sequence: i64) -> bool:
        """Return whether a message with these numbers is already in the log."""
        return epoch == self.epoch and sequence <= self.sequence


@final
class _Step:
    """One or several unsynced messages of one producer.

    Attributes:
        offset: the offset of the last message.
        before: state of the producer before the first message, None if it was unknown.
    """

    def __init__(self, producer_id: i64, offset: i64, before: Producer | None) -> None:
        self.producer_id: i64 = producer_id
        self.offset: i64 = offset
        self.before: Producer | None = before


@final
class Producers:
    """The producers of one log, or of a queue without a log.

    Attributes:
        due: the next job must write a snapshot.
        open_transactions: producer -> first offset, as a decoded snapshot says; log/transactions.py has them later.
    """

    def __init__(self) -> None:
        self.due: bool = False
        self.open_transactions: dict[int, int] = {}
        self._known: OrderedDict[int, Producer] = OrderedDict()
        self._unsafe: deque[_Step] = deque()
        # Older unsynced messages, by producer; none has a higher offset than `_older_last`.
        self._older: dict[int, _Step] = {}
        self._older_last: i64 = -1

    def __len__(self) -> int:
        return len(self._known)

    def find(self, producer_id: i64, now_ms: i64) -> Producer | None:
        """Return the last message of a producer, None if it is unknown.

        Args:
            now_ms: the wall clock, without a jump that is held back (storage/clock_watch.py).

        Cost: a look-up, and a step for each producer that is forgotten now.
        """
        known = self._known
        producer = known.get(producer_id)
        if producer is not None and now_ms - producer.time_ms > SILENT_MS_MAX:
            producer = None
        while known and now_ms - next(iter(known.values())).time_ms > SILENT_MS_MAX:
            known.popitem(last=False)
        return producer

    def record(self, producer: Producer, high_watermark: i64) -> None:
        """Record the last message of a producer. Cost: about 1 us.

        Args:
            high_watermark: messages below it are safe.
        """
        unsafe = self._unsafe
        while unsafe and unsafe[0].offset < high_watermark:
            unsafe.popleft()
        if self._older and self._older_last < high_watermark:
            self._older.clear()
        if len(unsafe) >= UNSAFE_MAX:
            self._record_older(unsafe.popleft())
        before = self._put(producer)
        if producer.offset >= high_watermark:
            unsafe.append(_Step(producer.producer_id, producer.offset, before))

    def record_batch(self, header: BatchHeader, now_ms: i64, high_watermark: i64) -> None:
        """Record a batch with a producer, as the last one of this producer. Cost: about 2 us.

        Args:
            header: with the offsets that the batch has in the log.
            now_ms: the wall clock. The time in the batch may be any: a client has set it.
        """
        delta: i64 = header.last_offset - header.base_offset
        sequence: i64 = (header.base_sequence + delta) & SEQUENCE_MAX
        epoch: i64 = header.producer_epoch & EPOCH_MAX
        known_delta: i64 = delta if delta < SEQUENCE_MAX else SEQUENCE_MAX
        entry = _ENTRY.pack(header.producer_id, epoch, sequence, header.last_offset, known_delta, now_ms, -1, -1)
        before = self._known.get(header.producer_id)
        if before is not None and before.epoch == epoch:
            entry = _last_entries(before.batches + entry)
        self.record(Producer(header.producer_id, epoch, sequence, header.last_offset, now_ms, entry), high_watermark)

    def record_marker(self, header: BatchHeader, now_ms: i64, high_watermark: i64) -> None:
        """Record the marker of a transaction. One with a higher epoch fences the producer: its earlier epochs are old.

        Args:
            header: with the offset of the marker in the log.
            now_ms: the wall clock.
        """
        epoch: i64 = header.producer_epoch & EPOCH_MAX
        before = self._known.get(header.producer_id)
        if before is None or before.epoch < epoch:
            fenced = Producer(header.producer_id, epoch, NO_SEQUENCE, header.base_offset, now_ms)
            self.record(fenced, high_watermark)

    def all(self) -> list[Producer]:
        """Return the producers, the one that was silent longest first."""
        return list(self._known.values())

    def _record_older(self, step: _Step) -> None:
        older = self._older.get(step.producer_id)
        if older is None:
            self._older[step.producer_id] = step
        else:
            older.offset = step.offset
        self._older_last = step.offset

    def _put(self, producer: Producer) -> Producer | None:
        known = self._known
        before = known.pop(producer.producer_id, None)
        known[producer.producer_id] = producer
        while len(known) > PRODUCERS_MAX:
            known.popitem(last=False)
        return before

    def undo_from(self, first: i64) -> None:
        """Restore the state before the messages at `first` and above: they are not in the log."""
        unsafe = self._unsafe
        while unsafe and unsafe[-1].offset >= first:
            _restore(self._known, unsafe.pop())
        if self._older and self._older_last >= first:
            for step in list(self._older.values()):
                if step.offset >= first:
                    _restore(self._known, step)
                    del self._older[step.producer_id]

    def truncate(self, end: i64) -> None:
        """Forget producers whose last message is at `end` or above: recovery has cut the log there."""
        for producer in list(self._known.values()):
            if producer.offset >= end:
                del self._known[producer.producer_id]
        self._unsafe.clear()
        self._older.clear()

    def merge(self, scanned: Producers, start: i64) -> None:
        """Add the producers that a scan has found from offset `start` on."""
        for producer in scanned._known.values():
            if producer.offset >= start:
                before = self._known.get(producer.producer_id)
                self._put(producer if before is None else _joined(before, producer))

    # -- the file

    def encode(self, end: i64, transactions: dict[int, tuple[int, int]] | None = None) -> bytes:
        """Return the content of a snapshot of the state below offset `end`. Cost: 1 us per producer.

        Args:
            transactions: producer -> (epoch, first offset) of the transactions that are open there.
        """
        known = dict(self._known)
        for step in reversed(self._unsafe):
            if step.offset >= end:
                _restore(known, step)
        for step in self._older.values():
            if step.offset >= end:
                _restore(known, step)
        open_there: dict[int, tuple[int, int]] = {} if transactions is None else transactions
        parts = [each.entries() for each in known.values() if each.producer_id not in open_there]
        for producer_id, (epoch, first) in open_there.items():
            producer = known.get(producer_id)
            if producer is None:
                parts.append(_ENTRY.pack(producer_id, epoch, NO_SEQUENCE, -1, 0, -1, -1, first))
            else:
                parts.append(producer.entries()[: -_FIRST.size] + _FIRST.pack(first))
        entries = b"".join(parts)
        covered = (len(entries) // _ENTRY.size).to_bytes(4, "big") + entries
        crc: int = value(covered)
        return VERSION.to_bytes(2, "big") + crc.to_bytes(4, "big") + covered

    def decode(self, data: bytes) -> bool:
        """Add the producers of a snapshot. Return False, and add none, if it is damaged or of another version."""
        if len(data) < _HEAD.size:
            return False
        version, crc, count = _HEAD.unpack_from(data)
        size = _HEAD.size + count * _ENTRY.size
        if version != VERSION or count < 0 or len(data) != size or value(data[6:]) != crc:
            return False
        for number in range(count):
            place = _HEAD.size + number * _ENTRY.size
            fields = _ENTRY.unpack_from(data, place)
            if fields[7] >= 0:
                self.open_transactions[fields[0]] = fields[7]
                if fields[3] < 0:
                    continue
            batches = data[place : place + _ENTRY.size - _FIRST.size] + _FIRST.pack(-1)
            before = self._known.get(fields[0])
            if before is not None and before.epoch == fields[1]:
                batches = _last_entries(before.batches + batches)
            self._put(Producer(fields[0], fields[1], fields[2], fields[3], fields[5], batches))
        return True


def _last_entries(entries: bytes) -> bytes:
    return entries[-BATCHES_MAX * _ENTRY.size :]


def _joined(before: Producer, after: Producer) -> Producer:
    """Return `after` with the batches of `before`, which a scan may have found in part only."""
    if before.epoch == after.epoch and after.sequence == NO_SEQUENCE:
        return before  # only a marker was found
    if before.epoch != after.epoch or not after.batches:
        return after
    newer = b""
    for place in range(0, len(after.batches), _ENTRY.size):
        if _ENTRY.unpack_from(after.batches, place)[3] > before.offset:
            newer += after.batches[place : place + _ENTRY.size]
    batches = _last_entries(before.batches + newer)
    return Producer(after.producer_id, after.epoch, after.sequence, after.offset, after.time_ms, batches)


def _restore(known: dict[int, Producer], step: _Step) -> None:
    if step.before is not None:
        known[step.producer_id] = step.before
    else:
        known.pop(step.producer_id, None)


def snapshot_path(directory: str, end: i64) -> str:
    """Return the path of the snapshot of the state below offset `end`."""
    number: int = end
    return f"{directory}/{number:020d}{SUFFIX}"


def write_snapshot(filesystem: FileSystem, path: str, data: bytes) -> None:
    """Write a snapshot, synced with its name, and remove older ones. Any thread. Raises: OSError."""
    directory, _, own = path.rpartition("/")
    filesystem.replace_file(path, data, sync=True)
    filesystem.fsync_dir(directory)
    for name in filesystem.listdir(directory):
        if name.endswith(SUFFIX) and name != own:
            filesystem.unlink(f"{directory}/{name}")


def read_snapshot(filesystem: FileSystem, directory: str, names: list[str]) -> tuple[Producers, int] | None:
    """Return the newest good snapshot and its offset, None if there is none. Raises: OSError."""
    for name in sorted([name for name in names if name[:20].isdigit() and name[20:] == SUFFIX], reverse=True):
        producers = Producers()
        if producers.decode(filesystem.read_file(f"{directory}/{name}")):
            return producers, int(name[:20])
        logger.error("%s/%s is damaged and ignored", directory, name)
    return None
