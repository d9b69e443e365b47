"""One life of the storage on a watched disk. (states_find.py has what the next life finds.)

`Life` runs the actions of a broker (append, settle, deliver, requeue, purge, commit, delete, stop) and records them in
the ledger.

A log with retention or compaction removes records by itself. `Life.maintain` computes beforehand, by its own rule, what
may be removed, and compares afterwards. It never allows one of the newest records that the policy protects, nor the
last record of a key; older records of a key go before its tombstone. Records settled under an export hold stay until
they are exported.

A life may be paced, as every broker is: settlements reach the files up to 50 ms after their turn, and the delivery mark
of a busy queue runs ahead. Time then advances by 20 ms with each turn, and with `pass_time`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from simulated_filesystem import SimulatedClock
from states_disk import Disk
from states_ledger import KEY, Ledger, Message, Outcome, Rows, Violation, removable
from states_pace import SETTLE_MS, SYNC_MS, Deliveries, Timers

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.queue_json import survey
from amqpd.storage.retention import trim
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage

ROUTE: Final = RecordRoute(b"orders", KEY)
JOURNAL_FROM: Final = 2  # logs in a commit
NEVER: Final = 1 << 60  # never safe in this life
PROPERTIES: Final = b"\x10\x00\x02"
QUEUES: Final = "/data/vhosts/v/queues"


class Life:
    """A process over `disk`. Boot ids are numbers; an equal id means that the machine was not restarted.

    paced: settlements reach the files up to 50 ms later; otherwise they are written with their turn.
    """

    def __init__(
        self,
        disk: Disk,
        ledger: Ledger,
        boot: int,
        *,
        segment_size_bytes: int = 2000,
        prefix: bytes = b"",
        paced: bool = False,
        open_file_count_max: int | None = None,
        journal_size_bytes: int = 0,
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self.prefix = prefix
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.clock = SimulatedClock()
        self.clock.now_ms = ledger.now_ms
        self.timers = Timers(self.clock)
        self.settle_ms = SETTLE_MS if paced else 0
        self._deliveries: dict[str, Deliveries] = {}
        self._turn_open = False
        self.storage = Storage(
            "/data",
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            later=self.timers.later if paced else None,
            clock=self.clock,
            filesystem=disk,
            segment_size_bytes=segment_size_bytes,
            boot_id=f"{boot:032x}",
            open_file_count_max=open_file_count_max,
            inline=True,
            journal_size_bytes=journal_size_bytes,
            journal_from=JOURNAL_FROM,
        )
        self.storage.commits.on_commit = self._committed
        self.stores: dict[str, LocalLog] = {}
        rows = ledger.rows[-1]
        found = survey(self.storage.filesystem, self.storage.data_dir)
        deleted = found.deleted.get("v", [])
        for queue in found.queues.get("v", []):
            if queue not in rows:
                self.storage.data_directory.set_aside("v", queue)
        for queue, state in rows.items():
            if state == "live":
                self._open(queue)
            else:
                chain = self.storage.data_directory.queue_chain("v", queue)
                self.storage.directory_remover.rename(chain, partial(self._empty, queue))
        for queue in deleted:
            if queue not in rows:
                self._empty(queue)
        self.loop()

    def _empty(self, queue: str) -> None:
        """Remove the content of a deleted queue, and its directory if the metadata do not have it."""
        path = self.storage.data_directory.queue_chain("v", queue)[-1]
        forgotten = queue not in self.ledger.rows[-1]
        self.storage.directory_remover.remove_content(path, _nothing)
        if forgotten:
            self.storage.directory_remover.remove_emptied([path])

    def _open(self, queue: str) -> None:
        store = self.storage.open_queue("v", queue, queue, "/", self.ledger.policies.get(queue))
        self.stores[queue] = store
        if queue in self.ledger.exports:
            self.storage.export_hold(store).declare(self.ledger.exports[queue], None)

    def _committed(self, generation: int, failed: list[LocalLog]) -> None:
        self.ledger.version += 1
        if failed:
            failures = [(store.name, store.log.error, store.write_failed) for store in failed]
            raise Violation(f"a commit failed on a disk that does not fail: {failures}")
        for queue, messages in self.ledger.queues.items():
            synced = self.disk.synced(f"{QUEUES}/{queue}/", ".settled")  # settlements may be synced by a later commit
            for message in messages:
                if message.written and message.safe_with <= generation:
                    message.confirmed = True
                if synced and message.settle_written and message.settle_with <= generation:
                    message.settle_safe = True
                if synced and message.returned_written and message.returned_with <= generation:
                    message.returned_safe = True

    # -- actions of the broker

    def create(self, queue: str, policy: RetentionPolicy | None = None, export: str = "") -> None:
        """Commit the row, then create the log, which makes no file yet."""
        if policy is not None:
            self.ledger.policies[queue] = policy
        if export:
            self.ledger.exports[queue] = export
            self.ledger.holds.add(queue)
        self._commit({**self.ledger.rows[-1], queue: "live"})
        self.ledger.queues[queue] = []
        self.ledger.ahead.pop(queue, None)
        self._open(queue)

    def delete(self, queue: str, *, row_first: bool = False) -> None:
        """Commit the row as deleting, rename the directory, then remove files and row; the order of these two is not
        promised.
        """
        rows = self.ledger.rows[-1]
        self._commit({**rows, queue: "deleting"})
        without = {name: state for name, state in rows.items() if name != queue}
        self.storage.retire_queue(self.stores.pop(queue), _nothing)
        self.loop()
        self.ledger.deleted.add(queue)
        if row_first:
            self._commit(without)
        self._empty(queue)
        if not row_first:
            self._commit(without)
            self._empty(queue)

    def _touch(self) -> None:
        """Note a change in a turn that `write` ends."""
        self.ledger.version += 1
        self.ledger.stopped = False
        self._turn_open = True

    def _commit(self, rows: Rows) -> None:
        self._touch()
        self.ledger.rows.append(rows)
        self.disk.changed()
        self.ledger.rows = [rows]
        self.disk.changed()

    def fail(self, rows: Rows) -> None:
        """Fail a commit. Until it is undone or succeeds, a start may find either state."""
        self._touch()
        self.ledger.rows = [rows, self.ledger.rows[-1]]
        self.disk.changed()

    def undo_failed(self) -> None:
        """Undo the failed commit."""
        self._commit(self.ledger.rows[-1])

    def append(
        self,
        queue: str,
        count: int,
        size: int = 20,
        *,
        persistent: bool = True,
        transaction: int = 0,
        key: bytes = KEY,
        tombstone: bool = False,
    ) -> None:
        self._touch()
        messages = self.ledger.queues[queue]
        for _ in range(count):
            number = len(messages)
            body = b"%s%s%d." % (self.prefix, queue.encode(), number)
            message = Message(number, body.ljust(size, b"-"), persistent, transaction)
            messages.append(message)
            message.key, message.tombstone, message.appended_ms = key, tombstone, self.clock.now_ms
            store, route = self.stores[queue], ROUTE if key is KEY else RecordRoute(b"orders", key)
            if tombstone:  # no body: its properties identify it
                message.offset = store.appender.append_tombstone(route, message.body)
            else:
                message.offset = store.append_parts(route, PROPERTIES, message.body, persistent)

    def transaction(self, queue: str, count: int, size: int = 20) -> None:
        store = self.stores[queue]
        store.begin_transaction()
        self.append(queue, count, size, transaction=len(self.ledger.queues[queue]) + 1)
        store.end_transaction()

    def live(self, queue: str) -> list[Message]:
        return [each for each in self.ledger.queues[queue] if not each.settled and not each.gone]

    def settle(self, queue: str, messages: list[Message], *, with_turn: bool = False) -> None:
        """with_turn: written with the turn, as after a delivery without acks."""
        self._touch()
        if with_turn:
            self.stores[queue].write_acks_this_turn()
        for message in messages:
            message.settled = True
            message.held = queue in self.ledger.holds
            message.settle_with = self.storage.commits.generation
            message.due_ms = 0 if with_turn else -1
            self.stores[queue].ack(message.offset, len(message.body))

    def purge(self, queue: str) -> None:
        self._touch()
        live = self.live(queue)
        for message in live:
            message.settled = True
            message.settle_with = self.storage.commits.generation
            message.due_ms = 0
        if live:
            size = sum(len(each.body) for each in live)
            self.stores[queue].ack_range(live[0].offset, live[-1].offset, size)

    def hold(self, queue: str, name: str) -> None:
        """Add an export hold: records settled from now on stay until they are exported."""
        self.storage.export_hold(self.stores[queue]).add(name)
        self._touch()
        self.ledger.holds.add(queue)

    def exported(self, queue: str, name: str, offset: int) -> None:
        self._touch()
        for message in self.ledger.queues[queue]:
            if message.offset < offset:
                message.held = False
        self.storage.export_hold(self.stores[queue]).commit(name, offset)
        self.storage.on_export_hold_changed(self.stores[queue])

    def pass_time(self, milliseconds: int) -> None:
        until_ms = self.clock.now_ms + milliseconds
        while (call := self.timers.next(until_ms)) is not None:
            self.ledger.now_ms = self.clock.now_ms
            self._allow_ahead()
            generation = self.storage.commits.generation
            call()
            if not self._turn_open:  # otherwise the end of the turn writes what is due
                self._written(generation)
        self.ledger.now_ms = until_ms

    def _allow_ahead(self) -> None:
        """Note how far ahead a mark written now may be."""
        if not self.settle_ms:
            return
        self.ledger.version += 1
        for queue, deliveries in self._deliveries.items():
            if queue in self.stores:
                last = self.stores[queue].delivered_mark + deliveries.ahead_max(self.clock.now_ms)
                self.ledger.ahead[queue] = max(last, self.ledger.ahead.get(queue, -1))

    def trim(self, queue: str, offset: int) -> None:
        """Remove everything below the offset, by retention's own function."""
        self._touch()
        for message in self.live(queue):
            if message.offset < offset:
                message.settled, message.settle_with, message.due_ms = True, self.storage.commits.generation, 0
        trim(self.stores[queue], offset)
        self.write()

    def maintain(self) -> None:
        """Run retention and compaction and compare with the rule. A turn ends before it, as in the broker."""
        self.turn()
        self._touch()
        candidates: list[Message] = []
        for queue in self.stores:
            policy = self.ledger.policies.get(queue)
            if policy is None:
                continue
            live = self.live(queue)
            candidates += removable(live, policy, self.clock.now_ms)
            if policy.compaction is not None:
                old_ms = self.clock.now_ms - policy.compaction.tombstone_retention_ms
                last = {message.key: message.number for message in live}
                for message in live:
                    is_expired = message.tombstone and message.appended_ms < old_ms
                    message.may_go = message.may_go or is_expired or last[message.key] > message.number
        for message in candidates:
            message.settled, message.settle_with = True, NEVER
        self.storage.maintain()
        self.ledger.version += 1
        for queue, store in self.stores.items():
            start = store.log.start_offset()
            for message in self.ledger.queues[queue]:
                if message in candidates and message.offset >= start:
                    message.settled = False
                elif message in candidates:
                    message.settle_written, message.settle_with = True, self.storage.commits.generation
                    message.due_ms = 0
        self.loop()
        self.turn()
        self.flush()
        for queue, store in self.stores.items():
            remaining = {record.offset for record in store.cursor.read(0, 1 << 30).records}
            for message in self.ledger.queues[queue]:
                if message.may_go and message.offset not in remaining:
                    message.settled = message.settle_written = message.settle_safe = True
                    message.due_ms = 0

    def deliver(self, queue: str, messages: list[Message], *, urgent: bool = False) -> None:
        """Write the delivery mark before the bytes would reach a socket; the delivery counts from then on.

        urgent: the turn ends with a tx.commit.
        """
        self._touch()
        store = self.stores[queue]
        before = store.delivered_mark
        for message in messages:
            store.mark_delivered(message.offset)
            message.maybe_delivered = True
        if store.delivered_mark > before:
            deliveries = self._deliveries.setdefault(queue, Deliveries())
            deliveries.note(self.clock.now_ms, store.delivered_mark - before)
        self.write(urgent=urgent)
        self.loop()
        self.ledger.version += 1
        for message in messages:
            message.delivered = True

    def give_back(self, queue: str, messages: list[Message]) -> None:
        self._touch()
        for message in messages:
            message.returned += 1
            message.returned_written = message.returned_safe = False
            message.returned_with = -1
            self.stores[queue].mark_returned(message.offset, message.returned)

    def _generation(self) -> int:
        """Return the commit group of what waits in the open turn: the one just before the turn's end."""
        self._allow_ahead()
        generation = self.storage.commits.generation
        for queue, messages in self.ledger.queues.items():
            if queue in self.stores:
                for message in messages:
                    if message.safe_with < 0:
                        message.safe_with = generation
                    if message.returned_with < 0:
                        message.returned_with = generation
        return generation

    def write(self, *, urgent: bool = False) -> None:
        """End a turn before the loop gets its results.

        Turns are 20 ms apart; `urgent` ones, with a tx.commit of acks, 2 ms, and they leave nothing for later.
        """
        self.pass_time(2 if urgent else 20)
        generation = self._generation()
        if urgent:
            self.storage.commits.flush()
        else:
            self.storage.commits.end_of_turn()
        self.ledger.version += 1
        for queue, messages in self.ledger.queues.items():
            if queue not in self.stores:
                continue
            for message in messages:
                if message.offset >= 0 and not message.gone:
                    message.written = True
                if message.settled and not message.settle_written:
                    if urgent or message.due_ms == 0:
                        message.due_ms = self.clock.now_ms
                    elif message.due_ms < 0:
                        message.due_ms = self.clock.now_ms + self.settle_ms
                message.returned_written = message.returned > 0
        self._turn_open = False
        self._written(generation)

    def _written(self, generation: int) -> None:
        """Note that due settlements are in the files, and are synced by that generation if it synced them."""
        self.ledger.version += 1
        for queue, messages in self.ledger.queues.items():
            if queue in self.stores:
                for message in messages:
                    if message.settled and not message.settle_written and 0 <= message.due_ms <= self.clock.now_ms:
                        message.settle_written = True
                        message.settle_with = max(message.settle_with, generation)

    def loop(self) -> None:
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)
        if self.settle_ms:  # older writes are synced without waiting for an append
            self.ledger.version += 1
            for queue, messages in self.ledger.queues.items():
                if queue in self.stores:
                    for message in messages:
                        if message.settle_written and 0 < message.due_ms <= self.clock.now_ms - SYNC_MS:
                            message.settle_safe = True

    def turn(self) -> None:
        self.write()
        self.loop()

    def flush(self) -> None:
        """Make everything written safe, including settlements of earlier lives."""
        self._touch()
        self._generation()
        self.storage.commits.flush()
        self._turn_open = False
        self.loop()
        self.ledger.version += 1
        for queue, messages in self.ledger.queues.items():
            if queue in self.stores:
                for message in messages:
                    if message.settled:
                        message.settle_written, message.due_ms = True, 0
                    message.settle_safe = message.settle_written

    def stop(self) -> None:
        """Stop cleanly. The delivery marks are exact, and everything promised is safe afterwards."""
        self.turn()
        self.storage.close(clean=True)
        self.ledger.version += 1
        for queue, messages in self.ledger.queues.items():
            if queue in self.stores:
                for message in messages:
                    message.confirmed = message.confirmed or not message.gone
                    message.settle_safe = message.settle_written = message.settled
        self.ledger.stopped = True
        self.disk.changed()

    def forget(self) -> None:
        """Release the memory of a life that is not used again; breaking its reference cycles saves a third of a
        walk.
        """
        storage = self.storage
        for held in (storage._stores, storage.commits._gathered, storage.context.dirty, storage.context.late):
            held.clear()
        storage.commits.on_commit = _ignore_commit
        self.stores.clear()
        self.posted.clear()
        self.disk.forget()

    def adopt(self, outcome: Outcome, *, safe: bool) -> None:
        """Take over what this life found at its start. safe: the disk holds this state already."""
        self.ledger.version += 1
        for queue, store in self.stores.items():
            if queue in self.ledger.ahead:  # no mark may cover the offsets of later messages
                self.ledger.ahead[queue] = min(self.ledger.ahead[queue], store.next_offset - 1)
            found = {body: (redelivered, count) for body, redelivered, count in outcome[queue].messages}
            offsets = {body_of(record): record.offset for record in store.cursor.read(0, 1 << 30).records}
            for message in self.ledger.queues.setdefault(queue, []):
                if message.body not in found:
                    # A settlement that is only in the page cache may still be lost; the message then returns.
                    message.gone = safe or message.settle_safe or not (message.settled or message.may_go)
                    message.settle_written = message.settled
                    message.settle_with = self.storage.commits.generation
                    message.due_ms = 0
                    continue
                message.settled = message.settle_written = message.settle_safe = False
                message.due_ms = -1
                message.offset = offsets[message.body]
                message.written = True
                message.confirmed = message.confirmed or safe
                message.safe_with = self.storage.commits.generation
                message.maybe_delivered = found[message.body][0]
                message.returned = found[message.body][1]
                message.returned_written = message.returned > 0
                message.returned_safe = message.returned_written and safe


def _nothing() -> None:
    """Do nothing: all work is done inline."""


def _ignore_commit(generation: int, failed: list[LocalLog]) -> None:
    """Ignore commits after the end."""


def body_of(record: Any) -> bytes:
    """Return the body of a record as the ledger numbers it."""
    return bytes(record.properties if record.tombstone else record.body)
