"""Delayed messages: headers, buckets, order of release, restarts, changes of the wall clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delay_room import DAY, HOUR, MINUTE, SECOND, declare, jump, publish_delayed, restart

from amqpd.broker.delayed.bucket import (
    LEVEL_COUNT,
    REACH,
    due_ms,
    format_id,
    key_below,
    key_for,
    parse_id,
    parse_name,
    read_due_ms,
    read_keys,
    read_number,
    strip_delay_header,
    width_bits,
    with_delay,
    without_delay,
)
from amqpd.broker.vhost import declare as exchanges
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.exchange import delays_of
from amqpd.errors import CommandInvalid, PreconditionFailed
from amqpd.protocol.field_table import Timestamp
from amqpd.protocol.properties import Properties, decode_properties, encode_properties

YEARS = 315_360_000_000


class TestHeaders:
    @pytest.mark.parametrize(
        ("value", "due"),
        [(5000, 6000), ("5000", 6000), (b"5000", 6000), (0, 0), (-5, 0), ("-7", 0), (YEARS, YEARS + 1000)],
    )
    def test_due_time_of_x_delay(self, value: object, due: int) -> None:
        assert due_ms({"x-delay": value}, 1000, True) == due

    @pytest.mark.parametrize("value", ["soon", "", "1.5", 1.5, True, None, [], {}, "9" * 30, Timestamp(3), "٣"])
    def test_invalid_x_delay_is_refused_or_ignored(self, value: object) -> None:
        with pytest.raises(PreconditionFailed, match="invalid header 'x-delay'"):
            due_ms({"x-delay": value}, 1000, True)
        assert due_ms({"x-delay": value}, 1000, False) == 0

    def test_delay_over_ten_years_is_refused_or_limited(self) -> None:
        with pytest.raises(PreconditionFailed, match=f"invalid header 'x-delay': {{value_too_large,{YEARS + 1}}}"):
            due_ms({"x-delay": YEARS + 1}, 1000, True)
        assert due_ms({"x-delay": YEARS + 1}, 1000, False) == YEARS + 1000
        with pytest.raises(PreconditionFailed, match="x-deliver-at"):
            due_ms({"x-deliver-at": YEARS + 1001}, 1000, True)

    @pytest.mark.parametrize(
        ("value", "due"), [(9000, 9000), ("9000", 9000), (999, 0), (1000, 0), (0, 0), (Timestamp(9), 9000)]
    )
    def test_due_time_of_x_deliver_at(self, value: object, due: int) -> None:
        assert due_ms({"x-deliver-at": value, "x-delay": 77}, 1000, True) == due, "x-deliver-at precedes x-delay"

    def test_headers_of_released_message(self) -> None:
        assert strip_delay_header({"x-delay": "500"}) == {"x-delay": -500}
        assert strip_delay_header({"x-deliver-at": 9000, "x-delay": 5}) == {"x-delivered-at": 9000, "x-delay": -5}
        assert strip_delay_header({"x-delay": -5}) == {}


class TestStoredProperties:
    @pytest.mark.parametrize("keys", [None, ["a"], ["", "b" * 255], [f"key {n}" for n in range(1000)]])
    def test_properties_are_restored(self, keys: list[str] | None) -> None:
        before = encode_properties(Properties("text", headers={"x-delay": 5, "é": [1]}, priority=3, app_id="app"))
        stored = with_delay(before, {"x-delay": -5}, 1_700_000_000_000, 12345, keys)
        assert (read_due_ms(stored), read_number(stored), read_keys(stored)) == (1_700_000_000_000, 12345, keys)
        after = decode_properties(without_delay(stored))
        assert after == decode_properties(before)._replace(headers={"x-delay": -5, "é": [1]})

    def test_existing_header_of_internal_name_is_kept(self) -> None:
        before = encode_properties(Properties(headers={"x-amqpd-delayed": b"mine"}))
        assert without_delay(with_delay(before, {}, 1, 2, ["a", "b"])) == before

    def test_properties_without_delay_raise_value_error(self) -> None:
        with pytest.raises(ValueError, match="no delayed message"):
            read_due_ms(encode_properties(Properties(headers={"a": 1})))

    def test_id_round_trip_and_invalid_ids(self) -> None:
        assert parse_id(format_id(1_700_000_000_000, 77)) == (1_700_000_000_000, 77)
        for wrong in ("", "1-2", "x" * 12 + "-" + "0" * 16, "018bcfe56800:000000000000004d"):
            with pytest.raises(ValueError, match="id of a delayed|invalid literal"):
                parse_id(wrong)


class TestBucketKeys:
    def test_reach_of_each_level(self) -> None:
        now = 1_700_000_000_123
        for level in range(LEVEL_COUNT):
            due = now + ((REACH - 1) << width_bits(level))
            assert key_for(due, now, LEVEL_COUNT - 1).level <= level
        assert key_for(now + YEARS, now, LEVEL_COUNT - 1).level == LEVEL_COUNT - 1
        overdue, at_once = key_for(now - DAY, now, LEVEL_COUNT - 1), key_for(now, now, LEVEL_COUNT - 1)
        assert overdue == at_once, "a due time in the past counts as now"

    def test_new_messages_skip_bucket_that_cascades(self) -> None:
        """From `work_ms` on, messages due in the bucket's range are put into lower levels."""
        for level in range(1, LEVEL_COUNT):
            for position in (5, 1 << 10):
                start = position << width_bits(level)
                work = start - (8 << width_bits(level - 1))
                for due in (start, start + (1 << width_bits(level)) - 1):
                    assert key_for(due, work, LEVEL_COUNT - 1).level < level
                    assert (
                        key_below(due, work, level).level == level - 1
                        or level == 1
                        or key_below(due, work, level).level < level
                    )

    def test_overdue_message_keeps_its_position_in_lower_level(self) -> None:
        assert key_below(1 << 40, 1 << 41, 3) == (2, 1 << 40 >> width_bits(2))

    @pytest.mark.parametrize("name", ["0.1.2", "9.1.a.-", "x.1.a.-", "0.-1.a.-", "queue.json", "0.1.a.b.c"])
    def test_invalid_directory_name_is_no_bucket(self, name: str) -> None:
        assert parse_name(name) is None


