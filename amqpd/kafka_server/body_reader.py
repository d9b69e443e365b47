"""Decoder of request bodies that kafka-python does not know. All of them are flexible."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from amqpd.kafka_server.messages import MalformedRequest, read_varint, skip_tagged_fields

_INT8: Final = struct.Struct(">b")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class FieldReader:
    """The fields of a flexible request, in order. All methods raise MalformedRequest.

    Args:
        position: where the body begins, before the tagged fields of the header.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = skip_tagged_fields(data, position)

    def _number(self, kind: struct.Struct) -> int:
        start = self._position
        self._position = start + kind.size
        if self._position > len(self._data):
            raise MalformedRequest("a request that ends early")
        number: int = kind.unpack_from(self._data, start)[0]
        return number

    def int8(self) -> int:
        return self._number(_INT8)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def boolean(self) -> bool:
        return self._number(_INT8) != 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        start = self._position
        if size < 0 or start + size > len(self._data):
            raise MalformedRequest(f"a field of {size} bytes")
        self._position = start + size
        return self._data[start : self._position]

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def text_or_null(self) -> str | None:
        size, self._position = read_varint(self._data, self._position)
        if size == 0:
            return None
        try:
            return self.take(size - 1).decode()
        except UnicodeDecodeError:
            raise MalformedRequest("a text that is not UTF-8") from None

    def text(self) -> str:
        text = self.text_or_null()
        if text is None:
            raise MalformedRequest("a text that is null")
        return text

    def count_or_null(self, most: int) -> int:
        """Return the number of elements of an array, at least one byte each; -1 for null."""
        count, self._position = read_varint(self._data, self._position)
        count -= 1
        if count > min(most, len(self._data) - self._position):
            raise MalformedRequest(f"an array of {count} elements; at most {most} are accepted")
        return count

    def count(self, most: int) -> int:
        """Return the number of elements of an array that is not null."""
        count = self.count_or_null(most)
        if count < 0:
            raise MalformedRequest("an array that is null")
        return count

    def end(self) -> None:
        """End a struct, the body included."""
        self._position = skip_tagged_fields(self._data, self._position)
