"""Selectors: conditions on messages in SQL, as in JMS and in RabbitMQ's filter expressions.

    colour = 'red' AND weight > 2.5 AND p.content-type LIKE 'image/%'

A bare name is a header; `p.` and a name is a property (`selector_fields.py`); other header names are in brackets,
`[x-origin]`. Logic has three values: an absent value is NULL, a comparison with NULL is unknown, and a message matches
if the whole condition is true. `docs/filters.md` is the page for users.

`parse_selector` rejects a selector that is invalid or too large. An accepted one costs some tens of nanoseconds per
term, and can neither fail nor take long. `selector_parser.py` turns text into the tree of `selector_ast.py`. Consumer
filters, x-jms-topic and the tools use the same code.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from amqpd.routing import selector_ast as nodes
from amqpd.routing import selector_parser
from amqpd.routing.base import BadSelector
from amqpd.routing.selector_ast import Condition, Selectable

TEXT_SIZE_MAX: Final = 4096
"""Characters; RabbitMQ has the same limit."""
CACHE_SIZE_MAX: Final = 256
"""Cached selectors, by text: the selector of a thousand consumers is parsed once."""


@final
class Selector:
    """A parsed selector. Equal to every selector with the same tree.

    Attributes:
        text: the source.
        needs_headers: whether the condition refers to a header.
        depends_on_time: whether it contains UTC(), so that its result can change.
        required_header: a header and the text that it must have in every matching message, if that is easy to see.
    """

    def __init__(self, text: str, condition: Condition) -> None:
        self.text: Final = text
        self.condition: Final = condition
        self.needs_headers: bool = any([_names_header(node) for node in condition.walk()])  # noqa: C419
        self.depends_on_time: bool = any([isinstance(node, nodes.CurrentTime) for node in condition.walk()])  # noqa: C419
        self.required_header: tuple[str, str] | None = _required_header(condition)

    def matches(self, message: Selectable) -> bool:
        """Return whether the condition is true for `message`. Does not raise and stores nothing."""
        return self.condition.truth(message) == nodes.TRUE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.condition == other.condition

    def __hash__(self) -> int:
        return hash(self.condition)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def parse_selector(text: str) -> Selector:
    """Parse a selector.

    Cost: about 10 us per word, at most 5 ms; a look-up while it is cached. The first call builds the parser unless
    `build_parsers` has done so.
    Raises: BadSelector, whose text goes to the client.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise BadSelector(f"the selector has more than {TEXT_SIZE_MAX} characters")
    if not text or text.isspace():
        return MATCHES_ALL
    selector = _sql_cache.get(text)
    if selector is None:
        selector = Selector(text, selector_parser.parse_sql(text))
        _add_to_cache(_sql_cache, text, selector)
    return selector


def build_parsers() -> None:
    """Build the parsers ahead of the first selector, in a thread that has time. Cost: 60 ms of CPU."""
    selector_parser.sql_parser()
    selector_parser.erlang_parser()


def parse_erlang_selector(term: str) -> Selector:
    """Parse a term of RabbitMQ's JMS client. Cost and errors: as `parse_selector`."""
    selector = _erlang_cache.get(term)
    if selector is None:
        selector = Selector(term, selector_parser.parse_erlang_term(term))
        _add_to_cache(_erlang_cache, term, selector)
    return selector


def is_cached(text: str) -> bool:
    """Return whether this text or term is cached, so that parsing it is free."""
    return text in _sql_cache or text in _erlang_cache


def _add_to_cache(selectors: dict[str, Selector], text: str, selector: Selector) -> None:
    if len(selectors) >= CACHE_SIZE_MAX:
        del selectors[next(iter(selectors))]
    selectors[text] = selector


def _names_header(node: nodes.SelectorNode) -> bool:
    return isinstance(node, nodes.Header) or (isinstance(node, nodes.Field) and node.rule.header != "")


def _required_header(condition: Condition) -> tuple[str, str] | None:
    parts: tuple[Condition, ...] = condition.conditions if isinstance(condition, nodes.And) else (condition,)
    for part in parts:
        if isinstance(part, nodes.Compare) and part.operator == "=":
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, nodes.Header) and isinstance(other, nodes.Constant) and isinstance(other.value, str):
                    return one.name, other.value
    return None


MATCHES_ALL: Final = Selector("", nodes.IsTrue(nodes.Constant(True)))
"""The selector of an empty text (JMS: no selector)."""
_sql_cache: Final[dict[str, Selector]] = {}
_erlang_cache: Final[dict[str, Selector]] = {}
