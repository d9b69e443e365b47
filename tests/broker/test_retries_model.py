"""A queue with delayed retry against a naive twin that keeps lists and a clock.

The queue is in order of arrival, with priorities or with groups; a durable queue is killed too. The twin knows
which messages are ready, which are delayed until when, and each delivery count. Over max-length it drops the delayed
message that is due first, or else the head. The queue and its log must agree after every step.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from profiles import examples

from amqpd.broker.queue.config import retry_rule
from amqpd.broker.queue.delayed_retry import DelayedRetries

EXAMPLES = int(os.environ.get("RETRY_EXAMPLES", examples(60)))
KINDS: dict[str, dict[str, object]] = {
    "arrival": {},
    "quorum": {"x_queue_type": "quorum"},
    "priorities": {"x_max_priority": 3},
    "groups": {"x_group_by": "header:g"},
}
DELAYS: tuple[dict[str, object], ...] = (
    {"x_delayed_retry_type": "all", "x_delayed_retry_min": 200, "x_delayed_retry_max": 700},
    {"x_delayed_retry_type": "failed", "x_delayed_retry_min": 300},
    {"x_delayed_retry_type": "returned", "x_delayed_retry_levels": [100, 600, 400]},
    {"x_delayed_retry_type": "all", "x_delayed_retry_levels": "1s,2s"},
)


class TwinMessage:
    """A message in the twin's lists. due_ms: the end of its delay."""

    def __init__(self, number: int, body: bytes, level: int, group: str) -> None:
        self.number = number
        self.body = body
        self.level = level
        self.group = group
        self.count = 0
        self.due_ms = 0


