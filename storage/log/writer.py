"""Writes batches to a log, and marks a clean shutdown.

`append` is called by the log's `Appender` at the end of a turn. It fills segments up to their size, writes each run
of batches with one `writev`, and on a full disk cuts the file back to whole batches.

A clean shutdown calls `finish` before the last job and `mark_clean` after it. The mark describes the log. The next
start ignores it if the files differ (recovery.py), and the first write removes it.
"""

from __future__ import annotations

import errno

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_files import DISK_FULL_ERRORS
from amqpd.storage.filesystem import OpenFile
from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import CONTROL, LOG_APPEND_TIME, TRANSIENT, ClosedBatch
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import snapshot_path, write_snapshot
from amqpd.storage.log.segment import Segment

PARTS_MAX = 512  # batches in one writev, with two parts each
IOV_MAX = 1024
POSITION_MAX = 1 << 30  # positions are u32 in the index, and Kafka reads them as i32


def append(log: Log, batches: list[ClosedBatch]) -> int:
    """Write batches to the log. Return how many were written as a whole; if not all, `Log.error` has the reason.

    On a full disk, or without a free descriptor, the file is cut back to the last whole batch (whole transaction) and
    the log stays usable. On any other error the log is `failed`. Offsets of batches that were not written are never
    used again.
    """
    log.error = None
    total = len(batches)
    done = 0
    try:
        while done < total:
            try:
                segment = _segment_for(log, batches[done])
                segment.open_log(create=True)
            except OSError as error:
                if not log.filesystem.can_retry_after(error):
                    raise
                segment = _segment_for(log, batches[done])
            stop = _run_end(log, segment, batches, done)
            written = _write_run(log, segment, batches, done, stop)
            done += written
            _raise_error(log)
    except OSError as error:
        log.error = error
        if error.errno not in DISK_FULL_ERRORS:
            log.failed = True
        done = _back_to_transaction_start(log, batches, done)
    if total:
        log.end = max(log.end, batches[total - 1].last_offset + 1)
    return done


def _raise_error(log: Log) -> None:
    """Raise the error of `_write_run`. In `append`, mypyc would infer that `log.error` is None."""
    if log.error is not None:
        raise log.error


def _segment_for(log: Log, batch: ClosedBatch) -> Segment:
    if not log.begun:
        log.begin()
    segments = log.segments
    if not segments or segments[-1].sealed:
        return log.new_segment(batch.base_offset)
    segment = segments[-1]
    size = segment.size + batch.size
    inside = 0 <= batch.transaction_start < batch.base_offset
    if segment.size > 0 and ((size > log.segment_size_bytes and not inside) or size > POSITION_MAX):
        log.seal()
        return log.new_segment(batch.base_offset)
    return segment


def _run_end(log: Log, segment: Segment, batches: list[ClosedBatch], start: int) -> int:
    """Return the index after the last batch that goes into `segment` together with the one at `start`."""
    size = segment.size
    stop = start
    total = min(len(batches), start + PARTS_MAX)
    while stop < total:
        size += batches[stop].size
        if stop > start and size > log.segment_size_bytes:
            break
        stop += 1
    return stop


