"""One life of the storage on a watched disk. (What is found when the next one begins: states_find.py.)

`Life` does what a broker does (append, settle, deliver, give back, purge, commit, delete, stop) and writes it into the
ledger.

A log that keeps (retention, compaction) removes by itself. `Life.maintain` says beforehand what it may remove, by a
rule of its own, and looks afterwards what it has: never one of the newest that the policy protects, never the last
record of a key, and a key's older records go before its tombstone. What was settled under an export's hold stays in the
log's files until the exporter has it.

A life may be paced, as every broker is: what is settled reaches the files up to 50 ms after its turn, and the delivery
mark of a busy queue runs ahead. Time then passes with its turns, 20 ms each, and with `pass_time`.
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
from amqpd.storage.retention import trim
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage

ROUTE: Final = RecordRoute(b"orders", KEY)
NEVER: Final = 1 << 60  # no commit of this life makes it safe
PROPERTIES: Final = b"\x10\x00\x02"
QUEUES: Final = "/data/vhosts/v/queues"


class Life:
    """A process over `disk`. Boot ids are numbers; the same one means that the machine was not restarted.

    paced: what is settled reaches the files up to 50 ms later; else what was settled is written with its turn.
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
        )
        self.storage.commits.on_commit = self._committed
        self.stores: dict[str, LocalLog] = {}
        rows = ledger.rows[-1]
        found = self.storage.survey()
        deleted = found.deleted.get("v", [])
        for queue in found.queues.get("v", []):
            if queue not in rows:
                self.storage.set_aside("v", queue)
        for queue, state in rows.items():
            if state == "live":
                self._open(queue)
            else:
                self.storage.directory_remover.rename(self.storage.queue_chain("v", queue), partial(self._empty, queue))
        for queue in deleted:
            if queue not in rows:
                self._empty(queue)
        self.loop()

    def _empty(self, queue: str) -> None:
        """What was deleted goes, its name too where the metadata have forgotten it."""
        path = self.storage.queue_chain("v", queue)[-1]
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
            why = [(store.name, store.log.error, store.write_failed) for store in failed]
            raise Violation(f"a commit failed on a disk that does not fail: {why}")
        for queue, messages in self.ledger.queues.items():
            synced = self.disk.synced(f"{QUEUES}/{queue}/", ".settled")  # settlements may wait for a later commit
            for message in messages:
                if message.written and message.safe_with <= generation:
                    message.confirmed = True
                if synced and message.settle_written and message.settle_with <= generation:
                    message.settle_safe = True
                if synced and message.returned_written and message.returned_with <= generation:
                    message.returned_safe = True

    # -- what a broker does

    def create(self, queue: str, policy: RetentionPolicy | None = None, export: str = "") -> None:
        """The row, then the store, which makes no file yet."""
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
        """The tombstone, the new name of the directory, then files and row; which of these two is gone first is not
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
        """Something is done, in a turn that `write` ends."""
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
        """A commit that fails. Until it is taken back, or succeeds, a start may find the one or the other."""
        self._touch()
        self.ledger.rows = [rows, self.ledger.rows[-1]]
        self.disk.changed()

    def take_back(self) -> None:
        """A failed one is no longer found."""
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
            if tombstone:  # has no body: its properties tell it
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
        """with_turn: as what was given to a consumer without acks."""
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
        """What is settled from now on stays until the exporter has it."""
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
            if not self._turn_open:  # else the end of the turn writes what is due
                self._written(generation)
        self.ledger.now_ms = until_ms

    def _allow_ahead(self) -> None:
        """A mark that is written now may say so much."""
        if not self.settle_ms:
            return
        self.ledger.version += 1
        for queue, deliveries in self._deliveries.items():
            if queue in self.stores:
                last = self.stores[queue].delivered_mark + deliveries.ahead_max(self.clock.now_ms)
                self.ledger.ahead[queue] = max(last, self.ledger.ahead.get(queue, -1))

    def trim(self, queue: str, offset: int) -> None:
        """Everything below goes, by retention's own call."""
        self._touch()
        for message in self.live(queue):
            if message.offset < offset:
                message.settled, message.settle_with, message.due_ms = True, self.storage.commits.generation, 0
        trim(self.stores[queue], offset)
        self.write()

    def maintain(self) -> None:
        """A round of retention and compaction, held against the rule. A turn ends before it, as in the broker."""
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
                    over = message.tombstone and message.appended_ms < old_ms
                    message.may_go = message.may_go or over or last[message.key] > message.number
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
            left = {record.offset for record in store.cursor.read(0, 1 << 30).records}
            for message in self.ledger.queues[queue]:
                if message.may_go and message.offset not in left:
                    message.settled = message.settle_written = message.settle_safe = True
                    message.due_ms = 0

    def deliver(self, queue: str, messages: list[Message], *, urgent: bool = False) -> None:
        """The mark is written before the bytes would reach a socket: a delivery counts from then on.

        urgent: the turn's end is that of a tx.commit.
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
        """Of the group that what waits in the open turn will belong to: the one just before the turn's end."""
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
        """The end of a turn, whose news the loop has not heard yet. Turns are 20 ms apart; `urgent` ones, with a
        tx.commit of acks, 2 ms: they leave nothing for later.
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
        """What was settled and is due stands in the files, and was synced with that generation if it was synced."""
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
        if self.settle_ms:  # what was written a while ago has been synced: it waits for no append
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
        """All that was written is safe afterwards, settlements too, of whichever life."""
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
        """A clean stop. The watch is told, its marks included; whatever was promised is safe afterwards."""
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
        """Nothing is done with it any more. The circles it stands in are opened: collecting took a third of a walk."""
        storage = self.storage
        for held in (storage._stores, storage.commits._gathered, storage.context.dirty, storage.context.late):
            held.clear()
        storage.commits.on_commit = _nobody
        self.stores.clear()
        self.posted.clear()
        self.disk.forget()

    def adopt(self, outcome: Outcome, *, safe: bool) -> None:
        """What this life has found at its start counts from here on. safe: the disk holds it already."""
        self.ledger.version += 1
        for queue, store in self.stores.items():
            if queue in self.ledger.ahead:  # what comes next has offsets that no mark may speak of
                self.ledger.ahead[queue] = min(self.ledger.ahead[queue], store.next_offset - 1)
            found = {body: (redelivered, count) for body, redelivered, count in outcome[queue].messages}
            offsets = {body_of(record): record.offset for record in store.cursor.read(0, 1 << 30).records}
            for message in self.ledger.queues.setdefault(queue, []):
                if message.body not in found:
                    # A settlement that only the page cache knows may be lost yet: the message then comes again.
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
    """It is done by now: all of this is inline."""


def _nobody(generation: int, failed: list[LocalLog]) -> None:
    """To whom it is told that something is safe when nothing is done any more."""


def body_of(record: Any) -> bytes:
    """Of a record, as the ledger numbers it."""
    return bytes(record.properties if record.tombstone else record.body)
