"""What a channel delivers: its consumers, their credit, and what is unacked.

Owned here: the tag of the next delivery, the list of unacked entries by tag, the window that all consumers of the
channel share, and the clocks of consumers that have a timeout. A delivery goes through `ChannelConsumer.deliver`, which
writes it into the output; the way home is `ack`. Neither makes a task, decodes a table or formats a string.

What is unacked for too long: x-consumer-timeout, without a note on any delivery.

A clock of its own looks after each consumer that has a timeout (and after what basic.get took of a queue that has one).
At each tick it notes where the channel's delivery tags stand. What is still unacked below a tag that was noted a
timeout ago is overdue. So a delivery pays nothing, whoever has no timeout has no clock, and a tick costs what has been
settled since the last one: `_first`, the oldest that may be unacked, only moves forward.

A delivery is noticed up to two ticks after its time; a tick is an eighth of the timeout, a minute at most, TICK_MS_MIN
at least. What a transaction has acked is not overdue before it is rolled back.

Direct reply-to: a consumer without a queue.

`basic.consume` of `amq.rabbitmq.reply-to` makes the channel itself reachable under a key nobody can guess. A publish
from the channel whose reply-to is the plain name gets that key instead; a reply published through the default
exchange under the key goes straight to the consumer, at most once. A key that is unknown or forged reaches nobody.

rabbit: https://www.rabbitmq.com/direct-reply-to.html; texts measured on 3.10.8.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

from librt.strings import write_i64_be
from mypy_extensions import i64

from amqpd.broker import consume
from amqpd.broker.consumer import Consumer, ConsumerArguments, Destination, QueueBase, QueueEntry, TraceHook, within
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message
from amqpd.broker.queue.queue import Queue
from amqpd.broker.stream_message import StreamDeliveryEncoder
from amqpd.channel.events import consumer_deleted
from amqpd.channel.frame_writer import CUT_BYTES, OUT_BYTES_MAX, Output
from amqpd.channel.interfaces import ConnectionInterface
from amqpd.channel.stats import DeliveryStatsMixin
from amqpd.channel.unacked import Unacked, shared_entry
from amqpd.errors import PreconditionFailed
from amqpd.protocol import methods
from amqpd.protocol.field_table import shortstr
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.protocol.properties import DIRECT_REPLY_TO
from amqpd.storage.log.record import RecordViews

if TYPE_CHECKING:
    from amqpd.broker.session import Session


TICK_MS_MIN: Final = 20
TICK_MS_MAX: Final = 60_000
TICKS: Final = 8


@final
class DeliveryTimeout(Timer):
    """The clock of one consumer, or of one queue's basic.gets: consumer is None then.

    over: called when something is unacked for `timeout_ms` and more; the clock stands then.
    """

    def __init__(
        self,
        timers: Timers,
        unacked: Unacked,
        queue: QueueBase,
        consumer: Consumer | None,
        timeout_ms: i64,
        over: Callable[[DeliveryTimeout], object],
    ) -> None:
        super().__init__()
        self._over = over
        self.queue = queue
        self.consumer = consumer
        self.timeout_ms = timeout_ms
        self._timers = timers
        self._unacked = unacked
        self._first: i64 = 0
        # (ms, tag): what was delivered before that time has a tag below it. Oldest first; TICKS and some of them.
        self._marks: deque[tuple[i64, i64]] = deque()

    def start(self) -> None:
        """It runs, if it does not. What is unacked by then counts from now."""
        if self.tick < 0:
            self._marks.clear()
            self.fire()

    def change(self, timeout_ms: i64) -> None:
        """Another timeout for all that is unacked, from when it was delivered as far as that is noted."""
        self.timeout_ms = timeout_ms
        self._timers.cancel(self)
        self.fire()

    def stop(self) -> None:
        self._timers.cancel(self)
        self._marks.clear()

    def idle(self) -> bool:
        """Whether nothing is unacked that it looks after."""
        return self._unacked.first_of(self._first, self.queue, self.consumer, True) < 0

    def fire(self) -> None:
        now = self._timers.now_ms()
        unacked = self._unacked
        first = unacked.first_of(self._first, self.queue, self.consumer, True)
        due = now + self._tick_ms()
        marks = self._marks
        if first < 0:
            self._first = unacked.end()
            marks.clear()
            if self.consumer is None or self.consumer.cancelled:
                return  # whoever gets the next one starts it again
        else:
            self._first = first
            first = unacked.first_of(first, self.queue, self.consumer, False)
            marks.append((now, unacked.end()))
            while marks[0][1] <= self._first or (len(marks) > 1 and marks[1][0] + self.timeout_ms <= now):
                marks.popleft()  # the second says all that the first does, where it is a timeout old itself
            if first >= 0:
                for ms, tag in marks:
                    if tag > first:
                        if ms + self.timeout_ms <= now:
                            self._over(self)
                            return
                        if ms + self.timeout_ms < due:
                            due = ms + self.timeout_ms
                        break
        self._timers.arm(self, due)

    def _tick_ms(self) -> i64:
        tick_ms = self.timeout_ms // TICKS
        if tick_ms < TICK_MS_MIN:
            return TICK_MS_MIN
        return tick_ms if tick_ms < TICK_MS_MAX else TICK_MS_MAX


log = logging.getLogger(__name__)

# Clocks of a channel that are kept without a look at which of them stand.
CLOCKS_KEPT: Final = 64
_DELIVER: Final = b"\x00\x3c\x00\x3c"


@final
class ChannelConsumer(Consumer):
    """A basic.consume."""

    def __init__(
        self,
        deliveries: ChannelConsumers,
        queue: QueueBase,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        arguments: ConsumerArguments,
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive, arguments)
        self.deliveries = deliveries
        # Deliveries that may wait for an answer; 0: no limit. Set by the basic.qos before it.
        self.prefetch_count: i64 = 0
        tag_bytes = shortstr(tag)
        number: int = deliveries.number
        self._frame_start = b"\x01" + number.to_bytes(2, "big")
        self._method_start = _DELIVER + tag_bytes
        # Frame payload without exchange and routing key: method ids, tag, delivery tag; less the frame end that an
        # envelope's suffix carries.
        self._fixed_size: int = len(self._method_start) + 8 - 1
        # What a delivery begins with as far as its delivery tag, for suffixes of this size.
        self._suffix_size: i64 = -1
        self._start = b""
        self._starts: dict[int, bytes] = {}
        # While its vhost is traced.
        self._tap: TraceHook | None = None
        # None: it has no timeout.
        self.clock: DeliveryTimeout | None = None

    def obey_timeout(self, queue_timeout_ms: i64) -> None:
        """queue_timeout_ms: what its queue says, -1: nothing. Its own argument comes first, the setting last."""
        timeout_ms: i64 = consume.timeout_ms(self.deliveries.session, self.arguments.timeout_ms, queue_timeout_ms)
        clock = self.clock
        if timeout_ms <= 0 or self.no_ack or self.queue.kind == "stream":  # of that nothing is kept from others
            if clock is not None:
                self.deliveries.stop_clock(clock)
        elif clock is None:
            self.clock = self.deliveries.start_clock(self.queue, self, timeout_ms)
        elif clock.timeout_ms != timeout_ms:
            clock.change(timeout_ms)

    def can_take(self) -> bool:
        deliveries = self.deliveries
        if self.prefetch_count > 0 and self.in_flight >= self.prefetch_count:
            return False
        if deliveries.window_size > 0 and deliveries.window_used >= deliveries.window_size:
            return False
        output = deliveries.output
        if output.write_paused or output.cut_bytes >= OUT_BYTES_MAX:
            output.starved.append(self)
            return False
        return True

    def has_room(self) -> bool:
        """Whether the output takes more."""
        output = self.deliveries.output
        return not output.write_paused and output.cut_bytes < OUT_BYTES_MAX

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        deliveries = self.deliveries
        output = deliveries.output
        tag = deliveries.next_tag
        deliveries.next_tag = tag + 1
        self.delivered_count += 1
        if entry is not None:
            self.in_flight += 1
            entry.consumer = self
            deliveries.unacked.add(tag, entry)
            deliveries.window_used += 1
            if deliveries.window_size > 0:
                deliveries.window_turn = self
            if entry.queue.logged:
                # Its log can give it back; memory must not grow with what a peer has not read or acked.
                entry.message = None
        else:
            deliveries.unacked.skip()
        out = output.out
        suffix = message.envelope.suffix
        suffix_size: i64 = len(suffix)
        if suffix_size != self._suffix_size:
            self._begin(suffix_size)
            if self._tap is not None:
                self._tell(self._tap, message, redelivered)
        out.write(self._start)
        write_i64_be(out, tag)
        if redelivered:
            self.redelivered_count += 1
            out.append(1)
            out.write(suffix[1:])
        else:
            out.write(suffix)
        content = message.content
        payload_max = output.frame_payload_max
        if (
            content[1] << 8 | content[2] == deliveries.number
            and message.frame_payload_max <= payload_max
            and message.header_size <= payload_max
        ):
            out.write(content)
        elif message.parts is None or message.body_size <= LARGE_BODY_BYTES:
            message.write_content(out, deliveries.number, payload_max)
        else:
            output.write_content(deliveries.number, message)
            out = output.out
        output.delivered_count += 1
        if len(out) >= CUT_BYTES:
            output.cut_output()
        if not output.flush_wanted:
            output.want_flush()

    def deliver_places(
        self,
        dresser: StreamDeliveryEncoder,
        places: RecordViews,
        start: i64,
        stop: i64,
        source: QueueBase,
        tracked: bool,
    ) -> i64:
        """As `deliver`, of what lies in a stream's log: header and body go from there into the output."""
        deliveries = self.deliveries
        output = deliveries.output
        number = places.alike_number(start)
        alike = places.alikes[number]
        dresser.dress(alike, deliveries.number)
        size_max = min(output.frame_payload_max, LARGE_BODY_BYTES)  # of what goes out as frames of one piece
        if dresser.header_payload_size > output.frame_payload_max or self._tap is not None:
            size_max = 0
        entry = None if tracked or deliveries.transactional else shared_entry(self, source)
        index = start
        while True:
            body_size = places.body_size(index)
            each = entry if entry is not None else QueueEntry(source, places.offset(index), None, False)
            if 0 < body_size <= size_max:
                index = self._deliver_run(dresser, places, index, index + 1 if entry is None else stop, each, size_max)
            else:
                self.deliver(dresser.message(places, index), each, False)
                dresser.dress(alike, deliveries.number)
                index += 1
            if index >= stop or places.alike_number(index) != number or not self.can_take():
                return index

    def _deliver_run(
        self,
        dresser: StreamDeliveryEncoder,
        places: RecordViews,
        start: i64,
        stop: i64,
        entry: QueueEntry,
        size_max: i64,
    ) -> i64:
        """The record at `start`, for which there is room, and those behind it that are like it and no larger than
        `size_max`, as long as there is. All are `entry` to who acks them. Returns where it stopped.
        """
        deliveries = self.deliveries
        if self.prefetch_count > 0:
            stop = min(stop, start + self.prefetch_count - self.in_flight)
        if deliveries.window_size > 0:
            deliveries.window_turn = self
            stop = min(stop, start + deliveries.window_size - deliveries.window_used)
        if len(dresser.suffix) != self._suffix_size:
            self._begin(len(dresser.suffix))
        tag = deliveries.next_tag
        stop = deliveries.output.write_records(dresser, places, start, stop, size_max, self._start, tag)
        count = stop - start
        entry.consumer = self
        deliveries.unacked.add_times(tag, entry, count)
        deliveries.next_tag = tag + count
        deliveries.window_used += count
        self.in_flight += count
        self.delivered_count += count
        return stop

    def share_ended(self) -> None:
        self.deliveries.output.write_out()

    def trace(self, tap: TraceHook | None) -> None:
        self._tap = tap
        self._suffix_size = -1

    def _begin(self, suffix_size: int) -> None:
        """What deliveries with a suffix of this size begin with. A traced one begins anew each time: there the tap is
        told."""
        start = self._starts.get(suffix_size)
        if start is None:
            start = self._frame_start + (self._fixed_size + suffix_size).to_bytes(4, "big") + self._method_start
            self._starts[suffix_size] = start
        self._start = start
        if self._tap is None:
            self._suffix_size = suffix_size

    def _tell(self, tap: TraceHook, message: Message, redelivered: bool) -> None:
        session = self.deliveries.session
        tap.delivered(message, self.queue.name, redelivered, session.name, session.user.name, self.deliveries.number)

    def cancel(self) -> None:
        self.deliveries.cancel_from_queue(self)


