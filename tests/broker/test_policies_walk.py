"""Policies over very many queues, or one that is huge: everything obeys them, in slices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_policies import MAX, put

from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.limits import SLICE_COUNT
from amqpd.broker.vhost import policies, policy_table
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import DeclarationPending

FILLED = 6000


class TestWalk:
    """The loop's turns are the room's: one call of `_soon` is one slice."""

    def many(self, room: Any, count: int) -> list[Any]:
        for number in range(count):
            room.declare(QueueDeclaration(f"q{number}", False, False, False, {}))
        room.turns()
        return list(room.vhost.queues.values())

    def declare(self, room: Any, length_max: int) -> list[object]:
        """A policy for 10,000 queues, the first slice not yet done. Returns what `done` is called with."""
        answered: list[object] = []
        value = {"pattern": "^q", "definition": {"max-length": length_max, "dead-letter-exchange": "d"}, "priority": 1}
        policies.declare(room.vhost, "p", value, False, answered.append)
        return answered

    @pytest.mark.slow
    def test_ten_thousand_queues_hold_nobody(self, room: Any, processor_s: Callable[..., float]) -> None:
        """Each slice has its 3 ms; the best of three, since a machine may count what others take as ours."""
        queues = self.many(room, 10_000)
        for number in range(20):
            put(room, f"other{number}", f"^other{number}$", MAX, priority=number)
        longest_s = []
        for length_max in (5, 6, 7):
            answered = self.declare(room, length_max)
            took_s = []
            while room._soon:
                took_s.append(processor_s(room._soon.pop(0)))
            assert answered == [None]
            assert all(queue.rules.length_max == length_max for queue in queues)
            assert len({id(queue.rules) for queue in queues}) == 1, "queues without arguments share them"
            longest_s.append(max(took_s))
        assert min(longest_s) < 0.02

    def test_the_clock_is_looked_at_after_each_queue(self, room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where each takes 0.6 of a slice, a slice has two."""
        queues = self.many(room, 100)
        looks = itertools.count()  # at a clock on which time goes by from look to look
        monkeypatch.setattr(
            policy_table, "time", SimpleNamespace(perf_counter=lambda: next(looks) * 0.6 * policy_table.SLICE_S)
        )
        answered = self.declare(room, 5)
        obeyed = [0]
        while room._soon:
            room._soon.pop(0)()
            obeyed.append(sum(queue.rules.length_max == 5 for queue in queues))
        assert obeyed[-1] == 100
        assert max(after - before for before, after in itertools.pairwise(obeyed)) == 2
        assert answered == [None]

    def test_the_answer_comes_when_all_obey(self, room: Any) -> None:
        queues = self.many(room, 3000)
        obeyed: list[int] = []
        value = {"pattern": "^q", "definition": MAX, "priority": 0}

        def answered(error: BaseException | None) -> None:
            assert error is None
            obeyed.append(sum(queue.rules.length_max == 2 for queue in queues))

        policies.declare(room.vhost, "p", value, False, answered)
        assert obeyed == []
        room.turns()
        assert obeyed == [3000]

    def test_two_changes_at_once_end_in_the_last_ones_state(self, room: Any) -> None:
        queues = self.many(room, 3000)
        order: list[int] = []
        for number in (1, 2, 3):
            value = {"pattern": "^q", "definition": {"max-length": number}, "priority": 0}
            policies.declare(room.vhost, "p", value, False, lambda error, number=number: order.append(number))
            if number < 3:
                room._soon.pop(0)()  # a slice, in the middle of which the next one comes
        room.turns()
        assert order == [1, 2, 3]
        assert {queue.rules.length_max for queue in queues} == {3}

    def test_set_and_cleared_at_once(self, room: Any) -> None:
        queues = self.many(room, 2000)
        policies.declare(room.vhost, "p", {"pattern": "^q", "definition": MAX, "priority": 0})
        room._soon.pop(0)()
        policies.clear(room.vhost, room.vhost.policies.get("p"))
        room.turns()
        assert all(queue.rules.plain for queue in queues)
        assert room.vhost.policies.in_force == {}

    def test_what_comes_and_goes_meanwhile(self, room: Any) -> None:
        self.many(room, 2000)
        policies.declare(room.vhost, "p", {"pattern": "^q", "definition": MAX, "priority": 0})
        room._soon.pop(0)()
        new = room.declare(QueueDeclaration("q-new", False, False, False, {}))
        assert new.rules.length_max == 2
        gone = [room.vhost.queues[f"q{number}"] for number in range(2000)]
        for queue in gone:
            room.delete(queue)
        again = room.declare(QueueDeclaration("q1", False, False, False, {}))
        room.turns()
        assert again.rules.length_max == 2
        assert set(room.vhost.policies.in_force) == {new, again}

    def test_a_vhost_that_goes_meanwhile(self, room: Any) -> None:
        done: list[object] = []
        room.vhost.deleted = True
        policies.declare(room.vhost, "p", {"pattern": "", "definition": MAX, "priority": 0}, False, done.append)
        room.turns()
        assert isinstance(done[0], DeclarationPending), "the command is given again, and finds no vhost"

    def test_one_that_cannot_obey_keeps_nobody_else_from_it(self, room: Any, monkeypatch: Any, caplog: Any) -> None:
        queues = self.many(room, 3)
        follow = room.vhost.apply_policies

        def fails(thing: Any) -> None:
            if thing.name == "q1":
                raise RuntimeError("it would not")
            follow(thing)

        monkeypatch.setattr(room.vhost, "apply_policies", fails)
        assert put(room, "p", "^q", MAX) == [None]
        assert [queue.rules.length_max for queue in queues] == [2, -1, 2]
        assert "it would not" in caplog.text

    def test_the_vhost_is_in_no_circle_at_rest(self, room: Any) -> None:
        put(room, "p", "", MAX)
        walk = room.vhost.policy_walk
        assert room.vhost not in walk.__dict__.values()
        assert walk._visit is walk._things is None


