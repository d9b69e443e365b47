"""x-jms-topic: bindings are selectors, in SQL or as RabbitMQ's JMS client sends them."""

from __future__ import annotations

from itertools import product

import pytest

from amqpd.routing import selector_parser
from amqpd.routing.base import HEADERS, ROUTING_KEY, BadBinding, BadSelector
from amqpd.routing.jms_topic import JmsTopic
from amqpd.routing.selector import parse_selector
from amqpd.routing.selector_ast import Condition


def test_selectors_choose_bindings() -> None:
    exchange = JmsTopic()
    exchange.bind("any.key", {"x-selector": "colour = 'red'"}, "red")
    exchange.bind("", {"x-selector": "weight > 2"}, "heavy")
    exchange.bind("", {"rjms_selector": "colour = 'red' AND weight > 2"}, "both")
    exchange.bind("", {"x-selector": ""}, "all")
    exchange.bind("", {"x-selector": "p.routing-key LIKE 'eu.%'"}, "europe")
    assert exchange.match("k", {"colour": "red", "weight": 3}) == {"red", "heavy", "both", "all"}
    assert exchange.match("k", {"colour": "red", "weight": 1}) == {"red", "all"}
    assert exchange.match("eu.x", {"colour": ["red"]}) == {"all", "europe"}
    assert exchange.match("k", None) == {"all"}
    assert exchange.depends_on == ROUTING_KEY | HEADERS


def test_jms_fields_are_read_from_headers() -> None:
    exchange = JmsTopic()
    exchange.bind("", {"x-selector": "JMSType = 'order' AND JMSPriority > 4"}, "q")
    exchange.bind("", {"x-selector": "JMSDeliveryMode = 'NON_PERSISTENT'"}, "fast")
    assert exchange.match("", {"JMSType": "order", "JMSPriority": 9, "JMSDeliveryMode": "PERSISTENT"}) == {"q"}
    assert exchange.match("", {"JMSType": "order"}) == {"fast"}


def test_unbinding_removes_everything() -> None:
    exchange = JmsTopic()
    texts = ["a = 'x'", "'x' = a AND b > 1", "b > 1", "a='x'", "a = 'y'", "c = 'x'", ""]
    for text in texts:
        exchange.bind("", {"x-selector": text}, "q1")
        exchange.bind("", {"x-selector": text}, "q2")
    exchange.unbind("", {"x-selector": "a='x'"}, "q1")
    assert exchange.match("", {"a": "x"}) == {"q1", "q2"}  # it was bound twice, in two spellings
    for text in texts:
        exchange.unbind("", {"x-selector": text}, "q2")
        if text != "a='x'":
            exchange.unbind("", {"x-selector": text}, "q1")
    assert exchange.is_empty()
    assert exchange.match("", {"a": "x", "b": 5}) == set()


def test_a_binding_from_another_version_matches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    exchange = JmsTopic()
    exchange.bind("", {"x-selector": "colour ~ 'red'"}, "q")
    exchange.bind("", {"x-selector": "colour = 'red'"}, "q2")
    assert "line 1, column 8" in caplog.text
    assert exchange.match("", {"colour": "red"}) == {"q2"}
    exchange.unbind("", {"x-selector": "colour ~ 'red'"}, "q")
    exchange.unbind("", {"x-selector": "colour = 'red'"}, "q2")
    assert exchange.is_empty()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "has one selector"),
        ({"x-selector": "a = 1", "rjms_erlang_selector": "true."}, "has one selector"),
        ({"x-selector": 5}, "x-selector is not a text"),
        ({"rjms_erlang_selector": b"\xff"}, "rjms_erlang_selector is not a text"),
        ({"x-selector": "a = "}, "x-selector: line 1, column 5: the selector is incomplete"),
        ({"x-selector": "p.priority = 1"}, "x-selector: an exchange sees the headers and p.routing-key"),
        ({"rjms_erlang_selector": "{'='"}, "rjms_erlang_selector: line 1, column "),
        ({"rjms_erlang_selector": '{\'spawn\',<<"a">>,<<"b">>}.'}, "not a selector of RabbitMQ's JMS client"),
    ],
)
def test_invalid_bindings_are_rejected(arguments: dict[str, object], error: str) -> None:
    with pytest.raises(BadBinding) as refused:
        JmsTopic().validate("", arguments)
    assert error in str(refused.value)


