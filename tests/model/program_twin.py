"""The naive twin of a whole broker: plain lists, no index, no log, no code of the broker's.

It believes what the documentation says of exchanges, queues, limits, time to live, dead letters, policies, delays,
retries, groups and numbered messages. A message is a Python object in as many lists as there are queues that have it;
time is a number that a program moves. What exchanges do stands in program_routing.py, surgery in program_surgery.py.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program_parts import Anyhow, Binding, Death, Letter, TwinConsumer, TwinExchange, TwinQueue, Waiting, Way
from program_routing import TwinRouting

LOWEST = ("message-ttl", "max-length", "max-length-bytes")
NUMBERS = ("x-producer-id", "x-producer-epoch", "x-sequence")
RELEASED = "x-delayed-redelivered"


class Twin(TwinRouting):
    """chosen: as `TwinRouting`. next_taker: who of a queue's consumers the broker has given the next message to."""

    def __init__(
        self,
        epoch_ms: int,
        chosen: Callable[[str, str], str | None],
        next_taker: Callable[[TwinQueue], TwinConsumer | None],
    ) -> None:
        self.now_ms = 0
        self.epoch_ms = epoch_ms
        self.chosen = chosen
        self.next_taker = next_taker
        self.queues: dict[str, TwinQueue] = {}
        self.exchanges: dict[str, TwinExchange] = {}
        self.bindings: list[Binding] = []  # each once
        self.policies: dict[str, tuple[str, dict[str, Any], int, str]] = {}
        self.given: list[tuple[TwinQueue, TwinConsumer, Letter]] = []  # to consumers, since somebody looked
        # What has left a queue, or an exchange where it was delayed, and is still to go somewhere: where it was, to
        # which exchange, whether that one has delayed it.
        self.dead: deque[tuple[str, str, bool, Letter]] = deque()
        self.reserved = set()
        self.delayed: list[tuple[int, str, Letter]] = []  # when it is due, and where

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

    # -- queues

    def in_order(self, queue: TwinQueue) -> list[Letter]:
        """What is ready, as it is to be delivered."""
        most = queue.arguments.get("x-max-priority", 0)
        return sorted(queue.ready, key=lambda letter: (-min(letter.priority, most), letter.place))

    def head(self, queue: TwinQueue) -> Letter | None:
        """The first of them."""
        return self.in_order(queue)[0] if queue.ready else None

    def over(self, queue: TwinQueue) -> bool:
        """Of its lengths, which count what waits for its next try."""
        length, size = self.rule(queue, "max-length"), self.rule(queue, "max-length-bytes")
        letters = queue.ready + [each.letter for each in queue.waiting]
        bytes_ready = sum(len(letter.body) for letter in letters)
        return (length is not None and len(letters) > length) or (size is not None and bytes_ready > size)

    def full(self, queue: TwinQueue, letter: Letter) -> bool:
        """Whether one more would be too much."""
        queue.ready.append(letter)
        full = self.over(queue)
        queue.ready.pop()
        return full

    def offer(self, name: str, letter: Letter) -> bool:
        """False: it is refused."""
        queue = self.queues[name]
        letter = replace(letter, place=queue.places, offset=queue.offsets)
        if not letter.born_ms and (letter.expiration or self.rule(queue, "message-ttl") is not None):
            letter.born_ms.append(self.now_ms)
        overflow = self.rule(queue, "overflow") or "drop-head"
        if overflow != "drop-head" and self.full(queue, letter):
            if overflow == "reject-publish-dlx":
                self.die(queue, replace(letter, offset=-1), "maxlen")
            return False
        queue.places += 1
        letter.logged_ms = self.now_ms
        consumer = self.taker(queue, [letter]) if queue.group_by or not queue.ready else None
        queue.offsets += not (consumer is not None and consumer.no_ack and not queue.retains)
        if consumer is not None:
            late = bool(queue.group_by or queue.retains)
            if late and queue.in_transaction and overflow != "drop-head":
                raise Anyhow("who can take it is asked when the transaction is over")
            self.hand_over(queue, consumer, letter)
            return True
        queue.cold = queue.cold and bool(queue.ready)
        letter.vague = queue.cold
        queue.ready.append(letter)
        if not queue.in_transaction:
            self.tidy(queue)
        elif len(queue.ready) == 1:
            self.expire(queue)
        return True

    def offer_all(self, way: Way, letter: Letter) -> bool:
        """To all that it goes to. False: one has refused it."""
        taken = [self.offer(name, letter) for name in way.queues]
        for exchange, due_ms in way.waits:
            self.delay(exchange, due_ms, letter)
        stored = letter.persistent and bool(way.waits or any(self.queues[name].durable for name in way.queues))
        self.remember(way, letter, all(taken), stored)
        return all(taken)

    def commit(self, sent: list[tuple[Letter, Way]]) -> bool:
        """What a queue keeps of a transaction displaces when all of it is there (`committed`). False: one refused."""
        for letter, way in sent:
            for name in way.queues:
                queue = self.queues[name]
                queue.in_transaction |= queue.durable and (letter.persistent or queue.kind == "stream")
        taken = [self.offer_all(way, letter) for letter, way in sent]
        return all(taken)

    def committed(self) -> None:
        for queue in self.queues.values():
            if queue.in_transaction:
                queue.in_transaction = False
                self.tidy(queue)

    def hand_over(self, queue: TwinQueue, consumer: TwinConsumer, letter: Letter) -> None:
        if consumer.no_ack:
            queue.handled(letter)
        else:
            consumer.in_flight += 1
            queue.unacked.append((letter, consumer))
        queue.delivered = True
        self.given.append((queue, consumer, letter))

    def allowed(self, queue: TwinQueue, letters: list[Letter], consumer: TwinConsumer | None) -> Letter | None:
        """The first of these that this consumer may have; None: of what is free. Of a group that somebody has
        something of he alone may have more, and none where some of it waits."""
        if not queue.group_by:
            return letters[0] if letters else None
        taken = {queue.group(letter): who for letter, who in queue.unacked}
        waiting = {queue.group(each.letter) for each in queue.waiting}
        for letter in letters:
            group = queue.group(letter)
            is_free = group not in waiting and group not in taken
            is_his = group not in waiting and consumer is not None and taken.get(group) is consumer
            if group is None or is_free or is_his:
                return letter
        return None

    def taker(self, queue: TwinQueue, letters: list[Letter]) -> TwinConsumer | None:
        """Who gets one of these next. Of several that could it is the broker's to say."""
        able = [each for each in queue.consumers if each.can_take and self.allowed(queue, letters, each) is not None]
        if len(able) > 1:
            said = self.next_taker(queue)
            return said if said in able else able[0]
        return able[0] if able else None

    def serve(self) -> None:
        """Consumers take what is ready."""
        for queue in self.queues.values():
            while self.gives_one(queue):
                self.tidy(queue)

    def gives_one(self, queue: TwinQueue) -> bool:
        letters = self.in_order(queue)
        consumer = self.taker(queue, letters)
        letter = None if consumer is None else self.allowed(queue, letters, consumer)
        if consumer is None or letter is None:
            return False
        queue.ready.remove(letter)
        if self.is_over(queue, letter):
            self.die(queue, letter, "expired")
        else:
            self.hand_over(queue, consumer, letter)
        return True

    def due_ms(self, queue: TwinQueue, letter: Letter) -> int | None:
        times = [self.rule(queue, "message-ttl"), int(letter.expiration) if letter.expiration else None]
        known = [each for each in times if each is not None]
        if not known or queue.kind == "stream":
            return None
        self.begin_to_age(letter)
        return letter.born_ms[0] + min(known)

    def is_over(self, queue: TwinQueue, letter: Letter) -> bool:
        due_ms = self.due_ms(queue, letter)
        return due_ms is not None and due_ms <= self.now_ms

    def next_free(self, queue: TwinQueue) -> Letter | None:
        """What basic.get gets; what is over on the way has ended."""
        while (letter := self.allowed(queue, self.in_order(queue), None)) is not None and self.is_over(queue, letter):
            queue.ready.remove(letter)
            self.die(queue, letter, "expired")
        return letter

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
            if self.delay_ms(queue, True, 1) == self.delay_ms(queue, False, 1) == 0:
                queue.ready += [each.letter for each in queue.waiting]
                queue.waiting.clear()
            self.tidy(queue, time_first=True)

    def tidy(self, queue: TwinQueue, *, time_first: bool = False, came_back: bool = False) -> None:
        """What is too much goes, from the head, then what is over there. The other way round: of a message that came
        alone, and not back; time_first.
        """
        if time_first or (len(queue.ready) == 1 and not came_back):
            self.expire(queue)
        while (
            (queue.ready or queue.waiting)
            and self.over(queue)
            and (self.rule(queue, "overflow") or "drop-head") == "drop-head"
        ):
            if queue.group_by and self.gives_one(queue):
                continue  # who can take comes before what is too much, also of what comes back
            if queue.waiting:
                first = self.first_waiting(queue)
                queue.waiting.remove(first)
                self.die(queue, first.letter, "maxlen")
                if queue.group_by and self.over(queue) and self.taker(queue, self.in_order(queue)):
                    raise Anyhow("its group is free now, or the next one is too much")
            else:
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

    # -- what comes back

    def comes_back(self, queue: TwinQueue, letter: Letter, failed: bool) -> None:
        """failed: basic.reject; else basic.nack, which the type of a retry tells apart."""
        queue.lets_go(letter)
        limit = self.rule(queue, "delivery-limit")
        if limit is not None and letter.deliveries >= limit:
            self.die(queue, letter, "delivery_limit")
            return
        letter.redelivered = True
        letter.deliveries += 1
        letter.vague = queue.durable
        if letter.vague and letter.born_ms and letter.born_ms[0] > letter.logged_ms:
            letter.born_ms = []  # the log may say so again
        delay_ms = self.delay_ms(queue, failed, letter.deliveries)
        due_ms = self.due_ms(queue, letter) if delay_ms else None
        if due_ms is not None:
            delay_ms = min(delay_ms, due_ms - self.now_ms)
        if delay_ms > 0:
            queue.waiting.append(Waiting(self.now_ms + delay_ms, letter))
        else:
            queue.ready.append(letter)
        self.tidy(queue, came_back=True)

    def delay_ms(self, queue: TwinQueue, failed: bool, count: int) -> int:
        """How long it waits that has come back so often; 0: it does not."""
        if self.rule(queue, "delayed-retry-type") not in ("all", "failed" if failed else "returned"):
            return 0
        levels = self.rule(queue, "delayed-retry-levels")
        if levels is not None:
            if isinstance(levels, str):
                levels = [int(each.removesuffix("s")) * 1000 for each in levels.split(",")]
            return int(levels[min(count, len(levels)) - 1])
        least = self.rule(queue, "delayed-retry-min")
        most = self.rule(queue, "delayed-retry-max")
        return 0 if least is None else min(least * count, least if most is None else most)

    @staticmethod
    def first_waiting(queue: TwinQueue) -> Waiting:
        return min(queue.waiting, key=lambda each: (each.due_ms, each.letter.place))

    def retry(self, queue: TwinQueue) -> None:
        """What is due is ready again."""
        due = [each for each in queue.waiting if each.due_ms <= self.now_ms]
        queue.waiting = [each for each in queue.waiting if each.due_ms > self.now_ms]
        over = any(self.is_over(queue, letter) for letter in queue.ready + [each.letter for each in due])
        if due and queue.ready and over:
            raise Anyhow("what waits and what is over have the same moment")
        queue.ready += [each.letter for each in due]

    # -- what is delayed

    def delay(self, exchange: str, due_ms: int, letter: Letter) -> None:
        headers = dict(letter.headers)
        if "x-delay" in headers and int(headers["x-delay"]) > 0:
            headers["x-delay"] = -int(headers["x-delay"])
        if "x-deliver-at" in headers:
            headers["x-delivered-at"] = headers.pop("x-deliver-at")
        self.delayed.append((due_ms, exchange, replace(letter, headers=headers, born_ms=[])))
        self.delayed.sort(key=lambda each: each[0])

    def release(self) -> None:
        """What is due goes on."""
        while self.delayed and self.delayed[0][0] <= self.now_ms:
            _, exchange, letter = self.delayed.pop(0)
            self.dead.append((f"exchange {exchange}", exchange, True, letter))

    # -- what producers have numbered

    def has_older(self, way: Way, producer: int, epoch: int) -> bool:
        """A queue knows a later epoch of him."""
        known = [self.queues[name].producers.get(producer) for name in way.queues]
        return any(each is not None and epoch < each[0] for each in known)

    def offer_numbered(self, way: Way, letter: Letter, producer: int, epoch: int, sequence: int) -> bool:
        """False: a queue has refused it. One that has it already takes no more of it."""
        taken = []
        for name in way.queues:
            queue = self.queues[name]
            last = queue.producers.get(producer)
            if last is not None and (epoch, sequence) <= last:
                continue
            taken.append(self.offer(name, letter))
            if taken[-1]:
                queue.producers[producer] = (epoch, sequence)
        stored = letter.persistent and any(self.queues[name].durable for name in way.queues)
        self.remember(way, letter, all(taken), stored)
        return all(taken)

    # -- dead letters

    def die(self, queue: TwinQueue, letter: Letter, reason: str) -> None:
        """It has left the queue; where it goes is decided now, and it goes when this moment's work is done."""
        queue.handled(letter)
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
        changed.headers = {name: value for name, value in letter.headers.items() if name not in NUMBERS}
        changed.born_ms = []
        changed.exchange = exchange
        changed.key = letter.key if key is None else key
        self.dead.append((queue.name, exchange, False, changed))

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
            source, exchange, was_delayed, letter = self.dead.popleft()
            way = self.route(exchange, letter.key, letter.headers, exchange if was_delayed else "")
            if not was_delayed:
                way.queues = [name for name in way.queues if not self.runs_in_circles(name, letter.deaths)]
            for name in way.queues:
                queue = self.queues[name]
                queue.sources.add(source)
                if len(queue.sources) > 1:
                    raise Anyhow(f"dead letters of {sorted(queue.sources)} meet in {name}")
            self.offer_all(way, letter)
            if not self.dead:
                self.serve()

    # -- lives

    def restart(self, *, clean: bool) -> None:
        """What is durable is there again, and what was held goes home. What died has gone where it goes."""
        for queue in self.queues.values():
            for letter, _ in queue.unacked:
                letter.redelivered = True
                queue.ready.append(letter)
            queue.unacked.clear()
        self.queues = {name: queue for name, queue in self.queues.items() if queue.durable}
        self.exchanges = {name: exchange for name, exchange in self.exchanges.items() if exchange.durable}
        self.bindings = [
            each
            for each in self.bindings
            if each.source in self.exchanges and each.destination in (self.queues if each.to_queue else self.exchanges)
        ]
        for queue in self.queues.values():
            queue.consumers.clear()
            letters = queue.ready + [each.letter for each in queue.waiting]
            queue.lost += [each for each in letters if not each.persistent]
            queue.ready = [each for each in queue.ready if each.persistent or queue.kind == "stream"]
            queue.cold = bool(queue.ready)
            queue.lost += [each for each in queue.settled if not each.persistent]
            queue.settled = [each for each in queue.settled if each.persistent]
            queue.waiting = [each for each in queue.waiting if each.letter.persistent]
            if queue.group_by:
                queue.ready += [each.letter for each in queue.waiting]
                queue.waiting.clear()
            for letter in queue.settled + [each.letter for each in queue.waiting]:
                letter.born_ms = [letter.logged_ms]
            for letter in queue.ready:
                letter.born_ms = [letter.logged_ms]
                if not clean and queue.delivered and not letter.redelivered:
                    letter.redelivered = None
            if self.rule(queue, "message-ttl") is None and queue.kind != "stream":
                head = self.head(queue)
                if any(letter.expiration and letter is not head for letter in queue.ready):
                    raise Anyhow("a time to live that nobody has read as yet, behind others")

        for exchange in self.exchanges.values():
            exchange.history.clear()
            exchange.seen = {ident: seen for ident, seen in exchange.seen.items() if seen.stored}
        self.delayed = [each for each in self.delayed if each[1] in self.exchanges and each[2].persistent]
        if not clean:
            for _, _, letter in self.delayed:
                letter.maybe = (RELEASED,)

    # -- time

    def advance(self, ms: int) -> None:
        """Moment by moment: every message ends, is released or tried again when it is due. Raises: Anyhow."""
        end_ms = self.now_ms + ms
        while True:
            due = [each[0] for each in self.delayed]
            for queue in self.queues.values():
                due += [each.due_ms for each in queue.waiting]
                head = self.head(queue)
                due_ms = None if head is None else self.due_ms(queue, head)
                if due_ms is not None:
                    due.append(due_ms)
            due = [each for each in due if each <= end_ms]
            if not due:
                break
            self.now_ms = max(self.now_ms, min(due))
            self.release()
            for queue in self.queues.values():
                self.retry(queue)
                self.tidy(queue)
            self.settle_dead()
        self.now_ms = end_ms
