"""Policies: which one holds, what it says together with others, and that everything obeys it, in slices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.catalogue import policies, policy_keys, walk
from amqpd.broker.catalogue.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.catalogue.declared import OnItsWay
from amqpd.broker.catalogue.exchanges import declare as declare_exchange
from amqpd.broker.catalogue.patterns import compile_names
from amqpd.broker.catalogue.policy_keys import InvalidPolicy, unsupported
from amqpd.broker.queues.enforcement import SLICE_COUNT
from amqpd.broker.queues.rules import Rules

MAX = {"max-length": 2}
FILLED = 6000


def put(room: Any, name: str, pattern: str, definition: dict[str, object], **more: object) -> list[object]:
    """Sets it, and runs the loop. Returns what `done` was called with."""
    operator = bool(more.pop("operator", False))
    value = {"pattern": pattern, "definition": definition, "priority": 0}
    value |= {key.replace("_", "-"): each for key, each in more.items()}
    done: list[object] = []
    policies.declare(room.vhost, name, value, operator, done.append)
    room.turns()
    return done


def clear(room: Any, name: str, operator: bool = False) -> list[object]:
    done: list[object] = []
    policies.clear(room.vhost, room.vhost.policies.get(name, operator), done.append)
    room.turns()
    return done


def shown(room: Any, thing: object) -> tuple[str, str, dict[str, object]]:
    effective = room.vhost.policies.obeyed_by(thing)
    return effective.policy, effective.operator_policy, dict(effective.definition)


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "yes", "no"),
        [
            ("", ["", "a"], []),
            ("a.c", ["abc", "xabcx"], ["ac", "AbC"]),
            ("^a$", ["a"], ["ab", "ba"]),
            ("(?i)^A", ["abc"], ["xa"]),
            (r"^(?!amq\.).*", ["a", "amqp", "", "x.amq.gen"], ["amq.gen-1", "amq."]),
            (r"^(?!amq\.|celery)", ["amqp"], ["amq.x", "celeryd"]),
            (r"^(?!amq\.)(?!.*\.dead$).*", ["a.b"], ["amq.x", "a.dead"]),
            (r"^(?=.*x)(?!b)[a-c]+", ["ax", "cbx"], ["a", "bx", "x"]),
            (r"\A(?!(a|b)c)a", ["ab", "a"], ["ac", "b"]),
            (r"(?i)^(?!AMQ\.)", ["x"], ["amq.x", "Amq.y"]),
            (r"^(?![)(]|\)|[^]a])a", ["a", "ab"], ["b", "(a"]),
            ("é", ["café"], ["cafe"]),
        ],
    )
    def test_matches(self, pattern: str, yes: list[str], no: list[str]) -> None:
        compiled = compile_names(pattern)
        assert [name for name in yes if not compiled.matches(name)] == []
        assert [name for name in no if compiled.matches(name)] == []

    @pytest.mark.parametrize(
        "pattern",
        [
            "(", "[", "*", r"(a)\1", "a(?=b)", "(?!a)", "^(?!a)b|c", "^(?!a", "^(?!a)*b", "^(?!a){2}b", "^(?!(?!a)b)c",
            "^(?<!a)b", "(?m)^(?!a)b", "a" * 5000, "\0", "\ud800", "^" + "(?!a)" * 11 + "b",
        ],
    )  # fmt: skip
    def test_refused(self, pattern: str) -> None:
        with pytest.raises(InvalidPattern):
            compile_names(pattern)

    def test_a_hostile_one_is_not_slow(self, processor_s: Callable[..., float]) -> None:
        """One that goes back over what it has tried would need years."""
        compiled = compile_names("^(?!(a+)+$)(a|aa)+$")
        name = "a" * 250 + "b"
        assert min(processor_s(lambda: compiled.matches(name)) for _ in range(5)) < 0.02


class TestKeys:
    def test_those_that_operators_have_are_rabbitmqs(self) -> None:
        assert set(policy_keys.keys(operator=True)) >= {
            "expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "delivery-limit",
        }  # fmt: skip
        assert all(key.merge == "lowest" for key in policy_keys.keys(operator=True).values())

    def test_those_of_rabbitmq_are_there(self) -> None:
        """`rabbit_policies`, `rabbit_mirror_queue_misc` and `rabbit_queue_location_validator` of 3.10.8."""
        assert set(policy_keys.keys()) >= {
            "alternate-exchange", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
            "message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "queue-mode", "queue-version", "overflow", "delivery-limit", "queue-leader-locator", "ha-mode", "ha-params",
            "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
            "queue-master-locator",
        }  # fmt: skip

    def test_what_a_kind_cannot_follow(self) -> None:
        assert unsupported("classic") >= {"queue-leader-locator", "delivery-limit", "dead-letter-strategy"}
        assert unsupported("quorum") >= {"queue-mode", "ha-mode", "ha-params", "ha-sync-mode", "queue-master-locator"}
        assert unsupported("stream") >= {
            "expires", "message-ttl", "dead-letter-exchange", "dead-letter-routing-key", "max-length",
            "max-in-memory-length", "max-in-memory-bytes", "overflow", "queue-mode", "delivery-limit", "ha-mode",
            "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "queue-master-locator",
            "dead-letter-strategy",
        }  # fmt: skip
        assert not {"message-ttl", "max-length", "dead-letter-exchange", "overflow"} & (
            unsupported("classic") | unsupported("quorum")
        )

    def test_a_definition_may_not_be_huge(self, room: Any) -> None:
        with pytest.raises(InvalidPolicy, match="at most 65536 bytes"):
            put(room, "p", "", {"dead-letter-exchange": "x" * 70_000})


class TestWhichHolds:
    def test_the_highest_priority_then_the_first_name(self, room: Any) -> None:
        queue = room.queue("q")
        assert put(room, "b", "q", {"max-length": 2}) == [None]
        put(room, "a", "q", {"max-length": 1})
        assert shown(room, queue)[0] == "a"
        put(room, "c", "q", {"max-length": 3}, priority=1)
        assert shown(room, queue) == ("c", "", {"max-length": 3})
        put(room, "c", "q", {"max-length": 3}, priority=-1)
        assert shown(room, queue)[0] == "a"
        clear(room, "a")
        clear(room, "b")
        assert shown(room, queue)[0] == "c"
        assert clear(room, "c") == [None]
        assert shown(room, queue) == ("", "", {})
        assert queue.rules.plain
        assert room.vhost.policies.in_force == {}

    @pytest.mark.parametrize(
        ("apply_to", "classic", "quorum", "exchange"),
        [
            ("all", True, True, True),
            ("queues", True, True, False),
            ("classic_queues", True, False, False),
            ("quorum_queues", False, True, False),
            ("streams", False, False, False),
            ("exchanges", False, False, True),
        ],
    )
    def test_what_it_applies_to(self, room: Any, apply_to: str, classic: bool, quorum: bool, exchange: bool) -> None:
        put(room, "p", "x", {"message-ttl": 9}, apply_to=apply_to)
        things = [room.queue("x1"), room.queue("x2", x_queue_type="quorum"), room.exchange("x3", "direct")]
        assert [shown(room, thing)[0] == "p" for thing in things] == [classic, quorum, exchange]

    def test_one_that_says_what_the_kind_cannot_follow_does_not_apply(self, room: Any) -> None:
        """rabbit: not at all, and one of lower priority holds."""
        put(room, "low", "", {"max-length": 5})
        put(room, "high", "", {"max-length": 1, "delivery-limit": 3}, priority=9)
        assert shown(room, room.queue("classic"))[0] == "low"
        assert shown(room, room.queue("quorum", x_queue_type="quorum"))[0] == "high"

    def test_the_brokers_own_exchanges_too(self, room: Any) -> None:
        put(room, "p", "^amq", {"alternate-exchange": "amq.fanout"})
        assert shown(room, room.vhost.exchanges["amq.direct"])[0] == "p"
        room.bind("amq.fanout", room.queue("q"))
        room.publish("nowhere", b"caught", exchange="amq.direct")
        assert room.bodies(room.vhost.queues["q"]) == [b"caught"]

    def test_the_default_exchange_has_no_alternate(self, room: Any) -> None:
        put(room, "p", "", {"alternate-exchange": "amq.fanout"})
        room.bind("amq.fanout", room.queue("q"))
        room.publish("nowhere", b"lost")
        assert room.bodies(room.vhost.queues["q"]) == []


class TestMerge:
    def test_numbers_take_the_lowest_of_all_three(self, room: Any) -> None:
        queue = room.queue("q", x_max_length=7, x_message_ttl=10)
        put(room, "p", "q", {"max-length": 5, "message-ttl": 100, "expires": 9_000})
        put(room, "o", "q", {"max-length": 6, "expires": 8_000}, operator=True)
        rules = queue.rules
        assert (rules.length_max, rules.ttl_ms, rules.expires_ms) == (5, 10, 8_000)
        assert shown(room, queue) == ("p", "o", {"max-length": 5, "message-ttl": 100, "expires": 8_000})
        put(room, "o", "q", {"max-length": 4}, operator=True)
        assert (queue.rules.length_max, queue.rules.expires_ms) == (4, 9_000)
        clear(room, "o", operator=True)
        clear(room, "p")
        assert (queue.rules.length_max, queue.rules.ttl_ms, queue.rules.expires_ms) == (7, 10, -1)

    def test_of_the_rest_the_argument_holds(self, room: Any) -> None:
        dead = {"x_dead_letter_exchange": "mine", "x_dead_letter_routing_key": "k"}
        mine = room.queue("q1", **dead, x_max_length=9, x_overflow="reject-publish")
        bare = room.queue("q2")
        said = {"dead-letter-exchange": "p", "dead-letter-routing-key": "pk", "overflow": "reject-publish-dlx"}
        put(room, "p", "q", {**said, "max-length": 3})
        of = [(q.rules.dead_letter_exchange, q.rules.dead_letter_key, q.rules.overflow) for q in (mine, bare)]
        assert of == [("mine", "k", "reject-publish"), ("p", "pk", "reject-publish-dlx")]
        assert mine.rules.length_max == 3

    def test_zero_is_a_number(self, room: Any) -> None:
        queue = room.queue("q", x_max_length=0)
        put(room, "p", "q", {"message-ttl": 0, "max-length": 5})
        assert (queue.rules.ttl_ms, queue.rules.length_max) == (0, 0)

    def test_a_time_beyond_ten_years_is_ten_years(self, room: Any) -> None:
        queue = room.queue("q")
        put(room, "p", "q", {"message-ttl": 2**50, "expires": 2**62})
        assert queue.rules.ttl_ms == queue.rules.expires_ms == 315_360_000_000

    def test_a_quorum_queue_keeps_what_its_kind_brings(self, room: Any) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_delivery_limit=5)
        put(room, "p", "q", {"delivery-limit": 2})
        assert (queue.rules.delivery_limit, queue.rules.counts_shown) == (2, True)
        clear(room, "p")
        assert (queue.rules.delivery_limit, queue.rules.counts_shown) == (5, True)

    def test_levels_stay(self, room: Any) -> None:
        queue = room.queue("q", x_max_priority=3, x_single_active_consumer=True)
        put(room, "p", "q", MAX)
        assert (queue.rules.level_max, queue.rules.single_active, queue.rules.length_max) == (3, True, 2)


class TestEffect:
    @pytest.mark.parametrize("durable", [True, False])
    def test_on_what_is_there_and_what_comes(self, room: Any, durable: bool) -> None:
        old = room.queue("q1", durable=durable)
        for number in range(5):
            room.publish("q1", b"%d" % number)
        put(room, "p", "^q", MAX)
        new = room.queue("q2", durable=durable)
        for number in range(5):
            room.publish("q2", b"%d" % number)
        assert room.bodies(old) == room.bodies(new) == [b"3", b"4"]
        clear(room, "p")
        for number in range(5):
            room.publish("q1", b"%d" % number)
        assert len(room.bodies(old)) == 5

    def test_an_alternate_comes_changes_and_goes(self, room: Any) -> None:
        room.exchange("x", "direct")
        for name in ("one", "two"):
            room.exchange(name, "fanout")
            room.bind(name, room.queue(name))

        def caught() -> list[int]:
            room.publish("nowhere", b"", exchange="x")
            return [len(room.bodies(room.vhost.queues[name])) for name in ("one", "two")]

        assert caught() == [0, 0]
        put(room, "p", "^x$", {"alternate-exchange": "one"})
        assert caught() == [1, 0]
        put(room, "p", "^x$", {"alternate-exchange": "two"})
        assert caught() == [0, 1]
        clear(room, "p")
        assert caught() == [0, 0]
        x = room.vhost.exchanges["x"]
        assert [x in room.vhost.exchanges[name].upstream for name in ("one", "two")] == [False, False]

    def test_an_alternate_that_comes_after_its_policy(self, room: Any) -> None:
        put(room, "p", "^x$", {"alternate-exchange": "late"})
        room.exchange("x", "direct")
        room.publish("nowhere", b"lost", exchange="x")
        room.exchange("late", "fanout")
        room.bind("late", room.queue("q"))
        room.publish("nowhere", b"caught", exchange="x")
        assert room.bodies(room.vhost.queues["q"]) == [b"caught"]

    def test_the_argument_of_an_exchange_holds(self, room: Any) -> None:
        asked = ExchangeDeclaration("x", "direct", True, False, False, {"alternate-exchange": "one"})
        declare_exchange(room.vhost, asked)
        put(room, "p", "^x$", {"alternate-exchange": "two"})
        assert room.vhost.exchanges["x"].alternate == "one"
        clear(room, "p")
        assert room.vhost.exchanges["x"].alternate == "one"

    def test_a_declaration_is_still_equivalent(self, room: Any) -> None:
        """Policies are no arguments: who declares the same thing again gets it."""
        queue = room.queue("q")
        put(room, "p", "q", {"max-length": 2, "message-ttl": 5})
        assert room.queue("q") is queue

    def test_a_lease_by_policy(self, room: Any) -> None:
        room.queue("q")
        put(room, "p", "^q", {"expires": 50})
        room.advance(40)
        room.vhost.queues["q"].used()
        room.advance(40)
        assert room.expired == []
        room.advance(20)
        assert room.expired == ["q"]
        assert room.vhost.policies.in_force == {}

    def test_after_a_start(self, room: Any) -> None:
        """As `load` does it: the table first, then what follows it."""
        queue = room.queue("q")
        put(room, "p", "q", MAX)
        for number in range(5):
            room.publish("q", b"%d" % number)
        table = room.vhost.policies
        room.restart()
        for policy in table.all():
            room.vhost.policies.put(policy)
        queue = room.vhost.queues["q"]
        room.vhost.follow(queue)
        assert shown(room, queue)[0] == "p"
        for number in range(5, 7):
            room.publish("q", b"%d" % number)
        assert room.bodies(queue) == [b"5", b"6"]


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
        monkeypatch.setattr(walk, "time", SimpleNamespace(perf_counter=lambda: next(looks) * 0.6 * walk.SLICE_S))
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
        assert isinstance(done[0], OnItsWay), "the command is given again, and finds no vhost"

    def test_one_that_cannot_obey_keeps_nobody_else_from_it(self, room: Any, monkeypatch: Any, caplog: Any) -> None:
        queues = self.many(room, 3)
        follow = room.vhost.follow

        def fails(thing: Any) -> None:
            if thing.name == "q1":
                raise RuntimeError("it would not")
            follow(thing)

        monkeypatch.setattr(room.vhost, "follow", fails)
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
        queue.obey(Rules({"length_max": 10, "overflow": "reject-publish"}))
        room.turns()
        assert queue.ready_count == left
        assert not room.publish("q", b"")
        queue.obey(Rules({"length_max": left - 1}))
        room.turns()
        assert queue.ready_count == left - 1
