"""Decoder of the fields of a request, and encoder of the fields of a response."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from amqpd.kafka_server.messages import MalformedRequest, read_varint

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
UINT16: Final = struct.Struct(">H")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")
NO_ID: Final = UUID(int=0)
UUID_SIZE: Final = 16
TAGS_MAX: Final = 1000
"""Tagged fields of one request, at 1 us each. Clients send a few."""
NUMBERS_MAX: Final = 100_000
"""Elements of all arrays of int32 of one request."""
_NULL: Final = -1


class RequestReader:
    """A position in the body of a request. All methods raise MalformedRequest.

    Args:
        data: the request without its length.
        position: where the body begins, before the tagged fields of the header.
        flexible: lengths and counts are varints, and each struct ends with tagged fields.
    """

    __slots__ = ("_numbers_left", "_tags_left", "data", "flexible", "position")

    def __init__(self, data: bytes, position: int, flexible: bool = True) -> None:
        self.data = data
        self.flexible = flexible
        self.position = position
        self._tags_left = TAGS_MAX
        self._numbers_left = NUMBERS_MAX
        self.end_struct()

    # -- numbers

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Return numbers of a fixed size."""
        start = self.position
        self.position = start + fields.size
        if self.position > len(self.data):
            raise MalformedRequest("a request that ends early")
        return fields.unpack_from(self.data, start)

    def int8(self) -> int:
        return self.unpack(INT8)[0]

    def int16(self) -> int:
        return self.unpack(INT16)[0]

    def uint16(self) -> int:
        return self.unpack(UINT16)[0]

    def int32(self) -> int:
        return self.unpack(INT32)[0]

    def int64(self) -> int:
        return self.unpack(INT64)[0]

    def float64(self) -> float:
        return float(self.unpack(FLOAT64)[0])

    def nullable_int32s(self) -> list[int] | None:
        """Return an array of int32, read at once; None for null."""
        count = self.nullable_count(self._numbers_left, INT32.size)
        if count < 0:
            return None
        self._numbers_left -= count
        return list(struct.unpack(f">{count}i", self.take(INT32.size * count)))

    def int32s(self) -> list[int]:
        numbers = self.nullable_int32s()
        if numbers is None:
            raise MalformedRequest("an array that is null")
        return numbers

    def boolean(self) -> bool:
        return self.unpack(INT8)[0] != 0

    def is_null(self) -> bool:
        """Read the byte before a struct that may be null, and return whether it is."""
        return self.unpack(INT8)[0] == _NULL

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(UUID_SIZE))

    def nullable_uuid(self) -> UUID | None:
        """Return an id, None for the id zero."""
        found = self.uuid()
        return None if found == NO_ID else found

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

    def nullable_content(self) -> bytes | None:
        """Return bytes, None for null."""
        size = self._size(INT32)
        return None if size < 0 else self.take(size)

    def content(self) -> bytes:
        """Return bytes that are not null."""
        return self.take(self._size(INT32))

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
        if not self.flexible:
            return
        if self.data[self.position : self.position + 1] == b"\0":
            self.position += 1
            return
        for _, end in self.tags():
            self.position = end

    def tags(self) -> Iterator[tuple[int, int]]:
        """Yield tag and end of each tagged field at the end of a struct. The caller moves the position to the end."""
        count, self.position = read_varint(self.data, self.position)
        self._tags_left -= count
        if self._tags_left < 0:
            raise MalformedRequest(f"a request with more than {TAGS_MAX} tagged fields")
        for _ in range(count):
            tag, self.position = read_varint(self.data, self.position)
            size, self.position = read_varint(self.data, self.position)
            yield tag, self._end_of(size)


# -- encoder


_ONE_BYTE: Final = tuple(bytes([length]) for length in range(0x80))


def encoded_length(length: int, fields: struct.Struct, flexible: bool) -> bytes:
    """Return the length of an array, a string or bytes; -1 for null. fields: its form if it is not a varint."""
    if not flexible:
        return fields.pack(length)
    length += 1
    if length < len(_ONE_BYTE):
        return _ONE_BYTE[length]
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


class BodyWriter:
    """The bytes of a body, field by field.

    Args:
        flexible: lengths and counts are varints, and each struct ends with tagged fields.
    """

    def __init__(self, flexible: bool) -> None:
        self.data = bytearray()
        self._flexible = flexible

    def int8(self, value: int) -> None:
        self.data += INT8.pack(value)

    def int16(self, value: int) -> None:
        self.data += INT16.pack(value)

    def uint16(self, value: int) -> None:
        self.data += UINT16.pack(value)

    def int32(self, value: int) -> None:
        self.data += INT32.pack(value)

    def int32s(self, values: Sequence[int] | None) -> None:
        """Add an array, or null."""
        self.count(-1 if values is None else len(values))
        if values:
            self.data += struct.pack(f">{len(values)}i", *values)

    def int64(self, value: int) -> None:
        self.data += INT64.pack(value)

    def float64(self, value: float) -> None:
        self.data += FLOAT64.pack(value)

    def boolean(self, value: bool) -> None:
        self.data += b"\1" if value else b"\0"

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def nullable_uuid(self, value: UUID | None) -> None:
        """Add an id; zero for None."""
        self.data += (NO_ID if value is None else value).bytes

    def string(self, text: str | None) -> None:
        """Add a string, or null. Strings of requests that are not flexible have at most 32,767 bytes."""
        if text is None:
            self.data += encoded_length(-1, INT16, self._flexible)
            return
        encoded = text.encode("utf-8", "replace")
        self.data += encoded_length(len(encoded), INT16, self._flexible)
        self.data += encoded

    def content(self, content: bytes | None) -> None:
        """Add bytes, or null."""
        self.data += encoded_length(-1 if content is None else len(content), INT32, self._flexible)
        self.data += content or b""

    def count(self, count: int) -> None:
        """Add the number of elements of an array, -1 for null. The elements follow."""
        self.data += encoded_length(count, INT32, self._flexible)

    def end(self) -> None:
        """End a struct, the body included: it has no tagged fields."""
        if self._flexible:
            self.data += b"\0"
