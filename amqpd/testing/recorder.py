"""Recorder of a vhost: the messages that were published, delivered and dead-lettered there, and assertions on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict, cast

from amqpd.testing.control import now

if TYPE_CHECKING:
    from typing import Unpack

    from amqpd.protocol.properties import Properties
    from amqpd.testing.control import Control

BODY_SHOWN: Final = 60
TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.005
SHOWN_MAX: Final = 20
"""Messages that an error text shows."""


class RecordedMessage(NamedTuple):
    """One event of a message.

    Attributes:
        event: `published`, `delivered` or `dead-lettered`.
        exchange, routing_key: of the publish; of a dead letter: those with which it was published again.
        encoded_properties: as AMQP has them; see `properties`.
        queue: delivered: from this queue; dead-lettered: it died in this queue.
        queues: published, dead-lettered: the queues that the message was routed to.
        is_routed: False for an unroutable message. A delayed message is routed and has no queue yet.
        reason: dead-lettered: expired, maxlen, rejected or delivery_limit.
        redelivered: delivered: the message was delivered before.
        user: published, delivered: the client's user.
    """

    event: str
    exchange: str
    routing_key: str
    body: bytes
    encoded_properties: bytes
    queue: str = ""
    queues: tuple[str, ...] = ()
    is_routed: bool = True
    reason: str = ""
    redelivered: bool = False
    user: str = ""

    @property
    def properties(self) -> Properties:
        """Return the decoded properties: `content_type`, `headers`, `expiration` and so on, None if not set."""
        from amqpd.protocol.properties import decode_properties

        return decode_properties(self.encoded_properties)

    @property
    def headers(self) -> Mapping[str, object]:
        """Return the headers; empty if there are none."""
        return self.properties.headers or {}

    def describe(self) -> str:
        """Return one line for an error text."""
        body = repr(self.body[:BODY_SHOWN]) + ("..." if len(self.body) > BODY_SHOWN else "")
        text = f"exchange '{self.exchange}', routing key '{self.routing_key}', {len(self.body)} bytes {body}"
        if self.event == "delivered":
            return f"{text}, from queue '{self.queue}'" + (", redelivered" if self.redelivered else "")
        target = f"to {', '.join(self.queues)}" if self.queues else "to no queue yet"
        if not self.is_routed:
            target = "unroutable"
        if self.event == "dead-lettered":
            return f"{text}, from queue '{self.queue}' ({self.reason}), {target}"
        return f"{text}, {target}"


def message_of(fields: list[object]) -> RecordedMessage:
    """Return the message of its fields in JSON, where tuples are lists."""
    message = RecordedMessage._make(cast("list[str]", fields))
    return message._replace(queues=tuple(message.queues))


class MessageFilter(TypedDict, total=False):
    """Conditions on a message; all that are given must hold.

    Attributes:
        exchange, routing_key, body: equal.
        headers: each of these headers has this value; there may be more.
        queue: delivered, dead-lettered: from this queue; published: one of the queues it was routed to.
        reason: dead-lettered: expired, maxlen, rejected or delivery_limit.
        where: a function returns true for the message.
    """

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, object]
    queue: str
    reason: str
    where: Callable[[RecordedMessage], object]


class _MessageList(NamedTuple):
    """One list of messages: its event, its name in error texts, and whether it has only unroutable messages."""

    event: str
    name: str
    is_unroutable: bool = False


PUBLISHED: Final = _MessageList("published", "published")
UNROUTABLE: Final = _MessageList("published", "unroutable", True)
DELIVERED: Final = _MessageList("delivered", "delivered")
DEAD_LETTERED: Final = _MessageList("dead-lettered", "dead-lettered")


class Recorder:
    """The messages of one vhost since the recorder was made. `BrokerFixture.record` makes it. Not thread-safe.

    The broker records AMQP and the admin API's publishes and gets, not Kafka's protocol. A publish that the broker
    refuses with an error (a missing exchange) is not recorded; one in a transaction is before its commit. Messages
    that were read here survive the broker's end; later ones need `BrokerFixture.record` again.

    While nothing reads them, the broker keeps 10,000 messages and 64 MiB of bodies and properties. If there
    are more, the next reading raises OverflowError. Recorders of one vhost share its messages: a message goes to the
    one that reads first.
    """

    def __init__(self, vhost: str, control: Callable[[], Control]) -> None:
        self.vhost = vhost
        self._control = control
        self._messages: list[RecordedMessage] = []
        control().call("record", vhost=vhost)

    # -- lists

    @property
    def messages(self) -> list[RecordedMessage]:
        """Return all messages in the order of their events. Raises: BrokerFailed, OverflowError."""
        taken = self._control().call("take_recorded", vhost=self.vhost)
        self._messages += [message_of(fields) for fields in taken["messages"]]
        if taken["lost_count"]:
            raise OverflowError(
                f"{taken['lost_count']} messages of vhost '{self.vhost}' were not recorded: they were too many between "
                "two readings"
            )
        return list(self._messages)

    def published(self, **conditions: Unpack[MessageFilter]) -> list[RecordedMessage]:
        """Return the messages that clients published, also unroutable ones. Returns at once."""
        return self._select(PUBLISHED, conditions)

    def unroutable(self, **conditions: Unpack[MessageFilter]) -> list[RecordedMessage]:
        """Return the published messages that no queue, exchange of delayed messages or reply consumer got."""
        return self._select(UNROUTABLE, conditions)

    def delivered(self, **conditions: Unpack[MessageFilter]) -> list[RecordedMessage]:
        """Return the deliveries to consumers and by basic.get, repeated ones too."""
        return self._select(DELIVERED, conditions)

    def dead_lettered(self, **conditions: Unpack[MessageFilter]) -> list[RecordedMessage]:
        """Return the dead letters that were published to a dead-letter exchange."""
        return self._select(DEAD_LETTERED, conditions)

    def clear(self) -> None:
        """Forget all messages until now."""
        self._messages.clear()
        self._control().call("take_recorded", vhost=self.vhost)

    # -- assertions

    def assert_published(
        self, count: int | None = None, *, timeout_s: float = TIMEOUT_S, **conditions: Unpack[MessageFilter]
    ) -> list[RecordedMessage]:
        """Wait until messages were published, and return them.

        Args:
            count: this number of messages, and no more until now. None: at least one. 0 does not wait.
            timeout_s: time limit of the wait.

        Raises: AssertionError, with the messages that there are.
        """
        __tracebackhide__ = True
        return self._assert(PUBLISHED, count, timeout_s, conditions)

    def assert_unroutable(
        self, count: int | None = None, *, timeout_s: float = TIMEOUT_S, **conditions: Unpack[MessageFilter]
    ) -> list[RecordedMessage]:
        """Wait until published messages were unroutable, and return them. As `assert_published`."""
        __tracebackhide__ = True
        return self._assert(UNROUTABLE, count, timeout_s, conditions)

    def assert_delivered(
        self, count: int | None = None, *, timeout_s: float = TIMEOUT_S, **conditions: Unpack[MessageFilter]
    ) -> list[RecordedMessage]:
        """Wait until messages were delivered, and return them. As `assert_published`."""
        __tracebackhide__ = True
        return self._assert(DELIVERED, count, timeout_s, conditions)

    def assert_dead_lettered(
        self, count: int | None = None, *, timeout_s: float = TIMEOUT_S, **conditions: Unpack[MessageFilter]
    ) -> list[RecordedMessage]:
        """Wait until messages were dead-lettered, and return them. As `assert_published`."""
        __tracebackhide__ = True
        return self._assert(DEAD_LETTERED, count, timeout_s, conditions)

    def _select(self, kind: _MessageList, conditions: MessageFilter) -> list[RecordedMessage]:
        _check(conditions)
        return [message for message in _of_kind(self.messages, kind) if _matches(message, conditions)]

    def _assert(
        self, kind: _MessageList, count: int | None, timeout_s: float, conditions: MessageFilter
    ) -> list[RecordedMessage]:
        __tracebackhide__ = True  # pytest shows the test
        deadline = now() + timeout_s
        while True:
            found = self._select(kind, conditions)
            if len(found) >= (1 if count is None else count):
                break
            if now() >= deadline:
                break
            time.sleep(POLL_S)
        if (count is None and not found) or (count is not None and len(found) != count):
            raise AssertionError(self._describe(kind, count, timeout_s, conditions, found))
        return found

    def _describe(
        self,
        kind: _MessageList,
        count: int | None,
        timeout_s: float,
        conditions: MessageFilter,
        found: list[RecordedMessage],
    ) -> str:
        wanted = "at least one message" if count is None else f"{count} message{'' if count == 1 else 's'}"
        wait = f" within {timeout_s:g} s" if len(found) < (count or 1) and count != 0 else ""
        text = f"{wanted} {kind.name}{_shown(conditions)} expected in vhost '{self.vhost}'{wait}, found {len(found)}"
        others = [message for message in _of_kind(self._messages, kind) if message not in found]
        parts = [text]
        for title, messages in (("found", found), (f"others that were {kind.name}", others)):
            if messages:
                parts.append(f"{title}:")
                parts += [f"  {message.describe()}" for message in messages[:SHOWN_MAX]]
                if len(messages) > SHOWN_MAX:
                    parts.append(f"  and {len(messages) - SHOWN_MAX} more")
        if not found and not others:
            parts.append(f"no message was {kind.name}")
        return "\n".join(parts)


def _of_kind(messages: list[RecordedMessage], kind: _MessageList) -> list[RecordedMessage]:
    return [each for each in messages if each.event == kind.event and not (kind.is_unroutable and each.is_routed)]


def _check(conditions: MessageFilter) -> None:
    """Raises: TypeError for conditions that no message could fulfil."""
    known = MessageFilter.__annotations__.keys()
    if unknown := sorted(conditions.keys() - known):
        raise TypeError(f"unknown conditions: {', '.join(unknown)}; there are {', '.join(known)}")
    if not isinstance(body := conditions.get("body", b""), bytes):
        raise TypeError(f"body must be bytes, not {type(body).__name__}: {body!r}")


def _matches(message: RecordedMessage, conditions: MessageFilter) -> bool:
    for name in ("exchange", "routing_key", "body", "reason"):
        if name in conditions and getattr(message, name) != conditions[name]:
            return False
    if "queue" in conditions:
        queues = message.queues if message.event == PUBLISHED.event else (message.queue,)
        if conditions["queue"] not in queues:
            return False
    if "headers" in conditions:
        headers = message.headers
        if any(key not in headers or headers[key] != value for key, value in conditions["headers"].items()):
            return False
    return "where" not in conditions or bool(conditions["where"](message))


def _shown(conditions: MessageFilter) -> str:
    parts = [f"{name}={value!r}" for name, value in conditions.items()]
    return f" with {', '.join(parts)}" if parts else ""
