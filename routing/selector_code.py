"""A selector's tree becomes one Python function of the message, which says whether the message matches.

**Three values in two.** A selector matches when it is true; false and unknown are the same in the end. So each
condition is written twice at most, as an expression that says whether it is true and as one that says whether it is
false, and unknown is where neither holds: NOT exchanges the two, and AND is false where an operand is false. What
comes out is plain `and`, `or` and comparisons.

**Values.** Each value has one local variable, filled where a condition at the top of the selector (an operand of its
outermost AND or OR) first needs it, so that what decides early is all that is read. Beside it stands, where somebody
compares it as a number, that number: NaN for what is none, so that every comparison with it is false by itself. What is
reckoned is a number too, NaN standing for NULL.

Nothing of a client's text stands in the code: names are v0, v1 ..., and texts and numbers are put in as constants of
the compiled tree. Deep nesting and large integers cannot come here (`DEPTH_MAX`, `_bounded`).

Measured against classes with an `evaluate` method, compiled by mypyc: DECISIONS.md.
"""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias, cast

from amqpd.routing import selector_nodes as nodes
from amqpd.routing.selector_fields import DELIVERY_MODE_PERSISTENT, NON_PERSISTENT, PERSISTENT, MessageView
from amqpd.routing.selector_like import pattern_of

Test: TypeAlias = Callable[[MessageView], bool]

INTEGER_MAX: Final = 2**63
NAN: Final = math.nan


def test_of(condition: nodes.Condition) -> Test:
    """The function. Cost: some 20 us a node. Raises: BadSelector for a LIKE pattern that is none."""
    return _Writer(condition).function()


def number(value: object) -> float:
    """`value` as a number to compare; NaN when it is none. Truth values are none, as in JMS."""
    if isinstance(value, bool):
        return NAN
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, (float, Decimal)) else NAN


def _bounded(value: float) -> float:
    """Integers beyond 64 bits become approximate, so that none can grow without end."""
    return value if type(value) is float or -INTEGER_MAX <= value <= INTEGER_MAX else float(value)


def plus(left: float, right: float) -> float:
    return _bounded(left + right)


def minus(left: float, right: float) -> float:
    return _bounded(left - right)


def times(left: float, right: float) -> float:
    return _bounded(left * right)


def divided(left: float, right: float) -> float:
    """rabbit: 5 / 2 is 2.5, and nothing can be divided by 0."""
    return left / right if right else NAN


def remainder(left: float, right: float) -> float:
    """What is left over has the sign of what was divided. Of approximate numbers too."""
    if not right:
        return NAN
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right) if math.isfinite(left) else NAN


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def like_types(left: object, right: object) -> bool:
    """Whether the two may be compared at all."""
    kind, other = type(left), type(right)
    if kind in _SCALARS or other in _SCALARS:
        return kind is other
    return number(left) == number(left) and number(right) == number(right)


def equal(left: object, right: object) -> bool:
    return like_types(left, right) and left == right


def unequal(left: object, right: object) -> bool:
    return like_types(left, right) and left != right


def less(left: object, right: object) -> bool:
    """Of texts by their code points, of numbers; truth values have no order."""
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    return number(left) < number(right)


def less_or_equal(left: object, right: object) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left <= right
    return number(left) <= number(right)


def as_number(value: object) -> object:
    """The digits of `expiration` as a number."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 18 else None


def milliseconds(value: object) -> object:
    return value * 1000 if isinstance(value, int) else None


def persistence(value: object) -> object:
    """JMS' names for delivery mode 2, and for anything else."""
    if value is None:
        return None
    return PERSISTENT if value == DELIVERY_MODE_PERSISTENT else NON_PERSISTENT


