"""The offset of a time, found as a stream's reader finds it: `offset_before`, then record after record."""

from __future__ import annotations

from amqpd.storage.queue_log import QueueLog


def offset_at(queue_log: QueueLog, timestamp_ms: int) -> int:
    """Return the offset of the first message appended at `timestamp_ms` or later, `next_offset` if there is none.

    If the clock was set back meanwhile, this is the first one in log order.
    """
    queue_log.recover()
    queue_log.flush_batches()
    offset = int(queue_log.offset_before(timestamp_ms))
    cursor = queue_log.new_cursor()
    try:
        while records := cursor.read(offset, 65536).records:
            for record in records:
                if record.timestamp_ms >= timestamp_ms:
                    return int(record.offset)
            offset = int(records[-1].offset) + 1
    finally:
        cursor.close()
    return int(queue_log.next_offset)
