"""Compaction compared with a naive twin: last record per key, kept offsets, tombstones, a crash at every call."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.compaction import OffsetMap, encode_clean_offsets, read_clean_offsets
from amqpd.storage.log.batch import BatchCursor, BatchHeader
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.retention import trim
from amqpd.storage.retention_policy import FILE_DELETE_DELAY_MS, CleanerPolicy, RetentionPolicy
from amqpd.storage.storage import Storage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.memory_records import MemoryRecords

DAY = 24 * 3_600_000
COMPACT = RetentionPolicy(compaction=CleanerPolicy())


class Twin:
    """A log and the records that it should hold."""

    def __init__(self, harness: Any, policy: RetentionPolicy = COMPACT) -> None:
        self.harness = harness
        self.all: list[tuple[int, bytes, bytes | None]] = []
        harness.create_log()
        harness.storage.set_policy(harness.store, policy)

    def put(self, key: bytes, body: bytes | None) -> int:
        route = RecordRoute(b"events", key)
        store = self.harness.store
        offset = (
            store.appender.append_tombstone(route, b"\x00\x00")
            if body is None
            else store.append_parts(route, b"\x10\x00\x02", body, True)
        )
        self.all.append((offset, key, body))
        return offset

    def fill(self, turns: int, keys: int = 7, each: int = 5, size: int = 100) -> None:
        for turn in range(turns):
            for number in range(each):
                self.put(b"k%d" % ((turn * each + number) % keys), b"%d.%d" % (turn, number) + b"." * size)
            self.harness.end_turn()
            self.harness.clock.now_ms += 1000

    def active(self) -> int:
        """The base offset of the active segment."""
        return self.harness.store.log.segments[-1].base

    def compacted(self, below: int) -> list[int]:
        """Offsets that remain when everything below `below` has been cleaned, with tombstones."""
        last = {key: offset for offset, key, _ in self.all if offset < below}
        return [offset for offset, key, _ in self.all if offset >= below or last[key] == offset]

    def check(self, offsets: list[int]) -> None:
        bodies = {offset: body for offset, _, body in self.all}
        keys = {offset: key for offset, key, _ in self.all}
        found = self.harness.store.cursor.read(0, 1 << 40).records
        assert [record.offset for record in found] == offsets
        for record in found:
            assert record.routing_key == keys[record.offset]
            assert record.body == (bodies[record.offset] or b"")
            assert record.tombstone == (bodies[record.offset] is None)
        assert self.harness.store.record_count == len(offsets)


def maintain(harness: Any) -> None:
    harness.storage.maintain()
    harness.run_callbacks()
    harness.storage.commits.flush()
    harness.run_callbacks()


@pytest.fixture
def twin(make_harness: Callable[..., Any]) -> Twin:
    return Twin(make_harness(segment_size_bytes=3000))


def test_last_record_of_each_key_is_kept(twin: Twin) -> None:
    twin.fill(30)
    before = len(twin.harness.names(".log"))
    active = twin.active()
    size = sum(len(twin.harness.data(name)) for name in twin.harness.names(".log"))
    maintain(twin.harness)
    twin.check(twin.compacted(active))
    assert len(twin.harness.names(".log")) < before, "small neighbouring segments are merged"
    assert sum(len(twin.harness.data(name)) for name in twin.harness.names(".log")) < size / 2
    assert twin.harness.names(".cleaned") == twin.harness.names(".swap") == []
    assert twin.harness.names(".log.deleted")
    twin.harness.clock.now_ms += FILE_DELETE_DELAY_MS
    maintain(twin.harness)
    assert twin.harness.names(".deleted") == []
    twin.check(twin.compacted(active))


def test_batches_read_as_bytes_have_the_remaining_records(twin: Twin) -> None:
    twin.fill(30)
    active = twin.active()
    cursor = twin.harness.store.new_cursor()
    cursor.batches_below_hw(0, 1, True, lambda: None)  # it is in a segment that compaction replaces
    maintain(twin.harness)
    found = cursor.batches_below_hw(1, 1 << 40, True, lambda: None)
    offsets: list[int] = []
    for part in found.parts:
        records: list[Record] = []
        BatchCursor(part, 0, BatchHeader(part, 0)).read(1, None, {}, 1 << 40, records)
        offsets += [record.offset for record in records]
    assert offsets == [offset for offset in twin.compacted(active) if offset >= 1]
    assert twin.harness.store.log_start() == 0


@pytest.mark.parametrize("how", ["clean", "kill", "nothing but logs"])
def test_compacted_log_is_recovered_after_a_restart(twin: Twin, how: str) -> None:
    """Without `.settled` and index files, recovery finds the gaps in the batches and the record count is right."""
    twin.fill(30)
    active = twin.active()
    maintain(twin.harness)
    expected = twin.compacted(active)
    if how == "clean":
        twin.harness.storage.close(clean=True)
    after = twin.harness.filesystem.killed()
    twin.harness.filesystem = after
    if how == "nothing but logs":
        for suffix in (".settled", ".index", ".timeindex", "checkpoint"):
            for name in twin.harness.names(suffix):
                after.unlink(f"{twin.harness.directory}/{name}")
    twin.harness.restart(after)
    twin.check(expected)
    assert not twin.harness.store.has_lost_offsets
    twin.put(b"k0", b"more")
    twin.harness.end_turn()
    twin.check([*expected, twin.all[-1][0]])


def test_repeated_cleaning(twin: Twin) -> None:
    for _ in range(6):
        twin.fill(12)
        active = twin.active()
        maintain(twin.harness)
        twin.check(twin.compacted(active))
    twin.harness.restart()
    twin.check(twin.compacted(active))
    history = read_clean_offsets(twin.harness.filesystem, twin.harness.directory)
    assert history[-1][0] == active


def test_log_is_cleaned_only_above_min_dirty_ratio(twin: Twin) -> None:
    twin.fill(30, keys=100)
    maintain(twin.harness)
    before = twin.harness.offsets()
    twin.harness.storage.set_policy(twin.harness.store, RetentionPolicy(compaction=CleanerPolicy(min_dirty_ratio=0.9)))
    twin.fill(12, keys=100)
    maintain(twin.harness)
    assert twin.harness.offsets()[: len(before)] == before
    twin.harness.storage.set_policy(twin.harness.store, RetentionPolicy(compaction=CleanerPolicy(min_dirty_ratio=0.1)))
    active = twin.active()
    maintain(twin.harness)
    twin.check(twin.compacted(active))


def test_tombstone_deletes_its_key_and_is_removed_after_a_day(twin: Twin) -> None:
    """A tombstone removes the key's earlier records. It is kept for a day after it was cleaned."""
    twin.put(b"gone", b"a value")
    twin.put(b"back", b"old")
    twin.fill(6)
    deleted = twin.put(b"gone", None)
    rewritten = twin.put(b"back", None)
    twin.fill(6)
    twin.put(b"back", b"new")
    twin.fill(8)
    active = twin.active()
    maintain(twin.harness)
    twin.check(twin.compacted(active))
    assert deleted in twin.harness.offsets()
    assert rewritten not in twin.harness.offsets()
    twin.fill(20)
    twin.harness.clock.now_ms += DAY - 60_000
    maintain(twin.harness)
    assert deleted in twin.harness.offsets(), "less than a day since it was cleaned"
    twin.fill(30)
    twin.harness.clock.now_ms += 120_000
    active = twin.active()
    maintain(twin.harness)
    twin.check([offset for offset in twin.compacted(active) if offset != deleted])
    store = twin.harness.restart()
    assert deleted not in twin.harness.offsets()
    assert store.record_count == len(twin.harness.offsets())