class RetryMachine(RuleBasedStateMachine):
    memory_room: Any = None

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        durable=st.sampled_from([True, True, False]),
        waits=st.sampled_from(DELAYS),
        length=st.sampled_from([0, 0, 4]),
        window=st.sampled_from([2, 1000]),
    )
    def begin(self, kind: str, durable: bool, waits: dict[str, object], length: int, window: int) -> None:
        self.room = type(self).memory_room()
        self.kind = kind
        self.durable = durable or kind == "quorum"
        self.length = length
        self.window = window
        limits: dict[str, object] = {"x_max_length": length} if length else {}
        self.room.queue("q", durable=self.durable, **KINDS[kind], **waits, **limits)
        names = {"x_delayed_retry_type": "retry_type", "x_delayed_retry_min": "retry_min_ms"}
        names |= {"x_delayed_retry_max": "retry_max_ms", "x_delayed_retry_levels": "retry_levels"}
        self.wait = retry_rule({names[name]: value for name, value in waits.items()})
        self.ready: list[TwinMessage] = []
        self.delayed: list[TwinMessage] = []
        self.unacked: list[tuple[Any, TwinMessage]] = []
        self.next = 0
        self.open()

    def open(self) -> None:
        self.queue = self.room.vhost.queues["q"]
        self.queue.order.memory.count_max = self.window if self.durable else 32768

    def now_ms(self) -> int:
        return int(self.room.clock.now_ms)

    def rest(self) -> None:
        self.room.turn.schedule()
        self.room.turns()

    def make_ready(self, message: TwinMessage) -> None:
        self.ready.append(message)
        self.ready.sort(key=lambda each: (-each.level if self.kind == "priorities" else 0, each.number))

    def drop_over_length(self) -> None:
        """Drop the messages over the max-length."""
        while self.length and len(self.ready) + len(self.delayed) > self.length:
            if self.delayed:
                self.delayed.remove(min(self.delayed, key=lambda each: (each.due_ms, each.number)))
            else:
                del self.ready[0]

    def release_due(self) -> None:
        for message in [each for each in self.delayed if each.due_ms <= self.now_ms()]:
            self.delayed.remove(message)
            self.make_ready(message)

    # -- steps

    @rule(levels=st.lists(st.integers(0, 3), min_size=1, max_size=6), size=st.sampled_from([0, 1, 40]))
    def publish(self, levels: list[int], size: int) -> None:
        for level in levels:
            body = b"%d " % self.next + b"x" * size
            message = TwinMessage(self.next, body, level, "ab"[self.next % 2])
            properties: dict[str, Any] = {"headers": {"g": message.group}} if self.kind == "groups" else {}
            assert self.room.publish("q", body, priority=level, **properties)
            self.next += 1
            self.make_ready(message)
            self.drop_over_length()
        self.check()

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for _ in range(count):
            locked: set[str] = set()
            if self.kind == "groups":
                locked = {message.group for _, message in self.unacked} | {message.group for message in self.delayed}
            expected = next((each for each in self.ready if each.group not in locked), None)
            entry = self.queue.get(False)
            while entry is None and self.queue.must_wait():
                self.queue.when_ready(lambda: None)
                self.room.turns()
                entry = self.queue.get(False)
            self.rest()
            if expected is None:
                assert entry is None
                break
            assert entry is not None
            assert entry.message.body() == expected.body
            assert entry.delivery_count == expected.count
            assert entry.redelivered or expected.count == 0
            self.ready.remove(expected)
            self.unacked.append((entry, expected))
        self.check()

    @precondition(lambda self: self.unacked)
    @rule(index=st.integers(0, 100), failed=st.booleans(), counts=st.sampled_from([True, True, True, False]))
    def requeue(self, index: int, failed: bool, counts: bool) -> None:
        entry, message = self.unacked.pop(index % len(self.unacked))
        self.queue.requeue(entry, counts, failed)
        self.queue.schedule_dispatch()
        self.rest()
        message.count += counts
        delay_ms = self.wait.delay_ms(failed, message.count) if counts else 0
        if delay_ms:
            message.due_ms = self.now_ms() + delay_ms
            self.delayed.append(message)
        else:
            self.make_ready(message)
        self.drop_over_length()
        self.check()

    @precondition(lambda self: self.unacked)
    @rule(index=st.integers(0, 100))
    def ack(self, index: int) -> None:
        entry, _ = self.unacked.pop(index % len(self.unacked))
        self.queue.ack(entry)
        self.rest()
        self.check()

    @rule(steps=st.integers(1, 12))
    def advance(self, steps: int) -> None:
        self.room.advance(steps * 100)
        self.release_due()
        self.check()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready) + len(self.delayed)
        self.rest()
        self.ready.clear()
        self.delayed.clear()
        self.check()

    @precondition(lambda self: self.durable)
    @rule(down_ms=st.sampled_from([0, 100, 500, 5000]))
    def kill(self, down_ms: int) -> None:
        self.rest()
        before_ms = self.now_ms()
        self.room.restart(down_ms=down_ms)
        self.open()
        self.queue.prepare()
        self.rest()
        for _, message in self.unacked:
            self.make_ready(message)
        self.unacked.clear()
        for message in self.delayed:
            left_ms = message.due_ms - before_ms - down_ms
            message.due_ms = self.now_ms() + (0 if self.kind == "groups" else min(left_ms, self.wait.longest_ms))
        self.release_due()
        self.drop_over_length()
        self.check()

    def check(self) -> None:
        queue = self.queue
        counts = (queue.ready_count, queue.unacked_count, queue.delayed_count)
        assert counts == (len(self.ready), len(self.unacked), len(self.delayed))
        total_bytes = queue.ready_bytes + queue.delayed_bytes
        assert total_bytes == sum(len(message.body) for message in self.ready + self.delayed)
        retries = queue.enforcement.retries
        assert isinstance(retries, DelayedRetries)
        if self.delayed:
            assert retries.tick >= 0
        store = queue.store
        if self.durable:
            assert store is not None
            assert store.record_count == sum(counts)

    def teardown(self) -> None:
        if hasattr(self, "room"):
            if hasattr(self, "queue"):
                self.drain()
            self.room.storage.close(clean=False)

    def drain(self) -> None:
        """All remaining messages are delivered in order."""
        for entry, _ in self.unacked:
            self.queue.ack(entry)
        self.rest()
        self.unacked.clear()
        self.room.advance(2500)
        self.release_due()
        assert not self.delayed
        assert self.room.bodies(self.queue) == [message.body for message in self.ready]


def test_delayed_retry_matches_naive_twin(memory_room) -> None:
    RetryMachine.memory_room = staticmethod(memory_room)
    machine = RetryMachine.TestCase
    machine.settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    machine().runTest()
