"""The file `rewind` in a queue's directory: settled messages that are to be live again, all of them or none.

Entries as a `.settled` file has them (ack_set.py), of any number of segments, one behind the other:

    settled, bits     offsets that are taken back
    bytes             a bytes of bodies belong to those of the segment with base offset b, which stand before it
    totals            the last: a entries stand before it, b is the leader epoch of the life that wrote it

It is whole when its last entry is there and no checksum is wrong; otherwise it says nothing. It holds for the life that
wrote it and the start behind that: once a later one has begun to write, what it told is in the `.settled` files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_set import AckFileReader, AckSet, Entry, encode_entry

NAME: Final = "rewind"


def encode_rewind(taken: Mapping[int, AckSet], body_bytes: Mapping[int, int], epoch: int) -> bytes:
    """taken, body_bytes: by base offset of the segment. Cost: 1 us an entry: one for each range, or for 128 offsets."""
    parts: list[bytes] = []
    for base, offsets in taken.items():
        if offsets.range_count() >= 0:
            parts += [encode_entry(ack_set.SETTLED, first, last, 0) for first, last in offsets.ranges()]
        else:
            for start in range(base, offsets.highest + 1, 128):
                low, high = offsets.words(start)
                if low or high:
                    parts.append(encode_entry(ack_set.BITS, start, low, high))
        parts.append(encode_entry(ack_set.BYTES, body_bytes[base], base, 0))
    parts.append(encode_entry(ack_set.TOTALS, len(parts), epoch, 0))
    return b"".join(parts)


def decode_rewind(data: bytes) -> tuple[list[Entry], int] | None:
    """(entries, epoch); None where it is not whole."""
    file = AckFileReader(data)
    if file.bad_count or not file.entries:
        return None
    kind, count, epoch, _ = file.entries[-1]
    if kind != ack_set.TOTALS or count != len(file.entries) - 1:
        return None
    return file.entries[:-1], epoch


def by_segment(entries: list[Entry]) -> dict[int, list[Entry]]:
    """Entries by the base offset of the segment that they are of: each stands once."""
    found: dict[int, list[Entry]] = {}
    begin = 0
    for at, (kind, _, base, _) in enumerate(entries):
        if kind == ack_set.BYTES:
            found[base] = entries[begin : at + 1]
            begin = at + 1
    return found


def told_of(entries: list[Entry], base: int, end: int) -> tuple[AckSet, int]:
    """What the entries take back of the segment with these offsets, and bytes of its bodies."""
    offsets = AckSet(base)
    size = 0
    for kind, a, b, c in entries:
        if kind == ack_set.SETTLED and a < end and b >= base:
            offsets.add(max(a, base), min(b, end - 1))
        elif kind == ack_set.BITS and a < end and a + 128 > base:
            offsets.add_bits(a, b, c, end - 1)
        elif kind == ack_set.BYTES and b == base:
            size = a
    return offsets, size
