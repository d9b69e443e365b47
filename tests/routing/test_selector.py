"""Selectors: the rules of JMS and RabbitMQ, errors with positions, the cost of hostile selectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

import pytest

from amqpd.routing import selector_fields as fields
from amqpd.routing.base import BadSelector
from amqpd.routing.selector import MATCHES_ALL, TEXT_SIZE_MAX, parse_selector
from amqpd.routing.selector_ast import Selectable


class Message(Selectable):
    def __init__(self, headers: dict[str, object] | None = None, values: Mapping[int, object] | None = None) -> None:
        self.table = headers or {}
        self.values = values or {}
        self.asked_for_headers = False

    def headers(self) -> dict[str, object]:
        self.asked_for_headers = True
        return self.table

    def field(self, number: int) -> object:
        return self.values.get(number)


SHIPMENT: dict[str, object] = {
    "country": "UK",
    "city": "London",
    "weight": 5,
    "price": 10.5,
    "active": True,
    "premium": False,
    "percentage": 75,
    "quantity": 100,
    "temperature": -5,
    "score": 0,
    "discount": 0.25,
    "exact": Decimal("12.5"),
    "description": "This is a test message",
    "product": "ABC_123",
    "empty": "",
    "void": None,
    "blob": bytearray(b"x"),
    "octets": b"\xff",
    "list": [1, 2],
    "table": {"a": 1},
    "nan": float("nan"),
    "big": 2**63 - 1,
    "with space": 1,
    "x-origin": "here",
    "a]b": 1,
}

TRUE = [
    # comparisons
    "country = 'UK'",
    "'UK' = country",
    "country <> 'US'",
    "country != 'US'",
    'country = "UK"',
    "country > 'DE' AND country <= 'UK' AND 'Zz' > country",
    "weight = 5 AND weight = 5.0 AND 5 = weight AND 4.99 < weight",
    "price >= 10.5 AND price < 11 AND exact = 12.5 AND exact > 12",
    "active = TRUE AND premium <> TRUE AND TRUE = active",
    "active AND NOT premium",
    "city = city AND weight <> price AND weight < price AND temperature <= score",
    "big = 9223372036854775807",
    "-9223372036854775808 < big",
    "big <> 9223372036854775806",  # exact, although a double would not tell them apart
    # values of unlike types compare as false, and the negation is true: JMS 3.8.1.2
    "NOT country = 5",
    "NOT country <> 5",
    "NOT active = 1",
    "NOT weight = TRUE",
    "NOT weight < 'z'",
    "NOT weight = country",
    "NOT active = score",
    "NOT list = list",
    "NOT blob = 'x'",
    "NOT octets = 'x'",
    "NOT nan = nan AND NOT nan < 1 AND NOT nan <> 1",
    "NOT active > FALSE",
    # NULL
    "absent IS NULL AND void IS NULL AND country IS NOT NULL AND NOT country IS NULL",
    "list IS NOT NULL",
    "absent = 1 OR active",
    "active OR absent",
    "NOT (absent AND premium)",
    "NOT (absent IN ('a') AND premium)",
    "NOT (NOT (absent LIKE 'a' OR active))",
    "weight + absent IS NULL AND (weight / 0) IS NULL AND (weight = absent) IS NULL",
    # a number in place of a condition is unknown
    "percentage OR active",
    # IN, BETWEEN, LIKE
    "country IN ('US', 'UK') AND country NOT IN ('US') AND 'London' IN (city, country)",
    "weight IN (4, 5.0) AND weight NOT IN ('5', TRUE) AND active IN (1, TRUE) AND price IN (weight * 2 + 0.5)",
    "5 IN (1, 5) AND 'a' IN ('a') AND TRUE IN (TRUE) AND NOT 1 IN (TRUE)",
    "weight BETWEEN 5 AND 5 AND price BETWEEN weight AND 11 AND city BETWEEN 'A' AND 'M'",
    "weight NOT BETWEEN 6 AND 7",
    "NOT weight BETWEEN 'a' AND 'b'",
    "description LIKE '%test%' AND description LIKE 'This%' AND description LIKE '%message'",
    "description LIKE 'T_i% a %e_%e_sa%' AND description NOT LIKE 'T_i% a %e_%e_sa'",
    "product LIKE 'ABC\\_%' ESCAPE '\\' AND product NOT LIKE 'ABC\\%' ESCAPE '\\'",
    "country LIKE 'U_' AND country LIKE '_K' AND country LIKE 'U%K' AND country LIKE '%' AND country LIKE '%_%'",
    "country NOT LIKE 'U_K' AND country NOT LIKE '_UK' AND country NOT LIKE 'U%KK'",
    "empty LIKE '' AND empty LIKE '%' AND empty LIKE '%%' AND empty NOT LIKE '_' AND empty NOT LIKE '%x%'",
    "'a\nb' LIKE 'a_b' AND 'a\nb' LIKE 'a%b' AND '(.*' LIKE '(_*'",
    "'z_%' LIKE 'zz_%' ESCAPE 'z' OR '_foo' LIKE 'z_%' ESCAPE 'z'",
    # arithmetic
    "weight + 5 = 10 AND price - 0.5 = 10 AND quantity * price * discount = 262.5",
    "weight / 2 = 2.5 AND quantity / 10 = 10",  # RabbitMQ: no division of integers
    "weight % 2 = 1 AND 7 % temperature = 2 AND -7 % 5 = -2 AND 101 % percentage % weight = 1",
    "6 - -weight = 11 AND 6 + +weight = 11 AND -(-weight) = 5 AND - temperature = 5",
    "weight + weight * quantity - -temperature / 2 = 502.5",
    "weight -(-2.0) = -(-81) % (percentage -1)",
    "price % 3 = 1.5",
    "big * big > big AND big + 1 > big - 1",
    "active = (weight > 3) AND (weight > 3) = TRUE AND (weight > 9) <> active",
    # precedence
    "premium AND premium OR active",
    "active OR premium AND premium",
    "NOT premium AND active",
    "NOT country = 'US' AND weight > 3",
    # words
    "country='UK'AND weight=5",
    "\tcountry\f=\r\n'UK' ",
    "true and not false or FALSE",
    "weight between 1 and 9 and country in ('UK') and city like 'L%' and absent is null",
    '\'it\'\'s\' = "it\'s" AND \'say ""\' = "say """""',
    "5L = 5 AND 0x1F = 31 AND .5 = 0.5 AND 7. = 7 AND 1e3 = 1000 AND 5.5d = 5.5 AND -5E-1 = -.5",
    "[country] = 'UK' AND [with space] = 1 AND [x-origin] = 'here' AND [a]]b] = 1",
    "a.country = 'UK' AND application_properties.weight = 5 AND application-properties.weight = 5",
    "UTC() > 1700000000000 AND utc ( ) < 9999999999999",
    "",
    "  ",
]

