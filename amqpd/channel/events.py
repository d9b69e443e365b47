"""Events of channels and consumers (broker/events.py). An event is built only if it has a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.protocol.field_table import decode_table
from amqpd.protocol.methods import method_name

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer
    from amqpd.broker.session import Session
    from amqpd.errors import AmqpError


def channel_created(session: Session, number: int) -> None:
    events = session.broker.catalogue.events
    if events.exchange_bound:
        events.emit(
            "channel.created",
            {
                "pid": events.pid(session.serial, number),
                "name": f"{session.name} ({number})",
                "connection": events.pid(session.serial),
                "number": number,
                "user": session.user.name,
                "vhost": session.vhost.name,
            },
            session.user.name,
        )


def channel_closed(session: Session, number: int) -> None:
    events = session.broker.catalogue.events
    if events.exchange_bound:
        events.emit("channel.closed", {"pid": events.pid(session.serial, number)}, session.user.name)


def refused(session: Session, error: AmqpError) -> None:
    """Record in the audit log that the user lacks a permission for the command."""
    if session.broker.catalogue.events.audit_hook is not None:
        session.broker.audit.refused(session.user.name, method_name(error.method), error.text, session.vhost.name)


def consumer_created(session: Session, number: int, consumer: Consumer, prefetch_count: int) -> None:
    events = session.broker.catalogue.events
    if events.exchange_bound:
        table = consumer.arguments.table
        events.emit(
            "consumer.created",
            {
                **_about(session, number, consumer),
                "exclusive": consumer.exclusive,
                "ack_required": not consumer.no_ack,
                "prefetch_count": prefetch_count,
                "arguments": decode_table(table, 0)[0] if table else {},
            },
            session.user.name,
        )


def consumer_deleted(session: Session, number: int, consumer: Consumer) -> None:
    events = session.broker.catalogue.events
    if events.exchange_bound:
        events.emit("consumer.deleted", _about(session, number, consumer), session.user.name)


def _about(session: Session, number: int, consumer: Consumer) -> dict[str, object]:
    return {
        "consumer_tag": consumer.tag,
        "channel": session.broker.catalogue.events.pid(session.serial, number),
        "queue": consumer.queue.name,
        "vhost": consumer.queue.vhost_name,
    }
