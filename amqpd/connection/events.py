"""Events of connections (broker/events.py). An event is built only if it has a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.connection import peer_certificate

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.connection import Connection


def logged_in(broker: Broker, connection: Connection, name: str, error: str) -> None:
    """Emit the event of a login.

    Args:
        error: reason of a refusal; "" for success.

    rabbit: the event has no acting user.
    """
    events = broker.catalogue.events
    if events.has_listeners:
        outcome = {"error": error} if error else {}
        events.emit(
            f"user.authentication.{'failure' if error else 'success'}",
            {
                "name": name,
                "connection_type": "network",
                "connection_name": connection.name,
                **_wire(connection),
                **outcome,
            },
            "",
        )


def connection_created(broker: Broker, connection: Connection) -> None:
    events = broker.catalogue.events
    if events.exchange_bound:
        session = connection.session
        events.emit(
            "connection.created",
            {
                "type": "network",
                "pid": events.pid(session.serial),
                "name": connection.name,
                "port": connection.wire.local[1],
                **_wire(connection),
                "user": session.user.name,
                "vhost": session.vhost.name,
                "timeout": connection.heartbeat_s,
                "frame_max": connection.output.frame_payload_max + 8,
                "channel_max": connection.channels.count_max,
                "connected_at": int(connection.control.connected_at * 1000),
                "node": events.node,
                **_client(connection),
            },
            session.user.name,
        )


def connection_closed(broker: Broker, connection: Connection) -> None:
    """Emit connection.closed. rabbit: also for connections never opened (number 0 here), and without an acting user."""
    events = broker.catalogue.events
    if events.exchange_bound:
        serial = 0 if connection.opened is None else connection.session.serial
        about = {"pid": events.pid(serial), "name": connection.name, "node": events.node}
        events.emit("connection.closed", {**about, **_client(connection)}, "")


def _wire(connection: Connection) -> dict[str, object]:
    wire = connection.wire
    return {
        "host": wire.local[0],
        "peer_host": wire.peer[0],
        "peer_port": wire.peer[1],
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.control.mechanism,
        "ssl": wire.tls,
        **peer_certificate.ciphers(*wire.cipher()),
        **peer_certificate.tls_info(wire.peer_certificate()),
    }


def _client(connection: Connection) -> dict[str, object]:
    given = connection.client_properties.get("connection_name")
    named = {"user_provided_name": given} if isinstance(given, str) else {}
    return {"client_properties": dict(connection.client_properties), **named}
