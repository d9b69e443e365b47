"""Decoder of the bodies that are read by hand: they are large or frequent, or kafka-python does not know them."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from amqpd.kafka_server.body_writer import INT16, INT32, INT64
from amqpd.kafka_server.messages import MalformedRequest, read_varint, skip_tagged_fields

_INT8: Final = struct.Struct(">b")
UUID_SIZE: Final = 16


class RequestReader:
    """A position in the body of a request. All methods raise MalformedRequest.

    Args:
        data: the request without its length.
        position: where the body begins, before the tagged fields of the header.
        flexible: lengths and counts are varints, and each struct ends with tagged fields.
    """

    __slots__ = ("data", "flexible", "position")

    def __init__(self, data: bytes, position: int, flexible: bool = True) -> None:
        self.data = data
        self.flexible = flexible
        self.position = skip_tagged_fields(data, position) if flexible else position

    # -- numbers

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Return numbers of a fixed size."""
        start = self.position
        self.position = start + fields.size
        if self.position > len(self.data):
            raise MalformedRequest("a request that ends early")
        return fields.unpack_from(self.data, start)

    def int8(self) -> int:
        return self.unpack(_INT8)[0]

    def int32(self) -> int:
        return self.unpack(INT32)[0]

    def int64(self) -> int:
        return self.unpack(INT64)[0]

    def boolean(self) -> bool:
        return self.unpack(_INT8)[0] != 0

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(UUID_SIZE))

    # -- bytes and texts

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
        """Return a string that is not null, as bytes."""
        return self.take(self._size(INT16))

    def nullable_text(self) -> str | None:
        size = self._size(INT16)
        if size < 0:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise MalformedRequest("a text that is not UTF-8") from None

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise MalformedRequest("a text that is null")
        return text

    def bytes_range(self) -> tuple[int, int]:
        """Return start and end of bytes in the frame, without a copy; -1 and -1 for null."""
        size = self._size(INT32)
        if size < 0:
            return -1, -1
        start = self.position
        self.position = self._end_of(size)
        return start, self.position

    # -- arrays and structs

    def nullable_count(self, most: int, size_min: int = 1) -> int:
        """Return the length of an array, whose elements have at least `size_min` bytes; -1 for null."""
        count = self._size(INT32)
        if count > most or count * size_min > len(self.data) - self.position:
            raise MalformedRequest(f"an array of {count} elements; at most {most} are accepted")
        return count

    def count(self, most: int, size_min: int = 1) -> int:
        """Return the length of an array that is not null. See `nullable_count`."""
        count = self.nullable_count(most, size_min)
        if count < 0:
            raise MalformedRequest("an array that is null")
        return count

    def end_struct(self) -> None:
        """Skip the tagged fields at the end of a struct."""
        if self.flexible:
            self.position = skip_tagged_fields(self.data, self.position)
