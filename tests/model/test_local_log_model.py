"""Model test: the log of a queue against a naive twin, through kills, power cuts and clean restarts.

A message is confirmed (must survive a crash), uncertain (may survive), or settled. A settled message is gone once its
ack was synced; before that it may return, but only as redelivered. A kill keeps everything that `end_of_turn` wrote.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"orders", b"eu.new")


class Message:
    def __init__(self, body: bytes, persistent: bool, transaction: int) -> None:
        self.body = body
        self.persistent = persistent
        self.transaction = transaction
        self.written = False
        self.confirmed = False
        self.generation = 0
        self.delivered = False
        self.maybe_delivered = False
        self.settled = False
        self.settle_written = False
        self.settle_generation = 0
        self.settle_synced = False


class LocalLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.filesystem = SimulatedFileSystem()
        self.boot = 0
        self.messages: dict[int, Message] = {}
        # Gone after a kill, but their acks are not synced: a power cut may bring them back.
        self.unsynced: dict[int, Message] = {}
        self.transactions = 0
        # If a new segment splits a run of acks in the turn of the append, its bytes are divided by message count.
        # They are exact again when one of the two segments is drained.
        self.sizes_exact = True
        self.queue_id = ""
        self.storage: Storage
        self.store: LocalLog
        self.posted: list[tuple[Any, tuple[Any, ...]]] = []
        self.start(first=True)

    def start(self, first: bool = False) -> None:
        self.posted = []
        self.storage = Storage(
            "/data",
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=SimulatedClock(),
            filesystem=self.filesystem,
            segment_size_bytes=2000,
            boot_id=f"{self.boot:032x}",
            inline=True,
        )
        self.storage.commits.on_commit = self.committed
        if first:
            self.queue_id, self.store = self.storage.create_queue("v", "tasks", "/")
        else:
            self.store = self.storage.open_queue("v", self.queue_id, "tasks", "/")

    def committed(self, generation: int, failed: list[LocalLog]) -> None:
        assert failed == []
        for message in self.messages.values():
            if message.written and message.generation <= generation:
                message.confirmed = True
            if message.settle_written and message.settle_generation <= generation:
                message.settle_synced = True

    def live(self) -> list[int]:
        return [offset for offset, message in sorted(self.messages.items()) if not message.settled]

    # -- actions of the broker

    @rule(count=st.integers(1, 70), size=st.sampled_from([0, 1, 20, 300]), persistent=st.booleans())
    def append(self, count: int, size: int, persistent: bool) -> None:
        for _ in range(count):
            self.append_one(size, persistent, 0)

    def append_one(self, size: int, persistent: bool, transaction: int) -> None:
        body = (b"%d," % self.store.next_offset * size)[: size * 4]
        offset = self.store.append_parts(ROUTE, b"\x10\x00\x02", body, persistent)
        assert offset not in self.messages
        message = Message(body, persistent, transaction)
        message.generation = self.storage.commits.generation
        self.messages[offset] = message
        self.unsynced.pop(offset, None)  # the message never was on the disk, so its offset is reused

    @rule(count=st.sampled_from([1, 3, 64, 65, 150]))
    def transaction(self, count: int) -> None:
        self.transactions += 1
        self.store.begin_transaction()
        for _ in range(count):
            self.append_one(20, True, self.transactions)
        self.store.end_transaction()

    @rule()
    def end_of_turn(self) -> None:
        self.storage.commits.end_of_turn()
        self.note_written()

    def note_written(self) -> None:
        for message in self.messages.values():
            message.written = True
            if message.settled:
                message.settle_written = True

    @rule()
    def run_posted(self) -> None:
        self.storage.commits.end_of_turn()
        self.note_written()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)

    @rule(start=st.integers(0, 400), step=st.integers(1, 3), count=st.integers(1, 100))
    def settle(self, start: int, step: int, count: int) -> None:
        live = self.live()
        for offset in live[start : start + step * count : step]:
            message = self.messages[offset]
            self.store.ack(offset, len(message.body))
            self.sizes_exact &= message.written and (message.persistent or not message.body)
            message.settled = True
            message.settle_generation = self.storage.commits.generation

    @rule()
    def purge(self) -> None:
        live = self.live()
        if live:
            self.store.ack_range(live[0], live[-1], sum(len(self.messages[each].body) for each in live))
            for offset in live:
                self.sizes_exact &= self.messages[offset].written
                self.sizes_exact &= self.messages[offset].persistent or not self.messages[offset].body
                self.messages[offset].settled = True
                self.messages[offset].settle_generation = self.storage.commits.generation

    @rule(count=st.integers(1, 50))
    def deliver(self, count: int) -> None:
        for offset in self.live():
            if not self.messages[offset].delivered and count:
                count -= 1
                self.messages[offset].delivered = True
                self.store.mark_delivered(offset)
        self.storage.commits.end_of_turn()  # before the delivery is sent
        self.note_written()

    @rule(which=st.integers(0, 400))
    def return_one(self, which: int) -> None:
        delivered = [offset for offset in self.live() if self.messages[offset].delivered]
        if delivered:
            offset = delivered[which % len(delivered)]
            self.store.mark_returned(offset, 2)
            assert self.store.redelivered(offset)

    @rule(offset=st.integers(0, 500), budget=st.sampled_from([1, 500, 1 << 20]))
    def read(self, offset: int, budget: int) -> None:
        records = self.store.cursor.read(offset, budget).records
        self.note_early_write()
        expected = [each for each in self.live() if each >= offset]
        assert [record.offset for record in records] == expected[: len(records)]
        assert bool(records) == bool(expected)
        for record in records:
            assert record.body == self.messages[record.offset].body
            assert record.persistent == self.messages[record.offset].persistent

    def note_early_write(self) -> None:
        """A read may write batches before the end of the turn; after a kill they may be there or not."""

    # -- restarts and crashes

    @rule()
    def clean_restart(self) -> None:
        self.storage.close(clean=True)
        self.note_written()
        for message in self.messages.values():
            message.confirmed = True
            message.settle_synced = message.settled
        self.filesystem = self.filesystem.killed()
        self.start()
        self.check_after("clean")

    @rule()
    def kill(self) -> None:
        self.filesystem = self.filesystem.killed()
        self.start()
        self.check_after("kill")

    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        self.filesystem = self.filesystem.crashed(seed)
        self.boot += 1
        self.start()
        self.check_after("cut")

    def check_after(self, kind: str) -> None:
        self.store.recover()
        records = {record.offset: record for record in self.store.cursor.read(0, 1 << 30).records}
        assert list(records) == sorted(records)
        assert self.store.lost == []
        delivered = [offset for offset, message in self.messages.items() if message.delivered]
        mark = max(delivered, default=-1)
        for offset, record in records.items():
            if kind == "cut" and offset in self.unsynced:
                self.messages[offset] = self.unsynced[offset]
            message = self.messages[offset]
            assert record.body == message.body
            assert message.persistent, "a transient message survived a restart"
            if message.settled:
                must_be_gone = message.settle_synced if kind == "cut" else message.settle_written
                assert not must_be_gone, f"{offset} was settled for good"
            if message.delivered:
                assert self.store.redelivered(offset), (
                    f"{offset} was delivered before the restart, but is not marked as redelivered"
                )
            if kind != "cut" and offset > mark and not message.maybe_delivered:
                assert not self.store.redelivered(offset), f"{offset} was never delivered, but is marked as redelivered"
        for offset, message in self.messages.items():
            if message.persistent and not message.settled:
                must_be_there = message.confirmed if kind == "cut" else message.written
                assert not must_be_there or offset in records, f"{offset} is lost"
        for number in {message.transaction for message in self.messages.values() if message.transaction}:
            parts = [each for each, message in self.messages.items() if message.transaction == number]
            present = [each for each in parts if each in records]
            missing = [each for each in parts if each not in records and not self.messages[each].settled]
            assert not present or not missing, "half a transaction"
        if kind != "kill":
            self.unsynced = {}
        for offset, message in self.messages.items():
            if offset not in records and kind == "kill" and message.settled and not message.settle_synced:
                self.unsynced[offset] = message
        self.messages = {offset: message for offset, message in self.messages.items() if offset in records}
        for message in self.messages.values():
            message.settled = message.settle_written = message.settle_synced = False
            message.written = True
            message.transaction = 0
        assert self.store.next_offset > max(records, default=-1)
        if self.sizes_exact or not records:
            assert self.store.size_bytes == sum(len(record.body) for record in records.values())
        if kind == "cut":
            for message in self.messages.values():
                message.maybe_delivered = True  # unknown after a power cut
                message.confirmed = False  # synced with the next commit

    @invariant()
    def counts(self) -> None:
        if self.store.ready:
            assert self.store.record_count == len(self.live())
            if self.sizes_exact:
                assert self.store.size_bytes == sum(len(self.messages[offset].body) for offset in self.live())

    @precondition(lambda self: self.store.ready and not self.live())
    @rule()
    def check_few_segments_when_drained(self) -> None:
        """When all messages are acked and synced, at most two segments remain."""
        for _ in range(4):
            self.storage.commits.flush()
            self.note_written()
            self.run_posted()
        directory = f"/data/vhosts/v/queues/{self.queue_id}"
        logs = [name for name in self.filesystem.listdir(directory) if name.endswith(".log")]
        assert len(logs) <= 2, logs

    def teardown(self) -> None:
        self.storage.close(clean=False)


LocalLogMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestLocalLog = LocalLogMachine.TestCase
