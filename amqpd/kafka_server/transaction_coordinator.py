"""The coordinator of transactions: the states of all transactional ids, with their log, timers and markers.

transactions.py decides. A new state counts when it is synced (transaction_log.py). A transaction that is decided
(PrepareCommit, PrepareAbort) is completed: a marker is appended to each of its partitions, and the pending offsets of
its groups are made the groups' or dropped. When all of that is synced, the state is complete and EndTxn is answered, so
a consumer that reads after the commit gets all of its records. The state Complete need not be synced before the answer:
without it a start only writes the markers again, and a later state of the id follows it in the same log.

After a start the coordinator completes what is decided. A marker that could not be written is tried again; a partition
whose stream was deleted needs none. Until both logs are read, requests get 14 (COORDINATOR_LOAD_IN_PROGRESS).

A transactional id belongs to a vhost and needs no permission of its own, like a group; its partitions do. An id without
a transaction expires after IDS_KEPT_MS. A transaction takes at most TIMEOUT_MS_MAX.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from amqpd.broker.flow.timers import Timer
from amqpd.kafka_server import errors, topics, transactions
from amqpd.kafka_server.compacted_log import LogHost, ignore_result
from amqpd.kafka_server.pace import Pace
from amqpd.kafka_server.transaction_log import TransactionKey, TransactionLog
from amqpd.kafka_server.transactions import TransactionMetadata, TransactionPartition, TransactionState
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.batch import marker_batch
from amqpd.storage.queue_log import LogFailed

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.committed_offsets import CommittedOffsets

log = logging.getLogger(__name__)

ID_MAX: Final = 255
"""Characters of a transactional id."""
IDS_MAX: Final = 10_000
"""Transactional ids of a vhost."""
PARTS_MAX: Final = 200_000
"""Partitions and groups of all transactions of the broker."""
TIMEOUT_MS_MAX: Final = 900_000
"""Kafka: transaction.max.timeout.ms."""
IDS_KEPT_MS: Final = 7 * 24 * 3_600_000
"""Kafka: transactional.id.expiration.ms."""
IDS_KEPT_FULL_MS: Final = 3_600_000
"""The same in a vhost with IDS_MAX ids, so that new ones have room."""
FULL_SWEEP_MS: Final = 60_000
"""The shortest time between two searches for such ids."""
RETRY_MS: Final = 1000
MARKERS_PER_TURN: Final = 50

Change = Callable[[TransactionMetadata | None], TransactionMetadata | int]


class TransactionEntry(Timer):
    """A transactional id. The timer is that of the transaction's time-out, or of another try to write.

    Attributes:
        current: None until its first state is synced.
        next: the state that is being written; None if there is none.
        begun_ms: monotonic time at which the current transaction began: its time-out follows no jump of the wall clock.
        waiting: called when the transaction is complete.
    """

    def __init__(self, key: TransactionKey, on_time: Callable[[TransactionEntry], None]) -> None:
        super().__init__()
        self.key = key
        self.current: TransactionMetadata | None = None
        self.next: TransactionMetadata | None = None
        self.begun_ms = 0
        self.waiting: list[Callable[[int], None]] = []
        self._on_time = on_time

    def fire(self) -> None:
        self._on_time(self)


class TransactionCoordinator:
    """The transactional ids of all vhosts.

    Args:
        offsets: the committed offsets of groups, and the pending ones.
        sweep_soon: has `swept` run.
    """

    def __init__(self, broker: Broker, offsets: CommittedOffsets, pace: Pace, sweep_soon: Callable[[], None]) -> None:
        self.broker = broker
        self.offsets = offsets
        self.pace = pace
        timers = broker.timers
        self._log = TransactionLog(
            LogHost(broker.storage, broker.turn, broker.loop.call_soon, pace.later, timers.now_ms), self.on_loaded
        )
        self._entries: dict[str, dict[str, TransactionEntry]] = {}  # vhost id -> transactional id
        self._part_count = 0  # partitions and groups of all transactions
        self._is_ready = False
        self._is_stopped = False
        self._sweep_soon = sweep_soon
        self._next_full_sweep_ms = 0

    def start(self) -> None:
        """Begin to read the log. The first request does it, too."""
        self._log.load()

    def stop(self) -> None:
        """End all timers: the broker stops."""
        self._is_stopped = True
        self._log.stop()
        for entry in self._all():
            self.broker.timers.cancel(entry)

    def on_loaded(self) -> None:
        """Begin, once this log and that of the offsets are read."""
        if self._is_ready or not (self._log.is_loaded and self.offsets.is_loaded):
            return
        self._is_ready = True
        for key, transaction in self._log.found.items():
            entry = self._add(key)
            self._set(entry, transaction)
            self._continue(entry)
        self._log.found.clear()
        known = {(entry.key[0], entry.current.producer_id) for entry in self._all() if entry.current is not None}
        for vhost_id, group, producer_id in self.offsets.pending_producers():
            if (vhost_id, producer_id) not in known:  # its vhost was deleted
                self.offsets.complete(vhost_id, group, producer_id, False, ignore_result)
        self._sweep_soon()

    # -- look-ups

    def error_for(self, transactional_id: str | None, session: Session, kind: topics.Permission = "write") -> int:
        """Return the error code of every request about this id, 0 for none."""
        if transactional_id is None or not 0 < len(transactional_id) <= ID_MAX:
            return errors.INVALID_REQUEST
        if not topics.is_permitted(session, transactional_id, kind):
            return errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return self.load_error()

    def load_error(self) -> int:
        """Return 14 while the logs are read, 15 if that failed, 0 afterwards."""
        if self._is_ready:
            return errors.NONE
        self._log.load()
        self.offsets.load()
        failed = self._log.has_failed or self.offsets.has_failed
        return errors.COORDINATOR_NOT_AVAILABLE if failed else errors.COORDINATOR_LOAD_IN_PROGRESS

    def find(self, vhost: VHost, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of an id; None if it is unknown."""
        entry = self._entries.get(vhost.id, {}).get(transactional_id)
        return None if entry is None else entry.current

    def of_vhost(self, vhost: VHost) -> dict[str, TransactionMetadata]:
        """Return the states of all ids of a vhost."""
        entries = self._entries.get(vhost.id, {})
        return {name: entry.current for name, entry in entries.items() if entry.current is not None}

    def write_error(
        self, vhost: VHost, transactional_id: str, producer: tuple[int, int], part: TransactionPartition | str
    ) -> int:
        """Return the error for a Produce to a partition or a TxnOffsetCommit of a group. producer: id and epoch."""
        entry = self._entries.get(vhost.id, {}).get(transactional_id)
        if entry is not None and entry.next is not None and entry.next.state is not TransactionState.ONGOING:
            return errors.INVALID_TXN_STATE  # it is being ended
        return transactions.write_error(None if entry is None else entry.current, *producer, part)

    def now_ms(self) -> int:
        """Return the wall clock, for timestamps."""
        return self.broker.timers.wall_ms()

    def _all(self) -> list[TransactionEntry]:
        return [entry for entries in self._entries.values() for entry in entries.values()]

    def _add(self, key: TransactionKey) -> TransactionEntry:
        entry = TransactionEntry(key, self._on_time)
        self._entries.setdefault(key[0], {})[key[1]] = entry
        return entry

    # -- changes

    def change(self, vhost: VHost, transactional_id: str, change: Change, done: Callable[[int], None]) -> None:
        """Change a state, then call `done` with 0 or an error. One that is decided is completed first.

        Args:
            change: returns the next state, the same one, or an error.
        """
        entry = self._entries.get(vhost.id, {}).get(transactional_id)
        if entry is not None and entry.next is not None:
            done(errors.CONCURRENT_TRANSACTIONS)
            return
        current = None if entry is None else entry.current
        result = change(current)
        if isinstance(result, int) or result is current:
            done(result if isinstance(result, int) else errors.NONE)
            return
        part_count = self._part_count + _part_count(result) - _part_count(current)
        if part_count > PARTS_MAX or (entry is None and not self._has_room(vhost.id)):
            done(errors.POLICY_VIOLATION)
            return
        if entry is None:
            entry = self._add((vhost.id, transactional_id))
        self._write(entry, result, done)

    def _has_room(self, vhost_id: str) -> bool:
        """Return whether a vhost may have one more id. Cost: if it is full, 1 us per id every FULL_SWEEP_MS."""
        now_ms = self.broker.timers.now_ms()
        if self._is_full(vhost_id) and now_ms >= self._next_full_sweep_ms:
            self._next_full_sweep_ms = now_ms + FULL_SWEEP_MS
            full = [entry for entry in self._all() if self._is_full(entry.key[0])]
            self._remove([entry for entry in full if self._has_expired(entry, IDS_KEPT_FULL_MS)])
        return not self._is_full(vhost_id)

    def _is_full(self, vhost_id: str) -> bool:
        return len(self._entries.get(vhost_id, ())) >= IDS_MAX

    def _write(self, entry: TransactionEntry, transaction: TransactionMetadata, done: Callable[[int], None]) -> None:
        entry.next = transaction
        self._log.write(entry.key, transaction, partial(self._written, entry, transaction, done))

    def _written(
        self, entry: TransactionEntry, transaction: TransactionMetadata, done: Callable[[int], None], safe: bool
    ) -> None:
        entry.next = None
        if not safe:
            if entry.current is None:
                self._forget(entry)
            done(errors.COORDINATOR_NOT_AVAILABLE)
            return
        self._set(entry, transaction)
        if transaction.state.is_prepared:
            entry.waiting.append(done)
        else:
            done(errors.NONE)
        self._continue(entry)

    def _set(self, entry: TransactionEntry, transaction: TransactionMetadata | None) -> None:
        self._part_count += _part_count(transaction) - _part_count(entry.current)
        if transaction is not None and (entry.current is None or entry.current.start_ms != transaction.start_ms):
            entry.begun_ms = self.broker.timers.from_wall(transaction.start_ms)
        entry.current = transaction

    def _continue(self, entry: TransactionEntry) -> None:
        """Complete a transaction that is decided, and arm the timer of an ongoing one."""
        timers = self.broker.timers
        timers.cancel(entry)
        current = entry.current
        if current is None or self._is_stopped:
            return
        if current.state.is_prepared:
            _Completion(self, entry, current).run()
        elif current.state is TransactionState.ONGOING:
            timers.arm(entry, entry.begun_ms + current.timeout_ms)

    def _on_time(self, entry: TransactionEntry) -> None:
        """Abort a transaction whose time is over, or try again to complete it."""
        if entry.next is not None:
            self.retry(entry)  # a state is being written, maybe in vain
            return
        if entry.current is None:
            return
        age_ms = self.broker.timers.now_ms() - entry.begun_ms
        aborted = transactions.time_out(entry.current, entry.current.start_ms + age_ms)
        if aborted is None:
            self._continue(entry)
            return
        log.warning("Kafka's transaction '%s' is aborted: it took more than its time-out", entry.key[1])
        self._write(entry, aborted, partial(self._timed_out, entry))

    def _timed_out(self, entry: TransactionEntry, error: int) -> None:
        if error:
            self.retry(entry)

    def retry(self, entry: TransactionEntry) -> None:
        """Call `_on_time` soon: a marker or a state could not be written."""
        timers = self.broker.timers
        if not self._is_stopped:
            timers.arm(entry, timers.now_ms() + RETRY_MS)

    def completed(self, entry: TransactionEntry) -> None:
        """End a decided transaction: its markers are synced."""
        current = entry.current
        assert current is not None and current.state.is_prepared
        complete = transactions.complete(current, self.now_ms())
        self._set(entry, complete)
        self._log.write(entry.key, complete, ignore_result)
        waiting, entry.waiting = entry.waiting, []
        for done in waiting:
            done(errors.NONE)

    def queue_of(self, vhost_id: str, each: TransactionPartition) -> Queue | None:
        """Return the stream of a partition; None if it was deleted."""
        vhost = topics.vhost_of_id(self.broker.vhosts, vhost_id)
        queue = None if vhost is None else vhost.streams.get(each.queue_id.hex())
        return None if queue is None or queue.deleted else queue

    # -- expiry

    def _has_expired(self, entry: TransactionEntry, kept_ms: int) -> bool:
        current = entry.current
        if current is None or entry.next is not None or not current.is_idle:
            return False
        return self.broker.timers.agreed_ms() - current.update_ms >= kept_ms

    def _remove(self, gone: list[TransactionEntry]) -> None:
        """Remove ids. A producer that still uses one of them gets 49, INVALID_PRODUCER_ID_MAPPING."""
        for entry in gone:
            self.broker.timers.cancel(entry)
            self._set(entry, None)
            self._forget(entry)
        if gone:
            self._log.remove([entry.key for entry in gone], ignore_result)

    def _forget(self, entry: TransactionEntry) -> None:
        vhost_id, transactional_id = entry.key
        entries = self._entries[vhost_id]
        del entries[transactional_id]
        if not entries:
            del self._entries[vhost_id]

    def swept(self) -> Iterator[None]:
        """Remove ids that have expired or whose vhost was deleted. Looks at one id in each step."""
        vhost_ids = {vhost.id for vhost in self.broker.vhosts.values()}
        for vhost_id, transactional_id in [entry.key for entry in self._all()]:
            yield
            entry = self._entries.get(vhost_id, {}).get(transactional_id)
            current = None if entry is None else entry.current
            if entry is None or current is None or entry.next is not None:
                continue
            is_void = vhost_id not in vhost_ids
            for group in current.groups if is_void else ():
                self.offsets.complete(vhost_id, group, current.producer_id, False, ignore_result)
            if is_void or self._has_expired(entry, IDS_KEPT_MS):
                self._remove([entry])


