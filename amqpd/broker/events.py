"""Events for the exchange `amq.rabbitmq.event`, the audit log and watchers.

Code that changes something checks `exchange_bound` or `has_listeners` and calls `emit`. Events wait for the next
loop turn and are published in slices. Above COUNT_MAX waiting events, and during an alarm except for events of
alarms, events are dropped; the log shows how many.

Keys and headers are those of RabbitMQ's plugin rabbitmq_event_exchange, measured on 3.10.8.
`user_who_performed_action` comes from `ACTOR`, which front ends set for each command.

Source: https://www.rabbitmq.com/docs/event-exchange, https://www.rabbitmq.com/docs/logging#internal-events.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from amqpd.auth.internal_backend import NoSuchUser, NoSuchVhost
from amqpd.protocol.field_table import Int64

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, InternalBackend


log = logging.getLogger(__name__)

Recorder: TypeAlias = Callable[[str, Mapping[str, object], str], None]

EVENT_EXCHANGE: Final = "amq.rabbitmq.event"
INTERNAL: Final = "rmq-internal"
"""rabbit: the acting user of changes by the broker itself."""

CLI: Final = "rmq-cli"
"""rabbit: the acting user of amqpctl."""

KAFKA_PROTOCOL: Final = "Kafka"
"""The field `protocol` of Kafka's clients in events and lists."""

ACTOR: Final = ContextVar("actor", default=INTERNAL)
COUNT_MAX: Final = 10_000
SLICE_S: Final = 0.003


@contextmanager
def as_broker() -> Iterator[None]:
    """Set ACTOR to the broker itself: no user asked for the changes inside."""
    token = ACTOR.set(INTERNAL)
    try:
        yield
    finally:
        ACTOR.reset(token)


class EventOrigin(Protocol):
    """The origin of a command, for example a session.

    Attributes:
        peer: address and port.
        front_end: for example `amqp`.
    """

    name: str
    peer: tuple[str, int]
    front_end: str


ORIGIN: Final[ContextVar[EventOrigin | None]] = ContextVar("origin", default=None)
"""Set together with ACTOR, for the audit log."""


class Event(NamedTuple):
    """An event.

    Attributes:
        key: the routing key.
        at_ms: since 1970.
    """

    key: str
    headers: dict[str, object]
    at_ms: int


class EventListener(Protocol):
    """Receives every event, like the exchange."""

    def on_event(self, event: Event) -> None:
        """Handle an event. Must be cheap and raise nothing."""


