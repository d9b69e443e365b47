"""A queue with groups beside a naive twin that keeps a list: whatever comes, goes, comes back, is purged or killed.

The twin asks of each delivery that its group is free or the consumer's own, that nothing of the group that is ready is
before it, that nobody of a higher priority could have taken what was free, and, where all is in memory, that it is the
oldest message the consumer may have. When the loop is at rest, nobody who can take is left waiting while there is
something that he may have, and the counts are those of the list. Windows in memory hold a handful of messages; where
slices are short, each look at the clock ends one.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from profiles import examples
from taker import Taker, take
from taker_model import TakerMachine, beside_a_twin

from amqpd.broker.message import Message
from amqpd.broker.queue.filtered import MessagePredicate
from amqpd.broker.queue.scan import GroupScan
from amqpd.protocol.properties import decode_properties

EXAMPLES = int(os.environ.get("GROUP_EXAMPLES", examples(80)))
# Of no group: "".
GROUPS = ("a", "b", "c", "d", "")


class Held:
    """A message as the twin sees it."""

    def __init__(self, number: int, body: bytes, group: str) -> None:
        self.number = number
        self.body = body
        self.group = group
        self.delivered = False
        self.killed = False  # the broker may have forgotten that it was not delivered


class Wanted(MessagePredicate):
    """Messages of these groups."""

    def __init__(self, groups: set[str]) -> None:
        self.groups = groups

    def wants(self, message: Message) -> bool:
        return (decode_properties(message.properties()).headers or {}).get("group", "") in self.groups


class GroupMachine(TakerMachine):
    @initialize(
        durable=st.booleans(),
        active=st.sampled_from([False] * 3 + [True]),
        window=st.sampled_from([2, 5, 1000]),
        narrow=st.sampled_from([False, False, True]),
        slow=st.booleans(),
        backlog=st.sampled_from([0, 0, 150]),
        length=st.sampled_from([0, 0, 0, 3, 20]),
    )
    def begin(
        self, durable: bool, active: bool, window: int, narrow: bool, slow: bool, backlog: int, length: int
    ) -> None:
        self.room = type(self).memory_room()
        self.durable = durable
        self.active = active
        self.window = window
        self.narrow = narrow  # few bytes fit
        self.length = length
        arguments: dict[str, object] = {"x_single_active_consumer": True} if active else {}
        if length:
            arguments["x_max_length"] = length
        self.queue = self.room.queue("q", durable=durable, x_group_by="header:group", **arguments)
        self.open()
        self.ready: list[Held] = []
        self.unacked: dict[Taker, list[Held]] = {}
        self.takers: list[Taker] = []
        # By basic.get, not answered yet.
        self.taken: list[tuple[Any, Held]] = []
        self.wrong: AssertionError | None = None
        self.count = 0
        self.slow = slow
        self.room.clock.per_look_ms = 10 if slow else 0
        if backlog:
            self.publish(["a"] * (backlog - 3) + ["b", "", "c"], 8, False)

    def open(self) -> None:
        super().open()
        if self.narrow:
            self.queue.order.memory.bytes_max = 700

    # -- who may have what

    def owner(self, group: str) -> object:
        """Who holds the group: a consumer, or "get"; None: it is free."""
        if group == "":
            return None
        for taker, held in self.unacked.items():
            if any(each.group == group for each in held):
                return taker
        return "get" if any(each.group == group for _, each in self.taken) else None

    def allowed(self, taker: Taker | None) -> list[Held]:
        """What could be given to the consumer next, in order. None: what is free."""
        found, seen = [], set()
        for held in self.ready:
            if held.group in seen:
                continue
            if held.group:
                seen.add(held.group)
            owner = self.owner(held.group)
            if owner is None or owner is taker:
                found.append(held)
        return found

    def may_take(self, taker: Taker) -> bool:
        if self.active and self.takers[0] is not taker:
            return False
        return taker.credit == 0 or len(self.unacked[taker]) < taker.credit

    def got(self, taker: Taker, body: bytes, redelivered: bool) -> None:
        allowed = self.allowed(taker)
        held = next((each for each in allowed if each.body == body), None)
        assert held is not None, (body, "not his, or not the first of its group")
        assert self.may_take(taker)
        if self.queue.grouped.window.passed_count == 0 and not self.slow and self.window == 1000:
            assert held is allowed[0], "the oldest he may have"
        assert held.delivered == redelivered or (held.killed and redelivered)
        if self.owner(held.group) is None:
            for other in self.takers:
                assert other.priority <= taker.priority or not self.may_take(other), "priority"
        self.ready.remove(held)
        held.delivered = True
        self.unacked[taker].append(held)

    # -- what happens

    @rule(
        groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=12),
        size=st.sampled_from([8, 8, 300]),
        turn=st.booleans(),
    )
    def publish(self, groups: list[str], size: int, turn: bool) -> None:
        for group in groups:
            self.count += 1
            body = b"%06d" % self.count + b"." * (size - 6)
            self.ready.append(Held(self.count, body, group))
            self.room.publish("q", body, headers={"group": group} if group else {}, turn=turn)
            self.displaced()
        self.rest()

    def displaced(self) -> None:
        while self.length and len(self.ready) > self.length:
            self.ready.pop(0)

    @rule(credit=st.sampled_from([0, 1, 1, 2, 5]), priority=st.sampled_from([0, 0, 0, 3]))
    def consume(self, credit: int, priority: int) -> None:
        if len(self.takers) >= 6:
            return

        def got(who: Taker, body: bytes, redelivered: bool) -> None:
            if who not in self.unacked:
                self.join(who)
            try:
                self.got(who, body, redelivered)
            except AssertionError as error:  # the pump's caller would take it for a bug in amqpd
                self.wrong = self.wrong or error

        taker = take(self.room, self.queue, credit=credit, priority=priority, turn=False, when_got=got)
        if taker not in self.unacked:
            self.join(taker)
        self.rest()

    def join(self, taker: Taker) -> None:
        self.takers.append(taker)
        self.unacked[taker] = []

    @precondition(lambda self: self.takers)
    @rule(which=st.integers(0, 5), requeue=st.booleans(), backwards=st.booleans())
    def cancel(self, which: int, requeue: bool, backwards: bool) -> None:
        taker = self.takers.pop(which % len(self.takers))
        taker.leave(False)
        if requeue:
            self.requeue_all(taker, backwards)
            self.unacked.pop(taker)
        self.rest()

    def requeue_all(self, taker: Taker, backwards: bool) -> None:
        for left in range(len(taker.entries), 0, -1):
            index = left - 1 if backwards else 0
            self.back(self.unacked[taker].pop(index))
            taker.requeue(index)
            self.displaced()

    def back(self, held: Held) -> None:
        self.ready = sorted([*self.ready, held], key=lambda each: each.number)

    def holders(self) -> list[Taker]:
        return [taker for taker, held in self.unacked.items() if held]

    @precondition(lambda self: self.holders())
    @rule(who=st.integers(0, 5), which=st.integers(0, 5), what=st.sampled_from(["ack", "ack", "requeue", "reject"]))
    def answer(self, who: int, which: int, what: str) -> None:
        holders = self.holders()
        taker = holders[who % len(holders)]
        index = which % len(taker.entries)
        held = self.unacked[taker].pop(index)
        if what == "requeue":
            self.back(held)
        getattr(taker, what)(index)
        self.displaced()
        self.rest()

    @precondition(lambda self: self.holders())
    @rule(who=st.integers(0, 5), requeue=st.booleans(), backwards=st.booleans())
    def answer_all(self, who: int, requeue: bool, backwards: bool) -> None:
        holders = self.holders()
        taker = holders[who % len(holders)]
        if requeue:
            self.requeue_all(taker, backwards)
        else:
            self.unacked[taker].clear()
            taker.ack_all()
        self.rest()

    def get_entry(self, no_ack: bool) -> Any:
        self.rest()
        entry = self.queue.get(no_ack)
        for _ in range(2000):
            if entry is not None or not self.queue.must_wait():
                break
            called: list[bool] = []
            self.queue.when_ready(lambda called=called: called.append(True))
            self.room.turns()
            assert called
            entry = self.queue.get(no_ack)
        allowed = self.allowed(None)
        if not allowed:
            assert entry is None
            return None
        assert entry is not None
        held = next(each for each in allowed if each.body == entry.message.body())
        assert held.delivered == entry.redelivered or (held.killed and entry.redelivered)
        held.delivered = True
        self.ready.remove(held)
        return entry, held

    @rule()
    def get(self) -> None:
        self.get_entry(True)
        self.rest()

    @rule()
    def get_and_hold(self) -> None:
        got = self.get_entry(False)
        if got is not None:
            self.taken.append(got)
        self.rest()

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 5), requeue=st.booleans())
    def answer_get(self, which: int, requeue: bool) -> None:
        entry, held = self.taken.pop(which % len(self.taken))
        if requeue:
            if self.durable:
                entry.message = None
            self.back(held)
            self.queue.requeue(entry, True)
            self.queue.schedule_dispatch()
        else:
            self.queue.ack(entry)
        self.displaced()
        self.rest()

    @rule(
        groups=st.sets(st.sampled_from(GROUPS), min_size=1),
        count=st.integers(1, 4),
        answers=st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def search(self, groups: set[str], count: int, answers: list[bool]) -> None:
        """Somebody who is no consumer takes some out of the middle; what he gives back goes to its place."""
        self.rest()
        search = GroupScan(self.queue, Wanted(groups), lambda: None)
        entries: list[Any] = []
        for _ in range(3000):
            if search.ended or len(entries) >= count:
                break
            search.collect(entries, count - len(entries), 1 << 20)
            self.room.turns()
        wanted = [held for held in self.ready if held.group in groups][:count]
        assert [entry.message.body() for entry in entries] == [held.body for held in wanted]
        for entry, held, settled in zip(entries, wanted, answers, strict=False):
            held.delivered = True
            self.ready.remove(held)
            if settled:
                search.settle(entry)
        for entry, held, settled in zip(entries, wanted, answers, strict=False):
            if not settled:
                self.back(held)
                search.return_message(entry)
                self.displaced()
        search.close()
        self.rest()

    def killed(self) -> None:
        for held in [*self.unacked.values(), [held for _, held in self.taken]]:
            for each in held:
                self.back(each)
        for each in self.ready:
            each.killed = True
        self.taken.clear()
        self.displaced()

    # -- at rest

    def rest(self) -> None:
        self.room.turn.schedule()
        self.room.turns()
        if self.wrong is not None:
            raise self.wrong
        assert not self.room.pump_retries._waiting
        queue = self.queue
        assert queue.ready_count == len(self.ready)
        assert queue.ready_bytes == sum(len(held.body) for held in self.ready)
        assert queue.unacked_count == sum(len(held) for held in self.unacked.values()) + len(self.taken)
        for taker in self.takers:
            if self.may_take(taker):
                assert not self.allowed(taker), "left waiting"
        window = queue.grouped.window
        locked = {held.group for each in self.unacked.values() for held in each if held.group}
        locked |= {held.group for _, held in self.taken if held.group}
        nameless = sum(not held.group for each in self.unacked.values() for held in each)
        nameless += sum(not held.group for _, held in self.taken)
        assert window.locked_count == len(locked) + nameless
        assert set(window.groups) >= locked
        assert set(window.groups) <= locked | {held.group for held in self.ready}
        assert len(window.unacked) == queue.unacked_count


def test_groups_beside_a_naive_twin(memory_room) -> None:
    beside_a_twin(GroupMachine, memory_room, EXAMPLES)
