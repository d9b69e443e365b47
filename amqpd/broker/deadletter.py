"""Dead-lettering: what a queue could not or would not deliver is published once more, to where the queue says.

The message goes to `x-dead-letter-exchange` under `x-dead-letter-routing-key`, or under its own keys (CC included). Its
headers tell the story, newest first: `x-death`, an array of tables {count, reason, queue, time, exchange, routing-keys,
original-expiration}, one per (queue, reason), and x-first-death-reason, -queue, -exchange. Its expiration goes: it must
not expire again at once.

A message that comes back to a queue it died in is dropped, unless somebody rejected it on the way: a cycle that runs by
itself would run for ever. An exchange that is missing drops it too.

Safety: the source stays unsettled in its log until every durable target has synced its copy, so a crash in between
repeats a dead-lettering and never loses one. Letters are published in a callback of their own: a queue that drops from
within an `offer` never enters another queue, however long the chain of dead-letter exchanges.

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx; texts and order of the table measured there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.flow import Confirmer, Turn
from amqpd.broker.limited_queue import LimitedQueue
from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Entry, Envelope, Message, make_message
from amqpd.broker.queue import Destination, Queue
from amqpd.broker.timers import Timer, Timers
from amqpd.protocol.codec import CodecError, Long, Timestamp, decode_table
from amqpd.protocol.properties import scan, with_headers, without_expiration
from amqpd.storage.queue_store import QueueStore

if TYPE_CHECKING:
    from amqpd.broker.vhost import VHost

log = logging.getLogger(__name__)

# Letters published in one go before the loop has its turn.
LETTERS_MAX: Final = 200
# Letters waiting with their messages in memory; and from how many on queues drop nothing more for its age.
HELD_MAX: Final = 1000
# A target whose log takes nothing, a full disk say, is tried again after so long.
RETRY_MS: Final = 2000
# As far as a death is counted, whatever number a client began with.
COUNT_MAX: Final = 1 << 62


@final
class Letter:
    """One message on its way.

    entry: its place at the source; None: it was refused before it had one. message: None when only the source's log
    has it.
    """

    def __init__(self, queue: LimitedQueue, entry: Entry | None, message: Message | None, reason: str) -> None:
        self.queue = queue
        self.entry = entry
        self.message = message
        self.reason = reason
        self.targets: list[QueueStore] = []


@final
class Retry(Timer):
    """Publishes again what a target's log did not take."""

    def __init__(self, letters: DeadLetters) -> None:
        super().__init__()
        self.letters = letters

    def fire(self) -> None:
        self.letters.retry()