def test_tombstone_has_a_null_value_for_kafka(twin: Twin) -> None:
    twin.put(b"k", b"")
    twin.put(b"k", None)
    twin.harness.end_turn()
    batches = MemoryRecords(bytes(twin.harness.log()))
    values = []
    while (batch := batches.next_batch()) is not None:
        values += [(record.key, record.value) for record in batch]
    assert values == [(b"k", b""), (b"k", None)]


def test_kafka_reads_a_cleaned_log(twin: Twin) -> None:
    twin.fill(30)
    maintain(twin.harness)
    found = []
    for name in twin.harness.names(".log"):
        batches = MemoryRecords(bytes(twin.harness.data(name)))
        while (batch := batches.next_batch()) is not None:
            assert batch.validate_crc()
            found += [(record.offset, record.key, record.value) for record in batch]
    records = twin.harness.store.cursor.read(0, 1 << 40).records
    assert found == [(record.offset, record.routing_key, record.body) for record in records]


def test_offset_map_too_small_for_all_keys(make_harness: Callable[..., Any]) -> None:
    """Each cleaning goes as far as its offset map reaches and removes no record beyond."""
    policy = RetentionPolicy(compaction=CleanerPolicy(map_size_bytes=24 * 16, min_dirty_ratio=0.0))
    twin = Twin(make_harness(segment_size_bytes=3000), policy)
    twin.fill(40, keys=37)
    keys = {key for _, key, _ in twin.all}
    wanted = {key: offset for offset, key, _ in twin.all}
    for _ in range(40):
        maintain(twin.harness)
        found = {record.routing_key: record.offset for record in twin.harness.store.cursor.read(0, 1 << 40).records}
        assert found == wanted
        assert set(found) == keys
    assert twin.harness.store.record_count < 150


