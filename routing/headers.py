"""The headers exchange: bindings are conditions on the headers of a message. The routing key is ignored.

`x-match` combines the conditions of a binding: `all` (the default) or `any`, which ignore binding arguments whose name
starts with `x-`; `all-with-x` and `any-with-x` include them, except `x-match` itself. A void argument requires that the
header is present; any other requires an equal value of the same type class. Type classes are RabbitMQ's: all integers
are one class, float and double another, and every other type is its own. So `1`, `'1'`, `True`, `1.0` and the timestamp
1 are five different values. Without conditions `all` matches every message and `any` none.

**Index.** Bindings with the same conditions share a `HeadersRule`. An `any` rule is indexed under each of its
conditions. An `all` rule is indexed under one condition only, the one with the fewest rules at that moment; the others
are checked when that one matches. So of ten thousand bindings `{format: pdf, customer: N}` a message meets only those
of its customer. Header values are compared in the form of `comparable`, which is computed once per message and header.

Source: AMQP 0-9-1, 3.1.3.4; RabbitMQ for type classes, `-with-x`, void and bindings without conditions.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar, Final, final

from amqpd.routing.base import HEADERS, BadBinding
from amqpd.routing.bindings import BindingTable, union

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

X_MATCH: Final = "x-match"
X_PREFIX: Final = "x-"
SIGNED_INT_MAX: Final = 2**31 - 1
SIGNED_INT_MIN: Final = -(2**31)
ERLANG_ESCAPES: Final = [("\\", "\\\\"), ('"', '\\"'), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")]


def comparable(value: object) -> object:
    """Return a hashable value that is equal for equal field values of the same type class, and only for these.

    In nested tables the order does not matter, the type class of numbers does. Cost: the size of the value.
    """
    if isinstance(value, str):
        return value
    kind = type(value)
    if isinstance(value, list):
        return (kind, tuple([comparable(item) for item in value]))
    if isinstance(value, dict):
        return (kind, frozenset([(name, comparable(item)) for name, item in value.items()]))
    if isinstance(value, bytearray):
        return (kind, bytes(value))
    if isinstance(value, Decimal):  # rabbit: scale and digits are compared, 1.0 is not 1.00
        return (kind, value.as_tuple())
    if isinstance(value, float) and value != value:  # otherwise a binding on NaN could not be removed
        return (kind, None)
    return (kind, value)


PRESENT: Final = comparable(None)
"""The condition that the header is present."""


@final
class HeadersRule:
    """A set of conditions and the destinations of the bindings that have it."""

    def __init__(self, conditions: list[tuple[str, object]], destinations: set[object]) -> None:
        self.conditions = conditions
        self.destinations = destinations
        self.indexed_under: list[tuple[str, object]] = []  # the conditions in the index that refer to this rule

    def matches(self, headers: Arguments, known: dict[str, object]) -> bool:
        """Return whether all conditions match.

        Args:
            headers: the message's headers.
            known: results of `comparable` for these headers; filled here.
        """
        for name, wanted in self.conditions:
            if name not in headers:
                return False
            if wanted == PRESENT:
                continue
            if name not in known:
                known[name] = comparable(headers[name])
            if known[name] != wanted:
                return False
        return True


@final
class ConditionSlot:
    """The rules that are indexed under one condition, by their key in the binding table."""

    def __init__(self) -> None:
        self.any_rules: dict[object, HeadersRule] = {}
        self.all_rules: dict[object, HeadersRule] = {}


@final
class Headers:
    """The matching structure of a headers exchange."""

    depends_on: ClassVar[int] = HEADERS

    def __init__(self) -> None:
        self._table = BindingTable()
        self._rules: dict[object, HeadersRule] = {}
        self._index: dict[str, dict[object, ConditionSlot]] = {}
        self._match_all_identity: object = (True, frozenset())  # the table key of `all` without conditions

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding for an invalid `x-match`, with RabbitMQ's texts."""
        parse_match_mode(arguments)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. Cost: its conditions. Raises: BadBinding as `validate`."""
        match_all, conditions = parse_conditions(arguments)
        identity = (match_all, frozenset(conditions))
        destinations = self._table.add(identity, destination)
        if not conditions or identity in self._rules:
            return
        rule = HeadersRule(conditions, destinations)
        rule.indexed_under = [self._rarest_condition(conditions)] if match_all else conditions
        self._rules[identity] = rule
        for name, wanted in rule.indexed_under:
            slots = self._index.setdefault(name, {})
            slot = slots.get(wanted)
            if slot is None:
                slot = ConditionSlot()
                slots[wanted] = slot
            if match_all:
                slot.all_rules[identity] = rule
            else:
                slot.any_rules[identity] = rule

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        match_all, conditions = parse_conditions(arguments)
        identity = (match_all, frozenset(conditions))
        if not self._table.remove(identity, destination) or not conditions:
            return
        for name, wanted in self._rules.pop(identity).indexed_under:
            slots = self._index[name]
            slot = slots[wanted]
            if match_all:
                del slot.all_rules[identity]
            else:
                del slot.any_rules[identity]
            if not slot.all_rules and not slot.any_rules:
                del slots[wanted]
                if not slots:
                    del self._index[name]

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return the destinations whose conditions match; callers must not change the set. Does not raise.

        Cost: the headers of the message, and the rules indexed under a matching condition, an `all` rule at most once.
        """
        found: list[set[object]] = []
        always = self._table.get(self._match_all_identity)
        if always is not None:
            found.append(always)
        if headers is not None and self._index:
            known: dict[str, object] = {}
            for name in headers:
                slots = self._index.get(name)
                if slots is None:
                    continue
                present = slots.get(PRESENT)
                if present is not None:
                    self._collect(present, headers, known, found)
                if name not in known:
                    known[name] = comparable(headers[name])
                value = known[name]
                slot = slots.get(value)
                if slot is not None and slot is not present:  # a void header equals PRESENT
                    self._collect(slot, headers, known, found)
        return union(found)

    def is_empty(self) -> bool:
        """Return whether the index is empty. Cost: O(1)."""
        return not self._rules and not self._index and self._table.get(self._match_all_identity) is None

    def _collect(
        self, slot: ConditionSlot, headers: Arguments, known: dict[str, object], found: list[set[object]]
    ) -> None:
        for rule in slot.any_rules.values():
            found.append(rule.destinations)
        for rule in slot.all_rules.values():
            if rule.matches(headers, known):
                found.append(rule.destinations)

    def _rarest_condition(self, conditions: list[tuple[str, object]]) -> tuple[str, object]:
        best = conditions[0]
        best_count = -1
        for condition in conditions:
            slots = self._index.get(condition[0])
            slot = slots.get(condition[1]) if slots is not None else None
            count = len(slot.all_rules) if slot is not None else 0
            if best_count < 0 or count < best_count:
                best = condition
                best_count = count
        return best


