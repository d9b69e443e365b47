"""Decoder of the bodies that are read by hand, because they are large or frequent."""

from __future__ import annotations

import struct
from typing import Final

from amqpd.kafka_server.body_writer import INT16, INT32
from amqpd.kafka_server.messages import MalformedRequest, RequestHeader, read_varint, skip_tagged_fields

UUID_SIZE: Final = 16


class RequestReader:
    """A position in the body of a request. All methods raise MalformedRequest.

    Args:
        frame: the request without its length. The reader begins after the header's tagged fields.
        flexible: lengths and counts are varints, and each struct ends with tagged fields.
    """

    __slots__ = ("data", "flexible", "position")

    def __init__(self, frame: bytes, header: RequestHeader, flexible: bool) -> None:
        self.data = frame
        self.flexible = flexible
        self.position = skip_tagged_fields(frame, header.size) if flexible else header.size

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Return numbers of a fixed size."""
        start = self.position
        self.position = start + fields.size
        if self.position > len(self.data):
            raise MalformedRequest("a request that ends early")
        return fields.unpack_from(self.data, start)

    def _size(self, fields: struct.Struct) -> int:
        """Return the length of an array, a string or bytes; -1 for null."""
        if self.flexible:
            size, self.position = read_varint(self.data, self.position)
            return size - 1
        return self.unpack(fields)[0]

    def _end_of(self, size: int) -> int:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise MalformedRequest(f"a field of {size} bytes")
        return end

    def take(self, size: int) -> bytes:
        """Return as many bytes."""
        start = self.position
        self.position = self._end_of(size)
        return self.data[start : self.position]

    def string(self) -> bytes:
        """Return a string that is not null, in UTF-8."""
        return self.take(self._size(INT16))

    def nullable_text(self) -> str | None:
        """Return a string or null. What is not UTF-8 is replaced."""
        size = self._size(INT16)
        return None if size < 0 else self.take(size).decode("utf-8", "replace")

    def bytes_range(self) -> tuple[int, int]:
        """Return start and end of bytes in the frame, without a copy; -1 and -1 for null."""
        size = self._size(INT32)
        if size < 0:
            return -1, -1
        start = self.position
        self.position = self._end_of(size)
        return start, self.position

    def count(self, size_min: int) -> int:
        """Return the length of an array that is not null, whose elements have at least `size_min` bytes."""
        count = self._size(INT32)
        if count < 0 or count * size_min > len(self.data) - self.position:
            raise MalformedRequest(f"an array of {count} elements")
        return count

    def end_struct(self) -> None:
        """Skip the tagged fields at the end of a struct."""
        if self.flexible:
            self.position = skip_tagged_fields(self.data, self.position)
