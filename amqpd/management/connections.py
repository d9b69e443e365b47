"""Connections, channels, consumers: what there is, and closing a connection.

Who lacks the monitoring tag sees his own connections and their channels, as in RabbitMQ; consumers are shown by vhost.
The `pid` of a connection is no process: it is a short name, unique while the broker runs, that `amqpctl` takes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queues.queue import Queue
from amqpd.channel.channel import ChannelConsumer
from amqpd.connection.read_gate import ALARM, BACKLOG, SYNC
from amqpd.management.call import NO_CONTENT, Call, NotThere, Reply, Role
from amqpd.management.listing import listing, one, plain
from amqpd.management.rates import CHANNEL, CONNECTION
from amqpd.management.router import Route
from amqpd.protocol.codec import decode_table

if TYPE_CHECKING:
    from amqpd.broker.delivery import Consumer
    from amqpd.channel.channel import Channel
    from amqpd.connection.connection import Connection

CLOSED_BY_API = "Closed via management plugin"


def reason(text: str) -> str:
    """Why a connection is closed, as it goes to the client and into the log: one line, nothing unprintable."""
    return "".join(each if each.isprintable() else "?" for each in text[:200]) or CLOSED_BY_API


def pid(call: Call, connection: Connection, channel: int = 0) -> str:
    return f"<{call.node}.{int(call.broker.started_at)}.{connection.transport.serial}.{channel}>"


def _state(call: Call, connection: Connection) -> str:
    if connection.gate.holds(ALARM):
        return "blocked"
    if call.broker.alarm_reason and connection.publishes:
        return "blocking"
    return "flow" if connection.gate.holds(SYNC | BACKLOG) else "running"


def connection_item(call: Call, connection: Connection) -> dict[str, Any]:
    transport = connection.transport
    item: dict[str, Any] = {
        "pid": pid(call, connection),
        "name": connection.name,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "vhost": connection.vhost.name,
        "peer_host": transport.peer[0],
        "peer_port": transport.peer[1],
        "host": transport.local[0],
        "port": transport.local[1],
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.control.mechanism,
        "client_properties": plain(connection.client_properties),
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_payload_max + 8,
        "timeout": connection.heartbeat_s,
        "state": _state(call, connection),
        "connected_at": int(connection.control.connected_at * 1000),
        "ssl": transport.tls,
        "type": "network",
        "node": call.node,
        **call.rates.details(connection, CONNECTION),
    }
    given = connection.client_properties.get("connection_name")
    if isinstance(given, str):
        item["user_provided_name"] = given
    return item


def _connection_details(connection: Connection) -> dict[str, Any]:
    host, port = connection.transport.peer
    return {"name": connection.name, "peer_host": host, "peer_port": port}


def channel_name(channel: Channel) -> str:
    return f"{channel.connection.name} ({channel.number})"


def channel_item(call: Call, channel: Channel) -> dict[str, Any]:
    connection = channel.connection
    confirm = channel.confirming
    return {
        "pid": pid(call, connection, channel.number),
        "connection": pid(call, connection),
        "name": channel_name(channel),
        "number": channel.number,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "vhost": connection.vhost.name,
        "node": call.node,
        "state": "closing" if channel.closing else "flow" if connection.gate.holds(SYNC | BACKLOG) else "running",
        "connection_details": _connection_details(connection),
        "confirm": confirm,
        "transactional": channel.transactional,
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.prefetch_count,
        "global_prefetch_count": channel.window_size,
        "messages_unacknowledged": channel.unacked.count(),
        "messages_unconfirmed": channel.publish_sequence - channel.confirmed_sequence if confirm else 0,
        "messages_uncommitted": len(channel.tx_publishes),
        "acks_uncommitted": len(channel.tx_settlements),
        "message_stats": call.rates.details(channel, CHANNEL),
    }


def consumer_item(call: Call, consumer: Consumer) -> dict[str, Any]:
    queue = consumer.queue
    assert isinstance(queue, Queue)  # who takes direct replies is in no list
    first = not queue.round_robin.single_active or (bool(queue.consumers) and queue.consumers[0] is consumer)
    item: dict[str, Any] = {
        "queue": {"name": queue.name, "vhost": queue.vhost_name},
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "active": first,
        "activity_status": "up" if not queue.round_robin.single_active else "single_active" if first else "waiting",
        "prefetch_count": 0,
        "arguments": {},
    }
    if isinstance(consumer, ChannelConsumer):
        channel = consumer.channel
        connection = channel.connection
        item["prefetch_count"] = consumer.prefetch_count
        if consumer.arguments:
            item["arguments"] = plain(decode_table(consumer.arguments, 0)[0])
        host, port = connection.transport.peer
        item["channel_details"] = {
            "pid": pid(call, connection, channel.number),
            "name": channel_name(channel),
            "number": channel.number,
            "connection_name": connection.name,
            "user": connection.user.name,
            "node": call.node,
            "peer_host": host,
            "peer_port": port,
        }
    return item


# -- what the caller may see -----------------------------------------------------------------------------------------


def connections(call: Call, role: Role = Role.MONITORING) -> list[Connection]:
    """Those the caller may see (or close, with the administrator role): all, or his own; of the path's vhost if any."""
    found = list(call.server.connections)
    if not call.caller.has(role):
        found = [each for each in found if each.user.name == call.caller.user.name]
    if "vhost" in call.params:
        vhost = call.vhost()
        found = [each for each in found if each.vhost is vhost]
    return sorted(found, key=_name)


