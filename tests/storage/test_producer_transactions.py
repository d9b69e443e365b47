"""Transactions of Kafka's producers in a log: last stable offset, aborts, recovery. A random walk beside a model."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
from foreign_batches import check_batches
from librt.strings import BytesWriter
from profiles import examples
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log import cursor as cursor_module
from amqpd.storage.log import reader as reader_module
from amqpd.storage.log.appender import BadBatch
from amqpd.storage.log.batch import BatchHeader, is_commit_marker, marker_batch
from amqpd.storage.log.checkpoint import decode_high_watermark
from amqpd.storage.log.reader import LogReader
from amqpd.storage.retention import trim
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

KEEP = RetentionPolicy(segment_size_bytes=1 << 26, segment_age_ms=-1)
A, B, C = (1 << 62) + 5, (1 << 62) + 6, (1 << 62) + 7
ALL = 1 << 40


def never() -> None:
    raise AssertionError("the disk was asked")


class TransactionLog:
    """A stream's log, and what a producer, coordinator and consumer do with it."""

    def __init__(self, harness: Any) -> None:
        self.harness = harness
        self.sequences: dict[tuple[int, int], int] = {}
        harness.create_log()
        harness.storage.set_policy(harness.store, KEEP)

    @property
    def store(self) -> LocalLog:
        store: LocalLog = self.harness.store
        return store

    def produce(self, producer: int, *bodies: bytes, epoch: int = 0, key: bytes = b"k") -> int:
        sequence = self.sequences.get((producer, epoch), 0)
        self.sequences[producer, epoch] = sequence + len(bodies)
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=1,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            batch_size=1 << 20,
        )
        for number, body in enumerate(bodies):
            builder.append(number, timestamp=1_700_000_000_000, key=key, value=body, headers=[])
        return self.store.appender.append_checked(check_batches(bytes(builder.build()), transactional=True))

    def end(self, producer: int, commits: bool, epoch: int = 0) -> int:
        return self.store.appender.append_checked(
            [marker_batch(BytesWriter(), producer, epoch, commits, 1_700_000_000_000)]
        )

    def plain(self, *bodies: bytes) -> list[int]:
        offsets: list[int] = self.harness.append(*bodies)
        return offsets

    def sync(self) -> None:
        self.harness.end_turn()

    def restart(self, filesystem: SimulatedFileSystem | None = None) -> None:
        self.harness.restart(filesystem)
        self.harness.storage.set_policy(self.store, KEEP)
        self.harness.end_turn()

    def stop_and_start(self) -> None:
        self.harness.storage.close(clean=True)
        self.harness.run_callbacks()
        self.restart(self.harness.filesystem)

    def present(self) -> set[int]:
        """Return the offsets of all good batches."""
        reader = LogReader(self.store.log)
        reader.reads_acked_segments = True
        found: set[int] = set()
        offset = 0
        while (header := reader.find(offset)) is not None:
            offset = header.last_offset + 1
            found.update(range(header.base_offset, offset))
        return found

    def amqp(self) -> list[bytes]:
        """Return the bodies that a consumer of the stream gets."""
        cursor = self.store.new_cursor()
        records = cursor.read_safe(0, ALL, never).records
        assert cursor.views_below_hw(0, ALL, never).count == len(records)
        cursor.close()
        return [record.body for record in records]

    def kafka(self, committed: bool = True) -> list[bytes]:
        """Return the values that a consumer of Kafka's protocol gets."""
        found = self.store.new_cursor().batches_below_hw(self.store.segment_start(), ALL, True, never, committed)
        headers = [BatchHeader(part, 0) for part in found.parts]
        aborts = [
            (header.producer_id, header.base_offset)
            for header, part in zip(headers, found.parts, strict=True)
            if header.is_control() and not is_commit_marker(part, 0)
        ]
        assert found.abort_markers == aborts
        batches = MemoryRecords(b"".join(found.parts))
        values = []
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            if not batch.is_control_batch:
                values += [record.value for record in batch]
        return values


