"""Consumers with filters beside a naive twin that keeps a list: whatever comes, goes, comes back, is purged or killed.

The twin asks of each delivery that it is the first ready message that its consumer wants, that nobody of a higher
priority wants it and can take it, and that between two deliveries to one consumer every other one that wanted the
second and could have taken it has had one. When the loop is at rest, nobody who can take is left waiting, and the
counts are those of the list. Windows in memory hold a handful of messages. Where slices are short, whose turn it is
among several is not asked: who is behind is passed over.
"""

from __future__ import annotations

import os

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from profiles import examples
from taker import Taker, take
from taker_model import TakerMachine, beside_a_twin

EXAMPLES = int(os.environ.get("FILTER_EXAMPLES", examples(60)))
COLOURS = ("red", "green", "blue", "grey")
# What a consumer may want, and what that is.
WANTED: dict[str, set[str]] = {
    "": set(COLOURS),
    "colour = 'red'": {"red"},
    "colour = 'green'": {"green"},
    "colour IN ('red', 'blue')": {"red", "blue"},
    "colour <> 'grey'": {"red", "green", "blue"},
    "colour = 'black'": set(),
}


class Held:
    """A message as the twin sees it."""

    def __init__(self, body: bytes, colour: str) -> None:
        self.body = body
        self.colour = colour
        self.delivered = False
        self.killed = False  # the broker may have forgotten that it was not delivered
        self.number = int(body[:6])


