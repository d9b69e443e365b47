"""The ready messages of a queue with groups that are only in its log: unread ones, and ones that were passed over.

A ready message is in one of three places:

    the window    in memory, a bounded number (grouped_window.py)
    passed over   below `cold_offset`: its group was locked, or had enough messages in memory, when the reader came by
    unread        from `cold_offset` on

Messages leave a group in order. So the passed messages of a group are all its ready messages from `Group.passed_from`
on, and that offset and a number describe them, however many they are.

**The front reading** continues when no consumer with credit can get a message from memory. It passes messages of locked
groups until it finds a free one (`read_further`).

**The second reading** looks for groups that are free again, or whose owner has credit, and of which no message is in
memory (`GroupedWindow.cold_groups`). It begins at the lowest `passed_from` of them and also takes passed messages of
other groups. Both readings share the slices of broker/flow/loop_turn.py, so neither waits for the other.
Cost: 1 us per message, one look per batch without ready messages. A second reading that begins behind a million ready
or unacked messages takes a second of slices.

**The oldest message** of the queue is for expiry and length limits, whether its group is locked or not (`oldest`).

Invariant: ready_count = messages in memory + passed_count + unsettled records from cold_offset on. If the log has fewer
than were counted (a damaged batch, a failed write), the counts are corrected when that part has been read.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.queue.grouped_window import GroupedWindow
from amqpd.broker.queue.log_reader import QueueLogReader
from amqpd.broker.queue.message_groups import Group, GroupKey, GroupNode
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# A locked group gets this fraction of the window. If the window is full, each group gets GROUP_COUNT_MIN messages.
LOCKED_SHARE: Final = 4
GROUP_COUNT_MIN: Final = 4
# This many passed messages come into memory together when the oldest one is asked for.
OLDEST_COUNT: Final = 64
# Results of a second reading for one message.
_NOT_PASSED: Final = 0
_TAKEN: Final = 1
_REFUSED: Final = 2


@final
class GroupedLogReader:
    """Reads the log of one queue with groups into its window.

    Attributes:
        cold_offset: All from here on is unread.
        leaving: Offsets that no group counts although they are not settled: dead letters being published, and messages
            that a search took. Readings skip them, and no range of settlements includes them.
        reading: The disk was asked for the next message; the queue's `log_arrived` is called with the answer.
        sliced: The slice ended before the reading found out whether there is a message to give out.
    """

    def __init__(self, window: GroupedWindow, backing: QueueStore, group_by: str) -> None:
        self.key = GroupKey(group_by)
        self.cold_offset: i64 = 0
        self.leaving = OffsetBitmap()
        self.reading = False
        self.sliced = False
        self._window = window
        self._backing = backing
        self._front = QueueLogReader()
        # The second reading: its number, where it began, where it is (-1: there is none).
        self._second = QueueLogReader()
        self._second_number: i64 = 0
        self._second_from: i64 = 0
        self._second_offset: i64 = -1
        self._oldest = QueueLogReader()
        # `hot_count` when the window was trimmed last.
        self._trimmed_count: i64 = 0

    # -- room in memory ----------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        window = self._window
        return window.memory.is_full(window.hot_count)

    def has_room(self, group: Group) -> bool:
        """Return whether one more message of the group fits into the window, which is not full."""
        if group.passed_count > 0:
            return False
        return group.unacked_count == 0 or group.count < self._locked_count_max()

    def _locked_count_max(self) -> i64:
        share = self._window.memory.count_max // LOCKED_SHARE
        return share if share > GROUP_COUNT_MIN else GROUP_COUNT_MIN

    def pass_over(self, group: Group, offset: i64) -> None:
        """Leave the message, which is behind all others of its group, in the log."""
        if group.passed_count == 0:
            group.passed_from = offset
            if group.head() is None:
                self._window.cold_groups[group] = None
            self._mark_refused(group, offset)
        self._count_passed(group, offset)

    def requeue_passed(self, group: Group, offset: i64) -> None:
        """Put a message back between the passed messages of its group."""
        self._mark_refused(group, offset)
        self._count_passed(group, offset)

    def _mark_refused(self, group: Group, offset: i64) -> None:
        if offset < self._second_offset:
            group.refused_by = self._second_number  # the second reading is past this message

    def _count_passed(self, group: Group, offset: i64) -> None:
        window = self._window
        if window.passed_count == 0 or offset < window.passed_low:
            window.passed_low = offset
        group.passed_count += 1
        window.passed_count += 1

    # -- reading for consumers ---------------------------------------------------------------------------------------

    def begin_dispatch(self) -> None:
        """A dispatch or a basic.get begins."""
        self.reading = False
        self.sliced = False

    def read_further(self, queue: Queue, scans: ScanBudget, has_credit: bool) -> bool:
        """Read on, as no consumer can get a message from memory.

        has_credit: A consumer would take a message of a free group.
        Returns: Whether something was read, so that another try makes sense. If not, there is no more, or the disk was
            asked (`reading`), or the slice is over (`sliced`).
        Raises: OSError.
        """
        store = self._backing.store
        if store is None:
            return False
        read = False
        if self._window.cold_groups:
            begin = self._lowest_wanted(has_credit)
            if begin >= 0:
                if self._second_offset < 0:
                    self._second_number += 1
                    self._second_from = begin
                    self._second_offset = begin
                    self._second.go_to(begin)
                read = self._read_second(queue, store, scans, has_credit)
        if has_credit and self.cold_offset < self._backing.next_offset:
            if self.is_full():
                self._trim()
            read = self._read_front(queue, store, scans, False) or read
        return read

    def _lowest_wanted(self, has_credit: bool) -> i64:
        """Return the lowest `passed_from` of a cold group that a consumer waits for; -1 if there is none."""
        lowest: i64 = -1
        for group in self._window.cold_groups:
            if lowest >= 0 and group.passed_from >= lowest:
                continue
            if group.unacked_count == 0:
                if has_credit:
                    lowest = group.passed_from
            else:
                owner = group.owner
                if (
                    owner is not None
                    and group.retrying_count == 0
                    and not owner.cancelled
                    and not owner.consumer.parked
                ):
                    lowest = group.passed_from
        return lowest

    def _read_front(self, queue: Queue, store: QueueLog, scans: ScanBudget | None, waits: bool) -> bool:
        """Read a piece of the unread log. Return whether there was a message. waits: block on the disk."""
        place = self._front
        read = False
        while True:
            record = place.record(self.cold_offset)
            if record is None:
                if read:
                    return True
                if scans is not None and scans.is_used_up:
                    self.sliced = True
                    return False
                arrived = None if waits else queue.log_arrived
                if not place.read(store, self.cold_offset, self._window.memory.read_bytes(), arrived):
                    self.cold_offset = place.read_offset
                    self.reading = True
                    return False
                record = place.record(self.cold_offset)
                if record is None:
                    self._end_front(queue, store)
                    return False
            if scans is not None:
                if scans.is_used_up:
                    self.sliced = True
                    return read
                scans.step(len(record.properties))
            self.take_next(queue, store, record)
            read = True

    def _end_front(self, queue: Queue, store: QueueLog) -> None:
        """The log has no more messages. If it has fewer than were counted, correct the count."""
        self._front.release_memory()
        if store.failed_ranges:
            return  # `GroupedOrder.drop_unwritten` corrects it
        self.cold_offset = self._backing.next_offset
        window = self._window
        queue.ready_count = window.hot_count + window.returned_count + window.passed_count
        if queue.ready_count == 0:
            queue.ready_bytes = 0

    def take_next(self, queue: Queue, store: QueueLog, record: Record) -> None:
        """Bring the record, which is the next unread one, into memory, or pass it over."""
        self.cold_offset = record.offset + 1
        if self.leaving.has(record.offset):
            return
        window = self._window
        group = window.group_of(self.key.of_record(record))
        if window.hot_count >= window.memory.count_max:
            fits = group.passed_count == 0 and group.count < GROUP_COUNT_MIN
        else:
            fits = self.has_room(group)
        if fits:
            window.append(group, self._entry(queue, store, record, group), True)
        else:
            self.pass_over(group, record.offset)

    def _entry(self, queue: Queue, store: QueueLog, record: Record, group: Group) -> QueueEntry:
        message = self._backing.message(record)
        entry = QueueEntry(queue, record.offset, message, store.redelivered(record.offset))
        entry.delivery_count = record.delivery_count
        info = message.info
        if info is not None and info.expiration is not None:
            queue.track_expiration(message)
        memory = self._window.memory
        if group.unacked_count > 0 and memory.hot_bytes >= memory.bytes_max:
            entry.message = None  # `load_message` reads it again when it is next
        return entry

    def _read_second(self, queue: Queue, store: QueueLog, scans: ScanBudget, has_credit: bool) -> bool:
        """Continue the second reading. Return whether it found a message, or came to its end."""
        place = self._second
        read = False
        while True:
            record = place.record(self._second_offset)
            if record is None:
                if read:
                    return True
                if scans.is_used_up:
                    self.sliced = True
                    return False
                if not place.read(store, self._second_offset, self._window.memory.read_bytes(), queue.log_arrived):
                    self._second_offset = place.read_offset
                    self.reading = True
                    return False
                record = place.record(self._second_offset)
            if record is None or record.offset >= self.cold_offset:
                self._end_second(queue)
                return True
            if scans.is_used_up:
                self.sliced = True
                return read
            scans.step(len(record.properties))
            result = self._take_again(queue, store, record)
            if result == _TAKEN:
                read = True
            elif result == _REFUSED and read and self._lowest_wanted(has_credit) < 0:
                self._second_offset = -1  # each waiting consumer has a message now
                return True
            self._second_offset = record.offset + 1

    def _take_again(self, queue: Queue, store: QueueLog, record: Record) -> i64:
        """Bring the record into memory if it was passed over and its group has room.

        Returns: _TAKEN; _NOT_PASSED; _REFUSED if the group has no room.
        """
        window = self._window
        group = self.group_of_passed(record)
        if group is None:
            return _NOT_PASSED
        if group.passed_from < self._second_from or group.refused_by == self._second_number:
            return _NOT_PASSED  # this reading does not meet the first message of the group
        is_full = window.hot_count >= window.memory.count_max
        count_max = GROUP_COUNT_MIN if is_full else self._locked_count_max()
        if group.count >= count_max and (group.unacked_count > 0 or is_full):
            group.refused_by = self._second_number
            return _REFUSED
        self._take_passed(queue, store, group, record)
        return _TAKEN

    def group_of_passed(self, record: Record) -> Group | None:
        """Return the group of an unsettled record if that record was passed over."""
        key = self.key.of_record(record)
        group = self._window.groups.get(key) if key is not None else None
        if group is None or group.passed_count == 0 or record.offset < group.passed_from:
            return None
        return None if self.leaving.has(record.offset) else group

    def _take_passed(self, queue: Queue, store: QueueLog, group: Group, record: Record) -> None:
        group.passed_from = record.offset + 1
        self._window.append(group, self._entry(queue, store, record, group), False)
        group.passed_count -= 1
        self._window.passed_count -= 1

    def _end_second(self, queue: Queue) -> None:
        """The second reading has met all messages from its begin on. What it did not find is not in the log."""
        window = self._window
        for group in list(window.cold_groups):
            if group.refused_by != self._second_number and group.passed_from >= self._second_from:
                self._drop_missing(queue, group)
        self._second_offset = -1
        self._second.release_memory()
        low = self.cold_offset
        for group in window.groups.values():
            if group.passed_count > 0 and group.passed_from < low:
                low = group.passed_from
        window.passed_low = low

    def _drop_missing(self, queue: Queue, group: Group) -> None:
        """Correct the counts: the passed messages of the group are not in the log."""
        window = self._window
        queue.ready_count -= group.passed_count
        window.passed_count -= group.passed_count
        group.passed_count = 0
        window.cold_groups.pop(group, None)
        window.drop_if_empty(group)
        if queue.ready_count <= 0:
            queue.ready_count = 0
            queue.ready_bytes = 0

    def _trim(self) -> None:
        """Make room in a full window: unload locked groups down to a few messages, or their bodies if those are large.

        Cost: a step per group and message, once per half a window.
        """
        window = self._window
        backing = self._backing
        memory = window.memory
        if memory.hot_bytes >= memory.bytes_max:
            for node in window.ready_nodes():
                entry = node.entry
                if entry is None or node.returned or entry.message is None or not backing.is_logged(node.offset):
                    continue
                if node.group.unacked_count > 0:
                    entry.message = None
                    memory.hot_bytes -= entry.body_size
        count_max = memory.count_max
        if window.hot_count < count_max or window.hot_count < self._trimmed_count + count_max // 2:
            return
        kept = count_max // (2 * window.locked_count + 2)
        if kept < GROUP_COUNT_MIN:
            kept = GROUP_COUNT_MIN
        for group in window.groups.values():
            first = group.first
            if group.unacked_count > 0 and first is not None and backing.is_logged(first.offset):
                had_passed = window.passed_count > 0
                unloaded_from = window.unload(group, kept)
                if unloaded_from < 0:
                    continue
                group.passed_from = unloaded_from
                group.refused_by = self._second_number
                if not had_passed or unloaded_from < window.passed_low:
                    window.passed_low = unloaded_from
        self._trimmed_count = window.hot_count

    # -- bodies ------------------------------------------------------------------------------------------------------

    def load_message(self, queue: Queue, node: GroupNode) -> bool:
        """Return whether the message of this node, which is next, is in memory.

        If not, the disk was asked (`reading`), or the message is not in the log and was dropped.
        """
        entry = node.entry
        assert entry is not None  # only ready nodes are given out
        if entry.message is not None:
            return True
        store = self._backing.store
        if store is not None and self._backing.is_logged(entry.offset):
            fetch = store.cursor.read_if_cached(entry.offset, 1, queue.log_arrived)
            if fetch.records and fetch.records[0].offset == entry.offset:
                message = self._backing.message(fetch.records[0])
                entry.message = message
                if not node.returned:
                    self._window.memory.hot_bytes += entry.body_size
                info = message.info
                if info is not None and info.expiration is not None:
                    queue.track_expiration(message)
                return True
            if fetch.waiting:
                self.reading = True
                return False
        self._window.drop(queue, node)
        return False

    # -- the oldest message ------------------------------------------------------------------------------------------

    def oldest(self, queue: Queue, waits: bool) -> GroupNode | None:
        """Bring the oldest ready message into memory and return it.

        waits: Block on the disk. Otherwise None may mean that the disk was asked (`reading`).
        Raises: OSError.
        """
        window = self._window
        store = self._backing.store
        while queue.ready_count > 0:
            node = window.oldest()
            if window.passed_count > 0 and (node is None or window.passed_low < node.offset):
                if store is None or not self._read_oldest_passed(queue, store, waits):
                    return None
            elif node is not None:
                return node
            elif store is None or not self._read_front(queue, store, None, waits):
                return None
        return None

    def _read_oldest_passed(self, queue: Queue, store: QueueLog, waits: bool) -> bool:
        """Bring the oldest passed messages into memory, even into a full window.

        Return False if there is none yet, because the disk was asked.
        """
        window = self._window
        place = self._oldest
        place.go_to(window.passed_low)  # it may be before the last read
        count: i64 = 0
        while count < OLDEST_COUNT:
            record = place.record(window.passed_low)
            if record is None:
                if not place.read(
                    store, window.passed_low, self._window.memory.read_bytes(), None if waits else queue.log_arrived
                ):
                    window.passed_low = place.read_offset
                    self.reading = True
                    return count > 0
                record = place.record(window.passed_low)
            if record is None or record.offset >= self.cold_offset:
                for group in [each for each in window.groups.values() if each.passed_count > 0]:
                    self._drop_missing(queue, group)
                place.release_memory()
                return True
            passed = self.group_of_passed(record)
            if passed is not None:
                self._take_passed(queue, store, passed, record)
                count += 1
                if window.passed_count == 0:
                    place.release_memory()
                    break
            window.passed_low = record.offset + 1
        return True

    # -- ends --------------------------------------------------------------------------------------------------------

    def lowest_ready(self) -> i64:
        """Return an offset below which only requeued messages are ready. It never falls. Cost: O(late messages)."""
        window = self._window
        least = window.lowest(self.cold_offset)
        if window.passed_count > 0 and window.passed_low < least:
            least = window.passed_low
        return least

    def reset(self) -> None:
        """No message is ready any more: end all readings."""
        self._second_offset = -1
        self._trimmed_count = 0
        self._front.release_memory()
        self._second.release_memory()
        self._oldest.release_memory()

    def close(self) -> None:
        """Close the readers: the queue is deleted."""
        self._front.close()
        self._second.close()
        self._oldest.close()
        self.leaving.clear()
