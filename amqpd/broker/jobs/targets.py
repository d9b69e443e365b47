"""Targets of jobs: a queue, an exchange, or the queue in which a dead letter died first.

`JobTarget.route_of` returns the destination of a message, or the reason why it stays in the source. Results for a route
and properties are cached for one slice, in which no declaration, binding or deletion can happen.

A message moved or copied to a queue keeps its exchange and routing key. A message sent to an exchange gets the name
of this exchange, as if it were published there. Headers, expiration and other properties do not change; a TTL
starts again in the target.

**Redrive.** A dead letter returns to the queue in which it died first: `x-first-death-queue`, or the oldest entry
of `x-death`. It gets the exchange and routing key that `x-death` has for this death. If the queue does not exist,
the message is published to that exchange with all its routing keys. `x-death` and `x-first-death-*` are removed,
because a second expiry would take them for a cycle and drop the message. `x-redrive-count` counts redrives. The
expiration removed by dead-lettering is not restored: the message would expire at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination
from amqpd.broker.message import MessageRoute, PropertiesView
from amqpd.broker.publish import router
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import VHost
from amqpd.protocol.field_table import Int64, decode_table
from amqpd.protocol.properties import scan_properties, with_headers
from amqpd.routing.base import HISTORY, RANDOMNESS
from amqpd.storage.log.foreign_record import SHORT_BYTES_MAX, is_short_text

REDRIVE_COUNT: Final = "x-redrive-count"
DEATH_HEADERS: Final = ("x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
REMEMBERED_MAX: Final = 1024

MayPublish: TypeAlias = Callable[[Exchange, list[str]], bool]

NO_DEATH: Final = "not dead-lettered"
NO_TARGET: Final = "no target"
NO_PERMISSION: Final = "no permission"


@final
class TargetRoute:
    """The destinations of a message and the properties it gets."""

    def __init__(self, envelope: MessageRoute, properties: bytes, destinations: list[Destination]) -> None:
        self.envelope = envelope
        self.properties = properties
        self.destinations = destinations


@mypyc_attr(allow_interpreted_subclasses=True)
class JobTarget:
    """The target of a job.

    Attributes:
        stay_reason: a fixed short text, the reason why the last message stays.
        queue: the only target, if there is only one.
    """

    def __init__(self, queue: Queue | None) -> None:
        self.queue = queue
        self.stay_reason = NO_TARGET

    def route_of(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        """Return the route for a message, valid until the next call.

        None if the message stays; `stay_reason` has the reason.
        """
        raise NotImplementedError

    def clear_cache(self) -> None:
        """Clear the cache at the beginning of a slice."""

    def permanent_reason(self) -> str:
        """Return the permanent reason why no message can be sent, "" for none."""
        return ""


@final
class QueueTarget(JobTarget):
    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._target = queue
        self._found = TargetRoute(MessageRoute("", ""), b"", [queue])

    def route_of(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        if self._target.deleted:
            return None
        found = self._found
        found.envelope = envelope
        found.properties = properties
        return found

    def permanent_reason(self) -> str:
        return f"queue '{self._target.name}' was deleted" if self._target.deleted else ""


@final
class ExchangeTarget(JobTarget):
    """An exchange for all messages.

    Args:
        source: a message that would return to this queue stays there.
        key: the routing key; None for the messages' own.
        may_publish: whether the user may publish to the exchange with these routing keys.
    """

    def __init__(self, vhost: VHost, source: Queue, exchange: str, key: str | None, may_publish: MayPublish) -> None:
        super().__init__(None)
        self._may_publish = may_publish
        self._source = source
        self._vhost = vhost
        self._exchange = exchange
        self._key = key
        self._cache: dict[tuple[MessageRoute, bytes], TargetRoute | None] = {}

    def clear_cache(self) -> None:
        self._cache.clear()

    def route_of(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        exchange = self._vhost.exchanges.get(self._exchange)
        key = envelope.routing_key if self._key is None else self._key
        if exchange is not None and not self._may_publish(exchange, [key]):
            self.stay_reason = NO_PERMISSION
            return None
        self.stay_reason = NO_TARGET
        known = (envelope, properties)
        if known in self._cache:
            return self._cache[known]
        found: TargetRoute | None = None
        if exchange is not None:
            to = MessageRoute(self._exchange, key)
            destinations = router.route(self._vhost, exchange, [key], PropertiesView(to, properties))
            if destinations and destinations[0].is_queue and self._source not in destinations:
                found = TargetRoute(to, properties, destinations)
            if router.depends_on(self._vhost, exchange) & (RANDOMNESS | HISTORY):
                return found  # an equal message may get another route
        if len(self._cache) >= REMEMBERED_MAX:
            self._cache.clear()
        self._cache[known] = found
        return found

    def permanent_reason(self) -> str:
        return "" if self._exchange in self._vhost.exchanges else f"exchange '{self._exchange}' was deleted"


@final
class FirstDeathTarget(JobTarget):
    """The queue of the first death, for each dead letter.

    Args:
        source: the queue of the dead letters.
        may_write: whether the user may write to the `queue` or `exchange` of a name.
        may_publish: as of `ExchangeTarget`.
    """

    def __init__(
        self, vhost: VHost, source: Queue, may_write: Callable[[str, str], bool], may_publish: MayPublish
    ) -> None:
        super().__init__(None)
        self._may_publish = may_publish
        self._vhost = vhost
        self._source = source
        self._may_write = may_write
        # By properties: the route, or the reason.
        self._cache: dict[bytes, TargetRoute | None] = {}
        self._reasons: dict[bytes, str] = {}
        # True if an equal message may get another route.
        self._varies = False

    def clear_cache(self) -> None:
        self._cache.clear()
        self._reasons.clear()

    def route_of(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        if properties in self._cache:
            found = self._cache[properties]
            if found is None:
                self.stay_reason = self._reasons[properties]
            return found
        self._varies = False
        found = self._find(properties)
        if self._varies:
            return found
        if len(self._cache) >= REMEMBERED_MAX:
            self.clear_cache()
        self._cache[properties] = found
        if found is None:
            self._reasons[properties] = self.stay_reason
        return found

    def _find(self, properties: bytes) -> TargetRoute | None:
        self.stay_reason = NO_DEATH
        if b"x-death" not in properties:
            return None
        info = scan_properties(properties, 0, len(properties))
        table = decode_table(properties, info.headers_start)[0] if info.has_headers else {}
        death = first_death(table)
        if death is None:
            return None
        name, exchange_name, keys = death
        queue = self._vhost.queues.get(name)
        destinations: list[Destination] = []
        before = table.get(REDRIVE_COUNT)
        count: int = before if isinstance(before, int) and 0 <= before < 1 << 62 else 0
        to = MessageRoute(exchange_name, keys[0])
        changed = with_headers(properties, {REDRIVE_COUNT: Int64(count + 1)}, DEATH_HEADERS)
        self.stay_reason = NO_TARGET
        if queue is not None:
            if queue is self._source or queue.exclusive_owner is not None:
                return None
            if not self._may_write("queue", name):
                self.stay_reason = NO_PERMISSION
                return None
            destinations = [queue]
        else:
            exchange = self._vhost.exchanges.get(exchange_name)
            if exchange is None or exchange.matcher is None:
                return None  # the default exchange would need the missing queue
            is_permitted = not exchange.internal and self._may_write("exchange", exchange_name)
            if not is_permitted or not self._may_publish(exchange, keys):
                self.stay_reason = NO_PERMISSION
                return None
            self._varies = router.depends_on(self._vhost, exchange) & (RANDOMNESS | HISTORY) != 0
            destinations = router.route(self._vhost, exchange, keys, PropertiesView(to, changed))
            if not destinations or not destinations[0].is_queue or self._source in destinations:
                return None
        return TargetRoute(to, changed, destinations)


def first_death(table: dict[str, object]) -> tuple[str, str, list[str]] | None:
    """Return queue, exchange and routing keys of a dead letter's first death.

    Returns: None if the headers do not have them; a client may have written any value.
    """
    deaths = table.get("x-death")
    if not isinstance(deaths, list):
        return None
    tables = [each for each in deaths if isinstance(each, dict)]
    if not tables:
        return None
    first: dict[str, object] = tables[-1]  # the newest is first
    queue = _text(table.get("x-first-death-queue"))
    reason = _text(table.get("x-first-death-reason"))
    for each in tables:
        if queue and _text(each.get("queue")) == queue and _text(each.get("reason")) == reason:
            first = each
    name = _text(first.get("queue"))
    exchange = _text(first.get("exchange"))
    keys: list[str] = []
    given = first.get("routing-keys")
    if isinstance(given, list):
        keys = [_text(each) for each in given if isinstance(each, str | bytes)]
    if not name or not keys:
        return None
    if not is_short_text(exchange.encode("utf-8", "surrogateescape")):
        return None
    for text in [name, *keys]:
        if len(text.encode("utf-8", "surrogateescape")) > SHORT_BYTES_MAX:
            return None
    return name, exchange, keys


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def free_count(queue: Queue, count: i64) -> i64:
    """Return how many of `count` messages the queue can take before its length limit; bytes are not known yet."""
    rules = queue.rules
    if rules.stream or rules.length_max < 0:
        return count
    left: i64 = rules.length_max - queue.ready_count - queue.delayed_count
    if left < 0:
        left = 0
    return left if left < count else count
