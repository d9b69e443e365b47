"""What every test run says first: which amqpd it tests, and from where. And what several folders need: a batch as
Kafka's clients make it, what a call costs, whatever else the machine does, and what a kill would leave in a queue.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import hypothesis
import pytest

import amqpd
from amqpd._build import describe
from amqpd.storage.acks.ack_set import DELIVERED, AckFileReader
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log_inspect import check_queue, queue_directories
from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent / "house"))  # for `profiles` and for test_architecture.py
sys.path.append(str(Path(__file__).parents[1]))  # for `interop`; last, as amqpd is the one that is installed

from profiles import examples

from interop.left_open import nothing_left_open  # noqa: F401  # a fixture of each module

# Helper modules that several folders import: whoever is collected first must not import them unrewritten.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "reference_parser")

# The same examples in each run, so that a red test points at the change; TEST_RANDOM=1 draws others. Deadlines and
# health checks about speed are off, because they depend on what else the machine does.
hypothesis.settings.register_profile(
    "amqpd",
    parent=hypothesis.settings(),  # hypothesis has another default in CI
    max_examples=examples(100),
    derandomize="TEST_RANDOM" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[*hypothesis.settings().suppress_health_check, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("amqpd")


EXTERNAL_FIXTURES = frozenset({"browser", "promtool", "needs_spark"})
"""Fixtures that start a program which is not Python: the marker `external` follows from them."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if EXTERNAL_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.external)


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


class Scene:
    """One play of what has to be done before a time that the broker keeps: `seconds` of it, in milliseconds `ms`."""

    def __init__(self, seconds: float, last: bool) -> None:
        self.seconds = seconds
        self.ms = int(seconds * 1000)
        self.last = last
        self.began_s = 0.0  # time.monotonic()
        self.in_time = False

    def __enter__(self) -> Self:
        self.began_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.in_time = self.last or time.monotonic() - self.began_s < self.seconds
        return not self.in_time and kind is not None and issubclass(kind, Exception)


@pytest.fixture(scope="session")
def in_time() -> Callable[[float], Iterator[Scene]]:
    """Plays a scene, and again with four times as long when it was too slow itself: only what was in time counts.

        for scene in in_time(0.5):                       # 0.5 s, then 2, 8, 32
            with scene:
                publish(expiration=str(scene.ms))        # a time that begins within the scene
                assert is_there()                        # it cannot be over yet

    What a scene finds that was too slow is forgotten, exceptions too, so each play has names and channels of its own. A
    process may so be stopped for seconds at any line without a wrong verdict, and who is fast waits for half a second.
    """

    def plays(seconds: float) -> Iterator[Scene]:
        while True:
            scene = Scene(seconds, last=seconds > 30)
            yield scene
            if scene.in_time:
                return
            seconds *= 4

    return plays


@pytest.fixture(scope="session")
def until_settled() -> Callable[..., None]:
    """Waits until so many messages of a durable queue are left on disk, and a kill brings back no other. Acks are
    written within 50 ms, on a busy machine later. Nothing but persistent messages may have been in it.

    delivered: also until it stands there that the message of this offset was given to a consumer.
    """

    def left(broker: BrokerProcess, queue: str) -> tuple[int, int]:
        for directory in queue_directories(FileSystem(), str(broker.data_dir)):
            report = check_queue(FileSystem(), directory)
            if report.queue == queue:
                files = [AckFileReader(path.read_bytes()) for path in Path(directory).glob("*.settled")]
                marks = [a for file in files for kind, a, _, _ in file.entries if kind == DELIVERED]
                return report.next_offset - report.start_offset - report.settled_count, max(marks, default=-1)
        return -1, -1

    def wait(broker: BrokerProcess, queue: str, count: int, delivered: int = -1) -> None:
        deadline = time.monotonic() + 60
        while (now := left(broker, queue))[0] != count or now[1] < delivered:
            assert time.monotonic() < deadline, f"{now} (left, delivered) of {queue} on disk, not {count}, {delivered}"
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
