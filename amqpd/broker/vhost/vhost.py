"""Tables of one vhost: exchanges, queues and bindings, and the look-ups by name.

`declare.py` checks commands and commits their rows; then it calls the `add_` and `take_` methods here. They keep the
tables consistent: inbound bindings, alternate exchanges, exclusive queues, policies in force. `publish/router.py`
routes by these tables. `VhostServices` is what all vhosts of a broker share.

A look-up of a name with a pending commit raises `DeclarationPending`. Other errors are `amqpd.errors` with RabbitMQ's
texts. The caller checks permissions.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, Protocol

from amqpd.broker.consumer import Destination, TraceHook
from amqpd.broker.events import Events
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.types import KINDS
from amqpd.broker.stats import EndedTotals, EndedUnroutableTotals, VhostCounts
from amqpd.broker.vhost.consumer_offsets import ConsumerOffsets
from amqpd.broker.vhost.declaration import NewQueue
from amqpd.broker.vhost.deletion import DeletionQueue
from amqpd.broker.vhost.exchange import Binding, BindingKey, Exchange, ExchangeStateHook, alternate_of, delays_of
from amqpd.broker.vhost.kafka_topics import ARGUMENT as KAFKA_TOPIC_ARGUMENT
from amqpd.broker.vhost.kafka_topics import KIND as KAFKA_TOPIC_KIND
from amqpd.broker.vhost.limits import NO_LIMITS, Limits
from amqpd.broker.vhost.pending import Done, PendingDeclaration, PendingDeclarations
from amqpd.broker.vhost.policy_table import EXCHANGE, NONE, PolicyTable, SlicedWalk
from amqpd.broker.vhost.super_streams import SuperStreams
from amqpd.errors import AccessRefused, NotFound, ResourceLocked
from amqpd.routing.registry import exchange_type_factory
from amqpd.storage.metadata.rows import VhostRow
from amqpd.storage.metadata.store import MetadataStore
from amqpd.storage.storage import Storage


class VhostServices:
    """Services that all vhosts of one broker share. A declaration or deletion needs nothing above this package."""

    def __init__(
        self,
        storage: Storage,
        metadata: MetadataStore,
        call_soon: Callable[..., object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.storage = storage
        self.call_soon = call_soon
        self.events = Events(call_soon)
        self.declared = PendingDeclarations(metadata.submit, call_soon, call_later)
        self.deletions = DeletionQueue(storage, metadata, self.declared.remove, self._count_deleted)
        self.stored_offsets = ConsumerOffsets(metadata.submit, call_soon, call_later, storage.clock_watch.clock)
        # The broker replaces this with its implementation.
        self.exchange_states = ExchangeStateHook()
        # None on a single node.
        self.own_topics: OwnTopics | None = None
        self.queue_declared_count = 0
        self.queue_created_count = 0
        self.queue_deleted_count = 0
        # Counters of removed queues, so that totals never fall; see amqpd.process.
        self.ended_queues = EndedTotals()
        # The same by queue type (classic, quorum, stream).
        self.ended_of_kind = {kind: EndedTotals() for kind in KINDS}
        self.ended_unroutable = EndedUnroutableTotals()

    def _count_deleted(self, count: int) -> None:
        self.queue_deleted_count += count


SYSTEM_EXCHANGES: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.topic", "topic"),
    ("amq.rabbitmq.trace", "topic"),
)

# Owner of a deleted exclusive queue.
_GONE: Final = object()


class Namespace:
    """Interface to look up names and submit changes: a `VHost`, or a `DraftNamespace` of a batch."""

    default_queue_type: str
    limits: Limits

    @property
    def vhost(self) -> VHost:
        raise NotImplementedError

    def find_queue(self, name: str) -> Queue | NewQueue | None:
        """Return the queue, or None. Raises: DeclarationPending."""
        raise NotImplementedError

    def find_exchange(self, name: str) -> Exchange | None:
        """Return the exchange, or None. Raises: DeclarationPending."""
        raise NotImplementedError

    def find_kafka_topic(self, topic: str) -> Queue | NewQueue | None:
        """Return the queue whose argument `x-kafka-topic` has this value, or None. Raises: DeclarationPending."""
        raise NotImplementedError

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        raise NotImplementedError

    def queue_count(self) -> int:
        """Return the number of queues, pending ones included."""
        raise NotImplementedError

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Commit a pending declaration and apply it in memory, then call done(None); on failure call done(error).

        Raises: DeclarationPending.
        """
        raise NotImplementedError


