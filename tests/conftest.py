"""What every test run says first: which amqpd it tests, and from where. And what several folders need: a batch as
Kafka's clients make it, and what a call costs, whatever else the machine does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import amqpd
from amqpd._build import describe

# Helper modules that several folders import: whoever is collected first must not import them unrewritten.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "cutting")


def pytest_report_header() -> str:
    return f"{describe()} from {Path(amqpd.__file__).parent}"


@pytest.fixture
def processor_s() -> Iterator[Callable[[Callable[[], object]], float]]:
    """Calls something and returns the seconds of processor time that this thread took for it.

    What else the machine does costs no processor time of this thread, and Python's collector, which would go over all
    that the tests before have left, does not run while the test does. Where a bound is near, the best of a few counts.
    """

    def took_s(call: Callable[[], object]) -> float:
        began_s = time.thread_time()
        call()
        return time.thread_time() - began_s

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield took_s
    finally:
        gc.enable()
        gc.unfreeze()


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
