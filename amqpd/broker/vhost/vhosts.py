"""All vhosts of a broker by name, and the commands that declare, change, protect and delete them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from amqpd.broker.consumer import Destination
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.vhost.declare import remove_queue
from amqpd.broker.vhost.pending import Done, ObjectName, PendingDeclaration, ignore_result
from amqpd.broker.vhost.vhost import Namespace, VHost, VhostServices
from amqpd.storage.metadata.rows import Delete, ParameterRow, Put, VhostRow
from amqpd.storage.metadata.store import random_id

log = logging.getLogger(__name__)

PROTECTION: Final = "vhost-protection"
"""Component under which the parameter table stores the protection. No such parameter is shown or can be set."""


class ProtectedVhost(Exception):
    """Raised when a protected vhost is deleted, with the text of RabbitMQ 4's API."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Refusing to delete virtual host '{name}' because it is protected from deletion")


class VhostNamespace:
    """Interface to declare vhosts: the table of all vhosts, or a batch."""

    def find_vhost(self, name: str) -> VHost | None:
        """Return the vhost, or None."""
        raise NotImplementedError

    def exists(self, name: str) -> bool:
        """Return whether the vhost exists, on this node or on another."""
        return self.find_vhost(name) is not None

    def new_vhost(self, row: VhostRow) -> VHost:
        """Create a vhost object without adding it."""
        raise NotImplementedError

    def add(self, vhost: VHost) -> None:
        """Add a vhost whose row is committed."""
        raise NotImplementedError

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Commit a change, then apply it. Raises: DeclarationPending, MetadataClosed."""
        raise NotImplementedError


class VHosts(dict[str, VHost], VhostNamespace):
    """All vhosts of a broker that this node serves, by name.

    Attributes:
        ended: called with each deleted vhost, before its queues are removed.
        made: called with each new vhost object, which is still empty.
        added: called with each vhost that is added.
        is_on_other_node: returns whether another node serves the vhost. In a cluster, the cluster adds new vhosts, not
            `add`.
        when_served: in a cluster, calls back when a node serves the new vhost.
    """

    def __init__(
        self,
        catalogue: VhostServices,
        host_queues: Callable[[VhostRow], QueueServices],
        reply_consumers: dict[str, Destination],
        ended: Callable[[VHost], None],
    ) -> None:
        super().__init__()
        self.catalogue = catalogue
        self.ended = ended
        self.made: Callable[[VHost], object] = _do_nothing
        self.added: Callable[[VHost], object] = _do_nothing
        self.is_on_other_node: Callable[[str], bool] | None = None
        self.when_served: Callable[[str, Done], None] | None = None
        self._host_queues = host_queues
        self._reply_consumers = reply_consumers

    def find_vhost(self, name: str) -> VHost | None:
        return self.get(name)

    def new_vhost(self, row: VhostRow) -> VHost:
        vhost = VHost(self.catalogue, row, self._host_queues(row), self._reply_consumers)
        self.made(vhost)
        return vhost

    def exists(self, name: str) -> bool:
        return name in self or (self.is_on_other_node is not None and self.is_on_other_node(name))

    def add(self, vhost: VHost) -> None:
        if self.is_on_other_node is None:
            self[vhost.name] = vhost
            self.added(vhost)
        tell(vhost, "vhost.created")
        log.info("vhost '%s' was added", vhost.name, extra={"vhost": vhost.name})

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        when_served = self.when_served
        if when_served is None or not isinstance(coming.brings, VHost):
            self.catalogue.declared.commit_and_apply(coming, done)
            return
        name = coming.brings.name

        def made(error: BaseException | None) -> None:
            if error is None:
                when_served(name, done)
            else:
                done(error)

        self.catalogue.declared.commit_and_apply(coming, made)


def declare(
    names: VhostNamespace,
    name: str,
    description: str = "",
    tags: Sequence[str] = (),
    default_queue_type: str = "classic",
    done: Done = ignore_result,
) -> bool:
    """Declare a vhost. Return whether it is new; an existing one is not changed. Raises: DeclarationPending."""
    if names.exists(name):
        done(None)
        return False
    row = VhostRow(name, random_id(), description, tuple(tags), default_queue_type)
    vhost = names.new_vhost(row)
    names.make(
        PendingDeclaration(ObjectName(name, "vhost", name), Put(row), Delete(row), partial(names.add, vhost), vhost),
        done,
    )
    return True


def change(
    names: VhostNamespace,
    vhost: VHost,
    description: str,
    tags: Sequence[str],
    default_queue_type: str,
    done: Done = ignore_result,
) -> None:
    """Change description, tags and default queue type. Raises: DeclarationPending."""
    row = VhostRow(vhost.name, vhost.id, description, tuple(tags), default_queue_type)
    before = vhost.row()
    if row == before:
        done(None)
        return
    name = ObjectName(vhost.name, "vhost", vhost.name)
    names.make(PendingDeclaration(name, Put(row), Put(before), partial(become, vhost, row), row), done)


def become(vhost: VHost, row: VhostRow) -> None:
    """Apply a committed change."""
    vhost.update(row)
    tell(vhost, "vhost.updated")


def delete(vhosts: VHosts, vhost: VHost, done: Done = ignore_result) -> None:
    """Delete a vhost with everything in it, and close its connections.

    Args:
        done: called with None when no restart can restore the vhost.

    Raises: ProtectedVhost, DeclarationPending.
    """
    if vhost.protected:
        raise ProtectedVhost(vhost.name)
    row = vhost.row()._replace(state="deleting")

    def committed(error: BaseException | None) -> None:
        if error is not None:
            done(error)

    name = ObjectName(vhost.name, "vhost", vhost.name)
    vhosts.make(PendingDeclaration(name, Put(row), Put(vhost.row()), partial(end, vhosts, vhost, row, done)), committed)


def protect(names: Namespace, on: bool, done: Done = ignore_result) -> None:
    """Set or remove the protection from deletion. Raises: DeclarationPending."""
    vhost = names.vhost
    row = ParameterRow(vhost.name, PROTECTION, "protected", "true")
    change, undo = (Put(row) if protected else Delete(row) for protected in (on, vhost.protected))
    name = ObjectName(vhost.name, PROTECTION, vhost.name)
    names.make(PendingDeclaration(name, change, undo, partial(_protect, vhost, on)), done)


def _protect(vhost: VHost, on: bool) -> None:
    """Apply the committed protection."""
    vhost.protected = on
    log.info("vhost '%s' is %sprotected from deletion", vhost.name, "" if on else "not ", extra={"vhost": vhost.name})


def end(vhosts: VHosts, vhost: VHost, row: VhostRow, done: Done = ignore_result) -> None:
    """Remove a vhost whose tombstone is committed. Its name is reserved until its row is deleted."""
    declared, deletions = vhosts.catalogue.declared, vhosts.catalogue.deletions
    vhost.deleted = True
    del vhosts[vhost.name]
    ended = vhosts.catalogue.ended_unroutable
    ended.returned_count += vhost.counts.returned_count
    ended.unroutable_count += vhost.unroutable_count
    about = {"vhost": vhost.name}
    log.info("vhost '%s' was deleted with its %d queues", vhost.name, len(vhost.queues), extra=about)
    vhosts.catalogue.events.emit("vhost.deleted", {"name": vhost.name})
    vhosts.ended(vhost)
    delays = vhost.queue_host.delays.remove_vhost(vhost.name)
    queues = list(vhost.queues.values())
    for queue in queues:
        remove_queue(vhost, queue)
    for exchange in vhost.exchanges.values():
        vhosts.catalogue.exchange_states.end(vhost.name, exchange)
    name = ObjectName(vhost.name, "vhost", vhost.name)
    declared.hold(name)

    def renamed() -> None:
        declared.free([name])
        deletions.forget([Delete(row)])  # reserves the name again
        done(None)

    deletions.drop_vhost(row, queues, renamed, delays)


def tell(vhost: VHost, key: str) -> None:
    """Emit an event with the vhost's fields."""
    events = vhost.catalogue.events
    if events.has_listeners:
        events.emit(
            key,
            {
                "name": vhost.name,
                "description": vhost.description,
                "tags": list(vhost.tags),
                "default_queue_type": vhost.default_queue_type,
                "tracing": vhost.firehose is not None,
                "cluster_state": {events.node: "running"},
            },
        )


def _do_nothing(_vhost: VHost) -> None:
    """Do nothing: no callback is set."""
