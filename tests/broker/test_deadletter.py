"""Dead letters: x-death headers, routing, cycles, safety in a crash, ranges of many dead letters."""

from __future__ import annotations

import pytest

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.message import FRAME_PAYLOAD_BYTES, MessageRoute
from amqpd.broker.publish.dead_letter import (
    HELD_MAX,
    REDELIVERED,
    DeadLetterPublisher,
    dead_letter_with_history,
    is_cycle,
    with_death,
)
from amqpd.broker.publish.republisher import RETRY_MS
from amqpd.broker.queue.arguments import rules_of
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.log.record import Record


def death(properties: Properties, reason: str = "rejected", queue: str = "q", *, keep_keys: bool = True) -> Properties:
    encoded = encode_properties(properties)
    return decode_properties(with_death(encoded, reason, queue, "x", "key", 1_700_000_000, keep_keys=keep_keys))


def records_of(room, name: str) -> list[Record]:
    return list(room.vhost.queue(name).store.cursor.read(0, 1 << 20).records)


def deliver_next(room, queue) -> QueueEntry:
    """Deliver the next message to a consumer. Repeat while the queue's log is opening."""
    while (entry := queue.get(False)) is None:
        assert queue.must_wait()
        room.turns()
    return entry


def is_marked(record: Record) -> bool:
    """Return whether the record is marked as a possible repetition."""
    return bool((decode_properties(record.properties).headers or {}).get(REDELIVERED))


