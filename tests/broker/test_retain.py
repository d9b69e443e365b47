"""x-retain: acked and discarded messages stay in the queue's log."""

from __future__ import annotations

from typing import Any

import pytest
from taker import take

from amqpd.broker.queue.arguments import rules_of, validate
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import policies
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.policy_table import InvalidPolicy
from amqpd.broker.vhost.policy_table import check as check_policy
from amqpd.errors import PreconditionFailed
from amqpd.storage.acks.retained import Retained, retained_of

DAY_MS = 24 * 3_600_000


def retained(queue: Queue) -> Retained:
    store: Any = queue.store
    return retained_of(store.log.segments, store.next_offset, store.record_count)


def run_maintenance(room: Any) -> None:
    for _ in range(4):
        room.storage.maintain()
        room.turn.schedule()
        room.turns()


class TestArguments:
    @pytest.mark.parametrize("value", ["3D", "1h", "20s", 0, 1, 1 << 40])
    def test_valid_values_are_accepted(self, value: object) -> None:
        validate("q", "/", {"x-retain": value})
        validate("q", "/", {"x-retain": value, "x-queue-type": "quorum"})

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ("3", "invalid_retain"),
            ("D", "invalid_retain"),
            ("", "invalid_retain"),
            ("0D", "invalid_retain"),
            (-1, r"\{value_negative,-1\}"),
            (True, r"\{unacceptable_type,bool\}"),
            (1.5, r"\{unacceptable_type,double\}"),
            (None, r"\{unacceptable_type,void\}"),
        ],
    )
    def test_invalid_values_are_refused(self, value: object, why: str) -> None:
        with pytest.raises(PreconditionFailed, match=f"invalid arg 'x-retain' for queue 'q' in vhost '/': {why}"):
            validate("q", "/", {"x-retain": value})

    def test_transient_queue_refuses_retain(self, room) -> None:
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-retain' for queue 'q' in vhost '/': not durable"):
            room.declare(QueueDeclaration("q", False, False, False, {"x-retain": "3D"}))

    def test_value_is_a_time_or_a_size(self) -> None:
        for value, ms, size in (("3D", 3 * DAY_MS, -1), (5000, -1, 5000)):
            rules = rules_of({"x-retain": value})
            assert (rules.retains, rules.retain_ms, rules.retain_bytes, rules.plain) == (True, ms, size, False)
        assert not rules_of({}).retains

    def test_lowest_of_argument_and_policy_applies(self) -> None:
        assert rules_of({"x-retain": "3D"}, {"retain": "1D"}).retain_ms == DAY_MS
        assert rules_of({"x-retain": "1D"}, {"retain": "3D"}).retain_ms == DAY_MS
        assert rules_of({"x-retain": 10}, {"retain": 5}).retain_bytes == 5
        mixed = rules_of({"x-retain": 10}, {"retain": "3D"})
        assert (mixed.retain_bytes, mixed.retain_ms) == (10, -1), (
            "a size and a time cannot be compared: the argument applies"
        )

    def test_policy_values_are_checked(self) -> None:
        for value in ("3D", 0, 500):
            check_policy("p", {"pattern": ".", "definition": {"retain": value}, "priority": 0}, False)
        for value in ("x", -1, True, 1.5, None):
            with pytest.raises(InvalidPolicy, match="is not a valid retention"):
                check_policy("p", {"pattern": ".", "definition": {"retain": value}, "priority": 0}, False)


