"""Dead letters: the story in the headers, where they go, when they end, and that a crash loses none."""

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
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.log.record import Record


def death(properties: Properties, reason: str = "rejected", queue: str = "q", *, keep_keys: bool = True) -> Properties:
    encoded = encode_properties(properties)
    return decode_properties(with_death(encoded, reason, queue, "x", "key", 1_700_000_000, keep_keys=keep_keys))


def live(room, name: str) -> list[Record]:
    return list(room.vhost.queue(name).store.cursor.read(0, 1 << 20).records)


def given(room, queue) -> QueueEntry:
    """To a consumer. A queue that is still being read is asked again."""
    while (entry := queue.get(False)) is None:
        assert queue.must_wait()
        room.turns()
    return entry


def marked(record: Record) -> bool:
    """Whether it says that there may be a copy of it."""
    return bool((decode_properties(record.properties).headers or {}).get(REDELIVERED))


class TestStory:
    def test_the_first_death(self) -> None:
        told = death(Properties(headers={"mine": 1, "CC": ["a", "b"]}, expiration="700", priority=4), "expired")
        assert told.headers == {
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
        assert told.expiration is None
        assert told.priority == 4

    def test_counts_are_longs(self) -> None:
        """Clients compare types: RabbitMQ's count is an l, a number as small as 1 else an I."""
        once = with_death(encode_properties(Properties()), "rejected", "q", "x", "k", 1, keep_keys=True)
        assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in once
        other = with_death(once, "rejected", "p", "x", "k", 1, keep_keys=True)
        assert other.count(b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01") == 2
        twice = with_death(once, "rejected", "q", "x", "k", 1, keep_keys=True)
        assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x02" in twice

    def test_newest_first_merged_by_queue_and_reason(self) -> None:
        told = death(Properties(), "rejected", "a")
        told = death(told, "expired", "b")
        told = death(told, "expired", "a")
        told = death(told, "rejected", "a")
        assert [(each["queue"], each["reason"], each["count"]) for each in told.headers["x-death"]] == [
            ("a", "rejected", 2),
            ("a", "expired", 1),
            ("b", "expired", 1),
        ]
        assert told.headers["x-first-death-queue"] == "a"
        assert told.headers["x-first-death-reason"] == "rejected"

    def test_repeated_deaths_of_one_queue_become_one(self) -> None:
        """As old versions wrote them, and a client may still. Sums as measured on RabbitMQ 3.10.8."""
        old = [("a", None), ("b", 4), ("a", None), ("q", None), ("b", 9), ("q", None), ("a", None), ("c", None)]
        past = [{"queue": queue, "reason": "rejected"} | ({"count": n} if n else {}) for queue, n in old]
        told = death(Properties(headers={"x-death": past}))
        told = death(told, "expired", "a")
        assert [(each["queue"], each["reason"], each["count"]) for each in told.headers["x-death"]] == [
            ("a", "expired", 1),
            ("q", "rejected", 3),
            ("a", "rejected", 3),
            ("b", "rejected", 4),
            ("c", "rejected", 1),
        ]

    def test_a_fixed_key_takes_the_copies_away(self) -> None:
        told = death(Properties(headers={"CC": ["a"]}), keep_keys=False)
        assert "CC" not in told.headers
        assert told.headers["x-death"][0]["routing-keys"] == ["key", "a"]

    @pytest.mark.parametrize("forged", ["text", {"a": 1}, None, 5])
    def test_what_is_no_array_is_replaced(self, forged) -> None:
        told = death(Properties(headers={"x-death": forged}))
        assert [each["queue"] for each in told.headers["x-death"]] == ["q"]
        assert "x-first-death-queue" not in told.headers

    @pytest.mark.parametrize("forged", [[1, "a"], [{"queue": 5}], [{"queue": "q", "reason": "rejected", "count": "x"}]])
    def test_forged_entries_do_no_harm(self, forged) -> None:
        told = death(Properties(headers={"x-death": forged}))
        assert told.headers["x-death"][0]["queue"] == "q"

    def test_headers_as_deep_as_they_may_be(self) -> None:
        deep: object = 1
        for _ in range(125):
            deep = [deep]
        told = death(Properties(headers={"x-death": [deep]}))
        assert told.headers["x-death"][0]["queue"] == "q"

    def test_headers_that_fill_a_frame_stay_as_they_are(self) -> None:
        told = death(Properties(headers={"mine": "x" * (FRAME_PAYLOAD_BYTES - 40)}, expiration="5"))
        assert list(told.headers) == ["mine"]
        assert told.expiration is None


class TestCycle:
    def test_a_cycle_by_itself_ends(self) -> None:
        deaths = [{"queue": "b", "reason": "expired"}, {"queue": "a", "reason": "maxlen"}]
        assert is_cycle("a", deaths)
        assert is_cycle("b", deaths)
        assert not is_cycle("c", deaths)

    def test_somebody_who_rejects_keeps_it_going(self) -> None:
        deaths = [{"queue": "b", "reason": "expired"}, {"queue": "a", "reason": "rejected"}]
        assert not is_cycle("a", deaths)
        assert is_cycle("b", deaths)

    def test_what_a_client_put_there_is_no_cycle(self) -> None:
        assert not is_cycle("a", [7, {"queue": "a", "reason": "expired"}])


class TestRoad:
    def test_from_queue_to_queue(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        got = room.get(dead)
        assert (got.body, got.exchange, got.routing_key, got.redelivered) == (b"1", "", "dead", False)
        assert (queue.unacked_count, queue.store.record_count, dead.store.record_count) == (0, 0, 0)

    def test_under_its_own_keys(self, room) -> None:
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

    def test_a_missing_exchange_drops_it_and_a_later_one_is_found(self, room) -> None:
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

    def test_a_ring_of_queues_ends(self, room) -> None:
        names = ["a", "b", "c"]
        for name, following in zip(names, names[1:] + names[:1], strict=True):
            room.queue(name, x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key=following)
        room.publish("a", b"1")
        room.advance(20)
        assert [room.vhost.queue(name).ready_count for name in names] == [0, 0, 0]
        assert [room.vhost.queue(name).store.record_count for name in names] == [0, 0, 0]

    def test_a_long_chain_of_queues(self, room) -> None:
        """One drops into the next from within its own offer: no stack grows with the chain."""
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

    def test_a_full_target_drops_it(self, room) -> None:
        room.queue("dead", x_max_length=0, x_overflow="reject-publish")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.turns()
        assert queue.store.record_count == 0

    def test_a_message_not_held_in_memory_is_read_back(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        entry.message = None
        queue.reject(entry)
        room.turns()
        assert room.bodies(dead) == [b"1"]


class TestSafety:
    def test_the_source_keeps_it_until_the_target_is_synced(self, room) -> None:
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

    def test_a_kill_before_the_dead_letter_is_written_repeats_it(self, room) -> None:
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
    def test_a_kill_before_the_source_is_settled_repeats_it_marked(self, room, reason: str, priorities: int) -> None:
        room.queue("dead")
        limits = {"expired": {"x_message_ttl": 50}, "maxlen": {"x_max_length": 1}, "rejected": {}}[reason]
        if priorities:
            limits = {**limits, "x_max_priority": priorities}
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **limits)
        room.storage.commits.on_commit = lambda generation, failed: None  # nobody hears that the target is synced
        for body in (b"1", b"2"):
            room.publish("q", body)
        if reason == "rejected":
            queue.reject(queue.get(False))
            room.turn.schedule()
        room.advance(100)
        died = [b"1", b"2"] if reason == "expired" else [b"1"]
        assert [record.body for record in live(room, "dead")] == died
        room.restart(down_ms=100)
        queue = room.vhost.queue("q")
        queue.prepare()
        if reason == "rejected":
            queue.reject(given(room, queue))
        room.turn.schedule()
        room.advance(100)
        assert [(record.body, marked(record)) for record in live(room, "dead")] == [
            *((body, False) for body in died),
            *((body, True) for body in died),
        ]
        if reason == "rejected":  # what was not on its way has no copy
            queue.reject(given(room, queue))
            room.turn.schedule()
            room.turns()
            assert not marked(live(room, "dead")[-1])

    def test_what_came_back_in_this_life_has_no_copy(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        entry = queue.get(False)
        queue.requeue(entry, True)
        queue.reject(queue.get(False))
        room.turn.schedule()
        room.turns()
        assert [marked(record) for record in live(room, "dead")] == [False]

    def test_tried_again_for_one_target_the_copy_of_the_other_says_so(self, room) -> None:
        """A log on another machine fails after both have got it."""
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
        found = sorted((record.body, marked(record)) for record in live(room, "near"))
        assert found == [(b"1", False), (b"1", True), (b"2", False)]
        assert queue.store.record_count == 0

    def test_a_target_whose_log_failed_gets_it_later(self, room) -> None:
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

    def test_a_stop_leaves_what_is_not_published_at_its_source(self, room) -> None:
        room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        queue.reject(queue.get(False))
        room.republisher.stop()
        room.turns()
        room.restart()
        assert room.bodies(room.vhost.queue("dead")) == []
        assert room.bodies(room.vhost.queue("q")) == [b"1"]

    def test_a_deleted_source_ends_it(self, room) -> None:
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


class TestDresser:
    """What is remembered from one dead letter to the next says the same as what is made for one alone."""

    @pytest.mark.parametrize("kind", ["fanout", "headers"])
    @pytest.mark.parametrize("key", [None, "other"])
    def test_as_if_each_came_alone(self, room, kind: str, key: str | None) -> None:
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


def quickly(queue) -> list[bytes]:
    """Takes everything that is ready, without a turn for each."""
    found = []
    while (entry := queue.get(True)) is not None:
        found.append(entry.message.body())
    return found


class TestRanges:
    """Many dead letters at once: what a log has of them is not kept in memory, and the queue goes on meanwhile."""

    @pytest.mark.parametrize("durable", [True, False])
    def test_what_is_over_leaves_before_its_dead_letters_are_out(self, room, durable: bool) -> None:
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
        room.publish("q", b"younger", turn=False)  # the log has dead letters yet: it stays
        room.turns()
        assert quickly(dead) == [b"%d" % number for number in range(9000)]
        assert queue.dead_letters_logged_count == 0
        assert room.get(queue).body == b"younger"

    def test_a_kill_on_the_way_loses_none(self, room) -> None:
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
        assert {int(body) for body in quickly(room.vhost.queue("dead"))} == set(range(6000))

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_target_that_fails_in_the_middle_gets_the_rest_later(self, room, durable: bool) -> None:
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
        assert sorted(int(body) for body in quickly(dead)) == list(range(6000))
        if durable:
            assert queue.store.record_count == 0

    def test_a_deleted_source_ends_them(self, room) -> None:
        dead = room.queue("dead", durable=False)
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        fill(room, "q", 6000)
        for entry in [queue.get(False) for _ in range(6000)]:
            queue.reject(entry)
        room.republisher.run()
        room.delete(queue)
        out = dead.ready_count
        room.turns()
        assert dead.ready_count == out < 6000
        assert queue.dead_letters_logged_count == 0

    def test_a_purge_takes_none_of_them(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        fill(room, "q", 3010)
        for entry in [queue.get(False) for _ in range(3000)]:
            queue.reject(entry)
        assert queue.purge() == 10
        room.turns()
        assert dead.ready_count == 3000
        assert queue.store.record_count == 0