class FilterMachine(TakerMachine):
    @initialize(
        durable=st.booleans(),
        active=st.sampled_from([False] * 3 + [True]),
        window=st.sampled_from([2, 5, 1000]),
        slow=st.booleans(),
        backlog=st.sampled_from([0, 0, 150]),
    )
    def begin(self, durable: bool, active: bool, window: int, slow: bool, backlog: int) -> None:
        self.room = type(self).memory_room()
        self.durable = durable
        self.active = active
        self.window = window
        self.queue = self.room.queue("q", durable=durable, **({"x_single_active_consumer": True} if active else {}))
        self.open()
        self.ready: list[Held] = []
        self.unacked: dict[Taker, list[Held]] = {}
        self.takers: list[Taker] = []
        # The number of its last delivery; since which it has been able to take.
        self.served: dict[Taker, int] = {}
        self.able_since: dict[Taker, int] = {}
        self.wrong: AssertionError | None = None
        self.count = 0
        self.deliveries = 0
        # A slice is over with the first look at the clock: a filter that comes late is behind for many turns.
        self.slow = slow
        self.room.clock.per_look_ms = 10 if slow else 0
        if backlog:
            self.publish(["grey"] * (backlog - 1) + ["green"], 8, False)

    # -- what is delivered

    def wants(self, taker: Taker) -> set[str]:
        selector = taker.arguments.selector
        return WANTED["" if selector is None else selector.text]

    def may_take(self, taker: Taker) -> bool:
        """As the twin counts; `got` is called when the consumer has counted already."""
        if self.active and self.takers[0] is not taker:
            return False
        return taker.credit == 0 or len(self.unacked[taker]) < taker.credit

    def got(self, taker: Taker, body: bytes, redelivered: bool) -> None:
        first = next((held for held in self.ready if held.colour in self.wants(taker)), None)
        assert first is not None, (body, "nothing of the kind is ready")
        assert first.body == body, "the order of the queue"
        assert first.delivered == redelivered or (first.killed and redelivered)
        assert self.may_take(taker)
        for other in self.takers:
            if self.slow or other is taker or first.colour not in self.wants(other) or not self.may_take(other):
                continue
            assert other.priority <= taker.priority, "priority"
            if other.priority == taker.priority and taker in self.served and other in self.able_since:
                before = self.served[taker]
                assert self.able_since[other] >= before or self.served.get(other, 0) > before, "turn"
        self.ready.remove(first)
        first.delivered = True
        self.deliveries += 1
        self.served[taker] = self.deliveries
        if not taker.no_ack:
            self.unacked[taker].append(first)
        self.note_able()

    def note_able(self) -> None:
        """Since which delivery each can take."""
        for taker in self.takers:
            if not self.may_take(taker):
                self.able_since.pop(taker, None)
            else:
                self.able_since.setdefault(taker, self.deliveries)

    # -- what happens

    @rule(
        colours=st.lists(st.sampled_from(COLOURS), min_size=1, max_size=12),
        size=st.sampled_from([8, 8, 300]),
        turn=st.booleans(),
    )
    def publish(self, colours: list[str], size: int, turn: bool) -> None:
        for colour in colours:
            self.count += 1
            body = b"%06d" % self.count + b"." * (size - 6)
            self.ready.append(Held(body, colour))
            self.room.publish("q", body, headers={"colour": colour}, turn=turn)
        self.rest()

    @rule(
        wanted=st.sampled_from(list(WANTED)),
        credit=st.sampled_from([0, 1, 2, 5]),
        priority=st.sampled_from([0, 0, 0, 3]),
        no_ack=st.sampled_from([False, False, False, True]),
    )
    def consume(self, wanted: str, credit: int, priority: int, no_ack: bool) -> None:
        if len(self.takers) >= 6:
            return
        taker = None

        def got(who: Taker, body: bytes, redelivered: bool) -> None:
            if who not in self.unacked:
                self.join(who)
            try:
                self.got(who, body, redelivered)
            except AssertionError as error:  # the pump's caller would take it for a bug in amqpd
                self.wrong = self.wrong or error

        taker = take(self.room, self.queue, wanted, credit, priority=priority, no_ack=no_ack, turn=False, when_got=got)
        if taker not in self.unacked:
            self.join(taker)
        self.rest()

    def join(self, taker: Taker) -> None:
        self.takers.append(taker)
        self.unacked[taker] = []
        self.note_able()

    @precondition(lambda self: self.takers)
    @rule(which=st.integers(0, 5), requeue=st.booleans())
    def cancel(self, which: int, requeue: bool) -> None:
        taker = self.takers.pop(which % len(self.takers))
        self.able_since.pop(taker, None)
        held = self.unacked[taker]
        taker.leave(requeue)
        if requeue:
            self.back(held)
            self.unacked.pop(taker)
        self.rest()

    def back(self, held: list[Held]) -> None:
        self.ready = sorted([*self.ready, *held], key=lambda each: each.number)

    def holders(self) -> list[Taker]:
        return [taker for taker, held in self.unacked.items() if held]

    @precondition(lambda self: self.holders())
    @rule(who=st.integers(0, 5), which=st.integers(0, 5), what=st.sampled_from(["ack", "ack", "requeue", "reject"]))
    def answer(self, who: int, which: int, what: str) -> None:
        holders = self.holders()
        taker = holders[who % len(holders)]
        held = self.unacked[taker].pop(which % len(self.unacked[taker]))
        index = which % len(taker.entries)
        if what == "requeue":
            self.back([held])
        getattr(taker, what)(index)
        self.rest()

    @precondition(lambda self: self.holders())
    @rule(who=st.integers(0, 5), requeue=st.booleans())
    def answer_all(self, who: int, requeue: bool) -> None:
        holders = self.holders()
        taker = holders[who % len(holders)]
        held = self.unacked[taker][:]
        self.unacked[taker].clear()
        if requeue:
            self.back(held)
        for _ in held:
            if requeue:
                taker.requeue()
            else:
                taker.ack()
        self.rest()

    @rule()
    def get(self) -> None:
        self.rest()
        got = self.room.get(self.queue)
        if not self.ready:
            assert got is None
            return
        held = self.ready.pop(0)
        assert got is not None
        assert got.body == held.body
        assert got.redelivered == held.delivered or (held.killed and got.redelivered)
        self.rest()

    def killed(self) -> None:
        for held in self.unacked.values():
            self.back(held)
        for each in self.ready:
            each.killed = True
        self.served.clear()
        self.able_since.clear()

    # -- at rest

    def rest(self) -> None:
        self.note_able()
        self.room.turn.schedule()
        self.room.turns()
        if self.wrong is not None:
            raise self.wrong
        assert not self.room.pump_retries._waiting
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.ready_bytes == sum(len(held.body) for held in self.ready)
        assert self.queue.unacked_count == sum(len(held) for held in self.unacked.values())
        for taker in self.takers:
            if self.may_take(taker):
                assert not [held for held in self.ready if held.colour in self.wants(taker)], "left waiting"
        filters = self.queue.filters
        if filters is None:
            return
        served = self.takers[:1] if self.active else self.takers
        if served and all(self.may_take(taker) for taker in served):
            wanted = set().union(*(self.wants(taker) for taker in served))
            assert filters.unmatched_count() == len([held for held in self.ready if held.colour not in wanted])

    @invariant()
    def few_filters(self) -> None:
        if hasattr(self, "queue") and self.queue.filters is not None:
            wanted = {taker.arguments.selector for taker in self.takers} - {None}
            assert len(self.queue.filters.order.cursors) == len(wanted)


def test_filters_beside_a_naive_twin(memory_room) -> None:
    beside_a_twin(FilterMachine, memory_room, EXAMPLES)
