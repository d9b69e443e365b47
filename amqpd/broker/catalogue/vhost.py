"""A vhost: names and bindings.

Owns its exchanges, queues and bindings, and nothing here waits. What is declared, bound or unbound is checked here and
returned as `Coming`: it is made once its rows are committed (`declared.py`). What is deleted is out of memory at once,
and the changes that remove its rows are returned. A name that is on its way is told by `OnItsWay`.

Where a message goes by these names and bindings is `publishing/router.py`'s.

Errors are amqpd.errors with RabbitMQ's texts. Permissions are the channel's business; they are not checked here.
"""

from __future__ import annotations

import logging
import secrets
from base64 import urlsafe_b64encode
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.broker.catalogue.declared import Coming, Name, OnItsWay
from amqpd.broker.catalogue.exchange import Binding, BindingKey, Exchange
from amqpd.broker.counters import queue_counts
from amqpd.broker.destination import Destination
from amqpd.broker.queues import arguments as queue_arguments
from amqpd.broker.queues.queue import Queue
from amqpd.broker.queues.queue_kinds import make_queue
from amqpd.errors import (
    AccessRefused,
    CommandInvalid,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from amqpd.protocol.codec import encode_table
from amqpd.routing.exchange import BadBinding, UnknownExchangeType, exchange_type
from amqpd.storage.metadata.metadata import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    Put,
    QueueRow,
    VhostRow,
    random_id,
)
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker

log = logging.getLogger(__name__)

SYSTEM_EXCHANGES: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.topic", "topic"),
    ("amq.rabbitmq.trace", "topic"),
)
ARGUMENTS_SIZE_MAX: Final = 64 * 1024

# The owner of an exclusive queue that is deleted.
_GONE: Final = object()


