"""Acks of a replicated log as records of a compacted topic: each record has the full value of its key.

    key     0x01 | log id, 16 bytes | kind, one letter | for C and R: i64
    value   null: deleted; otherwise

    H   head: 0x01 | head i64 | messages i64 | bytes of their bodies i64. Everything below the head is acked
    C   chunk, by its number (offset >> 12): 0x00 | runs, pairs of first and last, u16 each; or 0x01 | bitmap of 512
        bytes, one bit for each offset, the lowest first. Acked offsets of the chunk; those below the head do not matter
    D   delivered: 0x01 | i64. No offset above was delivered to a consumer, as far as the writer knew
    R   returned, by offset: 0x01 | deliveries i64 | earliest next delivery in ms since 1970, i64; 0: at once

    key     0x01 | S     one for all logs: 0x01 | producer id i64 | epoch i64. This owner gave up the slot and stored
                         all acks and deliveries

Numbers are big endian. Records never contain offsets at or above the log's high watermark. Kafka does not have
those messages yet; if their batches are lost, messages of the next owner get the same offsets.

`AckRecordWriter.note` receives the entries that the cache also writes to its `.settled` files. `take_records` returns
records of what changed since its last call. A million acked messages are 250 chunks; a full chunk is one run.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.storage.acks.ack_set import DELIVERED, LOST, RETURNED, SETTLED

CHUNK_BITS: Final[i64] = 12
CHUNK: Final[i64] = 1 << 12
_MASK: Final[i64] = (1 << 12) - 1
_MAP_SIZE: Final[i64] = 512
_LOG_ID_SIZE: Final[i64] = 16
_RUNS: Final = 0
_MAP: Final = 1
_RUNS_MAX: Final[i64] = 100  # more runs are larger than the bitmap
_FULL: Final = b"\xff" * 512
_ABSENT: Final[i64] = -1
OWNER_KEY: Final = b"\x01S"
NOT_DELIVERED: Final[i64] = -1


class BadSettlement(ValueError):
    """Error: a record of the topic has an unknown format, because another version wrote it."""


def owner_record(producer_id: i64, epoch: i64) -> KeyedRecord:
    """Return the record of an owner that gave up its slot and stored everything."""
    return KeyedRecord(OWNER_KEY, _value([producer_id, epoch]))


def _value(numbers: list[int]) -> bytes:
    writer = BytesWriter()
    writer.append(1)
    for number in numbers:
        write_i64_be(writer, number)
    return writer.getvalue()


def _key(log_id: bytes, kind: bytes, number: i64 = _ABSENT) -> bytes:
    writer = BytesWriter()
    writer.append(1)
    writer.write(log_id)
    writer.write(kind)
    if number >= 0:
        write_i64_be(writer, number)
    return writer.getvalue()


def set_bits(bits: bytearray, low: i64, high: i64) -> None:
    """Set the bits from `low` to `high` inclusive. Cost: some ns for 8 bits."""
    while low <= high:
        index: i64 = low >> 3
        if low & 7 == 0 and high - low >= 7:
            stop: i64 = (high + 1) >> 3
            bits[index:stop] = _FULL[: stop - index]
            low = stop << 3
            continue
        byte: int = bits[index]
        bits[index] = byte | (1 << (low & 7))
        low += 1


def has_bit(bits: bytearray, place: i64) -> bool:
    byte: i64 = bits[place >> 3]
    return (byte >> (place & 7)) & 1 != 0


def _encode_chunk(bits: bytearray) -> bytes:
    """Encode few runs as runs, otherwise as a bitmap."""
    writer = BytesWriter()
    writer.append(_RUNS)
    count: i64 = 0
    first: i64 = -1
    place: i64 = 0
    while place <= CHUNK:
        if place < CHUNK and place & 7 == 0:
            byte: i64 = bits[place >> 3]
            if (byte == 0 and first < 0) or (byte == 255 and first >= 0):
                place += 8
                continue
        here: bool = place < CHUNK and has_bit(bits, place)
        if here and first < 0:
            first = place
        elif not here and first >= 0:
            count += 1
            if count > _RUNS_MAX:
                return b"\x01" + bytes(bits)
            _write_u16(writer, first)
            _write_u16(writer, place - 1)
            first = -1
        place += 1
    return writer.getvalue()


def _write_u16(writer: BytesWriter, number: i64) -> None:
    bits: int = number
    writer.append((bits >> 8) & 0xFF)
    writer.append(bits & 0xFF)


def _decode_chunk(value: bytes) -> bytearray:
    size: i64 = len(value)
    if size == 1 + _MAP_SIZE and value[0] == _MAP:
        return bytearray(value[1:])
    if size == 0 or value[0] != _RUNS or (size - 1) % 4 != 0:
        raise BadSettlement("a chunk of acked offsets has an unknown format")
    bits = bytearray(_MAP_SIZE)
    position: i64 = 1
    while position < size:
        first: i64 = (value[position] << 8) | value[position + 1]
        last: i64 = (value[position + 2] << 8) | value[position + 3]
        if first > last or last >= CHUNK:
            raise BadSettlement("a chunk of acked offsets has an invalid run")
        set_bits(bits, first, last)
        position += 4
    return bits


@final
class ReplicatedAcks:
    """Acks of one log as the topic has them.

    Attributes:
        head: everything below is acked; -1: unknown.
        chunks: number -> bitmap.
        delivered_mark: no offset above was delivered, as far as the writer knew.
        marked: the topic has a record of the delivery mark, possibly -1.
        returned: offset -> (deliveries, earliest next delivery in ms).
    """

    def __init__(self) -> None:
        self.head: i64 = -1
        self.chunks: dict[int, bytearray] = {}
        self.delivered_mark: i64 = NOT_DELIVERED
        self.marked: bool = False
        self.returned: dict[int, tuple[int, int]] = {}

    def is_acked(self, offset: i64) -> bool:
        if offset < self.head:
            return True
        bits = self.chunks.get(offset >> CHUNK_BITS)
        return bits is not None and has_bit(bits, offset & _MASK)

    def spans(self, start: i64, end: i64) -> list[tuple[int, int]]:
        """Return the ranges between `start` and `end` that may contain live messages, as (first, end).

        Full chunks are left out. `end` is exclusive.

        Cost: a step per chunk.
        """
        if start < self.head:
            start = self.head
        found: list[tuple[int, int]] = []
        full = [chunk for chunk, bits in self.chunks.items() if bits == _FULL]
        full.sort()
        for chunk in full:
            first: i64 = chunk << CHUNK_BITS
            if first >= end or first + CHUNK <= start:
                continue
            if start < first:
                found.append((start, first))
            start = first + CHUNK
        while start < end and self.is_acked(start):
            start += 1
        if start < end:
            found.append((start, end))
        return found

    def apply(self, kind: i64, number: i64, value: bytes | None) -> None:
        """Apply one record of the log. Raises BadSettlement: the record has an unknown format."""
        if value is not None and kind != 0x43 and (len(value) < 9 or value[0] != 1):
            raise BadSettlement("an ack record has an unknown format")
        if kind == 0x48:
            self.head = read_i64_be(value, 1) if value is not None else -1
        elif kind == 0x43:
            if value is None:
                self.chunks.pop(number, None)
            else:
                self.chunks[number] = _decode_chunk(value)
        elif kind == 0x44:
            self.marked = value is not None
            self.delivered_mark = read_i64_be(value, 1) if value is not None else NOT_DELIVERED
        elif kind == 0x52:
            if value is None:
                self.returned.pop(number, None)
            elif len(value) >= 17:
                self.returned[number] = (read_i64_be(value, 1), read_i64_be(value, 9))
            else:
                raise BadSettlement("a record of a returned message has an unknown format")
        else:
            raise BadSettlement(f"an ack record of the unknown kind {kind}")

    @property
    def is_empty(self) -> bool:
        """Return whether the topic has no record of the log."""
        return self.head < 0 and not self.chunks and not self.returned and not self.marked


@final
class ReplicatedAckReader:
    """Acks of all logs of a slot, by log id.

    Attributes:
        clean_producer_id, clean_epoch: of the last owner that gave up the slot and stored everything; -1: none.
    """

    def __init__(self) -> None:
        self.logs: dict[bytes, ReplicatedAcks] = {}
        self.clean_producer_id: i64 = -1
        self.clean_epoch: i64 = -1

    def read(self, records: list[KeyedRecord]) -> None:
        """Apply the records of one batch, in order. Other records, such as a barrier, are skipped.

        Raises: BadSettlement: a record has an unknown format.
        """
        for record in records:
            key = record.key
            size: i64 = len(key)
            if size < 2 or key[0] != 1:
                continue
            if size == 2:
                value = record.value
                if value is not None and len(value) >= 17:
                    self.clean_producer_id = read_i64_be(value, 1)
                    self.clean_epoch = read_i64_be(value, 9)
                continue
            if size != 2 + _LOG_ID_SIZE and size != 10 + _LOG_ID_SIZE:
                raise BadSettlement("the key of an ack record has an unknown format")
            log_id = key[1 : 1 + _LOG_ID_SIZE]
            acks = self.logs.get(log_id)
            if acks is None:
                if record.value is None:
                    continue
                acks = self.logs[log_id] = ReplicatedAcks()
            number: i64 = read_i64_be(key, 2 + _LOG_ID_SIZE) if size > 2 + _LOG_ID_SIZE else _ABSENT
            acks.apply(key[1 + _LOG_ID_SIZE], number, record.value)
            if acks.is_empty:
                del self.logs[log_id]


@final
class AckRecordWriter:
    """Changes of one log's acks, and their encoding as records.

    Attributes:
        log_id: 16 bytes.
        waiting: there are changes. The caller of `take_records` clears it.
    """

    def __init__(self, log_id: bytes, acks: ReplicatedAcks) -> None:
        self.log_id: bytes = log_id
        self.waiting: bool = False
        self._head: i64 = acks.head
        self._chunks: dict[int, bytearray] = acks.chunks
        self._written_chunks: set[int] = set(acks.chunks)
        self._written_returned: set[int] = set(acks.returned)
        self._delivered_mark: i64 = acks.delivered_mark
        self._written_mark: i64 = acks.delivered_mark
        self._marked: bool = acks.marked
        self._runs: list[tuple[int, int]] = []
        self._returned: dict[int, tuple[int, int]] = {}

    def note(self, kind: i64, a: i64, b: i64, c: i64) -> None:
        """Record an entry, with the arguments of `AckFileWriter.add_entry`. Cost: 50 ns."""
        if kind in (SETTLED, LOST):
            self._runs.append((a, b))
        elif kind == RETURNED:
            self._returned[a] = (b, c)
        elif kind == DELIVERED and a > self._delivered_mark:
            self._delivered_mark = a

    def take_records(self, head: i64, high_watermark: i64, message_count: i64, size_bytes: i64) -> list[KeyedRecord]:
        """Return the records of all changes below the high watermark. The other changes wait for the next call.

        Args:
            head: everything below is acked.

        Cost: some us, and 1 us per changed chunk.
        """
        records: list[KeyedRecord] = []
        if head > high_watermark:
            head = high_watermark
        changed: set[int] = set()
        gone: list[int] = []
        left = self._apply_runs(head if head > self._head else self._head, high_watermark, changed, gone)
        if head > self._head:
            before: i64 = self._head >> CHUNK_BITS
            self._head = head
            records.append(KeyedRecord(_key(self.log_id, b"H"), _value([head, message_count, size_bytes])))
            if head >> CHUNK_BITS > before:
                self._drop_chunks_below(head, records)
            at_head: i64 = head >> CHUNK_BITS
            bits = self._chunks.get(at_head)
            if at_head in self._written_chunks and (bits is None or not _any_from(bits, head & _MASK)):
                changed.add(at_head)
        first_chunk: i64 = head >> CHUNK_BITS
        for chunk in sorted(changed):
            bits = self._chunks.get(chunk)
            if bits is None or chunk < first_chunk:
                continue
            if chunk == first_chunk and not _any_from(bits, head & _MASK):  # the head covers the whole chunk
                if chunk in self._written_chunks:
                    self._written_chunks.discard(chunk)
                    records.append(KeyedRecord(_key(self.log_id, b"C", chunk), None))
                continue
            self._written_chunks.add(chunk)
            records.append(KeyedRecord(_key(self.log_id, b"C", chunk), _encode_chunk(bits)))
        for offset in gone:
            self._written_returned.discard(offset)
            records.append(KeyedRecord(_key(self.log_id, b"R", offset), None))
        self._add_returned_records(head, high_watermark, records)
        mark: i64 = self._delivered_mark
        if mark >= high_watermark:
            mark = high_watermark - 1
        if mark > self._written_mark:
            self._written_mark = mark
            self._marked = True
            records.append(KeyedRecord(_key(self.log_id, b"D"), _value([mark])))
        self._runs = left
        return records

    @property
    def head(self) -> i64:
        """The head that was written last; -1: none."""
        return self._head

    @property
    def has_waiting(self) -> bool:
        """Return whether changes wait for the high watermark."""
        return len(self._runs) > 0 or len(self._returned) > 0 or self._delivered_mark > self._written_mark

    def _apply_runs(self, head: i64, high_watermark: i64, changed: set[int], gone: list[int]) -> list[tuple[int, int]]:
        """Mark the collected runs in the chunks, except below the head. Return the runs at or above the high
        watermark.

        Args:
            changed: gets the numbers of the changed chunks.
            gone: gets acked offsets whose R record must be deleted.
        """
        left: list[tuple[int, int]] = []
        for run in self._runs:
            first: i64 = run[0]
            last: i64 = run[1]
            if last >= high_watermark:
                left.append((first if first > high_watermark else high_watermark, last))
                last = high_watermark - 1
            if last < first:
                continue
            self._forget_returned(first, last, gone)
            if first < head:
                first = head
            while first <= last:
                chunk: i64 = first >> CHUNK_BITS
                stop: i64 = ((chunk + 1) << CHUNK_BITS) - 1
                if stop > last:
                    stop = last
                bits = self._chunks.get(chunk)
                if bits is None:
                    bits = self._chunks[chunk] = bytearray(_MAP_SIZE)
                set_bits(bits, first & _MASK, stop & _MASK)
                changed.add(chunk)
                first = stop + 1
        return left

    def _forget_returned(self, first: i64, last: i64, gone: list[int]) -> None:
        acks = self._written_returned
        if acks:
            if last - first < len(acks):
                gone += [offset for offset in range(first, last + 1) if offset in acks]
            else:
                gone += [offset for offset in acks if first <= offset <= last]
        returned = self._returned
        if returned:
            for offset in [offset for offset in returned if first <= offset <= last]:
                del returned[offset]

    def _add_returned_records(self, head: i64, high_watermark: i64, records: list[KeyedRecord]) -> None:
        returned = self._returned
        if not returned:
            return
        self._returned = {}
        for offset, (count, due_ms) in returned.items():
            if offset >= high_watermark:
                self._returned[offset] = (count, due_ms)
            elif offset >= head:
                self._written_returned.add(offset)
                records.append(KeyedRecord(_key(self.log_id, b"R", offset), _value([count, due_ms])))

    def _drop_chunks_below(self, head: i64, records: list[KeyedRecord]) -> None:
        first: i64 = head >> CHUNK_BITS
        for chunk in [chunk for chunk in self._chunks if chunk < first]:
            del self._chunks[chunk]
        passed = sorted([chunk for chunk in self._written_chunks if chunk < first])
        for chunk in passed:
            self._written_chunks.discard(chunk)
            records.append(KeyedRecord(_key(self.log_id, b"C", chunk), None))

    def tombstones(self) -> list[KeyedRecord]:
        """Return the tombstones of all records of the log, because its queue is deleted."""
        records = [KeyedRecord(_key(self.log_id, b"C", chunk), None) for chunk in sorted(self._written_chunks)]
        records += [KeyedRecord(_key(self.log_id, b"R", offset), None) for offset in sorted(self._written_returned)]
        if self._marked:
            records.append(KeyedRecord(_key(self.log_id, b"D"), None))
        if self._head >= 0:
            records.append(KeyedRecord(_key(self.log_id, b"H"), None))
        return records


def _any_from(bits: bytearray, place: i64) -> bool:
    """Return whether a bit at or after `place` is set."""
    while place < CHUNK:
        if place & 7 == 0 and bits[place >> 3] == 0:
            place += 8
            continue
        if has_bit(bits, place):
            return True
        place += 1
    return False
