"""What a selector is made of once it is understood: conditions over values, which say of a message whether it matches.

Truth has three values, as in SQL: a condition is TRUE, FALSE or UNKNOWN. A value is a number, a text, a truth value,
or NULL, which is None here and what an absent header is. A header of another type (array, table, octets) is there,
but equal to nothing and neither less nor more.

Nodes are immutable. Two selectors are the same when their trees are equal, whatever their spaces, parentheses and
capitals. A tree knows its size (nodes) and depth, so that the parser stops at one too large while it is being made;
within these bounds nothing here is slow, and nothing raises. Integers are exact up to 64 bits and approximate beyond.

Compiled by mypyc. Source: Jakarta Messaging 3.1, 3.8.1.1 (types) to 3.8.1.3 (NULL); where JMS and RabbitMQ 4.2 differ
it is said at the place.

LIKE: `%` stands for any characters, `_` for one; the escape character takes the meaning of what follows it.

A pattern is cut at its `%` into pieces. The first must begin the text, the last must end it, and those between are
looked for from left to right, each behind the one before, which is all that backtracking could find. A piece without
`_` is looked for by the string's own search (linear), one with `_` place by place, so the cost of a text is its length
times the pieces, or the characters of pieces with `_`. A selector may not have many of either.

Compiled by mypyc.
"""

from __future__ import annotations

import math
import re
import time
from decimal import Decimal
from typing import Any, Final, TypeAlias, final

from mypy_extensions import i64, mypyc_attr

from amqpd.routing.base import BadSelector
from amqpd.routing.selector_fields import DELIVERY_MODE_PERSISTENT, NON_PERSISTENT, PERSISTENT, FieldRule

LOOSE_CHARACTERS_MAX: Final = 32
"""Of all pieces in one selector that have `_` in them and a `%` on both sides."""
SEARCHES_MAX: Final = 20
"""Pieces in one selector without `_` and with a `%` on both sides. All together cost 20 ms at most for a text of
128 KiB, the largest that a frame holds, and usually a thousandth of that.
"""

_Piece: TypeAlias = list[str | None]  # None: any one character


class Pattern:
    """What says whether a text is like a pattern, all of it.

    loose: characters that are looked for place by place. searches: pieces that are looked for otherwise.
    """

    loose: int = 0
    searches: int = 0

    def matches(self, text: str) -> bool:
        raise NotImplementedError


def pattern_of(pattern: str, escape: str) -> Pattern:
    """The pattern, taken apart.

    escape: one character, "" for none. Raises: BadSelector (without a place).
    """
    pieces = _pieces(pattern, escape)
    first = pieces[0]
    if len(pieces) == 1:
        return _Loose(first) if None in first else _Exact(_text(first))
    last = pieces[len(pieces) - 1]
    between = [piece for piece in pieces[1 : len(pieces) - 1] if piece]
    if None in first or None in last or any([None in piece for piece in between]):  # noqa: C419
        return _LoosePieces(first, between, last)
    if not between:
        return _Ends(_text(first), _text(last))
    if len(between) == 1 and not first and not last:
        return _Inside(_text(between[0]))
    return _Pieces(_text(first), [_text(piece) for piece in between], _text(last))


def _pieces(pattern: str, escape: str) -> list[_Piece]:
    piece: _Piece = []
    pieces: list[_Piece] = [piece]
    escaped = False
    for character in pattern:
        if escaped:
            piece.append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "%":
            piece = []
            pieces.append(piece)
        elif character == "_":
            piece.append(None)
        else:
            piece.append(character)
    if escaped:
        raise BadSelector("the LIKE pattern ends with its escape character")
    return pieces


def _text(piece: _Piece) -> str:
    return "".join([character for character in piece if character is not None])


def _expression(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join(["." if c is None else re.escape(c) for c in piece]), re.DOTALL)


@final
class _Exact(Pattern):
    def __init__(self, text: str) -> None:
        self._text: Final = text

    def matches(self, text: str) -> bool:
        return text == self._text


@final
class _Ends(Pattern):
    """first%last, either of which may be empty."""

    def __init__(self, first: str, last: str) -> None:
        self._first: Final = first
        self._last: Final = last
        self._size_min: int = len(first) + len(last)

    def matches(self, text: str) -> bool:
        return len(text) >= self._size_min and text.startswith(self._first) and text.endswith(self._last)


@final
class _Inside(Pattern):
    """%text%"""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self.searches = 1

    def matches(self, text: str) -> bool:
        return self._text in text


