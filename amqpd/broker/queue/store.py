"""Store of a queue's messages: a log, a temporary log, or memory only.

The log of a durable queue lasts as long as the queue. A transient queue has no log until its window in memory is full.
Then the messages that do not fit go to a temporary log, which is never synced and ends with the process. That log
begins at the offset `log_start`; messages below are only in memory.

The store assigns the offsets. They ascend, and none is used twice.
"""

from __future__ import annotations

import logging
from typing import final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.message import LogMessageFactory, Message, MessageRoute
from amqpd.broker.queue.config import is_tombstone
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)


@final
class QueueStore:
    """The store of one queue.

    Attributes:
        store: the log, or None.
        keeps_all: the log stores transient messages as persistent ones.
        spilled: the log is a temporary one.
        compacts: the log keeps the last message of each routing key, and a tombstone removes the key (config.py).
        in_transaction: between `begin_transaction` and `end_transaction`.
        log_start: the first offset that the log can have.
        next_offset: the offset of the next message.
        numbered: the message being enqueued has a producer id and a sequence number.
    """

    def __init__(self, store: QueueLog | None, keeps_all: bool) -> None:
        self.store = store
        self.keeps_all = keeps_all
        self.spilled = False
        self.compacts = False
        self.in_transaction = False
        self.log_start: i64 = 0
        self.next_offset: i64 = 0
        self.numbered = False
        self._producers: Producers | None = None
        self._from_log: LogMessageFactory | None = None

    def append(self, message: Message) -> i64:
        """Assign an offset, and append the message to the log if there is one. Return -1 if the log has failed."""
        store = self.store
        if store is None:
            offset = self.next_offset
            self.next_offset = offset + 1
            return offset
        if store.failed:
            return -1
        route = message.envelope.record_route()
        persistent = message.persistent or self.keeps_all
        if message.body_size == message.frame_payload_max:
            content = message.content
            header_size = message.header_size
            if message.body_size == 0:
                if self.compacts and is_tombstone(message):
                    offset = store.append_tombstone(route, message.properties())
                else:
                    offset = store.append(route, content, 19, header_size - 1, 0, 0, persistent)
            else:
                offset = store.append(
                    route, content, 19, header_size - 1, header_size + 7, len(content) - 1, persistent
                )
        elif message.parts is not None and message.body_size > LARGE_BODY_BYTES:
            offset = store.append_large(route, message.properties(), message.parts, message.body_size, persistent)
        else:
            source = message.unframed()
            end = len(source) - message.body_size
            offset = store.append(route, source, 0, end, end, len(source), persistent)
        self.next_offset = offset + 1
        return offset

    def spill(self, store: QueueLog, message: Message) -> None:
        """Start a temporary log because the window is full. `message`, which got the last offset, is its first record.

        Entries in the window keep their offsets.
        """
        self.store = store
        self.log_start = self.next_offset - 1
        self.spilled = True
        self.append(message)

    def drop_spill(self) -> None:
        """Remove the temporary log: no message is ready. Unacked messages are in memory."""
        store = self.store
        if store is not None:
            store.remove()
        self.store = None
        self.spilled = False

    def begin_transaction(self) -> None:
        self.in_transaction = True
        if self.store is not None:
            self.store.begin_transaction()

    def end_transaction(self) -> None:
        self.in_transaction = False
        if self.store is not None:
            self.store.end_transaction()

    def most_bytes(self, hot_bytes: i64) -> i64:
        """Return an upper bound of the body bytes that are ready. hot_bytes: bytes in memory."""
        store = self.store
        if store is None:
            return 1 << 62
        return store.size_bytes + (hot_bytes if self.spilled else 0)

    def producers(self) -> Producers:
        """Return the sequence numbers of the producers: those of the log, or those in memory for a transient queue."""
        store = self.store
        if store is not None and not self.spilled:
            return store.producers()
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    def forget_unwritten(self, ranges: list[tuple[int, int]]) -> None:
        """Forget sequence numbers of messages that the log could not write, so that producers can send them again."""
        if self._producers is not None:
            for first, _ in ranges:
                self._producers.undo_from(first)

    def log_passthrough(self, message: Message) -> bool:
        """Log a numbered message that goes straight to a consumer without acks, as settled.

        A restarted broker then recognizes a copy of it.

        Returns: False if the log has failed.
        """
        store = self.store
        if store is None:
            return True
        offset = self.append(message)
        if offset < 0:
            return False
        store.ack(offset, message.body_size)
        store.write_acks_this_turn()
        return True

    def is_logged(self, offset: i64) -> bool:
        """Return whether the message of this offset is in a log, and not only in memory."""
        return self.store is not None and offset >= self.log_start

    def settle(self, entry: QueueEntry) -> None:
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.ack(entry.offset, entry.body_size)

    def settle_with_turn(self, entry: QueueEntry) -> None:
        """Settle the entry, and write this before the sockets are written in this turn.

        No ack follows, so the log must know of the delivery first: the message is delivered at most once, even
        after a kill.
        """
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            store.ack(entry.offset, entry.body_size)
            store.write_acks_this_turn()

    def mark_returned(self, entry: QueueEntry, due_ms: i64) -> None:
        """Record in the log that the entry was returned.

        Args:
            due_ms: when it becomes ready (`QueueLog.mark_delayed`); 0 for at once.
        """
        store = self.store
        if store is not None and entry.offset >= self.log_start:
            if due_ms > 0:
                store.mark_delayed(entry.offset, entry.delivery_count, due_ms)
            else:
                store.mark_returned(entry.offset, entry.delivery_count)

    def read_back(self, entry: QueueEntry) -> None:
        """Read the entry's message from the log, if the log still has it. Waits for the disk. Raises: OSError."""
        store = self.store
        if store is not None:
            record = store.cursor.read_one(entry.offset)
            if record is not None:
                entry.message = self.message(record)

    def try_read_back(self, entry: QueueEntry) -> None:
        """Read the message of a returned entry if the log can be read: an error must not stop the return of others."""
        try:
            self.read_back(entry)
        except OSError as error:
            log.warning("queue %r: a returned message could not be read: %s", entry.queue.name, error)

    def message(self, record: Record) -> Message:
        if self._from_log is None:
            self._from_log = LogMessageFactory()
        return self._from_log.message(record)

    def envelope(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """Return the route object that all messages of this route read from the log share."""
        if self._from_log is None:
            self._from_log = LogMessageFactory()
        return self._from_log.envelope(exchange, routing_key)
