"""Handlers for queues, their bindings and contents, and for stored offsets of streams.

/queues/V/Q/get takes messages and can requeue them. /queues/V/Q/offsets (not in RabbitMQ) has the offsets that named
consumers of a stream have stored. All its methods require the read permission on the queue, as consuming does: a user
that may consume under a name may also set its offset.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.consume import reject_on_stream
from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.queue import for_consumer
from amqpd.broker.stats import QUEUE_COUNTERS
from amqpd.broker.vhost import declare as declarations
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import wait_done
from amqpd.broker.vhost.policy_table import NONE, EffectivePolicy
from amqpd.channel.channel import stats_by_queue
from amqpd.channel.consumer import ChannelConsumer, ChannelConsumers
from amqpd.errors import AccessRefused
from amqpd.management.bindings import bindings_reply, by_source
from amqpd.management.connections import channel_details, connection_details, consumer_item, idle_fields, may_see
from amqpd.management.listing import amqp_to_json, listing, object_reply, parse_columns, requested_ranges, sort_by_name
from amqpd.management.message_counts import head_timestamp, size_fields
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
    name_of,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.stats import DELIVERED, LENGTHS, QUEUE, queue_lengths, split_stats
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
    """Return a queue as RabbitMQ shows it. Opens its log if necessary, which takes up to 25 ms after a kill.

    If the log cannot be read, the state is `down` and counts are missing. While it is read back from Kafka, the state
    is `syncing`, which RabbitMQ uses for a replica that is being filled.
    """
    store = queue.store
    coming = is_refilling(store)
    opened = not coming and queue.can_open()
    store = queue.store
    owner: Any = queue.exclusive_owner
    shown = split_stats(call.rates.details(queue, QUEUE, requested_ranges(call.query)))
    first = queue.consumers[0].tag if queue.consumers else None
    followed = _effective_policy(call, queue)
    item: dict[str, Any] = {
        **_declared_item(call, queue),
        "policy": followed.policy or None,
        "operator_policy": followed.operator_policy or None,
        "effective_policy_definition": dict(followed.definition),
        **state_item(store, opened),
        "degraded": store is not None and store.has_lost_offsets,
        "lost_offsets": [] if store is None else [[first, last] for first, last in store.lost],
        **shown.lengths,
        "messages_unacknowledged": queue.unacked_count,
        # Returned messages that wait for their next delivery (x-delayed-retry-*).
        "messages_delayed_retry": queue.delayed_count,
        # Ready messages that no consumer's x-filter matches, as far as consumers have scanned.
        "messages_unmatched": 0 if queue.filters is None else queue.filters.unmatched_count(),
        **groups_item(queue),
        **retained_item(queue),
        **size_fields(queue),
        **replicated_item(store),
        "head_message_timestamp": head_timestamp(queue),
        "consumer_utilisation": round(call.rates.utilisation(queue), 3),
        "consumer_capacity": round(call.rates.utilisation(queue), 3),
        **_replicas(call, queue),
        **idle_fields(call, queue),
        "consumers": len(queue.consumers),
        "exclusive_consumer_tag": first if queue.round_robin.exclusive else None,
        "single_active_consumer_tag": first if queue.round_robin.single_active else None,
        "message_stats": shown.stats,
    }
    if owner is not None and not queue.deleted:  # the list may be a moment old
        item["owner_pid_details"] = connection_details(owner)
    return item


def _declared_item(call: ApiRequest, queue: Queue) -> dict[str, Any]:
    """Return the fields that a queue keeps from its declaration on."""
    return {
        "name": queue.name,
        "vhost": queue.vhost_name,
        "type": queue.kind,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner is not None,
        "arguments": amqp_to_json(queue.arguments),
        "node": call.node,
    }


def _effective_policy(call: ApiRequest, queue: Queue) -> EffectivePolicy:
    vhost = call.broker.vhosts.get(queue.vhost_name)
    return NONE if vhost is None else vhost.policies.policy_of(queue)


def is_refilling(store: QueueLog | None) -> bool:
    """Return whether the log's live messages must still be read back from Kafka."""
    return isinstance(store, LocalLog) and not store.local and not store.ready and not store.failed