FALSE = [
    "country = 'US'",
    "country = 5",
    "country <> 5",
    "weight = '5'",
    "active = 1",
    "active = 'TRUE'",
    "active > FALSE",
    "absent = 1",
    "absent <> 1",
    "NOT absent = 1",
    "NOT absent",
    "NOT (absent > 1 AND active)",
    "absent = absent",
    "NOT absent = absent",
    "absent IN ('a')",
    "absent NOT IN ('a')",
    "country IN (absent)",
    "NOT country IN (absent)",
    "absent LIKE '%'",
    "absent NOT LIKE '%'",
    "weight LIKE '5'",
    "weight NOT LIKE '6'",  # RabbitMQ: LIKE of a value that is no text is unknown
    "absent BETWEEN 1 AND 2",
    "absent NOT BETWEEN 1 AND 2",
    "NOT (absent BETWEEN 1 AND 2)",
    "weight BETWEEN absent AND 9",
    "premium OR absent",
    "+city = 'London'",
    "-absent = 1",
    "country + weight = 5",
    "active + premium = 1",
    "weight / 0 > 0",
    "NOT weight / 0 > 0",
    "0 / 0.0 = 0",
    "quantity % score = 0",
    "percentage",
    "NOT percentage",
    "description",
    "big = 9223372036854775806",
    "FALSE",
]


@pytest.mark.parametrize("text", TRUE)
def test_true_selector_matches(text: str) -> None:
    assert parse_selector(text).matches(Message(SHIPMENT)) is True


@pytest.mark.parametrize("text", FALSE)
def test_false_selector_does_not_match(text: str) -> None:
    assert parse_selector(text).matches(Message(SHIPMENT)) is False


PROPERTIES: dict[int, object] = {
    fields.CONTENT_TYPE: "image/png",
    fields.DELIVERY_MODE: 2,
    fields.PRIORITY: 7,
    fields.CORRELATION_ID: "c1",
    fields.EXPIRATION: "60000",
    fields.MESSAGE_ID: "m1",
    fields.TIMESTAMP: 1_700_000_000,
    fields.TYPE: "order",
    fields.APP_ID: "shop",
    fields.EXCHANGE: "orders",
    fields.ROUTING_KEY_FIELD: "eu.new",
}


