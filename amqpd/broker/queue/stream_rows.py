"""The `x-*` arguments of queue.declare that only streams take: `Row`s of arguments.py."""

from __future__ import annotations

from typing import Final

from amqpd.broker.queue import argument_checks as checks
from amqpd.broker.queue.argument_checks import Row
from amqpd.broker.queue.compaction import CLEANUPS
from amqpd.broker.queue.types import STREAM
from amqpd.storage.log.batch import CODECS

ROWS: Final = (
    Row(
        "x-max-age",
        checks.max_age,
        True,
        "stream_order",
        "of a stream: how long messages stay, `7D`: Y, M, D, h, m, s",
        field="max_age_ms",
        kinds=STREAM,
        policy="max-age",
        accepts=checks.is_interval,
        called="max age",
        merge="lowest",
        takes="text",
    ),
    Row(
        "x-stream-max-segment-size-bytes",
        checks.segment_size,
        True,
        "stream_order",
        "of a stream: size of a file, 64 KiB to 1 GiB; files go as a whole",
        field="segment_size_bytes",
        most=checks.SEGMENT_SIZE_BYTES_MAX,
        kinds=STREAM,
        policy="stream-max-segment-size-bytes",
        accepts=checks.is_natural,
        called="segment size",
        takes="bytes",
    ),
    Row(
        "x-compression",
        checks.one_of(CODECS, "invalid_compression"),
        True,
        "stream_order",
        "of a stream: none, gzip, snappy, lz4 or zstd",
        field="codec",
        kinds=STREAM,
        policy="compression",
        accepts=checks.is_one_of(*CODECS),
        called="compression",
        takes="|".join(CODECS),
    ),
    Row(
        "x-compact",
        checks.boolean,
        True,
        "compaction",
        "of a stream: the last message of each routing key stays",
        field="cleanup",
        kinds=STREAM,
        policy="cleanup-policy",
        accepts=checks.is_one_of(*CLEANUPS),
        called="cleanup policy",
        takes="flag",
        policy_takes="|".join(CLEANUPS),
    ),
)