def maintain(log: TransactionLog) -> None:
    log.harness.storage.maintain()
    log.harness.run_callbacks()
    log.harness.storage.commits.flush()
    log.harness.run_callbacks()


@pytest.fixture
def log(harness: Any) -> TransactionLog:
    return TransactionLog(harness)


def test_readers_stop_before_the_first_record_of_an_open_transaction(log: TransactionLog) -> None:
    log.plain(b"before")
    first = log.produce(A, b"a1", b"a2")
    log.plain(b"after")
    log.sync()
    assert (log.store.last_stable_offset, log.store.high_watermark) == (first, 4)
    assert log.amqp() == log.kafka() == [b"before"]
    assert log.kafka(committed=False) == [b"before", b"a1", b"a2", b"after"]
    log.end(A, commits=True)
    assert log.store.last_stable_offset == first, "the marker is not synced"
    log.sync()
    assert log.store.last_stable_offset == log.store.high_watermark == 5
    assert log.amqp() == log.kafka() == [b"before", b"a1", b"a2", b"after"]
    assert log.store.log.transactions is None


def test_external_readers_see_the_last_stable_offset_as_the_end(log: TransactionLog) -> None:
    log.plain(b"before")
    log.sync()
    ends = []
    for step in (lambda: log.produce(A, b"a1"), lambda: log.plain(b"after"), lambda: log.end(A, commits=False)):
        step()
        log.sync()
        ends.append(decode_high_watermark(bytes(log.harness.data("high-watermark"))))
    assert ends == [1, 1, 4]


def test_aborted_records_are_settled_and_no_reader_gets_them(log: TransactionLog) -> None:
    log.plain(b"before")
    log.produce(A, b"a1", b"a2")
    log.produce(B, b"b1")
    log.produce(A, b"a3")
    log.end(A, commits=False)
    log.sync()
    assert log.store.last_stable_offset == 3, "B is open"
    assert log.amqp() == log.kafka() == [b"before"]
    log.end(B, commits=True)
    log.sync()
    assert log.amqp() == log.kafka() == log.kafka(committed=False) == [b"before", b"b1"]
    assert log.store.record_count == 2 + 2, "a marker counts as a record"
    assert log.store.size_bytes == len(b"before") + len(b"b1")


@pytest.mark.parametrize("clean", [True, False])
def test_open_transaction_is_open_after_a_restart(log: TransactionLog, clean: bool) -> None:
    log.plain(b"before")
    log.produce(A, b"a1")
    log.produce(B, b"b1")
    log.store.flush_batches()
    log.store.log.roll()
    log.sync()
    log.produce(A, b"a2")
    log.plain(b"after")
    log.sync()
    log.stop_and_start() if clean else log.restart()
    assert log.store.last_stable_offset == 1
    assert log.amqp() == [b"before"]
    log.end(A, commits=False)
    log.end(B, commits=True)
    log.sync()
    assert log.amqp() == log.kafka() == [b"before", b"b1", b"after"]
    log.stop_and_start() if clean else log.restart()
    assert log.amqp() == log.kafka() == [b"before", b"b1", b"after"]


def test_start_reads_no_segment_before_the_oldest_open_transaction(log: TransactionLog) -> None:
    for number in range(3):
        log.produce(A, b"old %d" % number)
        log.end(A, commits=number != 1)
        log.store.flush_batches()
        log.store.log.roll()
        log.sync()
    log.produce(B, b"open")
    log.store.flush_batches()
    log.store.log.roll()
    log.sync()
    log.harness.storage.close(clean=True)
    log.harness.run_callbacks()
    calls = log.harness.filesystem.calls
    calls.clear()
    log.harness.restart(log.harness.filesystem)
    read = [path[-6:] for name, path in calls if name == "open" and path.endswith(".log")]
    assert [read.count(name) for name in ("00.log", "02.log", "04.log")] == [1, 1, 1], "a look at the first header"
    assert read.count("06.log") > 1, "a scan"
    assert log.amqp() == [b"old 0", b"old 2"]
    assert log.store.last_stable_offset == 6