def parse_term(term: str) -> Condition:
    return selector_parser.parse_erlang_term(term)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("{'=',{'ident',<<\"colour\">>},<<\"red\">>}.", "colour = 'red'"),
        ('{ident, <<"boolVal">>}.', "boolVal"),
        ("'true'.", "TRUE"),
        ("{'not',{'ident',<<\"a\">>}}.", "NOT a"),
        ("{'and',{'>',{'ident',<<\"w\">>},2},{'or',{'ident',<<\"a\">>},'false'}}.", "w > 2 AND (a OR FALSE)"),
        ("{'<>',{'ident',<<\"a\">>},-1.5E-3}.", "a <> -1.5E-3"),
        ('{\'in\',{\'ident\',<<"a">>},[<<"x">>,<<"y">>]}.', "a IN ('x', 'y')"),
        ("{'not_in',{'ident',<<\"a\">>},[<<\"x\">>]}.", "a NOT IN ('x')"),
        ("{'in',{'ident',<<\"a\">>},[{'ident',<<\"b\">>},{'-',{'ident',<<\"c\">>}},1]}.", "a IN (b, -c, 1)"),
        ("{'like',{'ident',<<\"a\">>},<<\"x%\">>,'no_escape'}.", "a LIKE 'x%'"),
        ('{\'not_like\',{\'ident\',<<"a">>},<<"x!%">>,<<"!">>}.', "a NOT LIKE 'x!%' ESCAPE '!'"),
        ("{'like',{'ident',<<\"a\">>},{<<\"x%\">>,'no_escape'}}.", "a LIKE 'x%'"),
        ("{'between',{'ident',<<\"a\">>},1,2}.", "a BETWEEN 1 AND 2"),
        ("{'not_between',{'ident',<<\"a\">>},{'range',1,2}}.", "a NOT BETWEEN 1 AND 2"),
        ("{'is_null',{'ident',<<\"a\">>}}.", "a IS NULL"),
        ("{'not_null',{'ident',<<\"a\">>}}.", "a IS NOT NULL"),
        ("{'=',{'+',{'ident',<<\"a\">>},1},{'-',{'ident',<<\"b\">>}}}.", "a + 1 = -b"),
        ("{'=',{'*',{'ident',<<\"a\">>},2},{'/',{'ident',<<\"b\">>},3}}", "a * 2 = b / 3"),
        ("{'=',{'ident',<<\"JMSType\">>},<<\"car\">>}.", "JMSType = 'car'"),
        ('{\'=\',{\'ident\',<<"a.b">>},<<"say \\"x\\" \\\\">>}.', "[a.b] = 'say \"x\" \\'"),
        ("{'=',{'ident',<<\"a\">>},<<>>}.", "a = ''"),
    ],
)
def test_terms_of_the_jms_client(term: str, text: str) -> None:
    assert parse_term(term) == parse_selector(text).condition


@pytest.mark.parametrize(
    "term",
    [
        "",
        "{}.",
        "[].",
        "5.",
        '<<"a">>.',
        "'maybe'.",
        "{'not'}.",
        "{'=',1}.",
        "{'=',1,2,3}.",
        "{'in',{'ident',<<\"a\">>},<<\"x\">>}.",
        "{'like',{'ident',<<\"a\">>},5,'no_escape'}.",
        '{\'like\',{\'ident\',<<"a">>},<<"x">>,<<"ab">>}.',
        '{\'like\',{\'ident\',<<"a">>},<<"x!">>,<<"!">>}.',
        "{'between',{'ident',<<\"a\">>},1}.",
        "{'ident',5}.",
        "{'and',1,2}.",
        'os:cmd("x").',
        "true. true.",
        "{'not'," * 50 + "true" + "}" * 50,
        "{'not'," * 498 + "true" + "}" * 498,
        "{'and',true," * 332 + "true" + "}" * 332,
        "{'in',1,[" * 249 + "true" + "]}" * 249,
        "{" * 2000,
        "9" * 3000,
        "{'='," + "[" * 900 + "]" * 900 + ",1}.",
        "x" * 20_000,
    ],
)
def test_other_terms_are_rejected(term: str) -> None:
    with pytest.raises(BadSelector):
        parse_term(term)


