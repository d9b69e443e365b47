"""Handlers for single messages: trace by id, append, the audit log, delayed messages. RabbitMQ has none of them.

**GET /amqpd/trace/V** finds messages by id in the logs of a vhost. It searches every queue that the caller may read:
first ready and unacked messages, then settled ones that are still in the log. Publishing stores nothing for the search.
A message that has left the logs is not found, except in `x-death` of a later copy. A request searches for LOOK_S
seconds; the next request continues at `next`, in the order of queue names.

**POST /amqpd/append/V/Q** appends messages to one queue with their original exchange and routing key, to move queues
from another broker. A publish would route them again. Administrators only.

**GET /audit** returns records of the audit log to administrators, oldest first. The query selects them:

- `offset`, `since` (a time) or `last` (number of records before the end): the first record
- `until` (a time) or `before` (an offset): the last record
- `where`: a selector on the fields of a record (docs/metrics.md)
- `count`: limit of the page

For the next page, repeat the request with `offset` = `next_offset` until `ended` is true. For the previous page, use
`last=100&before=OFFSET`; older records exist while `first_offset` is above `start_offset`.

**/delayed** lists the delayed messages of a vhost or an exchange, without bodies, and cancels one. Listing requires
the read permission on the exchange, cancelling the write permission: a user that may publish may withdraw.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from binascii import Error as NotBase64
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from amqpd.broker.delayed.bucket import parse_id
from amqpd.broker.delayed.listing import DelayedMessage, cancel, next_due
from amqpd.broker.jobs.job import JobFilter
from amqpd.broker.jobs.jobs import READY, UNACKED, browse
from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.route import TAKEN, offer_to_all
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.replay import AckedBrowse, LogRange
from amqpd.broker.queue.scan import BrowseScan
from amqpd.management.connections import channel_name, may_see
from amqpd.management.exchanges import wait_stored
from amqpd.management.listing import amqp_to_json
from amqpd.management.queue_jobs import COUNT_MAX, OFFSET_MAX, selector_of, time_ms
from amqpd.management.request import (
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    Unavailable,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.field_table import SHORT_STRING_SIZE_BYTES_MAX, CodecError
from amqpd.protocol.properties import decode_headers, scan_properties
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.consumer import QueueEntry
    from amqpd.broker.delayed.timing_wheel import TimingWheel
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.queue.scan import QueueScan
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.routing.selector import Selector


LOOK_S: Final = 1.0
FOUND_MAX: Final = 100
LOOK_COUNT: Final = 1024
"""Number of unacked messages between two checks of the time."""
SETTLED: Final = "settled"
LIVE: Final = "live"
FIELDS: Final = ("message_id", "correlation_id")
_DISK_S: Final = 0.02


async def get_trace(call: ApiRequest) -> ApiResponse:
    """Find messages by id in all queues of the virtual host.

    Query: `id`; `by` (message_id or correlation_id); `queue`, `part` and `offset` from `next`, to continue.
    """
    query = call.query
    by = query.get("by", FIELDS[0])
    if by not in FIELDS:
        raise BadRequest("by must be message_id or correlation_id")
    if not query.get("id"):
        raise BadRequest("id is required")
    part = query.get("part", LIVE)
    if part not in (LIVE, SETTLED):
        raise BadRequest("part must be live or settled")
    selector = selector_of("p.{} = '{}'".format(by, query["id"].replace("'", "''")))
    assert selector is not None  # it names a property
    begin = query.get("queue", "")
    offset = parse_int("offset", query.get("offset", 0), 0, OFFSET_MAX)
    vhost = call.vhost()
    found: list[dict[str, Any]] = []
    slices = TimeSlice()
    until = time.monotonic() + LOOK_S
    skipped = 0
    for name in sorted(each for each in vhost.queues if each >= begin):
        await slices.yield_if_due()
        queue = vhost.queues.get(name)
        if queue is None:
            continue
        if not call.is_allowed(vhost.name, "read", name):
            skipped += 1
            continue
        if name != begin:
            part, offset = LIVE, 0
        if not await opened(queue):
            skipped += 1
            continue
        for each in (LIVE, SETTLED)[part == SETTLED :]:
            offset = await _search_queue(call, queue, each, offset, selector, found, until)
            if offset >= 0:
                position = {"queue": name, "part": each, "offset": offset}
                return reply({"found": found, "next": position, "skipped": skipped})
            offset = 0
    return reply({"found": found, "next": None, "skipped": skipped})


async def _search_queue(
    call: ApiRequest,
    queue: Queue,
    part: str,
    offset: int,
    selector: Selector,
    found: list[dict[str, Any]],
    until: float,
) -> int:
    """Search a queue from `offset` on and append the results to `found`.

    Returns: The offset where the next request continues, or -1 at the end of the queue.
    """
    if part == SETTLED and (queue.rules.stream or queue.store is None):
        return -1
    arrived = asyncio.Event()
    job_filter = JobFilter(selector, None)
    search: QueueScan
    if part == LIVE:
        search = BrowseScan(queue, job_filter, arrived.set, False, offset, 0)
    else:
        search = AckedBrowse(queue, job_filter, arrived.set, LogRange(offset))
    try:
        while not queue.deleted:
            entries: list[QueueEntry] = []
            arrived.clear()
            search.collect(entries, FOUND_MAX, 1 << 24)
            owners = await _unacked_owners(call, queue, entries) if part == LIVE else {}
            for entry in entries:
                found.append(_item(queue, entry, part, owners.get(entry.offset)))
            if search.ended:
                return -1
            if time.monotonic() >= until or len(found) >= FOUND_MAX:
                return max(offset, search.position)
            if search.waits:
                try:
                    async with asyncio.timeout(_DISK_S):
                        await arrived.wait()
                except TimeoutError:
                    continue  # try again
            else:
                await asyncio.sleep(0)
        return -1
    finally:
        search.close()


def _item(queue: Queue, entry: QueueEntry, part: str, owner: dict[str, Any] | None) -> dict[str, Any]:
    message = entry.message
    assert message is not None  # a scan returns entries with their messages
    properties = message.properties()
    headers = decode_headers(properties, 0, len(properties))
    return {
        "queue": queue.name,
        "offset": entry.offset,
        "time": message.logged_ms or None,
        "state": SETTLED if part == SETTLED else READY if owner is None else UNACKED,
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "redelivered": entry.redelivered and part == LIVE,
        "deaths": amqp_to_json(headers.get("x-death") or []),
        "moved_from": headers.get("x-source-queue"),
        **(owner or {"connection": None, "channel": None, "user": None, "consumer": None}),
    }


async def _unacked_owners(call: ApiRequest, queue: Queue, entries: list[QueueEntry]) -> dict[int, dict[str, Any]]:
    """Return connection and channel of unacked entries, by offset: null if the caller may not see the connection.

    Cost: 0.1 us per unacked message of the vhost.
    """
    owners: dict[int, dict[str, Any]] = {}
    wanted = {entry.offset for entry in entries}
    if not wanted or queue.unacked_count == 0:
        return owners
    slices = TimeSlice()
    for connection in list(call.server.connections):
        if connection.session.vhost.name != queue.vhost_name:
            continue
        shown = may_see(call, connection.session)
        for channel in connection.channels.all():
            for place, entry in enumerate(channel.deliveries.unacked.entries()):
                if entry.offset in wanted and entry.queue is queue:
                    owners[entry.offset] = {
                        "connection": connection.name if shown else None,
                        "channel": channel_name(channel) if shown else None,
                        "user": connection.session.user.name if shown else None,
                        "consumer": None if entry.consumer is None else entry.consumer.tag,
                    }
                if place % LOOK_COUNT == 0:
                    await slices.yield_if_due()
    return owners


MESSAGES_MAX: Final = 1000


async def append(call: ApiRequest) -> ApiResponse:
    """Append messages to the queue.

    Answers `{"count": N}` once all of them are as safe as the queue makes them. Raises: BadRequest, and AccessRefused
    for the audit log, then no message is stored; Unavailable, then the first `count` are stored, or the result is
    unknown.
    """
    queue = call.queue()
    call.vhost().check_not_system(queue.name)
    items = call.required("messages")
    if not isinstance(items, list) or len(items) > MESSAGES_MAX:
        raise BadRequest(f"messages must be a list of at most {MESSAGES_MAX}")
    slices = TimeSlice()
    messages: list[Message] = []
    for item in items:
        messages.append(_message(item, call.broker.message_size_max_bytes))
        await slices.yield_if_due()
    if call.broker.alarm_reason:
        raise Unavailable(f"publishers are blocked: {call.broker.alarm_reason}")
    if not await opened(queue) or queue.is_deleted():
        raise Unavailable("the queue cannot accept messages now")
    logs: list[QueueLog] = []
    for count, message in enumerate(messages):
        if offer_to_all([queue], message, logs) != TAKEN:
            raise Unavailable(f"the queue accepted only the first {count} messages")
    call.broker.turn.schedule()
    if logs:
        await wait_stored(call, partial(when_safe, call.broker.turn, logs), "the messages could not be written")
    return reply({"count": len(messages)})


def _message(item: Any, size_max: int) -> Message:
    """Return the message of an item. Raises: BadRequest."""
    if not isinstance(item, dict):
        raise BadRequest("a message must be an object")
    names: list[str] = []
    for name in ("exchange", "routing_key"):
        text = item.get(name)
        if not isinstance(text, str) or len(text.encode("utf-8", "surrogateescape")) > SHORT_STRING_SIZE_BYTES_MAX:
            raise BadRequest(f"{name} must be text of at most {SHORT_STRING_SIZE_BYTES_MAX} bytes")
        names.append(text)
    properties, body = _bytes(item, "properties"), _bytes(item, "body")
    if len(body) > size_max:
        raise BadRequest(f"message size {len(body)} is larger than the maximum {size_max}")
    persistent = item.get("persistent")
    if not isinstance(persistent, bool):
        raise BadRequest("persistent must be true or false")
    try:
        info = scan_properties(properties, 0, len(properties))
    except CodecError as error:
        raise BadRequest(f"properties: {error}") from None
    return make_message(MessageRoute(names[0], names[1]), properties, body, persistent, info)


def _bytes(item: dict[str, Any], name: str) -> bytes:
    try:
        return b64decode(item[name], validate=True)
    except (KeyError, TypeError, ValueError, NotBase64):
        raise BadRequest(f"{name} must be base64") from None


async def get_audit(call: ApiRequest) -> ApiResponse:
    """Return records of the audit log.

    `lost` is the number of records that could not be written and that no later record reports yet.
    """
    query = call.query
    count = parse_int("count", query.get("count", 100), 1, COUNT_MAX)
    begin = parse_int("offset", query.get("offset", 0), 0, OFFSET_MAX)
    begin_ms = time_ms(query.get("since"))
    until_ms = time_ms(query["until"]) if "until" in query else OFFSET_MAX
    selector = selector_of(query.get("where"))
    queue = call.broker.audit.queue
    if not await opened(queue):
        raise Unavailable("the audit log cannot be read; see the broker's log")
    assert queue.store is not None  # a stream has one
    before = parse_int("before", query.get("before", OFFSET_MAX), 0, OFFSET_MAX)
    end = min(before, queue.store.high_watermark)
    if "last" in query:
        begin = max(begin, end - parse_int("last", query["last"], 1, OFFSET_MAX))
    # Only retention removes records, from the start on.
    start = queue.store.next_offset - queue.store.record_count
    begin = max(begin, start)
    page = await browse(queue, selector, count, begin, begin_ms)
    slices = TimeSlice()
    records: list[dict[str, Any]] = []
    ended = page.ended or page.next_offset >= before
    for entry, _ in page.messages:
        message = entry.message
        assert message is not None  # a scan returns entries with their messages
        if message.logged_ms > until_ms or entry.offset >= before:
            ended = True
            break
        records.append({"offset": entry.offset, **json.loads(message.body())})
        await slices.yield_if_due()
    lost = call.broker.audit.lost_count
    page_fields = {"records": records, "next_offset": page.next_offset, "ended": ended, "lost": lost}
    return reply({**page_fields, "first_offset": begin, "start_offset": start})


LIMIT: Final = 100
LIMIT_MAX: Final = 10_000


async def get_delayed(call: ApiRequest) -> ApiResponse:
    """List the delayed messages that are due next.

    Query: `limit` (100). Without an exchange in the path: of all exchanges of the vhost that the caller may read.
    """
    vhost = call.vhost()
    limit = parse_int("limit", call.query.get("limit", LIMIT), 1, LIMIT_MAX)
    if "exchange" in call.params:
        exchange = call.exchange()
        call.check(vhost.name, "read", "exchange", exchange.name)
        wheels = [wheel for wheel in call.broker.delays.wheels_of(vhost.name) if wheel.exchange == exchange.name]
    else:
        wheels = _allowed(call, vhost, "read")
    slices = TimeSlice()
    items: list[dict[str, Any]] = []
    for found in next_due(wheels, limit):
        if found is not None:
            items = [_delayed_item(vhost, each) for each in found]
        else:
            await slices.yield_if_due()
    return reply(items)


def _allowed(call: ApiRequest, vhost: VHost, kind: Literal["read", "write"]) -> list[TimingWheel]:
    wheels = call.broker.delays.wheels_of(vhost.name)
    return [wheel for wheel in wheels if call.is_allowed(vhost.name, kind, wheel.exchange)]


def _delayed_item(vhost: VHost, found: DelayedMessage) -> dict[str, Any]:
    return {
        "id": found.id,
        "vhost": vhost.name,
        "exchange": found.exchange,
        "due": found.due_ms,
        "published_to": found.published_to,
        "routing_keys": found.routing_keys,
        "payload_bytes": found.size_bytes,
        "persistent": found.persistent,
    }


async def delete_delayed(call: ApiRequest) -> ApiResponse:
    """Cancel a delayed message.

    Answers 204 if it will not be delivered, 404 if it does not exist or is already being delivered to its queues.
    """
    vhost = call.vhost()
    name = call.params["id"]
    try:
        due_ms, message_number = parse_id(name)
    except ValueError:
        raise BadRequest(f"'{name}' is not an id of a delayed message") from None
    slices = TimeSlice()
    for wheel in _allowed(call, vhost, "write"):
        for found in cancel([wheel], due_ms, message_number):
            if found:
                return NO_CONTENT
            await slices.yield_if_due()
    raise ResourceNotFound(f"no delayed message '{name}' in vhost '{vhost.name}'")


ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/trace/{vhost}", Role.MANAGEMENT, get_trace),
    ApiRoute("POST", "api/amqpd/append/{vhost}/{queue}", Role.ADMINISTRATOR, append, quiet=True, messages=True),
    ApiRoute("GET", "api/audit", Role.ADMINISTRATOR, get_audit),
    ApiRoute("GET", "api/delayed/{vhost}", Role.MANAGEMENT, get_delayed),
    ApiRoute("GET", "api/delayed/{vhost}/{exchange}", Role.MANAGEMENT, get_delayed),
    ApiRoute("DELETE", "api/delayed/{vhost}/{id}", Role.MANAGEMENT, delete_delayed),
)