class _Completion:
    """Writes what a decided transaction needs before it is complete."""

    def __init__(
        self, coordinator: TransactionCoordinator, entry: TransactionEntry, decided: TransactionMetadata
    ) -> None:
        self._coordinator = coordinator
        self._entry = entry
        self._decided = decided
        self._commits = decided.state is TransactionState.PREPARE_COMMIT
        self._partitions = sorted(decided.partitions, reverse=True)
        self._left = len(decided.partitions) + len(decided.groups) + 1
        self._failed = False

    def run(self) -> None:
        """Complete the groups, then write markers, some in each turn."""
        decided, vhost_id = self._decided, self._entry.key[0]
        for group in decided.groups:
            self._coordinator.offsets.complete(vhost_id, group, decided.producer_id, self._commits, self._one_done)
        self._write_markers()

    def _write_markers(self) -> None:
        for _ in range(MARKERS_PER_TURN):
            if not self._partitions:
                self._one_done(True)
                return
            each = self._partitions.pop()
            queue = self._coordinator.queue_of(self._entry.key[0], each)
            if queue is None:
                self._one_done(True)
            else:
                topics.open_queue(queue, partial(self._opened, queue))
        self._coordinator.pace.later(self._write_markers)

    def _opened(self, queue: Queue, is_open: bool) -> None:
        store = queue.store
        if queue.deleted or (is_open and not isinstance(store, LocalLog)):
            self._one_done(True)
            return
        if not is_open or store is None:
            self._one_done(False)
            return
        decided, coordinator = self._decided, self._coordinator
        marker = marker_batch(
            BytesWriter(), decided.producer_id, decided.epoch, self._commits, coordinator.broker.timers.wall_ms()
        )
        try:
            offset = queue.enqueue_batches([marker])
        except LogFailed:
            self._one_done(False)
            return
        coordinator.broker.turn.schedule()
        store.when_safe(offset, lambda safe: self._one_done(safe or queue.deleted))

    def _one_done(self, safe: bool) -> None:
        self._left -= 1
        self._failed = self._failed or not safe
        if self._left > 0:
            return
        if self._failed:
            log.error("markers of Kafka's transaction '%s' cannot be written; this is repeated", self._entry.key[1])
            self._coordinator.retry(self._entry)
        elif self._entry.current is self._decided:
            self._coordinator.completed(self._entry)


def new_producer_id() -> int:
    """Return a random producer id, above 2^62. Producers of AMQP choose theirs, usually small ones."""
    return 1 << 62 | secrets.randbits(62)


def _part_count(transaction: TransactionMetadata | None) -> int:
    return 0 if transaction is None else len(transaction.partitions) + len(transaction.groups)