class VHost(Namespace):
    def __init__(
        self,
        catalogue: VhostServices,
        row: VhostRow,
        queue_host: QueueServices,
        reply_consumers: dict[str, Destination],
    ) -> None:
        self.catalogue = catalogue
        self.queue_host = queue_host
        self.name = row.name
        self.id = row.id
        self.update(row)
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        # Streams, and the other durable queues, by id.
        self.streams: dict[str, Queue] = {}
        self.work_queues: dict[str, Queue] = {}
        self.topics_version = 0  # changes with each change of these two
        self.super_streams = SuperStreams()
        # Queues with the argument x-kafka-topic, by topic. The first one of a topic keeps it.
        self.kafka_topics: dict[str, Queue] = {}
        self.uses_kafka_topics = False  # a queue with x-kafka-topic was declared since the start
        self.own_queues: dict[str, Queue] = {}  # the audit log (audit.py), in no list
        # Consumers behind direct reply-to keys, of all vhosts.
        self.reply_consumers: dict[str, Destination] = reply_consumers
        # Bindings by destination, removed together with it.
        self._inbound: dict[Queue | Exchange, dict[BindingKey, Binding]] = {}
        # Exchanges by the name of their alternate exchange, which may not exist.
        self._alternates: dict[str, dict[Exchange, None]] = {}
        # Exclusive queues by owner session.
        self._exclusive: dict[object, dict[Queue, None]] = {}
        # Exchanges whose type is not installed.
        self.unavailable: dict[Exchange, None] = {}
        self.unroutable_count = 0
        self.counts = VhostCounts()
        # While tracing is on: receives publishes and deliveries (broker/publish/firehose.py).
        self.firehose: TraceHook | None = None
        # Of a test (amqpd/testing): receives them, too. The firehose passes them on if there is one.
        self.recorder: TraceHook | None = None
        # The firehose, else the recorder.
        self.tap: TraceHook | None = None
        self.deleted = False
        self.unloaded = False  # another node serves it now
        self.limits = NO_LIMITS
        self.protected = False  # from deletion
        # Sessions that count against the limits.
        self.connected: set[object] = set()
        self.policies = PolicyTable()
        self.policy_walk = SlicedWalk[Queue | Exchange](catalogue.call_soon)
        self.default_exchange = Exchange("", "direct", None, True, False, False, {})
        self.exchanges[""] = self.default_exchange
        for exchange_name, kind in SYSTEM_EXCHANGES:
            internal = exchange_name == "amq.rabbitmq.trace"
            matcher = exchange_type_factory(kind)()
            self.exchanges[exchange_name] = Exchange(exchange_name, kind, matcher, True, False, internal, {})

    @property
    def vhost(self) -> VHost:
        return self

    def row(self) -> VhostRow:
        """Return the vhost's row in the metadata."""
        return VhostRow(self.name, self.id, self.description, self.tags, self.default_queue_type)

    def update(self, row: VhostRow) -> None:
        """Take description, tags and default queue type from this row."""
        self.description, self.tags, self.default_queue_type = row.description, row.tags, row.default_queue_type

    # -- look-up -----------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """Return the queue.

        Raises:
            NotFound, ResourceError.
            DeclarationPending, LogNotOpen: wait, then ask again.
        """
        queue = self.find_queue(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        queue.prepare()
        return queue

    def accessible_queue(self, name: str, owner: object) -> Queue:
        """Return the queue if this session may use it. Raises: ResourceLocked; see `queue`."""
        queue = self.queue(name)
        self.check_exclusive(queue, owner)
        return queue

    def queue_to_bind(self, name: str, owner: object) -> Queue | NewQueue:
        """Return the queue, or a queue whose commit is pending. Raises: see `accessible_queue`."""
        coming = self.catalogue.declared.coming(self.name, "queue", name)
        return coming if isinstance(coming, NewQueue) else self.accessible_queue(name, owner)

    def exchange_to_bind(self, name: str) -> Exchange:
        """Return the exchange, or an exchange whose commit is pending. Raises: NotFound, DeclarationPending."""
        coming = self.catalogue.declared.coming(self.name, "exchange", name)
        return coming if isinstance(coming, Exchange) else self.exchange_or_wait(name)

    def check_exclusive(self, queue: Queue | NewQueue, owner: object) -> None:
        """Check that an exclusive queue belongs to this session (None: the admin API). Raises: ResourceLocked."""
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise locked(queue.name, self.name)

    def exchange(self, name: str) -> Exchange:
        """Return the exchange for a publisher, which does not wait for pending ones. Raises: NotFound."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def exchange_or_wait(self, name: str) -> Exchange:
        """Return the exchange for a command other than publish. Raises: NotFound, DeclarationPending."""
        return self.find_exchange(name) or self.exchange(name)

    def check_not_default(self, name: str) -> None:
        """Refuse a command that changes or binds the default exchange. Raises: AccessRefused."""
        if not name:
            raise AccessRefused("operation not permitted on the default exchange")

    def server_name(self) -> str:
        """Return an unused name for a queue that the client declares without a name."""
        while True:
            name = "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            if name not in self.queues:
                return name

    def exclusive_queues(self, owner: object) -> list[Queue]:
        """Return the exclusive queues of a session. Cost: linear in their number."""
        return list(self._exclusive.get(owner, ()))

    def bindings_to(self, destination: Queue | Exchange) -> list[Binding]:
        return list(self._inbound.get(destination, {}).values())

    def all_bindings(self) -> list[Binding]:
        """Return all bindings. The default exchange has none: it reaches every queue by its name."""
        return [binding for exchange in self.exchanges.values() for binding in exchange.bindings.values()]

    # -- for declarations --------------------------------------------------------------------------------------------

    def find_queue(self, name: str) -> Queue | None:
        """Return the queue or the broker's system queue, or None. Raises: DeclarationPending."""
        queue = self.queues.get(name) or self.own_queues.get(name)
        if queue is None:
            self.catalogue.declared.check(self.name, "queue", name)
        return queue

    def check_not_system(self, name: str) -> None:
        """Refuse to declare, bind or delete a system queue. Raises: AccessRefused."""
        if name in self.own_queues:
            raise AccessRefused(f"queue '{name}' in vhost '{self.name}' is a system queue and can only be read")

    def find_exchange(self, name: str) -> Exchange | None:
        exchange = self.exchanges.get(name)
        if exchange is None:
            self.catalogue.declared.check(self.name, "exchange", name)
        return exchange

    def find_kafka_topic(self, topic: str) -> Queue | None:
        queue = self.kafka_topics.get(topic)
        if queue is None:
            self.catalogue.declared.check(self.name, KAFKA_TOPIC_KIND, topic)
        return queue

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        return key in source.bindings

    def queue_count(self) -> int:
        return len(self.queues) + self.catalogue.declared.coming_queue_count(self.name)

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Commit and apply (`PendingDeclarations.commit_and_apply`). Raises: DeclarationPending, MetadataClosed."""
        coming.vhost = self
        self.catalogue.declared.commit_and_apply(coming, done)

    # -- changes of the tables ---------------------------------------------------------------------------------------

    def add_queue(self, queue: Queue) -> None:
        """Add a queue. If it is durable, its row is committed."""
        self.queues[queue.name] = queue
        if KINDS[queue.kind].stream:
            self.streams[queue.id] = queue
            self.topics_version += 1
        elif queue.durable:
            self.work_queues[queue.id] = queue
            self.topics_version += 1
        if KAFKA_TOPIC_ARGUMENT in queue.arguments:
            self.uses_kafka_topics = True
            self.kafka_topics.setdefault(str(queue.arguments[KAFKA_TOPIC_ARGUMENT]), queue)
        if queue.logged:
            self.queue_host.windows.add(queue.order.memory)
        owner = queue.exclusive_owner
        if owner is not None:
            self._exclusive.setdefault(owner, {})[queue] = None
        if self.policies:
            self.apply_policies(queue)

    def take_queue(self, queue: Queue) -> list[Binding]:
        """Remove a queue from the tables. Return its bindings; the source exchanges still have them."""
        del self.queues[queue.name]
        if self.streams.pop(queue.id, None) is not None or self.work_queues.pop(queue.id, None) is not None:
            self.topics_version += 1
        topic = str(queue.arguments.get(KAFKA_TOPIC_ARGUMENT, ""))
        if self.kafka_topics.get(topic) is queue:
            del self.kafka_topics[topic]
        owner = queue.exclusive_owner
        owned = self._exclusive.get(owner)
        if owned is not None:
            owned.pop(queue, None)
            if not owned:
                del self._exclusive[owner]
        if owner is not None:
            # No session owns it now, and a reference to the queue does not keep its session in memory.
            queue.exclusive_owner = _GONE
        self.queue_host.windows.remove(queue.order.memory)
        self.policies.in_force.pop(queue, None)
        return list(self._inbound.pop(queue, {}).values())

    def add_exchange(self, exchange: Exchange) -> None:
        """Add an exchange. If it is durable, its row is committed."""
        self.exchanges[exchange.name] = exchange
        self.super_streams.exchange_added(exchange)
        self.catalogue.exchange_states.begin(self.name, exchange)
        self._create_delays(exchange)
        if exchange.unavailable:
            self.unavailable[exchange] = None
        self._alternate_changed(exchange.name)
        self._link_alternate(exchange)
        if self.catalogue.events.has_listeners:
            self.catalogue.events.emit("exchange.created", exchange.event_fields(self.name))
        if self.policies:
            self.apply_policies(exchange)

    def take_exchange(self, exchange: Exchange) -> list[Binding]:
        """Remove an exchange and its outbound bindings from the tables. Return its inbound bindings."""
        for binding in exchange.take_bindings():
            if self.catalogue.events.exchange_bound:
                self.catalogue.events.emit("binding.deleted", binding.event_fields(self.name), recorded=False)
            self._inbound.get(binding.destination, {}).pop(binding.key, None)
            self.super_streams.binding_removed(binding)
        del self.exchanges[exchange.name]
        self.super_streams.exchange_removed(exchange)
        self.unavailable.pop(exchange, None)
        self.policies.in_force.pop(exchange, None)
        self._unlink_alternate(exchange)
        self._alternate_changed(exchange.name)
        return list(self._inbound.pop(exchange, {}).values())

    def _alternate_changed(self, name: str) -> None:
        """Invalidate the routes of exchanges whose alternate has this name: it was added or removed."""
        here = self.exchanges.get(name)
        for other in self._alternates.get(name, ()):
            if here is not None:
                here.upstream[other] = here.upstream.get(other, 0) + 1
            other.touch()

    def _link_alternate(self, exchange: Exchange) -> None:
        if not exchange.alternate:
            return
        self._alternates.setdefault(exchange.alternate, {})[exchange] = None
        target = self.exchanges.get(exchange.alternate)
        if target is not None:
            target.upstream[exchange] = target.upstream.get(exchange, 0) + 1

    def _unlink_alternate(self, exchange: Exchange) -> None:
        named = self._alternates.get(exchange.alternate)
        if named is not None:
            named.pop(exchange, None)
            if not named:
                del self._alternates[exchange.alternate]
        target = self.exchanges.get(exchange.alternate)
        if target is not None:
            target.drop_upstream(exchange)

    # -- policies ----------------------------------------------------------------------------------------------------

    def apply_policies_to_all(self) -> None:
        """Apply the policies to all queues and exchanges in slices; see `policy_walk.when_done`."""
        self.policy_walk.begin(self.policy_targets, self.apply_policies)

    def policy_targets(self) -> list[Queue | Exchange]:
        return [*self.exchanges.values(), *self.queues.values()]

    def apply_policies(self, thing: Queue | Exchange) -> None:
        """Apply the policies that now match this queue or exchange. Do nothing if they have not changed.

        Cost: `NamePatternIndex` has it; 5 us more for a change. A queue over its new length limit is cut in slices.
        """
        if thing.deleted or self.deleted:
            return
        kind = thing.kind if isinstance(thing, Queue) else EXCHANGE
        new = self.policies.effective(kind, thing.name)
        if new == self.policies.policy_of(thing):
            return
        if new is NONE:
            del self.policies.in_force[thing]
        else:
            self.policies.in_force[thing] = new
        if isinstance(thing, Queue):
            thing.apply_config(new.rules(kind, thing.arguments))
        elif thing is not self.default_exchange:  # rabbit: it shows a policy but ignores an alternate
            self._set_alternate(thing, alternate_of(thing.arguments, new.definition))
            delays = delays_of(thing.kind, thing.arguments, new.definition)
            if delays != thing.delays:
                thing.delays = delays
                self._create_delays(thing)
                thing.touch()

    def _create_delays(self, exchange: Exchange) -> None:
        if exchange.delays and exchange.wheel is None:
            exchange.wheel = self.queue_host.delays.wheel(self.name, self.id, exchange.name)

    def _set_alternate(self, exchange: Exchange, name: str) -> None:
        if name != exchange.alternate:
            self._unlink_alternate(exchange)
            exchange.alternate = name
            self._link_alternate(exchange)
            exchange.touch()

    def add_binding(self, binding: Binding) -> None:
        """Add a binding. If it is durable, its row is committed."""
        binding.source.add(binding)
        self.super_streams.binding_added(binding)
        self._inbound.setdefault(binding.destination, {})[binding.key] = binding
        if self.catalogue.events.has_listeners:
            self.catalogue.events.emit(
                "binding.created", binding.event_fields(self.name), recorded=not binding.is_exclusive
            )

    def take_binding(self, binding: Binding) -> None:
        """Remove a binding from both tables, if it is there."""
        self._inbound.get(binding.destination, {}).pop(binding.key, None)
        if binding.key in binding.source.bindings:
            binding.source.remove(binding)
            self.super_streams.binding_removed(binding)


def locked(queue: str, vhost: str) -> ResourceLocked:
    """Return the error for an exclusive queue of another connection, or for a different exclusive flag."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )


class OwnTopics(Protocol):
    """A cluster node's knowledge of Kafka topics that belong to one queue (`x-kafka-topic`)."""

    def allows(self, topic: str) -> bool:
        """Return whether the operator allows this topic for queues (`cluster.kafka_topics`)."""

    def objection(self, topic: str) -> str | None:
        """Return the reason why a queue cannot have the topic.

        Returns:
            "" if the queue can have it; None if Kafka must be asked first. An answer of Kafka is returned once only.
        """

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """Ask Kafka about the topic. When `done` is called, `objection` has the answer."""
