"""Kafka's compression of record batches: what the low three bits of a batch's attributes name.

    1 gzip      RFC 1952, members one after the other; written at level 1
    2 snappy    written in the blocks of Kafka's Java client (xerial): 82 "SNAPPY" 00, two i32 (1, 1), then for each
                32 KiB an i32 (big endian) and so many bytes of raw snappy; one raw block alone is read too
    3 lz4       the frame format; written with independent blocks, which Kafka's Java client insists on
    4 zstd      RFC 8878; written at level 3

The records of a batch are compressed together, its header is not: offsets, times and the count are read without
unpacking. The checksum is that of the compressed bytes, so it is looked at first, and what gets here is what somebody
wrote. Still nothing of it is believed: what unpacks to more than UNPACKED_MAX, or does not unpack, is BadRecord, and
costs no more than that in memory and some 15 ms in time.

`plain` is the door for all readers: the same batch as it would stand there uncompressed, header and all, for the code
that reads records. Its checksum is that of the original and fits nothing.

cramjam (snappy, lz4, zstd) and zlib let go of the interpreter while they work, and write where they are told, no
further. cramjam is imported with the first batch that needs it: 2 ms.
"""

from __future__ import annotations

import zlib
from typing import Final

from amqpd.storage.log.batch import CODECS, COMPRESSION, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader
from amqpd.storage.log.record import BadRecord

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

UNPACKED_MAX: Final = 16 << 20
"""Bytes of records that one batch may unpack to: some 15 ms, as long as the loop may be held. Ours have 64 KiB."""

_GZIP_LEVEL: Final = 1  # level 6, Kafka's own, takes five times as long for a sixth less: 2 ms for 64 KiB
_ZSTD_LEVEL: Final = 3
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
# Magic number, version 1 with independent blocks and no checksums, blocks of up to 4 MiB, the checksum of those two.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
_LZ4_BLOCK: Final = 4 << 20
_LZ4_END: Final = b"\x00\x00\x00\x00"
_LEAST_RECORDS: Final = 256
_MOST_RECORDS: Final = 512 * 1024
_MOST_RECORDS_GZIP: Final = 128 * 1024
_GAIN_SHARE: Final = 16
_GUESS: Final = 8  # how much more a batch unpacks to, at first
_LEAST: Final = 4096


def codec_of(name: str) -> int:
    """The number of the codec of that name. Raises: ValueError."""
    return CODECS.index(name)


def compress(codec: int, data: bytes) -> bytes:
    """`data` as that codec has it. Cost for 64 KiB of JSON: snappy and lz4 0.1 ms, zstd 0.15, gzip 0.4."""
    if codec == GZIP:
        return zlib.compress(data, _GZIP_LEVEL, 31)
    import cramjam

    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    parts: list[bytes] = []
    if codec == SNAPPY:
        parts.append(_XERIAL_HEADER)
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
            parts += (len(block).to_bytes(4, "big"), block)
        return b"".join(parts)
    if codec == LZ4:
        parts.append(_LZ4_HEADER)
        for start in range(0, len(data), _LZ4_BLOCK):
            block = bytes(cramjam.lz4.compress_block(data[start : start + _LZ4_BLOCK], store_size=False))
            parts += (len(block).to_bytes(4, "little"), block)
        parts.append(_LZ4_END)
        return b"".join(parts)
    raise ValueError(f"there is no codec {codec}")


def compress_records(codec: int, records: bytes) -> bytes:
    """The records of a batch as that codec has them; as they are where that is not worth it: under 256 bytes, where no
    sixteenth is gained (most bodies that were compressed before), and over 512 KiB (gzip: 128), which would hold the
    loop for longer than 1 ms.
    """
    size = len(records)
    if not _LEAST_RECORDS <= size <= (_MOST_RECORDS_GZIP if codec == GZIP else _MOST_RECORDS):
        return records
    packed = compress(codec, records)
    return packed if len(packed) <= size - size // _GAIN_SHARE else records


def decompress(codec: int, data: bytes, size_max: int = UNPACKED_MAX) -> bytes:
    """What `compress` was given, or another program's. Cost: some 1 ms a MiB. Raises: BadRecord."""
    if codec == GZIP:
        return _gunzip(data, size_max)
    if codec == SNAPPY:
        return _unsnap(data, size_max)
    import cramjam

    unpack = cramjam.lz4.decompress_into if codec == LZ4 else cramjam.zstd.decompress_into
    if codec not in (LZ4, ZSTD):
        raise BadRecord(f"there is no codec {codec}")
    room = min(max(_GUESS * len(data), _LEAST), size_max)
    while True:
        out = bytearray(room)
        try:
            size = unpack(data, out)
        except cramjam.DecompressionError as error:
            # What does not fit and what is no such data look the same.
            if room >= size_max:
                raise BadRecord(f"does not unpack to {size_max} bytes at most: {error}") from None
            room = min(4 * room, size_max)
            continue
        return bytes(memoryview(out)[:size])


def _gunzip(data: bytes, size_max: int) -> bytes:
    parts: list[bytes] = []
    left = size_max
    rest = data
    while rest:
        unpacker = zlib.decompressobj(31)
        try:
            part = unpacker.decompress(rest, left + 1)
        except zlib.error as error:
            raise BadRecord(f"does not unpack: {error}") from None
        left -= len(part)
        if left < 0:
            raise BadRecord(f"unpacks to more than {size_max} bytes")
        if not unpacker.eof:
            raise BadRecord("ends before its end")
        parts.append(part)
        rest = unpacker.unused_data
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _unsnap(data: bytes, size_max: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnap_block(data, size_max, size_max)
    parts: list[bytes] = []
    unpacked = 0
    position, size = len(_XERIAL_HEADER), len(data)
    while position < size:
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if position + 4 > size or end > size:
            raise BadRecord("a block of snappy runs past the end of its batch")
        part = _unsnap_block(data[position + 4 : end], size_max - unpacked, size_max)
        unpacked += len(part)
        parts.append(part)
        position = end
    return b"".join(parts)


def _unsnap_block(data: bytes, left: int, size_max: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > left:
            raise BadRecord(f"unpacks to more than {size_max} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise BadRecord(f"does not unpack: {error}") from None


def plain(data: bytes, at: int, header: BatchHeader) -> tuple[bytes, int, BatchHeader]:
    """(bytes, where the batch stands in them, its header there) of the batch at `at` in `data`, without compression;
    what it was given for a batch that has none. All of it is in `data`, and its checksum is right.

    Cost: that of `decompress`, and a copy. Raises: BadRecord.
    """
    codec = int(header.attributes & COMPRESSION)
    if codec == NONE:
        return data, at, header
    records_at = at + int(HEADER_SIZE)
    records = decompress(codec, data[records_at : at + int(header.size)])
    image = b"".join(
        (
            data[at : at + 8],
            (int(HEADER_SIZE) - int(LENGTH_OVERHEAD) + len(records)).to_bytes(4, "big"),
            data[at + 12 : at + 21],
            (int(header.attributes) & ~int(COMPRESSION)).to_bytes(2, "big"),
            data[at + 23 : records_at],
            records,
        )
    )
    return image, 0, BatchHeader(image, 0)