def test_policy_decides_the_key_of_a_record(make_harness: Callable[..., Any]) -> None:
    policy = RetentionPolicy(compaction=CleanerPolicy(key=lambda record: record.body[:1] if record.body else None))
    twin = Twin(make_harness(segment_size_bytes=2000), policy)
    for number in range(60):
        twin.put(b"k%d" % number, (b"a" if number % 2 else b"b") + b"." * 100 if number % 5 else b"")
        twin.harness.end_turn()
    active = twin.active()
    maintain(twin.harness)
    offsets = twin.harness.offsets()
    keyless = [offset for offset, _, body in twin.all if body == b"" and offset < active]
    assert set(keyless) <= set(offsets), "records without a key are kept"
    assert len([offset for offset in offsets if offset < active]) == len(keyless) + 2


def test_compaction_of_transactions_and_transient_messages(twin: Twin) -> None:
    store = twin.harness.store
    for turn in range(12):
        store.begin_transaction()
        for number in range(70):
            twin.put(b"t%d" % (number % 9), b"%d" % turn)
        store.end_transaction()
        twin.harness.end_turn()
    offset = store.append_parts(RecordRoute(b"", b"transient"), b"", b"passes", False)
    twin.harness.end_turn()
    twin.fill(40)
    maintain(twin.harness)
    found = [record.offset for record in store.cursor.read(0, 1 << 40).records]
    assert offset in found
    assert found == sorted({*twin.compacted(twin.active()), offset})
    twin.harness.restart()
    assert [each for each in found if each != offset] == twin.harness.offsets(), (
        "transactions are whole, transient messages are dropped"
    )
    assert twin.harness.store.record_count == len(found) - 1


def test_reading_continues_while_the_log_is_cleaned(twin: Twin) -> None:
    twin.fill(30)
    active = twin.active()
    first = twin.harness.store.cursor.read(0, 300).records
    maintain(twin.harness)
    after = twin.harness.store.cursor.read(first[-1].offset + 1, 1 << 40).records
    assert [record.offset for record in after] == [
        offset for offset in twin.compacted(active) if offset > first[-1].offset
    ]


def test_trim_during_a_cleaning_is_kept(twin: Twin) -> None:
    """Records trimmed while the cleaner works do not return with its new segments."""
    twin.fill(30)
    active = twin.active()
    twin.harness.storage.maintain()  # the cleaner's part is done, the loop's is not
    middle = twin.compacted(active)[3]
    trim(twin.harness.store, middle)
    twin.harness.end_turn()
    expected = [offset for offset in twin.compacted(active) if offset >= middle]
    twin.check(expected)
    twin.harness.storage.commits.flush()
    twin.harness.run_callbacks()
    twin.harness.restart()
    twin.check(expected)


def test_queue_deleted_during_a_cleaning(twin: Twin) -> None:
    twin.fill(30)
    twin.harness.storage.maintain()
    removed = []
    twin.harness.storage.delete_queue(twin.harness.store, lambda: removed.append(True))
    twin.harness.run_callbacks()
    assert removed == [True]
    assert twin.harness.filesystem.listdir(twin.harness.directory) == []
    twin.harness.storage.maintain()


def test_damaged_log_is_not_cleaned(twin: Twin) -> None:
    twin.fill(30)
    names = twin.harness.names(".log")
    twin.harness.data(names[2])[300] ^= 1
    maintain(twin.harness)
    assert twin.harness.names(".log") == names
    assert twin.harness.names(".cleaned") == []
    assert len(twin.harness.offsets()) == 145


