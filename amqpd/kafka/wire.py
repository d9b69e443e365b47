"""Fields of Kafka's protocol: numbers, strings, arrays, in the *flexible* encoding that all but a few requests have.

    int8 .. int64    big endian
    uvarint          7 bits a byte, the lowest first; lengths and counts in compact fields, plus one: 0 is null
    compact string   uvarint of length + 1, then the bytes; compact array: uvarint of count + 1, then the elements
    tagged fields    uvarint of how many; each: uvarint tag, uvarint size, bytes. They are passed over

A `Reader` believes nothing: each length is held against what is left of the answer before a byte is taken or a list
made, so an answer costs no more memory than its own size, whatever it says.

Source: Kafka, `clients/src/main/resources/common/message/README.md`, KIP-482.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

_UVARINT_BYTES_MAX: Final[i64] = 5


class BadAnswer(ValueError):
    """What came is no answer to what was asked; the connection is of no use any more."""


def write_int16(writer: BytesWriter, value: i64) -> None:
    """Appends `value`, -32768 to 32767."""
    narrow: i16 = i16(value)
    write_i16_be(writer, narrow)


def write_int32(writer: BytesWriter, value: i64) -> None:
    """Appends `value`, signed 32 bits."""
    narrow: i32 = i32(value)
    write_i32_be(writer, narrow)


def write_int64(writer: BytesWriter, value: i64) -> None:
    """Appends `value`."""
    write_i64_be(writer, value)


def write_uvarint(writer: BytesWriter, value: i64) -> None:
    """Appends `value`, not negative."""
    byte: int = 0  # not i64: only an int goes into a writer without a method call
    while value > 0x7F:
        byte = (value & 0x7F) | 0x80
        writer.append(byte)
        value >>= 7
    byte = value
    writer.append(byte)


def uvarint_size(value: i64) -> i64:
    """Bytes that `value` (not negative) takes."""
    size: i64 = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


def write_compact(writer: BytesWriter, value: bytes) -> None:
    """Appends a compact string, or compact bytes."""
    write_uvarint(writer, len(value) + 1)
    writer.write(value)


def write_string(writer: BytesWriter, value: bytes) -> None:
    """Appends a string of the older encoding: its length in 16 bits."""
    write_int16(writer, len(value))
    writer.write(value)


def write_flag(writer: BytesWriter, value: bool) -> None:
    """Appends a boolean."""
    writer.append(1 if value else 0)


@final
class Reader:
    """Reads one answer from its start to its end. Whatever is too short, or says it is longer than it is: BadAnswer.

    data: the frame without its length. position: where reading goes on.
    """

    def __init__(self, data: bytes, position: i64 = 0) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = len(data)

    def _take(self, size: i64) -> i64:
        """Where the next `size` bytes begin; reading goes on behind them."""
        start: i64 = self.position
        if size < 0 or size > self.end - start:
            raise BadAnswer("an answer is shorter than its fields")
        self.position = start + size
        return start

    def int8(self) -> i64:
        """The next signed byte."""
        start: i64 = self._take(1)
        byte: i64 = self.data[start]
        return byte - 256 if byte > 127 else byte

    def int16(self) -> i64:
        """The next number of 16 bits."""
        start: i64 = self._take(2)
        number: i64 = i64(read_i16_be(self.data, start))
        return number

    def int32(self) -> i64:
        """The next number of 32 bits."""
        start: i64 = self._take(4)
        number: i64 = i64(read_i32_be(self.data, start))
        return number

    def int64(self) -> i64:
        """The next number of 64 bits."""
        start: i64 = self._take(8)
        return read_i64_be(self.data, start)

    def uvarint(self) -> i64:
        """The next unsigned number of at most 32 bits."""
        number: i64 = 0
        shift: i64 = 0
        while shift < 7 * _UVARINT_BYTES_MAX:
            start: i64 = self._take(1)
            byte: i64 = self.data[start]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > 0xFFFF_FFFF:
                    break
                return number
            shift += 7
        raise BadAnswer("a length has more than 32 bits")

    def compact_span(self) -> tuple[i64, i64]:
        """(start, end) of compact bytes in `data`; (-1, -1): null."""
        size: i64 = self.uvarint() - 1
        if size < 0:
            return -1, -1
        start: i64 = self._take(size)
        return start, start + size

    def compact(self) -> bytes:
        """The next compact string or bytes, which may not be null."""
        start: i64 = 0
        end: i64 = 0
        start, end = self.compact_span()
        if start < 0:
            raise BadAnswer("null where there has to be a value")
        return self.data[start:end]

    def compact_or_none(self) -> bytes | None:
        """The next compact string or bytes; None: null."""
        start: i64 = 0
        end: i64 = 0
        start, end = self.compact_span()
        return self.data[start:end] if start >= 0 else None

    def string(self) -> bytes:
        """The next string of the older encoding."""
        size: i64 = self.int16()
        start: i64 = self._take(size)
        return self.data[start : start + size]

    def count(self, least: i64) -> i64:
        """How many elements the next compact array has, each of at least `least` bytes; 0 for null."""
        return self._counted(self.uvarint() - 1, least)

    def count32(self, least: i64) -> i64:
        """As `count`, of an array of the older encoding."""
        return self._counted(self.int32(), least)

    def _counted(self, count: i64, least: i64) -> i64:
        if count <= 0:
            return 0
        if count > (self.end - self.position) // least:
            raise BadAnswer("an array is longer than its answer")
        return count

    def pass_int32s(self) -> None:
        """Passes over a compact array of numbers of 32 bits."""
        self._take(4 * self.count(4))

    def pass_tags(self) -> None:
        """Passes over tagged fields."""
        left: i64 = self.uvarint()
        while left > 0:
            self.uvarint()
            self._take(self.uvarint())
            left -= 1

    def finish(self) -> None:
        """The answer is read. Raises: BadAnswer when something is behind it."""
        if self.position != self.end:
            raise BadAnswer(f"{self.end - self.position} bytes follow the last field")
