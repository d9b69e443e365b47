"""Vhosts that come to a running broker and leave it, with all that is in them, in slices of the loop.

Nothing is declared or deleted by it: a vhost that comes is as its rows say, one that leaves goes on elsewhere by the
same rows. It comes whole: nobody finds it before all of it is there. It leaves at once: in one turn of the loop nothing
in it can be found, published to or delivered any more; what it held goes behind that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Final

from amqpd.broker.vhost.leaving import leave_queue
from amqpd.broker.vhost.loader import steps
from amqpd.broker.vhost.vhost import VHost
from amqpd.broker.vhost.vhosts import VHosts
from amqpd.storage.metadata.store import MetadataState

log = logging.getLogger(__name__)

SLICE_S: Final = 0.003
"""How long a slice goes on before the loop has its turn, seconds."""


async def bring(vhosts: VHosts, state: MetadataState) -> list[VHost]:
    """The vhosts of these rows, each with all that is in it: they are among `vhosts` when this returns.

    Cost: 20 us a queue. Raises: whatever opening a log raises; then none of them is there.
    """
    new: dict[str, VHost] = {}
    try:
        await in_slices(steps(vhosts, new, state))
    except BaseException:
        for vhost in new.values():
            await take_away(vhosts, vhost)
        raise
    for vhost in new.values():
        vhosts[vhost.name] = vhost
        vhosts.added(vhost)
        log.info("vhost '%s' is here, with %d queues", vhost.name, len(vhost.queues), extra={"vhost": vhost.name})
    return list(new.values())


def end(vhosts: VHosts, vhost: VHost) -> None:
    """It is out of `vhosts`, and is not here any more; who was connected to it has been told. `clear` has to follow.

    Cost: a step per queue, 10 us for those that have consumers or end by themselves.
    """
    vhost.deleted = vhost.unloaded = True
    ended = vhosts.catalogue.ended_unroutable
    ended.returned_count += vhost.counts.returned_count
    ended.unroutable_count += vhost.unroutable_count
    for queue in list(vhost.queues.values()):
        # What ends with its last consumer must not: the connections of these are about to go.
        if queue.consumers or queue.auto_delete:
            leave_queue(vhost, queue)
    vhosts.catalogue.declared.forget_vhost(vhost.name)


async def clear(vhost: VHost) -> None:
    """What is left of one that has ended goes out of memory, and from this disk."""
    await in_slices(_leave(vhost))
    log.info("vhost '%s' is not here any more", vhost.name, extra={"vhost": vhost.name})


async def take_away(vhosts: VHosts, vhost: VHost) -> None:
    """Both."""
    end(vhosts, vhost)
    await clear(vhost)


def _leave(vhost: VHost) -> Iterator[None]:
    for queue in list(vhost.queues.values()):
        leave_queue(vhost, queue)
        yield
    for exchange in list(vhost.exchanges.values()):
        vhost.catalogue.keeping.end(vhost.name, exchange)
        exchange.deleted = True
        exchange.take_bindings()
        yield
    for store in vhost.queue_host.end_delays():
        store.remove()
        yield


async def in_slices(steps: Iterator[None]) -> None:
    """Goes to the end of it."""
    until = time.perf_counter() + SLICE_S
    for _ in steps:
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
