"""Selectors: conditions on messages, written in SQL as JMS and RabbitMQ's filter expressions have it.

    colour = 'red' AND weight > 2.5 AND p.content-type LIKE 'image/%'

A bare name is a header; `p.` and a name is a property (`selector_fields.py`); a header whose name is no word stands in
brackets, `[x-origin]`. Three-valued logic: what is absent is NULL, a comparison with NULL is unknown, and a message
matches when the whole is true. `docs/filters.md` is the users' page.

`parse` refuses what cannot be understood and what is too large; what it accepts costs a message some tens of
nanoseconds a term and can neither fail nor take long. Parts: `selector_parser.py` (text to tree) ·
`selector_ast.py` (the tree, which answers) · `selector_ast.py`. Nothing here knows a broker: consumers' filters,
`x-jms-topic` and the command line use it alike.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from amqpd.routing import selector_ast as nodes
from amqpd.routing import selector_parser
from amqpd.routing.base import BadSelector
from amqpd.routing.selector_ast import Condition, Selectable

TEXT_SIZE_MAX: Final = 4096
"""Characters, as RabbitMQ has it."""
CACHE_SIZE_MAX: Final = 256
"""Selectors of the last consumers and bindings, by text: a thousand consumers with one selector are parsed once."""


@final
class Selector:
    """One selector, ready to be asked. Equal to every other one that says the same.

    text: as it was written. needs_headers: whether it may look at headers at all. depends_on_time: whether it has
    UTC(), so that it may answer otherwise later. required: a header and the text it must have for any match, where that
    is plain to see.
    """

    def __init__(self, text: str, condition: Condition) -> None:
        self.text: Final = text
        self.condition: Final = condition
        self.needs_headers: bool = any([_names_header(node) for node in condition.walk()])  # noqa: C419
        self.depends_on_time: bool = any([isinstance(node, nodes.Now) for node in condition.walk()])  # noqa: C419
        self.required_header: tuple[str, str] | None = _required_header(condition)

    def matches(self, message: Selectable) -> bool:
        """Whether `message` is one of those selected. Raises nothing, keeps nothing."""
        return self.condition.truth(message) == nodes.TRUE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.condition == other.condition

    def __hash__(self) -> int:
        return hash(self.condition)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def parse_selector(text: str) -> Selector:
    """The selector that `text` says.

    Cost: some 10 us a word the first time, 5 ms at most, and a look-up while it is remembered; the very first call
    makes the parser, if `prepare` has not. Raises: BadSelector, whose text goes to the client.
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
    """Makes the parsers, for a thread that has the time: 60 ms of a processor, which else the first `parse` takes."""
    selector_parser.sql_parser()
    selector_parser.erlang_parser()


def parse_erlang_selector(term: str) -> Selector:
    """The selector that a term of RabbitMQ's JMS client says. Cost and Raises: as `parse`."""
    selector = _erlang_cache.get(term)
    if selector is None:
        selector = Selector(term, selector_parser.parse_erlang_term(term))
        _add_to_cache(_erlang_cache, term, selector)
    return selector


def is_cached(text: str) -> bool:
    """Whether this text or term is parsed at no cost."""
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
"""What an empty text selects (JMS: it means that there is no selector)."""
_sql_cache: Final[dict[str, Selector]] = {}
_erlang_cache: Final[dict[str, Selector]] = {}
