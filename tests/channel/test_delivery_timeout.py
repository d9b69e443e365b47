"""The clock of x-consumer-timeout on a simulated clock: never early, at most two ticks late, one per consumer."""

from __future__ import annotations

import pytest

from amqpd.broker.consumer import NO_ARGUMENTS, Consumer, QueueBase, QueueEntry
from amqpd.broker.flow.timers import TICK_MS, Timers
from amqpd.channel import consumer as overdue
from amqpd.channel.consumer import TICK_MS_MAX, TICKS, DeliveryTimeout
from amqpd.channel.unacked import LATE_MAX, Unacked
from amqpd.errors import PreconditionFailed
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.filesystem import Clock


class FakeClock(Clock):
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic(self) -> float:
        return self.now_ms / 1000


class FakeChannel:
    """Fake channel with delivery tags, unacked messages and timers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timers_set: list[tuple[float, object]] = []
        self.timers = Timers(self.call_later, ClockWatch(self.clock))
        self.unacked = Unacked()
        self.queue = QueueBase("q", "/")
        self.tag = 0
        self.late: list[tuple[int, list[int]]] = []

    def watch(self, consumer: Consumer | None, timeout_ms: int) -> DeliveryTimeout:
        """Start a timeout that takes the late messages, as a channel does."""
        clock = DeliveryTimeout(self.timers, self.unacked, self.queue, consumer, timeout_ms, self.on_timeout)
        clock.start()
        return clock

    def on_timeout(self, clock: DeliveryTimeout) -> None:
        taken = self.unacked.take_as_late(self.queue, clock.consumer)
        self.late.append((self.clock.now_ms, [entry.offset for entry in taken]))
        clock.start()

    def call_later(self, delay_s: float, function: object) -> None:
        self.timers_set.append((self.clock.now_ms + delay_s * 1000, function))

    def consumer(self) -> Consumer:
        return Consumer(self.queue, "c", False, False, NO_ARGUMENTS)

    def deliver(self, consumer: Consumer | None) -> int:
        self.tag += 1
        entry = QueueEntry(self.queue, self.tag, None, False)
        entry.consumer = consumer
        self.unacked.add(self.tag, entry)
        return self.tag

    def advance(self, ms: int) -> None:
        end = self.clock.now_ms + ms
        while self.clock.now_ms < end:
            self.clock.now_ms += min(TICK_MS, end - self.clock.now_ms)
            due = [timer for timer in self.timers_set if timer[0] <= self.clock.now_ms]
            self.timers_set = [timer for timer in self.timers_set if timer[0] > self.clock.now_ms]
            for _, function in due:
                function()


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.mark.parametrize("before_ms", [0, 1, 60, 124, 125, 126, 1000, 12_345])
@pytest.mark.parametrize("timeout_ms", [200, 1000, 60_000])
def test_timeout_is_never_early_and_at_most_two_ticks_late(
    channel: FakeChannel, before_ms: int, timeout_ms: int
) -> None:
    consumer = channel.consumer()
    channel.watch(consumer, timeout_ms)
    channel.advance(before_ms)
    tag = channel.deliver(consumer)
    delivered = channel.clock.now_ms
    channel.advance(timeout_ms - 1)
    assert channel.late == []
    channel.advance(2 * max(timeout_ms // TICKS, overdue.TICK_MS_MIN) + 3 * TICK_MS)
    ((when, offsets),) = channel.late
    assert offsets == [tag]
    assert when >= delivered + timeout_ms


def test_consumer_that_acks_in_time_never_times_out(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    channel.watch(consumer, 1000)
    unacked: list[int] = []
    for _ in range(300):
        unacked.append(channel.deliver(consumer))
        if len(unacked) > 7:
            channel.unacked.take_one(unacked.pop(0))
        channel.advance(100)
    assert channel.late == []


def test_oldest_delivery_times_out_although_later_ones_are_acked(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    channel.watch(consumer, 1000)
    stuck = channel.deliver(consumer)
    for _ in range(8):
        channel.unacked.take_one(channel.deliver(consumer))
        channel.advance(110)
    assert channel.late == []
    newest = channel.deliver(consumer)
    channel.advance(400)
    assert [offsets for _, offsets in channel.late] == [[stuck, newest]]  # all its messages are requeued


def test_each_consumer_has_its_own_timeout(channel: FakeChannel) -> None:
    slow, quick, free = channel.consumer(), channel.consumer(), channel.consumer()
    channel.watch(slow, 10_000)
    channel.watch(quick, 1000)
    tags = [channel.deliver(each) for each in (slow, free, quick, free, slow)]
    channel.advance(2000)
    assert [offsets for _, offsets in channel.late] == [[tags[2]]]
    channel.advance(11_000)
    assert [offsets for _, offsets in channel.late] == [[tags[2]], [tags[0], tags[4]]]
    assert channel.unacked.count() == 2  # those of the consumer without a timeout


def test_acks_in_transaction_delay_timeout_until_its_end(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    channel.watch(consumer, 1000)
    tag = channel.deliver(consumer)
    ((_, entry),) = channel.unacked.entries_at(tag)
    entry.in_transaction = True
    channel.advance(5000)
    assert channel.late == []
    entry.in_transaction = False  # rolled back
    channel.advance(1000)
    assert [offsets for _, offsets in channel.late] == [[tag]]


def test_marks_are_bounded_while_transaction_is_open(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    clock = channel.watch(consumer, 1000)
    channel.deliver(consumer)
    channel.unacked.entries()[0].in_transaction = True
    for _ in range(50):
        channel.advance(1000)
        channel.unacked.take(channel.deliver(consumer), multiple=False)
        assert len(clock._marks) <= TICKS + 2
    assert channel.late == []
    channel.unacked.entries()[0].in_transaction = False
    channel.advance(125)
    assert channel.late[0][1] == [1]


def test_new_timeout_applies_to_unacked_messages(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    watch = channel.watch(consumer, 60_000)
    tag = channel.deliver(consumer)
    channel.advance(20_000)
    watch.set_timeout(10_000)
    channel.advance(TICK_MS)
    assert [offsets for _, offsets in channel.late] == [[tag]]


def test_basic_get_has_a_timer_only_while_messages_are_unacked(channel: FakeChannel) -> None:
    watch = channel.watch(None, 1000)
    assert channel.timers.armed_count() == 0
    tag = channel.deliver(None)
    watch.start()
    channel.advance(1500)
    assert [offsets for _, offsets in channel.late] == [[tag]]
    assert channel.timers.armed_count() == 0


def test_long_timeout_is_checked_once_a_minute(channel: FakeChannel) -> None:
    consumer = channel.consumer()
    watch = channel.watch(consumer, 30 * 60_000)
    assert watch.tick * TICK_MS - channel.clock.now_ms == TICK_MS_MAX


class TestLateAcks:
    def test_late_ack_is_accepted_once(self, channel: FakeChannel) -> None:
        consumer = channel.consumer()
        tags = [channel.deliver(consumer) for _ in range(3)]
        channel.unacked.take_as_late(channel.queue, consumer)
        assert channel.unacked.take(tags[1], False) == []
        with pytest.raises(PreconditionFailed, match=f"unknown delivery tag {tags[1]}"):
            channel.unacked.take(tags[1], False)
        assert channel.unacked.timed_out(tags[0])
        assert not channel.unacked.timed_out(99)
        assert channel.unacked.entries_at(tags[2]) == []

    @pytest.mark.parametrize("late", range(1, 7))
    def test_late_multiple_ack_acks_earlier_messages_of_others(self, channel: FakeChannel, late: int) -> None:
        consumer, other = channel.consumer(), channel.consumer()
        tags = [channel.deliver(consumer if number == late else other) for number in range(1, 7)]
        channel.unacked.take_as_late(channel.queue, consumer)
        taken = [entry.offset for entry in channel.unacked.take_multiple(late)]
        assert taken == [tag for tag in tags if tag < late]
        assert [entry.offset for entry in channel.unacked.entries()] == [tag for tag in tags if tag > late]
        assert channel.unacked.take_multiple(late) == []
        if late < 6:
            assert channel.unacked.take_one(6).offset == 6

    def test_late_tags_are_bounded(self, channel: FakeChannel) -> None:
        consumer = channel.consumer()
        for _ in range(LATE_MAX + 10):
            channel.deliver(consumer)
        channel.unacked.take_as_late(channel.queue, consumer)
        assert not channel.unacked.timed_out(10)
        assert channel.unacked.timed_out(11)
