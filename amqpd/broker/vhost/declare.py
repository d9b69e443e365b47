"""Commands that declare, delete, bind and unbind queues and exchanges, for clients, the admin API and the broker.

A declaration of an existing object must be equivalent. A new object or binding is checked, its row is committed,
then it is added to the vhost's tables. A failed commit changes nothing in memory.

A deletion removes the object from memory at once: a queue with its bindings and consumers, an exchange with the
bindings on both sides. The last binding of an auto-delete exchange takes the exchange with it. The `remove_`
functions return the rows to be deleted. `deletion.py` has the order of steps. `unbind` commits first.

`done(None)` is called after success, `done(error)` after a failed commit, and before the function returns if nothing
is durable. An error found by a check is raised, and nothing has changed.

Spec: AMQP 0-9-1 1.6.2.1 and 1.7.2.1. RabbitMQ: 406 for a different flag or argument, 405 for an exclusive queue of
another connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.types import kind_of
from amqpd.broker.stats import queue_counts
from amqpd.broker.vhost import kafka_topics
from amqpd.broker.vhost.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration, make_queue
from amqpd.broker.vhost.exchange import (
    DELAYED_MESSAGE,
    Binding,
    BindingKey,
    DestinationType,
    Exchange,
    binding_table,
    compared_names,
    routing_type,
    validate,
)
from amqpd.broker.vhost.limits import QUEUES
from amqpd.broker.vhost.pending import (
    DeclarationPending,
    Done,
    ObjectName,
    PendingDeclaration,
    binding_name,
    ignore_result,
)
from amqpd.broker.vhost.vhost import Namespace, VHost, locked
from amqpd.errors import AccessRefused, CommandInvalid, PreconditionFailed
from amqpd.protocol.field_table import encode_table
from amqpd.routing.base import BadBinding, ExchangeType, UnknownExchangeType
from amqpd.routing.message_exchange import MessageExchangeType
from amqpd.routing.registry import exchange_type_factory
from amqpd.storage.metadata.rows import BindingRow, Change, Delete, DeleteBindings, ExchangeRow, Put, QueueRow
from amqpd.storage.queue_log import QueueLog


def check_queue_equivalent(names: Namespace, queue: Queue | NewQueue, asked: QueueDeclaration) -> None:
    """Check that a declaration matches the existing queue. Raises: ResourceLocked, PreconditionFailed."""
    vhost = names.vhost
    vhost.check_exclusive(queue, asked.owner)
    if asked.exclusive is not (queue.exclusive_owner is not None):
        # rabbit: 405 here too, and not 406 as for the other flags
        raise locked(queue.name, vhost.name)
    thing = f"queue '{queue.name}'"
    _check_flag(thing, vhost.name, "durable", asked.durable, queue.durable)
    _check_flag(thing, vhost.name, "auto_delete", asked.auto_delete, queue.auto_delete)
    default = names.default_queue_type
    if queue.kind == default:  # rabbit: a queue older than the vhost's default keeps its type
        asked = asked.with_default_type(default)
    given = dict(asked.arguments)
    current = dict(queue.arguments)
    if given.get("x-queue-type", "classic") == current.get("x-queue-type", "classic"):
        # rabbit: no argument means classic
        given.pop("x-queue-type", None)
        current.pop("x-queue-type", None)
    elif "x-queue-type" not in given and current.get("x-queue-type") == default:
        # rabbit: no argument means the vhost's default type
        del current["x-queue-type"]
    # rabbit: ignore arguments that this queue type does not have, although a new queue with them is refused
    queue_arguments.compare(thing, vhost.name, queue_arguments.compared_names(queue.kind), given, current)


def check_exchange_equivalent(vhost: str, exchange: Exchange, asked: ExchangeDeclaration) -> None:
    """Check that a declaration matches the existing exchange. Raises: PreconditionFailed."""
    thing = f"exchange '{exchange.name}'"
    if asked.kind != exchange.kind:
        raise PreconditionFailed(
            f"inequivalent arg 'type' for {thing} in vhost '{vhost}': "
            f"received '{asked.kind}' but current is '{_atom(exchange.kind)}'"
        )
    _check_flag(thing, vhost, "durable", asked.durable, exchange.durable)
    _check_flag(thing, vhost, "auto_delete", asked.auto_delete, exchange.auto_delete)
    _check_flag(thing, vhost, "internal", asked.internal, exchange.internal)
    compared = compared_names(exchange.kind, exchange.arguments)
    queue_arguments.compare(thing, vhost, compared, asked.arguments, exchange.arguments)


def _atom(kind: str) -> str:
    """Format an exchange type as an Erlang atom, with quotes where Erlang needs them. RabbitMQ: in this text only."""
    return kind if kind.isalnum() else f"'{kind}'"


def _check_flag(thing: str, vhost: str, name: str, given: bool, current: bool) -> None:
    if given != current:
        raise PreconditionFailed(
            f"inequivalent arg '{name}' for {thing} in vhost '{vhost}': "
            f"received '{str(given).lower()}' but current is '{str(current).lower()}'"
        )


log = logging.getLogger(__name__)


def remove_queue(vhost: VHost, queue: Queue) -> tuple[int, list[Change]]:
    """Remove a queue from memory: stop delivery, cancel the consumers, remove the bindings.

    The log is removed after the commit (deletion.py).

    Returns:
        The number of ready messages (0 if the queue was not opened since the start), and the rows: its tombstone and
        the changes that belong to it.
    """
    if queue.deleted:
        return 0, []
    count = queue.ready_count + queue.delayed_count
    _mark_deleted(vhost, queue)
    about = {"vhost": vhost.name, "queue": queue.name}
    log.debug("queue '%s' was deleted with %d ready messages", queue.name, count, extra=about)
    about_it = {"vhost": vhost.name, "name": queue.name}
    vhost.catalogue.events.emit("queue.deleted", about_it, recorded=queue.exclusive_owner is None)
    changes: list[Change] = []
    for binding in vhost.take_queue(queue):
        changes += remove_binding(vhost, binding)
    _cancel_consumers(queue)
    if queue.id:
        vhost.catalogue.stored_offsets.forget(queue.id)
        arguments = encode_table(queue.arguments)
        row = QueueRow(vhost.name, queue.name, queue.id, True, queue.auto_delete, False, arguments, "deleting")
        changes += [DeleteBindings(vhost.name, queue.name, "queue"), Put(row)]
    return count, changes


def unload_queue(vhost: VHost, queue: Queue) -> None:
    """Remove a queue from memory and its log from the local disk: another node now serves its vhost.

    No row is deleted and no event is sent. The bindings are removed with the vhost.
    """
    if queue.deleted:
        return
    _mark_deleted(vhost, queue)
    vhost.take_queue(queue)
    _cancel_consumers(queue)
    if queue.id:
        vhost.catalogue.stored_offsets.forget(queue.id)
    store = queue.backing.store
    queue.backing.store = None
    if store is not None:
        vhost.catalogue.storage.remove_local_files(store)


def _mark_deleted(vhost: VHost, queue: Queue) -> None:
    """Mark a queue as deleted, add its counters to the totals, and invalidate the routes to it."""
    queue.deleted = True
    vhost.catalogue.ended_queues.add(queue_counts(queue))
    vhost.catalogue.ended_of_kind[queue.kind].add(queue_counts(queue))
    vhost.counts.ended_queues.add(queue_counts(queue))
    queue.version += 1


def _cancel_consumers(queue: Queue) -> None:
    for consumer in list(queue.consumers):
        queue.remove_consumer(consumer)
        consumer.cancel()
    queue.dispose()


def remove_exchange(vhost: VHost, exchange: Exchange) -> list[Change]:
    """Remove an exchange from memory. Return the rows to be deleted, its own included."""
    if exchange.deleted:
        return []
    exchange.deleted = True
    if exchange.wheel is not None:
        exchange.wheel.drop(vhost.catalogue.deletions.add_directory())
    vhost.catalogue.events.emit("exchange.deleted", {"vhost": vhost.name, "name": exchange.name})
    changes: list[Change] = []
    for binding in vhost.take_exchange(exchange):
        changes += remove_binding(vhost, binding)
    changes += vhost.catalogue.exchange_states.end(vhost.name, exchange)
    if exchange.durable:
        changes.append(DeleteBindings(vhost.name, exchange.name, "exchange"))
        changes.append(Delete(ExchangeRow(vhost.name, exchange.name, exchange.kind)))
    return changes


def remove_binding(vhost: VHost, binding: Binding) -> list[Change]:
    """Remove a binding from memory, if it is still there.

    Returns: The rows of an auto-delete exchange removed with it. The caller deletes the binding's own row.
    """
    source = binding.source
    there = not source.deleted and binding.key in source.bindings
    vhost.take_binding(binding)
    if vhost.catalogue.events.exchange_bound:
        vhost.catalogue.events.emit("binding.deleted", binding.event_fields(vhost.name), recorded=False)
    if there and source.auto_delete and not source.bindings:
        return remove_exchange(vhost, source)
    return []


ARGUMENTS_SIZE_MAX: Final = 64 * 1024


def declare_queue(names: Namespace, asked: QueueDeclaration, done: Done = ignore_result) -> bool:
    """Declare a queue. Return whether it is new.

    Raises:
        AccessRefused, PreconditionFailed, ResourceLocked, ResourceError.
        DeclarationPending, LogNotOpen: wait, then declare again.
    """
    if asked.exclusive and asked.durable:
        # rabbit: the queue is deleted with its connection, so it is never durable
        asked = asked._replace(durable=False)
    vhost = names.vhost
    vhost.check_not_system(asked.name)
    queue = names.find_queue(asked.name)
    if queue is not None:
        check_queue_equivalent(names, queue, asked)
        if isinstance(queue, Queue):
            queue.prepare()
        done(None)
        return False
    if asked.name.startswith("amq.") and not asked.name.startswith("amq.gen-"):
        raise AccessRefused(f"queue name '{asked.name}' contains reserved prefix 'amq.*'")
    check_queue_limit(names, asked.name)
    asked = asked.with_default_type(names.default_queue_type)
    check_queue_declaration(vhost.name, asked)
    if vhost.catalogue.storage.replicates and asked.durable:
        from amqpd.broker.vhost.cluster_checks import check_queue as check_in_cluster

        check_in_cluster(vhost.name, asked)
    also: tuple[ObjectName, ...] = ()
    if kafka_topics.ARGUMENT in asked.arguments:
        vhost.uses_kafka_topics = True
        also = (ObjectName(vhost.name, kafka_topics.KIND, str(asked.arguments[kafka_topics.ARGUMENT])),)
    if vhost.catalogue.own_topics is None:
        if vhost.uses_kafka_topics:
            kafka_topics.check_topic(names, asked)
    elif also:
        from amqpd.broker.vhost.cluster_checks import check as check_topic_in_cluster

        check_topic_in_cluster(vhost, vhost.catalogue.own_topics, asked)
    new = NewQueue(asked)
    put: Put | None = None
    undo: Delete | None = None
    if new.durable:
        row = QueueRow(vhost.name, new.name, new.id, True, new.auto_delete, False, new.table)
        put, undo = Put(row), Delete(row)
    make = partial(_make_queue, vhost, new)
    coming = PendingDeclaration(ObjectName(vhost.name, "queue", new.name), put, undo, make, new, also=also)
    if new.durable:
        coming.undo.append(DeleteBindings(vhost.name, new.name, "queue"))
    names.make(coming, done)
    return True


def check_queue_limit(names: Namespace, name: str) -> None:
    """Check the vhost's queue limit. RabbitMQ: before the arguments. Raises: PreconditionFailed."""
    limit = names.limits.value.get(QUEUES, -1)
    if 0 <= limit <= names.queue_count():
        raise PreconditionFailed(
            f"cannot declare queue '{name}': queue limit in vhost '{names.vhost.name}' ({limit}) is reached"
        )


