"""An exchange and its bindings, as the vhost keeps them.

The matching itself is `amqpd.routing`'s: an exchange holds one instance of its type. Here live the names, the flags,
the list of bindings (each once), and the version that cached routes are checked against. A change touches the
exchange and every exchange that leads to it, through a binding or as its alternate, and nothing else: an RPC client
that declares reply queues all day does not chill other people's routes.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from amqpd.broker.vhost.exchange_arguments import alternate_of, delays_of
from amqpd.broker.vhost.unavailable import Unavailable
from amqpd.broker.delay_hook import Delaying
from amqpd.broker.destination import Versioned
from amqpd.broker.passed import Passed
from amqpd.broker.queue.queue import Queue
from amqpd.protocol.field_table import encode_table
from amqpd.routing.base import ExchangeType
from amqpd.routing.looks import ROUTING_KEY
from amqpd.routing.message_exchange import WholeMessage

DestinationType: TypeAlias = Literal["queue", "exchange"]


class BindingKey(NamedTuple):
    """The identity of a binding. arguments: as `binding_table` has them."""

    source: str
    destination_type: DestinationType
    destination: str
    routing_key: str
    arguments: bytes


def binding_table(arguments: dict[str, object]) -> bytes:
    """Encode a binding's arguments, sorted by name: RabbitMQ takes two tables in another order for the same.

    A number's type class is part of it: 5, 5.0, true and "5" make four bindings. Raises: CodecError.
    """
    return encode_table(dict(sorted(arguments.items())) if len(arguments) > 1 else arguments)


class Binding:
    """source -> destination under a routing key and arguments.

    row_arguments: as the metadata has them; a version before 2026-11-24 wrote them in the order in which they came.
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

    def told(self, vhost: str) -> dict[str, object]:
        """Of an event."""
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
    def private(self) -> bool:
        """Whether it ends at an exclusive queue, which is its connection's own matter."""
        end = self.destination
        return not isinstance(end, Exchange) and end.exclusive_owner is not None

    @property
    def properties_key(self) -> str:
        """How the admin API names a binding among those between the same two: RabbitMQ's `~` when it is plain."""
        if not self.routing_key and not self.arguments:
            return "~"
        return self.routing_key


class Exchange:
    """matcher: the type's instance; None for the default exchange, which reaches every queue by its name."""

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
        # Exchanges that lead here; a dict for its order and for counting.
        self.upstream: dict[Exchange, int] = {}
        self.deleted = False
        # Whether it delays messages now, and those that wait, which may be of a time when it did.
        self.delays = delays_of(kind, arguments)
        self.wheel: Delaying | None = None
        # What routes through here depend on. Composed, not inherited: Versioned is native, this class is not.
        self.routes = Versioned()
        self.passed = Passed()
        # The answer of `router.looks_at`, and the version that it holds for.
        self.looks_at = ROUTING_KEY
        self.looks_version = -1
        if isinstance(matcher, WholeMessage):
            matcher.configure(arguments)

    @property
    def unavailable(self) -> str:
        """Why nothing may be published to it; empty when it is as it should be."""
        return self.matcher.reason if isinstance(self.matcher, Unavailable) else ""

    def told(self, vhost: str) -> dict[str, object]:
        """Of an event."""
        return {
            "vhost": vhost,
            "name": self.name,
            "type": self.kind,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": self.arguments,
            "policy": "",  # rabbit: it has none yet
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
        """All of them, as it is deleted: nobody routes through it any more, and its matcher goes as it is."""
        bindings = list(self.bindings.values())
        self.bindings.clear()
        for binding in bindings:
            if isinstance(binding.destination, Exchange):
                binding.destination.drop_upstream(self)
        self.touch()
        return bindings

    def drop_upstream(self, source: Exchange) -> None:
        """One thing less by which that exchange leads here."""
        left = self.upstream.get(source, 0) - 1
        if left > 0:
            self.upstream[source] = left
        else:
            self.upstream.pop(source, None)

    def touch(self) -> None:
        """Routes that pass here are made anew. Cost: the exchanges that lead here."""
        seen: set[Exchange] = {self}
        stack = [self]
        while stack:
            exchange = stack.pop()
            exchange.routes.version += 1
            for upstream in exchange.upstream:
                if upstream not in seen:
                    seen.add(upstream)
                    stack.append(upstream)
