"""The table of consumer arguments: documentation, validation by queue type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqpd.broker.consumer import NO_ARGUMENTS
from amqpd.broker.queue.argument_checks import ArgumentContext
from amqpd.broker.queue.consumer_arguments import CONSUMER_ROWS, ConsumerArgumentSpec, consumer_arguments
from amqpd.broker.queue.types import KINDS
from amqpd.errors import PreconditionFailed

SOURCES = Path(__file__).parent.parent.parent / "amqpd" / "broker"


class TestDocumentation:
    def test_readme_table_equals_rows(self) -> None:
        """After a change of CONSUMER_ROWS, copy this table between the two marks of amqpd/broker/README.md."""
        table = ["| argument | of | meaning | obeyed by |", "|---|---|---|---|"]
        table += [
            f"| `{row.name}` | {', '.join(sorted(row.kinds)) if row.kinds else 'all'} | {row.meaning} "
            f"| `{row.obeyed_by}.py` |"
            for row in CONSUMER_ROWS.values()
        ]
        text = (SOURCES / "README.md").read_text("utf-8")
        marked = text.partition("<!-- consumer arguments -->\n")[2]
        documented = marked.partition("<!-- end of consumer arguments -->")[0]
        assert documented.splitlines() == table

    @pytest.mark.parametrize("row", CONSUMER_ROWS.values(), ids=lambda row: row.name)
    def test_file_that_obeys_argument_mentions_it(self, row: ConsumerArgumentSpec) -> None:
        assert row.name in (SOURCES / f"{row.obeyed_by}.py").read_text("utf-8")
        assert row.kinds is None or row.kinds <= set(KINDS)

    def test_every_field_belongs_to_one_row(self) -> None:
        fields = [
            row.field for row in CONSUMER_ROWS.values() if row.field
        ]  # rows without a field are accepted and ignored
        assert len(fields) == len(set(fields))
        assert set(fields) == {name for name in dir(NO_ARGUMENTS) if name[0] != "_"} - {"table"}


class TestCancelOnHaFailover:
    """x-cancel-on-ha-failover: a bool, for classic queues only, without effect."""

    def test_argument_is_ignored(self) -> None:
        table = {"x-cancel-on-ha-failover": True, "x-priority": 3}
        assert consumer_arguments("q", "/", "classic", table, b"").priority == 3

    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            ("classic", 1, ": {unacceptable_type,signedint}"),
            ("classic", "yes", ": {unacceptable_type,longstr}"),
            ("quorum", True, " of queue type rabbit_quorum_queue"),
            ("stream", True, " of queue type rabbit_stream_queue"),
        ],
    )
    def test_wrong_type_or_queue_type_is_refused(self, kind: str, value: Any, text: str) -> None:
        with pytest.raises(PreconditionFailed) as found:
            consumer_arguments("q", "v", kind, {"x-cancel-on-ha-failover": value}, b"")
        assert str(found.value) == f"invalid arg 'x-cancel-on-ha-failover' for queue 'q' in vhost 'v'{text}"


class TestPriority:
    @pytest.mark.parametrize("kind", ["classic", "quorum"])
    @pytest.mark.parametrize("value", [0, -1, 2**31, 2**63 - 1])
    def test_integer_is_accepted(self, kind: str, value: int) -> None:
        assert consumer_arguments("q", "/", kind, {"x-priority": value}, b"").priority == value

    @pytest.mark.parametrize(
        ("value", "shown"), [("1", "longstr"), ({}, "table"), ([1], "array"), (None, "void"), (True, "bool")]
    )
    def test_other_types_are_refused(self, value: Any, shown: str) -> None:
        text = f"invalid arg 'x-priority' for queue 'q' in vhost 'v': \"expected integer, got {shown}\""
        with pytest.raises(PreconditionFailed) as caught:
            consumer_arguments("q", "v", "classic", {"x-priority": value}, b"")
        assert str(caught.value).endswith(text)


def test_unknown_argument_has_no_effect() -> None:
    parsed = consumer_arguments("q", "/", "classic", {"x-whatever": [1], "purpose": "reports"}, b"as it came")
    assert parsed.table == b"as it came"
    assert parsed.priority == 0


def test_row_with_queue_types_is_read_only_for_those(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other queue types refuse the argument before its value is read."""
    seen: list[object] = []

    def read(row: ConsumerArgumentSpec, value: Any, context: ArgumentContext) -> None:
        seen.append((row.name, value, context.kind))

    row = ConsumerArgumentSpec("x-new", read, "delivery", "", "", frozenset({"quorum"}))
    monkeypatch.setitem(CONSUMER_ROWS, "x-new", row)
    consumer_arguments("q", "/", "quorum", {"x-new": 3}, b"")
    assert seen == [("x-new", 3, "quorum")]
    with pytest.raises(PreconditionFailed, match="'x-new' for queue 'q' .* of queue type rabbit_classic_queue"):
        consumer_arguments("q", "/", "classic", {"x-new": 3}, b"")
    assert len(seen) == 1