class TestDeclare:
    def declare(self, room: Any, kind: str = "x-delayed-message", **arguments: object) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        exchanges.declare_exchange(room.vhost, ExchangeDeclaration("d", kind, True, False, False, table))

    @pytest.mark.parametrize(
        "kind", ["direct", "fanout", "topic", "headers", "x-jms-topic", "x-random", "x-recent-history"]
    )
    def test_every_exchange_type_can_delay(self, room: Any, kind: str) -> None:
        self.declare(room, x_delayed_type=kind)
        self.declare(room, x_delayed_type=kind)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-delayed-type'"):
            self.declare(room, x_delayed_type="direct" if kind != "direct" else "topic")

    def test_invalid_delayed_type_is_refused(self, room: Any) -> None:
        with pytest.raises(PreconditionFailed, match="'x-delayed-type' must be an existing exchange type"):
            self.declare(room)
        with pytest.raises(PreconditionFailed, match="'x-delayed-type' must be an existing exchange type"):
            self.declare(room, x_delayed_type=7)
        with pytest.raises(PreconditionFailed, match="can't be used for 'x-delayed-message'"):
            self.declare(room, x_delayed_type="x-delayed-message")
        with pytest.raises(CommandInvalid, match="unknown exchange type 'nonsense'"):
            self.declare(room, x_delayed_type="nonsense")
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-delayed' .*unacceptable_type,longstr"):
            self.declare(room, "fanout", x_delayed="yes")

    def test_arguments_of_routing_type_are_checked_and_obeyed(self, room: Any) -> None:
        with pytest.raises(PreconditionFailed, match="x-cache-size"):
            self.declare(room, x_delayed_type="x-message-deduplication")
        with pytest.raises(PreconditionFailed, match="Unsupported property"):
            self.declare(room, x_delayed_type="x-consistent-hash", hash_property="nonsense")
        self.declare(room, x_delayed_type="x-consistent-hash", hash_property="message_id")
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'hash-property'"):
            self.declare(room, x_delayed_type="x-consistent-hash", hash_property="correlation_id")
        for name in ("one", "other"):
            room.bind("d", room.queue(name), "1")
        for number in range(40):
            publish_delayed(room, 100, b"x", "d", message_id=f"m{number}")
        jump(room, 110)
        counts = [room.vhost.queues[name].ready_count for name in ("one", "other")]
        assert sum(counts) == 40 and min(counts) > 0, counts

    def test_exchange_delays_by_type_argument_or_policy(self) -> None:
        assert delays_of("x-delayed-message", {})
        assert delays_of("fanout", {"x-delayed": True})
        assert delays_of("fanout", {}, {"delayed-message": True})
        assert not delays_of("fanout", {"x-delayed": False}, {"delayed-message": True}), (
            "the argument precedes the policy"
        )
        assert not delays_of("fanout", {})


