"""A queue with groups is compared with a naive twin that keeps a list.

The machine publishes, acks, requeues, searches, purges and kills. For each delivery the twin checks:

- the group is free or belongs to the consumer;
- no ready message of the group is before it;
- no consumer of a higher priority could have taken a message of a free group;
- it is the oldest message the consumer may have, if all messages are in memory.

When the loop is idle, no consumer that can take a message is left waiting, and the counts are those of the list.
Memory windows hold a handful of messages. With `slow`, each look at the clock ends a slice.
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
from amqpd.broker.queue.scan import LogScan
from amqpd.protocol.properties import decode_properties

EXAMPLES = int(os.environ.get("GROUP_EXAMPLES", examples(80)))
# "" is no group.
GROUPS = ("a", "b", "c", "d", "")


class TwinMessage:
    """A message in the twin's list."""

    def __init__(self, number: int, body: bytes, group: str) -> None:
        self.number = number
        self.body = body
        self.group = group
        self.delivered = False
        self.killed = False  # the broker may have lost the record that it was not delivered


class GroupPredicate(MessagePredicate):
    """Matches messages of these groups."""

    def __init__(self, groups: set[str]) -> None:
        self.groups = groups

    def wants(self, message: Message) -> bool:
        return (decode_properties(message.properties()).headers or {}).get("group", "") in self.groups


