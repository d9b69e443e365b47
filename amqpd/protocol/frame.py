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

# A content header's payload: class u16, weight u16, body size u64, then the property flags.
HEADER_FIXED_BYTES: Final = 12
PROPERTIES_START: Final = 7 + HEADER_FIXED_BYTES

# From here on a body stays in the parts in which it came.
LARGE_BODY_BYTES: Final = 256 * 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """What the assembler calls. The connection is the real one; tests have others, interpreted ones too."""

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
        """A whole basic.publish.

        method: the method frame's payload; its bytes serve as the key of the route cache. Most often it is the same
        object as before where the bytes are the same.
        same_as_last: the header frame equals that of the last publish with this method object, except the body size.
        content: header frame and non-empty body frames as they came. header_size: bytes of the whole header frame.
        body_size: bytes. frame_payload_max: payload bytes of the largest body frame.
        """
        raise NotImplementedError

    def on_large_publish(self, channel: i64, method: bytes, header: bytes, parts: list[bytes], body_size: i64) -> None:
        """A whole basic.publish whose body is above LARGE_BODY_BYTES.

        header: the header frame. parts: the body, in order, without frames.
        """
        raise NotImplementedError

    def on_ack(self, channel: i64, tag: i64, multiple: bool) -> None:
        raise NotImplementedError

    def on_method(self, channel: i64, payload: bytes) -> None:
        """Any other method frame's payload, at least four bytes long."""
        raise NotImplementedError

    def on_publish_started(self, channel: i64) -> None:
        """A basic.publish whose content is still on the way. Raises if the channel is not open."""
        raise NotImplementedError

    def publish_error(self, channel: i64, method: bytes) -> AmqpError | None:
        """Why the publish of that method is refused, as far as the method tells; its content is not kept then.

        Asked where the content comes in more than one body frame. The error is raised when the content is complete.
        """
        return None


def format_octets(data: bytes) -> str:
    """Erlang's way to print a binary, `<<1,2>>` or `<<"text">>`: reply texts carry it. At most 64 octets are shown."""
    shown = data[:64]
    if shown and all(32 <= octet < 127 for octet in shown):
        return '<<"' + shown.decode("ascii") + '">>'
    return "<<" + ",".join([str(octet) for octet in shown]) + ">>"


def frame_error(kind: i64, data: bytes, why: str) -> FrameError:
    """501 for a frame of this type with this payload. why: RabbitMQ's word for it."""
    return FrameError(f"type {kind}, all octets = {format_octets(data)}: {why}")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A whole frame."""
    return b"".join((bytes((kind,)), channel.to_bytes(2, "big"), len(payload).to_bytes(4, "big"), payload, b"\xce"))


_HEADER_BYTES: Final = 7
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033


@final
class FrameBoundaryScanner:
    """Of one direction. frame_max: bytes of a whole frame.

    closed: connection.close or close-ok has passed. is_broken: a frame was larger than there may be, and nothing passes
    from there on. Cost: a copy of what begins and does not end; some 30 ns a frame compiled, 300 ns interpreted. Keeps
    `frame_max` bytes at most.
    """

    def __init__(self, frame_max: int) -> None:
        self.frame_max: i64 = frame_max
        self.saw_close = False
        self.is_broken = False
        self._partial_frame: list[bytes] = []
        # Bytes of the frame that is under way which are to come; 0 where not even its size is known.
        self._missing_bytes: i64 = 0

    def complete_frames(self, data: bytes) -> bytes:
        """The whole frames that are there now; empty where there is none."""
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