def _find(call: Call, role: Role = Role.MONITORING) -> Connection:
    name = call.params["connection"]
    found = call.server.connections.by_name.get(name)
    if found is None or not (call.caller.has(role) or found.user.name == call.caller.user.name):
        raise NotThere(f"no connection '{name}'")
    return found


def _channels(found: list[Connection]) -> list[Channel]:
    return [each.channels[number] for each in found for number in sorted(each.channels)]


# -- handlers --------------------------------------------------------------------------------------------------------


async def get_connections(call: Call) -> Reply:
    return await listing(call, connections(call), lambda each: connection_item(call, each), _name)


async def get_connection(call: Call) -> Reply:
    return one(call, connection_item(call, _find(call)))


async def delete_connection(call: Call) -> Reply:
    """rabbit: the owner may, and an administrator; monitoring alone may not."""
    connection = _find(call, Role.ADMINISTRATOR)
    connection.control.force(reason(call.headers.get("X-Reason", "")))
    call.broker.turn.want()
    return NO_CONTENT


async def get_connection_channels(call: Call) -> Reply:
    return await listing(call, _channels([_find(call)]), lambda each: channel_item(call, each), channel_name)


async def get_channels(call: Call) -> Reply:
    return await listing(call, _channels(connections(call)), lambda each: channel_item(call, each), channel_name)


async def get_channel(call: Call) -> Reply:
    name = call.params["channel"]
    owner, _, number = name.removesuffix(")").rpartition(" (")
    connection = call.server.connections.by_name.get(owner)
    if connection is not None and (call.caller.has(Role.MONITORING) or connection.user.name == call.caller.user.name):
        channel = connection.channels.get(int(number)) if number.isascii() and number.isdecimal() else None
        if channel is not None:
            item = channel_item(call, channel)
            item["consumer_details"] = [consumer_item(call, each) for each in channel.consumers.values()]
            return one(call, item)
    raise NotThere(f"no channel '{name}'")


async def get_consumers(call: Call) -> Reply:
    found: list[Consumer] = []
    for vhost in call.vhosts():
        for queue in vhost.queues.values():
            found += queue.consumers
    return await listing(call, found, lambda each: consumer_item(call, each), lambda each: each.tag)


def _name(connection: Connection) -> str:
    return connection.name


ROUTES: Final = (
    Route("GET", "api/connections", Role.MANAGEMENT, get_connections),
    Route("GET", "api/connections/{connection}", Role.MANAGEMENT, get_connection),
    Route("DELETE", "api/connections/{connection}", Role.MANAGEMENT, delete_connection),
    Route("GET", "api/connections/{connection}/channels", Role.MANAGEMENT, get_connection_channels),
    Route("GET", "api/vhosts/{vhost}/connections", Role.MANAGEMENT, get_connections),
    Route("GET", "api/vhosts/{vhost}/channels", Role.MANAGEMENT, get_channels),
    Route("GET", "api/channels", Role.MANAGEMENT, get_channels),
    Route("GET", "api/channels/{channel}", Role.MANAGEMENT, get_channel),
    Route("GET", "api/consumers", Role.MANAGEMENT, get_consumers),
    Route("GET", "api/consumers/{vhost}", Role.MANAGEMENT, get_consumers),
)
