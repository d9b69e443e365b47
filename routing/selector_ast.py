"""The tree of a parsed selector, which evaluates messages.

A condition is TRUE, FALSE or UNKNOWN, as in SQL. A value is a number, a text, a boolean or NULL, which is None here and
also the value of an absent header. A header of another type (array, table, bytes) is present, but it is equal to
nothing and has no order.

Nodes are immutable. Two selectors are equal if their trees are equal: spaces, parentheses and the case of keywords do
not matter. A node knows its size and depth, so the parser stops while it builds a tree that is too large. Within these
bounds evaluation is fast and does not raise. Integers are exact up to 64 bits, then approximate.

**LIKE.** `%` matches any text, `_` one character; the escape character makes the next one literal. A pattern is split
at its `%` into pieces. The first piece must begin the text and the last must end it. The others are searched from left
to right, each after the previous one; backtracking would find nothing else. A piece without `_` is searched by
`str.find`, which is linear. A piece with `_` is tried at each position. So the cost is the length of the text times
the number of pieces, or times the characters of pieces with `_`. The parser limits both.

Compiled by mypyc. Source: Jakarta Messaging 3.1, 3.8.1.1 (types) to 3.8.1.3 (NULL). Comments mark the differences
between JMS and RabbitMQ 4.2.
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

WILDCARD_CHARACTERS_MAX: Final = 32
"""Total length, per selector, of the pieces that contain `_` and have a `%` on both sides."""
SEARCHES_MAX: Final = 20
"""Pieces per selector without `_` and with a `%` on both sides. Together they cost at most 20 ms for a text of 128 KiB,
the largest that a frame holds, and usually a thousandth of that.
"""

_Piece: TypeAlias = list[str | None]  # None: any one character


class LikePattern:
    """A LIKE pattern.

    Attributes:
        wildcard_characters: total length of the inner pieces with `_`.
        searches: number of the inner pieces without `_`.
    """

    wildcard_characters: int = 0
    searches: int = 0

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        raise NotImplementedError


def parse_like_pattern(pattern: str, escape: str) -> LikePattern:
    """Return the compiled pattern.

    Args:
        escape: one character, or "" for none.

    Raises: BadSelector, without a position.
    """
    pieces = _pieces(pattern, escape)
    first = pieces[0]
    if len(pieces) == 1:
        return _WildcardText(first) if None in first else _LiteralText(_text(first))
    last = pieces[len(pieces) - 1]
    between = [piece for piece in pieces[1 : len(pieces) - 1] if piece]
    if None in first or None in last or any([None in piece for piece in between]):  # noqa: C419
        return _WildcardPieces(first, between, last)
    if len(between) == 1 and not first and not last:
        return _Inside(_text(between[0]))
    return _LiteralPieces(_text(first), [_text(piece) for piece in between], _text(last))


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
class _LiteralText(LikePattern):
    """A pattern without wildcards."""

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def matches(self, text: str) -> bool:
        return text == self._text


@final
class _Inside(LikePattern):
    """%text%"""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self.searches = 1

    def matches(self, text: str) -> bool:
        return self._text in text


@final
class _LiteralPieces(LikePattern):
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
class _WildcardText(LikePattern):
    """A pattern without %, but with _."""

    def __init__(self, piece: _Piece) -> None:
        self._expression: Final = _expression(piece)

    def matches(self, text: str) -> bool:
        return self._expression.fullmatch(text) is not None


@final
class _WildcardPieces(LikePattern):
    """first%between%...%last, with _ in at least one piece."""

    def __init__(self, first: _Piece, between: list[_Piece], last: _Piece) -> None:
        self._first: Final = _expression(first)
        self._between: Final = [_expression(piece) for piece in between]
        self._last: Final = _expression(last)
        self._first_size: int = len(first)
        self._last_size: int = len(last)
        self.wildcard_characters = sum([len(piece) for piece in between if None in piece])
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
    """A message for selectors. One object serves all selectors of a message, so the message is decoded once."""

    def headers(self) -> dict[str, object]:
        """Return the decoded headers, empty if there are none. Must not be changed."""
        raise NotImplementedError

    def field(self, number: int) -> object:
        """Return a property, the exchange or the routing key, by its number in `selector_fields.py`, or None."""
        raise NotImplementedError


def as_number(value: object) -> Any:
    """Return `value` if it is a number, otherwise None. A boolean is not a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return float(value) if isinstance(value, Decimal) else None


def bound_number(value: Any) -> object:
    """Return a computed number. An integer over 64 bits becomes a float, so that none grows forever; NaN is NULL."""
    if isinstance(value, int):
        return value if -INTEGER_MAX <= value <= INTEGER_MAX else float(value)
    return value if value == value else None


def compare_texts(code: i64, left: str, right: str) -> bool:
    """Compare texts. rabbit: texts have an order, that of their characters; JMS has only = and <>."""
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
        return bool(left < right or left > right)  # NaN compares as false with every operator
    if code == _LESS:
        return bool(left < right)
    if code == _LESS_OR_EQUAL:
        return bool(left <= right)
    return bool(left > right if code == _MORE else left >= right)


