"""Hints for a selector that found nothing."""

from __future__ import annotations

import pytest

from amqpd.routing.selector import parse_selector
from amqpd.routing.selector_parser import suggest_fix


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("message_id = 'm3'", ["p.message-id is the property, message_id a header"]),
        ("message-id = 'm3'", ["p.message-id is the property, message-id a header"]),
        (
            "type = 'priority' OR priority > 3 OR type = 'b'",
            ["p.type is the property, type a header", "p.priority is the property, priority a header"],
        ),
        ("x-retries IS NULL", ["[x-retries] is the header, x-retries a difference"]),
    ],
)
def test_hints_for_ambiguous_selectors(text: str, hints: list[str]) -> None:
    assert parse_selector(text)
    assert suggest_fix(text) == "; ".join(hints)


@pytest.mark.parametrize(
    "text",
    [
        "p.message_id = 'message_id' AND properties.type = \"type\"",
        "[message-id] = 'a' AND a.type = 'b' AND h.priority > 3 AND JMSType = 'c'",
        "[x-retries] IS NULL AND [x-a] = 'it''s type'",
        "my_type = 'a' AND types = 'b' AND weight - 2 > 5",
        "",
    ],
)
def test_no_hints_for_clear_selectors(text: str) -> None:
    assert parse_selector(text)
    assert suggest_fix(text) == ""