def test_round_cleans_all_dirty_logs_once_also_after_a_damaged_one(twin: Twin) -> None:
    """With one log a round, a hundred logs had 100 minutes of garbage each, and a damaged one kept all others dirty."""
    harness = twin.harness
    twin.fill(30)
    stores = [harness.store]
    for number in range(3):
        _, store = harness.storage.create_queue("v", f"other-{number}", "/")
        harness.storage.set_policy(store, COMPACT)
        for turn in range(100 - number):
            store.append_parts(RecordRoute(b"events", b"k%d" % (turn % 3)), b"\x10\x00\x02", b"." * 100, True)
            harness.end_turn()
        stores.append(store)
    damaged = stores[2].log.directory
    name = sorted(each for each in harness.filesystem.listdir(damaged) if each.endswith(".log"))[1]
    harness.filesystem._get(f"{damaged}/{name}").data[300] ^= 1
    sealed = [store.record_count for store in stores]
    for _ in range(2):
        maintain(harness)
        counts = [store.record_count for store in stores]
        is_cleaned = [count < before / 2 for count, before in zip(counts, sealed, strict=True)]
        assert is_cleaned == [True, True, False, True]
    histories = [read_clean_offsets(harness.filesystem, store.log.directory) for store in stores]
    assert [len(history) for history in histories] == [1, 1, 0, 1]


def test_next_cleaning_begins_after_all_renames_of_a_failed_one(twin: Twin) -> None:
    """Otherwise the second error of a failing disk ended the cleaning of the next log, which had begun."""
    harness = twin.harness
    for number in range(60):
        twin.put(b"k%d" % number, b"." * 100)
        twin.put(b"again", b"." * 100)
        harness.end_turn()
    others = []
    for number in range(2):
        _, store = harness.storage.create_queue("v", f"other-{number}", "/")
        harness.storage.set_policy(store, COMPACT)
        for turn in range(100):
            store.append_parts(RecordRoute(b"events", b"k%d" % (turn % 3)), b"\x10\x00\x02", b"." * 100, True)
            harness.end_turn()
        others.append(store)
    failed: list[str] = []

    def fault(name: str, path: str) -> OSError | None:
        if name == "rename" and path.startswith(harness.directory) and ".swap" in path:
            failed.append(path)
            return OSError(errno.EIO, "Input/output error")
        return None

    harness.filesystem.fault = fault
    maintain(harness)
    assert len(failed) > 1
    assert [store.record_count < 30 for store in others] == [True, True]
    assert [len(read_clean_offsets(harness.filesystem, store.log.directory)) for store in others] == [1, 1]


def test_damaged_cleaner_checkpoint_counts_as_missing(twin: Twin) -> None:
    history = [(17, 1_700_000_000_000), (90, 1_700_000_100_000)]
    filesystem = twin.harness.filesystem
    text = encode_clean_offsets(history)
    twin.fill(1)
    path = f"{twin.harness.directory}/cleaner-offset-checkpoint"
    filesystem.replace_file(path, text, sync=False)
    assert read_clean_offsets(filesystem, twin.harness.directory) == history
    for position in range(len(text) - 1):
        for bit in range(8):
            wrong = bytearray(text)
            wrong[position] ^= 1 << bit
            filesystem.replace_file(path, bytes(wrong), sync=False)
            assert read_clean_offsets(filesystem, twin.harness.directory) in ([], history)
    filesystem.unlink(path)
    assert read_clean_offsets(filesystem, twin.harness.directory) == []


def test_compaction_and_retention_together(make_harness: Callable[..., Any]) -> None:
    policy = RetentionPolicy(max_age_ms=40_000, compaction=CleanerPolicy())
    twin = Twin(make_harness(segment_size_bytes=3000), policy)
    twin.fill(60, keys=200)
    maintain(twin.harness)
    maintain(twin.harness)
    oldest = twin.harness.store.cursor.read(0, 1).records[0]
    assert oldest.timestamp_ms >= twin.harness.clock.now_ms - 40_000 - 10_000
    twin.harness.restart()
    assert twin.harness.store.cursor.read(0, 1).records[0].offset == oldest.offset


