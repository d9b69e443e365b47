"""Parsers of selectors: SQL text, or a term of RabbitMQ's JMS client, to the tree of `selector_ast.py`.

**SQL.** The grammar is SQL-92 conditions as in JMS (Jakarta Messaging 3.1, 3.8.1), and RabbitMQ 4.2's additions: `!=`,
`%`, UTC(), texts in double quotes, `[names in brackets]`, sections (`p.`, `h.`, `a.`), any values in IN and on both
sides of a comparison. Keywords are case-insensitive, names are not.

lark builds a LALR parser at the first use (0.1 s of CPU). Parsing costs about 10 us per word. A selector that is too
large is rejected while it is parsed (`TOKENS_MAX`, `NODES_MAX`, `DEPTH_MAX`); no code recurses into a client's text.

**Erlang terms.** RabbitMQ's JMS client parses the SQL itself and sends the result as `rjms_erlang_selector`:

    {'and',{'=',{'ident',<<"colour">>},<<"red">>},{'>',{'ident',<<"weight">>},2}}.

RabbitMQ's plugin evaluates the term. Here it becomes the same tree as the SQL, within the same bounds; nothing is
executed. Source: rabbitmq-jms-client 2 and 3, and RabbitMQ's plugin rabbitmq_jms_topic_exchange for older spellings (a
range in BETWEEN, a pair in LIKE).
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, cast

from amqpd.routing import selector_ast as nodes
from amqpd.routing.base import BadSelector
from amqpd.routing.selector_ast import SEARCHES_MAX, WILDCARD_CHARACTERS_MAX
from amqpd.routing.selector_fields import HEADER_SECTION, JMS_FIELDS, JMS_FORBIDDEN, PROPERTIES, FieldRule

if TYPE_CHECKING:
    from lark import Lark, Token


NODES_MAX: Final = 200
DEPTH_MAX: Final = 32
TOKENS_MAX: Final = 500
"""Tokens of a selector, counted before it is parsed."""
INTEGER_MAX: Final = 2**63
"""Inclusive: it is valid after a minus."""
EXCERPT_SIZE_MAX: Final = 24
"""Characters of a client's text in an error message."""

_END: Final = r"(?![\w$])"
_NAME_END: Final = r"(?![\w$.])"


def _field_pattern() -> str:
    """Return an expression for all field names, longest first; `-` and `_` are the same."""
    names = sorted(PROPERTIES, key=len, reverse=True)
    of_properties = "|".join([name.replace("-", "[-_]") for name in names])
    return rf"((properties|p)\.({of_properties})|(header|h)\.({'|'.join(HEADER_SECTION)})){_NAME_END}"


GRAMMAR: Final = rf"""
?start: disjunction
?disjunction: conjunction | disjunction OR conjunction
?conjunction: negation | conjunction AND negation
?negation: comparison | NOT negation
?comparison: sum
    | sum COMPARISON sum                        -> compare
    | sum NOT? BETWEEN sum AND sum              -> between
    | sum NOT? IN "(" sum ("," sum)* ")"        -> one_of
    | sum NOT? LIKE TEXT (ESCAPE TEXT)?         -> like
    | sum IS NOT? NULL                          -> is_null
?sum: product | sum SIGN product                -> arithmetic
?product: signed | product FACTOR signed        -> arithmetic
?signed: primary | SIGN signed
?primary: "(" disjunction ")" | TEXT -> text | INTEGER -> integer | HEXADECIMAL -> hexadecimal | FLOAT -> approximate
    | TRUE -> true | FALSE -> false | UTC -> utc | NAME -> name | BRACKETED -> bracketed | FIELD -> field
    | APPLICATION -> application | UNKNOWN -> unknown

AND.2: /AND{_END}/i
OR.2: /OR{_END}/i
NOT.2: /NOT{_END}/i
BETWEEN.2: /BETWEEN{_END}/i
IN.2: /IN{_END}/i
LIKE.2: /LIKE{_END}/i
ESCAPE.2: /ESCAPE{_END}/i
IS.2: /IS{_END}/i
NULL.2: /NULL{_END}/i
TRUE.2: /TRUE{_END}/i
FALSE.2: /FALSE{_END}/i
UTC.2: /UTC[ \t\f\r\n]*\([ \t\f\r\n]*\)/i
COMPARISON: /<>|!=|<=|>=|=|<|>/
SIGN: /[+-]/
FACTOR: "*" | "/" | "%"
TEXT: /'([^']|'')*'|"([^"]|"")*"/
HEXADECIMAL.3: /0[xX][0-9a-fA-F]+[lL]?{_END}/
FLOAT.3: /(([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)[fFdD]?{_END}|[0-9]+[fFdD]{_END}/
INTEGER.2: /[0-9]+[lL]?{_END}/
BRACKETED: /\[([^\[\]]|\[\[|\]\])*\]/
FIELD.4: /{_field_pattern()}/
APPLICATION.4: /(application[-_]properties|a)\.[^\W\d][\w$]*{_NAME_END}/
UNKNOWN.3: /[^\W\d][\w$-]*\.[\w$.-]*/
NAME: /([^\W\d]|\$)[\w$]*/
%ignore /[ \t\f\r\n]+/
"""

