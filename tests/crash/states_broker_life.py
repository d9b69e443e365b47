"""The actions of a broker in one life, recorded in the ledger as a client would know them.

A publish is promised when it is confirmed; a delivery counts from the end of the turn that writes to sockets.
"""

from __future__ import annotations

from typing import Any, Final

from states_broker_ledger import ASKED, NONE, SAFE, WRITTEN, Place, Sent
from states_broker_process import VHOST, Process
from states_ledger import Violation

from amqpd.broker.consumer import LogNotOpen, QueueEntry
from amqpd.broker.delayed.listing import cancel, next_due
from amqpd.broker.jobs.jobs import JobRequest
from amqpd.broker.message import Message
from amqpd.broker.publish.route import Route
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.routing.selector import parse_selector

ROUNDS_MAX: Final = 3000


class BrokerLife(Process):
    """A life of the broker with the actions of its clients; see `Process`."""

    # -- declarations

    def queue(self, name: str, **arguments: object) -> None:
        """Declare a durable queue, if it does not exist."""
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        if name not in self.vhost.queues:
            declare.declare_queue(self.vhost, QueueDeclaration(name, True, False, False, table), _done)
            self.turns()
        if "x-group-by" in table:
            self.ledger.groups.add(name)

    def exchange(self, name: str, kind: str, queue: str, **arguments: object) -> None:
        """Declare a durable exchange bound to a queue, if they do not exist."""
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        if name not in self.vhost.exchanges:
            declare.declare_exchange(self.vhost, ExchangeDeclaration(name, kind, True, False, False, table), _done)
            self.turns()
        if not self.vhost.exchanges[name].bindings:
            declare.bind(self.vhost, self.vhost.exchanges[name], self.vhost.queues[queue], "", {})
            self.turns()

    def delete_exchange(self, name: str) -> None:
        """Delete the exchange with its delayed messages; after the answer none of them may come."""
        self.turns()
        deleted = [
            each
            for each in self.ledger.sent.values()
            if each.due_ms > self.clock.now_ms and f"wheel {name}" in each.places and not each.over
        ]
        self.ledger.version += 1
        for each in deleted:
            each.over = True
            for place in each.places.values():
                place.path, place.left, place.asked_ms = "", ASKED, 0  # no settlement records it

        def answered(error: BaseException | None) -> None:
            _done(error)
            self.ledger.version += 1
            for each in deleted:
                for place in each.places.values():
                    place.left = SAFE

        declare.delete_exchange(self.vhost, self.vhost.exchanges[name], False, answered)
        self.turns()
        assert all(place.left == SAFE for each in deleted for place in each.places.values())

    # -- messages

    def path(self, queue: str) -> str:
        return f"{VHOST}/queues/{self.vhost.queues[queue].id}/"

    def open(self, queue: str) -> Queue:
        found = self.vhost.queues[queue]
        for _ in range(ROUNDS_MAX):
            try:
                found.prepare()
            except LogNotOpen:
                self.turns()
            else:
                return found
        raise Violation(f"queue {queue} is never opened")

    def publish(
        self,
        exchange: str,
        queue: str,
        size: int = 20,
        *,
        delay_ms: int = 0,
        group: str = "",
        numbers: tuple[int, int, int] | None = None,
        known: bool = False,
    ) -> Sent:
        """Publish one message to this queue, without ending the turn.

        delay_ms: it is delayed by the exchange. known: the exchange remembers its id.
        """
        ledger = self.ledger
        number = ledger.number
        ledger.number += 1
        body = b"%s%d." % (self.prefix, number)
        key = queue if exchange == "" else ""
        sent = Sent(number, body.ljust(size, b"-"), exchange, key, queue)
        sent.group, sent.numbers, sent.known_by = group, numbers, exchange if known else ""
        sent.places[queue] = Place(self.path(queue))
        if delay_ms:
            sent.due_ms = self.clock.now_ms + delay_ms
            sent.places[queue].promise = NONE
            sent.places[f"wheel {exchange}"] = Place(f"{VHOST}/delays/")
        ledger.sent[sent.body] = sent
        self.send(sent, delay_ms)
        return sent

    def send(self, sent: Sent, delay_ms: int = 0, *, other: bool = False) -> None:
        """Publish the message, also again. other: on another channel."""
        headers: dict[str, Any] = {"n": sent.number % 2}
        if delay_ms:
            headers["x-delay"] = delay_ms
        if sent.group:
            headers["group"] = sent.group
        if sent.numbers is not None:
            headers["x-producer-id"], headers["x-producer-epoch"], headers["x-sequence"] = sent.numbers
        if sent.known_by:
            headers["x-deduplication-header"] = f"id {sent.number}"
        properties = encode_properties(Properties(delivery_mode=2, headers=headers))
        route, message = self.compose(sent, properties)
        self.ledger.version += 1
        sent.turn = self.turn.number
        sent.times += not sent.was_confirmed
        if not self.publisher.offer(route, message):
            raise Violation(f"{sent} is refused")
        answers = self.others if other else self.answers
        answers.add(route, message)
        answers.waiting[answers.sequence] = sent
        self._offered.append(sent)
        self.turn.schedule()

    def compose(self, sent: Sent, properties: bytes) -> tuple[Route, Message]:
        for _ in range(ROUNDS_MAX):
            try:
                message = self.publisher.compose(sent.exchange, sent.key, properties, sent.body)
            except LogNotOpen:
                self.turns()
            else:
                return self.publisher.route, message
        raise Violation("a queue is never opened")

    def repeat(self) -> None:
        """Publish the unconfirmed messages of the publishers again."""
        for sent in self.ledger.repeated():
            if not sent.was_confirmed:
                self.send(sent)
        self.turns()

    # -- consumers

    def take(self, queue: str, count: int = 1 << 30) -> list[Sent]:
        """Get messages with basic.get, without acks and without ending the turn."""
        found = self.open(queue)
        taken: list[Sent] = []
        while len(taken) < count:
            entry = found.get(False)
            if entry is None:
                if not found.must_wait():
                    break
                found.when_ready(_nothing)
                self.turns()
                continue
            taken.append(self._took(found, entry))
        self.turn.schedule()
        return taken

    def _took(self, queue: Queue, entry: QueueEntry) -> Sent:
        message = entry.message
        assert message is not None
        sent = self.ledger.sent[message.body()]
        place = sent.places[queue.name]
        now_ms = self.clock.now_ms
        if sent.due_ms > now_ms or (place.wait >= WRITTEN and place.waits_ms > now_ms):
            raise Violation(f"{sent} comes from {queue.name} before its time, at {now_ms}")
        if queue.name in self.ledger.groups and sent.group:
            self._check_group(queue.name, sent)
        self.ledger.version += 1
        place.maybe_seen = True
        place.wait, place.waits_ms = NONE, 0
        for name, other in sent.places.items():
            if name.startswith("wheel "):
                other.leave(now_ms)
        self._seeing.append((self.turn.number, place))
        self.held.setdefault(sent.body, []).append((queue, entry))
        return sent

    def released(self, sent: Sent) -> tuple[Queue, QueueEntry]:
        """Return and forget a taken copy of the message. A crash may release a delayed message twice."""
        copies = self.held[sent.body]
        taken = copies.pop()
        if not copies:
            del self.held[sent.body]
        return taken

    def _check_group(self, queue: str, sent: Sent) -> None:
        """Check that all earlier messages of its group are settled."""
        for other in self.ledger.sent.values():
            place = other.places.get(queue)
            if other.group == sent.group and other.number < sent.number and place is not None and place.left == NONE:
                raise Violation(f"{sent} of group {sent.group} comes before {other}")

    def ack(self, taken: list[Sent]) -> None:
        self.ledger.version += 1
        for sent in taken:
            queue, entry = self.released(sent)
            sent.over, sent.rewound, sent.acked_in = True, 0, 0
            sent.places[queue.name].leave(self.clock.now_ms)
            queue.ack(entry)
        self.turn.schedule()

    def requeue(self, taken: list[Sent], wait_ms: int = 0) -> None:
        """wait_ms: retry delay of each message, times its count of returns."""
        self.ledger.version += 1
        for sent in taken:
            queue, entry = self.released(sent)
            place = sent.places[queue.name]
            place.count += 1
            place.wait = ASKED
            place.waits_ms = self.clock.now_ms + wait_ms * place.count if wait_ms else 0
            queue.requeue(entry, True)
            queue.schedule_dispatch()
        self.turn.schedule()
        self.turns()
        for sent in taken:
            for place in sent.places.values():
                place.wait = WRITTEN if place.wait == ASKED else place.wait
        self._rested()

    def reject(self, taken: list[Sent], dead: str) -> None:
        """Reject the messages; they go to the dead-letter queue."""
        self.ledger.version += 1
        for sent in taken:
            queue, entry = self.released(sent)
            place = sent.places.setdefault(dead, Place(self.path(dead)))
            place.left = NONE
            sent.places[queue.name].leave(self.clock.now_ms)
            queue.reject(entry)
        self.turn.schedule()
        self.turns()
        self._there(taken, dead)

    def _there(self, moved: list[Sent], place: str) -> None:
        self.ledger.version += 1
        for sent in moved:
            sent.places[place].promise = max(sent.places[place].promise, WRITTEN)
            sent.places[place].seen = False
        self._rested()

    # -- jobs

    def job(self, verb: str, source: str, target: str | None = None, where: str = "") -> None:
        """Run move, copy, delete or redrive on all ready messages of `source` that match `where` (on header `n`, 0
        or 1).
        """
        queue = self.open(source)
        if target is not None:
            self.open(target)
        for name in dict.fromkeys(each.queue for each in self.ledger.sent.values()):
            self.open(name)
        moved = []
        for sent in self.ledger.sent.values():
            place = sent.places.get(source)
            if place is None or place.left != NONE or (sent.body in self.held and verb != "copy"):
                continue
            if max(sent.due_ms, place.waits_ms) > self.clock.now_ms:
                continue  # not ready
            if not where or where == f"n = {sent.number % 2}":
                moved.append(sent)
        self.ledger.version += 1
        now_ms = self.clock.now_ms
        goals = {sent.body: target or sent.queue for sent in moved}
        for sent in moved:
            if verb != "delete":
                goal = sent.places.setdefault(goals[sent.body], Place(self.path(goals[sent.body])))
                if goal.left != NONE:  # it was there before and is settled there
                    goal.left, goal.asked_ms, goal.promise, goal.seen = ASKED, 0, NONE, False
            else:
                sent.over = True
            if verb != "copy":
                sent.places[source].leave(now_ms)
                sent.places[source].asked_ms = 0
        selector = parse_selector(where) if where else None
        job = self.jobs.begin(JobRequest(verb, self.vhost, queue, target, selector=selector))
        self._end(job)
        if job.done_count != len(moved):
            raise Violation(f"{verb} has done {job.done_count} of {len(moved)}")
        self.ledger.version += 1
        for sent in moved:
            if verb != "copy":
                sent.places[source].asked_ms = self.clock.now_ms
            if verb != "delete":
                sent.places[goals[sent.body]].left = NONE
                self._there([sent], goals[sent.body])
        self._rested()

    def rewind(self, queue: str) -> None:
        """Rewind the queue: all its settled messages are ready again."""
        found = self.open(queue)
        self.rest()
        number = max(self.ledger.rewinds, default=0) + 1
        back = [
            each
            for each in self.ledger.sent.values()
            if queue in each.places and each.places[queue].left != NONE and each.body not in self.held
        ]
        together = [each for each in back if each.places[queue].left == SAFE]
        self.ledger.version += 1
        self.ledger.rewinds[number] = False
        for each in back:
            each.places[queue].left, each.places[queue].asked_ms = ASKED, 0
        for each in together:
            each.rewound = number
        job = self.jobs.begin(JobRequest("rewind", self.vhost, found))
        self._end(job)
        self.ledger.version += 1
        if job.done_count != len(back):
            raise Violation(f"{job.done_count} of {len(back)} were rewound")
        del self.ledger.rewinds[number]
        for each in back:
            each.rewound, each.over, each.promise = 0, False, SAFE
            place = each.places[queue]
            place.left, place.promise, place.seen = NONE, SAFE, True

    def _end(self, job: Any) -> None:
        self.turns()
        for _ in range(100):
            if job.ended_ms:
                break
            self.pass_time(20)
        if job.state != "done":
            raise Violation(f"a {job.kind} is {job.state}: {job.reason}")

    def cancel(self, exchange: str, sent: Sent) -> None:
        """Cancel a delayed message."""
        self.turns()
        wheel: Any = self.vhost.exchanges[exchange].wheel
        *_, found = next_due([wheel], 1000)
        assert found is not None
        (one,) = [each for each in found if each.due_ms == sent.due_ms]
        self.ledger.version += 1
        for place in sent.places.values():
            place.path = f"{VHOST}/delays/"
            place.leave(self.clock.now_ms)
        sent.over = True
        *_, done = cancel([wheel], one.due_ms, one.number)
        if done is not True:
            raise Violation(f"{sent} is not there to be cancelled")
        self.turns()


def headers_of(message: Message) -> dict[str, Any]:
    return dict(decode_properties(message.properties()).headers or {})


def _nothing() -> None:
    """Do nothing: the caller asks again."""


def _done(error: BaseException | None) -> None:
    if error is not None:
        raise Violation(f"a declaration fails on a disk that does not: {error}")