def state_item(store: QueueLog | None, opened: bool) -> dict[str, Any]:
    """Return `state` and `state_reason`, which is null while the queue runs.

    Args:
        opened: the log can be used.
    """
    if is_refilling(store):
        return {"state": "syncing", "state_reason": "its messages are being read back from Kafka"}
    if opened and (store is None or not store.failed):
        return {"state": "running", "state_reason": None}
    about = {} if store is None or store.local else store.location()
    why = about.get("refused") or "its log cannot be used; see the broker's log"
    return {"state": "down", "state_reason": why}


def _replicas(call: ApiRequest, queue: Queue) -> dict[str, Any]:
    """Return the replicas of a quorum queue or a stream as RabbitMQ shows them: this node only."""
    if queue.kind not in ("quorum", "stream"):
        return {}
    here = {"leader": call.node} if queue.kind == "quorum" else {}
    return {**here, "members": [call.node], "online": [call.node]}


def item_without_stats(call: ApiRequest, queue: Queue, totals: bool) -> dict[str, Any]:
    """Return a queue without statistics. With `totals`, include its numbers of messages."""
    followed = _effective_policy(call, queue)
    item: dict[str, Any] = {
        **_declared_item(call, queue),
        "state": state_item(queue.store, True)["state"],
        **({"policy": followed.policy} if followed.policy else {}),
        **_replicas(call, queue),
    }
    if totals:
        item |= zip(LENGTHS, queue_lengths(queue), strict=True)
    return item


def groups_item(queue: Queue) -> dict[str, Any]:
    """Return the fields of x-group-by, null for other queues.

    `groups_locked` counts groups with unacked messages, `groups_waiting` those of them with ready messages, as far as
    scanned.
    """
    if not isinstance(queue, GroupedQueue):
        return {"group_by": None, "groups_locked": None, "groups_waiting": None}
    window = queue.grouped.window
    return {
        "group_by": queue.rules.group_by,
        "groups_locked": window.locked_count,
        "groups_waiting": window.groups_waiting(),
    }


def replicated_item(store: QueueLog | None) -> dict[str, Any]:
    """Return the state of a log in Kafka (`QueueLog.location`), {} for other logs."""
    return {} if store is None or store.local else {"kafka": store.location()}


def retained_item(queue: Queue) -> dict[str, Any]:
    """Return the fields of x-retain: settled messages that are kept, the first offset and its time (ms).

    All are null if the queue retains nothing.
    """
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
    """List the queues of all virtual hosts or of one."""
    slices = TimeSlice()
    bare, totals = call.query_shows("disable_stats"), call.query_shows("enable_queue_totals")
    queues: list[Queue] = []
    for vhost in call.vhosts():
        queues += await sort_by_name(list(vhost.queues.values()), name_of, slices)
    for queue in queues:
        if queue.opening is not None and (totals or not bare):
            await opened(queue)
        await slices.yield_if_due()
    if bare:
        return await listing(call, queues, lambda queue: item_without_stats(call, queue, totals), name_of)
    return await listing(call, queues, lambda queue: queue_item(call, queue), name_of, _sort_keys(call))


def _sort_keys(call: ApiRequest) -> dict[str, Callable[[Queue], object]]:
    """Return cheap sort keys for common columns: the page sorts ten thousand queues every few seconds."""

    def rate(index: int) -> Callable[[Queue], object]:
        return lambda queue: call.rates.per_s(queue, QUEUE)[index]

    def delivered_rate(queue: Queue) -> float:
        rates = dict(zip(QUEUE_COUNTERS, call.rates.per_s(queue, QUEUE), strict=False))  # the lengths follow
        return round(sum(rates[name] for name in DELIVERED), 1)

    return {
        "name": name_of,
        "vhost": lambda queue: queue.vhost_name,
        "type": lambda queue: queue.kind,
        "messages": lambda queue: queue_lengths(queue)[0],
        "messages_ready": lambda queue: int(queue.ready_count),
        "messages_unacknowledged": lambda queue: int(queue.unacked_count),
        "consumers": lambda queue: len(queue.consumers),
        **{f"message_stats.{name}_details.rate": rate(index) for index, name in enumerate(QUEUE_COUNTERS)},
        "message_stats.deliver_get_details.rate": delivered_rate,
    }


