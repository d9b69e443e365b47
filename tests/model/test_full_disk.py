"""A disk that fills up under confirmed publishes: what was acked is there, what was nacked is not."""

from __future__ import annotations

import pamqp.commands as spec
import pytest
from memory_broker import Client, Event, MemoryBroker

PERSISTENT = b"\x10\x00\x02"


class Account:
    """Which publish sequences were acked and which nacked; each once."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.answered = 0

    def enter(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event.method, spec.Basic.Ack | spec.Basic.Nack):
                side = self.acked if isinstance(event.method, spec.Basic.Ack) else self.nacked
                tag = event.method.delivery_tag
                sequences = range(self.answered + 1, tag + 1) if event.method.multiple else [tag]
                for sequence in sequences:
                    if sequence not in self.acked and sequence not in self.nacked:
                        side.add(sequence)
                while self.answered + 1 in self.acked | self.nacked:
                    self.answered += 1


class Disk:
    """A client that publishes numbered messages and knows what became of them."""

    def __init__(self) -> None:
        self.house = MemoryBroker()
        self.house.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # this disk is no file system
        self.account = Account()
        self.published = 0
        self.client = Client(self.house, "c")
        self.say(spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Declare(queue="q", durable=True))

    def say(self, *methods: object) -> list[Event]:
        self.client.say(1, *methods)
        self.house.settle()
        events = self.client.heard()
        self.account.enter(events)
        return events

    def publish(self, count: int, size: int = 1000) -> None:
        numbers = range(self.published + 1, self.published + count + 1)
        self.published += count
        self.client.publish(1, "q", [b"%08d" % number + bytes(size) for number in numbers], PERSISTENT)
        self.house.settle()
        self.account.enter(self.client.heard())

    def room(self, size_bytes: int | None) -> None:
        filesystem = self.house.filesystem
        filesystem.capacity = None if size_bytes is None else filesystem.used() + size_bytes

    def take(self) -> list[int]:
        """Gets and acks all there is; their numbers."""
        found = []
        while True:
            events = self.say(spec.Basic.Get(queue="q"))
            got = next(event for event in events if not isinstance(event.method, spec.Basic.Ack | spec.Basic.Nack))
            if got.body is None:
                return found
            found.append(int(got.body[:8]))
            self.say(spec.Basic.Ack(delivery_tag=got.method.delivery_tag))


@pytest.mark.parametrize("room_bytes", [0, 100, 5_000, 20_000])
def test_acked_is_there_nacked_is_not(room_bytes: int) -> None:
    disk = Disk()
    disk.publish(20)
    assert disk.account.acked == set(range(1, 21))
    disk.room(room_bytes)
    for _ in range(4):
        disk.publish(10)
    assert disk.account.answered == 60, "some were neither acked nor nacked"
    assert disk.account.nacked, "the disk was full"
    acked = sorted(disk.account.acked)
    assert disk.house.vhost.queues["q"].ready_count == len(acked)
    assert disk.take() == acked
    disk.room(None)
    disk.publish(10)
    assert disk.account.acked >= set(range(61, 71))
    disk.house.again(clean=False)
    queue = disk.house.vhost.queue("q")
    assert queue.ready_count == 10
    disk.house.end()


def test_a_consumer_keeps_what_it_was_given() -> None:
    """Delivered before the log could be written: the publisher is nacked, the consumer's ack is no error."""
    disk = Disk()
    disk.publish(1)
    assert disk.take() == [1]
    disk.say(spec.Basic.Consume(queue="q", consumer_tag="t"))
    disk.room(0)
    disk.publish(3)
    assert disk.account.answered == 4
    assert disk.account.nacked == {2, 3, 4}
    queue = disk.house.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked_count) == (0, 3)
    # Whoever was nacked has no promise: what the consumer gives back may come again or be gone, but be counted right.
    again = disk.say(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
    assert (queue.ready_count, queue.unacked_count) == (0, len(again))
    assert disk.say(spec.Basic.Ack(delivery_tag=0, multiple=True)) == []
    assert (queue.ready_count, queue.unacked_count) == (0, 0)
    disk.room(None)
    disk.publish(1)
    assert 5 in disk.account.acked
    disk.house.end()


@pytest.mark.parametrize("count", [30, 1200], ids=["at once", "in slices"])
@pytest.mark.parametrize("kind", ["unlimited", "plain", "priority"])
@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "in the log"])
def test_a_transaction_that_displaces_what_a_queue_holds(cold: bool, kind: str, count: int) -> None:
    """x-max-length drops the head for what a transaction brings. When that does not fit on the disk the queue shows
    nothing of it, and nothing has gone for it.
    """
    disk = Disk()
    arguments: dict[str, object] = {"x-max-length": 10, "x-overflow": "drop-head"} if kind != "unlimited" else {}
    kept = list(range(6 if arguments else 1, 16))
    if kind == "priority":
        arguments["x-max-priority"] = 3
    disk.say(spec.Queue.Delete(queue="q"), spec.Queue.Declare(queue="q", durable=True, arguments=arguments))
    disk.publish(15, 100)
    assert disk.account.acked == set(range(1, 16))
    if cold:
        disk.house.again(clean=True)
        disk.house.broker.alarms.check = lambda: None  # type: ignore[method-assign]
        disk.client = Client(disk.house, "d")
        disk.say(spec.Channel.Open())
    for fits in (False, True):
        disk.say(spec.Channel.Close(0, "", 0, 0))
        disk.say(spec.Channel.Open(), spec.Tx.Select())
        disk.publish(count, 2000)
        disk.room(None if fits else 9000)
        told = [event.method.name for event in disk.say(spec.Tx.Commit())]
        disk.room(None)
        if fits:
            assert told == ["Tx.CommitOk"]
            continue
        assert told == ["Channel.Close"]
        disk.say(spec.Channel.CloseOk(), spec.Channel.Open())
        assert disk.house.vhost.queues["q"].ready_count == len(kept)
        seen = disk.say(*[spec.Basic.Get(queue="q")] * (len(kept) + 1))
        assert [int(event.body[:8]) for event in seen if event.body is not None] == kept
        assert seen[-1].body is None
    disk.say(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open())
    brought = list(range(disk.published - count + 1, disk.published + 1))
    assert disk.take() == (brought[-10:] if arguments else kept + brought)
    disk.house.again(clean=False)
    assert disk.house.vhost.queues["q"].can_open()
    disk.house.end()
