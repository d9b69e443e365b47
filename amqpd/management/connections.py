"""Connections, channels and consumers: lists, details, closing.

rabbit: a user without the tag monitoring sees only their own connections, and the channels and consumers on them. The
details of a queue have all of its consumers.

The `pid` of a connection is a short name, unique until the broker stops. `amqpctl` accepts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import StreamReader
from amqpd.channel.channel import stats_by_queue
from amqpd.channel.consumer import ChannelConsumer, ChannelConsumers
from amqpd.connection import peer_certificate
from amqpd.connection.connection import Connection
from amqpd.connection.read_pause import ALARM, BACKLOG, BODIES, OUTPUT, PACED, SHARING, SYNC
from amqpd.management.listing import amqp_to_json, listing, object_reply, requested_ranges
from amqpd.management.request import NO_CONTENT, ApiRequest, ApiResponse, ResourceNotFound, Role, name_of
from amqpd.management.router import ApiRoute
from amqpd.management.stats import CHANNEL, CONNECTION
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.field_table import decode_table

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer
    from amqpd.broker.listeners import ListedConnection
    from amqpd.broker.session import Session
    from amqpd.channel.channel import Channel


AnyConnection: TypeAlias = "Connection | ListedConnection"
AnyT = TypeVar("AnyT", bound="Connection | ListedConnection")

HELD_BY: Final = {
    ALARM: "alarm",
    SYNC: "sync",
    BACKLOG: "backlog",
    OUTPUT: "output",
    SHARING: "sharing",
    PACED: "paced",
    BODIES: "bodies",
}


def pause_reasons(reasons: int) -> list[str]:
    """Return why a connection is not read, in words. Empty if it is read."""
    return [word for reason, word in HELD_BY.items() if reasons & reason]


CLOSED_BY_API = "Closed via management plugin"


def close_reason(text: str) -> str:
    """Return the reason for closing a connection, for the client and the log: one line of printable characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:200]) or CLOSED_BY_API


def pid(call: ApiRequest, session: Session, channel: int = 0) -> str:
    """Return the short name of a channel. Channel 0 is the connection itself."""
    return call.broker.catalogue.events.pid(session.serial, channel)


def _state(call: ApiRequest, connection: Connection) -> str:
    if connection.read_pause.is_set(ALARM):
        return "blocked"
    if call.broker.alarm_reason and connection.publishes:
        return "blocking"
    return "flow" if connection.read_pause.is_set(SYNC | BACKLOG) else "running"


def node_fields(call: ApiRequest, connection: Connection) -> dict[str, str]:
    """Return the node that has the client's socket. If another node owns the vhost, that one is `owner`."""
    node = connection.wire.node
    return {"node": node, "owner": call.node} if node else {"node": call.node}


def _head_item(call: ApiRequest, connection: AnyConnection) -> dict[str, Any]:
    """Return the first fields of a connection of any protocol."""
    session = connection.session
    return {
        "pid": pid(call, session),
        "name": connection.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "vhost": session.vhost.name,
    }


def connection_item(call: ApiRequest, connection: Connection) -> dict[str, Any]:
    wire = connection.wire
    item: dict[str, Any] = {
        **_head_item(call, connection),
        "peer_host": wire.peer[0],
        "peer_port": wire.peer[1],
        "host": wire.local[0],
        "port": wire.local[1],
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.control.mechanism,
        "client_properties": amqp_to_json(connection.client_properties),
        "channels": len(connection.channels.by_number),
        "channel_max": connection.channels.count_max,
        "frame_max": connection.output.frame_payload_max + 8,
        "timeout": connection.heartbeat_s,
        "state": _state(call, connection),
        "held_by": pause_reasons(connection.read_pause.reasons),
        "connected_at": int(connection.control.connected_at * 1000),
        "ssl": wire.tls,
        **dict.fromkeys((*peer_certificate.CIPHER_KEYS, *peer_certificate.KEYS)),
        **peer_certificate.ciphers(*wire.cipher()),
        **peer_certificate.tls_info(wire.peer_certificate()),
        "type": "network",
        **node_fields(call, connection),
        **call.rates.details(connection, CONNECTION, requested_ranges(call.query)),
    }
    connection_name = connection.client_properties.get("connection_name")
    if isinstance(connection_name, str):
        item["user_provided_name"] = connection_name
    return item


