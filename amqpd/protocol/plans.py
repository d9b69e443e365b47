"""How the arguments of a method lie in bytes: a plan, one letter per argument, read and written by one loop each.

    o u8     h u16     i u32     q u64     b bit     t table
    n name: short string, strictly UTF-8             k short string, other bytes as surrogate escapes (keys, texts)
    L long string as bytes                           M long string as text, likewise
    H N Z B reserved u16, short string, long string, bit: passed over when read, zero or empty when written

Bits that follow each other share an octet, lowest bit first; any other argument ends the octet. Reading checks every
length before it is used and refuses what is left over, so that a method that decodes is whole and nothing else.

Source: AMQP 0-9-1 4.2.5 (fields), 4.2.5.2 (bits).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from amqpd.protocol.field_table import CodecError, decode_table, encode_table, longstr, read_u64, shortstr

Table = Mapping[str, object]
NO_ENTRIES: Final[Table] = MappingProxyType({})

_SIZES: Final = {"o": 1, "h": 2, "i": 4, "q": 8, "H": 2}


def read_arguments(plan: str, payload: bytes, position: int) -> list[object]:
    """The arguments that `payload` holds from `position` to its end, without the reserved ones.

    Cost: some 0.2 us an argument interpreted. Raises: CodecError for a cut argument, bad UTF-8 in a name, a bad table,
    bytes left over.
    """
    end = len(payload)
    arguments: list[object] = []
    octet = mask = 0
    for kind in plan:
        if kind == "b" or kind == "B":
            if mask == 0:
                if position >= end:
                    raise CodecError("bits are cut off")
                octet = payload[position]
                position += 1
                mask = 1
            if kind == "b":
                arguments.append(octet & mask != 0)
            mask = (mask << 1) & 0xFF
            continue
        mask = 0
        if kind == "n" or kind == "k" or kind == "N":
            if position >= end:
                raise CodecError("short string is cut off")
            start = position + 1
            position = start + payload[position]
            if position > end:
                raise CodecError("short string is cut off")
            if kind == "n":
                try:
                    arguments.append(payload[start:position].decode("utf-8"))
                except UnicodeDecodeError:
                    raise CodecError("short string is not UTF-8") from None
            elif kind == "k":
                arguments.append(payload[start:position].decode("utf-8", "surrogateescape"))
        elif kind == "t":
            table, position = decode_table(payload, position)
            arguments.append(table)
        elif kind == "L" or kind == "M" or kind == "Z":
            start, position = _long_string(payload, position, end)
            if kind == "L":
                arguments.append(payload[start:position])
            elif kind == "M":
                arguments.append(payload[start:position].decode("utf-8", "surrogateescape"))
        else:
            start = position
            position += _SIZES[kind]
            if position > end:
                raise CodecError("number is cut off")
            if kind == "q":
                arguments.append(read_u64(payload, start))
            elif kind != "H":
                arguments.append(int.from_bytes(payload[start:position], "big"))
    if position != end:
        raise CodecError("bytes after the last argument")
    return arguments


def _long_string(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """Where the octets of the long string at `position` begin and end."""
    start = position + 4
    if start > end:
        raise CodecError("long string is cut off")
    stop = start + int.from_bytes(payload[position:start], "big")
    if stop > end:
        raise CodecError("long string is cut off")
    return start, stop


def write_arguments(plan: str, arguments: Iterable[object], head: bytes) -> bytes:
    """`head` and behind it `arguments` (without the reserved ones) as `plan` lays them out.

    Raises: CodecError when a value does not fit its place (a number out of range, a text over 255 bytes, a wrong type).
    """
    parts = [head]
    values = iter(arguments)
    octet = mask = 0
    for kind in plan:
        if kind == "b" or kind == "B":
            if mask == 0x80:
                parts.append(bytes((octet,)))
                octet = mask = 0
            mask = mask << 1 or 1
            if kind == "b" and next(values):
                octet |= mask
            continue
        if mask != 0:
            parts.append(bytes((octet,)))
            octet = mask = 0
        if kind == "H":
            parts.append(b"\x00\x00")
        elif kind == "N":
            parts.append(b"\x00")
        elif kind == "Z":
            parts.append(b"\x00\x00\x00\x00")
        else:
            parts.append(_write_argument(kind, next(values)))
    if mask != 0:
        parts.append(bytes((octet,)))
    return b"".join(parts)


def _write_argument(kind: str, value: object) -> bytes:
    if isinstance(value, int):
        size = _SIZES.get(kind, 0)
        if size != 0:
            try:
                return value.to_bytes(size, "big")
            except OverflowError:
                raise CodecError(f"{value} does not fit {size} bytes") from None
    elif isinstance(value, (str, bytes)):
        if kind == "n" or kind == "k":
            return shortstr(value)
        if kind == "L" or kind == "M":
            return longstr(value)
    elif isinstance(value, Mapping) and kind == "t":
        return encode_table(value)
    raise CodecError(f"{type(value).__name__} where a field of kind {kind!r} is due")
