"""What a consumer gets of a stream's record: the message with the header `x-stream-offset`, behind the headers it has.

Offset and size of the body are all that differs between two messages alike, so what stands between them is made once
for all that are (`Dresser.dress`), and a front end that writes frames puts offset, size and body between: no message is
made. Everybody else gets one (`Dresser.message`).

Where a reader of a stream begins (`x-stream-offset`), and RabbitMQ's notation for lengths of time (`7D`).
"""

from __future__ import annotations

import re
from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64

from amqpd.broker.message import FRAME_PAYLOAD_BYTES, LogMessageFactory, Message, MessageRoute, begun, make_message
from amqpd.protocol.field_table import CodecError, Int64, encode_entry
from amqpd.protocol.frame import HEADER_FIXED_BYTES
from amqpd.protocol.properties import headers_span, with_encoded_headers, with_headers
from amqpd.storage.log.record import RecordViews, SharedFields

OFFSET_HEADER: Final = "x-stream-offset"
_NAME: Final = OFFSET_HEADER.encode()
_ENTRY: Final = encode_entry(OFFSET_HEADER, Int64(0))
_NONE: Final = b"no bytes of a record"  # by identity
_OFFSET_SIZE: Final = 8
_BODY_HEAD_SIZE: Final = 4  # the end of the frame before it, and what of its own frame's head stands in `behind`
_NO_PROPERTIES: Final = b"\0\0"
_HEADER_START: Final = b"\x00\x3c\x00\x00"


@final
class StreamDeliveryEncoder:
    """One per stream. Of the records that `dress` was called for last: suffix, what a basic.deliver ends with (as an
    envelope has it); head, that and the header frame behind it, up to the size of the body; before, from there to the
    offset; behind, from there to the size in the head of the body's frame. header_payload_size: of the header frame.
    """

    def __init__(self, from_log: LogMessageFactory) -> None:
        self.suffix: bytes = _NONE
        self.head: bytes = _NONE
        self.before: bytes = _NONE
        self.behind: bytes = _NONE
        self.header_payload_size: i64 = 0
        # The size of the body that was written last; what stands before and behind the offset for it, made when a
        # second one has it.
        self._size: i64 = -1
        self._middle: bytes = _NONE
        self._tail: bytes = _NONE
        self._from_log = from_log
        self._number: i64 = -1
        self._exchange: bytes = _NONE
        self._routing_key: bytes = _NONE
        self._properties: bytes = _NONE
        self._envelope: MessageRoute | None = None

    def dress(self, alike: SharedFields, number: i64) -> None:
        """Makes ready what records that are `alike` have before and behind offset and sizes, for channel `number`.

        Cost: 5 ns where it is what was made last, under 1 us else; 5 where a publisher has set the header himself.
        """
        if (
            alike.properties is self._properties
            and number == self._number
            and alike.routing_key is self._routing_key
            and alike.exchange is self._exchange
        ):
            return
        self._properties = _NONE  # until all is made
        self._size = -1
        if alike.routing_key is not self._routing_key or alike.exchange is not self._exchange:
            envelope = self._from_log.envelope(alike.exchange, alike.routing_key)
            self._envelope = envelope
            self.suffix = envelope.suffix
            self._exchange = alike.exchange
            self._routing_key = alike.routing_key
        self._prepare(alike.properties, number)
        self._properties = alike.properties
        self._number = number

    def _prepare(self, properties: bytes, number: i64) -> None:
        try:
            dressed, at = self._dressed(properties)
        except CodecError:  # a foreign program's, and none
            dressed, at = self._dressed(_NO_PROPERTIES)
        size: int = len(dressed) + HEADER_FIXED_BYTES
        channel: int = number
        channel_bytes = channel.to_bytes(2, "big")
        self.head = self.suffix + b"\x02" + channel_bytes + size.to_bytes(4, "big") + _HEADER_START
        self.before = dressed[:at]
        self.behind = dressed[at + _OFFSET_SIZE :] + b"\xce\x03" + channel_bytes
        self.header_payload_size = size

    def _dressed(self, properties: bytes) -> tuple[bytes, i64]:
        """With the header, and where its offset goes. Raises: CodecError."""
        if _NAME in properties:
            dressed = with_headers(properties, {OFFSET_HEADER: Int64(-1)})
            at = first_difference(dressed, with_headers(properties, {OFFSET_HEADER: Int64(0)}))
        else:
            dressed = with_encoded_headers(properties, _ENTRY)
            _, stop = headers_span(dressed, 0, len(dressed))
            at = stop - _OFFSET_SIZE
        return dressed, at

    def message(self, places: RecordViews, index: i64) -> Message:
        """The record there. Cost: some 250 ns where it is like the one before, and a copy of the body."""
        alike = places.alikes[places.alike_number(index)]
        self.dress(alike, 1)
        envelope = self._envelope
        assert envelope is not None  # it is dressed
        body = places.body(index)
        size: i64 = len(body)
        if size == 0 or size > FRAME_PAYLOAD_BYTES:
            offset: int = places.offset(index)
            offset_bytes = offset.to_bytes(_OFFSET_SIZE, "big")
            properties = self.before + offset_bytes + self.behind[:-_BODY_HEAD_SIZE]
            return make_message(envelope, properties, body, True, None)
        out = BytesWriter()
        self.write(out, size, places.offset(index))
        return begun(envelope, out.getvalue()[len(self.suffix) :], body, size)

    def write(self, out: BytesWriter, body_size: i64, offset: i64) -> None:
        """Appends what is between the delivery tag and the body. Cost: 15 ns where the last body had the same size."""
        if body_size == self._size:
            if self._middle is _NONE:
                self._fit(body_size)
            out.write(self._middle)
            write_i64_be(out, offset)
            out.write(self._tail)
            return
        self._size = body_size
        self._middle = _NONE
        out.write(self.head)
        write_i64_be(out, body_size)
        out.write(self.before)
        write_i64_be(out, offset)
        out.write(self.behind)
        size: int = body_size
        write_i32_be(out, size)

    def _fit(self, body_size: i64) -> None:
        size: int = body_size
        self._middle = self.head + size.to_bytes(8, "big") + self.before
        self._tail = self.behind + size.to_bytes(4, "big")


def first_difference(one: bytes, other: bytes) -> i64:
    """Where two texts of one length begin to differ."""
    at: i64 = 0
    while one[at] == other[at]:
        at += 1
    return at


FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIME: Final = "time"
AGO: Final = "ago"

_INTERVAL: Final = re.compile(r"([0-9]{1,18})([YMDhms])")
_UNITS_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}
INTERVAL_MS_MAX: Final = 1 << 60
"""Longer ones count as this: thirty million years."""


@final
class StreamStart:
    """Immutable. kind: FIRST, the oldest message there is; LAST, the last record batch; NEXT, what is published from
    now on; OFFSET, `number` or what comes behind it; TIME, what was appended at `number` (ms since 1970) or later; AGO,
    what is not older than `number` ms.
    """

    def __init__(self, kind: str, number: i64 = 0) -> None:
        self.kind: Final[str] = kind
        self.number: Final[i64] = number


def interval_ms(text: str) -> int:
    """Milliseconds of `5m`, `7D`: a whole number above 0 and Y, M (30 days), D, h, m or s; -1: it is none of these.

    rabbit: a year has 365 days.
    """
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return -1
    ms = int(found[1]) * _UNITS_MS[found[2]]
    return min(ms, INTERVAL_MS_MAX) if ms > 0 else -1
