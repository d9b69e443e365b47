"""Consumers of a channel: deliveries, credit, acks, timeouts, direct reply-to.

`ChannelConsumers` owns the next delivery tag, the unacked list and the global-qos window of the channel.
`ChannelConsumer.deliver` writes a delivery into the connection's output; `ChannelConsumers.ack` settles it.
Neither creates a task, decodes a table or formats a string.
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
from amqpd.channel.stats import DeliveryStats
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
    """The timer behind x-consumer-timeout, for one consumer, or for all basic.gets of one queue.

    It stores nothing per delivery. At each tick it records the channel's next delivery tag. If a tag below one
    that was recorded a timeout ago is still unacked, that delivery is overdue. A tick costs what was settled
    since the last tick, because `_first_tag` only moves forward.

    A tick is an eighth of the timeout, at least TICK_MS_MIN and at most TICK_MS_MAX, so a timeout is found up
    to two ticks late. Deliveries acked in an open transaction are overdue only after its rollback.

    Args:
        consumer: None for the basic.gets of the queue.
        on_timeout: called when a delivery is unacked for `timeout_ms`. The timer has stopped then.
    """

    def __init__(
        self,
        timers: Timers,
        unacked: Unacked,
        queue: QueueBase,
        consumer: Consumer | None,
        timeout_ms: i64,
        on_timeout: Callable[[DeliveryTimeout], object],
    ) -> None:
        super().__init__()
        self._on_timeout = on_timeout
        self.queue = queue
        self.consumer = consumer
        self.timeout_ms = timeout_ms
        self._timers = timers
        self._unacked = unacked
        self._first_tag: i64 = 0
        # (ms, tag): deliveries before that time have lower tags. Oldest first, about TICKS of them.
        self._marks: deque[tuple[i64, i64]] = deque()

    def start(self) -> None:
        """Start the timer if it does not run. The time of unacked deliveries begins now."""
        if self.tick < 0:
            self._marks.clear()
            self.fire()

    def set_timeout(self, timeout_ms: i64) -> None:
        """Set another timeout. It also applies to unacked deliveries, from their recorded delivery times."""
        self.timeout_ms = timeout_ms
        self._timers.cancel(self)
        self.fire()

    def stop(self) -> None:
        self._timers.cancel(self)
        self._marks.clear()

    def is_idle(self) -> bool:
        """Return whether none of its deliveries is unacked."""
        return self._unacked.first_of(self._first_tag, self.queue, self.consumer, True) < 0

    def fire(self) -> None:
        now = self._timers.now_ms()
        unacked = self._unacked
        first = unacked.first_of(self._first_tag, self.queue, self.consumer, True)
        due = now + self._tick_ms()
        marks = self._marks
        if first < 0:
            self._first_tag = unacked.next_tag()
            marks.clear()
            if self.consumer is None or self.consumer.cancelled:
                return  # the next delivery starts the timer again
        else:
            self._first_tag = first
            first = unacked.first_of(first, self.queue, self.consumer, False)
            marks.append((now, unacked.next_tag()))
            while marks[0][1] <= self._first_tag or (len(marks) > 1 and marks[1][0] + self.timeout_ms <= now):
                marks.popleft()  # the second mark is a timeout old, so the first one adds nothing
            if first >= 0:
                for ms, tag in marks:
                    if tag > first:
                        if ms + self.timeout_ms <= now:
                            self._on_timeout(self)
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

# A channel checks for stopped timers only when it has more than this.
CLOCKS_KEPT: Final = 64
_DELIVER: Final = b"\x00\x3c\x00\x3c"


@final
class ChannelConsumer(Consumer):
    """A consumer created by basic.consume.

    Attributes:
        prefetch_count: unacked deliveries allowed, 0 for no limit. The value of the last basic.qos before
            basic.consume.
        clock: None without a timeout.
    """

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
        self.prefetch_count: i64 = 0
        tag_bytes = shortstr(tag)
        number: int = deliveries.number
        self._frame_start = b"\x01" + number.to_bytes(2, "big")
        self._method_start = _DELIVER + tag_bytes
        # Frame payload size without exchange and routing key: method ids, consumer tag, delivery tag. Minus 1,
        # because the suffix of a `MessageRoute` includes the frame end.
        self._fixed_size: int = len(self._method_start) + 8 - 1
        # Cached bytes of a delivery up to the delivery tag, for suffixes of this size.
        self._suffix_size: i64 = -1
        self._start = b""
        self._starts: dict[int, bytes] = {}
        # Set while the vhost is traced.
        self._tap: TraceHook | None = None
        self.clock: DeliveryTimeout | None = None

    def apply_timeout(self, queue_timeout_ms: i64) -> None:
        """Apply the consumer timeout: the consumer's argument, else the queue's value, else the setting.

        Args:
            queue_timeout_ms: -1 if the queue has none.
        """
        timeout_ms: i64 = consume.timeout_ms(self.deliveries.session, self.arguments.timeout_ms, queue_timeout_ms)
        clock = self.clock
        if timeout_ms <= 0 or self.no_ack or self.queue.kind == "stream":  # a stream delivery blocks no other consumer
            if clock is not None:
                self.deliveries.stop_clock(clock)
        elif clock is None:
            self.clock = self.deliveries.start_clock(self.queue, self, timeout_ms)
        elif clock.timeout_ms != timeout_ms:
            clock.set_timeout(timeout_ms)

    def can_take(self) -> bool:
        deliveries = self.deliveries
        if self.prefetch_count > 0 and self.in_flight >= self.prefetch_count:
            return False
        if deliveries.window_size > 0 and deliveries.window_used >= deliveries.window_size:
            return False
        output = deliveries.output
        if output.write_paused or output.cut_bytes >= OUT_BYTES_MAX:
            output.waiting_consumers.append(self)
            return False
        return True

    def unused_credit(self) -> i64:
        return max(self.prefetch_count - self.in_flight, 0)

    def output_has_room(self) -> bool:
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
                # The log can read the message back. Memory must not grow with unread or unacked deliveries.
                entry.message = None
        else:
            deliveries.unacked.add_no_ack()
        out = output.out
        suffix = message.envelope.suffix
        suffix_size: i64 = len(suffix)
        if suffix_size != self._suffix_size:
            self._select_head(suffix_size)
            if self._tap is not None:
                self._trace_delivery(self._tap, message, redelivered)
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
            and message.has_frames_of(payload_max)
            and message.header_size <= payload_max
        ):
            out.write(content)
        elif (message.parts is None or message.body_size <= LARGE_BODY_BYTES) and message.header_size <= payload_max:
            message.write_content(out, deliveries.number, payload_max)
        else:
            output.write_content(deliveries.number, message)
            out = output.out
        if len(out) >= CUT_BYTES:
            output.cut_output()
        if not output.flush_wanted:
            output.want_flush()

    def deliver_records(
        self,
        encoder: StreamDeliveryEncoder,
        views: RecordViews,
        start: i64,
        stop: i64,
        source: QueueBase,
        tracked: bool,
    ) -> i64:
        """Deliver records of a stream: header and body are copied from the log into the output."""
        deliveries = self.deliveries
        output = deliveries.output
        number = views.shared_fields_index(start)
        shared = views.shared_fields[number]
        encoder.prepare_headers(shared, deliveries.number)
        size_max = min(output.frame_payload_max, LARGE_BODY_BYTES)  # limit for a body in a single frame
        if encoder.header_payload_size > output.frame_payload_max or self._tap is not None:
            size_max = 0
        entry = None if tracked or deliveries.transactional else shared_entry(self, source)
        index = start
        while True:
            body_size = views.body_size(index)
            each = entry if entry is not None else QueueEntry(source, views.offset(index), None, False)
            if 0 < body_size <= size_max:
                index = self._deliver_run(encoder, views, index, index + 1 if entry is None else stop, each, size_max)
            else:
                self.deliver(encoder.message(views, index), each, False)
                encoder.prepare_headers(shared, deliveries.number)
                index += 1
            if index >= stop or views.shared_fields_index(index) != number or not self.can_take():
                return index

    def _deliver_run(
        self,
        encoder: StreamDeliveryEncoder,
        views: RecordViews,
        start: i64,
        stop: i64,
        entry: QueueEntry,
        size_max: i64,
    ) -> i64:
        """Deliver the record at `start` and equal ones behind it while there is credit. Return the next index.

        Bodies have at most `size_max` bytes. All these deliveries share `entry`. The caller has checked that the
        first one has credit.
        """
        deliveries = self.deliveries
        if self.prefetch_count > 0:
            stop = min(stop, start + self.prefetch_count - self.in_flight)
        if deliveries.window_size > 0:
            deliveries.window_turn = self
            stop = min(stop, start + deliveries.window_size - deliveries.window_used)
        if len(encoder.suffix) != self._suffix_size:
            self._select_head(len(encoder.suffix))
        tag = deliveries.next_tag
        stop = deliveries.output.write_records(encoder, views, start, stop, size_max, self._start, tag)
        count = stop - start
        entry.consumer = self
        deliveries.unacked.add_times(tag, entry, count)
        deliveries.next_tag = tag + count
        deliveries.window_used += count
        self.in_flight += count
        self.delivered_count += count
        return stop

    def on_dispatch_end(self) -> None:
        self.deliveries.output.write_out()

    def set_tap(self, tap: TraceHook | None) -> None:
        self._tap = tap
        self._suffix_size = -1

    def _select_head(self, suffix_size: int) -> None:
        """Select the cached first bytes for suffixes of this size.

        A traced consumer caches none: `deliver` calls this for each delivery and then notifies the trace.
        """
        start = self._starts.get(suffix_size)
        if start is None:
            start = self._frame_start + (self._fixed_size + suffix_size).to_bytes(4, "big") + self._method_start
            self._starts[suffix_size] = start
        self._start = start
        if self._tap is None:
            self._suffix_size = suffix_size

    def _trace_delivery(self, tap: TraceHook, message: Message, redelivered: bool) -> None:
        session = self.deliveries.session
        tap.delivered(message, self.queue.name, redelivered, session.name, session.user.name, self.deliveries.number)

    def cancel(self) -> None:
        self.deliveries.cancel_from_queue(self)


@final
class ChannelConsumers:
    """The consumers and the unacked deliveries of one channel.

    Attributes:
        prefetch_count: from basic.qos, for consumers that are created later.
        window_size: shared limit of unacked deliveries of all consumers (global qos), 0 for none.
        channel_wide_qos: basic.qos with global=false sets the window, too.
        has_consumed: the channel has or had a consumer.
        window_turn: the consumer that used the last credit of the window. The consumers behind it are served
            first.
        transactional: entries are settled one by one at the commit.
        self_cancelled_tags: collects consumer tags while this channel deletes a queue. Their basic.cancel
            follows delete-ok.
        clocks: all timers, also of cancelled consumers with unacked deliveries.
    """

    def __init__(self, session: Session, output: Output, owner: ConnectionInterface, number: i64) -> None:
        self.session = session
        self.output = output
        self.owner = owner
        self.number = number
        self.acked_count: i64 = 0
        # Created with the first count.
        self.queue_stats: DeliveryStats | None = None
        self.next_tag: i64 = 1
        self.unacked = Unacked()
        self.consumers: dict[str, ChannelConsumer] = {}
        self.prefetch_count: i64 = 0
        self.window_size: i64 = 0
        self.window_used: i64 = 0
        self.channel_wide_qos = owner.channel_wide_qos
        self.has_consumed = False
        self.window_turn: ChannelConsumer | None = None
        self.transactional = False
        self.self_cancelled_tags: list[str] | None = None
        self.clocks: dict[DeliveryTimeout, None] = {}
        # The timers of basic.get among them. If `_clocks_check_at` is reached, stopped timers are removed.
        self._get_clocks: dict[QueueBase, DeliveryTimeout] = {}
        self._clocks_check_at: i64 = CLOCKS_KEPT

    def delivery_stats(self) -> DeliveryStats:
        if self.queue_stats is None:
            self.queue_stats = DeliveryStats()
        return self.queue_stats

    # -- unacked -----------------------------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> None:
        """Handle basic.ack.

        Raises:
            PreconditionFailed: the tag is not outstanding.
        """
        if multiple:
            if self.unacked.has_shared_entries:
                self._settle_runs(tag)
            else:
                self.ack_entries(self.unacked.take_multiple(tag))
        else:
            try:
                entry = self.unacked.take_one(tag)
            except PreconditionFailed:
                if not self.unacked.timed_out(tag):
                    raise
                return
            self.ack_entry(entry)

    def ack_entry(self, entry: QueueEntry) -> None:
        self.acked_count += 1
        self.return_credit(entry)
        entry.queue.ack(entry)

    def ack_entries(self, entries: list[QueueEntry]) -> None:
        """Ack each entry. The window of the channel is checked once."""
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
        """Ack all deliveries up to a tag, where one stream entry can have many deliveries."""
        for entry, count in self.unacked.take_runs(tag):
            self.acked_count += count
            self.return_credit(entry)
            consumer = entry.consumer
            if consumer is not None:
                consumer.in_flight -= count - 1
                self.window_used -= count - 1
            entry.queue.settle_times(entry, count)

    def return_credit(self, entry: QueueEntry) -> None:
        """Give the credit of one delivery back to its consumer and to the channel's window."""
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
        """Activate every parked consumer of the channel, beginning behind the one that was served last.

        All consumers of the channel are in one order, so no queue gets all the credit.
        """
        before: list[ChannelConsumer] = []
        last = self.window_turn
        found_last = last is None or last.cancelled
        for consumer in self.consumers.values():
            if not found_last:
                before.append(consumer)
                found_last = consumer is last
            elif consumer.parked:
                consumer.queue.activate(consumer)
        for consumer in before:
            if consumer.parked:
                consumer.queue.activate(consumer)

    def begin_transactions(self) -> None:
        """Prepare for tx mode. A transaction marks entries, so each delivery needs its own entry."""
        self.transactional = True
        self.unacked.split_shared()

    def take_all_unacked(self, committing: bool) -> list[QueueEntry]:
        """Remove and return all unacked entries in delivery order, because the channel closes.

        Args:
            committing: leave out entries that a running commit settles.
        """
        entries = [entry for entry in self.unacked.entries() if not (committing and entry.in_transaction)]
        for entry in entries:
            entry.in_transaction = False
        self.unacked.clear()
        return entries

    def clear_offsets(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Clear the offsets of unacked entries that the queue's log could not write."""
        for entry in self.unacked.entries():
            if entry.queue is queue and within(entry.offset, ranges):
                entry.offset = -1

    def requeue(self, entries: Sequence[QueueEntry], failed: bool) -> None:
        """Requeue entries whose tags were removed. Consumers can get them in the same turn.

        Args:
            failed: as in `QueueBase.requeue`.
        """
        queues: dict[QueueBase, None] = {}
        for entry in entries:
            queue = entry.queue
            queues[queue] = None
            # Return the credit first: the queue can deliver the entry again within `requeue`.
            self.return_credit(entry)
            entry.detach()
            queue.requeue(entry, True, failed)
        for queue in queues:
            if not queue.deleted:
                queue.schedule_dispatch()

    # -- timeouts ----------------------------------------------------------------------------------------------------

    def start_clock(self, queue: QueueBase, consumer: ChannelConsumer | None, timeout_ms: i64) -> DeliveryTimeout:
        clock = DeliveryTimeout(self.session.broker.timers, self.unacked, queue, consumer, timeout_ms, self.on_timeout)
        if len(self.clocks) >= self._clocks_check_at:
            for each in list(self.clocks):
                if each.tick < 0:  # stopped: all settled, no further deliveries
                    self.stop_clock(each)
            left: i64 = len(self.clocks)
            self._clocks_check_at = 2 * left if left > CLOCKS_KEPT else CLOCKS_KEPT
        self.clocks[clock] = None
        clock.start()
        return clock

    def on_get(self, queue: QueueBase, queue_timeout_ms: i64) -> None:
        """Start the timeout for a message that basic.get took and that needs an ack."""
        timeout_ms: i64 = consume.timeout_ms(self.session, -1, queue_timeout_ms)
        if timeout_ms <= 0:
            return
        clock = self._get_clocks.get(queue)
        if clock is None:
            self._get_clocks[queue] = self.start_clock(queue, None, timeout_ms)
        else:
            clock.timeout_ms = timeout_ms
            clock.start()

    def on_timeout(self, clock: DeliveryTimeout) -> None:
        """Handle deliveries that stayed unacked for too long.

        If the client supports consumer_cancel_notify, the broker cancels the consumer and requeues its
        deliveries; later acks of them are ignored. Otherwise, or if the setting consumer_timeout_response says
        so, it closes the channel.
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
        assert isinstance(consumer, ChannelConsumer)  # start_clock gets no other type
        was_cancelled = consumer.cancelled
        if not was_cancelled:
            self.consumers.pop(consumer.tag, None)
            self.output.write(self.cancel_frame(consumer.tag))
            assert isinstance(queue, Queue)  # direct replies are never unacked
            consume.stop_consumer(session, queue, consumer)
            consumer_deleted(session, self.number, consumer)
        self.requeue(self.unacked.take_as_late(queue, consumer), False)
        self.on_consumer_ended(consumer, was_cancelled)
        session.turn.schedule()

    def on_consumer_ended(self, consumer: ChannelConsumer, is_counted: bool = False) -> None:
        """Count the deliveries of a cancelled consumer. Its timer runs while it has unacked deliveries.

        Args:
            is_counted: the consumer was cancelled and counted before.
        """
        if not is_counted:
            self.delivery_stats().add_ended(consumer)
        clock = consumer.clock
        if clock is None:
            return
        if clock.is_idle():
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
        """Stop all timers: the channel closes."""
        for clock in list(self.clocks):
            self.stop_clock(clock)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def make_consumer(
        self, queue: QueueBase, tag: str, no_ack: bool, exclusive: bool, arguments: ConsumerArguments
    ) -> ChannelConsumer:
        """Return a new consumer with the prefetch of the last basic.qos. The caller adds it to the queue."""
        consumer = ChannelConsumer(self, queue, tag, no_ack, exclusive, arguments)
        consumer.prefetch_count = self.prefetch_count
        self.has_consumed = True
        return consumer

    def cancel_from_queue(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer whose queue was deleted, and notify the client."""
        self.consumers.pop(consumer.tag, None)
        self.on_consumer_ended(consumer)
        consumer_deleted(self.session, self.number, consumer)
        if self.self_cancelled_tags is None:
            if not self.output.closing:
                self.output.write(self.cancel_frame(consumer.tag))
        else:
            self.self_cancelled_tags.append(consumer.tag)

    def cancel_frame(self, tag: str) -> bytes:
        """Return a basic.cancel frame, or b"" for a client without consumer_cancel_notify."""
        if not self.session.has_capability("consumer_cancel_notify"):
            return b""
        return methods.frame(self.number, methods.BasicCancel(tag, True))


REPLY_TO: Final = DIRECT_REPLY_TO.decode()


class ReplyConsumer(Destination):
    """The direct reply-to consumer of a channel.

    basic.consume of `amq.rabbitmq.reply-to` gives the channel a secret key. The publisher replaces that name in
    the reply-to of later requests by the key. A reply published to the default exchange under the key goes
    straight to this consumer, at most once. An unknown or forged key is unroutable.

    rabbit: https://www.rabbitmq.com/direct-reply-to.html; texts measured on 3.10.8.
    """

    def __init__(self, consumer: ChannelConsumer) -> None:
        super().__init__()
        self.tag = consumer.tag
        self._consumer: ChannelConsumer | None = consumer
        # rabbit: a name, a dot, and 16 random octets in base64 with padding; the test suite of php-amqp checks this
        # form
        self.key = f"{REPLY_TO}.{secrets.token_urlsafe(6)}.{secrets.token_urlsafe(16)}=="

    def is_deleted(self) -> bool:
        return self._consumer is None

    def dispose(self) -> None:
        """Drop the consumer: it was cancelled, or its channel closes.

        Routes of other connections can keep this object for long.
        """
        self.version += 1
        self._consumer = None

    def enqueue(self, message: Message) -> bool:
        """Deliver at once. If the requester's output is full, drop the reply.

        Direct reply-to promises at most once, and the broker does not keep replies in memory.
        """
        consumer = self._consumer
        if consumer is not None and consumer.output_has_room():
            consumer.deliver(message, None, False)
        return True
