"""A queue: the ready order of its messages, its consumers, and who gets what next.

A queue is a cursor over a log. Messages come in at `offer`, get an offset, and leave through `pump` (or `get`) to a
consumer; `settle` ends them, `requeue` brings them back to their place. What is ready lies, in this order, in

    returned   a heap of requeued entries; their offsets are below every other ready one
    hot        entries in memory, ascending; a bounded window
    the log    everything from `cold_offset` to the end of the log, read into `hot` when that runs dry

`hot` is complete while `cold_offset` is the log's end: then new entries join it. Once it has reached its bound the rest
stays in the log only, so memory does not grow with the backlog. A transient queue has no log until then; what it
cannot hold goes to a temporary one that is never synced.

Invariants: ready_count = len(returned) + len(hot) + unsettled records from cold_offset on that were never delivered.
One owner: only the loop's thread touches a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from amqpd.broker.delivery import Consumer, Entry, Source, within
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.message import Envelope, FromLog, Message
from amqpd.broker.queues.consumers import RoundRobin
from amqpd.broker.queues.expiry import Expiry
from amqpd.broker.queues.fifo import Fifo
from amqpd.broker.queues.host import QueueHost
from amqpd.errors import ResourceError
from amqpd.protocol.frames import LARGE_BODY_BYTES
from amqpd.storage.log.checkpoint import UnknownFormat
from amqpd.storage.log.prepared import Prepared
from amqpd.storage.log.record import Record
from amqpd.storage.log.recovery import DamagedLog
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

# The window in memory, per queue. A durable queue's is small, its log has everything anyway; a transient queue's is
# what it may hold before it needs a temporary log.
HOT_COUNT_MAX: Final = 4096
HOT_BYTES_MAX: Final = 4 * 1024 * 1024
TRANSIENT_COUNT_MAX: Final = 32768
TRANSIENT_BYTES_MAX: Final = 16 * 1024 * 1024
# What one reading of the log brings back.
COLD_READ_BYTES: Final = 256 * 1024
# How many deliveries one call of pump makes before other queues and sockets have their turn.
PUMP_COUNT_MAX: Final = 1000


class Queue(Source):
    """One queue of a vhost. host: what it needs of the broker around it."""

    def __init__(
        self,
        host: QueueHost,
        name: str,
        durable: bool,
        auto_delete: bool,
        exclusive_owner: object,
        arguments: dict[str, object],
        store: QueueLog | None,
    ) -> None:
        super().__init__(name, host.vhost_name)
        self.host = host
        self.durable = durable
        self.auto_delete = auto_delete
        # The connection that declared it exclusive, or None.
        self.exclusive_owner = exclusive_owner
        self.arguments = arguments
        self.id = ""
        self.store = store
        self.logged = store is not None
        # A transient queue's log is temporary: it never delays a confirm and dies with the broker. It begins here.
        self.spilled = False
        self.log_start: i64 = 0
        # Letters that wait to be published and that only the log has.
        self.stretch_count: i64 = 0
        self.returned: list[Entry] = []
        self.hot = Fifo()
        self.hot_bytes: i64 = 0
        self.hot_count_max: i64 = TRANSIENT_COUNT_MAX if store is None else HOT_COUNT_MAX
        self.hot_bytes_max: i64 = TRANSIENT_BYTES_MAX if store is None else HOT_BYTES_MAX
        self.next_offset: i64 = 0
        self.cold_offset: i64 = 0
        # The disk is being asked for what comes next; `_log_arrived` goes on.
        self.reading = False
        # basic.get that waits for it: called once each, in order, when there may be an answer.
        self.getters: list[Callable[[], object]] = []
        self.round_robin = RoundRobin()
        self.had_consumer = False
        # Watches the head from the first message on that has a time to live.
        self.expiry: Expiry | None = None
        self._from_log = FromLog()
        self._prepared = store is None
        # Its log is being opened; it could not be, which the next `prepare` tells; who is called then, once each.
        self._opening = False
        self._open_failed = False
        self.openers: list[Callable[[], object]] = []

    def prepare(self) -> None:
        if not self._prepared:
            self._prepare()

    def _prepare(self) -> None:
        if not self._open_failed:
            if not self._opening:
                self._opening = not self.host.open_soon(self)
            if self._opening:
                raise NotOpenYet([self])
        self._open_failed = False
        if not self.can_open():
            raise ResourceError(
                f"queue '{self.name}' in vhost '{self.vhost_name}' cannot be opened now; the broker's log says why"
            )

    @property
    def ready(self) -> bool:
        """Whether its log has been opened."""
        return self._prepared

    def begin_to_open(self) -> bool:
        """Reads the log. Whether that was all, or failed; else `opened` is called when the disk has answered."""
        store = self.store
        if store is None or self._prepared or self.deleted:
            return True
        try:
            return store.open_soon(self.opened)
        except (OSError, UnknownFormat, DamagedLog):
            return True  # `can_open` meets it too, and tells

    def opened(self) -> None:
        """The disk has answered."""
        self._opening = False
        if not self.deleted:
            self._open_failed = not self.can_open()
        openers = self.openers
        self.openers = []
        for opener in openers:
            opener()

    def can_open(self) -> bool:
        if self._prepared:
            return True
        store = self.store
        if store is not None:
            try:
                store.recover()
            except (OSError, UnknownFormat, DamagedLog) as error:
                about = {"vhost": self.vhost_name, "queue": self.name}
                log.error("queue '%s' cannot be opened: %s", self.name, error, extra=about)
                return False
            self._prepared = True
            self.next_offset = store.next_offset
            self.ready_count = store.record_count
            self.recovered()
            if self.ready_count > 0:
                # Reading the head shows whether it has a time to live, which may be over.
                self._look_at_head()
        return True

    def _look_at_head(self) -> None:
        try:
            self.look_at_first()
            if self.expiry is not None:
                self.expiry.fire()
        except OSError as error:
            self.pump_failed(error)

    def look_at_first(self) -> None:
        """The first ready message comes into memory, and no more: nobody may ask for the others. Where that takes the
        disk, it is looked at when it has come.
        """
        store = self.store
        if store is not None:
            record = store.cursor.read_first(self.cold_offset, self._first_arrived)
            if record is not None:
                self._window_from(store, record)

    def _first_arrived(self) -> None:
        if not self.deleted and not self.hot and self.ready_count > 0:
            self._look_at_head()

    def when_open(self, done: Callable[[], object]) -> None:
        self.openers.append(done)

    def recovered(self) -> None:
        """The log is known, nothing is read yet: a kind of queue that keeps more than counts looks here."""

    def log(self) -> QueueLog | None:
        return None if self.spilled else self.store

    def gone(self) -> bool:
        return self.deleted

    # -- in ----------------------------------------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        self.published_count += 1
        if message.info is not None and message.info.expiration is not None:
            self.watch(message)
        if self.ready_count == 0:
            if self.spilled and self.stretch_count == 0:
                self._unspill()
            consumer = self.round_robin.pick()
            if consumer is not None:
                if consumer.no_ack:
                    # Delivered at most once whatever happens: it never touches the log.
                    self.delivered_no_ack_count += 1
                    consumer.deliver(message, None, False)
                    return True
                offset = self._append(message)
                if offset < 0:
                    return False
                self.cold_offset = offset + 1
                self.unacked_count += 1
                self.delivered_count += 1
                store = self.store
                if store is not None:
                    self.note_delivered(store, offset)
                consumer.deliver(message, Entry(self, offset, message, False), False)
                return True
        return self.enqueue(message)

    def enqueue(self, message: Message) -> bool:
        """Makes it ready. False: the log takes nothing."""
        offset = self._append(message)
        if offset < 0:
            return False
        if self.ready_count == 0:
            self.cold_offset = offset
        self.ready_count += 1
        if self.cold_offset == offset:
            if self.hot_bytes < self.hot_bytes_max and len(self.hot) < self.hot_count_max:
                self.hot.append(Entry(self, offset, message, False))
                self.hot_bytes += message.body_size
                self.cold_offset = offset + 1
            elif self.store is None:
                self._spill(message)
        if self.expiry is not None and self.ready_count == 1:
            self.expiry.arm()
        return True

    def begin_transaction(self) -> None:
        store = self.store
        if store is not None:
            store.begin_transaction()

    def end_transaction(self) -> None:
        store = self.store
        if store is not None:
            store.end_transaction()

    def takes_prepared(self) -> bool:
        return type(self) is Queue and self.store is not None and not self.spilled

    def enqueue_prepared(self, prepared: Prepared, first: list[Message]) -> None:
        store = self.store
        assert store is not None  # takes_prepared has looked
        count = prepared.count
        offset = store.append_prepared(prepared)
        self.published_count += count
        self.next_offset = offset + count
        if self.ready_count == 0:
            self.cold_offset = offset
        self.ready_count += count
        for message in first:
            if (
                self.cold_offset != offset
                or self.hot_bytes >= self.hot_bytes_max
                or len(self.hot) >= self.hot_count_max
            ):
                break
            self.hot.append(Entry(self, offset, message, False))
            self.hot_bytes += message.body_size
            offset += 1
            self.cold_offset = offset
        if self.expiry is not None and self.ready_count == count:
            self.expiry.arm()
        self.pump_later()

    def watch(self, message: Message) -> None:
        """The message has a time to live, which begins now."""
        expiry = self.expiry
        if expiry is None:
            expiry = Expiry(self, self.host, -1)
            self.expiry = expiry
        if message.arrived_ms == 0:
            message.arrived_ms = expiry.now_ms()

    def _append(self, message: Message) -> i64:
        """Gives the message its offset; in the log where there is one. -1: the log accepts nothing."""
        store = self.store
        if store is None:
            offset = self.next_offset
            self.next_offset = offset + 1
            return offset
        if store.failed:
            return -1
        route = message.envelope.record_route()
        if message.body_size == message.frame_payload_max:
            content = message.content
            header_size = message.header_size
            if message.body_size == 0:
                offset = store.append(route, content, 19, header_size - 1, 0, 0, message.persistent)
            else:
                offset = store.append(
                    route,
                    content,
                    19,
                    header_size - 1,
                    header_size + 7,
                    len(content) - 1,
                    message.persistent,
                )
        elif message.parts is not None and message.body_size > LARGE_BODY_BYTES:
            offset = store.append_large(
                route, message.properties(), message.parts, message.body_size, message.persistent
            )
        else:
            source = message.unframed()
            end = len(source) - message.body_size
            offset = store.append(route, source, 0, end, end, len(source), message.persistent)
        self.next_offset = offset + 1
        return offset

    def _spill(self, message: Message) -> None:
        """A transient queue's window is full: from here on it has a log, unsynced and gone with the broker.

        The window's entries keep the offsets they have; the log begins at the next one.
        """
        offset = self.next_offset - 1
        self.store = self.host.temporary_log(offset)
        self.log_start = offset
        self.spilled = True
        self._append(message)

    def _unspill(self) -> None:
        """Nothing is ready any more: the temporary log goes. What is unacked has its message in memory."""
        store = self.store
        if store is not None:
            store.remove()
        self.store = None
        self.spilled = False

    # -- out ---------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Delivers what is ready to whoever can take it; asks to be called again when there is more than a turn's
        share."""
        if self.expiry is not None and self.expiry.behind and not self.expiry.drop():
            return  # what is over still stands before what could be delivered; the next turn goes on
        self._pump()
        if self.expiry is not None and not self.expiry.behind:
            self.expiry.arm()

    def pump_later(self) -> None:
        self.host.turn.pump_later(self)

    def pump_failed(self, error: Exception) -> None:
        self.host.pump_failed(self, error)

    def set_window(self, count_max: int, bytes_max: int) -> None:
        self.hot_count_max = count_max
        self.hot_bytes_max = bytes_max

    def _pump(self) -> None:
        if self.getters:
            self._call_getters()
        count: i64 = 0
        while self.ready_count > 0:
            if not self.hot and self.store is not None and self.round_robin.groups and not self.at_hand():
                return
            consumer = self.round_robin.pick()
            if consumer is None:
                return
            entry = self.take()
            if entry is None:
                return
            count += 1
            if self.expiry is not None and self.expiry.is_over(entry):
                self.discard(entry, "expired")
                if not self.expiry.drop():
                    return  # a slice went; the next turn goes on
            else:
                self._hand_over(consumer, entry)
            if count >= PUMP_COUNT_MAX:
                self.pump_later()
                return

    def _call_getters(self) -> None:
        getters = self.getters
        self.getters = []
        done: i64 = 0
        try:
            for getter in getters:
                done += 1
                getter()
        finally:
            if done < len(getters):  # one has raised: the others are still to be called
                self.getters = getters[done:] + self.getters

    def _hand_over(self, consumer: Consumer, entry: Entry) -> None:
        message = entry.message
        assert message is not None  # take() has read it
        offset = entry.offset
        store = self.store
        if entry.redelivered:
            self.redelivered_count += 1
        if consumer.no_ack:
            self.delivered_no_ack_count += 1
            if store is not None and offset >= self.log_start:
                store.settle(offset, entry.body_size)
                store.settle_with_turn()
            consumer.deliver(message, None, entry.redelivered)
        else:
            self.delivered_count += 1
            self.unacked_count += 1
            if store is not None and offset >= self.log_start:
                self.note_delivered(store, offset)
            consumer.deliver(message, entry, entry.redelivered)

    def take(self) -> Entry | None:
        """The next ready entry, with its message; the caller settles it or counts it as unacked.

        Cost: O(1), a reading of the log once per window. None: nothing is ready.
        """
        while self.ready_count > 0:
            if self.returned:
                entry = self.returned[0]
                if entry.message is None:
                    self.read_back(entry)  # it stays in its place where that raises
                heappop(self.returned)
            else:
                if not self.hot and not self._refill():
                    # The log holds less than was counted (a damaged batch): the count follows the log.
                    self.ready_count = 0
                    return None
                entry = self.hot.popleft()
                message = entry.message
                if message is not None:
                    self.hot_bytes -= message.body_size
            self.ready_count -= 1
            if entry.message is not None:
                return entry
        return None

    def note_delivered(self, store: QueueLog, offset: i64) -> None:
        """A consumer is about to see it: after a kill it counts as redelivered, as does all before it."""
        store.mark_delivered(offset)

    def head(self) -> Entry | None:
        """The entry that `take` would return, with its message; it stays where it is. None also while the disk is asked
        for it: `pump` is called when it has answered.
        """
        if self.returned:
            entry = self.returned[0]
            if entry.message is None:
                self.read_back(entry)
            return entry
        if self.ready_count > 0 and (self.hot or self.at_hand()) and self.hot:
            return self.hot.first()
        return None

    def drop_old(self, arrived_max_ms: i64, count_max: i64) -> i64:
        """Ends what arrived by then, monotonic milliseconds, from the head on; a batch of a log goes whole.

        Returns how many went, `count_max` and a batch at most; 0 where they have to be looked at one by one.
        """
        return 0

    def leaves_letters(self) -> bool:
        """Whether what ends here goes to a dead-letter exchange."""
        return False

    def discard(self, entry: Entry, reason: str) -> None:
        """A ready entry that was taken ends here. reason: expired, maxlen, as a dead-letter says it."""
        self.settle_log(entry)

    def settle_log(self, entry: Entry) -> None:
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.settle(entry.offset, entry.body_size)

    def in_log(self, offset: i64) -> bool:
        """Whether the log has the message of this offset, if anybody has."""
        return self.store is not None and offset >= self.log_start

    def read_back(self, entry: Entry) -> None:
        store = self.store
        if store is not None:
            record = store.cursor.read_one(entry.offset)
            if record is not None:
                entry.message = self._message(record)

    def at_hand(self) -> bool:
        """Whether `take` need not wait for the disk. If not, `pump` is called when it has answered.

        Reads the log's next stretch into the window, which is empty.
        """
        store = self.store
        if store is None or self.returned:
            return True
        self.reading = False
        fetch = store.cursor.read_at_hand(self.cold_offset, self.cold_read_bytes(), self._log_arrived)
        if not self._keep(store, fetch.records) and fetch.waiting:
            self.cold_offset = fetch.next_offset
            self.reading = True
        return not self.reading

    def _log_arrived(self) -> None:
        if self.deleted:
            return
        if self.reading:
            # What has a time to live is seen now, whether or not there is somebody to take it.
            self.head()
        self.pump_later()

    def _refill(self) -> bool:
        """Reads the log's next stretch into the window, waiting for the disk."""
        store = self.store
        if store is None:
            return False
        self.reading = False
        return self._keep(store, store.cursor.read(self.cold_offset, self.cold_read_bytes()).records)

    def _keep(self, store: QueueLog, records: list[Record]) -> bool:
        hot = self.hot
        for record in records:
            self._window_from(store, record)
        return len(hot) > 0

    def cold_read_bytes(self) -> i64:
        """What one reading of the log brings back: less where windows are small."""
        return COLD_READ_BYTES if self.hot_bytes_max >= 16 * COLD_READ_BYTES else self.hot_bytes_max // 16

    def _window_from(self, store: QueueLog, record: Record) -> None:
        entry = Entry(self, record.offset, self._message(record), store.redelivered(record.offset))
        entry.delivery_count = record.delivery_count
        self.hot.append(entry)
        self.hot_bytes += len(record.body)
        self.cold_offset = record.offset + 1

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> Envelope:
        """What messages of this route share that are read from the log."""
        return self._from_log.envelope(exchange, routing_key)

    def _message(self, record: Record) -> Message:
        message = self._from_log.message(record)
        info = message.info
        if self.expiry is None and info is not None and info.expiration is not None:
            self.expiry = Expiry(self, self.host, -1)
        return message

    def get(self, no_ack: bool) -> Entry | None:
        """basic.get: the next entry, settled at once or counted as unacked. None: the queue is empty, or `waits`."""
        entry = self._take_at_hand()
        expiry = self.expiry
        if expiry is not None:
            while entry is not None and expiry.is_over(entry):
                self.discard(entry, "expired")
                expiry.drop()
                entry = self._take_at_hand()
            expiry.arm()
        if entry is None:
            return None
        store = self.store
        if no_ack:
            self.get_no_ack_count += 1
            if store is not None and entry.offset >= self.log_start:
                store.settle(entry.offset, entry.body_size)
                store.settle_with_turn()
        else:
            self.get_count += 1
            self.unacked_count += 1
            if store is not None and entry.offset >= self.log_start:
                self.note_delivered(store, entry.offset)
        if entry.redelivered:
            self.redelivered_count += 1
        return entry

    def _take_at_hand(self) -> Entry | None:
        """As `take`, but None also while the disk is asked for it."""
        if self.ready_count > 0 and not self.hot and not self.at_hand():
            return None
        return self.take()

    def waits(self) -> bool:
        """Whether `get` found nothing because the disk is being asked for it: a getter is called when it has come."""
        return self.reading and self.ready_count > 0

    def outgoing(self, entry: Entry) -> Message | None:
        """The message as a consumer sees it."""
        return entry.message

    # -- home --------------------------------------------------------------------------------------------------------

    def settle(self, entry: Entry) -> None:
        """The entry is done with: acked, or rejected without requeue."""
        self.unacked_count -= 1
        self.acked_count += 1
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.settle(entry.offset, entry.body_size)

    def reject(self, entry: Entry) -> None:
        """The entry is refused for good. A queue with a dead-letter exchange does more."""
        self.settle(entry)

    def requeue(self, entry: Entry, counts: bool) -> None:
        """Back to its place, marked redelivered. counts: whether this return counts as a delivery attempt.

        The caller pumps when it has returned all it has.
        """
        self.unacked_count -= 1
        if self.deleted:
            return
        entry.redelivered = True
        if counts:
            entry.delivery_count += 1
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.mark_returned(entry.offset, entry.delivery_count)
        self.put_back(entry)
        self.ready_count += 1

    def put_back(self, entry: Entry) -> None:
        heappush(self.returned, entry)

    def purge(self) -> i64:
        """Removes what is ready; unacked messages stay. Returns how many went."""
        return self.purge_ready(0)

    def purge_ready(self, size: i64) -> i64:
        """`purge`. size: bytes of the bodies that are ready, where that is known."""
        count = self.ready_count
        store = self.store
        if store is not None:
            for entry in self.returned:
                if entry.offset >= self.log_start:
                    store.settle(entry.offset, entry.body_size)
                size -= entry.body_size
            first = self.cold_offset
            if self.hot:
                first = self.hot.first().offset
            if first < self.log_start:
                first = self.log_start
            if first < store.next_offset:
                store.settle_range(first, store.next_offset - 1, size if size > 0 else 0)
            store.settle_with_turn()
        self.returned.clear()
        self.hot.clear()
        self.hot_bytes = 0
        self.cold_offset = self.next_offset
        self.ready_count = 0
        if self.getters:
            self.pump_later()
        return count

    def used(self) -> None:
        """Somebody declared it, got from it, began or ceased to consume: a lease (x-expires) begins anew."""

    def forget(self) -> None:
        """The queue is deleted: nothing of it stays in memory. Its log is the broker's to remove."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None  # it knows the queue, which is to go without a collector
        self._call_getters()
        self.returned.clear()
        self.hot.clear()
        self.hot_bytes = 0
        self.ready_count = 0
        if self.spilled:
            self._unspill()

    def unwritten(self, ranges: list[tuple[int, int]]) -> None:
        """The log could not take these offsets (inclusive); their publishers are told. What of them is ready goes.

        What a consumer holds already stays with it, and has no place to come back to.
        """
        kept = Fifo()
        gone: i64 = 0
        for entry in self.hot.rest():
            if within(entry.offset, ranges):
                gone += 1
                self.hot_bytes -= entry.body_size
            else:
                kept.append(entry)
        self.hot = kept
        for first, last in ranges:
            begin: i64 = first
            if begin < self.cold_offset:
                begin = self.cold_offset
            end: i64 = last
            if end >= begin:
                gone += end - begin + 1
        for entry in self.returned:
            if within(entry.offset, ranges):
                entry.offset = -1
        self.ready_count -= gone

    # -- consumers ---------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[Consumer]:
        """All of them, in the order in which they came."""
        return self.round_robin.consumers

    def in_use(self) -> bool:
        return len(self.round_robin.consumers) > 0

    def add_consumer(self, consumer: Consumer) -> None:
        """The caller has checked exclusiveness. Delivery begins with the next pump."""
        self.had_consumer = True
        self.round_robin.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """It takes nothing more; what it has unacked stays with its channel."""
        if self.round_robin.remove(consumer):
            self.activate(self.round_robin.consumers[0])

    def activate(self, consumer: Consumer) -> None:
        """A parked consumer may have credit or room again."""
        if self.round_robin.back(consumer) and self.ready_count > 0 and not self.pump_wanted:
            self.pump_later()