HEADERS_OF_MESSAGES: list[dict[str, object]] = [
    {name: value for name, value in zip("bsn", values, strict=True) if value is not None}
    for values in product([None, True, False], [None, "red", "blue", "r_x"], [None, 1, 2, 3])
]
ROUTED_BY_RABBITMQ = [
    ("{'ident',<<\"b\">>}", 0x0000FFFF0000),
    ("{'not',{'ident',<<\"b\">>}}", 0xFFFF00000000),
    ("{'=',{'ident',<<\"s\">>},<<\"red\">>}", 0x00F000F000F0),
    ("{'<>',{'ident',<<\"s\">>},<<\"red\">>}", 0xFF00FF00FF00),
    ("{'=',{'ident',<<\"n\">>},2}", 0x444444444444),
    ("{'<>',{'ident',<<\"n\">>},2}", 0xAAAAAAAAAAAA),
    ("{'>',{'ident',<<\"n\">>},1.5}", 0xCCCCCCCCCCCC),
    ("{'<=',{'ident',<<\"n\">>},2}", 0x666666666666),
    ("{'between',{'ident',<<\"n\">>},1,2}", 0x666666666666),
    ("{'not_between',{'ident',<<\"n\">>},1,2}", 0x888888888888),
    ('{\'in\',{\'ident\',<<"s">>},[<<"red">>,<<"blue">>]}', 0x0FF00FF00FF0),
    ("{'not_in',{'ident',<<\"s\">>},[<<\"red\">>]}", 0xFF00FF00FF00),
    ("{'like',{'ident',<<\"s\">>},<<\"r%\">>,'no_escape'}", 0xF0F0F0F0F0F0),
    ("{'not_like',{'ident',<<\"s\">>},<<\"r%\">>,'no_escape'}", 0x0F000F000F00),
    ('{\'like\',{\'ident\',<<"s">>},<<"r!_%">>,<<"!">>}', 0xF000F000F000),
    ("{'is_null',{'ident',<<\"s\">>}}", 0x000F000F000F),
    ("{'not_null',{'ident',<<\"n\">>}}", 0xEEEEEEEEEEEE),
    ("{'and',{'=',{'ident',<<\"s\">>},<<\"red\">>},{'>',{'ident',<<\"n\">>},1}}", 0x00C000C000C0),
    ("{'or',{'=',{'ident',<<\"s\">>},<<\"red\">>},{'ident',<<\"b\">>}}", 0x00F0FFFF00F0),
    ("{'=',{'+',{'ident',<<\"n\">>},1},3}", 0x444444444444),
    ("{'=',{'/',{'ident',<<\"n\">>},2},1.5}", 0x888888888888),
    ("{'=',{'-',{'ident',<<\"n\">>}},-2}", 0x444444444444),
    ("'true'", 0xFFFFFFFFFFFF),
    ("'false'", 0x000000000000),
    ("{'not',{'and',{'ident',<<\"b\">>},{'=',{'ident',<<\"n\">>},1}}}", 0xFFFFCCCCCCCC),
    ("{'=',{'ident',<<\"b\">>},'true'}", 0x0000FFFF0000),
    ("{'>',{'ident',<<\"s\">>},<<\"rec\">>}", 0x00F000F000F0),
]
"""The messages that RabbitMQ 3.10.8 routed: one bit per message, the first message is the lowest bit."""


@pytest.mark.parametrize(("term", "expected"), ROUTED_BY_RABBITMQ)
def test_messages_have_the_same_routes_as_in_rabbitmq(term: str, expected: int) -> None:
    exchange = JmsTopic()
    exchange.bind("", {"rjms_erlang_selector": term + "."}, "q")
    routed = [bool(exchange.match("", headers or None)) for headers in HEADERS_OF_MESSAGES]
    assert routed == [bool(expected >> number & 1) for number in range(48)]
