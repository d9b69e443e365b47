"""What leaves a vhost's tables, and what goes with it.

A queue takes its bindings and its consumers with it, an exchange its bindings on both sides; a binding that goes takes
its source with it where that is an auto-delete exchange and this was its last one. All of it is out of memory at once;
the rows that have to go are returned, for queues.py, exchanges.py and bindings.py to submit.
"""

from __future__ import annotations

import logging

from amqpd.broker.vhost.exchange import Binding, Exchange
from amqpd.broker.vhost.vhost import VHost
from amqpd.broker.stats import queue_counts
from amqpd.broker.queue.joining import leave
from amqpd.broker.queue.queue import Queue
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import Change, Delete, DeleteBindings, ExchangeRow, Put, QueueRow

log = logging.getLogger(__name__)


def drop_queue(vhost: VHost, queue: Queue) -> tuple[int, list[Change]]:
    """Stops delivery and cancels its consumers. Returns the ready count, which is not known (0) where nobody has
    prepared it since the start, and its tombstone with the rows that go with it.

    Its log goes after the commit: deletion.py.
    """
    if queue.deleted:
        return 0, []
    count = queue.ready_count + queue.delayed_count
    _end(vhost, queue)
    about = {"vhost": vhost.name, "queue": queue.name}
    log.debug("queue '%s' was deleted with %d ready messages", queue.name, count, extra=about)
    about_it = {"vhost": vhost.name, "name": queue.name}
    vhost.catalogue.events.tell("queue.deleted", about_it, recorded=queue.exclusive_owner is None)
    changes: list[Change] = []
    for binding in vhost.take_queue(queue):
        changes += drop_binding(vhost, binding)
    _silence(queue)
    if queue.id:
        vhost.catalogue.stored_offsets.forget(queue.id)
        arguments = encode_table(queue.arguments)
        row = QueueRow(vhost.name, queue.name, queue.id, True, queue.auto_delete, False, arguments, "deleting")
        changes += [DeleteBindings(vhost.name, queue.name, "queue"), Put(row)]
    return count, changes


def leave_queue(vhost: VHost, queue: Queue) -> None:
    """Its vhost goes on elsewhere: the same, but nothing is deleted or told, and what a log has on this disk goes at
    once. A queue's bindings go with the vhost.
    """
    if queue.deleted:
        return
    _end(vhost, queue)
    vhost.take_queue(queue)
    _silence(queue)
    if queue.id:
        vhost.catalogue.stored_offsets.forget(queue.id)
    store = queue.backing.store
    queue.backing.store = None
    if store is not None:
        vhost.catalogue.storage.leave_queue(store)


def _end(vhost: VHost, queue: Queue) -> None:
    """It is counted with those that are gone, and routes to it are looked up anew."""
    queue.deleted = True
    vhost.catalogue.ended_queues.add(queue_counts(queue))
    vhost.catalogue.ended_of_kind[queue.kind].add(queue_counts(queue))
    vhost.counts.ended_queues.add(queue_counts(queue))
    queue.version += 1


def _silence(queue: Queue) -> None:
    for consumer in list(queue.consumers):
        leave(queue, consumer)
        consumer.cancel()
    queue.forget()


def drop_exchange(vhost: VHost, exchange: Exchange) -> list[Change]:
    """Returns its row and those that go with it."""
    if exchange.deleted:
        return []
    exchange.deleted = True
    if exchange.wheel is not None:
        exchange.wheel.drop(vhost.catalogue.deletions.leaving())
    vhost.catalogue.events.tell("exchange.deleted", {"vhost": vhost.name, "name": exchange.name})
    changes: list[Change] = []
    for binding in vhost.take_exchange(exchange):
        changes += drop_binding(vhost, binding)
    changes += vhost.catalogue.keeping.end(vhost.name, exchange)
    if exchange.durable:
        changes.append(DeleteBindings(vhost.name, exchange.name, "exchange"))
        changes.append(Delete(ExchangeRow(vhost.name, exchange.name, exchange.kind)))
    return changes


def drop_binding(vhost: VHost, binding: Binding) -> list[Change]:
    """Returns the rows of what goes with it; its own is the caller's. It may have gone with one of its ends."""
    source = binding.source
    there = not source.deleted and binding.key in source.bindings
    vhost.take_binding(binding)
    if vhost.catalogue.events.wanted:
        vhost.catalogue.events.tell("binding.deleted", binding.told(vhost.name), recorded=False)
    if there and source.auto_delete and not source.bindings:
        return drop_exchange(vhost, source)
    return []
