"""Groups behind which more waits than memory holds, in a queue with a length: what is displaced is the oldest, and no
message is forgotten, whatever came back into memory, left it again or was given back meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest
from taker import Taker, take

from amqpd.broker.message import Message
from amqpd.broker.queue.filtered import MessagePredicate
from amqpd.broker.queue.scan import GroupScan


class One(MessagePredicate):
    """The message with this body."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def wants(self, message: Message) -> bool:
        return message.body() == self.body


class Bench:
    """A queue of a length with a small window, consumers that take one at a time, what they got."""

    def __init__(self, room: Any, length: int) -> None:
        self.room = room
        self.queue = room.queue("q", x_group_by="header:group", x_max_length=length)
        self.queue.prepare()
        self.queue.order.memory.count_max = 20
        self.got: list[int] = []
        self.takers: list[Taker] = []
        self.groups = ""

    def consume(self) -> None:
        self.takers.append(take(self.room, self.queue, credit=1, when_got=self._note))

    def _note(self, _taker: Taker, body: bytes, _redelivered: bool) -> None:
        self.got.append(int(body))

    def publish(self, groups: str) -> None:
        for number, group in enumerate(groups, len(self.groups)):
            self.room.publish("q", b"%d" % number, headers={"group": group})
        self.groups += groups
        self.room.turns()

    def drain(self) -> None:
        while any(taker.entries for taker in self.takers):
            for taker in self.takers:
                if taker.entries:
                    taker.ack()
                    self.room.turns()
        assert (self.queue.ready_count, self.queue.store.record_count) == (0, 0)


@pytest.mark.parametrize(("length", "more"), [(100, 10), (300, 90)])
def test_what_left_memory_again_is_displaced_before_what_is_behind_it(room: Any, length: int, more: int) -> None:
    bench = Bench(room, length)
    bench.consume()
    bench.consume()
    bench.publish("a")
    for count in (length + more, 40, 70):
        bench.publish("a" * count)
    assert bench.queue.ready_count == length
    bench.drain()
    end = len(bench.groups)
    assert bench.got == [0, *range(end - length, end)]


@pytest.mark.parametrize("more", [20, 50])
def test_what_is_given_back_behind_the_oldest_is_not_forgotten(room: Any, more: int) -> None:
    groups = "ab" + "a" * 5 + "b" * 15 + "aba" + "b" * 200 + "a" + "b" * 60
    bench = Bench(room, len(groups))
    bench.consume()
    bench.consume()
    bench.publish(groups)
    bench.consume()
    search = GroupScan(bench.queue, One(b"24"), lambda: None)
    entries: list[Any] = []
    for _ in range(100):
        if not entries:
            search.collect(entries, 1, 1 << 20)
            room.turns()
    bench.publish("b" * (12 + more))
    entries[0].message = None
    search.return_message(entries[0])
    search.close()
    bench.publish("b" * 170)
    ready = bench.queue.ready_count
    bench.drain()
    assert len(bench.got) == 2 + ready
    for group in "ab":
        own = [number for number in bench.got if bench.groups[number] == group]
        assert own == sorted(own)