def parse_match_mode(arguments: Arguments) -> tuple[bool, bool]:
    """Return (is all, includes conditions named `x-...`). Raises: BadBinding."""
    if X_MATCH not in arguments:
        return True, False
    mode = arguments[X_MATCH]
    if mode == "all":
        return True, False
    if mode == "any":
        return False, False
    if mode == "all-with-x":
        return True, True
    if mode == "any-with-x":
        return False, True
    kind = field_type_name(mode)
    if kind == "longstr":
        raise BadBinding(
            f"Invalid x-match field value {erlang_term(mode)}; expected all, any, all-with-x, or any-with-x"
        )
    raise BadBinding(f"Invalid x-match field type {kind} (value {erlang_term(mode)}); expected longstr")


def parse_conditions(arguments: Arguments) -> tuple[bool, list[tuple[str, object]]]:
    """Return (is all, conditions as name and comparable value). Raises: BadBinding."""
    match_all, with_x = parse_match_mode(arguments)
    conditions = [
        (name, comparable(wanted))
        for name, wanted in arguments.items()
        if name != X_MATCH and (with_x or not name.startswith(X_PREFIX))
    ]
    return match_all, conditions


def field_type_name(value: object) -> str:
    """Return RabbitMQ's name for the type of a decoded field value.

    Decoding does not keep the width of an integer; one that fits 32 bits is reported as signedint.
    """
    kind = type(value)  # before any isinstance: after one, mypyc narrows to int and loses the subclass
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (str, bytes)):
        return "longstr"
    if isinstance(value, int):
        if kind is not int:
            return "timestamp"
        return "signedint" if SIGNED_INT_MIN <= value <= SIGNED_INT_MAX else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, bytearray):
        return "binary"
    return "array" if isinstance(value, list) else "table"


def erlang_term(value: object) -> str:
    """Return a decoded value as RabbitMQ prints it in its replies: `23`, `<<"foo">>`, `true`, `undefined`."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return erlang_binary(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, (bytes, bytearray)):
        return erlang_binary(bytes(value))
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        unscaled = int("".join([str(digit) for digit in digits]))
        return f"{{{-int(exponent)},{-unscaled if sign else unscaled}}}"
    if isinstance(value, list):
        return "[" + ",".join([f"{{{field_type_name(item)},{erlang_term(item)}}}" for item in value]) + "]"
    if isinstance(value, dict):
        fields = [
            f"{{{erlang_term(name)},{field_type_name(item)},{erlang_term(item)}}}" for name, item in value.items()
        ]
        return "[" + ",".join(fields) + "]"
    if isinstance(value, float):
        return erlang_float(value)
    return str(int(value)) if isinstance(value, int) else str(value)


def erlang_float(value: float) -> str:
    """Return a float as Erlang prints it: plain or with an exponent, the shorter one, plain if both are equal.

    From 2^53 on Erlang always prints an exponent: a float does not hold every integer there.
    """
    if value - value != 0.0:  # an infinity or no number
        return str(value)
    plain = format(Decimal(repr(value)), "f")
    if "." not in plain:
        plain += ".0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, rest = str(digits[0]), "".join([str(digit) for digit in digits[1:]])
    scientific = f"{'-' if sign else ''}{first}.{rest or '0'}e{int(exponent) + len(digits) - 1}"
    return plain if abs(value) < 2.0**53 and len(plain) <= len(scientific) else scientific


def erlang_binary(data: bytes) -> str:
    """Return `<<"text">>` for printable text, otherwise the bytes as numbers: `<<255,1>>`."""
    if not data:
        return "<<>>"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    for plain, escaped in ERLANG_ESCAPES:
        text = text.replace(plain, escaped)
    if text.isprintable():
        return f'<<"{text}">>'
    return "<<" + ",".join([str(byte) for byte in data]) + ">>"
