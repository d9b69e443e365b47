"""What every test run says first: which amqpd it tests, and from where. And a batch as Kafka's clients make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

import amqpd
from amqpd._build import describe

# Helper modules that several folders import: whoever is collected first must not import them unrewritten.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "cutting")


def pytest_report_header() -> str:
    return f"{describe()} from {Path(amqpd.__file__).parent}"


@pytest.fixture(scope="session")
def kafka_batch() -> Callable[..., bytes]:
    """What aiokafka's producer would send: records of key eu.new, each with a time of its own."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    def made(codec: int, records: Iterable[tuple[int, bytes]], headers: Sequence[tuple[str, bytes]]) -> bytes:
        """records: time in milliseconds, body."""
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for number, (time_ms, body) in enumerate(records):
            builder.append(number, time_ms, b"eu.new", body, headers)
        return bytes(builder.build())

    return made
