"""The message: one object all the way from the publisher's frames to the consumer's.

A `Message` keeps its content as the frames that carried it (header frame, then non-empty body frames), so that a
delivery is one copy of bytes with the channel numbers patched in place. Properties and body are cut out of it only when
somebody asks: the log (slices, no copy), a dead-letter, basic.return. A message read back from a log is given frames
of the same shape.

A large body (frames.LARGE_BODY_BYTES) is never joined: `content` is the header frame alone then, and `parts` the
body in pieces without frames, which the log and the sockets take as they are. Nor is one that came out of a log: it is
the only part, and behind the header frame `content` has the head of its one body frame, if one will do (`started`).

`MessageRoute` is what all messages of one route share: exchange, routing key, and both in the encoded form that
basic.deliver ends with.

A message as selectors see it, and exchanges that look at more than routing keys: its headers and properties, decoded
when one asks.

Make one per message and ask all with it: the headers are decoded once. A selector that names no header costs no
decoding, and each property that is asked for is cut out by itself.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64, mypyc_attr, u8

from amqpd.protocol.field_table import decode_table, read_u32, shortstr
from amqpd.protocol.frame import FRAME_BODY, FRAME_HEADER, FRAME_OVERHEAD_BYTES, LARGE_BODY_BYTES, PROPERTIES_START
from amqpd.protocol.properties import (
    CONTENT_TYPE,
    NO_PROPERTIES,
    PropertyInfo,
    decode_headers,
    decode_property,
    scan_properties,
)
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.selector_fields import EXCHANGE, ROUTING_KEY_FIELD
from amqpd.storage.log.record import Record, RecordRoute

# rabbit: ten years; a longer time to live, of a queue or a message, is refused
TTL_MS_MAX: Final = 315_360_000_000
FRAME_END_BYTE: Final = b"\xce"
# Body frames made here fit every consumer that did not negotiate less than the default.
FRAME_PAYLOAD_BYTES: Final = 131072 - FRAME_OVERHEAD_BYTES
# No frame of anybody's is as large: what has parts never passes for one that can go out as it came.
_IN_PARTS: Final = 1 << 60
# What a queue remembers of the messages its log gives back: routes, and the last one's properties.
ENVELOPES_MAX: Final = 1024
KEPT_PROPERTIES_MAX: Final = 1024
_NONE: Final = b"no bytes of a record"  # by identity
_CONTENT_HEADER_START: Final = b"\x00\x3c\x00\x00"


@final
class MessageRoute:
    """Exchange and routing key of a message, as text for the rules and as bytes for the wire and the log.

    suffix: their encoded form, where it is at hand.
    """

    def __init__(self, exchange: str, routing_key: str, suffix: bytes = b"") -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self._record_route: RecordRoute | None = None
        # The end of a basic.deliver: redelivered (no), exchange, routing key, frame end.
        if suffix:
            self.suffix = suffix
            return
        exchange_bytes = exchange.encode()
        key_bytes = routing_key.encode("utf-8", "surrogateescape")
        self.suffix = b"\0" + shortstr(exchange_bytes) + shortstr(key_bytes) + FRAME_END_BYTE

    def record_route(self) -> RecordRoute:
        """What a log keeps of it; made when a log first takes a message of this route."""
        route = self._record_route
        if route is None:
            route = RecordRoute(self.exchange.encode(), self.routing_key.encode("utf-8", "surrogateescape"))
            self._record_route = route
        return route


@mypyc_attr(free_list_len=1)  # one that goes straight to its consumer is where the one before it was
@final
class Message:
    """One published message. Immutable but for what a queue keeps in `QueueEntry`."""

    def __init__(
        self,
        envelope: MessageRoute,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        persistent: bool,
        info: PropertyInfo | None,
    ) -> None:
        self.envelope = envelope
        self.content = content
        self.header_size = header_size
        self.body_size = body_size
        self.frame_payload_max = frame_payload_max
        self.persistent = persistent
        # None: nothing but an optional delivery mode is set.
        self.info = info
        # When its time to live began: in this life of the broker (monotonic), or when the log took it (wall clock). 0:
        # not noted, as nothing asks.
        self.arrived_ms: i64 = 0
        self.logged_ms: i64 = 0
        self.parts: list[bytes] | None = None
        # `content` ends with the head of the frame that holds the one part.
        self.started = False

    def size_bytes(self) -> i64:
        """What it holds in memory, as far as it is bytes."""
        size: i64 = len(self.content)
        return size if self.parts is None else size + self.body_size

    def properties(self) -> bytes:
        """Property flags and fields, as they arrived."""
        return self.content[PROPERTIES_START : self.header_size - 1]

    def body(self) -> bytes:
        """The body without its frames. Cost: one copy."""
        content = self.content
        start = self.header_size
        if self.body_size == 0:
            return b""
        if self.parts is not None:
            return b"".join(self.parts)
        if self.body_size == self.frame_payload_max:
            return content[start + 7 : len(content) - 1]
        return b"".join(self._body_views())

    def unframed(self) -> bytes:
        """Properties and body, one behind the other. Cost: one copy."""
        if self.parts is not None:
            return b"".join([self.properties(), *self.parts])
        properties = memoryview(self.content)[PROPERTIES_START : self.header_size - 1]
        return b"".join([properties, *self._body_views()])

    def _body_views(self) -> list[memoryview]:
        """The body frame by frame. Slices would be a copy, and each of them a call of the kernel: 10 times the CPU."""
        content = self.content
        start = self.header_size
        view = memoryview(content)
        parts: list[memoryview] = []
        end: i64 = len(content)
        while start < end:
            size = read_u32(content, start + 3)
            parts.append(view[start + 7 : start + 7 + size])
            start += size + FRAME_OVERHEAD_BYTES
        return parts

    def write_content(self, out: BytesWriter, channel: i64, frame_payload_max: i64) -> None:
        """Appends header and body frames for `channel`.

        frame_payload_max: payload bytes the receiver takes in one frame. Cost: one copy of the content.
        """
        content = self.content
        if self.started and self.body_size <= frame_payload_max and self.header_size <= frame_payload_max:
            self._write_started(out, channel)
            return
        if self.frame_payload_max > frame_payload_max or self.header_size > frame_payload_max + FRAME_OVERHEAD_BYTES:
            write_content(out, channel, self.properties(), self.body(), frame_payload_max)
            return
        start: i64 = len(out)
        out.write(content)
        if content[1] << 8 | content[2] != channel:
            number: int = channel
            high: u8 = number >> 8
            low: u8 = number & 0xFF
            end: i64 = len(content)
            position: i64 = 0
            while position < end:
                out[start + position + 1] = high
                out[start + position + 2] = low
                size = read_u32(content, position + 3)
                position += size + FRAME_OVERHEAD_BYTES

    def _write_started(self, out: BytesWriter, channel: i64) -> None:
        content = self.content
        parts = self.parts
        assert parts is not None  # it is started
        start: i64 = len(out)
        out.write(content)
        if channel != 1:  # whoever started it wrote 1
            number: int = channel
            high: u8 = number >> 8
            low: u8 = number & 0xFF
            out[start + 1] = high
            out[start + 2] = low
            start += self.header_size
            out[start + 1] = high
            out[start + 2] = low
        out.write(parts[0])
        out.append(0xCE)

    def pieces(self, channel: i64, frame_payload_max: i64) -> list[bytes | memoryview]:
        """Header and body frames for `channel`, of a message that has parts. Nothing of the body is copied."""
        parts = self.parts
        assert parts is not None
        out = BytesWriter()
        write_header(out, channel, self.properties(), self.body_size)
        pieces: list[bytes | memoryview] = []
        limit: int = frame_payload_max
        for part in parts:
            size = len(part)
            if size <= limit:
                _begin_body_frame(out, channel, size)
                pieces.append(out.getvalue())
                out.truncate(0)
                pieces.append(part)
                out.append(0xCE)
                continue
            view = memoryview(part)
            start = 0
            while start < size:
                end = min(start + limit, size)
                _begin_body_frame(out, channel, end - start)
                pieces.append(out.getvalue())
                out.truncate(0)
                pieces.append(view[start:end])
                out.append(0xCE)
                start = end
        pieces.append(out.getvalue())
        return pieces


def write_header(out: BytesWriter, channel: int, properties: bytes, body_size: int) -> None:
    """Appends a content header frame."""
    out.append(FRAME_HEADER)
    out.append(channel >> 8)
    out.append(channel & 0xFF)
    write_i32_be(out, len(properties) + 12)
    out.write(_CONTENT_HEADER_START)
    write_i64_be(out, body_size)
    out.write(properties)
    out.append(0xCE)


def _begin_body_frame(out: BytesWriter, channel: int, size: int) -> None:
    out.append(FRAME_BODY)
    out.append(channel >> 8)
    out.append(channel & 0xFF)
    write_i32_be(out, size)


def write_content(out: BytesWriter, channel: int, properties: bytes, body: bytes, frame_payload_max: int) -> None:
    """Appends a content header frame and as many body frames as the body needs."""
    write_header(out, channel, properties, len(body))
    position = 0
    end = len(body)
    while position < end:
        size = end - position
        if size > frame_payload_max:
            size = frame_payload_max
        _begin_body_frame(out, channel, size)
        out.write(body if size == end else body[position : position + size])
        out.append(0xCE)
        position += size


def make_message(
    envelope: MessageRoute, properties: bytes, body: bytes, persistent: bool, info: PropertyInfo | None
) -> Message:
    """A message from parts: read back from a log, or made by the broker. Its frames carry channel number 1."""
    out = BytesWriter()
    size: i64 = len(body)
    if size > LARGE_BODY_BYTES:
        write_header(out, 1, properties, len(body))
        return message_in_parts(envelope, out.getvalue(), [body], size, persistent, info)
    write_content(out, 1, properties, body, FRAME_PAYLOAD_BYTES)
    return Message(
        envelope,
        out.getvalue(),
        len(properties) + 12 + FRAME_OVERHEAD_BYTES,
        size,
        size if size < FRAME_PAYLOAD_BYTES else FRAME_PAYLOAD_BYTES,
        persistent,
        info,
    )


def with_properties(message: Message, envelope: MessageRoute, properties: bytes, info: PropertyInfo | None) -> Message:
    """The same body under another route and other properties. Cost: one copy of a body that is not in parts."""
    content = message.content
    out = BytesWriter()
    # The body's frames keep their channel, so the header has the same.
    write_header(out, content[1] << 8 | content[2], properties, message.body_size)
    size: i64 = len(properties) + 12 + FRAME_OVERHEAD_BYTES
    if message.parts is not None:
        return message_in_parts(envelope, out.getvalue(), message.parts, message.body_size, message.persistent, info)
    out.write(content[message.header_size :])
    return Message(
        envelope, out.getvalue(), size, message.body_size, message.frame_payload_max, message.persistent, info
    )


@final
class LogMessageFactory:
    """Makes messages of what the log of one queue gives back. Those that follow each other with the same route,
    properties and size share all but the body (the log's reader gives them the same objects: `RecordDecoder`).
    """

    def __init__(self) -> None:
        self._envelopes: dict[bytes, MessageRoute] = {}
        # Of the record before.
        self._exchange: bytes = _NONE
        self._routing_key: bytes = _NONE
        self._properties: bytes = _NONE
        self._envelope: MessageRoute | None = None
        self._info: PropertyInfo | None = None
        # What stands before a body of this size: the header frame, and the head of the body's.
        self._size: i64 = -1
        self._start: bytes = _NONE

    def message(self, record: Record) -> Message:
        """Cost: some 60 ns where it goes on like the record before; the body stays where it is."""
        properties = record.properties
        if (
            properties is not self._properties
            or record.routing_key is not self._routing_key
            or record.exchange is not self._exchange
        ):
            self._envelope = self.envelope(record.exchange, record.routing_key)
            self._info = scan_properties(properties, 0, len(properties), self._info) if len(properties) > 3 else None
            self._exchange = record.exchange
            self._routing_key = record.routing_key
            self._properties = properties
            self._size = -1
        envelope = self._envelope
        assert envelope is not None  # made above
        body = record.body
        size: i64 = len(body)
        if 0 < size <= FRAME_PAYLOAD_BYTES and len(properties) <= KEPT_PROPERTIES_MAX:
            if size != self._size:
                out = BytesWriter()
                write_begun(out, properties, size)
                self._start = out.getvalue()
                self._size = size
            start = self._start
            header_size: i64 = len(start) - 7
            message = Message(envelope, start, header_size, size, _IN_PARTS, record.persistent, self._info)
            message.parts = [body]
            message.started = True
        else:
            message = make_message(envelope, properties, body, record.persistent, self._info)
            self._properties = _NONE  # nothing large is kept
            self._info = None
        message.logged_ms = record.timestamp_ms
        return message

    def envelope(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """What messages of this route share."""
        key = exchange + b"\0" + routing_key
        envelope = self._envelopes.get(key)
        if envelope is None:
            envelope = MessageRoute(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            self._envelopes[key] = envelope
        return envelope


def write_begun(out: BytesWriter, properties: bytes, body_size: i64) -> None:
    """Appends what stands before a body of one frame: the header frame, and the head of the body's. On channel 1."""
    write_header(out, 1, properties, body_size)
    _begin_body_frame(out, 1, body_size)


def begun(envelope: MessageRoute, start: bytes, body: bytes, body_size: i64) -> Message:
    """A persistent message of which nobody asks the properties. start: as `write_begun` makes it for this body, of 1 to
    FRAME_PAYLOAD_BYTES."""
    message = Message(envelope, start, len(start) - 7, body_size, _IN_PARTS, True, None)
    message.parts = [body]
    message.started = True
    return message


def message_in_parts(
    envelope: MessageRoute,
    header: bytes,
    parts: list[bytes],
    body_size: i64,
    persistent: bool,
    info: PropertyInfo | None,
) -> Message:
    """A message with a large body. header: its header frame; parts: the body without frames."""
    message = Message(envelope, header, len(header), body_size, _IN_PARTS, persistent, info)
    message.parts = parts
    return message


def expiration_ms(text: bytes) -> i64:
    """A publisher's `expiration`, which was checked to be a whole number when it was published."""
    number = int(text)
    return number if number < TTL_MS_MAX else TTL_MS_MAX


_NO_HEADERS: Final[dict[str, object]] = {}


@final
class MessageView(Selectable):
    """One message. What it gives out is not to be changed."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        """Cost: their decoding, the first time."""
        headers = self._headers
        if headers is None:
            info = self._message.info
            if info is None or info.headers_start == 0:
                headers = _NO_HEADERS
            else:
                headers, _ = decode_table(self._message.properties(), info.headers_start)
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        """The property, exchange or routing key of this number in `selector_fields`; None when it is absent."""
        if number == EXCHANGE:
            return self._message.envelope.exchange
        if number == ROUTING_KEY_FIELD:
            return self._message.envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return decode_property(self._message.properties(), flag)


@final
class PropertiesView(Selectable):
    """Of a message that is not made yet: where it goes, and its properties. What it gives out is not to be changed."""

    def __init__(self, envelope: MessageRoute, properties: bytes) -> None:
        self._envelope = envelope
        self._properties = properties
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        """Cost: their decoding, the first time."""
        headers = self._headers
        if headers is None:
            headers = decode_headers(self._properties, 0, len(self._properties))
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        """As `MessageView.field`."""
        if number == EXCHANGE:
            return self._envelope.exchange
        if number == ROUTING_KEY_FIELD:
            return self._envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return decode_property(self._properties, flag)


NO_MESSAGE: Final = PropertiesView(MessageRoute("", ""), NO_PROPERTIES)
"""For who asks exchanges that look at the routing key alone."""
