"""Shared configuration and fixtures of all tests.

The header of a run says which amqpd is tested and from where. Fixtures that several folders need: a batch as Kafka's
clients make it, processor time of a call, retries of timed steps, and the messages that a kill would leave.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

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

# Helper modules that several folders import; they must be registered before the first of them is imported.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "reference_parser")

# The same examples in each run, so that a failure points at the change; TEST_RANDOM=1 draws others. Deadlines and
# health checks of speed are off, because they depend on the load of the machine.
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


# `nohup make test` ignores SIGHUP, and brokers would inherit that: with it they ignore a reload (docs/operating.md).
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Deadline:
    """Skips the tests that would begin after a time, so that CI on a slow machine ends with what it could run."""

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self._end_s:
            pytest.skip("TEST_DEADLINE, seconds since 1970, has passed: this machine is too slow for all tests")


def pytest_configure(config: pytest.Config) -> None:
    if end := os.environ.get("TEST_DEADLINE"):
        config.pluginmanager.register(Deadline(float(end)))


EXTERNAL_FIXTURES = frozenset({"browser", "promtool", "needs_spark"})
"""Fixtures that start a program other than Python: tests that use them get the marker `external`."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if EXTERNAL_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.external)


SPARK_FILES = frozenset(
    f"tests/export/test_{name}.py"
    for name in ("engines", "job_kills", "live_count", "sink", "spark", "spark_kafka", "spark_tables")
)
"""Files whose tests use the session of the fixture `spark`."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one process run all of SPARK_FILES: each process would start a Java for its own session."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SparkScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if file in SPARK_FILES else file

    return SparkScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from thousands of test items: while they are made, and in each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    return f"{describe()} from {Path(amqpd.__file__).parent}"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch Python's garbage collector off: reference cycles stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def processor_s() -> Iterator[Callable[[Callable[[], object]], float]]:
    """Return a function that makes a call and returns the seconds of processor time that this thread took for it.

    Other processes do not count. The garbage collector, which would also scan what earlier tests left, is off during
    the test. If a bound is near, use the best of a few calls.
    """

    def measure_s(call: Callable[[], object]) -> float:
        started_s = time.thread_time()
        call()
        return time.thread_time() - started_s

    gc.disable()
    try:
        yield measure_s
    finally:
        gc.enable()


class Attempt:
    """One attempt at steps that must be done before a time that the broker keeps: `seconds`, or `ms` milliseconds."""

    def __init__(self, seconds: float, last: bool) -> None:
        self.seconds = seconds
        self.ms = int(seconds * 1000)
        self.last = last
        self.started_s = 0.0  # time.monotonic()
        self.in_time = False

    def __enter__(self) -> Self:
        self.started_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.in_time = self.last or time.monotonic() - self.started_s < self.seconds
        return not self.in_time and kind is not None and issubclass(kind, Exception)


@pytest.fixture(scope="session")
def in_time() -> Callable[[float], Iterator[Attempt]]:
    """Make attempts, each with four times as long, until one is in time: only that one counts.

        for attempt in in_time(0.5):                     # 0.5 s, then 2, 8, 32
            with attempt:
                publish(expiration=str(attempt.ms))      # a time that begins within the attempt
                assert is_there()                        # it cannot have expired yet

    Exceptions of an attempt that was too slow are ignored, so each attempt has its own names and channels. So a
    process may stop for seconds at any line without a wrong verdict, and a fast run waits for half a second.
    """

    def attempts(seconds: float) -> Iterator[Attempt]:
        while True:
            attempt = Attempt(seconds, last=seconds > 30)
            yield attempt
            if attempt.in_time:
                return
            seconds *= 4

    return attempts


@pytest.fixture(scope="session")
def until_settled() -> Callable[..., None]:
    """Wait until `count` messages of a durable queue are left on disk, so that a kill leaves exactly these.

    Acks are written within 50 ms, later on a busy machine. Only persistent messages may have been in the queue.

    delivered: wait also until the delivery of this offset is on disk.
    """

    def count_left(broker: BrokerProcess, queue: str) -> tuple[int, int]:
        for directory in queue_directories(FileSystem(), str(broker.data_dir)):
            report = check_queue(FileSystem(), directory)
            if report.queue == queue:
                files = [AckFileReader(path.read_bytes()) for path in Path(directory).glob("*.settled")]
                marks = [a for file in files for kind, a, _, _ in file.entries if kind == DELIVERED]
                return report.next_offset - report.start_offset - report.settled_count, max(marks, default=-1)
        return -1, -1

    def wait(broker: BrokerProcess, queue: str, count: int, delivered: int = -1) -> None:
        deadline = time.monotonic() + 60
        while (current := count_left(broker, queue))[0] != count or current[1] < delivered:
            assert time.monotonic() < deadline, (
                f"{current} (left, delivered) of {queue} on disk, not {count}, {delivered}"
            )
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def kafka_batch() -> Callable[..., bytes]:
    """Return a function that makes the batch of aiokafka's producer: records of key eu.new, each with its own time."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    def make_batch(codec: int, records: Iterable[tuple[int, bytes]], headers: Sequence[tuple[str, bytes]]) -> bytes:
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

    return make_batch
