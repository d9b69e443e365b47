"""Exchanges, bindings and the arguments of exchange.declare.

An `Exchange` has a matcher (an `ExchangeType` of `amqpd.routing`), its bindings, and a version number for cached
routes. A change invalidates the routes through this exchange and through every exchange that leads to it, by a
binding or as its alternate. Other routes stay cached, so an RPC client that declares reply queues all day does not
slow down publishers.

`ROWS` has one row per argument that the broker uses. A row can be limited to some exchange types (`kinds`). All other
arguments are stored and shown, and have no effect.

`MissingExchangeType` replaces a type whose package is not installed any more. The exchange keeps its bindings and
works again when the package is back. Until then it refuses bindings and publishes, because the destinations are
unknown. A dead letter to it is dropped, as if the exchange did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from amqpd.broker.consumer import DelayHook, Versioned
from amqpd.broker.queue.argument_checks import (
    ArgumentContext,
    ArgumentSpec,
    PolicyKey,
    anything,
    erlang_type,
    is_integer,
    is_text,
)
from amqpd.broker.queue.arguments import NO_POLICY
from amqpd.broker.queue.queue import Queue
from amqpd.broker.stats import ExchangeStats
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import encode_table
from amqpd.routing.base import ROUTING_KEY, Arguments, BadBinding, ExchangeType
from amqpd.routing.hashing import HASH_HEADER, HASH_PROPERTY, HASHED_PROPERTIES
from amqpd.routing.headers import erlang_term
from amqpd.routing.message_exchange import MessageExchangeType
from amqpd.routing.stateful import CACHE_PERSISTENCE, CACHE_SIZE, CACHE_TTL, HISTORY_LENGTH

if TYPE_CHECKING:
    from amqpd.storage.metadata.rows import Change


def _text(row: ArgumentSpec, value: object, context: ArgumentContext) -> str:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' "
            f"in exchange '{context.name}' in vhost '{context.vhost}'"
        )
    return value


def _hash_header(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    _text(row, value, context)
    if HASH_PROPERTY in context.arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")


def _hash_property(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    name = _text(row, value, context)
    if HASH_HEADER in context.arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    if name not in HASHED_PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {name}")


def _history_length(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not is_integer(value) or not isinstance(value, int) or value < 1:
        raise PreconditionFailed(f"Invalid argument {erlang_term(value)}, '{row.name}' must be a positive integer")


def _cache_number(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    """Accept a positive integer or its digits as text. RabbitMQ: the deduplication plugin accepts both."""
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if not is_integer(value) or not isinstance(value, int) or not 0 < value <= _CACHE_NUMBER_MAX:
        raise _bad_cache_number(row.name)


def _bad_cache_number(name: str) -> PreconditionFailed:
    begin = "Missing or invalid argument" if name == CACHE_SIZE else "Invalid argument"
    return PreconditionFailed(f"{begin}, '{name}' must be an integer greater than 0")


def _cache_persistence(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if value not in ("disk", "memory"):
        raise PreconditionFailed(f"Invalid argument, '{row.name}' must be either 'disk' or 'memory'")


_DEDUPLICATION: Final = "x-message-deduplication"
_CACHE_NUMBER_MAX: Final = 2**53


def _boolean(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not isinstance(value, bool):
        raise PreconditionFailed(
            f"invalid arg '{row.name}' for exchange '{context.name}' in vhost '{context.vhost}': "
            f"{{unacceptable_type,{erlang_type(value)}}}"
        )


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


SUPER_STREAM: Final = "x-super-stream"
DELAYED_MESSAGE: Final = "x-delayed-message"
"""An exchange of this type delays messages; another type (`x-delayed-type`) finds the destinations."""

ROWS: Final[dict[str, ArgumentSpec]] = {
    row.name: row
    for row in (
        ArgumentSpec(
            "alternate-exchange",
            _text,
            "exchange",
            "exchange for messages that match no binding",
            policy=PolicyKey("alternate-exchange", is_text, "alternate exchange name"),
            takes="text",
        ),
        ArgumentSpec(
            HASH_HEADER,
            _hash_header,
            "consistent_hash",
            "header to hash instead of the routing key",
            kinds=frozenset(("x-consistent-hash",)),
            takes="text",
        ),
        ArgumentSpec(
            HASH_PROPERTY,
            _hash_property,
            "consistent_hash",
            "property to hash: message_id, correlation_id or timestamp",
            kinds=frozenset(("x-consistent-hash",)),
            takes="message_id|correlation_id|timestamp",
        ),
        ArgumentSpec(
            HISTORY_LENGTH,
            _history_length,
            "recent_history",
            "number of recent messages for a new binding; default 20",
            kinds=frozenset(("x-recent-history",)),
            takes="messages",
        ),
        ArgumentSpec(
            CACHE_SIZE,
            _cache_number,
            "deduplication",
            "maximum number of remembered ids; required",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="number",
        ),
        ArgumentSpec(
            CACHE_TTL,
            _cache_number,
            "deduplication",
            "time in ms to remember an id; default: until the cache is full",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="ms",
        ),
        ArgumentSpec(
            CACHE_PERSISTENCE,
            _cache_persistence,
            "deduplication",
            "memory (default), or disk for a durable exchange",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="memory|disk",
        ),
        ArgumentSpec(
            "x-delayed-type",
            anything,
            "exchange_arguments",
            "x-delayed-message: the exchange type that finds the queues",
            takes="text",
        ),
        ArgumentSpec(
            SUPER_STREAM,
            anything,
            "super_streams",
            "true: the bound streams are the partitions of a topic for Kafka's clients",
            takes="flag",
            compared=False,
        ),
        ArgumentSpec(
            "x-delayed",
            _boolean,
            "exchange",
            "delay messages with a header x-deliver-at or x-delay",
            policy=PolicyKey("delayed-message", is_flag, "delayed-message value"),
            takes="flag",
        ),
    )
}


def validate(exchange: str, vhost: str, kind: str, arguments: Mapping[str, object]) -> None:
    """Check the arguments of a new exchange. Raises: PreconditionFailed.

    Args:
        kind: the exchange type.
    """
    context = ArgumentContext(exchange, vhost, arguments)
    if routing_type(kind, arguments) == _DEDUPLICATION and CACHE_SIZE not in arguments:
        raise _bad_cache_number(CACHE_SIZE)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None and _applies_to(row, kind, arguments):
            row.check(row, value, context)


def _applies_to(row: ArgumentSpec, kind: str, arguments: Mapping[str, object]) -> bool:
    """Return whether the argument applies to this type, or to the type that a delayed-message exchange routes by."""
    if row.kinds is None or kind in row.kinds:
        return True
    return kind == DELAYED_MESSAGE and arguments.get("x-delayed-type") in row.kinds


def compared_names(kind: str, arguments: Mapping[str, object]) -> list[str]:
    """Return the arguments in which two declarations of this exchange must agree.

    RabbitMQ compares only alternate-exchange and ignores differences in the others.
    """
    return [row.name for row in ROWS.values() if row.compared and _applies_to(row, kind, arguments)]


def alternate_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> str:
    """Return the name of the alternate exchange, "" for none.

    rabbit: the argument overrides the policy.

    Args:
        effective: the merged definition of the policies that match the exchange.
    """
    value = arguments.get("alternate-exchange", effective.get("alternate-exchange"))
    return value if isinstance(value, str) else ""


def delays_of(kind: str, arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> bool:
    """Return whether the exchange delays messages. As in `alternate_of`, the argument overrides the policy."""
    return kind == DELAYED_MESSAGE or arguments.get("x-delayed", effective.get("delayed-message")) is True


def routing_type(kind: str, arguments: Mapping[str, object]) -> str:
    """Return the exchange type that finds the destinations. Raises: PreconditionFailed, with the plugin's texts."""
    if kind != DELAYED_MESSAGE:
        return kind
    routes_as = arguments.get("x-delayed-type")
    if routes_as == DELAYED_MESSAGE:
        raise PreconditionFailed("Invalid argument, 'x-delayed-type' can't be used for 'x-delayed-message'")
    if not isinstance(routes_as, str):
        raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
    return routes_as


