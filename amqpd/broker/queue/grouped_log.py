"""What of a queue with groups lies in its log alone: what was not looked at yet, and what was passed over.

What is ready lies in

    the window   a bounded number of messages in memory (grouped_window.py)
    passed over  messages of groups that were locked, or had enough in memory, when the reader came by
    the log      everything from `cold_offset` on

As messages leave a group in order, a group has one border: all of it that is ready from `Group.passed_from` on was
passed over, and nothing below. So of each only the border and a number are kept, however many they are.

**Reading on.** Where nobody can be given anything, though somebody could take it, the log is read on, past all that is
locked, until something is free (`look_further`). A group that is free again, or whose holder can take, and of which
nothing is in memory (`starving`), is looked for by a second reading from its border on, which takes along what it meets
of other groups. Both go in the slices of broker/flow/loop_turn.py, side by side: nobody waits for the end of the other.
Cost: some 1 us a message that is looked at; of what is settled, a look at its batch. A second reading looks at what is
ready or unacked between the border and `cold_offset`: where a million messages of others lie there, it is a second of
slices.

**The oldest.** Expiry and length limits look at the oldest ready message, whosever its group is (`first`).

Invariant: ready_count = what is in memory + passed_count + unsettled records from cold_offset on. Where the log holds
less than was counted (a damaged batch, a write that failed), the counts follow it when it has been read.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.message import Message
from amqpd.broker.queue.grouped_window import GroupedWindow
from amqpd.broker.queue.log_reader import QueueLogReader
from amqpd.broker.queue.message_groups import Group, GroupNode
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.ready_order import COLD_READ_BYTES
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

# A locked group may hold so much of the window; and every group so many messages, when the window is full.
LOCKED_SHARE: Final = 4
KEPT_COUNT: Final = 4
# The oldest messages that were passed over come into memory in such numbers.
OLDEST_COUNT: Final = 64
# What becomes of a message that a second reading meets.
_NOT_PASSED: Final = 0
_TAKEN: Final = 1
_REFUSED: Final = 2


class GroupedLog(GroupedWindow):
    """Of one queue. behind: a slice was over before it was known whether there is something for who waits."""

    def __init__(self, backing: QueueStore, group_by: str) -> None:
        super().__init__(backing, group_by)
        self.cold_offset: i64 = 0
        self.behind = False
        self._front = QueueLogReader()
        # The second reading: its number, from where it began, how far it has come (-1: there is none).
        self._reading_number: i64 = 0
        self._reading_from: i64 = 0
        self._reading_offset: i64 = -1
        self._second = QueueLogReader()
        self._oldest = QueueLogReader()
        # Taken and not settled, though no group counts them: dead letters on their way, what a search has taken. No
        # reading meets them, no range that is settled touches them.
        self.leaving = OffsetBitmap()
        # How many were in memory when the window was trimmed last.
        self._trimmed_count: i64 = 0

    def begin(self) -> None:
        """Somebody begins to take: what held up the last one is forgotten."""
        self.reading = False
        self.behind = False

    # -- room --------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        return self.hot_count >= self.count_max or self.hot_bytes >= self.bytes_max

    def has_room(self, group: Group) -> bool:
        """Whether one more message of the group may come into the window, which is not full."""
        if group.passed_count > 0:
            return False
        return group.unacked == 0 or group.count < self._share()

    def _share(self) -> i64:
        share = self.count_max // LOCKED_SHARE
        return share if share > KEPT_COUNT else KEPT_COUNT

    def pass_over(self, group: Group, offset: i64) -> None:
        """The message is left where it is."""
        if group.passed_count == 0:
            group.skipped_from = offset
            if group.head() is None:
                self.unloaded[group] = None
            if offset < self._reading_offset:
                group.refused = self._reading_number  # that reading is past it
        if self.passed_count == 0 or offset < self.passed_low:
            self.passed_low = offset
        group.passed_count += 1
        self.passed_count += 1

    # -- what the log alone has --------------------------------------------------------------------------------------

    def look_further(self, queue: QueueBase, scans: ScanBudget, anyone: bool) -> bool:
        """Nobody can be given anything of what is in memory. Whether something was read, so that it is worth another
        try; else that is all there is, the disk is asked (`reading`) or the slice is over (`behind`).

        anyone: whether somebody would take what is free. Raises: OSError.
        """
        store = self.backing.store
        if store is None:
            return False
        read = False
        if self.unloaded:
            border = self._border(anyone)
            if border >= 0:
                if self._reading_offset < 0:
                    self._reading_number += 1
                    self._reading_from = border
                    self._reading_offset = border
                    self._second.go_to(border)
                read = self._read_again(queue, store, scans, anyone)
        if anyone and self.cold_offset < self.backing.next_offset:
            if self.is_full():
                self._trim()
            read = self._read_on(queue, store, scans, False) or read
        return read

    def _border(self, anyone: bool) -> i64:
        """The lowest border of a group that somebody waits for; -1: there is none."""
        border: i64 = -1
        for group in self.unloaded:
            if border >= 0 and group.skipped_from >= border:
                continue
            if group.unacked == 0:
                if anyone:
                    border = group.skipped_from
            else:
                holder = group.holder
                if holder is not None and group.waits == 0 and not holder.gone and not holder.consumer.parked:
                    border = group.skipped_from
        return border

    def _read_on(self, queue: QueueBase, store: QueueLog, scans: ScanBudget | None, waits: bool) -> bool:
        """Reads a piece of the log into the window. Whether there was something. waits: for the disk."""
        place = self._front
        read = False
        while True:
            record = place.record(self.cold_offset)
            if record is None:
                if read:
                    return True
                if scans is not None and scans.over:
                    self.behind = True
                    return False
                arrived = None if waits else queue.log_arrived
                if not place.read(store, self.cold_offset, self._read_bytes(), arrived):
                    self.cold_offset = place.read_offset
                    self.reading = True
                    return False
                record = place.record(self.cold_offset)
                if record is None:
                    self._at_end(queue, store)
                    return False
            if scans is not None:
                if scans.over:
                    self.behind = True
                    return read
                scans.step(len(record.properties))
            if not self.leaving.has(record.offset):
                self.meet(queue, store, record)
            self.cold_offset = record.offset + 1
            read = True

    def _at_end(self, queue: QueueBase, store: QueueLog) -> None:
        """There is no more in the log: where it holds less than was counted, the count follows it."""
        self._front.rest()
        if store.failed_ranges:
            return  # `unwritten` comes first
        self.cold_offset = self.backing.next_offset
        queue.ready_count = self.hot_count + self._returned_count + self.passed_count
        if queue.ready_count == 0:
            queue.ready_bytes = 0

    def meet(self, queue: QueueBase, store: QueueLog, record: Record) -> None:
        """The next message of the log comes into the window, or is passed over."""
        group = self.group_of(self.key.of_record(record))
        if self.hot_count >= self.count_max:
            # Only what may be wanted at once still comes in.
            fits = group.passed_count == 0 and group.count < KEPT_COUNT
        else:
            fits = self.has_room(group)
        if fits:
            self.append(group, self._entry(queue, store, record, group), True)
        else:
            self.pass_over(group, record.offset)

    def _entry(self, queue: QueueBase, store: QueueLog, record: Record, group: Group) -> QueueEntry:
        message = self.backing.message(record)
        entry = QueueEntry(queue, record.offset, message, store.redelivered(record.offset))
        entry.delivery_count = record.delivery_count
        info = message.info
        if info is not None and info.expiration is not None:
            queue.track_expiration(message)
        if group.unacked > 0 and self.hot_bytes >= self.bytes_max:
            entry.message = None  # it keeps its place in memory, its bytes come when it is its turn
        return entry

    def _read_again(self, queue: QueueBase, store: QueueLog, scans: ScanBudget, anyone: bool) -> bool:
        """Goes on with the second reading. Whether it has found something, or has come to its end."""
        place = self._second
        read = False
        while True:
            record = place.record(self._reading_offset)
            if record is None:
                if read:
                    return True
                if scans.over:
                    self.behind = True
                    return False
                if not place.read(store, self._reading_offset, self._read_bytes(), queue.log_arrived):
                    self._reading_offset = place.read_offset
                    self.reading = True
                    return False
                record = place.record(self._reading_offset)
            if record is None or record.offset >= self.cold_offset:
                self._end_reading(queue)
                return True
            if scans.over:
                self.behind = True
                return read
            scans.step(len(record.properties))
            met = self._meet_again(queue, store, record)
            if met == _TAKEN:
                read = True
            elif met == _REFUSED and read and self._border(anyone) < 0:
                self._reading_offset = -1  # who waits has something
                return True
            self._reading_offset = record.offset + 1

    def _meet_again(self, queue: QueueBase, store: QueueLog, record: Record) -> i64:
        """If the message was passed over it comes into memory now, where its group may have more there."""
        key = self.key.of_record(record)
        group = self.groups.get(key) if key is not None else None
        if group is None or not self._is_passed(group, record.offset):
            return _NOT_PASSED
        if group.skipped_from < self._reading_from or group.refused == self._reading_number:
            return _NOT_PASSED  # the first of them is not met in this reading
        most = self._share() if self.hot_count < self.count_max else KEPT_COUNT
        if group.count >= most and (group.unacked > 0 or self.hot_count >= self.count_max):
            group.refused = self._reading_number
            return _REFUSED
        self._take_passed(queue, store, group, record)
        return _TAKEN

    def _is_passed(self, group: Group, offset: i64) -> bool:
        """Whether the message, which is of the group, in the log and not settled, was passed over."""
        return group.passed_count > 0 and offset >= group.skipped_from and not self.leaving.has(offset)

    def _take_passed(self, queue: QueueBase, store: QueueLog, group: Group, record: Record) -> None:
        group.skipped_from = record.offset + 1
        self.append(group, self._entry(queue, store, record, group), False)
        group.passed_count -= 1
        self.passed_count -= 1

    def _end_reading(self, queue: QueueBase) -> None:
        """The second reading has met all that was passed over from its begin on. What it has not found is not there."""
        for group in list(self.unloaded):
            if group.refused != self._reading_number and group.skipped_from >= self._reading_from:
                self._lost(queue, group)
        self._reading_offset = -1
        self._second.rest()
        low = self.cold_offset
        for group in self.groups.values():
            if group.passed_count > 0 and group.skipped_from < low:
                low = group.skipped_from
        self.passed_low = low

    def _lost(self, queue: QueueBase, group: Group) -> None:
        """What was counted as passed over of the group is not in the log."""
        queue.ready_count -= group.passed_count
        self.passed_count -= group.passed_count
        group.passed_count = 0
        self.unloaded.pop(group, None)
        self._forget(group)
        if queue.ready_count <= 0:
            queue.ready_count = 0
            queue.ready_bytes = 0

    def _trim(self) -> None:
        """The window is full, and nobody can be given anything of it: of each locked group a few messages stay, and the
        bytes of none where they are too many. Cost: a step per group and message, once per half a window."""
        backing = self.backing
        if self.hot_bytes >= self.bytes_max:
            for node in self.waiting():
                entry = node.entry
                if entry is None or node.returned or entry.message is None or not backing.is_logged(node.offset):
                    continue
                if node.group.unacked > 0:
                    entry.message = None
                    self.hot_bytes -= entry.body_size
        if self.hot_count < self.count_max or self.hot_count < self._trimmed_count + self.count_max // 2:
            return
        kept = self.count_max // (2 * self.locked_count + 2)
        if kept < KEPT_COUNT:
            kept = KEPT_COUNT
        for group in self.groups.values():
            first = group.first
            if group.unacked > 0 and group.count > kept and first is not None and backing.is_logged(first.offset):
                self._cut(group, kept)
        self._trimmed_count = self.hot_count

    def _cut(self, group: Group, kept: i64) -> None:
        """What is behind the first of the group goes back to where it is in the log."""
        node = group.cut(kept)
        if node is None:
            return
        border = node.offset
        count: i64 = 0
        while node is not None:
            entry = node.entry
            assert entry is not None  # it was in the chain
            node.entry = None
            for index in self.indexes:
                index.went(node.offset)
            if not node.in_line:
                self._behind_count -= 1
            self.hot_count -= 1
            if entry.message is not None:
                self.hot_bytes -= entry.body_size
            after = node.next
            node.next = None
            node = after
            count += 1
        # What was passed over of it before lies behind this.
        group.passed_count += count
        self.passed_count += count
        group.skipped_from = border
        if border < self.passed_low or self.passed_count == count:
            self.passed_low = border
        group.refused = self._reading_number  # what is met in this reading is not its first

    def _read_bytes(self) -> i64:
        """What one reading of the log brings back: less where windows are small."""
        return COLD_READ_BYTES if self.bytes_max >= 16 * COLD_READ_BYTES else self.bytes_max // 16

    # -- what is to be given out ---------------------------------------------------------------------------------------

    def has_message(self, queue: QueueBase, node: GroupNode) -> bool:
        """Whether what is to be given out is in memory. Else the disk is asked (`reading`), or it is lost and gone."""
        entry = node.entry
        assert entry is not None  # whoever has found it has looked
        if entry.message is not None:
            return True
        store = self.backing.store
        if store is not None and self.backing.is_logged(entry.offset):
            fetch = store.cursor.read_if_cached(entry.offset, 1, queue.log_arrived)
            if fetch.records and fetch.records[0].offset == entry.offset:
                message = self.backing.message(fetch.records[0])
                self.give_message(node, message)
                info = message.info
                if info is not None and info.expiration is not None:
                    queue.track_expiration(message)
                return True
            if fetch.waiting:
                self.reading = True
                return False
        self.drop(queue, node)
        return False

    def give_message(self, node: GroupNode, message: Message) -> None:
        """What it has in the log, for an entry that may have none in memory."""
        entry = node.entry
        assert entry is not None  # whoever has read it has looked
        if entry.message is None:
            entry.message = message
            if not node.returned:
                self.hot_bytes += entry.body_size

    def first(self, queue: QueueBase, waits: bool) -> GroupNode | None:
        """The oldest ready message, brought into memory. None: there is none, or the disk is asked. waits: for it."""
        store = self.backing.store
        while queue.ready_count > 0:
            node = self.oldest()
            if self.passed_count > 0 and (node is None or self.passed_low < node.offset):
                if store is None or not self._bring_oldest(queue, store, waits):
                    return None
            elif node is not None:
                return node
            elif store is None or not self._read_on(queue, store, None, waits):
                return None
        return None

    def _bring_oldest(self, queue: QueueBase, store: QueueLog, waits: bool) -> bool:
        """Brings the oldest of what was passed over into memory, whatever room there is. False: the disk is asked."""
        place = self._oldest
        place.go_to(self.passed_low)  # which may lie before what was read last
        count: i64 = 0
        while count < OLDEST_COUNT:
            record = place.record(self.passed_low)
            if record is None:
                if not place.read(store, self.passed_low, self._read_bytes(), None if waits else queue.log_arrived):
                    self.passed_low = place.read_offset
                    self.reading = True
                    return count > 0
                record = place.record(self.passed_low)
            if record is None or record.offset >= self.cold_offset:
                # None of those that are still counted is there.
                for group in [each for each in self.groups.values() if each.passed_count > 0]:
                    self._lost(queue, group)
                place.rest()
                return True
            key = self.key.of_record(record)
            group_met = self.groups.get(key) if key is not None else None
            if group_met is not None and self._is_passed(group_met, record.offset):
                self._take_passed(queue, store, group_met, record)
                count += 1
                if self.passed_count == 0:
                    place.rest()
                    break
            self.passed_low = record.offset + 1
        return True

    # -- ends --------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Nothing is ready."""
        self._reading_offset = -1
        self._trimmed_count = 0
        self._front.rest()
        self._second.rest()
        self._oldest.rest()

    def _close(self) -> None:
        """The queue is deleted."""
        self._front.close()
        self._second.close()
        self._oldest.close()
