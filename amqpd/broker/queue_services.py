"""The broker's implementation of `QueueServices` (broker/queue/services.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.broker.delay_hook import DelayHook
from amqpd.broker.delayed.delayed_messages import DelayScheduler
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message
from amqpd.broker.publish.dead_letter import DeadLetterPublisher
from amqpd.broker.queue.log_opener import FailedQueueRetry, LogOpener
from amqpd.broker.queue.log_opening import LogOpening
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import MemoryWindows, QueueServices
from amqpd.broker.vhost.consumer_offsets import ConsumerOffsets
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.local_log import LocalLog
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage


@final
class BrokerQueueServices(QueueServices):
    """The services of the broker for the queues of one vhost.

    Args:
        expire: deletes a queue that was unused for its x-expires.
    """

    def __init__(
        self,
        vhost_name: str,
        vhost_id: str,
        turn: LoopTurn,
        timers: Timers,
        windows: MemoryWindows,
        storage: Storage,
        opener: LogOpener,
        pump_retries: FailedQueueRetry,
        dead_letters: DeadLetterPublisher,
        stored_offsets: ConsumerOffsets,
        expire: Callable[[Queue], object],
        delays: DelayScheduler,
    ) -> None:
        super().__init__(vhost_name, vhost_id, turn, timers, windows)
        self._storage = storage
        self._opener = opener
        self._pump_retries = pump_retries
        self._dead_letters = dead_letters
        self._stored_offsets = stored_offsets
        self._expire = expire
        self._delays = delays

    def open_soon(self, opening: LogOpening) -> bool:
        return self._opener.open(opening)

    def pump_failed(self, queue: QueueBase, error: Exception) -> None:
        self._pump_retries.failed(queue, error)

    def temporary_log(self, start_offset: i64) -> QueueLog:
        return self._storage.temporary_queue(first_offset=start_offset)

    def declare_export(self, log: QueueLog, name: str, bytes_max: int | None) -> None:
        self._storage.export_hold(log).declare(name, bytes_max)

    def set_acked_retention(self, log: QueueLog, max_age_ms: i64, max_bytes: i64) -> None:
        if isinstance(log, LocalLog):
            self._storage.retain(log, max_age_ms, max_bytes)

    def rewinder(self, log: QueueLog) -> AckedReplay:
        assert isinstance(log, LocalLog)  # the caller has checked it
        return self._storage.replay(log)

    def set_stream_retention(self, log: QueueLog, policy: RetentionPolicy) -> None:
        if isinstance(log, LocalLog):
            self._storage.set_policy(log, policy)

    def admit_name(self, queue_id: str, name: str) -> bool:
        return self._stored_offsets.admit(queue_id, name)

    def stored_offset(self, queue_id: str, name: str) -> i64:
        offset = self._stored_offsets.get(queue_id, name)
        return -1 if offset is None else offset

    def store_offset(self, queue_id: str, name: str, offset: i64) -> None:
        self._stored_offsets.put(queue_id, name, offset)

    def settle_offset(self, queue_id: str, name: str) -> None:
        self._stored_offsets.settle(queue_id, name)

    def delay_hook(self, exchange: str) -> DelayHook:
        return self._delays.wheel(self.vhost_name, self.vhost_id, exchange)

    def end_delays(self) -> list[QueueLog]:
        return self._delays.remove_vhost(self.vhost_name)

    def expire(self, queue: QueueBase) -> None:
        assert isinstance(queue, Queue)  # only a `Queue` has a lease
        self._expire(queue)

    def dead_letter(self, queue: QueueBase, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        assert isinstance(queue, Queue)  # only a `Queue` has a dead-letter exchange
        self._dead_letters.add(queue, entry, message, reason)

    def dead_letter_range(self, queue: QueueBase, first: i64, last: i64, reason: str) -> None:
        assert isinstance(queue, Queue)  # only a `Queue` has a dead-letter exchange
        self._dead_letters.add_range(queue, first, last, reason)

    def dead_letters_behind(self) -> bool:
        return self._dead_letters.is_behind()
