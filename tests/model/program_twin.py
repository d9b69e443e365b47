"""The naive twin of a whole broker: plain lists, without index, log or code of the broker.

It follows the documentation of exchanges, queues, limits, time to live, dead letters, policies, delays, retries, groups
and numbered messages. A message is one object in the list of each of its queues; time is a number that a program
advances. program_routing.py has the exchanges, program_jobs.py the jobs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program_parts import (
    Binding,
    Death,
    RouteResult,
    TwinConsumer,
    TwinExchange,
    TwinMessage,
    TwinQueue,
    Unspecified,
    Waiting,
)
from program_routing import TwinRouting

LOWEST = ("message-ttl", "max-length", "max-length-bytes")
NUMBERS = ("x-producer-id", "x-producer-epoch", "x-sequence")
RELEASED = "x-delayed-redelivered"


def is_kept(queue: TwinQueue, message: TwinMessage) -> bool:
    """Return whether a durable queue has the message after a restart."""
    return message.persistent or queue.kind != "classic"


class Twin(TwinRouting):
    """The state of the twin.

    chosen: as in `TwinRouting`. consumer_chosen_by_broker: returns the consumer to which the broker delivered the next
    message of a queue.
    """

    def __init__(
        self,
        epoch_ms: int,
        chosen: Callable[[str, str], str | None],
        consumer_chosen_by_broker: Callable[[TwinQueue], TwinConsumer | None],
    ) -> None:
        self.now_ms = 0
        self.epoch_ms = epoch_ms
        self.chosen = chosen
        self.consumer_chosen_by_broker = consumer_chosen_by_broker
        self.queues: dict[str, TwinQueue] = {}
        self.exchanges: dict[str, TwinExchange] = {}
        self.bindings: list[Binding] = []  # each once
        self.policies: dict[str, tuple[str, dict[str, Any], int, str]] = {}
        self.dispatched: list[tuple[TwinQueue, TwinConsumer, TwinMessage]] = []  # deliveries that were not compared yet
        # Messages that left a queue or a delaying exchange and must still be routed: source, target exchange, and
        # whether the target has delayed it.
        self.dead: deque[tuple[str, str, bool, TwinMessage]] = deque()
        self.reserved = set()
        self.delayed: list[tuple[int, str, TwinMessage]] = []  # due time, exchange, message

    # -- policies

    def matching(self, name: str, kind: str, operator: bool) -> dict[str, Any]:
        """Return the definition of the matching policy with the highest priority."""
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
        """Return the effective value of an argument, policy and operator policy; None if none is set."""
        if queue.kind == "stream":
            return None
        argument = queue.arguments.get(f"x-{key}")
        policy = self.matching(queue.name, queue.kind, False).get(key)
        if key in LOWEST:
            said = (argument, policy, self.matching(queue.name, queue.kind, True).get(key))
            return min((value for value in said if value is not None), default=None)
        return policy if argument is None else argument

    # -- queues

    def ready_in_order(self, queue: TwinQueue) -> list[TwinMessage]:
        """Return the ready messages in delivery order."""
        most = queue.arguments.get("x-max-priority", 0)
        return sorted(queue.ready, key=lambda message: (-min(message.priority, most), message.position))

    def head(self, queue: TwinQueue) -> TwinMessage | None:
        """Return the first ready message."""
        return self.ready_in_order(queue)[0] if queue.ready else None

    def is_over_limit(self, queue: TwinQueue) -> bool:
        """Return whether a length limit is exceeded; messages that wait for their next try count."""
        length, size = self.rule(queue, "max-length"), self.rule(queue, "max-length-bytes")
        messages = queue.ready + [each.message for each in queue.waiting]
        bytes_ready = sum(len(message.body) for message in messages)
        return (length is not None and len(messages) > length) or (size is not None and bytes_ready > size)

    def full(self, queue: TwinQueue, message: TwinMessage) -> bool:
        """Return whether one more message would exceed a limit."""
        queue.ready.append(message)
        full = self.is_over_limit(queue)
        queue.ready.pop()
        return full

    def offer(self, name: str, message: TwinMessage) -> bool:
        """Enqueue a message. Return False if the queue refuses it."""
        queue = self.queues[name]
        message = replace(message, position=queue.places, offset=queue.offsets)
        if not message.ttl_start_ms and (message.expiration or self.rule(queue, "message-ttl") is not None):
            message.ttl_start_ms.append(self.now_ms)
        overflow = self.rule(queue, "overflow") or "drop-head"
        if overflow != "drop-head" and self.full(queue, message):
            if overflow == "reject-publish-dlx":
                self.dead_letter(queue, replace(message, offset=-1), "maxlen")
            return False
        queue.places += 1
        message.logged_ms = self.now_ms
        consumer = self.next_consumer(queue, [message]) if queue.group_by or not queue.ready else None
        queue.offsets += not (consumer is not None and consumer.no_ack and not queue.retains)
        if consumer is not None:
            late = bool(queue.group_by or queue.retains)
            if late and queue.in_transaction and overflow != "drop-head":
                raise Unspecified("the consumer is chosen when the transaction ends")
            self.deliver(queue, consumer, message)
            return True
        queue.reads_from_log = queue.reads_from_log and bool(queue.ready)
        message.age_uncertain = queue.reads_from_log
        queue.ready.append(message)
        if not queue.in_transaction:
            self.enforce_limits(queue)
        elif len(queue.ready) == 1:
            self.expire(queue)
        return True

    def offer_all(self, result: RouteResult, message: TwinMessage) -> bool:
        """Send a message to all its destinations. Return False if a queue refused it."""
        taken = [self.offer(name, message) for name in result.queues]
        for exchange, due_ms in result.waits:
            self.delay(exchange, due_ms, message)
        stored = (message.persistent and bool(result.waits)) or self.is_stored(result, message)
        self.remember(result, message, all(taken), stored)
        return all(taken)

    def is_stored(self, result: RouteResult, message: TwinMessage) -> bool:
        """Return whether the message is in a queue that has it after a restart."""
        queues = [self.queues[name] for name in result.queues]
        return any(queue.durable and is_kept(queue, message) for queue in queues)

    def commit(self, sent: list[tuple[TwinMessage, RouteResult]]) -> bool:
        """Enqueue a transaction; limits are enforced afterwards, by `committed`. Return False if a queue refused a
        message.
        """
        for message, result in sent:
            for name in result.queues:
                queue = self.queues[name]
                queue.in_transaction |= queue.durable and is_kept(queue, message)
        taken = [self.offer_all(result, message) for message, result in sent]
        return all(taken)

    def committed(self) -> None:
        for queue in self.queues.values():
            if queue.in_transaction:
                queue.in_transaction = False
                self.enforce_limits(queue)

    def deliver(self, queue: TwinQueue, consumer: TwinConsumer, message: TwinMessage) -> None:
        if consumer.no_ack:
            queue.note_settled(message)
        else:
            consumer.in_flight += 1
            queue.unacked.append((message, consumer))
        queue.delivered = True
        self.dispatched.append((queue, consumer, message))

    def first_allowed(
        self, queue: TwinQueue, messages: list[TwinMessage], consumer: TwinConsumer | None
    ) -> TwinMessage | None:
        """Return the first of these messages that the consumer may have; for None, the first that is free.

        If a consumer has an unacked message of a group, only that consumer gets more of the group. If a message of a
        group waits for its next try, no consumer gets the group.
        """
        if not queue.group_by:
            return messages[0] if messages else None
        taken = {queue.group(message): owner for message, owner in queue.unacked}
        waiting = {queue.group(each.message) for each in queue.waiting}
        for message in messages:
            group = queue.group(message)
            is_free = group not in waiting and group not in taken
            is_his = group not in waiting and consumer is not None and taken.get(group) is consumer
            if group is None or is_free or is_his:
                return message
        return None

    def next_consumer(self, queue: TwinQueue, messages: list[TwinMessage]) -> TwinConsumer | None:
        """Return the consumer of the next of these messages. Among several candidates the broker's choice counts."""
        able = [
            each for each in queue.consumers if each.can_take and self.first_allowed(queue, messages, each) is not None
        ]
        if len(able) > 1:
            said = self.consumer_chosen_by_broker(queue)
            return said if said in able else able[0]
        return able[0] if able else None

    def dispatch_all(self) -> None:
        """Deliver ready messages to consumers."""
        for queue in self.queues.values():
            while self.dispatch_one(queue):
                self.enforce_limits(queue)

    def dispatch_one(self, queue: TwinQueue) -> bool:
        messages = self.ready_in_order(queue)
        consumer = self.next_consumer(queue, messages)
        message = None if consumer is None else self.first_allowed(queue, messages, consumer)
        if consumer is None or message is None:
            return False
        queue.ready.remove(message)
        if self.is_expired(queue, message):
            self.dead_letter(queue, message, "expired")
        else:
            self.deliver(queue, consumer, message)
        return True

    def due_ms(self, queue: TwinQueue, message: TwinMessage) -> int | None:
        times = [self.rule(queue, "message-ttl"), int(message.expiration) if message.expiration else None]
        known = [each for each in times if each is not None]
        if not known or queue.kind == "stream":
            return None
        self.start_ttl(message)
        return message.ttl_start_ms[0] + min(known)

    def is_expired(self, queue: TwinQueue, message: TwinMessage) -> bool:
        due_ms = self.due_ms(queue, message)
        return due_ms is not None and due_ms <= self.now_ms

    def next_free(self, queue: TwinQueue) -> TwinMessage | None:
        """Return the message that basic.get returns; expired messages before it are dead-lettered."""
        while (message := self.first_allowed(queue, self.ready_in_order(queue), None)) is not None and self.is_expired(
            queue, message
        ):
            queue.ready.remove(message)
            self.dead_letter(queue, message, "expired")
        return message

    def start_ttl(self, message: TwinMessage) -> None:
        """Start the time to live now if its start is unknown."""
        if not message.ttl_start_ms:
            if message.age_uncertain and message.logged_ms < self.now_ms:
                raise Unspecified("the time to live starts at the log's time or now")
            message.ttl_start_ms.append(self.now_ms)

    def apply_policies(self) -> None:
        """Apply changed policies."""
        for queue in self.queues.values():
            ages = self.rule(queue, "message-ttl") is not None
            if ages and not queue.ages:
                for message in queue.ready:
                    self.start_ttl(message)
            queue.ages = ages
            self.enforce_limits(queue, time_first=True)
            if self.delay_ms(queue, True, 1) == self.delay_ms(queue, False, 1) == 0:
                queue.ready += [each.message for each in queue.waiting]
                queue.waiting.clear()
            self.enforce_limits(queue, time_first=True)

    def enforce_limits(self, queue: TwinQueue, *, time_first: bool = False, came_back: bool = False) -> None:
        """Drop messages over the length limit from the head, then expired ones.

        The other order applies to a message that arrived in an empty queue and was not returned, and with `time_first`.
        """
        if time_first or (len(queue.ready) == 1 and not came_back):
            self.expire(queue)
        while (
            (queue.ready or queue.waiting)
            and self.is_over_limit(queue)
            and (self.rule(queue, "overflow") or "drop-head") == "drop-head"
        ):
            if (queue.group_by or queue.kind == "quorum") and self.dispatch_one(queue):
                continue  # delivery comes before dropping, also for returned messages
            if queue.waiting:
                first = self.first_waiting(queue)
                queue.waiting.remove(first)
                self.dead_letter(queue, first.message, "maxlen")
                if (
                    queue.group_by
                    and self.is_over_limit(queue)
                    and self.next_consumer(queue, self.ready_in_order(queue))
                ):
                    raise Unspecified("the next message is delivered or dropped")
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
        self.dead_letter(queue, head, reason)

    # -- returned messages

    def return_message(self, queue: TwinQueue, message: TwinMessage, failed: bool) -> None:
        """Return a message to the queue. failed: basic.reject, otherwise basic.nack; retry types distinguish them."""
        queue.remove_unacked(message)
        limit = self.rule(queue, "delivery-limit")
        if limit is not None and message.deliveries >= limit:
            self.dead_letter(queue, message, "delivery_limit")
            return
        message.redelivered = True
        message.deliveries += 1
        message.age_uncertain = queue.durable
        if message.age_uncertain and message.ttl_start_ms and message.ttl_start_ms[0] > message.logged_ms:
            message.ttl_start_ms = []  # the log's time may apply again
        delay_ms = self.delay_ms(queue, failed, message.deliveries)
        due_ms = self.due_ms(queue, message) if delay_ms else None
        if due_ms is not None:
            delay_ms = min(delay_ms, due_ms - self.now_ms)
        if delay_ms > 0:
            queue.waiting.append(Waiting(self.now_ms + delay_ms, message))
        else:
            queue.ready.append(message)
        self.enforce_limits(queue, came_back=True)

    def delay_ms(self, queue: TwinQueue, failed: bool, count: int) -> int:
        """Return the delay of the next try after `count` returns; 0 for none."""
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
        return min(queue.waiting, key=lambda each: (each.due_ms, each.message.position))

    def retry(self, queue: TwinQueue) -> None:
        """Make due messages ready again."""
        due = [each for each in queue.waiting if each.due_ms <= self.now_ms]
        queue.waiting = [each for each in queue.waiting if each.due_ms > self.now_ms]
        expired = any(self.is_expired(queue, message) for message in queue.ready + [each.message for each in due])
        if due and queue.ready and expired:
            raise Unspecified("a retry and an expiry have the same time")
        queue.ready += [each.message for each in due]

    # -- delayed messages

    def delay(self, exchange: str, due_ms: int, message: TwinMessage) -> None:
        headers = dict(message.headers)
        if "x-delay" in headers and int(headers["x-delay"]) > 0:
            headers["x-delay"] = -int(headers["x-delay"])
        if "x-deliver-at" in headers:
            headers["x-delivered-at"] = headers.pop("x-deliver-at")
        self.delayed.append((due_ms, exchange, replace(message, headers=headers, ttl_start_ms=[])))
        self.delayed.sort(key=lambda each: each[0])

    def release(self) -> None:
        """Route due delayed messages."""
        while self.delayed and self.delayed[0][0] <= self.now_ms:
            _, exchange, message = self.delayed.pop(0)
            self.dead.append((f"exchange {exchange}", exchange, True, message))

    # -- numbered messages

    def has_older(self, result: RouteResult, producer: int, epoch: int) -> bool:
        """Return whether a queue knows a later epoch of the producer."""
        known = [self.queues[name].producers.get(producer) for name in result.queues]
        return any(each is not None and epoch < each[0] for each in known)

    def offer_numbered(
        self, result: RouteResult, message: TwinMessage, producer: int, epoch: int, sequence: int
    ) -> bool:
        """Send a numbered message to its queues, except those that have it. Return False if a queue refused it."""
        taken = []
        for name in result.queues:
            queue = self.queues[name]
            last = queue.producers.get(producer)
            if last is not None and (epoch, sequence) <= last:
                continue
            taken.append(self.offer(name, message))
            if taken[-1]:
                queue.producers[producer] = (epoch, sequence)
        self.remember(result, message, all(taken), self.is_stored(result, message))
        return all(taken)

    # -- dead letters

    def dead_letter(self, queue: TwinQueue, message: TwinMessage, reason: str) -> None:
        """Remove a message and decide where its dead letter goes; it is routed at the end of this moment."""
        queue.note_settled(message)
        exchange = self.rule(queue, "dead-letter-exchange")
        if exchange is None or (exchange != "" and exchange not in self.exchanges):
            return
        key = self.rule(queue, "dead-letter-routing-key")
        death = Death(queue.name, reason, message.exchange, (message.key,), message.expiration)
        others = []
        for each in message.deaths:
            if (each.queue, each.reason) == (queue.name, reason):
                death = replace(each, count=each.count + 1)
            else:
                others.append(each)
        deaths = (death, *others)
        first = message.first or (queue.name, reason, message.exchange)
        changed = replace(message, deaths=deaths, first=first, expiration="", redelivered=False, deliveries=0)
        changed.headers = {name: value for name, value in message.headers.items() if name not in NUMBERS}
        changed.ttl_start_ms = []
        changed.exchange = exchange
        changed.key = message.key if key is None else key
        self.dead.append((queue.name, exchange, False, changed))

    @staticmethod
    def runs_in_circles(name: str, deaths: tuple[Death, ...]) -> bool:
        """Return whether it died in that queue before and was not rejected since."""
        indexes = [index for index, death in enumerate(deaths) if death.queue == name]
        return bool(indexes) and all(death.reason != "rejected" for death in deaths[: indexes[0] + 1])

    def route_dead_letters(self) -> None:
        """Route dead letters until none is left. Raises: Unspecified."""
        for queue in self.queues.values():
            queue.sources.clear()
        steps = 0
        self.dispatch_all()
        while self.dead:
            steps += 1
            if steps > 200:
                raise Unspecified("an endless loop")
            source, exchange, was_delayed, message = self.dead.popleft()
            result = self.route(exchange, message.key, message.headers, exchange if was_delayed else "")
            if not was_delayed:
                result.queues = [name for name in result.queues if not self.runs_in_circles(name, message.deaths)]
            for name in result.queues:
                queue = self.queues[name]
                queue.sources.add(source)
                if len(queue.sources) > 1:
                    raise Unspecified(f"dead letters of {sorted(queue.sources)} meet in {name}")
            self.offer_all(result, message)
            if not self.dead:
                self.dispatch_all()

    # -- restarts

    def restart(self, *, clean: bool) -> None:
        """Keep what is durable, and requeue unacked messages. Dead letters were already routed."""
        for queue in self.queues.values():
            for message, _ in queue.unacked:
                message.redelivered = True
                queue.ready.append(message)
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
            messages = queue.ready + [each.message for each in queue.waiting]
            queue.lost += [each for each in messages if not is_kept(queue, each)]
            queue.ready = [each for each in queue.ready if is_kept(queue, each)]
            queue.reads_from_log = bool(queue.ready)
            queue.lost += [each for each in queue.settled if not is_kept(queue, each)]
            queue.settled = [each for each in queue.settled if is_kept(queue, each)]
            queue.waiting = [each for each in queue.waiting if is_kept(queue, each.message)]
            if queue.group_by:
                queue.ready += [each.message for each in queue.waiting]
                queue.waiting.clear()
            for message in queue.settled + [each.message for each in queue.waiting]:
                message.ttl_start_ms = [message.logged_ms]
            for message in queue.ready:
                message.ttl_start_ms = [message.logged_ms]
                if not clean and queue.delivered and not message.redelivered:
                    message.redelivered = None
            if self.rule(queue, "message-ttl") is None and queue.kind != "stream":
                head = self.head(queue)
                if any(message.expiration and message is not head for message in queue.ready):
                    raise Unspecified("an expiration that was not read yet, behind other messages")

        for exchange in self.exchanges.values():
            exchange.history.clear()
            exchange.seen = {ident: seen for ident, seen in exchange.seen.items() if seen.stored}
        self.delayed = [each for each in self.delayed if each[1] in self.exchanges and each[2].persistent]
        if not clean:
            for _, _, message in self.delayed:
                message.optional_headers = (RELEASED,)

    # -- time

    def advance(self, ms: int) -> None:
        """Advance the time step by step: each message expires, is released or retried at its time. Raises:
        Unspecified.
        """
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
                self.enforce_limits(queue)
            self.route_dead_letters()
        self.now_ms = end_ms
