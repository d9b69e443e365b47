"""Reading one part: pieces of log in, record batches out, and what happens when the log is not what was planned.

    no batch at the planned position    the index was wrong: reading begins at the segment's start, nothing is lost
    a bad batch                         DataLoss, naming file, position and offsets; with `fail_on_data_loss` off it is
                                        logged, and reading goes on at the next position that `.index` knows and whose
                                        batch is good and fits (bodies are never searched for what looks like one)
    the segment has been removed        DataLoss likewise: it was there when the part was planned. Not so while it is
                                        only called `.deleted`
    the file ends early                 likewise
    the queue was compacted             another log stands there by now. While the planned one is called `.deleted`, it
                                        is read on; when it has gone, what is left of the part is planned anew, and
                                        gives what the cleaning has left of it
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from amqpd.storage.spark.arrow import Decoder
from amqpd.storage.spark.decode import BAD, DONE, FULL, IRREGULAR, PACKED, Borders, scan
from amqpd.storage.spark.files import LogFiles
from amqpd.storage.spark.plan import DataLoss, Part, Snapshot
from amqpd.storage.log.batch import HEADER_SIZE, BatchCursor, BatchHeader, crc_fits
from amqpd.storage.log.compression import plain
from amqpd.storage.log.index import OffsetIndex
from amqpd.storage.log.record import BadRecord, Record
from amqpd.storage.log.segment import segment_name

logger = logging.getLogger(__name__)

BATCH_ROWS = 8192
_NO_LIMIT = 1 << 60
_PLANS_MAX = 8
"""A part is planned anew at most so often: a cleaning takes longer than reading a segment does."""

# Once a large block has been freed, glibc keeps what is freed up to twice its size (mallopt(3)). Otherwise it returns
# every piece of log to the kernel, which clears the next one anew: a fifth of what decoding costs. Never touched.
_block = bytearray(16 << 20)
del _block


class _Moved(Exception):
    """The log that was planned is not there any more, or another one has its name."""


class PartReader:
    """Reads one part; `batches` once.

    batch_rows: a record batch ends with the batch of the log that reaches it; it may be smaller, as one piece of log of
    `files.read_size` bytes makes one record batch. check_crc: off saves a third of the time and trusts the disk.
    """

    def __init__(
        self,
        files: LogFiles,
        part: Part,
        decoder: Decoder,
        *,
        batch_rows: int = BATCH_ROWS,
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        plans: int = _PLANS_MAX,
    ) -> None:
        self._files = files
        self._part = part
        self._decoder = decoder
        self._batch_rows = batch_rows
        self._check_crc = check_crc
        self._fail = fail_on_data_loss
        self._plans = plans
        self._name = segment_name(part.base) + (".log.swap" if part.swap else ".log")
        self._found = Borders(part.base, part.end)
        self._data = b""
        self._start = 0  # where `_data` stands in the file

    def batches(self) -> Iterator[Any]:
        """The part's records in order, as pyarrow.RecordBatch. Raises: DataLoss, SourceError, OSError."""
        try:
            yield from self._as_planned()
        except _Moved:
            if self._plans == 0:
                raise DataLoss(f"{self._where()}: it is cleaned faster than it can be read") from None
            yield from self._planned_anew()

    def _as_planned(self) -> Iterator[Any]:
        found, part = self._found, self._part
        self._begin()
        while True:
            status = self._scan()
            if found.rows:
                yield self._decoder.batch(self._data, found)
                found.clear()
            position = self._start + found.position
            if status == DONE:
                return
            if status == IRREGULAR:
                records = self._one_by_one(self._data, found)
                if records:
                    yield self._decoder.scalar(records)
            elif status == PACKED:
                yield from self._unpacked()
            elif status == BAD:
                self._still_there()
                if not self._pass_over(position, found.reason):
                    return
            elif status != FULL:
                if found.expected >= part.stop:
                    return
                if not self._load(position, found.needed):
                    self._still_there()
                    self._ended(position)
                    return
                if BatchHeader(self._data, 0).base_offset != found.expected:
                    self._still_there()  # where names are followed, and not files, this may be another log's middle

    def _unpacked(self) -> Iterator[Any]:
        """The compressed batches that begin at the scan's position, up to a piece's size unpacked; it goes on behind
        them.
        """
        found, part = self._found, self._part
        images: list[bytes] = []
        first, size = found.expected, 0
        while size < self._files.read_size:
            header = BatchHeader(self._data, found.position)
            try:
                image, _, _ = plain(self._data, found.position, header)
                images.append(image)
                size += len(image)
            except BadRecord as error:
                self._lose(header.base_offset, header.last_offset, f"the checksum is right, but the batch {error}")
            found.position += header.size
            found.expected = header.last_offset + 1
            if self._scan() != PACKED or found.rows:
                break
        inner = Borders(first, part.end)
        inner.at_end = True
        data = b"".join(images)
        while True:
            status = scan(inner, data, part.first, part.stop, _NO_LIMIT, False, *self._left_out())
            if inner.rows:
                yield self._decoder.batch(data, inner)
                inner.clear()
            if status not in (IRREGULAR, BAD):
                return
            records = self._one_by_one(data, inner)
            if records:
                yield self._decoder.scalar(records)

    def _planned_anew(self) -> Iterator[Any]:
        """What is left of the part, as it stands in the log now. What was settled when it was planned stays so."""
        part = self._part
        first = max(part.first, self._found.expected)
        snapshot = Snapshot(self._files, part.queue)
        for low, high, reason in snapshot.losses(first, part.stop, include_settled=True):
            self._lose(low, high, f"{reason} since this was planned")
        for new in snapshot.parts(first, part.stop, split_bytes=_NO_LIMIT, include_settled=True):
            yield from PartReader(
                self._files,
                replace(new, bits=part.bits, bits_base=part.bits_base, transient_start=part.transient_start),
                self._decoder,
                batch_rows=self._batch_rows,
                check_crc=self._check_crc,
                fail_on_data_loss=self._fail,
                plans=self._plans - 1,
            ).batches()

    def _still_there(self) -> None:
        """Raises: _Moved, unless the file of that name is as large as was planned."""
        if self._files.size(self._name) != self._part.log_size:
            raise _Moved

    def _begin(self) -> None:
        """Loads the first piece. Raises: _Moved."""
        part = self._part
        self._name = self._file()
        if part.position:
            self._load(part.position, HEADER_SIZE)
            header = BatchHeader(self._data, 0) if len(self._data) >= HEADER_SIZE else None
            if header is not None and header.plausible() and header.last_offset == part.anchor:
                self._found.expected = header.base_offset
                return
            self._still_there()
            logger.warning("%s: the index is wrong at %d; reading from the start", self._name, part.position)
        self._load(0, HEADER_SIZE)

    def _file(self) -> str:
        """The name that the planned log has by now: the cleaner renames, and gives an old one's name to a new one.

        Raises: _Moved.
        """
        part = self._part
        found = ""
        for suffix in (".log.swap", ".log", ".log.deleted") if part.swap else (".log", ".log.deleted"):
            name = segment_name(part.base) + suffix
            size = self._files.size(name)
            if size == part.log_size:
                return name
            if size > part.log_size and not found:
                found = name  # the segment that is written to has grown
        if not found:
            raise _Moved
        return found

    def _scan(self) -> int:
        part = self._part
        return scan(
            self._found,
            self._data,
            part.first,
            part.stop,
            self._batch_rows,
            self._check_crc,
            *self._left_out(),
        )

    def _left_out(self) -> tuple[bytes, int, int]:
        """What `scan` needs to know of offsets that do not count."""
        return self._part.bits, self._part.bits_base, self._part.transient_start

    def _load(self, position: int, needed: int) -> bool:
        """The piece from `position` on becomes the one that is scanned; False when it has not `needed` bytes.

        Raises: _Moved.
        """
        wanted = max(self._files.read_size, needed)
        try:
            self._data, self._start = self._files.pread(self._name, wanted, position), position
        except FileNotFoundError:
            raise _Moved from None
        self._found.buffer = pa.py_buffer(self._data)
        self._found.position = 0
        self._found.at_end = len(self._data) < wanted
        return len(self._data) >= needed

    def _ended(self, position: int) -> None:
        """The file has nothing whole at `position`, and the part goes on: right only if all of the file was read."""
        if len(self._data) > 0 or position < self._part.log_size:
            self._lose(self._found.expected, self._part.stop - 1, f"the file ends at {position + len(self._data)}")

    def _one_by_one(self, data: bytes, found: Borders) -> list[Record]:
        """The (plain) batch at the scan's position, read by the generic parser; the scan goes on behind it."""
        part = self._part
        header = BatchHeader(data, found.position)
        records: list[Record] = []
        try:
            BatchCursor(data, found.position, header).read(part.first, None, {}, _NO_LIMIT, records)
        except (BadRecord, IndexError) as error:
            reason = f"the checksum is right and the records are none: {error}"
            self._lose(header.base_offset, header.last_offset, reason)
        found.position += header.size
        found.expected = header.last_offset + 1
        return [record for record in records if record.offset < part.stop and not self._is_settled(record.offset)]

    def _is_settled(self, offset: int) -> bool:
        place = offset - self._part.bits_base
        bits = self._part.bits
        return 0 <= place < len(bits) * 8 and bits[place >> 3] >> (place & 7) & 1 == 1

    def _pass_over(self, position: int, reason: str) -> bool:
        """Goes on behind the bad batch at `position`; False when nothing good follows. Raises: DataLoss."""
        found = self._found
        reason = f"{reason} at byte {position}"
        for there in self._candidates(position):
            if not self._load(there, HEADER_SIZE):
                continue
            header = BatchHeader(self._data, 0)
            if not header.plausible() or header.base_offset < found.expected or header.last_offset >= self._part.end:
                continue
            if (len(self._data) >= header.size or self._load(there, header.size)) and crc_fits(self._data, 0, header):
                self._lose(found.expected, header.base_offset - 1, reason)
                found.expected = header.base_offset
                return True
        self._lose(found.expected, self._part.end - 1, reason)
        return False

    def _candidates(self, position: int) -> Iterator[int]:
        """Where a good batch may stand: behind this one if its size is right, else where the index says."""
        if self._load(position, HEADER_SIZE):
            header = BatchHeader(self._data, 0)
            if header.plausible():
                yield position + header.size
        index = OffsetIndex(self._files.read(segment_name(self._part.base) + ".index"))
        while (position := index.next_position(position)) >= 0:
            yield position

    def _lose(self, first: int, last: int, reason: str) -> None:
        """Offsets first..last cannot be had; no matter where none of them is wanted. Raises: DataLoss."""
        part = self._part
        first, last = max(first, part.first), min(last, part.stop - 1)
        if last < first or all(self._is_settled(offset) for offset in range(first, last + 1)):
            return
        text = f"{self._where()}: offsets {first} to {last}: {reason}"
        if self._fail:
            raise DataLoss(f"{text} (failOnDataLoss=false goes on without them)")
        logger.warning("lost: %s", text)

    def _where(self) -> str:
        queue = self._part.queue
        return f"queue '{queue.queue}' in vhost '{queue.vhost}', {self._name}"
