"""Encoder of long response bodies, whose parts would take too long as objects of kafka-python."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
NO_ID: Final = UUID(int=0)


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
        self.data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += _INT64.pack(value)

    def boolean(self, value: bool) -> None:
        self.data += b"\1" if value else b"\0"

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def string(self, text: str | None) -> None:
        """Add a string, or null. Strings of requests that are not flexible have at most 32,767 bytes."""
        if text is None:
            self.data += b"\0" if self._flexible else b"\xff\xff"
            return
        encoded = text.encode("utf-8", "replace")
        if self._flexible:
            self._varint(len(encoded) + 1)
        else:
            self.int16(len(encoded))
        self.data += encoded

    def count(self, count: int) -> None:
        """Add the number of elements of an array. The elements follow."""
        if self._flexible:
            self._varint(count + 1)
        else:
            self.int32(count)

    def end(self) -> None:
        """End a struct, the body included: it has no tagged fields."""
        if self._flexible:
            self.data += b"\0"

    def _varint(self, value: int) -> None:
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)
