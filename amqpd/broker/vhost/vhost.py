"""A vhost: its names, and the ways to look them up.

Owns the tables of its exchanges, queues and bindings, and keeps them in step: what is bound where, who names whom as
alternate, which queues end with which session. What is declared, bound, unbound and deleted goes through queues.py,
exchanges.py and bindings.py, which check it and submit its rows; here it is put into the tables once they are
committed, and declare.py takes it out. A name that is on its way is told by `DeclarationPending`.

Where a message goes by these names and bindings is `publish/router.py`'s.

Errors are amqpd.errors with RabbitMQ's texts. Permissions are the front end's business; they are not checked here.

What the vhosts of one broker share: names on their way, deletions, storage, and what is counted of queues.

Handed to each vhost, so that a declaration or a deletion needs nothing that lies above this package.

What a node of a cluster knows of topics that queues may have for themselves; cluster_checks.py asks it.
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
from amqpd.broker.vhost.exchange import Binding, BindingKey, Exchange, alternate_of, delays_of
from amqpd.broker.vhost.exchange_state import ExchangeStateHook
from amqpd.broker.vhost.limit_set import NO_LIMITS, Limits
from amqpd.broker.vhost.pending import Done, PendingDeclaration, PendingDeclarations
from amqpd.broker.vhost.policy_table import EXCHANGE, NONE, PolicyTable, SlicedWalk
from amqpd.errors import AccessRefused, NotFound, ResourceLocked
from amqpd.routing.registry import exchange_type_factory
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata.interface import MetadataStore
from amqpd.storage.metadata.store import VhostRow
from amqpd.storage.storage import Storage


class VhostServices:
    """One per broker. call_soon, call_later: the loop's."""

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
        self.stored_offsets = ConsumerOffsets(metadata.submit, call_soon, call_later, Clock())
        # The broker's own takes its place.
        self.keeping = ExchangeStateHook()
        # Of a node in a cluster.
        self.own_topics: OwnTopics | None = None
        self.queue_declared_count = 0
        self.queue_created_count = 0
        self.queue_deleted_count = 0
        # What queues that are gone had counted, so that totals never fall; see amqpd.process.
        self.ended_queues = EndedTotals()
        # The same by their kinds (classic, quorum, stream).
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

# The owner of an exclusive queue that is deleted.
_GONE: Final = object()


