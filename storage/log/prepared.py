"""Records of a large transaction, encoded before their offsets are known.

Records only contain offset deltas; the base offset is in the batch header. So the records of a large transaction can
be encoded over many loop turns and then be appended at once by `LocalLog.append_prepared`, which only writes the
headers. Nothing here touches the disk, and no reader sees the records before that call.
"""

from __future__ import annotations

from typing import final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import RECORDS_MAX, RECORDS_SIZE_BYTES_MAX
from amqpd.storage.log.record import RecordRoute, write_record, write_tombstone


@final
class PreparedBatch:
    """The encoded records of one batch, all persistent or all transient."""

    def __init__(self, records: bytes, count: i64, body_bytes: i64, persistent: bool) -> None:
        self.records = records
        self.count = count
        self.body_bytes = body_bytes
        self.persistent = persistent


@final
class PreparedTransaction:
    """The encoded records of one transaction, in batches without base offsets.

    Args:
        whole: encode all records into one persistent batch, as Kafka requires.

    Attributes:
        count: records so far.
    """

    def __init__(self, whole: bool = False) -> None:
        self.batches: list[PreparedBatch] = []
        self._one_batch: bool = whole
        self.count: i64 = 0
        self._writer = BytesWriter()
        self._open_count: i64 = 0
        self._body_bytes: i64 = 0
        self._persistent = True

    def append(
        self,
        route: RecordRoute,
        source: bytes,
        properties_start: i64,
        properties_end: i64,
        body_start: i64,
        body_end: i64,
        persistent: bool,
    ) -> None:
        """As `LocalLog.append`, but without an offset."""
        writer = self._writer
        body_size: i64 = body_end - body_start
        if self._one_batch:
            persistent = True
        elif self._open_count > 0 and (
            self._open_count >= RECORDS_MAX
            or persistent != self._persistent
            or len(writer) + route.fixed_size + 16 + body_size + (properties_end - properties_start)
            > RECORDS_SIZE_BYTES_MAX
        ):
            self.close()
        self._persistent = persistent
        write_record(writer, route, self._open_count, source, properties_start, properties_end, body_start, body_end)
        self._open_count += 1
        self._body_bytes += body_size
        self.count += 1

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> None:
        """As `LocalLog.append_tombstone`, but without an offset."""
        if (
            not self._one_batch
            and self._open_count > 0
            and (
                self._open_count >= RECORDS_MAX
                or not self._persistent
                or len(self._writer) + route.fixed_size + 16 + len(properties) > RECORDS_SIZE_BYTES_MAX
            )
        ):
            self.close()
        self._persistent = True
        write_tombstone(self._writer, route, self._open_count, properties)
        self._open_count += 1
        self.count += 1

    def body_bytes(self) -> i64:
        """Return the size of all bodies, after `close`."""
        size: i64 = 0
        for batch in self.batches:
            size += batch.body_bytes
        return size

    def close(self) -> None:
        """Close the open batch; the next record starts a new one."""
        if self._open_count == 0:
            return
        self.batches.append(
            PreparedBatch(self._writer.getvalue(), self._open_count, self._body_bytes, self._persistent)
        )
        self._writer.truncate(0)
        self._open_count = 0
        self._body_bytes = 0
