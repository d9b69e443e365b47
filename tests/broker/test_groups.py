"""Message groups (x-group-by): dispatch, requeue, discard, and the cost of a backlog per turn."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from taker import Taker, take

from amqpd.broker import consume
from amqpd.broker.flow import loop_turn
from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.queue.grouped_log import GROUP_COUNT_MIN
from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.message_groups import GroupKey, is_group_by
from amqpd.errors import PreconditionFailed
from amqpd.protocol.properties import Properties, encode_properties, scan_properties
from amqpd.storage.log.record import Record


def publish(room, letters: str, start: int = 0, **properties: object) -> None:
    """Publish one message per letter. The letter is the group; a dash is a message without a group."""
    for number, letter in enumerate(letters, start):
        headers = {} if letter == "-" else {"group": letter}
        room.publish("q", b"%s%d" % (letter.encode(), number), headers=headers, **properties)


def texts(bodies: list[bytes]) -> str:
    return " ".join(body.decode() for body in bodies)


@pytest.fixture(params=["durable", "transient", "quorum"])
def queue(room, request) -> GroupedQueue:
    kind = {"x_queue_type": "quorum"} if request.param == "quorum" else {}
    return room.queue("q", durable=request.param != "transient", x_group_by="header:group", **kind)


class TestDispatch:
    def test_group_belongs_to_one_consumer_until_its_acks(self, room, queue) -> None:
        publish(room, "aabac")
        one, two = take(room, queue, credit=1), take(room, queue, credit=1)
        assert (texts(one.got), texts(two.got)) == ("a0", "b2")
        three = take(room, queue, credit=1)
        assert texts(three.got) == "c4", "a locked group must not hold up other groups"
        two.ack()
        room.turns()
        assert texts(two.got) == "b2", "a1 belongs to the first consumer"
        one.ack()
        room.turns()
        assert texts(one.got + two.got[1:]) == "a0 a1"

    def test_owner_with_credit_gets_more_of_its_group(self, room, queue) -> None:
        one = take(room, queue, credit=3)
        publish(room, "aaaab")
        two = take(room, queue)
        assert (texts(one.got), texts(two.got)) == ("a0 a1 a2", "b4")
        one.ack(1)
        room.turns()
        assert texts(one.got) == "a0 a1 a2 a3"
        one.ack_all()
        publish(room, "a", 5)
        assert texts(one.got[4:] + two.got[1:]) == "a5", "the group is free: any consumer may get it"

    def test_groups_are_spread_evenly_over_consumers(self, room, queue) -> None:
        consumers = [take(room, queue, credit=100) for _ in range(5)]
        publish(room, "abcdefghijklmnopqrst" * 5)
        assert [queue.grouped.window.groups_held(consumer) for consumer in consumers] == [4] * 5
        assert [len(consumer.got) for consumer in consumers] == [20] * 5
        for consumer in consumers:
            assert [int(body[1:]) for body in consumer.got] == sorted(int(body[1:]) for body in consumer.got)

    def test_cancelled_consumer_with_credit_is_not_kept(self, room, queue) -> None:
        """Its channel and connection would stay in memory until the next dispatch."""
        one = take(room, queue, credit=2)
        publish(room, "aaaa")
        one.ack(1)
        one.leave(requeue=False)
        assert not queue.grouped.window._offered

    def test_highest_priority_consumer_is_served_first(self, room, queue) -> None:
        low, high = take(room, queue), take(room, queue, credit=2, priority=5)
        publish(room, "abcab")
        assert (texts(high.got), texts(low.got)) == ("a0 b1", "c2")
        high.ack(1)
        room.turns()
        assert (texts(high.got), texts(low.got)) == ("a0 b1 a3", "c2 b4"), (
            "a3 is older than b4, and its group belongs to the high consumer"
        )

    def test_message_without_group_goes_to_any_consumer(self, room, queue) -> None:
        consumers = [take(room, queue, credit=1) for _ in range(3)]
        publish(room, "---a-")
        assert [texts(consumer.got) for consumer in consumers] == ["-0", "-1", "-2"]
        assert queue.grouped.window.locked_count == 3

    def test_group_behind_a_busy_one_is_served_eventually(self, room, queue) -> None:
        one = take(room, queue, credit=2)
        publish(room, "aaaab" + "a" * 20)
        got = 0
        while "b4" not in texts(one.got):
            one.ack()
            room.turns()
            got += 1
            assert got < 10
        assert texts(one.got[:5]) == "a0 a1 a2 a3 b4"

    def test_single_active_consumer_waits_for_groups_of_the_previous_one(self, room) -> None:
        queue = room.queue("q", x_group_by="header:group", x_single_active_consumer=True)
        one, two = take(room, queue), take(room, queue)
        publish(room, "aab")
        assert (texts(one.got), texts(two.got)) == ("a0 a1 b2", "")
        one.leave(requeue=False)
        publish(room, "acb", 3)
        assert texts(two.got) == "c4", "groups a and b still belong to the consumer that left"
        while one.entries:
            one.ack()
        room.turns()
        assert texts(two.got) == "c4 a3 b5"


class TestRequeue:
    def test_group_moves_when_all_its_messages_are_requeued(self, room, queue) -> None:
        one, two = take(room, queue, credit=2), take(room, queue, credit=1)
        publish(room, "aaab")
        assert (texts(one.got), texts(two.got)) == ("a0 a1", "b3")
        one.leave(requeue=False)
        two.ack()
        room.turns()
        assert texts(two.got) == "b3", "a is locked: nothing was acked or requeued"
        one.requeue(1)
        room.turns()
        assert texts(two.got) == "b3", "a0 is still unacked"
        one.requeue(0)
        room.turns()
        for _ in range(3):
            two.ack()
            room.turns()
        assert texts(two.got) == "b3 a0 a1 a2"
        assert two.redelivered == [False, True, True, False]

    def test_requeued_message_is_next_of_its_group(self, room, queue) -> None:
        one = take(room, queue, credit=1)
        publish(room, "aab")
        one.requeue()
        room.turns()
        assert texts(one.got) == "a0 a0"
        one.ack()
        room.turns()
        assert texts(one.got) == "a0 a0 a1"

    def test_reserved_message_holds_up_its_group(self, room, queue) -> None:
        one, two = take(room, queue, credit=2), take(room, queue, credit=2)
        publish(room, "aaab")
        entry = one.entries.pop(0)
        one.in_flight -= 1
        queue.grouped.reserve(entry)
        queue.activate(one)
        room.turns()
        one.ack()
        room.turns()
        assert (texts(one.got), texts(two.got)) == ("a0 a1", "b3")
        queue.requeue(entry, True)
        queue.schedule_dispatch()
        room.turns()
        assert texts(one.got[2:] + two.got[1:]) in ("a0 a2", "a0"), "a0 is delivered before a2"
        assert queue.grouped.window.locked_count == 2

    def test_redelivered_messages_come_first_after_kill(self, room) -> None:
        queue = room.queue("q", x_group_by="header:group")
        publish(room, "abaabb")
        one = take(room, queue, credit=2)
        assert texts(one.got) == "a0 b1"
        one.ack()
        room.turns()
        assert texts(one.got) == "a0 b1 a2"
        room.restart()
        queue = room.vhost.queue("q")
        queue.prepare()
        one, two = take(room, queue, credit=1), take(room, queue)
        assert (texts(one.got), texts(two.got)) == ("b1", "a2 a3")
        assert (one.redelivered, two.redelivered) == ([True], [True, False])

    def test_basic_get_locks_the_group_of_its_message(self, room, queue) -> None:
        publish(room, "aabb")
        first = queue.get(False)
        assert first.message.body() == b"a0"
        second = queue.get(False)
        assert second.message.body() == b"b2", "the oldest of a free group"
        assert queue.get(False) is None
        assert not queue.must_wait()
        assert queue.ready_count == 2
        queue.ack(second)
        assert texts(room.bodies(queue)) == "b3", "a get without ack locks no group"
        one = take(room, queue)
        assert texts(one.got) == ""
        queue.requeue(first, True)
        queue.schedule_dispatch()
        room.turns()
        assert texts(one.got) == "a0 a1"


class TestDiscard:
    def test_rejected_messages_are_dead_lettered_in_order(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_group_by="header:group", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        one = take(room, queue, credit=1)
        publish(room, "abab")
        for _ in range(4):
            one.reject()
            room.turns()
        assert texts(room.bodies(room.vhost.queue("dead"))) == "a0 b1 a2 b3"
        assert queue.grouped.window.locked_count == 0
        assert not queue.grouped.window.groups

    def test_messages_of_a_locked_group_expire(self, room) -> None:
        room.queue("dead")
        queue = room.queue(
            "q",
            x_group_by="header:group",
            x_message_ttl=50,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="dead",
        )
        one = take(room, queue, credit=1)
        publish(room, "aaa")
        room.advance(60)
        assert queue.ready_count == 0
        assert texts(room.bodies(room.vhost.queue("dead"))) == "a1 a2"
        one.ack()
        publish(room, "a", 3)
        assert texts(one.got) == "a0 a3"

    def test_message_over_delivery_limit_is_discarded(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_group_by="header:group", x_delivery_limit=1)
        one = take(room, queue, credit=1)
        publish(room, "aa")
        one.requeue()
        room.turns()
        one.requeue()
        room.turns()
        assert texts(one.got) == "a0 a0 a1"

    def test_max_length_drops_the_oldest(self, room) -> None:
        queue = room.queue("q", x_group_by="header:group", x_max_length=2)
        one = take(room, queue, credit=1)
        publish(room, "aaab")
        assert (texts(one.got), queue.ready_count) == ("a0", 2)
        one.ack()
        room.turns()
        assert texts(one.got) == "a0 a2"

    def test_idle_consumer_gets_messages_before_max_length_drops_them(self, room) -> None:
        queue = room.queue("q", x_group_by="header:group", x_max_length=1)
        consumers = [take(room, queue, credit=1) for _ in range(3)]
        for number, letter in enumerate("abc"):
            room.publish("q", b"%s%d" % (letter.encode(), number), headers={"group": letter}, turn=False)
        room.turn.schedule()
        room.turns()
        assert sorted(texts(consumer.got) for consumer in consumers) == ["a0", "b1", "c2"]

    def test_purge_spares_unacked_messages(self, room) -> None:
        queue = room.queue("q", x_group_by="header:group")
        one = take(room, queue, credit=2)
        publish(room, "aabbab")
        assert queue.purge() == 4
        publish(room, "a", 6)
        one.requeue(0)
        room.restart()
        queue = room.vhost.queue("q")
        queue.prepare()
        assert texts(room.bodies(queue)) == "a0 a1 a6"

    def test_deleted_queue_frees_its_groups(self, room, queue) -> None:
        one = take(room, queue, credit=1)
        publish(room, "aab")
        room.delete(queue)
        window = queue.grouped.window
        assert not window.groups
        assert not window.unacked
        assert window.oldest() is None
        one.ack()  # finds nothing to free


class TestBacklogs:
    def test_locked_backlog_is_skipped_in_slices(self, room) -> None:
        """A message behind thousands of a locked group is found; later the locked group is delivered too."""
        queue = room.queue("q", x_group_by="routing_key")
        queue.order.memory.count_max = 100
        one = take(room, queue, credit=1)
        for number in range(4_000):
            room.publish("q", b"q%d" % number, turn=number % 500 == 0)
        late = make_message(
            MessageRoute("", "other"), encode_properties(Properties(delivery_mode=2)), b"late", True, None
        )
        queue.enqueue(late)
        two = take(room, queue, credit=1, turn=False)
        room.turns()
        assert texts(two.got) == "late"
        window = queue.grouped.window
        assert window.hot_count <= 100 + GROUP_COUNT_MIN
        assert window.passed_count + window.hot_count == queue.ready_count == 3_999
        two.ack()
        two.leave()
        for number in range(4_000):
            assert one.got[-1] == b"q%d" % number
            one.ack()
            room.turns()
        assert queue.ready_count == 0
        assert window.passed_count == 0
        assert not window.groups

    def test_scan_in_one_turn_ends_with_its_slice(self, room) -> None:
        queue = room.queue("q", x_group_by="routing_key")
        queue.order.memory.count_max = 10
        for number in range(3000):
            room.publish("q", b"%d" % number, turn=number % 500 == 0)
        take(room, queue, credit=1)
        room.clock.per_look_ms = 1
        two = take(room, queue, credit=1, turn=False)
        assert queue.grouped.log.sliced
        before = queue.grouped.log.cold_offset
        assert before < loop_turn.LOOK_COUNT * (loop_turn.SLICE_MS + 2) + 1000
        room.turns()
        assert queue.grouped.log.cold_offset == 3000
        assert not two.got

    @pytest.mark.parametrize("window", [8, 64, 4096])
    def test_random_groups_and_consumers_keep_order(self, room, window) -> None:
        """Each group stays in order and no message is lost, even with windows of a few messages in memory."""
        rng = random.Random(window)
        queue = room.queue("q", x_group_by="header:group")
        queue.order.memory.count_max = window
        names = [f"g{number}" for number in range(300)]
        sent = defaultdict(list)
        for number in range(3000):
            group = rng.choice(names)
            sent[group].append(number)
            room.publish("q", b"%d" % number, headers={"group": group}, turn=False)
        room.turn.schedule()
        room.turns()
        group_of = {message: group for group, messages in sent.items() for message in messages}
        consumers = [take(room, queue, credit=rng.choice([1, 3, 20])) for _ in range(10)]
        acked: dict[str, list[int]] = defaultdict(list)
        while queue.ready_count or queue.unacked_count:
            consumer = rng.choice(consumers)
            if not consumer.entries:
                continue
            unacked = consumer.got[len(consumer.got) - len(consumer.entries) :]
            for body in unacked[:2]:
                acked[group_of[int(body)]].append(int(body))
                consumer.ack()
            room.turns()
            held_groups = [group_of[int(b)] for each in consumers for b in unacked_bodies(each)]
            groups = queue.grouped.window
            assert groups.locked_count == len(set(held_groups))
            assert groups.hot_count <= 2 * window + GROUP_COUNT_MIN * len(groups.groups) + 1000
        assert acked == sent
        assert not queue.grouped.window.groups

    def test_ten_thousand_groups_and_fifty_consumers_keep_order(self, room) -> None:
        """Consumers leave now and then. Groups stay in order, no consumer is idle, memory stays within its window."""
        rng = random.Random(7)
        queue = room.queue("q", x_group_by="header:group")
        for number in range(30_000):
            room.publish("q", b"%d" % number, headers={"group": number * 7919 % 10_000}, turn=number % 1000 == 0)
        consumers = [take(room, queue, credit=10, turn=False) for _ in range(50)]
        room.turns()
        acked: dict[int, list[int]] = defaultdict(list)
        window = queue.grouped.window
        while queue.ready_count or queue.unacked_count:
            if rng.random() < 0.05:
                removed = consumers.pop(rng.randrange(len(consumers)))
                removed.leave()
                consumers.append(take(room, queue, credit=10, turn=False))
            for consumer in rng.sample(consumers, 20):
                for body in consumer.got[len(consumer.got) - len(consumer.entries) :]:
                    acked[int(body) * 7919 % 10_000].append(int(body))
                consumer.ack_all()
            room.turns()
            able = [consumer for consumer in consumers if consumer.can_take()]
            assert not able or not queue.ready_count or window.first_free() is None, (
                "a consumer with credit was left waiting"
            )
            assert window.hot_count <= 4096 + 2000
        assert len(acked) == 10_000
        assert all(numbers == sorted(numbers) and len(numbers) == 3 for numbers in acked.values())
        assert not window.groups


def unacked_bodies(consumer: Taker) -> set[bytes]:
    """Return the bodies that the consumer has not acked. It acks in order."""
    return set(consumer.got[len(consumer.got) - len(consumer.entries) :]) if consumer.entries else set()


def test_heaps_do_not_grow_with_stale_entries(room) -> None:
    """A group head that becomes free repeatedly adds an entry each time; the window removes the stale ones."""
    queue = room.queue("q", x_group_by="header:group")
    publish(room, "abc")
    window = queue.grouped.window
    free = [window.groups[name] for name in "abc"]
    for _ in range(500):
        for group in free:
            window._head_changed(group, group.head())
    assert len(window._other_heads) < 200
    one = take(room, queue, credit=1)
    for _ in range(500):
        one.requeue()
        room.turns()
    assert len(window._other_heads) + len(window._late) + len(window.owners[one].heads) < 500
    one.ack()
    room.turns()
    one.ack()
    room.turns()
    assert texts(one.got[-3:]) == "a0 b1 c2"


class TestErrors:
    @pytest.mark.parametrize("value", ["", "header:", "Routing_Key", "headers:x", "header:" + "x" * 256])
    def test_invalid_group_by_value_is_refused(self, room, value) -> None:
        text = "invalid arg 'x-group-by' for queue 'q' in vhost '/': \"expected 'routing_key' or 'header:NAME'\""
        with pytest.raises(PreconditionFailed, match="^" + text.replace("/", "/") + "$"):
            room.queue("q", x_group_by=value)

    def test_wrong_type_or_queue_type_is_refused(self, room) -> None:
        with pytest.raises(PreconditionFailed, match="{unacceptable_type,signedint}"):
            room.queue("q", x_group_by=5)
        with pytest.raises(PreconditionFailed, match="'x-group-by' for queue 'q' in vhost '/' of queue type rabbit_st"):
            room.queue("q", x_queue_type="stream", x_group_by="routing_key")
        with pytest.raises(PreconditionFailed, match="cannot be combined with x-max-priority"):
            room.queue("q", x_max_priority=5, x_group_by="routing_key")
        room.queue("q", x_group_by="routing_key")
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-group-by'"):
            room.queue("q", x_group_by="header:x")

    def test_consumer_without_acks_or_with_filter_is_refused(self, room) -> None:
        queue = room.queue("q", x_group_by="routing_key")
        consumer = Taker(queue, 1, True, {})
        with pytest.raises(PreconditionFailed, match="has groups: its consumers must acknowledge"):
            consume.check_groups(queue, True, consumer.arguments)
        consumer = Taker(queue, 1, False, {"x-filter": "a = 1"})
        with pytest.raises(PreconditionFailed, match="has groups: its consumers cannot have an x-filter"):
            consume.check_groups(queue, False, consumer.arguments)
        consume.check_groups(room.queue("other"), True, consumer.arguments)


class TestGroupKey:
    @pytest.mark.parametrize(
        ("headers", "key"),
        [
            ({"who": "anna"}, "anna"),
            ({"a": 1, "who": "anna", "z": {"b": [1]}}, "anna"),
            ({"who": 42}, "42"),
            ({"who": -(2**40)}, "-1099511627776"),
            ({"who": ""}, ""),
            ({"who": "ünïcode"}, "ünïcode"),
            ({"who": b"\xff\xfe"}, "\udcff\udcfe"),
            ({"who": True}, None),
            ({"who": 1.5}, None),
            ({"who": None}, None),
            ({"who": {"who": "anna"}}, None),
            ({"other": {"who": "anna"}}, None),
            ({}, None),
            (None, None),
        ],
    )
    def test_message_and_record_have_the_same_key(self, headers, key) -> None:
        for rest in ({}, {"content_type": "text/plain"}, {"content_encoding": "x", "content_type": "", "app_id": "y"}):
            encoded = encode_properties(Properties(headers=headers, delivery_mode=2, **rest))
            message = make_message(
                MessageRoute("", "key"), encoded, b"body", True, scan_properties(encoded, 0, len(encoded))
            )
            record = Record(0, 0, b"", b"key", encoded, b"body", True)
            by_header, by_key = GroupKey("header:who"), GroupKey("routing_key")
            assert by_header.of_message(message) == by_header.of_record(record) == key
            assert by_key.of_message(message) == by_key.of_record(record) == "key"

    @pytest.mark.parametrize("encoded", [b"", b"\x20\x00", b"\x20\x00\x00\x00\x00\x09\x03who", b"\xe0\x00\xff"])
    def test_malformed_properties_have_no_key(self, encoded) -> None:
        assert GroupKey("header:who").of_record(Record(0, 0, b"", b"key", encoded, b"body", True)) is None

    def test_valid_group_by_names_are_accepted(self) -> None:
        assert is_group_by("header:a b") and is_group_by("header:" + "x" * 255) and is_group_by("routing_key")
