"""The exchange type x-jms-topic: bindings are selectors on the headers of a message.

A binding has its selector in exactly one argument: `x-selector` (SQL, as in consumer filters), `rjms_selector` (the
same, from old clients) or `rjms_erlang_selector` (RabbitMQ's JMS client translates the SQL into an Erlang term). The
exchange sees the headers and the routing key (`p.routing-key`). JMS fields such as JMSPriority are read from the
headers, where that client puts them. A selector on any other property is rejected.

**Index.** Bindings with the same selector share one evaluation. A selector that requires one text in one header
(`customer = 'acme' AND ...`) is indexed under that header and text, and is evaluated only for messages that have it.
All other selectors are evaluated for each message.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_jms_topic_exchange; the bindings of its client work unchanged.
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
    """The matching structure of an x-jms-topic exchange."""

    depends_on: ClassVar[int] = base.ROUTING_KEY | base.HEADERS

    def __init__(self) -> None:
        self._table = BindingTable()
        # Selector -> destinations: by required header and text; then those without a required header.
        self._by_required_header: dict[str, dict[str, dict[Selector, set[object]]]] = {}
        self._others: dict[Selector, set[object]] = {}

    def validate(self, key: str, arguments: Arguments) -> None:
        """Check that the binding has one selector, and that an exchange can evaluate it. Raises: BadBinding."""
        parse_binding_selector(arguments)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. Cost: parsing the selector unless it is cached.

        A selector that `validate` rejects, stored by another version of amqpd, is logged and matches nothing.
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
        """Return the destinations whose selector matches; callers must not change the set. Does not raise.

        Cost: the selectors without a required header, and those whose required text the message has; some tens of
        nanoseconds per term.
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
        """Return whether no binding is left. Cost: O(1)."""
        return not self._by_required_header and not self._others


def stored_selector(arguments: Arguments) -> Selector:
    """Return the selector of an existing binding; MATCHES_NOTHING if it is invalid."""
    try:
        return parse_binding_selector(arguments)
    except BadBinding as error:
        log.error("a binding to an exchange of type x-jms-topic cannot be understood and matches nothing: %s", error)
        return MATCHES_NOTHING


def parse_binding_selector(arguments: Arguments) -> Selector:
    """Return the selector of a binding. Raises: BadBinding."""
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