class VHost:
    """One virtual host."""

    def __init__(self, broker: Broker, name: str, vhost_id: str) -> None:
        self.broker = broker
        self.name = name
        self.id = vhost_id
        self.queue_host = broker.host_queues(name, vhost_id)
        self.description = ""
        self.tags: tuple[str, ...] = ()
        self.default_queue_type = "classic"
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        # Consumers behind direct reply-to keys, of whatever vhost.
        self.reply_consumers: dict[str, Destination] = broker.reply_consumers
        # Bindings by where they end, to find what goes with a queue or an exchange.
        self._inbound: dict[Queue | Exchange, dict[BindingKey, Binding]] = {}
        # Exchanges by the name of their alternate, which need not be there.
        self._alternates: dict[str, dict[Exchange, None]] = {}
        # Exclusive queues by the connection that they end with.
        self._exclusive: dict[object, dict[Queue, None]] = {}
        # Exchanges whose type is not installed: none, as a rule.
        self.unavailable: dict[Exchange, None] = {}
        self.unroutable_count = 0
        self.deleted = False
        self.default_exchange = Exchange("", "direct", None, True, False, False, {})
        self.exchanges[""] = self.default_exchange
        for exchange_name, kind in SYSTEM_EXCHANGES:
            internal = exchange_name == "amq.rabbitmq.trace"
            matcher = exchange_type(kind)()
            self.exchanges[exchange_name] = Exchange(exchange_name, kind, matcher, True, False, internal, {})

    def row(self) -> VhostRow:
        """What the metadata keep of it."""
        return VhostRow(self.name, self.id, self.description, self.tags, self.default_queue_type)

    def become(self, row: VhostRow) -> None:
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

    def usable_queue(self, name: str, connection: object) -> Queue:
        """The queue, if this connection may touch it. Raises: NotFound, ResourceLocked, OnItsWay."""
        queue = self.queue(name)
        self.check_exclusive(queue, connection)
        return queue

    def check_exclusive(self, queue: Queue, connection: object) -> None:
        if queue.exclusive_owner is not None and queue.exclusive_owner is not connection:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{self.name}'. It could be "
                "originally declared on another connection or the exclusive property value does not match that of the "
                "original declaration."
            )

    def exchange(self, name: str) -> Exchange:
        """For who publishes: one that is on its way is not there. Raises: NotFound."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def settled_exchange(self, name: str) -> Exchange:
        """For who declares, binds or looks. Raises: NotFound, OnItsWay."""
        return self.find_exchange(name) or self.exchange(name)

    def find_exchange(self, name: str) -> Exchange | None:
        """None when there is none, nor one on its way. Raises: OnItsWay."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            self.broker.declared.check(self.name, "exchange", name)
        return exchange

    def find_queue(self, name: str) -> Queue | None:
        """Likewise. Raises: OnItsWay."""
        queue = self.queues.get(name)
        if queue is None:
            self.broker.declared.check(self.name, "queue", name)
        return queue

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
        connection: object,
    ) -> Queue | Coming:
        """The queue of this name, found equivalent; or, when it is not there, what makes it.

        connection: the owner of an exclusive queue; None from the admin API. Raises: AccessRefused,
        PreconditionFailed, ResourceLocked, OnItsWay.
        """
        if exclusive:
            # rabbit: it dies with its connection, so whether it was asked for as durable is all the same
            durable = False
        queue = self.queues.get(name)
        kind = self.default_queue_type
        may_be = durable and not auto_delete and (queue is None or queue.kind == kind)
        if kind != "classic" and "x-queue-type" not in arguments and may_be:
            # rabbit: the vhost's default is as if it had been asked for; a queue made before it was set stays as it is
            arguments = {**arguments, "x-queue-type": kind}
        if queue is not None:
            self._check_queue(queue, durable, exclusive, auto_delete, arguments, connection)
            queue.prepare()
            return queue
        self.broker.declared.check(self.name, "queue", name)
        if name.startswith("amq.") and not name.startswith("amq.gen-"):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if len(encode_table(arguments)) > ARGUMENTS_SIZE_MAX:
            raise PreconditionFailed(f"arguments of queue '{name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
        if self.default_queue_type != "classic" and durable and not auto_delete:
            arguments = {"x-queue-type": self.default_queue_type, **arguments}
        queue_arguments.validate(name, self.name, arguments)
        if arguments.get("x-queue-type") == "quorum":
            self._check_quorum(name, durable, exclusive, auto_delete)
        if "x-export" in arguments and not durable:
            raise PreconditionFailed(f"invalid arg 'x-export' for queue '{name}' in vhost '{self.name}': not durable")
        owner = connection if exclusive else None
        queue_id = random_id() if durable else ""
        make = partial(self._make_queue, name, queue_id, auto_delete, owner, arguments)
        if not durable:
            return Coming([], make, [])
        row = QueueRow(self.name, name, queue_id, True, auto_delete, False, encode_table(arguments))
        return Coming([Put(row)], make, [Delete(row)])

    def _make_queue(
        self, name: str, queue_id: str, auto_delete: bool, owner: object, arguments: dict[str, object]
    ) -> Queue:
        """Its row is committed. queue_id: empty for what is not durable."""
        if self.deleted:
            raise OnItsWay(self.broker.declared, Name(self.name, "queue", name))
        store: QueueLog | None = None
        if queue_id:
            table = encode_table(arguments)
            store = self.broker.storage.create_queue(self.id, name, self.name, None, queue_id, auto_delete, table)[1]
        queue = make_queue(self.queue_host, name, queue_id != "", auto_delete, owner, arguments, store)
        queue.id = queue_id
        self.add_queue(queue)
        self.broker.queue_created_count += 1
        log.debug("queue '%s' was added", name, extra={"vhost": self.name, "queue": name})
        return queue

    def server_name(self) -> str:
        """A name for a queue whose client gives it none."""
        while True:
            name = "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            if name not in self.queues:
                return name

    def _check_quorum(self, name: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
        for wrong, flag in (("auto-delete", auto_delete), ("exclusive-owner", exclusive), ("non-durable", not durable)):
            if flag:
                raise PreconditionFailed(f"invalid property '{wrong}' for queue '{name}' in vhost '{self.name}'")

    def _check_queue(
        self,
        queue: Queue,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
        connection: object,
    ) -> None:
        """spec: 1.7.2.1, a queue that exists must be equivalent."""
        self.check_exclusive(queue, connection)
        if exclusive is not (queue.exclusive_owner is not None):
            # rabbit: 405 here too, and not 406 as for the other flags
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{self.name}'. It could be "
                "originally declared on another connection or the exclusive property value does not match that of the "
                "original declaration."
            )
        thing = f"queue '{queue.name}'"
        self._same(thing, "durable", durable, queue.durable)
        self._same(thing, "auto_delete", auto_delete, queue.auto_delete)
        given = dict(arguments)
        current = dict(queue.arguments)
        if given.get("x-queue-type", "classic") == current.get("x-queue-type", "classic"):
            # rabbit: classic is what no argument means
            given.pop("x-queue-type", None)
            current.pop("x-queue-type", None)
        elif "x-queue-type" not in given and current.get("x-queue-type") == self.default_queue_type:
            # rabbit: in a vhost with another default, no argument means that one
            del current["x-queue-type"]
        queue_arguments.compare(thing, self.name, queue_arguments.compared_names(), given, current)
        queue_arguments.validate(queue.name, self.name, arguments)

    def _same(self, thing: str, name: str, given: bool, current: bool) -> None:
        if given != current:
            raise PreconditionFailed(
                f"inequivalent arg '{name}' for {thing} in vhost '{self.name}': "
                f"received '{str(given).lower()}' but current is '{str(current).lower()}'"
            )

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        if queue.logged:
            self.queue_host.windows.add(queue)
        owner = queue.exclusive_owner
        if owner is not None:
            self._exclusive.setdefault(owner, {})[queue] = None

    def exclusive_queues(self, owner: object) -> list[Queue]:
        """Those that go with this connection. Cost: their number, however many others there are."""
        return list(self._exclusive.get(owner, ()))

    def _disown(self, queue: Queue) -> None:
        owner = queue.exclusive_owner
        owned = self._exclusive.get(owner)
        if owned is not None:
            owned.pop(queue, None)
            if not owned:
                del self._exclusive[owner]
        if owner is not None:
            # It stays nobody else's, and keeps its connection no longer, whoever still names the queue.
            queue.exclusive_owner = _GONE

    def check_deletable(self, queue: Queue, if_unused: bool, if_empty: bool) -> None:
        """Raises: PreconditionFailed."""
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' not empty")

    def delete_queue(self, queue: Queue) -> tuple[int, list[Change]]:
        """Removes it with its bindings; its consumers are told. Returns the ready count, which is not known (0) where
        nobody has prepared it since the start, and what to commit.

        Its log goes after the commit: `Broker.remove`.
        """
        if queue.deleted:
            return 0, []
        count = queue.ready_count
        queue.deleted = True
        self.broker.ended_queues.add(queue_counts(queue))
        about = {"vhost": self.name, "queue": queue.name}
        log.debug("queue '%s' was deleted with %d ready messages", queue.name, count, extra=about)
        queue.version += 1
        del self.queues[queue.name]
        self._disown(queue)
        self.queue_host.windows.remove(queue)
        changes: list[Change] = []
        for binding in list(self._inbound.pop(queue, {}).values()):
            changes += self._drop_binding(binding)
        for consumer in list(queue.consumers):
            queue.remove_consumer(consumer)
            consumer.cancel()
        queue.forget()
        if queue.id:
            changes.append(DeleteBindings(self.name, queue.name, "queue"))
            changes.append(
                Put(
                    QueueRow(
                        self.name,
                        queue.name,
                        queue.id,
                        True,
                        queue.auto_delete,
                        False,
                        encode_table(queue.arguments),
                        "deleting",
                    )
                )
            )
        return count, changes

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, object]
    ) -> Exchange | Coming:
        """The exchange of this name, found equivalent; or, when it is not there, what makes it.

        Raises: CommandInvalid for an unknown type, AccessRefused, PreconditionFailed, OnItsWay.
        """
        self.check_not_default(name)
        exchange = self.exchanges.get(name)
        if exchange is None or exchange.kind != kind:  # else its package may be gone
            try:
                make = exchange_type(kind)
            except UnknownExchangeType:
                # rabbit: 3.x closes the connection for this
                raise CommandInvalid(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'") from None
        if exchange is not None:
            self._check_exchange(exchange, kind, durable, auto_delete, internal, arguments)
            return exchange
        self.broker.declared.check(self.name, "exchange", name)
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        encoded = encode_table(arguments)
        if len(encoded) > ARGUMENTS_SIZE_MAX:
            raise PreconditionFailed(f"arguments of exchange '{name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
        alternate = arguments.get("alternate-exchange", "")
        if not isinstance(alternate, str):
            raise PreconditionFailed(
                f"invalid type '{queue_arguments.erlang_type(alternate)}' for arg 'alternate-exchange' "
                f"in exchange '{name}' in vhost '{self.name}'"
            )
        exchange = Exchange(name, kind, make(), durable, auto_delete, internal, arguments)
        if not durable:
            return Coming([], partial(self.add_exchange, exchange), [])
        row = ExchangeRow(self.name, name, kind, True, auto_delete, internal, encoded)
        return Coming([Put(row)], partial(self.add_exchange, exchange), [Delete(row)])

    def add_exchange(self, exchange: Exchange) -> Exchange:
        self.exchanges[exchange.name] = exchange
        if exchange.unavailable:
            self.unavailable[exchange] = None
        if exchange.alternate:
            self._alternates.setdefault(exchange.alternate, {})[exchange] = None
        self._alternate_changed(exchange.name)
        target = self.exchanges.get(exchange.alternate) if exchange.alternate else None
        if target is not None:
            target.upstream[exchange] = target.upstream.get(exchange, 0) + 1
        return exchange

    def _alternate_changed(self, name: str) -> None:
        """An exchange of this name came or went: whoever names it as alternate routes anew."""
        here = self.exchanges.get(name)
        for other in self._alternates.get(name, ()):
            if here is not None:
                here.upstream[other] = here.upstream.get(other, 0) + 1
            other.touch()

    def _check_exchange(
        self, exchange: Exchange, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str,
        object]
    ) -> None:
        thing = f"exchange '{exchange.name}'"
        if kind != exchange.kind:
            raise PreconditionFailed(
                f"inequivalent arg 'type' for {thing} in vhost '{self.name}': "
                f"received '{kind}' but current is '{exchange.kind}'"
            )
        self._same(thing, "durable", durable, exchange.durable)
        self._same(thing, "auto_delete", auto_delete, exchange.auto_delete)
        self._same(thing, "internal", internal, exchange.internal)
        queue_arguments.compare(thing, self.name, ["alternate-exchange"], arguments, exchange.arguments)

    def check_not_default(self, name: str) -> None:
        if not name:
            raise AccessRefused("operation not permitted on the default exchange")

    def delete_exchange(self, exchange: Exchange, if_unused: bool) -> list[Change]:
        """Raises: AccessRefused for a predeclared one, PreconditionFailed when in use."""
        self.check_not_default(exchange.name)
        if exchange.name.startswith("amq."):
            raise AccessRefused(f"deletion of system exchange '{exchange.name}' in vhost '{self.name}' not allowed")
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{exchange.name}' in vhost '{self.name}' in use")
        return self._drop_exchange(exchange)

    def _drop_exchange(self, exchange: Exchange) -> list[Change]:
        if exchange.deleted:
            return []
        exchange.deleted = True
        changes: list[Change] = []
        for binding in list(exchange.bindings.values()):
            exchange.remove(binding)
            self._inbound.get(binding.destination, {}).pop(binding.key, None)
        exchange.touch()
        del self.exchanges[exchange.name]
        self.unavailable.pop(exchange, None)
        named = self._alternates.get(exchange.alternate)
        if named is not None:
            named.pop(exchange, None)
            if not named:
                del self._alternates[exchange.alternate]
        self._alternate_changed(exchange.name)
        for binding in list(self._inbound.pop(exchange, {}).values()):
            changes += self._drop_binding(binding)
        if exchange.durable:
            changes.append(DeleteBindings(self.name, exchange.name, "exchange"))
            changes.append(Delete(ExchangeRow(self.name, exchange.name, exchange.kind)))
        return changes

    # -- bindings ----------------------------------------------------------------------------------------------------

    def bind(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, object]
    ) -> Coming | None:
        """What adds a binding; None when it is there already. Raises: PreconditionFailed (BadBinding)."""
        assert source.matcher is not None  # the channel has refused the default exchange
        binding = Binding(source, destination, routing_key, arguments)
        if binding.key in source.bindings:
            return None
        try:
            source.matcher.validate(routing_key, arguments)
        except BadBinding as error:
            raise PreconditionFailed(str(error)) from None
        if not binding.durable:
            return Coming([], partial(self._bind, binding), [])
        row = self.binding_row(binding)
        return Coming([Put(row)], partial(self._bind, binding), [Delete(row)])

    def _bind(self, binding: Binding) -> None:
        """Its row is committed. One that was bound twice at once is there already."""
        source, destination = binding.source, binding.destination
        if source.deleted or destination.deleted:
            # Whatever took the end away was submitted later and has removed the row.
            end = source if source.deleted else destination
            raise OnItsWay(
                self.broker.declared, Name(self.name, "queue" if isinstance(end, Queue) else "exchange", end.name)
            )
        if binding.key not in source.bindings:
            self.add_binding(binding)

    def add_binding(self, binding: Binding) -> None:
        binding.source.add(binding)
        self._inbound.setdefault(binding.destination, {})[binding.key] = binding

    def unbind(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, object]
    ) -> Coming | None:
        """What removes a binding; None when there is none, which is no error."""
        key = Binding(source, destination, routing_key, arguments).key
        binding = source.bindings.get(key)
        if binding is None:
            return None
        if not binding.durable:
            return Coming([], partial(self._unbind, binding), [])
        row = self.binding_row(binding)
        return Coming([Delete(row)], partial(self._unbind, binding), [Put(row)])

    def _unbind(self, binding: Binding) -> None:
        """Its row is gone; the binding may have gone with one of its ends meanwhile."""
        self._inbound.get(binding.destination, {}).pop(binding.key, None)
        self.broker.remove(self._drop_binding(binding))

    def _drop_binding(self, binding: Binding) -> list[Change]:
        """Takes it from its source; an auto-delete exchange goes with its last one. Its rows are the caller's."""
        source = binding.source
        if source.deleted or binding.key not in source.bindings:
            return []
        source.remove(binding)
        if source.auto_delete and not source.bindings:
            return self._drop_exchange(source)
        return []

    def binding_row(self, binding: Binding) -> BindingRow:
        return BindingRow(
            self.name,
            binding.source.name,
            binding.destination.name,
            "queue" if binding.destination_type == "queue" else "exchange",
            binding.routing_key,
            encode_table(binding.arguments),
        )

    def bindings_to(self, destination: Queue | Exchange) -> list[Binding]:
        return list(self._inbound.get(destination, {}).values())

    def all_bindings(self) -> list[Binding]:
        return [binding for exchange in self.exchanges.values() for binding in exchange.bindings.values()]
