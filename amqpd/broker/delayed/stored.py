"""A delayed message in its log: as it will be delivered, and one header more, which the broker takes off again.

The header `x-amqpd-delayed` is the last of the table, bytes of this form, numbers big-endian:

    keys     short strings: the routing keys of a message that has more than its own (CC, BCC); else nothing
    due      i64, milliseconds since 1970
    number   i64, of the message: it keeps it from log to log; `name_of` makes of both what people call it by
    size     u32, of the whole entry, name and all

So each log is an ordinary one that every tool reads, and what is to be known of a message stands at a fixed distance
from the end of its headers. A client's own header of that name stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.broker.delayed.due import DELIVER_AT
from amqpd.protocol.field_table import read_u32, shortstr
from amqpd.protocol.properties import headers_place, with_entries, with_headers

HEADER: Final = "x-amqpd-delayed"
_START: Final = bytes((len(HEADER),)) + HEADER.encode() + b"x"
_TAIL_SIZE: Final[i64] = 20


def with_delay(
    properties: bytes, changes: Mapping[str, object], due_ms: int, number: int, keys: list[str] | None
) -> bytes:
    """What the log gets. changes: as `due.obeyed` has them. keys: None where it has but its own. Raises: CodecError."""
    changed = with_headers(properties, changes, (DELIVER_AT,))
    parts: list[bytes] = []
    if keys is not None:
        for key in keys:
            parts.append(shortstr(key.encode("utf-8", "surrogateescape")))
    named = b"".join(parts)
    value_size = len(named) + 20
    size = len(_START) + 4 + value_size
    tail = due_ms.to_bytes(8, "big") + number.to_bytes(8, "big") + size.to_bytes(4, "big")
    return with_entries(changed, _START + value_size.to_bytes(4, "big") + named + tail)


def due_of(properties: bytes) -> i64:
    """Raises: ValueError where that is not such a message."""
    return read_i64_be(properties, _stop(properties) - 20)


def number_of(properties: bytes) -> i64:
    """Likewise."""
    return read_i64_be(properties, _stop(properties) - 12)


def _stop(properties: bytes) -> i64:
    start, stop = headers_place(properties, 0, len(properties))
    if stop - start < 4 + _TAIL_SIZE + len(_START):
        raise ValueError("no delayed message")
    return stop


def keys_of(properties: bytes) -> list[str] | None:
    """Its routing keys; None: its own alone."""
    stop = _stop(properties)
    position = stop - _size(properties, stop) + len(_START) + 4
    end = stop - _TAIL_SIZE
    if position >= end:
        return None
    keys: list[str] = []
    while position < end:
        size: i64 = properties[position]
        position += 1
        keys.append(properties[position : position + size].decode("utf-8", "surrogateescape"))
        position += size
    return keys


def _size(properties: bytes, stop: i64) -> i64:
    return read_u32(properties, stop - 4)


def without_delay(properties: bytes) -> bytes:
    """The message's properties as it is delivered."""
    start, stop = headers_place(properties, 0, len(properties))
    left = stop - _size(properties, stop)
    table_size: int = left - start - 4
    return properties[:start] + table_size.to_bytes(4, "big") + properties[start + 4 : left] + properties[stop:]


def name_of(due_ms: int, number: int) -> str:
    """What a delayed message is called by: 28 hexadecimal digits and a dash. The first part says when it is due."""
    return f"{due_ms:012x}-{number:016x}"


def from_name(name: str) -> tuple[int, int]:
    """(due_ms, number). Raises: ValueError."""
    due, dash, number = name.partition("-")
    if len(due) != 12 or not dash or len(number) != 16:
        raise ValueError(f"'{name}' is no id of a delayed message")
    return int(due, 16), int(number, 16)
