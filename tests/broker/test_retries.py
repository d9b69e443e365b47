"""Delayed retry: which messages are delayed, how long, and the effect of limits, purge and groups meanwhile."""

from __future__ import annotations

import pytest
from taker import take

from amqpd.broker.queue.arguments import ROWS, merged, rules_of, validate
from amqpd.broker.queue.config import levels_of, retry_rule
from amqpd.broker.queue.delayed_retry import HELD_BYTES_MAX
from amqpd.errors import PreconditionFailed

MINUTE_MS = 60_000
ALL = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 1000}
# Queue type -> arguments that declare it.
KINDS = {
    "classic": {},
    "quorum": {"x_queue_type": "quorum"},
    "priorities": {"x_max_priority": 5},
    "groups": {"x_group_by": "routing_key"},
    "single": {"x_single_active_consumer": True},
}


def counts(queue) -> tuple[int, int, int]:
    return (queue.ready_count, queue.unacked_count, queue.delayed_count)


def requeue_messages(queue, count: int = 1, failed: bool = True) -> list:
    """Get `count` messages and requeue them."""
    entries = [queue.get(False) for _ in range(count)]
    for entry in entries:
        queue.requeue(entry, True, failed)
    return entries


def refusal(arguments: dict[str, object]) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        validate("q", "/", arguments)
    return str(caught.value)


class TestRule:
    @pytest.mark.parametrize(
        ("when", "failed", "returned"),
        [("all", True, True), ("failed", True, False), ("returned", False, True)],
    )
    def test_type_selects_failed_or_returned_messages(self, when, failed, returned) -> None:
        rule = retry_rule({"retry_type": when, "retry_min_ms": 10})
        assert (rule.delay_ms(True, 1) > 0, rule.delay_ms(False, 1) > 0) == (failed, returned)

    def test_disabled_or_incomplete_is_no_rule(self) -> None:
        assert retry_rule({"retry_type": "disabled", "retry_min_ms": 10}) is None
        assert retry_rule({"retry_min_ms": 10}) is None
        assert retry_rule({"retry_type": "all"}) is None

    def test_delay_grows_with_the_count_up_to_the_maximum(self) -> None:
        rule = retry_rule({"retry_type": "all", "retry_min_ms": 1000, "retry_max_ms": 3500})
        assert [rule.delay_ms(True, count) for count in range(1, 6)] == [1000, 2000, 3000, 3500, 3500]

    def test_maximum_defaults_to_the_minimum(self) -> None:
        rule = retry_rule({"retry_type": "all", "retry_min_ms": 1000})
        assert [rule.delay_ms(True, count) for count in (1, 2, 9)] == [1000, 1000, 1000]

    def test_very_large_numbers_do_not_overflow(self) -> None:
        ten_years = 315_360_000_000
        rule = retry_rule({"retry_type": "all", "retry_min_ms": ten_years, "retry_max_ms": ten_years})
        assert rule.delay_ms(True, 1 << 60) == ten_years

    def test_levels_apply_in_order_and_the_last_repeats(self) -> None:
        rule = retry_rule({"retry_type": "all", "retry_levels": "1m,5m, 30m"})
        assert [rule.delay_ms(True, count) // MINUTE_MS for count in range(1, 6)] == [1, 5, 30, 30, 30]
        assert rule.longest_ms == 30 * MINUTE_MS

    @pytest.mark.parametrize("value", ["", "1", "1m,", "0s", "a,b", [], [0], [-1], [True], ["1m"], 5, None, [1] * 101])
    def test_invalid_levels_are_none(self, value) -> None:
        assert levels_of(value) is None


class TestArguments:
    def test_valid_arguments_are_accepted(self) -> None:
        for kind in ("classic", "quorum"):
            for levels in ("1s,2s", [1000, 2000]):
                waits = {"x-delayed-retry-type": "all", "x-delayed-retry-levels": levels}
                validate("q", "/", {"x-queue-type": kind, **waits})
            more = {"x-delayed-retry-min": 1, "x-delayed-retry-max": 5}
            validate("q", "/", {"x-queue-type": kind, "x-delayed-retry-type": "failed", **more})
        validate("q", "/", {"x-delayed-retry-type": "disabled"})

    @pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("x-delayed-retry-")])
    def test_streams_refuse_delayed_retry_arguments(self, name) -> None:
        assert "of queue type rabbit_stream_queue" in refusal({"x-queue-type": "stream", name: "all"})

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x-delayed-retry-type": "sometimes"}, "invalid_delayed_retry_type"),
            ({"x-delayed-retry-type": 1}, "{unacceptable_type,"),
            ({"x-delayed-retry-type": "all"}, "needs x-delayed-retry-min or x-delayed-retry-levels"),
            ({"x-delayed-retry-min": 1}, "needs x-delayed-retry-type"),
            ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 0}, "{value_zero,0}"),
            ({"x-delayed-retry-type": "all", "x-delayed-retry-min": "1m"}, "expected integer, got longstr"),
            ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 1 << 40}, "{value_too_large,"),
            ({"x-delayed-retry-max": 1}, "needs x-delayed-retry-min"),
            ({"x-delayed-retry-levels": "1m"}, "needs x-delayed-retry-type"),
            ({"x-delayed-retry-type": "all", "x-delayed-retry-levels": "soon"}, "expected 1 to 100 times"),
            (
                {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1, "x-delayed-retry-levels": "1m"},
                "cannot be combined with x-delayed-retry-min",
            ),
        ],
    )
    def test_invalid_arguments_are_refused(self, arguments, text) -> None:
        assert text in refusal(arguments)

    def test_policy_adds_to_arguments(self) -> None:
        arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 7}
        assert merged(arguments, {"delayed-retry-max": 20})["x-delayed-retry-max"] == 20
        rules = rules_of({}, {"delayed-retry-type": "returned", "delayed-retry-levels": [5, 6]})
        assert (rules.retry.delay_ms(False, 2), rules.retry.delay_ms(True, 2)) == (6, 0)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "quorum"])