@pytest.mark.parametrize(
    "text",
    [
        "p.content-type LIKE 'image/%' AND properties.content_type = 'image/png'",
        "p.delivery-mode = 2 AND p.priority > 6 AND h.priority = 7 AND header.priority = 7",
        "p.correlation-id = 'c1' AND p.message_id = 'm1' AND p.type = 'order' AND p.app-id = 'shop'",
        "p.expiration >= 60000 AND p.timestamp = 1700000000 AND p.creation-time = 1700000000000",
        "p.group_id = 'shop' AND p.exchange = 'orders' AND p.routing-key LIKE 'eu.%'",
        "p.reply-to IS NULL AND p.user-id IS NULL AND p.cluster-id IS NULL AND p.content-encoding IS NULL",
        "p.priority-1 = 6",
        "JMSPriority = 7 AND JMSDeliveryMode = 'PERSISTENT' AND JMSMessageID = 'm1' AND JMSType = 'order'",
        "JMSTimestamp = 1700000000000 AND JMSCorrelationID = 'c1' AND JMSXAppID = 'shop' AND JMSXUserID IS NULL",
        "JMSXGroupID IS NULL AND [p.type] IS NULL",
    ],
)
def test_property_fields(text: str) -> None:
    assert parse_selector(text).matches(Message({}, PROPERTIES))


def test_absent_fields() -> None:
    bare = Message()
    assert parse_selector("p.priority IS NULL AND h.priority = 4 AND JMSPriority = 4").matches(bare)
    assert parse_selector("JMSDeliveryMode = 'NON_PERSISTENT' AND p.delivery-mode IS NULL").matches(bare)
    assert parse_selector("p.expiration IS NULL AND p.creation-time IS NULL AND JMSType IS NULL").matches(bare)
    sent_as_headers = Message({"JMSType": "order", "JMSPriority": 9, "JMSDeliveryMode": "PERSISTENT"})
    assert parse_selector("JMSType = 'order' AND JMSPriority = 9 AND JMSDeliveryMode = 'PERSISTENT'").matches(
        sent_as_headers
    )


def test_headers_are_read_only_if_the_selector_names_one() -> None:
    message = Message({"a": 1}, PROPERTIES)
    for text in ("p.type = 'order'", "UTC() > 0", "JMSType = 'order'", "p.type = 'other' AND a = 1"):
        assert parse_selector(text).matches(message) is (text != "p.type = 'other' AND a = 1")
    assert not message.asked_for_headers
    assert not parse_selector("p.type = 'order'").needs_headers
    assert (
        parse_selector("a = 1").needs_headers
        and parse_selector("JMSType = 'x'").needs_headers
        and parse_selector("x IN (y)").needs_headers
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a = ", "line 1, column 5: the selector is incomplete; expected a value or a condition"),
        ("a = = b", "line 1, column 5: unexpected '='"),
        ("a ? b", "line 1, column 3: '? b' cannot be read"),
        ("a = 1 AND\n  b ~ 2", "line 2, column 5: '~ 2' cannot be read"),
        ("(a = 1", "line 1, column 7: the selector is incomplete"),
        ("a = 'x", 'line 1, column 5: "\'x" cannot be read'),
        ("a LIKE 5", "line 1, column 8: unexpected '5'; expected a text in quotes"),
        ("a = b = c", "line 1, column 7: unexpected '='; expected AND or OR or the end"),
        ("a IN ()", "line 1, column 7: unexpected ')'"),
        ("NOT", "line 1, column 4"),
        ("AND = 5", "line 1, column 1: unexpected 'AND'"),
        ("null = 5", "line 1, column 1: unexpected 'null'"),
        ("5", "a condition is expected here"),
        ("a + 1", "a condition is expected here"),
        ("'a' OR b", "line 1, column 5: a condition is expected here"),
        ("'a' + 1 = 2", "line 1, column 5: '+' needs numbers"),
        ("-'a' = 2", "line 1, column 1: '-' needs numbers"),
        ("a.b.c = 1", "there is no field 'a.b.c'; write a header of that name in brackets"),
        ("x.y = 1", "there is no field 'x.y'"),
        ("p.kind = 1", "there is no field 'p.kind'"),
        ("h.ttl = 1", "there is no field 'h.ttl'"),
        ("JMSReplyTo = 'x'", "line 1, column 1: JMSReplyTo may not be used in a selector"),
        ("a = 010", "line 1, column 5: a number must not begin with 0"),
        ("a = 9223372036854775809", "line 1, column 5: number too large"),
        ("a = 0xFFFFFFFFFFFFFFFFFF", "line 1, column 5: number too large"),
        ("a = 1e999", "line 1, column 5: number too large"),
        ("a = 1x", "line 1, column 5: '1x' cannot be read"),
        ("a LIKE 'x!' ESCAPE '!'", "line 1, column 3: the LIKE pattern ends with its escape character"),
        ("a LIKE 'x' ESCAPE '!!'", "line 1, column 3: ESCAPE needs one character"),
        ("[a\x01] = 1", "a name has a control character"),
        ("a = 1 AND a", ""),
    ],
)
def test_errors_have_a_position(text: str, error: str) -> None:
    if not error:
        parse_selector(text)
        return
    with pytest.raises(BadSelector) as refused:
        parse_selector(text)
    assert error in str(refused.value)
    assert len(str(refused.value)) < 180  # it has to fit a reply