def other_item(call: ApiRequest, connection: ListedConnection) -> dict[str, Any]:
    """Return a connection that does not speak AMQP. It has no channels."""
    return {
        **_head_item(call, connection),
        "peer_host": connection.session.peer[0],
        "peer_port": connection.session.peer[1],
        **dict.fromkeys(("channels", "channel_max", "frame_max", "timeout"), 0),
        "held_by": [],
        **dict.fromkeys((*peer_certificate.CIPHER_KEYS, *peer_certificate.KEYS)),
        "type": "network",
        "node": call.node,
        **connection.details(),
    }


def _item(call: ApiRequest, connection: AnyConnection) -> dict[str, Any]:
    if isinstance(connection, Connection):
        return connection_item(call, connection)
    return other_item(call, connection)


def connection_details(session: Session) -> dict[str, Any]:
    """Return the connection of a channel or of an exclusive queue."""
    host, port = session.peer
    return {"name": session.name, "peer_host": host, "peer_port": port}


def channel_name(channel: Channel | ChannelConsumers) -> str:
    return f"{channel.session.name} ({channel.number})"


def channel_details(call: ApiRequest, channel: Channel | ChannelConsumers) -> dict[str, Any]:
    """Return the channel of a consumer, or of counters kept for a channel."""
    session = channel.session
    host, port = session.peer
    return {
        "pid": pid(call, session, channel.number),
        "name": channel_name(channel),
        "number": channel.number,
        "connection_name": session.name,
        "user": session.user.name,
        "node": call.node,
        "peer_host": host,
        "peer_port": port,
    }


def channel_item(call: ApiRequest, connection: Connection, channel: Channel) -> dict[str, Any]:
    session = channel.session
    confirms, transaction, deliveries = channel.confirms, channel.transaction, channel.deliveries
    return {
        "pid": pid(call, session, channel.number),
        "connection": pid(call, session),
        "name": channel_name(channel),
        "number": channel.number,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "vhost": session.vhost.name,
        **node_fields(call, connection),
        "state": "closing"
        if channel.closing
        else "flow"
        if connection.read_pause.is_set(SYNC | BACKLOG)
        else "running",
        "connection_details": connection_details(session),
        "confirm": confirms is not None,
        "transactional": transaction is not None,
        "consumer_count": len(deliveries.consumers),
        "prefetch_count": deliveries.prefetch_count,
        "global_prefetch_count": deliveries.window_size,
        "messages_unacknowledged": deliveries.unacked.count(),
        "messages_unconfirmed": confirms.sequence - confirms.confirmed_sequence if confirms is not None else 0,
        "messages_uncommitted": len(transaction.publishes) if transaction is not None else 0,
        "acks_uncommitted": len(transaction.acks) if transaction is not None else 0,
        "message_stats": call.rates.details(channel, CHANNEL, requested_ranges(call.query)),
        **idle_fields(call, channel),
    }


def idle_fields(call: ApiRequest, thing: Channel | Queue) -> dict[str, str]:
    """Return `idle_since` if the counters do not change, precise to a sweep of 5 s. rabbit: in ISO format."""
    since = call.rates.idle_since(thing)
    if since is None:
        return {}
    return {"idle_since": datetime.fromtimestamp(since, UTC).isoformat(timespec="milliseconds")}


def consumer_item(call: ApiRequest, consumer: Consumer) -> dict[str, Any]:
    queue = consumer.queue
    assert isinstance(queue, Queue)  # consumers of direct replies are in no list
    table = consumer.arguments.table
    first = not queue.round_robin.single_active or (bool(queue.consumers) and queue.consumers[0] is consumer)
    item: dict[str, Any] = {
        "queue": {"name": queue.name, "vhost": queue.vhost_name},
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "active": first,
        "activity_status": "up" if not queue.round_robin.single_active else "single_active" if first else "waiting",
        "prefetch_count": 0,
        "consumer_timeout": 0,
        "arguments": amqp_to_json(decode_table(table, 0)[0]) if table else {},
    }
    if isinstance(queue, GroupedQueue):
        item["groups_held"] = queue.grouped.window.groups_held(consumer)
    if isinstance(consumer.reader, StreamReader):
        item["stream"] = stream_item(queue, consumer.reader)
    if isinstance(consumer, ChannelConsumer):
        channel = consumer.deliveries
        item["prefetch_count"] = consumer.prefetch_count
        item["consumer_timeout"] = consumer.clock.timeout_ms if consumer.clock is not None else 0
        item["channel_details"] = channel_details(call, channel)
    return item


