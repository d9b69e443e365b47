"""Selectors as RabbitMQ's JMS client sends them: an Erlang term that says what the SQL text said.

    {'and',{'=',{'ident',<<"colour">>},<<"red">>},{'>',{'ident',<<"weight">>},2}}.

The client parses SQL itself and binds with the argument `rjms_erlang_selector`. RabbitMQ's plugin evaluates the term;
here it becomes the tree that the SQL text becomes, within the same bounds and with the same meaning. Nothing is ever
run.

Source: rabbitmq-jms-client 2 and 3 (what it writes), RabbitMQ's plugin rabbitmq_jms_topic_exchange (older spellings:
a range in BETWEEN, a pair in LIKE).
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from amqpd.routing import selector_ast as nodes
from amqpd.routing.errors import BadSelector
from amqpd.routing.selector_fields import JMS_FIELDS
from amqpd.routing.selector_parser import DEPTH_MAX, between_of, check_patterns, check_size, condition_of, one_of, shown, value_of

if TYPE_CHECKING:
    from lark import Lark, Token

GRAMMAR: Final = r"""
start: _term "."?
_term: tuple | list | ATOM | BINARY | NUMBER
tuple: "{" (_term ("," _term)*)? "}"
list: "[" (_term ("," _term)*)? "]"
ATOM: /'([^'\\]|\\.)*'|[a-z]\w*/
BINARY: /<<("([^"\\]|\\.)*"(\/utf8)?)?>>/
NUMBER: /[-+]?[0-9]+(\.[0-9]+([eE][-+]?[0-9]+)?)?/
%ignore /[ \t\f\r\n]+/
"""
TERM_SIZE_MAX: Final = 16_384
"""Characters: the term is some four times as long as its SQL text."""
WORDS_MAX: Final = 2_000
_WORD: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.]+|[^\s\w]""")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class Atom(str):
    """An Erlang atom; texts are str."""

    __slots__ = ()


Term: TypeAlias = "Atom | str | int | float | list[Term] | tuple[Term, ...]"

_NEGATIONS: Final = {"not_like": "like", "not_in": "in", "not_between": "between", "not_null": "is_null"}


def tree(text: str) -> nodes.Condition:
    """What the term says. Raises: BadSelector."""
    from lark.exceptions import UnexpectedInput

    _check_text(text)
    try:
        term = cast("Term", parser().parse(text))
    except UnexpectedInput as error:
        raise BadSelector(f"line {error.line}, column {error.column}: not a term of RabbitMQ's JMS client") from None
    condition = condition_of(_node(term), None)
    check_patterns(condition)
    return condition


def _check_text(text: str) -> None:
    """Raises: BadSelector for what is too large, or nests deeper than `_node` may follow it."""
    words = _WORD.findall(text) if len(text) <= TERM_SIZE_MAX else None
    if words is None or len(words) > WORDS_MAX:
        raise BadSelector("the selector is too large")
    depth = 0
    for word in words:
        depth += (word in "{[") - (word in "}]")
        if depth > 2 * DEPTH_MAX:  # an operation, and a list or a pair in it
            raise BadSelector(f"the selector nests deeper than {DEPTH_MAX}")


@cache
def parser() -> Lark:
    """The parser of terms, made once."""
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=_Terms())


class _Terms:
    """What lark calls for each part of the grammar."""

    def start(self, parts: list[Term]) -> Term:
        return parts[0]

    def tuple(self, parts: list[Term]) -> Term:
        return tuple(parts)

    def list(self, parts: list[Term]) -> Term:
        return list(parts)

    def ATOM(self, token: Token) -> Term:  # noqa: N802
        return Atom(_ESCAPE.sub(r"\1", token[1:-1]) if token[0] == "'" else token)

    def BINARY(self, token: Token) -> Term:  # noqa: N802
        return _ESCAPE.sub(r"\1", token[token.find('"') + 1 : token.rfind('"')]) if '"' in token else ""

    def NUMBER(self, token: Token) -> Term:  # noqa: N802
        if token.lstrip("+-").isdigit():
            return int(token) if len(token) <= 20 else float(token)
        return float(token)


def _refuse(term: Term) -> BadSelector:
    return BadSelector(f"no selector of RabbitMQ's JMS client: {shown(str(term))}")


def _node(term: Term) -> nodes.Node:
    if isinstance(term, Atom):
        if term not in ("true", "false"):
            raise _refuse(term)
        return nodes.Constant(term == "true")
    if isinstance(term, (str, int, float)):
        return nodes.Constant(term)
    if not isinstance(term, tuple) or len(term) < 2 or not isinstance(term[0], Atom):
        raise _refuse(term)
    name = str(term[0])
    node = _operation(_NEGATIONS.get(name, name), list(term[1:]), term)
    check_size(node, None)
    return nodes.Not(condition_of(node, None)) if name in _NEGATIONS else node


def _operation(name: str, operands: list[Term], term: Term) -> nodes.Node:
    first = operands[0]
    if name == "ident" and isinstance(first, str):
        rule = JMS_FIELDS.get(first)
        return nodes.Header(first) if rule is None else nodes.Field(rule)
    if name in ("and", "or") and len(operands) == 2:
        parts = tuple([condition_of(_node(operand), None) for operand in operands])
        return nodes.And(parts) if name == "and" else nodes.Or(parts)
    if name == "not" and len(operands) == 1:
        return nodes.Not(condition_of(_node(first), None))
    value = value_of(_node(first))
    if name == "is_null" and len(operands) == 1:
        return nodes.IsNull(value)
    if name in ("-", "+") and len(operands) == 1:
        return nodes.Negative(value if name == "-" else nodes.Negative(value))
    if name == "like":
        return _like(value, operands[1:], term)
    if name == "between":
        return _between(value, operands[1:], term)
    if len(operands) != 2:
        raise _refuse(term)
    second = operands[1]
    if name == "in" and isinstance(second, list):
        return one_of(value, [value_of(_node(choice)) for choice in second])
    other = value_of(_node(second))
    if name in nodes.COMPARISONS:
        return nodes.Compare(name, value, other)
    if name in ("+", "-", "*", "/"):
        return nodes.Arithmetic(name, value, other)
    raise _refuse(term)


def _like(value: nodes.Value, operands: list[Term], term: Term) -> nodes.Node:
    """Pattern and escape, as two operands or as a pair."""
    pair = operands[0] if len(operands) == 1 else tuple(operands)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise _refuse(term)
    pattern, escape = pair
    if isinstance(escape, Atom):
        escape = ""
    elif not isinstance(escape, str) or len(escape) != 1:
        raise _refuse(term)
    if not isinstance(pattern, str):
        raise _refuse(term)
    return nodes.Like(value, pattern, escape)


def _between(value: nodes.Value, operands: list[Term], term: Term) -> nodes.Node:
    """Low and high, as two operands or as a range."""
    if len(operands) == 1 and isinstance(operands[0], tuple) and operands[0][:1] == (Atom("range"),):
        operands = list(operands[0][1:])
    if len(operands) != 2:
        raise _refuse(term)
    low, high = [value_of(_node(operand)) for operand in operands]
    return between_of(value, low, high)