@final
class _Pieces(Pattern):
    """first%between%...%last"""

    def __init__(self, first: str, between: list[str], last: str) -> None:
        self._first: Final = first
        self._between: Final = between
        self._last: Final = last
        self._size_min: int = len(first) + len(last)
        self.searches = len(between)

    def matches(self, text: str) -> bool:
        if len(text) < self._size_min or not text.startswith(self._first) or not text.endswith(self._last):
            return False
        position = len(self._first)
        end = len(text) - len(self._last)
        for piece in self._between:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True


@final
class _Loose(Pattern):
    """A pattern without %."""

    def __init__(self, piece: _Piece) -> None:
        self._expression: Final = _expression(piece)

    def matches(self, text: str) -> bool:
        return self._expression.fullmatch(text) is not None


@final
class _LoosePieces(Pattern):
    """first%between%...%last with places for any one character."""

    def __init__(self, first: _Piece, between: list[_Piece], last: _Piece) -> None:
        self._first: Final = _expression(first)
        self._between: Final = [_expression(piece) for piece in between]
        self._last: Final = _expression(last)
        self._first_size: int = len(first)
        self._last_size: int = len(last)
        self.loose = sum([len(piece) for piece in between if None in piece])
        self.searches = sum([1 for piece in between if None not in piece])

    def matches(self, text: str) -> bool:
        position = self._first_size
        end = len(text) - self._last_size
        if end < position or self._first.match(text) is None or self._last.match(text, end) is None:
            return False
        for piece in self._between:
            found = piece.search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True


FALSE: Final = 0
TRUE: Final = 1
UNKNOWN: Final = -1

INTEGER_MAX: Final = 2**63
COMPARISONS: Final = ["=", "<>", "<", "<=", ">", ">="]
_EQUAL: Final = 0
_UNEQUAL: Final = 1
_LESS: Final = 2
_LESS_OR_EQUAL: Final = 3
_MORE: Final = 4


@mypyc_attr(allow_interpreted_subclasses=True)
class Selectable:
    """A message as selectors see it. One serves all selectors that look at the message, so it decodes once, when
    asked."""

    def headers(self) -> dict[str, object]:
        """Decoded, not to be changed; empty when there are none."""
        raise NotImplementedError

    def field(self, number: int) -> object:
        """A property (`selector_fields.py` has the numbers), the exchange or the routing key. None: absent."""
        raise NotImplementedError


