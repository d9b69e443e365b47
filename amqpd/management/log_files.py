"""What queues keep for exports (storage/acks/hold.py): set, committed, cleared.

To set and clear takes the configure permission on the queue, to commit and to look the read permission. The list of all
of them, with how far each is behind, goes by what a list of queues goes by: it is counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.permissions import Kind
from amqpd.broker.queue.log_opener import opened
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, number, reply
from amqpd.management.listing import by_name, listing
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.storage.acks.hold import NAME

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import QueueLog
    from amqpd.storage.acks.hold import Hold

OFFSET_MAX: Final = (1 << 63) - 1


async def get_exports(call: Call) -> Reply:
    """The exporters, how far each has come, and what is kept."""
    store = _store(call, "read")
    hold = call.broker.storage.find_hold(store)
    if hold is None:
        return reply({"id": store.queue_id, "exports": [], "kept_bytes": 0})
    found = [{"name": name, "offset": offset} for name, offset in sorted(hold.exported.items())]
    kept = {"kept_bytes": hold.kept_bytes, "max_bytes": hold.limit_bytes}
    return reply({"id": store.queue_id, "exports": found, **kept})


async def get_all_exports(call: Call) -> Reply:
    """Every exporter of every queue, and how many records it is behind."""
    slices = Slices()
    found: list[tuple[Queue, QueueLog, Hold, str]] = []
    for vhost in call.vhosts():
        for queue in await by_name(list(vhost.queues.values()), _name, slices):
            await opened(queue)
            hold = None if queue.store is None else call.broker.storage.find_hold(queue.store)
            if hold is not None and queue.store is not None:
                found += [(queue, queue.store, hold, name) for name in sorted(hold.exported)]
            if slices.due:
                await slices.rest()
    return await listing(call, found, lambda each: _export_item(*each), lambda each: each[0].name)


def _export_item(queue: Queue, store: QueueLog, hold: Hold, name: str) -> dict[str, Any]:
    """lag: of records, those that other records have made needless included. declared: by the queue's x-export."""
    offset = hold.exported.get(name, 0)
    return {
        "vhost": queue.vhost_name,
        "queue": queue.name,
        "name": name,
        "declared": hold.declared == name,
        "offset": offset,
        "end_offset": store.high_watermark,
        "lag": max(0, store.high_watermark - offset),
        "kept_bytes": hold.kept_bytes,
        "max_bytes": hold.limit_bytes,
    }


def _name(queue: Queue) -> str:
    return queue.name


async def put_export(call: Call) -> Reply:
    """Settled segments stay from now on until the exporter has committed past them."""
    store = _store(call, "configure")
    name = call.text("name")
    if NAME.fullmatch(name) is None:
        raise BadRequest("name: expected letters, digits, dots, dashes and underscores, 64 at most")
    limit = call.fields().get("max_bytes")
    if limit is not None:
        limit = number("max_bytes", limit, 0, OFFSET_MAX)
    call.broker.storage.hold(store).add(name, limit)
    call.broker.storage.hold_changed(store)
    return NO_CONTENT


async def commit_export(call: Call) -> Reply:
    """Reports that all messages below `offset` are exported. `id`: the queue's, so that a namesake declared later is
    not meant.
    """
    store = _store(call, "read")
    if call.text("id", store.queue_id) != store.queue_id:
        raise NotThere("the queue was deleted and declared anew")
    name, offset = call.text("name"), number("offset", call.given("offset"), 0, OFFSET_MAX)
    hold = call.broker.storage.find_hold(store)
    if hold is None or not hold.commit(name, offset):
        raise NotThere(f"the queue keeps nothing for an export '{name}'")
    call.broker.storage.hold_changed(store)
    return NO_CONTENT


async def delete_export(call: Call) -> Reply:
    """Nothing is kept for that exporter any more."""
    store = _store(call, "configure")
    name = call.params["name"]
    hold = call.broker.storage.find_hold(store)
    if hold is not None and hold.declared == name:
        raise BadRequest(f"the queue is declared with x-export '{name}'")
    if hold is None or not hold.clear(name):
        raise NotThere(f"the queue keeps nothing for an export '{name}'")
    call.broker.storage.hold_changed(store)
    return NO_CONTENT


def _store(call: Call, kind: Kind) -> QueueLog:
    vhost = call.vhost()
    call.check(vhost.name, kind, "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    if not queue.durable or queue.store is None:
        raise NotThere(f"queue '{queue.name}' in vhost '{vhost.name}' keeps no log: it is not durable")
    if not queue.store.local:
        raise NotThere(f"queue '{queue.name}' in vhost '{vhost.name}' is in a cluster: its log is in Kafka")
    queue.prepare()
    return queue.store


ROUTES: Final = (
    Route("GET", "api/amqpd/exports", Role.MANAGEMENT, get_all_exports),
    Route("GET", "api/amqpd/exports/{vhost}", Role.MANAGEMENT, get_all_exports),
    Route("GET", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, get_exports),
    Route("PUT", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, put_export),
    Route("POST", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, commit_export, quiet=True),
    Route("DELETE", "api/amqpd/exports/{vhost}/{queue}/{name}", Role.MANAGEMENT, delete_export),
)
