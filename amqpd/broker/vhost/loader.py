"""Loader: metadata rows to the objects of vhosts, and back out of memory.

`load` runs at a start. In a cluster, `load_vhost` and `unload_vhost` run in slices of the event loop and change no
metadata. A loaded vhost is visible only when it is complete. An unloaded vhost disappears in one loop turn (`end`),
and `clear` then frees its objects.

Queue logs are opened, but not read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Final

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import limits
from amqpd.broker.vhost.declaration import make_queue
from amqpd.broker.vhost.declare import unload_queue
from amqpd.broker.vhost.exchange import Binding, Exchange, MissingExchangeType, routing_type
from amqpd.broker.vhost.policy_table import policy_of
from amqpd.broker.vhost.vhost import VHost
from amqpd.broker.vhost.vhosts import PROTECTION, VHosts
from amqpd.protocol.field_table import decode_table
from amqpd.routing.base import ExchangeType
from amqpd.routing.registry import exchange_type_factory
from amqpd.storage.metadata.rows import BindingRow, Delete, ExchangeRow, PolicyRow, QueueRow
from amqpd.storage.metadata.store import MetadataState

log = logging.getLogger(__name__)


def load(vhosts: VHosts, state: MetadataState) -> None:
    """Load all vhosts at a start, and continue the deletions that a crash interrupted."""
    deletions = vhosts.catalogue.deletions
    for row in state.deleting_vhosts:
        deletions.finish_vhost(row)
    for _ in steps(vhosts, vhosts, state):
        pass


def steps(vhosts: VHosts, into: dict[str, VHost], state: MetadataState) -> Iterator[None]:
    """Load the vhosts of these rows into the dict `into`, one row per step."""
    deletions = vhosts.catalogue.deletions
    new: list[VHost] = []
    for row in state.vhosts:
        into[row.name] = vhosts.new_vhost(row)
        new.append(into[row.name])
        yield
    for policy_row in state.policies:
        _policy(into[policy_row.vhost], policy_row)
        yield
    for parameter in state.parameters:
        if parameter.component == limits.COMPONENT:
            limits.load(into[parameter.vhost], parameter)
        elif parameter.component == PROTECTION:
            into[parameter.vhost].protected = True
        yield
    for vhost in new:
        for exchange in vhost.exchanges.values():
            vhost.apply_policies(exchange)  # the predeclared exchanges
        yield
    for exchange_row in state.exchanges:
        into[exchange_row.vhost].add_exchange(_exchange(exchange_row))
        yield
    for queue_row in state.queues:
        into[queue_row.vhost].add_queue(_queue(into[queue_row.vhost], queue_row))
        yield
    for binding_row in state.bindings:
        binding = _binding(into[binding_row.vhost], binding_row)
        if binding is None or binding.key in binding.source.bindings:
            # A crash interrupted the deletion of the source or destination. Or a version before 2026-11-24 stored
            # the same arguments in another order as a second binding.
            deletions.forget([Delete(binding_row)])
        else:
            into[binding_row.vhost].add_binding(binding)
        yield
    vhosts.catalogue.stored_offsets.load(state.stored_offsets)
    for queue_row in state.deleting_queues:
        deletions.finish(into[queue_row.vhost].id, queue_row)
        yield


def _policy(vhost: VHost, row: PolicyRow) -> None:
    try:
        vhost.policies.put(policy_of(row))
    except ValueError as error:  # another version, or another program, wrote it
        log.error("policy '%s' in vhost '%s' is invalid and ignored: %s", row.name, row.vhost, error)


def _exchange(row: ExchangeRow) -> Exchange:
    arguments = _table(row.arguments)
    return Exchange(row.name, row.type, _matcher(row), True, row.auto_delete, row.internal, arguments)


def _queue(vhost: VHost, row: QueueRow) -> Queue:
    storage = vhost.catalogue.storage
    store = storage.open_queue(vhost.id, row.id, row.name, vhost.name, None, row.auto_delete, row.arguments)
    queue = make_queue(vhost.queue_host, row.name, True, row.auto_delete, None, _table(row.arguments), store)
    queue.id = row.id
    return queue


def _binding(vhost: VHost, row: BindingRow) -> Binding | None:
    source = vhost.exchanges.get(row.source)
    destination: Queue | Exchange | None
    if row.destination_type == "queue":
        destination = vhost.queues.get(row.destination)
    else:
        destination = vhost.exchanges.get(row.destination)
    if source is None or destination is None:
        return None
    return Binding(source, destination, row.routing_key, _table(row.arguments))


def _matcher(row: ExchangeRow) -> ExchangeType:
    """Return the matcher of a stored exchange. A plugin package may be uninstalled or broken."""
    try:
        return exchange_type_factory(routing_type(row.type, _table(row.arguments)))()
    except Exception as error:  # noqa: BLE001  # a plugin's error must not stop the start
        matcher = MissingExchangeType(row.type)
        log.error("exchange '%s' in vhost '%s' is unavailable (%s): %s", row.name, row.vhost, error, matcher.reason)
        return matcher


def _table(encoded: bytes) -> dict[str, object]:
    return decode_table(encoded, 0)[0] if encoded else {}


SLICE_S: Final = 0.003
"""Length of a slice in seconds; the event loop runs between slices."""


async def load_vhost(vhosts: VHosts, state: MetadataState) -> list[VHost]:
    """Load the vhosts of these rows in slices and add them to `vhosts`.

    Cost: 20 us per queue. Raises: the error of a log that cannot be opened; no vhost is added then.
    """
    new: dict[str, VHost] = {}
    try:
        await in_slices(steps(vhosts, new, state))
    except BaseException:
        for vhost in new.values():
            await unload_vhost(vhosts, vhost)
        raise
    for vhost in new.values():
        vhosts[vhost.name] = vhost
        vhosts.added(vhost)
        log.info("vhost '%s' was loaded with %d queues", vhost.name, len(vhost.queues), extra={"vhost": vhost.name})
    return list(new.values())


def end(vhosts: VHosts, vhost: VHost) -> None:
    """Stop all service of a vhost. The caller has removed it from `vhosts` and notified its clients, and calls
    `clear` next.

    Cost: a step per queue, 10 us for a queue that has consumers or auto-delete.
    """
    vhost.deleted = vhost.unloaded = True
    ended = vhosts.catalogue.ended_unroutable
    ended.returned_count += vhost.counts.returned_count
    ended.unroutable_count += vhost.unroutable_count
    for queue in list(vhost.queues.values()):
        # Unload these first: their consumers' connections close soon, and auto-delete would delete them.
        if queue.consumers or queue.auto_delete:
            unload_queue(vhost, queue)
    vhosts.catalogue.declared.forget_vhost(vhost.name)


async def clear(vhost: VHost) -> None:
    """Free the rest of an unloaded vhost: memory and local files."""
    await in_slices(_unload_steps(vhost))
    log.info("vhost '%s' was unloaded", vhost.name, extra={"vhost": vhost.name})


async def unload_vhost(vhosts: VHosts, vhost: VHost) -> None:
    """Remove a vhost from service and free it."""
    end(vhosts, vhost)
    await clear(vhost)


def _unload_steps(vhost: VHost) -> Iterator[None]:
    for queue in list(vhost.queues.values()):
        unload_queue(vhost, queue)
        yield
    for exchange in list(vhost.exchanges.values()):
        vhost.catalogue.exchange_states.end(vhost.name, exchange)
        exchange.deleted = True
        exchange.take_bindings()
        yield
    for store in vhost.queue_host.delays.remove_vhost(vhost.name):
        store.remove()
        yield


async def in_slices(steps: Iterator[None]) -> None:
    """Run all steps in slices of SLICE_S."""
    until = time.perf_counter() + SLICE_S
    for _ in steps:
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
