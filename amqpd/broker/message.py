"""Messages, from the publisher's frames to the consumer's, and their views for selectors."""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64, mypyc_attr, u8

from amqpd.protocol.field_table import CodecError, decode_table, read_u32, shortstr
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
from amqpd.storage.log.foreign_record import SHORT_BYTES_MAX, is_short_text, shortened
from amqpd.storage.log.record import Record, RecordRoute

# rabbit: ten years; a longer time to live is refused
TTL_MS_MAX: Final = 315_360_000_000
FRAME_END_BYTE: Final = b"\xce"
# Body frames made here fit every consumer with the default frame_max or more.
FRAME_PAYLOAD_BYTES: Final = 131072 - FRAME_OVERHEAD_BYTES
# Larger than any frame, so that a message in parts is never sent as it is.
_IN_PARTS: Final = 1 << 60
# Limits of what a queue caches for messages from its log: routes, and the last message's properties.
ENVELOPES_MAX: Final = 1024
KEPT_PROPERTIES_MAX: Final = 1024
_NONE: Final = b"no bytes of a record"  # compared by identity
_CONTENT_HEADER_START: Final = b"\x00\x3c\x00\x00"


@final
class MessageRoute:
    """Exchange and routing key of messages, as text and encoded.

    Attributes:
        suffix: the end of basic.deliver: redelivered (0), exchange, routing key, frame end.
    """

    def __init__(self, exchange: str, routing_key: str, suffix: bytes = b"") -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self._record_route: RecordRoute | None = None
        if suffix:
            self.suffix = suffix
            return
        exchange_bytes = exchange.encode()
        key_bytes = routing_key.encode("utf-8", "surrogateescape")
        self.suffix = b"\0" + shortstr(exchange_bytes) + shortstr(key_bytes) + FRAME_END_BYTE

    def record_route(self) -> RecordRoute:
        """Return the form that a log stores, built on first use."""
        route = self._record_route
        if route is None:
            route = RecordRoute(self.exchange.encode(), self.routing_key.encode("utf-8", "surrogateescape"))
            self._record_route = route
        return route