def test_marker_with_a_higher_epoch_fences_the_producer(log: TransactionLog) -> None:
    log.produce(A, b"a1")
    log.end(A, commits=False, epoch=1)
    log.sync()
    for _ in range(2):
        producer = log.store.producers().find(A, log.harness.clock.time_ms())
        assert producer is not None
        assert (producer.epoch, producer.sequence) == (1, -1)
        log.restart()


def test_marker_alone_keeps_the_sequence_of_its_producer_over_a_kill(log: TransactionLog) -> None:
    log.produce(A, b"a1", b"a2")
    log.end(A, commits=True)
    log.sync()
    log.store.flush_batches()
    log.store.log.roll()
    log.sync()
    log.end(A, commits=True)
    log.sync()
    for _ in range(2):
        log.restart()
        producer = log.store.producers().find(A, log.harness.clock.time_ms())
        assert producer is not None
        assert producer.sequence == 1
        assert producer.find_batch(0, 0, 1) == 1, "a repeated batch is still recognised"


def test_marker_that_was_not_written_leaves_the_transaction_open(log: TransactionLog) -> None:
    log.produce(A, b"a1")
    log.sync()
    log.harness.filesystem.capacity = log.harness.filesystem.used()
    done: list[bool] = []
    log.store.when_safe(log.end(A, commits=False), done.append)
    log.sync()
    log.harness.filesystem.capacity = None
    log.plain(b"after")
    log.sync()
    assert done == [False]
    assert log.store.last_stable_offset == 0
    log.end(A, commits=True)
    log.sync()
    assert log.amqp() == [b"a1", b"after"]


def test_aborted_transactions_do_not_move_the_start_of_the_log(log: TransactionLog) -> None:
    log.produce(A, b"no", b"no")
    log.produce(B, b"no")
    log.end(A, commits=False)
    log.end(B, commits=False)
    log.plain(b"yes")
    log.sync()
    assert log.store.log_start() == 0
    log.stop_and_start()
    assert log.store.log_start() == 0


def test_deleted_records_move_the_start_of_the_log_up_to_an_aborted_transaction(log: TransactionLog) -> None:
    log.plain(b"deleted")
    log.produce(A, b"deleted")
    log.end(A, commits=True)
    log.produce(A, b"no")
    log.end(A, commits=False)
    log.sync()
    log.store.ack_range(0, 0, 0)
    assert log.store.log_start() == 1
    log.store.ack_range(1, 2, 0)
    assert log.store.log_start() == 3
    log.store.ack_range(4, 4, 0)
    assert log.store.log_start() == 5


def test_start_of_a_queues_log_needs_no_search(log: TransactionLog) -> None:
    """A queue has no transactions of producers, and its first message changes with each ack."""
    log.harness.storage.set_policy(log.store, None)
    log.plain(b"a", b"b")
    log.sync()
    log.store.ack_range(0, 0, 0)
    assert log.store.log_start() == 1
    assert log.store.log.start_of_aborted == (-1, -1)


def test_long_aborted_transaction_is_skipped(log: TransactionLog) -> None:
    log.plain(b"before")
    for number in range(3000):
        log.produce(A, b"%d" % number)
    log.end(A, commits=False)
    log.plain(b"after")
    log.sync()
    for _ in range(2):
        assert log.amqp() == log.kafka() == [b"before", b"after"]
        log.restart()


def test_retention_passes_over_an_open_transaction(log: TransactionLog) -> None:
    log.produce(A, b"a1")
    log.sync()
    trim(log.store, 1)
    log.plain(b"after")
    log.sync()
    assert log.amqp() == []
    log.end(A, commits=True)
    log.sync()
    assert log.amqp() == [b"after"]


