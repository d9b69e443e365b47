"""What every test run says first: which amqpd it tests, and from where. And what several folders need: a batch as
Kafka's clients make it, what a call costs, whatever else the machine does, and what a kill would leave in a queue.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import hypothesis
import pytest

import amqpd
from amqpd._build import describe
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.tools.verify import check_queue, queue_directories
from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent / "house"))  # for test_house.py beside this file
# Helper modules that several folders import: whoever is collected first must not import them unrewritten.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "cutting")

# An example that takes more than 200 ms, or ten that are made in more than a second, are a busy machine's doing.
hypothesis.settings.register_profile(
    "amqpd",
    parent=hypothesis.settings(),  # which is another one in CI
    deadline=None,
    suppress_health_check=[*hypothesis.settings().suppress_health_check, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("amqpd")


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

    gc.disable()
    try:
        yield took_s
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def until_settled() -> Callable[[BrokerProcess, str, int], None]:
    """Waits until so many messages of a durable queue are left on disk, and a kill brings back no other. Acks are
    written within 50 ms, on a busy machine later. Nothing but persistent messages may have been in it.
    """

    def left(broker: BrokerProcess, queue: str) -> int:
        for directory in queue_directories(FileSystem(), str(broker.data_dir)):
            report = check_queue(FileSystem(), directory)
            if report.queue == queue:
                return report.next_offset - report.start_offset - report.settled_count
        return -1

    def wait(broker: BrokerProcess, queue: str, count: int) -> None:
        deadline = time.monotonic() + 60
        while (now := left(broker, queue)) != count:
            assert time.monotonic() < deadline, f"{now} messages are left in {queue} on disk, not {count}"
            time.sleep(0.02)

    return wait


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