@mypyc_attr(free_list_len=1)  # one that goes straight to its consumer is where the one before it was
@final
class Message:
    """One published message. Immutable; changing state is in `QueueEntry`.

    `content` has the frames in which the message arrived: header frame, then body frames. A delivery copies these
    bytes and patches the channel numbers, if the body frames are those of its receiver (`has_frames_of`). Properties
    and body are cut out only for the log (without a copy), a dead letter or basic.return. A message from a log gets
    frames of the same form.

    A body above LARGE_BODY_BYTES is never joined: `content` has only the header frame, and `parts` the body in
    pieces without frames. A body from a log is also a part, the only one; if it fits one frame, `content` ends with
    the head of that frame (`started`).

    Attributes:
        frame_payload_max: payload bytes of the largest body frame.
        info: None if no property except the delivery mode is set.
        arrived_ms: monotonic time at which the time to live began; 0 if not needed.
        logged_ms: wall-clock time at which the log stored it; 0 if not needed.
        started: `content` ends with the head of the body frame.
    """

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
        self.info = info
        self.arrived_ms: i64 = 0
        self.logged_ms: i64 = 0
        self.parts: list[bytes] | None = None
        self.started = False

    def size_bytes(self) -> i64:
        """Return the bytes of content and body in memory."""
        size: i64 = len(self.content)
        return size if self.parts is None else size + self.body_size

    def properties(self) -> bytes:
        """Return property flags and fields as they arrived."""
        return self.content[PROPERTIES_START : self.header_size - 1]

    def body(self) -> bytes:
        """Return the body without frames. Cost: one copy."""
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
        """Return properties and body, joined. Cost: one copy."""
        if self.parts is not None:
            return b"".join([self.properties(), *self.parts])
        properties = memoryview(self.content)[PROPERTIES_START : self.header_size - 1]
        return b"".join([properties, *self._body_views()])

    def _body_views(self) -> list[memoryview]:
        """Return the payload of each body frame as a view.

        Slices would copy, and each would need a kernel call: 10 times the CPU.
        """
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

    def has_frames_of(self, frame_payload_max: i64) -> bool:
        """Return whether the body frames are those for a receiver of this size: all full except for the last.

        rabbitmq-client for Node computes the number of frames from the size of the body, and fails at any other number.
        """
        body_size = self.body_size
        if body_size <= frame_payload_max:
            return self.frame_payload_max == body_size
        count = (body_size + frame_payload_max - 1) // frame_payload_max
        size: i64 = len(self.content)
        if (
            self.frame_payload_max != frame_payload_max
            or size != self.header_size + body_size + count * FRAME_OVERHEAD_BYTES
        ):
            return False
        last_size = body_size - (count - 1) * frame_payload_max
        return read_u32(self.content, size - last_size - FRAME_OVERHEAD_BYTES + 3) == last_size

    def write_content(self, out: BytesWriter, channel: i64, frame_payload_max: i64) -> None:
        """Append header and body frames for `channel`. Cost: one copy of the content.

        Args:
            frame_payload_max: payload bytes that the receiver accepts in one frame.
        """
        content = self.content
        if self.started and self.body_size <= frame_payload_max and self.header_size <= frame_payload_max:
            self._write_started(out, channel)
            return
        if not self.has_frames_of(frame_payload_max) or self.header_size > frame_payload_max + FRAME_OVERHEAD_BYTES:
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
        assert parts is not None  # set together with `started`
        start: i64 = len(out)
        out.write(content)
        if channel != 1:  # it was written for channel 1
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
        """Return header and body frames of a message in parts, for `channel`. The body is not copied."""
        parts = self.parts
        assert parts is not None
        out = BytesWriter()
        write_header(out, channel, self.properties(), self.body_size)
        pieces: list[bytes | memoryview] = []
        missing: int = self.body_size  # bytes for which no frame has begun
        limit: int = frame_payload_max
        room = 0  # bytes that the frame still takes
        for part in parts:
            view = memoryview(part)
            start = 0
            while start < len(part):
                if room == 0:
                    room = min(missing, limit)
                    missing -= room
                    _begin_body_frame(out, channel, room)
                    pieces.append(out.getvalue())
                    out.truncate(0)
                end = min(start + room, len(part))
                pieces.append(view[start:end])
                room -= end - start
                start = end
                if room == 0:
                    out.append(0xCE)
        pieces.append(out.getvalue())
        return pieces