TOKEN_NAMES: Final = {
    "$END": "the end",
    "RPAR": ")",
    "LPAR": "(",
    "COMMA": ",",
    "COMPARISON": "a comparison",
    "TEXT": "a text in quotes",
}
"""Names of lark's terminals in error messages."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_WORD: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[\w$.]+|[^\s\w]""")


def parse_sql(text: str) -> nodes.Condition:
    """Parse SQL text. Raises: BadSelector, with line and column."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    if len(_WORD.findall(text)) > TOKENS_MAX:
        raise BadSelector(f"the selector has more than {TOKENS_MAX} words and signs")
    try:
        made = cast("nodes.SelectorNode", sql_parser().parse(text))
    except UnexpectedCharacters as error:
        _reject_at(error.line, error.column, f"{quote_excerpt(text[error.pos_in_stream :])} cannot be read")
    except UnexpectedToken as error:
        wanted = _expected(error.accepts or error.expected)
        if error.token.type == "$END":
            _reject_at(*_end_of(text), f"the selector is incomplete{wanted}")
        _reject_at(error.line, error.column, f"unexpected {quote_excerpt(str(error.token))}{wanted}")
    except UnexpectedInput as error:
        _reject_at(error.line, error.column, "syntax error")
    condition = as_condition(made, None)
    check_patterns(condition)
    return condition


@cache
def sql_parser() -> Lark:
    """Return the SQL parser. Cost: 0.1 s of CPU for the first call."""
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", lexer="basic", maybe_placeholders=False, transformer=_SqlTreeBuilder())


def _reject_at(line: int, column: int, why: str) -> NoReturn:
    raise BadSelector(f"line {line}, column {column}: {why}") from None


def _reject(place: Token | None, why: str) -> NoReturn:
    if place is None or place.line is None or place.column is None:
        raise BadSelector(why)
    _reject_at(place.line, place.column, why)


def quote_excerpt(text: str) -> str:
    """Return the beginning of a client's text for an error message."""
    return repr(text if len(text) <= EXCERPT_SIZE_MAX else text[:EXCERPT_SIZE_MAX] + "...")


