"""The table of queue arguments: documentation, validation, and equivalence of repeated declarations."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue import arguments
from amqpd.broker.queue.arguments import IGNORED, ROWS, compare, compared_names, validate
from amqpd.broker.queue.config import PLAIN
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Int64, Timestamp

SOURCES = Path(__file__).parent.parent.parent / "amqpd" / "broker"


class TestDocumentation:
    def test_readme_table_equals_rows(self) -> None:
        """After a change of ROWS, copy this table between the two marks of amqpd/broker/README.md."""
        table = ["| argument | meaning | obeyed by |", "|---|---|---|"]
        table += [f"| `{row.name}` | {row.meaning} | `{row.obeyed_by}.py` |" for row in ROWS.values()]
        text = (SOURCES / "README.md").read_text("utf-8")
        documented = text.partition("<!-- arguments -->\n")[2].partition("<!-- end of arguments -->")[0]
        assert documented.splitlines() == table

    @pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
    def test_file_that_obeys_argument_mentions_it(self, row) -> None:
        text = (SOURCES / f"{row.obeyed_by}.py").read_text("utf-8")
        if row.obeyed_by == IGNORED:
            assert row.meaning.startswith("ignored: ")
        else:
            assert row.name in text

    def test_every_config_field_belongs_to_one_row(self) -> None:
        """Fields that a queue type sets are excluded."""
        fields = [row.field for row in ROWS.values() if row.field]
        assert len(fields) == len(set(fields))
        derived = {"counts_shown", "stream", "drops_head", "admissions", "plain"}
        derived |= {"retain_ms", "retain_bytes", "retains"}  # made from x-retain
        derived |= {"retry"}  # made from x-delayed-retry-*
        parts = {"retain", "retry_type", "retry_min_ms", "retry_max_ms", "retry_levels"}
        assert set(fields) - parts == {name for name in dir(PLAIN) if name[0] != "_" and name != "is_over"} - derived


class TestValidation:
    @pytest.mark.parametrize("name", ["x-message-ttl", "x-expires"])
    def test_ttl_over_ten_years_is_refused(self, name) -> None:
        validate("q", "/", {name: TTL_MS_MAX})
        with pytest.raises(PreconditionFailed, match="value_too_large,315360000001"):
            validate("q", "/", {name: TTL_MS_MAX + 1})

    @pytest.mark.parametrize("name", ["x-delivery-limit", "x-dead-letter-strategy", "x-quorum-initial-group-size"])
    def test_classic_queue_refuses_argument(self, name) -> None:
        with pytest.raises(PreconditionFailed, match=f"invalid arg '{name}' .* of queue type rabbit_classic_queue"):
            validate("q", "/", {name: 1})

    @pytest.mark.parametrize("name", ["x-max-priority", "x-queue-version"])
    def test_quorum_queue_refuses_argument(self, name) -> None:
        with pytest.raises(PreconditionFailed, match=f"invalid arg '{name}' .* of queue type rabbit_quorum_queue"):
            validate("q", "/", {name: 1, "x-queue-type": "quorum"})

    @pytest.mark.parametrize(
        "name",
        [
            "x-max-length",
            "x-message-ttl",
            "x-expires",
            "x-overflow",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-max-priority",
            "x-delivery-limit",
            "x-export",
            "x-retain",
            "x-queue-mode",
            "x-queue-master-locator",
        ],
    )
    def test_stream_refuses_argument(self, name) -> None:
        with pytest.raises(PreconditionFailed, match=f"invalid arg '{name}' .* of queue type rabbit_stream_queue"):
            validate("q", "/", {name: 1, "x-queue-type": "stream"})

    @pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-queue-leader-locator", "client-local"),
            ("x-queue-leader-locator", "balanced"),
            ("x-quorum-target-group-size", 5),
            ("x-consumer-disconnected-timeout", 60000),
        ],
    )
    def test_rabbitmq_4_arguments_without_effect_are_accepted(self, kind, name, value) -> None:
        """Spring AMQP sends x-queue-leader-locator for classic queues."""
        validate("q", "/", {"x-queue-type": kind, name: value})

    @pytest.mark.parametrize("limit", [-1, -5, 0, 20])
    def test_delivery_limit_accepts_any_integer(self, limit) -> None:
        """RabbitMQ 4.0: the default limit is 20, and -1 disables it."""
        table = {"x-queue-type": "quorum", "x-delivery-limit": limit}
        validate("q", "/", table)
        assert arguments.rules_of(table).delivery_limit == limit
        with pytest.raises(PreconditionFailed, match="expected integer, got longstr"):
            validate("q", "/", {**table, "x-delivery-limit": f"{limit}"})

    def test_dead_letter_routing_key_has_size_of_routing_key(self) -> None:
        table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "\u00e9" * 127 + "k"}
        validate("q", "/", table)
        assert arguments.rules_of(table).dead_letter_key == table["x-dead-letter-routing-key"]
        table["x-dead-letter-routing-key"] += "k"
        with pytest.raises(PreconditionFailed, match="expected a routing key of at most 255 bytes"):
            validate("q", "/", table)

    def test_unknown_arguments_are_accepted(self) -> None:
        validate("q", "/", {"x-mine": {"any": ["thing"]}})

    def test_ignored_argument_is_logged_once(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(arguments, "_ignored_seen", set())
        caplog.set_level("INFO")
        for _ in range(3):
            validate("q", "/", {"x-queue-mode": "lazy", "x-max-length": 1})
        assert [record.getMessage() for record in caplog.records] == [
            "queue 'q' in vhost '/': argument x-queue-mode is ignored: every queue pages to disk"
        ]


def inequivalence(given: object, current: object) -> str:
    """Return the error of a declaration with `given` if the queue has `current`; empty if they are equivalent."""
    try:
        compare("queue 'q'", "/", ["x-a"], {"x-a": given}, {"x-a": current})
    except PreconditionFailed as error:
        return str(error).removeprefix("inequivalent arg 'x-a' for queue 'q' in vhost '/': ")
    return ""


class TestEquivalence:
    """The expected replies are those of RabbitMQ 3.10.8, except for decimals, where it replies 541."""

    @pytest.mark.parametrize(
        ("given", "current"),
        [
            (5, Int64(5)),
            (Timestamp(5), 5),
            (bytearray(b"5"), "5"),
            (b"\xff", bytearray(b"\xff")),
            ([1, "a"], [Int64(1), b"a"]),
            ({"a": 1, "b": 2.5}, {"b": 2.5, "a": 1}),
            (None, None),
        ],
    )
    def test_equal_values_of_one_type_class_are_equivalent(self, given, current) -> None:
        assert inequivalence(given, current) == ""

    @pytest.mark.parametrize(
        ("given", "current", "error_text"),
        [
            (10.0, 10, "received '10.0' but current is '10'"),
            (10, 10.0, "received '10' but current is '10.0'"),
            (1e20, 10, "received '1.0e20' but current is '10'"),
            (Decimal(10), 10, "received '{0,10}' but current is '10'"),
            (True, 1, "received 'true' but current is '1'"),
            (0, False, "received '0' but current is 'false'"),
            (1.0, True, "received '1.0' but current is 'true'"),
            ("5", 5, "received '5' but current is '5'"),
            (bytearray(b"5"), 5, "received '5' but current is '5'"),
            ("true", True, "received 'true' but current is 'true'"),
            (None, 5, "received none but current is '5'"),
            ([], 5, "received '[]' but current is '5'"),
            ([1], [1.0], "received '[{signedint,1}]' but current is '[{double,1.0}]'"),
            ({"a": "x"}, 5, "received '[{<<\"a\">>,longstr,<<\"x\">>}]' but current is '5'"),
            ({"a": 1}, {"a": True}, "received '[{<<\"a\">>,signedint,1}]' but current is '[{<<\"a\">>,bool,true}]'"),
        ],
    )
    def test_different_type_class_or_value_is_inequivalent(self, given, current, error_text) -> None:
        assert inequivalence(given, current) == error_text

    @pytest.mark.parametrize("name", ["x-max-length", "x-message-ttl", "x-expires", "x-max-priority"])
    def test_different_limits_are_inequivalent(self, name) -> None:
        with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{name}' .* received '2' but current is '1'"):
            compare("queue 'q'", "/", compared_names("classic"), {name: 2}, {name: 1})

    def test_true_is_not_equivalent_to_1(self) -> None:
        with pytest.raises(PreconditionFailed):
            compare("queue 'q'", "/", compared_names("classic"), {"x-max-length": True}, {"x-max-length": 1})

    def test_unknown_arguments_may_differ(self) -> None:
        compare("queue 'q'", "/", compared_names("classic"), {"x-mine": 1}, {"x-mine": 2})
