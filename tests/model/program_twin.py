"""The naive twin of a whole broker: plain lists, no index, no log, no code of the broker's.

It believes what the documentation says of exchanges, queues, limits, time to live, dead letters and policies. A
message is a Python object in as many lists as there are queues that have it; time is a number that a program moves.

Where nobody is owed an order (dead letters of two queues that reach a third in the same moment) it raises `Anyhow`:
what follows depends on that order, so the program ends there.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

LOWEST = ("message-ttl", "max-length", "max-length-bytes")
NONE_OF_STREAMS = (*LOWEST, "overflow", "dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange")


class Anyhow(Exception):
    """The order of what happens next is nobody's promise."""


@dataclass(frozen=True)
class Death:
    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    expiration: str
    count: int = 1


@dataclass
class Letter:
    """A message in one queue. deaths: newest first. deliveries: of a quorum queue, how often it came back. born_ms:
    shared by its copies in all queues: when it came, if a time to live was to be obeyed then; else when one first was.
    logged_ms: when it came to its queue, which is all that a restart knows. redelivered: None where it may say either.
    vague: it came back, and may be read from the log again, which knows when it came; or not.
    """

    body: bytes
    exchange: str
    key: str
    expiration: str = ""
    priority: int = 0
    deaths: tuple[Death, ...] = ()
    first: tuple[str, str, str] | None = None
    place: int = 0
    born_ms: list[int] = field(default_factory=list)
    redelivered: bool | None = False
    deliveries: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    persistent: bool = True
    logged_ms: int = 0
    vague: bool = False


@dataclass
class TwinConsumer:
    """The only one of its queue. channel: its own."""

    channel: int
    prefetch: int
    no_ack: bool
    in_flight: int = 0

    @property
    def can_take(self) -> bool:
        return self.no_ack or self.in_flight < self.prefetch


@dataclass
class TwinQueue:
    name: str
    kind: str
    arguments: dict[str, Any]
    durable: bool = True
    consumer: TwinConsumer | None = None
    delivered: bool = False  # something, in this life or before
    ready: list[Letter] = field(default_factory=list)
    places: int = 0
    ages: bool = False
    # Dead letters that came in this moment: the queues they died in.
    sources: set[str] = field(default_factory=set)


@dataclass
class TwinExchange:
    name: str
    kind: str
    alternate: str | None
    durable: bool = True


class Binding(NamedTuple):
    """to_queue: else to an exchange. arguments: sorted; of headers exchanges only."""

    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: tuple[tuple[str, str], ...] = ()


