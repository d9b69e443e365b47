"""What named consumers of a stream have stored: /queues/V/Q/offsets. RabbitMQ has no such route.

To look, to set and to delete takes the read permission on the queue, as to consume does: whoever may read under a name
may say how far it has come.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost.pending import finished
from amqpd.broker.queue.log_opener import opened
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, clean_name, number, reply
from amqpd.management.listing import listing
from amqpd.management.router import Route

if TYPE_CHECKING:
    from amqpd.broker.vhost.consumer_offsets import StoredOffset
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import QueueLog


async def get_offsets(call: Call) -> Reply:
    """Stored offsets of a stream, by consumers' names."""
    queue, store = await _stream(call)
    stored = list(call.broker.catalogue.stored_offsets.of(queue.id).items())
    return await listing(call, stored, partial(_item, store), lambda each: each[0])


async def get_offset(call: Call) -> Reply:
    """How far the consumer of that name has come."""
    queue, store = await _stream(call)
    name = call.params["name"]
    stored = call.broker.catalogue.stored_offsets.of(queue.id).get(name)
    if stored is None:
        raise _unknown(queue, name)
    return reply(_item(store, (name, stored)))


async def put_offset(call: Call) -> Reply:
    """Sets where the consumer of that name goes on.
    `offset`: the next one that consumers of this name get, of those there are or the one that comes next."""
    queue, store = await _stream(call)
    name = clean_name(call.params["name"], "a consumer")
    offset = number("offset", call.given("offset"), 0, store.next_offset)
    offsets = call.broker.catalogue.stored_offsets
    if not offsets.admit(queue.id, name):
        raise BadRequest(f"queue '{queue.name}' in vhost '{queue.vhost_name}' has offsets of too many consumers")
    await finished(partial(offsets.set, queue.id, name, offset))
    return NO_CONTENT


async def delete_offset(call: Call) -> Reply:
    """Removes a stored offset."""
    queue, _ = await _stream(call)
    name = call.params["name"]
    if not await finished(partial(call.broker.catalogue.stored_offsets.delete, queue.id, name)):
        raise _unknown(queue, name)
    return NO_CONTENT


def _item(store: QueueLog, each: tuple[str, StoredOffset]) -> dict[str, Any]:
    """lag: from it to the end of the log. time: when it was written, ms since 1970; null while it is not."""
    name, stored = each
    lag = max(0, store.next_offset - stored.offset)
    return {"name": name, "offset": stored.offset, "lag": lag, "time": stored.time_ms or None}


def _unknown(queue: Queue, name: str) -> NotThere:
    return NotThere(f"no offset of a consumer '{name}' is stored for queue '{queue.name}'")


async def _stream(call: Call) -> tuple[Queue, QueueLog]:
    vhost = call.vhost()
    call.check(vhost.name, "read", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    if queue.kind != "stream" or queue.store is None:
        raise BadRequest(f"queue '{queue.name}' in vhost '{vhost.name}' is not a stream")
    await opened(queue)
    queue.store.recover()
    return queue, queue.store


ROUTES: Final = (
    Route("GET", "api/queues/{vhost}/{queue}/offsets", Role.MANAGEMENT, get_offsets),
    Route("GET", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, get_offset),
    Route("PUT", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, put_offset),
    Route("DELETE", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, delete_offset),
)
