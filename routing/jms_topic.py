"""The exchange type `x-jms-topic`: bindings are selectors on the headers of a message; the routing key plays no part of
its own.

A binding has its selector in one of its arguments: `x-selector` (SQL text, as consumers' filters have it),
`rjms_selector` (the same, from old clients) or `rjms_erlang_selector` (the term that RabbitMQ's JMS client makes of
the SQL text). An exchange sees headers and the routing key (`p.routing-key`); JMS' own names (JMSPriority ...) are
looked for among the headers, where that client puts them. A selector that names any other property is refused.

**Index.** Bindings with the same selector share its evaluation. A selector that wants one header to be one text
(`customer = 'acme' AND ...`) waits under that header and text and is asked only when the message has it; the others
are all asked.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_jms_topic_exchange; the bindings of its client are taken as they
are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Final, final

from amqpd.routing import base
from amqpd.routing import selector_ast as nodes
from amqpd.routing.base import BadBinding, BadSelector
from amqpd.routing.bindings import BindingTable, union
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.selector import Selector, parse_erlang_selector, parse_selector
from amqpd.routing.selector_fields import ROUTING_KEY_FIELD

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

log = logging.getLogger(__name__)

TEXT_ARGUMENTS: Final = ["x-selector", "rjms_selector"]
ERLANG_ARGUMENT: Final = "rjms_erlang_selector"
MATCHES_NOTHING: Final = Selector("FALSE", nodes.IsTrue(nodes.Constant(False)))
_NO_HEADERS: Final[dict[str, object]] = {}


@final
class JmsTopic:
    """Matching structure of one x-jms-topic exchange."""

    depends_on: ClassVar[int] = base.ROUTING_KEY | base.HEADERS

    def __init__(self) -> None:
        self._table = BindingTable()
        # Selectors and where they lead: by the header they require, by its text; and those that require none.
        self._by_required_header: dict[str, dict[str, dict[Selector, set[object]]]] = {}
        self._others: dict[Selector, set[object]] = {}

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding without a selector, or with one that is none or looks at what an exchange does not see."""
        parse_binding_selector(arguments)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: parsing the selector, unless it is one of the last (`selector.parse`). What `validate` does not take (a
        binding that another version of this program kept) is logged, and matches nothing.
        """
        selector = stored_selector(arguments)
        destinations = self._table.add(selector, destination)
        required = selector.required_header
        if required is None:
            self._others[selector] = destinations
            return
        name, text = required
        self._by_required_header.setdefault(name, {}).setdefault(text, {})[selector] = destinations

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost as `bind`. Raises: KeyError if there is no such binding, an error of the caller."""
        selector = stored_selector(arguments)
        if not self._table.remove(selector, destination):
            return
        required = selector.required_header
        if required is None:
            del self._others[selector]
            return
        name, text = required
        texts = self._by_required_header[name]
        del texts[text][selector]
        if not texts[text]:
            del texts[text]
            if not texts:
                del self._by_required_header[name]

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations whose selector matches; not to be changed.

        headers: decoded, None when the message has none. Raises: nothing. Cost: the selectors that require no header,
        and those whose header has the text they require; some tens of nanoseconds a term.
        """
        table = _NO_HEADERS if headers is None else headers if isinstance(headers, dict) else dict(headers)
        message = RoutedMessage(key, table)
        found: list[set[object]] = []
        for selector, destinations in self._others.items():
            if selector.matches(message):
                found.append(destinations)
        for name, texts in self._by_required_header.items():
            text = table.get(name)
            if isinstance(text, str):
                selectors = texts.get(text)
                if selectors is not None:
                    for selector, destinations in selectors.items():
                        if selector.matches(message):
                            found.append(destinations)
        return union(found)

    def is_empty(self) -> bool:
        """Whether nothing that a message would be held against is left. Cost: O(1)."""
        return not self._by_required_header and not self._others


def stored_selector(arguments: Arguments) -> Selector:
    """The selector of a binding that is there."""
    try:
        return parse_binding_selector(arguments)
    except BadBinding as error:
        log.error("a binding to an exchange of type x-jms-topic cannot be understood and matches nothing: %s", error)
        return MATCHES_NOTHING


def parse_binding_selector(arguments: Arguments) -> Selector:
    """The selector of a binding. Raises: BadBinding."""
    names = [name for name in [*TEXT_ARGUMENTS, ERLANG_ARGUMENT] if name in arguments]
    if len(names) != 1:
        raise BadBinding(
            "a binding to an exchange of type x-jms-topic has one selector, in x-selector (SQL text) or "
            "rjms_erlang_selector (from RabbitMQ's JMS client)"
        )
    name = names[0]
    text = arguments[name]
    if not isinstance(text, str):
        raise BadBinding(f"{name} is not a text")
    try:
        selector = parse_erlang_selector(text) if name == ERLANG_ARGUMENT else parse_selector(text)
    except BadSelector as error:
        raise BadBinding(f"{name}: {error}") from None
    for node in selector.condition.walk():
        if isinstance(node, nodes.Field) and node.rule.number != ROUTING_KEY_FIELD and node.rule.header == "":
            raise BadBinding(f"{name}: an exchange sees the headers and p.routing-key of a message, no other property")
    return selector