def compare_values(code: i64, left: object, right: object) -> bool:
    """Compare values that are not NULL.

    Values of different types compare as false with every operator (JMS 3.8.1.2).
    """
    if isinstance(left, str):
        return isinstance(right, str) and compare_texts(code, left, right)
    if isinstance(left, bool):
        if not isinstance(right, bool) or code > _UNEQUAL:  # booleans have no order
            return False
        return (left is right) == (code == _EQUAL)
    one = as_number(left)
    other = as_number(right)
    return one is not None and other is not None and compare_numbers(code, one, other)


class SelectorNode:
    """A node of the tree. Equal to a node of the same class with equal parts."""

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
        """Return this node and all nodes below it."""
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
    """A node that has a value."""

    def evaluate(self, message: Selectable) -> object:
        """Return a number, a text, a boolean or another header value; None for NULL."""
        raise NotImplementedError


class Condition(SelectorNode):
    """A node that is true, false or unknown."""

    def truth(self, message: Selectable) -> i64:
        """Return TRUE, FALSE or UNKNOWN."""
        raise NotImplementedError


# Values


@final
class Constant(Value):
    """A number, a text or a boolean. `parts` includes the kind, because 1 == True in Python."""

    def __init__(self, value: object) -> None:
        super().__init__(("bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value))
        self.value: Final = value

    def evaluate(self, message: Selectable) -> object:
        return self.value


@final
class Header(Value):
    """A header by its name. A void header counts as absent."""

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
    """Return the value of a field in the form of its name.

    "number": the digits of `expiration` as a number. "milliseconds": the seconds of `timestamp` as milliseconds.
    Otherwise the delivery mode in the words of JMS.
    """
    if form == "number":
        return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 18 else None
    if form == "milliseconds":
        return value * 1000 if isinstance(value, int) else None
    return PERSISTENT if value == DELIVERY_MODE_PERSISTENT else NON_PERSISTENT


@final
class CurrentTime(Value):
    """UTC(): milliseconds since 1970."""

    def __init__(self) -> None:
        super().__init__(())

    def evaluate(self, message: Selectable) -> object:
        return time.time_ns() // 1_000_000


@final
class Negative(Value):
    """-value; NULL if the value is not a number."""

    def __init__(self, value: Value) -> None:
        super().__init__((value,))
        self.value: Final = value

    def evaluate(self, message: Selectable) -> object:
        number = as_number(self.value.evaluate(message))
        return None if number is None else bound_number(-number)


@final
class Arithmetic(Value):
    """`left operator right` on numbers. NULL if an operand is not a number, and for a division by 0."""

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
    """Return left % right with the sign of `left`, as in Java; also for floats."""
    if isinstance(left, int) and isinstance(right, int):
        rest: Any = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return bound_number(math.fmod(left, right)) if math.isfinite(left) else None


@final
class BooleanValue(Value):
    """The value of a condition: true, false, or NULL for unknown."""

    def __init__(self, condition: Condition) -> None:
        super().__init__((condition,))
        self.condition: Final = condition

    def evaluate(self, message: Selectable) -> object:
        truth = self.condition.truth(message)
        return None if truth == UNKNOWN else truth == TRUE


# Conditions


@final
class IsTrue(Condition):
    """A value used as a condition: unknown unless it is a boolean."""

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
    """left operator right. Unknown if either is NULL, false if their types differ."""

    def __init__(self, operator: str, left: Value, right: Value) -> None:
        super().__init__((operator, left, right))
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right
        self._code: i64 = COMPARISONS.index(operator)
        # The fast path: most selectors compare with a text constant.
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
    """value IN (constants). Unknown if the value is NULL."""

    def __init__(self, value: Value, choices: frozenset[Constant]) -> None:
        super().__init__((value, choices))
        self.value: Final = value
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
    """value LIKE pattern ESCAPE escape ("" for none). rabbit: unknown unless the value is a text."""

    def __init__(self, value: Value, pattern: str, escape: str) -> None:
        super().__init__((value, pattern, escape))
        self.value: Final = value
        self._pattern: Final = parse_like_pattern(pattern, escape)

    def truth(self, message: Selectable) -> i64:
        value = self.value.evaluate(message)
        if not isinstance(value, str):
            return UNKNOWN
        return TRUE if self._pattern.matches(value) else FALSE

    def wildcard_characters(self) -> int:
        """Return the total length of the inner pieces with `_`."""
        return self._pattern.wildcard_characters

    def searches(self) -> int:
        """Return the number of the inner pieces without `_`."""
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
    """NOT condition: unknown if the condition is."""

    def __init__(self, condition: Condition) -> None:
        super().__init__((condition,))
        self.condition: Final = condition

    def truth(self, message: Selectable) -> i64:
        truth = self.condition.truth(message)
        return truth if truth == UNKNOWN else TRUE - truth


@final
class And(Condition):
    """False if any condition is false, otherwise unknown if any is unknown."""

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
    """True if any condition is true, otherwise unknown if any is unknown."""

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
