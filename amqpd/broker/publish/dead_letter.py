"""What a dead letter tells, and where it goes.

Its headers tell the story, newest first: `x-death`, an array of tables {count, reason, queue, time, exchange,
routing-keys, original-expiration}, one per (queue, reason), and x-first-death-reason, -queue, -exchange. Its expiration
goes: it must not expire again at once.

One that may be in its queues already, since a crash, or a log that failed, came before it was settled at its source,
says so: REDELIVERED is true. It is on more of them than are there twice (`QueueLog.seen_earlier`), and stays.

A message that comes back to a queue it died in is dropped, unless somebody rejected it on the way: a cycle that runs by
itself would run for ever.

Dead letters come in floods of the same kind, so a `Dresser` remembers, for a slice of them (`begin`): nothing is
declared or bound meanwhile, and it is the same second. What died in the same queue for the same reason and had the same
properties and route is made once. What had other properties, but neither copies nor an earlier death, gets the same
entries at the end of its headers, and goes the same way.

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx; texts and order of the table measured there.

Dead-lettering: what a queue could not or would not deliver is published once more, to where the queue says.

The message goes to `x-dead-letter-exchange` under `x-dead-letter-routing-key`, or under its own keys (CC included).
What its headers tell then, and which of its targets would make a cycle, is dead_letter.py's. An exchange that is
missing drops it. Order, slices, retries, and that a crash loses none, are the republisher's.

A crash, or the next owner of a vhost, may publish one again, and then it says so (deaths.REDELIVERED): what is about
to be published is marked in its queue's log as what is delivered is, so the next life knows of which there may be a
copy already. The mark is written with the turn, before what that turn appends elsewhere is safe.

A dead letter that a log can give back is not kept in memory when many wait: a range of offsets waits in its place, so
that a million messages that expire at once leave their queue at once, for some bytes. What only memory has is bounded:
while too much of it waits, queues drop nothing more for its age (`is_behind`).

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination, QueueEntry
from amqpd.broker.message import FRAME_PAYLOAD_BYTES, NO_MESSAGE, Message, MessageRoute, PropertiesView
from amqpd.broker.publish import router
from amqpd.broker.publish.idempotence import NUMBERS
from amqpd.broker.publish.republisher import KEEP, RepublishCount, Republisher, RepublishSource, RewrittenMessage
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import VHost
from amqpd.protocol.field_table import PRODUCER_ID, CodecError, Int64, Timestamp, decode_table, encode_entry
from amqpd.protocol.properties import (
    scan_properties,
    with_encoded_headers,
    with_headers,
    without_expiration,
    without_headers,
)
from amqpd.routing.base import HISTORY, RANDOMNESS, ROUTING_KEY
from amqpd.storage.queue_log import QueueLog

REDELIVERED: Final = "x-death-redelivered"
# As far as a death is counted, whatever number a client began with.
COUNT_MAX: Final = 1 << 62
# What one slice remembers of each sort.
REMEMBERED_MAX: Final = 1024


@final
class FirstDeath:
    """What all dead letters share that died for the first time, in one queue, for one reason, after one route.

    entries: of the headers, encoded.
    """

    def __init__(self, envelope: MessageRoute, entries: bytes, destinations: list[Destination]) -> None:
        self.envelope = envelope
        self.entries = entries
        self.destinations = destinations


@final
class DeathHeaderCache:
    """Makes dead letters of messages, and remembers for one slice what it has made. vhosts: all there are, by name."""

    def __init__(self, vhosts: Mapping[str, VHost]) -> None:
        self._vhosts = vhosts
        self._time_s = 0
        self._made: dict[tuple[Queue, str, MessageRoute, bytes, bool], RewrittenMessage | None] = {}
        self._first: dict[tuple[Queue, str, MessageRoute, bytes | None, bool], FirstDeath | None] = {}

    def begin(self, time_s: int) -> None:
        """Another slice. time_s: of the deaths, seconds since 1970."""
        self._time_s = time_s
        self._made.clear()
        self._first.clear()

    def dead_letter(
        self, queue: Queue, envelope: MessageRoute, properties: bytes, reason: str, again: bool = False
    ) -> RewrittenMessage | None:
        """The dead letter that becomes of a message of this route and these properties. None: its exchange is missing.
        STAYS: its vhost is about to go on elsewhere. again: it may have been published before.

        Cost: 0.1 us where the last ones were alike, some 1 us where only the properties differ, else 10 and more.
        """
        if PRODUCER_ID in properties:
            properties = without_headers(properties, NUMBERS)  # in another queue it might pass for a copy
        key = (queue, reason, envelope, properties, again)
        if key in self._made:
            return self._made[key]
        name = queue.rules.dead_letter_exchange
        vhost = self._vhosts.get(queue.vhost_name)
        if vhost is None:
            return KEEP
        exchange = vhost.exchanges.get(name) if name is not None else None
        dressed: RewrittenMessage | None = None
        if exchange is not None and router.depends_on(vhost, exchange) & (RANDOMNESS | HISTORY):
            # The next one like it may go another way.
            return dead_letter_with_history(vhost, queue, exchange, envelope, properties, reason, self._time_s, again)
        if exchange is not None:
            dressed = self._dress_first(vhost, queue, exchange, envelope, properties, reason, again)
            if dressed is None:
                dressed = dead_letter_with_history(
                    vhost, queue, exchange, envelope, properties, reason, self._time_s, again
                )
        if len(self._made) >= REMEMBERED_MAX:
            self._made.clear()
        self._made[key] = dressed
        return dressed

    def _dress_first(
        self,
        vhost: VHost,
        queue: Queue,
        exchange: Exchange,
        envelope: MessageRoute,
        properties: bytes,
        reason: str,
        again: bool,
    ) -> RewrittenMessage | None:
        """None: it has copies or an earlier death, more than its key matters on the way, or headers fill a frame."""
        if b"-death" in properties:
            return None
        info = scan_properties(properties, 0, len(properties))
        if info.has_cc_or_bcc:
            return None
        expiration = info.expiration
        key = (queue, reason, envelope, expiration, again)
        if key in self._first:
            first = self._first[key]
        else:
            first = None
            if router.depends_on(vhost, exchange) == ROUTING_KEY:
                first = first_death(vhost, queue, exchange, envelope, expiration, reason, self._time_s, again)
            if len(self._first) >= REMEMBERED_MAX:
                self._first.clear()
            self._first[key] = first
        if first is None:
            return None
        changed = properties if expiration is None else without_expiration(properties)
        changed = with_encoded_headers(changed, first.entries)
        if len(changed) > FRAME_PAYLOAD_BYTES - 12:
            return None
        return RewrittenMessage(first.envelope, changed, scan_properties(changed, 0, len(changed)), first.destinations)


def first_death(
    vhost: VHost,
    queue: Queue,
    exchange: Exchange,
    envelope: MessageRoute,
    expiration: bytes | None,
    reason: str,
    time_s: int,
    again: bool,
) -> FirstDeath:
    """exchange: the dead-letter exchange, where the routing key alone matters."""
    key = queue.rules.dead_letter_key
    out = MessageRoute(exchange.name, envelope.routing_key if key is None else key)
    death = new_death(reason, queue.name, envelope.exchange, [envelope.routing_key], time_s, expiration)
    headers = {**first_headers(reason, queue.name, envelope.exchange), "x-death": [death]}
    if again:
        headers[REDELIVERED] = True
    entries = b"".join([encode_entry(name, value) for name, value in headers.items()])
    destinations = router.route(vhost, exchange, [out.routing_key], NO_MESSAGE)
    return FirstDeath(out, entries, without_cycles(destinations, reason, [death]))


def dead_letter_with_history(
    vhost: VHost,
    queue: Queue,
    exchange: Exchange,
    envelope: MessageRoute,
    properties: bytes,
    reason: str,
    time_s: int,
    again: bool = False,
) -> RewrittenMessage:
    """The message as it goes out, and where to. exchange: the dead-letter exchange."""
    key = queue.rules.dead_letter_key
    changed = with_death(
        properties,
        reason,
        queue.name,
        envelope.exchange,
        envelope.routing_key,
        time_s,
        keep_keys=key is None,
        again=again,
    )
    info = scan_properties(changed, 0, len(changed))
    out = MessageRoute(exchange.name, envelope.routing_key if key is None else key)
    table = decode_table(changed, info.headers_start)[0] if info.has_headers else {}
    keys = [out.routing_key]
    if key is None:
        keys += [each for each in copies(table) if each not in keys]
    destinations = router.route(vhost, exchange, keys, PropertiesView(out, changed))
    return RewrittenMessage(out, changed, info, without_cycles(destinations, reason, table.get("x-death")))


def without_cycles(destinations: list[Destination], reason: str, deaths: object) -> list[Destination]:
    """deaths: with the last one, newest first; no array where the headers filled a frame before."""
    if reason == "rejected" or not isinstance(deaths, list):
        return destinations
    return [each for each in destinations if not (isinstance(each, Queue) and is_cycle(each.name, deaths))]


def new_death(
    reason: str, queue: str, exchange: str, keys: list[object], time_s: int, expiration: bytes | None
) -> dict[str, object]:
    death: dict[str, object] = {
        "count": Int64(1),
        "reason": reason,
        "queue": queue,
        "time": Timestamp(time_s),
        "exchange": exchange,
        "routing-keys": keys,
    }
    if expiration is not None:
        death["original-expiration"] = expiration
    return death


def first_headers(reason: str, queue: str, exchange: str) -> dict[str, object]:
    return {"x-first-death-reason": reason, "x-first-death-queue": queue, "x-first-death-exchange": exchange}


def with_death(
    properties: bytes,
    reason: str,
    queue: str,
    exchange: str,
    routing_key: str,
    time_s: int,
    *,
    keep_keys: bool,
    again: bool = False,
) -> bytes:
    """`properties` with this death told in the headers, and without expiration.

    keep_keys: the message keeps its own routing keys; otherwise its CC goes (rabbit: before 3.13). An x-death that is
    not an array is replaced. Headers that would not fit a frame any more stay as they are.
    """
    info = scan_properties(properties, 0, len(properties))
    table = decode_table(properties, info.headers_start)[0] if info.has_headers else {}
    keys: list[object] = [routing_key, *copies(table)]
    death = new_death(reason, queue, exchange, keys, time_s, info.expiration)
    changes: dict[str, object] = {}
    past = table.get("x-death")
    if "x-death" not in table:
        changes = first_headers(reason, queue, exchange)
    changes["x-death"] = merged(death, past) if isinstance(past, list) else [death]
    if again:
        changes[REDELIVERED] = True
    drop = () if keep_keys else ("CC",)
    bare = without_expiration(properties)
    try:
        changed = with_headers(bare, changes, drop)
    except CodecError:
        # A forged x-death that nests as deep as tables may: it starts anew.
        changes["x-death"] = [death]
        changed = with_headers(bare, changes, drop)
    return changed if len(changed) <= FRAME_PAYLOAD_BYTES - 12 else with_headers(bare, {}, drop)


def merged(death: dict[str, object], past: list[object]) -> list[object]:
    """The new death at the head; an earlier one of the same queue and reason counts on instead.

    rabbit: repeated deaths of one queue and reason, as versions before 3.6 wrote them, become one; it counts them where
    the first of them has no count of its own. Cost: once over `past`.
    """
    counts: dict[tuple[str, str], int] = {}
    for each in past:
        if isinstance(each, dict):
            known = identity(each)
            counts[known] = counts.get(known, 0) + 1
    this = identity(death)
    head = death
    others: list[object] = []
    for each in past:
        if not isinstance(each, dict):
            others.append(each)
            continue
        known = identity(each)
        repeated = counts.pop(known, 0)
        if repeated == 0:
            continue
        one = dict(each)
        given = one.get("count", repeated)
        if known == this:
            number: int = given if isinstance(given, int) else 0
            one["count"] = Int64(number + 1 if number < COUNT_MAX else COUNT_MAX)
            head = one
        else:
            if isinstance(given, int):
                one["count"] = Int64(given)
            others.append(one)
    return [head, *others]


def identity(death: Mapping[str, object]) -> tuple[str, str]:
    """Queue and reason; a client may have put anything there."""
    return str(death.get("queue")), str(death.get("reason"))


def is_cycle(queue: str, deaths: list[object]) -> bool:
    """Whether a message with these deaths, newest first, has been in `queue` before and nobody rejected it since."""
    for death in deaths:
        if not isinstance(death, dict) or death.get("reason") == "rejected":
            # rabbit: what is no death was put there by a client, so this is no cycle that runs by itself
            return False
        if death.get("queue") == queue:
            return True
    return False


def copies(table: Mapping[str, object]) -> list[str]:
    """The keys of the header CC."""
    value = table.get("CC")
    if not isinstance(value, list):
        return []
    keys: list[str] = []
    for key in value:
        if isinstance(key, bytes):
            keys.append(key.decode("utf-8", "surrogateescape"))
        elif isinstance(key, str):
            keys.append(key)
    return keys


# Dead letters that wait with their messages in memory, where a log has them too.
HELD_MAX: Final = 1000
# From how many on, or from how many bytes in memory, queues drop nothing more for its age.
BEHIND_COUNT: Final = 65536
BEHIND_BYTES: Final = 32 * 1024 * 1024
# Why messages end that no consumer was given.
NOT_DELIVERED: Final = ("expired", "maxlen")


@final
class DeadLetterSource(RepublishSource):
    """Messages of one queue that end for one reason. reason: as x-death says it: expired, maxlen, rejected, ..."""

    def __init__(self, dead_letters: DeadLetterPublisher, queue: Queue, reason: str) -> None:
        super().__init__("dead-letter")
        self.dead_letters = dead_letters
        self.queue = queue
        self.reason = reason

    def log(self) -> QueueLog | None:
        return self.queue.store

    def lasts(self) -> bool:
        return self.queue.log() is not None

    def gone(self) -> bool:
        return self.queue.deleted

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return self.queue.backing.envelope(exchange, routing_key)

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        return self.dead_letters.dress(self, envelope, properties)

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        # A transient queue may have been given a temporary log since, which begins behind these.
        if self.queue.backing.is_logged(first):
            super().on_safe(first, last, size)

    def on_unloaded(self, offset: i64) -> None:
        """Its vhost leaves: whoever has it next finds the message where it was."""

    def on_queued(self, count: i64) -> None:
        self.queue.dead_letters_logged_count += count

    def log_fields(self) -> dict[str, object]:
        return {"vhost": self.queue.vhost_name, "queue": self.queue.name}


@final
class DeadLetterPublisher:
    """One per broker. vhosts: all there are, by name."""

    def __init__(self, republisher: Republisher, vhosts: Mapping[str, VHost]) -> None:
        self._republisher = republisher
        self._dresser = DeathHeaderCache(vhosts)
        # The slice that the dresser's memory is of.
        self._slice: i64 = -1
        # By the queue's kind and the reason: how many were published.
        self.went: dict[tuple[str, str], RepublishCount] = {}
        # Of the last one: they come in floods of the same kind.
        self._dying: DeadLetterSource | None = None

    def add(self, queue: Queue, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        """Publishes it before long. Cost: O(1).

        entry: settled in the queue's log when its targets are safe; None: it never had a place there. message: None
        where only the log has it.
        """
        dying = self._dying_of(queue, reason)
        offset: i64 = -1 if entry is None else entry.offset
        if entry is not None and not entry.redelivered and reason in NOT_DELIVERED:
            store = queue.store
            if store is not None and queue.backing.is_logged(offset):
                queue.order.mark_delivered(store, offset)
        held = message is not None and (entry is None or len(self._republisher.line) < HELD_MAX)
        if not held and queue.backing.is_logged(offset):
            if entry is not None:
                entry.message = None
            self._republisher.add_range(dying, offset, offset)
        elif message is not None:
            self._republisher.add(dying, message, offset)

    def add_range(self, queue: Queue, first: i64, last: i64, reason: str) -> None:
        """Publishes all messages with these offsets that are not settled; the queue's log has them, and nobody else.
        Of all that was before them nothing is ready.
        """
        store = queue.store
        if store is not None:
            store.mark_delivered(last)
        self._republisher.add_range(self._dying_of(queue, reason), first, last)

    def _dying_of(self, queue: Queue, reason: str) -> DeadLetterSource:
        dying = self._dying
        if dying is None or dying.queue is not queue or dying.reason != reason:
            dying = DeadLetterSource(self, queue, reason)
            self._dying = dying
            went = self.went.get((queue.kind, reason))
            if went is None:
                went = dying.went
                self.went[(queue.kind, reason)] = went
            dying.went = went
        return dying

    def is_behind(self) -> bool:
        """Whether a queue that drops a backlog should let what is under way go first: it fills memory."""
        republisher = self._republisher
        return len(republisher.line) >= BEHIND_COUNT or republisher.held_bytes >= BEHIND_BYTES

    def dress(self, dying: DeadLetterSource, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        """As `Origin.dress`: the message with this death in its headers, and where it goes."""
        republisher = self._republisher
        if self._slice != republisher.slice_number:
            self._slice = republisher.slice_number
            self._dresser.begin(republisher.timers.wall_ms() // 1000)
        again = dying.again
        if not again:
            store = dying.queue.store
            again = (
                store is not None and dying.queue.backing.is_logged(dying.offset) and store.seen_earlier(dying.offset)
            )
        return self._dresser.dead_letter(dying.queue, envelope, properties, dying.reason, again)