def as_number(value: object) -> Any:
    """`value` if it is a number, else None. Truth values are no numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return float(value) if isinstance(value, Decimal) else None


def bound_number(value: Any) -> object:
    """What was reckoned: an integer beyond 64 bits becomes approximate, so that none grows without end; NaN is NULL."""
    if isinstance(value, int):
        return value if -INTEGER_MAX <= value <= INTEGER_MAX else float(value)
    return value if value == value else None


def compare_texts(code: i64, left: str, right: str) -> bool:
    """rabbit: texts have an order, that of their characters; JMS knows = and <> only."""
    if code == _EQUAL:
        return left == right
    if code == _UNEQUAL:
        return left != right
    if code == _LESS:
        return left < right
    if code == _LESS_OR_EQUAL:
        return left <= right
    return left > right if code == _MORE else left >= right


def compare_numbers(code: i64, left: Any, right: Any) -> bool:
    if code == _EQUAL:
        return bool(left == right)
    if code == _UNEQUAL:
        return bool(left < right or left > right)  # NaN is not unequal: it is no number to compare
    if code == _LESS:
        return bool(left < right)
    if code == _LESS_OR_EQUAL:
        return bool(left <= right)
    return bool(left > right if code == _MORE else left >= right)


def compare_values(code: i64, left: object, right: object) -> bool:
    """Of values that are not NULL; false of unlike types, whatever the operator: JMS 3.8.1.2."""
    if isinstance(left, str):
        return isinstance(right, str) and compare_texts(code, left, right)
    if isinstance(left, bool):
        if not isinstance(right, bool) or code > _UNEQUAL:  # truth values have no order
            return False
        return (left is right) == (code == _EQUAL)
    one = as_number(left)
    other = as_number(right)
    return one is not None and other is not None and compare_numbers(code, one, other)


class SelectorNode:
    """Equal to one of its class with equal parts."""

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts: Final = parts
        size = 1
        depth = 0
        for node in self._children():
            size += node.size
            depth = max(depth, node.depth)
        self.size: int = size
        self.depth: int = depth + 1

    def _children(self) -> list[SelectorNode]:
        found: list[SelectorNode] = []
        for part in self.parts:
            if isinstance(part, SelectorNode):
                found.append(part)
            elif isinstance(part, (tuple, frozenset)):
                found += [item for item in part if isinstance(item, SelectorNode)]
        return found

    def walk(self) -> list[SelectorNode]:
        """The node itself and all that it is made of."""
        found: list[SelectorNode] = [self]
        for node in self._children():
            found += node.walk()
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SelectorNode) and type(other) is type(self) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.parts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(part) for part in self.parts])})"


class Value(SelectorNode):
    """Something with a value."""

    def evaluate(self, message: Selectable) -> object:
        """A number, a text, a truth value, anything else a header can be; None for NULL."""
        raise NotImplementedError


class Condition(SelectorNode):
    """Something true, false or unknown."""

    def truth(self, message: Selectable) -> i64:
        """TRUE, FALSE or UNKNOWN."""
        raise NotImplementedError


# Values


@final
class Constant(Value):
    """A number, a text or a truth value. `parts` has its kind too: to Python 1 and True are equal."""

    def __init__(self, value: object) -> None:
        super().__init__(("bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value))
        self.value: Final = value

    def evaluate(self, message: Selectable) -> object:
        return self.value


@final
class Header(Value):
    """A header by its name; one that is void counts as absent."""

    def __init__(self, name: str) -> None:
        super().__init__((name,))
        self.name: Final = name

    def evaluate(self, message: Selectable) -> object:
        return message.headers().get(self.name)


@final
class Field(Value):
    """A property, the exchange or the routing key."""

    def __init__(self, rule: FieldRule) -> None:
        super().__init__((rule,))
        self.rule: Final = rule
        self._number: int = rule.number
        self._form: str = rule.form
        self._header: str = rule.header
        self._default: object = rule.default

    def evaluate(self, message: Selectable) -> object:
        value = message.field(self._number)
        if value is not None:
            return value if self._form == "" else convert_field(self._form, value)
        if self._header != "":
            value = message.headers().get(self._header)
        return self._default if value is None else value


def convert_field(form: str, value: object) -> object:
    """The value of a field in the form that its name promises: the digits of `expiration` as a number, the seconds of
    `timestamp` as milliseconds, JMS' words for the delivery mode.
    """
    if form == "number":
        return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 18 else None
    if form == "milliseconds":
        return value * 1000 if isinstance(value, int) else None
    return PERSISTENT if value == DELIVERY_MODE_PERSISTENT else NON_PERSISTENT


@final
class Now(Value):
    """UTC(): milliseconds since 1970."""

    def __init__(self) -> None:
        super().__init__(())

    def evaluate(self, message: Selectable) -> object:
        return time.time_ns() // 1_000_000


@final
class Negative(Value):
    """-value; NULL when it is no number."""

    def __init__(self, value: Value) -> None:
        super().__init__((value,))
        self.value: Final = value

    def evaluate(self, message: Selectable) -> object:
        number = as_number(self.value.evaluate(message))
        return None if number is None else bound_number(-number)


@final
class Arithmetic(Value):
    """left op right. What cannot be reckoned (a text, NULL, a division by 0) is NULL."""

    def __init__(self, operator: str, left: Value, right: Value) -> None:
        super().__init__((operator, left, right))
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right

    def evaluate(self, message: Selectable) -> object:
        left = as_number(self.left.evaluate(message))
        right = as_number(self.right.evaluate(message))
        if left is None or right is None:
            return None
        operator = self.operator
        if operator == "+":
            return bound_number(left + right)
        if operator == "-":
            return bound_number(left - right)
        if operator == "*":
            return bound_number(left * right)
        if right == 0:
            return None
        return bound_number(left / right) if operator == "/" else remainder(left, right)  # rabbit: 5 / 2 is 2.5


def remainder(left: Any, right: Any) -> object:
    """What is left over has the sign of what was divided, as in Java; of approximate numbers too."""
    if isinstance(left, int) and isinstance(right, int):
        rest: Any = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return bound_number(math.fmod(left, right)) if math.isfinite(left) else None


@final
class BooleanValue(Value):
    """The value of a condition: true, false, or NULL where it is unknown."""

    def __init__(self, condition: Condition) -> None:
        super().__init__((condition,))
        self.condition: Final = condition

    def evaluate(self, message: Selectable) -> object:
        truth = self.condition.truth(message)
        return None if truth == UNKNOWN else truth == TRUE


# Conditions


@final
class IsTrue(Condition):
    """A value where a condition is wanted: unknown unless it is a truth value."""

    def __init__(self, value: Value) -> None:
        super().__init__((value,))
        self.value: Final = value

    def truth(self, message: Selectable) -> i64:
        value = self.value.evaluate(message)
        if not isinstance(value, bool):
            return UNKNOWN
        return TRUE if value else FALSE


@final
class Compare(Condition):
    """left op right. Unknown when either is NULL, false when they are of unlike types."""

    def __init__(self, operator: str, left: Value, right: Value) -> None:
        super().__init__((operator, left, right))
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right
        self._code: i64 = COMPARISONS.index(operator)
        # What most selectors compare with.
        self._text: str | None = None
        if isinstance(right, Constant) and isinstance(right.value, str):
            self._text = right.value

    def truth(self, message: Selectable) -> i64:
        left = self.left.evaluate(message)
        if left is None:
            return UNKNOWN
        text = self._text
        if text is not None:
            return TRUE if isinstance(left, str) and compare_texts(self._code, left, text) else FALSE
        right = self.right.evaluate(message)
        if right is None:
            return UNKNOWN
        return TRUE if compare_values(self._code, left, right) else FALSE


@final
class OneOf(Condition):
    """value IN (constants). Unknown when it is NULL."""

    def __init__(self, value: Value, choices: frozenset[Constant]) -> None:
        super().__init__((value, choices))
        self.value: Final = value
        self.choices: Final = choices
        self._others: set[object] = {choice.value for choice in choices if not isinstance(choice.value, bool)}
        self._booleans: list[object] = [choice.value for choice in choices if isinstance(choice.value, bool)]

    def truth(self, message: Selectable) -> i64:
        value = self.value.evaluate(message)
        if value is None:
            return UNKNOWN
        if isinstance(value, bool):
            return TRUE if value in self._booleans else FALSE
        if not isinstance(value, str):
            value = as_number(value)
        return TRUE if value in self._others else FALSE


@final
class Like(Condition):
    """value LIKE pattern ESCAPE escape ("": none). rabbit: unknown unless the value is a text."""

    def __init__(self, value: Value, pattern: str, escape: str) -> None:
        super().__init__((value, pattern, escape))
        self.value: Final = value
        self.pattern: Final = pattern
        self.escape: Final = escape
        self._pattern: Final = pattern_of(pattern, escape)

    def truth(self, message: Selectable) -> i64:
        value = self.value.evaluate(message)
        if not isinstance(value, str):
            return UNKNOWN
        return TRUE if self._pattern.matches(value) else FALSE

    def loose(self) -> int:
        """Characters of the pattern that are dear."""
        return self._pattern.loose

    def searches(self) -> int:
        """Pieces of the pattern that are looked for in the text."""
        return self._pattern.searches


@final
class IsNull(Condition):
    """value IS NULL: never unknown."""

    def __init__(self, value: Value) -> None:
        super().__init__((value,))
        self.value: Final = value

    def truth(self, message: Selectable) -> i64:
        return TRUE if self.value.evaluate(message) is None else FALSE


@final
class Not(Condition):
    """Unknown when its condition is."""

    def __init__(self, condition: Condition) -> None:
        super().__init__((condition,))
        self.condition: Final = condition

    def truth(self, message: Selectable) -> i64:
        truth = self.condition.truth(message)
        return truth if truth == UNKNOWN else TRUE - truth


@final
class And(Condition):
    """False when any is, else unknown when any is."""

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        super().__init__((conditions,))
        self.conditions: Final = conditions

    def truth(self, message: Selectable) -> i64:
        found: i64 = TRUE
        for condition in self.conditions:
            truth = condition.truth(message)
            if truth == FALSE:
                return FALSE
            if truth == UNKNOWN:
                found = UNKNOWN
        return found


@final
class Or(Condition):
    """True when any is, else unknown when any is."""

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        super().__init__((conditions,))
        self.conditions: Final = conditions

    def truth(self, message: Selectable) -> i64:
        found: i64 = FALSE
        for condition in self.conditions:
            truth = condition.truth(message)
            if truth == TRUE:
                return TRUE
            if truth == UNKNOWN:
                found = UNKNOWN
        return found
