"""Queues: /queues, one queue, its bindings, its contents; and /queues/V/Q/get, which takes messages out to be seen.

What named consumers of a stream have stored: /queues/V/Q/offsets. RabbitMQ has no such route.

To look, to set and to delete takes the read permission on the queue, as to consume does: whoever may read under a name
may say how far it has come.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.consume import reject_on_stream
from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.stats import QUEUE_COUNTERS
from amqpd.broker.vhost import declare as declarations
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import wait_done
from amqpd.broker.vhost.policy_table import NONE
from amqpd.channel.channel import had_by_queue
from amqpd.channel.consumer import ChannelConsumer, ChannelConsumers
from amqpd.errors import AccessRefused
from amqpd.management.bindings import by_source, show
from amqpd.management.connections import channel_details, connection_details, consumer_item, idle
from amqpd.management.listing import by_name, columns, listing, one, plain, spans
from amqpd.management.message_counts import head_timestamp, sizes
from amqpd.management.request import (
    CREATED,
    NO_CONTENT,
    SESSION_NAME,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    clean_name,
    missing_keys,
    number,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.stats import DELIVERED, LENGTHS, QUEUE, lengths, split_stats
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.properties import decode_properties
from amqpd.storage.acks.retained import retained_of
from amqpd.storage.local_log import LocalLog
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpd.broker.consumer import QueueEntry
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.consumer_offsets import StoredOffset


GET_COUNT_MAX: Final = 1000
GET_BYTES_MAX: Final = 16 * 1024 * 1024
_ACK_MODES: Final = {
    "ack_requeue_true": True,
    "reject_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_false": False,
}


def queue_item(call: ApiRequest, queue: Queue) -> dict[str, Any]:
    """A queue as RabbitMQ shows it. Reads a queue's log if nobody has since the start: up to 25 ms after a kill.

    One whose log cannot be read now is `down` and shown without its messages, as one is whose log comes back from Kafka
    (`syncing`, RabbitMQ's word for a copy that is being filled).
    """
    store = queue.store
    coming = is_coming(store)
    opened = not coming and queue.can_open()
    store = queue.store
    owner: Any = queue.exclusive_owner
    shown = split_stats(call.rates.details(queue, QUEUE, spans(call.query)))
    first = queue.consumers[0].tag if queue.consumers else None
    vhost = call.broker.vhosts.get(queue.vhost_name)
    followed = NONE if vhost is None else vhost.policies.obeyed_by(queue)
    item: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost_name,
        "type": queue.kind,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": owner is not None,
        "arguments": plain(queue.arguments),
        "node": call.node,
        "policy": followed.policy or None,
        "operator_policy": followed.operator_policy or None,
        "effective_policy_definition": dict(followed.definition),
        **state_item(store, opened),
        "degraded": store is not None and store.degraded,
        "lost_offsets": [] if store is None else [[first, last] for first, last in store.lost],
        **shown.lengths,
        "messages_unacknowledged": queue.unacked_count,
        # What came back and waits for its next try (x-delayed-retry-*).
        "messages_delayed_retry": queue.delayed_count,
        # Of those that are ready: what no consumer's x-filter matches, as far as they have looked.
        "messages_unmatched": 0 if queue.filters is None else queue.filters.unmatched_count(),
        **groups_item(queue),
        **retained_item(queue),
        **sizes(queue),
        **replicated_item(store),
        "head_message_timestamp": head_timestamp(queue),
        "consumer_utilisation": round(call.rates.utilisation(queue), 3),
        "consumer_capacity": round(call.rates.utilisation(queue), 3),
        **_replicas(call, queue),
        **idle(call, queue),
        "consumers": len(queue.consumers),
        "exclusive_consumer_tag": first if queue.round_robin.exclusive else None,
        "single_active_consumer_tag": first if queue.round_robin.single_active else None,
        "message_stats": shown.stats,
    }
    if owner is not None and not queue.deleted:  # who shows a list may be behind
        item["owner_pid_details"] = connection_details(owner)
    return item


def is_coming(store: QueueLog | None) -> bool:
    """Whether what is live of its log is still being read back from Kafka, or is to be."""
    return isinstance(store, LocalLog) and not store.local and not store.ready and not store.failed


def state_item(store: QueueLog | None, opened: bool) -> dict[str, Any]:
    """opened: whether its log can be used. state_reason: why it is not running; null where it is."""
    if is_coming(store):
        return {"state": "syncing", "state_reason": "its messages are being read back from Kafka"}
    if opened and (store is None or not store.failed):
        return {"state": "running", "state_reason": None}
    about = {} if store is None or store.local else store.about()
    why = about.get("refused") or "its log cannot be used; the broker's log says why"
    return {"state": "down", "state_reason": why}


def _replicas(call: ApiRequest, queue: Queue) -> dict[str, Any]:
    """rabbit: where a quorum queue or a stream has its copies: here."""
    if queue.kind not in ("quorum", "stream"):
        return {}
    here = {"leader": call.node} if queue.kind == "quorum" else {}
    return {**here, "members": [call.node], "online": [call.node]}


def plain_item(call: ApiRequest, queue: Queue, totals: bool) -> dict[str, Any]:
    """What a queue is, without what it counts; totals: but for its messages."""
    vhost = call.broker.vhosts.get(queue.vhost_name)
    followed = NONE if vhost is None else vhost.policies.obeyed_by(queue)
    item: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost_name,
        "type": queue.kind,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner is not None,
        "arguments": plain(queue.arguments),
        "node": call.node,
        "state": state_item(queue.store, True)["state"],
        **({"policy": followed.policy} if followed.policy else {}),
        **_replicas(call, queue),
    }
    if totals:
        item |= zip(LENGTHS, lengths(queue), strict=True)
    return item


def groups_item(queue: Queue) -> dict[str, Any]:
    """Of x-group-by: groups of which something is unacked, and those of them of which something is ready, too, as far
    as it was looked at. null where there are none."""
    if not isinstance(queue, GroupedQueue):
        return {"group_by": None, "groups_locked": None, "groups_waiting": None}
    order = queue.grouped
    return {
        "group_by": queue.rules.group_by,
        "groups_locked": order.locked_count,
        "groups_waiting": order.groups_waiting(),
    }


def replicated_item(store: QueueLog | None) -> dict[str, Any]:
    """Of a queue whose log Kafka keeps: where, and how far it has it (`QueueLog.about`). Nothing of another."""
    return {} if store is None or store.local else {"kafka": store.about()}


def retained_item(queue: Queue) -> dict[str, Any]:
    """Of x-retain: what is settled and still there, the first offset there is, and when that was appended (ms). null
    where nothing is kept."""
    store = queue.store
    if not queue.rules.retains or not isinstance(store, LocalLog) or not store.ready:
        return dict.fromkeys(
            ("messages_retained", "message_bytes_retained", "retained_first_offset", "retained_first_timestamp")
        )
    found = retained_of(store.log.segments, store.next_offset, store.record_count)
    return {
        "messages_retained": found.messages,
        "message_bytes_retained": found.body_bytes,
        "retained_first_offset": found.first_offset if found.first_offset >= 0 else None,
        "retained_first_timestamp": found.first_timestamp_ms if found.first_timestamp_ms >= 0 else None,
    }


async def get_queues(call: ApiRequest) -> ApiResponse:
    """Queues, of all virtual hosts or of one."""
    slices = TimeSlice()
    bare, totals = call.query_shows("disable_stats"), call.query_shows("enable_queue_totals")
    queues: list[Queue] = []
    for vhost in call.vhosts():
        queues += await by_name(list(vhost.queues.values()), _name, slices)
    for queue in queues:
        if queue.opening is not None and (totals or not bare):
            await opened(queue)
        if slices.expired:
            await slices.yield_loop()
    if bare:
        return await listing(call, queues, lambda queue: plain_item(call, queue, totals), _name)
    return await listing(call, queues, lambda queue: queue_item(call, queue), _name, _keys(call))


def _keys(call: ApiRequest) -> dict[str, Callable[[Queue], object]]:
    """What `queue_item` has in the columns that a list of ten thousand is sorted by every few seconds."""

    def rate(index: int) -> Callable[[Queue], object]:
        return lambda queue: call.rates.per_s(queue, QUEUE)[index]

    def taken(queue: Queue) -> float:
        rates = dict(zip(QUEUE_COUNTERS, call.rates.per_s(queue, QUEUE), strict=False))  # lengths come behind
        return round(sum(rates[name] for name in DELIVERED), 1)

    return {
        "name": _name,
        "vhost": lambda queue: queue.vhost_name,
        "type": lambda queue: queue.kind,
        "messages": lambda queue: lengths(queue)[0],
        "messages_ready": lambda queue: int(queue.ready_count),
        "messages_unacknowledged": lambda queue: int(queue.unacked_count),
        "consumers": lambda queue: len(queue.consumers),
        **{f"message_stats.{name}_details.rate": rate(index) for index, name in enumerate(QUEUE_COUNTERS)},
        "message_stats.deliver_get_details.rate": taken,
    }


async def get_queue(call: ApiRequest) -> ApiResponse:
    """One queue."""
    queue = call.queue()
    await opened(queue)
    item = queue_item(call, queue)
    # The list leaves these out: they cost a walk over every consumer, and over every channel.
    asked = {path[0] for path in columns(call.query.get("columns", ""))}
    if not asked or "consumer_details" in asked:
        item["consumer_details"] = [consumer_item(call, consumer) for consumer in queue.consumers]
    # rabbit: with rates_mode basic nothing is counted between an exchange and each queue.
    item["incoming"] = []
    if not asked or "deliveries" in asked:
        item["deliveries"] = await _deliveries(call, queue)
    return one(call, item)


async def get_queue_consumers(call: ApiRequest) -> ApiResponse:
    """Consumers of the queue."""
    found = list(call.queue().consumers)
    return await listing(call, found, lambda each: consumer_item(call, each), lambda each: each.tag)


async def _deliveries(call: ApiRequest, queue: Queue) -> list[dict[str, Any]]:
    """The channels that have had something of it and are there. Cost: a look at each channel there is."""
    slices = TimeSlice()
    found: dict[ChannelConsumers, None] = {}
    for consumer in queue.consumers:
        if isinstance(consumer, ChannelConsumer):
            found[consumer.deliveries] = None
    for connection in list(call.server.connections):
        for channel in connection.channels.all():
            served = channel.deliveries.served
            if served is not None and queue in served.queues and not channel.closing:
                found[channel.deliveries] = None
        if slices.expired:
            await slices.yield_loop()
    items: list[dict[str, Any]] = []
    for deliveries in found:
        had = had_by_queue(deliveries).get(queue)
        if had is not None:
            stats = call.rates.pairs.delivered(deliveries, queue, had)
            items.append({"channel_details": channel_details(call, deliveries), "stats": stats})
        if slices.expired:
            await slices.yield_loop()
    return items


async def put_queue(call: ApiRequest) -> ApiResponse:
    """Declares the queue; 201 for a new one, 204 for an equivalent one, 400 otherwise."""
    vhost = call.vhost()
    name = clean_name(call.params["queue"], "a queue")
    arguments = call.arguments()
    durable, auto_delete = call.flag("durable", True), call.flag("auto_delete")
    call.check(vhost.name, "configure", "queue", name)
    dead_letter = arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letter, str):
        # rabbit: whoever dead-letters must be able to read the queue and to write to the exchange
        call.check(vhost.name, "read", "queue", name)
        call.check(vhost.name, "write", "exchange", dead_letter)
    if name.startswith("amq.rabbitmq.reply-to"):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    asked = QueueDeclaration(name, durable, False, auto_delete, arguments)
    new = await wait_done(partial(declarations.declare_queue, vhost, asked))
    call.broker.catalogue.queue_declared_count += 1
    return CREATED if new else NO_CONTENT


async def delete_queue(call: ApiRequest) -> ApiResponse:
    """Deletes the queue with its messages; if-empty=true, if-unused=true."""
    queue = _to_change(call, "configure", call.params["queue"])
    await drop(call, queue, call.query_flag("if-unused"), call.query_flag("if-empty"))
    return NO_CONTENT


async def drop(call: ApiRequest, queue: Queue, if_unused: bool, if_empty: bool) -> int:
    """Deletes it once its tombstone is committed. Returns how many messages were ready. Raises: PreconditionFailed."""
    queue.prepare()
    vhost = call.vhost()
    declarations.check_queue_deletable(vhost, queue, if_unused, if_empty)
    call.broker.turn.schedule()
    return await wait_done(partial(declarations.delete_queue, vhost, queue))


async def purge_queue(call: ApiRequest) -> ApiResponse:
    """Drops all messages that are ready."""
    purge(call, _to_change(call, "read", call.params["queue"]))
    return NO_CONTENT


def purge(call: ApiRequest, queue: Queue) -> int:
    """Removes what is ready. Returns how many went."""
    call.broker.vhosts[queue.vhost_name].check_not_system(queue.name)
    reject_on_stream(queue, "queue.purge")
    queue.prepare()
    count = queue.purge()
    about = {"vhost": queue.vhost_name, "name": queue.name, "messages": count}
    call.broker.catalogue.events.record("queue.purged", about)
    call.broker.turn.schedule()
    return count


def _to_change(call: ApiRequest, kind: Any, name: str) -> Queue:
    """The queue, when the caller may do this to it; an exclusive one belongs to its connection alone."""
    vhost = call.vhost()
    call.check(vhost.name, kind, "queue", name)
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    return queue


async def get_queue_bindings(call: ApiRequest) -> ApiResponse:
    """What is bound to the queue; `name` is looked for in sources and routing keys."""
    vhost = call.vhost()
    try:
        queue = call.queue()
    except ResourceNotFound:
        return await show(call, [])  # rabbit: nothing is bound to what there is not
    return await show(call, [(vhost, [queue, *vhost.bindings_to(queue)])], by_source)


async def get_messages(call: ApiRequest) -> ApiResponse:
    """Takes up to `count` messages and puts them back or not, as `ackmode` says; the body as text or base64."""
    missing = [name for name in ("count", "ackmode", "encoding") if name not in call.fields()]
    if missing:
        raise missing_keys(*missing)
    count = number("count", call.given("count"), 1, GET_COUNT_MAX)
    mode, encoding = call.text("ackmode"), call.text("encoding")
    if mode not in _ACK_MODES:
        raise BadRequest(f"ackmode is one of {', '.join(_ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise BadRequest("encoding is auto or base64")
    truncate = call.fields().get("truncate")
    if truncate is not None:
        truncate = number("truncate", truncate, 0, 1 << 62)
    queue = _to_change(call, "read", call.params["queue"])
    reject_on_stream(queue, "basic.get")
    queue.prepare()
    queue.touch()
    # No await between taking and giving back: a request that is broken off must not keep messages.
    entries = _take(queue, count)
    tap = call.vhost().tap
    if tap is not None:
        for entry in entries:
            if entry.message is not None:
                tap.delivered(entry.message, queue.name, entry.redelivered, SESSION_NAME, call.caller.user.name, 1)
    raw = [_copy(entry, queue.ready_count + len(entries) - index - 1) for index, entry in enumerate(entries)]
    if _ACK_MODES[mode]:
        for entry in entries:
            queue.requeue(entry, counts=True, failed=mode.startswith("reject"))
        queue.schedule_dispatch()
    elif mode.startswith("ack"):
        for entry in entries:
            queue.ack(entry)
    else:
        for entry in entries:
            queue.reject(entry)
    call.broker.turn.schedule()
    slices = TimeSlice()
    messages: list[dict[str, Any]] = []
    for each in raw:
        messages.append(message_item(each, encoding, truncate))
        if slices.expired:
            await slices.yield_loop()
    return reply(messages)


def _take(queue: Queue, count: int) -> list[QueueEntry]:
    entries: list[QueueEntry] = []
    size = 0
    while len(entries) < count and size < GET_BYTES_MAX:
        entry = queue.get(False)
        if entry is None:
            break
        size += entry.body_size
        entries.append(entry)
    return entries


def _copy(entry: QueueEntry, left: int) -> tuple[dict[str, Any], bytes, bytes]:
    message = entry.message
    assert message is not None  # get() has read it
    item = {
        "payload_bytes": message.body_size,
        "redelivered": entry.redelivered,
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "message_count": left,
    }
    return item, message.properties(), message.body()


def message_item(raw: tuple[dict[str, Any], bytes, bytes], encoding: str, truncate: int | None) -> dict[str, Any]:
    """A message as RabbitMQ shows it: what is given of it, properties decoded, body as text or base64."""
    item, properties, body = raw
    fields = decode_properties(properties)._asdict()
    item["properties"] = {name: plain(value) for name, value in fields.items() if value is not None}
    body = body[:truncate]
    if encoding == "auto":
        try:
            item["payload"], item["payload_encoding"] = body.decode(), "string"
            return item
        except UnicodeDecodeError:
            pass  # no text: shown as the bytes it is
    item["payload"], item["payload_encoding"] = b64encode(body).decode(), "base64"
    return item


def _name(queue: Queue) -> str:
    return queue.name


_ONE: Final = "api/queues/{vhost}/{queue}"
ROUTES: Final = (
    ApiRoute("GET", "api/queues", Role.MANAGEMENT, get_queues),
    # rabbit: from 4.x on /queues leaves out what is costly there; here it has all.
    ApiRoute("GET", "api/queues/detailed", Role.MANAGEMENT, get_queues),
    ApiRoute("GET", "api/queues/{vhost}", Role.MANAGEMENT, get_queues),
    ApiRoute("GET", _ONE, Role.MANAGEMENT, get_queue),
    ApiRoute("PUT", _ONE, Role.MANAGEMENT, put_queue),
    ApiRoute("DELETE", _ONE, Role.MANAGEMENT, delete_queue),
    ApiRoute("GET", _ONE + "/consumers", Role.MANAGEMENT, get_queue_consumers),
    ApiRoute("GET", _ONE + "/bindings", Role.MANAGEMENT, get_queue_bindings),
    ApiRoute("DELETE", _ONE + "/contents", Role.MANAGEMENT, purge_queue),
    ApiRoute("POST", _ONE + "/get", Role.MANAGEMENT, get_messages, quiet=True, messages=True),
)


async def get_offsets(call: ApiRequest) -> ApiResponse:
    """Stored offsets of a stream, by consumers' names."""
    queue, store = await _stream(call)
    stored = list(call.broker.catalogue.stored_offsets.of(queue.id).items())
    return await listing(call, stored, partial(_item, store), lambda each: each[0])


async def get_offset(call: ApiRequest) -> ApiResponse:
    """How far the consumer of that name has come."""
    queue, store = await _stream(call)
    name = call.params["name"]
    stored = call.broker.catalogue.stored_offsets.of(queue.id).get(name)
    if stored is None:
        raise _unknown(queue, name)
    return reply(_item(store, (name, stored)))


async def put_offset(call: ApiRequest) -> ApiResponse:
    """Sets where the consumer of that name continues.
    `offset`: the next one that consumers of this name get, of those there are or the one that comes next."""
    queue, store = await _stream(call)
    name = clean_name(call.params["name"], "a consumer")
    offset = number("offset", call.given("offset"), 0, store.next_offset)
    offsets = call.broker.catalogue.stored_offsets
    if not offsets.admit(queue.id, name):
        raise BadRequest(f"queue '{queue.name}' in vhost '{queue.vhost_name}' has offsets of too many consumers")
    await wait_done(partial(offsets.set, queue.id, name, offset))
    return NO_CONTENT


async def delete_offset(call: ApiRequest) -> ApiResponse:
    """Removes a stored offset."""
    queue, _ = await _stream(call)
    name = call.params["name"]
    if not await wait_done(partial(call.broker.catalogue.stored_offsets.delete, queue.id, name)):
        raise _unknown(queue, name)
    return NO_CONTENT


def _item(store: QueueLog, each: tuple[str, StoredOffset]) -> dict[str, Any]:
    """lag: from it to the end of the log. time: when it was written, ms since 1970; null while it is not."""
    name, stored = each
    lag = max(0, store.next_offset - stored.offset)
    return {"name": name, "offset": stored.offset, "lag": lag, "time": stored.time_ms or None}


def _unknown(queue: Queue, name: str) -> ResourceNotFound:
    return ResourceNotFound(f"no offset of a consumer '{name}' is stored for queue '{queue.name}'")


async def _stream(call: ApiRequest) -> tuple[Queue, QueueLog]:
    vhost = call.vhost()
    call.check(vhost.name, "read", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    if queue.kind != "stream" or queue.store is None:
        raise BadRequest(f"queue '{queue.name}' in vhost '{vhost.name}' is not a stream")
    await opened(queue)
    queue.store.recover()
    return queue, queue.store


STREAM_OFFSET_ROUTES: Final = (
    ApiRoute("GET", "api/queues/{vhost}/{queue}/offsets", Role.MANAGEMENT, get_offsets),
    ApiRoute("GET", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, get_offset),
    ApiRoute("PUT", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, put_offset),
    ApiRoute("DELETE", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, delete_offset),
)