@pytest.mark.parametrize("clean", [False, True])
def test_records_deleted_up_to_an_abort_marker_move_the_start_of_the_log(log: TransactionLog, clean: bool) -> None:
    """As in Kafka, the start is what the client asked for, also if the rest was an aborted transaction."""
    log.plain(b"deleted")
    log.produce(A, b"no", b"no")
    log.end(A, commits=False)
    log.plain(b"after")
    log.sync()
    assert trim(log.store, 2) == 3
    assert log.store.log_start() == 2
    trim(log.store, 3)
    log.sync()
    for _ in range(2):
        assert log.store.log_start() == log.store.log.start_offset() == 3
        assert log.amqp() == log.kafka() == [b"after"]
        assert log.kafka(committed=False) == [b"after"]
        found = log.store.new_cursor().batches_below_hw(3, ALL, True, never, True)
        assert found.abort_markers == [(A, 3)]
        assert (log.store.last_stable_offset, log.store.record_count) == (5, 2)
        log.stop_and_start() if clean else log.restart()


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_records_of_an_open_transaction_can_be_deleted(log: TransactionLog, clean: bool, commits: bool) -> None:
    """As in Kafka, the last stable offset is not below the start of the log; the marker ends what is left."""
    log.produce(A, b"a1")
    log.plain(b"b")
    log.sync()
    log.plain(b"c")
    log.produce(A, b"a2")
    log.sync()
    trim(log.store, 2)
    log.sync()
    for _ in range(2):
        assert (log.store.log_start(), log.store.last_stable_offset) == (2, 2)
        assert log.amqp() == log.kafka() == []
        log.stop_and_start() if clean else log.restart()
    log.end(A, commits)
    log.sync()
    for _ in range(2):
        left = [b"c", b"a2"] if commits else [b"c"]
        assert log.amqp() == log.kafka() == left
        assert (log.store.log_start(), log.store.last_stable_offset) == (2, 5)
        assert log.store.record_count == len(left) + 1
        log.stop_and_start() if clean else log.restart()


def test_compaction_leaves_open_transactions_alone_and_removes_aborted_records(log: TransactionLog) -> None:
    policy = RetentionPolicy(segment_size_bytes=1 << 26, segment_age_ms=-1, compaction=CleanerPolicy(min_dirty_ratio=0))
    log.harness.storage.set_policy(log.store, policy)
    log.produce(A, b"old", key=b"x")
    log.end(A, commits=True)
    log.produce(A, b"aborted", key=b"x")
    log.end(A, commits=False)
    log.produce(B, b"open", key=b"x")
    log.sync()
    for _ in range(2):
        log.store.flush_batches()
        log.store.log.roll()
        log.sync()
        log.plain(b"end")
    log.sync()
    maintain(log)
    assert log.amqp() == [b"old"]
    log.end(B, commits=True)
    log.sync()
    maintain(log)
    assert log.amqp() == log.kafka() == [b"open", b"end", b"end"]
    log.restart()
    assert log.amqp() == log.kafka() == [b"open", b"end", b"end"]


def test_transactional_batches_are_refused_where_no_coordinator_is(log: TransactionLog) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=A,
        producer_epoch=0,
        base_sequence=0,
        batch_size=999,
    )
    builder.append(0, timestamp=1, key=None, value=b"x", headers=[])
    with pytest.raises(BadBatch):
        log.store.appender.append_checked(check_batches(bytes(builder.build())))