class Twin:
    def __init__(self) -> None:
        self.now_ms = 0
        self.queues: dict[str, TwinQueue] = {}
        self.exchanges: dict[str, TwinExchange] = {}
        self.bindings: list[Binding] = []  # each once
        self.policies: dict[str, tuple[str, dict[str, Any], int, str]] = {}
        self.given: list[tuple[TwinQueue, TwinConsumer, Letter]] = []  # to consumers, since somebody looked
        self.dead: deque[tuple[str, str | None, str | None, Letter]] = deque()

    # -- policies

    def matching(self, name: str, kind: str, operator: bool) -> dict[str, Any]:
        """The definition of the one with the highest priority."""
        best: tuple[int, dict[str, Any]] = (-1, {})
        for policy, (pattern, definition, priority, apply_to) in self.policies.items():
            kinds = {"all": (kind,), "queues": ("classic", "quorum", "stream")}.get(apply_to)
            if kinds is None:
                kinds = (
                    {"classic_queues": "classic", "quorum_queues": "quorum", "streams": "stream"}.get(
                        apply_to, "exchange"
                    ),
                )
            if policy.startswith("o") is operator and kind in kinds and re.search(pattern, name) and priority > best[0]:
                best = (priority, definition)
        return best[1]

    def rule(self, queue: TwinQueue, key: str) -> Any:
        """What the queue obeys of its argument, its policy and its operator policy. None: nothing says."""
        if queue.kind == "stream":
            return None
        argument = queue.arguments.get(f"x-{key}")
        policy = self.matching(queue.name, queue.kind, False).get(key)
        if key in LOWEST:
            said = (argument, policy, self.matching(queue.name, queue.kind, True).get(key))
            return min((value for value in said if value is not None), default=None)
        return policy if argument is None else argument

    def alternate(self, exchange: TwinExchange) -> str | None:
        if exchange.alternate is not None:
            return exchange.alternate
        return self.matching(exchange.name, "exchange", False).get("alternate-exchange")

    # -- routing

    def route(self, exchange: str, key: str, headers: dict[str, str]) -> list[str]:
        """Names of queues, each once."""
        if exchange == "":
            return [key] if key in self.queues else []
        found: list[str] = []
        seen: list[str] = []
        waiting = [exchange]
        while waiting:
            name = waiting.pop(0)
            if name in seen or name not in self.exchanges:
                continue
            seen.append(name)
            source = self.exchanges[name]
            matched = False
            for binding in self.bindings:
                if binding.source == name and self.accepts(source.kind, binding, key, headers):
                    matched = True
                    if binding.to_queue:
                        found += [binding.destination] if binding.destination not in found else []
                    else:
                        waiting.append(binding.destination)
            alternate = self.alternate(source)
            if not matched and alternate is not None:
                waiting.append(alternate)
        return found

    @staticmethod
    def accepts(kind: str, binding: Binding, key: str, headers: dict[str, str]) -> bool:
        pattern = binding.key
        if kind == "fanout":
            return True
        if kind == "headers":
            wanted = dict(binding.arguments)
            every = wanted.pop("x-match", "all") == "all"
            return (all if every else any)(headers.get(name) == value for name, value in wanted.items())
        if kind == "direct":
            return pattern == key
        if pattern == "#":
            return True
        words, asked = key.split("."), pattern.split(".")
        return len(words) == len(asked) and all(a in ("*", w) for a, w in zip(asked, words, strict=True))

    # -- queues

    def head(self, queue: TwinQueue) -> Letter | None:
        """What is delivered next."""
        if not queue.ready:
            return None
        most = queue.arguments.get("x-max-priority", 0)
        return min(queue.ready, key=lambda letter: (-min(letter.priority, most), letter.place))

    def over(self, queue: TwinQueue) -> bool:
        length, size = self.rule(queue, "max-length"), self.rule(queue, "max-length-bytes")
        bytes_ready = sum(len(letter.body) for letter in queue.ready)
        return (length is not None and len(queue.ready) > length) or (size is not None and bytes_ready > size)

    def full(self, queue: TwinQueue, letter: Letter) -> bool:
        """Whether one more would be too much."""
        queue.ready.append(letter)
        full = self.over(queue)
        queue.ready.pop()
        return full

    def offer(self, name: str, letter: Letter) -> bool:
        """False: it is refused."""
        queue = self.queues[name]
        letter = replace(letter, place=queue.places)
        if not letter.born_ms and (letter.expiration or self.rule(queue, "message-ttl") is not None):
            letter.born_ms.append(self.now_ms)
        overflow = self.rule(queue, "overflow") or "drop-head"
        if overflow != "drop-head" and self.full(queue, letter):
            if overflow == "reject-publish-dlx":
                self.die(queue, letter, "maxlen")
            return False
        queue.places += 1
        letter.logged_ms = self.now_ms
        consumer = queue.consumer
        if consumer is not None and consumer.can_take and not queue.ready:
            self.hand_over(queue, consumer, letter)
            return True
        queue.ready.append(letter)
        self.tidy(queue)
        return True

    def hand_over(self, queue: TwinQueue, consumer: TwinConsumer, letter: Letter) -> None:
        consumer.in_flight += not consumer.no_ack
        queue.delivered = True
        self.given.append((queue, consumer, letter))

    def serve(self) -> None:
        """Consumers take what is ready."""
        for queue in self.queues.values():
            consumer = queue.consumer
            while consumer is not None and consumer.can_take and queue.ready:
                head = self.head(queue)
                assert head is not None
                queue.ready.remove(head)
                self.hand_over(queue, consumer, head)
                self.tidy(queue)

    def due_ms(self, queue: TwinQueue, letter: Letter) -> int | None:
        times = [self.rule(queue, "message-ttl"), int(letter.expiration) if letter.expiration else None]
        known = [each for each in times if each is not None]
        if not known or queue.kind == "stream":
            return None
        self.begin_to_age(letter)
        return letter.born_ms[0] + min(known)

    def begin_to_age(self, letter: Letter) -> None:
        """Now, if nobody knows when it came."""
        if not letter.born_ms:
            if letter.vague and letter.logged_ms < self.now_ms:
                raise Anyhow("its age is the log's, or begins with the rule")
            letter.born_ms.append(self.now_ms)

    def obey(self) -> None:
        """A policy has changed."""
        for queue in self.queues.values():
            ages = self.rule(queue, "message-ttl") is not None
            if ages and not queue.ages:
                for letter in queue.ready:
                    self.begin_to_age(letter)
            queue.ages = ages
            self.tidy(queue, time_first=True)

    def tidy(self, queue: TwinQueue, *, time_first: bool = False, came_back: bool = False) -> None:
        """What is too much goes, from the head, then what is over there. The other way round: of a message that came
        alone, and not back; time_first.
        """
        if time_first or (len(queue.ready) == 1 and not came_back):
            self.expire(queue)
        while queue.ready and self.over(queue) and (self.rule(queue, "overflow") or "drop-head") == "drop-head":
            self.drop_head(queue, "maxlen")
        self.expire(queue)

    def expire(self, queue: TwinQueue) -> None:
        while (head := self.head(queue)) is not None:
            due_ms = self.due_ms(queue, head)
            if due_ms is None or due_ms > self.now_ms:
                return
            self.drop_head(queue, "expired")

    def drop_head(self, queue: TwinQueue, reason: str) -> None:
        head = self.head(queue)
        assert head is not None
        queue.ready.remove(head)
        self.die(queue, head, reason)

    # -- dead letters

    def die(self, queue: TwinQueue, letter: Letter, reason: str) -> None:
        """It has left the queue; where it goes is decided now, and it goes when this moment's work is done."""
        exchange = self.rule(queue, "dead-letter-exchange")
        if exchange is None or (exchange != "" and exchange not in self.exchanges):
            return
        key = self.rule(queue, "dead-letter-routing-key")
        death = Death(queue.name, reason, letter.exchange, (letter.key,), letter.expiration)
        others = []
        for each in letter.deaths:
            if (each.queue, each.reason) == (queue.name, reason):
                death = replace(each, count=each.count + 1)
            else:
                others.append(each)
        deaths = (death, *others)
        first = letter.first or (queue.name, reason, letter.exchange)
        changed = replace(letter, deaths=deaths, first=first, expiration="", redelivered=False, deliveries=0)
        changed.born_ms = []
        changed.exchange = exchange
        changed.key = letter.key if key is None else key
        self.dead.append((queue.name, exchange, changed.key, changed))

    @staticmethod
    def runs_in_circles(name: str, deaths: tuple[Death, ...]) -> bool:
        """Whether it has died in that queue before and nobody rejected it since."""
        places = [place for place, death in enumerate(deaths) if death.queue == name]
        return bool(places) and all(death.reason != "rejected" for death in deaths[: places[0] + 1])

    def settle_dead(self) -> None:
        """Dead letters go, and what becomes of them, until it is quiet. Raises: Anyhow."""
        for queue in self.queues.values():
            queue.sources.clear()
        steps = 0
        self.serve()
        while self.dead:
            steps += 1
            if steps > 200:
                raise Anyhow("it runs for ever")
            source, exchange, key, letter = self.dead.popleft()
            for name in self.route(exchange or "", key or "", letter.headers):
                if self.runs_in_circles(name, letter.deaths):
                    continue
                queue = self.queues[name]
                queue.sources.add(source)
                if len(queue.sources) > 1:
                    raise Anyhow(f"dead letters of {sorted(queue.sources)} meet in {name}")
                self.offer(name, letter)
            if not self.dead:
                self.serve()

    # -- lives

    def restart(self, held: list[tuple[TwinQueue, Letter]], *, clean: bool) -> None:
        """What is durable is there again, and what was held goes home. What died has gone where it goes."""
        for queue, letter in held:
            if self.queues.get(queue.name) is queue:
                letter.redelivered = True
                queue.ready.append(letter)
        self.queues = {name: queue for name, queue in self.queues.items() if queue.durable}
        self.exchanges = {name: exchange for name, exchange in self.exchanges.items() if exchange.durable}
        self.bindings = [
            each
            for each in self.bindings
            if each.source in self.exchanges and each.destination in (self.queues if each.to_queue else self.exchanges)
        ]
        for queue in self.queues.values():
            queue.consumer = None
            queue.ready = [each for each in queue.ready if each.persistent or queue.kind == "stream"]
            for letter in queue.ready:
                letter.born_ms = [letter.logged_ms]
                if not clean and queue.delivered and not letter.redelivered:
                    letter.redelivered = None
            if self.rule(queue, "message-ttl") is None and queue.kind != "stream":
                head = self.head(queue)
                if any(letter.expiration and letter is not head for letter in queue.ready):
                    raise Anyhow("a time to live that nobody has read as yet, behind others")

    # -- time

    def advance(self, ms: int) -> None:
        """Moment by moment: every message ends when it is due. Raises: Anyhow."""
        end_ms = self.now_ms + ms
        while True:
            due = []
            for queue in self.queues.values():
                head = self.head(queue)
                due_ms = None if head is None else self.due_ms(queue, head)
                if due_ms is not None and due_ms <= end_ms:
                    due.append(due_ms)
            if not due:
                break
            self.now_ms = max(self.now_ms, min(due))
            for queue in self.queues.values():
                self.tidy(queue)
            self.settle_dead()
        self.now_ms = end_ms