_SCALARS: Final = (str, bool, bytes, bytearray)
FORMS: Final = {"number": "as_number", "milliseconds": "milliseconds", "persistence": "persistence"}
_OPERATORS: Final = {"+": "plus", "-": "minus", "*": "times", "/": "divided", "%": "remainder"}
_MIRRORED: Final[dict[str, nodes.Comparison]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PYTHON: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CALLS: Final = {"=": "equal({0}, {1})", "<>": "unequal({0}, {1})", "<": "less({0}, {1})", ">": "less({1}, {0})"}
_CALLS_OR_EQUAL: Final = {"<=": "less_or_equal({0}, {1})", ">=": "less_or_equal({1}, {0})"}
_HELPERS: Final[dict[str, object]] = {
    function.__name__: function
    for function in (number, plus, minus, times, divided, remainder, now, equal, unequal, less, less_or_equal)
} | {function.__name__: function for function in (as_number, milliseconds, persistence)}


class _Constants(ast.NodeTransformer):
    """Puts the constants in where their names stand."""

    def __init__(self, constants: dict[str, object]) -> None:
        self._constants: Final = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._constants:
            # A frozenset is as good a constant as a number; the types know only what literals can be.
            return ast.copy_location(ast.Constant(cast("str", self._constants[node.id])), node)
        return node


class _Writer:
    """Writes one function."""

    def __init__(self, condition: nodes.Condition) -> None:
        self._condition: Final = condition
        self._lines: list[str] = []
        self._names: dict[object, str] = {}
        self._headers_read = False
        self._constants: dict[str, object] = {"NAN": NAN}
        self._globals: dict[str, object] = dict(_HELPERS)

    def function(self) -> Test:
        condition = self._condition
        if isinstance(condition, nodes.Or):
            for part in condition.conditions:
                self._line(f"if {self._true(part)}: return True")
            self._line("return False")
        else:
            for part in condition.conditions if isinstance(condition, nodes.And) else (condition,):
                self._line(f"if not ({self._true(part)}): return False")
            self._line("return True")
        source = "def test(view):\n " + "\n ".join(self._lines)
        module = ast.fix_missing_locations(_Constants(self._constants).visit(ast.parse(source)))
        # Nothing of a client's is in the source.
        exec(compile(module, "<selector>", "exec"), self._globals)  # noqa: S102
        return cast("Test", self._globals["test"])

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _constant(self, value: object) -> str:
        name = f"k{len(self._constants)}"
        self._constants[name] = value
        return name

    # What is true, and what is false

    def _true(self, condition: nodes.Condition) -> str:
        if isinstance(condition, nodes.Not):
            return self._false(condition.condition)
        if isinstance(condition, nodes.And):
            return self._all([self._true(part) for part in condition.conditions])
        if isinstance(condition, nodes.Or):
            return self._any([self._true(part) for part in condition.conditions])
        if isinstance(condition, nodes.IsNull):
            return self._absent(condition.value)
        if isinstance(condition, nodes.IsTrue):
            return f"{self._raw(condition.value)} is True"
        if isinstance(condition, nodes.OneOf):
            return self._one_of(condition)
        if isinstance(condition, nodes.Like):
            return self._like(condition)
        assert isinstance(condition, nodes.Compare)
        return self._compare(condition.operator, condition.left, condition.right)

    def _false(self, condition: nodes.Condition) -> str:
        if isinstance(condition, nodes.Not):
            return self._true(condition.condition)
        if isinstance(condition, nodes.And):
            return self._any([self._false(part) for part in condition.conditions])
        if isinstance(condition, nodes.Or):
            return self._all([self._false(part) for part in condition.conditions])
        if isinstance(condition, nodes.IsNull):
            return self._present(condition.value)
        if isinstance(condition, nodes.IsTrue):
            return f"{self._raw(condition.value)} is False"
        if isinstance(condition, nodes.Like):
            return f"({self._text(condition.value)} is not None and not ({self._like(condition)}))"
        if isinstance(condition, nodes.OneOf):
            return f"({self._present(condition.value)} and not ({self._one_of(condition)}))"
        assert isinstance(condition, nodes.Compare)
        true = self._compare(condition.operator, condition.left, condition.right)
        return f"({self._present(condition.left)} and {self._present(condition.right)} and not ({true}))"

    def _all(self, parts: list[str]) -> str:
        return "(" + " and ".join(parts) + ")"

    def _any(self, parts: list[str]) -> str:
        return "(" + " or ".join(parts) + ")"

    def _one_of(self, condition: nodes.OneOf) -> str:
        texts = frozenset([choice.value for choice in condition.choices if isinstance(choice.value, str)])
        numbers = frozenset([choice.value for choice in condition.choices if choice.number() is not None])
        truths = sorted([choice.value for choice in condition.choices if isinstance(choice.value, bool)])
        raw = self._raw(condition.value)
        found: list[str] = [f"{raw} is {truth}" for truth in truths]
        if texts:
            found.append(f"{self._text(condition.value)} in {self._constant(texts)}")
        if numbers:
            found.append(f"{self._number(condition.value)} in {self._constant(numbers)}")
        return self._any(found)

    def _like(self, condition: nodes.Like) -> str:
        text = self._text(condition.value)
        pattern = pattern_of(condition.pattern, condition.escape)
        if pattern.expression:
            return f"({text} is not None and {pattern.expression.format(text, *map(self._constant, pattern.texts))})"
        name = f"like{len(self._globals)}"
        self._globals[name] = pattern.matches
        return f"({text} is not None and {name}({text}))"

    def _compare(self, operator: nodes.Comparison, left: nodes.Value, right: nodes.Value) -> str:
        if isinstance(left, nodes.Constant) and not isinstance(right, nodes.Constant):
            return self._compare(_MIRRORED[operator], right, left)
        if isinstance(right, nodes.Constant) and right.number() is None:
            return self._compare_with(operator, left, right)
        if not _is_numeric(left) and not _is_numeric(right):
            call = _CALLS.get(operator) or _CALLS_OR_EQUAL[operator]
            return call.format(self._raw(left), self._raw(right))
        one, other = self._number(left), self._number(right)
        if operator == "<>":  # NaN is unequal to everything, but neither less nor more
            return f"({one} < {other} or {one} > {other})"
        return f"{one} {_PYTHON[operator]} {other}"

    def _compare_with(self, operator: nodes.Comparison, value: nodes.Value, constant: nodes.Constant) -> str:
        if isinstance(constant.value, bool):
            if operator not in ("=", "<>"):  # JMS 3.8.1.2: truth values have no order
                return "False"
            return f"{self._raw(value)} is {constant.value if operator == '=' else not constant.value}"
        other = self._constant(constant.value)
        if operator == "=":
            return f"{self._raw(value)} == {other}"
        text = self._text(value)
        return f"({text} is not None and {text} {_PYTHON[operator]} {other})"

    # Values

    def _present(self, value: nodes.Value) -> str:
        if isinstance(value, (nodes.Constant, nodes.Now)):
            return "True"
        raw = self._raw(value)
        return f"{raw} == {raw}" if _is_numeric(value) else f"{raw} is not None"

    def _absent(self, value: nodes.Value) -> str:
        if isinstance(value, (nodes.Constant, nodes.Now)):
            return "False"
        raw = self._raw(value)
        return f"{raw} != {raw}" if _is_numeric(value) else f"{raw} is None"

    def _number(self, value: nodes.Value) -> str:
        """The variable or constant that has it as a number, NaN when it is none."""
        if isinstance(value, nodes.Constant) and value.number() is not None:
            return self._constant(value.value)
        raw = self._raw(value)
        if _is_numeric(value):
            return raw
        key = ("number", value)
        name = self._names.get(key)
        if name is None:
            name = f"n{len(self._names)}"
            self._names[key] = name
            self._line(f"{name} = {raw} if {raw}.__class__ is int or {raw}.__class__ is float else number({raw})")
        return name

    def _text(self, value: nodes.Value) -> str:
        """The variable that has it as a text, None when it is none."""
        raw = self._raw(value)
        key = ("text", value)
        name = self._names.get(key)
        if name is None:
            name = f"t{len(self._names)}"
            self._names[key] = name
            self._line(f"{name} = {raw} if {raw}.__class__ is str else None")
        return name

    def _raw(self, value: nodes.Value) -> str:
        """The variable that has it."""
        name = self._names.get(value)
        if name is not None:
            return name
        expression = self._expression(value)
        name = f"v{len(self._names)}"
        self._names[value] = name
        self._line(f"{name} = {expression}")
        if isinstance(value, nodes.Field):
            rule = value.rule
            if rule.header:
                self._line(f"if {name} is None: {name} = view.headers().get({self._constant(rule.header)})")
            if rule.default is not None:
                self._line(f"if {name} is None: {name} = {self._constant(rule.default)}")
        return name

    def _expression(self, value: nodes.Value) -> str:
        if isinstance(value, nodes.Constant):
            return self._constant(value.value)
        if isinstance(value, nodes.Header):
            if not self._headers_read:
                self._headers_read = True
                self._line("headers = view.headers()")
            return f"headers.get({self._constant(value.name)})"
        if isinstance(value, nodes.Field):
            read = f"view.field({value.rule.number})"
            return f"{FORMS[value.rule.form]}({read})" if value.rule.form else read
        if isinstance(value, nodes.Now):
            return "now()"
        if isinstance(value, nodes.Negative):
            return f"-{self._number(value.value)}"
        if isinstance(value, nodes.Arithmetic):
            return f"{_OPERATORS[value.operator]}({self._number(value.left)}, {self._number(value.right)})"
        assert isinstance(value, nodes.Truth)
        true, false = self._true(value.condition), self._false(value.condition)
        return f"True if {true} else False if {false} else None"


def _is_numeric(value: nodes.Value) -> bool:
    """Whether it is a number by itself, with NaN for NULL."""
    if isinstance(value, nodes.Constant):
        return value.number() is not None
    return isinstance(value, (nodes.Arithmetic, nodes.Negative, nodes.Now))


def required_text(condition: nodes.Condition) -> tuple[str, str] | None:
    """A header and the text it must have for the selector to match, if it says so at its top; else None."""
    for part in condition.conditions if isinstance(condition, nodes.And) else (condition,):
        if isinstance(part, nodes.Compare) and part.operator == "=":
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, nodes.Header) and isinstance(other, nodes.Constant) and isinstance(other.value, str):
                    return one.name, other.value
    return None
