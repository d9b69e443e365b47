"""Events: what happens to things and people, told to whoever is bound to the exchange `amq.rabbitmq.event`.

Whoever makes or ends something asks `wanted` first, which is one test, and then says what happened by one call. What is
told waits here until the next turn of the loop and then goes to `publish` in slices: nobody is held up by it. It is
bounded: beyond COUNT_MAX an event is lost, and while an alarm lasts all are but those of alarms. The log says how many.

Keys and headers are those of RabbitMQ's plugin rabbitmq_event_exchange, measured on 3.10.8. Who did it, in
`user_who_performed_action`, is told by `ACTOR`, which front ends set for each command of theirs.

The audit log (audit/) hears the same through `recorder`, as long as there is one, and some things beside that the
exchange does not know (`record`).

Source: https://www.rabbitmq.com/docs/event-exchange, https://www.rabbitmq.com/docs/logging#internal-events.

Changes of users and their rights as events: keys and headers of RabbitMQ 3.10.8, measured.
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
"""rabbit: who does what nobody has asked for."""

CLI: Final = "rmq-cli"
"""rabbit: who does what the operator asks for on the command line."""

ACTOR: Final = ContextVar("actor", default=INTERNAL)
COUNT_MAX: Final = 10_000
SLICE_S: Final = 0.003


@contextmanager
def as_broker() -> Iterator[None]:
    """Nobody has asked for what happens in this, whoever has set ACTOR before."""
    token = ACTOR.set(INTERNAL)
    try:
        yield
    finally:
        ACTOR.reset(token)


class EventOrigin(Protocol):
    """From where something is done: a session is one. peer: address and port."""

    name: str
    peer: tuple[str, int]


ORIGIN: Final[ContextVar[EventOrigin | None]] = ContextVar("origin", default=None)
"""Set beside ACTOR; the audit log looks at it."""


class Event(NamedTuple):
    """key: for the exchange. at_ms: since 1970."""

    key: str
    headers: dict[str, object]
    at_ms: int


class EventListener(Protocol):
    """Hears every event beside the exchange."""

    def heard(self, event: Event) -> None:
        """Cost: next to nothing. Raises: nothing."""


class Events:
    """One per broker. call_soon: the loop's. wanted: whether anybody is bound to the exchange, or watches. lost_count:
    since the log was told.
    """

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self.exchange_bound = False
        # The audit log: key, headers, who did it.
        self.audit_hook: Recorder | None = None
        # The vhost whose exchange it is; "" for none.
        self.vhost_name = ""
        self.publish: Callable[[Event], None] = _nobody
        self.watcher: EventListener | None = None
        self._bound = False
        self.alarmed: Callable[[], bool] = _never
        self.node = ""
        self.started_at = 0
        self._call_soon = call_soon
        self._waiting: deque[Event] = deque()
        self._asked = False
        self.lost_count = 0

    @property
    def has_listeners(self) -> bool:
        """Whether anybody is told: for what is recorded, too."""
        return self.exchange_bound or self.audit_hook is not None

    def bind(self, there: bool) -> None:
        """Whether anything is bound to the exchange."""
        self._bound = there
        self.exchange_bound = there or self.watcher is not None

    def watch(self, watcher: EventListener | None) -> None:
        """From now on it hears what happens, in the place of whoever did; None: nobody does."""
        self.watcher = watcher
        self.exchange_bound = self._bound or watcher is not None

    def record(self, key: str, about: Mapping[str, object]) -> None:
        """It happened, and is for the audit log alone: RabbitMQ has no such event."""
        if self.audit_hook is not None:
            self.audit_hook(key, about, ACTOR.get())

    def emit(self, key: str, headers: Mapping[str, object], actor: str | None = None, *, recorded: bool = True) -> None:
        """It happened. actor: who did it, where that is not ACTOR; "": nobody is told who. recorded: whether it is for
        the audit log, too, which takes what its rules name.

        Cost: some us, and as much as a publish later.
        """
        if recorded and self.audit_hook is not None:
            self.audit_hook(key, headers, ACTOR.get() if actor is None else actor)
        if not self.exchange_bound:
            return
        if len(self._waiting) >= COUNT_MAX or (self.alarmed() and not key.startswith("alarm.")):
            self.lost_count += 1
            return
        at_ms = time.time_ns() // 1_000_000
        told = dict(headers)
        if actor != "":
            told["user_who_performed_action"] = ACTOR.get() if actor is None else actor
        told["timestamp_in_ms"] = Int64(at_ms)
        self._waiting.append(Event(key, told, at_ms))
        if not self._asked:
            self._asked = True
            self._call_soon(self._work)

    def pid(self, serial: int, channel: int = 0) -> str:
        """What lists of connections and channels show as `pid`. serial: of the session."""
        return f"<{self.node}.{self.started_at}.{serial}.{channel}>"

    def _work(self) -> None:
        """One slice."""
        self._asked = False
        waiting = self._waiting
        until = time.perf_counter() + SLICE_S
        while waiting:
            event = waiting.popleft()
            self.publish(event)
            if self.watcher is not None:
                self.watcher.heard(event)
            if time.perf_counter() >= until:
                break
        if waiting:
            self._asked = True
            self._call_soon(self._work)
        elif self.lost_count:
            log.warning(
                "%d events are lost: too many, during an alarm, or the log of their queue cannot be opened",
                self.lost_count,
            )
            self.lost_count = 0


def _nobody(_event: Event) -> None:
    """No exchange is there."""


def _never() -> bool:
    return False


RowT = TypeVar("RowT")


def auth_events(auth: InternalBackend, change: AuthChange) -> Iterator[tuple[str, dict[str, object]]]:
    """Key and headers of each event that the change is. auth: as it is after it."""
    what, name = change.what, change.user
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
        rows = _left(auth.permissions, name, change.vhost)
        for row in rows:
            yield "permission.created", {**about, "configure": row.configure, "write": row.write, "read": row.read}
        if not rows:
            yield "permission.deleted", about
    elif what == "topic_permissions":
        about = {"user": name, "vhost": change.vhost}
        topic_rows = _left(auth.topic_permissions, name, change.vhost)
        for each in topic_rows:
            rights = {"exchange": each.exchange, "write": each.write, "read": each.read}
            yield "topic.permission.created", {**about, **rights}
        if not topic_rows:
            yield "topic.permission.deleted", about


def _left(read: Callable[[str | None, str | None], list[RowT]], user: str, vhost: str | None) -> list[RowT]:
    """What the user may in the vhost; nothing where one of them has gone, and the rights with it."""
    try:
        return read(user, vhost)
    except (NoSuchUser, NoSuchVhost):
        return []


def _tags(auth: InternalBackend, name: str) -> list[str]:
    return next((list(row.tags) for row in auth.users() if row.name == name), [])