def stream_item(queue: Queue, reader: StreamReader) -> dict[str, Any]:
    """Return the position of a stream consumer. RabbitMQ does not have this field.

    - offset: the next record that it looks at, null before it has started.
    - lag: records from there to the end.
    - committed: all records below are acked, null if the consumer does not ack.
    """
    end = queue.store.next_offset if queue.store is not None else 0
    committed = reader.committed()
    return {
        "name": reader.consumer_name or None,
        "offset": reader.offset if reader.offset >= 0 else None,
        "lag": max(0, end - reader.offset) if reader.offset >= 0 else None,
        "committed": committed if committed >= 0 else None,
    }


# -- what the caller may see -----------------------------------------------------------------------------------------


def all_connections(call: ApiRequest) -> list[AnyConnection]:
    """Return the connections of all protocols."""
    return [*call.server.connections, *_others(call)]


def _others(call: ApiRequest) -> list[ListedConnection]:
    return [each for clients in call.broker.clients for each in clients.listed_connections()]


def _visible(call: ApiRequest, found: list[AnyT], role: Role = Role.MONITORING) -> list[AnyT]:
    """Return the connections that the caller may see, of the vhost in the path if there is one, sorted by name."""
    if not call.caller.has(role):
        found = [each for each in found if may_see(call, each.session, role)]
    if "vhost" in call.params:
        vhost = call.vhost()
        found = [each for each in found if each.session.vhost is vhost]
    return sorted(found, key=name_of)


def may_see(call: ApiRequest, session: Session, role: Role = Role.MONITORING) -> bool:
    """Return whether the caller may see a connection: each with the role, otherwise only those of the same user."""
    return call.caller.has(role) or session.user.name == call.caller.user.name


def _find(call: ApiRequest, role: Role = Role.MONITORING) -> AnyConnection:
    name = call.params["connection"]
    found: AnyConnection | None = call.server.connections.by_name.get(name)
    if found is None:
        found = next((each for each in _others(call) if each.name == name), None)
    if found is None or not may_see(call, found.session, role):
        raise ResourceNotFound(f"no connection '{name}'")
    return found


def force_close(call: ApiRequest, connection: AnyConnection, why: str) -> None:
    """Close the connection, because an operator asked for it, and record that in the audit log."""
    about = {
        "vhost": connection.session.vhost.name,
        "name": connection.name,
        "user": connection.session.user.name,
        "why": why,
    }
    call.broker.catalogue.events.record("connection.force_closed", about)
    if isinstance(connection, Connection):
        connection.control.force(why)
    else:
        connection.force(why)
    call.broker.turn.schedule()


async def force_close_all(call: ApiRequest, found: Sequence[AnyConnection], why: str, delay_s: float = 0.0) -> int:
    """Close those of the connections that are still open, and return their number. delay_s: pause after each."""
    closed = 0
    slices = TimeSlice()
    for connection in found:
        if isinstance(connection, Connection):
            is_open = call.server.connections.by_name.get(connection.name) is connection
        else:
            is_open = not connection.closed
        if is_open:
            force_close(call, connection, why)
            closed += 1
        if delay_s:
            await asyncio.sleep(delay_s)
        else:
            await slices.yield_if_due()
    return closed


async def _list_channels(call: ApiRequest, found: list[Connection]) -> ApiResponse:
    pairs = [(each, channel) for each in found for _, channel in sorted(each.channels.by_number.items())]
    return await listing(call, pairs, lambda pair: channel_item(call, *pair), lambda pair: channel_name(pair[1]))


# -- handlers --------------------------------------------------------------------------------------------------------


async def get_connections(call: ApiRequest) -> ApiResponse:
    """List connections, of all virtual hosts or of one."""
    return await listing(call, _visible(call, all_connections(call)), lambda each: _item(call, each), name_of)


async def get_connection(call: ApiRequest) -> ApiResponse:
    """Return one connection."""
    return object_reply(call, _item(call, _find(call)))


async def delete_connection(call: ApiRequest) -> ApiResponse:
    """Close the connection. rabbit: its own user and an administrator may; the tag monitoring is not enough."""
    connection = _find(call, Role.ADMINISTRATOR)
    force_close(call, connection, close_reason(call.headers.get("X-Reason", "")))
    return NO_CONTENT


def _connections_of_user(call: ApiRequest) -> list[AnyConnection]:
    role = Role.ADMINISTRATOR if call.method == "DELETE" else Role.MONITORING
    found = _visible(call, all_connections(call), role)
    return [each for each in found if each.session.user.name == call.params["user"]]