class TestDelay:
    def test_message_returns_after_its_delay_to_its_place(self, room, kind, durable) -> None:
        queue = room.queue("q", durable=durable, **KINDS[kind], **ALL)
        for number in range(3):
            room.publish("q", b"%d" % number)
        requeue_messages(queue)
        assert counts(queue) == (2, 0, 1)
        room.advance(995)
        assert counts(queue) == (2, 0, 1)
        room.advance(10)
        assert counts(queue) == (3, 0, 0)
        assert (queue.delayed_bytes, queue.ready_bytes) == (0, 3)
        assert room.bodies(queue) == [b"0", b"1", b"2"]

    def test_delivery_count_grows_and_message_is_redelivered(self, room, kind, durable) -> None:
        queue = room.queue("q", durable=durable, **KINDS[kind], **{**ALL, "x_delayed_retry_max": 2500})
        room.publish("q", b"1")
        for waited_ms in (1000, 2000, 2500):
            requeue_messages(queue)
            room.advance(waited_ms - 5)
            assert queue.ready_count == 0
            room.advance(10)
            assert queue.ready_count == 1
        entry = queue.get(False)
        assert (entry.delivery_count, entry.redelivered, entry.message.body()) == (3, True, b"1")

    def test_purge_removes_delayed_messages(self, room, kind, durable) -> None:
        queue = room.queue("q", durable=durable, **KINDS[kind], **ALL)
        for number in range(5):
            room.publish("q", b"%d" % number)
        requeue_messages(queue)
        assert queue.purge() == 5
        assert counts(queue) == (0, 0, 0)
        room.advance(2000)
        assert counts(queue) == (0, 0, 0)
        assert queue.store is None or (queue.store.record_count, queue.store.size_bytes) == (0, 0)
        room.publish("q", b"next")
        assert room.bodies(queue) == [b"next"]

    def test_delete_of_queue_removes_delayed_messages(self, room, kind, durable) -> None:
        queue = room.queue("q", durable=durable, **KINDS[kind], **ALL)
        room.publish("q", b"1")
        requeue_messages(queue)
        assert room.delete(queue) == 1
        room.advance(2000)
        assert (counts(queue), room.timers.armed_count()) == ((0, 0, 0), 0)


