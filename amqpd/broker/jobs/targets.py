"""Where the messages of a job go: to one queue, to an exchange, or back to where dead letters came from.

An `JobTarget` says it of each message (`find`), or why that one stays where it is. What it has found out for one route
and properties holds for the rest of a slice: nothing is declared, bound or deleted within one.

A message that is moved or copied to a queue keeps its exchange and routing key, so that its reader sees where it was
published; one that is sent to an exchange has that exchange's name, as if it had just been published there. Headers,
expiration and all other properties stay as they are: a time to live begins anew in the target.

**Redrive.** A dead letter goes back to the queue in which it died first (`x-first-death-queue`, else the oldest entry
of `x-death`), under the exchange and routing key that `x-death` remembers of it; where that queue is gone, it is
published to that exchange again under all its routing keys. Its story is over then: `x-death` and `x-first-death-*` go
(kept, they would count as a cycle, and a second expiry would drop it for good), and `x-redrive-count` says how often it
was sent back. The expiration that dead-lettering took from it is not put back: it would be gone again at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination
from amqpd.broker.message import MessageRoute, PropertiesView
from amqpd.broker.publish import router
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.vhost import VHost
from amqpd.protocol.field_table import SHORT_STRING_SIZE_BYTES_MAX, Int64, decode_table
from amqpd.protocol.properties import scan_properties, with_headers
from amqpd.routing.base import HISTORY, RANDOMNESS

REDRIVE_COUNT: Final = "x-redrive-count"
DEATH_HEADERS: Final = ("x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
REMEMBERED_MAX: Final = 1024

NO_DEATH: Final = "not dead-lettered"
NO_TARGET: Final = "no target"
NO_PERMISSION: Final = "no permission"


@final
class TargetRoute:
    """Where a message goes. properties: what it has then."""

    def __init__(self, envelope: MessageRoute, properties: bytes, destinations: list[Destination]) -> None:
        self.envelope = envelope
        self.properties = properties
        self.destinations = destinations


@mypyc_attr(allow_interpreted_subclasses=True)
class JobTarget:
    """why: of the last message that stays, the reason, a few words that are the same for all alike. queue: the one
    target there is, if it is one, and then it is that of all.
    """

    def __init__(self, queue: Queue | None) -> None:
        self.queue = queue
        self.why = NO_TARGET

    def find(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        """Where a message of this route and these properties goes, good until it is asked again; None: it stays, for
        `why`.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Another slice: something may have been declared, bound or deleted."""

    def trouble(self) -> str:
        """Why no message can go anywhere any more; "": it is not so."""
        return ""


@final
class QueueTarget(JobTarget):
    """All go to one queue."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._target = queue
        self._found = TargetRoute(MessageRoute("", ""), b"", [queue])

    def find(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        if self._target.deleted:
            return None
        found = self._found
        found.envelope = envelope
        found.properties = properties
        return found

    def trouble(self) -> str:
        return f"queue '{self._target.name}' was deleted" if self._target.deleted else ""


@final
class ExchangeTarget(JobTarget):
    """All are published to an exchange. source: the queue that they are in; what would come back to it stays there.
    key: under this routing key; None: under their own.
    """

    def __init__(self, vhost: VHost, source: Queue, exchange: str, key: str | None) -> None:
        super().__init__(None)
        self._source = source
        self._vhost = vhost
        self._exchange = exchange
        self._key = key
        self._made: dict[tuple[MessageRoute, bytes], TargetRoute | None] = {}

    def forget(self) -> None:
        self._made.clear()

    def find(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        known = (envelope, properties)
        if known in self._made:
            return self._made[known]
        exchange = self._vhost.exchanges.get(self._exchange)
        found: TargetRoute | None = None
        if exchange is not None:
            key = envelope.routing_key if self._key is None else self._key
            to = MessageRoute(self._exchange, key)
            destinations = router.route(self._vhost, exchange, [key], PropertiesView(to, properties))
            if destinations and destinations[0].is_queue and self._source not in destinations:
                found = TargetRoute(to, properties, destinations)
            if router.depends_on(self._vhost, exchange) & (RANDOMNESS | HISTORY):
                return found  # the next one like it may go another way
        if len(self._made) >= REMEMBERED_MAX:
            self._made.clear()
        self._made[known] = found
        return found

    def trouble(self) -> str:
        return "" if self._exchange in self._vhost.exchanges else f"exchange '{self._exchange}' was deleted"


@final
class FirstDeathTarget(JobTarget):
    """Each goes back to where it died first. source: the queue that they are in. may_write: whether the user may write
    to the `queue` or `exchange` of this name.
    """

    def __init__(self, vhost: VHost, source: Queue, may_write: Callable[[str, str], bool]) -> None:
        super().__init__(None)
        self._vhost = vhost
        self._source = source
        self._may_write = may_write
        # Of each properties: where to, or why not.
        self._made: dict[bytes, TargetRoute | None] = {}
        self._whys: dict[bytes, str] = {}
        # The next one like the last may go another way.
        self._varies = False

    def forget(self) -> None:
        self._made.clear()
        self._whys.clear()

    def find(self, envelope: MessageRoute, properties: bytes) -> TargetRoute | None:
        if properties in self._made:
            found = self._made[properties]
            if found is None:
                self.why = self._whys[properties]
            return found
        self._varies = False
        found = self._find(properties)
        if self._varies:
            return found
        if len(self._made) >= REMEMBERED_MAX:
            self.forget()
        self._made[properties] = found
        if found is None:
            self._whys[properties] = self.why
        return found

    def _find(self, properties: bytes) -> TargetRoute | None:
        self.why = NO_DEATH
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
        self.why = NO_TARGET
        if queue is not None:
            if queue is self._source or queue.exclusive_owner is not None:
                return None
            if not self._may_write("queue", name):
                self.why = NO_PERMISSION
                return None
            destinations = [queue]
        else:
            exchange = self._vhost.exchanges.get(exchange_name)
            if exchange is None or exchange.matcher is None:
                return None  # the default exchange goes by the name of the queue that is gone
            if not self._may_write("exchange", exchange_name):
                self.why = NO_PERMISSION
                return None
            self._varies = router.depends_on(self._vhost, exchange) & (RANDOMNESS | HISTORY) != 0
            destinations = router.route(self._vhost, exchange, keys, PropertiesView(to, changed))
            if not destinations or not destinations[0].is_queue or self._source in destinations:
                return None
        return TargetRoute(to, changed, destinations)


def first_death(table: dict[str, object]) -> tuple[str, str, list[str]] | None:
    """Queue, exchange and routing keys of a dead letter's first death. None: its headers tell of none, or not well
    enough (a client may have put anything there).
    """
    deaths = table.get("x-death")
    if not isinstance(deaths, list):
        return None
    told = [each for each in deaths if isinstance(each, dict)]
    if not told:
        return None
    first: dict[str, object] = told[-1]  # the newest is in front
    queue = _text(table.get("x-first-death-queue"))
    reason = _text(table.get("x-first-death-reason"))
    for each in told:
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
    for text in [name, exchange, *keys]:
        if len(text.encode("utf-8", "surrogateescape")) > SHORT_STRING_SIZE_BYTES_MAX:
            return None
    return name, exchange, keys


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def room(queue: Queue, count: i64) -> i64:
    """How many of `count` messages a queue may take before it is full by its lengths, as far as that is known before
    they come: by number.
    """
    rules = queue.rules
    if rules.stream or rules.length_max < 0:
        return count
    left: i64 = rules.length_max - queue.ready_count - queue.delayed_count
    if left < 0:
        left = 0
    return left if left < count else count


def is_full(queue: Queue, size: i64) -> bool:
    """Whether one more message of this size would be over a length of the queue, whatever it does then."""
    rules = queue.rules
    count = queue.ready_count + queue.delayed_count + 1
    return not rules.stream and rules.is_over(count, queue.ready_bytes + queue.delayed_bytes + size)
