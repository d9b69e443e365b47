"""MessageView, the message as selectors see it: every property under its number, headers decoded once."""

from __future__ import annotations

from amqpd.broker.message import MessageRoute, MessageView, make_message
from amqpd.protocol.properties import NO_PROPERTIES, Properties, encode_properties, scan_properties
from amqpd.routing import selector_fields as fields
from amqpd.routing.selector import parse_selector

FULL = Properties(
    "text/plain",
    "gzip",
    {"a": 1, "colour": "red"},
    2,
    7,
    "c",
    "r",
    "60000",
    "m",
    1_700_000_000,
    "t",
    "guest",
    "app",
    "x",
)


def view_of(properties: Properties) -> MessageView:
    data = encode_properties(properties)
    info = None if data == NO_PROPERTIES else scan_properties(data, 0, len(data))
    return MessageView(make_message(MessageRoute("orders", "eu.new"), data, b"body", False, info))


def test_fields_have_their_property_numbers() -> None:
    view = view_of(FULL)
    for number, value in enumerate(FULL):
        if number != 2:
            assert view.field(number) == value
    assert view.field(fields.EXCHANGE) == "orders" and view.field(fields.ROUTING_KEY_FIELD) == "eu.new"
    assert Properties._fields[fields.CLUSTER_ID] == "cluster_id" and Properties._fields[fields.TYPE] == "type"
    for properties in (Properties(), Properties(delivery_mode=2), Properties(headers={})):
        bare = view_of(properties)
        assert [bare.field(number) for number in range(fields.CLUSTER_ID + 1) if number not in (2, 3)] == [None] * 12
        assert bare.field(fields.DELIVERY_MODE) == properties.delivery_mode
        assert bare.headers() == {}


def test_headers_are_decoded_once() -> None:
    view = view_of(FULL)
    assert view.headers() == {"a": 1, "colour": "red"}
    assert view.headers() is view.headers()


def test_selector_matches_view() -> None:
    selector = parse_selector(
        "a = 1 AND colour LIKE 'r%' AND p.type = 't' AND p.creation-time = 1700000000000 AND h.priority > 6"
    )
    assert selector.matches(view_of(FULL))
    assert not selector.matches(view_of(FULL._replace(headers={"a": True, "colour": "red"})))
    assert not selector.matches(view_of(Properties()))