def _short_item(call: ApiRequest, connection: AnyConnection) -> dict[str, Any]:
    """Return a connection in the list of one user's connections. rabbit: it has only these fields."""
    session = connection.session
    about = {"name": connection.name, "vhost": session.vhost.name, "user": session.user.name}
    return {**about, **(node_fields(call, connection) if isinstance(connection, Connection) else {"node": call.node})}


async def get_user_connections(call: ApiRequest) -> ApiResponse:
    """List the connections of the user."""
    return await listing(call, _connections_of_user(call), lambda each: _short_item(call, each), name_of)


async def delete_user_connections(call: ApiRequest) -> ApiResponse:
    """Close all connections of the user; 204 also if there are none.

    A user who is not an administrator can only close their own connections.
    """
    await force_close_all(call, _connections_of_user(call), close_reason(call.headers.get("X-Reason", "")))
    return NO_CONTENT


async def get_connection_channels(call: ApiRequest) -> ApiResponse:
    """List the channels of the connection. Only AMQP has channels."""
    found = _find(call)
    return await _list_channels(call, [found] if isinstance(found, Connection) else [])


async def get_channels(call: ApiRequest) -> ApiResponse:
    """List channels, of all virtual hosts or of one."""
    return await _list_channels(call, _visible(call, list(call.server.connections)))


async def get_channel(call: ApiRequest) -> ApiResponse:
    """Return one channel, with its consumers."""
    name = call.params["channel"]
    owner, _, number = name.removesuffix(")").rpartition(" (")
    connection = call.server.connections.by_name.get(owner)
    if connection is not None and may_see(call, connection.session):
        is_number = number.isascii() and number.isdecimal() and len(number) < 6
        channel = connection.channels.get(int(number)) if is_number else None
        if channel is not None:
            item = channel_item(call, connection, channel)
            item["consumer_details"] = [consumer_item(call, each) for each in channel.deliveries.consumers.values()]
            channel.publisher.settle_counts()
            item["publishes"] = [
                {
                    "exchange": {"name": sent.exchange, "vhost": channel.session.vhost.name},
                    "stats": call.rates.pairs.published(sent),
                }
                for sent in channel.publisher.sent.values()
                if sent.in_count > 0
            ]
            item["deliveries"] = [
                {
                    "queue": {"name": queue.name, "vhost": queue.vhost_name},
                    "stats": call.rates.pairs.delivered(channel.deliveries, queue, had),
                }
                for queue, had in stats_by_queue(channel.deliveries).items()
            ]
            return object_reply(call, item)
    raise ResourceNotFound(f"no channel '{name}'")


async def get_consumers(call: ApiRequest) -> ApiResponse:
    """List consumers, of all virtual hosts or of one."""
    found: list[Consumer] = []
    for vhost in call.vhosts():
        for queue in vhost.queues.values():
            found += queue.consumers
    if not call.caller.has(Role.MONITORING):
        own = (each for each in found if isinstance(each, ChannelConsumer))
        found = [each for each in own if each.deliveries.session.user.name == call.caller.user.name]
    return await listing(call, found, lambda each: consumer_item(call, each), lambda each: each.tag)


ROUTES: Final = (
    ApiRoute("GET", "api/connections", Role.MANAGEMENT, get_connections),
    ApiRoute("GET", "api/connections/{connection}", Role.MANAGEMENT, get_connection),
    ApiRoute("DELETE", "api/connections/{connection}", Role.MANAGEMENT, delete_connection),
    ApiRoute("GET", "api/connections/username/{user}", Role.MANAGEMENT, get_user_connections),
    ApiRoute("DELETE", "api/connections/username/{user}", Role.MANAGEMENT, delete_user_connections),
    ApiRoute("GET", "api/connections/{connection}/channels", Role.MANAGEMENT, get_connection_channels),
    ApiRoute("GET", "api/vhosts/{vhost}/connections", Role.MANAGEMENT, get_connections),
    ApiRoute("GET", "api/vhosts/{vhost}/channels", Role.MANAGEMENT, get_channels),
    ApiRoute("GET", "api/channels", Role.MANAGEMENT, get_channels),
    ApiRoute("GET", "api/channels/{channel}", Role.MANAGEMENT, get_channel),
    ApiRoute("GET", "api/consumers", Role.MANAGEMENT, get_consumers),
    ApiRoute("GET", "api/consumers/{vhost}", Role.MANAGEMENT, get_consumers),
)