class TestDelay:
    def test_message_is_routed_when_due(self, room: Any) -> None:
        wheel = declare(room)
        queue = room.vhost.queues["later"]
        assert publish_delayed(room, 500, b"body", key="k", message_id="m", priority=2)
        assert (queue.ready_count, wheel.count()) == (0, 1)
        jump(room, 490)
        assert queue.ready_count == 0
        jump(room, 20)
        got = room.get(queue)
        assert (got.body, got.exchange, got.routing_key, got.headers) == (b"body", "later", "k", {"x-delay": -500})
        assert (got.properties.message_id, got.properties.priority, got.redelivered) == ("m", 2, False)
        assert wheel.count() == 0

    def test_message_without_positive_delay_is_routed_at_once(self, room: Any) -> None:
        wheel = declare(room)
        queue = room.vhost.queues["later"]
        publish_delayed(room, 0, b"0")
        publish_delayed(room, -5, b"-5")
        room.publish("", b"none", exchange="later")
        assert room.bodies(queue) == [b"0", b"-5", b"none"]
        assert wheel.count() == 0 and not wheel.buckets

    def test_message_with_x_deliver_at_is_routed_then(self, room: Any) -> None:
        declare(room, kind="topic", x_delayed=True)
        room.bind("later", room.vhost.queues["later"], "#")
        at = room.clock.time_ms() + 700
        room.publish("k", b"at", exchange="later", headers={"x-deliver-at": at, "n": 1})
        jump(room, 690)
        assert room.vhost.queues["later"].ready_count == 0
        jump(room, 20)
        assert room.get(room.vhost.queues["later"]).headers == {"n": 1, "x-delivered-at": at}

    def test_messages_are_released_by_due_time(self, room: Any) -> None:
        declare(room)
        for ms in (300, 100, 200, 100, 250):
            publish_delayed(room, ms, b"%d" % ms)
        jump(room, 400)
        assert room.bodies(room.vhost.queues["later"]) == [b"100", b"100", b"200", b"250", b"300"]

    def test_bindings_at_due_time_are_used(self, room: Any) -> None:
        declare(room)
        publish_delayed(room, 100, b"x")
        other = room.queue("other")
        room.bind("later", other)
        room.delete(room.vhost.queues["later"])
        jump(room, 200)
        assert room.bodies(other) == [b"x"]

    def test_unroutable_when_due_is_dropped_and_counted(self, room: Any) -> None:
        wheel = declare(room)
        publish_delayed(room, 100, b"x")
        room.delete(room.vhost.queues["later"])
        jump(room, 200)
        assert (wheel.count(), wheel.scheduler.stats.unroutable, room.vhost.unroutable_count) == (0, 1, 1)

    def test_alternate_exchange_gets_unroutable_when_due(self, room: Any) -> None:
        room.exchange("spare", "fanout")
        spare = room.queue("spare")
        room.bind("spare", spare)
        declare(room, alternate_exchange="spare")
        room.delete(room.vhost.queues["later"])
        publish_delayed(room, 100, b"x")
        assert spare.ready_count == 0, "a delayed message is not unroutable yet"
        jump(room, 200)
        assert room.bodies(spare) == [b"x"]

    def test_exchange_bound_to_other_exchange_delays(self, room: Any) -> None:
        room.exchange("first", "fanout")
        at_once = room.queue("at once")
        room.bind("first", at_once)
        declare(room)
        from amqpd.broker.vhost import declare as bindings

        bindings.bind(room.vhost, room.vhost.exchanges["first"], room.vhost.exchanges["later"], "", {})
        publish_delayed(room, 100, b"x", exchange="first")
        got = room.get(at_once)
        assert (got.body, got.headers) == (b"x", {"x-delay": 100}), "a queue without delay gets the message unchanged"
        assert room.vhost.queues["later"].ready_count == 0
        jump(room, 200)
        got = room.get(room.vhost.queues["later"])
        assert (got.body, got.exchange, got.headers) == (b"x", "first", {"x-delay": -100})

    def test_two_delaying_exchanges_delay_once(self, room: Any) -> None:
        from amqpd.broker.vhost import declare as bindings

        declare(room)
        declare(room, "second")
        bindings.bind(room.vhost, room.vhost.exchanges["later"], room.vhost.exchanges["second"], "", {})
        publish_delayed(room, 100, b"x")
        jump(room, 110)
        assert room.bodies(room.vhost.queues["second"]) == [b"x"]

    def test_expiration_begins_when_due(self, room: Any) -> None:
        declare(room)
        publish_delayed(room, 1000, b"x", expiration="100")
        jump(room, 1010)
        queue = room.vhost.queues["later"]
        assert queue.ready_count == 1
        jump(room, 200)
        assert queue.ready_count == 0

    @pytest.mark.parametrize("size", [0, 1, 200_000])
    def test_body_of_any_size_is_kept(self, room: Any, size: int) -> None:
        declare(room)
        body = b"b" * size
        publish_delayed(room, 10 * MINUTE, body)
        jump(room, 10 * MINUTE + 10)
        assert room.bodies(room.vhost.queues["later"]) == [body]

    def test_dead_letter_is_delayed(self, room: Any) -> None:
        declare(room)
        source = room.queue("source", x_dead_letter_exchange="later", x_message_ttl=10)
        room.publish("source", b"x", headers={"x-delay": 500})
        room.publish("source", b"y", headers={"x-delay": "nonsense"})
        jump(room, 100)
        assert source.ready_count == 0
        assert room.bodies(room.vhost.queues["later"]) == [b"y"], (
            "a dead letter with an invalid header is not delayed: there is no client to refuse it to"
        )
        jump(room, 500)
        assert room.bodies(room.vhost.queues["later"]) == [b"x"]


