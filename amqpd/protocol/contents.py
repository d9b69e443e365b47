"""Contents on their way, and what each frame means where it stands: one frame at a time, in any order that is legal.

This is the plain state machine. `Assembler` builds on it, cuts frames out of what arrives, and has a shorter way for a
publish that lies there whole, which gives the same commands.

A content is handed over as the frames that carried it, byte for byte: header frame, then body frames (empty ones left
out). A body above LARGE_BODY_BYTES is handed over as the payloads of its frames, which nobody joins: a copy of 16 MiB,
and the memory for it, would hold the loop.

Invariants: one content per channel is on its way at most; `kept_bytes` is what is kept of their bodies.
Errors: FrameError (501), UnexpectedFrame (505); texts as RabbitMQ 3.10.8 gives them.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.errors import AmqpError, FrameError, PreconditionFailed, UnexpectedFrame
from amqpd.protocol.field_table import read_u16, read_u32
from amqpd.protocol.frame import BASIC_PUBLISH, FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, FRAME_OVERHEAD_BYTES, HEADER_FIXED_BYTES, LARGE_BODY_BYTES, CommandSink, frame, frame_fault, octets

# Parts of a large body that are smaller than PART_BYTES_MIN are joined up to PART_BYTES, so that a body of single
# octets is not a million objects.
PART_BYTES_MIN: Final = 16 * 1024
PART_BYTES: Final = 128 * 1024

_BODY_SIZE_SANE_MAX: Final = 512 * 1024 * 1024


@final
class PartialContent:
    """A content on its way: after the method, before the last body byte."""

    def __init__(self, method: bytes, serial: i64, refusal: AmqpError | None) -> None:
        self.method = method
        self.serial = serial
        # It is read over: nothing of it is kept.
        self.refusal = refusal
        self.kept_bytes: i64 = 0
        self.parts: list[bytes] = []
        self.header_size: i64 = 0
        self.body_size: i64 = 0
        self.missing: i64 = -1
        self.frame_payload_max: i64 = 0
        # Of a large body, whose `parts` are payloads but for the header frame: small ones that wait to be joined.
        self.large = False
        self.small: list[bytes] = []
        self.small_size: i64 = 0

    def add_payload(self, payload: bytes) -> None:
        """The next frame's payload of a large body. Cost: a copy of small ones."""
        size: i64 = len(payload)
        if size >= PART_BYTES_MIN and not self.small:
            self.parts.append(payload)
            return
        self.small.append(payload)
        self.small_size += size
        if self.small_size >= PART_BYTES:
            self.join_small()

    def join_small(self) -> None:
        if self.small:
            self.parts.append(b"".join(self.small))
            self.small.clear()
            self.small_size = 0


