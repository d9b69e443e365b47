"""Records as places in the bytes they were read from: what who only passes bodies on reads of a log.

A record is four words of eight bytes in one piece of memory: offset, time, where its body stands, and the number of its
`Alike`, which says what it shares with the records around it. Nothing is cut out, and no object is made for a record.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

from amqpd.storage.log.record import Record

_PLACE_SIZE: Final[i64] = 32
_NO_BYTES: Final = b""


@final
class Alike:
    """What records share that follow each other: the bytes they stand in, and what is not their body."""

    def __init__(
        self, data: bytes, exchange: bytes, routing_key: bytes, properties: bytes, persistent: bool
    ) -> None:
        self.data: Final[bytes] = data
        self.exchange: Final[bytes] = exchange
        self.routing_key: Final[bytes] = routing_key
        self.properties: Final[bytes] = properties
        self.persistent: Final[bool] = persistent


@final
class Places:
    """Records in the order of their offsets; whole, and not to be changed, once `close` was called.

    next_offset: where the next reading goes on. waiting: as `Fetch.waiting`.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.alikes: list[Alike] = []
        self.next_offset: i64 = -1
        self.waiting: bool = False
        self._writer: BytesWriter | None = BytesWriter()
        self._packed: bytes = _NO_BYTES
        self._last: Alike | None = None

    def add(
        self,
        offset: i64,
        timestamp_ms: i64,
        body_start: i64,
        body_size: i64,
        data: bytes,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        persistent: bool,
    ) -> None:
        """One more. body_size: -1 for a null body. Equal parts are to be the same objects. Cost: some 10 ns."""
        last = self._last
        if (
            last is None
            or properties is not last.properties
            or data is not last.data
            or routing_key is not last.routing_key
            or exchange is not last.exchange
            or persistent != last.persistent
        ):
            last = Alike(data, exchange, routing_key, properties, persistent)
            self._last = last
            self.alikes.append(last)
        writer = self._writer
        assert writer is not None  # it is not closed
        number: i64 = len(self.alikes)
        write_i64_le(writer, offset)
        write_i64_le(writer, timestamp_ms)
        write_i64_le(writer, body_start << 32 | (body_size + 1))
        write_i64_le(writer, number - 1)
        self.count += 1

    def add_record(self, record: Record) -> None:
        """One more, which stands in the bytes of its own body."""
        size: i64 = -1 if record.tombstone else len(record.body)
        self.add(
            record.offset,
            record.timestamp_ms,
            0,
            size,
            record.body,
            record.exchange,
            record.routing_key,
            record.properties,
            record.persistent,
        )

    def close(self, next_offset: i64, waiting: bool) -> None:
        """All are in it."""
        writer = self._writer
        assert writer is not None  # it is closed once
        self._packed = writer.getvalue()
        self._writer = None
        self._last = None
        self.next_offset = next_offset
        self.waiting = waiting

    def offset(self, index: i64) -> i64:
        return read_i64_le(self._packed, index * _PLACE_SIZE)

    def timestamp_ms(self, index: i64) -> i64:
        return read_i64_le(self._packed, index * _PLACE_SIZE + 8)

    def body_start(self, index: i64) -> i64:
        """Where its body begins in the bytes of its `Alike`."""
        return read_i64_le(self._packed, index * _PLACE_SIZE + 16) >> 32

    def body_size(self, index: i64) -> i64:
        """In bytes; -1 for a null body."""
        return (read_i64_le(self._packed, index * _PLACE_SIZE + 16) & 0xFFFF_FFFF) - 1

    def alike_number(self, index: i64) -> i64:
        """Which of `alikes` it is like."""
        return read_i64_le(self._packed, index * _PLACE_SIZE + 24)

    def body(self, index: i64) -> bytes:
        """Empty for a null one. Cost: a copy."""
        start = self.body_start(index)
        size = self.body_size(index)
        return self.alikes[self.alike_number(index)].data[start : start + size] if size > 0 else _NO_BYTES

    def index_of(self, offset: i64) -> i64:
        """The first record of this offset or a later one. Cost: a bisection."""
        low: i64 = 0
        high: i64 = self.count
        while low < high:
            middle = (low + high) // 2
            if self.offset(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low


def places_of(records: list[Record], next_offset: i64, waiting: bool) -> Places:
    """The same for records that are objects already."""
    places = Places()
    for record in records:
        places.add_record(record)
    places.close(next_offset, waiting)
    return places