class TestAHugeQueue:
    """What a new length makes too much goes in slices. Here each look at the clock takes a millisecond, so a slice is a
    few looks."""

    def filled(self, room: Any, durable: bool = False) -> Any:
        queue = room.queue("q", durable=durable)
        for number in range(FILLED):
            room.publish("q", b"%d" % number, turn=number % 100 == 99)
        room.turns()
        room.clock.per_look_ms = 1
        return queue

    @pytest.mark.parametrize("dead_letters", [False, True])
    @pytest.mark.parametrize("durable", [False, True])
    def test_nothing_is_held_and_nothing_is_delivered_before(
        self, room: Any, durable: bool, dead_letters: bool
    ) -> None:
        target = room.queue("dead")
        queue = self.filled(room, durable)
        definition: dict[str, object] = {"max-length": 3}
        if dead_letters:
            definition |= {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
        done: list[object] = []
        value = {"pattern": "^q$", "definition": definition, "priority": 0}
        policies.declare(room.vhost, "p", value, False, done.append)
        left = FILLED
        turns = 0
        while room._soon:
            for call in [room._soon.pop(0) for _ in range(len(room._soon))]:
                call()
            turns += 1
            assert left - queue.ready_count <= SLICE_COUNT * 5, "a slice of it at a time"
            left = queue.ready_count
        assert done == [None]
        assert turns > 5
        room.clock.per_look_ms = 0
        room.turns()
        assert room.bodies(queue) == [b"%d" % number for number in range(FILLED - 3, FILLED)]
        assert target.ready_count == (FILLED - 3 if dead_letters else 0)

    def begin(self, room: Any, queue: Any) -> int:
        """A policy, and the first slice of what it makes too much. Returns what is left."""
        policies.declare(room.vhost, "p", {"pattern": "^q$", "definition": {"max-length": 10}, "priority": 0})
        room._soon.pop(0)()
        left: int = queue.ready_count
        assert 10 < left < FILLED
        return left

    def test_a_flood_does_not_outrun_it(self, room: Any) -> None:
        queue = self.filled(room)
        left = self.begin(room, queue)
        count = 0
        while queue.ready_count > 10:
            room.publish("q", b"new", turn=False)
            count += 1
            assert count < left, "it never gets there"
        assert queue.ready_count == 10

    def test_another_rule_in_the_middle_of_it(self, room: Any) -> None:
        """What has to go is what the rules say then."""
        queue = self.filled(room)
        left = self.begin(room, queue)
        queue.apply_config(QueueConfig({"length_max": 10, "overflow": "reject-publish"}))
        room.turns()
        assert queue.ready_count == left
        assert not room.publish("q", b"")
        queue.apply_config(QueueConfig({"length_max": left - 1}))
        room.turns()
        assert queue.ready_count == left - 1
