"""Streams in share groups: the records that the members of a group acquire, and the writes of their states.

`share_state.py` decides; this module reads the log, has the clock and writes snapshots. Batches are sent as they are in
the file, and the acquired offsets name the records in them that count. An offset without a record, after compaction,
is acquired too; clients acknowledge it as a gap.

    a group's first use of a stream   it begins after the last record, or at the first one
                                      (kafka.share_auto_offset_reset); this is written before anything is acquired
    acknowledgement                   written and synced before it is answered
    lock expired, session ended       written, and others may acquire the records at once
    acquired                          not written: after a kill of the broker such records are available again, with
                                      the delivery count of the last write

A member waits in the order in which it asked. It gets whole batches if it does not ask for a strict number of records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.broker.flow.timers import Timer
from amqpd.kafka_server import errors
from amqpd.kafka_server.committed_offsets import OffsetKey
from amqpd.kafka_server.compacted_log import ignore_result
from amqpd.kafka_server.share_queue import FetchCredit, ShareSource
from amqpd.kafka_server.share_state import OPEN_MAX, ShareState, decode_snapshot
from amqpd.kafka_server.share_states import ShareStates, StoredState
from amqpd.kafka_server.share_wire import RENEW, ranges_of
from amqpd.kafka_server.topics import TopicPartition
from amqpd.storage.log.batch import BatchHeader

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.fetch import WaitingFetches
    from amqpd.kafka_server.share_wire import AckRange, OffsetRange
    from amqpd.storage.queue_log import Cursor, QueueLog

log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
EARLIEST: Final = "earliest"


class ShareStreams:
    """The streams that members of share groups use now.

    Args:
        fetches: tells when a log has more records.
    """

    def __init__(self, broker: Broker, states: ShareStates, fetches: WaitingFetches) -> None:
        self.broker = broker
        self.states = states
        self.fetches = fetches
        self.lock_ms = broker.settings.kafka.share_lock_ms
        self._streams: dict[OffsetKey, ShareStream] = {}

    def join(self, vhost: VHost, group: str, partition: TopicPartition, member_id: str) -> ShareSource:
        """Return a source of records for a member. The log is open."""
        queue = partition.queue
        key = OffsetKey(vhost.id, group, partition.topic.name, partition.number)
        stream = self._streams.get(key)
        if stream is None or stream.queue is not queue:
            stream = self._streams[key] = ShareStream(self, key, vhost, queue)
        return stream.add(member_id)

    def prepare(self, vhost: VHost, group: str, partition: TopicPartition) -> None:
        """Have a group begin with a stream now, if it has not used it before: a member is assigned to it.

        The log is open.
        """
        key = OffsetKey(vhost.id, group, partition.topic.name, partition.number)
        known = self._streams.get(key)  # maybe a deleted stream of this name, which a member has not left yet
        is_known = known is not None and known.queue is partition.queue
        if not is_known and self.states.find(vhost, *key[1:]) is None:
            stream = ShareStream(self, key, vhost, partition.queue)
            if stream.is_writing:  # until the begin is written
                self._streams[key] = stream

    def find(self, key: OffsetKey) -> ShareStream | None:
        """Return a stream that a member uses."""
        return self._streams.get(key)

    def forget_unused(self, key: OffsetKey) -> bool:
        """Forget a stream, also if its state is being written. Return False if a member uses it."""
        stream = self._streams.get(key)
        if stream is not None and stream.has_members:
            return False
        self._streams.pop(key, None)
        return True

    def remove_group(self, vhost: VHost, group: str, done: Callable[[bool], None]) -> None:
        """Remove the states of a group without sessions, also those being written. `done`: see `ShareStates`."""
        for key in [key for key in self._streams if key[:2] == (vhost.id, group)]:
            del self._streams[key]
        self.states.remove(self.states.keys_of(vhost.id, group), done)

    def forget(self, stream: ShareStream) -> None:
        """Remove a stream without members; its state is written."""
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]

    def stop(self) -> None:
        """End all timers: the broker stops."""
        for stream in list(self._streams.values()):
            stream.stop()
        self._streams.clear()


class ShareStreamSource(ShareSource):
    """The part of one member."""

    def __init__(self, stream: ShareStream, member_id: str) -> None:
        self.stream = stream
        self.member_id = member_id
        self.credit: FetchCredit | None = None
        self._batches: list[bytes] = []
        self._acquired: list[tuple[int, int]] = []

    def allow(self, credit: FetchCredit | None) -> None:
        self.credit = credit
        if credit is not None:
            if self.error != errors.NONE:
                credit.wake()
            self.stream.serve()

    def last_offset(self) -> int:
        """Return the last offset for the next response, -1 for none."""
        return self._acquired[-1][0] if self._acquired else -1

    def add(self, batch: bytes, base_offset: int, acquired: list[tuple[int, int]]) -> None:
        """Add acquired records, and use the credit for them. Their batch is added once: clients read it to its end."""
        is_new = self.last_offset() < base_offset
        if is_new:
            self._batches.append(batch)
        self._acquired += acquired
        if self.credit is not None:
            self.credit.use(len(batch) if is_new else 0, len(acquired))
            self.credit.wake()

    def fail(self, error: int) -> None:
        """Have the next response say that there are no more records."""
        self.error = error
        if self.credit is not None:
            self.credit.wake()

    def take(self) -> tuple[list[OffsetRange], list[bytes]]:
        acquired, batches = ranges_of(self._acquired), self._batches
        self._acquired, self._batches = [], []
        return acquired, batches

    def acknowledge(self, acks: Sequence[AckRange], done: Callable[[int], None]) -> None:
        self.stream.acknowledge(self.member_id, acks, done)

    def close(self) -> None:
        self.credit = None
        self.stream.remove(self)


class ShareStream(Timer):
    """A stream in a share group, while members use it. The timer is that of the locks."""

    def __init__(self, streams: ShareStreams, key: OffsetKey, vhost: VHost, queue: Queue) -> None:
        super().__init__()
        assert queue.store is not None  # the caller has opened it
        self.key = key
        self.queue = queue
        self._streams = streams
        self._timers = streams.broker.timers
        self._store: QueueLog = queue.store
        self._stream_id = bytes.fromhex(queue.id)
        self._sources: dict[str, ShareStreamSource] = {}
        self._cursor: Cursor | None = None
        self._is_reading = self._is_watching = self._is_serving = False
        self._writes = 0
        self._error = errors.NONE  # why there is no state: no room for one, or it could not be written
        self.state: ShareState | None = None
        stored = streams.states.find(vhost, *key[1:])
        state = None if stored is None else decode_snapshot(stored.snapshot)
        if state is not None:
            self.state = state
        elif streams.states.has_room(key.vhost_id):
            is_earliest = streams.broker.settings.kafka.share_auto_offset_reset == EARLIEST
            self._begin(ShareState(self._store.log_start() if is_earliest else self._store.next_offset))
        else:
            self._error = errors.POLICY_VIOLATION

    def _begin(self, state: ShareState) -> None:
        """Write the first state, then use it."""

        def done(safe: bool) -> None:
            if safe:
                self.state = state
                self.serve()
            else:
                self._error = errors.STORAGE_ERROR
                self._fail(errors.STORAGE_ERROR)

        self._write(state, done)

    @property
    def has_members(self) -> bool:
        return bool(self._sources)

    @property
    def is_writing(self) -> bool:
        return self._writes > 0

    def _write(self, state: ShareState, done: Callable[[bool], None]) -> None:
        self._writes += 1
        self._streams.states.write(
            self.key, StoredState(self._stream_id, state.snapshot()), partial(self._written, done)
        )

    def _written(self, done: Callable[[bool], None], safe: bool) -> None:
        self._writes -= 1
        done(safe)
        self._forget_unused()

    # -- members

    def add(self, member_id: str) -> ShareStreamSource:
        """Return the source of a member. An old one of the same member is closed."""
        source = self._sources[member_id] = ShareStreamSource(self, member_id)
        if self._error != errors.NONE:
            source.fail(self._error)
        return source

    def remove(self, source: ShareStreamSource) -> None:
        """Release what a member has acquired."""
        if self._sources.get(source.member_id) is source:
            del self._sources[source.member_id]
            if self.state is not None and self.state.release_member(source.member_id):
                self._changed()
        self._forget_unused()

    def _forget_unused(self) -> None:
        if not self._sources and self._writes == 0:
            self.stop()
            self._streams.forget(self)

    def stop(self) -> None:
        """Release the timer, the cursor and the wait for the log."""
        self._timers.cancel(self)
        self._end_watch()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _fail(self, error: int) -> None:
        for source in list(self._sources.values()):
            source.fail(error)

    # -- records

    def on_log_moved(self, store: QueueLog) -> None:
        """See `LogWaiter`."""
        if store.deleted or store.failed:
            self._is_reading = False
            self._fail(errors.UNKNOWN_TOPIC_ID if store.deleted else errors.STORAGE_ERROR)
        self.serve()

    def cancel(self) -> None:
        """See `LogWaiter`."""
        self._is_watching = False

    def _watch(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_watching:
            self._is_watching = True
            self._streams.fetches.wait(self._store, self)
        elif not is_wanted:
            self._end_watch()

    def _end_watch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._streams.fetches.end_wait(self._store, self)

    def _arrived(self) -> None:
        self._is_reading = False
        self.serve()

    def serve(self) -> None:
        """Acquire records for the members that wait, as far as there are any. Does not wait for the disk."""
        if self.state is None or self._is_serving:
            return
        self._is_serving = True
        try:
            waiting = [source for source in self._sources.values() if source.credit is not None]
            for source in waiting:
                while not self._is_reading and self._acquire(self.state, source):
                    pass
            self._watch(any(each.credit is not None and not each.credit.is_used_up() for each in waiting))
        except Exception:
            # A caller is the log's commit, which must go on.
            log.exception("a bug in amqpd, please report it")
            self._fail(errors.STORAGE_ERROR)
        finally:
            self._is_serving = False

    def _acquire(self, state: ShareState, source: ShareStreamSource) -> bool:
        """Acquire the records of the next batches for a member. Return whether there may be more for it."""
        credit, store = source.credit, self._store
        if credit is None or credit.is_used_up() or source.error != errors.NONE:
            return False
        if store.deleted:
            source.fail(errors.UNKNOWN_TOPIC_ID)
            return False
        state.remove_below(store.log_start())
        wanted = state.first_wanted()
        if not 0 <= wanted < store.high_watermark:
            return False
        if wanted <= source.last_offset():
            credit.records = 0  # the response has ascending offsets: this is for the next one
            credit.wake()
            return False
        if self._cursor is None:
            self._cursor = store.new_cursor()
        try:
            found = self._cursor.batches_below_hw(wanted, min(credit.size_bytes, READ_BYTES), True, self._arrived)
        except OSError as error:
            log.error("stream '%s' cannot be read: %s", store.name, error)
            self._cursor = None
            source.fail(errors.STORAGE_ERROR)
            return False
        due_ms = self._timers.now_ms() + self._streams.lock_ms
        for batch in found.parts:
            header = BatchHeader(batch, 0)
            state.skip_to(header.base_offset)
            most = min(credit.records, OPEN_MAX) if credit.is_strict else OPEN_MAX
            acquired = state.acquire(source.member_id, header.base_offset, header.last_offset, most, due_ms)
            if not acquired:
                break
            source.add(batch, header.base_offset, acquired)
            self._timers.arm_sooner(self, due_ms)
            if credit.is_used_up():
                return False
        if found.parts:
            return True
        self._is_reading = found.waiting
        if not found.waiting and found.next_offset > wanted:
            state.skip_to(found.next_offset)
            return True
        return False

    # -- acknowledgements and locks

    def acknowledge(self, member_id: str, acks: Sequence[AckRange], done: Callable[[int], None]) -> None:
        """See `ShareSource.acknowledge`."""
        if self.queue.deleted:
            done(errors.UNKNOWN_TOPIC_ID)
            return
        state = self.state
        due_ms = self._timers.now_ms() + self._streams.lock_ms
        updated = None if state is None else state.begin_update(member_id, acks, due_ms)
        if state is None or updated is None:
            done(errors.INVALID_RECORD_STATE)
            return
        if not updated and all(kind == RENEW for each in acks for kind in each.types):
            done(errors.NONE)
            return
        # Written even if retention has removed all these records: a power cut may bring them back.

        def written(safe: bool) -> None:
            state.end_update(updated, safe)
            if member_id not in self._sources and not safe:
                state.release_member(member_id)
            done(errors.NONE if safe else errors.STORAGE_ERROR)
            self.serve()

        self._write(state, written)

    def _changed(self) -> None:
        """Write the state without waiting, and serve others with what was released.

        The state of a deleted stream is void, and its record may be that of a new stream of this name.
        """
        if self.state is not None and not self.queue.deleted:
            self._write(self.state, ignore_result)
            self.serve()

    def fire(self) -> None:
        if self.state is None:
            return
        if self.state.expire(self._timers.now_ms()):
            self._changed()
        due_ms = self.state.next_due_ms()
        if due_ms >= 0:
            self._timers.arm(self, due_ms)