class Model:
    """What the log must show."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []  # [offset, producer or 0, body, state: plain, open, committed, aborted]
        self.markers: list[tuple[int, int, bool]] = []
        self.synced = 0
        self.start = 0  # records below were deleted

    def visible(self, end: int) -> list[bytes]:
        """Return the committed bodies below the last stable offset."""
        result = []
        for offset, _, body, state in self.entries:
            if offset >= end or (state == "open" and offset >= self.start):
                break
            if state != "aborted" and offset >= self.start:
                result.append(body)
        return result

    def cut(self, end: int, present: set[int] | None) -> None:
        """A crash has removed what is at `end` or above, and unsynced offsets that are not in `present`."""

        def is_there(offset: int) -> bool:
            return offset < end and (present is None or offset < self.synced or offset in present)

        self.entries = [each for each in self.entries if is_there(each[0])]
        lost = [each for each in self.markers if not is_there(each[0])]
        self.markers = [each for each in self.markers if is_there(each[0])]
        for marker, producer, _ in lost:
            before = max([at for at, who, _ in self.markers if who == producer and at < marker], default=-1)
            for each in self.entries:
                if each[1] == producer and each[0] > before:
                    each[3] = "open"


@pytest.mark.parametrize("seed", range(examples(60)))
def test_random_walk_with_kills_power_cuts_and_clean_stops(
    make_harness: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    if seed % 2:  # aborted transactions are skipped with a look-up (where the modules are interpreted)
        monkeypatch.setattr(reader_module, "SKIP_COUNT_MIN", 2)
        monkeypatch.setattr(cursor_module, "SKIP_COUNT_MIN", 2)
    log = TransactionLog(make_harness(segment_size_bytes=chance.choice([600, 2000, 1 << 20])))
    model = Model()
    number = 0
    starts: list[int] = []  # of batches
    for _ in range(150):
        what = chance.choices(
            ["plain", "produce", "end", "sync", "kill", "power", "clean", "roll", "delete"],
            [3, 8, 4, 6, 0.5, 0.5, 0.5, 0.7, 0.3],
        )[0]
        if what == "plain":
            number += 1
            body = b"%d" % number
            model.entries.append([log.plain(body)[0], 0, body, "plain"])
        elif what == "produce":
            producer = chance.choice([A, B, C])
            bodies = [b"%d" % (number + more) for more in range(1, chance.randint(2, 5))]
            number += len(bodies)
            first = log.produce(producer, *bodies)
            starts.append(first)
            model.entries += [[first + at, producer, body, "open"] for at, body in enumerate(bodies)]
        elif what == "end":
            producer, commits = chance.choice([A, B, C]), chance.random() < 0.6
            model.markers.append((log.end(producer, commits), producer, commits))
            for each in model.entries:
                if each[1] == producer and each[3] == "open":
                    each[3] = "committed" if commits else "aborted"
        elif what == "sync":
            log.sync()
            model.synced = log.store.next_offset
        elif what == "delete":
            log.sync()
            model.synced = log.store.next_offset
            trim(log.store, chance.choice([*[each for each in starts if each < model.synced], 0]))
            log.sync()
            log.harness.storage.commits.flush()
            log.harness.run_callbacks()
            model.start = max(model.start, log.store.log.deleted_end)
        elif what == "roll":
            log.store.flush_batches()
            if log.store.log.segments and log.store.log.segments[-1].size:
                log.store.log.roll()
        else:
            filesystem = log.harness.filesystem
            if what == "clean":
                log.stop_and_start()
            else:
                log.restart(filesystem.crashed(seed) if what == "power" else None)
            end = log.store.next_offset
            assert end >= model.synced, what
            model.cut(end, log.present() if what == "power" else None)
            starts = [each for each in starts if each < end]
            model.synced = end
            log.sequences.clear()
            for name in (A, B, C):
                known = log.store.producers().find(name, log.harness.clock.time_ms())
                count = sum(each[1] == name for each in model.entries)
                assert (0 if known is None else known.sequence + 1) == count, "the next sequence"
                log.sequences[name, 0] = count
        if what not in ("plain", "produce", "end", "roll"):
            expected = model.visible(log.store.last_stable_offset)
            assert log.amqp() == log.kafka() == expected, what
            open_ = [each[0] for each in model.entries if each[3] == "open"]
            stable_end = min([*open_, log.store.high_watermark])
            assert log.store.last_stable_offset == max(stable_end, model.start)
            assert log.store.segment_start() <= log.store.log_start()
            assert log.store.log_start() >= model.start
            if log.store.high_watermark == log.store.next_offset:
                live = [each for each in model.entries if each[3] != "aborted" and each[0] >= model.start]
                markers = [each for each in model.markers if each[0] >= model.start]
                if not model.start:  # the sizes of deleted bodies count until their segment is removed
                    assert log.store.size_bytes == sum(len(each[2]) for each in live), what
                assert log.store.record_count == len(live) + len(markers), what