class Events:
    """The events of a broker.

    Attributes:
        exchange_bound: the exchange has bindings, or there is a watcher.
        audit_hook: the audit log, called with key, headers and acting user.
        vhost_name: the vhost of the exchange; "" for none.
        alarmed: a resource alarm: only events of alarms are sent.
        lost_count: events dropped since the last log line.
    """

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self.exchange_bound = False
        self.audit_hook: Recorder | None = None
        self.vhost_name = ""
        self.publish: Callable[[Event], None] = _do_nothing
        self.watcher: EventListener | None = None
        self._bound = False
        self.alarmed = False
        self.node = ""
        self.started_at = 0
        self._call_soon = call_soon
        self._waiting: deque[Event] = deque()
        self._is_scheduled = False
        self.lost_count = 0

    @property
    def has_listeners(self) -> bool:
        """Return whether an event has any receiver, including the audit log."""
        return self.exchange_bound or self.audit_hook is not None

    def bind(self, there: bool) -> None:
        """Set whether the exchange has bindings."""
        self._bound = there
        self.exchange_bound = there or self.watcher is not None

    def watch(self, watcher: EventListener | None) -> None:
        """Send events to this watcher in addition, replacing the previous one; None for no watcher."""
        self.watcher = watcher
        self.exchange_bound = self._bound or watcher is not None

    def record(self, key: str, about: Mapping[str, object]) -> None:
        """Send an event that RabbitMQ does not have to the audit log only."""
        if self.audit_hook is not None:
            self.audit_hook(key, about, ACTOR.get())

    def emit(self, key: str, headers: Mapping[str, object], actor: str | None = None, *, recorded: bool = True) -> None:
        """Send an event to all receivers.

        Args:
            actor: the acting user, by default ACTOR; "" for an event without one.
            recorded: also for the audit log, which takes the events in its RULES.

        Cost: some us, and a publish later.
        """
        if recorded and self.audit_hook is not None:
            self.audit_hook(key, headers, ACTOR.get() if actor is None else actor)
        if not self.exchange_bound:
            return
        if len(self._waiting) >= COUNT_MAX or (self.alarmed and not key.startswith("alarm.")):
            self.lost_count += 1
            return
        at_ms = time.time_ns() // 1_000_000
        fields = dict(headers)
        if actor != "":
            fields["user_who_performed_action"] = ACTOR.get() if actor is None else actor
        fields["timestamp_in_ms"] = Int64(at_ms)
        self._waiting.append(Event(key, fields, at_ms))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._work)

    def pid(self, serial: int, channel: int = 0) -> str:
        """Return the `pid` that lists show for a connection or channel. `serial` is the session's."""
        return f"<{self.node}.{self.started_at}.{serial}.{channel}>"

    def _work(self) -> None:
        """Publish one slice of the waiting events."""
        self._is_scheduled = False
        waiting = self._waiting
        until = time.perf_counter() + SLICE_S
        while waiting:
            event = waiting.popleft()
            self.publish(event)
            if self.watcher is not None:
                self.watcher.on_event(event)
            if time.perf_counter() >= until:
                break
        if waiting:
            self._is_scheduled = True
            self._call_soon(self._work)
        elif self.lost_count:
            log.warning(
                "%d events are lost: too many, during an alarm, or the log of their queue cannot be opened",
                self.lost_count,
            )
            self.lost_count = 0


def _do_nothing(_event: Event) -> None:
    """Do nothing: there is no exchange."""


RowT = TypeVar("RowT")


def auth_events(auth: InternalBackend, change: AuthChange) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield key and headers of the events for a change of users or permissions, as in RabbitMQ 3.10.8.

    Args:
        auth: the state after the change.
    """
    what, name = change.kind, change.user
    if what == "user_added":
        yield "user.created", {"name": name}
        yield "user.tags.set", {"name": name, "tags": _tags(auth, name)}
    elif what == "password":
        yield "user.password.changed", {"name": name}
    elif what == "tags":
        yield "user.tags.set", {"name": name, "tags": _tags(auth, name)}
    elif what == "user_deleted":
        yield "user.deleted", {"name": name}
    elif what == "permissions":
        about: dict[str, object] = {"user": name, "vhost": change.vhost}
        rows = _rows_of(auth.permissions, name, change.vhost)
        for row in rows:
            yield "permission.created", {**about, "configure": row.configure, "write": row.write, "read": row.read}
        if not rows:
            yield "permission.deleted", about
    elif what == "topic_permissions":
        about = {"user": name, "vhost": change.vhost}
        topic_rows = _rows_of(auth.topic_permissions, name, change.vhost)
        for each in topic_rows:
            rights = {"exchange": each.exchange, "write": each.write, "read": each.read}
            yield "topic.permission.created", {**about, **rights}
        if not topic_rows:
            yield "topic.permission.deleted", about


def _rows_of(read: Callable[[str | None, str | None], list[RowT]], user: str, vhost: str | None) -> list[RowT]:
    """Return the user's rows in the vhost; none if user or vhost were deleted."""
    try:
        return read(user, vhost)
    except (NoSuchUser, NoSuchVhost):
        return []


def _tags(auth: InternalBackend, name: str) -> list[str]:
    return next((list(row.tags) for row in auth.users() if row.name == name), [])
