"""Where is the message with this id? GET /amqpd/trace/V looks for it in the logs of a vhost.

Every queue that the caller may read is gone through, exclusive ones of other connections too, as in a list of queues:
what waits or is unacked first, then what is settled and still in its log (until its file goes, or as long as x-retain
keeps it). Nothing is noted on a message's way for it: what has left the logs is not found, and only `x-death` of a
later copy may still tell of it.

A request looks for LOOK_S, and the next goes on from `next`, queue by queue in the order of their names.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.reading import Reading
from amqpd.broker.queue.replay import Section, SettledReading
from amqpd.broker.jobs.browsing import READY, UNACKED
from amqpd.broker.jobs.job import Conditions
from amqpd.management.request import BadRequest, Call, Reply, Role, number, reply
from amqpd.management.connections import channel_name
from amqpd.management.listing import plain
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.management.queue_jobs import OFFSET_MAX, selector_of
from amqpd.protocol.properties import headers_of

if TYPE_CHECKING:
    from amqpd.broker.consumer import Entry
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.queue.reading import Search
    from amqpd.routing.selector import Selector

LOOK_S: Final = 1.0
FOUND_MAX: Final = 100
LOOK_COUNT: Final = 1024
"""Unacked messages that are looked at between two looks at the clock."""
SETTLED: Final = "settled"
LIVE: Final = "live"
FIELDS: Final = ("message_id", "correlation_id")
_DISK_S: Final = 0.02


async def get_trace(call: Call) -> Reply:
    """Where messages with that id are.
    `id`, and `by`: message_id or correlation_id; `queue`, `part` and `offset` of `next`, to go on."""
    query = call.query
    by = query.get("by", FIELDS[0])
    if by not in FIELDS:
        raise BadRequest("by is message_id or correlation_id")
    if not query.get("id"):
        raise BadRequest("id is needed")
    part = query.get("part", LIVE)
    if part not in (LIVE, SETTLED):
        raise BadRequest("part is live or settled")
    selector = selector_of("p.{} = '{}'".format(by, query["id"].replace("'", "''")))
    assert selector is not None  # it names a property
    begin = query.get("queue", "")
    offset = number("offset", query.get("offset", 0), 0, OFFSET_MAX)
    vhost = call.vhost()
    found: list[dict[str, Any]] = []
    slices = Slices()
    until = time.monotonic() + LOOK_S
    skipped = 0
    for name in sorted(each for each in vhost.queues if each >= begin):
        if slices.due:
            await slices.rest()
        queue = vhost.queues.get(name)
        if queue is None:
            continue
        if not call.caller.operator and not call.broker.auth.may(call.caller.user, vhost.name, "read", name):
            skipped += 1
            continue
        if name != begin:
            part, offset = LIVE, 0
        if not await opened(queue):
            skipped += 1
            continue
        for each in (LIVE, SETTLED)[part == SETTLED :]:
            offset = await _look(call, queue, each, offset, selector, found, until)
            if offset >= 0:
                going_on = {"queue": name, "part": each, "offset": offset}
                return reply({"found": found, "next": going_on, "skipped": skipped})
            offset = 0
    return reply({"found": found, "next": None, "skipped": skipped})


async def _look(
    call: Call, queue: Queue, part: str, offset: int, selector: Selector, found: list[dict[str, Any]], until: float
) -> int:
    """Appends what is found from `offset` on. Returns where to go on when it is time; -1: that was all."""
    if part == SETTLED and (queue.rules.stream or queue.store is None):
        return -1
    arrived = asyncio.Event()
    judge = Conditions(selector, None)
    search: Search
    if part == LIVE:
        search = Reading(queue, judge, arrived.set, False, offset, 0)
    else:
        search = SettledReading(queue, judge, arrived.set, Section(offset))
    try:
        while not queue.deleted:
            entries: list[Entry] = []
            arrived.clear()
            search.collect(entries, FOUND_MAX, 1 << 24)
            holders = await _holders(call, queue, entries) if part == LIVE else {}
            for entry in entries:
                found.append(_item(queue, entry, part, holders.get(entry.offset)))
            if search.ended:
                return -1
            if time.monotonic() >= until or len(found) >= FOUND_MAX:
                return max(offset, search.position)
            if search.waits:
                try:
                    async with asyncio.timeout(_DISK_S):
                        await arrived.wait()
                except TimeoutError:
                    continue  # asked again
            else:
                await asyncio.sleep(0)
        return -1
    finally:
        search.close()


def _item(queue: Queue, entry: Entry, part: str, holder: dict[str, Any] | None) -> dict[str, Any]:
    message = entry.message
    assert message is not None  # what is read has its message
    properties = message.properties()
    headers = headers_of(properties, 0, len(properties))
    return {
        "queue": queue.name,
        "offset": entry.offset,
        "time": message.logged_ms or None,
        "state": SETTLED if part == SETTLED else READY if holder is None else UNACKED,
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "redelivered": entry.redelivered and part == LIVE,
        "deaths": plain(headers.get("x-death") or []),
        "moved_from": headers.get("x-source-queue"),
        **(holder or {"connection": None, "channel": None, "user": None, "consumer": None}),
    }


async def _holders(call: Call, queue: Queue, entries: list[Entry]) -> dict[int, dict[str, Any]]:
    """The channels that have these unacked, by offset. Cost: 0.1 us for each unacked of the vhost, in slices."""
    holders: dict[int, dict[str, Any]] = {}
    wanted = {entry.offset for entry in entries}
    if not wanted or queue.unacked_count == 0:
        return holders
    slices = Slices()
    for connection in list(call.server.connections):
        if connection.session.vhost.name != queue.vhost_name:
            continue
        for channel in connection.channels.all():
            for place, entry in enumerate(channel.deliveries.unacked.entries()):
                if entry.offset in wanted and entry.queue is queue:
                    holders[entry.offset] = {
                        "connection": connection.name,
                        "channel": channel_name(channel),
                        "user": connection.session.user.name,
                        "consumer": None if entry.consumer is None else entry.consumer.tag,
                    }
                if place % LOOK_COUNT == 0 and slices.due:
                    await slices.rest()
    return holders


ROUTES: Final = (Route("GET", "api/amqpd/trace/{vhost}", Role.MANAGEMENT, get_trace),)
