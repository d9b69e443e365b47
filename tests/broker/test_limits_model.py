"""Queues with limits and priorities against a naive twin: random publishes, acks, requeues, rejects, purges and kills.

The twin is a sorted list. It was itself compared with RabbitMQ 3.10.8 (180 random sequences on classic queues).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

Arguments = dict[str, object]


class Twin:
    """The expected content of the queue and of its dead-letter queue.

    A message is [level, number, body, persistent, requeue count].
    """

    def __init__(self, arguments: Arguments) -> None:
        self.length_max = arguments.get("x_max_length")
        self.bytes_max = arguments.get("x_max_length_bytes")
        self.level_max = arguments.get("x_max_priority", 0)
        self.overflow = arguments.get("x_overflow", "drop-head")
        self.limit = arguments.get("x_delivery_limit")
        self.keeps_all = arguments.get("x_queue_type") == "quorum"
        self.ready: list[list] = []
        self.unacked: list[list] = []
        self.dead: list[tuple[bytes, str]] = []

    def is_full(self, messages: list[list]) -> bool:
        if self.length_max is not None and len(messages) > self.length_max:
            return True
        return self.bytes_max is not None and sum(len(message[2]) for message in messages) > self.bytes_max

    def publish(self, number: int, body: bytes, priority: int, persistent: bool) -> bool:
        message = [-min(priority, self.level_max), number, body, persistent, 0]
        if self.overflow != "drop-head" and self.is_full([*self.ready, message]):
            if self.overflow == "reject-publish-dlx":
                self.dead.append((body, "maxlen"))
            return False
        self.add(message)
        return True

    def add(self, message: list) -> None:
        self.ready = sorted([*self.ready, message])
        self.drop_head()

    def drop_head(self) -> None:
        while self.overflow == "drop-head" and self.ready and self.is_full(self.ready):
            self.dead.append((self.ready.pop(0)[2], "maxlen"))

    def requeue(self, index: int) -> None:
        message = self.unacked.pop(index)
        message[4] += 1
        if self.limit is not None and message[4] > self.limit:
            self.dead.append((message[2], "delivery_limit"))
        else:
            self.add(message)

    def kill(self) -> None:
        self.ready = sorted(message for message in self.ready + self.unacked if message[3] or self.keeps_all)
        self.unacked = []
        self.drop_head()


@st.composite
def argument_sets(draw: Callable) -> Arguments:
    arguments: Arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    if draw(st.booleans()):
        arguments["x_max_length"] = draw(st.integers(0, 5))
    if draw(st.booleans()):
        arguments["x_max_length_bytes"] = draw(st.integers(0, 40))
    kind = draw(st.sampled_from(["levels", "plain", "quorum"]))
    if kind == "levels":
        arguments["x_max_priority"] = draw(st.integers(0, 4))
    if kind == "quorum":
        arguments |= {"x_queue_type": "quorum", "x_delivery_limit": draw(st.integers(0, 2))}
    arguments["x_overflow"] = draw(st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]))
    return arguments


publishes = st.tuples(st.just("publish"), st.integers(0, 6), st.integers(0, 12), st.booleans())
answers = st.tuples(st.sampled_from(["get", "get", "ack", "reject", "requeue"]), st.integers(0, 100))
steps_without_kill = st.one_of(publishes, publishes, answers, answers, answers)
# Kills and purges empty what has built up, so some sequences have none.
steps = st.one_of(
    st.lists(steps_without_kill, min_size=30, max_size=60),
    st.lists(
        st.one_of(steps_without_kill, steps_without_kill, steps_without_kill, st.just(("kill",))),
        min_size=30,
        max_size=60,
    ),
    st.lists(
        st.one_of(steps_without_kill, steps_without_kill, steps_without_kill, st.just(("kill",)), st.just(("purge",))),
        min_size=30,
        max_size=60,
    ),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(arguments=argument_sets(), steps=steps, window=st.sampled_from([1, 3, 4096]))
def test_limits_match_naive_twin(memory_room, arguments: Arguments, steps: list[tuple], window: int) -> None:
    room = memory_room()
    try:
        _compare(room, arguments, steps, window)
    finally:
        room.storage.close(clean=False)


DEAD_LETTER_ARGUMENTS: Arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
PUBLISHED = ("publish", 0, 0, True)
PURGE_AND_KILL_STEPS = [
    [PUBLISHED, ("purge",), PUBLISHED, ("kill",)],
    [PUBLISHED, ("kill",), ("purge",), PUBLISHED, ("kill",)],
    [PUBLISHED, ("get", 0), ("purge",), ("ack", 0), PUBLISHED, ("kill",)],
    [PUBLISHED, PUBLISHED, ("kill",), ("get", 0), ("purge",), ("ack", 0), PUBLISHED, ("kill",)],
]


@pytest.mark.parametrize("levels", [{}, {"x_max_priority": 2}], ids=["plain", "levels"])
@pytest.mark.parametrize("steps", PURGE_AND_KILL_STEPS)
def test_purged_bytes_do_not_count_after_kill(make_room, tmp_path: Path, levels: Arguments, steps: list[tuple]) -> None:
    """Purged messages do not count against max-length-bytes at the next start, so no message is dropped."""
    arguments = DEAD_LETTER_ARGUMENTS | levels | {"x_max_length_bytes": 3, "x_overflow": "drop-head"}
    room = make_room(tmp_path)
    try:
        _compare(room, arguments, steps, 1)
    finally:
        room.storage.close(clean=False)


def _compare(room, arguments: Arguments, steps: list[tuple], window: int) -> None:
    twin = Twin(arguments)
    room.queue("dead")
    queue = room.queue("q", **arguments)
    queue.order.memory.count_max = window
    unacked = []
    for number, step in enumerate(steps):
        match step:
            case ("publish", priority, size, persistent):
                body = b"%03d" % number + b"x" * size
                accepted = room.publish("q", body, priority=priority, persistent=persistent)
                assert accepted == twin.publish(number, body, priority, persistent)
            case ("get", _):
                entry = queue.get(False)
                assert (entry is not None) == bool(twin.ready)
                if entry is not None:
                    message = twin.ready.pop(0)
                    assert (entry.message.body(), entry.delivery_count) == (message[2], message[4])
                    unacked.append(entry)
                    twin.unacked.append(message)
            case ("kill",):
                room.restart()
                queue = room.vhost.queue("q")
                queue.order.memory.count_max = window
                unacked = []
                # Persistent dead letters survive; the dead-letter queue is not compared after a kill.
                twin.kill()
            case ("purge",):
                assert queue.purge() == len(twin.ready)
                twin.ready = []
            case (action, chosen) if unacked:
                index = chosen % len(unacked)
                entry = unacked.pop(index)
                if action == "requeue":
                    queue.requeue(entry, True)
                    twin.requeue(index)
                else:
                    message = twin.unacked.pop(index)
                    if action == "reject":
                        queue.reject(entry)
                        twin.dead.append((message[2], "rejected"))
                    else:
                        queue.ack(entry)
        room.turn.schedule()
        room.turns()
        assert queue.ready_count == len(twin.ready)
        assert queue.unacked_count == len(twin.unacked)
        if ("purge",) not in steps:  # a purge does not read the sizes of the messages it removes
            assert queue.ready_bytes == sum(len(message[2]) for message in twin.ready)
    assert room.bodies(queue) == [message[2] for message in twin.ready]
    if ("kill",) not in steps:
        dead = room.vhost.queue("dead")
        found = []
        while (got := room.get(dead)) is not None:
            found.append((got.body, got.headers["x-first-death-reason"]))
        assert found == twin.dead