@pytest.mark.slow
def test_power_cut_at_any_call_of_a_cleaning(make_harness: Callable[..., Any]) -> None:
    """After a power cut at any call, the last record of each key is there, once and in order."""
    harness = make_harness(segment_size_bytes=1500)
    twin = Twin(harness)
    twin.fill(14, keys=5, each=3)
    harness.storage.commits.flush()
    harness.run_callbacks()
    active = twin.active()
    compacted, whole = twin.compacted(active), [offset for offset, _, _ in twin.all]
    image = harness.filesystem
    seen: set[int] = set()
    number = 0
    while True:
        filesystem = image.killed()
        harness.restart(filesystem)
        harness.storage.set_policy(harness.store, COMPACT)
        calls_left = [number]

        def fault(name: str, path: str, calls_left: list[int] = calls_left) -> OSError | None:
            if calls_left[0] == 0:
                raise KeyboardInterrupt  # the machine stops here
            calls_left[0] -= 1
            return None

        filesystem.fault = fault
        with contextlib.suppress(KeyboardInterrupt):
            maintain(harness)
        filesystem.fault = None
        for seed in range(3):
            after = filesystem.killed() if seed == 0 else filesystem.crashed(number * 10 + seed)
            harness.restart(after, boot_id=f"{number * 10 + seed:032x}" if seed else "1" * 32)
            offsets = harness.offsets()
            assert set(compacted) <= set(offsets) <= set(whole), (number, seed)
            assert offsets == sorted(set(offsets))
            assert harness.store.record_count == len(offsets), (number, seed)
            assert not harness.store.has_lost_offsets, (number, seed)
            assert harness.names(".log.swap") == harness.names(".cleaned") == []
            seen.add(len(offsets))
            (new,) = harness.append(b"new")
            assert new == len(whole)
            harness.end_turn()
            assert harness.restart().next_offset == new + 1
            harness.storage.set_policy(harness.store, COMPACT)
            maintain(harness)
            assert [offset for offset in harness.offsets() if offset != new] == compacted, "cleaned after the restart"
        if calls_left[0] > 0:
            break
        number += 1
    assert number > 40
    assert {len(compacted), len(whole)} <= seen


def test_compaction_with_threads_on_a_real_disk(tmp_path: Any) -> None:
    posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    lock = threading.Lock()

    def post(function: Callable[..., object], *arguments: Any) -> None:
        with lock:
            posted.append((function, arguments))

    def loop() -> None:
        while True:
            with lock:
                if not posted:
                    return
                function, arguments = posted.pop(0)
            function(*arguments)

    storage = Storage(tmp_path, post=post, segment_size_bytes=100_000)
    queue_id, store = storage.create_queue("v", "q", "/", policy=COMPACT)
    chance = random.Random(1)
    last = {}
    for number in range(5000):
        key = b"key %d" % chance.randrange(50)
        last[key] = store.append_parts(RecordRoute(b"", key), b"", b"%d" % number + b"." * 100, True)
        if number % 50 == 0:
            storage.commits.end_of_turn()
            loop()
    storage.commits.end_of_turn()
    deadline = time.monotonic() + 30
    while store.record_count > 1200 and time.monotonic() < deadline:
        storage.maintain()
        storage.commits.end_of_turn()
        loop()
        time.sleep(0.01)
    assert store.record_count < 1200
    storage.close(clean=True)
    storage = Storage(tmp_path, post=post, segment_size_bytes=100_000)
    store = storage.open_queue("v", queue_id, "q", "/")
    found = {record.routing_key: record.offset for record in store.cursor.read(0, 1 << 30).records}
    assert found == last
    storage.close(clean=False)


def test_stop_does_not_wait_for_a_cleaning(tmp_path: Any) -> None:
    posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    storage = Storage(
        tmp_path, post=lambda function, *arguments: posted.append((function, arguments)), segment_size_bytes=50_000
    )
    queue_id, store = storage.create_queue("v", "q", "/", policy=COMPACT)
    for number in range(3000):
        store.append_parts(RecordRoute(b"", b"%d" % (number % 9)), b"", b"." * 100, True)
        if number % 50 == 0:
            storage.commits.end_of_turn()
    storage.commits.end_of_turn()
    storage.maintain()
    storage.close(clean=True)
    names = sorted(path.name for path in tmp_path.rglob("*"))
    for function, arguments in posted:
        function(*arguments)  # callbacks after the stop change nothing
    storage.maintain()
    assert sorted(path.name for path in tmp_path.rglob("*")) == names
    storage = Storage(tmp_path, post=lambda *arguments: None, segment_size_bytes=50_000)
    store = storage.open_queue("v", queue_id, "q", "/")
    found = {record.routing_key: record.offset for record in store.cursor.read(0, 1 << 30).records}
    assert sorted(found.values()) == list(range(2991, 3000))
    storage.close(clean=False)


def test_offset_map_refuses_new_keys_when_full() -> None:
    keys = OffsetMap(24 * 100)
    assert keys.capacity == 75
    for number in range(75):
        assert keys.put(b"%d" % number, number)
    assert not keys.put(b"one more", 100)
    assert keys.put(b"7", 101), "a known key always fits"
    assert [keys.get(b"%d" % number) for number in (0, 7, 74, 75)] == [0, 101, 74, -1]