async def get_queue(call: ApiRequest) -> ApiResponse:
    """Return one queue."""
    queue = call.queue()
    await opened(queue)
    item = queue_item(call, queue)
    # Not in the list, because they visit every consumer and every channel.
    asked = {path[0] for path in parse_columns(call.query.get("columns", ""))}
    if not asked or "consumer_details" in asked:
        item["consumer_details"] = [consumer_item(call, consumer) for consumer in queue.consumers]
    # RabbitMQ: with rates_mode basic, rates between an exchange and a queue are not collected.
    item["incoming"] = []
    if not asked or "deliveries" in asked:
        item["deliveries"] = await _deliveries(call, queue)
    return object_reply(call, item)


async def get_queue_consumers(call: ApiRequest) -> ApiResponse:
    """List the consumers of the queue, those of other users too, as RabbitMQ's `consumer_details`."""
    found = list(call.queue().consumers)
    return await listing(call, found, lambda each: consumer_item(call, each), lambda each: each.tag)


async def _deliveries(call: ApiRequest, queue: Queue) -> list[dict[str, Any]]:
    """Return the open channels that have received messages of the queue, as far as the caller may see them.

    Cost: visits every channel.
    """
    slices = TimeSlice()
    found: dict[ChannelConsumers, None] = {}
    for consumer in queue.consumers:
        if isinstance(consumer, ChannelConsumer):
            found[consumer.deliveries] = None
    for connection in list(call.server.connections):
        for channel in connection.channels.all():
            served = channel.deliveries.queue_stats
            if served is not None and queue in served.queues and not channel.closing:
                found[channel.deliveries] = None
        await slices.yield_if_due()
    items: list[dict[str, Any]] = []
    for deliveries in found:
        had = stats_by_queue(deliveries).get(queue)
        if had is not None and may_see(call, deliveries.session):
            stats = call.rates.pairs.delivered(deliveries, queue, had)
            items.append({"channel_details": channel_details(call, deliveries), "stats": stats})
        await slices.yield_if_due()
    return items


async def put_queue(call: ApiRequest) -> ApiResponse:
    """Declare a queue. Answers 201 for a new one, 204 for an equivalent one, 400 otherwise."""
    vhost = call.vhost()
    name = clean_name(call.params["queue"], "a queue")
    arguments = call.arguments()
    durable, auto_delete = call.flag("durable", True), call.flag("auto_delete")
    call.check(vhost.name, "configure", "queue", name)
    dead_letter = arguments.get("x-dead-letter-exchange")
    is_new = vhost.find_queue(name) is None
    if is_new and isinstance(dead_letter, str):
        # RabbitMQ: the dead letter exchange of a new queue requires read on the queue and write on the exchange
        call.check(vhost.name, "read", "queue", name)
        call.check(vhost.name, "write", "exchange", dead_letter)
    topic = arguments.get("x-kafka-topic")
    if is_new and isinstance(topic, str) and vhost.catalogue.own_topics is None:
        call.check(vhost.name, "configure", "queue", topic)
    if name.startswith("amq.rabbitmq.reply-to"):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    asked = QueueDeclaration(name, durable, False, auto_delete, arguments)
    new = await wait_done(partial(declarations.declare_queue, vhost, asked))
    call.broker.catalogue.queue_declared_count += 1
    return CREATED if new else NO_CONTENT


async def delete_queue(call: ApiRequest) -> ApiResponse:
    """Delete a queue with its messages. Query: `if-empty`, `if-unused`."""
    queue = call.permitted_queue("configure")
    await delete_and_wait(call, queue, call.query_flag("if-unused"), call.query_flag("if-empty"))
    return NO_CONTENT