@final
class DeadLetters(Confirmer):
    """One per broker."""

    def __init__(self, turn: Turn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._scheduled = False
        self._letters: deque[Letter] = deque()
        # Published in this turn; then by commit group.
        self._fresh: list[Letter] = []
        self._waiting: deque[tuple[int, list[Letter]]] = deque()
        self._failed: list[Letter] = []
        self._retry = Retry(self)

    def add(self, queue: LimitedQueue, entry: Entry | None, message: Message | None, reason: str) -> None:
        """Publishes it before long. Cost: O(1). entry: settled in the queue's log when its targets are safe.

        When very many wait, those that a log can give back are not kept in memory.
        """
        if entry is not None and len(self._letters) >= HELD_MAX and queue.log() is not None:
            message = None
            entry.message = None
        self._letters.append(Letter(queue, entry, message, reason))
        self._schedule()

    def is_behind(self) -> bool:
        """Whether a queue that drops a backlog should let the letters under way go first."""
        return len(self._letters) >= HELD_MAX

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Publishes what has gathered. Called by the loop."""
        self._scheduled = False
        count: i64 = 0
        while self._letters and count < LETTERS_MAX:
            self._publish(self._letters.popleft())
            count += 1
        if self._letters:
            self._schedule()
        if self._fresh:
            self._turn.confirm_later(self)
        else:
            self._turn.want()

    def stop(self) -> None:
        """The broker stops: letters that are not published yet stay at their source, unsettled in its log."""
        self._letters.clear()
        self._failed.clear()

    def retry(self) -> None:
        self._letters.extend(self._failed)
        self._failed = []
        self._schedule()

    # -- publish -----------------------------------------------------------------------------------------------------

    def _publish(self, letter: Letter) -> None:
        queue = letter.queue
        message = letter.message
        if message is None and letter.entry is not None:
            queue.read_back(letter.entry)
            message = letter.entry.message
        vhost = queue.vhost
        name = queue.dead_letter_exchange
        exchange = vhost.exchanges.get(name) if name is not None else None
        if message is None or exchange is None or queue.deleted:
            self._settle(letter)
            return
        time_s = self._timers.wall_ms() // 1000
        dead, destinations = address(vhost, queue, exchange.name, message, letter.reason, time_s)
        letter.targets = []
        failed = False
        for destination in destinations:
            store = destination.log() if message.persistent else None
            if not destination.can_open():
                failed = True
            elif not destination.offer(dead):
                # A target that is full refuses it: rabbit drops it then. One whose disk is full gets it later.
                if store is not None and store.failed:
                    failed = True
            elif store is not None:
                letter.targets.append(store)
        if failed:
            self._keep(letter)
        elif letter.targets and letter.entry is not None and queue.log() is not None:
            # Until then the source's log keeps it: memory need not.
            letter.message = None
            letter.entry.message = None
            self._fresh.append(letter)
        else:
            self._settle(letter)

    def _settle(self, letter: Letter) -> None:
        entry = letter.entry
        if entry is not None:
            letter.queue.settle_log(entry)

    def _keep(self, letter: Letter) -> None:
        if not self._failed:
            log.warning("queue %s: a dead-letter target takes nothing, trying again", letter.queue.name)
        self._failed.append(letter)
        self._timers.arm_sooner(self._retry, self._timers.now_ms() + RETRY_MS)

    # -- safe --------------------------------------------------------------------------------------------------------

    def end_turn(self, generation: i64, safe: bool) -> bool:
        letters = self._fresh
        self._fresh = []
        if safe and not self._waiting:
            self._settle_all(letters, [])
            return False
        group: int = generation
        self._waiting.append((group, letters))
        return True

    def committed(self, generation: i64, failed: list[QueueStore]) -> bool:
        while self._waiting and self._waiting[0][0] <= generation:
            self._settle_all(self._waiting.popleft()[1], failed)
        return len(self._waiting) > 0

    def _settle_all(self, letters: list[Letter], failed: list[QueueStore]) -> None:
        for letter in letters:
            if failed and _any_of(letter.targets, failed):
                self._keep(letter)
            else:
                self._settle(letter)
        if letters:
            self._turn.want()


def _any_of(targets: list[QueueStore], failed: list[QueueStore]) -> bool:
    return any(store in failed for store in targets)


class Headers:
    """A message's headers, already decoded, as routing asks for them."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.table = table

    def get(self) -> Mapping[str, object]:
        return self.table


def address(
    vhost: VHost, queue: LimitedQueue, exchange: str, message: Message, reason: str, time_s: int
) -> tuple[Message, list[Destination]]:
    """The message as it goes out, and where to. exchange: the dead-letter exchange, which exists."""
    envelope = message.envelope
    properties = message.properties()
    key = queue.dead_letter_key
    changed = with_death(
        properties, reason, queue.name, envelope.exchange, envelope.routing_key, time_s, keep_keys=key is None
    )
    info = scan(changed, 0, len(changed))
    out = Envelope(exchange, envelope.routing_key if key is None else key)
    dead = make_message(out, changed, message.body(), message.persistent, info)
    table = decode_table(changed, info.headers_start)[0] if info.has_headers else {}
    keys = [dead.envelope.routing_key]
    if key is None:
        keys += [each for each in copies(table) if each not in keys]
    destinations = vhost.route(vhost.exchanges[exchange], keys, Headers(table).get)
    if reason != "rejected":
        deaths = table.get("x-death")
        if isinstance(deaths, list):
            destinations = [
                each for each in destinations if not (isinstance(each, Queue) and is_cycle(each.name, deaths))
            ]
    return dead, destinations


def with_death(
    properties: bytes, reason: str, queue: str, exchange: str, routing_key: str, time_s: int, *, keep_keys: bool
) -> bytes:
    """`properties` with this death told in the headers, and without expiration.

    keep_keys: the message keeps its own routing keys; otherwise its CC goes (rabbit: before 3.13). An x-death that is
    not an array is replaced. Headers that would not fit a frame any more stay as they are.
    """
    info = scan(properties, 0, len(properties))
    table = decode_table(properties, info.headers_start)[0] if info.has_headers else {}
    keys: list[object] = [routing_key, *copies(table)]
    death: dict[str, object] = {
        "count": Long(1),
        "reason": reason,
        "queue": queue,
        "time": Timestamp(time_s),
        "exchange": exchange,
        "routing-keys": keys,
    }
    if info.expiration is not None:
        death["original-expiration"] = info.expiration
    changes: dict[str, object] = {}
    past = table.get("x-death")
    if "x-death" not in table:
        changes = {"x-first-death-reason": reason, "x-first-death-queue": queue, "x-first-death-exchange": exchange}
    changes["x-death"] = merged(death, past) if isinstance(past, list) else [death]
    drop = () if keep_keys else ("CC",)
    bare = without_expiration(properties)
    try:
        changed = with_headers(bare, changes, drop)
    except CodecError:
        # A forged x-death that nests as deep as tables may: it starts anew.
        changed = with_headers(bare, {"x-death": [death]}, drop)
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
            one["count"] = Long(number + 1 if number < COUNT_MAX else COUNT_MAX)
            head = one
        else:
            if isinstance(given, int):
                one["count"] = Long(given)
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
