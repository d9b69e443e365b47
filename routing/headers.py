"""The headers exchange: bindings are conditions on the headers of a message; the routing key plays no part.

`x-match` says how the conditions of a binding combine: `all` (the default) or `any`, both blind to binding arguments
whose name starts with `x-`; `all-with-x` and `any-with-x` see those too (never `x-match` itself). A void argument asks
that the header be present; every other one asks for an equal value of the same type class. Classes are those of
RabbitMQ: integers of any width and sign are one class, float and double one, and every other type stands alone, so
`1`, `'1'`, `True`, `1.0` and the timestamp 1 are five different values. Without conditions `all` accepts everything and
`any` nothing.

**Index.** Bindings with the same conditions share a Rule. A rule for `any` waits under each of its conditions; a rule
for `all` waits under one of them only, the one that fewest rules wait under when it is made, and the rest is checked
once that one holds. So among ten thousand bindings `{format: pdf, customer: N}` a message meets only its customer's.
Values are compared in the form that `comparable` gives them, made once for each header that some rule asks about.

Source: AMQP 0-9-1, 3.1.3.4; classes, `-with-x`, void and the empty cases: RabbitMQ.
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
    """A hashable stand-in: two are equal exactly when the field values are, type class included.

    Nested tables compare without regard to order; numbers within them by class too. Cost: the size of the value.
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
    if isinstance(value, float) and value != value:  # else a binding on NaN could never be found again
        return (kind, None)
    return (kind, value)


PRESENT: Final = comparable(None)
"""Stands for the condition "this header is there, whatever its value"."""


@final
class HeadersRule:
    """The conditions that some bindings have in common, and where these lead."""

    def __init__(self, conditions: list[tuple[str, object]], destinations: set[object]) -> None:
        self.conditions = conditions
        self.destinations = destinations
        self.indexed_under: list[tuple[str, object]] = []  # the conditions it waits under

    def matches(self, headers: Arguments, known: dict[str, object]) -> bool:
        """Whether every condition holds; known: what `comparable` said so far about these headers, filled as needed."""
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
    """The rules that wait under one condition, by their identity in the binding table."""

    def __init__(self) -> None:
        self.any_rules: dict[object, HeadersRule] = {}
        self.all_rules: dict[object, HeadersRule] = {}


@final
class Headers:
    """Matching structure of one headers exchange."""

    depends_on: ClassVar[int] = HEADERS

    def __init__(self) -> None:
        self._table = BindingTable()
        self._rules: dict[object, HeadersRule] = {}
        self._index: dict[str, dict[object, ConditionSlot]] = {}
        self._match_all_identity: object = (True, frozenset())  # the identity of a rule for `all` without conditions

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding for an `x-match` that is no string, or none of the four. RabbitMQ's texts, 406."""
        parse_match_mode(arguments)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: the conditions of the binding. Raises: BadBinding as `validate`."""
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
        """Cost: the conditions of the binding. Raises: KeyError if there is no such binding, an error of the caller."""
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
        """Destinations whose conditions hold; not to be changed.

        headers: decoded, None when the message has none. Raises: nothing.
        Cost: the headers, and the rules that wait under a condition of theirs that holds (an `all` rule at most once).
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
                if slot is not None and slot is not present:  # a void header is its own PRESENT
                    self._collect(slot, headers, known, found)
        return union(found)

    def is_empty(self) -> bool:
        """Whether nothing that a message would be held against is left. Cost: O(1)."""
        return not self._rules and not self._index and self._table.get(self._match_all_identity) is None

    def largest_slot(self) -> int:
        """The most `all` rules that one header can call up. Cost: all slots."""
        return max([len(slot.all_rules) for slots in self._index.values() for slot in slots.values()], default=0)

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
    """(all rather than any, conditions named `x-...` count) as `x-match` says. Raises: BadBinding."""
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
    """(all rather than any, conditions as name and comparable value) of a binding. Raises: BadBinding."""
    match_all, with_x = parse_match_mode(arguments)
    conditions = [
        (name, comparable(wanted))
        for name, wanted in arguments.items()
        if name != X_MATCH and (with_x or not name.startswith(X_PREFIX))
    ]
    return match_all, conditions


def field_type_name(value: object) -> str:
    """RabbitMQ's name for the field type of a decoded value.

    The width of an integer is not kept by decoding, so what fits 32 bits is taken for the signedint it mostly is.
    """
    kind = type(value)  # asked before any isinstance: behind one, compiled code has an int without its subclass
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
    """A decoded value as RabbitMQ prints it in its replies: `23`, `<<"foo">>`, `true`, `undefined`."""
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
    """A number as Erlang prints it: plain or with an exponent, the shorter one, and plain when both are as long.

    Erlang has an exponent from 2^53 on, where a float no longer holds every integer.
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
    """`<<"text">>` for printable text, else the bytes as numbers: `<<255,1>>`."""
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