async def delete_and_wait(call: ApiRequest, queue: Queue, if_unused: bool, if_empty: bool) -> int:
    """Delete a queue and wait for the commit. Raises: PreconditionFailed. Returns: The number of ready messages."""
    queue.prepare()
    vhost = call.vhost()
    declarations.check_queue_deletable(vhost, queue, if_unused, if_empty)
    call.broker.turn.schedule()
    return await wait_done(partial(declarations.delete_queue, vhost, queue))


async def purge_queue(call: ApiRequest) -> ApiResponse:
    """Remove all ready messages of the queue."""
    purge(call, call.permitted_queue("read"))
    return NO_CONTENT


def purge(call: ApiRequest, queue: Queue) -> int:
    """Remove the ready messages and return their number."""
    call.broker.vhosts[queue.vhost_name].check_not_system(queue.name)
    reject_on_stream(queue, "queue.purge")
    queue.prepare()
    count = queue.purge()
    about = {"vhost": queue.vhost_name, "name": queue.name, "messages": count}
    call.broker.catalogue.events.record("queue.purged", about)
    call.broker.turn.schedule()
    return count


async def get_queue_bindings(call: ApiRequest) -> ApiResponse:
    """List the bindings to the queue. The query `name` filters by source and routing key."""
    vhost = call.vhost()
    try:
        queue = call.queue()
    except ResourceNotFound:
        return await bindings_reply(call, [])  # RabbitMQ: no error for an unknown queue
    return await bindings_reply(call, [(vhost, [queue, *vhost.bindings_to(queue)])], by_source)


