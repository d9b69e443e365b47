"""Policies: which one holds, what it says together with others, and that everything obeys it, in slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.vhost import policies, policy_table
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.declare import declare_exchange
from amqpd.broker.vhost.policy_table import InvalidPolicy, compile_names, unsupported

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
    effective = room.vhost.policies.policy_of(thing)
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
        assert set(policy_table.keys(operator=True)) >= {
            "expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "delivery-limit", "overflow", "queue-version", "target-group-size",
        }  # fmt: skip

    def test_those_of_rabbitmq_4_are_there(self) -> None:
        """Those of 4.0 to 4.3 that 3.10.8 does not have."""
        assert set(policy_table.keys()) >= {
            "consumer-timeout", "consumer-disconnected-timeout", "target-group-size", "filter-field-names",
            "stream-filter-size-bytes", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max",
        }  # fmt: skip

    def test_those_of_rabbitmq_are_there(self) -> None:
        """`rabbit_policies`, `rabbit_mirror_queue_misc` and `rabbit_queue_location_validator` of 3.10.8."""
        assert set(policy_table.keys()) >= {
            "alternate-exchange", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
            "message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "queue-mode", "queue-version", "overflow", "delivery-limit", "queue-leader-locator", "ha-mode", "ha-params",
            "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
            "queue-master-locator",
        }  # fmt: skip

    def test_what_a_kind_cannot_follow(self) -> None:
        assert unsupported("classic") >= {"delivery-limit", "dead-letter-strategy", "target-group-size"}
        assert "queue-leader-locator" not in unsupported("classic"), "rabbit: since 4.0"
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

    @pytest.mark.parametrize(
        ("argument", "policy", "operator", "limit"),
        [(-1, 3, None, 3), (3, -1, None, 3), (2, 3, None, 2), (-1, -1, -1, -1), (None, 5, -1, 5), (None, -1, 4, 4)],
    )
    def test_a_negative_delivery_limit_is_none(
        self, room: Any, argument: int | None, policy: int, operator: int | None, limit: int
    ) -> None:
        """rabbit: since 4.0; the lowest holds of those that are limits."""
        more = {} if argument is None else {"x_delivery_limit": argument}
        queue = room.queue("q", x_queue_type="quorum", **more)
        put(room, "p", "q", {"delivery-limit": policy})
        if operator is not None:
            put(room, "o", "q", {"delivery-limit": operator}, operator=True)
        assert queue.rules.delivery_limit == limit

    def test_the_operators_overflow_holds(self, room: Any) -> None:
        queue = room.queue("q")
        put(room, "p", "q", {"overflow": "drop-head", "max-length": 5})
        put(room, "o", "q", {"overflow": "reject-publish"}, operator=True)
        assert queue.rules.overflow == "reject-publish"

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
        room.vhost.queues["q"].touch()
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
        room.vhost.apply_policies(queue)
        assert shown(room, queue)[0] == "p"
        for number in range(5, 7):
            room.publish("q", b"%d" % number)
        assert room.bodies(queue) == [b"5", b"6"]
