"""The rows of a slot, read from its `meta` by whoever takes it over."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from amqpd.kafka.consumer import SLICE_S
from amqpd.kafka.records import keyed_records
from amqpd.cluster.row_table import ALL_TABLES, SLOT_TABLES, RowTable
from amqpd.cluster.row_codec import Newer
from amqpd.storage.log.record import BadRecord
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.kafka.consumer import KafkaReader

logger = logging.getLogger(__name__)


async def read_rows(reader: KafkaReader, topic: str, slot: int, end: int) -> RowTable:
    """All that stands there before `end`. What is not ours, be it a record or a batch that cannot be read, is passed
    over, and told.

    Cost: 10 us a record, in slices of the loop. Raises: MetadataError, a later version has written to it; what reading
    does.
    """
    table = RowTable(SLOT_TABLES if slot else ALL_TABLES)
    until = time.perf_counter() + SLICE_S
    async for batch in reader.read(topic, slot, 0, end):
        try:
            for records in keyed_records(batch):
                for record in records:
                    table.read(record.key, record.value)
                    if time.perf_counter() >= until:
                        await asyncio.sleep(0)
                        until = time.perf_counter() + SLICE_S
        except BadRecord as error:
            table.foreign_count += 1
            logger.error("%s %d: a batch cannot be read and is passed over: %s", topic, slot, error)
        except Newer as error:
            raise MetadataError(f"{topic} {slot}: {error}; start the later version that wrote it") from error
    if table.foreign_count:
        logger.warning("%s %d: %d records are not amqpd's and were passed over", topic, slot, table.foreign_count)
    return table