class TestRetained:
    def test_acked_messages_are_retained(self, room) -> None:
        queue = room.queue("q", x_retain="1h")
        for number in range(5):
            room.publish("q", b"%d" % number)
        assert len(room.bodies(queue)) == 5
        assert retained(queue) == Retained(5, 5, 0, retained(queue).first_timestamp_ms)
        assert queue.ready_count == 0

    def test_purged_messages_are_retained(self, room) -> None:
        queue = room.queue("q", x_retain="1h")
        for _ in range(5):
            room.publish("q", b"x")
        assert queue.purge() == 5
        run_maintenance(room)
        assert retained(queue).messages == 5

    def test_expired_and_dropped_messages_are_retained(self, room) -> None:
        queue = room.queue("q", x_retain="1h", x_message_ttl=10, x_max_length=3)
        for _ in range(5):
            room.publish("q", b"x")
        assert (queue.ready_count, retained(queue).messages) == (3, 2)
        room.advance(20)
        assert (queue.ready_count, retained(queue).messages) == (0, 5)

    def test_dead_lettered_message_is_retained(self, room) -> None:
        queue = room.queue("q", x_retain="1h", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        dead = room.queue("dead")
        room.publish("q", b"x")
        queue.reject(queue.get(False))
        room.turn.schedule()
        room.turns()
        assert (dead.ready_count, retained(queue).messages) == (1, 1)

    def test_retain_with_priorities_and_groups(self, room) -> None:
        for name, arguments in (("p", {"x_max_priority": 5}), ("g", {"x_group_by": "routing_key"})):
            queue = room.queue(name, x_retain="1h", **arguments)
            for number in range(4):
                room.publish(name, b"x", priority=number)
            assert len(room.bodies(queue)) == 4
            assert retained(queue).messages == 4

    @pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}])
    def test_messages_for_a_no_ack_consumer_are_retained(self, room, arguments) -> None:
        """In a queue without x-retain such a message is never written to the log."""
        queue = room.queue("q", x_retain="1h", **arguments)
        consumer = take(room, queue, no_ack=True)
        for number in range(5):
            room.publish("q", b"%d" % number)
        assert consumer.got == [b"%d" % number for number in range(5)]
        assert (retained(queue).messages, queue.ready_count, queue.published_count) == (5, 0, 5)

    @pytest.mark.parametrize(
        "x", [{"x_retain": "1h"}, {"x_group_by": "routing_key"}, {"x_retain": "1h", "x_max_priority": 3}]
    )
    @pytest.mark.parametrize("limit", [{"x_message_ttl": 0}, {"x_max_length": 0}, {"x_max_length": 1}])
    def test_consumers_are_served_before_limits_apply(self, room, x: dict[str, Any], limit: dict[str, Any]) -> None:
        """A TTL of 0 means "deliver or drop", and a max-length counts only messages that no consumer takes."""
        queue = room.queue("q", **x, **limit)
        consumer = take(room, queue, credit=3)
        for number in range(5):
            room.publish("q", b"%d" % number, turn=False)
        room.turns()
        assert consumer.got == [b"0", b"1", b"2"]
        assert queue.ready_count == limit.get("x_max_length", 0)

    @pytest.mark.parametrize("x", [{"x_retain": "1h"}, {"x_group_by": "routing_key"}])
    def test_expiration_0_is_deliver_or_drop(self, room, x: dict[str, Any]) -> None:
        queue = room.queue("q", **x)
        consumer = take(room, queue, credit=1)
        for number in range(2):
            room.publish("q", b"%d" % number, expiration="0", turn=False)
        room.turns()
        assert (consumer.got, queue.ready_count) == ([b"0"], 0)

    @pytest.mark.parametrize(
        "x", [{"x_retain": "1h"}, {"x_group_by": "routing_key"}, {"x_retain": "1h", "x_max_priority": 3}]
    )
    @pytest.mark.parametrize("limit", [{}, {"x_max_length": 1}, {"x_max_length": 1, "x_overflow": "reject-publish"}])
    @pytest.mark.parametrize("durable", [True, False])
    def test_expiration_0_behind_other_messages_of_the_same_turn(
        self, room, x: dict[str, Any], limit: dict[str, Any], durable: bool
    ) -> None:
        """RabbitMQ: a consumer with credit gets such messages at once; the rest expire."""
        if not durable and "x_retain" in x:
            pytest.skip("a transient queue retains nothing")
        queue = room.queue("q", durable=durable, **x, **limit)
        consumer = take(room, queue, credit=3)
        room.publish("q", b"stays", turn=False)
        for number in range(4):
            room.publish("q", b"%d" % number, expiration="0", turn=False)
        room.turns()
        assert (consumer.got, queue.ready_count) == ([b"stays", b"0", b"1"], 0)
        consumer.ack_all()
        room.turns()
        room.publish("q", b"5", expiration="0")
        assert consumer.got[3:] == [b"5"]
        consumer.leave()
        room.turns()
        room.publish("q", b"6", expiration="0")
        assert queue.ready_count == 0, "a requeued message with expiration 0 expires"

    @pytest.mark.parametrize("x", [{"x_retain": "1h"}, {"x_group_by": "routing_key"}])
    def test_more_messages_with_expiration_0_than_one_dispatch(self, room, x: dict[str, Any]) -> None:
        queue = room.queue("q", **x)
        consumer = take(room, queue)
        for number in range(2500):
            room.publish("q", b"%d" % number, expiration="0", turn=False)
        room.turns()
        assert len(consumer.got) == 2500

    def test_retained_messages_survive_restart(self, room) -> None:
        queue = room.queue("q", x_retain=5 << 20)
        for _ in range(40):
            room.publish("q", b"." * 100_000)
        assert len(room.bodies(queue)) == 40
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        run_maintenance(room)
        assert (queue.ready_count, retained(queue).messages) == (0, 40)
        for _ in range(60):
            room.publish("q", b"." * 100_000)
        assert len(room.bodies(queue)) == 60
        run_maintenance(room)
        after = retained(queue)
        assert 50 <= after.messages < 100 and after.first_offset == 100 - after.messages

    def test_old_retained_messages_are_removed(self, room) -> None:
        queue = room.queue("q", x_retain="1h")
        for _ in range(40):
            room.publish("q", b"." * 100_000)
        assert len(room.bodies(queue)) == 40
        run_maintenance(room)
        assert room.storage.retained.bytes > 3_000_000
        room.clock.now_ms += 3_600_001
        run_maintenance(room)
        assert retained(queue).messages == 0
        assert room.storage.retained.bytes == 0


class TestPolicies:
    def set_retain_policy(self, room) -> None:
        done: list[object] = []
        value = {"pattern": "^q", "definition": {"retain": "1h"}, "priority": 0}
        policies.declare(room.vhost, "keep", value, False, done.append)
        room.turns()
        assert done == [None]

    def test_retain_policy_is_set_and_cleared(self, room) -> None:
        queue = room.queue("q")
        assert queue.rules.plain
        self.set_retain_policy(room)
        for _ in range(40):
            room.publish("q", b"." * 100_000)
        assert len(room.bodies(queue)) == 40
        run_maintenance(room)
        assert retained(queue).messages == 40
        done: list[object] = []
        policies.clear(room.vhost, room.vhost.policies.get("keep", False), done.append)
        room.turns()
        run_maintenance(room)
        assert done == [None]
        assert queue.rules.plain and queue.enforcement is None
        assert retained(queue).messages < 12, "only the last segment keeps messages"
        assert room.storage.retained.bytes == 0

    def test_retain_policy_does_not_apply_to_transient_queue(self, room) -> None:
        queue = room.queue("q", durable=False)
        self.set_retain_policy(room)
        room.publish("q", b"x")
        assert room.bodies(queue) == [b"x"]
        assert room.storage.retained.bytes == 0