class Namespace:
    """What declarations look at, and where they submit what they make: a vhost, or a transaction's draft of it."""

    default_queue_type: str
    limits: Limits

    @property
    def vhost(self) -> VHost:
        """In whose tables it is made in the end."""
        raise NotImplementedError

    def find_queue(self, name: str) -> Queue | NewQueue | None:
        """None when there is none, nor one on its way. Raises: OnItsWay."""
        raise NotImplementedError

    def find_exchange(self, name: str) -> Exchange | None:
        """Likewise. Raises: OnItsWay."""
        raise NotImplementedError

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        raise NotImplementedError

    def queue_count(self) -> int:
        """Queues that are there or on their way."""
        raise NotImplementedError

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Commits what is coming, then makes it; done(None) then, done(error) when it is not made. Raises: OnItsWay."""
        raise NotImplementedError


class VHost(Namespace):
    """One virtual host."""

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
        self.own_queues: dict[str, Queue] = {}  # the broker's, found by their names and in no list: system_queues.py
        # Consumers behind direct reply-to keys, of whatever vhost.
        self.reply_consumers: dict[str, Destination] = reply_consumers
        # Bindings by where they end, to find what goes with a queue or an exchange.
        self._inbound: dict[Queue | Exchange, dict[BindingKey, Binding]] = {}
        # Exchanges by the name of their alternate, which need not be there.
        self._alternates: dict[str, dict[Exchange, None]] = {}
        # Exclusive queues by the session that they end with.
        self._exclusive: dict[object, dict[Queue, None]] = {}
        # Exchanges whose type is not installed: none, as a rule.
        self.unavailable: dict[Exchange, None] = {}
        self.unroutable_count = 0
        self.counts = VhostCounts()
        # While it is traced: who is told of publishes and deliveries (broker/publish/firehose.py).
        self.tap: TraceHook | None = None
        self.deleted = False
        self.unloaded = False  # it goes on elsewhere
        self.limits = NO_LIMITS
        self.protected = False  # from being deleted
        # Sessions that count against them.
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
        """What the metadata keep of it."""
        return VhostRow(self.name, self.id, self.description, self.tags, self.default_queue_type)

    def update(self, row: VhostRow) -> None:
        """What may be changed of it is now as this row says."""
        self.description, self.tags, self.default_queue_type = row.description, row.tags, row.default_queue_type

    # -- look-up -----------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """Raises: NotFound, OnItsWay."""
        queue = self.find_queue(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        queue.prepare()
        return queue

    def accessible_queue(self, name: str, owner: object) -> Queue:
        """The queue, if whoever this is may touch it. Raises: NotFound, ResourceLocked, OnItsWay."""
        queue = self.queue(name)
        self.check_exclusive(queue, owner)
        return queue

    def check_exclusive(self, queue: Queue | NewQueue, owner: object) -> None:
        """owner: the session that asks; None: the admin API. Raises: ResourceLocked."""
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise locked(queue.name, self.name)

    def exchange(self, name: str) -> Exchange:
        """For who publishes: one that is on its way is not there. Raises: NotFound."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def exchange_or_wait(self, name: str) -> Exchange:
        """For who declares, binds or looks. Raises: NotFound, OnItsWay."""
        return self.find_exchange(name) or self.exchange(name)

    def check_not_default(self, name: str) -> None:
        """The default exchange is nobody's to change or to bind. Raises: AccessRefused."""
        if not name:
            raise AccessRefused("operation not permitted on the default exchange")

    def server_name(self) -> str:
        """A name for a queue whose client gives it none."""
        while True:
            name = "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            if name not in self.queues:
                return name

    def exclusive_queues(self, owner: object) -> list[Queue]:
        """Those that go with this session. Cost: their number, however many others there are."""
        return list(self._exclusive.get(owner, ()))

    def bindings_to(self, destination: Queue | Exchange) -> list[Binding]:
        """Those that end there."""
        return list(self._inbound.get(destination, {}).values())

    def all_bindings(self) -> list[Binding]:
        """A snapshot. The default exchange's are none: it reaches every queue by its name."""
        return [binding for exchange in self.exchanges.values() for binding in exchange.bindings.values()]

    # -- for declarations --------------------------------------------------------------------------------------------

    def find_queue(self, name: str) -> Queue | None:
        """None when there is none, nor one on its way. Raises: OnItsWay."""
        queue = self.queues.get(name) or self.own_queues.get(name)
        if queue is None:
            self.catalogue.declared.check(self.name, "queue", name)
        return queue

    def check_not_system(self, name: str) -> None:
        """The broker's own queues are nobody's to declare, bind or delete. Raises: AccessRefused."""
        if name in self.own_queues:
            raise AccessRefused(f"queue '{name}' in vhost '{self.name}' is the broker's own and can only be read")

    def find_exchange(self, name: str) -> Exchange | None:
        """Likewise. Raises: OnItsWay."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            self.catalogue.declared.check(self.name, "exchange", name)
        return exchange

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        """Whether it is there already."""
        return key in source.bindings

    def queue_count(self) -> int:
        return len(self.queues) + self.catalogue.declared.coming_queue_count(self.name)

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """See `PendingDeclarations.make`. Raises: OnItsWay, MetadataClosed."""
        self.catalogue.declared.commit_and_apply(coming, done)

    # -- the tables --------------------------------------------------------------------------------------------------

    def add_queue(self, queue: Queue) -> None:
        """Its row is committed, or it has none."""
        self.queues[queue.name] = queue
        if queue.logged:
            self.queue_host.windows.add(queue.order.memory)
        owner = queue.exclusive_owner
        if owner is not None:
            self._exclusive.setdefault(owner, {})[queue] = None
        if self.policies:
            self.apply_policies(queue)

    def take_queue(self, queue: Queue) -> list[Binding]:
        """It is not there any more. Returns what was bound to it, which the exchanges still have."""
        del self.queues[queue.name]
        owner = queue.exclusive_owner
        owned = self._exclusive.get(owner)
        if owned is not None:
            owned.pop(queue, None)
            if not owned:
                del self._exclusive[owner]
        if owner is not None:
            # It stays nobody else's, and keeps its session no longer, whoever still names the queue.
            queue.exclusive_owner = _GONE
        self.queue_host.windows.remove(queue.order.memory)
        self.policies.in_force.pop(queue, None)
        return list(self._inbound.pop(queue, {}).values())

    def add_exchange(self, exchange: Exchange) -> None:
        """Its row is committed, or it has none."""
        self.exchanges[exchange.name] = exchange
        self.catalogue.keeping.begin(self.name, exchange)
        self._give_wheel(exchange)
        if exchange.unavailable:
            self.unavailable[exchange] = None
        self._alternate_changed(exchange.name)
        self._link_alternate(exchange)
        if self.catalogue.events.has_listeners:
            self.catalogue.events.emit("exchange.created", exchange.told(self.name))
        if self.policies:
            self.apply_policies(exchange)

    def take_exchange(self, exchange: Exchange) -> list[Binding]:
        """It is not there any more, nor what was bound to others from it. Returns what was bound to it."""
        for binding in exchange.take_bindings():
            if self.catalogue.events.exchange_bound:
                self.catalogue.events.emit("binding.deleted", binding.told(self.name), recorded=False)
            self._inbound.get(binding.destination, {}).pop(binding.key, None)
        del self.exchanges[exchange.name]
        self.unavailable.pop(exchange, None)
        self.policies.in_force.pop(exchange, None)
        self._unlink_alternate(exchange)
        self._alternate_changed(exchange.name)
        return list(self._inbound.pop(exchange, {}).values())

    def _alternate_changed(self, name: str) -> None:
        """An exchange of this name came or went: whoever names it as alternate routes anew."""
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
        """Everything in it follows its policies, in slices: `policy_walk.when_done` tells when."""
        self.policy_walk.begin(self.policy_targets, self.apply_policies)

    def policy_targets(self) -> list[Queue | Exchange]:
        """A snapshot."""
        return [*self.exchanges.values(), *self.queues.values()]

    def apply_policies(self, thing: Queue | Exchange) -> None:
        """It obeys what the policies say of it from now on; nothing changes where that is what it obeys.

        Cost: 1 us a policy, 5 us where there is something new; what is then over a length goes in slices.
        """
        if thing.deleted:
            return
        kind = thing.kind if isinstance(thing, Queue) else EXCHANGE
        new = self.policies.effective(kind, thing.name)
        if new == self.policies.obeyed_by(thing):
            return
        if new is NONE:
            del self.policies.in_force[thing]
        else:
            self.policies.in_force[thing] = new
        if isinstance(thing, Queue):
            thing.apply_config(new.rules(kind, thing.arguments))
        elif thing is not self.default_exchange:  # rabbit: it names a policy, and has no use for an alternate
            self._set_alternate(thing, alternate_of(thing.arguments, new.definition))
            delays = delays_of(thing.kind, thing.arguments, new.definition)
            if delays != thing.delays:
                thing.delays = delays
                self._give_wheel(thing)
                thing.touch()

    def _give_wheel(self, exchange: Exchange) -> None:
        if exchange.delays and exchange.wheel is None:
            exchange.wheel = self.queue_host.delaying(exchange.name)

    def _set_alternate(self, exchange: Exchange, name: str) -> None:
        if name != exchange.alternate:
            self._unlink_alternate(exchange)
            exchange.alternate = name
            self._link_alternate(exchange)
            exchange.touch()

    def add_binding(self, binding: Binding) -> None:
        """Its row is committed, or it has none."""
        binding.source.add(binding)
        self._inbound.setdefault(binding.destination, {})[binding.key] = binding
        if self.catalogue.events.has_listeners:
            self.catalogue.events.emit("binding.created", binding.told(self.name), recorded=not binding.private)

    def take_binding(self, binding: Binding) -> None:
        """It is in neither table any more, if it was."""
        self._inbound.get(binding.destination, {}).pop(binding.key, None)
        if binding.key in binding.source.bindings:
            binding.source.remove(binding)


def locked(queue: str, vhost: str) -> ResourceLocked:
    """The queue is exclusive and another connection's, or is not exclusive and was asked for as such."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )


class OwnTopics(Protocol):
    """Of the operator's Kafka."""

    def allows(self, topic: str) -> bool:
        """Whether the operator lets queues have it."""

    def objection(self, topic: str) -> str | None:
        """Why it cannot be had, "" where it can; None: nobody has asked Kafka just now. What it said is told once."""

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """Asks Kafka; `objection` knows when `done` is called."""
