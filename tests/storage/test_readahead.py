"""Reading a log that is not in the page cache: another thread reads, and the caller never waits for the disk."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.reader import CHUNK_SIZE
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.storage import Storage
from amqpd.storage.worker import RANGE_SIZE

ROUTE = RecordRoute(b"", b"tasks")
SEGMENT_SIZE = 9 << 20
READ_SIZE = 256 << 10


class ColdFileSystem(FileSystem):
    """A file system whose bytes are cold until they are fetched. It records cold reads, and the disk may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = True
        self.failing = False
        self.fetched: dict[int, list[tuple[int, int]]] = {}  # descriptor -> (from, to)
        self.fetches = 0
        self.fetched_bytes = 0
        self.logs: set[int] = set()
        self.waits: list[tuple[int, int]] = []  # (position, size) of reads that would wait for a disk
        self.gate = threading.Event()
        self.gate.set()

    def resident(self, fd: int, size: int, position: int) -> bool:
        return not self.cold or self._is_fetched(fd, size, position)

    def read_resident(self, fd: int, size: int, position: int) -> bytes:
        return self.pread(fd, size, position) if self.resident(fd, size, position) else b""

    def _is_fetched(self, fd: int, size: int, position: int) -> bool:
        for first, last in sorted(self.fetched.get(fd, [])):
            if first <= position:
                position, size = max(position, last), position + size - max(position, last)
        return size <= 0

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        if path.endswith(".log"):
            self.logs.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.fetched.pop(fd, None)
        self.logs.discard(fd)
        super().close(fd)

    def read_into_cache(self, fd: int, size: int, position: int) -> None:
        self.gate.wait(60)
        self.fetches += 1
        self.fetched_bytes += size
        if self.failing:
            raise OSError(errno.EIO, "the disk")
        super().read_into_cache(fd, size, position)
        self.fetched.setdefault(fd, []).append((position, position + size))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if self.cold and fd in self.logs and not self._is_fetched(fd, size, position):
            self.waits.append((position, size))
        return super().pread(fd, size, position)


class Reading:
    """A storage with one log, and a queue in place of the event loop."""

    def __init__(self, path: Path) -> None:
        self.posted: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
        self.filesystem = ColdFileSystem()
        self.storage = Storage(
            path, post=self._post, filesystem=self.filesystem, segment_size_bytes=SEGMENT_SIZE, boot_id="1" * 32
        )
        self.queue_id, self.store = self.storage.create_queue("v", "tasks", "/")
        self.arrivals = 0
        self.waits = 0

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.posted.put((function, arguments))

    def fill(self, count: int, size: int = 1000) -> None:
        for number in range(count):
            self.store.append_parts(ROUTE, b"\x00\x00", b"%08d" % number + bytes(size - 8), True)
            if number % 500 == 0:
                self.storage.commits.end_of_turn()
        self.storage.commits.flush()
        self.run_until(lambda: self.storage.commits.unsynced_bytes == 0)
        self.store.release_files()
        self.filesystem.waits.clear()

    def run_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not ready():
            function, arguments = self.posted.get(timeout=max(0.01, deadline - time.monotonic()))
            function(*arguments)

    def arrived(self) -> None:
        self.arrivals += 1

    def read_all(self, offset: int = 0) -> list[Record]:
        """Read as a queue does: cached records first, and again when the disk has answered."""
        found: list[Record] = []
        while True:
            fetch = self.store.cursor.read_if_cached(offset, READ_SIZE, self.arrived)
            found += fetch.records
            offset = fetch.next_offset
            if not fetch.records and not fetch.waiting:
                return found
            if not fetch.records:
                self.waits += 1
                before = self.arrivals
                self.run_until(lambda before=before: self.arrivals > before)  # type: ignore[misc]

    def numbers(self, records: list[Record]) -> list[int]:
        return [int(record.body[:8]) for record in records]


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    reading = Reading(tmp_path / "data")
    yield reading
    reading.filesystem.gate.set()
    reading.storage.close(clean=False)


def test_cold_log_is_fetched_by_the_other_thread(reading: Reading) -> None:
    """All records are read in order, none before it is fetched. Hardly a byte is fetched twice."""
    reading.fill(30_000)
    assert len(reading.store.log.segments) > 3
    assert reading.numbers(reading.read_all()) == list(range(30_000))
    assert reading.filesystem.waits == []
    size = sum(segment.size for segment in reading.store.log.segments)
    assert size <= reading.filesystem.fetched_bytes <= 1.2 * size
    assert 0 < reading.waits <= reading.filesystem.fetches