@final
class ChannelConsumers(DeliveryStatsMixin):
    """Of one channel."""

    def __init__(self, session: Session, output: Output, owner: ConnectionInterface, number: i64) -> None:
        super().__init__()
        self.session = session
        self.output = output
        self.owner = owner
        self.number = number
        self.next_tag: i64 = 1
        self.unacked = Unacked()
        self.consumers: dict[str, ChannelConsumer] = {}
        # basic.qos: for consumers to come, and the one window that all consumers of the channel share (0: none).
        self.prefetch_count: i64 = 0
        self.window_size: i64 = 0
        self.window_used: i64 = 0
        # Who took the window's last room: the next that comes free is for the consumers after it.
        self.window_turn: ChannelConsumer | None = None
        # What is settled waits for a commit, one by one.
        self.transactional = False
        # While the channel itself deletes a queue: tags of its consumers there, told after delete-ok.
        self.self_cancelled_tags: list[str] | None = None
        # Of all that has a timeout; those of consumers that are gone as long as they have something unacked.
        self.clocks: dict[DeliveryTimeout, None] = {}
        # Those of basic.get among them. When so many are there, those that stand are thrown away.
        self._get_clocks: dict[QueueBase, DeliveryTimeout] = {}
        self._clocks_most: i64 = CLOCKS_KEPT

    # -- unacked -----------------------------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> None:
        """basic.ack. Raises: PreconditionFailed for a tag that is not outstanding."""
        if multiple:
            if self.unacked.repeats:
                self._settle_runs(tag)
            else:
                self.settle_all(self.unacked.take_multiple(tag))
        else:
            try:
                entry = self.unacked.take_one(tag)
            except PreconditionFailed:
                if not self.unacked.timed_out(tag):
                    raise
                return
            self.settle(entry)

    def settle(self, entry: QueueEntry) -> None:
        self.acked_count += 1
        self.returned_credit(entry)
        entry.queue.ack(entry)

    def settle_all(self, entries: list[QueueEntry]) -> None:
        """`settle` for each, with one look at the channel's window."""
        count: i64 = len(entries)
        self.acked_count += count
        was_full = self.window_size > 0 and self.window_used >= self.window_size
        for entry in entries:
            consumer = entry.consumer
            if consumer is not None:
                consumer.in_flight -= 1
                self.window_used -= 1
                if consumer.parked and not was_full:
                    consumer.queue.activate(consumer)
            entry.queue.ack(entry)
        if was_full:
            self.activate_all()

    def _settle_runs(self, tag: i64) -> None:
        """`settle_all` up to a tag, where one entry stands for many deliveries of a stream."""
        for entry, count in self.unacked.take_runs(tag):
            self.acked_count += count
            self.returned_credit(entry)
            consumer = entry.consumer
            if consumer is not None:
                consumer.in_flight -= count - 1
                self.window_used -= count - 1
            entry.queue.settle_times(entry, count)

    def returned_credit(self, entry: QueueEntry) -> None:
        """An entry leaves the unacked list: its consumer and the channel's window have room for another."""
        consumer = entry.consumer
        if consumer is None:
            return
        consumer.in_flight -= 1
        was_full = self.window_size > 0 and self.window_used >= self.window_size
        self.window_used -= 1
        if was_full:
            self.activate_all()
        elif consumer.parked:
            consumer.queue.activate(consumer)

    def activate_all(self) -> None:
        """Credit may have come for every consumer of the channel: they go on behind the one that was served last, be
        they of one queue or of many."""
        before: list[ChannelConsumer] = []
        last = self.window_turn
        turned = last is None or last.cancelled
        for consumer in self.consumers.values():
            if not turned:
                before.append(consumer)
                turned = consumer is last
            elif consumer.parked:
                consumer.queue.activate(consumer)
        for consumer in before:
            if consumer.parked:
                consumer.queue.activate(consumer)

    def begin_transactions(self) -> None:
        """tx.select: a transaction marks entries, so that none stands for many any more."""
        self.transactional = True
        self.unacked.split_shared()

    def take_all(self, committing: bool) -> list[QueueEntry]:
        """Everything unacked, in the order of delivery: the channel ends, and an open transaction with it. committing:
        not what a commit has begun to settle.
        """
        entries = [entry for entry in self.unacked.entries() if not (committing and entry.in_transaction)]
        for entry in entries:
            entry.in_transaction = False
        self.unacked.clear()
        return entries

    def forget_offsets(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """The queue's log could not take these offsets: what is unacked here has no place in it any more."""
        for entry in self.unacked.entries():
            if entry.queue is queue and within(entry.offset, ranges):
                entry.offset = -1

    def requeue(self, entries: Sequence[QueueEntry], failed: bool) -> None:
        """Back to their places; whoever can take them gets them in the same turn. Their tags have been taken. failed:
        as `QueueBase.requeue`.
        """
        queues: dict[QueueBase, None] = {}
        for entry in entries:
            queue = entry.queue
            queues[queue] = None
            # First, as the entry may be somebody's again when it is back.
            self.returned_credit(entry)
            entry.give_back()
            queue.requeue(entry, True, failed)
        for queue in queues:
            if not queue.deleted:
                queue.schedule_dispatch()

    # -- timeouts ----------------------------------------------------------------------------------------------------

    def start_clock(self, queue: QueueBase, consumer: ChannelConsumer | None, timeout_ms: i64) -> DeliveryTimeout:
        clock = DeliveryTimeout(self.session.broker.timers, self.unacked, queue, consumer, timeout_ms, self.timed_out)
        if len(self.clocks) >= self._clocks_most:
            for each in list(self.clocks):
                if each.tick < 0:  # all of it was settled, and nothing more comes
                    self.stop_clock(each)
            left: i64 = len(self.clocks)
            self._clocks_most = 2 * left if left > CLOCKS_KEPT else CLOCKS_KEPT
        self.clocks[clock] = None
        clock.start()
        return clock

    def on_get(self, queue: QueueBase, queue_timeout_ms: i64) -> None:
        """basic.get has taken something of the queue, which is to be acked."""
        timeout_ms: i64 = consume.timeout_ms(self.session, -1, queue_timeout_ms)
        if timeout_ms <= 0:
            return
        clock = self._get_clocks.get(queue)
        if clock is None:
            self._get_clocks[queue] = self.start_clock(queue, None, timeout_ms)
        else:
            clock.timeout_ms = timeout_ms
            clock.start()

    def timed_out(self, clock: DeliveryTimeout) -> None:
        """What this clock looks after is unacked for too long.

        A consumer whose client can be told is cancelled, and all that it has goes back; answers to it are ignored. For
        anybody else, and where the setting says so, the channel is closed.
        """
        session = self.session
        queue = clock.queue
        consumer = clock.consumer
        about: dict[str, object] = {"connection": session.name, "channel": self.number}
        about |= {"vhost": queue.vhost_name, "queue": queue.name}
        log.warning(
            "Consumer '%s' on channel %d and queue '%s' in vhost '%s' has timed out waiting for a delivery "
            "acknowledgement. Timeout used: %d ms.",
            "" if consumer is None else consumer.tag,
            self.number,
            queue.name,
            queue.vhost_name,
            clock.timeout_ms,
            extra=about,
        )
        response: str = session.broker.settings.consumer_timeout_response
        if consumer is None or response == "close_channel" or not session.has_capability("consumer_cancel_notify"):
            # rabbit: the text of 3.8 and later
            error = PreconditionFailed(
                f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {clock.timeout_ms} "
                "ms. This timeout value can be configured, see consumers doc guide to learn more"
            )
            self.owner.fail_channel_number(self.number, error)
            return
        assert isinstance(consumer, ChannelConsumer)  # start_clock gets no other
        had_left = consumer.cancelled
        if not had_left:
            self.consumers.pop(consumer.tag, None)
            self.output.write(self.cancel_frame(consumer.tag))
            assert isinstance(queue, Queue)  # who takes direct replies acks nothing
            consume.stop_consumer(session, queue, consumer)
            consumer_deleted(session, self.number, consumer)
        self.requeue(self.unacked.take_late(queue, consumer), False)
        self.on_consumer_ended(consumer, had_left)
        session.turn.schedule()

    def on_consumer_ended(self, consumer: ChannelConsumer, again: bool = False) -> None:
        """It takes nothing more. Its clock goes on while something of it is unacked. again: this was known."""
        if not again:
            self.had().end(consumer)
        clock = consumer.clock
        if clock is None:
            return
        if clock.idle():
            self.stop_clock(clock)
        else:
            clock.start()

    def stop_clock(self, clock: DeliveryTimeout) -> None:
        clock.stop()
        self.clocks.pop(clock, None)
        consumer = clock.consumer
        if isinstance(consumer, ChannelConsumer):
            consumer.clock = None
        else:
            self._get_clocks.pop(clock.queue, None)

    def stop_clocks(self) -> None:
        """The channel ends."""
        for clock in list(self.clocks):
            self.stop_clock(clock)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def make_consumer(
        self, queue: QueueBase, tag: str, no_ack: bool, exclusive: bool, arguments: ConsumerArguments
    ) -> ChannelConsumer:
        """A consumer with the prefetch that the last basic.qos set; the caller adds it to the queue."""
        consumer = ChannelConsumer(self, queue, tag, no_ack, exclusive, arguments)
        consumer.prefetch_count = self.prefetch_count
        return consumer

    def cancel_from_queue(self, consumer: ChannelConsumer) -> None:
        """The queue is gone."""
        self.consumers.pop(consumer.tag, None)
        self.on_consumer_ended(consumer)
        consumer_deleted(self.session, self.number, consumer)
        if self.self_cancelled_tags is None:
            if not self.output.closing:
                self.output.write(self.cancel_frame(consumer.tag))
        else:
            self.self_cancelled_tags.append(consumer.tag)

    def cancel_frame(self, tag: str) -> bytes:
        """basic.cancel from the broker; empty for a client that has not asked for it."""
        if not self.session.has_capability("consumer_cancel_notify"):
            return b""
        return methods.frame(self.number, methods.BasicCancel(tag, True))


REPLY_TO: Final = DIRECT_REPLY_TO.decode()


class ReplyConsumer(Destination):
    """The one direct reply-to consumer of a channel."""

    def __init__(self, consumer: ChannelConsumer) -> None:
        super().__init__()
        self.tag = consumer.tag
        self._consumer: ChannelConsumer | None = consumer
        # rabbit: where, a dot, and a key of 16 octets with its padding; php-amqp's suite knows the shape
        self.key = f"{REPLY_TO}.{secrets.token_urlsafe(6)}.{secrets.token_urlsafe(16)}=="

    def is_deleted(self) -> bool:
        return self._consumer is None

    def end(self) -> None:
        """Cancelled, or its channel ends. Other connections' routes may name it for long: it keeps nothing alive."""
        self.version += 1
        self._consumer = None

    def enqueue(self, message: Message) -> bool:
        """Delivers at once. A requester that does not read loses replies beyond its output's bound, as the at-most-once
        promise allows; the broker's memory is not its buffer."""
        consumer = self._consumer
        if consumer is not None and consumer.has_room():
            consumer.deliver(message, None, False)
        return True