class TestHeaders:
    def test_headers_of_first_death(self) -> None:
        properties = death(Properties(headers={"mine": 1, "CC": ["a", "b"]}, expiration="700", priority=4), "expired")
        assert properties.headers == {
            "mine": 1,
            "CC": ["a", "b"],
            "x-first-death-reason": "expired",
            "x-first-death-queue": "q",
            "x-first-death-exchange": "x",
            "x-death": [
                {
                    "count": 1,
                    "reason": "expired",
                    "queue": "q",
                    "time": 1_700_000_000,
                    "exchange": "x",
                    "routing-keys": ["key", "a", "b"],
                    "original-expiration": "700",
                }
            ],
        }
        assert properties.expiration is None
        assert properties.priority == 4

    def test_counts_are_encoded_as_64_bit(self) -> None:
        """RabbitMQ encodes count as a 64-bit `l`, not as an `I` as other small integers. Clients compare types."""
        once = with_death(encode_properties(Properties()), "rejected", "q", "x", "k", 1, keep_keys=True)
        assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in once
        other = with_death(once, "rejected", "p", "x", "k", 1, keep_keys=True)
        assert other.count(b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01") == 2
        twice = with_death(once, "rejected", "q", "x", "k", 1, keep_keys=True)
        assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x02" in twice

    def test_entries_are_newest_first_and_one_per_queue_and_reason(self) -> None:
        properties = death(Properties(), "rejected", "a")
        properties = death(properties, "expired", "b")
        properties = death(properties, "expired", "a")
        properties = death(properties, "rejected", "a")
        assert [(each["queue"], each["reason"], each["count"]) for each in properties.headers["x-death"]] == [
            ("a", "rejected", 2),
            ("a", "expired", 1),
            ("b", "expired", 1),
        ]
        assert properties.headers["x-first-death-queue"] == "a"
        assert properties.headers["x-first-death-reason"] == "rejected"

    def test_repeated_entries_of_one_queue_and_reason_are_merged(self) -> None:
        """Old versions wrote such headers, and a client can send them. Sums are as measured on RabbitMQ 3.10.8."""
        old = [("a", None), ("b", 4), ("a", None), ("q", None), ("b", 9), ("q", None), ("a", None), ("c", None)]
        old_deaths = [{"queue": queue, "reason": "rejected"} | ({"count": n} if n else {}) for queue, n in old]
        properties = death(Properties(headers={"x-death": old_deaths}))
        properties = death(properties, "expired", "a")
        assert [(each["queue"], each["reason"], each["count"]) for each in properties.headers["x-death"]] == [
            ("a", "expired", 1),
            ("q", "rejected", 3),
            ("a", "rejected", 3),
            ("b", "rejected", 4),
            ("c", "rejected", 1),
        ]

    def test_fixed_routing_key_removes_cc(self) -> None:
        properties = death(Properties(headers={"CC": ["a"]}), keep_keys=False)
        assert "CC" not in properties.headers
        assert properties.headers["x-death"][0]["routing-keys"] == ["key", "a"]

    @pytest.mark.parametrize("invalid", ["text", {"a": 1}, None, 5])
    def test_x_death_that_is_no_array_is_replaced(self, invalid) -> None:
        properties = death(Properties(headers={"x-death": invalid}))
        assert [each["queue"] for each in properties.headers["x-death"]] == ["q"]
        assert "x-first-death-queue" not in properties.headers

    @pytest.mark.parametrize(
        "invalid", [[1, "a"], [{"queue": 5}], [{"queue": "q", "reason": "rejected", "count": "x"}]]
    )
    def test_invalid_x_death_entries_are_ignored(self, invalid) -> None:
        properties = death(Properties(headers={"x-death": invalid}))
        assert properties.headers["x-death"][0]["queue"] == "q"

    def test_deeply_nested_x_death_is_accepted(self) -> None:
        deep: object = 1
        for _ in range(125):
            deep = [deep]
        properties = death(Properties(headers={"x-death": [deep]}))
        assert properties.headers["x-death"][0]["queue"] == "q"

    def test_headers_that_fill_a_frame_get_no_x_death(self) -> None:
        properties = death(Properties(headers={"mine": "x" * (FRAME_PAYLOAD_BYTES - 40)}, expiration="5"))
        assert list(properties.headers) == ["mine"]
        assert properties.expiration is None


class TestCycle:
    def test_cycle_without_rejection_is_detected(self) -> None:
        deaths = [{"queue": "b", "reason": "expired"}, {"queue": "a", "reason": "maxlen"}]
        assert is_cycle("a", deaths)
        assert is_cycle("b", deaths)
        assert not is_cycle("c", deaths)

    def test_rejection_interrupts_cycle(self) -> None:
        deaths = [{"queue": "b", "reason": "expired"}, {"queue": "a", "reason": "rejected"}]
        assert not is_cycle("a", deaths)
        assert is_cycle("b", deaths)

    def test_invalid_entry_is_no_cycle(self) -> None:
        assert not is_cycle("a", [7, {"queue": "a", "reason": "expired"}])


class TestRouting:
    def test_rejected_message_goes_to_dead_letter_queue(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        got = room.get(dead)
        assert (got.body, got.exchange, got.routing_key, got.redelivered) == (b"1", "", "dead", False)
        assert (queue.unacked_count, queue.store.record_count, dead.store.record_count) == (0, 0, 0)

    def test_without_fixed_key_original_keys_are_used(self, room) -> None:
        room.exchange("dlx", "direct")
        by_key, by_copy = room.queue("by_key"), room.queue("by_copy")
        room.bind("dlx", by_key, "q")
        room.bind("dlx", by_copy, "copy")
        queue = room.queue("q", x_dead_letter_exchange="dlx")
        room.publish("q", b"1", headers={"CC": ["copy"]})
        queue.reject(queue.get(False))
        room.turns()
        for target in (by_key, by_copy):
            got = room.get(target)
            assert (got.exchange, got.routing_key) == ("dlx", "q")
            assert got.headers["CC"] == ["copy"]

    def test_key_longer_than_routing_keys_is_cut(self, room) -> None:
        """Earlier versions accepted such an argument, and a start loads it."""
        room.exchange("dead", "fanout")
        room.bind("dead", dead := room.queue("dead"))
        queue = room.queue("q", x_dead_letter_exchange="dead")
        queue.apply_config(rules_of({**queue.arguments, "x-dead-letter-routing-key": "k" * 300}))
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        assert room.get(dead).routing_key == "k" * 255

    def test_missing_exchange_drops_message_until_declared(self, room) -> None:
        queue = room.queue("q", x_dead_letter_exchange="dlx")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        assert queue.store.record_count == 0
        room.exchange("dlx", "fanout")
        dead = room.queue("dead")
        room.bind("dlx", dead)
        room.publish("q", b"2")
        queue.reject(queue.get(False))
        room.turns()
        assert room.bodies(dead) == [b"2"]

    def test_message_is_dropped_in_cycle_of_queues(self, room) -> None:
        names = ["a", "b", "c"]
        for name, following in zip(names, names[1:] + names[:1], strict=True):
            room.queue(name, x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key=following)
        room.publish("a", b"1")
        room.advance(20)
        assert [room.vhost.queue(name).ready_count for name in names] == [0, 0, 0]
        assert [room.vhost.queue(name).store.record_count for name in names] == [0, 0, 0]

    def test_long_chain_of_queues_delivers_to_last(self, room) -> None:
        """A queue dead-letters while it enqueues. The stack must not grow with the length of the chain."""
        for number in range(200):
            room.queue(
                f"q{number}",
                durable=False,
                x_message_ttl=0,
                x_dead_letter_exchange="",
                x_dead_letter_routing_key=f"q{number + 1}",
            )
        last = room.queue("q200", durable=False)
        room.publish("q0", b"1")
        room.advance(5)
        got = room.get(last)
        assert len(got.headers["x-death"]) == 200

    def test_full_target_drops_dead_letter(self, room) -> None:
        room.queue("dead", x_max_length=0, x_overflow="reject-publish")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        assert queue.store.record_count == 0

    def test_message_not_in_memory_is_read_from_log(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        entry.message = None
        queue.reject(entry)
        room.turns()
        assert room.bodies(dead) == [b"1"]

    @pytest.mark.parametrize("read", ["from memory", "from the log", "after a restart"])
    def test_copy_of_a_transient_message_in_a_classic_queue_is_transient(self, room, read) -> None:
        """A quorum queue keeps the message. Its dead letter is no other one when it is read from the log."""
        room.queue("dead")
        queue = room.queue("q", x_queue_type="quorum", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1", persistent=False)
        if read == "after a restart":
            room.restart()
            queue = room.vhost.queues["q"]
            queue.prepare()
        entry = queue.get(False)
        if read == "from the log":
            entry.message = None
        queue.reject(entry)
        room.turns()
        for expected in (1, 0):
            dead = room.vhost.queues["dead"]
            dead.prepare()
            assert dead.ready_count == expected
            room.restart()


class TestSafety:
    def test_source_keeps_message_until_target_is_synced(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        committed = []
        on_commit = room.storage.commits.on_commit

        def watch(generation, failed):
            committed.append((queue.store.record_count, dead.store.record_count))
            on_commit(generation, failed)

        room.storage.commits.on_commit = watch
        queue.reject(queue.get(False))
        room.republisher.run()
        assert (queue.store.record_count, dead.store.record_count) == (1, 1)
        room.turns()
        assert committed[0] == (1, 1)
        assert (queue.store.record_count, dead.store.record_count) == (0, 1)

    def test_kill_before_publish_keeps_message_at_source(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        room.turn.schedule()
        room.turns()
        queue.reject(entry)
        room.restart()
        got = room.get(room.vhost.queue("q"))
        assert (got.body, got.redelivered) == (b"1", True)

    @pytest.mark.parametrize("priorities", [0, 3])
    @pytest.mark.parametrize("reason", ["expired", "maxlen", "rejected"])
    def test_kill_before_ack_at_source_repeats_marked_copy(self, room, reason: str, priorities: int) -> None:
        room.queue("dead")
        limits = {"expired": {"x_message_ttl": 50}, "maxlen": {"x_max_length": 1}, "rejected": {}}[reason]
        if priorities:
            limits = {**limits, "x_max_priority": priorities}
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **limits)
        room.storage.commits.on_commit = lambda generation, failed: (
            None
        )  # the republisher is not informed that the target is synced
        for body in (b"1", b"2"):
            room.publish("q", body)
        if reason == "rejected":
            queue.reject(queue.get(False))
            room.turn.schedule()
        room.advance(100)
        died = [b"1", b"2"] if reason == "expired" else [b"1"]
        assert [record.body for record in records_of(room, "dead")] == died
        room.restart(down_ms=100)
        queue = room.vhost.queue("q")
        queue.prepare()
        if reason == "rejected":
            queue.reject(deliver_next(room, queue))
        room.turn.schedule()
        room.advance(100)
        assert [(record.body, is_marked(record)) for record in records_of(room, "dead")] == [
            *((body, False) for body in died),
            *((body, True) for body in died),
        ]
        if reason == "rejected":  # a message that was not dead-lettered before the kill has no mark
            queue.reject(deliver_next(room, queue))
            room.turn.schedule()
            room.turns()
            assert not is_marked(records_of(room, "dead")[-1])

    def test_requeue_without_restart_sets_no_mark(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        queue.requeue(entry, True)
        queue.reject(queue.get(False))
        room.turn.schedule()
        room.turns()
        assert [is_marked(record) for record in records_of(room, "dead")] == [False]

    def test_retry_for_failed_target_marks_copies(self, room) -> None:
        """The log of one target, on another machine, fails after both have the message."""
        room.exchange("dlx", "fanout")
        near, far = room.queue("near"), room.queue("far")
        for queue in (near, far):
            room.bind("dlx", queue)
        queue = room.queue("q", x_message_ttl=50, x_dead_letter_exchange="dlx")
        on_commit = room.storage.commits.on_commit
        room.storage.commits.on_commit = lambda generation, failed: on_commit(generation, [far.store])
        room.publish("q", b"1")
        room.advance(100)
        assert (near.store.record_count, queue.store.record_count) == (1, 1)
        room.storage.commits.on_commit = on_commit
        room.publish("q", b"2")
        room.advance(RETRY_MS + 100)
        found = sorted((record.body, is_marked(record)) for record in records_of(room, "near"))
        assert found == [(b"1", False), (b"1", True), (b"2", False)]
        assert queue.store.record_count == 0

    def test_target_with_failed_log_gets_dead_letter_later(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        dead.store.failed = True
        queue.reject(queue.get(False))
        room.turns()
        assert (queue.store.record_count, dead.store.record_count) == (1, 0)
        dead.store.failed = False
        room.advance(2010)
        assert queue.store.record_count == 0
        assert room.bodies(dead) == [b"1"]

    def test_stop_leaves_unpublished_dead_letter_at_source(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.republisher.stop()
        room.turns()
        room.restart()
        assert room.bodies(room.vhost.queue("dead")) == []
        assert room.bodies(room.vhost.queue("q")) == [b"1"]

    def test_deletion_of_source_drops_dead_letter(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        room.delete(queue)
        queue.reject(entry)
        room.turns()
        assert dead.ready_count == 0


PROPERTIES = [
    Properties(),
    Properties(delivery_mode=2),
    Properties(expiration="700", message_id="1"),
    Properties(headers={"mine": 1}),
    Properties(headers={}, expiration="5", priority=4, correlation_id="c"),
    Properties(headers={"CC": ["a"], "BCC": ["b"]}),
    Properties(headers={"x-death": [{"queue": "q", "reason": "expired", "count": 3}]}),
    Properties(headers={"x-death": [{"queue": "dead", "reason": "expired", "count": 3}]}),
    Properties(headers={"x-first-death-reason": "forged"}),
    Properties(headers={"mine": "x" * (FRAME_PAYLOAD_BYTES - 40)}, expiration="5"),
]


class TestCaches:
    """DeadLetterPublisher with its caches makes the same dead letters as dead_letter_with_history without them."""

    @pytest.mark.parametrize("kind", ["fanout", "headers"])
    @pytest.mark.parametrize("key", [None, "other"])
    def test_cached_dead_letters_equal_uncached(self, room, kind: str, key: str | None) -> None:
        room.exchange("dlx", kind)
        exchange = room.vhost.exchange("dlx")
        arguments = {"x_dead_letter_exchange": "dlx"} | ({"x_dead_letter_routing_key": key} if key else {})
        queue = room.queue("q", **arguments)
        for destination in (queue, room.queue("dead"), room.queue("more")):
            room.bind("dlx", destination)
        publisher = DeadLetterPublisher(room.republisher, room.vhosts)
        publisher.begin_slice(1_700_000_000)
        for reason in ("expired", "rejected", "maxlen", "expired"):
            for envelope in (MessageRoute("x", "key"), MessageRoute("", "q")):
                for each in PROPERTIES * 2:
                    encoded = encode_properties(each)
                    made = publisher.make(queue, envelope, encoded, reason)
                    alone = dead_letter_with_history(
                        room.vhost, queue, exchange, envelope, encoded, reason, 1_700_000_000
                    )
                    assert made is not None
                    assert decode_properties(made.properties) == decode_properties(alone.properties)
                    assert made.destinations == alone.destinations
                    assert made.envelope.suffix == alone.envelope.suffix
                    assert made.info.expiration is None


def fill(room, name: str, count: int) -> None:
    for number in range(count):
        room.publish(name, b"%d" % number, turn=number % 100 == 99)


def drain(queue) -> list[bytes]:
    """Return the bodies of all ready messages and remove them, without a loop turn for each."""
    found = []
    while (entry := queue.get(True)) is not None:
        found.append(entry.message.body())
    return found


class TestRanges:
    """Many dead letters at once: logged ones are not kept in memory, and the queue keeps serving consumers."""

    @pytest.mark.parametrize("durable", [True, False])
    def test_expired_messages_leave_before_they_are_published(self, room, durable: bool) -> None:
        dead = room.queue("dead", durable=durable)
        queue = room.queue(
            "q", durable=durable, x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"
        )
        queue.order.memory.count_max = 100
        fill(room, "q", 9000)
        room.clock.now_ms += 60
        room.publish("q", b"young", turn=False)
        for _ in range(40):
            queue.dispatch()
        assert queue.ready_count == 1 and dead.ready_count == 0
        assert len(room.republisher.line) < 2 * HELD_MAX
        assert queue.get(False).message.body() == b"young"
        assert queue.ready_count == 0
        room.publish("q", b"younger", turn=False)  # is logged, since the log still has dead letters
        room.turns()
        assert drain(dead) == [b"%d" % number for number in range(9000)]
        assert queue.dead_letters_logged_count == 0
        assert room.get(queue).body == b"younger"

    def test_kill_while_publishing_loses_none(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        queue.order.memory.count_max = 100
        fill(room, "q", 6000)
        room.clock.now_ms += 60
        for _ in range(40):
            queue.dispatch()
        room.republisher.run()
        assert queue.ready_count == 0 and 0 < room.vhost.queue("dead").ready_count < 6000
        room.restart(down_ms=100)
        queue = room.vhost.queue("q")
        room.advance(50)
        assert queue.store.record_count == 0
        assert {int(body) for body in drain(room.vhost.queue("dead"))} == set(range(6000))

    @pytest.mark.parametrize("durable", [True, False])
    def test_target_that_fails_midway_gets_rest_later(self, room, durable: bool) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", durable=durable, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        queue.order.memory.count_max = 10
        fill(room, "q", 6000)
        for entry in [queue.get(False) for _ in range(6000)]:
            queue.reject(entry)
        room.republisher.run()
        before = dead.ready_count
        assert before < 6000
        dead.store.failed = True
        for _ in range(3):
            room.republisher.run()
        assert dead.ready_count == before
        assert len(room.republisher._failed) > 0
        if not durable:
            assert queue.ready_count == 0 and queue.dead_letters_logged_count > 0
        dead.store.failed = False
        room.turns()
        room.advance(2010)
        assert sorted(int(body) for body in drain(dead)) == list(range(6000))
        if durable:
            assert queue.store.record_count == 0

    def test_deletion_of_source_stops_its_range(self, room) -> None:
        dead = room.queue("dead", durable=False)
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        fill(room, "q", 6000)
        for entry in [queue.get(False) for _ in range(6000)]:
            queue.reject(entry)
        room.republisher.run()
        room.delete(queue)
        published_count = dead.ready_count
        room.turns()
        assert dead.ready_count == published_count < 6000
        assert queue.dead_letters_logged_count == 0

    def test_purge_removes_no_dead_letters(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        fill(room, "q", 3010)
        for entry in [queue.get(False) for _ in range(3000)]:
            queue.reject(entry)
        assert queue.purge() == 10
        room.turns()
        assert dead.ready_count == 3000
        assert queue.store.record_count == 0
