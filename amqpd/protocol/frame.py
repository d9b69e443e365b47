"""Frames: constants, error texts, the interface of the parser's user, and a scanner of frame boundaries.

A frame is type u8, channel u16, payload size u32, payload, 0xCE. A command is one method frame; a basic.publish is also
followed by a content header frame and body frames.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.errors import AmqpError, FrameError
from amqpd.protocol.field_table import read_u32

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD_BYTES: Final = 8

BASIC_PUBLISH: Final = 0x003C0028
BASIC_ACK: Final = 0x003C0050

# The payload of a content header: class u16, weight u16, body size u64, then the property flags.
HEADER_FIXED_BYTES: Final = 12
PROPERTIES_START: Final = 7 + HEADER_FIXED_BYTES

# A body above this size stays in the parts in which it arrived.
LARGE_BODY_BYTES: Final = 256 * 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """The interface of the object that a FrameParser calls: the connection; in tests also interpreted classes."""

    def on_publish(
        self,
        channel: i64,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        same_as_last: bool,
    ) -> None:
        """Handle a complete basic.publish.

        Args:
            method: the payload of the method frame, the key of the route cache. Equal bytes are usually the same
            object.
            content: the header frame and the non-empty body frames as they arrived.
            header_size: bytes of the whole header frame.
            body_size: bytes.
            frame_payload_max: payload bytes of the largest body frame.
            same_as_last: the header frame equals that of the last publish with this method object, except the body
            size.
        """
        raise NotImplementedError

    def on_large_publish(self, channel: i64, method: bytes, header: bytes, parts: list[bytes], body_size: i64) -> None:
        """Handle a complete basic.publish with a body above LARGE_BODY_BYTES.

        Args:
            header: the header frame.
            parts: the body in order, without frames.
        """
        raise NotImplementedError

    def on_ack(self, channel: i64, tag: i64, multiple: bool) -> None:
        """Handle a basic.ack."""
        raise NotImplementedError

    def on_method(self, channel: i64, payload: bytes) -> None:
        """Handle any other method frame. The payload has at least four bytes."""
        raise NotImplementedError

    def on_publish_started(self, channel: i64) -> None:
        """Handle the method of a basic.publish whose content has not arrived yet. Raises if the channel is not open."""
        raise NotImplementedError

    def publish_error(self, channel: i64, method: bytes) -> AmqpError | None:
        """Return the error of a publish if the method alone decides it, otherwise None.

        Called for a content in several body frames. With an error the parser does not keep the content; it raises the
        error when the content is complete.
        """
        return None


def format_octets(data: bytes) -> str:
    """Return at most 64 octets as Erlang prints a binary in reply texts: `<<1,2>>` or `<<"text">>`."""
    shown = data[:64]
    if shown and all(32 <= octet < 127 for octet in shown):
        return '<<"' + shown.decode("ascii") + '">>'
    return "<<" + ",".join([str(octet) for octet in shown]) + ">>"


def frame_error(kind: i64, data: bytes, why: str) -> FrameError:
    """Return the 501 for a frame with this type and payload. `why` is RabbitMQ's word for the cause."""
    return FrameError(f"type {kind}, all octets = {format_octets(data)}: {why}")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return the bytes of a frame of the type `kind`, FRAME_METHOD for example."""
    return b"".join((bytes((kind,)), channel.to_bytes(2, "big"), len(payload).to_bytes(4, "big"), payload, b"\xce"))


_HEADER_BYTES: Final = 7
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033


@final
class FrameBoundaryScanner:
    """Finds the boundaries of frames that are forwarded unread, in one direction of a connection.

    A proxy forwards whole frames only and keeps the beginning of the next one. So it can insert a frame of its own at
    any time. Cost: a copy of the incomplete frame, at most `frame_max` bytes; about 30 ns per frame compiled, 300 ns
    interpreted.

    Attributes:
        frame_max: bytes of a whole frame.
        saw_close: whether connection.close or close-ok has passed.
        is_broken: whether a frame was too large. Nothing passes after it.
    """

    def __init__(self, frame_max: int) -> None:
        self.frame_max: i64 = frame_max
        self.saw_close = False
        self.is_broken = False
        self._partial_frame: list[bytes] = []
        # Bytes that the incomplete frame still needs; 0 if its size is unknown.
        self._missing_bytes: i64 = 0

    def complete_frames(self, data: bytes) -> bytes:
        """Add received bytes and return the frames that are complete now, empty if there are none."""
        if self.is_broken:
            return b""
        if self._partial_frame:
            self._partial_frame.append(data)
            if self._missing_bytes > len(data):
                self._missing_bytes -= len(data)
                return b""
            data = b"".join(self._partial_frame)
            self._partial_frame = []
        size: i64 = len(data)
        position: i64 = 0
        missing: i64 = 0
        while position + _HEADER_BYTES <= size:
            length = read_u32(data, position + 3)
            end = position + length + FRAME_OVERHEAD_BYTES
            if end - position > self.frame_max + FRAME_OVERHEAD_BYTES:
                self.is_broken = True
                return data[:position]
            if end > size:
                missing = end - size
                break
            if length >= 4 and data[position] == FRAME_METHOD:
                method = read_u32(data, position + _HEADER_BYTES)
                if method in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
                    self.saw_close = True
            position = end
        self._missing_bytes = missing
        if position == size:
            return data
        self._partial_frame = [data[position:]]
        return data[:position]