def _end_of(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _expected(terminals: set[str]) -> str:
    """Return the expected tokens if they are few; "a value or a condition" if a value is possible."""
    if "NAME" in terminals:
        return "; expected a value or a condition"
    names = sorted([TOKEN_NAMES.get(name, name) for name in terminals if name not in ("SIGN", "FACTOR")])
    return f"; expected {' or '.join(names)}" if len(names) <= 3 else ""


def check_size(node: nodes.SelectorNode, place: Token | None) -> None:
    """Raises: BadSelector for a tree that is too large."""
    if node.size > NODES_MAX:
        _reject(place, f"the selector has more than {NODES_MAX} parts")
    if node.depth > DEPTH_MAX:
        _reject(place, f"the selector nests deeper than {DEPTH_MAX}")


def check_patterns(condition: nodes.Condition) -> None:
    """Raises: BadSelector if the LIKE patterns together are too expensive."""
    patterns = [node for node in condition.walk() if isinstance(node, nodes.Like)]
    if sum([pattern.wildcard_characters() for pattern in patterns]) > WILDCARD_CHARACTERS_MAX:
        raise BadSelector(f"LIKE: parts between two % that contain _ have {WILDCARD_CHARACTERS_MAX} characters at most")
    if sum([pattern.searches() for pattern in patterns]) > SEARCHES_MAX:
        raise BadSelector(f"LIKE: at most {SEARCHES_MAX} parts between two % are allowed")


def _within_bounds(place: Token | None, node: nodes.SelectorNode) -> nodes.SelectorNode:
    """Return the node. Raises: BadSelector if it is too large."""
    check_size(node, place)
    return node


def as_condition(node: nodes.SelectorNode, place: Token | None) -> nodes.Condition:
    """Return the node as a condition. Raises: BadSelector for a value that cannot be one."""
    if isinstance(node, nodes.Condition):
        return node
    if isinstance(node, nodes.BooleanValue):
        return node.condition
    assert isinstance(node, nodes.Value)
    if isinstance(node, (nodes.Arithmetic, nodes.Negative, nodes.CurrentTime)) or (
        isinstance(node, nodes.Constant) and not isinstance(node.value, bool)
    ):
        _reject(place, "a condition is expected here, not a number or a text")
    return nodes.IsTrue(node)


def as_value(node: nodes.SelectorNode) -> nodes.Value:
    """Return the node as a value; also a condition has one."""
    if isinstance(node, nodes.Condition):
        return nodes.BooleanValue(node)
    assert isinstance(node, nodes.Value)
    return node


def make_between(value: nodes.Value, low: nodes.Value, high: nodes.Value) -> nodes.Condition:
    """Return value BETWEEN low AND high."""
    return nodes.And((nodes.Compare(">=", value, low), nodes.Compare("<=", value, high)))


def make_in(value: nodes.Value, choices: list[nodes.Value]) -> nodes.Condition:
    """Return value IN (choices); choices need not be constants."""
    others = [choice for choice in choices if not isinstance(choice, nodes.Constant)]
    constants = frozenset([choice for choice in choices if isinstance(choice, nodes.Constant)])
    found: list[nodes.Condition] = [nodes.OneOf(value, constants)] if constants or not others else []
    found += [nodes.Compare("=", value, choice) for choice in others]
    return found[0] if len(found) == 1 else nodes.Or(tuple(found))


def _number(node: nodes.SelectorNode, place: Token) -> nodes.Value:
    value = as_value(node)
    if isinstance(value, nodes.BooleanValue) or (
        isinstance(value, nodes.Constant) and nodes.as_number(value.value) is None
    ):
        _reject(place, f"'{place}' needs numbers")
    return value


class _SqlTreeBuilder:
    """The lark transformer of the SQL grammar: a method per rule, called with the transformed parts."""

    def disjunction(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        return self._joined(parts, nodes.Or)

    def conjunction(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        return self._joined(parts, nodes.And)

    def _joined(self, parts: list[nodes.SelectorNode | Token], kind: type[nodes.And | nodes.Or]) -> nodes.SelectorNode:
        left, word, right = cast("tuple[nodes.SelectorNode, Token, nodes.SelectorNode]", parts)
        first, second = as_condition(left, word), as_condition(right, word)
        before = first.conditions if isinstance(first, kind) else (first,)
        after = second.conditions if isinstance(second, kind) else (second,)
        return _within_bounds(word, kind((*before, *after)))

    def negation(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        word, node = cast("tuple[Token, nodes.SelectorNode]", parts)
        return _within_bounds(word, nodes.Not(as_condition(node, word)))

    def compare(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, operator, right = cast("tuple[nodes.SelectorNode, Token, nodes.SelectorNode]", parts)
        name = "<>" if operator == "!=" else str(operator)
        return _within_bounds(operator, nodes.Compare(name, as_value(left), as_value(right)))

    def between(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, negated, word, rest = _split_predicate(parts)
        low, high = [as_value(part) for part in rest if isinstance(part, nodes.SelectorNode)]
        node = make_between(as_value(left), low, high)
        return _within_bounds(word, nodes.Not(node) if negated else node)

    def one_of(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, negated, word, rest = _split_predicate(parts)
        node = make_in(as_value(left), [as_value(part) for part in rest if isinstance(part, nodes.SelectorNode)])
        return _within_bounds(word, nodes.Not(node) if negated else node)

    def like(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, negated, word, rest = _split_predicate(parts)
        texts = [_unquoted(part) for part in rest if not isinstance(part, nodes.SelectorNode) and part.type == "TEXT"]
        escape = texts[1] if len(texts) == 2 else ""
        if len(texts) == 2 and len(escape) != 1:
            _reject(word, "ESCAPE needs one character")
        try:
            node = nodes.Like(as_value(left), texts[0], escape)
        except BadSelector as error:
            _reject(word, str(error))
        return _within_bounds(word, nodes.Not(node) if negated else node)

    def is_null(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, word = cast("tuple[nodes.SelectorNode, Token]", parts[:2])
        node = nodes.IsNull(as_value(left))
        return _within_bounds(word, nodes.Not(node) if len(parts) == 4 else node)

    def arithmetic(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        left, operator, right = cast("tuple[nodes.SelectorNode, Token, nodes.SelectorNode]", parts)
        return _within_bounds(
            operator, nodes.Arithmetic(str(operator), _number(left, operator), _number(right, operator))
        )

    def signed(self, parts: list[nodes.SelectorNode | Token]) -> nodes.SelectorNode:
        sign, node = cast("tuple[Token, nodes.SelectorNode]", parts)
        value = _number(node, sign)
        if isinstance(value, nodes.Constant):
            return nodes.Constant(-nodes.as_number(value.value)) if sign == "-" else value
        if sign == "-":
            return _within_bounds(sign, nodes.Negative(value))
        return _within_bounds(sign, nodes.Negative(nodes.Negative(value)))  # + of a value that is not a number is NULL

    def text(self, parts: list[Token]) -> nodes.SelectorNode:
        return nodes.Constant(_unquoted(parts[0]))

    def integer(self, parts: list[Token]) -> nodes.SelectorNode:
        digits = parts[0].rstrip("lL")
        if len(digits) > 1 and digits[0] == "0":
            _reject(parts[0], "a number must not begin with 0: in Java it would be octal")
        return _integer(parts[0], digits, 10)

    def hexadecimal(self, parts: list[Token]) -> nodes.SelectorNode:
        return _integer(parts[0], parts[0][2:].rstrip("lL"), 16)

    def approximate(self, parts: list[Token]) -> nodes.SelectorNode:
        value = float(parts[0].rstrip("fFdD"))
        if math.isinf(value):
            _reject(parts[0], "number too large")
        return nodes.Constant(value)

    def true(self, parts: list[Token]) -> nodes.SelectorNode:
        return nodes.Constant(True)

    def false(self, parts: list[Token]) -> nodes.SelectorNode:
        return nodes.Constant(False)

    def utc(self, parts: list[Token]) -> nodes.SelectorNode:
        return nodes.CurrentTime()

    def name(self, parts: list[Token]) -> nodes.SelectorNode:
        name = str(parts[0])
        if name in JMS_FORBIDDEN:
            _reject(parts[0], f"{name} may not be used in a selector")
        rule = JMS_FIELDS.get(name)
        return nodes.Header(name) if rule is None else nodes.Field(rule)

    def bracketed(self, parts: list[Token]) -> nodes.SelectorNode:
        name = parts[0][1:-1].replace("[[", "[").replace("]]", "]")
        if _CONTROL.search(name):
            _reject(parts[0], "a name has a control character")
        return nodes.Header(name)

    def field(self, parts: list[Token]) -> nodes.SelectorNode:
        section, name = parts[0].split(".")
        rules: dict[str, FieldRule] = HEADER_SECTION if section in ("h", "header") else PROPERTIES
        return nodes.Field(rules[name.replace("_", "-")])

    def application(self, parts: list[Token]) -> nodes.SelectorNode:
        return nodes.Header(parts[0].split(".")[1])

    def unknown(self, parts: list[Token]) -> nodes.SelectorNode:
        _reject(parts[0], f"there is no field {quote_excerpt(str(parts[0]))}; write a header of that name in brackets")


def _split_predicate(
    parts: list[nodes.SelectorNode | Token],
) -> tuple[nodes.SelectorNode, bool, Token, list[nodes.SelectorNode | Token]]:
    """Return the left operand, whether NOT follows, the keyword, and the rest."""
    left = cast("nodes.SelectorNode", parts[0])
    second = cast("Token", parts[1])
    if second.type == "NOT":
        return left, True, second, parts[3:]
    return left, False, second, parts[2:]


def _unquoted(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def _integer(place: Token, digits: str, base: int) -> nodes.SelectorNode:
    value = int(digits, base) if len(digits) <= 20 else INTEGER_MAX + 1
    if value > INTEGER_MAX:
        _reject(place, "number too large: integers have 64 bits")
    return nodes.Constant(value)


ERLANG_GRAMMAR: Final = r"""
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
"""Characters. A term is about four times as long as its SQL text."""
ERLANG_TOKENS_MAX: Final = 2_000
_ERLANG_WORD: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.]+|[^\s\w]""")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class ErlangAtom(str):
    """An Erlang atom. Erlang texts are plain str."""

    __slots__ = ()


ErlangTerm: TypeAlias = "ErlangAtom | str | int | float | list[ErlangTerm] | tuple[ErlangTerm, ...]"

_NEGATIONS: Final = {"not_like": "like", "not_in": "in", "not_between": "between", "not_null": "is_null"}


def parse_erlang_term(text: str) -> nodes.Condition:
    """Parse a term of RabbitMQ's JMS client. Raises: BadSelector."""
    from lark.exceptions import UnexpectedInput

    _check_text(text)
    try:
        term = cast("ErlangTerm", erlang_parser().parse(text))
    except UnexpectedInput as error:
        raise BadSelector(f"line {error.line}, column {error.column}: not a term of RabbitMQ's JMS client") from None
    condition = as_condition(_node(term), None)
    check_patterns(condition)
    return condition


def _check_text(text: str) -> None:
    """Raises: BadSelector for a term that is too large, or nested too deep for the recursion of `_node`."""
    words = _ERLANG_WORD.findall(text) if len(text) <= TERM_SIZE_MAX else None
    if words is None or len(words) > ERLANG_TOKENS_MAX:
        raise BadSelector("the selector is too large")
    depth = 0
    for word in words:
        depth += (word in "{[") - (word in "}]")
        if depth > 2 * DEPTH_MAX:  # an operation, and a list or a pair in it
            raise BadSelector(f"the selector nests deeper than {DEPTH_MAX}")


@cache
def erlang_parser() -> Lark:
    """Return the parser of terms."""
    from lark import Lark

    return Lark(ERLANG_GRAMMAR, parser="lalr", lexer="basic", transformer=_ErlangTermBuilder())


class _ErlangTermBuilder:
    """The lark transformer of the term grammar."""

    def start(self, parts: list[ErlangTerm]) -> ErlangTerm:
        return parts[0]

    def tuple(self, parts: list[ErlangTerm]) -> ErlangTerm:
        return tuple(parts)

    def list(self, parts: list[ErlangTerm]) -> ErlangTerm:
        return list(parts)

    def ATOM(self, token: Token) -> ErlangTerm:  # noqa: N802
        return ErlangAtom(_ESCAPE.sub(r"\1", token[1:-1]) if token[0] == "'" else token)

    def BINARY(self, token: Token) -> ErlangTerm:  # noqa: N802
        return _ESCAPE.sub(r"\1", token[token.find('"') + 1 : token.rfind('"')]) if '"' in token else ""

    def NUMBER(self, token: Token) -> ErlangTerm:  # noqa: N802
        if token.lstrip("+-").isdigit():
            return int(token) if len(token) <= 20 else float(token)
        return float(token)


def _invalid_term(term: ErlangTerm) -> BadSelector:
    return BadSelector(f"not a selector of RabbitMQ's JMS client: {quote_excerpt(str(term))}")


def _node(term: ErlangTerm) -> nodes.SelectorNode:
    if isinstance(term, ErlangAtom):
        if term not in ("true", "false"):
            raise _invalid_term(term)
        return nodes.Constant(term == "true")
    if isinstance(term, (str, int, float)):
        return nodes.Constant(term)
    if not isinstance(term, tuple) or len(term) < 2 or not isinstance(term[0], ErlangAtom):
        raise _invalid_term(term)
    name = str(term[0])
    node = _operation(_NEGATIONS.get(name, name), list(term[1:]), term)
    check_size(node, None)
    return nodes.Not(as_condition(node, None)) if name in _NEGATIONS else node


def _operation(name: str, operands: list[ErlangTerm], term: ErlangTerm) -> nodes.SelectorNode:
    first = operands[0]
    if name == "ident" and isinstance(first, str):
        rule = JMS_FIELDS.get(first)
        return nodes.Header(first) if rule is None else nodes.Field(rule)
    if name in ("and", "or") and len(operands) == 2:
        parts = tuple([as_condition(_node(operand), None) for operand in operands])
        return nodes.And(parts) if name == "and" else nodes.Or(parts)
    if name == "not" and len(operands) == 1:
        return nodes.Not(as_condition(_node(first), None))
    value = as_value(_node(first))
    if name == "is_null" and len(operands) == 1:
        return nodes.IsNull(value)
    if name in ("-", "+") and len(operands) == 1:
        return nodes.Negative(value if name == "-" else nodes.Negative(value))
    if name == "like":
        return _like(value, operands[1:], term)
    if name == "between":
        return _between(value, operands[1:], term)
    if len(operands) != 2:
        raise _invalid_term(term)
    second = operands[1]
    if name == "in" and isinstance(second, list):
        return make_in(value, [as_value(_node(choice)) for choice in second])
    other = as_value(_node(second))
    if name in nodes.COMPARISONS:
        return nodes.Compare(name, value, other)
    if name in ("+", "-", "*", "/"):
        return nodes.Arithmetic(name, value, other)
    raise _invalid_term(term)


def _like(value: nodes.Value, operands: list[ErlangTerm], term: ErlangTerm) -> nodes.SelectorNode:
    """Return a LIKE node; pattern and escape are two operands or one pair."""
    pair = operands[0] if len(operands) == 1 else tuple(operands)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise _invalid_term(term)
    pattern, escape = pair
    if isinstance(escape, ErlangAtom):
        escape = ""
    elif not isinstance(escape, str) or len(escape) != 1:
        raise _invalid_term(term)
    if not isinstance(pattern, str):
        raise _invalid_term(term)
    return nodes.Like(value, pattern, escape)


def _between(value: nodes.Value, operands: list[ErlangTerm], term: ErlangTerm) -> nodes.SelectorNode:
    """Return a BETWEEN node; low and high are two operands or one range."""
    if len(operands) == 1 and isinstance(operands[0], tuple) and operands[0][:1] == (ErlangAtom("range"),):
        operands = list(operands[0][1:])
    if len(operands) != 2:
        raise _invalid_term(term)
    low, high = [as_value(_node(operand)) for operand in operands]
    return make_between(value, low, high)


_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_PROPERTY: Final = re.compile(rf"(?<![\w.\[-])({'|'.join(name.replace('-', '[-_]') for name in PROPERTIES)})(?![\w.-])")
_DIFFERENCE: Final = re.compile(r"(?<![\w.\[-])x(?:-\w+)+")


def suggest_fix(text: str) -> str:
    """Return hints for a selector that found nothing; "" if there are none.

    A bare property name is a header (`p.priority` is the property), and `x-origin` is a difference (`[x-origin]` is the
    header).

    Args:
        text: a selector that `parse_selector` accepts.
    """
    bare = _QUOTED.sub("''", text)
    meant = [f"p.{name.replace('_', '-')} is the property, {name} a header" for name in _PROPERTY.findall(bare)]
    meant += [f"[{name}] is the header, {name} a difference" for name in _DIFFERENCE.findall(bare)]
    return "; ".join(dict.fromkeys(meant))