def test_cached_log_is_not_fetched(reading: Reading) -> None:
    reading.fill(12_000)
    reading.filesystem.cold = False
    assert reading.numbers(reading.read_all()) == list(range(12_000))
    assert reading.filesystem.fetches == 0
    assert reading.waits == 0
    assert reading.storage._ahead.worker._thread is None


def test_next_range_is_fetched_while_this_one_is_delivered(reading: Reading) -> None:
    """First a chunk is fetched, because it arrives soon; then one range ahead, and no more for a slow reader."""
    reading.fill(30_000)
    fetch = reading.store.cursor.read_if_cached(0, READ_SIZE, reading.arrived)
    assert (fetch.records, fetch.next_offset, fetch.waiting) == ([], 0, True)
    reading.run_until(lambda: reading.arrivals == 1)
    assert reading.filesystem.fetched_bytes == CHUNK_SIZE
    records = reading.store.cursor.read_if_cached(0, READ_SIZE, reading.arrived).records
    assert len(records) > 100
    reading.run_until(lambda: reading.storage._ahead.count == 2)  # no reader waits for it yet
    assert reading.filesystem.fetched_bytes == CHUNK_SIZE + RANGE_SIZE
    for _ in range(4):
        records = reading.store.cursor.read_if_cached(records[-1].offset + 1, READ_SIZE, reading.arrived).records
        assert len(records) > 100
    reading.run_until(lambda: reading.storage._ahead.count == 3)
    assert reading.filesystem.fetches == 3
    assert reading.arrivals <= 2  # the chunk, and the batch that extends beyond it


def test_acked_parts_are_skipped(reading: Reading) -> None:
    reading.fill(12_000)
    reading.store.ack_range(10, 9_999)
    reading.storage.commits.end_of_turn()
    assert reading.numbers(reading.read_all()) == [*range(10), *range(10_000, 12_000)]
    assert reading.filesystem.waits == []


@pytest.mark.parametrize("size", [300_000, RANGE_SIZE - 100, RANGE_SIZE + 1, 3 * RANGE_SIZE])
def test_large_batches_are_read_ahead(reading: Reading, size: int) -> None:
    reading.fill(7, size)
    records = reading.read_all()
    assert reading.numbers(records) == list(range(7))
    assert {len(record.body) for record in records} == {size}


def test_failed_fetch_is_read_again_by_the_caller(reading: Reading) -> None:
    """A read error is raised by the caller's own read."""
    reading.fill(6_000)
    reading.filesystem.failing = True
    assert reading.numbers(reading.read_all()) == list(range(6_000))
    assert reading.filesystem.waits


def test_queue_deleted_during_a_fetch(reading: Reading) -> None:
    """Its descriptors are closed when the thread is done with them, and no callback runs."""
    reading.fill(6_000)
    reading.filesystem.gate.clear()
    assert reading.store.cursor.read_if_cached(0, READ_SIZE, reading.arrived).records == []
    file = reading.store.log.segments[0].log_file
    assert file is not None and file.pins == 1
    removed: list[bool] = []
    reading.storage.delete_queue(reading.store, lambda: removed.append(True))
    assert file.fd >= 0
    reading.filesystem.gate.set()
    reading.run_until(lambda: bool(removed) and file.fd < 0)
    assert reading.arrivals == 0


def test_files_being_fetched_are_not_released(reading: Reading) -> None:
    reading.fill(6_000)
    reading.filesystem.gate.clear()
    assert reading.store.cursor.read_if_cached(0, READ_SIZE, reading.arrived).records == []
    assert not reading.store.release_files()
    reading.filesystem.gate.set()
    reading.run_until(lambda: reading.arrivals == 1)
    assert reading.store.release_files()
    assert reading.numbers(reading.read_all()) == list(range(6_000))


def test_waiting_read_during_a_fetch(reading: Reading) -> None:
    """basic.get next to a consumer waits for the disk, and the consumer's read continues where it was."""
    reading.fill(6_000)
    reading.filesystem.gate.clear()
    assert reading.store.cursor.read_if_cached(0, READ_SIZE, reading.arrived).records == []
    assert reading.numbers(reading.store.cursor.read(0, 1).records) == [0]
    assert reading.numbers(reading.store.cursor.read(4_000, 1).records) == [4_000]
    reading.filesystem.gate.set()
    assert reading.numbers(reading.read_all(1)) == list(range(1, 6_000))