def _write_run(log: Log, segment: Segment, batches: list[ClosedBatch], start: int, stop: int) -> int:
    """Write batches with one writev, or more for short writes and large messages. Return the number of whole batches
    written.
    """
    file = segment.open_log(create=True)
    parts: list[bytes] = []
    for index in range(start, stop):
        batch = batches[index]
        parts.append(batch.header)
        parts.append(batch.records)
        parts += batch.more
    written = 0
    try:
        for first in range(0, len(parts), IOV_MAX):
            group = parts[first : first + IOV_MAX] if len(parts) > IOV_MAX else parts
            wanted = sum([len(part) for part in group])
            done = log.filesystem.writev(file.fd, group)
            written += done
            if done < wanted:
                rest = b"".join(group)
                while done < wanted:
                    more = log.filesystem.write(file.fd, rest[done:])
                    if more <= 0:
                        raise OSError(errno.ENOSPC, "short write")
                    done += more
                    written += more
        if log.capture.on and log.capture.take(written):
            log.unsynced.capture(file, segment.size, parts, written)
    except OSError as error:
        log.error = error
    log.unsynced.add_log_file(file)
    index = start
    while index < stop and written >= batches[index].size:
        batch = batches[index]
        written -= batch.size
        _fill_gap(log, segment, batch.base_offset)
        segment.on_append(batch)
        if batch.attributes & TRANSIENT:
            segment.add_transient(batch.base_offset, batch.last_offset, batch.body_size_bytes)
        if batch.attributes & CONTROL and batch.attributes & LOG_APPEND_TIME:  # the marker of a transaction of ours
            log.ack(batch.base_offset, batch.last_offset, 0)
        index += 1
    if written > 0:
        _cut_file(log, file, segment.size)
    return index - start


def _fill_gap(log: Log, segment: Segment, offset: int) -> None:
    """Settle offsets that were assigned but never written."""
    if offset > segment.end:
        first = segment.end
        segment.end = offset
        segment.settled.add(first, offset - 1)
        log.add_ack_entry(segment, ack_set.SETTLED, first, offset - 1, 0)


def _cut_file(log: Log, file: OpenFile, size: int) -> None:
    log.unsynced.drop_captured()  # the journal must not get bytes that are cut off
    try:
        log.filesystem.truncate(file.fd, size)
    except OSError as error:
        log.error = error
        log.failed = True  # bytes after `size` could later pass for a batch


def _back_to_transaction_start(log: Log, batches: list[ClosedBatch], done: int) -> int:
    """Remove the written batches of the failed transaction. Return the number of batches that stay."""
    if done >= len(batches) or batches[done].transaction_start < 0:
        return done
    start = batches[done].transaction_start
    keep = done
    while keep > 0 and batches[keep - 1].transaction_start == start:
        keep -= 1
    for index in range(done - 1, keep - 1, -1):
        batch = batches[index]
        segment = log.segment_of(batch.base_offset)
        if segment is None:
            continue
        segment.truncate(segment.size - batch.size, batch.base_offset, segment.body_bytes - batch.body_size_bytes)
        try:
            _cut_file(log, segment.open_log(), segment.size)
        except OSError as error:
            log.error = error
            log.failed = True
    return keep


def finish(log: Log) -> None:
    """Write totals and indexes of the active segment, so that the next start need not scan it. Raises nothing."""
    if not log.begun or log.failed or not log.segments or not log.durable:
        return
    active = log.segments[-1]
    try:
        if not active.sealed:
            log.write_totals(active)
            log.ack_file_writer.flush()
            active.flush_index()
            active.write_time_index()
    except OSError as error:
        log.on_error(error)


def needs_mark(log: Log) -> bool:
    """Return whether a clean stop must write the log's clean-shutdown mark."""
    return log.durable and log.begun and not log.failed and bool(log.segments)


def mark_clean(log: Log, delivered: int, *, sync: bool) -> None:
    """Write the clean-shutdown mark of a log that needs it. Everything else is written and synced.

    Args:
        delivered: the exact highest offset that was delivered.
        sync: sync the mark. A mark that a power cut damages costs time at the next start.

    Raises: OSError.
    """
    if log.watermark.unpublished:
        log.publish()
    if log.producers is not None:
        snapshot = log.encode_snapshot(log.end)
        write_snapshot(log.filesystem, snapshot_path(log.directory, log.end), snapshot)
    active = log.segments[-1]
    path = f"{log.directory}/{checkpoint.CLEAN_SHUTDOWN}"
    mark = checkpoint.encode_clean(log.end, active.base, active.size, delivered)
    log.filesystem.replace_file(path, mark, sync=sync)