def check_queue_declaration(vhost: str, asked: QueueDeclaration) -> None:
    """Check flags and arguments of a new queue. Raises: PreconditionFailed."""
    arguments = asked.arguments
    if len(encode_table(arguments)) > ARGUMENTS_SIZE_MAX:
        raise PreconditionFailed(f"arguments of queue '{asked.name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
    queue_arguments.validate(asked.name, vhost, arguments)
    if kind_of(arguments).durable_only:
        wrong = (
            ("auto-delete", asked.auto_delete),
            ("exclusive-owner", asked.exclusive),
            ("non-durable", not asked.durable),
        )
        for flag, is_set in wrong:
            if is_set:
                raise PreconditionFailed(f"invalid property '{flag}' for queue '{asked.name}' in vhost '{vhost}'")
    for name in ("x-export", "x-retain"):
        if name in arguments and not asked.durable:
            raise PreconditionFailed(f"invalid arg '{name}' for queue '{asked.name}' in vhost '{vhost}': not durable")


def _make_queue(vhost: VHost, new: NewQueue) -> None:
    """Create the queue in memory after its row was committed."""
    storage = vhost.catalogue.storage
    store: QueueLog | None = None
    if new.id:
        store = storage.create_queue(vhost.id, new.name, vhost.name, None, new.id, new.auto_delete, new.table)[1]
    flags = (new.durable, new.auto_delete, new.exclusive_owner)
    queue = make_queue(vhost.queue_host, new.name, *flags, new.arguments, store)
    queue.id = new.id
    vhost.add_queue(queue)
    new.made = queue
    vhost.catalogue.queue_created_count += 1
    events = vhost.catalogue.events
    if events.has_listeners:
        owner = new.exclusive_owner
        events.emit(
            "queue.created",
            {
                "vhost": vhost.name,
                "name": new.name,
                "durable": new.durable,
                "auto_delete": new.auto_delete,
                "exclusive": owner is not None,
                "owner_pid": "" if owner is None else events.pid(getattr(owner, "serial", 0)),
                "arguments": new.arguments,
            },
            recorded=owner is None,
        )
    log.debug("queue '%s' was added", new.name, extra={"vhost": vhost.name, "queue": new.name})


def check_queue_deletable(vhost: VHost, queue: Queue, if_unused: bool, if_empty: bool) -> None:
    if if_unused and queue.consumers:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{vhost.name}' in use")
    if if_empty and queue.ready_count + queue.delayed_count:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{vhost.name}' not empty")


def delete_queue(vhost: VHost, queue: Queue, done: Done = ignore_result) -> int:
    """Delete a queue with its bindings, and cancel its consumers.

    Args:
        done: called with None when no restart can restore the queue, or with the error of the first attempt. The
            broker repeats failed attempts.

    Returns: the number of ready messages; 0 if the queue was not opened since the start.

    Raises: AccessRefused for a system queue.
    """
    vhost.check_not_system(queue.name)
    count, changes = remove_queue(vhost, queue)
    vhost.catalogue.deletions.delete(changes, [queue], done)
    return count


def delete_queues(vhost: VHost, queues: Sequence[Queue]) -> None:
    """Delete several queues in one commit, without a caller that waits for it. See `delete_queue`."""
    changes: list[Change] = []
    for queue in queues:
        changes += remove_queue(vhost, queue)[1]
    vhost.catalogue.deletions.delete(changes, queues, ignore_result)


def delete_super_stream(vhost: VHost, exchange: Exchange, streams: Sequence[Queue], done: Done = ignore_result) -> None:
    """Delete an exchange and its streams in one commit. See `delete_queue`. Cost: 0.1 ms per stream."""
    changes = remove_exchange(vhost, exchange)
    for queue in streams:
        changes += remove_queue(vhost, queue)[1]
    vhost.catalogue.deletions.delete(changes, streams, done)


def change_arguments(
    vhost: VHost, name: str, changes: Sequence[tuple[Queue, dict[str, object]]], done: Done = ignore_result
) -> None:
    """Replace the arguments of durable queues in one commit, and apply the rules that follow from them.

    Later declarations must be equivalent to the new arguments. The queue.json of a log that has records keeps the
    earlier ones. The caller has checked that a running queue can change these arguments.

    Args:
        name: changes with one name are made one after the other.

    Raises: DeclarationPending.
    """

    def apply() -> None:
        for queue, arguments in changes:
            if not queue.deleted:
                queue.arguments = arguments
                queue.apply_config(vhost.policies.policy_of(queue).rules(queue.kind, arguments))
                log.info("the arguments of queue '%s' were changed", queue.name, extra={"vhost": vhost.name})

    coming = PendingDeclaration(ObjectName(vhost.name, "arguments", name), None, None, apply)
    coming.changes = [
        Put(QueueRow(vhost.name, queue.name, queue.id, True, queue.auto_delete, False, encode_table(arguments)))
        for queue, arguments in changes
    ]
    # No undo: it might be written after the tombstone of a queue that is deleted meanwhile.
    vhost.make(coming, done)


def bind(
    names: Namespace,
    source: Exchange,
    destination: Queue | NewQueue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
    done: Done = ignore_result,
) -> None:
    """Bind a destination to an exchange. Raises: PreconditionFailed, AccessRefused, DeclarationPending."""
    assert source.matcher is not None  # the caller has refused the default exchange
    kind: DestinationType = "exchange" if isinstance(destination, Exchange) else "queue"
    if kind == "queue":
        names.vhost.check_not_system(destination.name)
    key = BindingKey(source.name, kind, destination.name, routing_key, binding_table(arguments))
    if names.has_binding(source, key):
        done(None)
        return
    try:
        source.matcher.validate(routing_key, arguments)
        if isinstance(source.matcher, MessageExchangeType):
            source.matcher.validate_destination("exchange" if isinstance(destination, Exchange) else destination.kind)
    except BadBinding as error:
        raise PreconditionFailed(str(error)) from None
    vhost = names.vhost
    row = _binding_row(vhost, key)
    put, undo = (Put(row), Delete(row)) if source.durable and destination.durable else (None, None)
    make = partial(_make_binding, vhost, source, destination, routing_key, dict(sorted(arguments.items())))
    names.make(PendingDeclaration(binding_name(row), put, undo, make, key, (source, destination)), done)


def _make_binding(
    vhost: VHost,
    source: Exchange,
    destination: Queue | NewQueue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
) -> None:
    """Create the binding in memory after its row was committed. It may exist: two commands can bind at once."""
    end = destination.made if isinstance(destination, NewQueue) else destination
    if not _is_in(vhost, source) or end is None or not _is_in(vhost, end):
        # The deletion of this object, or the undo of its declaration, was submitted later and has deleted the
        # binding's row.
        gone = destination if _is_in(vhost, source) else source
        kind = "exchange" if isinstance(gone, Exchange) else "queue"
        raise DeclarationPending(vhost.catalogue.declared, ObjectName(vhost.name, kind, gone.name))
    binding = Binding(source, end, routing_key, arguments)
    if binding.key not in source.bindings:
        vhost.add_binding(binding)
        vhost.catalogue.exchange_states.bound(vhost.name, binding)


def _is_in(vhost: VHost, end: Queue | Exchange) -> bool:
    known = vhost.exchanges if isinstance(end, Exchange) else vhost.queues
    return known.get(end.name) is end


def unbind(
    vhost: VHost,
    source: Exchange,
    destination: Queue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
    done: Done = ignore_result,
) -> None:
    """Remove a binding. A binding that does not exist is no error. Raises: DeclarationPending."""
    binding = source.bindings.get(Binding(source, destination, routing_key, arguments).key)
    if binding is None:
        done(None)
        return
    row = _binding_row(vhost, binding.key._replace(arguments=binding.row_arguments))
    delete, undo = (Delete(row), Put(row)) if binding.durable else (None, None)
    remove = partial(_remove_binding, vhost, binding)
    vhost.make(PendingDeclaration(binding_name(row), delete, undo, remove, None, (source, destination)), done)


def _remove_binding(vhost: VHost, binding: Binding) -> None:
    if not binding.is_exclusive:
        vhost.catalogue.events.record("binding.deleted", binding.event_fields(vhost.name))
    vhost.catalogue.deletions.delete(remove_binding(vhost, binding))


def _binding_row(vhost: VHost, key: BindingKey) -> BindingRow:
    return BindingRow(vhost.name, key.source, key.destination, key.destination_type, key.routing_key, key.arguments)


def declare_exchange(names: Namespace, asked: ExchangeDeclaration, done: Done = ignore_result) -> bool:
    """Declare an exchange. Return whether it is new.

    Raises:
        CommandInvalid: unknown exchange type.
        AccessRefused, PreconditionFailed, DeclarationPending.
    """
    vhost = names.vhost
    vhost.check_not_default(asked.name)
    exchange = names.find_exchange(asked.name)
    if exchange is not None:
        if exchange.kind != asked.kind and asked.kind != DELAYED_MESSAGE:  # the same type may be uninstalled
            _exchange_type(asked)
        check_exchange_equivalent(vhost.name, exchange, asked)
        done(None)
        return False
    make = _exchange_type(asked)
    if asked.name.startswith("amq."):
        raise AccessRefused(f"exchange name '{asked.name}' contains reserved prefix 'amq.*'")
    check_exchange_declaration(vhost.name, asked)
    if vhost.catalogue.storage.replicates:
        from amqpd.broker.vhost.cluster_checks import check_exchange as check_in_cluster

        check_in_cluster(vhost.name, asked)
    flags = (asked.durable, asked.auto_delete, asked.internal)
    exchange = Exchange(asked.name, asked.kind, make(), *flags, asked.arguments)
    encoded = encode_table(asked.arguments)
    row = ExchangeRow(vhost.name, asked.name, asked.kind, True, asked.auto_delete, asked.internal, encoded)
    put, undo = (Put(row), Delete(row)) if asked.durable else (None, None)
    add = partial(vhost.add_exchange, exchange)
    coming = PendingDeclaration(ObjectName(vhost.name, "exchange", asked.name), put, undo, add, exchange)
    if asked.durable:
        coming.undo.append(DeleteBindings(vhost.name, asked.name, "exchange"))
    names.make(coming, done)
    return True


def check_exchange_declaration(vhost: str, asked: ExchangeDeclaration) -> None:
    """Check type and arguments of a new exchange. Raises: CommandInvalid, PreconditionFailed."""
    _exchange_type(asked)
    if len(encode_table(asked.arguments)) > ARGUMENTS_SIZE_MAX:
        raise PreconditionFailed(f"arguments of exchange '{asked.name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
    validate(asked.name, vhost, asked.kind, asked.arguments)


def _exchange_type(asked: ExchangeDeclaration) -> Callable[[], ExchangeType]:
    kind = routing_type(asked.kind, asked.arguments)
    try:
        return exchange_type_factory(kind)
    except UnknownExchangeType:
        # rabbit: 3.x closes the connection for this
        raise CommandInvalid(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'") from None


def check_deletable(vhost: VHost, name: str) -> None:
    """Refuse the deletion of a predeclared exchange. rabbit: of any with its prefix. Raises: AccessRefused."""
    vhost.check_not_default(name)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")


def delete_exchange(vhost: VHost, exchange: Exchange, if_unused: bool, done: Done = ignore_result) -> None:
    """Delete an exchange with its bindings.

    Raises:
        AccessRefused: it is a predeclared exchange.
        PreconditionFailed: it is in use.
    """
    check_deletable(vhost, exchange.name)
    if if_unused and exchange.bindings:
        raise PreconditionFailed(f"exchange '{exchange.name}' in vhost '{vhost.name}' in use")
    vhost.catalogue.deletions.delete(remove_exchange(vhost, exchange), done=done)
