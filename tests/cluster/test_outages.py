"""Log lines about Kafka outages: one at the beginning, one a minute, one at the end, however many connections fail."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_kafka import FakeKafka
from kafka_logs import Producer

from amqpd.kafka import outages as module
from amqpd.kafka.consumer import FollowedPartition, TopicFollower
from amqpd.kafka.outages import FORGOTTEN_S, REPEAT_S, THE_GROUP, AiokafkaLog, Outages


class Clock:
    """A fake event loop for `Outages`: the test sets its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[..., None], tuple[float, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: float) -> SimpleNamespace:
        timer = (self.now + seconds, call, arguments)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((each for each in self.timers if each[0] <= end), key=lambda each: each[0]):
            self.timers.remove(due[0])
            self.now = due[0][0]
            due[0][1](*due[0][2])
        self.now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the log lines since its last call."""
    caplog.set_level(logging.INFO)

    def read() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return read


def test_outage_is_logged_at_begin_each_minute_and_at_end(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    for turn in range(1300):  # ten a second
        outages.report_failure("a:1" if turn % 2 else "b:2", OSError("refused"))
        clock.advance(0.1)
    first, *repeated = lines()
    assert first == "trouble with Kafka: b:2: refused"
    assert len(repeated) == 2
    assert repeated[0] == "trouble with Kafka for 60 s, 599 failures: b:2: refused; a:1: refused"
    outages.report_success("a:1")
    assert lines() == []
    assert round(outages.duration_s()) == 130
    outages.report_success("b:2")
    assert outages.duration_s() == 0
    assert lines() == ["Kafka answers again, after 130.0 s"]
    clock.advance(10 * REPEAT_S)
    assert lines() == []


def test_flapping_outage_is_one_line_a_minute(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    for _ in range(590):
        outages.report_failure("a:1", TimeoutError())
        outages.report_success("a:1")
        clock.advance(0.1)
    assert lines() == ["trouble with Kafka: a:1: TimeoutError", "Kafka answers again, after 0.0 s"]
    clock.advance(REPEAT_S)
    assert lines() == ["trouble with Kafka is over: 589 failures, the last: a:1: TimeoutError"]
    clock.advance(10 * REPEAT_S)
    outages.report_failure("a:1", "refused")
    assert lines() == ["trouble with Kafka: a:1: refused"]


def test_outage_soon_after_another_is_logged_if_it_lasts(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    outages.report_failure("a:1", "refused")
    outages.report_success("a:1")
    clock.advance(10)
    lines()
    for _ in range(600):
        outages.report_failure("b:2", "refused")
        clock.advance(0.1)
    assert lines() == ["trouble with Kafka: b:2: refused"]
    clock.advance(6)
    (line,) = lines()
    assert line.startswith("trouble with Kafka for 65 s, 5")


def test_failure_without_new_attempts_is_forgotten(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    outages.report_failure("gone:1", "refused")
    clock.advance(FORGOTTEN_S + 2 * REPEAT_S)
    assert lines()[-1] == "Kafka answers again, after 180.0 s"
    assert outages.failure_reason("gone:1") == ""


def test_errors_logged_by_aiokafka_are_part_of_the_outage(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    aiokafka_logger = logging.getLogger("aiokafka")
    before = aiokafka_logger.handlers, aiokafka_logger.level, aiokafka_logger.propagate
    try:
        AiokafkaLog(outages).attach()
        for _ in range(100):
            logging.getLogger("aiokafka.client").error("Unable connect to node with id %s: %s", 1, "refused")
            logging.getLogger("aiokafka.consumer.group_coordinator").warning("Heartbeat failed")
        assert lines() == [f"trouble with Kafka: {THE_GROUP}: Unable connect to node with id 1: refused"]
        try:
            raise RuntimeError("a bug")
        except RuntimeError:
            logging.getLogger("aiokafka.client").exception("Unexpected error")
        assert lines() == ["Unexpected error"]
    finally:
        aiokafka_logger.handlers, aiokafka_logger.level, aiokafka_logger.propagate = before


def test_aiokafka_is_pinned_below_its_next_minor_version() -> None:
    """group.py and admin.py use private names of aiokafka."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    found = [each for extra in ("cluster", "test") for each in extras[extra] if each.startswith("aiokafka")]
    assert found == ["aiokafka>=0.14,<0.15"] * 2


async def test_many_failing_connections_are_one_line(fake: FakeKafka, lines: Callable[[], list[str]]) -> None:
    """Five producers and a follower while both brokers are down and then up again."""
    fake.create("t", 4)
    access = fake.access
    outages = access.outages

    async def take(_: FollowedPartition, __: bytes) -> None:
        pass

    follower = TopicFollower(access, take)
    producers = [Producer(access) for _ in range(5)]
    try:
        followed = [follower.follow("t", number) for number in range(4)]
        await follower.wait_caught_up(followed)
        lines()
        for number in (1, 2):
            await fake.stop(number)
        for each in producers:
            each.kafka.open("t", 0, 0)
        async with asyncio.timeout(30):
            while outages._count < 40:  # noqa: ASYNC110  # no event to wait for
                await asyncio.sleep(0.01)
            assert len(lines()) == 1
            for number in (1, 2):
                await fake.start(number)
            while outages._failing:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (end,) = lines()
        assert end.startswith("Kafka answers again, after ")
    finally:
        await follower.close()
        for each in producers:
            await each.kafka.close()
