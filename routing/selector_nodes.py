"""What a selector is made of once it is understood: conditions over values, immutable and comparable.

Two selectors are the same when their trees are equal, whatever their spaces, parentheses and capitals. A tree knows its
size (nodes) and depth, so that the parser stops at one too large while it is still being made.

A condition is true, false or unknown, as in SQL; a value is a number, a text, a truth value, or NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias, final

from amqpd.routing.selector_fields import FieldRule

Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
Operator: TypeAlias = Literal["+", "-", "*", "/", "%"]


class Node:
    """Equal to one of its class with equal parts."""

    __slots__ = ("depth", "parts", "size")

    def __init__(self, *parts: object) -> None:
        self.parts: Final = parts
        nodes = self._nodes()
        self.size: Final[int] = 1 + sum([node.size for node in nodes])
        self.depth: Final[int] = 1 + max([node.depth for node in nodes], default=0)

    def _nodes(self) -> list[Node]:
        found = [part for part in self.parts if isinstance(part, Node)]
        for part in self.parts:
            if isinstance(part, (tuple, frozenset)):
                found += [item for item in part if isinstance(item, Node)]
        return found

    def all(self) -> Iterator[Node]:
        """The node itself and all that it is made of."""
        yield self
        for node in self._nodes():
            yield from node.all()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and type(other) is type(self) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.parts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(part) for part in self.parts])})"


class Value(Node):
    """Something with a value."""

    __slots__ = ()


class Condition(Node):
    """Something true, false or unknown."""

    __slots__ = ()


@final
class Constant(Value):
    """A number, a text or a truth value. `parts` has its kind too: to Python 1 and True are equal."""

    __slots__ = ("value",)

    def __init__(self, value: float | str | bool) -> None:
        kind = "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
        super().__init__(kind, value)
        self.value: Final[float | str | bool] = value

    def number(self) -> float | None:
        """None when it is no number."""
        return None if isinstance(self.value, (str, bool)) else self.value


@final
class Header(Value):
    """A header by its name; a header that is void counts as absent, as NULL."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name: Final = name


@final
class Field(Value):
    """A property, the exchange or the routing key."""

    __slots__ = ("rule",)

    def __init__(self, rule: FieldRule) -> None:
        super().__init__(rule)
        self.rule: Final = rule


@final
class Now(Value):
    """UTC(): milliseconds since 1970."""

    __slots__ = ()


@final
class Negative(Value):
    """-value."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value: Final = value


@final
class Arithmetic(Value):
    """left op right. What cannot be reckoned (a text, NULL, a division by 0) is NULL."""

    __slots__ = ("left", "operator", "right")

    def __init__(self, operator: Operator, left: Value, right: Value) -> None:
        super().__init__(operator, left, right)
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right


@final
class Truth(Value):
    """The value of a condition: true, false, or NULL where it is unknown."""

    __slots__ = ("condition",)

    def __init__(self, condition: Condition) -> None:
        super().__init__(condition)
        self.condition: Final = condition


@final
class IsTrue(Condition):
    """A value where a condition is wanted: unknown unless it is a truth value."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value: Final = value


@final
class Compare(Condition):
    """left op right. Unknown when either is NULL, false when they are of unlike types."""

    __slots__ = ("left", "operator", "right")

    def __init__(self, operator: Comparison, left: Value, right: Value) -> None:
        super().__init__(operator, left, right)
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right


@final
class OneOf(Condition):
    """value IN (constants). Unknown when it is NULL."""

    __slots__ = ("choices", "value")

    def __init__(self, value: Value, choices: frozenset[Constant]) -> None:
        super().__init__(value, choices)
        self.value: Final = value
        self.choices: Final = choices


@final
class Like(Condition):
    """value LIKE pattern ESCAPE escape ("": none). Unknown unless the value is a text.

    loose: characters of the pattern that are dear (`selector_like.py`).
    """

    __slots__ = ("escape", "loose", "pattern", "value")

    def __init__(self, value: Value, pattern: str, escape: str, loose: int) -> None:
        self.loose: Final = loose
        super().__init__(value, pattern, escape)
        self.value: Final = value
        self.pattern: Final = pattern
        self.escape: Final = escape


@final
class IsNull(Condition):
    """value IS NULL: never unknown."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value: Final = value


@final
class Not(Condition):
    """Unknown when its condition is."""

    __slots__ = ("condition",)

    def __init__(self, condition: Condition) -> None:
        super().__init__(condition)
        self.condition: Final = condition


@final
class And(Condition):
    """False when any is, else unknown when any is."""

    __slots__ = ("conditions",)

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        super().__init__(conditions)
        self.conditions: Final = conditions


@final
class Or(Condition):
    """True when any is, else unknown when any is."""

    __slots__ = ("conditions",)

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        super().__init__(conditions)
        self.conditions: Final = conditions