class TestBuckets:
    @pytest.mark.parametrize("delay", [SECOND, 4 * MINUTE, HOUR, 5 * HOUR, 2 * DAY, 40 * DAY, 300 * DAY, 3650 * DAY])
    def test_delay_of_any_length_is_kept_and_bucket_removed(self, room: Any, delay: int) -> None:
        """A message of every level is released when due, and its bucket is removed."""
        wheel = declare(room)
        queue = room.vhost.queues["later"]
        for number in range(3):
            publish_delayed(room, delay + number, b"%d" % number)
        remaining_ms = delay - 20
        while remaining_ms > 0:
            step = min(remaining_ms, max(remaining_ms // 3, 1000))
            jump(room, step)
            remaining_ms -= step
        assert (queue.ready_count, wheel.count()) == (0, 3)
        jump(room, 30)
        assert room.bodies(queue) == [b"0", b"1", b"2"]
        jump(room, 10 * SECOND)
        assert wheel.count() == 0
        assert directories(room) == [], "the bucket is removed"

    def test_overdue_messages_are_released_in_order(self, room: Any) -> None:
        """All overdue messages are released once, in order of their due times."""
        wheel = declare(room)
        delays = [(7919 * n) % (3 * HOUR) + 1 for n in range(300)]
        for delay in delays:
            publish_delayed(room, delay, b"%d" % delay, turn=False)
        room.turn.schedule()
        room.turns()
        assert wheel.count() == 300
        jump(room, 4 * HOUR)
        jump(room, 10)
        assert [int(body) for body in room.bodies(room.vhost.queues["later"])] == sorted(delays)
        jump(room, 10 * SECOND)
        assert directories(room) == []

    def test_many_messages_due_at_one_time_keep_order(self, room: Any) -> None:
        declare(room)
        for number in range(2000):
            publish_delayed(room, 20 * SECOND, b"%d" % number, turn=False)
        room.turn.schedule()
        room.turns()
        jump(room, 20 * SECOND + 5)
        jump(room, 5)
        assert [int(body) for body in room.bodies(room.vhost.queues["later"])] == list(range(2000))

    def test_restart_keeps_due_times_and_makes_new_wheel(self, room: Any) -> None:
        wheel = declare(room)
        publish_delayed(room, 2 * HOUR, b"x")
        publish_delayed(room, 3 * HOUR, b"y")
        jump(room, HOUR)
        restart(room)
        jump(room, HOUR + 10)
        assert room.bodies(room.vhost.queues["later"]) == [b"x"]
        assert wheel is not room.vhost.exchanges["later"].wheel


def directories(room: Any) -> list[str]:
    return sorted(
        each.name for each in Path(room.data_dir).glob("vhosts/v1/delays/*/*") if each.is_dir() and any(each.iterdir())
    )


class TestRestart:
    @pytest.mark.parametrize("clean", [False, True])
    @pytest.mark.parametrize("delay", [2 * SECOND, 30 * SECOND, HOUR])
    def test_restart_keeps_persistent_messages_and_due_times(self, room: Any, clean: bool, delay: int) -> None:
        declare(room)
        for number in range(5):
            publish_delayed(room, delay, b"%d" % number)
        publish_delayed(room, delay, b"transient", persistent=False)
        restart(room, down_ms=1000, clean=clean)
        queue = room.vhost.queues["later"]
        wheel = room.vhost.exchanges["later"].wheel
        assert wheel.count() == 5
        jump(room, delay - 1020)
        assert queue.ready_count == 0
        jump(room, 40)
        got = [room.get(queue) for _ in range(5)]
        assert [each.body for each in got] == [b"0", b"1", b"2", b"3", b"4"]
        assert [each.headers for each in got] == [{"x-delay": -delay}] * 5

    def test_messages_due_during_downtime_are_released_at_start(self, room: Any) -> None:
        declare(room)
        for delay in (3 * HOUR, 2 * HOUR, HOUR, MINUTE):
            publish_delayed(room, delay, b"%d" % (delay // MINUTE))
        restart(room, down_ms=DAY)
        jump(room, 10)
        assert room.bodies(room.vhost.queues["later"]) == [b"1", b"60", b"120", b"180"]

    def test_released_messages_are_not_released_again(self, room: Any) -> None:
        declare(room)
        for delay in (100, 200, 5000):
            publish_delayed(room, delay, b"%d" % delay)
        jump(room, 300)
        jump(room, 100)
        restart(room)
        room.vhost.queues["later"].prepare()
        assert room.bodies(room.vhost.queues["later"]) == [b"100", b"200"]
        jump(room, 6000)
        assert room.bodies(room.vhost.queues["later"]) == [b"5000"]

    def test_messages_of_missing_exchange_are_dropped_at_start(
        self, room: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        declare(room)
        publish_delayed(room, 5000, b"x")
        room.restart()
        room.delays.begin()
        room.turns()
        assert "are dropped: it does not exist any more" in caplog.text
        assert directories(room) == []

    def test_first_delay_upgrades_format_of_directory(self, room: Any) -> None:
        wheel = declare(room)
        path = Path(room.data_dir) / "format"
        assert b"format 2 " in path.read_bytes(), "no message was delayed yet"
        publish_delayed(room, 5000, b"x")
        assert b"format 3 " in path.read_bytes()
        restart(room)
        assert b"format 3 " in path.read_bytes()
        assert wheel.dropped is False


class TestClock:
    @pytest.mark.parametrize("days", [1, -1])
    def test_unaccepted_clock_jump_changes_no_delay(self, room: Any, days: int) -> None:
        """Waiting messages and messages published during the jump keep their delays."""
        declare(room)
        for delay in (DAY, 2 * MINUTE):
            publish_delayed(room, delay, b"%d" % (delay // MINUTE))
        room.advance(10)
        room.clock.wall_base_ms += days * DAY
        jump(room, 510)
        publish_delayed(room, 5 * MINUTE, b"5")
        jump(room, MINUTE)
        queue = room.vhost.queues["later"]
        assert room.bodies(queue) == []
        jump(room, MINUTE)
        assert room.bodies(queue) == [b"2"]
        jump(room, 3 * MINUTE)
        assert room.bodies(queue) == [b"5"]

    def test_clock_set_forward_releases_due_messages(self, room: Any) -> None:
        declare(room)
        for delay in (DAY + HOUR, HOUR, 2 * MINUTE):
            publish_delayed(room, delay, b"%d" % (delay // MINUTE))
        room.advance(10)
        room.clock.wall_base_ms += DAY
        room.storage.clock_watch.accept()
        jump(room, 510)
        jump(room, 10)
        assert room.bodies(room.vhost.queues["later"]) == [b"2", b"60"]
        jump(room, HOUR)
        assert room.bodies(room.vhost.queues["later"]) == [b"%d" % (25 * 60)]

    def test_clock_set_back_postpones_messages(self, room: Any) -> None:
        declare(room)
        publish_delayed(room, 5 * SECOND, b"soon")
        publish_delayed(room, 2 * MINUTE, b"then")
        room.advance(10)
        room.clock.wall_base_ms -= DAY
        room.storage.clock_watch.accept()
        jump(room, 10 * MINUTE)
        queue = room.vhost.queues["later"]
        assert queue.ready_count == 0, "the messages are due a day later now"
        publish_delayed(room, SECOND, b"new")
        jump(room, SECOND + 10)
        assert room.bodies(queue) == [b"new"]
        jump(room, DAY - 8 * MINUTE)
        assert room.bodies(queue) == [b"soon", b"then"]

    def test_clock_set_repeatedly_loses_none(self, room: Any) -> None:
        declare(room)
        for number in range(50):
            publish_delayed(room, 1 + number * 7 * MINUTE, b"%d" % number)
        for days in (1, -1, -1, 2, -1, 0):
            room.clock.wall_base_ms += days * DAY
            room.storage.clock_watch.accept()
            jump(room, 600)
        jump(room, 6 * HOUR)
        assert sorted(int(body) for body in room.bodies(room.vhost.queues["later"])) == list(range(50))


class TestDrop:
    def test_deletion_of_exchange_drops_messages(self, room: Any) -> None:
        wheel = declare(room)
        for delay in (100, HOUR, DAY):
            publish_delayed(room, delay, b"x")
        exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
        assert (wheel.count(), wheel.scheduler.stats.dropped) == (0, 3)
        jump(room, 2 * DAY)
        assert room.vhost.queues["later"].ready_count == 0
        assert directories(room) == []
        declare(room)
        publish_delayed(room, 100, b"new")
        jump(room, 200)
        assert room.bodies(room.vhost.queues["later"]) == [b"new"]

    @pytest.mark.parametrize("restarts", [False, True])
    def test_deleted_exchange_leaves_no_directory(self, room: Any, restarts: bool) -> None:
        """Also if all of its messages were delivered before."""
        for _ in range(3):
            declare(room)
            publish_delayed(room, 100, b"x")
            jump(room, 3 * DAY)
            assert directories(room) == []
            if restarts:
                publish_delayed(room, DAY, b"y")
                restart(room)
                jump(room, 3 * DAY)
            exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
            room.turns()
        root = room.storage.delay_chain(room.vhost.id)[-1]
        assert list(Path(root).iterdir()) == []
        assert not [each for each in room.storage.filesystem.safe_directories if each.startswith(f"{root}/")]

    @pytest.mark.parametrize("durable", [True, False])
    def test_delete_is_answered_after_rename_of_directory(
        self, room: Any, durable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The directory is renamed, so that a new exchange of the same name does not find it after a crash."""
        wheel = declare(room)
        publish_delayed(room, HOUR, b"x")
        exchange = room.vhost.exchanges["later"]
        exchange.durable = durable
        renames: list[tuple[list[str], Any]] = []
        monkeypatch.setattr(room.storage.directory_remover, "rename", lambda chain, done: renames.append((chain, done)))
        results: list[object] = []
        exchanges.delete_exchange(room.vhost, exchange, False, results.append)
        room.turns()
        ((chain, on_renamed),) = renames
        assert (chain, results) == (room.storage.delay_chain(wheel.vhost_id, wheel.folder), [])
        on_renamed()
        assert results == [None]

    def test_removal_of_policy_keeps_waiting_messages(self, room: Any) -> None:
        from amqpd.broker.vhost import policies

        exchanges.declare_exchange(room.vhost, ExchangeDeclaration("plain", "fanout", True, False, False, {}))
        room.queue("plain")
        room.bind("plain", room.vhost.queues["plain"])
        value = {"pattern": "plain", "definition": {"delayed-message": True}, "priority": 0}
        policies.declare(room.vhost, "p", value)
        room.turns()
        publish_delayed(room, 1000, b"delayed", exchange="plain")
        policies.clear(room.vhost, room.vhost.policies.get("p"))
        room.turns()
        publish_delayed(room, 1000, b"at once", exchange="plain")
        assert room.bodies(room.vhost.queues["plain"]) == [b"at once"]
        jump(room, 1100)
        assert room.bodies(room.vhost.queues["plain"]) == [b"delayed"]
