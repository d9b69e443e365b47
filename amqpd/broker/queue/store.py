"""Where a queue's messages lie: in its log, in a temporary one, or in memory alone.

A durable queue's log lasts as long as the queue. A transient queue has none until its window in memory is full; what it
cannot hold goes to a temporary log, which is never synced and dies with the broker, and begins at `log_start`: entries
below that are in memory alone. Offsets are given out here, ascending, and never twice.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.message import LogMessageFactory, Message, MessageRoute
from amqpd.broker.queue.config import is_tombstone
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog


@final
class QueueStore:
    """Of one queue. store: its log, where it has one. spilled: that is a temporary one. compacts: of each routing key
    the last message stays, and a tombstone ends it (compaction.py).
    """

    def __init__(self, store: QueueLog | None) -> None:
        self.store = store
        self.spilled = False
        self.compacts = False
        self.in_transaction = False
        self.log_start: i64 = 0
        self.next_offset: i64 = 0
        # A message with its producer's numbers is being offered; who has numbered what, where no log remembers it.
        self.numbered = False
        self._producers: Producers | None = None
        self._from_log: LogMessageFactory | None = None

    def append(self, message: Message) -> i64:
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
                if self.compacts and is_tombstone(message):
                    offset = store.append_tombstone(route, message.properties())
                else:
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

    def spill(self, store: QueueLog, message: Message) -> None:
        """The window is full: from `message` on, which has the last offset, everything goes to this temporary log.

        The window's entries keep the offsets they have; the log begins at the message's.
        """
        self.store = store
        self.log_start = self.next_offset - 1
        self.spilled = True
        self.append(message)

    def drop_spill(self) -> None:
        """Nothing is ready any more: the temporary log goes. What is unacked has its message in memory."""
        store = self.store
        if store is not None:
            store.remove()
        self.store = None
        self.spilled = False

    def begin_transaction(self) -> None:
        """As `QueueLog.begin_transaction`, where there is a log."""
        self.in_transaction = True
        if self.store is not None:
            self.store.begin_transaction()

    def end_transaction(self) -> None:
        """Ends it."""
        self.in_transaction = False
        if self.store is not None:
            self.store.end_transaction()

    def most_bytes(self, hot_bytes: i64) -> i64:
        """No more bytes of bodies are ready than so many. hot_bytes: of those in memory."""
        store = self.store
        if store is None:
            return 1 << 62
        return store.size_bytes + (hot_bytes if self.spilled else 0)

    def producers(self) -> Producers:
        """Who has numbered what is in the queue: its log's, or, where it has none that lasts, in memory."""
        store = self.store
        if store is not None and not self.spilled:
            return store.producers()
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    def unwritten(self, ranges: list[tuple[int, int]]) -> None:
        """The log could not take these (inclusive): their producers may send them again."""
        if self._producers is not None:
            for first, _ in ranges:
                self._producers.unwritten(first)

    def log_passthrough(self, message: Message) -> bool:
        """A numbered message goes straight to a consumer without acks: the log is told, so that a copy is known for one
        after a restart. False: it accepts nothing.
        """
        store = self.store
        if store is None:
            return True
        offset = self.append(message)
        if offset < 0:
            return False
        store.settle(offset, message.body_size)
        store.settle_with_turn()
        return True

    def is_logged(self, offset: i64) -> bool:
        """Whether the log has the message of this offset, if anybody has."""
        return self.store is not None and offset >= self.log_start

    def settle(self, entry: QueueEntry) -> None:
        """The log may forget the entry's message."""
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.settle(entry.offset, entry.body_size)

    def settle_with_turn(self, entry: QueueEntry) -> None:
        """The same, written before a byte of this turn goes to a socket: nobody will answer for it."""
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.settle(entry.offset, entry.body_size)
            store.settle_with_turn()

    def mark_returned(self, entry: QueueEntry, due_ms: i64) -> None:
        """The entry was given back, in the log too. due_ms: as `QueueLog.mark_delayed`; 0: it may be delivered again at
        once.
        """
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            if due_ms > 0:
                store.mark_delayed(entry.offset, entry.delivery_count, due_ms)
            else:
                store.mark_returned(entry.offset, entry.delivery_count)

    def read_back(self, entry: QueueEntry) -> None:
        """Gives the entry its message again, if the log still has it. Waits for the disk. Raises: OSError."""
        store = self.store
        if store is not None:
            record = store.cursor.read_one(entry.offset)
            if record is not None:
                entry.message = self.message(record)

    def message(self, record: Record) -> Message:
        """What the log has given back, as a message."""
        from_log = self._from_log
        if from_log is None:
            from_log = LogMessageFactory()
            self._from_log = from_log
        return from_log.message(record)

    def envelope(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """What messages of this route share that are read from the log."""
        from_log = self._from_log
        if from_log is None:
            from_log = LogMessageFactory()
            self._from_log = from_log
        return from_log.envelope(exchange, routing_key)
