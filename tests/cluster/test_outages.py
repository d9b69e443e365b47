"""Trouble with Kafka in the log: a line as it begins, one a minute, one as it ends, however many connections fail."""

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
    """The loop of `Outages`: its time is what a test says."""

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
    """The lines since the last call."""
    caplog.set_level(logging.INFO)

    def read() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return read


def test_a_line_as_it_begins_one_a_minute_and_one_as_it_ends(clock: Clock, lines: Callable[[], list[str]]) -> None:
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
    outages.report_success("b:2")
    assert lines() == ["Kafka answers again, after 130.0 s"]
    clock.advance(10 * REPEAT_S)
    assert lines() == []


def test_what_comes_and_goes_is_one_line_a_minute(clock: Clock, lines: Callable[[], list[str]]) -> None:
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


def test_an_outage_right_behind_another_is_told_when_it_lasts(clock: Clock, lines: Callable[[], list[str]]) -> None:
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


def test_what_is_not_tried_any_more_is_forgotten(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    outages.report_failure("gone:1", "refused")
    clock.advance(FORGOTTEN_S + 2 * REPEAT_S)
    assert lines()[-1] == "Kafka answers again, after 180.0 s"
    assert outages.failure_reason("gone:1") == ""


def test_what_aiokafka_logs_is_part_of_it(clock: Clock, lines: Callable[[], list[str]]) -> None:
    outages = Outages()
    theirs = logging.getLogger("aiokafka")
    before = theirs.handlers, theirs.level, theirs.propagate
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
        theirs.handlers, theirs.level, theirs.propagate = before


def test_aiokafka_stays_below_its_next_minor_version() -> None:
    """Internals of it are used (group.py, admin.py)."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    found = [each for extra in ("cluster", "test") for each in extras[extra] if each.startswith("aiokafka")]
    assert found == ["aiokafka>=0.14,<0.15"] * 2


async def test_many_connections_that_fail_are_one_line(fake: FakeKafka, lines: Callable[[], list[str]]) -> None:
    """Producers and a follower, while both brokers are away and when they are back."""
    fake.create("t", 4)
    access = fake.access
    counted = access.outages

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
            while counted._count < 40:  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)
            assert len(lines()) == 1
            for number in (1, 2):
                await fake.start(number)
            while counted._failing:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (end,) = lines()
        assert end.startswith("Kafka answers again, after ")
    finally:
        await follower.close()
        for each in producers:
            await each.kafka.close()
