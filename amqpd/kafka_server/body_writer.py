"""Encoder of long response bodies, whose parts would take too long as objects of kafka-python."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

_INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
NO_ID: Final = UUID(int=0)


def encoded_length(length: int, fields: struct.Struct, flexible: bool) -> bytes:
    """Return the length of an array, a string or bytes; -1 for null. fields: its form if it is not a varint."""
    if not flexible:
        return fields.pack(length)
    length += 1
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
        self.data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self.data += INT16.pack(value)

    def int32(self, value: int) -> None:
        self.data += INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += INT64.pack(value)

    def boolean(self, value: bool) -> None:
        self.data += b"\1" if value else b"\0"

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def string(self, text: str | None) -> None:
        """Add a string, or null. Strings of requests that are not flexible have at most 32,767 bytes."""
        if text is None:
            self.data += encoded_length(-1, INT16, self._flexible)
            return
        encoded = text.encode("utf-8", "replace")
        self.data += encoded_length(len(encoded), INT16, self._flexible)
        self.data += encoded

    def count(self, count: int) -> None:
        """Add the number of elements of an array. The elements follow."""
        self.data += encoded_length(count, INT32, self._flexible)

    def end(self) -> None:
        """End a struct, the body included: it has no tagged fields."""
        if self._flexible:
            self.data += b"\0"