async def get_messages(call: ApiRequest) -> ApiResponse:
    """Take up to `count` messages, at most GET_COUNT_MAX, and ack, reject or requeue them.

    `ackmode` selects the action. With `encoding` auto, a body is text if it is UTF-8, else base64; with base64, always.
    """
    missing = [name for name in ("count", "ackmode", "encoding") if name not in call.fields()]
    if missing:
        raise missing_keys(*missing)
    count = min(parse_int("count", call.required("count"), 0, 1 << 62), GET_COUNT_MAX)
    mode, encoding = call.text("ackmode"), call.text("encoding")
    if mode not in _ACK_MODES:
        raise BadRequest(f"ackmode must be one of {', '.join(_ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise BadRequest("encoding must be auto or base64")
    truncate = call.fields().get("truncate")
    if truncate is not None:
        truncate = parse_int("truncate", truncate, 0, 1 << 62)
    queue = call.permitted_queue("read")
    reject_on_stream(queue, "basic.get")
    queue.prepare()
    queue.touch()
    # No await between taking and requeueing: a cancelled request must not keep messages.
    entries = _take(queue, count)
    tap = call.vhost().tap
    if tap is not None:
        for entry in entries:
            if entry.message is not None:
                tap.delivered(entry.message, queue.name, entry.redelivered, SESSION_NAME, call.caller.user.name, 1)
    shown = queue.rules.counts_shown
    raw = [_raw_item(entry, shown, queue.ready_count + len(entries) - index - 1) for index, entry in enumerate(entries)]
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
        await slices.yield_if_due()
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


def _raw_item(entry: QueueEntry, counts_shown: bool, left: int) -> tuple[dict[str, Any], bytes, bytes]:
    message = for_consumer(entry, counts_shown)
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
    """Return a message as RabbitMQ shows it: given fields, decoded properties, body as text or base64."""
    item, properties, body = raw
    fields = decode_properties(properties)._asdict()
    item["properties"] = {name: amqp_to_json(value) for name, value in fields.items() if value is not None}
    body = body[:truncate]
    if encoding == "auto":
        try:
            item["payload"], item["payload_encoding"] = body.decode(), "string"
            return item
        except UnicodeDecodeError:
            pass  # not UTF-8: base64
    item["payload"], item["payload_encoding"] = b64encode(body).decode(), "base64"
    return item


_ONE: Final = "api/queues/{vhost}/{queue}"


async def get_offsets(call: ApiRequest) -> ApiResponse:
    """List the stored offsets of a stream by consumer name."""
    queue, store = await _stream(call)
    stored = list(call.broker.catalogue.stored_offsets.of_queue(queue.id).items())
    return await listing(call, stored, partial(_offset_item, store), lambda each: each[0])


async def get_offset(call: ApiRequest) -> ApiResponse:
    """Return the stored offset of a consumer name."""
    queue, store = await _stream(call)
    name = call.params["name"]
    stored = call.broker.catalogue.stored_offsets.of_queue(queue.id).get(name)
    if stored is None:
        raise _no_stored_offset(queue, name)
    return reply(_offset_item(store, (name, stored)))


async def put_offset(call: ApiRequest) -> ApiResponse:
    """Set the offset where consumers of this name continue.

    `offset` is that of an existing message, or of the next one to arrive.
    """
    queue, store = await _stream(call)
    name = clean_name(call.params["name"], "a consumer")
    offset = parse_int("offset", call.required("offset"), 0, store.next_offset)
    offsets = call.broker.catalogue.stored_offsets
    if not offsets.admit(queue.id, name):
        raise BadRequest(f"queue '{queue.name}' in vhost '{queue.vhost_name}' has offsets of too many consumers")
    await wait_done(partial(offsets.set, queue.id, name, offset))
    return NO_CONTENT


async def delete_offset(call: ApiRequest) -> ApiResponse:
    """Remove a stored offset."""
    queue, _ = await _stream(call)
    name = call.params["name"]
    if not await wait_done(partial(call.broker.catalogue.stored_offsets.delete, queue.id, name)):
        raise _no_stored_offset(queue, name)
    return NO_CONTENT


def _offset_item(store: QueueLog, each: tuple[str, StoredOffset]) -> dict[str, Any]:
    """Return a stored offset. `lag` is its distance to the end of the log.

    `time` is ms since 1970, null until it is stored.
    """
    name, stored = each
    lag = max(0, store.next_offset - stored.offset)
    return {"name": name, "offset": stored.offset, "lag": lag, "time": stored.time_ms or None}


def _no_stored_offset(queue: Queue, name: str) -> ResourceNotFound:
    return ResourceNotFound(f"no offset of a consumer '{name}' is stored for queue '{queue.name}'")


async def _stream(call: ApiRequest) -> tuple[Queue, QueueLog]:
    queue = call.permitted_queue("read")
    if queue.kind != "stream" or queue.store is None:
        raise BadRequest(f"queue '{queue.name}' in vhost '{queue.vhost_name}' is not a stream")
    await opened(queue)
    queue.store.recover()
    return queue, queue.store


ROUTES: Final = (
    ApiRoute("GET", "api/queues", Role.MANAGEMENT, get_queues),
    # RabbitMQ: since 4.x, /queues leaves out expensive fields; here it has all.
    ApiRoute("GET", "api/queues/detailed", Role.MANAGEMENT, get_queues),
    ApiRoute("GET", "api/queues/{vhost}", Role.MANAGEMENT, get_queues),
    ApiRoute("GET", _ONE, Role.MANAGEMENT, get_queue),
    ApiRoute("PUT", _ONE, Role.MANAGEMENT, put_queue),
    ApiRoute("DELETE", _ONE, Role.MANAGEMENT, delete_queue),
    ApiRoute("GET", _ONE + "/consumers", Role.MANAGEMENT, get_queue_consumers),
    ApiRoute("GET", _ONE + "/bindings", Role.MANAGEMENT, get_queue_bindings),
    ApiRoute("DELETE", _ONE + "/contents", Role.MANAGEMENT, purge_queue),
    ApiRoute("POST", _ONE + "/get", Role.MANAGEMENT, get_messages, quiet=True, messages=True),
    ApiRoute("GET", "api/queues/{vhost}/{queue}/offsets", Role.MANAGEMENT, get_offsets),
    ApiRoute("GET", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, get_offset),
    ApiRoute("PUT", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, put_offset),
    ApiRoute("DELETE", "api/queues/{vhost}/{queue}/offsets/{name}", Role.MANAGEMENT, delete_offset),
)