class MissingExchangeType:
    """Matcher of an exchange whose type is not installed."""

    depends_on = ROUTING_KEY

    def __init__(self, kind: str) -> None:
        self.reason = (
            f"its type '{kind}' is not installed; install the package that provides it (its entry point is in "
            "amqpd.exchange_types) and restart amqpd, or delete the exchange"
        )

    def validate(self, key: str, arguments: Arguments) -> None:
        """Refuse every binding. Raises: BadBinding."""
        raise BadBinding(f"the exchange accepts no bindings: {self.reason}")

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Do nothing: the vhost stores the binding."""

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Do nothing: the vhost removes the binding."""

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return no destinations."""
        return set()


DestinationType: TypeAlias = Literal["queue", "exchange"]


class BindingKey(NamedTuple):
    """Identity of a binding. `arguments` are encoded by `binding_table`."""

    source: str
    destination_type: DestinationType
    destination: str
    routing_key: str
    arguments: bytes


def binding_table(arguments: dict[str, object]) -> bytes:
    """Encode a binding's arguments, sorted by name: for RabbitMQ their order makes no difference.

    The value's type makes a difference: 5, 5.0, true and "5" are four bindings. Raises: CodecError.
    """
    return encode_table(dict(sorted(arguments.items())) if len(arguments) > 1 else arguments)


class Binding:
    """A binding of a queue or an exchange to a source exchange.

    Attributes:
        row_arguments: the encoded arguments of the row. Versions before 2026-11-24 stored them unsorted.
    """

    def __init__(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, object]
    ) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments
        self.destination_type: DestinationType = "queue" if isinstance(destination, Queue) else "exchange"
        self.key = BindingKey(
            source.name, self.destination_type, destination.name, routing_key, binding_table(arguments)
        )
        self.row_arguments = encode_table(arguments) if len(arguments) > 1 else self.key.arguments
        self.durable = source.durable and destination.durable

    def event_fields(self, vhost: str) -> dict[str, object]:
        """Return the fields of an event about this binding."""
        return {
            "vhost": vhost,
            "source_name": self.source.name,
            "source_kind": "exchange",
            "destination_name": self.destination.name,
            "destination_kind": self.destination_type,
            "routing_key": self.routing_key,
            "arguments": self.arguments,
        }

    @property
    def is_exclusive(self) -> bool:
        """Return whether the destination is an exclusive queue; the binding concerns only its connection."""
        end = self.destination
        return not isinstance(end, Exchange) and end.exclusive_owner is not None


class Exchange:
    """One exchange.

    Attributes:
        matcher: finds the destinations; None for the default exchange, which reaches every queue by its name.
        upstream: exchanges that lead to this one -> number of bindings and alternates by which they do.
        delays: whether the exchange delays messages now.
        wheel: its delayed messages, which remain after `delays` became false.
        routes: version of all routes through the exchange. An attribute, not a base class: `Versioned` is native, this
            class is not.
        depends_on, looks_version: the cached answer of `router.depends_on`, and the version for which it is valid.
    """

    destination_type: Final = "exchange"

    def __init__(
        self,
        name: str,
        kind: str,
        matcher: ExchangeType | None,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        self.name = name
        self.kind = kind
        self.matcher = matcher
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.alternate = alternate_of(arguments)
        self.bindings: dict[BindingKey, Binding] = {}
        self.upstream: dict[Exchange, int] = {}
        self.deleted = False
        self.delays = delays_of(kind, arguments)
        self.wheel: DelayHook | None = None
        self.routes = Versioned()
        self.stats = ExchangeStats()
        self.depends_on = ROUTING_KEY
        self.looks_version = -1
        if isinstance(matcher, MessageExchangeType):
            matcher.configure(arguments)

    @property
    def unavailable(self) -> str:
        """Return the reason why the exchange refuses messages; "" if its type is installed."""
        return self.matcher.reason if isinstance(self.matcher, MissingExchangeType) else ""

    def event_fields(self, vhost: str) -> dict[str, object]:
        """Return the fields of an event about this exchange."""
        return {
            "vhost": vhost,
            "name": self.name,
            "type": self.kind,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": self.arguments,
            "policy": "",  # rabbit: the policy is applied after this event
        }

    def add(self, binding: Binding) -> None:
        assert self.matcher is not None  # the default exchange takes no bindings
        self.matcher.bind(binding.routing_key, binding.arguments, binding.destination)
        self.bindings[binding.key] = binding
        destination = binding.destination
        if isinstance(destination, Exchange):
            destination.upstream[self] = destination.upstream.get(self, 0) + 1
        self.touch()

    def remove(self, binding: Binding) -> None:
        assert self.matcher is not None  # as above
        del self.bindings[binding.key]
        self.matcher.unbind(binding.routing_key, binding.arguments, binding.destination)
        destination = binding.destination
        if isinstance(destination, Exchange):
            destination.drop_upstream(self)
        self.touch()

    def take_bindings(self) -> list[Binding]:
        """Remove all bindings of a deleted exchange. Its matcher is not used again and stays as it is."""
        bindings = list(self.bindings.values())
        self.bindings.clear()
        for binding in bindings:
            if isinstance(binding.destination, Exchange):
                binding.destination.drop_upstream(self)
        self.touch()
        return bindings

    def drop_upstream(self, source: Exchange) -> None:
        """Remove one binding or alternate by which `source` leads here."""
        left = self.upstream.get(source, 0) - 1
        if left > 0:
            self.upstream[source] = left
        else:
            self.upstream.pop(source, None)

    def touch(self) -> None:
        """Invalidate all routes through this exchange. Cost: linear in the exchanges that lead here."""
        seen: set[Exchange] = {self}
        stack = [self]
        while stack:
            exchange = stack.pop()
            exchange.routes.version += 1
            for upstream in exchange.upstream:
                if upstream not in seen:
                    seen.add(upstream)
                    stack.append(upstream)


class ExchangeStateHook:
    """Base class for the stored messages of exchanges (recent history, deduplication). It stores nothing.

    `broker/publish/exchange_state.py` implements it, because it needs to publish. `vhost` is the name of a vhost.
    """

    def begin(self, vhost: str, exchange: Exchange) -> None:
        """Create the state of a new exchange."""

    def bound(self, vhost: str, binding: Binding) -> None:
        """Handle a new binding made by a client. A start does not call this."""

    def end(self, vhost: str, exchange: Exchange) -> list[Change]:
        """Remove the state of a deleted exchange. Return its rows, which are deleted with that of the exchange."""
        return []
