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
REMEMBERED_MAX: Final = 256
"""Selectors of the last consumers and bindings, by text: a thousand consumers with one selector are parsed once."""


@final
class Selector:
    """One selector, ready to be asked. Equal to every other one that says the same.

    text: as it was written. needs_headers: whether it may look at headers at all. asks_time: whether it has UTC(), so
    that it may answer otherwise later. required: a header and the text it
    must have for any match, where that is plain to see.
    """

    def __init__(self, text: str, condition: Condition) -> None:
        self.text: Final = text
        self.condition: Final = condition
        self.needs_headers: bool = any([_names_header(node) for node in condition.all()])  # noqa: C419
        self.asks_time: bool = any([isinstance(node, nodes.Now) for node in condition.all()])  # noqa: C419
        self.required: tuple[str, str] | None = _required_text(condition)

    def matches(self, message: Selectable) -> bool:
        """Whether `message` is one of those selected. Raises nothing, keeps nothing."""
        return self.condition.truth(message) == nodes.TRUE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.condition == other.condition

    def __hash__(self) -> int:
        return hash(self.condition)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def parse(text: str) -> Selector:
    """The selector that `text` says.

    Cost: some 10 us a word the first time, 5 ms at most, and a look-up while it is remembered; the very first call
    makes the parser, if `prepare` has not. Raises: BadSelector, whose text goes to the client.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise BadSelector(f"the selector has more than {TEXT_SIZE_MAX} characters")
    if not text or text.isspace():
        return EVERYTHING
    selector = _remembered.get(text)
    if selector is None:
        selector = Selector(text, selector_parser.tree(text))
        _remember(_remembered, text, selector)
    return selector


def prepare() -> None:
    """Makes the parsers, for a thread that has the time: 60 ms of a processor, which else the first `parse` takes."""
    selector_parser.parser()
    selector_parser.erlang_parser()


def parse_erlang(term: str) -> Selector:
    """The selector that a term of RabbitMQ's JMS client says. Cost and Raises: as `parse`."""
    selector = _remembered_terms.get(term)
    if selector is None:
        selector = Selector(term, selector_parser.erlang_tree(term))
        _remember(_remembered_terms, term, selector)
    return selector


def remembered(text: str) -> bool:
    """Whether this text or term is parsed at no cost."""
    return text in _remembered or text in _remembered_terms


def _remember(selectors: dict[str, Selector], text: str, selector: Selector) -> None:
    if len(selectors) >= REMEMBERED_MAX:
        del selectors[next(iter(selectors))]
    selectors[text] = selector


def _names_header(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Header) or (isinstance(node, nodes.Field) and node.rule.header != "")


def _required_text(condition: Condition) -> tuple[str, str] | None:
    parts: tuple[Condition, ...] = condition.conditions if isinstance(condition, nodes.And) else (condition,)
    for part in parts:
        if isinstance(part, nodes.Compare) and part.operator == "=":
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, nodes.Header) and isinstance(other, nodes.Constant) and isinstance(other.value, str):
                    return one.name, other.value
    return None


EVERYTHING: Final = Selector("", nodes.IsTrue(nodes.Constant(True)))
"""What an empty text selects (JMS: it means that there is no selector)."""
_remembered: Final[dict[str, Selector]] = {}
_remembered_terms: Final[dict[str, Selector]] = {}