class GroupMachine(TakerMachine):
    @initialize(
        durable=st.booleans(),
        active=st.sampled_from([False] * 3 + [True]),
        window=st.sampled_from([2, 5, 1000]),
        small_memory=st.sampled_from([False, False, True]),
        slow=st.booleans(),
        backlog=st.sampled_from([0, 0, 150]),
        length=st.sampled_from([0, 0, 0, 3, 20]),
    )
    def begin(
        self, durable: bool, active: bool, window: int, small_memory: bool, slow: bool, backlog: int, length: int
    ) -> None:
        self.room = type(self).memory_room()
        self.durable = durable
        self.active = active
        self.window = window
        self.small_memory = small_memory  # only a few bytes fit in memory
        self.length = length
        arguments: dict[str, object] = {"x_single_active_consumer": True} if active else {}
        if length:
            arguments["x_max_length"] = length
        self.queue = self.room.queue("q", durable=durable, x_group_by="header:group", **arguments)
        self.open()
        self.ready: list[TwinMessage] = []
        self.unacked: dict[Taker, list[TwinMessage]] = {}
        self.takers: list[Taker] = []
        # Taken by basic.get and unacked.
        self.taken: list[tuple[Any, TwinMessage]] = []
        self.delivery_error: AssertionError | None = None
        self.count = 0
        self.slow = slow
        self.room.clock.per_look_ms = 10 if slow else 0
        if backlog:
            self.publish(["a"] * (backlog - 3) + ["b", "", "c"], 8, False)

    def open(self) -> None:
        super().open()
        if self.small_memory:
            self.queue.order.memory.bytes_max = 700

    # -- which consumer may have which message

    def owner(self, group: str) -> object:
        """Return the group's owner: a consumer, or "get" for basic.get. None: the group is free."""
        if group == "":
            return None
        for consumer, messages in self.unacked.items():
            if any(each.group == group for each in messages):
                return consumer
        return "get" if any(each.group == group for _, each in self.taken) else None

    def allowed(self, consumer: Taker | None) -> list[TwinMessage]:
        """Return the messages that the consumer may get next, in order. None as consumer: those of free groups."""
        found, seen = [], set()
        for message in self.ready:
            if message.group in seen:
                continue
            if message.group:
                seen.add(message.group)
            owner = self.owner(message.group)
            if owner is None or owner is consumer:
                found.append(message)
        return found

    def may_take(self, consumer: Taker) -> bool:
        if self.active and self.takers[0] is not consumer:
            return False
        return consumer.credit == 0 or len(self.unacked[consumer]) < consumer.credit

    def got(self, consumer: Taker, body: bytes, redelivered: bool) -> None:
        allowed = self.allowed(consumer)
        message = next((each for each in allowed if each.body == body), None)
        assert message is not None, (body, "of another consumer's group, or not the first of its group")
        assert self.may_take(consumer)
        if self.queue.grouped.window.passed_count == 0 and not self.slow and self.window == 1000:
            assert message is allowed[0], "not the oldest it may have"
        assert message.delivered == redelivered or (message.killed and redelivered)
        if self.owner(message.group) is None:
            for other in self.takers:
                assert other.priority <= consumer.priority or not self.may_take(other), (
                    "a consumer of higher priority was free"
                )
        self.ready.remove(message)
        message.delivered = True
        self.unacked[consumer].append(message)

    # -- rules

    @rule(
        groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=12),
        size=st.sampled_from([8, 8, 300]),
        turn=st.booleans(),
    )
    def publish(self, groups: list[str], size: int, turn: bool) -> None:
        for group in groups:
            self.count += 1
            body = b"%06d" % self.count + b"." * (size - 6)
            self.ready.append(TwinMessage(self.count, body, group))
            self.room.publish("q", body, headers={"group": group} if group else {}, turn=turn)
            self.drop_over_length()
        self.rest()

    def drop_over_length(self) -> None:
        while self.length and len(self.ready) > self.length:
            self.ready.pop(0)

    @rule(credit=st.sampled_from([0, 1, 1, 2, 5]), priority=st.sampled_from([0, 0, 0, 3]))
    def consume(self, credit: int, priority: int) -> None:
        if len(self.takers) >= 6:
            return

        def got(receiver: Taker, body: bytes, redelivered: bool) -> None:
            if receiver not in self.unacked:
                self.join(receiver)
            try:
                self.got(receiver, body, redelivered)
            except AssertionError as error:  # the dispatcher's caller would report it as a bug in amqpd
                self.delivery_error = self.delivery_error or error

        consumer = take(self.room, self.queue, credit=credit, priority=priority, turn=False, when_got=got)
        if consumer not in self.unacked:
            self.join(consumer)
        self.rest()

    def join(self, consumer: Taker) -> None:
        self.takers.append(consumer)
        self.unacked[consumer] = []

    @precondition(lambda self: self.takers)
    @rule(index=st.integers(0, 5), requeue=st.booleans(), backwards=st.booleans())
    def cancel(self, index: int, requeue: bool, backwards: bool) -> None:
        consumer = self.takers.pop(index % len(self.takers))
        consumer.leave(False)
        if requeue:
            self.requeue_all(consumer, backwards)
            self.unacked.pop(consumer)
        self.rest()

    def requeue_all(self, consumer: Taker, backwards: bool) -> None:
        for left in range(len(consumer.entries), 0, -1):
            index = left - 1 if backwards else 0
            self.insert_in_order(self.unacked[consumer].pop(index))
            consumer.requeue(index)
            self.drop_over_length()

    def insert_in_order(self, message: TwinMessage) -> None:
        self.ready = sorted([*self.ready, message], key=lambda each: each.number)

    def holders(self) -> list[Taker]:
        return [consumer for consumer, messages in self.unacked.items() if messages]

    @precondition(lambda self: self.holders())
    @rule(
        holder_index=st.integers(0, 5),
        entry_index=st.integers(0, 5),
        action=st.sampled_from(["ack", "ack", "requeue", "reject"]),
    )
    def ack_requeue_or_reject(self, holder_index: int, entry_index: int, action: str) -> None:
        holders = self.holders()
        consumer = holders[holder_index % len(holders)]
        index = entry_index % len(consumer.entries)
        message = self.unacked[consumer].pop(index)
        if action == "requeue":
            self.insert_in_order(message)
        getattr(consumer, action)(index)
        self.drop_over_length()
        self.rest()

    @precondition(lambda self: self.holders())
    @rule(holder_index=st.integers(0, 5), requeue=st.booleans(), backwards=st.booleans())
    def ack_or_requeue_all(self, holder_index: int, requeue: bool, backwards: bool) -> None:
        holders = self.holders()
        consumer = holders[holder_index % len(holders)]
        if requeue:
            self.requeue_all(consumer, backwards)
        else:
            self.unacked[consumer].clear()
            consumer.ack_all()
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
        message = next(each for each in allowed if each.body == entry.message.body())
        assert message.delivered == entry.redelivered or (message.killed and entry.redelivered)
        message.delivered = True
        self.ready.remove(message)
        return entry, message

    @rule()
    def get(self) -> None:
        self.get_entry(True)
        self.rest()

    @rule()
    def get_unacked(self) -> None:
        got = self.get_entry(False)
        if got is not None:
            self.taken.append(got)
        self.rest()

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 5), requeue=st.booleans())
    def ack_or_requeue_get(self, index: int, requeue: bool) -> None:
        entry, message = self.taken.pop(index % len(self.taken))
        if requeue:
            if self.durable:
                entry.message = None
            self.insert_in_order(message)
            self.queue.requeue(entry, True)
            self.queue.schedule_dispatch()
        else:
            self.queue.ack(entry)
        self.drop_over_length()
        self.rest()

    @rule(
        groups=st.sets(st.sampled_from(GROUPS), min_size=1),
        count=st.integers(1, 4),
        answers=st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def scan_groups(self, groups: set[str], count: int, answers: list[bool]) -> None:
        """A scan takes messages out of the middle; the ones it returns go back to their place."""
        self.rest()
        scan = LogScan(self.queue, GroupPredicate(groups), lambda: None, self.queue.order)
        entries: list[Any] = []
        for _ in range(3000):
            if scan.ended or len(entries) >= count:
                break
            scan.collect(entries, count - len(entries), 1 << 20)
            self.room.turns()
        wanted = [message for message in self.ready if message.group in groups][:count]
        assert [entry.message.body() for entry in entries] == [message.body for message in wanted]
        for entry, message, acked in zip(entries, wanted, answers, strict=False):
            message.delivered = True
            self.ready.remove(message)
            if acked:
                scan.settle(entry)
        for entry, message, acked in zip(entries, wanted, answers, strict=False):
            if not acked:
                self.insert_in_order(message)
                scan.return_message(entry)
                self.drop_over_length()
        scan.close()
        self.rest()

    def killed(self) -> None:
        for messages in [*self.unacked.values(), [message for _, message in self.taken]]:
            for each in messages:
                self.insert_in_order(each)
        for each in self.ready:
            each.killed = True
        self.taken.clear()
        self.drop_over_length()

    # -- at rest

    def rest(self) -> None:
        self.room.turn.schedule()
        self.room.turns()
        if self.delivery_error is not None:
            raise self.delivery_error
        assert not self.room.pump_retries._waiting
        queue = self.queue
        assert queue.ready_count == len(self.ready)
        assert queue.ready_bytes == sum(len(message.body) for message in self.ready)
        assert queue.unacked_count == sum(len(messages) for messages in self.unacked.values()) + len(self.taken)
        for consumer in self.takers:
            if self.may_take(consumer):
                assert not self.allowed(consumer), "a consumer was left waiting"
        window = queue.grouped.window
        locked = {message.group for messages in self.unacked.values() for message in messages if message.group}
        locked |= {message.group for _, message in self.taken if message.group}
        ungrouped_count = sum(not message.group for messages in self.unacked.values() for message in messages)
        ungrouped_count += sum(not message.group for _, message in self.taken)
        assert window.locked_count == len(locked) + ungrouped_count
        assert set(window.groups) >= locked
        assert set(window.groups) <= locked | {message.group for message in self.ready}
        assert len(window.unacked) == queue.unacked_count


def test_groups_match_naive_twin(memory_room) -> None:
    beside_a_twin(GroupMachine, memory_room, EXAMPLES)
