"""Dead letters: messages that expire, are dropped or are rejected are published to `x-dead-letter-exchange`.

The routing key is `x-dead-letter-routing-key`, or the keys that the message had (CC included). If the exchange does not
exist, the message is dropped. The republisher (republisher.py) publishes in slices, retries, and settles a message at
its source when all targets have it safely.

Headers of a dead letter:

    x-death               an array of tables {count, reason, queue, time, exchange, routing-keys, original-expiration},
                          one per queue and reason, the newest first
    x-first-death-reason, x-first-death-queue, x-first-death-exchange
    x-death-redelivered   true if the dead letter may be a repetition

The expiration is removed, so that the dead letter does not expire at once.

**Cycles.** A message that returns to a queue where it died is dropped, unless a consumer rejected it in between.

**Repetitions.** After a crash, or a failed write of a target, a message may be published twice. Before it is published,
it is marked as delivered in the log of its queue. The mark is written before the dead letter is safe. So the next start
knows which dead letters may exist already (`QueueLog.maybe_delivered_before`) and sets x-death-redelivered. The header
is also on some that exist once, and it is never removed.

**Memory.** A dead letter that the log of its queue has is not kept in memory while many wait: a range of offsets waits
instead. A million messages that expire together leave their queue at once. Dead letters that only memory has are
bounded: while there are too many, queues drop no expired messages (`is_behind`).

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx; texts and the order of the tables were measured there.
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
from amqpd.broker.queue.services import DeadLetterSink
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import VHost
from amqpd.protocol.field_table import PRODUCER_ID, CodecError, Int64, Timestamp, decode_table, encode_table
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
# Upper limit of x-death's count. A client can set any count.
COUNT_MAX: Final = 1 << 62
# Entries of each of the two caches of a slice.
CACHE_COUNT_MAX: Final = 1024
# Dead letters that wait in memory although a log has them.
HELD_MAX: Final = 1000
# From this number of waiting dead letters, or bytes in memory, on, queues drop no expired messages.
BEHIND_COUNT: Final = 65536
BEHIND_BYTES: Final = 32 * 1024 * 1024
# Reasons of messages that no consumer got.
NOT_DELIVERED: Final = ("expired", "maxlen")


@final
class FirstDeath:
    """Common to the dead letters that died for the first time, in one queue, for one reason, with one route.

    entries: The encoded header entries to append.
    """

    def __init__(self, envelope: MessageRoute, entries: bytes, destinations: list[Destination]) -> None:
        self.envelope = envelope
        self.entries = entries
        self.destinations = destinations


@final
class DeadLetterSource(RepublishSource):
    """The dead letters of one queue for one reason. reason: the one in x-death: expired, maxlen, rejected, ..."""

    def __init__(self, publisher: DeadLetterPublisher, queue: Queue, reason: str, published: RepublishCount) -> None:
        super().__init__("dead-letter", published)
        self.publisher = publisher
        self.queue = queue
        self.reason = reason

    def log(self) -> QueueLog | None:
        return self.queue.backing.store

    def is_durable(self) -> bool:
        return self.queue.log() is not None

    def is_deleted(self) -> bool:
        return self.queue.deleted

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return self.queue.backing.envelope(exchange, routing_key)

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        return self.publisher.rewrite(self, envelope, properties)

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        # A transient queue may have got a temporary log since then, which begins behind these offsets.
        if self.queue.backing.is_logged(first):
            super().on_safe(first, last, size)

    def on_unloaded(self, offset: i64) -> None:
        """The vhost moves to another node, which finds the message in the log."""

    def on_published(self, message: Message, destinations: list[Destination]) -> None:
        vhost = self.publisher.vhosts.get(self.queue.vhost_name)
        if vhost is not None and vhost.tap is not None:
            vhost.tap.dead_lettered(message, self.queue.name, self.reason, destinations)

    def on_queued(self, count: i64) -> None:
        self.queue.dead_letters_logged_count += count

    def log_fields(self) -> dict[str, object]:
        return {"vhost": self.queue.vhost_name, "queue": self.queue.name}


@final
class DeadLetterPublisher(DeadLetterSink):
    """Makes dead letters and gives them to the republisher. One per broker.

    Dead letters come in floods of the same kind, so it caches two things during a slice of the republisher. In a slice
    nothing is declared or bound, and the time in seconds is the same.

        _made    the dead letter of a queue, reason, route and properties
        _first   the header entries and destinations of first deaths, for any properties (`FirstDeath`)

    Attributes:
        vhosts: All vhosts by name.
        published: (queue type, reason) -> number of published dead letters.
    """

    def __init__(self, republisher: Republisher, vhosts: Mapping[str, VHost]) -> None:
        self.published: dict[tuple[str, str], RepublishCount] = {}
        self._republisher = republisher
        self.vhosts = vhosts
        self._last_source: DeadLetterSource | None = None
        self._slice: i64 = -1
        self._time_s = 0
        self._made: dict[tuple[Queue, str, MessageRoute, bytes, bool], RewrittenMessage | None] = {}
        self._first: dict[tuple[Queue, str, MessageRoute, bytes | None, bool], FirstDeath | None] = {}

    def add(self, queue: Queue, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        source = self._source_of(queue, reason)
        offset: i64 = -1 if entry is None else entry.offset
        if entry is not None and not entry.redelivered and reason in NOT_DELIVERED:
            store = queue.store
            if store is not None and queue.backing.is_logged(offset):
                queue.order.mark_delivered(store, offset)
        held = message is not None and (entry is None or len(self._republisher.line) < HELD_MAX)
        if not held and queue.backing.is_logged(offset):
            if entry is not None:
                entry.message = None
            self._republisher.add_range(source, offset, offset)
        elif message is not None:
            self._republisher.add(source, message, offset)

    def add_range(self, queue: Queue, first: i64, last: i64, reason: str) -> None:
        store = queue.store
        if store is not None:
            store.mark_delivered(last)
        self._republisher.add_range(self._source_of(queue, reason), first, last)

    def is_behind(self) -> bool:
        republisher = self._republisher
        return len(republisher.line) >= BEHIND_COUNT or republisher.held_bytes >= BEHIND_BYTES

    def _source_of(self, queue: Queue, reason: str) -> DeadLetterSource:
        source = self._last_source
        if source is None or source.queue is not queue or source.reason != reason:
            published = self.published.get((queue.kind, reason))
            if published is None:
                published = RepublishCount()
                self.published[(queue.kind, reason)] = published
            source = DeadLetterSource(self, queue, reason, published)
            self._last_source = source
        return source

    # -- the message -------------------------------------------------------------------------------------------------

    def rewrite(self, source: DeadLetterSource, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        """Return the dead letter of a message of this source, as `RepublishSource.rewrite`."""
        republisher = self._republisher
        if self._slice != republisher.slice_number:
            self._slice = republisher.slice_number
            self.begin_slice(republisher.timers.wall_ms() // 1000)
        queue = source.queue
        again = source.again
        if not again:
            store = queue.backing.store
            again = (
                store is not None
                and queue.backing.is_logged(source.offset)
                and store.maybe_delivered_before(source.offset)
            )
        return self.make(queue, envelope, properties, source.reason, again)

    def begin_slice(self, time_s: int) -> None:
        """Empty the caches. time_s: time of the deaths, seconds since 1970."""
        self._time_s = time_s
        self._made.clear()
        self._first.clear()

    def make(
        self, queue: Queue, envelope: MessageRoute, properties: bytes, reason: str, again: bool = False
    ) -> RewrittenMessage | None:
        """Return the dead letter of a message with this route and these properties.

        again: It may have been published before.
        Returns: None if the dead-letter exchange does not exist; KEEP if the vhost is moving to another node.
        Cost: 0.1 us if the last ones were alike, 1 us if only their properties differ, otherwise 10 us and more.
        """
        if PRODUCER_ID in properties:
            properties = without_headers(properties, NUMBERS)  # the target would take it for a duplicate
        key = (queue, reason, envelope, properties, again)
        if key in self._made:
            return self._made[key]
        name = queue.rules.dead_letter_exchange
        vhost = self.vhosts.get(queue.vhost_name)
        if vhost is None:
            return KEEP
        exchange = vhost.exchanges.get(name) if name is not None else None
        made: RewrittenMessage | None = None
        if exchange is not None and router.depends_on(vhost, exchange) & (RANDOMNESS | HISTORY):
            # The next message of this kind may have other destinations, so this one is not cached.
            return dead_letter_with_history(vhost, queue, exchange, envelope, properties, reason, self._time_s, again)
        if exchange is not None:
            made = self._make_first(vhost, queue, exchange, envelope, properties, reason, again)
            if made is None:
                made = dead_letter_with_history(
                    vhost, queue, exchange, envelope, properties, reason, self._time_s, again
                )
        if len(self._made) >= CACHE_COUNT_MAX:
            self._made.clear()
        self._made[key] = made
        return made

    def _make_first(
        self,
        vhost: VHost,
        queue: Queue,
        exchange: Exchange,
        envelope: MessageRoute,
        properties: bytes,
        reason: str,
        again: bool,
    ) -> RewrittenMessage | None:
        """Make the dead letter of a message that died for the first time by appending header entries.

        Returns:
            None if that is not enough: the message has CC, BCC or an earlier death, its destinations depend on more
            than the routing key, or the headers would not fit into a frame.
        """
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
            if len(self._first) >= CACHE_COUNT_MAX:
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
    """Return what such dead letters share. exchange: the dead-letter exchange; it routes by routing key only."""
    key = queue.rules.dead_letter_key
    out = MessageRoute(exchange.name, envelope.routing_key if key is None else key)
    death = new_death(reason, queue.name, envelope.exchange, [envelope.routing_key], time_s, expiration)
    headers = {**first_headers(reason, queue.name, envelope.exchange), "x-death": [death]}
    if again:
        headers[REDELIVERED] = True
    entries = encode_table(headers)[4:]
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
    """Return the dead letter of a message that may have died before. exchange: the dead-letter exchange."""
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
    """Return the destinations without the queues where the message died before.

    deaths: The x-death of the dead letter, the newest first. It is no list if the headers did not fit into a frame.
    """
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
    """Return the properties with this death in their headers, and without expiration.

    keep_keys: The message keeps its routing keys. Otherwise CC is removed (rabbit: before 3.13).
    An x-death that is no array is replaced. Headers that would not fit into a frame stay unchanged.
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
        # A client sent an x-death nested as deep as tables may be: replace it.
        changes["x-death"] = [death]
        changed = with_headers(bare, changes, drop)
    return changed if len(changed) <= FRAME_PAYLOAD_BYTES - 12 else with_headers(bare, {}, drop)


def merged(death: dict[str, object], past: list[object]) -> list[object]:
    """Return x-death with the new death first. If it has an entry of the same queue and reason, that one is counted up.

    rabbit: several entries of one queue and reason, written by versions before 3.6, become one. Its count is theirs, or
    their number if the first has no count. Cost: O(len(past)).
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
    """Return queue and reason. A client may have sent values of any type."""
    return str(death.get("queue")), str(death.get("reason"))


def is_cycle(queue: str, deaths: list[object]) -> bool:
    """Return whether the message died in `queue` and was not rejected since then. deaths: the newest first."""
    for death in deaths:
        if not isinstance(death, dict) or death.get("reason") == "rejected":
            # rabbit: an entry that is no table comes from a client, so this is no automatic cycle
            return False
        if death.get("queue") == queue:
            return True
    return False


def copies(table: Mapping[str, object]) -> list[str]:
    """Return the routing keys of the header CC."""
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