def write_header(out: BytesWriter, channel: int, properties: bytes, body_size: int) -> None:
    """Append a content header frame."""
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
    """Append a content header frame and the body frames."""
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
    """Return a message from properties and body, of a log or of the broker itself. Its frames have channel 1."""
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
    """Return a message with the same body, another route and other properties. Copies a body that is not in parts."""
    content = message.content
    out = BytesWriter()
    # The body frames keep their channel number, so the header must have the same.
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
    """Creates messages from the log records of one queue.

    Consecutive records with the same route, properties and size share everything except the body; `RecordDecoder`
    returns the same objects for them.

    Invalid properties are left out, as `StreamDeliveryEncoder` does: another program or an earlier version wrote them,
    and one record must not stop its queue. The record keeps them.

    A message with delivery_mode 1 is transient, also if its queue's log keeps such messages as persistent ones.
    """

    def __init__(self) -> None:
        self._envelopes: dict[bytes, MessageRoute] = {}
        # Fields of the previous record.
        self._exchange: bytes = _NONE
        self._routing_key: bytes = _NONE
        self._properties: bytes = _NONE
        self._valid_properties: bytes = _NONE
        self._envelope: MessageRoute | None = None
        self._info: PropertyInfo | None = None
        self._is_transient = False
        # Cached bytes before a body of this size: header frame and head of the body frame.
        self._size: i64 = -1
        self._start: bytes = _NONE

    def message(self, record: Record) -> Message:
        """Return the record as a message; its body is not copied.

        Cost: about 60 ns if it continues the previous record.
        """
        properties = record.properties
        if (
            properties is not self._properties
            or record.routing_key is not self._routing_key
            or record.exchange is not self._exchange
        ):
            self._envelope = self.envelope(record.exchange, record.routing_key)
            self._scan(properties)
            self._exchange = record.exchange
            self._routing_key = record.routing_key
            self._properties = properties
            self._size = -1
        properties = self._valid_properties
        envelope = self._envelope
        assert envelope is not None  # set above
        persistent = record.persistent and not self._is_transient
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
            message = Message(envelope, start, header_size, size, _IN_PARTS, persistent, self._info)
            message.parts = [body]
            message.started = True
        else:
            message = make_message(envelope, properties, body, persistent, self._info)
            self._properties = self._valid_properties = _NONE  # large properties are not cached
            self._info = None
        message.logged_ms = record.timestamp_ms
        return message

    def _scan(self, properties: bytes) -> None:
        """Validate the properties of a record, and set what its message gets."""
        try:
            info = scan_properties(properties, 0, len(properties), self._info)
        except CodecError:
            self._info = None
            self._valid_properties = NO_PROPERTIES
            self._is_transient = False
        else:
            self._info = info if len(properties) > 3 or info.priority > 0 else None
            self._valid_properties = properties
            self._is_transient = info.delivery_mode == 1

    def envelope(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """Return the shared `MessageRoute` of this exchange and routing key."""
        key = exchange + b"\0" + routing_key
        envelope = self._envelopes.get(key)
        if envelope is None:
            if len(routing_key) > SHORT_BYTES_MAX:
                routing_key = shortened(routing_key)
            if not is_short_text(exchange):
                exchange = shortened(exchange)
            envelope = MessageRoute(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            self._envelopes[key] = envelope
        return envelope


def write_begun(out: BytesWriter, properties: bytes, body_size: i64) -> None:
    """Append the bytes before a body in one frame: header frame and head of the body frame, on channel 1."""
    write_header(out, 1, properties, body_size)
    _begin_body_frame(out, 1, body_size)


def begun(envelope: MessageRoute, start: bytes, body: bytes, body_size: i64) -> Message:
    """Return a persistent message for delivery only: its properties are not scanned.

    Args:
        start: from `write_begun` for this body of 1 to FRAME_PAYLOAD_BYTES.
    """
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
    """Return a message with a large body.

    Args:
        header: the header frame.
        parts: the body without frames.
    """
    message = Message(envelope, header, len(header), body_size, _IN_PARTS, persistent, info)
    message.parts = parts
    return message


def expiration_ms(text: bytes) -> i64:
    """Return an `expiration`, at most TTL_MS_MAX; also TTL_MS_MAX for one that is no time.

    AMQP publishers cannot send one, but a stream may have it from a Kafka producer, and a job copies it to a queue.
    """
    try:
        number = int(text)
    except ValueError:
        return TTL_MS_MAX
    return number if 0 <= number < TTL_MS_MAX else TTL_MS_MAX


_NO_HEADERS: Final[dict[str, object]] = {}


@final
class MessageView(Selectable):
    """A message as selectors and exchanges see it. Returned values must not be changed.

    Create one per message and use it for all checks, so that the headers are decoded once. A selector without header
    names decodes none; each property is decoded by itself.
    """

    def __init__(self, message: Message) -> None:
        self._message = message
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        """Return the decoded headers, cached."""
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
        if number == EXCHANGE:
            return self._message.envelope.exchange
        if number == ROUTING_KEY_FIELD:
            return self._message.envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return decode_property(self._message.properties(), flag)


@final
class PropertiesView(Selectable):
    """A message that does not exist yet, as selectors see it: its route and properties.

    Returned values must not be changed.
    """

    def __init__(self, envelope: MessageRoute, properties: bytes) -> None:
        self._envelope = envelope
        self._properties = properties
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        headers = self._headers
        if headers is None:
            headers = decode_headers(self._properties, 0, len(self._properties))
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        if number == EXCHANGE:
            return self._envelope.exchange
        if number == ROUTING_KEY_FIELD:
            return self._envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return decode_property(self._properties, flag)


NO_MESSAGE: Final = PropertiesView(MessageRoute("", ""), NO_PROPERTIES)
"""For exchanges whose route depends only on the routing key."""
