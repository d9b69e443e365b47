"""What a consumer gets of a stream's record: the message with the header `x-stream-offset`, behind the headers it has.

The offset is the only thing that differs between two messages alike, so what stands before and behind it is made once
for all that are (`Dresser.fits`), and a front end that writes frames puts offset and body between: no message is made.
Everybody else gets one (`Dresser.message`).
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, u8

from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Envelope, FromLog, Message, begun, make_message, write_begun
from amqpd.protocol.codec import Long, encode_entry
from amqpd.protocol.frames import FRAME_OVERHEAD_BYTES, PROPERTIES_START
from amqpd.protocol.properties import headers_place, with_entries, with_headers
from amqpd.storage.log.record import Record

OFFSET_HEADER: Final = "x-stream-offset"
_NAME: Final = OFFSET_HEADER.encode()
_ENTRY: Final = encode_entry(OFFSET_HEADER, Long(0))
_NONE: Final = b"no bytes of a record"  # by identity
_OFFSET_SIZE: Final = 8
_BODY_HEAD_SIZE: Final = 7


@final
class Dresser:
    """One per stream. Of the record that `fits` has looked at last: suffix, what a basic.deliver ends with (as an
    envelope has it); before, the header frame up to the offset; behind, from there to the end of the head of the body's
    frame, both on channel 1; header_payload_size: of the header frame.
    """

    def __init__(self, from_log: FromLog) -> None:
        self.suffix: bytes = _NONE
        self.before: bytes = _NONE
        self.behind: bytes = _NONE
        self.header_payload_size: i64 = 0
        self._from_log = from_log
        self._out = BytesWriter()
        self._exchange: bytes = _NONE
        self._routing_key: bytes = _NONE
        self._properties: bytes = _NONE
        self._size: i64 = -1
        self._envelope: Envelope | None = None

    def fits(self, record: Record) -> bool:
        """Whether header and body are a frame each, and made ready. Cost: 5 ns where it is like the record before."""
        size: i64 = len(record.body)
        if size == 0 or size > FRAME_PAYLOAD_BYTES:
            return False
        if record.routing_key is not self._routing_key or record.exchange is not self._exchange:
            self._take_route(record)
        if record.properties is not self._properties or size != self._size:
            self._prepare(record.properties, size)
        return True

    def message(self, record: Record) -> Message:
        """Cost: some 150 ns where it is like the record before; the body stays where it is."""
        if not self.fits(record):
            self._take_route(record)
            properties = with_headers(record.properties, {OFFSET_HEADER: Long(record.offset)})
            return make_message(self._route(), properties, record.body, True, None)
        out = self._out
        out.truncate(0)
        out.write(self.before)
        write_i64_be(out, record.offset)
        out.write(self.behind)
        return begun(self._route(), out.getvalue(), record.body, self._size)

    def _route(self) -> Envelope:
        envelope = self._envelope
        assert envelope is not None  # `_take_route` was called
        return envelope

    def _take_route(self, record: Record) -> None:
        envelope = self._from_log.envelope(record.exchange, record.routing_key)
        self._envelope = envelope
        self.suffix = envelope.suffix
        self._exchange = record.exchange
        self._routing_key = record.routing_key

    def _prepare(self, properties: bytes, size: i64) -> None:
        """Cost: under 1 us; 5 where a publisher has set the header himself."""
        if _NAME in properties:
            dressed = with_headers(properties, {OFFSET_HEADER: Long(-1)})
            at = first_difference(dressed, with_headers(properties, {OFFSET_HEADER: Long(0)}))
        else:
            dressed = with_entries(properties, _ENTRY)
            _, stop = headers_place(dressed, 0, len(dressed))
            at = stop - _OFFSET_SIZE
        out = self._out
        out.truncate(0)
        write_begun(out, dressed, size)
        whole = out.getvalue()
        at += PROPERTIES_START
        self.before = whole[:at]
        self.behind = whole[at + _OFFSET_SIZE :]
        self.header_payload_size = len(whole) - _BODY_HEAD_SIZE - FRAME_OVERHEAD_BYTES
        self._properties = properties
        self._size = size

    def write(self, out: BytesWriter, record: Record, channel: i64) -> None:
        """Appends both frames of the record, which fits, for `channel`. Cost: one copy of the body."""
        start: i64 = len(out)
        out.write(self.before)
        write_i64_be(out, record.offset)
        out.write(self.behind)
        if channel != 1:
            number: int = channel
            high: u8 = number >> 8
            low: u8 = number & 0xFF
            out[start + 1] = high
            out[start + 2] = low
            start = len(out) - _BODY_HEAD_SIZE
            out[start + 1] = high
            out[start + 2] = low
        out.write(record.body)
        out.append(0xCE)


def first_difference(one: bytes, other: bytes) -> i64:
    """Where two texts of one length begin to differ."""
    at: i64 = 0
    while one[at] == other[at]:
        at += 1
    return at
