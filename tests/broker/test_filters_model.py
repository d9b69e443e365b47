"""Consumers with filters against a model that keeps a list of ready messages.

Events: publish, consume, cancel, ack, requeue, reject, get, purge, kill.

The model checks each delivery:

- The message is the first ready one that matches the consumer's filter.
- No consumer of higher priority matches it and has credit.
- Round robin: between two deliveries to one consumer, every other consumer that matches the second message and had
  credit all the time got a message. With short slices the last two are not checked: a filter that is behind is passed
  over.

When the loop is idle, no consumer with credit has a matching message left, and the counts equal those of the list. The
window in memory holds few messages.
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
# Filters of consumers, and the colours that match.
FILTERS: dict[str, set[str]] = {
    "": set(COLOURS),
    "colour = 'red'": {"red"},
    "colour = 'green'": {"green"},
    "colour IN ('red', 'blue')": {"red", "blue"},
    "colour <> 'grey'": {"red", "green", "blue"},
    "colour = 'black'": set(),
}


class ModelMessage:
    """A message of the model."""

    def __init__(self, body: bytes, colour: str) -> None:
        self.body = body
        self.colour = colour
        self.delivered = False
        self.killed = False  # after a kill the broker may mark it as redelivered
        self.number = int(body[:6])


class FilterMachine(TakerMachine):
    @initialize(
        durable=st.booleans(),
        single_active=st.sampled_from([False] * 3 + [True]),
        window=st.sampled_from([2, 5, 1000]),
        short_slices=st.booleans(),
        backlog=st.sampled_from([0, 0, 150]),
    )
    def begin(self, durable: bool, single_active: bool, window: int, short_slices: bool, backlog: int) -> None:
        self.room = type(self).memory_room()
        self.durable = durable
        self.single_active = single_active
        self.window = window
        self.queue = self.room.queue(
            "q", durable=durable, **({"x_single_active_consumer": True} if single_active else {})
        )
        self.open()
        self.ready: list[ModelMessage] = []
        self.unacked: dict[Taker, list[ModelMessage]] = {}
        self.takers: list[Taker] = []
        # Number of the last delivery; number of the delivery since which the consumer has had credit.
        self.served: dict[Taker, int] = {}
        self.credit_since: dict[Taker, int] = {}
        self.violation: AssertionError | None = None
        self.count = 0
        self.deliveries = 0
        # A slice ends with the first reading of the clock, so a new filter is behind for many turns.
        self.short_slices = short_slices
        self.room.clock.per_look_ms = 10 if short_slices else 0
        if backlog:
            self.publish(["grey"] * (backlog - 1) + ["green"], 8, False)

    # -- checks of deliveries

    def matching_colours(self, taker: Taker) -> set[str]:
        selector = taker.arguments.selector
        return FILTERS["" if selector is None else selector.text]

    def may_take(self, taker: Taker) -> bool:
        """Return whether the consumer has credit, by the model's counts. `got` runs after the consumer has counted."""
        if self.single_active and self.takers[0] is not taker:
            return False
        return taker.credit == 0 or len(self.unacked[taker]) < taker.credit

    def got(self, taker: Taker, body: bytes, redelivered: bool) -> None:
        first = next((held for held in self.ready if held.colour in self.matching_colours(taker)), None)
        assert first is not None, (body, "no matching message is ready")
        assert first.body == body, "not the first matching message"
        assert first.delivered == redelivered or (first.killed and redelivered)
        assert self.may_take(taker)
        for other in self.takers:
            if (
                self.short_slices
                or other is taker
                or first.colour not in self.matching_colours(other)
                or not self.may_take(other)
            ):
                continue
            assert other.priority <= taker.priority, "a consumer of higher priority was passed over"
            if other.priority == taker.priority and taker in self.served and other in self.credit_since:
                before = self.served[taker]
                assert self.credit_since[other] >= before or self.served.get(other, 0) > before, (
                    "round robin: this consumer was passed over"
                )
        self.ready.remove(first)
        first.delivered = True
        self.deliveries += 1
        self.served[taker] = self.deliveries
        if not taker.no_ack:
            self.unacked[taker].append(first)
        self.record_credit()

    def record_credit(self) -> None:
        """Record since which delivery each consumer has had credit."""
        for taker in self.takers:
            if not self.may_take(taker):
                self.credit_since.pop(taker, None)
            else:
                self.credit_since.setdefault(taker, self.deliveries)

    # -- events

    @rule(
        colours=st.lists(st.sampled_from(COLOURS), min_size=1, max_size=12),
        size=st.sampled_from([8, 8, 300]),
        turn=st.booleans(),
    )
    def publish(self, colours: list[str], size: int, turn: bool) -> None:
        for colour in colours:
            self.count += 1
            body = b"%06d" % self.count + b"." * (size - 6)
            self.ready.append(ModelMessage(body, colour))
            self.room.publish("q", body, headers={"colour": colour}, turn=turn)
        self.rest()

    @rule(
        selector=st.sampled_from(list(FILTERS)),
        credit=st.sampled_from([0, 1, 2, 5]),
        priority=st.sampled_from([0, 0, 0, 3]),
        no_ack=st.sampled_from([False, False, False, True]),
    )
    def consume(self, selector: str, credit: int, priority: int, no_ack: bool) -> None:
        if len(self.takers) >= 6:
            return
        taker = None

        def got(delivered_to: Taker, body: bytes, redelivered: bool) -> None:
            if delivered_to not in self.unacked:
                self.add_consumer(delivered_to)
            try:
                self.got(delivered_to, body, redelivered)
            except AssertionError as error:  # the broker would log it as a bug of its own
                self.violation = self.violation or error

        taker = take(
            self.room, self.queue, selector, credit, priority=priority, no_ack=no_ack, turn=False, when_got=got
        )
        if taker not in self.unacked:
            self.add_consumer(taker)
        self.rest()

    def add_consumer(self, taker: Taker) -> None:
        self.takers.append(taker)
        self.unacked[taker] = []
        self.record_credit()

    @precondition(lambda self: self.takers)
    @rule(consumer_index=st.integers(0, 5), requeue=st.booleans())
    def cancel(self, consumer_index: int, requeue: bool) -> None:
        taker = self.takers.pop(consumer_index % len(self.takers))
        self.credit_since.pop(taker, None)
        held = self.unacked[taker]
        taker.leave(requeue)
        if requeue:
            self.return_to_ready(held)
            self.unacked.pop(taker)
        self.rest()

    def return_to_ready(self, held: list[ModelMessage]) -> None:
        self.ready = sorted([*self.ready, *held], key=lambda each: each.number)

    def consumers_with_unacked(self) -> list[Taker]:
        return [taker for taker, held in self.unacked.items() if held]

    @precondition(lambda self: self.consumers_with_unacked())
    @rule(
        consumer_index=st.integers(0, 5),
        message_index=st.integers(0, 5),
        response=st.sampled_from(["ack", "ack", "requeue", "reject"]),
    )
    def respond(self, consumer_index: int, message_index: int, response: str) -> None:
        consumers_with_unacked = self.consumers_with_unacked()
        taker = consumers_with_unacked[consumer_index % len(consumers_with_unacked)]
        held = self.unacked[taker].pop(message_index % len(self.unacked[taker]))
        index = message_index % len(taker.entries)
        if response == "requeue":
            self.return_to_ready([held])
        getattr(taker, response)(index)
        self.rest()

    @precondition(lambda self: self.consumers_with_unacked())
    @rule(consumer_index=st.integers(0, 5), requeue=st.booleans())
    def respond_all(self, consumer_index: int, requeue: bool) -> None:
        consumers_with_unacked = self.consumers_with_unacked()
        taker = consumers_with_unacked[consumer_index % len(consumers_with_unacked)]
        held = self.unacked[taker][:]
        self.unacked[taker].clear()
        if requeue:
            self.return_to_ready(held)
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
            self.return_to_ready(held)
        for each in self.ready:
            each.killed = True
        self.served.clear()
        self.credit_since.clear()

    # -- checks of the idle queue

    def rest(self) -> None:
        self.record_credit()
        self.room.turn.schedule()
        self.room.turns()
        if self.violation is not None:
            raise self.violation
        assert not self.room.pump_retries._waiting
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.ready_bytes == sum(len(held.body) for held in self.ready)
        assert self.queue.unacked_count == sum(len(held) for held in self.unacked.values())
        for taker in self.takers:
            if self.may_take(taker):
                assert not [held for held in self.ready if held.colour in self.matching_colours(taker)], (
                    "a matching message is not delivered"
                )
        filters = self.queue.filters
        if filters is None:
            return
        served = self.takers[:1] if self.single_active else self.takers
        if served and all(self.may_take(taker) for taker in served):
            matched = set().union(*(self.matching_colours(taker) for taker in served))
            assert filters.unmatched_count() == len([held for held in self.ready if held.colour not in matched])

    @invariant()
    def one_cursor_per_filter(self) -> None:
        if hasattr(self, "queue") and self.queue.filters is not None:
            selectors = {taker.arguments.selector for taker in self.takers} - {None}
            assert len(self.queue.filters.order.cursors) == len(selectors)


def test_filters_against_model(memory_room) -> None:
    beside_a_twin(FilterMachine, memory_room, EXAMPLES)