def test_equal_selectors() -> None:
    one, other = parse_selector("a = 1 AND (b LIKE 'x%' or C)"), parse_selector("  a=1 and b   LIKE 'x%' OR C  ")
    assert one != other
    other = parse_selector("(a=1) and ((b) like 'x%' OR C)")
    assert one == other and hash(one) == hash(other)
    assert parse_selector("a = 1") != parse_selector("a = TRUE") and parse_selector("a = '1'") != parse_selector(
        "a = 1"
    )
    assert parse_selector("a IN (1, 2)") == parse_selector("a IN (2, 1)")
    assert parse_selector("") is MATCHES_ALL


def test_required_header() -> None:
    assert parse_selector("a = 'x' AND b > 1").required_header == ("a", "x")
    assert parse_selector("b > 1 AND 'x' = a").required_header == ("a", "x")
    assert parse_selector("a = 'x' OR b > 1").required_header is None
    assert parse_selector("NOT a = 'x'").required_header is None
    assert parse_selector("a = 1").required_header is None


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x" * (TEXT_SIZE_MAX + 1), "more than 4096 characters"),
        (" OR ".join(["a = 1"] * 100), "more than 200 parts"),
        ("NOT " * 100 + "a", "nests deeper than 32"),
        ("a + " * 40 + "1 = 2", "nests deeper than 32"),
        ("-" * 100 + "a = 1", "nests deeper than 32"),
        ("a IN (" + ",".join(["'x'"] * 200) + ", b, c)", ""),
        ("(" * 200 + "a" + ")" * 200, ""),
        ("(" * 2000 + "a" + ")" * 2000, "more than 500 words and signs"),
        ("a LIKE '%" + "_a" * 40 + "%'", "have 32 characters at most"),
        (" OR ".join([f"a LIKE '%{n}%'" for n in range(21)]), "at most 20 parts between two %"),
        ("a LIKE '%" + "a%" * 21 + "'", "at most 20 parts between two %"),
        (" OR ".join([f"a LIKE '{n}%'" for n in range(40)]), ""),
        ("a LIKE '%_" + "a" * 40 + "%' OR b LIKE '%_" + "a" * 40 + "%'", "have 32 characters at most"),
        ("(" * 400, "incomplete"),
        ("(" * 4000, "more than 500 words and signs"),
        ("a = '" + "''" * 2000, "cannot be read"),
        ("[" * 499, "cannot be read"),
        ("1" * 4000 + " = a", "number too large"),
        ("1e" + "9" * 4000 + " = a", "number too large"),
    ],
)
def test_selectors_that_are_too_large_are_rejected_quickly(
    text: str, error: str, processor_s: Callable[..., float]
) -> None:
    parse_selector("warm = 1")

    def parse_once() -> None:
        if error:
            with pytest.raises(BadSelector, match=error):
                parse_selector(text)
        else:
            parse_selector(text).matches(Message(SHIPMENT))

    assert min(processor_s(parse_once) for _ in range(3)) < 0.3


LONG = "ab" * 60_000


@pytest.mark.parametrize(
    "text",
    [
        "a LIKE '%" + "a%" * 19 + "c%'",
        "a LIKE '%" + "abab" * 300 + "c%'",
        "a LIKE '%" + "a_" * 15 + "c%'",
        "a LIKE '" + "a_" * 900 + "c%'",
        " OR ".join([f"a LIKE '%ab{'ba' * number}c%'" for number in range(15)]),
        " AND ".join(["big * " * 15 + "big * 1.5 > 0"] * 5),
        "big" + " * big" * 25 + " > 0 AND big" + " * big" * 25 + " + 1.5 > 0",
    ],
)
def test_expensive_selectors_stay_fast(text: str, processor_s: Callable[..., float]) -> None:
    selector = parse_selector(text)
    message = Message({"a": LONG, "big": 2**63 - 1})
    assert min(processor_s(lambda: selector.matches(message)) for _ in range(3)) < 0.1