def test_resident_asks_the_page_cache(tmp_path: Path) -> None:
    """Just written bytes are resident, dropped ones are not."""
    filesystem = FileSystem()
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = filesystem.open(str(path), os.O_RDWR)
    try:
        try:
            os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not know RWF_NOWAIT")
        assert filesystem.resident(fd, 1 << 20, 0)
        filesystem.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not filesystem.resident(fd, 1 << 20, 0)
        filesystem.read_into_cache(fd, 1 << 20, 0)
        assert filesystem.resident(fd, 1 << 20, 0)
    finally:
        filesystem.close(fd)


def test_removed_segment_is_closed_by_another_thread(reading: Reading) -> None:
    """Closing the last descriptor frees the blocks, which takes disk time. The loop and the fsync thread do not wait
    for it.
    """
    reading.fill(30_000)
    store = reading.store
    assert len(reading.numbers(reading.read_all())) == 30_000
    removed = [segment.base for segment in store.log.segments[:-1]]
    here = threading.get_ident()
    closed: list[int] = []
    close = reading.filesystem.close

    def recording_close(fd: int) -> None:
        closed.append(threading.get_ident())
        close(fd)

    reading.filesystem.close = recording_close  # type: ignore[method-assign]
    store.ack_range(0, 29_999)
    reading.storage.commits.flush()
    reading.run_until(lambda: not {segment.base for segment in store.log.segments} & set(removed))
    reading.storage._worker.close()
    assert [thread for thread in closed if thread != here]
    assert reading.filesystem.open_file_count <= 4
    assert all(f"{base:020d}.log" not in reading.filesystem.listdir(store.log.directory) for base in removed)


def test_directory_is_removed_by_another_thread(reading: Reading) -> None:
    """Removing a long log takes seconds, in which the fsync thread has other logs to sync."""
    reading.fill(12_000)
    other = reading.storage.create_queue("v", "other", "/")[1]
    started, may_continue = threading.Event(), threading.Event()
    remove = reading.filesystem.remove_tree

    def slow_remove(path: str) -> None:
        started.set()
        may_continue.wait(60)
        remove(path)

    reading.filesystem.remove_tree = slow_remove  # type: ignore[method-assign]
    removed: list[bool] = []
    reading.storage.delete_queue(reading.store, lambda: removed.append(True))
    assert started.wait(60)
    other.append_parts(ROUTE, b"\x00\x00", b"one", True)
    reading.storage.commits.end_of_turn()
    reading.run_until(lambda: other.high_watermark == 1)
    assert not removed
    may_continue.set()
    reading.run_until(lambda: bool(removed))


def test_large_batches_of_a_stream_are_read_when_fetched(reading: Reading) -> None:
    """The batches are read one by one: the first ones cold, the next ones cached, the last ones cold again."""
    reading.fill(600, size=20_000)
    cursor = reading.store.new_cursor()

    def read(offset: int, end: int) -> list[int]:
        found: list[int] = []
        while offset < end:
            views = cursor.views_below_hw(offset, 64 * 1024, reading.arrived)
            found += [int(views.body(index)[:8]) for index in range(views.count)]
            offset = views.next_offset
            if not views.count:
                assert views.waiting
                reading.waits += 1
                before = reading.arrivals
                reading.run_until(lambda before=before: reading.arrivals > before)  # type: ignore[misc]
        return found

    found = read(0, 300)
    reading.filesystem.cold = False
    found += read(len(found), 400)
    reading.filesystem.cold = True
    waits = reading.waits
    found += read(len(found), 600)
    assert found == [*range(600)]
    assert reading.waits > waits > 0
    assert not reading.filesystem.waits


def test_batches_of_a_cold_log_are_read_without_a_wait_for_the_disk(reading: Reading) -> None:
    reading.fill(30_000)
    cursor = reading.store.new_cursor()
    offset = size = 0
    while offset < 30_000:
        found = cursor.batches_below_hw(offset, 1 << 20, True, reading.arrived)
        offset = found.next_offset
        size += found.size_bytes
        if found.waiting and not found.parts:
            before = reading.arrivals
            reading.run_until(lambda before=before: reading.arrivals > before)  # type: ignore[misc]
    assert size == sum(segment.size for segment in reading.store.log.segments)
    assert reading.filesystem.waits == []
