"""Reads batches of a log as bytes, and finds the first record of a time. No object is made per record.

A consumer of Kafka's protocol gets batches as they are stored: of the broker's own writer, of Kafka's producers, and
compressed ones. Checksums are checked, damaged batches are skipped and reported (reader.py). Transient batches of an
earlier process are skipped, because their messages do not count after a restart. So are batches of aborted
transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.log.batch import LOG_APPEND_TIME, BatchHeader, is_commit_marker
from amqpd.storage.log.reader import CHUNK_SIZE, LogReader
from amqpd.storage.log.record import BadRecord, Record
from amqpd.storage.queue_log import BatchBytes, TimeSearch

_ALL: Final[i64] = 1 << 62


@final
class RawBatchReader:
    """Reads whole batches with a `LogReader`, which belongs to the caller and keeps the position.

    The caller reports `LogReader.lost`.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader: LogReader = reader

    def read(self, end: i64, offset: i64, size_bytes_max: i64, one: bool, arrived: Callable[[], None]) -> BatchBytes:
        """Return the batches from the one with `offset` on.

        Args:
            end: batches that reach to this offset or further are not read.
            one: return the first batch even if it has more than `size_bytes_max`.
            arrived: called on the loop when a batch that was not in memory has been read.

        Cost: about 10 us per batch (interpreted), and two copies of its bytes. Raises: OSError.
        """
        reader = self._reader
        result = BatchBytes(offset)
        largest: i64 = 0
        while offset < end:
            if not reader.is_cached(offset, arrived):
                result.waiting = True
                break
            header = reader.find(offset)
            if header is None:
                break
            if header.last_offset >= end:
                reader.step_back(header, offset)
                break
            behind: i64 = header.last_offset + 1
            if reader.found_was_settled(header):
                behind = reader.after_settled(header)
                if behind > end:
                    behind = end
            else:
                if header.size > size_bytes_max - result.size_bytes and (result.size_bytes > 0 or not one):
                    reader.step_back(header, offset)
                    result.is_full = True
                    break
                data = reader.found_batch(header)
                if header.is_of_producer_transaction() and header.is_control() and not is_commit_marker(data, 0):
                    result.abort_markers.append((header.producer_id, header.base_offset))
                result.parts.append(data)
                result.size_bytes += header.size
                if header.size > largest:
                    largest = header.size
            offset = behind
            result.next_offset = offset
        if largest > CHUNK_SIZE:
            reader.release()  # it would keep a large batch in memory
        return result

    def find_time(
        self, end: i64, offset: i64, timestamp_ms: i64, batches_max: i64, arrived: Callable[[], None]
    ) -> TimeSearch:
        """Return the first record from `offset` on whose time is `timestamp_ms` or later. A producer's marker is one.

        Args:
            end: batches that reach to this offset or further are not read.
            batches_max: the search pauses after so many batches.

        Cost: about 10 us per batch (interpreted); the records of one batch are decoded. Raises: OSError.
        """
        reader = self._reader
        result = TimeSearch(offset)
        while batches_max > 0 and offset < end:
            if not reader.is_cached(offset, arrived):
                result.next_offset = offset
                result.waiting = True
                return result
            header = reader.find(offset)
            if header is None or header.last_offset >= end:
                break
            batches_max -= 1
            if header.max_timestamp_ms >= timestamp_ms and header.is_control():
                if header.is_of_producer_transaction():  # as in Kafka: it may have the latest time of the log
                    result.offset = header.base_offset
                    result.timestamp_ms = header.max_timestamp_ms
                    result.next_offset = -1
                    return result
            elif header.max_timestamp_ms >= timestamp_ms:
                record = None if reader.found_was_settled(header) else self._first_at(header, offset, timestamp_ms)
                if record is not None:
                    result.offset = record.offset
                    result.timestamp_ms = record.timestamp_ms
                    result.next_offset = -1
                    return result
            offset = header.last_offset + 1
        result.next_offset = offset if batches_max == 0 else -1
        return result

    def _first_at(self, header: BatchHeader, offset: i64, timestamp_ms: i64) -> Record | None:
        """Return the first record of this time or later in the batch that was found; None if it has none."""
        cursor = self._reader.found_cursor(header)
        if cursor is None:
            return None
        records: list[Record] = []
        try:
            cursor.read(offset, None, {}, 1 if header.attributes & LOG_APPEND_TIME else _ALL, records)
        except BadRecord:
            return None  # a read of messages reports it
        for record in records:
            if record.timestamp_ms >= timestamp_ms:
                return record
        return None
