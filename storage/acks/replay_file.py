"""The file `rewind` in a queue's directory: settled messages that a replay makes live again.

Its entries have the format of `.settled` files (ack_set.py), for one segment after the other:

    settled, bits     offsets that become live
    bytes             ends a segment. a: size of the bodies; b: base offset of the segment
    totals            the last entry. a: number of entries before it; b: leader epoch of the process that wrote it

The file is valid if the last entry is there and all checksums are right; otherwise it is ignored. It holds for the
process that wrote it and the next start. Once a later process has begun to write, the `.settled` files say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_set import AckFileReader, AckSet, Entry, encode_entry

NAME: Final = "rewind"


def encode_rewind(taken: Mapping[int, AckSet], body_bytes: Mapping[int, int], epoch: int) -> bytes:
    """Return the content of the file. Keys are base offsets of segments.

    Cost: 1 us per entry: one per range, or per 128 offsets.
    """
    parts: list[bytes] = []
    for base, offsets in taken.items():
        parts += ack_set.encode_offsets(offsets)
        parts.append(encode_entry(ack_set.BYTES, body_bytes[base], base, 0))
    parts.append(encode_entry(ack_set.TOTALS, len(parts), epoch, 0))
    return b"".join(parts)


def decode_rewind(data: bytes) -> tuple[list[Entry], int] | None:
    """Return (entries, epoch), None if the file is not valid."""
    file = AckFileReader(data)
    if file.bad_count or not file.entries:
        return None
    kind, count, epoch, _ = file.entries[-1]
    if kind != ack_set.TOTALS or count != len(file.entries) - 1:
        return None
    return file.entries[:-1], epoch


def by_segment(entries: list[Entry]) -> dict[int, list[Entry]]:
    """Return the entries by base offset of their segment."""
    found: dict[int, list[Entry]] = {}
    begin = 0
    for at, (kind, _, base, _) in enumerate(entries):
        if kind == ack_set.BYTES:
            found[base] = entries[begin : at + 1]
            begin = at + 1
    return found


def replayed_offsets(entries: list[Entry], base: int, end: int) -> tuple[AckSet, int]:
    """Return the offsets of one segment that become live, and the size of their bodies.

    Args:
        base: the first offset of the segment.
        end: the offset after its last one.
    """
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
