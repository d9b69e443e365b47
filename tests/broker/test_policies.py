"""Policies: which one applies, how they merge with arguments, and their effect on queues and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.auth.patterns import InvalidPattern
from amqpd.broker.vhost import policies, policy_table
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.declare import declare_exchange
from amqpd.broker.vhost.name_pattern import compile_names
from amqpd.broker.vhost.policy_table import InvalidPolicy, unsupported

MAX = {"max-length": 2}
FILLED = 6000


def set_policy(room: Any, name: str, pattern: str, definition: dict[str, object], **more: object) -> list[object]:
    """Set a policy and run the loop. Return the arguments of the `done` callback."""
    operator = bool(more.pop("operator", False))
    value = {"pattern": pattern, "definition": definition, "priority": 0}
    value |= {key.replace("_", "-"): each for key, each in more.items()}
    done: list[object] = []
    policies.declare(room.vhost, name, value, operator, done.append)
    room.turns()
    return done


def clear_policy(room: Any, name: str, operator: bool = False) -> list[object]:
    done: list[object] = []
    policies.clear(room.vhost, room.vhost.policies.get(name, operator), done.append)
    room.turns()
    return done


def effective_policy(room: Any, thing: object) -> tuple[str, str, dict[str, object]]:
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
    def test_pattern_matches(self, pattern: str, yes: list[str], no: list[str]) -> None:
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
    def test_invalid_pattern_is_refused(self, pattern: str) -> None:
        with pytest.raises(InvalidPattern):
            compile_names(pattern)

    def test_hostile_pattern_is_matched_in_linear_time(self, processor_s: Callable[..., float]) -> None:
        """A backtracking regex engine would need years."""
        compiled = compile_names("^(?!(a+)+$)(a|aa)+$")
        name = "a" * 250 + "b"
        assert min(processor_s(lambda: compiled.matches(name)) for _ in range(5)) < 0.02


class TestKeys:
    def test_operator_policy_keys_are_those_of_rabbitmq(self) -> None:
        assert set(policy_table.keys(operator=True)) >= {
            "expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "delivery-limit", "overflow", "queue-version", "target-group-size",
        }  # fmt: skip

    def test_policy_keys_of_rabbitmq_4_are_known(self) -> None:
        """The keys of 4.0 to 4.3 that 3.10.8 does not have."""
        assert set(policy_table.keys()) >= {
            "consumer-timeout", "consumer-disconnected-timeout", "target-group-size", "filter-field-names",
            "stream-filter-size-bytes", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max",
        }  # fmt: skip

    def test_policy_keys_of_rabbitmq_3_10_are_known(self) -> None:
        """The keys of `rabbit_policies`, `rabbit_mirror_queue_misc` and `rabbit_queue_location_validator` in 3.10.8."""
        assert set(policy_table.keys()) >= {
            "alternate-exchange", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
            "message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
            "queue-mode", "queue-version", "overflow", "delivery-limit", "queue-leader-locator", "ha-mode", "ha-params",
            "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
            "queue-master-locator",
        }  # fmt: skip

    def test_unsupported_keys_of_each_queue_type(self) -> None:
        assert unsupported("classic") >= {"delivery-limit", "dead-letter-strategy", "target-group-size"}
        assert "queue-leader-locator" not in unsupported("classic"), "RabbitMQ supports it since 4.0"
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

    def test_definition_over_64_kib_is_refused(self, room: Any) -> None:
        with pytest.raises(InvalidPolicy, match="at most 65536 bytes"):
            set_policy(room, "p", "", {"dead-letter-exchange": "x" * 70_000})


class TestWhichApplies:
    def test_highest_priority_applies_then_first_name(self, room: Any) -> None:
        queue = room.queue("q")
        assert set_policy(room, "b", "q", {"max-length": 2}) == [None]
        set_policy(room, "a", "q", {"max-length": 1})
        assert effective_policy(room, queue)[0] == "a"
        set_policy(room, "c", "q", {"max-length": 3}, priority=1)
        assert effective_policy(room, queue) == ("c", "", {"max-length": 3})
        set_policy(room, "c", "q", {"max-length": 3}, priority=-1)
        assert effective_policy(room, queue)[0] == "a"
        clear_policy(room, "a")
        clear_policy(room, "b")
        assert effective_policy(room, queue)[0] == "c"
        assert clear_policy(room, "c") == [None]
        assert effective_policy(room, queue) == ("", "", {})
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
    def test_apply_to_selects_queue_types_and_exchanges(
        self, room: Any, apply_to: str, classic: bool, quorum: bool, exchange: bool
    ) -> None:
        set_policy(room, "p", "x", {"message-ttl": 9}, apply_to=apply_to)
        things = [room.queue("x1"), room.queue("x2", x_queue_type="quorum"), room.exchange("x3", "direct")]
        assert [effective_policy(room, thing)[0] == "p" for thing in things] == [classic, quorum, exchange]

    @pytest.mark.parametrize(
        ("argument", "policy", "operator", "limit"),
        [(-1, 3, None, 3), (3, -1, None, 3), (2, 3, None, 2), (-1, -1, -1, -1), (None, 5, -1, 5), (None, -1, 4, 4)],
    )
    def test_negative_delivery_limit_is_no_limit(
        self, room: Any, argument: int | None, policy: int, operator: int | None, limit: int
    ) -> None:
        """RabbitMQ: since 4.0. The lowest of the remaining limits applies."""
        more = {} if argument is None else {"x_delivery_limit": argument}
        queue = room.queue("q", x_queue_type="quorum", **more)
        set_policy(room, "p", "q", {"delivery-limit": policy})
        if operator is not None:
            set_policy(room, "o", "q", {"delivery-limit": operator}, operator=True)
        assert queue.rules.delivery_limit == limit

    def test_overflow_of_operator_policy_wins(self, room: Any) -> None:
        queue = room.queue("q")
        set_policy(room, "p", "q", {"overflow": "drop-head", "max-length": 5})
        set_policy(room, "o", "q", {"overflow": "reject-publish"}, operator=True)
        assert queue.rules.overflow == "reject-publish"

    def test_policy_with_unsupported_key_does_not_apply(self, room: Any) -> None:
        """RabbitMQ: the whole policy is ignored, and one of lower priority applies."""
        set_policy(room, "low", "", {"max-length": 5})
        set_policy(room, "high", "", {"max-length": 1, "delivery-limit": 3}, priority=9)
        assert effective_policy(room, room.queue("classic"))[0] == "low"
        assert effective_policy(room, room.queue("quorum", x_queue_type="quorum"))[0] == "high"

    def test_policy_applies_to_predeclared_exchanges(self, room: Any) -> None:
        set_policy(room, "p", "^amq", {"alternate-exchange": "amq.fanout"})
        assert effective_policy(room, room.vhost.exchanges["amq.direct"])[0] == "p"
        room.bind("amq.fanout", room.queue("q"))
        room.publish("nowhere", b"caught", exchange="amq.direct")
        assert room.bodies(room.vhost.queues["q"]) == [b"caught"]

    def test_default_exchange_has_no_alternate_exchange(self, room: Any) -> None:
        set_policy(room, "p", "", {"alternate-exchange": "amq.fanout"})
        room.bind("amq.fanout", room.queue("q"))
        room.publish("nowhere", b"lost")
        assert room.bodies(room.vhost.queues["q"]) == []


class TestMerge:
    def test_lowest_of_argument_policy_and_operator_policy_applies(self, room: Any) -> None:
        queue = room.queue("q", x_max_length=7, x_message_ttl=10)
        set_policy(room, "p", "q", {"max-length": 5, "message-ttl": 100, "expires": 9_000})
        set_policy(room, "o", "q", {"max-length": 6, "expires": 8_000}, operator=True)
        rules = queue.rules
        assert (rules.length_max, rules.ttl_ms, rules.expires_ms) == (5, 10, 8_000)
        assert effective_policy(room, queue) == ("p", "o", {"max-length": 5, "message-ttl": 100, "expires": 8_000})
        set_policy(room, "o", "q", {"max-length": 4}, operator=True)
        assert (queue.rules.length_max, queue.rules.expires_ms) == (4, 9_000)
        clear_policy(room, "o", operator=True)
        clear_policy(room, "p")
        assert (queue.rules.length_max, queue.rules.ttl_ms, queue.rules.expires_ms) == (7, 10, -1)

    def test_argument_wins_over_policy_for_other_keys(self, room: Any) -> None:
        dead = {"x_dead_letter_exchange": "mine", "x_dead_letter_routing_key": "k"}
        mine = room.queue("q1", **dead, x_max_length=9, x_overflow="reject-publish")
        bare = room.queue("q2")
        definition = {"dead-letter-exchange": "p", "dead-letter-routing-key": "pk", "overflow": "reject-publish-dlx"}
        set_policy(room, "p", "q", {**definition, "max-length": 3})
        rules = [(q.rules.dead_letter_exchange, q.rules.dead_letter_key, q.rules.overflow) for q in (mine, bare)]
        assert rules == [("mine", "k", "reject-publish"), ("p", "pk", "reject-publish-dlx")]
        assert mine.rules.length_max == 3

    def test_zero_is_a_limit(self, room: Any) -> None:
        queue = room.queue("q", x_max_length=0)
        set_policy(room, "p", "q", {"message-ttl": 0, "max-length": 5})
        assert (queue.rules.ttl_ms, queue.rules.length_max) == (0, 0)

    def test_times_are_capped_at_ten_years(self, room: Any) -> None:
        queue = room.queue("q")
        set_policy(room, "p", "q", {"message-ttl": 2**50, "expires": 2**62})
        assert queue.rules.ttl_ms == queue.rules.expires_ms == 315_360_000_000

    def test_quorum_queue_keeps_its_delivery_count_header(self, room: Any) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_delivery_limit=5)
        set_policy(room, "p", "q", {"delivery-limit": 2})
        assert (queue.rules.delivery_limit, queue.rules.counts_shown) == (2, True)
        clear_policy(room, "p")
        assert (queue.rules.delivery_limit, queue.rules.counts_shown) == (5, True)

    def test_max_priority_and_single_active_consumer_stay(self, room: Any) -> None:
        queue = room.queue("q", x_max_priority=3, x_single_active_consumer=True)
        set_policy(room, "p", "q", MAX)
        assert (queue.rules.level_max, queue.rules.single_active, queue.rules.length_max) == (3, True, 2)


class TestEffect:
    @pytest.mark.parametrize("durable", [True, False])
    def test_policy_applies_to_existing_and_new_queues(self, room: Any, durable: bool) -> None:
        old = room.queue("q1", durable=durable)
        for number in range(5):
            room.publish("q1", b"%d" % number)
        set_policy(room, "p", "^q", MAX)
        new = room.queue("q2", durable=durable)
        for number in range(5):
            room.publish("q2", b"%d" % number)
        assert room.bodies(old) == room.bodies(new) == [b"3", b"4"]
        clear_policy(room, "p")
        for number in range(5):
            room.publish("q1", b"%d" % number)
        assert len(room.bodies(old)) == 5

    def test_alternate_exchange_is_set_changed_and_cleared(self, room: Any) -> None:
        room.exchange("x", "direct")
        for name in ("one", "two"):
            room.exchange(name, "fanout")
            room.bind(name, room.queue(name))

        def received_counts() -> list[int]:
            room.publish("nowhere", b"", exchange="x")
            return [len(room.bodies(room.vhost.queues[name])) for name in ("one", "two")]

        assert received_counts() == [0, 0]
        set_policy(room, "p", "^x$", {"alternate-exchange": "one"})
        assert received_counts() == [1, 0]
        set_policy(room, "p", "^x$", {"alternate-exchange": "two"})
        assert received_counts() == [0, 1]
        clear_policy(room, "p")
        assert received_counts() == [0, 0]
        x = room.vhost.exchanges["x"]
        assert [x in room.vhost.exchanges[name].upstream for name in ("one", "two")] == [False, False]

    def test_alternate_exchange_declared_after_its_policy(self, room: Any) -> None:
        set_policy(room, "p", "^x$", {"alternate-exchange": "late"})
        room.exchange("x", "direct")
        room.publish("nowhere", b"lost", exchange="x")
        room.exchange("late", "fanout")
        room.bind("late", room.queue("q"))
        room.publish("nowhere", b"caught", exchange="x")
        assert room.bodies(room.vhost.queues["q"]) == [b"caught"]

    def test_alternate_exchange_argument_wins_over_policy(self, room: Any) -> None:
        declaration = ExchangeDeclaration("x", "direct", True, False, False, {"alternate-exchange": "one"})
        declare_exchange(room.vhost, declaration)
        set_policy(room, "p", "^x$", {"alternate-exchange": "two"})
        assert room.vhost.exchanges["x"].alternate == "one"
        clear_policy(room, "p")
        assert room.vhost.exchanges["x"].alternate == "one"

    def test_redeclare_under_policy_is_equivalent(self, room: Any) -> None:
        """Policies are not arguments, so a declaration without arguments finds the queue."""
        queue = room.queue("q")
        set_policy(room, "p", "q", {"max-length": 2, "message-ttl": 5})
        assert room.queue("q") is queue

    def test_expires_by_policy_deletes_unused_queue(self, room: Any) -> None:
        room.queue("q")
        set_policy(room, "p", "^q", {"expires": 50})
        room.advance(40)
        room.vhost.queues["q"].touch()
        room.advance(40)
        assert room.expired == []
        room.advance(20)
        assert room.expired == ["q"]
        assert room.vhost.policies.in_force == {}

    def test_policy_applies_after_restart(self, room: Any) -> None:
        """The order of `load`: first the policy table, then the queues."""
        queue = room.queue("q")
        set_policy(room, "p", "q", MAX)
        for number in range(5):
            room.publish("q", b"%d" % number)
        table = room.vhost.policies
        room.restart()
        for policy in table.all():
            room.vhost.policies.put(policy)
        queue = room.vhost.queues["q"]
        room.vhost.apply_policies(queue)
        assert effective_policy(room, queue)[0] == "p"
        for number in range(5, 7):
            room.publish("q", b"%d" % number)
        assert room.bodies(queue) == [b"5", b"6"]