class TestOtherFeatures:
    def test_queue_without_arguments_has_no_delay(self, room) -> None:
        queue = room.queue("q")
        assert (queue.rules.plain, queue.enforcement) == (True, None)
        room.publish("q", b"1")
        requeue_messages(queue)
        assert counts(queue) == (1, 0, 0)

    def test_requeue_that_is_not_counted_is_not_delayed(self, room) -> None:
        queue = room.queue("q", **ALL)
        room.publish("q", b"1")
        queue.requeue(queue.get(False), False)
        assert counts(queue) == (1, 0, 0)

    def test_delivery_limit_applies_before_the_delay(self, room) -> None:
        dead = room.queue("dead")
        more = {"x_delivery_limit": 1, "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
        queue = room.queue("q", x_queue_type="quorum", **ALL, **more)
        room.publish("q", b"1")
        requeue_messages(queue)
        room.advance(1005)
        requeue_messages(queue)
        room.turns()
        assert (counts(queue), dead.ready_count) == ((0, 0, 0), 1)
        assert room.get(dead).headers["x-death"][0]["reason"] == "delivery_limit"

    @pytest.mark.parametrize("durable", [True, False])
    @pytest.mark.parametrize("own", [True, False])
    def test_ttl_expires_a_delayed_message(self, room, durable: bool, own: bool) -> None:
        """The TTL is the message's or the queue's. A delivered entry of a durable queue has no message."""
        dead = room.queue("dead")
        more = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
        queue = room.queue("q", durable=durable, **ALL, **more, **({} if own else {"x_message_ttl": 300}))
        room.publish("q", b"1", **({"expiration": "300"} if own else {}))
        entry = queue.get(False)
        if durable:
            entry.message = None
        queue.requeue(entry, True, True)
        room.advance(290)
        assert (counts(queue), dead.ready_count) == ((0, 0, 1), 0)
        room.advance(20)
        assert (counts(queue), dead.ready_count) == ((0, 0, 0), 1)
        assert room.get(dead).headers["x-death"][0]["reason"] == "expired"

    def test_delayed_message_counts_in_max_length_and_is_dropped_first(self, room) -> None:
        queue = room.queue("q", x_max_length=2, **ALL)
        room.publish("q", b"0")
        room.publish("q", b"1")
        requeue_messages(queue)
        assert counts(queue) == (1, 0, 1)
        room.publish("q", b"2")
        assert (counts(queue), queue.delayed_bytes) == ((2, 0, 0), 0)
        assert room.bodies(queue) == [b"1", b"2"]
        assert queue.store.record_count == 0

    def test_delayed_message_counts_for_reject_publish(self, room) -> None:
        queue = room.queue("q", x_max_length=1, x_overflow="reject-publish", **ALL)
        assert room.publish("q", b"0")
        requeue_messages(queue)
        assert not room.publish("q", b"1")
        room.advance(1005)
        assert room.bodies(queue) == [b"0"]
        assert room.publish("q", b"2")

    def test_group_waits_behind_its_delayed_message(self, room) -> None:
        queue = room.queue("q", x_group_by="header:g", **ALL)
        for number, group in enumerate("aab"):
            room.publish("q", b"%d" % number, headers={"g": group})
        requeue_messages(queue)
        entry = queue.get(False)
        assert (entry.message.body(), queue.get(False)) == (b"2", None)
        room.advance(1005)
        first = queue.get(False)
        assert (first.message.body(), queue.get(False)) == (b"0", None)
        queue.ack(first)
        assert queue.get(False).message.body() == b"1"

    @pytest.mark.parametrize("how", ["due", "dropped", "purged"])
    def test_consumer_with_unacked_messages_keeps_its_group(self, room, how: str) -> None:
        """The consumer gets the group's next messages when its requeued message is due, dropped or purged."""
        queue = room.queue("q", x_group_by="header:g", x_max_length=2, **ALL)
        consumer, idle = take(room, queue, credit=3), take(room, queue, credit=3)
        for number in range(2):
            room.publish("q", b"%d" % number, headers={"g": "a"})
        consumer.requeue(0)
        room.publish("q", b"2", headers={"g": "a"})
        assert (consumer.got, counts(queue)) == ([b"0", b"1"], (1, 1, 1))
        assert queue.grouped.window.groups_held(consumer) == 1
        if how == "due":
            room.advance(1005)
            assert consumer.got[2:] == [b"0", b"2"]
        elif how == "dropped":
            room.publish("q", b"3", headers={"g": "a"})
            assert consumer.got[2:] == [b"2", b"3"]
        else:
            queue.purge()
            room.publish("q", b"3", headers={"g": "a"})
            assert consumer.got[2:] == [b"3"]
        consumer.ack_all()
        room.turns()
        assert (idle.got, queue.grouped.window.locked_count, queue.grouped.window.groups_held(consumer)) == ([], 0, 0)

    def test_purge_unlocks_the_group(self, room) -> None:
        queue = room.queue("q", x_group_by="header:g", **ALL)
        room.publish("q", b"0", headers={"g": "a"})
        requeue_messages(queue)
        queue.purge()
        room.publish("q", b"1", headers={"g": "a"})
        assert room.bodies(queue) == [b"1"]
        assert queue.grouped.window.locked_count == 0

    def test_messages_due_together_become_ready_in_slices(self, room) -> None:
        queue = room.queue("q", **ALL)
        for number in range(200):
            room.publish("q", b"%03d" % number, turn=False)
        room.turns()
        requeue_messages(queue, 200)
        room.clock.now_ms += 2000
        room.clock.per_look_ms = 1
        queue.enforcement.retries.fire()
        assert 0 < queue.ready_count < 200
        room.clock.per_look_ms = 0
        room.advance(200)
        assert room.bodies(queue) == [b"%03d" % number for number in range(200)]

    def test_delayed_messages_of_a_queue_share_one_timer(self, room) -> None:
        queue = room.queue("q", **ALL)
        for _ in range(50):
            room.publish("q", b"x", turn=False)
        room.turns()
        requeue_messages(queue, 50)
        assert room.timers.armed_count() == 1

    def test_delayed_bodies_over_the_memory_limit_are_only_in_the_log(self, room) -> None:
        queue = room.queue("q", **ALL)
        size = HELD_BYTES_MAX // 4
        for number in range(8):
            room.publish("q", b"%d" % number * size)
        entries = requeue_messages(queue, 8)
        assert [entry.message is not None for entry in entries] == [True] * 4 + [False] * 4
        room.advance(1005)
        assert room.bodies(queue) == [b"%d" % number * size for number in range(8)]


class TestConfigChange:
    def test_rule_is_set_and_cleared_by_policy(self, room) -> None:
        queue = room.queue("q")
        room.publish("q", b"0")
        room.publish("q", b"1")
        queue.apply_config(rules_of({}, {"delayed-retry-type": "all", "delayed-retry-levels": "1m"}))
        requeue_messages(queue)
        assert counts(queue) == (1, 0, 1)
        queue.apply_config(rules_of({}))
        room.advance(10)
        assert counts(queue) == (2, 0, 0)
        assert room.bodies(queue) == [b"0", b"1"]
        queue.apply_config(rules_of({}))
        assert queue.enforcement is None

    def test_delayed_message_keeps_its_due_time(self, room) -> None:
        queue = room.queue("q", **ALL)
        room.publish("q", b"0")
        requeue_messages(queue)
        queue.apply_config(rules_of({"x-delayed-retry-type": "all", "x-delayed-retry-min": 9000}))
        room.advance(1005)
        assert counts(queue) == (1, 0, 0)
