"""Bindings: made and taken away, whoever asks for it.

Both are in memory once their rows are committed: a binding is part of no message's safety, and so a commit that fails
changes nothing.
"""

from __future__ import annotations

from functools import partial

from amqpd.broker.vhost.declaration import NewQueue
from amqpd.broker.vhost.pending import Coming, Done, Name, OnItsWay, binding_name, unheard
from amqpd.broker.vhost.exchange import Binding, BindingKey, DestinationType, Exchange, binding_table
from amqpd.broker.vhost.leaving import drop_binding
from amqpd.broker.vhost.vhost import Names, VHost
from amqpd.broker.queue.queue import Queue
from amqpd.errors import PreconditionFailed
from amqpd.routing.errors import BadBinding
from amqpd.routing.message_exchange import WholeMessage
from amqpd.storage.metadata.store import BindingRow, Delete, Put


def bind(
    names: Names,
    source: Exchange,
    destination: Queue | NewQueue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
    done: Done = unheard,
) -> None:
    """done(None) once it is there, at once where it was there already. Raises: PreconditionFailed,
    AccessRefused, OnItsWay.
    """
    assert source.matcher is not None  # the front end has refused the default exchange
    kind: DestinationType = "exchange" if isinstance(destination, Exchange) else "queue"
    if kind == "queue":
        names.vhost.check_not_own(destination.name)
    key = BindingKey(source.name, kind, destination.name, routing_key, binding_table(arguments))
    if names.has_binding(source, key):
        done(None)
        return
    try:
        source.matcher.validate(routing_key, arguments)
        if isinstance(source.matcher, WholeMessage):
            source.matcher.validate_destination("exchange" if isinstance(destination, Exchange) else destination.kind)
    except BadBinding as error:
        raise PreconditionFailed(str(error)) from None
    vhost = names.vhost
    row = _row(vhost, key)
    put, undo = (Put(row), Delete(row)) if source.durable and destination.durable else (None, None)
    make = partial(_make, vhost, source, destination, routing_key, dict(sorted(arguments.items())))
    names.make(Coming(binding_name(row), put, undo, make, key, (source, destination)), done)


def _make(
    vhost: VHost,
    source: Exchange,
    destination: Queue | NewQueue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
) -> None:
    """Its row is committed. One that was bound twice at once is there already."""
    end = destination.made if isinstance(destination, NewQueue) else destination
    if source.deleted or end is None or end.deleted:
        # Whatever took the end away was submitted later and has removed the row.
        gone = source if source.deleted else destination
        kind = "exchange" if isinstance(gone, Exchange) else "queue"
        raise OnItsWay(vhost.catalogue.declared, Name(vhost.name, kind, gone.name))
    binding = Binding(source, end, routing_key, arguments)
    if binding.key not in source.bindings:
        vhost.add_binding(binding)
        vhost.catalogue.keeping.bound(vhost.name, binding)


def unbind(
    vhost: VHost,
    source: Exchange,
    destination: Queue | Exchange,
    routing_key: str,
    arguments: dict[str, object],
    done: Done = unheard,
) -> None:
    """done(None) once it is gone, at once where there is none, which is no error. Raises: OnItsWay."""
    binding = source.bindings.get(Binding(source, destination, routing_key, arguments).key)
    if binding is None:
        done(None)
        return
    row = _row(vhost, binding.key._replace(arguments=binding.row_arguments))
    delete, undo = (Delete(row), Put(row)) if binding.durable else (None, None)
    vhost.make(Coming(binding_name(row), delete, undo, partial(_take, vhost, binding)), done)


def _take(vhost: VHost, binding: Binding) -> None:
    """Its row is gone."""
    if not binding.private:
        vhost.catalogue.events.record("binding.deleted", binding.told(vhost.name))
    vhost.catalogue.deletions.delete(drop_binding(vhost, binding))


def _row(vhost: VHost, key: BindingKey) -> BindingRow:
    return BindingRow(vhost.name, key.source, key.destination, key.destination_type, key.routing_key, key.arguments)
