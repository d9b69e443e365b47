"""Parser of AMQP frames: bytes of one connection in, commands out.

`ContentAssembler` is the plain state machine: one frame at a time, in any legal order. `FrameParser` extends it. It
cuts frames out of the received bytes and has a fast path for acks and for publishes whose frames are complete in the
buffer. Both paths give the same commands; a test drives them with the same random streams.

A message content is handed over as the frames that carried it, byte for byte: the header frame, then the non-empty
body frames. A delivery only replaces their channel numbers. The frames of a body above LARGE_BODY_BYTES are handed over
as a list of payloads, because joining 16 MiB would hold the event loop.

The handler may raise out of `parse`. The position is already behind the command then: a caller that has dealt with the
error calls `parse` again, which continues with the next command.

Invariants:
- Bytes that are not consumed are kept once.
- A frame that is too large is rejected at its header, before its payload arrives.
- A client that sends one byte at a time costs one join per frame, not one per byte.
- A channel has at most one partial content; `buffered_bytes` counts the body bytes of all of them.

Errors: FrameError (501) and UnexpectedFrame (505), with the texts of RabbitMQ 3.10.8.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from amqpd.errors import AmqpError, FrameError, PreconditionFailed, UnexpectedFrame
from amqpd.protocol.field_table import read_u16, read_u32
from amqpd.protocol.frame import (
    BASIC_ACK,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    HEADER_FIXED_BYTES,
    LARGE_BODY_BYTES,
    PROPERTIES_START,
    FrameHandler,
    format_octets,
    frame,
    frame_error,
)

# Parts of a large body below PART_BYTES_MIN are joined up to PART_BYTES, so that a body in single octets does not
# become a million objects.
PART_BYTES_MIN: Final = 16 * 1024
PART_BYTES: Final = 128 * 1024

_BODY_SIZE_SANE_MAX: Final = 512 * 1024 * 1024


@final
class PartialContent:
    """A content that has begun with its method and is not complete."""

    def __init__(self, method: bytes, serial: i64, error: AmqpError | None) -> None:
        self.method = method
        self.serial = serial
        # With an error the content is skipped, and the error is raised at its end.
        self.error = error
        self.buffered_bytes: i64 = 0
        self.parts: list[bytes] = []
        self.header_size: i64 = 0
        self.body_size: i64 = 0
        self.missing_bytes: i64 = -1
        self.frame_payload_max: i64 = 0
        # For a large body, `parts` is the header frame and then payloads; small payloads wait here to be joined.
        self.is_large = False
        self.small_parts: list[bytes] = []
        self.small_parts_bytes: i64 = 0

    def add_payload(self, payload: bytes) -> None:
        """Add a body frame of a large body. Cost: a copy of small payloads."""
        size: i64 = len(payload)
        if size >= PART_BYTES_MIN and not self.small_parts:
            self.parts.append(payload)
            return
        self.small_parts.append(payload)
        self.small_parts_bytes += size
        if self.small_parts_bytes >= PART_BYTES:
            self.join_small_parts()

    def join_small_parts(self) -> None:
        if self.small_parts:
            self.parts.append(b"".join(self.small_parts))
            self.small_parts.clear()
            self.small_parts_bytes = 0


class ContentAssembler:
    """The partial contents of one connection, by channel. Not thread-safe."""

    def __init__(self, handler: FrameHandler, body_size_max: int) -> None:
        self.handler = handler
        self.body_size_max: i64 = body_size_max
        # Body bytes of all partial contents; contents begun so far.
        self.buffered_bytes: i64 = 0
        self._content_count: i64 = 0
        self._partials: dict[int, PartialContent] = {}
        # Channels that the broker has closed; their content frames are skipped.
        self._ignored_channels: set[int] = set()

    def oldest_serial(self) -> i64:
        """Return the serial of the oldest partial content, 0 if there is none. Serials increase with each content."""
        for partial in self._partials.values():
            return partial.serial
        return 0

    def newest_channel(self) -> i64:
        """Return the channel of the newest partial content; 0 if there are fewer than two."""
        if len(self._partials) < 2:
            return 0
        return list(self._partials)[-1]

    def ignore_channel(self, number: i64) -> None:
        """Skip the frames of this channel: the broker has closed it, and the client may not know yet."""
        self._remove_partial(number)
        self._ignored_channels.add(number)

    def accept_channel(self, number: i64) -> None:
        """Accept frames again: both sides have closed the channel, so its number can be reused."""
        self._remove_partial(number)
        self._ignored_channels.discard(number)

    def drop_partial_contents(self) -> None:
        self._partials.clear()
        self.buffered_bytes = 0

    def has_partial_content(self) -> bool:
        return len(self._partials) > 0

    def _remove_partial(self, number: i64) -> None:
        partial = self._partials.pop(number, None)
        if partial is not None:
            self.buffered_bytes -= partial.buffered_bytes

    def handle_frame(self, kind: i64, channel: i64, payload: bytes) -> None:
        """Handle one frame. Raises: FrameError, UnexpectedFrame, and errors of the handler."""
        if self._ignored_channels and channel in self._ignored_channels:
            if kind == FRAME_METHOD and len(payload) >= 4 and read_u32(payload, 0) != BASIC_PUBLISH:
                self.handler.on_method(channel, payload)
            return
        partial = self._partials.get(channel) if self._partials else None
        if kind == FRAME_METHOD:
            if partial is not None:
                raise self._unexpected_frame(partial)
            if len(payload) < 4:
                raise frame_error(kind, payload, "unknown_frame")
            method = read_u32(payload, 0)
            if method == BASIC_PUBLISH:
                self.handler.on_publish_started(channel)
                self._content_count += 1
                self._partials[channel] = PartialContent(
                    payload, self._content_count, self.handler.publish_error(channel, payload)
                )
            else:
                self.handler.on_method(channel, payload)
        elif kind == FRAME_HEADER:
            if partial is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if partial.missing_bytes >= 0:
                raise self._unexpected_frame(partial)
            self._on_header(channel, partial, payload)
        elif kind == FRAME_BODY:
            if partial is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if partial.missing_bytes < 0:
                raise self._unexpected_frame(partial)
            self._on_body(channel, partial, payload)
        elif kind == FRAME_HEARTBEAT:
            if channel != 0:
                raise UnexpectedFrame(f"type 8, all octets = {format_octets(payload)}")
            if payload:
                raise frame_error(kind, payload, "unknown_frame")
        else:
            raise frame_error(kind, payload, "unknown_frame")

    def _unexpected_frame(self, partial: PartialContent) -> UnexpectedFrame:
        if partial.missing_bytes < 0:
            text = "expected content header for class 60, got non content header frame instead"
        else:
            text = "expected content body, got non content body frame instead"
        return UnexpectedFrame(text, BASIC_PUBLISH)

    def _on_header(self, channel: i64, partial: PartialContent, payload: bytes) -> None:
        if len(payload) < HEADER_FIXED_BYTES + 2:
            raise frame_error(FRAME_HEADER, payload, "unknown_frame")
        class_id = read_u16(payload, 0)
        if class_id != 60:
            raise UnexpectedFrame(
                f"expected content header for class 60, got one for class {class_id} instead", BASIC_PUBLISH
            )
        if read_u16(payload, 2) != 0:
            # spec: 4.2.6.1, weight must be zero; rabbit: otherwise it is not a content header
            raise self._unexpected_frame(partial)
        body_size = read_i64_be(payload, 4)
        if body_size < 0 or body_size > _BODY_SIZE_SANE_MAX:
            announced: int = body_size  # u64 on the wire
            if announced < 0:
                announced += 1 << 64
            raise FrameError(f"content header announces a body of {announced} bytes", BASIC_PUBLISH)
        partial.header_size = len(payload) + FRAME_OVERHEAD_BYTES
        partial.body_size = body_size
        partial.missing_bytes = body_size
        if body_size > self.body_size_max:
            # The channel closes; the body still arrives and is dropped unbuffered.
            raise PreconditionFailed(
                f"message size {body_size} is larger than configured max size {self.body_size_max}", BASIC_PUBLISH
            )
        partial.is_large = body_size > LARGE_BODY_BYTES
        if partial.error is None:
            partial.parts.append(frame(FRAME_HEADER, channel, payload))
        if body_size == 0:
            self._finish_content(channel, partial)

    def _on_body(self, channel: i64, partial: PartialContent, payload: bytes) -> None:
        size: i64 = len(payload)
        if size > partial.missing_bytes:
            # rabbit: a body longer than announced is an unexpected body frame
            raise self._unexpected_frame(partial)
        partial.missing_bytes -= size
        if partial.error is not None:
            pass  # skipped
        elif partial.is_large:
            if size > 0:
                partial.add_payload(payload)
        elif size > 0:
            partial.parts.append(frame(FRAME_BODY, channel, payload))
            if size > partial.frame_payload_max:
                partial.frame_payload_max = size
        if partial.missing_bytes == 0:
            self._finish_content(channel, partial)
        elif partial.error is None:
            partial.buffered_bytes += size
            self.buffered_bytes += size

    def _finish_content(self, channel: i64, partial: PartialContent) -> None:
        self._remove_partial(channel)
        if partial.error is not None:
            raise partial.error
        if partial.is_large:
            partial.join_small_parts()
            parts = partial.parts
            header = parts.pop(0)
            self.handler.on_large_publish(channel, partial.method, header, parts, partial.body_size)
            return
        self.handler.on_publish(
            channel,
            partial.method,
            b"".join(partial.parts),
            partial.header_size,
            partial.body_size,
            partial.frame_payload_max,
            False,
        )


# How much of the template a publish repeats: nothing, the method, the properties too, the body size too.
_SAME_NOTHING: Final = 0
_SAME_METHOD: Final = 1
_SAME_PROPERTIES: Final = 2
_SAME_SIZE: Final = 3
# After more misses than this in a row, expect less; after this many more publishes, expect everything again.
_TEMPLATE_MISSES_MAX: Final = 4
_TEMPLATE_PAUSE: Final = 256
# The part of a header frame before the body size: type, channel, payload size, class, weight.
_HEADER_HEAD_BYTES: Final = 11
# A longer header frame does not become a template.
_TEMPLATE_HEADER_BYTES_MAX: Final = 4096

_NO_HANDLER: Final = FrameHandler()


@final
class FrameParser(ContentAssembler):
    """The parser of the byte stream of one connection. Not thread-safe.

    It keeps the last plain publish (one header frame, at most one body frame) as a template, because most publishers
    send much of it again. One comparison of bytes then replaces all checks. `_match_level` is how much of the template
    the next publish is expected to repeat.
    """

    def __init__(self, handler: FrameHandler, frame_payload_max: int, body_size_max: int) -> None:
        super().__init__(handler, body_size_max)
        # Payload bytes accepted in one frame. RabbitMQ accepts frame_max, eight more than the specification.
        self.frame_payload_max: i64 = frame_payload_max
        self.channel: i64 = 0  # of the last command: a channel error closes it
        self._data: bytes = b""
        self._position: i64 = 0
        self._partial_frame: list[bytes] = []
        self._partial_frame_bytes: i64 = 0
        self._needed_bytes: i64 = 0
        # Results of `_plain_content_end` and `_template_content_end`.
        self._header_size: i64 = 0
        self._body_size: i64 = 0
        # Expected repetition; misses in a row; publishes until the highest level is tried again.
        self._match_level: i64 = _SAME_NOTHING
        self._template_misses: i64 = 0
        self._template_pause: i64 = 0
        self._template_channel: i64 = 0
        self._template_method = b""
        # _SAME_METHOD: the method frame.
        self._template_method_frame = b""
        self._template_method_bytes: i64 = 0
        # _SAME_PROPERTIES: method frame and head of the header frame; the bytes between the body size in the header and
        # the size of the body frame.
        self._template_head = b""
        self._template_tail = b""
        self._template_header_bytes: i64 = 0
        # _SAME_SIZE: method frame, header frame, head of the body frame; their size; the size of the whole publish.
        self._template_start = b""
        self._template_start_bytes: i64 = 0
        self._template_publish_bytes: i64 = 0
        self._template_body_bytes: i64 = 0

    def feed_data(self, data: bytes) -> None:
        """Add received bytes. `parse` handles them."""
        if self._partial_frame_bytes:
            self._partial_frame.append(data)
            self._partial_frame_bytes += len(data)
            if self._partial_frame_bytes < self._needed_bytes:
                return
            data = b"".join(self._partial_frame)
            self._partial_frame.clear()
            self._partial_frame_bytes = 0
        self._data = data
        self._position = 0

    def is_mid_command(self) -> bool:
        """Return whether a frame or a content is incomplete: a silent client then holds memory."""
        return self._partial_frame_bytes > 0 or len(self._partials) > 0

    def progress(self) -> tuple[int, int, int]:
        """Return a value that changes with each received octet of the oldest content or the current frame."""
        for partial in self._partials.values():
            return partial.serial, partial.missing_bytes, self._partial_frame_bytes
        return 0, 0, self._partial_frame_bytes

    def take_unparsed(self) -> bytes:
        """Return and drop the bytes that are not parsed yet, when the connection stops parsing frames."""
        rest = self._data[self._position :] + b"".join(self._partial_frame)
        self._data = b""
        self._position = 0
        self._partial_frame.clear()
        self._partial_frame_bytes = 0
        return rest

    def dispose(self) -> None:
        """Drop all data and the handler, which refers to this parser: the stream has ended."""
        self.handler = _NO_HANDLER
        self.take_unparsed()
        self.drop_partial_contents()

    def parse(self) -> None:
        """Hand over every complete command.

        Cost: linear in the bytes. Raises: FrameError, UnexpectedFrame, and errors of the handler.
        """
        data = self._data
        position = self._position
        end: i64 = len(data)
        handler = self.handler
        payload_max = self.frame_payload_max
        need: i64 = 7
        while end - position >= 7:
            if self._match_level > _SAME_NOTHING and not self._partials:
                position = self._take_same_as_last(data, position, end)
                if end - position < 7:
                    break
            # Via int: i32 and i64 do not mix, and a cast costs time when interpreted.
            channel: int = read_i16_be(data, position + 1)
            size: int = read_i32_be(data, position + 3)
            if size < 0 or size > payload_max:
                shown = f"{{frame_too_large,{size & 0xFFFFFFFF},{payload_max - FRAME_OVERHEAD_BYTES}}}"
                raise self._frame_error(data, position, b"", shown)
            frame_end = position + 7 + size
            if frame_end >= end:
                need = size + FRAME_OVERHEAD_BYTES
                break
            if data[frame_end] != FRAME_END:
                shown = f"{{invalid_frame_end_marker,{data[frame_end]}}}"
                raise self._frame_error(data, position, data[position + 7 : frame_end], shown)
            number = channel & 0xFFFF
            if data[position] == FRAME_METHOD and size >= 4:
                method: int = read_i32_be(data, position + 7)
                if method == BASIC_PUBLISH and (not self._partials or number not in self._partials):
                    after = self._take_publish(data, position, frame_end + 1, end, number)
                    if after > 0:
                        position = after
                        continue
                    if after == 0:
                        need = self._needed_bytes
                        break
                elif method == BASIC_ACK and size == 13 and not self._partials:
                    self.channel = number
                    self._position = frame_end + 1
                    handler.on_ack(number, read_i64_be(data, position + 11), data[position + 19] & 1 == 1)
                    position = frame_end + 1
                    continue
            self.channel = number
            self._position = frame_end + 1
            self.handle_frame(data[position], number, data[position + 7 : frame_end])
            payload_max = self.frame_payload_max  # tune-ok changes it
            position = frame_end + 1
        rest = end - position
        if rest > 0:
            self._needed_bytes = need
            self._partial_frame.append(data[position:] if position > 0 else data)
            self._partial_frame_bytes = rest
        self._data = b""
        self._position = 0

    def _frame_error(self, data: bytes, position: i64, payload: bytes, why: str) -> FrameError:
        """Return the error for the frame at `position`. The bytes after it are not parsed."""
        self._position = len(data)
        self.channel = read_u16(data, position + 1)
        return frame_error(data[position], payload, why)

    def _take_same_as_last(self, data: bytes, position: i64, end: i64) -> i64:
        """Pass on the publishes that repeat the template, from `position` on. Return the position after them."""
        handler = self.handler
        while end - position >= 7 and self._match_level > _SAME_NOTHING:
            if self._match_level == _SAME_SIZE:
                before = position
                whole = self._template_publish_bytes
                start = self._template_start
                start_size = self._template_start_bytes
                while end - position >= whole and data[position : position + start_size] == start:
                    stop = position + whole
                    if data[stop - 1] != FRAME_END:
                        break
                    self.channel = self._template_channel
                    self._position = stop
                    handler.on_publish(
                        self._template_channel,
                        self._template_method,
                        data[position + self._template_method_bytes : stop],
                        self._template_header_bytes,
                        self._template_body_bytes,
                        self._template_body_bytes,
                        True,
                    )
                    position = stop
                if position > before:
                    self._template_misses = 0
                    if end - position < 7:
                        break
            content = position + self._template_method_bytes
            content_end: i64 = 0
            found: i64 = _SAME_PROPERTIES
            if self._match_level >= _SAME_PROPERTIES:
                content_end = self._template_content_end(data, position, end)
            if content_end == 0 and content < end and data[position:content] == self._template_method_frame:
                content_end = self._plain_content_end(data, content, end, self._template_channel)
                found = _SAME_METHOD
            if content_end <= 0:
                break
            self.channel = self._template_channel
            self._position = content_end
            if found < self._match_level or self._template_pause <= 0:
                self._learn_template(found, self._template_channel, data, position, content, content_end)
                found = _SAME_METHOD  # the method object may be new
            else:
                self._template_pause -= 1
                self._template_misses = 0
            handler.on_publish(
                self._template_channel,
                self._template_method,
                data[content:content_end],
                self._header_size,
                self._body_size,
                self._body_size,
                found == _SAME_PROPERTIES,
            )
            position = content_end
        return position

    def _take_publish(self, data: bytes, start: i64, content: i64, end: i64, number: i64) -> i64:
        """Hand over the publish with its method frame in [start, content). Return the end of its content.

        Return 0 if it is incomplete: `_needed_bytes` from `start` on are needed next. Return -1 if it needs the slow
        path.
        """
        content_end = self._plain_content_end(data, content, end, number)
        if content_end > 0:
            self.channel = number
            self._position = content_end
            payload = data[start + 7 : content - 1]
            if self._match_level > _SAME_NOTHING or self._template_pause <= 0:
                self._learn_template(_SAME_NOTHING, number, data, start, content, content_end)
                if self._match_level > _SAME_NOTHING:
                    payload = self._template_method
            else:
                self._template_pause -= 1
            self.handler.on_publish(
                number, payload, data[content:content_end], self._header_size, self._body_size, self._body_size, False
            )
            return content_end
        if content_end < 0 or (self._ignored_channels and number in self._ignored_channels):
            return -1
        if content == end:
            # Nothing follows yet: the handler reports an error of the method now.
            self.channel = number
            self._position = end
            self.handler.on_publish_started(number)
            self._position = start
        self._needed_bytes += content - start
        return 0

    def _learn_template(self, found: i64, number: i64, data: bytes, start: i64, content: i64, end: i64) -> None:
        """Keep the publish in [start, end), whose content begins at `content`, as the new template.

        Called when a publish repeats less than expected, and when it is time to expect more again. After too many
        misses in a row the expectation falls to `found` instead.
        """
        if found < self._match_level:
            self._template_misses += 1
            if self._template_misses > _TEMPLATE_MISSES_MAX:
                self._template_misses = 0
                self._template_pause = _TEMPLATE_PAUSE
                self._match_level = found
                return
        # A new object even for equal bytes: the handler must not reuse what it derived from older properties.
        self._template_method = data[start + 7 : content - 1]
        self._template_channel = number
        self._template_method_frame = data[start:content]
        self._template_method_bytes = content - start
        self._template_header_bytes = self._header_size
        self._template_body_bytes = self._body_size
        if self._body_size == 0 or self._header_size > _TEMPLATE_HEADER_BYTES_MAX:
            self._match_level = _SAME_METHOD
            self._template_pause = _TEMPLATE_PAUSE
            return
        self._match_level = _SAME_SIZE
        self._template_head = data[start : content + _HEADER_HEAD_BYTES]
        self._template_tail = data[content + PROPERTIES_START : content + self._header_size + 3]
        self._template_start_bytes = end - 1 - self._body_size - start
        self._template_start = data[start : start + self._template_start_bytes]
        self._template_publish_bytes = end - start

    def _template_content_end(self, data: bytes, start: i64, end: i64) -> i64:
        """Return the end of the publish at `start` if it is complete and equals the template except for its body,
        otherwise 0.

        Sets `_header_size` and `_body_size`.
        """
        properties = start + self._template_method_bytes + PROPERTIES_START
        body = properties + self._template_header_bytes - PROPERTIES_START + 7
        if (
            body > end
            or data[start : properties - 8] != self._template_head
            or data[properties : body - 4] != self._template_tail
        ):
            return 0
        body_size = read_i64_be(data, properties - 8)
        if (
            body_size <= 0
            or body_size > self.frame_payload_max
            or body_size > self.body_size_max
            or read_i64_be(data, body - 8) & 0xFFFFFFFF != body_size
        ):
            return 0
        content_end = body + body_size + 1
        if content_end > end or data[content_end - 1] != FRAME_END:
            return 0
        self._header_size = self._template_header_bytes
        self._body_size = body_size
        return content_end

    def _plain_content_end(self, data: bytes, start: i64, end: i64, channel: i64) -> i64:
        """Return the end of the content at `start` if it is a header frame and at most one body frame.

        Return 0 if it may be plain: `_needed_bytes` from `start` on decide. That is never more than is certain to
        arrive, because frames of other channels may follow a part of a body. Return -1 for another shape or an error:
        the slow path handles it. Otherwise set `_header_size` and `_body_size`.
        """
        have = end - start
        if have < PROPERTIES_START + 1:
            if have == 0:
                self._needed_bytes = 1
                return 0
            if data[start] != FRAME_HEADER:
                return -1
            if have < 7:
                self._needed_bytes = 7
                return 0
            # A header of a wrong size is an error, which the slow path reports now.
            if not HEADER_FIXED_BYTES + 2 <= read_u32(data, start + 3) <= self.frame_payload_max:
                return -1
            self._needed_bytes = PROPERTIES_START + 1
            return 0
        # Eight octets per read, across fields: type, channel, size; class, weight.
        word = read_i64_be(data, start)
        size = (word >> 8) & 0xFFFFFFFF
        body_size = read_i64_be(data, start + 11)
        if (
            (word >> 40) & 0xFFFFFF != (FRAME_HEADER << 16) | channel
            or size < HEADER_FIXED_BYTES + 2
            or size > self.frame_payload_max
            or (read_i64_be(data, start + 7) >> 32) & 0xFFFFFFFF != 0x003C0000
            or body_size < 0
            or body_size > self.frame_payload_max
            or body_size > self.body_size_max
        ):
            return -1
        header_end = start + 8 + size
        if header_end > end:
            self._needed_bytes = 8 + size
            return 0
        if data[header_end - 1] != FRAME_END:
            return -1
        self._header_size = 8 + size
        self._body_size = body_size
        if body_size == 0:
            return header_end
        if end - header_end < 7:
            if end > header_end and data[header_end] != FRAME_BODY:
                return -1
            self._needed_bytes = header_end - start + (1 if end == header_end else 7)
            return 0
        # The end octet of the header frame, then type, channel and size of the body frame.
        word = read_i64_be(data, header_end - 1)
        if (word >> 32) & 0xFFFFFF != (FRAME_BODY << 16) | channel or word & 0xFFFFFFFF != body_size:
            return -1
        content_end = header_end + 8 + body_size
        if content_end > end:
            self._needed_bytes = content_end - start
            return 0
        return content_end if data[content_end - 1] == FRAME_END else -1