class Contents:
    """The contents of one connection that are on their way, by channel. Not shared, not thread-safe."""

    def __init__(self, sink: CommandSink, body_size_max: int) -> None:
        self.sink = sink
        self.body_size_max: i64 = body_size_max
        # Bytes kept of bodies that are not complete, and contents begun so far.
        self.kept_bytes: i64 = 0
        self._begun: i64 = 0
        self._partials: dict[int, PartialContent] = {}
        # Closed by the broker; their content frames are passed over.
        self._dropped: set[int] = set()

    def oldest(self) -> i64:
        """The serial of the content that has been on its way longest; 0: none is. Serials go up with each content."""
        for partial in self._partials.values():
            return partial.serial
        return 0

    def newest_channel(self) -> i64:
        """The channel of the content that began last; 0: none is on its way, or just one."""
        if len(self._partials) < 2:
            return 0
        return list(self._partials)[-1]

    def drop_channel(self, number: i64) -> None:
        """Ignores content frames of a channel from here on: the broker has closed it and the peer may not know yet."""
        self._forget(number)
        self._dropped.add(number)

    def take_channel(self, number: i64) -> None:
        """The channel is closed on both sides: its number may be used again."""
        self._forget(number)
        self._dropped.discard(number)

    def drop_contents(self) -> None:
        """Forgets every content that is on its way."""
        self._partials.clear()
        self.kept_bytes = 0

    def unfinished(self) -> bool:
        """Whether a content is on its way."""
        return len(self._partials) > 0

    def _forget(self, number: i64) -> None:
        partial = self._partials.pop(number, None)
        if partial is not None:
            self.kept_bytes -= partial.kept_bytes

    def take_frame(self, kind: i64, channel: i64, payload: bytes) -> None:
        """Any frame, one at a time: Raises: FrameError, UnexpectedFrame, and what the sink raises."""
        if self._dropped and channel in self._dropped:
            if kind == FRAME_METHOD and len(payload) >= 4 and read_u32(payload, 0) != BASIC_PUBLISH:
                self.sink.on_method(channel, payload)
            return
        partial = self._partials.get(channel) if self._partials else None
        if kind == FRAME_METHOD:
            if partial is not None:
                raise self._unexpected(partial)
            if len(payload) < 4:
                raise frame_fault(kind, payload, "unknown_frame")
            method = read_u32(payload, 0)
            if method == BASIC_PUBLISH:
                self.sink.on_publish_started(channel)
                self._begun += 1
                self._partials[channel] = PartialContent(payload, self._begun, self.sink.refusal(channel, payload))
            else:
                self.sink.on_method(channel, payload)
        elif kind == FRAME_HEADER:
            if partial is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if partial.missing >= 0:
                raise self._unexpected(partial)
            self._header(channel, partial, payload)
        elif kind == FRAME_BODY:
            if partial is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if partial.missing < 0:
                raise self._unexpected(partial)
            self._body(channel, partial, payload)
        elif kind == FRAME_HEARTBEAT:
            if channel != 0:
                raise UnexpectedFrame(f"type 8, all octets = {octets(payload)}")
            if payload:
                raise frame_fault(kind, payload, "unknown_frame")
        else:
            raise frame_fault(kind, payload, "unknown_frame")

    def _unexpected(self, partial: PartialContent) -> UnexpectedFrame:
        if partial.missing < 0:
            text = "expected content header for class 60, got non content header frame instead"
        else:
            text = "expected content body, got non content body frame instead"
        return UnexpectedFrame(text, BASIC_PUBLISH)

    def _header(self, channel: i64, partial: PartialContent, payload: bytes) -> None:
        if len(payload) < HEADER_FIXED_BYTES + 2:
            raise frame_fault(FRAME_HEADER, payload, "unknown_frame")
        class_id = read_u16(payload, 0)
        if class_id != 60:
            raise UnexpectedFrame(
                f"expected content header for class 60, got one for class {class_id} instead", BASIC_PUBLISH
            )
        if read_u16(payload, 2) != 0:
            # spec: 4.2.6.1 weight is unused and must be zero; rabbit: else it is no content header
            raise self._unexpected(partial)
        body_size = read_i64_be(payload, 4)
        if body_size < 0 or body_size > _BODY_SIZE_SANE_MAX:
            announced: int = body_size  # unsigned on the wire
            if announced < 0:
                announced += 1 << 64
            raise FrameError(f"content header announces a body of {announced} bytes", BASIC_PUBLISH)
        partial.header_size = len(payload) + FRAME_OVERHEAD_BYTES
        partial.body_size = body_size
        partial.missing = body_size
        if body_size > self.body_size_max:
            # The channel is closed for this; its body is still to come and is dropped unbuffered.
            raise PreconditionFailed(
                f"message size {body_size} is larger than configured max size {self.body_size_max}", BASIC_PUBLISH
            )
        partial.large = body_size > LARGE_BODY_BYTES
        if partial.refusal is None:
            partial.parts.append(frame(FRAME_HEADER, channel, payload))
        if body_size == 0:
            self._finish(channel, partial)

    def _body(self, channel: i64, partial: PartialContent, payload: bytes) -> None:
        size: i64 = len(payload)
        if size > partial.missing:
            # rabbit: a body longer than its header announced reads as a body frame too many
            raise self._unexpected(partial)
        partial.missing -= size
        if partial.refusal is not None:
            pass  # read over
        elif partial.large:
            if size > 0:
                partial.add_payload(payload)
        elif size > 0:
            partial.parts.append(frame(FRAME_BODY, channel, payload))
            if size > partial.frame_payload_max:
                partial.frame_payload_max = size
        if partial.missing == 0:
            self._finish(channel, partial)
        elif partial.refusal is None:
            partial.kept_bytes += size
            self.kept_bytes += size

    def _finish(self, channel: i64, partial: PartialContent) -> None:
        self._forget(channel)
        if partial.refusal is not None:
            raise partial.refusal
        if partial.large:
            partial.join_small()
            parts = partial.parts
            header = parts.pop(0)
            self.sink.on_large_publish(channel, partial.method, header, parts, partial.body_size)
            return
        self.sink.on_publish(
            channel,
            partial.method,
            b"".join(partial.parts),
            partial.header_size,
            partial.body_size,
            partial.frame_payload_max,
            False,
        )
